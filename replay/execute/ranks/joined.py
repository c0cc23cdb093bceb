# pyright: strict
"""Ranks that a launcher started, on one machine or many: rank 0 says what to run, the others run it and answer.

Each process that was launched keeps the rank itself in a child, so that a rank that dies or hangs is replaced here as
in `crew`. Words between them go through the launcher's store: commands in order, and an answer of each rank to each.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from multiprocessing.connection import wait
from time import monotonic, sleep
from typing import Any, Literal

import msgspec

from opreplay.replay.execute.messages import Ready
from opreplay.replay.execute.processes.child import GRACE_S, START_S, Child
from opreplay.replay.execute.ranks.crew import AFTER_ERROR_S, STARTS, device_of_rank
from opreplay.replay.execute.ranks.launched import Launched
from opreplay.replay.execute.ranks.messages import RankConfig, RankReply, RankTask
from opreplay.replay.ir.reasons import Reason
from opreplay.traces.errors import EnvironmentRefused

POLL_S = 0.02
"""How often the store is looked at while ranks are at work."""
ALONE_S = 300.0
"""How long a rank waits for a command before it takes rank 0 to be gone: as long as an op may take, and more."""
PREFIX = "opreplay"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 says to all others."""

    kind: Literal["start", "task", "end", "quit", "alive"]
    config: RankConfig | None = None
    """Of "start": that of rank 0."""
    task: RankTask | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says to one command."""

    ready: bool = False
    died: str = ""
    killed: bool = False
    """By a signal."""
    reply: RankReply | None = None


class Words:
    """Commands and answers in a store. Raises EnvironmentRefused where it cannot be reached."""

    def __init__(self, place: Launched) -> None:
        import torch.distributed as dist

        try:
            self._store: Any = dist.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
                PREFIX,
                dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                    place.address,
                    place.port,
                    is_master=place.rank == 0 and not place.hosted,
                    timeout=timedelta(seconds=START_S),
                    wait_for_workers=False,
                ),
            )
        except RuntimeError as error:
            raise EnvironmentRefused(
                f"rank {place.rank} does not reach {place.address}:{place.port}: {str(error).splitlines()[0]}",
                hint="MASTER_ADDR and MASTER_PORT are to name the machine of rank 0.",
            ) from None
        self.said = 0

    def say(self, command: Command) -> int:
        """Tell all ranks; the number of the command."""
        self._store.set(f"command/{self.said}", msgspec.msgpack.encode(command))
        self.said += 1
        return self.said - 1

    def heard(self, number: int) -> Command | None:
        """The command of this number, None where it was not given yet."""
        key = f"command/{number}"
        if not self._store.check([key]):
            return None
        return msgspec.msgpack.decode(self._store.get(key), type=Command)

    def answer(self, number: int, rank: int, answer: Answer) -> None:
        """Answer a command."""
        self._store.set(f"answer/{number}/{rank}", msgspec.msgpack.encode(answer))

    def answered(self, number: int, rank: int) -> Answer | None:
        """What a rank answered, None where it did not yet."""
        key = f"answer/{number}/{rank}"
        if not self._store.check([key]):
            return None
        return msgspec.msgpack.decode(self._store.get(key), type=Answer)


class JoinedCrew:
    """The crew of a launcher, as rank 0 has it."""

    def __init__(self, place: Launched, config: RankConfig, *, limit_s: float) -> None:
        """`config` is that of every rank but for its number, device and store, which follow from `place`."""
        self._place, self._config, self._limit_s = place, config, limit_s
        self._words = Words(place)
        self._child: Child | None = None
        self._facts: dict[str, object] = {}
        self._was_ready = False
        self._open = True
        self._generation = 0

    @property
    def world(self) -> int:
        return self._place.world

    def start(self) -> dict[str, object]:
        if self._child is not None:
            return self._facts
        why = ""
        for _ in range(STARTS):
            self._generation += 1
            config = msgspec.structs.replace(
                self._config,
                store=f"{self._place.address}:{self._place.port}",
                prefix=f"{PREFIX}/group/{self._generation}",
            )
            number = self._words.say(Command(kind="start", config=config))
            self._child = Child(own_config(config, self._place))
            answers = self._gathered(number, START_S)
            why = self._missing(answers) or next((one.died for one in answers.values() if not one.ready), "")
            if not why:
                self._was_ready = True
                return self._facts
            self._end()
            if not self._was_ready and not any(answer.killed for answer in answers.values()):
                break
        raise EnvironmentRefused(f"the ranks did not meet: {why}", hint="Run `opreplay doctor` on each machine.")

    def run(self, task: RankTask) -> list[RankReply] | Reason:
        self.start()
        assert self._child is not None
        number = self._words.say(Command(kind="task", task=task))
        self._child.send(task)
        answers = self._gathered(number, self._limit_s)
        found = self._judged(answers)
        if isinstance(found, Reason):
            self._end()
        return found

    def _judged(self, answers: dict[int, Answer]) -> list[RankReply] | Reason:
        for rank, answer in sorted(answers.items()):
            if answer.died:
                return Reason("rank lost", f"rank {rank} of {self.world} died: {answer.died}")
        replies = [answer.reply for _, answer in sorted(answers.items()) if answer.reply is not None]
        for reply in replies:
            if reply.reason is not None:
                detail = f"rank {reply.rank} of {self.world}: {reply.reason.detail}"
                return msgspec.structs.replace(reply.reason, detail=detail)
        if missing := self._missing(answers):
            return Reason("budget", f"time: {missing} after {self._limit_s:g} s (--op-limit)")
        return replies

    def _missing(self, answers: dict[int, Answer]) -> str:
        names = [str(rank) for rank in range(self.world) if rank not in answers]
        return f"no result from rank{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""

    def _gathered(self, number: int, limit_s: float) -> dict[int, Answer]:
        """The answers of the ranks that gave one in time; less time once one is broken."""
        deadline = monotonic() + limit_s
        answers: dict[int, Answer] = {}
        while len(answers) < self.world and monotonic() < deadline:
            if 0 not in answers and self._child is not None:
                if wait([self._child.fileno()], POLL_S):
                    answers[0] = answer_of(self._child)
                    self._facts = self._child.facts or {}
            else:
                sleep(POLL_S)
            for rank in range(1, self.world):
                if rank not in answers and (found := self._words.answered(number, rank)) is not None:
                    answers[rank] = found
            if any(answer.died or (answer.reply and answer.reply.reason) for answer in answers.values()):
                deadline = min(deadline, monotonic() + AFTER_ERROR_S)
        return answers

    def _end(self) -> None:
        """End the ranks of this group, here and elsewhere."""
        self._words.say(Command(kind="end"))
        if self._child is not None:
            self._child.end(grace_s=0.0)
            self._child = None

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(RuntimeError):
            self._words.say(Command(kind="quit"))
        if self._child is not None:
            self._child.end(grace_s=GRACE_S)
            self._child = None


def own_config(config: RankConfig, place: Launched) -> RankConfig:
    """The configuration of the rank that this process keeps."""
    device = device_of_rank(config.device, place.local_rank)
    return msgspec.structs.replace(config, rank=place.rank, device=device)


def answer_of(child: Child) -> Answer:
    """What a child says next, or that it is gone, or cannot work at all."""
    try:
        reply = child.receive()
    except EnvironmentRefused as error:
        return Answer(died=str(error))
    if isinstance(reply, Ready):
        return Answer(ready=True)
    if isinstance(reply, RankReply):
        return Answer(reply=reply)
    cause = child.cause_of_death().detail.removeprefix("memory: ")
    return Answer(died=cause or "closed its channel", killed=child.was_killed)


def serve_joined(place: Launched) -> None:
    """Be a rank other than 0 until rank 0 says that it is over.

    Raises EnvironmentRefused where rank 0 is not reached, or gone.
    """
    words = Words(place)
    child: Child | None = None
    number, waiting_for, last = 0, -1, monotonic()
    try:
        while True:
            command = words.heard(number)
            if command is None:
                if child is not None and waiting_for >= 0 and wait([child.fileno()], POLL_S):
                    words.answer(waiting_for, place.rank, answer_of(child))
                    waiting_for = -1
                elif waiting_for < 0:
                    sleep(POLL_S)
                if monotonic() - last > ALONE_S + (0 if child is None else START_S):
                    raise EnvironmentRefused(f"rank {place.rank} heard nothing of rank 0", hint="See what ended it.")
                continue
            number, last = number + 1, monotonic()
            if command.kind in ("start", "end", "quit") and child is not None:
                child.end(grace_s=GRACE_S if command.kind == "quit" else 0.0)
                child, waiting_for = None, -1
            if command.kind == "quit":
                return
            if command.kind == "start" and command.config is not None:
                child, waiting_for = Child(own_config(command.config, place)), number - 1
            elif command.kind == "task" and command.task is not None and child is not None:
                child.send(command.task)
                waiting_for = number - 1
    except RuntimeError as error:
        raise EnvironmentRefused(
            f"rank {place.rank} lost rank 0: {str(error).splitlines()[0]}", hint="See what ended it."
        ) from None
    finally:
        if child is not None:
            child.end(grace_s=0.0)
