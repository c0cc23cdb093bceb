"""Lowering of attention: torch's fused variants, flash-attention, vLLM, SGLang, aiter and torch_npu names."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.registry import lowers
from opreplay.replay.ascend.lowering.view import OpView, is_contiguous, kernel, spec, strided_copy
from opreplay.traces.model import TensorMeta

ASSUMED_CONTEXT = 1024
"""Tokens of context taken for paged attention when the trace does not say."""


def _three(op: OpView, at: int = 0) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    q = op.meta("query", "q", "Q", at=at)
    k = op.meta("key", "k", "K", "key_cache", "kcache", "k_cache", at=at + 1)
    v = op.meta("value", "v", "V", "value_cache", "vcache", "v_cache", at=at + 2)
    if q is None or k is None or v is None:
        raise ValueError("attention needs query, key and value")
    return q, k, v


def _call(
    op: OpView, kind: str, qkv: tuple[TensorMeta, TensorMeta, TensorMeta], rows: int, pairs: float, kv_bytes: float = -1
) -> KernelCall:
    q, _, v = qkv
    inputs = [spec(t.shape, t.dtype) for t in qkv]
    outputs = op.outputs(spec((*q.shape[:-1], v.shape[-1]), q.dtype))
    attrs: dict[str, int | float | bool | str | tuple[int, ...]] = {
        "pairs": float(pairs), "rows": rows, "head_dim": q.shape[-1], "value_dim": v.shape[-1],
    }  # fmt: skip
    if kv_bytes >= 0:
        attrs["moved_bytes"] = 4.0 * prod(q.shape) + kv_bytes
    return KernelCall(type=kind, inputs=tuple(inputs), outputs=outputs, attrs=attrs)


def _heads_second(op: OpView, kind: str, at: int = 0) -> list[KernelCall]:
    """Query (B, H, S, D)."""
    q, k, v = _three(op, at)
    rows = prod(q.shape[:-1])
    pairs = rows * k.shape[-2] * (0.5 if op.flag("is_causal", "causal") and q.shape[-2] > 1 else 1.0)
    return [*_fix_ups(op, (q, k, v)), _call(op, kind, (q, k, v), rows, pairs)]


def _fix_ups(op: OpView, tensors: Iterable[TensorMeta]) -> list[KernelCall]:
    # Head and sequence dimensions may lie in either order (layouts BNSD and BSND); only a scattered head dim is copied.
    return [strided_copy(t) for t in tensors if t.strides and t.strides[-1] != 1 and not is_contiguous(t)]


def _heads_third(op: OpView, kind: str, at: int = 0) -> list[KernelCall]:
    """Query (B, S, H, D), or packed (T, H, D) with cumulative lengths."""
    q, k, v = _three(op, at)
    causal = op.flag("is_causal", "causal") or op.integer("custom_mask_type", default=0) > 0
    half = 0.5 if causal else 1.0
    if len(q.shape) == 4 and op.number("max_seqlen_q", "max_q") is None:
        rows = prod(q.shape[:-1])
        pairs = rows * k.shape[1] * (half if q.shape[1] > 1 else 1.0)
    else:
        cumulative = op.meta("cu_seqlens_q", "cum_seq_q", "cu_seqlens_k", "cum_seq_k", "seqstart_q")
        heads, tokens = q.shape[-2], prod(q.shape[:-2])
        sequences = max(1, cumulative.shape[0] - 1) if cumulative is not None and cumulative.shape else 1
        longest = op.number("max_seqlen_k", "max_k", "max_seqlen_kv") or tokens / sequences
        average = min(longest, prod(k.shape[:-2]) / sequences) if len(k.shape) == 3 else longest
        if sequences > 1:
            op.note(f"{sequences} packed sequences taken as equally long")
        rows, pairs = tokens * heads, tokens * heads * average * (half if tokens > sequences else 1.0)
    return [*_fix_ups(op, (q, k, v)), _call(op, kind, (q, k, v), rows, pairs)]


@lowers(
    "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable", "aten::_scaled_dot_product_attention_math",
    "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_fused_sdp_choice",
)  # fmt: skip
def heads_second(op: OpView) -> Iterable[KernelCall]:
    """(B, H, S, D) forward."""
    return () if op.op.name.endswith("_fused_sdp_choice") else _heads_second(op, "FlashAttentionScore")


@lowers(
    "aten::_scaled_dot_product_flash_attention_backward", "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip
def heads_second_backward(op: OpView) -> Iterable[KernelCall]:
    """(B, H, S, D) backward; the gradient comes first."""
    return _heads_second(op, "FlashAttentionScoreGrad", at=1)


@lowers(
    "aten::_flash_attention_forward", "aten::_efficient_attention_forward", "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward", "flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward",
    "_vllm_fa2_C::fwd", "aiter::fmha_v3_fwd", "aiter::mha_fwd", "aiter::_flash_attn_forward",
    "aiter::fmha_v3_varlen_fwd",
    "aiter::mha_varlen_fwd", "xformers::efficient_attention_forward_ck", "xformers_flash::flash_fwd",
    "aten::_cudnn_attention_forward", "aiter::_flash_attn_varlen_forward",
)  # fmt: skip
def heads_third(op: OpView) -> Iterable[KernelCall]:
    """(B, S, H, D) or packed, forward."""
    return _heads_third(op, "FlashAttentionScore")


@lowers(
    "aten::_flash_attention_backward", "aten::_efficient_attention_backward", "flash_attn::_flash_attn_backward",
    "flash_attn::_flash_attn_varlen_backward", "flash_attn_3::bwd", "aiter::fmha_v3_bwd", "aiter::mha_bwd",
    "aiter::_flash_attn_backward", "aiter::mha_varlen_bwd", "aiter::fmha_v3_varlen_bwd", "xformers_flash::flash_bwd",
    "aiter::_flash_attn_varlen_backward",
)  # fmt: skip
def heads_third_backward(op: OpView) -> Iterable[KernelCall]:
    """(B, S, H, D) or packed, backward."""
    return _heads_third(op, "FlashAttentionScoreGrad", at=1)


@lowers("npu::npu_fusion_attention", "npu::npu_fusion_attention_v2", "npu::npu_fusion_attention_v3")
def npu_training(op: OpView) -> Iterable[KernelCall]:
    """torch_npu's training attention; the layout ("BSH", "SBH", ...) is a string and is not recorded."""
    return [_npu(op, "FlashAttentionScore")]


@lowers("npu::npu_fusion_attention_grad", "npu::npu_fusion_attention_grad_v2")
def npu_training_backward(op: OpView) -> Iterable[KernelCall]:
    """Its backward."""
    return [_npu(op, "FlashAttentionScoreGrad")]


def _npu(op: OpView, kind: str) -> KernelCall:
    q, k, v = _three(op)
    heads = op.integer("head_num", "num_heads", default=1)
    if len(q.shape) == 4:
        rows, kv_length, dim = prod(q.shape[:-1]), k.shape[-2], q.shape[-1]
        if q.shape[1] != heads and q.shape[2] == heads:
            kv_length = k.shape[1]
    elif len(q.shape) == 3 and q.shape[1] == heads:
        rows, kv_length, dim = prod(q.shape[:2]), k.shape[0], q.shape[2]
    else:
        batch, length = sorted(q.shape[:2])
        op.note(f"layout not recorded: taken as batch {batch}, length {length}")
        rows, kv_length, dim = batch * length * heads, max(k.shape[:2]), q.shape[-1] // heads
    causal = op.integer("sparse_mode", default=0) in (2, 3, 4) or op.meta("atten_mask") is not None
    pairs = rows * kv_length * (0.5 if causal and rows > heads else 1.0)
    inputs = [spec(t.shape, t.dtype) for t in (q, k, v)]
    outputs = op.outputs(spec(q.shape, q.dtype))
    return kernel(kind, inputs, outputs, pairs=float(pairs), rows=rows, head_dim=dim)


@lowers(
    "vllm::unified_attention", "vllm::unified_attention_with_output", "vllm::unified_mla_attention",
    "vllm::unified_mla_attention_with_output", "_C::paged_attention_v1", "_C::paged_attention_v2",
    "_rocm_C::paged_attention", "_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd", "aiter::mha_batch_prefill",
    "aiter::paged_attention_rocm", "aiter::paged_attention_v1", "aiter::pa_fwd_asm", "aiter::unified_attention",
    "sgl_kernel::fwd", "npu::npu_fused_infer_attention_score", "npu::npu_incre_flash_attention",
    "npu::npu_prompt_flash_attention", "npu::_npu_paged_attention", "npu::npu_fused_infer_attention_score_v2",
    "npu::_npu_flash_attention", "vllm::unified_ascend_attention_with_output", "sgl_kernel::flash_mla_with_kvcache",
    "sglang::unified_attention_with_output", "aiter::mla_decode_fwd", "sgl_kernel::cutlass_mla_decode",
)  # fmt: skip
def paged(op: OpView) -> Iterable[KernelCall]:
    """Attention over a paged cache: lengths are contents and are not recorded, so a context is assumed."""
    q = op.meta("query", "q", "Q")
    if q is None:
        q = next(t for t in op.tensors if len(t.shape) >= 3)
    k = op.meta("key", "k", "key_cache", "K", "kcache")
    k = k if k is not None and len(k.shape) >= 2 else q
    heads = q.shape[-2] if len(q.shape) >= 3 else op.integer("num_heads", "num_kv_heads", default=32)
    dim = q.shape[-1] if len(q.shape) >= 3 else max(1, prod(q.shape[-1:]) // heads)
    tokens = prod(q.shape) // max(1, heads * dim)
    context = op.number("max_seq_len", "max_seqlen_k", "max_model_len", "max_k")
    lengths = op.meta("seq_lens", "context_lens", "seqused_k", "actual_seq_lengths_kv", "cache_seqlens")
    sequences = lengths.shape[0] if lengths is not None and lengths.shape else min(tokens, 256)
    if context is None:
        prompt = tokens > 1024
        context = float(max(ASSUMED_CONTEXT, tokens)) if prompt else float(ASSUMED_CONTEXT)
        sequences = max(1, tokens // int(context)) if prompt else sequences
        op.note(f"context lengths are not recorded: {context:.0f} tokens assumed for {sequences} sequences")
    new = tokens / max(1, sequences)
    pairs = tokens * heads * (context - new / 2 if context > new else context / 2)
    kv_heads = k.shape[-2] if len(k.shape) >= 3 else heads
    cache = sequences * context * 2 * min(kv_heads, heads) * dim * 2
    inputs = [spec((tokens, heads, dim), q.dtype)] * 1
    out = spec((tokens, heads, dim), q.dtype)
    call = kernel(
        "FusedInferAttentionScore", inputs, [out], pairs=float(pairs), rows=tokens * heads, head_dim=dim,
        moved_bytes=float(cache + 4 * prod(out.shape)),
    )  # fmt: skip
    return [call]
