# pyright: strict
"""Choose the part of a trace that is one step, using annotations of the profiler or of an inference server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from opreplay.traces.activity import CALL_KINDS, Activity
from opreplay.traces.arrays import Bools, Ints
from opreplay.traces.errors import NothingRan, TraceError
from opreplay.traces.links.annotations import AnnotationTable, batch_context, step_number
from opreplay.traces.losses import without_copies
from opreplay.traces.model import Annotation, Trace
from opreplay.traces.reading.fields import GRAPH_CALL, KERNEL_CALL, call_kind

RUNTIME = CALL_KINDS.index("runtime")
MOST_COMPARED = 32
"""Maximum number of steps, counted from the first, that are compared with another trace. Comparing one step takes as
long as computing a timeline.
"""
_HINT = (
    "Record with torch.profiler and call profiler.step(), or cut a time range with `opreplay trim "
    "TRACE --between A..B`."
)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The time range of one step on the host thread whose annotation marks the step."""

    name: str
    """Name of the annotation, "ProfilerStep#7" or "execute_…", or "the whole trace" if no step is marked."""
    number: int | None
    start_ns: int
    end_ns: int
    track: int
    """Index into `Trace.tracks`; -1 if no step is marked."""
    marked: bool
    """Whether the step is marked; False if the whole trace counts as one step."""


PairedBy = Literal["number", "median", "whole"]
"""How the steps of two traces are paired.

"number" means that the i-th steps of both traces have the same number. "median" means that the traces have no number in
common, so only their median steps can be compared. "whole" means that each recording counts as one step, because a
trace marks no steps or some of its calls are lost.
"""


class ComparedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Those steps of two traces that are compared with each other."""

    by: PairedBy
    before: tuple[Step, ...]
    after: tuple[Step, ...]


def compared_steps(before: Trace, after: Trace) -> ComparedSteps:
    """Return the steps of two traces to compare. Raises NothingRan for a trace in which nothing ran."""
    first, second = busy_steps(before), busy_steps(after)
    lost = any(without_copies(trace.info.report.losses) for trace in (before, after))
    if not first or not second or lost:
        return ComparedSteps(by="whole", before=(_whole(before),), after=(_whole(after),))
    was, now = _by_number(first), _by_number(second)
    if common := [key for key in was if key in now][:MOST_COMPARED]:
        return ComparedSteps(
            by="number", before=tuple(was[key] for key in common), after=tuple(now[key] for key in common)
        )
    return ComparedSteps(by="median", before=first[:MOST_COMPARED], after=second[:MOST_COMPARED])


def _by_number(steps: Sequence[Step]) -> dict[tuple[int, int], Step]:
    """Return (number, occurrence) → step for numbered steps; a number may occur several times."""
    seen: Counter[int] = Counter()
    out: dict[tuple[int, int], Step] = {}
    for step in steps:
        if step.number is not None:
            out[step.number, seen[step.number]] = step
            seen[step.number] += 1
    return out


def steps_of(trace: Trace) -> tuple[Step, ...]:
    """Return all marked steps sorted by time: the profiler's steps, otherwise an inference server's outermost
    iterations.
    """
    marks = _marks(trace)
    profiler = [mark for mark in marks if mark.number is not None]
    if profiler:
        return tuple(_once_each(trace, sorted(profiler, key=lambda step: (step.start_ns, step.track))))
    marks.sort(key=lambda step: (step.start_ns, -step.end_ns))
    outer: list[Step] = []
    for mark in marks:
        if not outer or mark.start_ns >= outer[-1].end_ns or mark.track != outer[-1].track:
            outer.append(mark)
    return tuple(outer)


def _once_each(trace: Trace, marks: list[Step]) -> list[Step]:
    """Return the marks sorted by start, with only one mark for each step that several threads mark.

    Overlapping marks with equal numbers are one step. The kept mark is that of the thread that ran most ops in the
    step, or the longest mark if several threads ran equally many. Steps of two processes are never the same step.
    """
    out: list[Step] = []
    of_track = () if trace.info.merged is None else trace.info.merged.of_track
    open_: dict[tuple[int, int | None], int] = {}
    starts: dict[int, Ints] = {}

    def weight(mark: Step) -> tuple[int, int]:
        first, last = np.searchsorted(_starts_of_track(trace, starts, mark.track), (mark.start_ns, mark.end_ns))
        return int(last - first), mark.end_ns - mark.start_ns

    for mark in marks:
        key = of_track[mark.track] if 0 <= mark.track < len(of_track) else -1, mark.number
        at = open_.get(key)
        if at is None or mark.start_ns >= out[at].end_ns:
            open_[key] = len(out)
            out.append(mark)
        elif weight(mark) > weight(out[at]):
            out[at] = mark
    return sorted(out, key=lambda step: (step.start_ns, step.track))


def _starts_of_track(trace: Trace, known: dict[int, Ints], track: int) -> Ints:
    """Return the sorted start times of the ops of a thread, and cache them in `known`."""
    if track not in known:
        known[track] = np.sort(trace.ops.start_ns[trace.ops.track == track])
    return known[track]


def chosen_step(trace: Trace, number: int | None = None) -> Step:
    """Return step `number`; by default the step of median length.

    `number` is N of "ProfilerStep#N", or an index from 0 if the steps have no number. If some steps launch work, the
    median is taken over these steps only. Raises TraceError for a number that does not exist.
    """
    steps = steps_of(trace)
    if not steps:
        if number is not None:
            raise TraceError(f"{trace.info.path} marks no step, so there is no step {number}", hint=_HINT)
        return _whole(trace)
    if number is not None:
        numbered = [s for i, s in enumerate(steps) if (i if s.number is None else s.number) == number]
        if not numbered:
            known = ", ".join(str(i if s.number is None else s.number) for i, s in enumerate(steps))
            raise TraceError(f"{trace.info.path} has no step {number}", hint=f"Its steps: {known[:400]}.")
        return numbered[0]
    ordered = sorted(busy_steps(trace), key=lambda step: (step.end_ns - step.start_ns, step.start_ns))
    return ordered[(len(ordered) - 1) // 2]


def busy_steps(trace: Trace) -> tuple[Step, ...]:
    """Return the marked steps that launch work, or all marked steps if none does."""
    steps = steps_of(trace)
    return tuple(step for step, calls in zip(steps, _calls_in(trace, steps), strict=True) if calls) or steps


def launches_in(trace: Trace, step: Step) -> tuple[int, int]:
    """Return how many calls in a step launch kernels or graphs, and how many of these calls have no recorded device
    work.

    Return (0, 0) for a trace that was read without its activity, or whose device work has no correlation ids.
    """
    activity = trace.activity
    if activity is None or (len(trace.kernels) and not (activity.correlation >= 0).any()):
        return 0, 0
    calls = activity.calls
    inside = (
        launching_calls(activity)
        & (calls.correlation >= 0)
        & (calls.start_ns >= step.start_ns)
        & (calls.start_ns < step.end_ns)
    )
    ids = calls.correlation[inside]
    return len(ids), int((~np.isin(ids, activity.correlation)).sum())


def launching_calls(activity: Activity) -> Bools:
    """Return a mask of the calls that launch kernels or graphs."""
    kinds = np.array([call_kind(name.encode()) for name in activity.names] or [0])
    return np.isin(kinds[activity.calls.name], (KERNEL_CALL, GRAPH_CALL)) & (activity.calls.kind == RUNTIME)


def _calls_in(trace: Trace, steps: Sequence[Step]) -> list[int]:
    """Return how many calls in each step launch recorded device work. If no call of the whole trace does, return the
    number of ops in each step instead.
    """
    starts: Ints = np.sort(trace.ops.start_ns)
    activity = trace.activity
    if activity is not None and len(trace.kernels):
        launching = np.isin(activity.calls.correlation, activity.correlation[activity.correlation >= 0])
        if launching.any():
            starts = np.sort(activity.calls.start_ns[launching])
    edges = np.array([(step.start_ns, step.end_ns) for step in steps], np.int64).reshape(-1, 2)
    at = np.searchsorted(starts, edges)
    return (at[:, 1] - at[:, 0]).tolist()


def _marking_notes(annotations: Sequence[Annotation]) -> list[Annotation]:
    """Return the annotations whose names mark a step."""
    notes = AnnotationTable.of(annotations)
    wanted = np.array([_is_mark(name) for name in notes.names] or [False])
    rows: list[int] = np.flatnonzero(wanted[notes.name]).tolist() if len(notes) else []
    return [notes[int(row)] for row in rows]


def _marks(trace: Trace) -> list[Step]:
    """Return the marks of steps: each annotation that marks a step or an iteration of an inference server. torch_npu
    records its steps as ops; these are included.
    """
    notes = _marking_notes(trace.annotations)
    marks = [_step(note.name, note.start_ns, note.dur_ns, note.track) for note in notes]
    for index, signature in enumerate(trace.signatures):
        if step_number(signature.name) is not None:
            for row in np.flatnonzero(trace.ops.signature == index):
                ops = trace.ops
                marks.append(_step(signature.name, int(ops.start_ns[row]), int(ops.dur_ns[row]), int(ops.track[row])))
    return [step for step in marks if step.end_ns > step.start_ns]


def _is_mark(name: str) -> bool:
    return step_number(name) is not None or batch_context(name) is not None


def _step(name: str, start: int, dur: int, track: int) -> Step:
    return Step(name=name, number=step_number(name), start_ns=start, end_ns=start + dur, track=track, marked=True)


def _whole(trace: Trace) -> Step:
    """Return one step from the first event to the last. Raises NothingRan if there is no event."""
    starts = [trace.ops.start_ns, trace.kernels.start_ns]
    ends = [trace.ops.start_ns + trace.ops.dur_ns, trace.kernels.start_ns + trace.kernels.dur_ns]
    if trace.activity is not None:
        calls = trace.activity.calls
        starts.append(calls.start_ns)
        ends.append(calls.start_ns + calls.dur_ns)
    starts, ends = [a for a in starts if len(a)], [a for a in ends if len(a)]
    if not starts:
        raise NothingRan(f"{trace.info.path} contains no ops or device work, so there is no step to time", hint=_HINT)
    begin, end = min(int(a.min()) for a in starts), max(int(a.max()) for a in ends)
    return Step(name="the whole trace", number=None, start_ns=begin, end_ns=end, track=-1, marked=False)
