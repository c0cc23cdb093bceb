# pyright: strict
"""Find the calls that autograd recorded, using the sequence numbers of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opreplay.traces.arrays import Array, Bools, Ints
from opreplay.traces.model import OpSignature, OpTable

_OF_BACKWARD = ("autograd::engine", "torch::autograd::")


class AutogradCalls(NamedTuple):
    """Masks over all calls: where autograd recorded a node, and where it is unknown whether it did."""

    recorded: Bools
    """Whether autograd recorded a node, because gradients were on and an input required them."""
    assumed: Bools
    """Whether gradients were on but it is unknown if an input required them; False for calls in `recorded`."""


def recorded_by_autograd(ops: OpTable, sequence: Array, signatures: Sequence[OpSignature]) -> AutogradCalls:
    """Find the calls for which autograd recorded a node.

    With gradients on, a call gets the number that the next node of its thread will have (`at::sequence_number::peek()`
    in `c10::Dispatcher`); all other calls have -1 in `sequence`. So if a call recorded nodes, the number of the next
    call is larger. The last calls of a thread have no next call. They count as recorded if the backward pass has a node
    with their number and no call of another thread has that number. Otherwise they are judged like most calls with the
    same arguments. Without such calls, they are assumed to require no gradients.
    """
    forward = np.array([_is_forward(signature.name) for signature in signatures], bool)
    out, assumed = np.zeros(len(ops), np.bool_), np.zeros(len(ops), np.bool_)
    numbered = np.flatnonzero(sequence >= 0)
    if not len(numbered):
        return AutogradCalls(out, assumed)
    is_forward = forward[ops.signature[numbered]]
    rows, nodes = numbered[is_forward], set(sequence[numbered[~is_forward]].tolist())
    if not len(rows):
        return AutogradCalls(out, assumed)
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
        if out[row]:
            continue
        alike = out[known[ops.signature[known] == ops.signature[row]]]
        if int(sequence[row]) in nodes and not _on_another_track(ops, sequence, known, row):
            out[row] = True
        elif len(alike):
            out[row] = alike.mean() >= 0.5
        else:
            assumed[row] = True
    return AutogradCalls(out, assumed)


def _on_another_track(ops: OpTable, sequence: Array, rows: Ints, row: int) -> bool:
    """Check whether one of `rows` on another thread has the sequence number of `row`; each thread counts separately."""
    return bool(np.any((sequence[rows] == sequence[row]) & (ops.track[rows] != ops.track[row])))


def _is_forward(name: str) -> bool:
    """Check whether a name belongs to an op, not to an autograd node or a label."""
    return "::" in name and not name.startswith(_OF_BACKWARD)
