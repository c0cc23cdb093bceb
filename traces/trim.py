# pyright: strict
"""Write a smaller trace from a large one as a stream.

It contains the events that start in given spans, and the device work that these events launch. Events are copied byte
for byte, so that programs that open the large file can also open the small one.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

from opreplay.traces.arrays import Array, distinct
from opreplay.traces.errors import TraceError
from opreplay.traces.limits import Limits
from opreplay.traces.reading import fields
from opreplay.traces.reading.collect import Collector, Tracks
from opreplay.traces.reading.columns import EXACT_LIMIT_US, INVALID, to_ids, to_ns
from opreplay.traces.reading.decoding import NOT_JSON, EventDecoder, decoded_args
from opreplay.traces.reading.native.blocks import CompiledPlaces
from opreplay.traces.reading.opening import OPENING_BYTES
from opreplay.traces.reading.scan import Scanner
from opreplay.traces.reading.source import Source

LAG_SPANS = 3
"""Time after the wanted spans that is searched for device work launched in them, as a multiple of the spans' length."""
SHORTEST_LAG_NS = 100_000_000
SPOOL_BYTES = 1 << 24
"""Maximum bytes of device work held in memory until its launch is found; larger amounts go to a temporary file."""
_RAW_LIST = msgspec.json.Decoder(list[Raw])
_LEVEL = 6
Progress = Callable[[int, "int | None"], None]
Span = tuple[int, int]
"""(start, end) in ns on the clock of the file's "ts"; the end is exclusive."""


class Trimmed(Struct, frozen=True, kw_only=True):
    """Counts of the written events, and losses."""

    events: int
    """Number of traceEvents entries in the new file, including metadata."""
    of_events: int
    """Number of traceEvents entries in the old file."""
    device_events: int
    """Number of written kernels, copies and fills."""
    missing_device_work: int
    """Number of launches whose device work was not found or does not exist."""
    losses: dict[str, int]
    """Reason → number of parts of the old file that could not be read."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The spans of time from which events are written."""

    spans: tuple[Span, ...] = ()
    """Spans that apply to all threads."""
    of_threads: Mapping[tuple[str, str], tuple[Span, ...]] = msgspec.field(
        default_factory=dict[tuple[str, str], tuple[Span, ...]]
    )
    """(pid, tid) as text → spans that apply only to this thread."""


def step_span(path: str | Path, number: int, limits: Limits | None = None) -> Span:
    """Return the start and end of "ProfilerStep#number" on the thread that marks the step, by a search in the file's
    text.

    Raises TraceError if no thread marks it.
    """
    name = f'"ProfilerStep#{number}"'.encode()
    with Source(path, limits or Limits()) as source:
        block, tail = bytearray(1 << 20), b""
        while size := source.readinto(memoryview(block)):
            text = tail + bytes(memoryview(block)[:size])
            at = text.find(name)
            while at >= 0:
                around = text[max(0, at - 4096) : at + 65536]
                span = _span_of(around, name)
                if span is not None:
                    return span
                if at + 65536 > len(text):
                    break
                at = text.find(name, at + 1)
            tail = text[-131072:]
    raise TraceError(
        f"{path} marks no ProfilerStep#{number}",
        hint="`opreplay inspect` lists the steps. Or select a time range with --between.",
    )


class _Mark(Struct):
    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None


_MARK = msgspec.json.Decoder(_Mark, float_hook=fields.exact_decimal)


def _span_of(text: bytes, name: bytes) -> Span | None:
    """Return the span of the host event with this name, whose text begins before the name; None if it is unreadable."""
    at = text.find(name)
    start = at
    for _ in range(8):
        start = text.rfind(b"{", 0, start)
        if start < 0:
            return None
        end = at
        for _ in range(64):
            end = text.find(b"}", end + 1)
            if end < 0:
                return None
            try:
                mark = _MARK.decode(text[start : end + 1])
            except NOT_JSON:
                continue
            low, length = to_ns([mark.ts, mark.dur]).tolist()
            host = mark.cat in ("user_annotation", "cpu_op", "Operator")
            return (low, low + length) if host and INVALID not in (low, length) else None
    return None


def first_time_ns(path: str | Path, limits: Limits | None = None) -> int:
    """Return the earliest "ts" above 0 in ns, rounded down to a microsecond. Raises TraceError if there is none."""
    limits = limits or Limits()
    earliest = _Earliest(limits)
    with Source(path, limits) as source:
        _scanner(source, earliest).run()
    if earliest.ns is None:
        raise TraceError(f"{path} has no event with a time", hint="Use a trace of torch.profiler.")
    return earliest.ns // 1000 * 1000


_HALF = re.compile(rb'"ph"\s*:\s*"[BE]"')


def trim(
    path: str | Path,
    output: str | Path,
    wanted: Wanted,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
    force: bool = False,
) -> Trimmed:
    """Write the wanted events of `path`, with all metadata, to `output`. If its name ends with .gz, it is compressed
    with gzip.

    An event is written if it starts in a wanted span. Device work and its flow events are also written if a written
    call launched them. Raises TraceError if `path` cannot be read, if it has begin and end events (cutting would split
    their pairs), and if no event is written. If writing fails, the output is removed.
    """
    target = Path(output)
    limits = limits or Limits()
    if Path(path).is_file():
        with Source(path, limits) as source:
            if _HALF.search(source.peek(OPENING_BYTES)):
                raise TraceError(
                    f"{path} has begin and end events (phases B and E), which cutting would separate",
                    hint="`run`, `plan` and `timeline` read the whole file.",
                )
    with (
        Source(path, limits) as source,
        open(target, "wb" if force else "xb") as raw,
        SpooledTemporaryFile(SPOOL_BYTES) as spool,
    ):
        stream: Any = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL, mtime=0) if _zipped(target) else raw
        picker = _Picker(limits, wanted, stream, spool)
        scanner = _scanner(source, picker, progress)
        picker.layout = lambda: scanner.out.layout
        try:
            scanned = scanner.run()
            picker.finish(scanned.keys, scanned.layout)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        if stream is not raw:
            stream.close()
    if not picker.timed:
        target.unlink(missing_ok=True)
        raise TraceError("the kept part contains no event", hint="`opreplay inspect` lists the steps.")
    return Trimmed(
        events=picker.written,
        of_events=picker.events,
        device_events=picker.device_events,
        missing_device_work=len(picker.launched - picker.arrived),
        losses=dict(scanned.tally.losses),
    )


def _scanner(source: Source, collector: Collector, progress: Progress | None = None) -> Scanner:
    return Scanner(source, progress=progress, timing=(_PlaceDecoder(collector.tracks), collector))


def _zipped(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


SKIPPED, KERNEL, LAUNCH, ARROW, METADATA, ARROW_HEAD = 0, 2, 3, 4, 64, 68
"""Roles of events that decide how they are copied, numbered as in the compiled part (native/record.h)."""
_KINDS: dict[str, type[Any]] = {
    **dict.fromkeys(fields.KERNEL_TAGS, fields.Kernel),
    **dict.fromkeys(fields.LAUNCH_TAGS, fields.Launch),
    **dict.fromkeys((*fields.ARROW_TAGS, "async_npu", "HostToDevice"), fields.Arrow),
}
_ROLES = {fields.Kernel: KERNEL, fields.Launch: LAUNCH, fields.Arrow: ARROW}


class _EventFields(Struct, gc=False, frozen=True):
    """The fields that decide whether an event is written."""

    ph: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    args: Raw = fields.NONE


class _Ids(Struct, gc=False, frozen=True):
    correlation: Any = None
    connection_id: Any = None


_EVENT_FIELDS = msgspec.json.Decoder(list[_EventFields])
_EXACT = msgspec.json.Decoder(list[_EventFields], float_hook=fields.exact_decimal)


class _Block(Struct, frozen=True):
    """Events of a block: their positions in the text, and the fields that decide whether they are written."""

    text: bytes | memoryview
    columns: Array
    """One row each for track, start (ns), role, id, first byte and last byte; one column per event."""

    def texts(self, rows: Array) -> list[bytes | memoryview]:
        """Return the original texts of some events."""
        return [self.text[start:stop] for start, stop in zip(*self.columns[4:, rows].tolist(), strict=True)]


class _PlaceDecoder(EventDecoder):
    """Checks that a block is JSON and finds its events, by the compiled scanner or one by one."""

    def __init__(self, tracks: Tracks) -> None:
        super().__init__()
        self._tracks = tracks
        self._compiled = CompiledPlaces(_KINDS, tracks)

    def block(self, text: bytes) -> list[Any] | None:
        return self.fast(memoryview(text))

    def fast(self, text: memoryview) -> list[Any] | None:
        columns = self._compiled.read(text, exact=self.exact)
        if columns is not None:
            return [_Block(text, columns)]
        try:
            raws = _RAW_LIST.decode(text)
            events = self._event_fields(text, raws)
        except NOT_JSON:
            return None
        roles, ids = zip(*map(_role_and_id, events), strict=True) if events else ((), ())
        starts = to_ns([INVALID if event.ts is None else event.ts for event in events])
        stops = np.cumsum([0, *(len(bytes(raw)) for raw in raws)])
        columns = np.array([self._tracks.of(events), starts, roles, to_ids(list(ids)), stops[:-1], stops[1:]], np.int64)
        return [_Block(b"".join(map(bytes, raws)), columns)]

    def _event_fields(self, text: memoryview, raws: Sequence[Raw]) -> list[_EventFields]:
        try:
            events = (_EXACT if self.exact else _EVENT_FIELDS).decode(text)
        except msgspec.ValidationError:  # entries that are no events
            events = [_event_fields(raw, exact=self.exact) for raw in raws]
        if not self.exact and any(type(event.ts) is float and abs(event.ts) >= EXACT_LIMIT_US for event in events):
            self.exact = True
            return self._event_fields(text, raws)
        return events


def _event_fields(raw: Raw, *, exact: bool) -> _EventFields:
    """Return the fields that decide whether an event is written. If the entry is not an event, they have no values."""
    try:
        return (_EXACT if exact else _EVENT_FIELDS).decode(b"[%b]" % bytes(raw))[0]
    except NOT_JSON:
        return _EventFields()


def _role_and_id(event: _EventFields) -> tuple[int, Any]:
    """Return the role of an event, and the id that a launch shares with its device work."""
    if event.ph == "M":
        return METADATA, None
    role = SKIPPED
    if isinstance(event.cat, str):
        role = _ROLES.get(_KINDS.get(event.cat, fields.Skipped), SKIPPED)
    elif event.cat is None and event.ph == "X" and b'"Task Type"' in bytes(event.args):
        role = KERNEL
    if role == ARROW:
        return (ARROW if event.ph == "s" else ARROW_HEAD), event.id
    if role == SKIPPED:
        return SKIPPED, None
    ids = decoded_args(event.args, _Ids)
    return role, ids.connection_id if ids.correlation is None else ids.correlation


class _Earliest(Collector):
    """Finds the earliest time in a file; times of 0 and below are ignored."""

    ns: int | None = None

    def add(self, events: list[Any], groups: dict[type[Struct], list[Any]]) -> None:
        for block in events:
            self.by_category["copied"] += block.columns.shape[1]
            self.count_events(block.columns.shape[1])
            starts = block.columns[1]
            after = starts[starts > 0]
            if len(after) and (self.ns is None or after.min() < self.ns):
                self.ns = int(after.min())


class _Picker(Collector):
    """Decides which events of a block are written, and writes them."""

    def __init__(self, limits: Limits, wanted: Wanted, stream: IO[bytes], spool: IO[bytes]) -> None:
        """Create a picker.

        `spool` holds device work that may exceed memory and whose launch may come later in the file.
        """
        super().__init__(limits)
        self.stream, self.spool = stream, spool
        self.layout: Callable[[], str] = lambda: "object"
        """Returns the layout of the file, which is known after its first event is read."""
        spans = [*wanted.spans, *chain.from_iterable(wanted.of_threads.values())]
        self._spans, self._of_all = _in_order(spans), _in_order(wanted.spans)
        self._of_tracks = {
            self.tracks.of_texts(*thread): _in_order(spans) for thread, spans in wanted.of_threads.items()
        }
        self.low, self.high = min(low for low, _ in spans), max(high for _, high in spans)
        self.until = self.high + max(LAG_SPANS * (self.high - self.low), SHORTEST_LAG_NS)
        self.launched: set[int] = set()
        self.arrived: set[int] = set()
        """Ids of the device work written so far."""
        self.written = self.timed = self.device_events = 0

    def add(self, events: list[Any], groups: dict[type[Struct], list[Any]]) -> None:
        for block in events:
            self.by_category["copied"] += block.columns.shape[1]
            self.count_events(block.columns.shape[1])
            self._take(block)

    def _take(self, block: _Block) -> None:
        tracks, starts, roles, ids = block.columns[:4]
        taken = roles == METADATA
        near = (starts >= self.low) & (starts < self.until) & ~taken
        if near.any():
            inside = self._inside(tracks, starts)
            inside = inside[near[inside]]
            taken[inside] = True
            launches = inside[(ids[inside] != -1) & ((roles[inside] == LAUNCH) | (roles[inside] == ARROW))][::-1]
            first = dict(zip(ids[launches].tolist(), launches.tolist(), strict=True))
            late = np.flatnonzero(near & ~taken & (ids != -1) & (roles != SKIPPED) & (roles != LAUNCH))
            arrived = self._launched_before(ids[late].tolist(), late.tolist(), first)
            self.launched.update(first)
            taken[late[arrived]] = True
            self.timed += len(inside) + int(arrived.sum())
            self._wait(block, late[~arrived])
        rows = np.flatnonzero(taken)
        self._write(block.texts(rows), roles[rows], ids[rows])

    def _launched_before(self, ids: list[int], rows: list[int], first: Mapping[int, int]) -> Array:
        """Return a mask of the device work whose launch comes earlier in the file.

        `first` gives the row of each launch in the same block, by id.
        """
        if self.launched.isdisjoint(ids) and first.keys().isdisjoint(ids):
            return np.zeros(len(ids), np.bool_)
        return np.array(
            [key in self.launched or first.get(key, row) < row for key, row in zip(ids, rows, strict=True)], np.bool_
        )

    def _inside(self, tracks: Array, starts: Array) -> Array:
        """Return the rows of events that start in a span that applies to their thread or to all threads."""
        rows = np.flatnonzero(_within(self._spans, starts))
        if not self._of_tracks or not len(rows):
            return rows
        inside = _within(self._of_all, starts[rows])
        for track in self._of_tracks.keys() & set(tracks[rows].tolist()):
            here = tracks[rows] == track
            inside[here] |= _within(self._of_tracks[track], starts[rows[here]])
        return rows[inside]

    def _wait(self, block: _Block, rows: Array) -> None:
        """Save device work and its ids in the spool, in case its launch follows later in the file."""
        if len(rows):
            _, _, roles, ids, first, last = block.columns[:, rows]
            text = b"".join(block.texts(rows))
            self.spool.write(np.concatenate([[len(rows), len(text)], roles, ids, last - first]).tobytes())
            self.spool.write(text)

    def _write(self, texts: Sequence[bytes | memoryview], roles: Array, ids: Array) -> None:
        if not texts:
            return
        start = (b"[\n" if self.layout() == "list" else b'{"traceEvents": [\n') if not self.written else b",\n"
        self.stream.write(start + b",\n".join(texts))
        self.written += len(texts)
        on_device = roles == KERNEL
        self.device_events += int(on_device.sum())
        self.arrived.update(ids[on_device].tolist())

    def finish(self, keys: Mapping[str, bytes], layout: str) -> None:
        """Write the device work whose launch came later in the file, and everything after the events."""
        self.spool.seek(0)
        while sizes := self.spool.read(16):
            rows, size = np.frombuffer(sizes, np.int64).tolist()
            roles, ids, lengths = np.frombuffer(self.spool.read(24 * rows), np.int64).reshape(3, -1)
            if self.launched.isdisjoint(ids.tolist()):
                self.spool.seek(size, os.SEEK_CUR)
                continue
            ends = np.cumsum(lengths)
            block = _Block(self.spool.read(size), np.array([ids, ids, roles, ids, ends - lengths, ends]))
            late = np.flatnonzero([key in self.launched for key in ids.tolist()])
            self._write(block.texts(late), roles[late], ids[late])
            self.timed += len(late)
        if layout == "list":
            self.stream.write(b"\n]\n")
            return
        rest = b"".join(b",\n%s: %s" % (json.dumps(name).encode(), value) for name, value in keys.items())
        self.stream.write(b"\n]" + rest + b"\n}\n")


def _in_order(spans: Sequence[Span]) -> tuple[Array, Array]:
    """Return (sorted starts of the spans, for each start the latest end of all spans up to it)."""
    columns = np.array(sorted(spans), np.int64).reshape(-1, 2)
    return columns[:, 0], np.maximum.accumulate(columns[:, 1])


def _within(spans: tuple[Array, Array], times: Array) -> Array:
    """Return a mask of the times that lie in at least one span; `spans` comes from `_in_order`."""
    starts, ends = spans
    if not len(starts):
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(starts, times, side="right") - 1
    return (at >= 0) & (times < ends[at])


def op_spans(path: str | Path, patterns: Sequence[str], limits: Limits | None = None) -> dict[Any, tuple[Span, ...]]:
    """Return, by (pid, tid), the spans of ops that match a shell pattern. Raises TraceError if no op matches."""
    from opreplay.traces.reader import read_trace

    trace = read_trace(path, limits=limits or Limits())
    hit = np.array([any(fnmatchcase(s.name, p) for p in patterns) for s in trace.signatures] or [False])
    rows = np.flatnonzero(hit[trace.ops.signature]) if len(trace.ops) else np.empty(0, np.int64)
    if not len(rows):
        names = ", ".join(sorted({s.name for s in trace.signatures})[:8])
        raise TraceError(f"no op of {path} matches {', '.join(patterns)}", hint=f"Its ops include: {names}.")
    out: dict[Any, tuple[Span, ...]] = {}
    for track in distinct(trace.ops.track[rows]).tolist():
        here = rows[trace.ops.track[rows] == track]
        here = here[np.argsort(trace.ops.start_ns[here], kind="stable")]
        starts = trace.ops.start_ns[here]
        ends = starts + np.maximum(trace.ops.dur_ns[here], 1)
        latest = np.maximum.accumulate(ends)
        first = np.append(True, starts[1:] >= latest[:-1])
        last = np.append(first[1:], True)
        out[trace.tracks[track]] = tuple(zip(starts[first].tolist(), latest[last].tolist(), strict=True))
    return out
