"""What the values of a call's arguments amount to for its cost: lengths of sequences and loads of experts, summed up.

Owns the values; `expected` makes them for an op of a plan, the simulated device reads them. Needs no torch.
"""

from __future__ import annotations

import msgspec


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one call's arguments; None for what the op does not have."""

    sequences: int | None = None
    """Those with at least one new token."""
    query_tokens: int | None = None
    context_tokens: int | None = None
    """Of all sequences together, cached and new ones."""
    pairs: int | None = None
    """Query tokens times the context tokens that each of them sees."""
    expert_rows: tuple[int, ...] | None = None
    """Rows that each expert works on."""
    notes: tuple[str, ...] = ()
    """What the batch's annotation tells and the arguments cannot hold."""
