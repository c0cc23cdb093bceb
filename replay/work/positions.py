"""Work of ops that look up positions, and of those that make them: distinct rows of the table, new tokens."""

from __future__ import annotations

import torch

from opreplay.initializers.base import BatchLengths, InitContext, InitializerError
from opreplay.initializers.positions import POSITIONS, NewTokensInit, PositionsInit, table_rows
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.registry import counts


@counts(*PositionsInit.op_patterns)
def count_positions(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Distinct rows of the table of sines and cosines."""
    positions = next((t for name in POSITIONS if (t := context.tensor(name)) is not None), None)
    try:
        rows = table_rows(context)
    except InitializerError:
        return None
    if positions is None:
        return None
    values = torch.unique(positions.detach())
    wrong = int(((values < 0) | (values >= rows)).sum())
    return work(
        Amount(what="distinct positions", done=len(values), most=min(rows, positions.numel())),
        warnings=(f"{wrong:,} positions are not in [0, {rows})",) if wrong else (), same=True,
    )  # fmt: skip


@counts(*NewTokensInit.op_patterns)
def count_new_tokens(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """New tokens of all sequences."""
    return work(Amount(what="new tokens", done=int(context.need("extend_seq_lens").clamp(min=0).sum())))
