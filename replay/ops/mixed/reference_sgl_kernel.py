# pyright: strict
"""SGLang's `sgl_kernel`: norms, activations, rotary embedding, quantisation, GEMMs, merging, cache stores.

`cuda_stream` and `enable_pdl` of the CUDA builds only say how to launch; they are accepted and not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash import fake_fa3, vllm_fa3_fwd
from opreplay.replay.ops.attention.reference_vllm import merge_attn_states
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gated, gelu_quick, gelu_tanh
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import (
    group_scale,
    quantize_groups,
    row_scale,
    scaled_linear,
    tensor_scale,
    to_quantized,
)
from opreplay.replay.ops.maths.rope import rotate_by_position


def _declare_gated(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    def write_out(out: Tensor, input: Tensor) -> None:
        out.copy_(gated(input, activation))

    stands_for(f"sgl_kernel::{name}")(write_out)


for _name, _activation in {"silu_and_mul": F.silu, "gelu_and_mul": F.gelu, "gelu_tanh_and_mul": gelu_tanh}.items():
    _declare_gated(_name, _activation)


@stands_for("sgl_kernel::gelu_quick")
def gelu_quick_out(out: Tensor, input: Tensor) -> None:
    """x · sigmoid(1.702 x)."""
    out.copy_(gelu_quick(input))


@stands_for("sgl_kernel::rmsnorm")
def rmsnorm(output: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:
    """output = rms_norm(input) · weight."""
    output.copy_(rms_norm(input, weight, eps))


@stands_for("sgl_kernel::gemma_rmsnorm")
def gemma_rmsnorm(output: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:
    """output = rms_norm(input) · (1 + weight)."""
    output.copy_(rms_norm(input, weight, eps, gemma=True))


@stands_for("sgl_kernel::fused_add_rmsnorm")
def fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += input, then input = the norm of it."""
    normed, total = fused_add_rms_norm(input, residual, weight, eps)
    residual.copy_(total)
    input.copy_(normed)


@stands_for("sgl_kernel::gemma_fused_add_rmsnorm")
def gemma_fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """As fused_add_rmsnorm with 1 + weight."""
    normed, total = fused_add_rms_norm(input, residual, weight, eps, gemma=True)
    residual.copy_(total)
    input.copy_(normed)


@stands_for("sgl_kernel::rotary_embedding")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    """As `_C::rotary_embedding`."""
    for tensor in (query, key):
        if tensor is not None:
            tensor.copy_(rotate_by_position(tensor, positions, cos_sin_cache, head_size=head_size, neox=is_neox))


@stands_for("sgl_kernel::apply_rope_pos_ids_cos_sin_cache")
def apply_rope_pos_ids_cos_sin_cache(
    q: Tensor,
    k: Tensor,
    q_rope: Tensor,
    k_rope: Tensor,
    cos_sin_cache: Tensor,
    pos_ids: Tensor,
    interleave: bool,
    v: Tensor | None = None,
    k_buffer: Tensor | None = None,
    v_buffer: Tensor | None = None,
    kv_cache_loc: Tensor | None = None,
) -> None:
    """q, k [T, heads, head] rotated into q_rope, k_rope; with buffers [slots, Hkv, head] k and v are stored as well."""
    for source, target in ((q, q_rope), (k, k_rope)):
        target.copy_(
            rotate_by_position(source, pos_ids, cos_sin_cache, head_size=source.shape[-1], neox=not interleave)
        )
    if kv_cache_loc is not None and k_buffer is not None and v_buffer is not None and v is not None:
        slots = kv_cache_loc.to(torch.int64)
        k_buffer[slots] = k_rope.reshape(slots.numel(), *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slots] = v.reshape(slots.numel(), *v_buffer.shape[1:]).to(v_buffer.dtype)


@stands_for("sgl_kernel::sgl_per_tensor_quant_fp8")
def per_tensor_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor, is_static: bool) -> None:
    """One scale, given (static) or computed and written."""
    if not is_static:
        output_s.copy_(tensor_scale(input, output_q.dtype).clamp(min=1e-12).reshape(output_s.shape))
    output_q.copy_(to_quantized(input, output_s, output_q.dtype))


@stands_for("sgl_kernel::sgl_per_token_quant_fp8")
def per_token_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    """A scale for each row."""
    rows = row_scale(input, output_q.dtype)
    output_s.copy_(rows.reshape(output_s.shape))
    output_q.copy_(to_quantized(input, rows, output_q.dtype))


@stands_for(
    "sgl_kernel::sgl_per_token_group_quant_8bit",
    "sgl_kernel::sgl_per_token_group_quant_fp8",
    "sgl_kernel::sgl_per_token_group_quant_int8",
)
def per_token_group_quant(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    fp8_max: float,
    scale_ue8m0: bool = False,
) -> None:
    """A scale for each group of neighbours in a row; a column-major output_s is written through its strides."""
    groups = group_scale(input, group_size, fp8_max, eps=eps, power_of_two=scale_ue8m0)
    output_s.copy_(groups.reshape(output_s.shape))
    output_q.copy_(quantize_groups(input, groups, output_q.dtype))


@stands_for("sgl_kernel::fp8_blockwise_scaled_mm", "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm")
def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scales_a: Tensor,
    scales_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """(scales_a · mat_a [M, K]) @ (scales_b · mat_b [K, N]) + bias; scales by row and column or by block."""
    columns = scales_b.t() if scales_b.dim() == 2 and scales_b.shape[1] != 1 else scales_b.flatten()
    return scaled_linear(mat_a, mat_b.t(), scales_a, columns, bias, out_dtype)


@stands_for("sgl_kernel::dsv3_fused_a_gemm")
def dsv3_fused_a_gemm(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    """output [M, N] = mat_a [M, K] @ mat_b [K, N]."""
    output.copy_(linear(mat_a, mat_b.t()))


@stands_for("sgl_kernel::dsv3_router_gemm")
def dsv3_router_gemm(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    """output [M, N] = mat_a [M, K] @ mat_b [N, K]ᵀ."""
    output.copy_(linear(mat_a, mat_b, dtype=output.dtype))


@stands_for("sgl_kernel::bmm_fp8")
def bmm_fp8(A: Tensor, B: Tensor, D: Tensor, A_scale: Tensor, B_scale: Tensor) -> None:
    """D [b, M, N] = A_scale · B_scale · A [b, M, K] @ B [b, K, N]."""
    D.copy_(torch.bmm(A.float(), B.float()) * (A_scale * B_scale))


@stands_for("sgl_kernel::merge_state_v2")
def merge_state_v2(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor) -> None:
    """Join two partial attentions [T, H, D] by their natural log-sum-exps [T, H]."""
    merge_attn_states(v_merged, s_merged.t(), v_a, s_a.t(), v_b, s_b.t())


@stands_for("sgl_kernel::merge_state")
def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor) -> None:
    """The same of FlashInfer, whose log-sum-exps are to base 2."""
    merge_state_v2(v_a, s_a * math.log(2), v_b, s_b * math.log(2), v_merged, s_merged)
    s_merged.div_(math.log(2))


@stands_for("sgl_kernel::fwd", fake=fake_fa3)
def fa3_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor | None,
    q_v: Tensor | None,
    out: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    page_table: Tensor | None,
    leftpad_k: Tensor | None,
    rotary_cos: Tensor | None,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    softmax_scale: float | None,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    sinks: Tensor | None = None,
) -> list[Tensor]:
    """As `_vllm_fa3_C::fwd`; the scale defaults to 1/√D."""
    return vllm_fa3_fwd(
        q,
        k,
        v,
        k_new,
        q_v,
        out,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        page_table,
        leftpad_k,
        rotary_cos,
        q_descale,
        k_descale,
        v_descale,
        q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        is_causal,
        window_size_left,
        window_size_right,
        softcap,
        sinks,
    )
