"""Cache in the user's cache folder: limited in size, safe for several processes, and never a cause of failure.

A value is bytes under a key that contains everything on which the value depends. Each value is one file. It is written
under another name and then renamed. Hence a reader sees a complete file or none. A damaged file counts as missing. If
the folder cannot be used, nothing is cached.
"""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from opreplay.traces.folders import read_regular

MAX_BYTES = 128 << 20
"""Maximum size of all values together; the least recently used ones are removed first."""
MAX_VALUE_BYTES = 256 << 20
"""Maximum size of one unpacked value, because a damaged file could claim any size."""
_SUFFIX = ".kept"


def folder() -> Path | None:
    """Return `$XDG_CACHE_HOME/opreplay`, or `~/.cache/opreplay`, or None if there is no home folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification: relative ones are ignored
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return Path(base) / "opreplay"


def load(key: str) -> bytes | None:
    """Return the value under a key and mark it as used now, or None on a cache miss."""
    if (path := _path(key, make=False)) is None:
        return None
    try:
        data = read_regular(path, MAX_BYTES)
        check, packed = data[:16], data[16:]
        if blake2b(packed, digest_size=16).digest() != check:
            return None
        unpacker = zlib.decompressobj()
        value = unpacker.decompress(packed, MAX_VALUE_BYTES)
        if not unpacker.eof:
            return None
        os.utime(path)
    except (OSError, zlib.error):
        return None
    return value


def store(key: str, value: bytes) -> None:
    """Store a value; do nothing if space or permission is missing."""
    if len(value) > MAX_VALUE_BYTES or (path := _path(key, make=True)) is None:
        return
    packed = zlib.compress(value, 1)
    if len(packed) > MAX_BYTES // 4:
        return
    import tempfile  # late: it loads ten modules, and most commands only read

    with suppress(OSError):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="new-", suffix=_SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blake2b(packed, digest_size=16).digest() + packed)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
        _make_room(path.parent)


def remove(key: str) -> None:
    """Remove the value under a key, if there is one."""
    if (path := _path(key, make=False)) is not None:
        with suppress(OSError):
            os.unlink(path)


def _path(key: str, *, make: bool) -> Path | None:
    """Return the file of a key, or None if other users can write to the folder."""
    base = folder()
    if base is None:
        return None
    try:
        if make:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(base)
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return None
    return base / (blake2b(key.encode(), digest_size=20).hexdigest() + _SUFFIX)


def _make_room(base: Path) -> None:
    """Remove the least recently used values until the rest fits the limit."""
    entries_by_age = []
    with os.scandir(base) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with suppress(OSError):  # another process removed it
                    what = entry.stat()
                    entries_by_age.append((what.st_mtime_ns, what.st_size, entry.path))
    total = sum(size for _, size, _ in entries_by_age)
    for _, size, path in sorted(entries_by_age):
        if total <= MAX_BYTES:
            break
        with suppress(OSError):
            os.unlink(path)
        total -= size
