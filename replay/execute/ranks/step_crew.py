# pyright: strict
"""The ranks of this machine on a whole step: watched by what each says that it is at, ended together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from time import monotonic

import msgspec

from opreplay.replay.execute.messages import SharedStep, SharedStepOutcome
from opreplay.replay.execute.ranks.crew import AFTER_ERROR_S, LocalCrew, died
from opreplay.replay.execute.sequence.passes import BEAT
from opreplay.replay.host.channel import Unnamed
from opreplay.replay.ir.reasons import Reason

POLL_S = 0.5
"""How often ranks that say nothing are looked at."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """Why a step came to nothing."""

    reason: Reason
    at: int | None = None
    """What the rank that is gone was at: index of an op, then of a collective after all ops; None for neither."""
    raised: dict[int, Reason] = {}
    """By index of the op: what raised."""
    hung: bool = False
    over: bool = False
    """The run's time is spent."""


class StepCrew(LocalCrew):
    """Ranks that replay steps."""

    def run_step(self, step: SharedStep, *, limit_s: float, until: float) -> list[SharedStepOutcome] | Broken:
        """What all ranks say, by rank. None may be at one thing for longer than `limit_s`, nor any go on after `until`.

        No rank is left waiting.
        """
        self.start()
        with ExitStack() as files:
            beats: list[int] = []
            try:
                for child in self._children:
                    beat = files.enter_context(Unnamed())
                    os.write(beat.fileno(), BEAT.pack(-1, 0))
                    beats.append(beat.fileno())
                    task = msgspec.structs.replace(step.task, heartbeat=beat.path)
                    child.send(msgspec.structs.replace(step, task=task))
                found = self._watched(step, beats, limit_s, until)
            except BaseException:
                self._end(0.0)
                raise
        if isinstance(found, Broken):
            self._end(0.0)
        return found

    def _watched(
        self, step: SharedStep, beats: Sequence[int], limit_s: float, until: float
    ) -> list[SharedStepOutcome] | Broken:
        waiting = dict(enumerate(self._children))
        replies: dict[int, SharedStepOutcome] = {}
        failed: Broken | None = None
        seen, changed = _seen(beats), monotonic()
        while waiting:
            ready = wait([child.fileno() for child in waiting.values()], POLL_S)
            now = _seen(beats)
            if now != seen:
                seen, changed = now, monotonic()
            if not ready:
                silent_s = monotonic() - changed
                if failed is not None and silent_s > AFTER_ERROR_S:
                    return failed
                if monotonic() > until:
                    return Broken(reason=Reason("out of time", "the run's time was over (--total-time)"), over=True)
                if silent_s > limit_s:
                    return failed or self._hung(step, seen, sorted(waiting), limit_s)
                continue
            for rank, child in list(waiting.items()):
                if child.fileno() not in ready:
                    continue
                reply = child.receive()
                if not isinstance(reply, SharedStepOutcome) or reply.number != step.number:
                    reason = Reason("rank lost", died(rank, self.world, child.cause_of_death()))
                    at = _seen(beats)[rank][0]
                    return Broken(reason=reason, at=at if at >= 0 else None)
                waiting.pop(rank)
                replies[rank] = reply
                if reply.reason is not None and (failed is None or reply.raised):
                    who = f"rank {rank} of {self.world}: {reply.reason.detail}".removesuffix(": ")
                    at = _seen(beats)[rank][0]
                    reason = msgspec.structs.replace(reply.reason, detail=who)
                    failed = Broken(reason=reason, at=at if at >= 0 else None, raised=reply.raised)
        return failed or [replies[rank] for rank in range(self.world)]

    def _hung(self, step: SharedStep, seen: Sequence[tuple[int, int]], waiting: list[int], limit_s: float) -> Broken:
        """Of ranks of which none moves: one that is stopped, else one that is at a call: the others wait for it."""
        stopped = [rank for rank in waiting if self._children[rank].is_stopped]
        calling = [rank for rank in waiting if 0 <= seen[rank][0] < len(step.task.ops)]
        culprits = stopped or calling or waiting
        names = ", ".join(map(str, culprits))
        text = f"time: nothing from rank{'s' if len(culprits) > 1 else ''} {names} for {limit_s:g} s (--op-limit)"
        at = seen[culprits[0]][0]
        reason = Reason("rank lost", f"{text}; stopped") if stopped else Reason("budget", text)
        return Broken(reason=reason, at=at if at >= 0 else None, hung=True)


def _seen(beats: Sequence[int]) -> list[tuple[int, int]]:
    """(what it is at, how often it said so) of each rank."""
    return [BEAT.unpack(os.pread(beat, BEAT.size, 0)) for beat in beats]
