"""Work of fbgemm's jagged and sparse-feature ops: values that lengths or offsets divide, rows that permutes move."""

from __future__ import annotations

import torch

from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.initializers.jagged import LENGTHS, OFFSETS, JaggedInit
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.registry import counts

SUMMED = (*LENGTHS, "t_in", "dim_sum_per_rank")
PERMUTES = ("permute", "permute_list")


@counts(*JaggedInit.op_patterns)
def count_values(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Values in rows of some length; where there are no rows, distinct entries of a permute."""
    amounts: list[Amount] = []
    warnings: list[str] = []
    for name in SUMMED:
        if (found := context.tensor(name)) is not None and found.numel() and not found.dtype.is_floating_point:
            values = found.detach().reshape(-1).to("cpu", torch.int64)
            amounts.append(Amount(what=f"values in {name}", done=int(values.clamp(min=0).sum())))
            warnings += [f"{name} has negative entries"] if bool((values < 0).any()) else []
    for name in OFFSETS:
        given = context.args.get(name)
        levels = [t for t in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(t, torch.Tensor)]
        for level in levels[-1:]:
            edges = level.detach().reshape(-1).to("cpu", torch.int64)
            sizes = edges.diff()
            amounts.append(Amount(what=f"values between {name}", done=int(sizes.clamp(min=0).sum())))
            warnings += [f"{name} descend"] if bool((sizes < 0).any()) else []
    for name in PERMUTES:
        if (order := context.tensor(name)) is not None and order.numel():
            distinct = int(torch.unique(order.detach()).numel())
            amounts.append(Amount(what="distinct rows permuted", done=distinct, most=order.numel()))
    if not amounts:
        return None
    return work(*amounts, warnings=tuple(warnings), same=amounts[0].most is not None)
