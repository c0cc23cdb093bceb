# pyright: strict
"""Amounts of work and their text."""

from __future__ import annotations

import msgspec


class Amount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A number of items that a call processes, of the most that its shapes allow."""

    what: str
    """Plural noun, e.g. "context tokens"."""
    done: int
    most: int | None = None
    """None where the shapes set no bound."""


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The work that one call does, given the values of its arguments."""

    amounts: tuple[Amount, ...] = ()
    """The one that matters most comes first."""
    bytes_read: int | None = None
    """Bytes of memory that one call reads; None for those of its arguments."""
    bytes_written: int | None = None
    """Bytes of memory that one call writes; None for those of its results."""
    flops: int | None = None
    """Floating-point operations of one call, a multiply-add being two."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the values, e.g. "1,024 of 1,024 tokens meet an expert twice"."""
    idle: bool = False
    """Whether the values make the op do nothing, or the same thing again and again, where its shapes allow more."""


def work(*amounts: Amount, warnings: tuple[str, ...] = (), same: bool = False) -> Work:
    """Return Work whose `idle` follows from the first amount: 0, or with `same` a single one of several."""
    first = amounts[0]
    idle = first.done == 0 != first.most or (same and first.done == 1 and (first.most or 0) > 1)
    return Work(amounts=amounts, warnings=warnings, idle=idle)


def amount_text(amount: Amount) -> str:
    """Return "8,192 of 65,536 context tokens (12.5 %)"."""
    if amount.most is None:
        return f"{amount.done:,} {amount.what}"
    share = f" ({100 * amount.done / amount.most:.3g} %)" if 0 < amount.done < amount.most else ""
    return f"{amount.done:,} of {amount.most:,} {amount.what}{share}"


def work_text(done: Work) -> str:
    """Return all amounts on one line, in order."""
    totals = (("bytes read", done.bytes_read), ("bytes written", done.bytes_written), ("FLOPs", done.flops))
    further = [f"{total:,} {what}" for what, total in totals if total is not None]
    return "; ".join([*map(amount_text, done.amounts), *further])
