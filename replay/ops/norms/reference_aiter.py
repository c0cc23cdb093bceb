# pyright: strict
"""aiter's norms (aiter/ops/rmsnorm.py, norm.py, groupnorm.py): some write given outputs, some return theirs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.quantize import group_scale, largest, quantize_groups, row_scale, to_quantized


@stands_for("aiter::rms_norm", "aiter::rmsnorm2d_fwd", "aiter::rmsnorm2d_fwd_ck")
def rms_norm_returned(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """rms_norm(input) · weight."""
    return rms_norm(input, weight, epsilon)


@stands_for("aiter::rms_norm_cu", "aiter::rmsnorm")
def rms_norm_out(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, gemma_norm: bool = False) -> None:
    """out = rms_norm(input) · weight."""
    out.copy_(rms_norm(input, weight, epsilon, gemma=gemma_norm))


@stands_for("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add", "aiter::rmsnorm2d_fwd_with_add_ck")
def add_rms_norm(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
) -> None:
    """residual_out = input + residual_in; out = its norm."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon, gemma=gemma_norm)
    residual_out.copy_(total)
    out.copy_(normed)


@stands_for("aiter::rmsnorm2d_fwd_with_add_dynamicquant", "aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck")
def add_rms_norm_dynamic_quant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
) -> None:
    """As add_rms_norm; the norm quantised with a scale for each row."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon)
    residual_out.copy_(total)
    _write_rows(normed, out, yscale)


@stands_for("aiter::rmsnorm2d_fwd_with_dynamicquant", "aiter::rmsnorm2d_fwd_with_dynamicquant_ck")
def rms_norm_dynamic_quant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, epsilon: float) -> None:
    """The norm quantised with a scale for each row."""
    _write_rows(rms_norm(input, weight, epsilon), out, yscale)


@stands_for("aiter::rmsnorm_quant")
def rms_norm_quant(
    out: Tensor, input: Tensor, scale: Tensor, weight: Tensor, epsilon: float, group_size: int, gemma_norm: bool
) -> None:
    """The norm quantised by row (group_size 0) or by group; a shuffled scale is written unshuffled."""
    normed = rms_norm(input, weight, epsilon, gemma=gemma_norm)
    if not group_size:
        _write_rows(normed, out, scale)
        return
    groups = group_scale(normed, group_size, largest(out.dtype))
    scale.copy_(groups.reshape(scale.shape))
    out.copy_(quantize_groups(normed, groups, out.dtype))


def _write_rows(normed: Tensor, out: Tensor, scale: Tensor) -> None:
    rows = row_scale(normed, out.dtype)
    scale.copy_(rows.reshape(scale.shape))
    out.copy_(to_quantized(normed, rows, out.dtype))


@stands_for("aiter::layernorm2d_fwd")
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, x_bias: Tensor | None
) -> Tensor:
    """Layer norm over the last dim of input + x_bias."""
    x = input if x_bias is None else input + x_bias
    return F.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)


@stands_for("aiter::layernorm2d_fwd_with_add")
def add_layer_norm(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    x_bias: Tensor | None,
) -> None:
    """residual_out = input + residual_in (+ x_bias); out = its layer norm."""
    total = input + residual_in if x_bias is None else input + residual_in + x_bias
    residual_out.copy_(total)
    out.copy_(layer_norm(total, weight, bias, epsilon, None))


@stands_for("aiter::_groupnorm_run")
def group_norm_out(y: Tensor, input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> None:
    """y = group norm of input [N, C, ..]."""
    y.copy_(F.group_norm(input, num_groups, weight, bias, eps))


def _like(input: Tensor) -> Tensor:
    return torch.empty_like(input)


@stands_for("aiter::_groupnorm_run", lacking=("workspace",), fake=_like)
def group_norm(input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Group norm of input [N, C, ..], in input's layout."""
    return torch.empty_like(input).copy_(F.group_norm(input, num_groups, weight, bias, eps))
