# pyright: strict
"""The options that select ops of a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from opreplay.traces.links.annotations import Phase  # at run time, too: a batch sends it to its processes


class OpFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters on the selected ops."""

    include: tuple[str, ...] = ()
    """Names or shell globs (`aten::*mm`); empty keeps all."""
    exclude: tuple[str, ...] = ()
    top: int | None = None
    """Maximum number of ops. Those with the most recorded time are kept; None keeps all ops."""
    min_share: float | None = None
    """Minimum share of the recorded time, from 0 to 1."""
    phase: Phase | None = None
    """Phase of the iterations whose calls are kept. Counts and times cover only these calls."""
    ops: tuple[str, ...] = ()
    """Names, globs, id prefixes, or "#4" for the fourth heaviest op. They are applied after the other filters. If
    empty, all ops are kept.
    """


class Selection(OpFilter, frozen=True, kw_only=True):
    """The values of the selection options."""

    select: str = "owner"
    """Which calls to select: "owner" (ops with device time), "leaf", "top" or "all"."""
    allow_imports: dict[str, str] = {}

    @property
    def narrows(self) -> bool:
        """Whether any filter other than `select` removes ops."""
        return bool(self.include or self.exclude or self.ops or self.top or self.min_share or self.phase)


_PLACE = re.compile(r"#\d+|[0-9a-f]{6,32}")
"""Matches an op's rank in the list of ops, e.g. #3, or the first digits of its id."""


def by_name_and_place(include: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts that select ops by name, for `OpFilter.include`, and those by rank or id, for `OpFilter.ops`."""
    by_place = tuple(text for text in include if _PLACE.fullmatch(text))
    return tuple(text for text in include if text not in by_place), by_place
