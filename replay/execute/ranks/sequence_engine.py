# pyright: strict
"""Replay a step with its collectives on ranks of this machine.

Before, one process found out which calls can be replayed.

This module retries without the ops that ended a rank, and combines the ranks' times. `torch.step` runs a rank's passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from statistics import median
from time import monotonic

import msgspec

from opreplay.replay.collectives.mapping import Share
from opreplay.replay.collectives.model import Collective
from opreplay.replay.execute.messages import RankConfig, SharedCall, SharedStep, SharedStepOutcome
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.lanes import Decide, Step
from opreplay.replay.execute.processes.sequence_engine import Blame, SequenceEngine, task_of
from opreplay.replay.execute.processes.workers import Death, Heartbeats
from opreplay.replay.execute.ranks.crew import local_ranks, reason_of
from opreplay.replay.execute.ranks.engine import WithRanks, outcome_of
from opreplay.replay.ir.model import Assumption, CollectiveCall, Reason, RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.plan.step.beside import with_collectives_beside, without_calls
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import OpResult, SequenceResult, SharedStepResult
from opreplay.replay.results.stats import quantile

OWN_TENSORS = Assumption(
    argument="tensors", what="given separate memory, because no call of the step reads its results"
)


class MappedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of the step that ranks can run."""

    op: ReplayOp
    collective: Collective
    share: Share


class SequenceOnRanks(WithRanks):
    """An `Engine` (see `lanes`) that runs the step's calls twice: first without ranks, then on the ranks with the
    collectives.
    """

    def __init__(
        self,
        alone: SequenceEngine,
        rank_config: RankConfig,
        plan: ReplayPlan,
        config: WorkerConfig,
        *,
        budget_bytes: int | None,
        limit_s: float,
        total_time_s: float | None,
    ) -> None:
        """Prepare to replay a plan that `calls_alone` returned.

        `config` applies to the plan's calls. `budget_bytes` limits the memory of the calls' tensors on each rank.
        """
        assert plan.sequence is not None
        self._until = inf if total_time_s is None else monotonic() + total_time_s
        super().__init__(alone, local_ranks(rank_config, limit_s=limit_s, until=self._until), rank_config)
        self._alone, self._plan, self._config = alone, plan, config
        self._world, self._budget_bytes, self._limit_s = rank_config.world, budget_bytes, limit_s
        self._sequence = plan.sequence
        self._ran: list[CollectiveCall] = []
        self._replies: list[SharedStepOutcome] = []
        self._blame = Blame()

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[Step]:
        """Yield each op of the step, then the op with its outcome.

        Ops for which `decide` returns an outcome are excluded from the step.
        """
        every = list(ops)
        calls = [op for op in every if op.collective is None]
        outcomes: dict[str, Outcome] = {}
        for step in self._alone.outcomes(calls, decide):
            if isinstance(step, tuple):
                outcomes[step[0].id] = step[1]
            else:
                yield step
        mapped_collectives: list[MappedCollective] = []
        for op in every:
            if op.collective is None:
                continue
            yield op
            collective = decide(op) or self._mapped(op, op.collective)
            if isinstance(collective, MappedCollective):
                mapped_collectives.append(collective)
            else:
                outcomes[op.id] = collective
        calls = [op for op in calls if outcomes[op.id].status == "replayed"]
        outcomes |= self._on_ranks(calls, mapped_collectives)
        self._ranks.close()
        for op in every:
            yield op, outcomes[op.id]

    def records(self, results: Sequence[OpResult]) -> tuple[SequenceResult, ...]:
        """Return the record of the sequence as a whole, with the passes on ranks if there were any."""
        if not self._replies:
            return self._alone.records(results)
        replayed = {result.id for result in results if result.status == "replayed"}
        ran = [call for call in self._ran if call.id in replayed]
        calls = msgspec.structs.replace(
            self._replies[0].calls,
            sums_us=_slowest(reply.calls.sums_us for reply in self._replies),
            walls_us=_slowest(reply.calls.walls_us for reply in self._replies),
        )
        whole = self._alone.record_of(calls, results)
        of_ranks = [reply.passes for reply in self._replies]
        slowest = max(of_ranks, key=lambda passes: median(passes.in_flight_us))
        both_us = zip(slowest.hidden_us, slowest.in_flight_us, strict=True)
        shares = sorted(hidden / in_flight for hidden, in_flight in both_us if in_flight > 0) or [0.0]
        waits = Counter(call.how for call in ran)
        recorded = sum(call.us for call in ran)
        everything = self._plan.device_us_total or self._plan.host_us_total
        shared = SharedStepResult(
            ranks=self._world,
            backend=self._rank_config.backend,
            collectives=len(self._sequence.collectives),
            collectives_replayed=len(ran),
            recorded_us=recorded,
            waits_recorded=waits["recorded"],
            waits_inferred=waits["order"],
            waits_unknown=waits["unknown"],
            in_flight_us=median(slowest.in_flight_us),
            waited_us=median(slowest.waited_us),
            hidden_us=median(slowest.hidden_us),
            hidden_share_low=quantile(shares, 0.1),
            hidden_share_high=quantile(shares, 0.9),
            calls_alone_us=median(_slowest(passes.alone_sums_us for passes in of_ranks)),
            wall_alone_us=median(_slowest(passes.alone_walls_us for passes in of_ranks)),
            collectives_alone_us=median(_slowest(passes.collectives_alone_us for passes in of_ranks)),
            unseen=max(reply.unseen for reply in self._replies),
            restarts=self._blame.deaths,
        )
        left_out = max(0.0, whole.left_out_share - recorded / everything) if everything else 0.0
        return (msgspec.structs.replace(whole, left_out_share=left_out, shared=shared),)

    def _mapped(self, op: ReplayOp, collective: Collective) -> MappedCollective | Outcome:
        share = self.share_of(collective)
        if isinstance(share, Outcome):
            return share
        if share.part < 1.0:
            return unable(Reason("budget", f"{share.note}: a step cannot run only a part of it (--set max_op_memory)"))
        return MappedCollective(op=op, collective=collective, share=share)

    def _on_ranks(self, calls: list[ReplayOp], collectives: Sequence[MappedCollective]) -> dict[str, Outcome]:
        """Return the outcomes of calls and collectives on the ranks. New process groups are started as often
        as needed.
        """
        ids = [op.id for op in calls] + [part.op.id for part in collectives]
        answer = self._blame.retried(
            ids,
            lambda left: self._tried(
                [op for op in calls if op.id in left], [part for part in collectives if part.op.id in left]
            ),
            lambda death: reason_of(death, self._world, self._limit_s),
        )
        if not isinstance(answer, Death):
            return answer | self._blame.left_out()
        lost = unable(reason_of(answer, self._world, self._limit_s))
        return {part.op.id: lost for part in collectives} | self._blame.left_out()

    def _tried(self, calls: list[ReplayOp], parts: list[MappedCollective]) -> dict[str, Outcome] | Death:
        """Return the outcomes of these calls and collectives on one process group; empty without collectives."""
        if not parts:
            return {}
        step, self._ran = self._step(calls, parts)
        with Heartbeats(self._world, calls=len(calls)) as beats:
            tasks = [msgspec.structs.replace(step.task, heartbeat=path) for path in beats.paths()]
            answer = self._ranks.run([msgspec.structs.replace(step, task=task) for task in tasks], beats)
        if isinstance(answer, Death):
            return answer
        self._replies = answer
        return self._outcomes(answer, calls, parts)

    def _step(self, ops: list[ReplayOp], parts: list[MappedCollective]) -> tuple[SharedStep, list[CollectiveCall]]:
        """Return the step that every rank runs, and the recorded collectives in it."""
        number = {part.op.id: at for at, part in enumerate(parts)}
        sequence = without_calls(self._sequence, {op.id for op in ops} | set(number))
        # What is left of the run's time also has to do for starting and for passes that do not count.
        left_s = max(0.0, self._until - monotonic()) / 2
        task = task_of(
            sequence,
            ops,
            budget_bytes=self._budget_bytes,
            time_s=min(self._config.options.op_time_s * (len(ops) + len(parts)), left_s),
            unshared=self._alone.blame.unshared | self._blame.unshared,
        )
        collectives = tuple(
            SharedCall(
                op=number[call.id],
                share=parts[number[call.id]].share,
                at=call.at,
                wait=call.wait,
                at_once=call.at == call.wait and call.how != "order",
            )
            for call in sequence.collectives
        )
        step = SharedStep(config=self._config, task=task, collectives=collectives)
        return step, list(sequence.collectives)

    def _outcomes(
        self, replies: Sequence[SharedStepOutcome], calls: list[ReplayOp], parts: list[MappedCollective]
    ) -> dict[str, Outcome]:
        """Return the outcomes by op id.

        Calls have the times of the first rank. Collectives have the times of all ranks, from start to end.
        """
        first, backend = replies[0].calls.outcomes, self._rank_config.backend
        missing = unable(Reason("failed", "no times from the first rank"))
        outcomes = {op.id: first.get(op.id, missing) for op in calls}
        for at, part in enumerate(parts):
            of_part = [of_rank for reply in replies for of_rank in reply.collectives if of_rank.number == at]
            outcome = outcome_of(part.collective, part.share, of_part, backend=backend, options=self._config.options)
            if outcome.measurement is not None:
                cached = msgspec.structs.replace(outcome.measurement, cache="sequence")
                outcome = msgspec.structs.replace(outcome, measurement=cached)
            assumptions = (*outcome.assumptions, OWN_TENSORS)
            outcomes[part.op.id] = msgspec.structs.replace(outcome, assumptions=assumptions)
        return outcomes


def _slowest(times_us: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """Return the time of the slowest rank in each pass; `times_us` has one sequence per rank."""
    return tuple(max(of_pass) for of_pass in zip(*times_us, strict=True))


def calls_alone(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with its collectives listed separately from the calls of its sequence.

    A captured plan lists them among the calls.
    """
    sequence: RecordedSequence | None = plan.sequence
    assert sequence is not None
    beside = with_collectives_beside(sequence, {op.id for op in plan.ops if op.collective is not None})
    return msgspec.structs.replace(plan, sequence=beside)
