"""Read bounded amounts of bytes from a file, stdin or gzip data, which a thread decompresses in advance."""

from __future__ import annotations

import os
import queue
import stat
import sys
import threading
import zlib
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from opreplay.traces.errors import Malformed, TraceError
from opreplay.traces.folders import may_read
from opreplay.traces.limits import Limits, too_large
from opreplay.traces.reading.foreign import HEAD_BYTES, foreign_bytes

_STEP_BYTES = 1 << 16
INFLATE_BYTES = 1 << 20
"""Bytes decompressed at a time; the read-ahead queue holds four such pieces."""
WRITER_S = 5.0
"""Maximum seconds to wait for the writer of a named pipe; a shell opens both ends at the same time."""

try:  # three times as fast as zlib, not on every processor
    from isal import isal_zlib as _gzip  # pyright: ignore[reportMissingImports]
except ImportError:
    _gzip = zlib
_GZIP_ERRORS: tuple[Any, ...] = (zlib.error, _gzip.error)


def _inflater() -> Any:
    """Return a decompressor for one gzip member."""
    return _gzip.decompressobj(31)


def open_binary(path: str) -> BinaryIO:
    """Open a regular file or a pipe for reading, or stdin for "-". Raises TraceError if that fails.

    For a named pipe, wait at most `WRITER_S` seconds for a writer.
    """
    if path == "-":
        return sys.stdin.buffer
    if not may_read(path):
        raise TraceError(f"{path} is not in a folder that may be read", hint="Name a file in one of these folders.")
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise TraceError(
                f"{path} is a directory", hint="Name a file in it; `opreplay run` and `inspect` accept folders."
            )
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise TraceError(f"{path} is not a regular file", hint="Give a trace file, or '-' for stdin.")
        return open_pipe(path) if stat.S_ISFIFO(mode) else open(path, "rb", buffering=0)
    except OSError as err:
        hint = "Check the path and its permissions."
        if "://" in str(path):
            hint = "opreplay reads local files: download it first, or pipe it in with - as the path."
        raise TraceError(f"cannot read {str(path)!r}: {err.strerror}", hint=hint) from err
    except ValueError as err:
        raise TraceError(f"cannot read {path!r}: {err}", hint="Check the path.") from err


def open_pipe(path: str) -> FileIO:
    """Open a pipe for reading once a writer has opened its other end. Raises TraceError if no writer does.

    Opening blocks until then, so it is done in a thread. If no writer comes, opening the other end here releases the
    thread.
    """
    opened: list[FileIO] = []

    def wait() -> None:
        opened.append(open(path, "rb", buffering=0))  # noqa: SIM115 - the caller closes it

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(WRITER_S)
    if thread.is_alive():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        thread.join()
        opened[0].close()
        raise TraceError(
            f"{path} is a named pipe without a writer",
            hint="Start the program that writes to it first, or pipe its output in with - as the path.",
        )
    return opened[0]


class Source:
    """The decompressed bytes of one trace, in order; `losses` counts truncated or ignored data."""

    def __init__(self, path: str | Path, limits: Limits, *, start: int = 0, stop: int | None = None) -> None:
        """Open the source; `start` and `stop` (bytes) select part of an uncompressed file."""
        self.path = str(path)
        self.limits = limits
        self.losses: dict[str, int] = {}
        self.bytes_out = 0
        self.start = start
        self._file = open_binary(self.path)
        self.total: int | None = None if self.path == "-" else os.fstat(self._file.fileno()).st_size or None
        self._left = None if stop is None else stop - start
        if start:
            self._file.seek(start)
        self._head = b"" if start else self._read_some(16)
        if (found := foreign_bytes(self._head)) is not None:
            self._file.close()
            raise Malformed(f"{self.path} is {found.what}, not a trace", hint=found.hint)
        self.gzip = self._head.startswith(b"\x1f\x8b")
        try:
            self._thread = _Inflate(self, limits) if self.gzip else None
        except RuntimeError:  # the system starts no more threads
            self._file.close()
            raise
        self._ahead = memoryview(b"")
        self.opening = b""
        """First bytes after decompression, set by `peek`."""

    def _read_some(self, n: int) -> bytes:
        """Return up to n bytes; fewer than n only at the end of the file.

        A pipe may return less than it was asked for, so it is read repeatedly.
        """
        out = b""
        while len(out) < n:
            got = self._file.read(n - len(out))
            if not got:
                break
            out += got
        return out

    @property
    def progress_bytes(self) -> int:
        """Return how many bytes of the (compressed) file have been read, to compare with `total`."""
        return self._thread.bytes_in if self._thread else self.bytes_out

    def readinto(self, view: memoryview) -> int:
        """Fill the view from its start and return the number of bytes, 0 at the end. Raises TooLarge."""
        if n := min(len(self._ahead), len(view)):
            view[:n] = self._ahead[:n]
            self._ahead = self._ahead[n:]
        else:
            n = self._take(view)
        self.bytes_out += n
        if self.start + self.bytes_out > self.limits.decompressed_bytes:
            raise too_large("decompressed_bytes", self.limits.decompressed_bytes, self.bytes_out, "bytes in the trace")
        return n

    def peek(self, size: int) -> bytes:
        """Return the first bytes of a source that has not been read yet, without consuming them."""
        block, n = memoryview(bytearray(size)), 0
        while n < size and (got := self._take(block[n:])):
            n += got
        self._ahead = block[:n]
        self.opening = bytes(block[: min(n, HEAD_BYTES)])
        return bytes(self._ahead)

    def _take(self, view: memoryview) -> int:
        return self._thread.readinto(view) if self._thread else self._readinto_plain(view)

    def _readinto_plain(self, view: memoryview) -> int:
        if self._left is not None:
            view = view[: self._left]
        try:
            if self._head:
                n = min(len(self._head), len(view))
                view[:n] = self._head[:n]
                self._head = self._head[n:]
            else:
                n = self._file.readinto(view) if len(view) else 0  # type: ignore[attr-defined]
        except OSError as err:
            raise TraceError(f"cannot read {self.path}: {err.strerror}", hint="Check the file and the disk.") from err
        if self._left is not None:
            self._left -= n
        return n

    def close(self) -> None:
        """Stop the read-ahead thread and close the file; stdin stays open."""
        if self._thread:
            self._thread.stop()
        if self.path != "-":
            self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _before_damage(path: str, start: int, skip: int) -> bytes:
    """Return the data of the gzip member at byte `start`, from byte `skip` up to the damage; empty for a pipe.

    A decompression call that fails returns nothing, so the file is read again, in small steps near the damage.
    """
    if not os.path.isfile(path):
        return b""
    engine, out, seen = zlib.decompressobj(31), b"", 0
    with open(path, "rb") as file:
        file.seek(start)
        while data := file.read(_STEP_BYTES):
            before = engine.copy()
            pieces = []
            try:
                pieces.append(engine.decompress(data))
            except zlib.error:
                engine, data = before, memoryview(data)
                try:
                    pieces += (engine.decompress(data[at : at + 64]) for at in range(0, len(data), 64))
                except zlib.error:
                    return out + b"".join(pieces)[max(0, skip - seen) :]
            piece = b"".join(pieces)
            out += piece[max(0, skip - seen) :]
            seen += len(piece)
            if engine.eof or len(out) > INFLATE_BYTES:  # zlib finds no damage
                break
    return out


class _Inflate(threading.Thread):
    """Decompresses gzip members one after another into a short queue; zlib releases the GIL meanwhile."""

    def __init__(self, source: Source, limits: Limits) -> None:
        super().__init__(daemon=True, name="opreplay-inflate")
        self._source = source
        self._limits = limits
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
        self._current = memoryview(b"")
        self._stopped = threading.Event()
        self._done = False
        self.bytes_in = 0
        self.start()

    def run(self) -> None:
        try:
            self._inflate_all()
        except BaseException as err:  # handed over to the reading thread, which raises it
            self._put(err)
        self._put(None)

    def _put(self, item: bytes | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def _inflate_all(self) -> None:
        src, limits = self._source, self._limits
        engine, produced = _inflater(), 0
        data, src._head = src._head, b""
        self.bytes_in = len(data)
        start = member = 0  # bytes of the file before this member, bytes inflated of it
        while not self._stopped.is_set():
            try:
                out = engine.decompress(data, INFLATE_BYTES)
            except _GZIP_ERRORS:
                src.losses["damaged gzip data"] = 1
                self._put(_before_damage(src.path, start, member))
                return
            produced += len(out)
            member += len(out)
            if produced > limits.ratio_free_bytes and produced > limits.ratio * self.bytes_in:
                ratio = f"{produced} bytes out of {self.bytes_in}, {produced // self.bytes_in}"
                raise too_large("ratio", limits.ratio, ratio, "compression ratio")
            if out:
                self._put(out)
            if engine.eof:
                data = engine.unused_data or self._read()
                data += self._read() if len(data) == 1 else b""
                if data[:2] != b"\x1f\x8b":
                    if data.strip(b"\0"):
                        src.losses["data after the end of the gzip stream"] = 1
                    return
                engine = _inflater()
                start, member = self.bytes_in - len(data), 0
                continue
            data = engine.unconsumed_tail
            if not data and len(out) < INFLATE_BYTES:
                data = self._read()
                if not data:
                    src.losses["truncated gzip data"] = 1
                    return

    def _read(self) -> bytes:
        got = self._source._file.read(_STEP_BYTES) or b""
        self.bytes_in += len(got)
        return got

    def readinto(self, view: memoryview) -> int:
        if not len(self._current) and not self._done:
            item = self._queue.get()
            if isinstance(item, BaseException):
                self._done = True
                raise item
            if item is None:
                self._done = True
            else:
                self._current = memoryview(item)
        n = min(len(view), len(self._current))
        view[:n] = self._current[:n]
        self._current = self._current[n:]
        return n

    def stop(self) -> None:
        self._stopped.set()
        self.join(timeout=5)
