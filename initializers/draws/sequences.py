# pyright: strict
"""Lengths of the sequences in a batch: from the exact totals of a batch context, or drawn from a distribution.

This module splits totals over sequences. `paged_attention` decides which argument holds lengths and where keys are
stored. Everything runs on the CPU, which gives every device the same batch.
"""

from __future__ import annotations

import msgspec
import torch

from opreplay.initializers.base import BatchLengths
from opreplay.initializers.draws.distributions import LengthDistribution
from opreplay.initializers.fill import elements
from opreplay.traces.links.annotations import BatchContext

IMPOSSIBLE = "impossible in this call"
"""Words of the notes that lengths from an annotation do not fit into the call's arguments."""
UNRECORDED = "context lengths are not recorded"
"""Start of the notes on sequences whose number of cached tokens neither an annotation nor an argument gives."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on a batch that follow from the shapes of a call."""

    sequences: int
    tokens: int | None
    """Rows of the packed query; None if each sequence has one row."""
    longest: int
    """Maximum number of tokens that one sequence may attend to."""
    cached: bool = True
    """Whether keys may come from earlier iterations. If not, a sequence has as many keys as new tokens."""
    hidden: bool = False
    """Whether the op uses a cache that is not among its arguments, so that its size is unknown."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of all sequences, and the assumptions behind them. Decode sequences come first, as in vLLM."""

    query: torch.Tensor
    """int64 [sequences]: number of new tokens; 0 for padding."""
    kv: torch.Tensor
    """int64 [sequences]: number of keys, both cached and new; at least `query`."""
    assumed: str

    def lengths(self) -> BatchLengths:
        return BatchLengths(query=tuple(elements(self.query)), kv=tuple(elements(self.kv)))


def make_batch(
    context: BatchContext | None, room: Room, *, distribution: LengthDistribution, generator: torch.Generator
) -> Batch:
    """Return a batch with the lengths given by the batch context, limited by the shapes.

    Lengths that the context does not give are drawn from `distribution`. If there is no context, or if it does not fit
    the call, all lengths are drawn.
    """
    parts = None if context is None else _phases(context, room)
    if parts is None:
        batch = _drawn(room, distribution, generator)
        if context is None:
            return batch
        counts = f"{context.decode_sequences} decode and {context.prefill_sequences} prefill sequences"
        return Batch(
            query=batch.query,
            kv=batch.kv,
            assumed=(
                f"{batch.assumed}; the batch context has {counts}, but the arguments have room for {room.sequences}"
            ),
        )
    phases = [_phase(part, room, distribution, generator) for part in parts]
    query = torch.cat([q for q, _, _ in phases])
    kv = torch.cat([k for _, k, _ in phases])
    notes = [note for _, _, note in phases if note]
    if room.tokens is not None and (over := int(query.sum()) - room.tokens) > 0:
        query = _cut(query, over)
        notes.append(f"dropped {over} new tokens, because the query has only {room.tokens}")
    kv = torch.maximum(kv, query)
    if room.hidden and context is not None and context.decode_sequences:
        notes.append(f"{UNRECORDED}: {context.decode_sequences} decode sequences attend only to their new tokens")
    if not room.cached:
        kv = query.clone()
    padding = room.sequences - len(query)
    if padding:
        query, kv = (torch.cat((x, x.new_zeros(padding))) for x in (query, kv))
        notes.append(f"{padding} sequences are padding")
    return Batch(query=query, kv=kv, assumed="; ".join(("from the iteration's batch", *notes)))


class _Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over all sequences of one phase (decode or prefill). Unknown totals are None."""

    sequences: int
    new: int | None
    seen: int | None
    new_squared: int | None = None
    new_seen: int | None = None


def _phases(context: BatchContext, room: Room) -> list[_Phase] | None:
    """Return the phases (decode, prefill) that fit the call's number of sequences; None if none fit."""
    decode = _Phase(
        sequences=context.decode_sequences,
        new=context.decode_tokens,
        seen=context.decode_seen,
        new_squared=context.decode_qq,
        new_seen=context.decode_qk,
    )
    new = context.prefill_tokens
    if new is None and context.prefill_sequences and room.tokens is not None:
        new = room.tokens - (context.decode_tokens or context.decode_sequences)
        new = new if new >= context.prefill_sequences else None
    prefill = _Phase(
        sequences=context.prefill_sequences,
        new=new,
        seen=context.prefill_seen,
        new_squared=context.prefill_qq,
        new_seen=context.prefill_qk,
    )
    both = [phase for phase in (decode, prefill) if phase.sequences]
    total = sum(phase.sequences for phase in both)
    if not total:
        return None
    one_each = room.tokens is None
    if one_each and decode.sequences and room.sequences != total and room.sequences >= decode.sequences:
        return [decode]
    if room.sequences < total:
        return next(([phase] for phase in both if phase.sequences == room.sequences), None)
    return both


def _phase(
    phase: _Phase, room: Room, distribution: LengthDistribution, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return the numbers of new and attended tokens of each sequence of a phase, and the assumptions as text."""
    count = phase.sequences
    new = count if phase.new is None or room.tokens is None else phase.new
    query = _split(new, count, phase.new_squared, room.longest)
    if phase.seen is None:
        if phase.new is not None and phase.new > count:
            return query, query.clone(), "prefill without cached tokens"
        kv = distribution.draw(count, room.longest, generator)
        return query, torch.maximum(kv, query), f"context lengths {distribution.kind}, up to {room.longest}"
    cached = max(0, phase.seen - int(query.sum()))
    old = _cached(query, cached, phase, distribution, generator)
    kv = query + old
    over = int((kv - room.longest).clamp(min=0).sum())
    if over:
        kv = _level(kv, query, room.longest)
        cut_tokens = phase.seen - int(kv.sum())
        said = f"dropped {cut_tokens} context tokens, {IMPOSSIBLE}: a sequence can attend to at most {room.longest}"
        return query, kv, said if cut_tokens > 0 else ""
    return query, kv, ""


def _split(total: int, count: int, squares: int | None, longest: int) -> torch.Tensor:
    """Return `count` lengths with sum `total` and sum of squares near `squares`. Some are long, the rest are equal."""
    even = torch.full((count,), total // max(1, count), dtype=torch.int64)
    even[: total % max(1, count)] += 1
    if squares is None or count < 2 or total <= count:
        return even
    mean = total / count
    variance = max(0.0, squares / count - mean * mean)
    long = 1
    while long < count - 1 and mean + (variance * (count - long) / long) ** 0.5 > longest:
        long += 1
    high = mean + (variance * (count - long) / long) ** 0.5
    high = min(round(high), longest, (total - (count - long)) // long)
    rest = total - high * long
    others = count - long
    if rest < others or high <= mean:
        return even
    lengths = torch.full((count,), rest // others, dtype=torch.int64)
    lengths[:long] = high
    lengths[long : long + rest % others] += 1
    return lengths


def _cached(
    query: torch.Tensor, total: int, phase: _Phase, distribution: LengthDistribution, generator: torch.Generator
) -> torch.Tensor:
    """Return the number of cached tokens of each sequence; the numbers add up to `total`.

    If the numbers of new tokens differ, distribution "max" also follows a recorded value: the sum over all sequences of
    new tokens times attended tokens is close to it.
    """
    count = len(query)
    if distribution.kind != "max":
        weight = distribution.draw(count, 1 << 20, generator).double()
        return _round_to(weight / weight.sum() * total, total)
    if phase.new_seen is not None and count > 1 and int(query[0]) > int(query[-1]) + 1:
        low = float(query[1:].double().mean())
        product = phase.new_seen - float((query.double() ** 2).sum())
        first = round(min(max(0.0, (product - low * total) / (float(query[0]) - low)), float(total)))
        return torch.cat((torch.tensor([first]), _split(total - first, count - 1, None, total)))
    return _split(total, count, None, total)


def _round_to(values: torch.Tensor, total: int) -> torch.Tensor:
    """Round `values` to integers that add up to `total`."""
    edges = values.cumsum(0).round().to(torch.int64)
    edges[-1] = total
    return edges.diff(prepend=edges.new_zeros(1)).clamp(min=0)


def _level(kv: torch.Tensor, query: torch.Tensor, longest: int) -> torch.Tensor:
    """Move the tokens that exceed `longest` to sequences with free space, as far as possible."""
    over = int((kv - longest).clamp(min=0).sum())
    kv = torch.maximum(kv.clamp(max=longest), query)
    free = (longest - kv).clamp(min=0)
    taken = (free.cumsum(0).clamp(max=over)).diff(prepend=free.new_zeros(1))
    return kv + taken


def _cut(query: torch.Tensor, over: int) -> torch.Tensor:
    """Remove `over` new tokens, beginning with those of the last sequences."""
    taken = query.flip(0).cumsum(0).clamp(max=over).diff(prepend=query.new_zeros(1)).flip(0)
    return query - taken


def _drawn(room: Room, distribution: LengthDistribution, generator: torch.Generator) -> Batch:
    """Return a batch without a batch context: new tokens divided evenly, keys drawn from the distribution."""
    tokens = room.sequences if room.tokens is None else room.tokens
    query = _split(tokens, room.sequences, None, room.longest).clamp(max=room.longest)
    if not room.cached:
        how = "sequences of equal length"
        if room.hidden:
            how += f"; {UNRECORDED}: {room.sequences} sequence of {tokens} tokens without cached tokens"
        return Batch(query=query, kv=query.clone(), assumed=how)
    kv = torch.maximum(distribution.draw(room.sequences, room.longest, generator), query)
    how = f"{distribution.kind} lengths, up to {room.longest}; new tokens split evenly"
    return Batch(query=query, kv=kv, assumed=how)
