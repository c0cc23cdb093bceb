# pyright: strict
"""Find losses that only the finished tables of a trace reveal: unknown type names and duplicate events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from opreplay.traces.arrays import Integers
from opreplay.traces.dtypes import unknown_types
from opreplay.traces.model import OpSignature
from opreplay.traces.names import printable

MAX_NAMES = 5
"""Maximum number of unknown type names that are reported one by one; the others are counted together."""

COPIED_OPS, COPIED_WORK = "copy of a host op", "copy of device work"
"""Reasons in `losses` for duplicate events that were dropped. No information is lost with them."""


def without_copies(losses: Mapping[str, int]) -> dict[str, int]:
    """Return the losses without those of duplicate events, in which no information was lost."""
    return {reason: count for reason, count in losses.items() if reason not in (COPIED_OPS, COPIED_WORK)}


def copies_text(losses: Mapping[str, int]) -> str:
    """Return "120 duplicate events in the file were counted only once", or "" if there are none."""
    copies = losses.get(COPIED_OPS, 0) + losses.get(COPIED_WORK, 0)
    if not copies:
        return ""
    return (
        f"{copies:,} duplicate events in the file were counted only once"
        if copies > 1
        else "1 duplicate event in the file was counted only once"
    )


def loss_text(losses: Mapping[str, int], shown: str) -> str:
    """Return a text about losses and duplicate events; "" if there are none.

    `shown` is a subject with its verb, for example "the results are". The text about losses ends with it, followed by
    "of the rest".
    """
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in without_copies(losses).items())
    lost = f"not everything could be read ({reasons}): {shown} of the rest" if reasons else ""
    return "; ".join(filter(None, (lost, copies_text(losses))))


def unknown_type_losses(signatures: Sequence[OpSignature], signature: Integers | Sequence[int]) -> Counter[str]:
    """Count calls with unknown argument types, by type name; `signature` is the signature index of each call."""
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
    """Return the unknown type names of a call, including those inside its tensor lists."""
    in_lists = (name for names in signature.list_types or () for name in names)
    return set(unknown_types((*(signature.types or ()), *in_lists)))
