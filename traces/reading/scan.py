"""One pass over a file: head, blocks of events, tail. Every cut is confirmed by decoding. Linking is a later step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from opreplay.traces.errors import Malformed
from opreplay.traces.limits import Limits
from opreplay.traces.reading.blocks import Buffer, last_separator
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.decoding import NO_CATEGORY, NOT_JSON, NPU_TASK, OTHER_CATEGORY, EventDecoder, odd_phases
from opreplay.traces.reading.fields import KIND_BASES, AnyEvent, Column
from opreplay.traces.reading.foreign import HINT, foreign_content, python_text
from opreplay.traces.reading.head import Head, count_duplicates, read_head, read_tail
from opreplay.traces.reading.native.blocks import CompiledBlocks
from opreplay.traces.reading.pairs import PHASES, Pairs
from opreplay.traces.reading.salvage import GOES_ON, Tally, salvage
from opreplay.traces.reading.source import Source

BLOCK_BYTES = 1 << 18
"""Bytes of text decoded at a time; larger blocks do not fit into the processor's cache and are slower."""
SNIFF_BYTES = 1 << 20
"""Bytes of events searched for duplicate keys and for features that show the torch version."""
JUNK_EVENTS = 200_000
"""If this many entries were read and none of them is a trace event, the file is rejected."""
NO_EVENTS = {NO_CATEGORY, OTHER_CATEGORY}
KNOWN_CATEGORIES = {*KIND_BASES, NPU_TASK}
PATIENCE_BYTES = 1 << 16
"""Bytes of text after two blocks that are also searched for the rest of an event that does not decode."""
EARLIER_CUTS = 3
"""Number of earlier separators that are tried if a cut proves wrong. Then the block counts as broken."""

FEATURES: dict[str, bytes] = {
    "old categories": b'"Operator"',
    "old dims": b'"Input dims"',
    "event index": b'"Profiler Event Index"',
    "ev idx": b'"Ev Idx"',
    "record function id": b'"Record function id"',
    "concrete inputs": b'"Concrete Inputs"',
    "strides": b'"Input Strides"',
    "task type": b'"Task Type"',
    "hip": b'"hip',
    "cuda": b'"cuda',
    "mtia": b'"mtia_',
}
"""Feature → text whose occurrence in the first events shows that the trace has this feature."""

_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
Progress = Callable[[int, "int | None"], None]


class Scanned(msgspec.Struct):
    """The results of one pass; the collector's tables are not linked yet."""

    collector: Collector
    tally: Tally
    layout: str = "object"
    keys: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    features: set[str] = msgspec.field(default_factory=set[str])
    bytes_read: int = 0
    complete: bool = True
    """Whether every part ended at its required position."""
    pairs_unsorted: bool = False
    """Whether begin and end events had been joined before the file turned out to be unsorted. The file must then be
    read again with `keep_pairs`.
    """


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file's events; the whole file by default."""

    first: bool = True
    """Whether the part starts with the head."""
    last: bool = True
    """Whether the part ends with the tail of the file. Otherwise it ends directly after an event."""
    layout: str = "object"
    """File layout, for a part without the head."""


WHOLE = Part()


class Scanner:
    """Reads one source, or one part of a file's events."""

    def __init__(
        self,
        source: Source,
        *,
        block_bytes: int = BLOCK_BYTES,
        progress: Progress | None = None,
        part: Part = WHOLE,
        columns: frozenset[Column] = frozenset(),
        arrows: bool = True,
        timing: tuple[EventDecoder, Collector] | None = None,
        keep_pairs: bool = False,
    ) -> None:
        """Create a scanner.

        `columns` are the optional columns to keep. `arrows` keeps all flow events, even if the first kernels have
        correlation ids. `keep_pairs` holds all begin and end events in memory and sorts them by time. `timing` is a
        decoder and tables that the caller provides; the compiled part is then not used.
        """
        self.source, self.limits, self.progress = source, source.limits, progress
        self.first, self.last, self.layout = part.first, part.last, part.layout
        self.buffer = Buffer(source, block_bytes)
        self.decoder, collector = timing or (EventDecoder(columns), Collector(source.limits, columns))
        self.tally = Tally()
        self.out = Scanned(collector, self.tally)
        usable = columns <= {"numbers"} and timing is None
        self.compiled = CompiledBlocks(self.decoder, collector, usable=usable)
        self.pairs: Pairs | None = None
        """Joins begin and end events; None until the first one is read."""
        self._keep_pairs = keep_pairs
        self._sniffed = 0
        self._may_skip_arrows = not arrows

    def run(self) -> Scanned:
        """Read to the end. Raises TraceError."""
        out, buffer = self.out, self.buffer
        head = read_head(buffer, self.limits, self.tally) if self.first else Head(self.layout)
        out.layout, out.keys = head.layout, head.keys
        ended, judged = head.empty, False
        while not ended:
            ended = self._block()
            if self._may_skip_arrows and out.collector.arrows_seem_superfluous:
                self._skip_arrows()
            if not judged and out.collector.events > JUNK_EVENTS:
                judged = True
                self.compiled.flush()
                _refuse_what_is_no_trace(
                    self.source, out
                )  # junk that inflates a thousandfold need not be read to its end
        if self.pairs is not None:
            self._finish_pairs(self.pairs)
        if not self.last:
            out.complete = not self.tally.losses["truncated file"]
        elif buffer.eof and not len(buffer) and self.tally.losses["truncated file"]:
            pass
        else:
            self._tail(head)
        # A part of a file may hold one half of a pair.
        out.complete &= self.pairs is None or (self.first and self.last)
        out.bytes_read = self.source.bytes_out
        self.tally.losses.update(self.source.losses)
        self.tally.losses.update(self.decoder.losses)
        self.compiled.flush()
        for table in out.collector.tables.values():
            table.flush()
        return out

    def _skip_arrows(self) -> None:
        self.compiled.flush()
        if self.out.collector.arrows_seem_superfluous:
            self.out.collector.skip_arrows()
            self.decoder.skip_arrows()
            self._may_skip_arrows = False

    def _tail(self, head: Head) -> None:
        tail = read_tail(self.buffer, head.layout, self.limits, self.tally)
        for key in tail.keys() & self.out.keys.keys():
            self.tally.losses[f"duplicate key {key[:60]}"] += 1
        self.out.keys.update(tail)

    def _block(self) -> bool:
        """Decode up to the last separator in the buffer; return True if the array or the file has ended."""
        buffer = self.buffer
        cut = last_separator(buffer.data, buffer.lo, buffer.hi)
        if cut is None or len(buffer) < buffer.block_bytes // 2:
            if buffer.fill(self.limits.event_bytes, "event_bytes", "bytes in one event"):
                if self.progress:
                    self.progress(self.source.progress_bytes, self.source.total)
                cut = last_separator(buffer.data, buffer.lo, buffer.hi)
                if cut is None:
                    return self._array_end()
            elif not self.last:
                return self._last_of_part()
            else:
                return self._array_end() or self._rest_of_file()
        if self._take_in_place(cut[0]):
            buffer.lo = cut[1]
            return False
        tried = 0
        first_cut = cut
        while cut is not None and tried <= EARLIER_CUTS:
            if self._take(buffer.closed(cut[0])):
                buffer.lo = cut[1]
                return False
            if not tried and self._array_end():
                return True
            tried += 1
            cut = last_separator(buffer.data, buffer.lo, cut[0])
        return self._salvage(first_cut[0], first_cut[1])

    def _take_in_place(self, cut: int) -> bool:
        """Add the events up to `cut` without copying the text; return False if this is not possible.

        It is possible if nothing needs repair and the first megabyte of the file has been read.
        """
        if self._sniffed < SNIFF_BYTES or self.pairs is not None:
            return False
        if self.compiled.read(self.buffer.data, self.buffer.lo, cut):
            return True
        view, covered = self.buffer.bracket(cut)
        events = self.decoder.fast(view)
        good = events is not None
        if events is not None:
            groups = Collector.group(events)
            good = (self.decoder.exact or not Collector.wants_exact(groups)) and not odd_phases(groups)
            if good:  # before the brackets go: raw fields refer to the buffer
                self.compiled.flush()
                self.out.collector.add(events, groups)
        self.buffer.unbracket(cut, covered)
        return good

    def _take(self, text: bytes) -> bool:
        """Decode a closed array and keep its events; return False if it is not JSON."""
        if self._sniffed < SNIFF_BYTES:
            self._sniff(text)
        events = self.decoder.block(text)
        if events is None:
            return False
        self._keep(events, lambda: self.decoder.block(text) or [])
        return True

    def _keep(self, events: list[Any], again: Callable[[], list[Any]]) -> None:
        groups = Collector.group(events)
        if not self.decoder.exact and Collector.wants_exact(groups):
            self.decoder.use_exact_decimals()
            events = again()
            groups = Collector.group(events)
        odd = odd_phases(groups)
        if self.pairs is None and any(phase in PHASES for phase, _ in odd):
            self.pairs = Pairs(keep=self._keep_pairs)
            self.decoder.use_pairs()
            events = again()
        if self.pairs is not None:
            events = self._joined(events, self.pairs)
            groups = Collector.group(events)
            odd = odd_phases(groups)
        for (phase, category), count in odd.items():
            self.tally.losses[f"event of phase {phase[:10]!r} ({category})"] += count
        self.compiled.flush()
        self.out.collector.add(events, groups)

    def _joined(self, events: list[Any], pairs: Pairs) -> list[Any]:
        """Return the events of a block, with each pair joined into one event at the position of its second half."""
        out: list[Any] = []
        halves = 0
        for event in events:
            if type(event) is not AnyEvent:
                out.append(event)
                continue
            halves += 1
            if (joined := pairs.take(event)) is not None:
                out.append(self.decoder.typed(joined))
                halves -= 1
        self.out.collector.count_events(halves)
        return out

    def _finish_pairs(self, pairs: Pairs) -> None:
        late = [self.decoder.typed(event) for event in pairs.finish()]
        self.compiled.flush()
        self.out.collector.add(late, Collector.group(late))
        self.out.collector.count_events(-len(late))
        self.tally.losses.update(+pairs.losses)
        self.out.pairs_unsorted = pairs.must_keep

    def _sniff(self, text: bytes) -> None:
        if not self._sniffed and not self.first:
            self._sniffed = SNIFF_BYTES
        self._sniffed += len(text)
        for feature, needle in FEATURES.items():
            if feature not in self.out.features and needle in text:
                self.out.features.add(feature)
                if feature == "old dims":
                    self.decoder.use_old_spelling()
        if self.first:
            count_duplicates(text, self.tally)

    def _array_end(self) -> bool:
        """Check whether the array ends in the buffer, by decoding up to its "]". If so, add its last events."""
        buffer = self.buffer
        text = b"[" + buffer.text(buffer.lo, buffer.hi)
        end = len(text.rstrip())
        try:
            _RAW_LIST.decode(text)
        except msgspec.DecodeError as err:
            _, trailing, rest = str(err).partition("trailing characters (byte ")
            if not trailing:
                return False
            end = text.rfind(b"]", 0, int(rest.split(")")[0]) + 1) + 1
        except NOT_JSON:
            return False
        if GOES_ON.match(text, end) or not self._take(text[:end]):
            return False
        buffer.lo += end - 1
        return True

    def _last_of_part(self) -> bool:
        buffer = self.buffer
        text = buffer.text(buffer.lo, buffer.hi).rstrip().removesuffix(b",")
        if not self._take(b"[" + text + b"]"):
            self.tally.losses["truncated file"] += 1
        buffer.lo = buffer.hi
        return True

    def _rest_of_file(self) -> bool:
        """Process the end of a file whose array is not closed."""
        if len(self.buffer) and self._salvage_finally(self.buffer.hi, self.buffer.hi):
            return True
        self.tally.losses["truncated file"] += 1
        self.buffer.lo = self.buffer.hi
        return True

    def _salvage(self, cut: int, following: int) -> bool:
        """Recover what is possible from a broken block; return True if it contains the end of the array."""
        buffer = self.buffer
        text = buffer.text(buffer.lo, cut)
        got = salvage(text, self.decoder.block, self.tally)
        self._keep(got.events, lambda: salvage(text, self.decoder.block, Tally()).events)
        if got.array_end is not None:
            buffer.lo += got.array_end
            return True
        if got.rest is None:
            buffer.lo = following
            return False
        # The cut may lie in a string: see whether more text completes the event.
        buffer.lo += got.rest
        if got.rest:
            return False
        cut, following = cut - buffer.lo, following - buffer.lo
        patient = len(buffer) < PATIENCE_BYTES + 2 * buffer.block_bytes
        if patient and buffer.fill(self.limits.event_bytes, "event_bytes", "bytes in one event"):
            return False
        if buffer.eof and len(buffer) < PATIENCE_BYTES + 2 * buffer.block_bytes:
            return self._salvage_finally(buffer.hi, buffer.hi)
        return self._salvage_finally(buffer.lo + cut, buffer.lo + following)

    def _salvage_finally(self, cut: int, following: int) -> bool:
        """Recover what is possible from a broken block that no more text can complete, otherwise like `_salvage`."""
        buffer = self.buffer
        text = buffer.text(buffer.lo, cut)
        got = salvage(text, self.decoder.block, self.tally, final=True)
        self._keep(got.events, lambda: salvage(text, self.decoder.block, Tally(), final=True).events)
        if got.array_end is not None:
            buffer.lo += got.array_end
            return True
        if got.rest is not None and cut != buffer.hi:
            self.tally.losses["broken event"] += 1
        buffer.lo = following
        return False


def scan(
    source: Source,
    limits: Limits,
    *,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
    columns: frozenset[Column] = frozenset(),
    arrows: bool = True,
    keep_pairs: bool = False,
) -> Scanned:
    """Read a whole trace. Raises Malformed if nothing in it looks like an event."""
    out = Scanner(
        source, block_bytes=block_bytes, progress=progress, columns=columns, arrows=arrows, keep_pairs=keep_pairs
    ).run()
    _refuse_what_is_no_trace(source, out)
    if not out.collector.events and out.tally.losses and "duplicate key traceEvents" not in out.tally.losses:
        if (found := python_text(source.opening)) is not None:
            raise Malformed(f"{source.path} is {found.what}", hint=found.hint)
        raise Malformed(f"{source.path}: no event can be read ({', '.join(out.tally.losses)})", hint=HINT)
    return out


def _refuse_what_is_no_trace(source: Source, out: Scanned) -> None:
    """Raise Malformed if the file has entries, but none with a category of torch.profiler or of a vendor's profiler."""
    got = out.collector
    if not got.events or got.kernels.rows or got.by_category.keys() & KNOWN_CATEGORIES:
        return
    found = foreign_content(source.opening, source.path, inflated=source.gzip)
    if found is not None:
        raise Malformed(f"{source.path} is {found.what}", hint=found.hint)
    if out.features:
        return
    if got.by_category.keys() <= NO_EVENTS:
        raise Malformed(f"{source.path}: none of its {got.events} entries is a trace event", hint=HINT)
    named = [repr(name[:30]) for name, _ in got.by_category.most_common(4) if name not in NO_EVENTS]
    raise Malformed(
        f"{source.path}: none of its {got.events} events has a category of torch.profiler; it has {', '.join(named)}",
        hint=HINT,
    )
