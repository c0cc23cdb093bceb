# pyright: strict
"""Run each op in this process, or in a child process that is replaced when it dies.

A hang, a crash, an abort, running out of memory or a broken device then affects only the op that caused it. An op is
retried in a new process if other ops ran in its process before, or if a signal ended the process. `workers` starts and
ends processes, `worker` has their code, and `lanes` runs several at once.
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
from opreplay.replay.ir.reasons import WHILE_IT_RAN
from opreplay.replay.results.outcome import Outcome, is_lost, unable

RAISES_RETRIED = 2
"""Number of ops that may fail again when they are retried in a new process.

After that, failures are no longer retried, because each retry starts a process.
"""


class Runner(Protocol):
    """Runs ops and returns their outcomes."""

    def start(self) -> dict[str, object]:
        """Prepare the runner and return the facts of its device. Raises OpReplayError if the device is missing."""
        ...

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome: ...

    def close(self) -> None: ...


class InProcess:
    """Runs ops in this process. A crash of an op ends the process. Used by workers, tests and debuggers."""

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
    """Runs ops in a child process, one at a time, with a time limit for each.

    `measure` waits for the outcome. To use several children, call `begin` on each, wait until one is readable or
    overdue, and call its `step`.
    """

    def __init__(self, config: WorkerConfig, *, limit_s: float, until: float = inf) -> None:
        """Set the time limit `limit_s` of one op and the end `until` of the run, on the monotonic clock."""
        super().__init__(lambda facts, _: [Child(config.with_chosen_threads(facts))], limit_s=limit_s, until=until)
        self._options = config.options
        self._task: Task | None = None
        self._raised_in_start = -1
        """Value of `starts` when an op last raised an error; -1 if none has."""
        self._tries = 0
        self._raises = 0

    @property
    def pid(self) -> int | None:
        """Process id of the child, if there is one."""
        return next(iter(self.pids), None)

    def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
        """Return the op's outcome, after a retry in a new child if that could change it."""
        self.begin(op, visit)
        while (outcome := self.step(waits=True)) is None:
            pass
        return outcome

    def begin(self, op: ReplayOp, visit: Visit = WHOLE) -> None:
        """Hand out an op and return at once; `step` detects whether the child is gone."""
        self._task, self._tries = Task(op=op, visit=visit), 0
        self._try(self._task)

    def step(self, *, waits: bool = False) -> Outcome | None:
        """Process the child's messages or its end. Return None until the op's outcome is final.

        Raises UsageError or EnvironmentRefused if no child can be started. Exceptions that end the run (Ctrl-C) pass
        through. In each case, no child is left.
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
        """Check whether to retry the op in a new process. It is retried if it failed after other ops had run in its
        process, or if a signal ended the process.

        A retry costs the time limit again. After a timeout, the op is therefore retried only if an earlier op failed in
        the same process.
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
