# pyright: strict
"""Losses that only the finished tables of a trace show: type names that opreplay does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from opreplay.traces.dtypes import unknown_types
from opreplay.traces.model import OpSignature
from opreplay.traces.names import printable

MAX_NAMES = 5
"""Unknown type names that are reported one by one; the rest are counted together."""


def unknown_type_losses(
    signatures: Sequence[OpSignature], signature: npt.NDArray[np.integer] | Sequence[int]
) -> Counter[str]:
    """Count the calls per type name that opreplay does not know; `signature` is the signature index of each call."""
    unknown = [(index, names) for index, each in enumerate(signatures) if (names := unknown_types_of(each))]
    if not unknown:
        return Counter()
    calls = np.bincount(signature, minlength=len(signatures))
    by_name: Counter[str] = Counter()
    for index, names in unknown:
        for name in names:
            by_name[name] += int(calls[index])
    losses = Counter({f"unknown type name {printable(name[:60])!r}": n for name, n in by_name.most_common(MAX_NAMES)})
    if rest := sum(n for _, n in by_name.most_common()[MAX_NAMES:]):
        losses["other unknown type names"] += rest
    return losses


def unknown_types_of(signature: OpSignature) -> set[str]:
    """Return the type names of a call, those inside its tensor lists included, that opreplay does not know."""
    in_lists = (name for names in signature.list_types or () for name in names)
    return set(unknown_types((*(signature.types or ()), *in_lists)))
