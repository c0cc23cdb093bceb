# pyright: strict
"""Amounts of work done by op calls, and functions that format them as text."""

from __future__ import annotations

import msgspec


class Amount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Number of items that a call processes, and the maximum number that its shapes allow."""

    what: str
    """Plural noun, e.g. "context tokens"."""
    done: int
    most: int | None = None
    """Maximum number of items; None if the shapes set no bound."""


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work done by one call with the values of its arguments."""

    amounts: tuple[Amount, ...] = ()
    """Amounts of items processed; the most important one comes first."""
    bytes_read: int | None = None
    """Bytes of memory that one call reads; None means the size of its arguments."""
    bytes_written: int | None = None
    """Bytes of memory that one call writes; None means the size of its results."""
    flops: int | None = None
    """Floating-point operations of one call; a multiply-add counts as two."""
    warnings: tuple[str, ...] = ()
    """Problems with the values, e.g. "1,024 of 1,024 tokens meet an expert twice"."""
    idle: bool = False
    """Whether the op does no work with these values, or repeats the same work, although its shapes allow more."""


def work(*amounts: Amount, warnings: tuple[str, ...] = (), same: bool = False) -> Work:
    """Return a Work with these amounts, whose `idle` follows from the first amount.

    `idle` is True if the first amount is 0 although its maximum is not 0. With `same`, it is also True if the amount is
    1 although its maximum is larger: the op then repeats the same work.
    """
    first = amounts[0]
    idle = first.done == 0 != first.most or (same and first.done == 1 and (first.most or 0) > 1)
    return Work(amounts=amounts, warnings=warnings, idle=idle)


def amount_text(amount: Amount) -> str:
    """Format an amount, e.g. "8,192 of 65,536 context tokens (12.5 %)"."""
    if amount.most is None:
        return f"{amount.done:,} {amount.what}"
    share = f" ({100 * amount.done / amount.most:.3g} %)" if 0 < amount.done < amount.most else ""
    return f"{amount.done:,} of {amount.most:,} {amount.what}{share}"


def work_text(done: Work) -> str:
    """Return all amounts on one line, in order."""
    totals = (("bytes read", done.bytes_read), ("bytes written", done.bytes_written), ("FLOPs", done.flops))
    further = [f"{total:,} {what}" for what, total in totals if total is not None]
    return "; ".join([*map(amount_text, done.amounts), *further])
