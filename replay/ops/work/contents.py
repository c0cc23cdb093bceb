# pyright: strict
"""Summary of the contents of a call's arguments, as cost rules need it; does no counting and uses no tensors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.initializers.base import OptionValue


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one call's arguments; fields that the op does not have are None."""

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
    unrecorded: str = ""
    """What nothing tells and decides the time, and what was taken instead."""
    layer: Mapping[str, OptionValue] | None = None
    """What the user says of weights that are in no argument: options of `moe_routing`."""
    work: Work | None = None
    """What the user's initializer says of an op that nothing else is known of."""
