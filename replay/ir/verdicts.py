# pyright: strict
"""What calls on meta tensors, and results beside those of the own implementation, say of an op."""

from __future__ import annotations

from typing import Literal

import msgspec

MetaStatus = Literal["ok", "differs", "no meta kernel", "data-dependent", "failed"]
META_WRONG: frozenset[MetaStatus] = frozenset({"differs", "failed"})
"""Verdicts that speak against an op; the others say that it fits, or that meta tensors cannot tell."""


class MetaCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a call on meta tensors said of one op: it computes nothing, and finds out whether and with what sizes."""

    status: MetaStatus
    """"ok": accepted, and no result differs from a recorded one; "data-dependent": sizes depend on contents."""
    detail: str = ""
    results_compared: int = 0
    """Results whose size and dtype the trace holds; 0 where it does not."""

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}" if self.detail else self.status


ValueStatus = Literal["agrees", "differs", "own", "not compared"]
"""Own: what ran is the recorded op's own implementation."""
Against = Literal["torch", "library", "stand-in"]


class ValueCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One op: its results beside those of the recorded op's own implementation on the same arguments."""

    status: ValueStatus
    against: Against | None = None
    """Whose results they were compared with."""
    detail: str = ""
    """What differs, or why there is nothing to compare with."""
    results: int = 0
    """Tensors and numbers compared, arguments that are written to included."""


def not_compared(why: str) -> ValueCheck:
    """The verdict where there is nothing to compare with."""
    return ValueCheck(status="not compared", detail=why)
