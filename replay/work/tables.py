"""Work of table-batched embedding lookups: distinct rows of all tables, and bags that hold any."""

from __future__ import annotations

import torch

from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.initializers.embedding_tables import LOOKUPS
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.indices import distinct_of
from opreplay.replay.work.registry import counts


@counts(*LOOKUPS)
def count_lookups(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Rows are told apart by table: the bags of one table follow each other."""
    indices, offsets = context.tensor("indices"), context.tensor("offsets")
    starts, widths = context.tensor("hash_size_cumsum"), context.tensor("D_offsets")
    if indices is None or offsets is None or widths is None:
        return None
    tables = max(1, widths.numel() - 1)
    values = indices.detach().reshape(-1).to("cpu", torch.int64)
    edges = offsets.detach().reshape(-1).to("cpu", torch.int64)
    sizes = edges.diff()
    bags = len(sizes) // tables
    per_table = sizes[: bags * tables].clamp(min=0).reshape(tables, bags).sum(1) if bags else sizes.new_zeros(tables)
    used = min(int(per_table.sum()), len(values))
    table = torch.repeat_interleave(torch.arange(tables), per_table)[:used]
    warnings = ["offsets descend"] if bool((sizes < 0).any()) else []
    most = used
    if starts is not None and starts.numel() > tables:
        rows = starts.detach().reshape(-1).to("cpu", torch.int64)[: tables + 1].diff()
        most = int(torch.minimum(per_table, rows.clamp(min=0)).sum())
        if wrong := int(((values[:used] < 0) | (values[:used] >= rows[table])).sum()):
            warnings.append(f"{wrong:,} indices are not in their table")
    held = values[:used].clamp(min=0)
    width = int(held.max()) + 1 if used else 1
    distinct = distinct_of(table * width + held, tables * width)
    return work(
        Amount(what="distinct rows", done=distinct, most=max(most, distinct) or len(values)),
        Amount(what="bags", done=int((sizes > 0).sum()), most=len(sizes)),
        warnings=tuple(warnings), same=True,
    )  # fmt: skip
