# pyright: strict
"""Communication between a process and its parent: frames on a socket, and files that both processes have open."""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
from typing import IO

import msgspec

FRAME = struct.Struct("<I")
MAX_FRAME = 64 << 20
"""Maximum frame length, far above any valid op. A greater length means that the stream is damaged."""


def send(channel: socket.socket, message: msgspec.Struct) -> None:
    """Write one frame. Raises OSError if the other process is gone."""
    body = msgspec.msgpack.encode(message)
    channel.sendall(FRAME.pack(len(body)) + body)


def receive(channel: socket.socket) -> bytes | None:
    """Read one frame, or return None if the other process has closed.

    Raises TimeoutError after the socket's timeout.
    """
    head = _exactly(channel, FRAME.size)
    if head is None:
        return None
    (length,) = FRAME.unpack(head)
    if length > MAX_FRAME:
        raise ConnectionError(f"a frame of {length} bytes, limit {MAX_FRAME}")
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(1 << 20, count - len(parts)))
        if not part:
            return None
        parts += part
    return bytes(parts)


class Unnamed:
    """Empty file without a name.

    It disappears with the last process that has it open, even after kill -9. If the system does not support unnamed
    files, it is a temporary file that is removed when it is closed.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile() if sys.platform == "linux" else tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by `close`
        self.path = f"/proc/{os.getpid()}/fd/{self.fileno()}" if sys.platform == "linux" else self._file.name
        """Path at which other processes of this user can open the file while this process has it open."""

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Unnamed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
