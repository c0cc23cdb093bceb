# pyright: strict
"""Initializers for the positions of new tokens, and for the numbers from which an op computes positions.

A new token's position is the row of a sine/cosine table that it looks up. `sequences` splits a batch into sequences.
"""

from __future__ import annotations

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport
from opreplay.initializers.draws.distributions import LengthDistribution, LengthRule, length_distribution
from opreplay.initializers.draws.paging import shared_generator
from opreplay.initializers.draws.sequences import Batch, Room, make_batch

POSITIONS = ("positions", "position_ids", "pos_ids")
TABLES = ("cos_sin_cache", "cos_cache", "cos", "cos_sin", "freqs_cis")
OFFSETS = ("offsets", "cos_sin_cache_offsets")
"""Arguments that are added to the positions. They are filled with zero to keep positions in the table."""


class PositionsInit(LengthRule):
    """Gives each new token its position in its sequence, according to the batch of the iteration."""

    name = "positions"

    def initialize(self, context: InitContext) -> InitReport:
        positions = context.first(POSITIONS)
        if positions is None:
            raise InitializerError(f"{context.op} has no positions among its arguments")
        rows = table_rows(context)
        for name in OFFSETS:
            if (offsets := context.tensor(name)) is not None and fill.is_integer(offsets.dtype):
                fill.assign(offsets, torch.zeros_like(offsets))
        count = positions.shape[-1] if positions.dim() == 2 and positions.shape[0] == 3 else positions.numel()
        batch = _batch(context, count, rows)
        if batch is None:
            fill.integers(positions, context.generator, 0, rows)
            return InitReport(summary=f"{count} positions of {rows}", assumed={"positions": f"uniform in [0, {rows})"})
        numbers = torch.zeros(count, dtype=torch.int64)
        placed = places_of(batch)[:count].clamp(max=rows - 1)
        numbers[: len(placed)] = placed
        # Three rows are the axes of an image; text has the same number in each.
        fill.assign(
            positions,
            numbers.reshape(-1, count)
            .expand(positions.numel() // max(1, count), count)
            .reshape(positions.shape)
            .to(positions.device),
        )
        return InitReport(summary=f"{len(placed)} positions of {rows}", assumed={"positions": batch.assumed})


class NewTokensInit(CustomInit):
    """Fills the number of cached and of new tokens of each sequence, according to the batch of the iteration."""

    name = "new_tokens"

    def initialize(self, context: InitContext) -> InitReport:
        cached, new = context.need("extend_prefix_lens"), context.need("extend_seq_lens")
        count = new.numel()
        known = context.batch
        tokens = None if known is None else (known.prefill_tokens or 0) + (known.decode_tokens or 0)
        batch = make_batch(
            known,
            Room(sequences=count, tokens=tokens or 128 * count, longest=1 << 20),
            distribution=LengthDistribution(),
            generator=shared_generator(context, "lengths"),
        )
        seen = batch.kv if known is not None else batch.query
        fill.assign(new, batch.query)
        fill.assign(cached, (seen - batch.query))
        what = batch.assumed if known is not None else "128 new tokens per sequence, none cached"
        return InitReport(summary=f"{int(batch.query.sum())} new tokens", assumed={"extend_seq_lens": what})


def table_rows(context: InitContext) -> int:
    """Return the number of positions in the sine/cosine table. Raises InitializerError if there is no table."""
    table = next((t for name in TABLES if (t := context.tensor(name)) is not None and t.dim() and t.shape[0]), None)
    if table is None:
        raise InitializerError(f"{context.op} has no sine/cosine table among its arguments")
    return table.shape[0]


def places_of(batch: Batch) -> torch.Tensor:
    """Return int64 [new tokens]: the position of each new token in its sequence, after the cached ones."""
    ends = batch.query.cumsum(0)
    shift = batch.kv - batch.query - (ends - batch.query)
    return torch.arange(int(batch.query.sum())) + torch.repeat_interleave(shift, batch.query)


def _batch(context: InitContext, count: int, rows: int) -> Batch | None:
    """Return the iteration's batch for `count` tokens; None if the trace does not record it."""
    known = context.batch
    if known is None or not count or not known.prefill_sequences + known.decode_sequences:
        return None
    total = known.prefill_sequences + known.decode_sequences
    return make_batch(
        known,
        Room(sequences=total, tokens=count, longest=rows),
        distribution=length_distribution(context),
        generator=shared_generator(context, "lengths"),
    )


INITIALIZERS = (PositionsInit, NewTokensInit)
