# pyright: strict
"""vLLM's opaque layer ops: `unified_attention*`, `unified_kv_cache_update`, `moe_forward*`, `unified_mla_attention*`.

The real ops find weights, cache and lengths through a layer name, in a context that traces do not record. These
replacements do similar dense work with their tensor arguments only. Each docstring lists the assumptions, and so does
docs/vendor-ops.md. Empty and unknown layer names are accepted.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.invented import assumed_topk, current_sizes
from opreplay.replay.ops.maths.activations import gated
from opreplay.replay.ops.maths.attention import Rules, attend_packed
from opreplay.replay.ops.maths.batch_layout import current_layout
from opreplay.replay.ops.maths.experts import by_expert
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.routing import choose


def _history(x: Tensor, start: int, new: int, total: int) -> Tensor:
    """Return `total` rows, the last of which are x[start : start + new].

    Repeated rows of x take the place of the cached rows before them.
    """
    if total == new:
        return x[start : start + new]
    index = torch.arange(start + new - total, start + new, device=x.device) % x.shape[0]
    return x.index_select(0, index)


def attend_batch(query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the causal attention [T, H, Dv] of a batch in `dtype`.

    query is [T, H, D], key [T, Hkv, D] and value [T, Hkv, Dv]. The sequence lengths come from
    `batch_layout.current_layout`; the scale is 1/√D.
    """
    layout = current_layout(query.shape[0])
    rules = Rules(scale=query.shape[-1] ** -0.5, causal=True)
    bounds = [0]
    pairs: list[tuple[Tensor, Tensor]] = []
    for new, total in zip(layout.query_lens, layout.kv_lens, strict=True):
        pairs.append((_history(key, bounds[-1], new, total), _history(value, bounds[-1], new, total)))
        bounds.append(bounds[-1] + new)
    return attend_packed(query.to(dtype), pairs, bounds, rules)[0]


def _heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors as [T, H, D].

    A tensor [T, H · D] becomes a single head, because the head size is not recorded.
    """
    return tuple(x if x.dim() == 3 else x.reshape(x.shape[0], 1, -1) for x in (query, key, value))  # type: ignore[return-value]


_LENGTHS = "no sliding window and no sinks; keys and values of earlier tokens are copied from the tokens of the call"
_LATENT = "without the layer's own projections: all heads share one latent head"
_EXPERTS = (
    "top-k 2 of up to 8 experts, 4 of up to 64, 8 of more, unless `moe_routing.top_k` is set",
    "one pair of matrices for all experts; their intermediate size is the hidden size unless the recorded time or the "
    "user limits it",
)


@stands_for("vllm::unified_attention_with_output", assumes=(_LENGTHS,))
def unified_attention_with_output(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, output_scale: Tensor | None = None
) -> None:
    """Write causal attention of the batch to output [T, H, D].

    The sequence lengths are assumed to be those of the active `batch_layout`. If no layout is active, all T tokens are
    assumed to form one sequence. No window and no sinks are assumed. If there are fewer key rows than query rows, as in
    a cache shared with another layer, the key rows repeat.
    """
    q, k, v = _heads(query, key, value)
    wide = torch.bfloat16 if output.dtype.itemsize == 1 else output.dtype
    if k.shape[0] < q.shape[0]:
        rows = torch.arange(q.shape[0], device=q.device) % max(k.shape[0], 1)
        k, v = k.index_select(0, rows), v.index_select(0, rows)
    attended = attend_batch(q, k[: q.shape[0]], v[: q.shape[0]], wide)
    if output_scale is not None:
        attended = attended.float() / output_scale
    output.copy_(attended.reshape(output.shape))


def _fake_attention(query: Tensor, value: Tensor) -> Tensor:
    return query.new_empty(query.shape if query.dim() != 3 else (*query.shape[:-1], value.shape[-1]))


@stands_for("vllm::unified_attention", fake=_fake_attention, assumes=(_LENGTHS,))
def unified_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal attention of the batch, with the assumptions of unified_attention_with_output."""
    out = _fake_attention(query, value)
    unified_attention_with_output(query, key, value, out)
    return out


def _fake_empty(key: Tensor) -> Tensor:
    return key.new_empty((0,))


@stands_for("vllm::unified_kv_cache_update", fake=_fake_empty, assumes=("written to separate memory",))
def unified_kv_cache_update(key: Tensor, value: Tensor) -> Tensor:
    """Write key and value [T, Hkv, D] once, to separate memory instead of the layer's cache.

    Returns an empty tensor, whose only purpose is to make the attention run after this op.
    """
    torch.stack((key, value)) if key.shape == value.shape else (key.clone(), value.clone())
    return key.new_empty((0,))


def _fake_mla(q: Tensor, kv_c_normed: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], kv_c_normed.shape[-1]))


@stands_for("vllm::unified_mla_attention", fake=_fake_mla, assumes=(_LENGTHS, _LATENT))
def unified_mla_attention(q: Tensor, kv_c_normed: Tensor, k_pe: Tensor) -> Tensor:
    """Return the attention [T, H, rank] of q [T, H, D] over a single latent head.

    The keys are kv_c_normed and k_pe, concatenated and padded or cut to D. The values are kv_c_normed.
    """
    latent = torch.cat((kv_c_normed, k_pe.reshape(k_pe.shape[0], -1)), dim=-1)
    width = q.shape[-1]
    key = F.pad(latent, (0, max(0, width - latent.shape[-1])))[:, :width]
    return attend_batch(q, key.unsqueeze(1), kv_c_normed.unsqueeze(1), q.dtype)


@stands_for("vllm::unified_mla_attention_with_output", assumes=(_LENGTHS, _LATENT))
def unified_mla_attention_with_output(q: Tensor, kv_c_normed: Tensor, k_pe: Tensor, output: Tensor) -> None:
    """Do the same as unified_mla_attention, and cut the rows to the output's width.

    The layer's up-projection is left out.
    """
    attended = unified_mla_attention(q, kv_c_normed, k_pe).flatten(1)
    rows = output.reshape(output.shape[0], -1)
    width = min(rows.shape[1], attended.shape[1])
    rows[:, :width] = attended[:, :width].to(rows.dtype)
    output.copy_(rows.reshape(output.shape))


@lru_cache(maxsize=1)
def _shared_expert(width: int, inner: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the single pair of matrices, [2I, H] and [H, I], used for every expert."""
    scale = width**-0.5
    return (
        torch.full((2 * inner, width), scale, dtype=dtype, device=device),
        torch.full((width, inner), scale, dtype=dtype, device=device),
    )


def _inner(width: int) -> int:
    sizes = current_sizes()
    return width if sizes is None else sizes.intermediate


def _experts(hidden: Tensor, logits: Tensor) -> Tensor:
    flat, scores = hidden.reshape(-1, hidden.shape[-1]), torch.softmax(logits.float(), dim=-1)
    scores = scores.reshape(-1, scores.shape[-1])
    sizes = current_sizes()
    if sizes is not None:
        scores = scores[:, : sizes.experts]
    topk = assumed_topk(scores.shape[-1]) if sizes is None else min(sizes.top_k, scores.shape[-1])
    weights, ids = choose(scores, topk, renormalize=True)
    order, starts = by_expert(ids, scores.shape[-1])
    up, down = _shared_expert(hidden.shape[-1], _inner(hidden.shape[-1]), hidden.device, hidden.dtype)
    token = order // topk
    out = torch.zeros(flat.shape, dtype=torch.float32, device=flat.device)
    factor = weights.flatten()[order].unsqueeze(1)
    for start, stop in pairwise(starts):
        if start < stop:
            rows = flat.index_select(0, token[start:stop])
            result = linear(gated(linear(rows, up), F.silu), down)
            out.index_add_(0, token[start:stop], result.float() * factor[start:stop])
    return out.to(hidden.dtype).reshape(hidden.shape)


def _fake_hidden(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


def _fake_two(hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    return _fake_hidden(hidden_states), _fake_hidden(hidden_states)


@stands_for("vllm::moe_forward", fake=_fake_hidden, assumes=_EXPERTS)
def moe_forward(hidden_states: Tensor, router_logits: Tensor) -> Tensor:
    """Compute a mixture of experts from hidden_states [T, H] and router_logits [T, E].

    Assumed are 16-bit weights, softmax routing to `assumed_topk(E)` experts per token, and SwiGLU with intermediate
    size H. `current_sizes()` can override the number of experts per token and the intermediate size. All experts share
    one pair of matrices, so only a fraction of the real weights' memory is read.
    """
    return _experts(hidden_states, router_logits)


@stands_for("vllm::moe_forward_shared", fake=_fake_two, assumes=_EXPERTS)
def moe_forward_shared(hidden_states: Tensor, router_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return (shared expert's output, routed experts' output), with the assumptions of moe_forward."""
    width = hidden_states.shape[-1]
    up, down = _shared_expert(width, _inner(width), hidden_states.device, hidden_states.dtype)
    shared = linear(gated(linear(hidden_states, up), F.silu), down)
    return shared, _experts(hidden_states, router_logits)
