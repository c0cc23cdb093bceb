# pyright: strict
"""Which calls autograd recorded, from the sequence numbers of a trace; knows nothing of what is made of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opreplay.traces.model import OpSignature, OpTable

_OF_BACKWARD = ("autograd::engine", "torch::autograd::")


def recorded_by_autograd(
    ops: OpTable, sequence: npt.NDArray[Any], signatures: Sequence[OpSignature]
) -> npt.NDArray[np.bool_]:
    """Of each call: whether autograd recorded a node for it, so that gradients were on and an input required them.

    A call with gradients on is given the number of the next node of its thread (`at::sequence_number::peek()` in
    `c10::Dispatcher`), others get none, -1 in `sequence`. So the number that follows the call is a larger one where
    nodes were recorded in it. Nothing follows the last calls of a thread: they count as most other calls with the same
    arguments do, and as recorded where there are none. Nodes of a backward pass repeat the numbers of the forward one,
    and tell nothing here.
    """
    forward = np.array([_is_forward(signature.name) for signature in signatures], bool)
    out = np.zeros(len(ops), np.bool_)
    rows = np.flatnonzero(sequence >= 0)
    if len(rows):
        rows = rows[forward[ops.signature[rows]]]
    if not len(rows):
        return out
    end = ops.start_ns[rows] + ops.dur_ns[rows].astype(np.int64)
    order = np.lexsort((-end, ops.start_ns[rows], ops.track[rows]))
    rows, end = rows[order], end[order]
    number = sequence[rows].astype(np.int64)
    unknown: list[int] = []
    bounds = np.flatnonzero(np.diff(ops.track[rows].astype(np.int64))) + 1
    for part in np.split(np.arange(len(rows)), bounds):
        first, last = int(part[0]), int(part[-1])
        following = first + np.searchsorted(ops.start_ns[rows[part]], end[part], side="left")
        unknown += rows[part[following > last]].tolist()
        after = number[np.minimum(np.maximum(following, part + 1), last)]
        out[rows[part]] = after > number[part]
    known = np.setdiff1d(rows, np.array(unknown, np.int64))
    for row in unknown:
        alike = out[known[ops.signature[known] == ops.signature[row]]]
        out[row] |= bool(alike.mean() >= 0.5) if len(alike) else True
    return out


def _is_forward(name: str) -> bool:
    """Whether a name is that of an op, and not of a node or a label."""
    return "::" in name and not name.startswith(_OF_BACKWARD)
