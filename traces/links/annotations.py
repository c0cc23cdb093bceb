# pyright: strict
"""Parse iteration annotations, which describe an inference server's batch, and define the table of all annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast, overload

import msgspec
import numpy as np

from opreplay.traces.arrays import Array
from opreplay.traces.model import Annotation

Phase = Literal["prefill", "decode", "mixed"]
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")


class BatchContext(msgspec.Struct, frozen=True, kw_only=True):
    """The batch of one iteration, by phase; a value that was not recorded is None.

    In the names of sums, "q" is the number of new tokens of a sequence and "k" the number of tokens that it attends to.
    """

    prefill_sequences: int
    prefill_tokens: int | None = None
    decode_sequences: int
    decode_tokens: int | None = None
    prefill_k: int | None = None
    """Sum of the context lengths of the prefill sequences."""
    prefill_qq: int | None = None
    """Sum of q² over the prefill sequences; distinguishes one long sequence from many short ones."""
    prefill_qk: int | None = None
    decode_k: int | None = None
    decode_qq: int | None = None
    decode_qk: int | None = None
    scheduled_tokens: int | None = None

    @property
    def prefill_seen(self) -> int | None:
        """Return `prefill_k`. If it is missing, estimate it from Σ q·k, provided that Σ q² is unknown."""
        if self.prefill_k is not None or self.prefill_qk is None or self.prefill_qq is not None:
            return self.prefill_k
        return self.prefill_qk * self.prefill_sequences // max(1, self.prefill_tokens or 1)

    @property
    def decode_seen(self) -> int | None:
        """Return `decode_k`. If it is missing, estimate it from Σ q·k, provided that Σ q² is unknown."""
        if self.decode_k is not None or self.decode_qk is None or self.decode_qq is not None:
            return self.decode_k
        return self.decode_qk * self.decode_sequences // max(1, self.decode_tokens or 1)

    @property
    def phase(self) -> Phase | None:
        """Return the phase of the batch; None for an empty one."""
        if self.prefill_sequences and self.decode_sequences:
            return "mixed"
        return "prefill" if self.prefill_sequences else "decode" if self.decode_sequences else None


_N = r"([0-9]{1,18})"
_SUMS = rf"\(sq{_N}sk{_N}sqsq{_N}sqsk{_N}\)"
_FULL = re.compile(rf"execute_{_N}_context_{_N}{_SUMS}_generation_{_N}{_SUMS}\Z")
_PART = rf"{_N}\({_N}(?:_{_N})?\)"
_SHORT = re.compile(rf"execute_(?:{_N}_)?context_{_PART}_generation_{_PART}\Z")
_NEW = re.compile(rf"execute_new_{_N}_cached_{_N}\Z")
_KEYED = re.compile(r"(?:step\[(DECODE|EXTEND|PREFILL|IDLE|MIXED)[ ,]|(prefill|decode|mixed)\[)([^\[\]]*)\]\Z")
"""Matches annotations with key=number pairs: SGLang's "step[MIXED bs=7 c=2 g=5 c_sq=18 ...]" and ATOM's "prefill[bs=4
...]".

SGLang gives separate sums for context sequences (c_) and generating sequences (g_).
"""
_KEY = re.compile(rf"([a-z][a-z0-9_]{{0,30}})={_N}\Z")
_NEAR_MISS = re.compile(
    r"(?:execute_(?:\d|context|generation|new|diffusion)|step\[|(?:prefill|decode|mixed)\[bs|capture_\d)"
)
_CAPTURE = re.compile(rf"capture_{_N}_FULL\Z")
_STEP = re.compile(r"ProfilerStep#([0-9]+)\Z")


def batch_context(name: str) -> BatchContext | None:
    """Return the batch that an annotation describes, or None if it describes none.

    Recognised are vLLM's `execute_*`, SGLang's `step[...]`, ATOM's `prefill[...]` and vLLM's `capture_32_FULL`. The
    last one marks a graph that includes attention and was captured for 32 sequences that decode one token each.
    """
    if len(name) > 400:
        return None
    return next((rule(match) for pattern, rule in _BATCHES if (match := pattern.match(name))), None)


def _of_full(match: re.Match[str]) -> BatchContext:
    return _of_sums(*(int(group) for group in match.groups()))


def _of_sums(total: int | None, *sums: int | None) -> BatchContext:
    """Return the batch from (sequences, tokens, Σ k, Σ q², Σ q·k) of prefill, then the same five numbers of decode."""
    phases = (f"{phase}_{what}" for phase in ("prefill", "decode") for what in ("sequences", "tokens", "k", "qq", "qk"))
    return BatchContext(scheduled_tokens=total, **dict(zip(phases, sums, strict=True)))  # pyright: ignore[reportArgumentType]


def _of_short(match: re.Match[str]) -> BatchContext:
    total, pn, pq, pp, dn, dq, dp = (None if group is None else int(group) for group in match.groups())
    pn, dn = pn or 0, dn or 0
    return _of_sums(total, pn, pq, *_products(pn, pq or 0, pp), dn, dq, *_products(dn, dq or 0, dp))


def _of_new(match: re.Match[str]) -> BatchContext:
    return BatchContext(prefill_sequences=int(match[1]), decode_sequences=int(match[2]))


def _of_capture(match: re.Match[str]) -> BatchContext:
    size = int(match[1])
    return BatchContext(prefill_sequences=0, prefill_tokens=0, decode_sequences=size, decode_tokens=size)


def _of_keys(match: re.Match[str]) -> BatchContext | None:
    """Return the batch that "key=number" pairs describe.

    Return None if the pairs contradict each other or do not say how many sequences each phase has.
    """
    pairs = [_KEY.match(text) for text in re.split(r"[ ,]+", match[3].strip())]
    keys = {pair[1]: int(pair[2]) for pair in pairs if pair is not None}
    if len(keys) < len(pairs) or "bs" not in keys:
        return None
    kind, size, tokens = (match[1] or match[2]).upper(), keys["bs"], keys.get("toks")
    if kind == "DECODE":
        prefill, decode = 0, keys.get("g", size)
    elif kind == "MIXED":
        prefill = keys.get("c", size - keys["g"] if "g" in keys else -1)
        decode = keys.get("g", size - prefill)
    else:
        prefill, decode = keys.get("c", size), 0
    if prefill < 0 or decode < 0 or prefill + decode != size:
        return None
    new, generated = keys.get("c_sq"), keys.get("g_sq")
    if generated is None and decode:
        generated = tokens - (new or 0) if tokens and (new is not None or not prefill) else decode
    if new is None and prefill and tokens is not None:
        new = tokens - (generated or 0)
    sums = {
        f"{phase}_{name}": keys.get(f"{letter}_{key}")
        for phase, letter in (("prefill", "c"), ("decode", "g"))
        for name, key in (("k", "sk"), ("qq", "sqsq"), ("qk", "sqsk"))
    }
    return BatchContext(
        prefill_sequences=prefill, prefill_tokens=new, decode_sequences=decode, decode_tokens=generated, **sums
    )


_BATCHES = (
    (_FULL, _of_full),
    (_SHORT, _of_short),
    (_NEW, _of_new),
    (_CAPTURE, _of_capture),
    (_KEYED, _of_keys),
)
"""(pattern for annotations, function that returns the batch of an annotation that matches the pattern)."""


def is_unread(name: str) -> bool:
    """Check whether an annotation looks like an inference server's iteration but cannot be parsed as a batch."""
    return _NEAR_MISS.match(name) is not None and batch_context(name) is None


class _Products(NamedTuple):
    """Three sums over a phase's sequences: Σ k, Σ q² and Σ q·k. They are derived from the second number of
    "N(tokens_number)"; a sum that this number does not determine is None.
    """

    k: int | None = None
    qq: int | None = None
    qk: int | None = None


def _products(sequences: int, tokens: int, said: int | None) -> _Products:
    """Interpret `said` in "N(tokens_said)" as a sum over N sequences: of q², or of q·k (q new tokens, k tokens attended
    to).

    `said` is never a number of tokens: execute_context_1(888_788544) is one sequence of 888 new tokens, and 888² =
    788,544. A value between the smallest and the largest possible Σ q² counts as both sums, because they are equal
    without cached tokens. A larger value is Σ q·k. It determines Σ k if there is one sequence or if each sequence has
    one new token. A smaller value is neither sum and is ignored.
    """
    if said is None or not sequences or tokens < sequences or said * sequences < tokens * tokens:
        return _Products()
    max_squares = (tokens - sequences + 1) ** 2 + sequences - 1
    if said <= max_squares:
        return _Products(qq=said, qk=said)
    if sequences not in (1, tokens):
        return _Products(qk=said)
    return _Products(k=said * sequences // tokens, qq=tokens**2 // sequences, qk=said)


def step_number(name: str) -> int | None:
    """Return N of torch.profiler's "ProfilerStep#N"; None for other names."""
    match = _STEP.match(name[:40])
    return int(match[1]) if match else None


class AnnotationTable(Sequence[Annotation]):
    """Annotations in file order, created from columns on demand, because a long trace has hundreds of thousands."""

    def __init__(self, names: tuple[str, ...], name: Any, start: Any, dur: Any, track: Any) -> None:
        self.names = names
        """Distinct annotation names."""
        self.name: Array = name
        self.start_ns: Array = start
        self.dur_ns: Array = dur
        self.track: Array = track

    @classmethod
    def of(cls, notes: Sequence[Annotation]) -> AnnotationTable:
        """Convert annotations to a table; a table is returned unchanged."""
        if isinstance(notes, AnnotationTable):
            return notes
        numbers: dict[str, int] = {}
        rows = [(numbers.setdefault(note.name, len(numbers)), note.start_ns, note.dur_ns, note.track) for note in notes]
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        return cls(tuple(numbers), *columns)

    def __len__(self) -> int:
        return len(self.name)

    @overload
    def __getitem__(self, at: int) -> Annotation: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Annotation, ...]: ...
    def __getitem__(self, at: int | slice) -> Annotation | tuple[Annotation, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        return Annotation(
            name=self.names[int(self.name[at])],
            start_ns=int(self.start_ns[at]),
            dur_ns=int(self.dur_ns[at]),
            track=int(self.track[at]),
        )

    def __iter__(self) -> Iterator[Annotation]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return False
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(a == b for a, b in zip(self, others, strict=True))

    __hash__ = None  # type: ignore[assignment]


def unread_annotations(notes: Sequence[Annotation]) -> dict[str, int]:
    """Count, by name, the annotations that look like an inference server's iterations but cannot be parsed."""
    table = AnnotationTable.of(notes)
    counts = np.bincount(table.name.astype(np.int64), minlength=len(table.names)).tolist()
    return {name: count for name, count in zip(table.names, counts, strict=False) if count and is_unread(name)}
