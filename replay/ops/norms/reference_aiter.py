# pyright: strict
"""aiter's norms (aiter/ops/rmsnorm.py, norm.py, groupnorm.py).

Some write to output arguments, others return results.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.quantize import (
    group_scale,
    largest,
    quantize_groups,
    row_scale,
    tensor_scale,
    to_quantized,
)
from opreplay.replay.ops.quantisation.reference_aiter import write_smoothed


@stands_for("aiter::rms_norm", "aiter::rmsnorm2d_fwd", "aiter::rmsnorm2d_fwd_ck")
def rms_norm_returned(input: Tensor, weight: Tensor | None, epsilon: float, gemma_norm: bool = False) -> Tensor:
    """Return rms_norm(input) · weight."""
    return rms_norm(input, weight, epsilon, gemma=gemma_norm)


@stands_for("aiter::rmsnorm_quant")
def rms_norm_quant(c: Call) -> None:
    """Quantise the RMS norm by row (group_size 0) or by group. Scales are always written unshuffled."""
    normed = rms_norm(c.input, c.weight, c.epsilon, gemma=c.gemma_norm)
    if not c.group_size:
        _write_rows(normed, c.out, c.scale)
        return
    groups = group_scale(normed, c.group_size, largest(c.out.dtype))
    c.scale.copy_(groups.reshape(c.scale.shape))
    c.out.copy_(quantize_groups(normed, groups, c.out.dtype))


def _write_rows(normed: Tensor, out: Tensor, scale: Tensor) -> None:
    rows = row_scale(normed, out.dtype)
    scale.copy_(rows.reshape(scale.shape))
    out.copy_(to_quantized(normed, rows, out.dtype))


@stands_for("aiter::layernorm2d_fwd")
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, x_bias: Tensor | None
) -> Tensor:
    """Return the layer norm over the last dim of input + x_bias."""
    x = input if x_bias is None else input + x_bias
    return F.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)


@stands_for("aiter::layernorm2d_fwd_with_add")
def add_layer_norm(c: Call) -> None:
    """Write input + residual_in (+ x_bias) to `residual_out`, and the layer norm of this sum to `out`."""
    total = c.input + c.residual_in if c.x_bias is None else c.input + c.residual_in + c.x_bias
    c.residual_out.copy_(total)
    c.out.copy_(layer_norm(total, c.weight, c.bias, c.epsilon, None))


@stands_for("aiter::_groupnorm_run")
def group_norm_out(y: Tensor, input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> None:
    """Write the group norm of input [N, C, ..] to y."""
    y.copy_(F.group_norm(input, num_groups, weight, bias, eps))


def _like(input: Tensor) -> Tensor:
    return torch.empty_like(input)


@stands_for("aiter::_groupnorm_run", lacking=("workspace",), fake=_like)
def group_norm(input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the group norm of input [N, C, ..], in input's layout."""
    return torch.empty_like(input).copy_(F.group_norm(input, num_groups, weight, bias, eps))


@stands_for("aiter::_fused_rmsnorm_add", writes=())
def fused_rmsnorm_add(
    x: Tensor, weight: Tensor | None, epsilon: float, res1: Tensor, gemma_norm: bool = False
) -> tuple[Tensor, Tensor]:
    """Return (RMS norm of x + res1, x + res1)."""
    return fused_add_rms_norm(x, res1, weight, epsilon, gemma=gemma_norm)


@stands_for("aiter::_fused_qk_rmsnorm_kernel", writes=("q_out", "k_out"))
def fused_qk_rmsnorm(c: Call) -> None:
    """Write the RMS norms of two tensors, which the real op computes in one kernel."""
    c.q_out.copy_(rms_norm(c.q, c.q_weight, c.q_eps))
    c.k_out.copy_(rms_norm(c.k, c.k_weight, c.k_eps))


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    scale, shift = None if weight is None else weight.float(), None if bias is None else bias.float()
    return F.layer_norm(x.float(), (x.shape[-1],), scale, shift, epsilon)


@stands_for("aiter::layer_norm", writes=())
def biased_layer_norm(c: Call) -> Tensor:
    """Return the layer norm of input (+ x_bias) over the last dim."""
    return _layer_norm(c.input if c.x_bias is None else c.input + c.x_bias, c.weight, c.bias, c.epsilon).to(
        c.input.dtype
    )


@stands_for("aiter::layernorm2d_with_add_asm", writes=("out", "residual_out"))
def layernorm_with_add(c: Call) -> None:
    """Write input + residual_in (+ x_bias) to `residual_out`, and the layer norm of this sum to `out`."""
    total = c.input + c.residual_in if c.x_bias is None else c.input + c.x_bias + c.residual_in
    c.residual_out.copy_(total)
    c.out.copy_(_layer_norm(total, c.weight, c.bias, c.epsilon))


@stands_for("aiter::layernorm2d_fwd_with_smoothquant", writes=("out", "yscale"))
def layernorm_smoothquant(c: Call) -> None:
    """Quantise layer_norm(input (+ x_bias)) · xscale, with one scale per row."""
    write_smoothed(
        _layer_norm(c.input if c.x_bias is None else c.input + c.x_bias, c.weight, c.bias, c.epsilon),
        c.out,
        c.xscale,
        c.yscale,
    )


@stands_for(
    "aiter::layernorm2d_fwd_with_add_smoothquant",
    "aiter::layernorm2d_with_add_smoothquant_asm",
    writes=("out", "residual_out", "yscale"),
)
def layernorm_add_smoothquant(c: Call) -> None:
    """Quantise layer norm(input (+ x_bias) + residual_in) · xscale by rows. The sum is written to residual_out."""
    total = c.input + c.residual_in if c.x_bias is None else c.input + c.x_bias + c.residual_in
    c.residual_out.copy_(total)
    write_smoothed(_layer_norm(total, c.weight, c.bias, c.epsilon), c.out, c.xscale, c.yscale)


@stands_for("aiter::rmsnorm2d_fwd_with_smoothquant", writes=("out", "yscale"))
def rmsnorm_smoothquant(c: Call) -> None:
    """Quantise rms_norm(input) · xscale, with one scale per row."""
    write_smoothed(rms_norm(c.input.float(), c.weight, c.epsilon), c.out, c.xscale, c.yscale)


@stands_for("aiter::rmsnorm2d_fwd_with_add_smoothquant", writes=("out", "residual_out", "yscale", "out_before_quant"))
def rmsnorm_add_smoothquant(c: Call) -> None:
    """Quantise RMS norm(input + residual_in) · xscale by rows. The sum is written to residual_out."""
    normed, total = fused_add_rms_norm(c.input, c.residual_in, c.weight, c.epsilon)
    c.residual_out.copy_(total)
    if c.out_before_quant is not None:
        c.out_before_quant.copy_(normed)
    write_smoothed(normed, c.out, c.xscale, c.yscale)


@stands_for("aiter::add_rmsnorm_quant", writes=("out", "residual_out", "scale"))
def add_rmsnorm_quant(c: Call) -> None:
    """Quantise the RMS norm of input + residual_in by rows or by groups.

    The sum is written to residual_out. Scales are never shuffled.
    """
    out, scale = c.out, c.scale
    normed, total = fused_add_rms_norm(
        c.input, c.residual_in, c.weight, c.epsilon, gemma=getattr(c, "gemma_norm", False)
    )
    c.residual_out.copy_(total)
    if c.group_size > 0:
        groups = group_scale(normed, c.group_size, largest(out.dtype))
        scale.copy_(groups.reshape(scale.shape))
        out.copy_(quantize_groups(normed, groups, out.dtype))
        return
    rows = row_scale(normed, out.dtype) if scale.numel() > 1 else tensor_scale(normed, out.dtype).clamp(min=1e-12)
    scale.copy_(rows.reshape(scale.shape))
    out.copy_(to_quantized(normed, rows, out.dtype))
