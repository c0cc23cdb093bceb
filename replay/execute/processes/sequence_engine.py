# pyright: strict
"""Replay a sequence in a child process, and yield the outcome of each op.

If an op ends the process, the sequence is replayed again without that op. This module decides what is retried.
`workers` decides when a process is stuck, and `passes` runs inside the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from time import monotonic
from typing import TypeVar

import msgspec

from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.messages import PassDone, SequenceOutcome, SequenceTask
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.child import Child
from opreplay.replay.execute.processes.lanes import Decide, Step
from opreplay.replay.execute.processes.workers import Death, Heartbeats, Workers
from opreplay.replay.execute.sequence.passes import LostDevice, serve_sequence
from opreplay.replay.host.limits import MAPPED_BYTES
from opreplay.replay.ir.model import Reason, RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import need_of
from opreplay.replay.plan.step.beside import without_calls
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import OpResult, SequenceResult
from opreplay.replay.results.stats import median_interval, quantile

DEATHS = 10
"""Maximum number of processes that may die before the sequence is given up."""

_Answer = TypeVar("_Answer")


def _median(times_us: Sequence[float]) -> float | None:
    """Return the median of sorted times; None if there are none."""
    return quantile(times_us, 0.5) if times_us else None


class Blame:
    """Finds the ops to exclude from a sequence because they ended processes.

    Before an op is excluded, it gets separate arguments. If something outside ended the process, the op also gets an
    additional try.
    """

    def __init__(self) -> None:
        self.unshared: set[str] = set()
        """Ids of ops that ended a process while they shared tensors with other ops. Now they get their own."""
        self.reasons: dict[str, Reason] = {}
        """Op id → reason why the op is excluded."""
        self.deaths = 0
        self._deaths_at = Counter[str | None]()

    def is_worth_another_try(self, death: Death, ids: Sequence[str], reason: Reason) -> bool:
        """Record a death, and decide whether to retry the sequence in new processes.

        `ids` are the sequence's ops by index. `reason` is recorded for the op at fault.
        """
        self.deaths += 1
        self.reasons.update({ids[at]: raised for at, raised in death.raised.items()})
        culprit = None if death.at is None or death.at >= len(ids) or death.raised else ids[death.at]
        self._deaths_at[culprit] += not death.raised
        if death.how == "over" or self.deaths > DEATHS:
            return False
        if culprit is None:
            return bool(death.raised) or self._deaths_at[None] == 1
        if death.signalled and self._deaths_at[culprit] == 1 and death.cause.kind != "failed":
            return True
        if culprit in self.unshared or death.cause.kind != "failed":
            self.reasons[culprit] = reason
        self.unshared.add(culprit)
        return True

    def retried(
        self,
        ids: Sequence[str],
        attempt: Callable[[Set[str]], _Answer | Death],
        reason_of: Callable[[Death], Reason],
    ) -> _Answer | Death:
        """Repeat an attempt without the ops that failed, until it succeeds. Return its reply.

        If no retry is worthwhile, return the last death.
        """
        while True:
            remaining = [id_ for id_ in ids if id_ not in self.reasons]
            answer = attempt(set(remaining))
            if not isinstance(answer, Death) or not self.is_worth_another_try(answer, remaining, reason_of(answer)):
                return answer

    def left_out(self) -> dict[str, Outcome]:
        """Return the outcomes of the excluded ops."""
        return {id_: unable(reason) for id_, reason in self.reasons.items()}


def task_of(
    sequence: RecordedSequence,
    ops: Sequence[ReplayOp],
    *,
    budget_bytes: int | None,
    time_s: float,
    unshared: Iterable[str],
    left_s: float | None = None,
) -> SequenceTask:
    """Return the task that replays the calls of these ops in the step. The caller adds the heartbeat."""
    index = {op.id: at for at, op in enumerate(ops)}
    return SequenceTask(
        ops=tuple(ops),
        calls=tuple(index[sequence.ids[call]] for call in sequence.calls),
        memories=sequence.memories,
        budget_bytes=budget_bytes,
        time_s=time_s,
        left_s=left_s,
        heartbeat="",
        unshared=tuple(unshared),
    )


class SequenceEngine:
    """An `Engine` (see `lanes`) that replays the plan's sequence when its first outcome is requested."""

    def __init__(
        self,
        plan: ReplayPlan,
        config: WorkerConfig,
        *,
        budget_bytes: int | None,
        op_time_s: float,
        limit_s: float,
        total_time_s: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Set the time for all passes: `op_time_s` times the number of unique ops.

        With `executor`, the passes run in this process.
        """
        self._plan, self._config, self._executor = plan, config, executor
        self._passes: list[PassDone] = []
        """Passes that the process reported and that were not yielded yet."""
        self._budget_bytes, self._op_time_s = budget_bytes, op_time_s
        self._total_time_s = total_time_s
        self._deadline = None if total_time_s is None else monotonic() + total_time_s
        self._workers = Workers(
            lambda facts, _: [Child(config.with_chosen_threads(facts))],
            limit_s=limit_s,
            on_interim=self._passes.append,
        )
        self._outcome: SequenceOutcome | None = None
        self.blame = Blame()

    def start(self) -> dict[str, object]:
        """Return the facts of the device. Raises UsageError or EnvironmentRefused if the device is missing."""
        if self._executor is not None:
            return self._executor.facts()
        return self._workers.start()

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[Step]:
        """Yield each op of the step and its outcome. Ops for which `decide` returns an outcome are excluded."""
        everything = list(ops)
        decided: dict[str, Outcome] = {}
        for op in everything:
            yield op
            if (outcome := decide(op)) is not None:
                decided[op.id] = outcome
        self._outcome = yield from self._replayed([op for op in everything if op.id not in decided])
        for op in everything:
            yield op, decided.get(op.id) or self._outcome_of(op, self._outcome)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self._workers.close()

    def records(self, results: Sequence[OpResult]) -> tuple[SequenceResult, ...]:
        """Return the record of the whole sequence as a tuple; () if there is no outcome."""
        return () if self._outcome is None else (self.record_of(self._outcome, results),)

    def record_of(self, outcome: SequenceOutcome, results: Sequence[OpResult]) -> SequenceResult:
        """Return the record of the sequence as a whole, from its outcome and the results of its ops."""
        sequence = self._plan.sequence
        assert sequence is not None
        replayed = {result.id for result in results if result.status == "replayed"}
        measured = {result.id: result.measured_us for result in results if result.measured_us is not None}
        ids = [sequence.ids[index] for index in sequence.calls]
        host_us, device_us = (
            sum(us for id_, us in zip(ids, times, strict=True) if id_ in replayed)
            for times in (sequence.host_us, sequence.device_us or sequence.host_us)
        )
        has_device = self._plan.device_us_total > 0
        recorded = device_us if has_device else host_us
        everything = self._plan.device_us_total if has_device else self._plan.host_us_total
        sums, walls = sorted(outcome.sums_us), sorted(outcome.walls_us)
        low, high = median_interval(sums) or (None, None)
        return SequenceResult(
            step=sequence.step,
            steps=sequence.steps,
            calls=len(ids),
            calls_replayed=outcome.calls,
            calls_nested=sequence.nested,
            calls_cut=sequence.cut,
            recorded_step_us=sequence.dur_us,
            recorded_us=recorded,
            recorded_host_us=host_us,
            left_out_share=max(0.0, 1.0 - recorded / everything) if everything else 0.0,
            passes=len(sums),
            sum_us=_median(sums),
            sum_low_us=low,
            sum_high_us=high,
            wall_us=_median(walls),
            tensors=outcome.tensors,
            restarts=self.blame.deaths,
            medians_us=sum(measured[id_] for id_ in ids if id_ in measured) if sums else None,
            fresh_bytes=0 if has_device or not recorded else self._fresh_bytes(ids, replayed),
        )

    def _fresh_bytes(self, ids: Sequence[str], replayed: Set[str]) -> int:
        """Return the bytes of these calls' results that are too large for glibc to reuse their memory by default."""
        sizes = {op.id: need_of(op).outputs for op in self._plan.ops if op.id in replayed}
        return sum(size for id_ in ids if (size := sizes.get(id_, 0)) >= MAPPED_BYTES)

    def _replayed(self, ops: list[ReplayOp]) -> Generator[PassDone, None, SequenceOutcome]:
        """Replay the ops in as many new processes as needed. Yields each pass and returns the outcome."""
        blame = self.blame
        while True:
            left = [op for op in ops if op.id not in blame.reasons]
            answer = yield from self._tried(left)
            if not isinstance(answer, Death):
                break
            if not blame.is_worth_another_try(answer, [op.id for op in left], answer.cause):
                break
        if isinstance(answer, SequenceOutcome):
            return msgspec.structs.replace(answer, outcomes=blame.left_out() | answer.outcomes)
        why = f"the sequence ended its process {blame.deaths} times: {answer.cause.detail}"
        reason = Reason("worker lost", why) if answer.cause.kind == "worker lost" else Reason("failed", why)
        return SequenceOutcome(outcomes={op.id: unable(reason) for op in ops} | blame.left_out())

    def _tried(self, ops: list[ReplayOp]) -> Generator[PassDone, None, SequenceOutcome | Death]:
        sequence = self._plan.sequence
        assert sequence is not None
        time_s = self._op_time_s * len(ops)
        left_s = None if self._deadline is None else max(0.0, self._deadline - monotonic())
        if left_s is not None:
            time_s = min(time_s, left_s)
        task = task_of(
            without_calls(sequence, {op.id for op in ops}),
            ops,
            budget_bytes=self._budget_bytes,
            time_s=time_s,
            left_s=left_s,
            unshared=self.blame.unshared,
        )
        with Heartbeats(1, calls=len(ops)) as beats:
            task = msgspec.structs.replace(task, heartbeat=beats.paths()[0])
            if self._executor is not None:
                outcome = self._here(task, self._executor)
                yield from self._yield_finished_passes()
                return outcome
            self._workers.hand_out([task], beats)
            while (answer := self._workers.take(waits=True)) is None:
                yield from self._yield_finished_passes()
            yield from self._yield_finished_passes()
            return answer if isinstance(answer, Death) else answer[0]

    def _yield_finished_passes(self) -> Iterator[PassDone]:
        while self._passes:
            yield self._passes.pop(0)

    def _here(self, task: SequenceTask, executor: Executor) -> SequenceOutcome | Death:
        config = self._config
        try:
            return serve_sequence(
                executor,
                task,
                seed=config.options.seed,
                options=config.options,
                op_bytes=config.memory_bytes,
                tell=self._passes.append,
            )
        except LostDevice as error:
            return Death(how="over", cause=Reason("failed", f"the device is lost: {error}"))

    def _outcome_of(self, op: ReplayOp, outcome: SequenceOutcome) -> Outcome:
        """Return the outcome of one op; "out of time" if it has none."""
        spent = f"no pass finished within {self._total_time_s or 0.0:g} s (--set total_time)"
        return outcome.outcomes.get(op.id) or unable(Reason("out of time", spent))
