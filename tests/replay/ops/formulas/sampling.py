# pyright: strict
"""Sampling ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import Values, covers, formula, formulas, numbers, of, wide


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


@formulas("""
    sgl_kernel::top_k_renorm_probs | (f32[8,16], f32[8,16], None, 3)
    sgl_kernel::top_k_renorm_probs_wrapper | (f32[8,16], f32[8,16], None, 3, 0)
    aiter::top_k_renorm_probs | (f32[8,16], None, 3)
""")
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


@formula("npu::apply_token_bitmask sgl_kernel::apply_token_bitmask_inplace_cuda", "(f32[8,64], i32[8,2])")
def bitmasked(values: Values) -> Tensor:
    x, words = values["logits"], values["bitmask"]
    covers(
        values.get("indices") is None and x.dim() == 2 and words.shape[-1] * 32 >= x.shape[1], "a bit for each token"
    )
    covers(len(words) >= len(x), "words for each row")
    allowed = [[int(words[row, token // 32]) >> token % 32 & 1 for token in range(x.shape[1])] for row in range(len(x))]
    return torch.where(torch.tensor(allowed, device=x.device).reshape(x.shape).bool(), x, -torch.inf)


def between(scores: Tensor, starts: list[int], ends: list[int], count: int) -> Tensor:
    """Places of the best columns of each row within its limits, counted from the first of them."""
    covers(scores.dim() == 2 and all(0 <= first <= last for first, last in zip(starts, ends, strict=True)), "limits")
    pairs = zip(scores, starts, ends, strict=True)
    return torch.cat([columns(row[None, first:last], [last - first], count) for row, first, last in pairs])


def shown(values: Values, places: Tensor) -> Tensor:
    """The places, as the op's tensor for them has room."""
    target = of(values, "indices", "topk_ids")
    covers(target.shape == places.shape, "a row of places for each of scores")
    return places.to(target.dtype)


ROWS = "(f32[8,64], i32[8], i32[8], i32[8,4]"


@formulas(f"""
    _C::top_k_per_row aiter::topk_per_row | {ROWS}, 8, 64, 1)
    _C::top_k_per_row_prefill | {ROWS}, 8, 64, 1, 4)
""")
def top_k_per_row(values: Values) -> Tensor:
    x, count = values["logits"], values["indices"].shape[-1]
    covers(values["numRows"] == len(x) and values.get("topK", count) == count, "all rows")
    return shown(values, between(x, numbers(values["rowStarts"]), numbers(values["rowEnds"]), count))


@formulas(f"""
    aiter::top_k_per_row_prefill aiter::_top_k_per_row_prefill | {ROWS}, f32[8,4], 8, 64, 1, 4)
    aiter::top_k_per_row_prefill_fast | {ROWS}, f32[8,4], 8, 64, 1)
""")
def top_k_per_row_with_values(values: Values) -> tuple[Tensor, ...]:
    x, target = values["logits"], values["values"]
    covers(values.get("k", values["indices"].shape[-1]) == values["indices"].shape[-1], "as many as there is room for")
    places = top_k_per_row(values)
    if target is None:
        return (places,)
    first = values["rowStarts"].reshape(-1, 1)
    best = wide(x).gather(1, (places + first).clamp(min=0).long())
    return places, torch.where(places < 0, -torch.inf, best).to(target.dtype)


@formulas("""
    _C::top_k_per_row_decode aiter::top_k_per_row_decode aiter::_top_k_per_row_decode
        | (f32[8,64], 2, i32[4], i32[8,4], 8, 64, 1, 4)
    aiter::topk_per_row_decode aiter::top_k_per_row_decode_fast | (f32[8,64], 2, i32[4], i32[8,4], 8, 64, 1)
""")
def top_k_per_row_decode(values: Values) -> Tensor:
    x, queries, lengths = values["logits"], values["next_n"], of(values, "seq_lens", "seqLens")
    count = values["indices"].shape[-1]
    covers(of(values, "topK", "k", otherwise=count) == count and values["numRows"] == len(x), "all rows")
    covers(lengths.dim() == 1 and len(lengths) * queries == len(x), "a length of each sequence")
    # The last of a sequence's queries sees all of its columns, the one before it one column less.
    ends = [length - behind for length in numbers(lengths) for behind in reversed(range(queries))]
    return shown(values, between(x, [0] * len(x), ends, count))


def fast(values: Values, count: int) -> Tensor:
    """Places of the best columns from each row's start; rows with no more columns are not ranked by the kernel."""
    lengths, starts = numbers(values["lengths"]), of(values, "row_starts", "row_starts_opt")
    covers(all(length > count for length in lengths), "more columns than places")
    begins = [0] * len(lengths) if starts is None else numbers(starts)
    ends = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    return between(values["score"], begins, ends, count)


@formula("sgl_kernel::fast_topk _C::large_context_topk", "(f32[8,64], i32[8,4], i32[8], i32[8])")
def fast_topk(values: Values) -> Tensor:
    return shown(values, fast(values, values["indices"].shape[-1]))


@formula("sgl_kernel::fast_topk_transform_fused", "(f32[8,64], i32[8], i32[8,4], i32[4,64], i32[5], i32[8])")
def fast_topk_pages(values: Values) -> Tensor:
    target, pages, edges = values["dst_page_table"], values["src_page_table"], numbers(values["cu_seqlens_q"])
    owners = [owner for owner, (first, last) in enumerate(pairwise(edges)) for _ in range(first, last)]
    places = fast(values, target.shape[-1])
    covers(len(owners) == len(places) and len(pages) == len(edges) - 1, "rows of sequences")
    covers(int(places.max()) < pages.shape[1], "pages that are there")
    return torch.stack([pages[owner][row] for owner, row in zip(owners, places, strict=True)]).to(target.dtype)


@formula("sgl_kernel::fast_topk_transform_ragged_fused", "(f32[8,64], i32[8], i32[8,4], i32[8], i32[8])")
def fast_topk_ragged(values: Values) -> Tensor:
    target, offsets = values["topk_indices_ragged"], numbers(values["topk_indices_offset"].flatten())
    places = fast(values, target.shape[-1])
    covers(len(offsets) == len(places), "an offset of each row")
    return torch.stack([row + offset for row, offset in zip(places, offsets, strict=True)]).to(target.dtype)


@formula("aiter::topk_plain aiter::_topk_plain", "(f32[8,64], i32[8,4], f32[8,4], 4)")
def topk_plain(values: Values) -> tuple[Tensor, Tensor]:
    x, count = wide(values["x"]), values["topk"]
    covers(values.get("rowStarts") is None and values.get("rowEnds") is None and count <= x.shape[-1], "whole rows")
    ranks = x if values.get("largest", True) else -x
    places = between(ranks, [0] * len(x), [x.shape[1]] * len(x), count)
    return shown(values, places), x.gather(1, places).to(values["topk_out"].dtype)


def likeliest(row: Tensor, limit: float) -> Tensor:
    """Places of the likeliest tokens until their sum reaches the limit, the first in any case."""
    order = torch.argsort(row, descending=True, stable=True)
    sums = row[order].double().cumsum(0)
    inside = torch.cat([sums.new_ones(1).bool(), sums[:-1] < limit])
    covers(bool(((sums[:-1] - limit).abs() > 1e-5).all()), "sums that are not the limit itself")
    covers(bool((row[order][1:] < row[order][:-1])[inside[1:] != inside[:-1]].all()), "chances that differ")
    return order[inside]


@formula("sgl_kernel::top_p_renorm_probs", "(f32[8,16], f32[8,16], None, 0.5)")
def top_p_renormalised(values: Values) -> Tensor:
    x = wide(values["probs"])
    covers(x.dim() == 2 and x.shape[1] > 0, "rows")
    kept = torch.zeros_like(x)
    for row, limit in enumerate(limits(values, "top_p", len(x))):
        places = likeliest(x[row], limit)
        covers(bool(x[row, places].sum() > 0.01), "chances")
        kept[row, places] = x[row, places] / x[row, places].sum()
    return kept.to(values["renorm_probs"].dtype)


@formula("npu::npu_top_k_top_p _C_ascend::npu_apply_top_k_top_p", "(f32[8,64], f32[8], i32[8])")
def top_k_top_p(values: Values) -> Tensor:
    x, shares, counts = values["logits"], values.get("p"), values.get("k")
    covers(x.dim() == 2 and bool(x.isfinite().all()), "scores")
    masked = torch.full_like(x, -torch.inf)
    for row in range(len(x)):
        places = torch.arange(x.shape[1], device=x.device)
        if counts is not None and 0 < int(counts[row]) < x.shape[1]:
            places = best_of(x[row], int(counts[row]))
        if shares is not None:
            chances = torch.softmax(wide(x[row, places]), 0)
            places = places[likeliest(chances, float(shares[row]))]
        masked[row, places] = x[row, places]
    return masked


def race(x: Tensor, temperatures: Tensor, noise: Tensor, eps: float) -> list[int]:
    """Winner of each row: softmax(x / temperature) over exponential noise is largest where its logarithm is."""
    covers(x.dim() == 2 and noise.shape == x.shape and x.shape[1] > 1 and eps > 0, "noise of each score")
    scaled = wide(x) / wide(temperatures).reshape(-1, 1).clamp(min=eps)
    times = torch.log_softmax(scaled.double(), -1) - wide(noise).double().clamp(min=eps).log()
    best = times.topk(2).values
    covers(bool((best[:, 0] - best[:, 1] > 1e-4).all()), "one winner")
    return numbers(times.argmax(-1))


@formula(
    "aiter::random_sample_outer_exponential aiter::mixed_sample_outer_exponential",
    "(i32[8], f32[8,16], f32[8,16], f32[8])",
)
def raced(values: Values) -> Tensor:
    x, temperatures = values["input"], of(values, "temperatures", "temperature").flatten()
    winners = race(x, temperatures, values["exponentials"], values.get("eps", 1e-10))
    if "temperature" in values:
        cold = [place for place, heat in enumerate(temperatures.tolist()) if heat == 0]
        winners = [int(best_of(x[row], 1)[0]) if row in cold else won for row, won in enumerate(winners)]
    return torch.tensor(winners, device=x.device).to(values["out"].dtype)


@formulas("""
    aiter::top_p_sampling_from_probs | (f32[8,16], i32[8], None, 0.0)
    aiter::top_k_top_p_sampling_from_probs | (f32[8,16], i32[8], None, 1, None, 0.9)
    sgl_kernel::top_p_sampling_from_probs | (f32[8,16], i32[8], None, None, 0.0, True, None)
    sgl_kernel::top_k_top_p_sampling_from_probs | (f32[8,16], i32[8], None, None, 1.0, None, 0.9, True, None)
    sgl_kernel::min_p_sampling_from_probs | (f32[8,16], i32[8], None, None, 1.0, True, None)
""")
def sampled(values: Values) -> Tensor:
    """The likeliest token, where the limits leave no other."""
    probs, indices = values["probs"], of(values, "maybe_indices", "indices")
    x = probs if indices is None else probs[indices.long()]
    covers(x.dim() == 2 and x.shape[1] > 1, "chances of tokens")
    only: list[list[bool]] = []
    for name, alone in (("min_p", 1.0), ("top_k", 1.0), ("top_p", 0.0)):
        if f"{name}_val" in values:
            ends = limits(values, name, len(x))
            covers(len(ends) == len(x), "a limit of each row")
            only.append([limit == alone for limit in ends])
    covers(any(all(rows) for rows in only), "limits that leave one token")
    best = [int(best_of(row, 1)[0]) for row in x]
    return torch.tensor(best, device=x.device).to(values["output"].dtype if "output" in values else torch.int32)
