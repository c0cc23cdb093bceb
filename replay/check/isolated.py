# pyright: strict
"""A check from outside: trials run in a child process, and one that ends it, or does not come back, costs its case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from time import monotonic
from typing import NamedTuple

import msgspec

from opreplay.replay.check.model import Finding, Listed, Setup, Timed, Trial, Trying
from opreplay.replay.execute.messages import Refused
from opreplay.replay.execute.processes.child import GRACE_S, LOOK_S, START_S, STARTS, Child
from opreplay.traces.errors import EnvironmentRefused, UsageError

LIMIT_S = 60.0
"""Wall time of one trial."""
MODULE = "check.worker"

FIRST_S = 15.0
"""More for a call before the trials: torch loads parts of itself in the first one of a process."""
TRIES = 2
"""Processes that a call may lose to a signal: the first may have been meant for anybody."""
MOST_LOST = 8
"""Calls that may end the process before the first trial."""


class End(NamedTuple):
    """How a process ended that gave no answer."""

    detail: str
    signalled: bool
    """A signal ended or stopped it, which may have been meant for anybody."""
    lost: bool
    """That signal was none that a call raises."""


Reply = Listed | Trying | Refused | Finding | Timed
Tell = Callable[[str, int, int], None]
"""Told before each trial: its point, its number among all, and how many there are."""


class Checker:
    """One op in a process of its own, started anew after a trial that ended it."""

    def __init__(self, setup: Setup, *, limit_s: float = LIMIT_S) -> None:
        self._setup, self._limit_s = setup, limit_s
        self._child: Child | None = None
        self.lost: dict[str, str] = {}
        """Calls that ended the process before the first trial, and how."""
        self._signals = Counter[str]()
        """Before the first trial: signals that ended the process, by the call that it was at."""

    def start(self) -> Listed:
        """The trials that there are. A call that ends the process before, or does not come back, is noted in `lost`,
        and it is started again without.

        Raises UsageError for what cannot be checked, EnvironmentRefused for a device.
        """
        while True:
            self._child = Child(msgspec.structs.replace(self._setup, lost=self.lost), module=MODULE)
            reply, case, limit_s = self._answer(START_S), "", START_S
            allowed_s = self._limit_s + FIRST_S
            while isinstance(reply, Trying):
                case = reply.case
                limit_s = allowed_s if case else START_S
                reply = self._answer(limit_s)
            if isinstance(reply, Listed):
                return reply
            if isinstance(reply, Refused):
                self.close()
                raise reply.error()
            end = self._ended(limit_s, hangs=reply is None)
            self._signals[case] += end.signalled
            if end.signalled and self._signals[case] < (TRIES if case else STARTS):
                continue
            why = end.detail
            if end.lost:
                raise EnvironmentRefused(f"the worker process {why}", hint="See what ended it.")
            if not case or case.startswith("made up: ") or len(self.lost) >= MOST_LOST:
                raise UsageError(
                    f"{self._setup.op} ends its process before a trial{case and f', in {case}'}: {why}",
                    hint="Give a call that it takes: --shapes, or --trace.",
                )
            self.lost[case] = why

    def trials(self, listed: Listed, tell: Tell | None = None) -> Iterator[tuple[str, Finding | Timed]]:
        """Each trial with its point; a crash or a hang is the finding of the trial that it happened in."""
        numbered = [
            (point, number, case) for point, cases in listed.trials.items() for number, case in enumerate(cases)
        ]
        for done, (point, number, case) in enumerate(numbered):
            if tell is not None:
                tell(point, done, len(numbered))
            yield point, self._tried(point, number, case)

    def close(self) -> None:
        """End the process; it has some seconds to do so by itself."""
        if self._child is not None:
            self._child.end(grace_s=GRACE_S)
            self._child = None

    def _tried(self, point: str, number: int, case: str) -> Finding | Timed:
        """What becomes of a trial; of one whose process a signal ended when it is tried again."""
        tries = 1
        while isinstance(judged := self._tried_once(point, number, case), End):
            if not judged.signalled or tries == TRIES:
                return Finding(case=case, verdict="not reached" if judged.lost else "fail", detail=judged.detail)
            tries += 1
        return judged

    def _tried_once(self, point: str, number: int, case: str) -> Finding | Timed | End:
        if self._child is None:
            listed = self.start()
            if listed.trials.get(point, ())[number : number + 1] != (case,):
                return Finding(case=case, verdict="fail", detail="what is tried changed when it was started again")
        child = self._child
        assert child is not None
        child.send(Trial(point=point, number=number))
        limit_s = self._limit_s + (self._setup.speed_s if point == "speed" else 0.0)
        reply = self._answer(limit_s)
        if isinstance(reply, Finding | Timed):
            return reply
        return self._ended(limit_s, hangs=reply is None)

    def _ended(self, limit_s: float, *, hangs: bool) -> End:
        """End the child that gave no answer; how that came."""
        child = self._child
        assert child is not None
        if hangs:
            stopped = child.is_stopped
            detail = "was stopped from outside" if stopped else f"hangs: no result after {limit_s:g} s"
            end = End(detail, signalled=stopped, lost=stopped)
        else:
            cause = child.cause_of_death()
            lost = cause.kind == "worker lost"
            detail = f"was lost: {cause.detail}" if lost else f"crashes: {cause.detail}"
            end = End(detail, signalled=child.was_killed, lost=lost)
        child.end(grace_s=0.0)
        self._child = None
        return end

    def _answer(self, limit_s: float) -> Reply | str | None:
        """What the child says next; "" when it is gone, None when it says nothing in time."""
        child = self._child
        assert child is not None
        deadline, stopped = monotonic() + limit_s, False
        try:
            while not wait([child.fileno()], max(0.0, min(LOOK_S, deadline - monotonic()))):
                before, stopped = stopped, child.is_stopped
                if (before and stopped) or monotonic() >= deadline:
                    return None
        except BaseException:
            # Ctrl-C and everything else that ends the check: leave no child behind.
            child.end(grace_s=0.0)
            self._child = None
            raise
        frame = child.frame()
        return "" if frame is None else msgspec.msgpack.decode(frame, type=Reply)
