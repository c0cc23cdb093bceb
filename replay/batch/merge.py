# pyright: strict
"""Merge many traces into one plan.

Ops that several traces contain are replayed once, with sums for each trace, each job and the batch.

This module merges and sums. The caller reads files, `run` replays, and `ranks` recognises which traces are ranks of a
job.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from opreplay.replay.batch.ranks import Member, assign_jobs, labels
from opreplay.replay.batch.stamps import Stamp
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.plan import passes
from opreplay.replay.report.text import plural
from opreplay.replay.results.records import CollectivesResult, JobResult, OpResult, TraceResult
from opreplay.replay.results.resume import digest
from opreplay.replay.results.summary import round_to_one
from opreplay.traces.joins.matched import sum_of_rank
from opreplay.traces.joins.ranks import RankCalls, match
from opreplay.traces.links.collectives import RankCall
from opreplay.traces.losses import without_copies
from opreplay.traces.names import printable
from opreplay.traces.sums import summed


class TracePlan(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """The plan of one trace, with the trace's recorded rank and world size."""

    path: str
    """Path of the trace as printable text; messages in the plan are printable, too."""
    plan: ReplayPlan
    rank: int | None = None
    world_size: int | None = None
    sources: tuple[Stamp, ...] = ()
    """All files from which the plan was made, with their state.

    Empty if a file changed during reading or is not a regular file.
    """
    notes: tuple[str, ...] = ()
    """Notes for the user on how the trace was read."""
    calls: tuple[RankCall, ...] = ()
    """The trace's collectives, if it was read with its timing."""
    base_ns: int = 0
    """Time origin of `calls`, in ns."""


class NotRead(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the batch from which no trace was read."""

    file: str
    """Name of the file, with as many of its folders as needed to make it unique."""
    why: str
    left_out: bool
    """Whether the file was skipped because it is not a trace, or is a copy of another file.

    If False, the file was refused.
    """


MOST_DISAGREEMENTS = 100
MAX_CALLS = 500_000
"""Maximum number of collectives, over all traces, that are kept for matching. They take about 200 MB."""


class _Uses:
    """How often one trace calls each op of the merged plan. It takes 24 bytes per op, since there may be thousands of
    traces.
    """

    def __init__(self, plan: ReplayPlan) -> None:
        self.op = array("l")
        self.count = array("q")
        self.recorded_us = array("d")
        self.total = passes.total_of(plan)
        """Total from which the trace's shares are computed: recorded time, or bytes for a captured step."""
        self.clock: passes.Clock | None = passes.clock_of(plan)
        self.losses = plan.losses


class Batch:
    """Merges plans that are added one after the other. `plan` returns the merged plan, and `close` sums its results."""

    def __init__(self) -> None:
        self._ops: list[ReplayOp] = []
        self._index: dict[str, int] = {}
        self._traces_of: list[int] = []
        self._uses: list[_Uses] = []
        self._paths: list[str] = []
        self._ranks: list[tuple[int | None, int | None]] = []
        self._calls: list[tuple[tuple[RankCall, ...], int]] = []
        self._kept_calls = 0
        self._first: ReplayPlan | None = None
        self._unmatched: tuple[str, ...] = ()
        self._device_us = self._host_us = 0.0
        self._unowned_us = {True: 0.0, False: 0.0}
        """Time of kernels without an op: {True: of traces with device time, False: of traces without}.

        The two are separate because shares use only the first.
        """
        self._devices: dict[str, None] = {}
        self._not_read: list[tuple[str, str, bool]] = []

    @classmethod
    def of(cls, traces: Iterable[TracePlan]) -> Batch:
        """Merge all traces into one batch."""
        batch = cls()
        for trace in traces:
            batch.add(trace)
        return batch

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def rank_ops(self) -> int:
        """Return the number of ops summed over all traces. This is the number that would be replayed without
        merging.
        """
        return sum(len(uses.op) for uses in self._uses)

    def add(self, trace: TracePlan) -> None:
        """Add the ops of one more trace; nothing else of its plan is kept."""
        plan = trace.plan
        self._unmatched = tuple(one for one in plan.unmatched if self._first is None or one in self._unmatched)
        self._first = self._first or plan
        self._device_us += plan.device_us_total
        self._host_us += plan.host_us_total
        self._unowned_us[plan.device_us_total > 0] += plan.unowned_device_us
        if plan.device is not None:
            self._devices[plan.device] = None
        self._paths.append(trace.path)
        self._ranks.append((trace.rank, trace.world_size))
        calls = trace.calls if self._kept_calls + len(trace.calls) <= MAX_CALLS else ()
        self._kept_calls += len(calls)
        self._calls.append((calls, trace.base_ns))
        weight = passes.weight_of(plan)
        uses = _Uses(plan)
        for op in plan.ops:
            key = call_key(op, uses.clock)
            index = self._index.get(key)
            if index is None:
                index = self._index[key] = len(self._ops)
                self._ops.append(op)
                self._traces_of.append(1)
            else:
                self._ops[index] = passes.merge_ops(self._ops[index], op)
                self._traces_of[index] += 1
            uses.op.append(index)
            uses.count.append(op.count)
            uses.recorded_us.append(weight(op))
        self._uses.append(uses)

    def record_unread(self, path: str, why: str, *, refused: bool) -> None:
        """Record that a file was not read, and why, for the report."""
        self._not_read.append((printable(path), printable(why), refused))

    @property
    def not_read(self) -> list[NotRead]:
        """Return the files that were not read, in the order in which they were found."""
        names = labels([path for path, _, _ in self._not_read])
        return [
            NotRead(file=name, why=why.replace(path, name), left_out=not refused)
            for name, (path, why, refused) in zip(names, self._not_read, strict=True)
        ]

    def plan(self) -> ReplayPlan:
        """Return the merged plan: one op per distinct call, heaviest first. Counts and times are those of all
        traces.
        """
        merged = ReplayPlan(
            source=plural(len(self), "trace"),
            selection=self._first.selection if self._first is not None else "owner",
            device=", ".join(self._devices) or None,
            device_us_total=self._device_us,
            host_us_total=self._host_us,
            unowned_device_us=self._unowned_us[self._device_us > 0],
            ops=tuple(self._named()),
            losses=self._losses(),
            unmatched=self._unmatched,
        )
        return passes.by_recorded_time(merged)

    def facts(self) -> dict[str, object]:
        """Return the facts about the traces for the header of the results."""
        jobs = {member.job for member in self._members()}
        not_read = {"not_read": msgspec.to_builtins(self.not_read)} if self._not_read else {}
        clocks = Counter(uses.clock or "none" for uses in self._uses)
        losses = self._losses()
        return {
            "traces": len(self),
            "jobs": len(jobs),
            "ops_of_traces": self.rank_ops,
            "clocks": dict(clocks),
            **({"losses": losses} if losses else {}),
            **not_read,
        }

    def close(self, results: Sequence[OpResult]) -> list[TraceResult | JobResult]:
        """Return the sums for each trace and each job, computed from the results of the merged plan's ops."""
        by_id = {result.id: result for result in results}
        op_results = [by_id.get(op.id) for op in self._named()]
        members = self._members()
        traces = [
            self._trace_result(name, member, uses, op_results)
            for name, member, uses in zip(labels(self._paths), members, self._uses, strict=True)
        ]
        jobs: defaultdict[str, list[int]] = defaultdict(list)
        for index, member in enumerate(members):
            jobs[member.job].append(index)
        of_jobs = (self._job_result(job, indices, members, traces, op_results) for job, indices in jobs.items())
        return [*traces, *of_jobs]

    def damaged(self) -> list[str]:
        """Return the paths of the traces that could be read only in part."""
        return [path for path, uses in zip(self._paths, self._uses, strict=True) if without_copies(uses.losses)]

    def _losses(self) -> dict[str, int]:
        """Return how many losses of each kind there are in all traces together."""
        return dict(sum((Counter(uses.losses) for uses in self._uses), Counter[str]()))

    def _members(self) -> list[Member]:
        return assign_jobs(self._paths, self._ranks, [frozenset(uses.op) for uses in self._uses])

    def _named(self) -> list[ReplayOp]:
        """Return the merged ops in the order found. Later ops with an id that is already taken get new ids."""
        taken: set[str] = set()
        out: list[ReplayOp] = []
        for op, key in zip(self._ops, self._index, strict=True):
            if op.id in taken:
                op = msgspec.structs.replace(op, id=digest(key.encode())[:12])
            taken.add(op.id)
            out.append(op)
        return out

    def _trace_result(self, name: str, member: Member, uses: _Uses, results: Sequence[OpResult | None]) -> TraceResult:
        sums = _Sums()
        for index, count, recorded_us in zip(uses.op, uses.count, uses.recorded_us, strict=True):
            sums.add(results[index], count, recorded_us)
        return TraceResult(
            source=name,
            job=member.job,
            rank=member.rank,
            world_size=member.world_size,
            ops=len(uses.op),
            shared=sum(self._traces_of[index] > 1 for index in uses.op),
            replayed=sums.replayed,
            covered_share=round_to_one(sums.covered_us / uses.total) if uses.total else 0.0,
            clock=uses.clock,
            recorded_us=None if uses.clock is None else sums.recorded_us,
            total_us=None if uses.clock is None else uses.total,
            measured_us=sums.measured_us if sums.replayed else None,
            simulated_us=sums.simulated_us,
            unpredicted_share=sums.unpredicted_share(),
            losses=uses.losses,
        )

    def _job_result(
        self,
        job: str,
        indices: Sequence[int],
        members: Sequence[Member],
        traces: Sequence[TraceResult],
        results: Sequence[OpResult | None],
    ) -> JobResult:
        job_traces = [traces[index] for index in indices]
        ops = {op for index in indices for op in self._uses[index].op}
        clocks = {trace.clock for trace in job_traces}
        one_clock = len(clocks) == 1
        recorded = [trace.recorded_us for trace in job_traces if trace.recorded_us is not None] if one_clock else []
        measured = [trace.measured_us for trace in job_traces if trace.measured_us is not None]
        return JobResult(
            job=job,
            ranks=tuple(sorted(trace.rank for trace in job_traces if trace.rank is not None)),
            world_size=job_traces[0].world_size,
            rank_from=members[indices[0]].rank_from,
            ops=len(ops),
            rank_ops=sum(trace.ops for trace in job_traces),
            replayed=sum((result := results[op]) is not None and result.status == "replayed" for op in ops),
            covered_share=self._covered_share(indices, traces) if one_clock else None,
            clock=job_traces[0].clock if one_clock else None,
            recorded_us=sum(recorded) if recorded else None,
            measured_us=sum(measured) if measured else None,
            slowest_rank_us=max(recorded, default=None),
            simulated_us=_added(trace.simulated_us for trace in job_traces),
            collectives=self._collectives(indices, members),
        )

    def _covered_share(self, indices: Sequence[int], traces: Sequence[TraceResult]) -> float:
        """Return the replayed share of several traces' recorded time. All traces must have the same kind of times."""
        total = sum(self._uses[index].total for index in indices)
        covered = sum(traces[index].covered_share * self._uses[index].total for index in indices)
        return round_to_one(covered / total) if total else 0.0

    def _collectives(self, indices: Sequence[int], members: Sequence[Member]) -> CollectivesResult | None:
        """Match the collectives of a job's ranks. Return None if no two ranks share a collective."""
        return _collectives_of(
            [
                RankCalls(rank=rank, calls=self._calls[index][0], origin_ns=self._calls[index][1])
                for index in indices
                if (rank := members[index].rank) is not None and self._calls[index][0]
            ]
        )


def _added(times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Map each SoC to the sum of its times."""
    return summed((soc, time_us) for of_soc in times for soc, time_us in of_soc.items())


class _Sums:
    """Sums over one trace's ops, each multiplied by its number of calls, in µs."""

    def __init__(self) -> None:
        self.replayed = 0
        self.recorded_us = self.covered_us = self.measured_us = 0.0
        self.simulated_us: dict[str, float] = {}
        self.predicted_recorded_us: dict[str, float] = {}

    def add(self, result: OpResult | None, count: int, recorded_us: float) -> None:
        """Add one op of the trace and its result."""
        self.recorded_us += recorded_us
        if result is None:
            return
        for soc, time_us in result.simulated_us.items():
            self.simulated_us[soc] = self.simulated_us.get(soc, 0.0) + time_us * count
            self.predicted_recorded_us[soc] = self.predicted_recorded_us.get(soc, 0.0) + recorded_us
        if result.status == "replayed":
            self.replayed += 1
            self.covered_us += recorded_us
            self.measured_us += (result.measured_us or 0.0) * count

    def unpredicted_share(self) -> dict[str, float]:
        """Map each SoC to the share of the recorded time in ops without a prediction. Empty if no time was recorded."""
        if not self.recorded_us:
            return {}
        return {soc: 1.0 - round_to_one(us / self.recorded_us) for soc, us in self.predicted_recorded_us.items()}


def call_key(op: ReplayOp, clock: passes.Clock | None) -> str:
    """Return the key by which ops are merged. It is equal for ops that are called in the same way.

    Keys differ if missing arguments were inferred differently. They also differ between traces with and without device
    time, because a mean over both would be meaningless.
    """
    what = [op.id, op.called, op.overload, op.resolved_by, op.args, op.batch, op.reason, op.on_host, clock == "device"]
    return digest(msgspec.msgpack.encode(what))


def _collectives_of(ranks: Sequence[RankCalls]) -> CollectivesResult | None:
    """Match the collectives of several ranks. Return None if no two ranks share a collective."""
    if len({rank.rank for rank in ranks}) < 2:
        return None
    base = ranks[0].origin_ns
    matches = match([msgspec.structs.replace(rank, origin_ns=rank.origin_ns - base) for rank in ranks])
    if not matches.matched:
        return None
    matched = matches.matched
    sums = [sum_of_rank(matched, rank.rank) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    return CollectivesResult(
        matched=len(matched),
        inferred=sum(collective.how != "sequence" for collective in matched),
        skew_us=median(collective.skew_us for collective in matched),
        waiting_us=sum(of_rank.waiting_us for of_rank in sums),
        transfer_us=sum(of_rank.transfer_us for of_rank in sums),
        ranks=tuple(sums),
        clocks=matches.clocks,
        disagreements=len(matches.disagreements),
        disagreeing=matches.disagreements[:MOST_DISAGREEMENTS],
        missing=max(collective.missing for collective in matched),
        unmatched=sum(matches.unmatched.values()),
    )
