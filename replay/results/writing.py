# pyright: strict
"""Write a result file. A crash can lose only the line being written.

Each line is written completely and synced to disk. This module handles the file during a run, and reopens it to resume
the run. `records` and `reading` define the contents.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

import msgspec

from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.results.reading import ResultFile, read_result_file
from opreplay.replay.results.records import Record
from opreplay.traces.errors import EnvironmentRefused, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class JsonLinesSink:
    """Writes each record as one line. A crash loses only the op being measured.

    Each line is written in one piece and synced to disk before `write` returns. Therefore neither kill -9 nor a power
    failure removes it. If the disk is full, an incomplete line is removed again. A stream that this class does not
    close (`close` off) is only flushed, not synced.
    """

    def __init__(self, stream: BinaryIO, *, close: bool = False) -> None:
        self._stream = stream
        self._close = close
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def open(cls, path: str | Path, *, force: bool = False) -> JsonLinesSink:
        """Create a result file before anything is measured. Raises UsageError if it exists and `force` is off."""
        sink = cls._locked(path, "ab" if force else "xb")
        with contextlib.suppress(OSError):  # a device or a pipe has nothing to take away
            sink._stream.truncate(0)
        _name_to_disk(Path(path))
        return sink

    @classmethod
    def reopen(cls, path: str | Path) -> tuple[JsonLinesSink, ResultFile]:
        """Open the file of an interrupted run to resume it, and return the sink and the file's contents.

        An incomplete last line is removed. Raises FormatError if it is not a result file. Raises UsageError if the file
        does not exist or cannot be written, or if another run is writing it.
        """
        if not Path(path).is_file():
            raise UsageError(f"cannot resume {path}: the file does not exist")
        sink = cls._locked(path, "ab")
        try:
            earlier = read_result_file(path)
        except BaseException:
            sink.close()
            raise
        sink._stream.truncate(earlier.complete_bytes)
        sink._stream.seek(0, os.SEEK_END)
        return sink, earlier

    @classmethod
    def _locked(cls, path: str | Path, mode: Literal["ab", "xb"]) -> JsonLinesSink:
        """Return a sink for a file. The file is locked, because two writing processes would corrupt it."""
        try:
            stream = Path(path).open(mode, buffering=0)  # noqa: SIM115 - the sink closes it
        except FileExistsError:
            raise UsageError(
                f"{path} exists", hint="Name another file, overwrite it with --force, or resume it with --resume."
            ) from None
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}", hint="Check the folder and its permissions."
            ) from None
        try:
            lock_file(stream, path)
        except UsageError:
            stream.close()
            raise
        return cls(stream, close=True)

    def write(self, record: Record) -> None:
        """Write one line. Raises EnvironmentRefused if the file cannot be extended, OSError if a stream fails."""
        line = plain_json(self._encoder.encode(record)) + b"\n"
        if not self._close:
            self._stream.write(line)
            self._stream.flush()
            return
        start = os.fstat(self._stream.fileno()).st_size
        try:
            write_whole(self._stream.write, line)
            _to_disk(self._stream.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._stream.seek(start)  # else the next line, which may fit, would begin behind a hole
                self._stream.truncate(start)
            raise EnvironmentRefused(
                f"cannot write {getattr(self._stream, 'name', 'the results')}: {error.strerror}",
                hint="Earlier lines are complete: free some space, then continue with --resume."
                if start
                else "Nothing was written: free some space, or name a file on another disk.",
            ) from None

    def close(self) -> None:
        """Close the file, unless the stream was the caller's."""
        if self._close and not self._stream.closed:
            self._stream.close()

    def __enter__(self) -> JsonLinesSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock_file(stream: BinaryIO, path: str | Path) -> None:
    """Lock the file for this process until it is closed, if the file system supports locks.

    Raises UsageError if another run holds the lock.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another run is writing {path}", hint="Wait for that run, or name another file.") from None
    except OSError:
        return  # a file system without locks: the file is written all the same


def write_whole(write: Callable[[memoryview], int | None], data: bytes) -> None:
    """Write all of `data`, in as many pieces as the system needs. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) or 0 :]


def _name_to_disk(path: Path) -> None:
    """Sync the directory entry of a new file to disk. Without this, a power failure could remove the whole file."""
    with contextlib.suppress(OSError):  # some file systems have no such thing, and some folders may not be opened
        descriptor = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _to_disk(descriptor: int) -> None:
    """Sync a file to disk. Raises OSError, except for a pipe, a terminal or anything else not on disk."""
    try:
        getattr(os, "fdatasync", os.fsync)(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
