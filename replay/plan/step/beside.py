# pyright: strict
"""Places the collectives of a recorded step among its calls.

The place says before which call each collective was requested, and before which call it was waited for. The wait is
recorded if the collective blocks or has its own wait (`wait_tensor`). Otherwise it is inferred: only a call that began
after the recorded end of the collective can have waited for it, so the first such call is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Literal

import msgspec
import numpy as np

from opreplay.replay.ir.model import CollectiveCall, RecordedSequence
from opreplay.traces.arrays import Ints

How = Literal["recorded", "order", "unknown"]
Times = Ints
NEVER = np.iinfo(np.int64).max
"""Stands for the start of a call's device work if the call launched none."""


class RequestedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a trace, with times on the trace's clock."""

    id: str
    """Id of the op in the plan."""
    asked_ns: int
    ended_ns: int | None
    """End of the collective in ns; None if unknown."""
    on_device: bool
    """Whether `ended_ns` is the end of the collective's device work."""
    blocking: bool
    waited_ns: int | None
    """Start in ns of the op that waits for the collective; None without such an op."""
    us: float
    """Duration in microseconds, including the wait for other ranks."""
    op_us: float
    """Part of `us` that is also in the step's times.

    It is the device time of the op that requested the collective, or that op's host time if there is no device.
    """


def place_collectives(
    asked: Sequence[RequestedCollective], begin_ns: int, end_ns: int, starts_ns: Times, begins_ns: Times
) -> tuple[CollectiveCall, ...]:
    """Return the collectives requested in a step, with their places among its calls.

    `starts_ns` [calls] has the start of each call, in order. `begins_ns` [calls] has the start of each call's first
    device work.
    """
    starts: list[int] = starts_ns.tolist()
    out: list[CollectiveCall] = []
    for collective in sorted(asked, key=lambda collective: collective.asked_ns):
        if not begin_ns <= collective.asked_ns < end_ns:
            continue
        at = bisect_left(starts, collective.asked_ns)
        wait = at
        how: How = "unknown"
        if collective.waited_ns is not None:
            wait, how = max(at, bisect_left(starts, collective.waited_ns)), "recorded"
        elif collective.blocking:
            how = "recorded"
        elif collective.ended_ns is not None:
            began = (begins_ns if collective.on_device else starts_ns)[at:]
            later = np.flatnonzero((began >= collective.ended_ns) & (began < NEVER))
            wait, how = (at + int(later[0]) if len(later) else len(starts)), "order"
        out.append(
            CollectiveCall(id=collective.id, at=at, wait=wait, how=how, us=collective.us, op_us=collective.op_us)
        )
    return tuple(out)


def without_calls(sequence: RecordedSequence, known: Collection[str]) -> RecordedSequence:
    """Return the sequence with only the calls and collectives of `known` ops. Positions are adjusted to this shorter
    sequence.
    """
    remaining = [i for i, which in enumerate(sequence.calls) if sequence.ids[which] in known]
    ids = tuple(id_ for id_ in sequence.ids if id_ in known)
    number = {id_: i for i, id_ in enumerate(ids)}
    here = _new_places(sequence, remaining)
    return msgspec.structs.replace(
        sequence,
        ids=ids,
        calls=tuple(number[sequence.ids[sequence.calls[i]]] for i in remaining),
        collectives=tuple(
            msgspec.structs.replace(collective, at=here[collective.at], wait=here[collective.wait])
            for collective in sequence.collectives
            if collective.id in known
        ),
        **{
            name: tuple(values[i] for i in remaining)
            for name in ("host_us", "device_us", "memories", "phases", "modules")
            if (values := getattr(sequence, name))
        },
    )


def with_collectives_beside(sequence: RecordedSequence, collectives: Collection[str]) -> RecordedSequence:
    """Return the sequence with the calls of `collectives` converted to collectives that overlap the other calls. This
    is how a captured step represents them.

    The wait is placed before the next call that reads the result. If memory is not recorded, the collective is waited
    for immediately.
    """
    among = [i for i, which in enumerate(sequence.calls) if sequence.ids[which] in collectives]
    if not among:
        return sequence
    taken = set(among)
    here = _new_places(sequence, [i for i in range(len(sequence.calls)) if i not in taken])
    calls: list[CollectiveCall] = list(sequence.collectives)
    for i in among:
        device = sequence.device_us[i] if sequence.device_us else 0.0
        next_, how = _reader(sequence, i)
        us = device or sequence.host_us[i]
        id_ = sequence.ids[sequence.calls[i]]
        calls.append(CollectiveCall(id=id_, at=here[i], wait=here[next_], how=how, us=us, op_us=us))
    others = without_calls(sequence, set(sequence.ids) - set(collectives))
    return msgspec.structs.replace(others, collectives=tuple(sorted(calls, key=lambda call: call.at)))


def _new_places(sequence: RecordedSequence, remaining: Sequence[int]) -> list[int]:
    """Map each old position in the sequence, and its end, to the position after calls were removed."""
    there = [0] * (len(sequence.calls) + 1)
    for i in remaining:
        there[i + 1] = 1
    return list(accumulate(there))


def _reader(sequence: RecordedSequence, place: int) -> tuple[int, How]:
    """Return (position of the next call that reads memory written by the call at `place`, how this was determined)."""
    if not sequence.memories:
        return place, "unknown"
    arguments, results = sequence.memories[place]
    written = {memory for memory in (*arguments, *results) if memory >= 0}
    if not written:
        return place, "unknown"
    for later in range(place + 1, len(sequence.calls)):
        if written.intersection(sequence.memories[later][0]):
            return later, "recorded"
    return len(sequence.calls), "recorded"
