# pyright: strict
"""Find the files of a batch in folders, and read several at a time. An unreadable file does not affect the others.

The module contains the search, the processes that read, and the choice of each file's rank.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from importlib.metadata import distributions
from math import inf
from pathlib import Path
from typing import BinaryIO

import msgspec

from opreplay.replay.batch.merge import TracePlan
from opreplay.replay.batch.ranks import assign_jobs, rank_at_start, rank_in_name
from opreplay.replay.batch.stamps import stamps_of
from opreplay.replay.execute.messages import Ready, Refused
from opreplay.replay.execute.processes.child import Child
from opreplay.replay.execute.processes.lanes import ready_lanes
from opreplay.replay.execute.processes.parent import Parent
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.replay.plan.selection import Selection
from opreplay.replay.plugins import load_plugins
from opreplay.replay.results.resume import digest, file_digest
from opreplay.traces import Limits, Trace, expand_paths
from opreplay.traces.errors import OpReplayError, TraceError, UnknownDialect, UsageError
from opreplay.traces.joins.graph_capture import MAX_CANDIDATES, captures_in_folder
from opreplay.traces.joins.kernel_details import table_in_folder
from opreplay.traces.names import printable
from opreplay.traces.processes.select import split_processes

SUFFIXES = (".json", ".json.gz")
"""Suffixes of files to take from a folder; the reader identifies files by content."""
SPECIAL = "not a regular file (to read a pipe, name it explicitly)"
"""Reason why a pipe, a socket or a device in a folder is skipped."""
POOL_FROM_BYTES = 100_000_000
"""Minimum total size, in bytes, for which processes are started to read files.

Each process first loads torch, which takes seconds.
"""
GZIP_RATIO = 10
"""Assumed ratio of the size of a trace to its compressed size."""
AHEAD = 2
"""Number of files sent to each process in advance. A higher number would let finished plans pile up in memory."""
PIECE_BYTES = 16 << 20
MODULE = "batch.reading"

ReadOne = Callable[[str], bytes]
"""Path → a TracePlan or Unreadable as msgpack; can be sent to another process."""


class Unreadable(msgspec.Struct, frozen=True, kw_only=True, tag="unreadable"):
    """A file of the batch that could not be read, and why."""

    path: str
    message: str
    hint: str = ""
    exit_code: int = 3
    no_trace: bool = False
    """Whether the file is valid JSON but not a trace. Any folder may contain such files. A damaged file counts as a
    trace.
    """


class ToRead(msgspec.Struct, frozen=True, kw_only=True):
    """Message that tells a reading process which file to read."""

    path: str


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """Part of an encoded plan, sent by a reading process; a large plan exceeds one frame."""

    data: bytes


class AllRead(msgspec.Struct, frozen=True, kw_only=True, tag="all read"):
    """Message after the last `Piece` of a file."""


class BatchFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a batch."""

    path: str
    named: bool
    """Whether the user named the file, directly or by a glob. Other files come from a folder and may not be traces."""

    copy_of: str | None = None
    """Path of a file with the same contents. That file counts for both."""

    @property
    def left_out(self) -> str:
        """Return why the file is not read: it is a copy, a pipe, a socket or a device. Return "" if it is read."""
        if self.copy_of is not None:
            other = os.path.relpath(self.copy_of, os.path.dirname(self.path) or ".")
            return f"duplicate of {other}, counted only once"
        return SPECIAL if not self.named and os.path.exists(self.path) and not os.path.isfile(self.path) else ""


def find_files(patterns: Sequence[str]) -> list[BatchFile]:
    """Return the files for paths, globs and folders (searched recursively), with copies marked.

    Raises TraceError for a glob that matches nothing. Raises UsageError for "-" and for a folder without .json or
    .json.gz.
    """
    files: dict[str, BatchFile] = {}
    for pattern in patterns:
        if pattern == "-":
            raise UsageError(
                "several traces cannot be read from stdin (-)",
                hint="To read one trace from stdin, use `opreplay run -`.",
            )
        for path in expand_paths([pattern]):
            if not os.path.isdir(path):
                files[path] = BatchFile(path=path, named=True)
                continue
            # A link to nothing is a trace that is missing, and a pipe may be one: both are to be seen.
            inside = sorted(
                str(file) for file in Path(path).rglob("*") if file.name.endswith(SUFFIXES) and not file.is_dir()
            )
            if not inside:
                raise UsageError(f"{path} contains no {' or '.join(SUFFIXES)} file")
            for file in inside:
                files.setdefault(file, BatchFile(path=file, named=False))
    copies = copies_of(files)
    return [msgspec.structs.replace(file, copy_of=copies.get(path)) for path, file in files.items()]


def read_plans(paths: Sequence[str], how: HowToRead, *, processes: int) -> Iterator[TracePlan | Unreadable]:
    """Yield the plan of each file in order. The files are read in `processes` processes, or here if there is little to
    read.
    """
    if processes < 2 or len(paths) < 2 or sum(map(_bytes_to_read, paths)) < POOL_FROM_BYTES:
        for path in paths:
            yield decoded(_read(path, how=how))
        return
    readers = [_Reader(how) for _ in range(min(processes, len(paths)))]
    idle, plans = list(readers), dict[int, bytes]()
    reading: dict[_Reader, int] = {}
    next_file = 0
    try:
        for number in range(len(paths)):
            while number not in plans:
                while idle and next_file < min(len(paths), number + AHEAD * processes):
                    reader = idle.pop()
                    reader.hand_out([ToRead(path=paths[next_file])])
                    reading[reader], next_file = next_file, next_file + 1
                for reader in ready_lanes(list(reading)):
                    if (plan := reader.plan(paths[reading[reader]])) is not None:
                        plans[reading.pop(reader)] = plan
                        idle.append(reader)
            yield decoded(plans.pop(number))
    finally:
        # Ctrl-C, or nobody wants the rest: a trace may take minutes to read.
        for reader in readers:
            reader.end()


class _Reader(Workers):
    """A process that reads files one after the other."""

    def __init__(self, how: HowToRead) -> None:
        self._data = bytearray()
        super().__init__(
            lambda facts, files: [Child(how, module=MODULE, replies=Ready | Refused | Piece | AllRead)],
            limit_s=inf,
            interim=Piece,
            on_interim=lambda piece: self._data.extend(piece.data),
        )

    def plan(self, path: str) -> bytes | None:
        """Return the process's encoded reply once it is complete, and None before.

        Raises OpReplayError if the process died.
        """
        answer = self.take()
        if isinstance(answer, Death):
            raise OpReplayError(
                f"a worker process died while it read {path}: {answer.cause}",
                hint="It probably ran out of memory: read fewer traces in parallel with --workers.",
            )
        if answer is None:
            return None
        data = bytes(self._data)
        self._data.clear()
        return data


def serve(descriptor: int, parent: int) -> None:
    """Run the loop of a reading process: receive paths and send plans until its socket closes."""
    with Parent(descriptor, parent) as starter:
        how = starter.config(HowToRead)
        for task in starter.tasks(msgspec.msgpack.Decoder(ToRead), {}):
            data = _read(task.path, how=how)
            for start in range(0, len(data), PIECE_BYTES):
                starter.say(Piece(data=data[start : start + PIECE_BYTES]))
            starter.say(AllRead())


def _bytes_to_read(path: str) -> int:
    try:
        size = os.path.getsize(path)
    except OSError:
        return 0
    return size * GZIP_RATIO if path.endswith(".gz") else size


def decoded(data: bytes) -> TracePlan | Unreadable:
    """Decode the bytes that a `ReadOne` returned."""
    return msgspec.msgpack.decode(data, type=TracePlan | Unreadable)


def encoded(plan: TracePlan | Unreadable) -> bytes:
    """Encode a plan to the bytes that a `ReadOne` returns."""
    return msgspec.msgpack.encode(plan)


class HowToRead(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that, together with the contents of a file, determine its plan."""

    selection: Selection
    device: str
    limits: Limits = Limits()
    plugins: tuple[str, ...] = ()
    execution_traces: Mapping[str, str] = {}
    """Path of a trace → path of its ExecutionTrace."""
    children: bool = False
    """Whether plans include the child ops recorded below each op."""
    timed: bool = False
    """Whether the timing of files with a rank in their first bytes is read, too. Matching collectives needs it."""
    process: str | None = None
    """The process to read from each file. Each file must then be merged from several processes."""

    def reader(self) -> ReadOne:
        """Return a picklable function that reads one file."""
        return partial(_read, how=self)

    def settings(self) -> str:
        """Return a digest of everything that determines plans, except the files.

        It covers options, user code and package versions.
        """
        installed = sorted(f"{package.metadata['Name']} {package.version}" for package in distributions())
        code = [file_digest(plugin) if os.path.isfile(plugin) else plugin for plugin in self.plugins]
        # The pairs of ExecutionTraces are not among them: they are among the files of each plan.
        mine = msgspec.structs.replace(self, execution_traces={})
        return digest(msgspec.json.encode([mine, code, installed], order="deterministic"))

    def files(self, path: str, beside: dict[str, tuple[str, ...]] | None = None) -> list[str]:
        """Return the file and all files that may be read with it. `beside` caches those found in each folder."""
        folder = os.path.dirname(path)
        known = {} if beside is None else beside
        if folder not in known and os.path.isfile(path):
            known[folder] = _files_beside(path)
        named = self.execution_traces.get(path)
        return [path, *(() if named is None else (named,)), *(file for file in known.get(folder, ()) if file != path)]


def _files_beside(path: str) -> tuple[str, ...]:
    """Return the table of kernels and the captures of graphs in a file's folder.

    For more captures than are read, return the folder itself, so that no plan is stored.
    """
    folder = Path(path).parent
    found: list[Path | str] = []
    with suppress(UsageError):  # several tables, of which none is used
        table = table_in_folder(path)
        found += [] if table is None else [table]
    with suppress(OSError):  # a folder that cannot be listed
        captures = captures_in_folder(folder)
        found += captures if len(captures) <= MAX_CANDIDATES else [folder]
    return tuple(map(str, found))


def _read(path: str, *, how: HowToRead) -> bytes:
    """Read a file and return its TracePlan, or an Unreadable if it is refused, encoded as msgpack."""
    before = stamps_of(how.files(path))
    try:
        load_plugins(how.plugins)
        plan = _planned(path, how)
    except OpReplayError as error:
        return encoded(
            Unreadable(
                path=printable(path),
                message=printable(error.problem),
                hint=error.hint,
                exit_code=error.exit_code,
                no_trace=isinstance(error, UnknownDialect),
            )
        )
    unchanged = before is not None and before == stamps_of(how.files(path))
    return encoded(msgspec.structs.replace(plan, sources=before if before is not None and unchanged else ()))


def _planned(path: str, how: HowToRead) -> TracePlan:
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.job.job import Job
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.plan.inputs import join_notes, open_input
    from opreplay.traces.links.collectives import collectives_of

    timed = how.timed and rank_at_start(path) is not None
    read = open_input(
        path, limits=how.limits, execution_trace=how.execution_traces.get(path), activity=timed, process=how.process
    )
    job = Job(read, how.selection, Settings(device=how.device, check_kernels=how.children))
    alone = msgspec.structs.replace(job.plan, sequence=None)
    if isinstance(read, ReplayPlan):
        return TracePlan(path=printable(path), plan=alone)
    info = read.info
    return TracePlan(
        path=printable(path),
        plan=alone,
        rank=info.rank,
        world_size=info.world_size,
        notes=tuple(map(printable, [*join_notes(read), *_merged_notes(read)])),
        calls=collectives_of(read) if read.activity is not None else (),
        base_ns=info.base_ns,
    )


def _merged_notes(read: Trace) -> list[str]:
    """Return a note on a file that was merged from profiles of several processes. For other files, return nothing."""
    if read.info.merged is None or read.info.process is not None:
        return []
    count = len(read.info.merged.processes)
    return [f"opreplay: {count:,} processes of the file are added up. Select one with --process"]


def open_ranks(
    patterns: Sequence[str], read: Callable[[str], Trace], tell: Callable[[str], None]
) -> list[tuple[int, Trace]]:
    """Return (rank, trace), by rank, for paths, globs and folders. Each process of a merged file is a trace.

    A file in a folder that is not a trace is skipped with a note. The rank is the recorded rank, otherwise the rank in
    the file's name. If no file has a rank, it is the file's position, with a note.

    Raises UsageError for fewer than two traces, for traces of several jobs, and if only some have a rank. Also raises
    what `read` raises for a named file.
    """
    files = list(readable_traces(patterns, read, tell))
    traces = [(path, part) for path, trace in files for part in _parts(trace)]
    if len(traces) < 2:
        raise UsageError(
            f"--ranks needs the traces of at least two ranks, found {len(traces)}",
            hint="Name several traces, or the folder that contains them.",
        )
    ranks = _rank_numbers(traces, tell)
    _one_job([path for path, _ in files], [trace for _, trace in files], patterns)
    return sorted(zip(ranks, (trace for _, trace in traces), strict=True), key=lambda pair: pair[0])


def _parts(trace: Trace) -> list[Trace]:
    """Return one trace per process of a merged trace, or just `trace` if it is not merged."""
    return [part for _, part in split_processes(trace)] or [trace]


def _rank_numbers(traces: Sequence[tuple[str, Trace]], tell: Callable[[str], None]) -> list[int]:
    """Return the rank of each trace. Raises UsageError if only some have one."""
    processes = [trace.info.process for _, trace in traces]
    if any(processes):
        names = [name or path for name, (path, _) in zip(processes, traces, strict=True)]
        shown = ", ".join(f"{number} is {name}" for number, name in enumerate(names))
        tell(f"each process of the file counts as a rank: {shown}")
        return list(range(len(traces)))
    ranks = [(path, rank_in_name(path) if trace.info.rank is None else trace.info.rank) for path, trace in traces]
    numbers = [rank for _, rank in ranks if rank is not None]
    if not numbers:
        tell("no trace records its rank, so ranks are numbered in the given order")
        return list(range(len(traces)))
    if len(numbers) < len(ranks):
        nameless = next(path for path, rank in ranks if rank is None)
        raise UsageError(
            f"the rank of {nameless} is unknown, but other traces have a rank",
            hint="Put the rank into the file name: rank3.json.gz.",
        )
    return numbers


def readable_traces(
    patterns: Sequence[str], read: Callable[[str], Trace], tell: Callable[[str], None]
) -> Iterator[tuple[str, Trace]]:
    """Yield (path, trace) for each file that is a trace; report the others."""
    for file in find_files(patterns):
        if file.left_out:
            tell(f"{file.path} left out: {file.left_out}")
            continue
        try:
            yield file.path, read(file.path)
        except TraceError as error:
            if file.named:
                raise
            tell(f"{file.path} left out: {error.problem}")


def _one_job(paths: Sequence[str], traces: Sequence[Trace], patterns: Sequence[str]) -> None:
    """Raise UsageError if the files of a folder belong to several jobs.

    Files that the user named one by one are not checked.
    """
    if len(patterns) == len(paths):
        return
    members = assign_jobs(paths, [(trace.info.rank, trace.info.world_size) for trace in traces])
    jobs = sorted({member.job for member in members if member.rank is not None})
    if len(jobs) > 1:
        raise UsageError(
            f"{len(paths)} files belong to {len(jobs)} jobs: {', '.join(jobs)[:300]}",
            hint="Name the files of only one job.",
        )


GZIP = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20


def copies_of(paths: Iterable[str]) -> dict[str, str]:
    """Map each copy of a file to its original, which has the same contents.

    Among equal files, regular files are preferred to links, then less deeply nested files, then older files, then
    earlier ones in the list. Only files with an unpacked size (for gzip, from the last four bytes) that occurs twice
    are read. Files that are not regular, are empty or cannot be read are never copies.
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
    """Return a digest of a file's unpacked bytes; None if it is unreadable or does not have `size` bytes.

    Reads no more than `size` bytes.
    """
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
    """Return a digest of a stream; None if it does not have exactly `size` bytes."""
    hasher, seen = blake2b(digest_size=16), 0
    while chunk := file.read(CHUNK_BYTES):
        seen += len(chunk)
        if seen > size:
            return None
        hasher.update(chunk)
    return hasher.digest() if seen == size else None
