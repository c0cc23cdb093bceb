# pyright: strict
"""Compare the steps of two traces: their lengths, the work of host and device, and what bounds them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from opreplay.replay.ir.step import IDLE_CAUSES, StepReport
from opreplay.replay.results.compare.regressions import StepRatio
from opreplay.replay.timeline.categories import categories, device_work, without_causes
from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.timeline import Study, recorded_schedule, timeline
from opreplay.traces import Trace
from opreplay.traces.errors import NothingRan
from opreplay.traces.links.collectives import with_host_collectives
from opreplay.traces.links.steps import ComparedSteps, PairedBy, Step, compared_steps
from opreplay.traces.times.doubts import clock_offset_us


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of one step; times in µs."""

    name: str
    step_us: float
    """Time from the completion of the previous step to the completion of this step, as in `Window.step_us`."""
    host_us: float
    """Duration of the marked range on its host thread."""
    device_sum_us: float
    """Sum of all device tasks, including overlaps; 0 without device work."""
    busy_us: float
    communication_us: float
    """Part of the busy time: communication that does not overlap with computing."""
    idle_us: dict[str, float]
    """Idle time by cause, as in `StepReport.idle_us`."""


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The compared steps of two traces."""

    paired: PairedBy | None = None
    """How the steps are paired. None if "before" or "after" is not a trace, or if its device times are unknown."""
    before: tuple[StepParts, ...] = ()
    after: tuple[StepParts, ...] = ()
    reports: dict[str, StepReport] = {}
    """Report of one step for "before" and for "after", as in other commands. A side that is not a trace has none."""
    studies: dict[str, Study] = {}
    """Studies (timeline and graph) of the steps in `reports`, for figures. They are not written to any file."""

    @property
    def is_known(self) -> bool:
        """Check whether there are comparable steps before and after."""
        return self.paired in ("number", "median") and bool(self.before and self.after)

    def sides(self, value: Callable[[StepParts], float]) -> tuple[float, float]:
        """Return a quantity as (before, after).

        It is the mean over steps paired by number, otherwise the median of all steps.
        """
        typical = statistics.fmean if self.paired == "number" else statistics.median
        before, after = (typical([value(step) for step in steps]) for steps in (self.before, self.after))
        return before, after

    @property
    def step_us(self) -> tuple[float, float]:
        """Return the length of a step (before, after)."""
        return self.sides(lambda step: step.step_us)

    @property
    def ratio(self) -> StepRatio | None:
        """Return the ratio of the step time after to before; None if the steps cannot be compared."""
        before, after = self.step_us if self.is_known else (0.0, 0.0)
        return StepRatio(ratio=after / before, is_clear=self.is_clear) if before else None

    @property
    def pair_ratios(self) -> list[float]:
        """Return the ratio after / before of each pair of step lengths, smallest first. Empty if steps are not paired
        by number.
        """
        if self.paired != "number":
            return []
        pairs = zip(self.before, self.after, strict=True)
        return sorted(after.step_us / before.step_us for before, after in pairs if before.step_us and after.step_us)

    @property
    def is_clear(self) -> bool:
        """Check whether the change is larger than the variation between steps.

        Also True if there are too few steps to tell, or if all paired steps count as equal (`LEAST_CHANGE`).
        """
        if self.paired == "number":
            logs = [math.log(ratio) for ratio in self.pair_ratios]
            if len(logs) < LEAST_STEPS or max(map(abs, logs)) < LEAST_CHANGE:
                return True
            return abs(statistics.fmean(logs)) > ERRORS * statistics.stdev(logs) / math.sqrt(len(logs))
        first, second = (sorted(step.step_us for step in steps) for steps in (self.before, self.after))
        was, now = self.step_us
        inside = [side[0] <= us <= side[-1] for side, us in ((first, now), (second, was)) if len(side) >= LEAST_STEPS]
        return not (inside and all(inside))


LEAST_STEPS = 3
"""Minimum number of steps needed to estimate how much steps vary."""
LEAST_CHANGE = 5e-4
"""Paired steps count as equal if the logarithms of their ratios are all below this."""
ERRORS = 2.0
"""Number of standard errors above which a change of paired steps is clear."""


def steps_of_sides(before: Sequence[object], after: Sequence[object]) -> StepChange:
    """Compare the steps of two traces: the first in `before` and the first in `after` that were read with their
    activity.
    """
    first, second = (
        next((one for one in side if isinstance(one, Trace) and one.activity is not None), None)
        for side in (before, after)
    )
    return step_change(first, second)


def step_change(before: Trace | None, after: Trace | None) -> StepChange:
    """Compare the steps of two traces. Pass None for a side that is not a trace or was read without its activity."""
    traces = {which: trace for which, trace in (("before", before), ("after", after)) if trace is not None}
    chosen = None if before is None or after is None else _chosen(before, after)
    if before is None or after is None or chosen is None:
        return _change({which: _study(trace) for which, trace in traces.items()})
    was, now = _parts_of(before, chosen.before), _parts_of(after, chosen.after)
    numbers: tuple[int | None, int | None] = (None, None)
    if chosen.by == "number":
        ratios = [b.step_us / a.step_us if a.step_us else 0.0 for a, b in zip(was, now, strict=True)]
        order = sorted(
            range(len(ratios)),
            key=lambda pair: (ratios[pair], chosen.before[pair].end_ns - chosen.before[pair].start_ns),
        )
        at = order[(len(order) - 1) // 2]
        numbers = chosen.before[at].number, chosen.after[at].number
    studies = {which: _study(traces[which], number) for which, number in zip(("before", "after"), numbers, strict=True)}
    found = _change(studies)
    if any(report.doubts.untimed for report in found.reports.values()):
        return found
    return msgspec.structs.replace(found, paired=chosen.by, before=was, after=now)


def _chosen(before: Trace, after: Trace) -> ComparedSteps | None:
    """Return the steps to compare; None if a trace marks no steps, or if nothing ran in a step."""
    try:
        chosen = compared_steps(before, after)
    except NothingRan:
        return None
    return None if chosen.by == "whole" else chosen


def _change(studies: dict[str, Study | None]) -> StepChange:
    known = {which: study for which, study in studies.items() if study is not None}
    # The pair was chosen here, and not asked for by number.
    reports = {which: msgspec.structs.replace(study.timeline.step, asked=False) for which, study in known.items()}
    return StepChange(reports=reports, studies=known)


def _study(trace: Trace, number: int | None = None) -> Study | None:
    """Return the timeline of a step, by default of the step with the median length; None if nothing ran."""
    try:
        return timeline(trace, step=number)
    except NothingRan:
        return None


def _parts_of(trace: Trace, steps: Sequence[Step]) -> tuple[StepParts, ...]:
    trace = with_host_collectives(trace)
    return tuple(_parts(trace, step) for step in steps)


def _parts(trace: Trace, step: Step) -> StepParts:
    graph = step_graph(trace, step)
    times = categories(graph, recorded_schedule(graph))
    if graph.on_device and clock_offset_us(trace):
        times = without_causes(times)
    return StepParts(
        name=step.name,
        step_us=graph.recorded_us,
        host_us=graph.host_us,
        device_sum_us=float(graph.nodes.dur_us[device_work(graph)].sum()) if graph.on_device else 0.0,
        busy_us=max(0.0, graph.recorded_us - times.idle),
        communication_us=times.communication_not_overlapped,
        idle_us={cause: getattr(times, f"idle_{cause}") for cause in IDLE_CAUSES},
    )
