# pyright: strict
"""SGLang's Python ops `sglang::*` and the wrappers that its profiling patch records as `sglang_profiler::*`.

A wrapper records only the tensors of the function it wraps; the scalars are taken as that function's usual ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_aiter import mha_batch_prefill, paged_attention_ragged
from opreplay.replay.ops.attention.reference_vllm_layers import unified_attention_with_output
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import Weights, fused_experts
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.rope import rotate_by_position


@stands_for("sglang::store_cache")
def store_cache_reserved(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, reserved_skip_index: int
) -> None:
    """As store_cache; a token whose slot is the reserved one is not stored."""
    kept = indices != reserved_skip_index
    store_cache(k[kept], v[kept], k_cache, v_cache, indices[kept])


@stands_for("sglang::store_cache", lacking=("reserved_skip_index",))
def store_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor) -> None:
    """Rows of k, v [T, ..] into k_cache, v_cache [slots, ..] at indices [T]; num_split only tunes the kernel."""
    slots = indices.to(torch.int64)
    k_cache[slots] = k.reshape(k.shape[0], *k_cache.shape[1:]).to(k_cache.dtype)
    v_cache[slots] = v.reshape(v.shape[0], *v_cache.shape[1:]).to(v_cache.dtype)


@stands_for("sglang::apply_rope_inplace")
def apply_rope_inplace(q: Tensor, k: Tensor, cos_sin_cache: Tensor, positions: Tensor, is_neox: bool) -> None:
    """q, k [T, heads, head] rotated in place."""
    for tensor in (q, k):
        tensor.copy_(rotate_by_position(tensor, positions, cos_sin_cache, head_size=tensor.shape[-1], neox=is_neox))


@stands_for("sglang::unified_attention_with_output")
def sglang_unified_attention(query: Tensor, key: Tensor | None, value: Tensor | None, output: Tensor) -> None:
    """As `vllm::unified_attention_with_output`, with its assumptions; without a key the query stands for it."""
    key = query if key is None else key
    unified_attention_with_output(query, key, key if value is None else value, output)


def _outplace(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    activation: str,
    apply_router_weight_on_input: bool,
    use_int4_w4a16: bool,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    routed_scaling_factor: float | None,
    no_combine: bool = False,
) -> Tensor:
    """As `vllm::outplace_fused_experts`, times routed_scaling_factor; no_combine and 4-bit weights are refused."""
    if no_combine or use_int4_w4a16:
        raise ValueError("experts without the sum or with packed 4-bit weights are not implemented")
    found = fused_experts(
        hidden_states,
        Weights(w1, w2, w1_scale, w2_scale, b1, b2),
        topk_weights,
        topk_ids,
        gate_by_name(activation),
        weigh_input=apply_router_weight_on_input,
    )
    return found if routed_scaling_factor is None else found * routed_scaling_factor


def _inplace(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    activation: str,
    apply_router_weight_on_input: bool,
    use_int4_w4a16: bool,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    routed_scaling_factor: float | None,
) -> None:
    """As the out-of-place form; the result overwrites hidden_states."""
    found = _outplace(
        hidden_states,
        w1,
        w2,
        topk_weights,
        topk_ids,
        b1,
        b2,
        activation,
        apply_router_weight_on_input,
        use_int4_w4a16,
        w1_scale,
        w2_scale,
        routed_scaling_factor,
    )
    hidden_states.copy_(found)


def _like(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


stands_for("sglang::inplace_fused_experts")(_inplace)
stands_for(
    "sglang::outplace_fused_experts",
    fake=_like,
)(_outplace)


@stands_for("sglang_profiler::rmsnorm_rmsnorm2d_fwd")
def profiler_rmsnorm(input: Tensor, weight: Tensor) -> None:
    """rms_norm with epsilon 1e-6; the result is dropped."""
    rms_norm(input, weight, 1e-6)


@stands_for("sglang_profiler::rmsnorm_rmsnorm2d_fwd_with_add")
def profiler_add_rmsnorm(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor) -> None:
    """residual_out = input + residual_in; out = its norm with epsilon 1e-6."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, 1e-6)
    residual_out.copy_(total)
    out.copy_(normed)


@stands_for("sglang_profiler::utils__reshape_for_qk_norm")
def profiler_reshape(x: Tensor) -> None:
    """x [T, heads · head] made into rows [T · heads, head], copied if strided; a head of 128 is assumed."""
    x.reshape(-1, 128 if x.shape[-1] % 128 == 0 else x.shape[-1])


@stands_for("sglang_profiler::utils_apply_qk_norm")
def profiler_qk_norm(q: Tensor, k: Tensor) -> None:
    """RMS norm of the heads of q and k, heads of 128 assumed; the results are dropped."""
    for tensor in (q, k):
        rms_norm(tensor.reshape(-1, 128 if tensor.shape[-1] % 128 == 0 else tensor.shape[-1]), None, 1e-6)


@stands_for("sglang_profiler::memory_pool__set_kv_buffer_impl")
def profiler_set_kv_buffer(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor) -> None:
    """As `sglang::store_cache`."""
    store_cache(k, v, k_cache, v_cache, indices)


@stands_for("sglang_profiler::mha__mha_batch_prefill")
def profiler_batch_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    kv_indptr: Tensor,
    kv_page_indices: Tensor,
    alibi_slopes: Tensor | None,
    out: Tensor | None,
    kv_last_page_lens: Tensor | None,
    seqlen_k: Tensor | None,
    sink_ptr: Tensor | None,
) -> None:
    """As `aiter::mha_batch_prefill`, causal, scale 1/√D."""
    mha_batch_prefill(
        q,
        k,
        v,
        cu_seqlens_q,
        kv_indptr,
        kv_page_indices,
        0.0,
        q.shape[-1] ** -0.5,
        0.0,
        True,
        -1,
        -1,
        False,
        out,
        alibi_slopes,
        kv_last_page_lens=kv_last_page_lens,
        seqlen_k=seqlen_k,
        sink_ptr=sink_ptr,
    )


@stands_for("sglang_profiler::attention_paged_attention_ragged")
def profiler_paged_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_indptr: Tensor,
    kv_page_indices: Tensor,
    kv_last_page_lens: Tensor,
    alibi_slopes: Tensor | None,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """As `aiter::paged_attention_ragged`, scale 1/√D; a cache [slots, 1, Hkv, D] or [slots, Hkv, D]."""
    paged_attention_ragged(
        out,
        query,
        key_cache,
        value_cache,
        query.shape[-1] ** -0.5,
        kv_indptr,
        kv_page_indices,
        kv_last_page_lens,
        alibi_slopes,
        "",
        "",
        0.0,
        k_scale,
        v_scale,
    )


@stands_for(
    "sglang_profiler::forward_batch_info_compute_position",
    "sglang_profiler::forward_batch_info_compute_position_triton",
)
def profiler_compute_position(extend_prefix_lens: Tensor, extend_seq_lens: Tensor) -> None:
    """Positions prefix .. prefix + new − 1 of each sequence, one after the other; the result is dropped."""
    lengths = extend_seq_lens.to(torch.int64).clamp(min=0)
    start = lengths.cumsum(0) - lengths
    shift = torch.repeat_interleave(extend_prefix_lens.to(torch.int64) - start, lengths)
    torch.arange(int(lengths.sum()), device=lengths.device).add_(shift)
