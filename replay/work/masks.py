"""Work of ops that a mask steers: elements or scores that it lets through."""

from __future__ import annotations

import torch

from opreplay.initializers import masks as names
from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.registry import counts

SAME_WORK = frozenset({"aten::where", "aten::masked_fill", "aten::masked_fill_", "aten::count_nonzero"})
"""Ops that go over all elements whatever the mask lets through."""
MASKED_SCORE = -1e4
"""Added to a score, this or less hides it in every floating type."""


@counts(*names.DropoutMaskInit.op_patterns, *names.MaskInit.op_patterns, *names.MaskedScatterInit.op_patterns)
def count_selected(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Elements that the mask selects."""
    searches = "nonzero" in context.op or "argwhere" in context.op
    wanted = ("mask", "condition", *(("self",) if searches else ()))
    mask = next((t for name in wanted if (t := context.tensor(name)) is not None), None)
    if mask is None:
        return None
    selected = Amount(what="elements selected", done=int((mask != 0).sum()), most=mask.numel())
    return Work(amounts=(selected,)) if context.op in SAME_WORK else work(selected)


@counts(*(op for op in names.AttentionMaskInit.op_patterns if op != "aten::_efficient_attention_forward"))
def count_visible(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Scores that the mask leaves visible; None for a call without a mask."""
    found = (context.tensor(name) for name in ("attn_mask", "attn_bias", "bias", "mask"))
    mask = next((mask for mask in found if mask is not None and mask.numel()), None)
    if mask is None:
        return None
    if context.op == "aten::_masked_softmax":
        visible = mask == 0
    else:
        visible = mask if mask.dtype is torch.bool else mask > MASKED_SCORE
    return work(Amount(what="scores visible", done=int(visible.sum()), most=mask.numel()))
