# pyright: strict
"""Opens the inputs of `compare` and selects the times to compare. The inputs are result files, traces or plans,
recognized by content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.inputs import RESULTS, Progress, open_input, plan_dialect
from opreplay.replay.plan.recorded.times import LEVELS, times_of_plan, times_of_trace
from opreplay.replay.results.compare.judge import DEFAULT_THRESHOLD, Comparison, Method, What, compare
from opreplay.replay.results.compare.pooling import pool
from opreplay.replay.results.compare.sides import WHATS, Times, compare_times, times_of_results
from opreplay.replay.results.reading import ResultFile, read_result_file
from opreplay.traces.errors import NothingRan, UsageError
from opreplay.traces.links.steps import ComparedSteps, compared_steps
from opreplay.traces.model import MetadataLevel, Trace
from opreplay.traces.names import file_name
from opreplay.traces.processes.select import one_process

Operand = ResultFile | Trace | ReplayPlan
Simulate = Callable[[Trace | ReplayPlan, str, str], Times]
"""Function that predicts times from (trace or plan, device, selection of ops)."""


def open_operand(text: str, *, progress: Progress, process: str | None = None, activity: bool = False) -> Operand:
    """Open a result file, trace or plan.

    `activity` also reads the times of all work in a trace. `process` selects one process of a merged trace; by default
    it is the busiest one. Raises TraceError for unreadable input.
    """
    if plan_dialect(text) is RESULTS or text.endswith(".jsonl"):
        return read_result_file(text)
    read = open_input(text, process=process, progress=progress, activity=activity)
    return one_process(read) if isinstance(read, Trace) else read


def compare_operands(
    before: Sequence[Operand],
    after: Sequence[Operand],
    *,
    times: str | None = None,
    select: str = "owner",
    threshold: float = DEFAULT_THRESHOLD,
    method: Method = "gauges",
    force: bool = False,
    simulate: Simulate | None = None,
) -> Comparison:
    """Compare two sides op by op; several result files of one side are combined.

    Args:
        before: result files, or one trace or plan.
        after: the same kinds of input. If missing, times within one result file are compared: measured times with
            predictions, or recorded times with predictions if nothing was measured.
        times: "BEFORE:AFTER", each of "recorded", "measured", "simulated" or a simulated device; by default the
            recorded times of traces and plans, and the measured ones of results. A single trace or plan may be
            compared with its prediction for a device: "recorded:910b3".
        select: which ops of a trace to compare, as for a plan.
        threshold: minimum change, as a fraction; smaller changes count as equal.
        method: how to compare two runs: relative to reference workloads (gauges), or by plain medians.
        force: whether to compare runs of different machines or measurement methods.
        simulate: predicts a trace or plan if `times` names a device.

    Raises UsageError if a side lacks the requested times, and EnvironmentRefused in the same cases as `judge.compare`.
    """
    if not after:
        after, times = before, times or _times_within_file(before)
    which = _parsed(times)
    runs = [[operand for operand in side if isinstance(operand, ResultFile)] for side in (before, after)]
    whole = len(runs[0]) == len(before) and len(runs[1]) == len(after)
    if whole and all(clock in (None, "measured") for clock in which):
        first, second = (pool(side, force=force) for side in runs)
        return compare(first, second, threshold=threshold, method=method, force=force)
    if len(before) > 1 or len(after) > 1:
        raise UsageError(
            "several files on one side are combined only for measured times",
            hint="Give one file per side, or results of `opreplay run` on both sides.",
        )
    pair = [side[0] for side in (before, after)]
    level = _common_level(pair)
    steps = recorded_steps(pair) if all(clock in (None, "recorded") for clock in which) else None
    if steps is not None:
        first, second = (operand for operand in pair if isinstance(operand, Trace))
        before_times = _timed(times_of_trace(first, select, level=level, steps=steps.before, paired=steps.by))
        after_times = _timed(times_of_trace(second, select, level=level, steps=steps.after, paired=steps.by))
        return compare_times(before_times, after_times, threshold=threshold)
    sides = [_times(side, clock, select, level, simulate) for side, clock in zip(pair, which, strict=True)]
    return compare_times(*sides, threshold=threshold)


def recorded_steps(pair: Sequence[Operand]) -> ComparedSteps | None:
    """Return the steps of two traces to compare; None if an input is not a trace, or if nothing ran in it."""
    if len(pair) != 2 or not all(isinstance(operand, Trace) for operand in pair):
        return None
    before, after = (operand for operand in pair if isinstance(operand, Trace))
    try:
        return compared_steps(before, after)
    except NothingRan:
        return None


def _common_level(pair: Sequence[Operand]) -> MetadataLevel | None:
    """Return the level of argument metadata from which to compute the ids of both traces.

    It is the lower of the two traces' levels, because both traces have it. None if the levels are equal.
    """
    levels = {operand.info.metadata_level for operand in pair if isinstance(operand, Trace)}
    return next(level for level in LEVELS if level in levels) if len(levels) == 2 else None


def _times_within_file(before: Sequence[Operand]) -> str:
    if len(before) != 1 or not isinstance(before[0], ResultFile):
        hint = "Name another file, or compare a trace with itself on a simulated device: --times recorded:910b3."
        raise UsageError("AFTER is missing", hint=hint)
    measured = any(op.measurement for op in before[0].results)
    return "measured:simulated" if measured else "recorded:simulated"


def _parsed(times: str | None) -> tuple[str | None, str | None]:
    if times is None:
        return None, None
    first, colon, second = times.partition(":")
    if not first or (colon and not second):
        raise UsageError(
            f"{times!r} is not a kind of times",
            hint="For example: --times recorded:measured or --times measured:910b3.",
        )
    return first, second or first


def _times(
    operand: Operand, which: str | None, select: str, level: MetadataLevel | None, simulate: Simulate | None
) -> Times:
    if isinstance(operand, ResultFile):
        what, soc = _asked(which or "measured")
        return times_of_results(operand, what, soc)
    if which not in (None, "recorded"):
        return _simulated(operand, which, select, level, simulate)
    if isinstance(operand, Trace):
        return _timed(times_of_trace(operand, select, level=level))
    times = times_of_plan(operand)
    if operand.capture is not None and not any(op.us for op in times.ops):
        raise UsageError(
            f"{times.source} was captured and contains no times",
            hint="Compare its predictions with --times 910b3, or results of `opreplay run PLAN --output A.jsonl`.",
        )
    return _timed(times)


def _timed(times: Times) -> Times:
    """Return the times unchanged. Raises NothingRan if there are no ops, UsageError if they have no times."""
    if not times.ops:
        raise NothingRan(f"{times.source} contains no ops to compare", hint="Record with ProfilerActivity.CPU.")
    if not times.doubts.mistimed and not any(op.us for op in times.ops):
        raise UsageError(
            f"{times.source} contains no times", hint="An ExecutionTrace records what ran, but not how long."
        )
    return times


def _simulated(
    operand: Trace | ReplayPlan, which: str, select: str, level: MetadataLevel | None, simulate: Simulate | None
) -> Times:
    """Return the predicted times of a trace or plan on the device `which`.

    Raises UsageError if `which` stands for measured times, because a trace or plan has none.
    """
    source = file_name(operand.info.path) if isinstance(operand, Trace) else operand.source
    if which in WHATS or simulate is None:
        hint = "Compare the results of `opreplay run TRACE --output FILE.jsonl` with it"
        raise UsageError(
            f"{source} contains recorded times, not {which} ones",
            hint=f"{hint}, or name a simulated device: --times recorded:910b3.",
        )
    if level is not None:
        raise UsageError(
            f"{source} and the other trace record different metadata, so predictions cannot be matched by op",
            hint="Compare results of `opreplay run`, or the trace with itself: --times recorded:910b3.",
        )
    return simulate(operand, which, select)


def _asked(which: str) -> tuple[What, str | None]:
    for what in WHATS:
        if what == which:
            return what, None
    return "simulated", which
