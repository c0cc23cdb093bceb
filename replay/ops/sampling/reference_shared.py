# pyright: strict
"""Token sampling: masks and renormalisation by top-k, top-p and min-p, sampling, penalties, token bitmasks.

Sampling uses torch's random numbers. Hence the ids differ from the vendor's, but they have the same distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for


def _limit(values: Tensor | None, otherwise: float, like: Tensor) -> Tensor:
    """Return the limit of each row, [rows, 1], or `otherwise` for all rows if no limits are given."""
    if values is None:
        return torch.full((1, 1), float(otherwise), device=like.device)
    return values.reshape(-1, 1)


def keep_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Return a mask bool [rows, V] that is True where a score is at least the k-th best of its row.

    k < 1 keeps all scores.
    """
    ordered = scores.sort(-1, descending=True).values
    last = (k.to(torch.int64) - 1).clamp(0, scores.shape[-1] - 1).expand(scores.shape[0], 1)
    return (scores >= ordered.gather(1, last)) | (k < 1)


def keep_top_p(probs: Tensor, p: Tensor) -> Tensor:
    """Return a mask bool [rows, V] of the most likely tokens of each row until their sum reaches p.

    At least one token per row is True.
    """
    ordered, order = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    inside = before < p.to(probs.dtype)
    inside[:, :1] = True
    return torch.zeros_like(inside).scatter_(1, order, inside)


def _renormalised(probs: Tensor, keep: Tensor) -> Tensor:
    kept_probs = probs.masked_fill(~keep, 0.0)
    return kept_probs / kept_probs.sum(-1, keepdim=True).clamp(min=1e-20)


def draw(probs: Tensor) -> Tensor:
    """Sample one column per row of probs [rows, V]. It is the argmax of p / noise, with Exponential(1) noise."""
    noise = torch.empty_like(probs, dtype=torch.float32).exponential_().clamp_(min=1e-10)
    return (probs.float() / noise).argmax(-1)


def _rows(probs: Tensor, indices: Tensor | None) -> Tensor:
    return probs if indices is None else probs[indices.to(torch.int64)]


@stands_for("sgl_kernel::top_p_renorm_probs", writes=("renorm_probs",))
def top_p_renorm(probs: Tensor, renorm_probs: Tensor, maybe_top_p_arr: Tensor | None, top_p_val: float) -> None:
    """Write to renorm_probs the probabilities of the most likely tokens up to a sum of p, rescaled to a sum of 1."""
    renorm_probs.copy_(_renormalised(probs.float(), keep_top_p(probs, _limit(maybe_top_p_arr, top_p_val, probs))))


@stands_for("sgl_kernel::top_k_mask_logits", writes=("mask_logits",))
def top_k_mask_logits(logits: Tensor, mask_logits: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int) -> None:
    """Write `logits` to `mask_logits`, with −inf outside the top k of each row."""
    keep = keep_top_k(logits, _limit(maybe_top_k_arr, top_k_val, logits))
    mask_logits.copy_(logits.masked_fill(~keep, -torch.inf))


@stands_for("aiter::top_k_renorm_probs", writes=())
def aiter_top_k_renorm(probs: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int) -> Tensor:
    """Return the probabilities of the k most likely tokens of each row, rescaled to a sum of one."""
    return _renormalised(probs.float(), keep_top_k(probs, _limit(maybe_top_k_arr, top_k_val, probs)))


@stands_for("sgl_kernel::min_p_sampling_from_probs", writes=("output",), random=True)
def sample_min_p(c: Call) -> None:
    """Write one sampled token per row to output, among those at least min_p times as likely as the most
    likely token.
    """
    rows = _rows(c.probs, c.maybe_indices).float()
    floor = _limit(c.maybe_min_p_arr, c.min_p_val, rows) * rows.amax(-1, keepdim=True)
    c.output.copy_(draw(_renormalised(rows, rows >= floor)))


def _fake_ids(probs: Tensor, indices: Tensor | None) -> Tensor:
    return probs.new_empty((probs.shape[0] if indices is None else indices.shape[0],), dtype=torch.int32)


@stands_for(
    "aiter::top_p_sampling_from_probs", "aiter::top_k_top_p_sampling_from_probs", writes=(), fake=_fake_ids, random=True
)
def sample_top_k_top_p(c: Call) -> Tensor:
    """Return tokens int32 [rows], sampled from the k most likely tokens.

    A sampled token is also among the most likely tokens whose probabilities add up to p.
    """
    rows = _rows(c.probs, c.indices).float()
    keep = keep_top_k(rows, _limit(getattr(c, "maybe_top_k_arr", None), getattr(c, "top_k_val", 0.0), rows))
    kept = _renormalised(rows, keep & keep_top_p(rows, _limit(c.maybe_top_p_arr, c.top_p_val, rows)))
    return draw(kept).to(torch.int32)


@stands_for("aiter::greedy_sample", writes=("out",))
def greedy_sample(out: Tensor, input: Tensor) -> None:
    """Write the argmax of each row of input [rows, V] to out [rows]."""
    out.copy_(input.argmax(-1).reshape(out.shape))


def _tempered(input: Tensor, temperatures: Tensor, eps: float) -> Tensor:
    return (input.float() / temperatures.float().reshape(-1, 1).clamp(min=eps)).softmax(-1)


@stands_for("aiter::random_sample", "aiter::_random_sample", writes=("out",), random=True)
@stands_for("aiter::random_sample_outer_exponential", writes=("out",))
def random_sample(c: Call) -> None:
    """Write columns sampled from softmax(input / temperature) to out [rows], with Exponential(1) noise if given."""
    exponentials = getattr(c, "exponentials", None)
    probs = _tempered(c.input, c.temperatures, c.eps)
    sampled = draw(probs) if exponentials is None else (probs / exponentials.float().clamp(min=c.eps)).argmax(-1)
    c.out.copy_(sampled.reshape(c.out.shape))


@stands_for("aiter::mixed_sample", "aiter::_mixed_sample", writes=("out",), random=True)
@stands_for("aiter::mixed_sample_outer_exponential", writes=("out",))
def mixed_sample(c: Call) -> None:
    """Write columns sampled as in random_sample to out. Rows with temperature 0 use the argmax of input."""
    exponentials = getattr(c, "exponentials", None)
    probs = _tempered(c.input, c.temperature, c.eps)
    drawn = draw(probs) if exponentials is None else (probs / exponentials.float().clamp(min=c.eps)).argmax(-1)
    cold = c.temperature.flatten() == 0
    c.out.copy_(torch.where(cold, c.input.argmax(-1), drawn).reshape(c.out.shape))


@stands_for("npu::npu_top_k_top_p", "_C_ascend::npu_apply_top_k_top_p")
def npu_top_k_top_p(logits: Tensor, p: Tensor | None, k: Tensor | None) -> Tensor:
    """Return logits [rows, V] with −inf outside the top k and outside the top p. Each row has its own k and p."""
    out = logits.clone()
    if k is not None:
        out = out.masked_fill(~keep_top_k(logits.float(), k.reshape(-1, 1)), -torch.inf)
    if p is not None:
        out = out.masked_fill(~keep_top_p(out.float().softmax(-1), p.float().reshape(-1, 1)), -torch.inf)
    return out


@stands_for("_C::apply_repetition_penalties_")
def apply_repetition_penalties(c: Call) -> None:
    """Penalise the logits [rows, V] of tokens that already occurred.

    Positive logits are divided by the row's penalty. All others are multiplied by it.
    """
    logits = c.logits
    penalty = c.repetition_penalties.reshape(-1, 1)
    turned = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits.copy_(torch.where(c.prompt_mask | c.output_mask, turned, logits))


def _allowed(bitmask: Tensor, vocabulary: int) -> Tensor:
    """Unpack the bits of int32 words, lowest bit first, to a bool mask [rows, vocabulary]."""
    shifts = torch.arange(32, device=bitmask.device, dtype=torch.int32)
    return ((bitmask.unsqueeze(-1) >> shifts) & 1).flatten(-2)[:, :vocabulary] != 0


@stands_for("sgl_kernel::apply_token_bitmask_inplace_cuda", writes=("logits",))
def apply_token_bitmask_inplace(logits: Tensor, bitmask: Tensor, indices: Tensor | None) -> None:
    """Set logits to −inf where the token's bit is 0.

    This concerns the rows in `indices`, or all rows if there is no `indices`.
    """
    allowed = _allowed(bitmask, logits.shape[-1])
    if indices is None:
        logits.masked_fill_(~allowed[: logits.shape[0]], -torch.inf)
        return
    rows = indices.to(torch.int64)
    logits[rows] = logits[rows].masked_fill(~allowed[rows], -torch.inf)


@stands_for("npu::apply_token_bitmask", writes=())
def apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor | None) -> Tensor:
    """Same as apply_token_bitmask_inplace, on a copy."""
    out = logits.clone()
    apply_token_bitmask_inplace(out, bitmask, indices)
    return out
