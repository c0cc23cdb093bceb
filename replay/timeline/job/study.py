# pyright: strict
"""Analyse one step of a job from traces of several ranks: which rank waits for which, and what-ifs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.timeline.categories import Categories, categories
from opreplay.replay.timeline.changes import Edited, Unmatched, apply_change
from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.graph.model import COLLECTIVE, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, critical_path, lag_bounds
from opreplay.replay.timeline.job.graph import JobGraph, RankGraph, job_graph
from opreplay.replay.timeline.job.measured import measured_job
from opreplay.replay.timeline.job.values import (
    LEAST_COMMON,
    CollectiveMember,
    JobChange,
    JobSoc,
    JobTimeline,
    RankPathPart,
    RankStep,
    StepCollective,
)
from opreplay.replay.timeline.measured import MeasuredOps
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.paths import path_times
from opreplay.replay.timeline.simulated import Host, Predicted, predict
from opreplay.replay.timeline.timeline import edge_counts, recorded_schedule, relative
from opreplay.traces import Trace
from opreplay.traces.arrays import Floats
from opreplay.traces.errors import UsageError
from opreplay.traces.joins.matched import Clock, JobCollectives, Matched, sum_of_rank
from opreplay.traces.joins.ranks import RankCalls, match
from opreplay.traces.links.collectives import RankCall, collectives_of, with_host_collectives
from opreplay.traces.links.steps import Step, chosen_step, steps_of
from opreplay.traces.names import file_name
from opreplay.traces.sums import summed


class RankStudy(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one rank for plotting."""

    rank: int
    trace: Trace
    step: Step
    names: Names
    calls: tuple[RankCall, ...]


class JobStudy(msgspec.Struct, frozen=True, kw_only=True):
    """One analysed step of a job."""

    timeline: JobTimeline
    graph: JobGraph
    ranks: tuple[RankStudy, ...]
    schedule: Schedule


def job_timeline(
    traces: Sequence[tuple[int, Trace]],
    *,
    step: int | None = None,
    what_if: Sequence[str] = (),
    devices: Sequence[DeviceProfile] = (),
    planned: Sequence[PlannedStep] = (),
    host_scale: float = 1.0,
    measured: MeasuredOps | None = None,
) -> JobStudy:
    """Analyse one step of several ranks, given as (rank, trace read with its activity).

    `planned` has the plan of each rank, for `devices`. `measured` has times from a run of one of the traces, or of a
    batch of all traces.

    Raises UsageError for fewer than two ranks, for duplicate ranks, and for traces that share no collective. Raises
    TraceError like `timeline`.
    """
    if len(traces) < 2:
        raise UsageError("a single rank waits for no other rank", hint="Give the traces of at least two ranks.")
    order = sorted(range(len(traces)), key=lambda at: traces[at][0])
    planned = [planned[at] for at in order if planned]
    job, ranks, matches, zero = _job([traces[at] for at in order], step)
    predicted = _predicted(job, ranks, planned, devices, host_scale)
    schedule = job.scheduled()
    looked_at = _study_of(job, ranks, matches, schedule, zero, what_if, predicted)
    if measured is not None:
        on_hosts = measured_job(job, [rank.names for rank in ranks], [rank.calls for rank in ranks], measured)
        looked_at = msgspec.structs.replace(looked_at, measured=on_hosts)
    return JobStudy(timeline=looked_at, graph=job, ranks=ranks, schedule=schedule)


def _job(
    traces: Sequence[tuple[int, Trace]], step: int | None
) -> tuple[JobGraph, tuple[RankStudy, ...], JobCollectives, int]:
    """Return (graph of the step on all ranks, each rank, matches of their collectives, start of the step in ns)."""
    calls = [collectives_of(trace) for _, trace in traces]
    origins = _origins([trace for _, trace in traces])
    matches = _matched(
        [
            RankCalls(rank=rank, calls=own_calls, origin_ns=origin)
            for (rank, _), own_calls, origin in zip(traces, calls, origins, strict=True)
        ]
    )
    with_hosts = [with_host_collectives(trace) for _, trace in traces]
    moved = [origin + round(clock.shift_us * 1e3) for origin, clock in zip(origins, matches.clocks, strict=True)]
    steps = _steps(with_hosts, moved, step)
    graphs = list(map(step_graph, with_hosts, steps))
    zero = min(rank_step.start_ns + ahead for rank_step, ahead in zip(steps, moved, strict=True))
    ranks = tuple(
        RankStudy(rank=rank, trace=trace, step=rank_step, names=Names(trace, graph), calls=own_calls)
        for (rank, _), trace, rank_step, graph, own_calls in zip(traces, with_hosts, steps, graphs, calls, strict=True)
    )
    of_ranks = [
        RankGraph(
            rank=rank.rank,
            graph=graph,
            at_us=(rank.step.start_ns + ahead - zero) / 1e3,
            node_of_call=_nodes_of_calls(graph, rank),
        )
        for rank, graph, ahead in zip(ranks, graphs, moved, strict=True)
    ]
    return job_graph(of_ranks, matches), ranks, matches, zero


def _matched(calls: Sequence[RankCalls]) -> JobCollectives:
    try:
        matches = match(calls)
    except ValueError as error:
        raise UsageError(str(error), hint="Give one recording per rank.") from None
    if not matches.matched:
        raise UsageError(
            "these traces have no collective in common",
            hint="Give traces of ranks of one job, recorded at the same time.",
        )
    return matches


def _origins(traces: Sequence[Trace]) -> list[int]:
    """Return the zero of each trace's clock, in ns on the clock of the first trace."""
    bases = [trace.info.base_ns for trace in traces]
    return [base - bases[0] for base in bases]


def _steps(traces: Sequence[Trace], moved_ns: Sequence[int], number: int | None) -> list[Step]:
    """Return the step to analyse on each rank.

    It is chosen on the first rank. Other ranks use the step with the same number or, if they have none, the step at the
    same time.
    """
    first = chosen_step(traces[0], number)
    out = [first]
    for trace, ahead in zip(traces[1:], moved_ns[1:], strict=True):
        steps = steps_of(trace)
        same = [candidate for candidate in steps if candidate.number is not None and candidate.number == first.number]
        if same:
            out.append(same[0])
        elif steps and first.marked:
            out.append(max(steps, key=lambda candidate: _common(candidate, ahead, first, moved_ns[0])))
        else:
            out.append(chosen_step(trace, None))
    return out


def _common(step: Step, step_ns: int, other: Step, other_ns: int) -> int:
    """Return how long two steps overlap, in ns; negative if there is a gap between them."""
    return min(step.end_ns + step_ns, other.end_ns + other_ns) - max(step.start_ns + step_ns, other.start_ns + other_ns)


def _nodes_of_calls(graph: StepGraph, rank: RankStudy) -> dict[int, int]:
    """Map each collective in the step to its node. The collective is given by its position among the rank's calls."""
    nodes = graph.nodes
    rows = {int(row): node for node, row in enumerate(nodes.row.tolist()) if row >= 0}
    starts = {
        round(float(nodes.start_us[node]) * 1e3): node
        for node in np.flatnonzero((nodes.kind == COLLECTIVE) & (nodes.row < 0)).tolist()
    }
    out: dict[int, int] = {}
    for at, call in enumerate(rank.calls):
        node = rows.get(call.kernel) if call.kernel >= 0 else starts.get(call.start_ns - rank.step.start_ns)
        if node is not None and nodes.dur_us[node] > 0:
            out[at] = node
    return out


def _predicted(
    job: JobGraph,
    ranks: Sequence[RankStudy],
    planned: Sequence[PlannedStep],
    devices: Sequence[DeviceProfile],
    host_scale: float,
) -> dict[str, list[Predicted]]:
    """Return the predictions for each rank, by device. Raises UsageError for ranks whose steps ran on the CPU."""
    if devices and not all(rank.graph.on_device for rank in job.ranks):
        raise UsageError(
            "these ranks ran on their hosts: their steps can be predicted only one at a time",
            hint="Use `opreplay timeline TRACE --soc` for one of them.",
        )
    ops = [({op.id: op for op in of.plan.ops}, of.contents) for of in planned] or [({}, None)] * len(ranks)
    return {
        device.name: [
            predict(rank.trace, of_rank.graph, device, of_plan, contents=contents, host=Host(scale=host_scale))
            for rank, of_rank, (of_plan, contents) in zip(ranks, job.ranks, ops, strict=True)
        ]
        for device in devices
    }


def _waitless(predicted: Predicted) -> Floats:
    """Return 1.0 for each predicted task and 0.0 for others.

    A value of 1.0 means no waiting: the predicted time of a collective includes only the transfer.
    """
    out = np.zeros(len(predicted.durations_us))
    for us in predicted.families.values():
        out[us > 0.0] = 1.0
    return out


def _on(job: JobGraph, predicted: Sequence[Predicted], changes: Sequence[Edited] | None = None) -> Schedule:
    """Return the job's schedule on simulated devices, with the changes to each rank's step."""
    durations = [rank.durations_us for rank in (predicted if changes is None else changes)]
    lags = [rank.lags_us for rank in (predicted if changes is None else changes)]
    return job.scheduled(job.durations(durations, [_waitless(rank) for rank in predicted]), lags_us=job.lags(lags))


def _study_of(
    job: JobGraph,
    ranks: Sequence[RankStudy],
    matches: JobCollectives,
    schedule: Schedule,
    zero_ns: int,
    what_if: Sequence[str],
    predicted: dict[str, list[Predicted]],
) -> JobTimeline:
    recorded = max(rank.graph.recorded_us for rank in job.ranks)
    steps = job.steps_us(schedule)
    before = max(steps)
    inside = [matches.matched[at] for at in job.met]
    parts = tuple(_rank_step(job, ranks, matches, inside, index, steps[index]) for index in range(len(ranks)))
    socs = {name: _soc(job, of_device) for name, of_device in predicted.items()}
    return JobTimeline(
        world_size=max((r.trace.info.world_size for r in ranks if r.trace.info.world_size), default=None),
        recorded_step_us=recorded,
        retimed_step_us=before,
        structure_error=relative(before, recorded),
        categories_us=_mean([part.categories_us for part in parts]),
        without_waiting_us=max(job.steps_us(job.scheduled(held_together=False))),
        waiting_us=sum(part.waiting_us for part in parts),
        ranks=parts,
        collectives=tuple(_collective(rank, zero_ns) for rank in inside),
        disagreements=matches.disagreements,
        critical_path=tuple(_path(job, ranks, schedule, before)),
        edges=edge_counts(job.whole),
        least_common=_apart(job, ranks).common,
        dropped_collectives=job.dropped,
        socs=socs,
        what_if=tuple(_change(job, ranks, change, before, predicted) for change in what_if),
        notes=tuple(_notes(job, ranks, matches, inside)),
    )


def _rank_step(
    job: JobGraph, ranks: Sequence[RankStudy], matches: JobCollectives, inside: Sequence[Matched], index: int, us: float
) -> RankStep:
    rank, graph = ranks[index], job.ranks[index].graph
    sums = sum_of_rank(inside, rank.rank)
    return RankStep(
        rank=rank.rank,
        source=file_name(rank.trace.info.path),
        step=rank.step.name,
        recorded_step_us=graph.recorded_us,
        retimed_step_us=us,
        structure_error=relative(us, graph.recorded_us),
        begins_us=job.ranks[index].at_us,
        categories_us=categories(graph, recorded_schedule(graph)),
        waiting_us=sums.waiting_us,
        transfer_us=sums.transfer_us,
        late=sums.late,
        late_us=sums.late_us,
        unmatched=matches.unmatched[rank.rank],
        clock=next(clock for clock in matches.clocks if clock.rank == rank.rank),
    )


def _mean(parts: Sequence[Categories]) -> Categories:
    return Categories(
        **{name: sum(getattr(part, name) for part in parts) / len(parts) for name in Categories.__struct_fields__}
    )


def _collective(matched: Matched, zero_ns: int) -> StepCollective:
    return StepCollective(
        kind=matched.kind,
        group=matched.group,
        group_size=matched.group_size,
        sequence=matched.sequence,
        elements=matched.elements,
        dtype=matched.dtype,
        matched_by=matched.how,
        skew_us=matched.skew_us,
        waiting_us=sum(member.waiting_us for member in matched.members),
        transfer_us=matched.transfer_us,
        late_rank=matched.late_rank,
        late_us=matched.late_us,
        missing=matched.missing,
        members=tuple(
            CollectiveMember(
                rank=member.rank,
                start_us=(member.start_ns - zero_ns) / 1e3,
                end_us=(member.end_ns - zero_ns) / 1e3,
                waiting_us=member.waiting_us,
                transfer_us=member.transfer_us,
            )
            for member in matched.members
        ),
    )


def _path(job: JobGraph, ranks: Sequence[RankStudy], schedule: Schedule, step_us: float) -> list[RankPathPart]:
    """Return the critical path across ranks to the end of the last rank. Its parts are merged by op, longest first."""
    path, waits = critical_path(job.whole, schedule)
    us: defaultdict[tuple[int | None, str, str], float] = defaultdict(float)
    times: defaultdict[tuple[int | None, str, str], int] = defaultdict(int)
    begin = max(0.0, float(schedule.end_us.max(initial=0.0)) - step_us)

    def add(key: tuple[int | None, str, str], amount: float) -> None:
        if amount > 0.0:
            us[key] += amount
            times[key] += 1

    spent_us, waited_us = path_times(schedule, path, waits, begin)
    for node, spent, waited in zip(path.tolist(), spent_us.tolist(), waited_us.tolist(), strict=True):
        index, node_of_rank = int(job.rank[node]), int(job.local[node])
        rank = ranks[index].rank if index >= 0 else None
        if schedule.cause[node] >= 0:
            label = ranks[max(index, 0)].names.wait(int(schedule.cause_kind[node]))
            add((rank, label, "wait"), waited)
        if index < 0 or node_of_rank < 0:
            continue
        for name, where, share in _work_of(ranks[index], job.ranks[index].graph, node_of_rank):
            add((rank, name, where), spent * share)
    parts = [RankPathPart(rank=r, name=n, us=v, where=w, times=times[r, n, w]) for (r, n, w), v in us.items()]
    return sorted(parts, key=lambda part: (-part.us, part.name, -1 if part.rank is None else part.rank))


def _work_of(rank: RankStudy, graph: StepGraph, node: int) -> list[tuple[str, str, float]]:
    """Return the contents of a node: (task or op, "device" or "host", share)."""
    if graph.lanes[int(graph.nodes.lane[node])].device:
        return [(rank.names.task(node), "device" if graph.on_device else "host", 1.0)]
    low, count = int(graph.nodes.first_slice[node]), int(graph.nodes.slices[node])
    lengths = graph.slices.dur_us[low : low + count]
    total = float(lengths.sum())
    if total <= 0.0:
        return []
    slices = zip(graph.slices.op[low : low + count].tolist(), lengths.tolist(), strict=True)
    shares = summed((rank.names.op(int(op)), us / total) for op, us in slices)
    return [(name, "host", share) for name, share in shares.items()]


def _change(
    job: JobGraph, ranks: Sequence[RankStudy], change: str, before: float, predicted: dict[str, list[Predicted]]
) -> JobChange:
    """Apply a change to every rank that it matches. If it matches none, the result says why."""
    edits = [_edited(rank.names, of_rank.graph, change) for rank, of_rank in zip(ranks, job.ranks, strict=True)]
    matching = [edit for edit in edits if edit.matched]
    step_us, gains = _gains(job, edits, before) if matching else (before, [0.0])
    return JobChange(
        change=change,
        step_us=step_us,
        low_us=before - max(gains),
        high_us=before - min(gains),
        gain_us=before - step_us,
        matched=sum(edit.matched for edit in matching),
        assumptions=tuple(dict.fromkeys(chain.from_iterable(edit.notes for edit in matching or edits[:1]))),
        socs_us={name: _step_on(job, ranks, change, rows) for name, rows in predicted.items()} if matching else {},
    )


def _step_on(job: JobGraph, ranks: Sequence[RankStudy], change: str, predicted: Sequence[Predicted]) -> float:
    """Return the step length, in µs, after a change on simulated devices."""
    of_ranks = zip(ranks, job.ranks, predicted, strict=True)
    edits = [_edited(rank.names, of_rank.graph, change, on_device) for rank, of_rank, on_device in of_ranks]
    return max(job.steps_us(_on(job, predicted, edits)))


def _gains(job: JobGraph, changed: Sequence[Edited], before: float) -> tuple[float, list[float]]:
    """Return (step length after a change, gains of the change).

    The first gain is for waits and dependencies as the graph has them. The others hold under other assumptions about
    unknown waits and dependencies on all ranks.
    """
    durations_us = job.durations([rank.durations_us for rank in changed])
    step_us = max(job.steps_us(job.scheduled(durations_us, lags_us=job.lags([rank.lags_us for rank in changed]))))
    recorded = [lag_bounds(rank.graph, rank.graph.edges.lag_us) for rank in job.ranks]
    after = [lag_bounds(rank.graph, rank.lags_us) for rank in changed]
    gains = [before - step_us]
    for lags, changed_lags in zip(zip(*recorded, strict=True), zip(*after, strict=True), strict=True):
        if any(lag is not rank.graph.edges.lag_us for lag, rank in zip(lags, job.ranks, strict=True)):
            without = job.steps_us(job.scheduled(lags_us=job.lags(lags)))
            gains.append(max(without) - max(job.steps_us(job.scheduled(durations_us, lags_us=job.lags(changed_lags)))))
    return step_us, gains


def _edited(names: Names, graph: StepGraph, change: str, predicted: Predicted | None = None) -> Edited:
    """Return a rank's graph after a change.

    If the change matches nothing, the graph is returned unchanged, with the reason in the notes. Raises UsageError for
    a change that applies only to single ranks.
    """
    unchanged = Edited.unchanged(graph)
    if predicted is not None:
        unchanged = Edited.unchanged(graph, predicted.durations_us, predicted.lags_us, predicted.slices_us)
    try:
        out = apply_change(names, graph, change, unchanged)
    except Unmatched as nothing:
        unchanged.notes.append(f"{nothing.problem}. {nothing.hint}")
        return unchanged
    if out.overlap:
        raise UsageError("'overlap comm' applies to a single rank", hint="Use `timeline` on one of the traces.")
    return out


def _soc(job: JobGraph, predicted: Sequence[Predicted]) -> JobSoc:
    schedule = _on(job, predicted)
    steps = job.steps_us(schedule)
    return JobSoc(
        step_us=max(steps),
        by_rank_us={str(rank.rank): us for rank, us in zip(job.ranks, steps, strict=True)},
        waiting_us=job.waiting_us(schedule),
        notes=tuple(dict.fromkeys(note for rank in predicted for note in rank.notes)),
    )


class _Apart(msgspec.Struct, frozen=True, kw_only=True):
    """The two ranks whose steps on the host are furthest apart in time."""

    first: RankStudy
    last: RankStudy
    later_us: float
    """How much later `last` starts its step than `first`, in µs."""
    common: float
    """Overlap of the two steps, as a share of the shorter step."""


def _apart(job: JobGraph, ranks: Sequence[RankStudy]) -> _Apart:
    spans = [
        (graph.at_us, graph.at_us + (rank.step.end_ns - rank.step.start_ns) / 1e3, rank)
        for rank, graph in zip(ranks, job.ranks, strict=True)
    ]
    # No two steps have less in common than the one that ends first and the one that begins last.
    first, last = min(spans, key=lambda span: span[1]), max(spans, key=lambda span: span[0])
    shorter = max(min(first[1] - first[0], last[1] - last[0]), 1e-3)
    common = min(1.0, max(0.0, first[1] - last[0]) / shorter)
    return _Apart(first=first[2], last=last[2], later_us=last[0] - first[0], common=common)


def _apart_notes(apart: _Apart) -> list[str]:
    """Return a note if the ranks' steps hardly overlap. Waits between ranks are meaningless then."""
    if apart.common >= LEAST_COMMON:
        return []
    return [
        f"the steps of these ranks hardly overlap: {apart.first.step.name} of rank {apart.first.rank} and "
        f"{apart.last.step.name} of rank {apart.last.rank} share only {100 * apart.common:.0f} % of the shorter step, "
        f"and the second begins {apart.later_us / 1e3:,.1f} ms later. They are different steps, or the clocks "
        "disagree, so waiting and lateness are not within one step. Select another step with --step N"
    ]


def _notes(job: JobGraph, ranks: Sequence[RankStudy], matches: JobCollectives, inside: Sequence[Matched]) -> list[str]:
    notes = [*_apart_notes(_apart(job, ranks)), *_matching_notes(ranks, inside), *_clock_notes(matches.clocks)]
    unmatched = sum(matches.unmatched.values())
    if unmatched:
        notes.append(f"{unmatched} collectives of these traces have no counterpart on any other given rank")
    if job.dropped:
        notes.append(f"{job.dropped} collectives contradict the order of others, so no rank waits for them")
    if not inside:
        notes.append(
            "no collective of this step has two of the given ranks, so their steps are independent of each other"
        )
    return notes


def _matching_notes(ranks: Sequence[RankStudy], inside: Sequence[Matched]) -> Iterator[str]:
    """Yield notes on how the step's collectives were matched and which ranks are missing."""
    ways = Counter(item.how for item in inside if item.how != "sequence")
    if ways:
        yield (
            f"{ways.total()} of {len(inside)} collectives have no sequence number: matched by "
            f"{' and '.join({'order': 'their order', 'overlap': 'overlap in time'}[way] for way in sorted(ways))} "
            "(inferred)"
        )
    unnamed = sum(item.group is None for item in inside)
    groups = max(item.trace.info.process_groups for item in ranks)
    if unnamed and groups > 1:
        yield (
            f"the job has {groups} process groups and {unnamed} of {len(inside)} collectives name none: they are "
            "assumed to be of one group, so some pairs may be of different groups"
        )
    world = max((r.trace.info.world_size or 0 for r in ranks), default=0)
    # A given rank may lack a call, too: its recording is shorter, or the call has no counterpart.
    all_ranks = world or len(ranks) + max((item.missing for item in inside), default=0)
    if all_ranks > len(ranks):
        yield (
            f"{len(ranks)} of {all_ranks} ranks were given: the transfer time includes "
            "waiting for the others, so waiting may be longer and transfer shorter than shown"
        )


def _clock_notes(clocks: Sequence[Clock]) -> Iterator[str]:
    """Yield notes on the shift of each rank's clock, and on ranks that share no collective with the first rank."""
    for clock in clocks:
        if clock.corrected:
            yield (
                f"the clock of rank {clock.rank} was moved by {clock.shift_us:+.1f} µs: {clock.by} collectives then "
                f"end within {clock.spread_us:.1f} µs (median) of the same collectives on rank {clock.against}"
            )
        elif clock.against is not None:
            yield (
                f"the clock of rank {clock.rank} is as recorded: {clock.by} collectives end within "
                f"{clock.spread_us:.1f} µs (median) of the same collectives on rank {clock.against}"
            )
    alone = [str(clock.rank) for clock in clocks[1:] if clock.against is None]
    if alone:
        yield f"ranks {', '.join(alone)} share no collective with the first rank: their clocks are as recorded"
