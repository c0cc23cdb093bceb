"""torch_npu's and vllm-ascend's products and layers of experts, quantised ones among them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_npu import group_ends
from opreplay.replay.ops.maths.packed_weights import unpack
from opreplay.replay.ops.maths.products import as_rows, linear
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized

_Three = tuple[Tensor, Tensor, Tensor]


def float_scale(scale: Tensor) -> Tensor:
    """A scale as float32; one kept as int64 has its bits in the lower half."""
    if scale.dtype == torch.int64:
        return (scale & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    return scale.float()


def _by_group(table: Tensor, size_k: int) -> Tensor:
    """A scale or offset of an antiquantised weight [K, N]: one, [N], [1, N] or [groups, N]."""
    wide = table.float()
    if wide.numel() == 1:
        return wide.reshape(1, 1)
    wide = wide.reshape(1, -1) if wide.dim() == 1 else wide
    return wide if wide.shape[0] == 1 else wide.repeat_interleave(-(-size_k // wide.shape[0]), 0)[:size_k]


@stands_for(
    "npu::npu_weight_quant_batchmatmul",
    fake=lambda x, weight: x.new_empty((*x.shape[:-1], weight.shape[-1] * (8 if weight.dtype == torch.int32 else 1))),
)
def weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None,
    quant_scale: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """x [.., K] @ (weight [K, N] + offset) · scale + bias; int32 weights hold eight signed 4-bit numbers along N.

    Raises ValueError for a quantised result.
    """
    if quant_scale is not None:
        raise ValueError("a quantised result is not implemented in the reference of npu_weight_quant_batchmatmul")
    values = weight.float()
    if weight.dtype == torch.int32:
        numbers = unpack(weight, 4)
        values = (numbers - 16 * (numbers >= 8)).float()
    if antiquant_offset is not None:
        values = values + _by_group(antiquant_offset, values.shape[0])
    values = values * _by_group(antiquant_scale, values.shape[0])
    return linear(x, values.to(x.dtype).t(), bias)


@stands_for("npu::npu_convert_weight_to_int4pack")
def convert_weight_to_int4pack(weight: Tensor) -> Tensor:
    """int32 [K, N] of −8..7 → int32 [K, N / 8], the first number in the lowest bits."""
    shifts = torch.arange(0, 32, 4, device=weight.device, dtype=torch.int64)
    words = ((weight.to(torch.int64).unflatten(-1, (-1, 8)) & 15) << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@stands_for(
    "npu::npu_anti_quant",
    fake=lambda x, dst_dtype: x.new_empty(
        x.shape, dtype=torch.bfloat16 if dst_dtype in (torch.bfloat16, 15) else torch.float16
    ),
)
def anti_quant(x: Tensor, scale: Tensor, offset: Tensor | None, dst_dtype: torch.dtype | int | None) -> Tensor:
    """(x + offset) · scale in float16 or bfloat16."""
    values = x.float() if offset is None else x.float() + offset.float()
    wide = dst_dtype in (torch.bfloat16, 15)
    return (values * scale.float()).to(torch.bfloat16 if wide else torch.float16)


@stands_for("npu::npu_dequant_bias")
def dequant_bias(
    x: Tensor,
    weight_scale: Tensor,
    activation_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: torch.dtype | None,
) -> Tensor:
    """int32 x [M, N] (+ int32 bias) · weight_scale [N] · activation_scale [M] (+ float bias)."""
    whole = bias is not None and bias.dtype == torch.int32
    out = (x + bias if whole and bias is not None else x).float() * weight_scale.float()
    if activation_scale is not None:
        out = out * activation_scale.float().reshape(-1, 1)
    if bias is not None and not whole:
        out = out + bias.float()
    return out.to(output_dtype or torch.float16)


@stands_for("npu::npu_quant_matmul_dequant")
def quant_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    x_scale: Tensor | None,
    smooth_scale: Tensor | None,
) -> Tensor:
    """x quantised to int8 by rows (or x_scale), times weight [N, K], times both scales, + bias; in x's dtype."""
    rows = x.float() if smooth_scale is None else x.float() * smooth_scale.float()
    scale = row_scale(rows, torch.int8) if x_scale is None else x_scale.float().reshape(-1, 1)
    product = to_quantized(rows, scale, torch.int8).float() @ quantized_weight.float().t()
    product = product * scale * float_scale(weight_scale).reshape(1, -1)
    return (product if bias is None else product + bias.float()).to(x.dtype)


@stands_for(
    "npu::npu_quant_matmul_reduce_sum",
    fake=lambda x1, x2: x1.new_empty((x1.shape[1], x2.shape[-1]), dtype=torch.bfloat16),
)
def quant_matmul_reduce_sum(x1: Tensor, x2: Tensor, x1_scale: Tensor | None, x2_scale: Tensor | None) -> Tensor:
    """Σ over the batch of int8 products [B, M, K] @ [B, K, N], times x1_scale [B, M] and x2_scale [N]; bfloat16."""
    product = x1.float() @ x2.float()
    if x1_scale is not None:
        product = product * x1_scale.float().reshape(*x1.shape[:2], 1)
    if x2_scale is not None:
        product = product * x2_scale.float().reshape(1, 1, -1)
    return product.sum(0).to(torch.bfloat16)


@stands_for("npu::npu_transpose_batchmatmul")
def transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    perm_x1: list[int] | None,
    perm_x2: list[int] | None,
    perm_y: list[int] | None,
) -> Tensor:
    """input and weight permuted, multiplied in batches, and the product permuted ([1, 0, 2] unless told)."""
    a = input.permute(perm_x1) if perm_x1 else input
    b = weight.permute(perm_x2) if perm_x2 else weight
    product = torch.matmul(a, b)
    product = product if bias is None else product + bias.unsqueeze(-2)
    return product.permute(perm_y or [1, 0, 2]).contiguous()


def _swiglu(x: Tensor, activate_left: bool) -> Tensor:
    first, second = x.chunk(2, -1)
    return F.silu(first) * second if activate_left else first * F.silu(second)


@stands_for("npu::npu_dequant_swiglu_quant", "_C_ascend::npu_dequant_swiglu_quant")
def dequant_swiglu_quant(
    x: Tensor,
    weight_scale: Tensor | None,
    activation_scale: Tensor | None,
    bias: Tensor | None,
    quant_scale: Tensor | None,
    quant_offset: Tensor | None,
    group_index: Tensor | None,
    activate_left: bool,
    quant_mode: int,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """x [T, 2H] (int32 times its scales) gated, then int8 with a scale a row (quant_mode 1) or the given one (0).

    Groups of rows (counts in group_index) have their own weight_scale and quant_scale.
    """
    rows = torch.arange(x.shape[0], device=x.device)
    groups = None
    if group_index is not None:
        edges = group_index.to(torch.int64).cumsum(0)
        groups = torch.searchsorted(edges, rows, right=True).clamp(max=edges.numel() - 1)

    def of(table: Tensor) -> Tensor:
        wide = table.float()
        return wide[groups] if groups is not None and wide.dim() == 2 and wide.shape[0] > 1 else wide

    values = x.float() if bias is None or bias.dtype != torch.int32 else (x + of(bias)).float()
    if weight_scale is not None:
        values = values * of(weight_scale)
    if activation_scale is not None:
        values = values * activation_scale.float().reshape(-1, 1)
    if bias is not None and bias.dtype != torch.int32:
        values = values + of(bias)
    if swiglu_mode == 1:
        gate, up = values[..., ::2].clamp(max=clamp_limit), values[..., 1::2].clamp(-clamp_limit, clamp_limit)
        inner = (up + glu_bias) * gate * torch.sigmoid(glu_alpha * gate)
    else:
        inner = _swiglu(values, activate_left)
    if quant_mode == 1:
        inner = inner if quant_scale is None else inner * of(quant_scale)
        scale = row_scale(inner, torch.int8)
        return to_quantized(inner, scale, torch.int8), scale.squeeze(-1)
    inner = inner if quant_scale is None else inner / of(quant_scale)
    inner = inner if quant_offset is None else inner + of(quant_offset)
    return inner.round().clamp(-128, 127).to(torch.int8), inner.new_ones((x.shape[0],))


@stands_for("npu::npu_swiglu_quant")
def swiglu_quant(
    x: Tensor,
    smooth_scales: Tensor | None,
    offsets: Tensor | None,
    activate_left: bool,
    quant_mode: int,
    dst_type: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """x [.., 2H] gated, then int8 with a scale a row (quant_mode 1) or the given one (0). Groups share one scale."""
    if dst_type not in (None, torch.int8):
        raise ValueError(f"npu_swiglu_quant to {dst_type} is not implemented")
    inner = _swiglu(x.float(), activate_left)
    if quant_mode == 1:
        inner = inner if smooth_scales is None else inner * smooth_scales.float().reshape(-1, inner.shape[-1])[:1]
        scale = row_scale(inner, torch.int8)
        return to_quantized(inner, scale, torch.int8), scale.squeeze(-1)
    inner = inner if smooth_scales is None else inner * smooth_scales.float().flatten()[: inner.shape[-1]]
    inner = inner if offsets is None else inner + offsets.float().flatten()[: inner.shape[-1]]
    return inner.round().clamp(-128, 127).to(torch.int8), inner.new_ones(x.shape[:-1])


def _grouped_rows(x: Tensor, weights: list[Tensor], scales: list[Tensor], x_scale: Tensor, ends: list[int]) -> Tensor:
    """int8 rows of each group times its weight [K, N], times both scales; float32 [M, N], zeros behind the last."""
    out = torch.zeros((x.shape[0], weights[0].shape[-1]), dtype=torch.float32, device=x.device)
    start = 0
    for stop, weight, scale in zip(ends, weights, scales, strict=False):
        product = x[start:stop].float() @ weight.float()
        out[start:stop] = product * float_scale(scale).reshape(1, -1) * x_scale[start:stop].float().reshape(-1, 1)
        start = stop
    return out


def _fake_swiglu_quant(x: Tensor, weight_scale: Tensor) -> _Three:
    half = weight_scale.shape[-1] // 2
    return (
        x.new_empty((x.shape[0], half), dtype=torch.int8),
        x.new_empty((x.shape[0],), dtype=torch.float32),
        x.new_empty((0,), dtype=torch.float32),
    )


@stands_for(
    "npu::npu_grouped_matmul_swiglu_quant", "_C_ascend::grouped_matmul_swiglu_quant", writes=(), fake=_fake_swiglu_quant
)
def grouped_matmul_swiglu_quant(
    x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor
) -> _Three:
    """(int8, scale of each row, empty): rows [M, K] by cumulative groups times weight [E, K, 2N], gated."""
    ends = group_ends(group_list, 0, weight.shape[0], x.shape[0])
    scales = list(weight_scale.reshape(weight.shape[0], -1).unbind(0))
    inner = _swiglu(_grouped_rows(x, list(weight.unbind(0)), scales, x_scale, ends), True)
    scale = row_scale(inner, torch.int8)
    return to_quantized(inner, scale, torch.int8), scale.squeeze(-1), inner.new_empty((0,))


def _fake_swiglu_quant_v2(x: Tensor, weight_scale: list[Tensor]) -> tuple[Tensor, Tensor]:
    return _fake_swiglu_quant(x, weight_scale[0])[:2]


@stands_for("npu::npu_grouped_matmul_swiglu_quant_v2", fake=_fake_swiglu_quant_v2)
def grouped_matmul_swiglu_quant_v2(
    x: Tensor,
    weight: list[Tensor],
    weight_scale: list[Tensor],
    x_scale: Tensor,
    group_list: Tensor,
    group_list_type: int | None,
) -> tuple[Tensor, Tensor]:
    """As the first form, with lists of weights; a single one [E, K, 2N] stands for E."""
    single = len(weight) == 1 and weight[0].dim() == 3
    weights = list(weight[0].unbind(0)) if single else list(weight)
    scales = list(weight_scale[0].reshape(len(weights), -1).unbind(0)) if single else list(weight_scale)
    ends = group_ends(group_list, group_list_type or 0, len(weights), x.shape[0])
    inner = _swiglu(_grouped_rows(x, weights, scales, x_scale, ends), True)
    scale = row_scale(inner, torch.int8)
    return to_quantized(inner, scale, torch.int8), scale.squeeze(-1)


@stands_for("_C_ascend::moe_grouped_matmul", fake=lambda x, weight: [x.new_empty((x.shape[0], weight.shape[-1]))])
def moe_grouped_matmul(x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int) -> list[Tensor]:
    """[rows of x [M, K] by groups times weight [E, K, N]]."""
    out = x.new_zeros((x.shape[0], weight.shape[-1]))
    start = 0
    for expert, stop in enumerate(group_ends(group_list, group_list_type, weight.shape[0], x.shape[0])):
        out[start:stop] = linear(x[start:stop], weight[expert].t())
        start = stop
    return [out]


@stands_for("npu::npu_grouped_matmul_add_", fake=lambda self: self)
def grouped_matmul_add_(
    self: Tensor, x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int | None = 0
) -> Tensor:
    """self [E, K, N] += x [M, K] of each group, transposed, times weight [M, N] of it."""
    target = self.view(group_list.shape[0], x.shape[-1], weight.shape[-1])
    start = 0
    for expert, stop in enumerate(group_ends(group_list, group_list_type or 0, target.shape[0], x.shape[0])):
        target[expert] += (x[start:stop].float().t() @ weight[start:stop].float()).to(self.dtype)
        start = stop
    return self


@stands_for("npu::npu_grouped_matmul_add", fake=lambda self: torch.empty_like(self))
def grouped_matmul_add(
    self: Tensor, x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int | None
) -> Tensor:
    """As npu_grouped_matmul_add_ on a copy."""
    return grouped_matmul_add_(self.clone(), x, weight, group_list, group_list_type)


_FFN = {
    "relu": F.relu,
    "gelu": F.gelu,
    "fastgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "": F.gelu,
    "geglu": lambda x: F.gelu(x.chunk(2, -1)[1]) * x.chunk(2, -1)[0],
    "swiglu": lambda x: _swiglu(x, True),
    "reglu": lambda x: F.relu(x.chunk(2, -1)[1]) * x.chunk(2, -1)[0],
}


@stands_for("npu::npu_ffn", fake=lambda x, weight2: x.new_empty((*x.shape[:-1], weight2.shape[-1])))
def npu_ffn(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    activation: str,
    expert_tokens: list[int] | None,
    expert_tokens_index: list[int] | None,
    bias1: Tensor | None,
    bias2: Tensor | None,
    deq_scale1: Tensor | None,
    antiquant_scale1: Tensor | None,
) -> Tensor:
    """x [.., K1] through weight1 [(E,) K1, N1], an activation and weight2 [(E,) K2, N2]; rows split by expert_tokens.

    Raises ValueError for quantised weights.
    """
    if deq_scale1 is not None or antiquant_scale1 is not None:
        raise ValueError("npu_ffn with quantised weights is not implemented")
    act = _FFN[activation or ""]
    rows = as_rows(x)
    if weight1.dim() == 2:
        y = linear(act(linear(rows, weight1.t(), bias1)), weight2.t(), bias2)
        return y.reshape(*x.shape[:-1], weight2.shape[-1])
    ends = expert_tokens_index or group_ends(expert_tokens, 1, weight1.shape[0], rows.shape[0])
    out = rows.new_zeros((rows.shape[0], weight2.shape[-1]))
    start = 0
    for expert, stop in enumerate(ends):
        first, second = (None if b is None else b[expert] for b in (bias1, bias2))
        inner = act(linear(rows[start:stop], weight1[expert].t(), first))
        out[start:stop] = linear(inner, weight2[expert].t(), second)
        start = stop
    return out.reshape(*x.shape[:-1], weight2.shape[-1])


@stands_for("npu::npu_linear")
def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """input [.., K] @ weight [N, K]ᵀ + bias."""
    return F.linear(input, weight, bias)


def _float_scale(scale: Tensor) -> Tensor:
    """A scale that may come packed as the low half of 64-bit integers."""
    if scale.dtype == torch.int64:
        return (scale & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    return scale.float()


def _fake_quant_matmul(x1: Tensor, x2: Tensor, output_dtype: torch.dtype | None) -> Tensor:
    return x1.new_empty((*x1.shape[:-1], x2.shape[-1]), dtype=output_dtype or torch.int8)


@stands_for("npu::npu_quant_matmul", fake=_fake_quant_matmul)
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: torch.dtype | None,
) -> Tensor:
    """(x1 [.., M, K] @ x2 [K, N] + int32 bias) · scale ([1] or [N]) · pertoken_scale [M] (+ offset)."""
    product = x1.float() @ x2.float()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    product = product * _float_scale(scale)
    if pertoken_scale is not None:
        product = product * pertoken_scale.unsqueeze(-1)
    if bias is not None and bias.dtype != torch.int32:
        product = product + bias
    if offset is not None:
        product = product + offset
    dtype = output_dtype or torch.int8
    return product.round().clamp(-128, 127).to(dtype) if dtype == torch.int8 else product.to(dtype)
