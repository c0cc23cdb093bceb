# pyright: strict
"""The ranks of a process group on this machine: started together, given one collective at a time, ended together.

When one of them dies, breaks or does not answer in time, all are ended, and the next collective finds a new group.
"""

from __future__ import annotations

from multiprocessing.connection import wait
from time import monotonic
from typing import Protocol

import msgspec

from opreplay.replay.execute.messages import Ready
from opreplay.replay.execute.processes.child import GRACE_S, STARTS, Child
from opreplay.replay.execute.ranks.messages import RankConfig, RankReply, RankTask
from opreplay.replay.host.channel import Unnamed
from opreplay.replay.ir.reasons import Reason
from opreplay.traces.errors import EnvironmentRefused

AFTER_ERROR_S = 2.0
"""How long the other ranks may still answer once one said that it could not."""


class Crew(Protocol):
    """Ranks that run collectives together."""

    @property
    def world(self) -> int: ...

    def start(self) -> dict[str, object]:
        """Get ready; the facts of the first rank. Raises OpReplayError where there can be no such group."""
        ...

    def run(self, task: RankTask) -> list[RankReply] | Reason:
        """What all ranks say of a collective, by rank; or why it came to nothing. No rank is left waiting."""
        ...

    def close(self) -> None:
        """End all ranks; leaves no process behind."""
        ...


class LocalCrew:
    """One child process a rank, which find each other by a file."""

    def __init__(self, config: RankConfig, *, limit_s: float) -> None:
        """`config` is that of every rank but for its number, device and store."""
        self._config, self._limit_s = config, limit_s
        self._children: list[Child] = []
        self._store: Unnamed | None = None
        self._was_ready = False
        self._facts: dict[str, object] = {}
        self.restarts = 0
        """Groups after the first."""

    @property
    def world(self) -> int:
        return self._config.world

    @property
    def pids(self) -> list[int]:
        """Of the ranks that there are."""
        return [child.process.pid for child in self._children]

    def start(self) -> dict[str, object]:
        if self._children:
            return self._facts
        if self._was_ready:
            self.restarts += 1
        why = ""
        for _ in range(STARTS):
            try:
                why = self._open()
            except BaseException:
                self._end(0.0)
                raise
            if not why:
                self._was_ready = True
                return self._facts
            again = self._was_ready or any(child.was_killed for child in self._children)
            self._end(0.0)
            if not again:
                break
        raise EnvironmentRefused(f"the ranks did not start: {why}", hint="Run `opreplay doctor`.")

    def _open(self) -> str:
        """Start all ranks and wait until they have met; why they have not, "" where they have."""
        self._store = Unnamed()
        store = self._store.path
        device = self._config.device
        self._children = [
            Child(msgspec.structs.replace(self._config, rank=rank, device=device_of_rank(device, rank), store=store))
            for rank in range(self.world)
        ]
        waiting = dict(enumerate(self._children))
        while waiting:
            look = min(child.next_look() for child in waiting.values())
            ready = wait([child.fileno() for child in waiting.values()], max(0.0, look - monotonic()))
            if not ready:
                for rank, child in waiting.items():
                    if why := child.overdue():
                        return f"rank {rank} {why}"
            for rank, child in list(waiting.items()):
                if child.fileno() in ready:
                    try:
                        reply = child.receive()
                    except EnvironmentRefused as error:
                        if not any(other.was_killed for other in self._children):
                            raise
                        return f"rank {rank}: {error}"  # it did not find the one that was killed
                    if not isinstance(reply, Ready):
                        return f"rank {rank}: {child.cause_of_death().detail}"
                    waiting.pop(rank)
                    if rank == 0:
                        self._facts = reply.facts
        return ""

    def run(self, task: RankTask) -> list[RankReply] | Reason:
        self.start()
        try:
            for child in self._children:
                child.send(task)
            found = self._collected(task)
        except BaseException:
            self._end(0.0)
            raise
        if isinstance(found, Reason):
            self._end(0.0)
        return found

    def _collected(self, task: RankTask) -> list[RankReply] | Reason:
        deadline = monotonic() + self._limit_s
        waiting = dict(enumerate(self._children))
        replies: dict[int, RankReply] = {}
        failed: Reason | None = None
        while waiting:
            ready = wait([child.fileno() for child in waiting.values()], max(0.0, deadline - monotonic()))
            if not ready:
                return failed or self._late(sorted(waiting))
            for rank, child in list(waiting.items()):
                if child.fileno() not in ready:
                    continue
                reply = child.receive()
                if not isinstance(reply, RankReply) or reply.number != task.number:
                    cause = child.cause_of_death()
                    # A rank that lost its peer says so before the peer's end is seen here.
                    return Reason("rank lost", died(rank, self.world, cause))
                waiting.pop(rank)
                replies[rank] = reply
                if reply.reason is not None and failed is None:
                    failed = _of_rank(reply.reason, f"rank {rank} of {self.world}")
                    deadline = min(deadline, monotonic() + AFTER_ERROR_S)
        return failed or [replies[rank] for rank in range(self.world)]

    def _late(self, ranks: list[int]) -> Reason:
        stopped = [rank for rank in ranks if self._children[rank].is_stopped]
        names = ", ".join(map(str, ranks))
        text = (
            f"time: no result from rank{'s' if len(ranks) > 1 else ''} {names} after {self._limit_s:g} s (--op-limit)"
        )
        if stopped:
            text += f"; rank{'s' if len(stopped) > 1 else ''} {', '.join(map(str, stopped))} stopped"
            return Reason("rank lost", text)
        return Reason("budget", text)

    def close(self) -> None:
        self._end(GRACE_S)

    def _end(self, grace_s: float) -> None:
        deadline = monotonic() + grace_s
        for child in self._children:
            child.end(grace_s=max(0.0, deadline - monotonic()))
        self._children = []
        if self._store is not None:
            self._store.close()
            self._store = None


def _of_rank(reason: Reason, who: str) -> Reason:
    """The reason with the rank that it is of."""
    return msgspec.structs.replace(reason, detail=f"{who}: {reason.detail}" if reason.detail else who)


def died(rank: int, world: int, cause: Reason) -> str:
    """What is told of a rank that is gone."""
    return f"rank {rank} of {world} died: {cause.detail.removeprefix('memory: ')}"


def device_of_rank(device: str, local: int) -> str:
    """The device of the `local`th rank on its machine: the CPU for all, else one each."""
    kind = device.partition(":")[0]
    return "cpu" if kind == "cpu" else f"{kind}:{local}"
