# pyright: strict
"""Ranks that a launcher started, on one machine or many. Rank 0 sends commands. The other ranks run them and reply.

Each launched process runs its rank in a child process. A rank that dies or hangs can therefore be replaced like a local
rank. Messages go through the launcher's store: numbered commands to each rank, and numbered replies from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import wait
from time import monotonic, sleep
from typing import Any

import msgspec

from opreplay.replay.execute.messages import RankConfig, RankReply, RankTask, Ready
from opreplay.replay.execute.processes.child import GRACE_S, START_S, Child
from opreplay.replay.execute.processes.workers import Peer, Workers, readable
from opreplay.replay.execute.ranks.crew import device_of_rank
from opreplay.replay.execute.ranks.launched import Launched
from opreplay.replay.ir.reasons import Reason
from opreplay.traces.errors import EnvironmentRefused

POLL_S = 0.02
"""Interval, in seconds, at which the store is checked while ranks work."""
ALONE_S = 300.0
"""Time, in seconds, without a command after which rank 0 counts as gone. No op may take that long."""
PREFIX = "opreplay"


class Over(msgspec.Struct, frozen=True, tag="over"):
    """Command that ends a rank's process."""

    quits: bool = False
    """Whether this is the last command of the run."""


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """Message that a rank's process has ended."""

    why: str
    killed: bool = False
    """Whether a signal killed the process."""


Command = RankConfig | RankTask | Over
"""A command of rank 0 to another rank; a configuration starts a process."""
Answer = Ready | RankReply | Gone
"""What a rank sends: `Ready` once, then a reply to each task, or `Gone` when it has ended."""


class MessageStore:
    """Commands and replies in a torch.distributed store. Raises EnvironmentRefused if the store cannot be reached."""

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
                f"rank {place.rank} cannot reach {place.address}:{place.port}: {str(error).splitlines()[0]}",
                hint="MASTER_ADDR and MASTER_PORT must name the machine of rank 0.",
            ) from None
        self._command_counts: dict[int, int] = {}

    def say(self, rank: int, command: Command) -> None:
        """Send a command to one rank."""
        number = self._command_counts.get(rank, 0)
        self._command_counts[rank] = number + 1
        self.put(f"command/{rank}/{number}", command)

    def put(self, key: str, message: msgspec.Struct) -> None:
        self._store.set(key, msgspec.msgpack.encode(message))

    def has(self, key: str) -> bool:
        return self._store.check([key])

    def get(self, key: str, kind: Any) -> Any:
        return msgspec.msgpack.decode(self._store.get(key), type=kind)


def answer_key(config: RankConfig, number: int) -> str:
    """Return the key of a rank's reply with this number; each group has its own keys."""
    return f"answer/{config.prefix}/{config.rank}/{number}"


class RemoteRank:
    """A rank of another launched process, with the interface of `Child`."""

    is_stopped = False

    def __init__(self, words: MessageStore, config: RankConfig) -> None:
        self._messages, self._config = words, config
        self.facts: dict[str, object] | None = None
        self.was_killed = False
        self._died = ""
        self._heard = 0
        self._ready_by = monotonic() + START_S
        self._messages.say(config.rank, config)

    def has_spoken(self) -> bool:
        return self._messages.has(answer_key(self._config, self._heard))

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, RankTask)
        self._messages.say(self._config.rank, message)

    def receive(self) -> Ready | RankReply | None:
        answer: Answer = self._messages.get(answer_key(self._config, self._heard), Answer)
        self._heard += 1
        if isinstance(answer, Gone):
            self._died, self.was_killed = answer.why, answer.killed
            return None
        if isinstance(answer, Ready):
            self.facts = answer.facts
        return answer

    def next_look(self) -> float:
        return self._ready_by

    def overdue(self) -> str:
        return f"was not ready after {START_S:g} s" if monotonic() >= self._ready_by else ""

    def cause_of_death(self) -> Reason:
        return Reason("failed", self._died)

    def end(self, *, grace_s: float) -> None:
        with contextlib.suppress(RuntimeError):
            self._messages.say(self._config.rank, Over())


class JoinedRanks(Workers):
    """The launched ranks, controlled by rank 0."""

    def __init__(self, place: Launched, config: RankConfig, *, limit_s: float) -> None:
        """`config` applies to every rank, but rank number, device and store are taken from `place`."""
        super().__init__(self._launched, limit_s=limit_s, listen=_spoken)
        self._place, self._config = place, config
        self._messages = MessageStore(place)
        self._groups = 0
        self._is_open = True

    def _launched(self, facts: dict[str, object], files: ExitStack) -> Iterator[Peer]:
        self._groups += 1
        config = msgspec.structs.replace(
            self._config,
            store=f"{self._place.address}:{self._place.port}",
            prefix=f"{PREFIX}/group/{self._groups}",
        )
        yield Child(own_config(config, self._place))
        for rank in range(1, self._place.world):
            yield RemoteRank(self._messages, msgspec.structs.replace(config, rank=rank))

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        super().close()
        with contextlib.suppress(RuntimeError):
            for rank in range(1, self._place.world):
                self._messages.say(rank, Over(quits=True))


def _spoken(peers: Sequence[Peer], timeout_s: float) -> list[Peer]:
    """Wait for ranks; return those with a message."""
    deadline = monotonic() + timeout_s
    children = [peer for peer in peers if isinstance(peer, Child)]
    while True:
        left_s = max(0.0, min(POLL_S, deadline - monotonic()))
        speaking = readable(children, left_s) if children else []
        speaking += [peer for peer in peers if isinstance(peer, RemoteRank) and peer.has_spoken()]
        if speaking or monotonic() >= deadline:
            return speaking
        if not children:
            sleep(left_s)


def own_config(config: RankConfig, place: Launched) -> RankConfig:
    """Return the configuration for the rank of this process."""
    device = device_of_rank(config.device, place.local_rank)
    return msgspec.structs.replace(config, rank=place.rank, device=device)


def answer_of(child: Child) -> Answer:
    """Return a child's next message, or `Gone` if it has ended or cannot work at all."""
    try:
        reply = child.receive()
    except EnvironmentRefused as error:
        return Gone(why=error.problem)
    if isinstance(reply, Ready | RankReply):
        return reply
    cause = child.cause_of_death().detail.removeprefix("memory: ")
    return Gone(why=cause or "closed its channel", killed=child.was_killed)


class _LocalRank:
    """The child process that runs the rank of this launched process; rank 0 controls it."""

    def __init__(self, words: MessageStore, place: Launched) -> None:
        self._messages, self._place = words, place
        self._child: Child | None = None
        self._config: RankConfig | None = None
        self._answers = 0
        self._owes = False
        """Whether a reply of the child is outstanding."""

    @property
    def patience_s(self) -> float:
        """Seconds without a command after which rank 0 counts as gone."""
        return ALONE_S + (0 if self._child is None else START_S)

    def obey(self, command: Command) -> None:
        if isinstance(command, RankTask):
            if self._child is not None:
                self._child.send(command)
                self._owes = True
            return
        self.end(grace_s=GRACE_S if isinstance(command, Over) and command.quits else 0.0)
        if isinstance(command, RankConfig):
            self._config = own_config(command, self._place)
            self._child, self._answers, self._owes = Child(self._config), 0, True

    def listen(self) -> None:
        """Forward the child's reply to rank 0 if it arrives within `POLL_S`."""
        if self._child is None or self._config is None or not self._owes:
            sleep(POLL_S)
        elif wait([self._child.fileno()], POLL_S):
            self._messages.put(answer_key(self._config, self._answers), answer_of(self._child))
            self._answers, self._owes = self._answers + 1, False

    def end(self, *, grace_s: float = 0.0) -> None:
        if self._child is not None:
            self._child.end(grace_s=grace_s)
            self._child = None


def serve_joined(place: Launched) -> None:
    """Act as a rank other than 0 until rank 0 ends the run.

    Raises EnvironmentRefused if rank 0 cannot be reached or has disappeared.
    """
    words = MessageStore(place)
    keeper = _LocalRank(words, place)
    number, last = 0, monotonic()
    try:
        while True:
            key = f"command/{place.rank}/{number}"
            if words.has(key):
                command: Command = words.get(key, Command)
                number, last = number + 1, monotonic()
                keeper.obey(command)
                if command == Over(quits=True):
                    return
                continue
            keeper.listen()
            if monotonic() - last > keeper.patience_s:
                raise EnvironmentRefused(
                    f"rank {place.rank} received nothing from rank 0",
                    hint="Look in the output and the system log of rank 0 for what ended it.",
                )
    except RuntimeError as error:
        raise EnvironmentRefused(
            f"rank {place.rank} lost its connection to rank 0: {str(error).splitlines()[0]}",
            hint="Look in the output and the system log of rank 0 for what ended it.",
        ) from None
    finally:
        keeper.end()
