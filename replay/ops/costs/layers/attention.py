# pyright: strict
"""Lowering of dense and packed attention: torch's fused variants, flash-attention, aiter and torch_npu's training ops.

Attention over a paged cache is in `paged`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.products.matmul import product
from opreplay.replay.ops.op_view import OpView, is_contiguous, kernel, length, spec, strided_copy, without_expanded
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

FROM_FIRST_KEY = 1
"""Value of `custom_mask_type` in xformers and torch for a causal mask aligned to the first key.

Value 2 means a causal mask aligned to the last key.
"""


def _three(op: OpView, at: int = 0) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    q = op.need("query", "q", "Q", at=at, rank=2)
    k = op.need("key", "k", "K", "key_cache", "kcache", "k_cache", at=at + 1, rank=2)
    v = op.need("value", "v", "V", "value_cache", "vcache", "v_cache", at=at + 2, rank=2)
    return q, k, v


def _call(
    op: OpView, kind: str, qkv: tuple[TensorMeta, TensorMeta, TensorMeta], rows: int, pairs: float, kv_bytes: float = -1
) -> KernelCall:
    q, _, v = qkv
    inputs = [spec(t.shape, t.dtype) for t in qkv]
    outputs = op.outputs(spec((*q.shape[:-1], v.shape[-1]), q.dtype))
    attrs: dict[str, int | float | bool | str | tuple[int, ...]] = {
        "pairs": max(0.0, float(pairs)),
        "rows": rows,
        "head_dim": q.shape[-1],
        "value_dim": v.shape[-1],
    }
    if kv_bytes >= 0:
        attrs["moved_bytes"] = 4.0 * prod(q.shape) + kv_bytes
    return KernelCall(type=kind, inputs=tuple(inputs), outputs=outputs, attrs=attrs)


def visible(queries: float, keys: float, *, causal: bool, from_end: bool, window: float | None = None) -> float:
    """Return the number of (query, key) pairs of one head and sequence in which the query sees the key.

    A causal mask is aligned to the first key or, with `from_end`, to the last key. `window` is the maximum number of
    keys that a query sees.
    """
    both = queries * keys
    if causal:
        both = max(0.0, queries * (keys - (queries - 1) / 2)) if from_end else queries * (queries + 1) / 2
        if from_end and queries > keys:
            both = keys * (keys + 1) / 2
        elif not from_end and queries > keys:
            both = keys * (keys + 1) / 2 + (queries - keys) * keys
    return both if window is None else min(both, queries * window)


def _window(op: OpView) -> float | None:
    """Return the maximum number of keys that a query attends to, or None without a sliding window."""
    keys_before = op.integer("window_size_left", "window_left", default=-1)
    keys_after = op.integer("window_size_right", "window_right", default=-1)
    if keys_before < 0:
        return None
    causal = op.flag("is_causal", "causal")
    return keys_before + 1.0 if causal or keys_after < 0 else keys_before + keys_after + 1.0


def _heads_second(op: OpView, kind: str, at: int = 0) -> list[KernelCall]:
    """Return the kernels of attention with query (B, H, S, D). torch's causal mask is aligned to the first key."""
    q, k, v = _three(op, at)
    rows = prod(q.shape[:-1])
    queries, causal = max(1, q.shape[-2]), op.flag("is_causal", "causal")
    pairs = rows / queries * visible(queries, k.shape[-2], causal=causal and queries > 1, from_end=False)
    call = _call(op, kind, (q, k, v), rows, pairs)
    if (mask := op.meta("attn_mask", "attn_bias")) is not None:
        moved = [*call.inputs, *call.outputs, spec(without_expanded(mask), mask.dtype)]
        moved_bytes = sum(prod(s.shape) * itemsize(s.dtype) for s in moved if s is not None)
        call = msgspec.structs.replace(call, attrs={**call.attrs, "moved_bytes": moved_bytes})
    return [*_fix_ups(op, (q, k, v)), call]


def _fix_ups(op: OpView, tensors: Iterable[TensorMeta]) -> list[KernelCall]:
    # Head and sequence dimensions may lie in either order (layouts BNSD and BSND); only a scattered head dim is copied.
    return [strided_copy(t) for t in tensors if t.strides and t.strides[-1] != 1 and not is_contiguous(t)]


def _heads_third(op: OpView, kind: str, at: int = 0) -> list[KernelCall]:
    """Return the kernels of attention with query (B, S, H, D), or packed (T, H, D) with cumulative lengths."""
    q, k, v = _three(op, at)
    mask = op.integer("custom_mask_type", default=0)
    causal = op.flag("is_causal", "causal") or mask > 0
    window, from_end = _window(op), mask != FROM_FIRST_KEY
    cumulative = op.meta("cu_seqlens_q", "cum_seq_q", "cu_seqlens_k", "cum_seq_k", "seqstart_q")
    if len(q.shape) == 4 and (cumulative is None or q.shape[0] > 1):
        rows, queries = prod(q.shape[:-1]), max(1, q.shape[1])
        met = visible(queries, k.shape[1], causal=causal and queries > 1, from_end=from_end, window=window)
        pairs = rows / queries * met
    else:
        heads, tokens = q.shape[-2], prod(q.shape[:-2])
        sequences = max(1, length(cumulative) - 1)
        longest = op.number("max_seqlen_k", "max_k", "max_seqlen_kv") or tokens / sequences
        average = min(longest, prod(k.shape[:-2]) / sequences)
        if sequences > 1:
            op.note(f"{sequences} packed sequences, assumed to be equally long")
        each = tokens / sequences
        met = visible(each, average, causal=causal and tokens > sequences, from_end=from_end, window=window)
        rows, pairs = tokens * heads, sequences * heads * met
    return [*_fix_ups(op, (q, k, v)), _call(op, kind, (q, k, v), rows, pairs)]


@costs(
    """
        aten::scaled_dot_product_attention aten::_scaled_dot_product_flash_attention
        aten::_scaled_dot_product_efficient_attention aten::_scaled_dot_product_cudnn_attention
        aten::_scaled_dot_product_fused_attention_overrideable aten::_scaled_dot_product_attention_math
        aten::_scaled_dot_product_flash_attention_for_cpu aten::_fused_sdp_choice
        aten::_scaled_dot_product_attention_math_for_mps aten::_triton_scaled_dot_attention
    """
)
def heads_second(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of forward attention in layout (B, H, S, D)."""
    return () if op.op.name.endswith("_fused_sdp_choice") else _heads_second(op, "FlashAttentionScore")


@costs(
    """
        aten::_scaled_dot_product_flash_attention_backward aten::_scaled_dot_product_efficient_attention_backward
        aten::_scaled_dot_product_cudnn_attention_backward aten::_cudnn_attention_backward
        aten::_scaled_dot_product_fused_attention_overrideable_backward
        aten::_scaled_dot_product_flash_attention_for_cpu_backward
    """
)
def heads_second_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of backward attention in layout (B, H, S, D); the gradient is the first argument."""
    return _heads_second(op, "FlashAttentionScoreGrad", at=1)


@costs(
    """
        aten::_flash_attention_forward aten::_efficient_attention_forward aten::_cudnn_attention_forward
        aten::_flash_attention_forward_no_dropout_inplace
    """
)
def heads_third(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of forward attention in layout (B, S, H, D) or packed."""
    return _heads_third(op, "FlashAttentionScore")


@costs("aten::_flash_attention_backward aten::_efficient_attention_backward")
def heads_third_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of backward attention in layout (B, S, H, D) or packed."""
    return _heads_third(op, "FlashAttentionScoreGrad", at=1)


def npu_training(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of torch_npu's training attention. The layout ("BSH", "SBH", ...) is not recorded."""
    return [_npu(op, "FlashAttentionScore")]


def npu_training_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the backward kernel of torch_npu's training attention."""
    return [_npu(op, "FlashAttentionScoreGrad")]


def _npu(op: OpView, kind: str) -> KernelCall:
    q, k, v = _three(op)
    heads = max(1, op.integer("head_num", "num_heads", default=1))
    if len(q.shape) == 4:
        rows, kv_length, dim = prod(q.shape[:-1]), k.shape[-2], q.shape[-1]
        if q.shape[1] != heads and q.shape[2] == heads:
            kv_length = k.shape[1]
    elif len(q.shape) == 3 and q.shape[1] == heads:
        rows, kv_length, dim = prod(q.shape[:2]), k.shape[0], q.shape[2]
    else:
        batch, length = sorted(q.shape[:2])
        op.note(f"layout not recorded: assumed to be batch {batch}, length {length}")
        rows, kv_length, dim = batch * length * heads, max(k.shape[:2]), q.shape[-1] // heads
    causal = op.integer("sparse_mode", default=0) in (2, 3, 4) or op.meta("atten_mask") is not None
    pairs = rows * kv_length * (0.5 if causal and rows > heads else 1.0)
    inputs = [spec(t.shape, t.dtype) for t in (q, k, v)]
    outputs = op.outputs(spec(q.shape, q.dtype))
    return kernel(kind, inputs, outputs, pairs=max(0.0, float(pairs)), rows=max(0, rows), head_dim=max(0, dim))


@costs("aten::_native_multi_head_attention aten::_transformer_encoder_layer_fwd")
def whole_layer(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of a torch.nn layer: attention with its matrix products.

    For an encoder layer, both norms and the feed-forward products are included.
    """
    x, weight = op.need("query", "src", at=0, rank=3), op.need("qkv_weight", rank=2)
    heads, width, rows = max(1, op.integer("num_head", "num_heads", default=1)), x.shape[-1], prod(x.shape[:-1])
    q = TensorMeta(shape=(x.shape[0], heads, x.shape[1], max(1, width // heads)), dtype=x.dtype)
    pairs = float(rows * heads * x.shape[1])
    full = spec((rows, width), x.dtype)
    tokens = TensorMeta(shape=full.shape, dtype=x.dtype)
    kernels = [
        product(op, tokens, weight, weight=True),
        _call(op, "FlashAttentionScore", (q, q, q), rows * heads, pairs),
    ]
    if (out := op.meta("proj_weight")) is not None:
        kernels.append(product(op, tokens, out, weight=True))
    if (up := op.meta("ffn_weight_1")) is not None and (down := op.meta("ffn_weight_2")) is not None:
        inner = TensorMeta(shape=(rows, up.shape[0]), dtype=x.dtype)
        wide = spec(inner.shape, x.dtype)
        norms = kernel("AddLayerNorm", [full, full], [full], 2)
        first = product(op, tokens, up, weight=True)
        kernels += [norms, first, kernel("Gelu", [wide], [wide]), product(op, inner, down, weight=True)]
    return kernels
