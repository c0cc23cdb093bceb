# pyright: strict
"""Which files of a batch are one trace: copies, links and packed copies, told by content and not by name or time."""

from __future__ import annotations

import gzip
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from typing import BinaryIO

GZIP = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20


def copies_of(paths: Iterable[str]) -> dict[str, str]:
    """Each file that holds what another one does → that one: a file before a link to it, the one less deep in
    folders, the older one, else the first.

    Only files that unpack to the same number of bytes are read, as a gzip's last four bytes tell it. What is no regular
    file, is empty or cannot be read is no copy.
    """
    sizes: defaultdict[int, list[str]] = defaultdict(list)
    for path in paths:
        if os.path.isfile(path) and (size := _unpacked_bytes(path)):
            sizes[size].append(path)
    originals: dict[str, str] = {}
    for size, alike in sizes.items():
        if len(alike) < 2:
            continue
        alike.sort(key=lambda path: (os.path.islink(path), path.count(os.sep), _changed_ns(path)))
        first: dict[bytes, str] = {}
        real: dict[str, bytes | None] = {}
        for path in alike:
            target = os.path.realpath(path)
            content = real[target] if target in real else real.setdefault(target, _content(target, size))
            if content is not None and first.setdefault(content, path) != path:
                originals[path] = first[content]
    return originals


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _unpacked_bytes(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
            size = file.seek(0, os.SEEK_END)
            if not packed or size < 4:
                return size
            file.seek(-4, os.SEEK_END)
            return int.from_bytes(file.read(4), "little")
    except OSError:
        return None


def _content(path: str, size: int) -> bytes | None:
    """Digest of the bytes of a file, unpacked where they are `size` as it says; never of more than that."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            if packed:
                try:
                    with gzip.open(file) as inside:
                        if (content := _digest(inside, size)) is not None:
                            return content
                except (EOFError, zlib.error, gzip.BadGzipFile):
                    pass  # damaged: compared as it is
                file.seek(0)
            return _digest(file, os.fstat(file.fileno()).st_size)
    except OSError:
        return None


def _digest(file: BinaryIO | gzip.GzipFile, size: int) -> bytes | None:
    """Digest of a stream of `size` bytes; None for one that has fewer or more."""
    hasher, seen = blake2b(digest_size=16), 0
    while chunk := file.read(CHUNK_BYTES):
        seen += len(chunk)
        if seen > size:
            return None
        hasher.update(chunk)
    return hasher.digest() if seen == size else None
