# pyright: strict
"""Decode closed JSON arrays of events into structs: fast for known categories, tolerant for everything else.

This module decides in which order decoders are tried. Text that is not JSON is left to `salvage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from opreplay.traces.reading import fields
from opreplay.traces.reading.blocks import last_separator
from opreplay.traces.reading.pairs import PHASES

MAX_LEARNED_CATEGORIES = 64
"""Maximum number of unknown categories counted under their own names; all others are counted together as "other"."""
PIECE_BYTES = 16 * 1024
SMALL_PIECE_BYTES = 2 * 1024
"""Size in bytes of the smaller pieces that are tried if the fast decoder refuses a piece of a block."""
MANY_BARE_BLOCKS = 4
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
NO_CATEGORY = "(none)"
OTHER_CATEGORY = "other"
NPU_TASK = "npu task"
"""Category under which torch_npu's device rows are counted; they have no category in the file."""

_HCCL_COLLECTIVES = (b'"hcom_', b'"hccl_', b'"Hccl', b'"Hcom')

_ENDS = (fields.Flow, fields.HostArrow, fields.Memory)
"""Classes of events with phases other than X."""

_RAW_LIST = msgspec.json.Decoder(list[Raw])


class EventDecoder:
    """Decodes the blocks of a file; adapts to unknown categories and to files in which most events lack one."""

    def __init__(self, columns: frozenset[fields.Column] = frozenset()) -> None:
        self.bases = fields.bases(columns)
        self.exact = False
        self.version = 0
        """Number that is increased with every change of `bases`."""
        self.old_spelling = False
        self.losses: Counter[str] = Counter()
        self.pairs = False
        """Whether begin and end events are left unchanged, because the module `pairs` joins them later."""
        self._generic_first = False
        self._streak = 0
        self._bare = 0
        self._learned: list[str] = []
        self.tagged = fields.make_tagged(self.bases)
        self.uncategorised = fields.make_tagged({NO_CATEGORY: fields.Skipped, OTHER_CATEGORY: fields.Skipped})
        self._timed = "activity" in columns
        task = fields.TimedKernel if self._timed else fields.Kernel
        self.task = fields.make_tagged({NPU_TASK: task})[NPU_TASK]
        self._uncategorised_timed: dict[type[Struct], type[Any]] = {
            base: fields.make_tagged({NO_CATEGORY: base})[NO_CATEGORY]
            for base in (fields.Named, fields.WholeCollective, fields.CannCall)
            if self._timed
        }
        self._rebuild()

    def _rebuild(self) -> None:
        self.version += 1
        self._fast, self._any = fields.make_decoders(self.tagged, exact=self.exact)

    def _use(self, tags: Iterable[str], base: type[Struct]) -> None:
        changed = dict.fromkeys(tags, base)
        self.bases.update(changed)
        self.tagged.update(fields.make_tagged(changed))
        self._rebuild()

    def skip_arrows(self) -> None:
        """From now on, only count the flow events that are not needed if kernels have correlation ids."""
        self._use(fields.ARROW_TAGS, fields.Skipped)

    def use_exact_decimals(self) -> None:
        """From now on, decode decimal numbers as Decimal, because times in this file are too large for float64."""
        self.exact = True
        self._rebuild()

    def use_pairs(self) -> None:
        """From now on, leave begin and end events of any category unchanged, because they must be joined in pairs."""
        self.pairs = True

    def use_old_spelling(self) -> None:
        """From now on, read "Input dims" instead of "Input Dims" (torch up to 1.8)."""
        self.old_spelling = True
        self._use(fields.OP_TAGS, fields.OldOp)

    def block(self, text: bytes) -> list[Any] | None:
        """Return the events of a closed array; None if the text is not a JSON array."""
        if not self._generic_first and not self.pairs:
            try:
                return self._fast.decode(text)
            except msgspec.ValidationError:
                return self._mixed_block(text)
            except NOT_JSON:
                return None
        bare = self._bare
        events = self._generic(text)
        if events is not None:
            self._choose(len(events), self._bare - bare)
        return events

    def passed_over(self, events: int, bare: int) -> None:
        """Record that another reader decoded an intact block of this many events, of which `bare` have no category."""
        if bare or self._generic_first:
            self._choose(events, bare)

    def _choose(self, events: int, bare: int) -> None:
        """After a block that the fast decoder could not decode alone, decide whether to try it first from now on.

        It is not tried first if most events of several consecutive blocks have no category, as with torch_npu.
        """
        if self._generic_first:
            self._generic_first = 5 * bare > events
        else:
            self._streak = self._streak + 1 if 2 * bare > events else 0
            self._generic_first = self._streak >= MANY_BARE_BLOCKS

    def fast(self, text: memoryview) -> list[Any] | None:
        """Decode a block into events; None if the method `block` must decode it. The events may refer to `text`, which
        must therefore stay unchanged.
        """
        if self._generic_first or self.pairs:
            return None
        try:
            return self._fast.decode(text)
        except msgspec.ValidationError:
            return self._mixed_block(bytes(text))
        except NOT_JSON:
            return None

    def _mixed_block(self, text: bytes) -> list[Any] | None:
        """Decode a block in which some events have no category or an unknown one."""
        bare = self._bare
        out: list[Any] | None = []
        if not self._mixed(text, 1, len(text) - 1, PIECE_BYTES, out):
            bare = self._bare
            out = self._generic(text)  # cut inside a string, or no JSON at all: the whole block decides
        if out is not None:
            self._choose(len(out), self._bare - bare)
        return out

    def _mixed(self, text: bytes, lo: int, hi: int, size: int, out: list[Any]) -> bool:
        """Decode text[lo:hi] in pieces of about `size` bytes; return False if a piece cannot be decoded. A piece that
        the fast decoder refuses is decoded in smaller pieces.
        """
        while lo < hi:
            cut, following = hi, hi
            if hi - lo > size and (separator := last_separator(text, lo, lo + size)):
                cut, following = separator
            piece = b"".join((b"[", memoryview(text)[lo:cut], b"]"))
            try:
                out += self._fast.decode(piece)
            except msgspec.ValidationError:
                if size > SMALL_PIECE_BYTES and cut - lo > SMALL_PIECE_BYTES:
                    if not self._mixed(text, lo, cut, SMALL_PIECE_BYTES, out):
                        return False
                elif (got := self._generic(piece)) is not None:
                    out += got
                else:
                    return False
            except NOT_JSON:
                return False
            lo = following
        return True

    def _generic(self, text: bytes) -> list[Any] | None:
        try:
            events = self._any.decode(text)
        except msgspec.ValidationError:
            return self._one_by_one(text)
        except NOT_JSON:
            return None
        out = [self._half_or_typed(event) for event in events]
        self._bare += sum(event.cat is None for event in events)
        self._learn()
        return out

    def _one_by_one(self, text: bytes) -> list[Any] | None:
        try:
            raws = _RAW_LIST.decode(text)
        except NOT_JSON:
            return None
        out: list[Any] = []
        for raw in raws:
            try:
                out += [self._half_or_typed(event) for event in self._any.decode(b"[" + bytes(raw) + b"]")]
            except NOT_JSON:
                self.losses["unreadable entry"] += 1
        self._learn()
        return out

    def _uncategorised(self, event: fields.AnyEvent) -> Struct:
        if event.args is not fields.NONE:
            if event.ph == "X" and b'"Task Type"' in bytes(event.args):
                return self._npu_task(event)
            if self._timed and event.cat is None:
                return self._bare_timed(event)
        return self.uncategorised[NO_CATEGORY]()

    def _half_or_typed(self, event: fields.AnyEvent) -> Struct:
        return event if self.pairs and _phase(event) in PHASES else self.typed(event)

    def typed(self, event: fields.AnyEvent) -> Struct:
        """Convert an event to the struct that the fast decoder would have returned for it."""
        cat = event.cat
        if not isinstance(cat, str):
            return self._uncategorised(event)
        cls = self.tagged.get(cat) or self._class_for_unknown(cat)
        if self.bases.get(cat, fields.Skipped) is fields.Skipped:
            return cls()
        values = {name: getattr(event, name) for name in cls.__struct_fields__ if name != "args"}
        if "args" in cls.__struct_fields__:
            values["args"] = decoded_args(event.args, type(cls().args))  # type: ignore[attr-defined]
        return cls(**values)

    def _class_for_unknown(self, cat: str) -> type[Any]:
        """Return the class for a category seen for the first time, or a shared class above the limit."""
        if cat in self._learned or len(self._learned) >= MAX_LEARNED_CATEGORIES:
            return self.uncategorised[OTHER_CATEGORY]
        self._learned.append(cat)
        self.bases[cat] = fields.Skipped
        self.tagged |= fields.make_tagged({cat: fields.Skipped})
        return self.tagged[cat]

    def _learn(self) -> None:
        if self._learned and self._learned[-1] is not self._known_last:
            self._known_last = self._learned[-1]
            self._rebuild()

    _known_last: str | None = None

    def _npu_task(self, event: fields.AnyEvent) -> Struct:
        args = decoded_args(event.args, fields.TaskArgs)
        if str(args.task_type).upper().startswith(fields.NPU_WAITS):
            return self.uncategorised[NO_CATEGORY]()
        more = {"args": fields.TimedKernelArgs(connection=args.connection)} if self._timed else {}
        return self.task(name=event.name, **_span(event), **more)

    def _bare_timed(self, event: fields.AnyEvent) -> Struct:
        """Decode an event that has no category; only two kinds of such events are used.

        They are process names, and events with a connection id: calls into CANN, or whole collectives of a device.
        """
        if event.ph == "M" and bytes(event.name) == b'"process_name"':
            return self._uncategorised_timed[fields.Named](pid=event.pid, args=event.args)
        if event.ph != "X" or b'"connection_id"' not in bytes(event.args):
            return self.uncategorised[NO_CATEGORY]()
        connection, name = decoded_args(event.args, fields.TaskArgs).connection, bytes(event.name)
        if not name.startswith(_HCCL_COLLECTIVES):
            call = self._uncategorised_timed[fields.CannCall]
            return call(name=event.name, args=fields.TimedCallArgs(corr=connection), **_span(event))
        message = decoded_args(event.args, fields.HcclArgs)
        args = fields.TimedKernelArgs(
            connection=connection,
            collective=name.decode("utf-8", "replace").strip('"'),
            elements=message.count,
            dtype=message.dtype,
        )
        return self._uncategorised_timed[fields.WholeCollective](name=event.name, args=args, **_span(event))


def odd_phases(groups: dict[type[Struct], list[Any]]) -> Counter[tuple[str, str]]:
    """Count, by phase and category, the events that are dropped only because they are not complete; ignore metadata."""
    odd: Counter[tuple[str, str]] = Counter()
    for cls, events in groups.items():
        if cls is fields.AnyEvent or "ph" not in cls.__struct_fields__ or issubclass(cls, _ENDS):
            continue
        phases = [event.ph for event in events]
        if phases.count("X") < len(phases):
            category = str(cls.__struct_config__.tag)
            odd.update((ph if isinstance(ph, str) else "", category) for ph in phases if ph not in ("X", "M"))
    return odd


def _phase(event: fields.AnyEvent) -> str:
    return event.ph if isinstance(event.ph, str) else ""


def _span(event: fields.AnyEvent) -> dict[str, Any]:
    return {"ph": "X", "pid": event.pid, "tid": event.tid, "ts": event.ts, "dur": event.dur}


def decoded_args(raw: Raw, kind: type[Any]) -> Any:
    """Decode the arguments of one event; return defaults if they are absent or not an object."""
    try:
        return msgspec.json.decode(raw, type=kind) if bytes(raw) else kind()
    except NOT_JSON:
        return kind()
