# pyright: strict
"""The options that select ops of a trace."""

from __future__ import annotations

import msgspec

from opreplay.traces.links.annotations import Phase  # at run time, too: a batch sends it to its processes


class OpFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters on the selected ops."""

    include: tuple[str, ...] = ()
    """Names or shell globs (`aten::*mm`); empty keeps all."""
    exclude: tuple[str, ...] = ()
    top: int | None = None
    """The n ops with most recorded time."""
    min_share: float | None = None
    """Least share of the recorded time, 0..1."""
    phase: Phase | None = None
    """Only calls in iterations of this phase; their counts and times are those of these calls."""
    ops: tuple[str, ...] = ()
    """Of what the others leave: names, globs, starts of ids, or "#4" for the fourth, heaviest first; empty for all."""


class Selection(OpFilter, frozen=True, kw_only=True):
    """The values of the selection options."""

    select: str = "owner"
    """Which of the recorded calls: "owner" (ops that own device time), "leaf", "top" or "all"."""
    allow_imports: dict[str, str] = {}

    @property
    def narrows(self) -> bool:
        """Check whether it leaves out ops for any reason other than nesting."""
        return bool(self.include or self.exclude or self.ops or self.top or self.min_share or self.phase)
