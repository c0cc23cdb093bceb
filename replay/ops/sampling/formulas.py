# pyright: strict
"""Sampling ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, formula, of, wide


@formula("_C::apply_repetition_penalties_", "(f32[8,16], bool[8,16], bool[8,16], f32[8])")
def repetition_penalties(values: Values) -> Tensor:
    x, penalty = values["logits"], values["repetition_penalties"].unsqueeze(1)
    punished = torch.where(x > 0, x / penalty, x * penalty)
    return torch.where(values["prompt_mask"] | values["output_mask"], punished, x)


def limits(values: Values, name: str, count: int) -> list[float]:
    """That of each row: its own, or one for all."""
    own = values.get(f"maybe_{name}_arr")
    return [values[f"{name}_val"]] * count if own is None else [float(limit) for limit in own.flatten()]


def best_of(row: Tensor, count: int) -> Tensor:
    """Places of the largest numbers of a row. Refuses rows in which equal ones make that a matter of taste."""
    order = torch.argsort(row, descending=True, stable=True)
    covers(0 < count < len(row) and bool(row[order[count - 1]] > row[order[count]]), "numbers that differ")
    return order[:count]


@formula("sgl_kernel::top_k_renorm_probs", "(f32[8,16], f32[8,16], None, 3)")
@formula("sgl_kernel::top_k_renorm_probs_wrapper", "(f32[8,16], f32[8,16], None, 3, 0)")
@formula("aiter::top_k_renorm_probs", "(f32[8,16], None, 3)")
def top_k_renormalised(values: Values) -> Tensor:
    x = wide(values["probs"])
    covers(x.dim() == 2, "rows")
    kept = torch.zeros_like(x)
    for row, count in enumerate(limits(values, "top_k", len(x))):
        places = best_of(x[row], int(count))
        covers(bool(x[row, places].sum() > 0.01), "chances")
        kept[row, places] = x[row, places] / x[row, places].sum()
    return kept.to(of(values, "renorm_probs", otherwise=kept.float()).dtype)


@formula("sgl_kernel::top_k_mask_logits", "(f32[8,16], f32[8,16], None, 3)")
def top_k_masked(values: Values) -> Tensor:
    x = values["logits"]
    covers(x.dim() == 2 and bool(x.isfinite().all()), "scores")
    masked = torch.full_like(x, -torch.inf)
    for row, count in enumerate(limits(values, "top_k", len(x))):
        places = best_of(x[row], int(count))
        masked[row, places] = x[row, places]
    return masked.to(values["mask_logits"].dtype)


@formula("aiter::greedy_sample", "i32[8], f32[8,16]")
def greedy(values: Values) -> Tensor:
    x = values["input"]
    covers(x.dim() == 2 and x.shape[1] > 1, "scores")
    return torch.stack([best_of(row, 1)[0] for row in x]).to(values["out"].dtype)


def columns(scores: Tensor, ends: list[int], count: int) -> Tensor:
    """Places of the best columns of each row before an end, best first, and -1 behind the last."""
    rows: list[Tensor] = []
    for row, end in zip(scores, ends, strict=True):
        covers(0 <= end <= len(row), "columns that are there")
        order = torch.argsort(row[:end], descending=True, stable=True)
        covers(bool((row[order][1:] < row[order][:-1]).all()), "scores that differ")
        rows.append(torch.cat([order[:count], order.new_full((max(0, count - end),), -1)]))
    covers(rows, "rows")
    return torch.stack(rows)


@formula("_C::persistent_topk _C::cooperative_topk", "(f32[8,64], i32[8], i32[8,4], u8[16], 4, 64)")
def persistent_topk(values: Values) -> tuple[Tensor, ...]:
    scores, lengths = values["logits"], [int(length) for length in values["lengths"].flatten()]
    covers(scores.dim() == 2 and values["k"] == values["output"].shape[-1], "a place for each")
    return (columns(scores, lengths, values["k"]).to(values["output"].dtype),)


@formula("npu::apply_token_bitmask", "(f32[8,64], i32[8,2])")
@formula("sgl_kernel::apply_token_bitmask_inplace_cuda", "(f32[8,64], i32[8,2])")
def bitmasked(values: Values) -> Tensor:
    x, words = values["logits"], values["bitmask"]
    covers(
        values.get("indices") is None and x.dim() == 2 and words.shape[-1] * 32 >= x.shape[1], "a bit for each token"
    )
    covers(len(words) >= len(x), "words for each row")
    allowed = [[int(words[row, token // 32]) >> token % 32 & 1 for token in range(x.shape[1])] for row in range(len(x))]
    return torch.where(torch.tensor(allowed, device=x.device).reshape(x.shape).bool(), x, -torch.inf)
