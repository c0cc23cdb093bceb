# pyright: strict
"""torch_npu's norms with fused quantisation, other norms and their gradients, losses, quantisation (`npu::*`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm_with_scale
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized

_Three = tuple[Tensor, Tensor, Tensor]


@stands_for("npu::npu_gemma_rms_norm")
def gemma_rms_norm(self: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return (norm · (gamma + 1), reciprocal root mean square float32 [.., 1])."""
    return rms_norm_with_scale(self, gamma.float() + 1, epsilon)


@stands_for("_C_ascend::npu_add_rms_norm_bias")
def add_rms_norm_bias(x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> _Three:
    """Return (RMS norm of x1 + x2 (+ beta), rstd float32, x1 + x2)."""
    total = x1 + x2
    normed, rstd = rms_norm_with_scale(total, gamma, epsilon)
    return normed if beta is None else normed + beta, rstd, total


@stands_for("npu::npu_add_rms_norm_cast")
def add_rms_norm_cast(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (RMS norm of x1 + x2 in float32, the norm in x1's dtype, rstd, x1 + x2)."""
    total = x1 + x2
    normed, rstd = rms_norm_with_scale(total, gamma, epsilon)
    wide = total.float() * rstd * gamma.float()
    return wide, normed, rstd, total


@stands_for("npu::npu_add_rms_norm_v2")
def add_rms_norm_in_place(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Write the RMS norm of x1 + x2 to x1 and the sum to x2; return rstd."""
    normed, rstd, total = add_rms_norm_bias(x1, x2, gamma, None, epsilon)
    x1.copy_(normed)
    x2.copy_(total)
    return rstd


def _quantized(
    x: Tensor, scale: Tensor | None, zero: Tensor | None, *, divide: bool, low: int = -128, high: int = 127
) -> Tensor:
    """Return x / scale + zero, or x · scale + zero without `divide`, rounded and clamped to int8."""
    values = x.float()
    if scale is not None:
        values = values / scale.float() if divide else values * scale.float()
    if zero is not None:
        values = values + zero.float()
    return values.round().clamp(low, high).to(torch.int8)


@stands_for("npu::npu_add_rms_norm_quant")
def add_rms_norm_quant(c: Call) -> _Three:
    """Return (int8 norm by scales1, int8 norm by scales2, x1 + x2).

    If scales2 is missing, the second norm is also quantised by scales1.
    """
    beta = getattr(c, "beta", None)
    total = c.x1 + c.x2
    normed = rms_norm_with_scale(total, c.gamma, c.epsilon)[0].float()
    normed = normed if beta is None else normed + beta.float()
    first = _quantized(normed, c.scales1, c.zero_points1, divide=c.div_mode)
    second = (
        _quantized(normed, c.scales2, c.zero_points2, divide=c.div_mode) if c.scales2 is not None else first.clone()
    )
    return first, second, total


@stands_for("npu::npu_add_rms_norm_dynamic_quant")
def add_rms_norm_dynamic_quant(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return (int8 norm smoothed by smooth_scale1, int8 norm smoothed by smooth_scale2, x1 + x2, row scales of both
    norms).
    """
    total = c.x1 + c.x2
    normed = rms_norm_with_scale(total, c.gamma, c.epsilon)[0].float()
    normed = normed if c.beta is None else normed + c.beta.float()
    first = normed if c.smooth_scale1 is None else normed * c.smooth_scale1.float()
    second = normed if c.smooth_scale2 is None else normed * c.smooth_scale2.float()
    scale1, scale2 = row_scale(first, torch.int8), row_scale(second, torch.int8)
    return (
        to_quantized(first, scale1, torch.int8),
        to_quantized(second, scale2, torch.int8),
        total,
        scale1.squeeze(-1),
        scale2.squeeze(-1),
    )


@stands_for("npu::npu_rms_norm_quant")
def rms_norm_quant(x: Tensor, gamma: Tensor, beta: Tensor, scale: Tensor, offset: Tensor, epsilon: float) -> Tensor:
    """Return (RMS norm + beta) / scale + offset as int8."""
    normed = rms_norm_with_scale(x, gamma, epsilon)[0].float() + beta.float()
    return _quantized(normed, scale, offset, divide=True)


@stands_for("_C_ascend::npu_rms_norm_dynamic_quant")
def rms_norm_dynamic_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Return (RMS norm quantised to int8, scale of each row)."""
    normed = rms_norm_with_scale(c.x, c.gamma, c.epsilon)[0].float()
    normed = normed if c.beta is None else normed + c.beta.float()
    normed = normed if c.smooth_scale is None else normed * c.smooth_scale.float()
    scale = row_scale(normed, torch.int8)
    return to_quantized(normed, scale, torch.int8), scale.squeeze(-1)


@stands_for("npu::npu_layernorm_grad")
def layernorm_grad(c: Call) -> _Three:
    """Return the gradients of a layer norm's input, weight and bias."""
    mean, rstd = c.mean, c.rstd
    lead = c.input.shape[: c.input.dim() - len(c.normalized_shape)]
    shape = (*lead, *[1] * len(c.normalized_shape))
    # torch's kernel reads all of them as if they were dense.
    dense = (part.contiguous() for part in (c.grad_out, c.input, mean.reshape(shape), rstd.reshape(shape)))
    grad, x, mean, rstd = dense
    grads = torch.ops.aten.native_layer_norm_backward(
        grad, x, c.normalized_shape, mean, rstd, c.weight, c.bias, [True] * 3
    )
    empty = c.input.new_empty((0,))
    return tuple(part if part is not None else empty.clone() for part in grads)  # type: ignore[return-value]


@stands_for("npu::npu_add_layer_norm_backward")
def add_layer_norm_backward(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x1, x2, gamma and beta of npu_add_layer_norm."""
    total = (c.x1 + c.x2).float()
    normed = (total - c.mean) * c.rstd
    dy = torch.zeros_like(total) if c.dy_opt is None else c.dy_opt.float()
    scaled = dy * c.gamma.float()
    dx = c.rstd * (scaled - scaled.mean(-1, keepdim=True) - normed * (scaled * normed).mean(-1, keepdim=True))
    dx = (dx if c.dsum_opt is None else dx + c.dsum_opt.float()).to(c.x1.dtype)
    rows = tuple(range(total.dim() - 1))
    return dx, dx.clone(), (dy * normed).sum(rows), dy.sum(rows)


@stands_for("npu::npu_deep_norm")
def deep_norm(x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float, epsilon: float) -> _Three:
    """Return (mean, rstd, layer norm of alpha · x + gx)."""
    total = x.float() * alpha + gx.float()
    mean = total.mean(-1, keepdim=True)
    rstd = torch.rsqrt(total.var(-1, unbiased=False, keepdim=True) + epsilon)
    return mean, rstd, ((total - mean) * rstd * gamma.float() + beta.float()).to(x.dtype)


@stands_for("npu::npu_deep_norm_backward")
def deep_norm_backward(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, gx, beta and gamma."""
    normed = (c.x.float() * c.alpha + c.gx.float() - c.mean) * c.rstd
    scaled = c.dy.float() * c.gamma.float()
    total = c.rstd * (scaled - scaled.mean(-1, keepdim=True) - normed * (scaled * normed).mean(-1, keepdim=True))
    rows = tuple(range(c.dy.dim() - 1))
    return (
        (total * c.alpha).to(c.x.dtype),
        total.to(c.x.dtype),
        c.dy.float().sum(rows),
        (c.dy.float() * normed).sum(rows),
    )


@stands_for("npu::npu_group_norm_silu")
def group_norm_silu(input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float) -> _Three:
    """Return (silu of the group norm, mean [N, group], rstd)."""
    return group_norm_swish(Call(input=input, num_groups=group, weight=weight, bias=bias, eps=eps, swish_scale=1.0))


@stands_for("npu::npu_group_norm_swish")
def group_norm_swish(c: Call) -> _Three:
    """Return (y · sigmoid(swish_scale · y), mean [N, groups], rstd), where y is the group norm."""
    weight, bias = c.weight, c.bias
    batch, channels = c.input.shape[:2]
    # torch's kernel reads a weight and a bias as if they were dense.
    weight, bias = (None if part is None else part.contiguous() for part in (weight, bias))
    normed, mean, rstd = torch.native_group_norm(
        c.input, weight, bias, batch, channels, c.input.numel() // max(1, batch * channels), c.num_groups, c.eps or 1e-5
    )
    return normed * torch.sigmoid((1.0 if c.swish_scale is None else c.swish_scale) * normed), mean, rstd


@stands_for("npu::npu_group_norm_swish_grad")
def group_norm_swish_grad(c: Call) -> _Three:
    """Return the gradients of npu_group_norm_swish's input, weight and bias."""
    input, num_groups = c.input, c.num_groups
    batch, channels = input.shape[:2]
    inner = input.numel() // max(1, batch * channels)
    groups = input.reshape(batch, num_groups, -1).float()
    normed = ((groups - c.mean.reshape(batch, num_groups, 1)) * c.rstd.reshape(batch, num_groups, 1)).reshape(
        input.shape
    )
    shape = (1, channels, *[1] * (input.dim() - 2))
    y = normed * c.weight.float().reshape(shape) + c.bias.float().reshape(shape)
    scale = 1.0 if c.swish_scale is None else c.swish_scale
    share = torch.sigmoid(scale * y)
    dy = (c.grad.float() * (share + scale * y * share * (1 - share))).to(c.grad.dtype)
    grads = torch.ops.aten.native_group_norm_backward(
        dy.contiguous(),
        input.contiguous(),
        c.mean.reshape(batch, num_groups).to(input.dtype).contiguous(),
        c.rstd.reshape(batch, num_groups).to(input.dtype).contiguous(),
        c.weight.contiguous(),
        batch,
        channels,
        inner,
        num_groups,
        [True] * 3,
    )
    return tuple(grads)  # type: ignore[return-value]


def _fake_loss(input: Tensor, target: Tensor, reduction: str, return_zloss: bool) -> tuple[Tensor, ...]:
    rows = (input.shape[0],) if reduction == "none" else ()
    shape = (input.shape[0],) if return_zloss else (0,)
    return (
        input.new_empty(rows),
        input.new_empty(input.shape),
        input.new_empty(rows if return_zloss else (0,)),
        input.new_empty(shape),
    )


@stands_for("npu::npu_cross_entropy_loss", fake=_fake_loss)
def cross_entropy_loss(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (loss, log-softmax [N, C], empty z-loss, empty log-sum-exp). Raises ValueError for a z-loss."""
    input = c.input
    if c.return_zloss:
        raise ValueError("npu_cross_entropy_loss with a z-loss is not implemented")
    log_prob = input.float().log_softmax(-1)
    loss = F.cross_entropy(
        input.float(),
        c.target.to(torch.int64),
        c.weight,
        reduction=c.reduction or "mean",
        ignore_index=c.ignore_index,
        label_smoothing=c.label_smoothing,
    )
    empty = input.new_empty((0,))
    return loss.to(input.dtype), log_prob.to(input.dtype), empty, empty.clone()


@stands_for("npu::npu_cross_entropy_loss_backward")
def cross_entropy_loss_backward(c: Call) -> Tensor:
    """Return input's gradient [N, C] from its log-softmax. Raises ValueError for class weights with label smoothing."""
    if c.weight is not None and c.label_smoothing > 0:
        raise ValueError("class weights together with label smoothing are not implemented")
    classes = c.log_prob.shape[-1]
    counted = c.target != c.ignore_index
    ids = c.target.to(torch.int64).clamp(0, classes - 1)
    share = counted.float() if c.weight is None else counted.float() * c.weight.float()[ids]
    hot = torch.zeros_like(c.log_prob, dtype=torch.float32).scatter_(1, ids.unsqueeze(1), 1.0)
    wanted = hot * (1 - c.label_smoothing) + c.label_smoothing / classes
    factor = share * c.grad_loss.float()
    if (c.reduction or "mean") == "mean":
        factor = factor / share.sum().clamp(min=1e-20)
    return ((c.log_prob.float().exp() - wanted) * factor.unsqueeze(1)).to(c.log_prob.dtype)


@stands_for("npu::npu_softmax_cross_entropy_with_logits")
def softmax_cross_entropy(self: Tensor, labels: Tensor) -> Tensor:
    """Return −Σ labels · log-softmax per row, [N]."""
    return -(labels.float() * self.float().log_softmax(-1)).sum(-1).to(self.dtype)


@stands_for("npu::npu_softmax_cross_entropy_with_logits_backward")
def softmax_cross_entropy_backward(grad: Tensor, self: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of npu_softmax_cross_entropy_with_logits. Each row's labels are assumed to sum to one."""
    return ((self.float().softmax(-1) - labels.float()) * grad.float().unsqueeze(-1)).to(self.dtype)


@stands_for("npu::npu_dynamic_quant_asymmetric")
def dynamic_quant_asymmetric(input: Tensor, smooth_scales: Tensor | None, dst_type: int | torch.dtype | None) -> _Three:
    """Return (int8, scale of each row, offset of each row). The min..max of a row maps to −128..127."""
    if dst_type not in (None, torch.int8, 1):
        raise ValueError(f"asymmetric quantisation to {dst_type} is not implemented")
    x = input.float() if smooth_scales is None else input.float() * smooth_scales.float()
    low, high = x.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 255.0).clamp(min=1e-12)
    offset = 127.0 - high / scale
    return (x / scale + offset).round().clamp(-128, 127).to(torch.int8), scale.squeeze(-1), offset.squeeze(-1)


@stands_for("npu::npu_trans_quant_param")
def trans_quant_param(scale: Tensor, offset: Tensor | None) -> Tensor:
    """Return the bits of a float32 scale (and a 9-bit offset above them) as int64."""
    bits = scale.float().contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if offset is None:
        return bits
    return bits | ((offset.float().round().clamp(-256, 255).to(torch.int64) & 0x1FF) << 37)
