# pyright: strict
"""Runs each op where it can do no harm: in one child process that is replaced when it dies, or in this process.

A hang, a crash, an abort, a lack of memory or a poisoned device costs the op that caused it and nothing else; an op
that was not alone in its process when that happened, or whose process a signal ended, is tried once more alone. The
process is started and ended by `workers`, what it does is `worker`; how several are kept busy is `lanes`.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

import msgspec

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.messages import Task
from opreplay.replay.execute.options import WorkerConfig
from opreplay.replay.execute.processes.child import Child
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.replay.execute.visits import WHOLE, Book, Visit, first_checks
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome, is_lost, unable
from opreplay.replay.results.resume import WHILE_IT_RAN

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
    """Runs ops in this process: a worker does, and so do tests and debuggers, where it is as fragile as the ops are."""

    def __init__(self, executor: Executor, config: WorkerConfig) -> None:
        self._executor, self._config = executor, config
        self._book = Book()

    def start(self) -> dict[str, object]:
        return self._executor.facts()

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
        config = self._config
        return attempt(
            self._executor,
            op,
            seed=config.options.seed,
            options=first_checks(config.options, visit),
            shrink_to=config.shrink_to,
            recency=config.recency.get(op.id),
            visits=self._book.of(op.id, visit),
        )

    def close(self) -> None:
        self._executor.close()


class ChildProcess(Workers):
    """Runs ops in a child, one at a time, with a time limit for each.

    `measure` waits for the outcome. Who has several of these calls `begin`, waits until one is readable or late, and
    then `step`s that one.
    """

    def __init__(self, config: WorkerConfig, *, limit_s: float, until: float = inf) -> None:
        """`limit_s` is for one op; `until` is the end of the run's time, on the monotonic clock."""
        super().__init__(lambda facts, _: [Child(config.settled(facts))], limit_s=limit_s, until=until)
        self._options = config.options
        self._task: Task | None = None
        self._raised_in_start = -1
        """The child, by its number, in which an op raised last."""
        self._tries = 0
        self._raises = 0

    @property
    def pid(self) -> int | None:
        """Process id of the child, while there is one."""
        return next(iter(self.pids), None)

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
        """The op's outcome, after a second try in a fresh child where that could make a difference."""
        self.begin(op, visit)
        while (outcome := self.step(waits=True)) is None:
            pass
        return outcome

    def begin(self, op: ReplayOp, visit: Visit = WHOLE) -> None:
        """Hand an op out and return at once; a child that is gone is found by `step`."""
        self._task, self._tries = Task(op=op, visit=visit), 0
        self._try(self._task)

    def step(self, *, waits: bool = False) -> Outcome | None:
        """Take what the child says or ends with; None while the op's last word is not spoken.

        Raises UsageError or EnvironmentRefused when no child can be had, and whatever ends the run (Ctrl-C): then no
        child is left.
        """
        answer = self.take(waits=waits)
        if answer is None or self._task is None:
            return None
        outcome = self._of_death(answer) if isinstance(answer, Death) else answer[0]
        if self._again(outcome, answer if isinstance(answer, Death) else None):
            self.end()
            self._try(self._task)
            return None
        if outcome.suspect:
            self._raised_in_start = self.starts
        if outcome.poisoned:
            self.end()
        self._task = None
        return outcome if self._tries == 1 else msgspec.structs.replace(outcome, attempts=self._tries)

    def _try(self, task: Task) -> None:
        self._tries += 1
        self.hand_out([task])

    def _of_death(self, death: Death) -> Outcome:
        if death.how == "died":
            return unable(death.cause)
        if death.how == "over":
            outcome = unable(Reason("out of time", f"{WHILE_IT_RAN} (--set total_time)"))
        else:
            outcome = unable(self._options.late(self.limit_s) if death.how == "hung" else death.cause)
        return msgspec.structs.replace(outcome, measure_s=death.after_s)

    def _again(self, outcome: Outcome, death: Death | None) -> bool:
        """Whether the op is tried alone: it went wrong, and was not alone.

        A signal may have been meant for anybody: what it ended is tried once more even where it was alone. One that
        does not come back would cost its time limit once more: it is tried again only where an op before it went wrong
        in the same process.
        """
        raised = death is None and outcome.suspect and not outcome.poisoned
        if raised and self._tries > 1:
            self._raises += 1
        if is_lost(outcome.reason) or (death is not None and death.signalled):
            return self._tries == 1
        raised_before = self._raised_in_start == self.starts
        late = death is not None and death.how != "died"
        # An answer of this op is counted by now.
        alone = self.answers <= (death is None)
        if self._tries > 1 or alone or (late and not raised_before):
            return False
        return death is not None or outcome.poisoned or (raised and self._raises < RAISES_RETRIED)
