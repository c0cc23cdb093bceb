# pyright: strict
"""Frames between a process and the one that started it."""

from __future__ import annotations

import socket
import struct

import msgspec

FRAME = struct.Struct("<I")
MAX_FRAME = 64 << 20
"""Far above any op of a sane plan; a length beyond it means that the stream is damaged."""


def send(channel: socket.socket, message: msgspec.Struct) -> None:
    """Write one frame. Raises OSError when the other side is gone."""
    body = msgspec.msgpack.encode(message)
    channel.sendall(FRAME.pack(len(body)) + body)


def receive(channel: socket.socket) -> bytes | None:
    """Read one frame; None when the other side has closed. Raises TimeoutError after the socket's timeout."""
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
