"""Matrix products and expert layers of torch_npu and vllm-ascend, including quantised ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_npu import group_ends
from opreplay.replay.ops.maths.packed_weights import unpack
from opreplay.replay.ops.maths.products import as_rows, linear
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized

_Three = tuple[Tensor, Tensor, Tensor]


def float_scale(scale: Tensor) -> Tensor:
    """Return a scale as float32; an int64 scale holds the float32 bits in its lower half."""
    if scale.dtype == torch.int64:
        return (scale & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    return scale.float()


def _by_group(table: Tensor, size_k: int) -> Tensor:
    """Return a scale or offset (one, [N], [1, N] or [groups, N]) in a shape that broadcasts over the weight [K, N]."""
    wide = table.float()
    if wide.numel() == 1:
        return wide.reshape(1, 1)
    wide = wide.reshape(1, -1) if wide.dim() == 1 else wide
    return wide if wide.shape[0] == 1 else wide.repeat_interleave(-(-size_k // wide.shape[0]), 0)[:size_k]


@stands_for(
    "npu::npu_weight_quant_batchmatmul",
    fake=lambda x, weight: x.new_empty((*x.shape[:-1], weight.shape[-1] * (8 if weight.dtype == torch.int32 else 1))),
)
def weight_quant_batchmatmul(c: Call) -> Tensor:
    """Return x [.., K] @ (weight [K, N] + offset) · scale + bias.

    An int32 weight holds eight signed 4-bit numbers per element along N. Raises ValueError for a quantised result.
    """
    if c.quant_scale is not None:
        raise ValueError("a quantised result is not implemented in the reference of npu_weight_quant_batchmatmul")
    values = c.weight.float()
    if c.weight.dtype == torch.int32:
        numbers = unpack(c.weight, 4)
        values = (numbers - 16 * (numbers >= 8)).float()
    if c.antiquant_offset is not None:
        values = values + _by_group(c.antiquant_offset, values.shape[0])
    values = values * _by_group(c.antiquant_scale, values.shape[0])
    return linear(c.x, values.to(c.x.dtype).t(), c.bias)


@stands_for("npu::npu_convert_weight_to_int4pack")
def convert_weight_to_int4pack(weight: Tensor) -> Tensor:
    """Pack int32 [K, N] of −8..7 to int32 [K, N / 8], with the first number in the lowest bits."""
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
    """Return (x + offset) · scale in float16 or bfloat16."""
    values = x.float() if offset is None else x.float() + offset.float()
    wide = dst_dtype in (torch.bfloat16, 15)
    return (values * scale.float()).to(torch.bfloat16 if wide else torch.float16)


@stands_for("npu::npu_dequant_bias")
def dequant_bias(c: Call) -> Tensor:
    """Return int32 x [M, N] (+ int32 bias) · weight_scale [N] · activation_scale [M] (+ float bias)."""
    bias = c.bias
    whole = bias is not None and bias.dtype == torch.int32
    out = (c.x + bias if whole and bias is not None else c.x).float() * c.weight_scale.float()
    if c.activation_scale is not None:
        out = out * c.activation_scale.float().reshape(-1, 1)
    if bias is not None and not whole:
        out = out + bias.float()
    return out.to(c.output_dtype or torch.float16)


@stands_for("npu::npu_quant_matmul_dequant")
def quant_matmul_dequant(c: Call) -> Tensor:
    """Quantise x to int8 by rows (or by x_scale), multiply it by weight [N, K] and both scales, and add the bias.

    The result has x's dtype.
    """
    rows = c.x.float() if c.smooth_scale is None else c.x.float() * c.smooth_scale.float()
    scale = row_scale(rows, torch.int8) if c.x_scale is None else c.x_scale.float().reshape(-1, 1)
    product = to_quantized(rows, scale, torch.int8).float() @ c.quantized_weight.float().t()
    product = product * scale * float_scale(c.weight_scale).reshape(1, -1)
    return (product if c.bias is None else product + c.bias.float()).to(c.x.dtype)


@stands_for(
    "npu::npu_quant_matmul_reduce_sum",
    fake=lambda x1, x2: x1.new_empty((x1.shape[1], x2.shape[-1]), dtype=torch.bfloat16),
)
def quant_matmul_reduce_sum(x1: Tensor, x2: Tensor, x1_scale: Tensor | None, x2_scale: Tensor | None) -> Tensor:
    """Return Σ over the batch of x1 [B, M, K] @ x2 [B, K, N] · x1_scale [B, M] · x2_scale [N].

    x1 and x2 are int8. The result is bfloat16.
    """
    product = x1.float() @ x2.float()
    if x1_scale is not None:
        product = product * x1_scale.float().reshape(*x1.shape[:2], 1)
    if x2_scale is not None:
        product = product * x2_scale.float().reshape(1, 1, -1)
    return product.sum(0).to(torch.bfloat16)


@stands_for("npu::npu_transpose_batchmatmul")
def transpose_batchmatmul(c: Call) -> Tensor:
    """Permute input and weight, multiply them in batches, and permute the product ([1, 0, 2] by default)."""
    a = c.input.permute(c.perm_x1) if c.perm_x1 else c.input
    b = c.weight.permute(c.perm_x2) if c.perm_x2 else c.weight
    product = torch.matmul(a, b)
    product = product if c.bias is None else product + c.bias.unsqueeze(-2)
    return product.permute(c.perm_y or [1, 0, 2]).contiguous()


def _swiglu(x: Tensor, activate_left: bool) -> Tensor:
    first, second = x.chunk(2, -1)
    return F.silu(first) * second if activate_left else first * F.silu(second)


@stands_for("npu::npu_dequant_swiglu_quant", "_C_ascend::npu_dequant_swiglu_quant")
def dequant_swiglu_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Apply SwiGLU to x [T, 2H], then quantise the result to int8.

    An int32 x is first multiplied by its scales. With quant_mode 1, the result has one scale per row. With 0, the scale
    is given. If the rows are in groups, group_index holds the group sizes, and each group has its own weight_scale and
    quant_scale.
    """
    x, bias = c.x, c.bias
    clamp_limit = getattr(c, "clamp_limit", 7.0)
    rows = torch.arange(x.shape[0], device=x.device)
    groups = None
    if c.group_index is not None:
        edges = c.group_index.to(torch.int64).cumsum(0)
        groups = torch.searchsorted(edges, rows, right=True).clamp(max=edges.numel() - 1)

    def of(table: Tensor) -> Tensor:
        wide = table.float()
        return wide[groups] if groups is not None and wide.dim() == 2 and wide.shape[0] > 1 else wide

    values = x.float() if bias is None or bias.dtype != torch.int32 else (x + of(bias)).float()
    if c.weight_scale is not None:
        values = values * of(c.weight_scale)
    if c.activation_scale is not None:
        values = values * c.activation_scale.float().reshape(-1, 1)
    if bias is not None and bias.dtype != torch.int32:
        values = values + of(bias)
    if getattr(c, "swiglu_mode", 0) == 1:
        gate, up = values[..., ::2].clamp(max=clamp_limit), values[..., 1::2].clamp(-clamp_limit, clamp_limit)
        inner = (up + getattr(c, "glu_bias", 1.0)) * gate * torch.sigmoid(getattr(c, "glu_alpha", 1.702) * gate)
    else:
        inner = _swiglu(values, c.activate_left)
    if c.quant_mode == 1:
        inner = inner if c.quant_scale is None else inner * of(c.quant_scale)
        scale = row_scale(inner, torch.int8)
        return to_quantized(inner, scale, torch.int8), scale.squeeze(-1)
    inner = inner if c.quant_scale is None else inner / of(c.quant_scale)
    inner = inner if c.quant_offset is None else inner + of(c.quant_offset)
    return inner.round().clamp(-128, 127).to(torch.int8), inner.new_ones((x.shape[0],))


@stands_for("npu::npu_swiglu_quant")
def swiglu_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Apply SwiGLU to x [.., 2H] and quantise the result to int8.

    With quant_mode 1, there is a scale per row. With 0, one scale is given for all groups.
    """
    if c.dst_type not in (None, torch.int8):
        raise ValueError(f"npu_swiglu_quant to {c.dst_type} is not implemented")
    inner = _swiglu(c.x.float(), c.activate_left)
    if c.quant_mode == 1:
        inner = inner if c.smooth_scales is None else inner * c.smooth_scales.float().reshape(-1, inner.shape[-1])[:1]
        scale = row_scale(inner, torch.int8)
        return to_quantized(inner, scale, torch.int8), scale.squeeze(-1)
    inner = inner if c.smooth_scales is None else inner * c.smooth_scales.float().flatten()[: inner.shape[-1]]
    inner = inner if c.offsets is None else inner + c.offsets.float().flatten()[: inner.shape[-1]]
    return inner.round().clamp(-128, 127).to(torch.int8), inner.new_ones(c.x.shape[:-1])


def _grouped_rows(x: Tensor, weights: list[Tensor], scales: list[Tensor], x_scale: Tensor, ends: list[int]) -> Tensor:
    """Multiply the int8 rows of each group by the group's weight [K, N] and both scales.

    Returns float32 [M, N]. Rows after the last group are zero.
    """
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
def grouped_matmul_swiglu_quant(c: Call) -> _Three:
    """Return (int8, row scales, empty) of SwiGLU(x @ weight [E, K, 2N]). group_list holds cumulative row ends."""
    ends = group_ends(c.group_list, 0, c.weight.shape[0], c.x.shape[0])
    scales = list(c.weight_scale.reshape(c.weight.shape[0], -1).unbind(0))
    inner = _swiglu(_grouped_rows(c.x, list(c.weight.unbind(0)), scales, c.x_scale, ends), True)
    scale = row_scale(inner, torch.int8)
    return to_quantized(inner, scale, torch.int8), scale.squeeze(-1), inner.new_empty((0,))


def _fake_swiglu_quant_v2(x: Tensor, weight_scale: list[Tensor]) -> tuple[Tensor, Tensor]:
    return _fake_swiglu_quant(x, weight_scale[0])[:2]


@stands_for("npu::npu_grouped_matmul_swiglu_quant_v2", fake=_fake_swiglu_quant_v2)
def grouped_matmul_swiglu_quant_v2(c: Call) -> tuple[Tensor, Tensor]:
    """Do the same as grouped_matmul_swiglu_quant, with lists of weights. A single weight [E, K, 2N] holds E weights."""
    single = len(c.weight) == 1 and c.weight[0].dim() == 3
    weights = list(c.weight[0].unbind(0)) if single else list(c.weight)
    scales = list(c.weight_scale[0].reshape(len(weights), -1).unbind(0)) if single else list(c.weight_scale)
    ends = group_ends(c.group_list, c.group_list_type or 0, len(weights), c.x.shape[0])
    inner = _swiglu(_grouped_rows(c.x, weights, scales, c.x_scale, ends), True)
    scale = row_scale(inner, torch.int8)
    return to_quantized(inner, scale, torch.int8), scale.squeeze(-1)


@stands_for("_C_ascend::moe_grouped_matmul", fake=lambda x, weight: [x.new_empty((x.shape[0], weight.shape[-1]))])
def moe_grouped_matmul(x: Tensor, weight: Tensor, group_list: Tensor, group_list_type: int) -> list[Tensor]:
    """Return a list with one tensor, the product of each group of rows with its own matrix.

    x is [M, K], and weight is [E, K, N].
    """
    out = x.new_zeros((x.shape[0], weight.shape[-1]))
    start = 0
    for expert, stop in enumerate(group_ends(group_list, group_list_type, weight.shape[0], x.shape[0])):
        out[start:stop] = linear(x[start:stop], weight[expert].t())
        start = stop
    return [out]


@stands_for("npu::npu_grouped_matmul_add_", fake=lambda self: self)
def grouped_matmul_add_(c: Call) -> Tensor:
    """Add x[g]ᵀ @ weight[g] to self[g] for each group g of rows. x is [M, K], weight [M, N], and self [E, K, N]."""
    target = c.self.view(c.group_list.shape[0], c.x.shape[-1], c.weight.shape[-1])
    start = 0
    for expert, stop in enumerate(
        group_ends(c.group_list, getattr(c, "group_list_type", 0) or 0, target.shape[0], c.x.shape[0])
    ):
        target[expert] += (c.x[start:stop].float().t() @ c.weight[start:stop].float()).to(c.self.dtype)
        start = stop
    return c.self


@stands_for("npu::npu_grouped_matmul_add", fake=lambda self: torch.empty_like(self))
def grouped_matmul_add(c: Call) -> Tensor:
    """Same as npu_grouped_matmul_add_, on a copy."""
    return grouped_matmul_add_(with_changes(c, self=c.self.clone()))


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
def npu_ffn(c: Call) -> Tensor:
    """Return activation(x @ weight1) @ weight2.

    x is [.., K1], weight1 [K1, N1] and weight2 [K2, N2]. With a leading dim E, the weights are those of experts, and
    expert_tokens splits the rows among them. Raises ValueError for quantised weights.
    """
    weight2 = c.weight2
    if c.deq_scale1 is not None or c.antiquant_scale1 is not None:
        raise ValueError("npu_ffn with quantised weights is not implemented")
    act = _FFN[c.activation or ""]
    rows = as_rows(c.x)
    if c.weight1.dim() == 2:
        y = linear(act(linear(rows, c.weight1.t(), c.bias1)), weight2.t(), c.bias2)
        return y.reshape(*c.x.shape[:-1], weight2.shape[-1])
    ends = c.expert_tokens_index or group_ends(c.expert_tokens, 1, c.weight1.shape[0], rows.shape[0])
    out = rows.new_zeros((rows.shape[0], weight2.shape[-1]))
    start = 0
    for expert, stop in enumerate(ends):
        first, second = (None if b is None else b[expert] for b in (c.bias1, c.bias2))
        inner = act(linear(rows[start:stop], c.weight1[expert].t(), first))
        out[start:stop] = linear(inner, weight2[expert].t(), second)
        start = stop
    return out.reshape(*c.x.shape[:-1], weight2.shape[-1])


@stands_for("npu::npu_linear")
def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return input [.., K] @ weight [N, K]ᵀ + bias."""
    return F.linear(input, weight, bias)


def _fake_quant_matmul(x1: Tensor, x2: Tensor, output_dtype: torch.dtype | None) -> Tensor:
    return x1.new_empty((*x1.shape[:-1], x2.shape[-1]), dtype=output_dtype or torch.int8)


@stands_for("npu::npu_quant_matmul", fake=_fake_quant_matmul)
def npu_quant_matmul(c: Call) -> Tensor:
    """Return (x1 [.., M, K] @ x2 [K, N] + int32 bias) · scale ([1] or [N]) · pertoken_scale [M] (+ offset)."""
    bias = c.bias
    product = c.x1.float() @ c.x2.float()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    product = product * float_scale(c.scale)
    if c.pertoken_scale is not None:
        product = product * c.pertoken_scale.unsqueeze(-1)
    if bias is not None and bias.dtype != torch.int32:
        product = product + bias
    if c.offset is not None:
        product = product + c.offset
    dtype = c.output_dtype or torch.int8
    return product.round().clamp(-128, 127).to(dtype) if dtype == torch.int8 else product.to(dtype)
