# pyright: strict
"""SGLang's attention ops, and the attention calls that its profiling patch records as `sglang_profiler::*`.

The patch records only the tensors of a function. The scalars are assumed to have their usual values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_aiter import mha_batch_prefill, paged_attention_ragged
from opreplay.replay.ops.attention.reference_vllm import merge_attn_states
from opreplay.replay.ops.attention.reference_vllm_layers import unified_attention_with_output
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for


@stands_for("sgl_kernel::merge_state_v2")
def merge_state_v2(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor) -> None:
    """Merge two partial attentions [T, H, D] by their natural log-sum-exps [T, H]."""
    merge_attn_states(
        Call(
            output=v_merged,
            output_lse=s_merged.t(),
            prefix_output=v_a,
            prefix_lse=s_a.t(),
            suffix_output=v_b,
            suffix_lse=s_b.t(),
        )
    )


@stands_for("sgl_kernel::merge_state")
def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor) -> None:
    """Merge two partial attentions as `merge_state_v2` does, but with log-sum-exps to base 2, as FlashInfer
    has them.
    """
    merge_state_v2(v_a, s_a * math.log(2), v_b, s_b * math.log(2), v_merged, s_merged)
    s_merged.div_(math.log(2))


@stands_for("sglang::unified_attention_with_output")
def sglang_unified_attention(query: Tensor, key: Tensor | None, value: Tensor | None, output: Tensor) -> None:
    """Do the same as `vllm::unified_attention_with_output`, with the same assumptions. If there is no key, the query is
    used as key. If there is no value, the key is used as value.
    """
    key = query if key is None else key
    unified_attention_with_output(query, key, key if value is None else value, output)


@stands_for("sglang_profiler::mha__mha_batch_prefill")
def profiler_batch_prefill(c: Call) -> None:
    """Compute causal attention over paged keys and values with scale 1/√D, as `aiter::mha_batch_prefill` does."""
    mha_batch_prefill(
        with_changes(
            c,
            dropout_p=0.0,
            softmax_scale=c.q.shape[-1] ** -0.5,
            logits_soft_cap=0.0,
            is_causal=True,
            window_size_left=-1,
            window_size_right=-1,
            return_softmax_lse=False,
        )
    )


@stands_for("sglang_profiler::attention_paged_attention_ragged")
def profiler_paged_attention(c: Call) -> None:
    """Compute paged decode attention with scale 1/√D over caches [slots, 1, Hkv, D] or [slots, Hkv, D]."""
    paged_attention_ragged(
        with_changes(c, scale=c.query.shape[-1] ** -0.5, kv_cache_dtype="", kv_cache_layout="", logits_soft_cap=0.0)
    )


@stands_for(
    "sglang_profiler::forward_batch_info_compute_position",
    "sglang_profiler::forward_batch_info_compute_position_triton",
)
def profiler_compute_position(extend_prefix_lens: Tensor, extend_seq_lens: Tensor) -> None:
    """Compute the positions of the new tokens, concatenated over all sequences.

    The positions of a sequence are prefix to prefix + new − 1. The result is discarded.
    """
    lengths = extend_seq_lens.to(torch.int64).clamp(min=0)
    start = lengths.cumsum(0) - lengths
    shift = torch.repeat_interleave(extend_prefix_lens.to(torch.int64) - start, lengths)
    torch.arange(int(lengths.sum()), device=lengths.device).add_(shift)
