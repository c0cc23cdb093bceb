# pyright: strict
"""The parent of a worker process, as seen by the worker: receives configuration and tasks, sends replies.

The worker does not outlive its parent. Messages are values in msgpack, never pickle. The other end is `child`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from opreplay.replay.execute.messages import Ready, Refused
from opreplay.replay.host.channel import receive, send
from opreplay.replay.host.limits import die_with
from opreplay.traces.errors import OpReplayError

_Message = TypeVar("_Message")


class Parent:
    """Connection to the process that started this process. An error before the first task is sent as the reply."""

    def __init__(self, descriptor: int, pid: int) -> None:
        die_with(pid)
        self._channel = socket.socket(fileno=descriptor)
        self._is_told = False

    def config(self, kind: type[_Message]) -> _Message:
        """Return the first message, which is the configuration."""
        return msgspec.msgpack.decode(receive(self._channel) or b"", type=kind)

    def say(self, message: msgspec.Struct) -> None:
        """Send a reply. Raises OSError if the parent is gone."""
        send(self._channel, message)

    def tasks(self, decoder: msgspec.msgpack.Decoder[_Message], facts: dict[str, object]) -> Iterator[_Message]:
        """Report that this process is ready, then yield each task until the parent closes."""
        self._is_told = True
        self.say(Ready(facts=facts))
        while (frame := receive(self._channel)) is not None:
            yield decoder.decode(frame)

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        refuses = isinstance(error, OpReplayError) and not self._is_told
        if isinstance(error, OpReplayError) and refuses:
            self.say(Refused.of(error))
        self._channel.close()
        return refuses
