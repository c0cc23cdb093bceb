# pyright: strict
"""A step with its collectives on ranks of this machine: settled in one process first, then run by all, again without
what a rank was lost over.

Owns what is tried again and what the ranks' passes come to. How a rank runs them is `torch.step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import median
from time import monotonic

import msgspec

from opreplay.replay.collectives.mapping import Share, TooFewRanks, mapped
from opreplay.replay.collectives.model import Collective
from opreplay.replay.execute.messages import SequenceTask, SharedCall, SharedStep, SharedStepOutcome
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.lanes import Decide
from opreplay.replay.execute.processes.sequence_engine import Blame, SequenceEngine
from opreplay.replay.execute.processes.workers import Death, Heartbeats
from opreplay.replay.execute.ranks.crew import local_ranks, reason_of
from opreplay.replay.execute.ranks.engine import outcome_of
from opreplay.replay.execute.ranks.messages import RankConfig, RankReply
from opreplay.replay.ir.model import Assumption, CollectiveCall, Reason, RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.plan.step.beside import with_collectives_beside, without_calls
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import OpResult, SequenceResult, SharedStepResult
from opreplay.replay.results.stats import median_interval, quantile

OWN_TENSORS = Assumption(argument="tensors", what="its own: no call of the step reads what it leaves")


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of the step that ranks can run."""

    op: ReplayOp
    one: Collective
    share: Share


class SequenceOnRanks:
    """An `Engine` (see `lanes`): the step's calls by `alone` first, then calls and collectives on the ranks."""

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
        """`plan` is one of `calls_alone`; `config` is for the calls, and `budget_bytes` for their tensors on each
        rank."""
        assert plan.sequence is not None
        self._alone, self._plan, self._config, self._rank_config = alone, plan, config, rank_config
        self._world, self._budget_bytes, self._limit_s = rank_config.world, budget_bytes, limit_s
        self._until = inf if total_time_s is None else monotonic() + total_time_s
        self._ranks = local_ranks(rank_config, limit_s=limit_s, until=self._until)
        self._sequence = plan.sequence
        self._ran: list[CollectiveCall] = []
        self._replies: list[SharedStepOutcome] = []
        self._blame = Blame()

    def start(self) -> dict[str, object]:
        facts = self._ranks.start()
        try:
            return {**self._alone.start(), "ranks": self._world, "rank_facts": facts}
        except BaseException:
            self._ranks.close()
            raise

    def close(self) -> None:
        try:
            self._ranks.close()
        finally:
            self._alone.close()

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[tuple[ReplayOp, Outcome]]:
        """Each op of the step; those that `decide` has an outcome for are left out of it."""
        every = list(ops)
        calls = [op for op in every if op.collective is None]
        found = {op.id: outcome for op, outcome in self._alone.outcomes(calls, decide)}
        beside: dict[str, Beside] = {}
        for op in every:
            if op.collective is None:
                continue
            outcome = decide(op)
            if outcome is None:
                made = self._mapped(op, op.collective)
                if isinstance(made, Beside):
                    beside[op.id] = made
                    continue
                outcome = unable(made)
            found[op.id] = outcome
        calls = [op for op in calls if found[op.id].status == "replayed"]
        found.update(self._on_ranks(calls, beside, found))
        self._ranks.close()
        for op in every:
            yield op, found[op.id]

    def records(self, results: Sequence[OpResult]) -> tuple[SequenceResult, ...]:
        """The record of the sequence as a whole, with the ranks' passes where there are any."""
        (whole,) = self._alone.records(results)
        if not self._replies:
            return (whole,)
        replayed = {result.id for result in results if result.status == "replayed"}
        ran = [one for one in self._ran if one.id in replayed]
        sums, walls = self._slowest("sums_us"), self._slowest("walls_us")
        low, high = median_interval(sorted(sums)) or (None, None)
        flight, waited = _median(self._replies, "in_flight_us"), _median(self._replies, "waited_us")
        hidden = _median(self._replies, "hidden_us")
        slow = max(range(len(self._replies)), key=lambda rank: flight[rank])
        passes = zip(self._replies[slow].hidden_us, self._replies[slow].in_flight_us, strict=True)
        shares = sorted(part / whole for part, whole in passes if whole > 0) or [0.0]
        recorded = sum(one.us for one in ran)
        everything = self._plan.device_us_total or self._plan.host_us_total
        calls = self._replies[0].calls
        shared = SharedStepResult(
            ranks=self._world,
            backend=self._rank_config.backend,
            collectives=len(self._sequence.collectives),
            collectives_replayed=len(ran),
            recorded_us=recorded,
            waits_recorded=sum(one.how == "recorded" for one in ran),
            waits_inferred=sum(one.how == "order" for one in ran),
            waits_unknown=sum(one.how == "unknown" for one in ran),
            in_flight_us=flight[slow],
            waited_us=waited[slow],
            hidden_us=hidden[slow],
            hidden_share_low=quantile(shares, 0.1),
            hidden_share_high=quantile(shares, 0.9),
            calls_alone_us=median(_slowest(self._replies, "alone_sums_us")),
            wall_alone_us=median(_slowest(self._replies, "alone_walls_us")),
            collectives_alone_us=median(_slowest(self._replies, "collectives_alone_us")),
            unseen=max(reply.unseen for reply in self._replies),
            restarts=self._blame.deaths,
        )
        return (
            msgspec.structs.replace(
                whole,
                calls_replayed=0 if calls is None else calls.calls,
                left_out_share=max(0.0, whole.left_out_share - recorded / everything) if everything else 0.0,
                passes=len(sums),
                sum_us=quantile(sorted(sums), 0.5),
                sum_low_us=low,
                sum_high_us=high,
                wall_us=quantile(sorted(walls), 0.5),
                tensors=whole.tensors if calls is None else calls.tensors,
                shared=shared,
            ),
        )

    def _mapped(self, op: ReplayOp, one: Collective) -> Beside | Reason:
        try:
            share = mapped(one, self._world, max_bytes=self._rank_config.memory_bytes * self._world)
        except TooFewRanks as error:
            return Reason("collective", f"{error}: --ranks 2")
        if share.part < 1.0:
            return Reason("budget", f"{share.note}: no step has a part of it (--max-op-memory)")
        return Beside(op=op, one=one, share=share)

    def _on_ranks(
        self, calls: list[ReplayOp], beside: Mapping[str, Beside], alone: Mapping[str, Outcome]
    ) -> dict[str, Outcome]:
        """Outcomes of calls and collectives on the ranks, after as many new groups as it takes."""
        blame = self._blame
        while True:
            left = [op for op in calls if op.id not in blame.gone]
            here = [one for id_, one in beside.items() if id_ not in blame.gone]
            lost = {id_: unable(reason) for id_, reason in blame.gone.items()}
            if not here:
                return lost
            step, self._ran = self._step(left, here)
            with Heartbeats(self._world, calls=len(left)) as beats:
                tasks = [msgspec.structs.replace(step.task, heartbeat=path) for path in beats.paths()]
                answer = self._ranks.run([msgspec.structs.replace(step, task=task) for task in tasks], beats)
            if not isinstance(answer, Death):
                self._replies = answer
                return lost | self._outcomes(answer, left, here, alone)
            reason = reason_of(answer, self._world, self._limit_s)
            if not blame.is_worth_another_try(answer, [op.id for op in [*left, *(one.op for one in here)]], reason):
                at_fault = {id_: unable(why) for id_, why in blame.gone.items()}
                return {one.op.id: unable(reason) for one in here} | at_fault

    def _step(self, ops: list[ReplayOp], here: list[Beside]) -> tuple[SharedStep, list[CollectiveCall]]:
        """What every rank is to run, and the recorded collectives in it."""
        number = {one.op.id: at for at, one in enumerate(here)}
        sequence = without_calls(self._sequence, {op.id for op in ops} | set(number))
        index = {op.id: at for at, op in enumerate(ops)}
        task = SequenceTask(
            ops=tuple(ops),
            calls=tuple(index[sequence.ids[call]] for call in sequence.calls),
            memories=sequence.memories,
            budget_bytes=self._budget_bytes,
            # What is left of the run's time also has to do for starting and for passes that do not count.
            time_s=min(
                self._config.options.op_time_s * (len(ops) + len(here)), max(0.0, self._until - monotonic()) / 2
            ),
            heartbeat="",
            own=tuple(self._alone.blame.own | self._blame.own),
        )
        collectives = tuple(
            SharedCall(
                op=number[one.id],
                share=here[number[one.id]].share,
                at=one.at,
                wait=one.wait,
                at_once=one.at == one.wait and one.how != "order",
            )
            for one in sequence.collectives
        )
        step = SharedStep(number=self._blame.deaths + 1, config=self._config, task=task, collectives=collectives)
        return step, list(sequence.collectives)

    def _outcomes(
        self,
        found: Sequence[SharedStepOutcome],
        calls: list[ReplayOp],
        here: list[Beside],
        alone: Mapping[str, Outcome],
    ) -> dict[str, Outcome]:
        """Of calls the times of the first rank; of collectives those of all, from being asked for to the end."""
        out: dict[str, Outcome] = {}
        first, backend = found[0].calls, self._rank_config.backend
        for op in calls:
            times = None if first is None else first.times.get(op.id)
            if times is not None:
                out[op.id] = msgspec.structs.replace(
                    alone[op.id],
                    measurement=times.measurement,
                    initializer=times.initializer,
                    filling=times.filling,
                    assumptions=times.assumptions,
                )
            else:
                reasons = {} if first is None else first.reasons
                out[op.id] = unable(reasons.get(op.id, Reason("failed", "no times from the first rank")))
        for at, one in enumerate(here):
            replies = [_reply(reply.collectives, at) for reply in found]
            known = [reply for reply in replies if reply is not None]
            made = outcome_of(one.one, one.share, known, backend=backend, options=self._config.options)
            if made.measurement is not None:
                cached = msgspec.structs.replace(made.measurement, cache="sequence")
                made = msgspec.structs.replace(made, measurement=cached)
            out[one.op.id] = msgspec.structs.replace(made, assumptions=(*made.assumptions, OWN_TENSORS))
        return out

    def _slowest(self, name: str) -> list[float]:
        """Of each pass what the slowest rank took."""
        return _slowest([reply.calls for reply in self._replies if reply.calls is not None], name)


def _reply(collectives: Sequence[RankReply], number: int) -> RankReply | None:
    return next((one for one in collectives if one.number == number), None)


def _slowest(of: Sequence[object], name: str) -> list[float]:
    return [max(each) for each in zip(*(getattr(one, name) for one in of), strict=True)]


def _median(of: Sequence[object], name: str) -> list[float]:
    """Of each rank the median of its passes."""
    return [median(getattr(one, name)) for one in of]


def calls_alone(plan: ReplayPlan) -> ReplayPlan:
    """The plan whose sequence has collectives beside its calls alone, also where a capture has them among the calls."""
    sequence: RecordedSequence | None = plan.sequence
    assert sequence is not None
    beside = with_collectives_beside(sequence, {op.id for op in plan.ops if op.collective is not None})
    return msgspec.structs.replace(plan, sequence=beside)
