# pyright: strict
"""A smaller trace out of a large one, as a stream: events that start in given spans, and the device work they launch.

Events are copied as they are written, byte for byte, so that viewers of the large file open the small one.
"""

from __future__ import annotations

import gzip
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct

from opreplay.traces.errors import TraceError
from opreplay.traces.limits import Limits
from opreplay.traces.reading import fields
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.decoding import NOT_JSON, EventDecoder
from opreplay.traces.reading.scan import Scanner
from opreplay.traces.reading.source import Source

LAG_SPANS = 3.0
"""Device work launched in a span is looked for until this many times its length after its end."""
LEAST_LAG_US = 100_000.0
_TIMES = re.compile(rb'"ts"\s*:\s*"?(-?[0-9]+)')
_RAW_LIST = msgspec.json.Decoder(list[Raw])
_LEVEL = 6
Progress = Callable[[int, "int | None"], None]
Span = tuple[float, float]
"""From, until: µs as in the file's "ts"; the end is not part of it."""


class Trimmed(Struct, frozen=True, kw_only=True):
    """What was written."""

    events: int
    """Entries of traceEvents in the new file, metadata included."""
    of_events: int
    """Those of the old one."""
    device_events: int
    """Kernels, copies and fills among them."""
    missing_device_work: int
    """Launches whose device work was not found, or that launch none."""
    losses: dict[str, int]
    """What of the old file could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events are taken."""

    spans: tuple[Span, ...] = ()
    """Of all threads."""
    of_threads: Mapping[tuple[str, str], tuple[Span, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[Span, ...]]
    )
    """Of one thread each, (pid, tid) as text."""

    def all_spans(self) -> list[Span]:
        """Those of all threads and of each one, by their start."""
        return sorted([*self.spans, *(span for spans in self.of_threads.values() for span in spans)])


def step_span(path: str | Path, number: int, limits: Limits | None = None) -> Span:
    """Where "ProfilerStep#number" starts and ends, on the thread that marks it, by a search of the text.

    Raises TraceError for a file that does not mark it.
    """
    name = f'"ProfilerStep#{number}"'.encode()
    with Source(path, limits or Limits()) as source:
        block, kept = bytearray(1 << 20), b""
        while size := source.readinto(memoryview(block)):
            text = kept + bytes(memoryview(block)[:size])
            at = text.find(name)
            while at >= 0:
                around = text[max(0, at - 4096) : at + 65536]
                found = _span_of(around, name)
                if found is not None:
                    return found
                if at + 65536 > len(text):
                    break
                at = text.find(name, at + 1)
            kept = text[-131072:]
    raise TraceError(
        f"{path} marks no ProfilerStep#{number}", hint="`opreplay inspect` lists the steps; --between takes times."
    )


class _Mark(Struct):
    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None


def _span_of(text: bytes, name: bytes) -> Span | None:
    """The span of a host's mark whose text begins somewhere before its name."""
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
                mark = msgspec.json.decode(text[start : end + 1], type=_Mark)
            except NOT_JSON:
                continue
            low, length = _us(mark.ts), _us(mark.dur)
            host = mark.cat in ("user_annotation", "cpu_op", "Operator")
            return (low, low + length) if host and low is not None and length is not None else None
    return None


def _us(value: Any) -> float | None:
    """A recorded time; None for what is none."""
    try:
        number = float(Decimal(value)) if isinstance(value, str) else float(value)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def first_time_us(path: str | Path, limits: Limits | None = None) -> float:
    """The earliest "ts" above 0 of a file, by a search of the text. Raises TraceError where there is none."""
    least = math.inf
    with Source(path, limits or Limits()) as source:
        block, kept = bytearray(1 << 20), b""
        while size := source.readinto(memoryview(block)):
            text = kept + bytes(memoryview(block)[:size])
            times = _times_in(text)
            times = times[times > 0]
            least = min(least, float(times.min())) if len(times) else least
            kept = text[-64:]
    if not math.isfinite(least):
        raise TraceError(f"{path} has no event with a time", hint="Is it a profiler trace?")
    return least


def _times_in(text: bytes | memoryview) -> Any:
    """All times in a text, whole µs."""
    found = _TIMES.findall(text)
    return np.array(found, "S20").astype(np.float64) if found else np.empty(0)


def trim(
    path: str | Path,
    output: str | Path,
    wanted: Wanted,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
    force: bool = False,
) -> Trimmed:
    """Write the events of `path` that are wanted to `output` (gzip where its name ends with .gz), with all metadata.

    An event is taken when it starts in a span; device work and its arrows also when a taken call launched it.
    Raises TraceError as reading does, and when nothing is taken; the output is then removed.
    """
    target = Path(output)
    limits = limits or Limits()
    with Source(path, limits) as source, open(target, "wb" if force else "xb") as raw:
        stream: Any = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL, mtime=0) if _zipped(target) else raw
        picker = _Picker(wanted, stream)
        collector = _Copied(limits, picker)
        scanner = Scanner(source, progress=progress, timing=(_CopyDecoder(picker), collector))
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
        raise TraceError("no event lies in what is to be kept", hint="`opreplay inspect` says which steps there are.")
    return Trimmed(
        events=picker.written,
        of_events=collector.events,
        device_events=picker.device_events,
        missing_device_work=len(picker.launched - picker.found),
        losses=dict(scanned.tally.losses),
    )


def _zipped(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


class _Head(Struct, gc=False, frozen=True):
    """What tells whether a block is worth a second look."""

    ts: Any = None
    ph: Any = None


_HEADS = msgspec.json.Decoder(list[_Head])


class _Told(Struct, gc=False, frozen=True):
    """What decides whether an event is taken."""

    ph: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    args: Raw = Raw(b"")


class _Ids(Struct, gc=False, frozen=True):
    correlation: Any = None
    connection_id: Any = None


_TOLD = msgspec.json.Decoder(list[_Told])
_DEVICE = {*fields.KERNEL_TAGS}
_ARROWS = {*fields.ARROW_TAGS, "async_npu", "HostToDevice"}
_CALLS = {*fields.LAUNCH_TAGS}
_WITHOUT_SPAN = {*_DEVICE, *_ARROWS, None}
"""What may be taken although it lies in no span: it was launched in one."""


def _told(raw: Raw) -> _Told:
    """What decides whether one event is taken; nothing of an entry that is no event."""
    try:
        return msgspec.json.decode(raw, type=_Told)
    except NOT_JSON:
        return _Told()


class _Picker:
    """Decides event by event, and writes."""

    def __init__(self, wanted: Wanted, stream: Any) -> None:
        self.wanted, self.stream = wanted, stream
        self.layout: Callable[[], str] = lambda: "object"
        """How the file is laid out, known once its first event is read."""
        spans = wanted.all_spans()
        self.low, self.high = spans[0][0], max(high for _, high in spans)
        self._starts = np.array([low for low, _ in spans])
        self._ends = np.maximum.accumulate(np.array([high for _, high in spans]))
        self._of_threads = {thread: _in_order(spans) for thread, spans in wanted.of_threads.items()}
        self.until = self.high + max(LAG_SPANS * (self.high - self.low), LEAST_LAG_US)
        self.launched: set[str] = set()
        self.found: set[str] = set()
        self.waiting: list[tuple[str, bytes, bool]] = []
        """Device work after the spans, by the id of a launch that may still be read."""
        self.written = self.timed = self.device_events = 0

    def take(self, raws: Sequence[Raw], events: Sequence[_Told]) -> None:
        """Look at the events of a block that may hold wanted ones; `events` says of each what decides that."""
        times = _times_of(events)
        at = np.searchsorted(self._starts, times, side="right") - 1
        worth = (at >= 0) & (times < self._ends[at])  # inside a span of some thread
        worth |= np.array([told.cat in _WITHOUT_SPAN or told.ph == "M" for told in events], np.bool_)
        for place in np.flatnonzero(worth).tolist():
            raw, told, time = raws[place], events[place], float(times[place])
            if told.ph == "M":
                self._write(bytes(raw))
                continue
            if not time >= self.low:
                continue
            inside = self._inside(told, time)
            device = told.cat in _DEVICE or (told.cat is None and told.ph == "X" and b'"Task Type"' in bytes(told.args))
            arrow = told.cat in _ARROWS
            key = self._key(told, arrow) if device or arrow or told.cat in _CALLS else None
            if inside or (key is not None and key in self.launched and (device or arrow) and time < self.until):
                self._write(bytes(raw), device=device, key=key)
                self.timed += 1
                if inside and key is not None and not device and not (arrow and told.ph != "s"):
                    self.launched.add(key)
            elif key is not None and (device or arrow) and time < self.until:
                self.waiting.append((key, bytes(raw), device))

    def _inside(self, told: _Told, time: float) -> bool:
        if self.wanted.spans and any(low <= time < high for low, high in self.wanted.spans):
            return True
        starts, ends = self._of_threads.get((str(told.pid), str(told.tid)), ((), ()))
        at = bisect_right(starts, time) - 1
        return at >= 0 and time < ends[at]

    @staticmethod
    def _key(told: _Told, arrow: bool) -> str | None:
        """What a launch and its device work have in common."""
        if arrow:
            return None if told.id is None else f"{told.id}"
        try:
            ids = msgspec.json.decode(told.args, type=_Ids) if bytes(told.args) else _Ids()
        except NOT_JSON:
            return None
        key = ids.correlation if ids.correlation is not None else ids.connection_id
        return None if key is None else f"{key}"

    def _write(self, text: bytes, *, device: bool = False, key: str | None = None) -> None:
        if not self.written:
            self.stream.write(b"[\n" if self.layout() == "list" else b'{"traceEvents": [\n')
        else:
            self.stream.write(b",\n")
        self.stream.write(text)
        self.written += 1
        self.device_events += device
        if device and key is not None:
            self.found.add(key)

    def finish(self, keys: Mapping[str, bytes], layout: str) -> None:
        """Write device work that waited for its launch, and what comes after the events."""
        for key, text, device in self.waiting:
            if key in self.launched:
                self._write(text, device=device, key=key)
                self.timed += 1
        if layout == "list":
            self.stream.write(b"\n]\n")
            return
        rest = b"".join(b",\n%s: %s" % (msgspec.json.encode(name), value) for name, value in keys.items())
        self.stream.write(b"\n]" + rest + b"\n}\n")

    def may_hold(self, heads: Sequence[_Head] | Sequence[_Told]) -> bool:
        """Whether a block may hold anything that is wanted."""
        times = _times_of(heads)
        return bool(((times >= self.low) & (times < self.until)).any()) or any(head.ph == "M" for head in heads)


def _in_order(spans: Sequence[Span]) -> tuple[Sequence[float], Sequence[float]]:
    """Starts and ends of the spans of a thread, which do not overlap."""
    return [low for low, _ in spans], [high for _, high in spans]


def _times_of(events: Sequence[_Head] | Sequence[_Told]) -> npt.NDArray[np.float64]:
    """When events start, µs; NaN for what has no time."""
    try:
        starts = np.array([event.ts for event in events])
        if starts.dtype.kind in "if":
            return starts.astype(np.float64)
    except (ValueError, OverflowError):
        pass
    times = (_us(event.ts) for event in events)
    return np.array([math.nan if time is None else time for time in times])


class _CopyDecoder(EventDecoder):
    """Proves that a block is JSON, and hands what it may hold of interest to the picker when it is kept."""

    def __init__(self, picker: _Picker) -> None:
        super().__init__()
        self.picker = picker
        self._held = False

    def block(self, text: bytes) -> list[Any] | None:
        return self.fast(memoryview(text))

    def fast(self, text: memoryview) -> list[Any] | None:
        try:
            # What holds something is most often followed by what does, and need not be looked at twice.
            heads: list[Any] = (_TOLD if self._held else _HEADS).decode(text)
            self._held, held = self.picker.may_hold(heads), self._held
            if not self._held:
                return [_Piece((), (), len(heads))]
            return [_Piece(_RAW_LIST.decode(text), heads if held else _TOLD.decode(text), len(heads))]
        except msgspec.ValidationError:  # entries that are no events
            raws = _RAW_LIST.decode(text)
            return [_Piece(raws, [_told(raw) for raw in raws], len(raws))]
        except NOT_JSON:
            return None


class _Piece(Struct, frozen=True):
    """Events of a block that may be wanted, and how many it holds."""

    raws: Sequence[Raw]
    told: Sequence[_Told]
    """Of each of them."""
    events: int


class _Copied(Collector):
    """Counts, and writes what is kept of each block."""

    def __init__(self, limits: Limits, picker: _Picker) -> None:
        super().__init__(limits)
        self.picker = picker

    def add(self, events: list[Any], groups: dict[type[Struct], list[Any]]) -> None:
        for piece in events:
            self.by_category["copied"] += piece.events
            self.count_events(piece.events)
            self.picker.take(piece.raws, piece.told)


def op_spans(path: str | Path, patterns: Sequence[str], limits: Limits | None = None) -> dict[Any, tuple[Span, ...]]:
    """When ops whose names match a shell pattern run, by (pid, tid). Raises TraceError where none does."""
    from opreplay.traces.reader import read_trace

    trace = read_trace(path, limits=limits or Limits())
    hit = np.array([any(fnmatchcase(s.name, p) for p in patterns) for s in trace.signatures] or [False])
    rows = np.flatnonzero(hit[trace.ops.signature]) if len(trace.ops) else np.empty(0, np.int64)
    if not len(rows):
        names = ", ".join(sorted({s.name for s in trace.signatures})[:8])
        raise TraceError(f"no op of {path} matches {', '.join(patterns)}", hint=f"It has, for example: {names}.")
    out: dict[Any, tuple[Span, ...]] = {}
    for track in np.unique(trace.ops.track[rows]).tolist():
        here = rows[trace.ops.track[rows] == track]
        here = here[np.argsort(trace.ops.start_ns[here], kind="stable")]
        starts = trace.ops.start_ns[here] / 1e3
        ends = starts + np.maximum(trace.ops.dur_ns[here], 1) / 1e3
        latest = np.maximum.accumulate(ends)
        first = np.append(True, starts[1:] >= latest[:-1])
        last = np.append(first[1:], True)
        out[trace.tracks[track]] = tuple(zip(starts[first].tolist(), latest[last].tolist(), strict=True))
    return out
