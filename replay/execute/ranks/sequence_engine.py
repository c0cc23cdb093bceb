# pyright: strict
"""A step with its collectives on ranks of this machine: settled in one process first, then run by all, again without
what a rank was lost over.

Owns what is tried again and what the ranks' passes come to. How a rank runs them is `torch.step`.
"""

from __future__ import annotations

from collections import Counter
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
from opreplay.replay.execute.processes.sequence_engine import DEATHS, SequenceEngine
from opreplay.replay.execute.ranks.engine import outcome_of
from opreplay.replay.execute.ranks.messages import RankReply
from opreplay.replay.execute.ranks.step_crew import Broken, StepCrew
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
        crew: StepCrew,
        plan: ReplayPlan,
        config: WorkerConfig,
        *,
        backend: str,
        max_bytes: int,
        budget_bytes: int | None,
        op_time_s: float,
        limit_s: float,
        total_time_s: float | None,
    ) -> None:
        """`plan` is one of `calls_alone`; `max_bytes` for a collective's buffers on all ranks; `budget_bytes` for the
        tensors of calls on each rank."""
        assert plan.sequence is not None
        self._alone, self._crew, self._plan, self._config = alone, crew, plan, config
        self._backend, self._max_bytes, self._budget_bytes = backend, max_bytes, budget_bytes
        self._op_time_s, self._limit_s = op_time_s, limit_s
        self._until = inf if total_time_s is None else monotonic() + total_time_s
        self._sequence = plan.sequence
        self._ran: list[CollectiveCall] = []
        self._replies: list[SharedStepOutcome] = []
        self._restarts = 0

    def start(self) -> dict[str, object]:
        facts = self._crew.start()
        try:
            return {**self._alone.start(), "ranks": self._crew.world, "rank_facts": facts}
        except BaseException:
            self._crew.close()
            raise

    def close(self) -> None:
        try:
            self._crew.close()
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
        self._crew.close()
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
            ranks=self._crew.world,
            backend=self._backend,
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
            restarts=self._restarts,
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
            share = mapped(one, self._crew.world, max_bytes=self._max_bytes)
        except TooFewRanks as error:
            return Reason("collective", f"{error}: --ranks 2")
        if share.part < 1.0:
            return Reason("budget", f"{share.note}: no step has a part of it (--max-op-memory)")
        return Beside(op=op, one=one, share=share)

    def _on_ranks(
        self, calls: list[ReplayOp], beside: Mapping[str, Beside], alone: Mapping[str, Outcome]
    ) -> dict[str, Outcome]:
        """Outcomes of calls and collectives on the ranks, after as many new groups as it takes.

        What a rank was lost over gets another try where it did not hang, and is left out after that; so does a step in
        which one was lost over nothing in particular.
        """
        tried: Counter[str | None] = Counter()
        gone: dict[str, Reason] = {}
        own = set(self._alone.own)
        while True:
            left = [op for op in calls if op.id not in gone]
            here = [one for id_, one in beside.items() if id_ not in gone]
            lost = {id_: unable(reason) for id_, reason in gone.items()}
            if not here:
                return lost
            step, self._ran = self._step(left, here, own)
            found = self._crew.run_step(step, limit_s=self._limit_s, until=self._until)
            if not isinstance(found, Broken):
                self._replies = found
                return lost | self._outcomes(found, left, here, alone)
            self._restarts += 1
            names = [*(op.id for op in left), *(one.op.id for one in here)]
            culprit = None if found.at is None or found.at >= len(names) else names[found.at]
            gone.update({names[at]: reason for at, reason in found.raised.items()})
            tried[culprit] += 1
            if not found.raised and culprit is not None and not found.over:
                own.add(culprit)
                if tried[culprit] > 1 or found.hung:
                    gone[culprit] = found.reason
            if found.over or tried[None] > 1 or self._restarts > DEATHS:
                return {id_: unable(reason) for id_, reason in gone.items()} | {
                    one.op.id: unable(found.reason) for one in here if one.op.id not in gone
                }

    def _step(self, ops: list[ReplayOp], here: list[Beside], own: set[str]) -> tuple[SharedStep, list[CollectiveCall]]:
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
            time_s=min(self._op_time_s * (len(ops) + len(here)), max(0.0, self._until - monotonic()) / 2),
            heartbeat="",
            own=tuple(own),
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
        step = SharedStep(number=self._restarts + 1, config=self._config, task=task, collectives=collectives)
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
        first = found[0].calls
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
            made = outcome_of(one.one, one.share, known, backend=self._backend, options=self._config.options)
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
