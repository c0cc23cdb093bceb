# pyright: strict
"""Amounts of work and their text; owns no counting and knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opreplay.initializers.base import OptionValue


class Amount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """So many of something were done, of the most that the shapes allow."""

    what: str
    """Plural noun, e.g. "context tokens"."""
    done: int
    most: int | None = None
    """None where the shapes set no bound."""


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the values of one call's arguments make it do."""

    amounts: tuple[Amount, ...]
    """The one that matters most comes first."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the values, e.g. "1,024 of 1,024 tokens meet an expert twice"."""
    idle: bool = False
    """Whether the values make the op do nothing, or the same thing again and again, where its shapes allow more."""


def work(*amounts: Amount, warnings: tuple[str, ...] = (), same: bool = False) -> Work:
    """Work whose `idle` follows from the first amount: nothing was done, or with `same` a single one of several."""
    first = amounts[0]
    idle = first.done == 0 != first.most or (same and first.done == 1 and (first.most or 0) > 1)
    return Work(amounts=amounts, warnings=warnings, idle=idle)


def amount_text(amount: Amount) -> str:
    """ "8,192 of 65,536 context tokens (12.5 %)"."""
    if amount.most is None:
        return f"{amount.done:,} {amount.what}"
    share = f" ({100 * amount.done / amount.most:.3g} %)" if 0 < amount.done < amount.most else ""
    return f"{amount.done:,} of {amount.most:,} {amount.what}{share}"


def work_text(done: Work) -> str:
    """All amounts in one line, the first one first."""
    return "; ".join(map(amount_text, done.amounts))


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
    unrecorded: str = ""
    """What nothing tells and decides the time, and what was taken instead."""
    layer: Mapping[str, OptionValue] | None = None
    """What the user says of weights that are in no argument: options of `moe_routing`."""
