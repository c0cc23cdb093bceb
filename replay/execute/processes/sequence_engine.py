# pyright: strict
"""Runs a sequence in a child process, again without an op that ends the process; hands out what became of each op.

Owns what is tried again and when a process counts as stuck. What happens inside it is `serving`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from time import monotonic

import msgspec

from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.messages import PassDone, Ready, SequenceOutcome, SequenceTask
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.child import GRACE_S, STARTS, Child
from opreplay.replay.execute.sequence.passes import BEAT, LostDevice, serve_sequence
from opreplay.replay.host.channel import Unnamed
from opreplay.replay.ir.model import Reason, ReplayOp, ReplayPlan
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.records import OpResult, SequenceResult
from opreplay.replay.results.stats import median_interval, quantile
from opreplay.traces.errors import EnvironmentRefused

DEATHS = 10
"""Processes that may end before the sequence is given up."""
POLL_S = 0.5
"""How often a process that says nothing is looked at."""

Decide = Callable[[ReplayOp], Outcome | None]
Tell = Callable[[PassDone], None]


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A process that ended, or had to be ended, before the sequence did."""

    op: int | None
    """Index of the op that it was at; None where it was at none."""
    reason: Reason
    signalled: bool = False
    """A signal ended or stopped it, which may have been meant for anybody."""


class SequenceEngine:
    """An `Engine` (see `lanes`) that replays the plan's sequence when the first outcome is asked for."""

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
        tell: Tell | None = None,
    ) -> None:
        """`op_time_s` for each unique op is what the passes may take together; with `executor` they run in here."""
        self._plan, self._config, self._executor, self._tell = plan, config, executor, tell
        self._budget_bytes, self._op_time_s, self._limit_s = budget_bytes, op_time_s, limit_s
        self._total_time_s = total_time_s
        self._deadline = None if total_time_s is None else monotonic() + total_time_s
        self._child: Child | None = None
        self._outcome: SequenceOutcome | None = None
        self._restarts = 0
        self.own: set[str] = set()
        """Ids of ops that ended a process with tensors of others."""

    def start(self) -> dict[str, object]:
        """The facts of the device. Raises UsageError or EnvironmentRefused when it is missing."""
        if self._executor is not None:
            return self._executor.facts()
        return self._ready().facts or {}

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[tuple[ReplayOp, Outcome]]:
        """Each op of the step; those that `decide` has an outcome for are left out of the sequence."""
        everything = list(ops)
        decided = {op.id: outcome for op in everything if (outcome := decide(op)) is not None}
        self._outcome = self._replayed([op for op in everything if op.id not in decided])
        for op in everything:
            yield op, decided.get(op.id) or self._outcome_of(op, self._outcome)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        if self._child is not None:
            self._child.end(grace_s=GRACE_S if self._outcome is not None else 0.0)
            self._child = None

    def records(self, results: Sequence[OpResult]) -> tuple[SequenceResult, ...]:
        """The record of the sequence as a whole."""
        sequence, outcome = self._plan.sequence, self._outcome
        if sequence is None or outcome is None:
            return ()
        replayed = {result.id for result in results if result.status == "replayed"}
        calls = list(zip(sequence.calls, sequence.host_us, sequence.device_us or sequence.host_us, strict=True))
        measured = {result.id: result.measured_us for result in results if result.measured_us is not None}
        medians = [measured[id_] for index, _, _ in calls if (id_ := sequence.ids[index]) in measured]
        mine = [(host, device) for index, host, device in calls if sequence.ids[index] in replayed]
        has_device = self._plan.device_us_total > 0
        recorded = sum(device if has_device else host for host, device in mine)
        everything = self._plan.device_us_total if has_device else self._plan.host_us_total
        sums = sorted(outcome.sums_us)
        low, high = median_interval(sums) or (None, None)
        return (
            SequenceResult(
                step=sequence.step,
                steps=sequence.steps,
                calls=len(calls),
                calls_replayed=outcome.calls,
                calls_nested=sequence.nested,
                calls_cut=sequence.cut,
                recorded_step_us=sequence.dur_us,
                recorded_us=recorded,
                recorded_host_us=sum(host for host, _ in mine),
                left_out_share=max(0.0, 1.0 - recorded / everything) if everything else 0.0,
                passes=len(sums),
                sum_us=quantile(sums, 0.5) if sums else None,
                sum_low_us=low,
                sum_high_us=high,
                wall_us=quantile(sorted(outcome.walls_us), 0.5) if outcome.walls_us else None,
                tensors=outcome.tensors,
                restarts=self._restarts,
                medians_us=sum(medians) if sums else None,
            ),
        )

    def _replayed(self, ops: list[ReplayOp]) -> SequenceOutcome:
        """The outcome, after as many new processes as it takes. An op that ends one gets arguments of its own first,
        and one more try where the process was ended from outside."""
        own = self.own
        lost = Counter[str | None]()
        gone: dict[str, Reason] = {}
        while True:
            left = [op for op in ops if op.id not in gone]
            found = self._tried(left, own)
            if isinstance(found, SequenceOutcome):
                return msgspec.structs.replace(found, reasons={**gone, **found.reasons})
            self._restarts += 1
            culprit = None if found.op is None else left[found.op].id
            lost[culprit] += found.signalled
            if self._restarts > DEATHS or (culprit is None and lost[None] != 1):
                why = f"the sequence ended its process {self._restarts} times: {found.reason.detail}"
                reason = Reason("worker lost", why) if found.reason.kind == "worker lost" else Reason("failed", why)
                rest = {op.id: reason for op in left}
                return SequenceOutcome(times={}, reasons={**rest, **gone}, calls=0)
            if culprit is None or (found.signalled and lost[culprit] == 1 and found.reason.kind != "failed"):
                continue
            if culprit in own or found.reason.kind != "failed":
                gone[culprit] = found.reason
            own.add(culprit)

    def _tried(self, ops: list[ReplayOp], own: set[str]) -> SequenceOutcome | Death:
        sequence = self._plan.sequence
        assert sequence is not None
        index = {op.id: at for at, op in enumerate(ops)}
        time_s = self._op_time_s * len(ops)
        left_s = None if self._deadline is None else max(0.0, self._deadline - monotonic())
        if left_s is not None:
            time_s = min(time_s, left_s)
        with Unnamed() as beat:
            os.write(beat.fileno(), BEAT.pack(-1, 0))
            task = SequenceTask(
                ops=tuple(ops),
                budget_bytes=self._budget_bytes,
                time_s=time_s,
                left_s=left_s,
                heartbeat=beat.path,
                own=tuple(own),
                calls=tuple(index[sequence.ids[call]] for call in sequence.calls if sequence.ids[call] in index),
                memories=tuple(
                    both
                    for call, both in zip(sequence.calls, sequence.memories, strict=False)
                    if sequence.ids[call] in index
                ),
            )
            if self._executor is not None:
                return self._here(task, self._executor)
            return self._there(task, beat.fileno())

    def _here(self, task: SequenceTask, executor: Executor) -> SequenceOutcome | Death:
        config = self._config
        try:
            return serve_sequence(
                executor,
                task,
                seed=config.options.seed,
                options=config.options,
                op_bytes=config.memory_bytes,
                tell=self._tell or (lambda _: None),
            )
        except LostDevice as error:
            return Death(op=None, reason=Reason("failed", f"the device is lost: {error}"))

    def _there(self, task: SequenceTask, beat: int) -> SequenceOutcome | Death:
        """What the child says, or how it ended."""
        child = self._ready()
        child.send(task)
        seen, changed = (-1, 0), monotonic()
        try:
            while True:
                readable = wait([child.fileno()], POLL_S)
                now = BEAT.unpack(os.pread(beat, BEAT.size, 0))
                if now != seen:
                    seen, changed = now, monotonic()
                if not readable and monotonic() - changed > self._limit_s:
                    stopped = child.is_stopped
                    late = Reason("budget", f"time: no result after {self._limit_s:g} s (--op-limit)")
                    reason = Reason("worker lost", "stopped from outside") if stopped else late
                    return self._ended(seen[0], reason, signalled=stopped)
                if not readable:
                    continue
                reply = child.receive()
                if isinstance(reply, SequenceOutcome):
                    return reply
                if reply is None:
                    at = BEAT.unpack(os.pread(beat, BEAT.size, 0))[0]
                    return self._ended(at, child.cause_of_death(), signalled=child.was_killed)
                if isinstance(reply, PassDone) and self._tell is not None:
                    self._tell(reply)
        except BaseException:
            self._drop()
            raise

    def _outcome_of(self, op: ReplayOp, outcome: SequenceOutcome) -> Outcome:
        """What became of one op."""
        times = outcome.times.get(op.id)
        if times is None:
            spent = f"no pass was over within {self._total_time_s or 0.0:g} s (--total-time)"
            return unable(outcome.reasons.get(op.id, Reason("out of time", spent)))
        return Outcome(
            status="replayed",
            measurement=times.measurement,
            initializer=times.initializer,
            filling=times.filling,
            assumptions=times.assumptions,
        )

    def _ended(self, at: int, reason: Reason, *, signalled: bool) -> Death:
        self._drop()
        return Death(op=at if at >= 0 else None, reason=reason, signalled=signalled)

    def _ready(self) -> Child:
        """A child that has loaded everything. Raises EnvironmentRefused for one that does not come up."""
        if self._child is not None:
            return self._child
        why = ""
        for _ in range(STARTS):
            child = self._child = Child(self._config)
            try:
                reply = child.wait_until_ready()
            except BaseException:
                self._drop()
                raise
            if isinstance(reply, Ready):
                self._config = reply.settled(self._config)
                return child
            why, again = reply, child.was_killed
            self._drop()
            if not again:
                break
        raise EnvironmentRefused(f"the worker process {why}", hint="Run `opreplay doctor`.")

    def _drop(self) -> None:
        if self._child is not None:
            self._child.end(grace_s=0.0)
            self._child = None
