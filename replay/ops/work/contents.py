# pyright: strict
"""Summary of the contents of a call's arguments, for cost rules.

This module counts nothing and uses no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.initializers.base import OptionValue
from opreplay.replay.ir.model import ReplayOp


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one call's arguments; fields that the op does not have are None."""

    sequences: int | None = None
    """Number of sequences with at least one new token."""
    query_tokens: int | None = None
    context_tokens: int | None = None
    """Context tokens of all sequences together, both cached and new."""
    pairs: int | None = None
    """Number of (query token, visible context token) pairs."""
    expert_rows: tuple[int, ...] | None = None
    """Rows that each expert processes."""
    notes: tuple[str, ...] = ()
    """Notes on values in the batch's annotation that the arguments cannot hold."""
    unrecorded: str = ""
    """Quantity that determines the time but is not recorded, and the value that was assumed for it."""
    layer: Mapping[str, OptionValue] | None = None
    """Options of the initializer `moe_routing` set by the user, for layers whose weights are not arguments."""
    work: Work | None = None
    """Work that the user's initializer reports for the op, if it reports any."""


ContentsOf = Callable[[ReplayOp], Contents | None]
"""Function that returns the contents of a call's arguments, or None if they do not affect the op's work."""
