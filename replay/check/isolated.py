# pyright: strict
"""Runs a check's trials in a child process; a trial that crashes the process or hangs fails only its own case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from opreplay.replay.check.model import Finding, Listed, Listing, Setup, Timed, Trial, Trying
from opreplay.replay.execute.messages import Ready, Refused
from opreplay.replay.execute.processes.child import LOOK_S, START_S, STARTS, Child
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.traces.errors import EnvironmentRefused, UsageError

LIMIT_S = 60.0
"""Time limit of one trial, in seconds of wall time."""
MODULE = "check.worker"

FIRST_S = 15.0
"""Additional seconds for a call before the trials: torch loads parts of itself in a process's first call."""
TRIES = 2
"""Maximum number of attempts at a call if a signal ends its process. The call may not have caused the first signal."""
MOST_LOST = 8
"""Maximum number of calls that may terminate the process before the first trial."""


class End(NamedTuple):
    """How a process that gave no reply ended."""

    detail: str
    signalled: bool
    """Whether a signal ended or stopped the process. The signal may have another cause than the call."""
    lost: bool
    """Whether the process was ended by a signal that no call can raise."""


Reply = Ready | Refused | Listed | Trying | Finding | Timed
Tell = Callable[[str, int, int], None]
"""Called before each trial with its point, the number of earlier trials, and the number of all trials."""


class Checker:
    """Runs one op in its own process, which is restarted after a trial terminates it."""

    def __init__(self, setup: Setup, *, limit_s: float = LIMIT_S) -> None:
        self._setup, self._limit_s = setup, limit_s
        self._workers = Workers(
            lambda facts, files: [Child(setup, module=MODULE, replies=Reply)],
            limit_s=START_S,
            look_s=LOOK_S,
            interim=Trying,
            on_interim=self._note_case,
        )
        self._case = ""
        self.lost: dict[str, str] = {}
        """Text of each call that terminated the process before the first trial → how the process ended."""
        self._signals = Counter[str]()
        """Number of signals that ended the process before the first trial, by the call it was making."""

    def start(self) -> Listed:
        """Start the process and return the list of trials.

        If a call terminates the process before the trials, or hangs, the call is recorded in `lost`. The process is
        then restarted without that call. Raises UsageError if the op cannot be checked, EnvironmentRefused if a device
        is missing.
        """
        while True:
            self._case = ""
            end = self._answer(Listing(lost=self.lost), START_S)
            if not isinstance(end, End):
                return end
            case = self._case
            self._signals[case] += end.signalled
            if end.signalled and self._signals[case] < (TRIES if case else STARTS):
                continue
            why = end.detail
            if end.lost:
                raise EnvironmentRefused(
                    f"the worker process {why}", hint="Look in the system log (dmesg) for what ended the process."
                )
            if not case or case.startswith("made up: ") or len(self.lost) >= MOST_LOST:
                raise UsageError(
                    f"{self._setup.op} ends its process before a trial{case and f', in {case}'}: {why}",
                    hint="Give a call that it accepts with --shapes or --trace.",
                )
            self.lost[case] = why

    def trials(self, listed: Listed, tell: Tell | None = None) -> Iterator[tuple[str, Finding | Timed]]:
        """Yield (point, result) for each trial. If a trial crashes or hangs, its result is a finding that says so."""
        numbered = [
            (point, number, case) for point, cases in listed.trials.items() for number, case in enumerate(cases)
        ]
        for done, (point, number, case) in enumerate(numbered):
            if tell is not None:
                tell(point, done, len(numbered))
            yield point, self._tried(point, number, case)

    def close(self) -> None:
        """End the process, which has some seconds to exit on its own."""
        self._workers.close()

    def _tried(self, point: str, number: int, case: str) -> Finding | Timed:
        """Return the result of a trial; retry the trial if a signal ended its process."""
        tries = 1
        while isinstance(judged := self._tried_once(point, number, case), End):
            if not judged.signalled or tries == TRIES:
                return Finding(case=case, verdict="not reached" if judged.lost else "fail", detail=judged.detail)
            tries += 1
        return judged

    def _tried_once(self, point: str, number: int, case: str) -> Finding | Timed | End:
        if not self._workers.is_ready:
            listed = self.start()
            if listed.trials.get(point, ())[number : number + 1] != (case,):
                return Finding(case=case, verdict="fail", detail="the list of trials changed after a restart")
        limit_s = self._limit_s + (self._setup.speed_s if point == "speed" else 0.0)
        return self._answer(Trial(point=point, number=number), limit_s)

    def _answer(self, task: msgspec.Struct, limit_s: float) -> Any | End:
        """Return the process's reply to a task, or how the process ended."""
        self._workers.limit_s = limit_s
        answer = self._workers.run([task])
        if not isinstance(answer, Death):
            return answer[0]
        lost = answer.cause.kind == "worker lost"
        if answer.how == "hung":
            detail = f"hangs: no result after {self._workers.limit_s:g} s"
        elif answer.how == "stopped":
            detail = f"was {answer.cause.detail}"
        else:
            detail = f"was lost: {answer.cause.detail}" if lost else f"crashes: {answer.cause.detail}"
        return End(detail, signalled=answer.signalled, lost=lost)

    def _note_case(self, trying: Trying) -> None:
        """Record the call that is made before the trials, and set its time limit. The limit is that of a trial, plus
        time for torch, which loads parts of itself in the first call.
        """
        self._case = trying.case
        self._workers.limit_s = self._limit_s + FIRST_S if trying.case else START_S
