# pyright: strict
"""Verdicts about an op: from calls on meta tensors, and from comparing results with the op's own implementation."""

from __future__ import annotations

from typing import Literal

import msgspec

MetaStatus = Literal["ok", "differs", "no meta kernel", "data-dependent", "failed"]
META_WRONG: frozenset[MetaStatus] = frozenset({"differs", "failed"})
"""Verdicts that speak against an op; the others say that it fits, or that meta tensors cannot tell."""


class MetaCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of calling one op on meta tensors: nothing is computed; it shows whether the op accepts the arguments."""

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
    """Comparison of one op's results with the recorded op's own implementation on the same arguments."""

    status: ValueStatus
    against: Against | None = None
    """Whose results they were compared with."""
    detail: str = ""
    """What differs, or why there is nothing to compare with."""
    results: int = 0
    """Tensors and numbers compared, arguments that are written to included."""


def not_compared(why: str) -> ValueCheck:
    """Return the verdict for an op that has nothing to compare with."""
    return ValueCheck(status="not compared", detail=why)
