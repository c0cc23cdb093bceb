# pyright: strict
"""The complete list of reasons why an op is not replayed, and totals of ops, calls and time for each reason.

This module defines the kinds of reasons and their meaning. The code that finds an obstacle writes the detail.
Independent of torch and file formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from opreplay.traces.errors import InternalError, OpReplayError, internal_error, is_own_fault, lacks_memory

ReasonKind = Literal[
    "collective",
    "triton kernel",
    "label, not an op",
    "metadata missing",
    "layout not recorded",
    "policy",
    "budget",
    "out of time",
    "rank lost",
    "worker lost",
    "library missing",
    "failed",
    "internal error",
]
KINDS: tuple[ReasonKind, ...] = get_args(ReasonKind)

MEANINGS: dict[ReasonKind, str] = {
    "collective": "moves data between processes, so one process cannot replay it; `--ranks N` starts several",
    "triton kernel": "generated code: a trace records neither its source nor its arguments",
    "label, not an op": "the framework or autograd labelled a time range; there is nothing to call",
    "metadata missing": "the trace lacks an argument that the call needs, and it cannot be inferred",
    "layout not recorded": "takes a sparse or opaque tensor, and a trace records neither layout nor element count",
    "policy": "not allowed to run or to be imported; see the page on security",
    "budget": "needs more memory or time, or returns more tensors, than allowed",
    "out of time": "the run's time was used up; continue the run to try it again",
    "rank lost": "a process of its group died or was stopped while it ran; continue the run to try it again",
    "worker lost": "another program ended or stopped its process; continue the run to try it again",
    "library missing": "the op's library is not installed, and opreplay has no reference implementation of it",
    "failed": "torch raised an error or crashed when the op was looked up or called",
    "internal error": "a bug in opreplay: please report it",
}
"""Meaning of each kind, as readable text."""

NOT_NEEDED = " is not used: the op can be replayed without it"
"""End of the note about a registration (e.g. an executor) that an op does not need."""

WHILE_IT_RAN = "the run's time was over while it ran"
SHARE_TAKEN = "no result after"
"""Start of the detail in the reason of an op that was stopped because the run's time, or the op's share of that time,
was over.
"""

DETAILED = frozenset(KINDS) - {"collective", "triton kernel", "label, not an op"}
"""Kinds of reasons that need a detail to have a meaning: what is missing, forbidden, too large or broken."""

LOST: frozenset[ReasonKind] = frozenset({"rank lost", "worker lost"})
"""Kinds of reasons that say nothing about the op, because something else ended its processes."""

TRIED: frozenset[ReasonKind] = frozenset({"failed", "internal error"})
"""Kinds of reasons with which an op counts as failed. With all other kinds, it counts as skipped."""


class Reason(msgspec.Struct, frozen=True):
    """Why one op is not replayed: a kind from the closed list, and a detail.

    Raises ValueError for a kind that is not in the list, or if the kind requires a detail and it is missing.
    """

    kind: ReasonKind
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind not in MEANINGS:
            raise ValueError(f"{self.kind!r} is not a reason; use one of {', '.join(KINDS)}")
        if not self.detail and self.kind in DETAILED:
            raise ValueError(f"{self.kind!r} needs a detail")

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind

    @property
    def status(self) -> Literal["skipped", "failed"]:
        """Status of the op: "failed" if it was tried and broke, otherwise "skipped"."""
        return "failed" if self.kind in TRIED else "skipped"


class DetailTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Number of calls and time for one detail of a reason; see `ReasonTotal`."""

    detail: str
    ops: int
    calls: int
    share: float


class ReasonTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Number of calls and time of all ops whose reasons are of one kind."""

    kind: str
    ops: int
    """Number of unique ops."""
    calls: int
    """Number of recorded calls of these ops."""
    share: float
    """Share of the recorded time, from 0 to 1. The total is the same as for the shares of single ops."""
    details: tuple[DetailTotal, ...] = ()
    """Totals for each detail, in order of time, largest first. Ops without a detail are not included."""


NOT_GIVEN = Reason("failed", "no reason given")
"""Reason for an op that was not replayed and whose result contains no reason."""


def total_reasons(entries: Iterable[tuple[str, str, int, float]]) -> tuple[ReasonTotal, ...]:
    """Return totals for each kind of reason, in order of time, largest first.

    `entries` has (kind, detail, calls, share) for each op that has a reason.
    """
    kinds: dict[str, dict[str, list[float]]] = {}
    for kind, detail, calls, share in entries:
        sums = kinds.setdefault(kind, {}).setdefault(detail, [0, 0, 0.0])
        for i, value in enumerate((1, calls, share)):
            sums[i] += value
    totals = [_total(kind, details) for kind, details in kinds.items()]
    return tuple(sorted(totals, key=lambda total: (-total.share, -total.ops, total.kind)))


def _total(kind: str, sums: dict[str, list[float]]) -> ReasonTotal:
    details = [
        DetailTotal(detail=detail, ops=int(ops), calls=int(calls), share=share)
        for detail, (ops, calls, share) in sums.items()
        if detail
    ]
    ops, calls, share = (sum(column) for column in zip(*sums.values(), strict=True))
    return ReasonTotal(
        kind=kind,
        ops=int(ops),
        calls=int(calls),
        share=share,
        details=tuple(sorted(details, key=lambda total: (-total.share, -total.ops, total.detail))),
    )


DETAIL_CHARS = 300
"""Maximum length of a detail. Errors of torch can be pages long, but a reason is one line."""


def reason_for(error: Exception) -> Reason:
    """Return the reason that describes an error.

    Its kind is "budget" if memory ran out, and "internal error" for an error in opreplay's own code. Otherwise it is
    "failed", with the error's type and first line as the detail.
    """
    if isinstance(error, InternalError):
        return Reason("internal error", error.problem)
    if is_own_fault(error):
        return Reason("internal error", internal_error("its replay", error).problem)
    text = str(error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")[:DETAIL_CHARS]
    if lacks_memory(error):
        return Reason("budget", f"memory: {line or 'an allocation failed'} (--set max_op_memory)")
    return Reason("failed", f"{type(error).__name__}: {line}" if line else type(error).__name__)


_REFUSALS = ("RuntimeError", "ValueError", "TypeError", "IndexError", "AssertionError")
"""Types of errors that torch, libraries and user code raise for arguments that do not match each other."""
_LACKS_KERNEL = re.compile(
    r"not implemented for|Could not run '|mixed dtype \(CPU\)|Unsupported dtype|No available kernel|no kernel image"
    r"|not compiled|CUDA|cuda\b|cuDNN|GPU|\bCPU (backend|only)|on (the )?CPU|oneDNN|mkldnn|INTERNAL ASSERT"
)
"""Parts of torch's error messages that mean that a machine or a build has no kernel for valid arguments."""


def refuses_arguments(reason: Reason) -> bool:
    """Check whether a call failed because its arguments do not match each other.

    Such a call would fail on any device. The result is False if the machine lacks a kernel or a library, or if the
    error does not show its cause.
    """
    raised_by = reason.detail.split(":", 1)[0]
    return reason.kind == "failed" and raised_by in _REFUSALS and not _LACKS_KERNEL.search(reason.detail)


IMPOSSIBLE_SHAPE = "a valid shape"
"""Start of the detail in the reason of ops with an impossible tensor. Such a tensor has a negative size, or more
elements than 64 bits can count.
"""


class NotReplayable(OpReplayError):
    """Raised to skip one op; it never ends the run. It carries the reason that is shown in the op's result."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason), hint="`opreplay plan TRACE --explain OP` shows what is known about the op.")
        self.reason = reason


def not_needed(note: str) -> str | None:
    """Return the registration that a note describes as not used, as "name (file.py:line)". None if the note is about
    something else.
    """
    return note.removesuffix(NOT_NEEDED) if note.endswith(NOT_NEEDED) else None
