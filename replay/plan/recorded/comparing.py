# pyright: strict
"""What `compare` takes, told by content, and which of its times: result files, traces, plans; measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.inputs import RESULTS, Progress, open_input, plan_dialect
from opreplay.replay.plan.recorded.times import LEVELS, times_of_plan, times_of_trace
from opreplay.replay.results.compare.judge import DEFAULT_THRESHOLD, Comparison, Method, What, compare
from opreplay.replay.results.compare.pooling import pool
from opreplay.replay.results.compare.sides import WHATS, Times, compare_times, times_of_results
from opreplay.replay.results.reading import ResultFile, read_result_file
from opreplay.traces.errors import UsageError
from opreplay.traces.model import MetadataLevel, Trace
from opreplay.traces.names import file_name
from opreplay.traces.processes.select import one_process

Operand = ResultFile | Trace | ReplayPlan
Simulate = Callable[[Trace | ReplayPlan, str, str], Times]
"""(What was read, device, selection of ops) → predictions."""


def open_operand(text: str, *, progress: Progress, process: str | None = None, activity: bool = False) -> Operand:
    """The result file, trace or plan that a path names; `activity`: of a trace also what ran when; `process`: which
    one of a merged trace, by default the busiest.

    Raises TraceError for what cannot be read.
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
    """Two sides, op by op; several result files of a side count together.

    Args:
        before: result files, or one trace or plan.
        after: the same; none compares what one file of results holds: its measured times with its predictions, or the
            recorded ones where nothing was measured.
        times: "BEFORE:AFTER", each of "recorded", "measured", "simulated" or a simulated device; by default the
            recorded times of traces and plans, and the measured ones of results. A trace or plan alone may be compared
            with itself on a device: "recorded:910b3".
        select: which ops of a trace, as for a plan.
        threshold: smaller changes are the same; a share.
        method: of two runs: by gauges, or by plain medians.
        force: compare runs of different machines or ways to measure.
        simulate: predicts a trace or plan, where `times` asks for a device.

    Raises UsageError for times that a side does not hold, EnvironmentRefused as `judge.compare` does.
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
            "several files of a side are taken together for measured times alone",
            hint="Name one, or results of `opreplay run` on both sides.",
        )
    pair = [side[0] for side in (before, after)]
    level = _common_level(pair)
    sides = [_times(side, clock, select, level, simulate) for side, clock in zip(pair, which, strict=True)]
    return compare_times(*sides, threshold=threshold)


def _common_level(pair: Sequence[Operand]) -> MetadataLevel | None:
    """What both of two traces record of arguments, where it is not the same: ids are then made of that alone."""
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
        raise UsageError(f"{times!r} names no times", hint="Write it like recorded:measured or measured:910b3.")
    return first, second or first


def _times(
    operand: Operand, which: str | None, select: str, level: MetadataLevel | None, simulate: Simulate | None
) -> Times:
    if isinstance(operand, ResultFile):
        what, soc = _asked(which or "measured")
        return times_of_results(operand, what, soc)
    if which not in (None, "recorded"):
        return _simulated(operand, which, select, level, simulate)
    times = times_of_trace(operand, select, level=level) if isinstance(operand, Trace) else times_of_plan(operand)
    if not times.doubts.mistimed and not any(op.us for op in times.ops):
        if isinstance(operand, ReplayPlan) and operand.capture is not None:
            raise UsageError(
                f"{times.source} was captured: it holds no times",
                hint="Compare its predictions by --times 910b3, or results of `opreplay run PLAN --output A.jsonl`.",
            )
        raise UsageError(f"{times.source} holds no times", hint="An ExecutionTrace says what ran, not how long.")
    return times


def _simulated(
    operand: Trace | ReplayPlan, which: str, select: str, level: MetadataLevel | None, simulate: Simulate | None
) -> Times:
    """A trace or plan on the device that is named. Raises UsageError for measured times, which it does not hold."""
    source = file_name(operand.info.path) if isinstance(operand, Trace) else operand.source
    if which in WHATS or simulate is None:
        hint = "Compare the results of `opreplay run TRACE --output FILE.jsonl` with it"
        raise UsageError(
            f"{source} holds recorded times, not {which} ones",
            hint=f"{hint}, or name a simulated device: --times recorded:910b3.",
        )
    if level is not None:
        raise UsageError(
            f"{source} and the other trace record different metadata, so that predictions do not match by op",
            hint="Compare results of `opreplay run`, or the trace with itself: --times recorded:910b3.",
        )
    return simulate(operand, which, select)


def _asked(which: str) -> tuple[What, str | None]:
    for what in WHATS:
        if what == which:
            return what, None
    return "simulated", which
