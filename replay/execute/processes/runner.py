# pyright: strict
"""Runs each op where it can do no harm: in one child process that is replaced when it dies, or in this process.

A hang, a crash, an abort, a lack of memory or a poisoned device costs the op that caused it and nothing else; an op
that was not alone in its process when that happened, or whose process a signal ended, is tried once more alone. The
process itself is `child`, what it does is `worker`; how several are kept busy is `schedule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import wait
from time import monotonic
from typing import Protocol

import msgspec

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.messages import Ready
from opreplay.replay.execute.options import MeasureOptions, WorkerConfig
from opreplay.replay.execute.processes.child import GRACE_S, STARTS, Child
from opreplay.replay.execute.visits import WHOLE, Book, Visit, first_checks
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.outcome import Outcome, is_lost, unable
from opreplay.replay.results.resume import WHILE_IT_RAN
from opreplay.traces.errors import EnvironmentRefused

RAISES_RETRIED = 2
"""Ops that raise alone as they did among others, after which that is believed at once: each retry is a new process."""


class Runner(Protocol):
    """Something that makes outcomes of ops."""

    def start(self) -> dict[str, object]:
        """Get ready; the device's facts. Raises OpReplayError when the device is missing."""
        ...

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome: ...

    def close(self) -> None: ...


class InProcess:
    """Runs ops in this process, for tests and debuggers: fast to start, and as fragile as the ops are."""

    def __init__(
        self,
        executor: Executor,
        *,
        seed: int,
        options: MeasureOptions,
        shrink_to: int | None = None,
        recency: Mapping[str, Recency] | None = None,
    ) -> None:
        self._executor, self._seed, self._options, self._shrink_to = executor, seed, options, shrink_to
        self._recency = recency or {}
        self._book = Book()

    def start(self) -> dict[str, object]:
        return self._executor.facts()

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
        return attempt(
            self._executor,
            op,
            seed=self._seed,
            options=first_checks(self._options, visit),
            shrink_to=self._shrink_to,
            recency=self._recency.get(op.id),
            visits=self._book.of(op.id, visit),
        )

    def close(self) -> None:
        self._executor.close()


class ChildProcess:
    """Runs ops in a child, one at a time, with a time limit for each.

    `measure` waits for the outcome. Who has several of these calls `begin`, waits until one is readable or late, and
    then `step`s that one.
    """

    def __init__(self, config: WorkerConfig, *, limit_s: float, until: float = float("inf")) -> None:
        """`limit_s` is for one op; `until` is the end of the run's time, on the monotonic clock."""
        self._config, self._limit_s, self._until = config, limit_s, until
        self._child: Child | None = None
        self._op: ReplayOp | None = None
        self._visit = WHOLE
        self._alone = False
        """Whether the op in flight is the first of its child."""
        self._shaken = False
        """Whether an op raised in this child."""
        self._given = 0.0
        """On the monotonic clock: when the op in flight was handed to its child."""
        self._tries = 0
        self._failed_starts = 0
        self._was_ready = False
        self._raises = 0
        self.deadline = float("inf")
        """On the monotonic clock: when to `step` without anything to read."""

    @property
    def pid(self) -> int | None:
        """Process id of the child, while there is one."""
        return None if self._child is None else self._child.process.pid

    def fileno(self) -> int:
        """Descriptor of the child's channel, for `select`."""
        if self._child is None:
            raise ValueError("no op was begun")
        return self._child.fileno()

    def open(self) -> None:
        """Start a child without waiting for it."""
        self._child, self._shaken = Child(self._config), False
        self.deadline = self._child.next_look()

    def start(self) -> dict[str, object]:
        """Start the first child now, so that a missing device is known before anything is measured."""
        if self._child is None:
            self.open()
        while self._child is None or self._child.facts is None:
            self._wait()
            self.step()
        return self._child.facts

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
        """The op's outcome, after a second try in a fresh child where that could make a difference."""
        self.begin(op, visit)
        while True:
            self._wait()
            outcome = self.step()
            if outcome is not None:
                return outcome

    def begin(self, op: ReplayOp, visit: Visit = WHOLE) -> None:
        """Hand an op out and return at once."""
        self._op, self._visit, self._tries = op, visit, 0
        self._hand_out()

    def step(self) -> Outcome | None:
        """Take what the child says or ends with; None while the op's last word is not spoken.

        Raises UsageError or EnvironmentRefused when no child can be had, and whatever ends the run (Ctrl-C): then no
        child is left.
        """
        child = self._child
        if child is None:
            raise ValueError("no op was begun")
        try:
            late = monotonic() >= self.deadline and not _readable(child)
            reply = None if late else child.receive()
            if child.facts is None:
                why = child.overdue() if late else f"did not start: {child.cause_of_death().detail}"
                if why:
                    self._replace_unready(child, why)
                else:
                    self.deadline = child.next_look()
                return None
            if isinstance(reply, Ready):
                self._was_ready, self._failed_starts, self.deadline = True, 0, float("inf")
                self._config = reply.settled(self._config)
                if self._op is not None:
                    self._give(child, self._op)
                return None
            if reply is not None and not isinstance(reply, Outcome):
                raise ValueError(f"a process that was given one op sent {type(reply).__name__}")
            return self._judge(child, reply, late=late)
        except BaseException:
            self.kill()
            raise

    def close(self) -> None:
        """End the child; it has `GRACE_S` to do so by itself, unless it is at work."""
        self._drop(grace_s=GRACE_S if self._op is None else 0.0)

    def kill(self) -> None:
        """End the child at once."""
        self._drop(grace_s=0.0)

    def _hand_out(self) -> None:
        self._tries += 1
        if self._child is None:
            self.open()
        elif self._child.facts is not None and self._op is not None:
            self._give(self._child, self._op)

    def _give(self, child: Child, op: ReplayOp) -> None:
        self._alone = child.tasks == 0
        self._given = monotonic()
        self.deadline = min(self._given + self._limit_s, self._until)
        child.give(op, self._visit)

    def _replace_unready(self, child: Child, why: str) -> None:
        """Another try for a child that was not ready in time or died before that. Raises EnvironmentRefused."""
        self._failed_starts += 1
        again = self._was_ready or child.was_killed
        self.kill()
        if not again or self._failed_starts >= STARTS:
            raise EnvironmentRefused(f"the worker process {why}", hint="Run `opreplay doctor`.")
        self.open()

    def _judge(self, child: Child, reply: Outcome | None, *, late: bool) -> Outcome | None:
        """The outcome of the op in flight, or None when it is tried again."""
        if late and monotonic() >= self._until:
            outcome = unable(Reason("out of time", f"{WHILE_IT_RAN} (--total-time)"))
        elif late and child.is_stopped:
            outcome = unable(Reason("worker lost", "stopped from outside"))
        elif late:
            outcome = unable(self._config.options.late(self._limit_s))
        elif reply is None:
            outcome = unable(child.cause_of_death())
        else:
            outcome = reply
        if late:
            outcome = msgspec.structs.replace(outcome, measure_s=monotonic() - self._given)
        signalled = (reply is None and not late and child.was_killed) or is_lost(outcome)
        if self._again(outcome, alive=reply is not None, late=late, signalled=signalled):
            self.kill()
            self._hand_out()
            return None
        self._shaken = self._shaken or outcome.suspect
        if reply is None or outcome.poisoned:
            self.kill()
        tries, self._op, self.deadline = self._tries, None, float("inf")
        return outcome if tries == 1 else msgspec.structs.replace(outcome, attempts=tries)

    def _again(self, outcome: Outcome, *, alive: bool, late: bool, signalled: bool) -> bool:
        """Whether the op is tried alone: it went wrong, and was not alone.

        A signal may have been meant for anybody: what it ended is tried once more even where it was alone. One that
        does not come back would cost its time limit once more: it is tried again only where an op before it went wrong
        in the same process.
        """
        raised = alive and outcome.suspect and not outcome.poisoned
        if raised and self._tries > 1:
            self._raises += 1
        if signalled:
            return self._tries == 1
        if self._tries > 1 or self._alone or (late and not self._shaken):
            return False
        return not alive or outcome.poisoned or (raised and self._raises < RAISES_RETRIED)

    def _wait(self) -> None:
        """Until the child says something or its time is up."""
        limited = self.deadline < float("inf")
        try:
            wait([self.fileno()], max(0.0, self.deadline - monotonic()) if limited else None)
        except BaseException:
            # Ctrl-C and everything else that ends the run: leave no child behind.
            self.kill()
            raise

    def _drop(self, *, grace_s: float) -> None:
        if self._child is not None:
            self._child.end(grace_s=grace_s)
            self._child = None


def _readable(child: Child) -> bool:
    return bool(wait([child.fileno()], 0))
