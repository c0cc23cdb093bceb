# pyright: strict
"""SGLang's attention, and what its profiling patch records of it as `sglang_profiler::*`.

A wrapper of the patch records only the tensors of its function; the scalars are taken as that function's usual ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_aiter import mha_batch_prefill, paged_attention_ragged
from opreplay.replay.ops.attention.reference_vllm import merge_attn_states
from opreplay.replay.ops.attention.reference_vllm_layers import unified_attention_with_output
from opreplay.replay.ops.declared import stands_for


@stands_for("sgl_kernel::merge_state_v2")
def merge_state_v2(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor) -> None:
    """Join two partial attentions [T, H, D] by their natural log-sum-exps [T, H]."""
    merge_attn_states(v_merged, s_merged.t(), v_a, s_a.t(), v_b, s_b.t())


@stands_for("sgl_kernel::merge_state")
def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor) -> None:
    """The same of FlashInfer, whose log-sum-exps are to base 2."""
    merge_state_v2(v_a, s_a * math.log(2), v_b, s_b * math.log(2), v_merged, s_merged)
    s_merged.div_(math.log(2))


@stands_for("sglang::unified_attention_with_output")
def sglang_unified_attention(query: Tensor, key: Tensor | None, value: Tensor | None, output: Tensor) -> None:
    """As `vllm::unified_attention_with_output`, with its assumptions; without a key the query stands for it."""
    key = query if key is None else key
    unified_attention_with_output(query, key, key if value is None else value, output)


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
