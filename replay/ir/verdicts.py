# pyright: strict
"""Verdicts about an op: from calling it on meta tensors, and from comparing its results with those of the op's own
implementation.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MetaStatus = Literal["ok", "differs", "no meta kernel", "data-dependent", "failed"]
META_WRONG: frozenset[MetaStatus] = frozenset({"differs", "failed"})
"""Verdicts that an op is wrong. The other verdicts mean that it is valid, or that meta tensors cannot show it."""


class MetaCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of calling one op on meta tensors, where nothing is computed. It shows whether the op accepts the
    arguments.
    """

    status: MetaStatus
    """The verdict. "ok": the op accepts the arguments, and no result differs from a recorded one. "data-dependent":
    sizes or values of the results depend on the contents of tensors.
    """
    detail: str = ""
    results_compared: int = 0
    """Number of results whose size and dtype the trace records; 0 if it records none."""

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}" if self.detail else self.status


ValueStatus = Literal["agrees", "differs", "own", "not compared"]
"""Result of comparing values. "own": the recorded op's own implementation ran, so there was nothing to compare with."""
Against = Literal["torch", "library", "stand-in"]


class ValueCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one op's results with those of the recorded op's own implementation on the same arguments."""

    status: ValueStatus
    against: Against | None = None
    """The implementation whose results were used for comparison."""
    detail: str = ""
    """What differs, or why there is nothing to compare with."""
    results: int = 0
    """Number of compared tensors and numbers, including arguments that are written to."""


def not_compared(why: str) -> ValueCheck:
    """Return the verdict for an op that has nothing to compare with."""
    return ValueCheck(status="not compared", detail=why)
