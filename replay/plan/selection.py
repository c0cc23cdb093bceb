# pyright: strict
"""Which ops of a trace are wanted."""

from __future__ import annotations

import msgspec

from opreplay.traces.links.annotations import Phase  # at run time, too: a batch sends it to its processes


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What the selection options say."""

    select: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    top: int | None = None
    min_share: float | None = None
    allow_imports: dict[str, str] = {}
    phase: Phase | None = None
    ops: tuple[str, ...] = ()
    """Names, globs, starts of ids, or "#4" for the fourth of what the others leave."""

    @property
    def narrows(self) -> bool:
        """Whether it leaves out ops by anything else than how they are nested."""
        return bool(self.include or self.exclude or self.ops or self.top or self.min_share or self.phase)
