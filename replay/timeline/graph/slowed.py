# pyright: strict
"""Estimate from several steps how much collectives slow kernels, and compute kernel times for other overlaps.

Kernels of the same name can take different times. Therefore each kernel is compared with the kernel at the same
position in other steps. The estimate is how much longer it took when more of it overlapped with a collective.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import COLLECTIVE, KERNEL, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, paced
from opreplay.replay.timeline.graph.tasks import Tasks, tasks_of
from opreplay.replay.timeline.graph.threads import homes, main_track
from opreplay.traces import Trace
from opreplay.traces.arrays import Bools, Floats, Ints
from opreplay.traces.links.steps import busy_steps

MOST_STEPS = 16
"""Maximum number of steps to compare; the steps nearest to the analysed step are used."""
USUAL_LOST = 0.15
"""Standard deviation of the prior for the share of their speed that kernels lose during collectives."""
RESOLUTION_US = 0.2
"""Resolution of recorded kernel times. The estimate assumes at least this much noise."""
BOUND = 1.645
"""Half-width of the 90 % interval of a normal distribution, in standard deviations."""
MOST_LOST = 0.6
"""Upper limit of the loss of speed during collectives, as a share. A larger loss has another cause."""
ROUNDS = 4
"""Maximum number of times to reschedule. A step is rescheduled because the slowdown of kernels changes what
overlaps.
"""
SETTLED = 1e-4
"""Stop rescheduling when kernel times change by at most this share of the step."""
ALONE, BESIDE = 0.01, 0.99
"""Shares of a kernel's time during collectives. Up to ALONE, the kernel counts as not overlapped; from BESIDE, as fully
overlapped.
"""


class CollectiveIntervals:
    """Merged intervals during which a collective runs."""

    def __init__(self, start_us: Floats, end_us: Floats) -> None:
        order = np.argsort(start_us, kind="stable")
        start, until = start_us[order], np.maximum.accumulate(end_us[order])
        first = np.flatnonzero(np.append(True, start[1:] > until[:-1])) if len(start) else np.empty(0, np.int64)
        self.begins: Floats = start[first]
        self.ends: Floats = np.append(until[first[1:] - 1], until[-1:]) if len(start) else until
        self._before: Floats = np.concatenate([[0.0], np.cumsum(self.ends - self.begins)])

    def time_before(self, time_us: Floats) -> Floats:
        """Return, for each time, how long collectives ran before it."""
        at = np.searchsorted(self.begins, time_us, side="right")
        last_end = np.append(0.0, self.ends)[at]
        return self._before[at] - np.maximum(0.0, np.where(at > 0, last_end - time_us, 0.0))

    def slowed_duration(self, start_us: float, work_us: float, lost: float) -> float:
        """Return how long `work_us` takes from `start_us` if the work loses the share `lost` of its speed during
        collectives.
        """
        now, rest = start_us, work_us
        for at in range(int(np.searchsorted(self.ends, start_us, side="right")), len(self.begins)):
            begin, end = float(self.begins[at]), float(self.ends[at])
            if now + rest <= begin:
                break
            rest -= max(0.0, begin - now)
            now = max(now, begin)
            beside = (end - now) * (1.0 - lost)
            if rest <= beside:
                return now + rest / (1.0 - lost) - start_us
            now, rest = end, rest - beside
        return now + rest - start_us


def slowed_schedule(graph: StepGraph, durations_us: Floats, lags_us: Floats, *, apart: bool = False) -> Schedule:
    """Return the schedule for given durations, in which collectives slow kernels as in the recording.

    `durations_us` are the times that kernels take with their recorded overlap with collectives. With `apart`, no kernel
    is slowed.
    """
    nodes, lost = graph.nodes, graph.lost_during_collectives
    talking = nodes.kind == COLLECTIVE
    kernels = np.flatnonzero((nodes.kind == KERNEL) & (nodes.dur_us > 0.0) & (durations_us > 0.0))
    if not lost or not len(kernels):
        return paced(graph, durations_us, lags_us)
    ends = nodes.start_us + nodes.dur_us
    recorded = CollectiveIntervals(nodes.start_us[talking], ends[talking])
    beside = (recorded.time_before(ends) - recorded.time_before(nodes.start_us))[kernels] / nodes.dur_us[kernels]
    work = durations_us[kernels] * (1.0 - lost * beside)
    now = durations_us.copy()
    if apart:
        now[kernels] = work
        return paced(graph, now, lags_us)
    schedule = paced(graph, now, lags_us)
    for _ in range(ROUNDS):
        others = CollectiveIntervals(schedule.start_us[talking], schedule.end_us[talking])
        starts = schedule.start_us[kernels].tolist()
        took = [others.slowed_duration(start, us, lost) for start, us in zip(starts, work.tolist(), strict=True)]
        if np.abs(now[kernels] - took).sum() <= SETTLED * schedule.step_us:
            break
        now[kernels] = took
        schedule = paced(graph, now, lags_us)
    return schedule


def with_losses(trace: Trace, graph: StepGraph) -> StepGraph:
    """Return the graph with its `lost_during_collectives` and `lost_bounds` estimated from the trace."""
    lost, low, high = _lost(trace, graph)
    return msgspec.structs.replace(graph, lost_during_collectives=lost, lost_bounds=(low, high))


def loss_bounds(graph: StepGraph) -> tuple[StepGraph, ...]:
    """Return the graph twice: with the smallest and with the largest loss of kernel speed during collectives.

    The result is () if these bounds are equal.
    """
    low, high = graph.lost_bounds
    return (
        ()
        if high <= low
        else tuple(msgspec.structs.replace(graph, lost_during_collectives=lost) for lost in (low, high))
    )


def _lost(trace: Trace, graph: StepGraph) -> tuple[float, float, float]:
    """Estimate from several steps which share of its speed a kernel loses during collectives.

    Returns (share, lower bound, upper bound) with the bounds of the 90 % interval. The prior for the share has the mean
    0 and the standard deviation `USUAL_LOST`.
    """
    if not _runs_beside_collectives(graph):
        return 0.0, 0.0, 0.0
    measured = _measured_loss(*_observations(trace, graph))
    # What the steps tell, the less of it the less they tell: as the mean of a normal loss around none that they adjust.
    lost, error = (0.0, np.inf) if measured is None else measured
    share = 0.0 if np.isinf(error) else USUAL_LOST**2 / (USUAL_LOST**2 + error**2)
    deviation = USUAL_LOST * np.sqrt(1.0 - share)
    least, mean, most = (
        float(min(MOST_LOST, max(0.0, lost * share + sign * BOUND * deviation))) for sign in (-1, 0, 1)
    )
    return mean, least, most


def _runs_beside_collectives(graph: StepGraph) -> bool:
    """Check whether kernels of the step ran while a collective ran on another stream."""
    nodes = graph.nodes
    talking, kernels = nodes.kind == COLLECTIVE, nodes.kind == KERNEL
    if not talking.any() or not kernels.any():
        return False
    ends = nodes.start_us + nodes.dur_us
    beside = CollectiveIntervals(nodes.start_us[talking], ends[talking])
    return bool((beside.time_before(ends[kernels]) - beside.time_before(nodes.start_us[kernels])).sum() > 0.0)


def _measured_loss(place: Ints, took: Floats, beside: Floats) -> tuple[float, float] | None:
    """Return (share of its speed that a kernel loses, standard error of the share); None if undetermined.

    The method is least squares over kernels at the same position in several steps.
    """
    if not len(took):
        return None
    _, place, count = np.unique(place, return_inverse=True, return_counts=True)
    place = place.reshape(-1)

    def centred(values: Floats) -> Floats:
        return values - (np.bincount(place, weights=values) / count)[place]

    # The longer a kernel the more it varies, though by less than its time: small ones wait for room beside collectives.
    scale = np.sqrt((np.bincount(place, weights=took) / count)[place])
    x, y = centred(beside) / scale, centred(took) / scale
    freedom = len(took) - len(count) - 1
    spread = float(x @ x)
    if freedom < 1 or spread <= 0.0:
        return None
    lost = float(x @ y) / spread
    noise = max(float((y - lost * x) @ (y - lost * x)) / freedom, float(np.mean((RESOLUTION_US / scale) ** 2)))
    return lost, float(np.sqrt(noise / spread))


def _observations(trace: Trace, graph: StepGraph) -> tuple[Ints, Floats, Floats]:
    """Return (position, time, overlapped time) of kernels that ran in several steps at the same position in their
    stream.

    Kernels that overlap a collective only at their end are excluded. They overlap more because they take longer, so
    they do not show that the overlap slows them. A kernel with full overlap counts only if it ran without overlap in
    another step.
    """
    steps = sorted(busy_steps(trace), key=lambda step: abs(step.start_ns - graph.step.start_ns))[:MOST_STEPS]
    known: dict[tuple[tuple[int, int], tuple[int, ...]], int] = {}
    places: list[Ints] = []
    took: list[Floats] = []
    beside: list[Floats] = []
    whole: list[Bools] = []
    main = main_track(trace, graph.step)
    home = homes(trace, main)
    number = 0
    for step in steps:
        tasks, _ = tasks_of(trace, step, home)
        for key, rows, talks in _streams(tasks):
            names = (key, tuple(tasks.name[rows].tolist()))
            if names not in known:
                known[names] = number
                number += len(rows)
            start, end = tasks.start_us[rows], tasks.end_us[rows]
            overlap = talks.time_before(end) - talks.time_before(start)
            ends_beside = talks.time_before(end + ALONE) - talks.time_before(end) > 0.0
            all_beside = overlap >= BESIDE * (end - start)
            keep = (tasks.kind[rows] == KERNEL) & (~ends_beside | all_beside) & (end > start)
            places.append(known[names] + np.flatnonzero(keep))
            took.append((end - start)[keep])
            beside.append(overlap[keep])
            whole.append(all_beside[keep])
    if not places:
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    place, covered = np.concatenate(places), np.concatenate(whole)
    times, overlaps = np.concatenate(took), np.concatenate(beside)
    alone = np.zeros(number, bool)
    alone[place[overlaps <= ALONE * times]] = True
    keep = ~covered | alone[place]
    return place[keep], times[keep], overlaps[keep]


def _streams(tasks: Tasks) -> Iterator[tuple[tuple[int, int], Ints, CollectiveIntervals]]:
    """Yield (device, stream), its tasks in order, and the intervals in which other streams of the device run
    collectives.

    Streams that run only collectives are left out.
    """
    talking = tasks.kind == COLLECTIVE
    for index, key in enumerate(tasks.streams):
        rows = np.flatnonzero((tasks.stream == index) & ~talking)
        if len(rows):
            same = [number for number, other in enumerate(tasks.streams) if other[0] == key[0] and number != index]
            others = np.flatnonzero(talking & np.isin(tasks.stream, same))
            yield key, rows, CollectiveIntervals(tasks.start_us[others], tasks.end_us[others])
