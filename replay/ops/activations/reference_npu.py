"""torch_npu's activations, softmaxes and dropout with their gradients, and its casts (`npu::*`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for

_QUICK = 1.702


@stands_for("npu::fast_gelu", "npu::npu_fast_gelu")
def fast_gelu(self: Tensor) -> Tensor:
    """Return x · sigmoid(1.702 x)."""
    return self * torch.sigmoid(_QUICK * self)


@stands_for("npu::npu_fast_gelu_backward")
def fast_gelu_backward(grad: Tensor, self: Tensor) -> Tensor:
    """Return the gradient of fast_gelu."""
    share = torch.sigmoid(_QUICK * self)
    return grad * (share + _QUICK * self * share * (1 - share))


@stands_for("npu::npu_gelu_backward")
def gelu_backward(grad_output: Tensor, self: Tensor, approximate: str) -> Tensor:
    """Return the gradient of GELU."""
    return torch.ops.aten.gelu_backward(grad_output, self, approximate=approximate or "none")


@stands_for("npu::npu_gelu_mul")
def gelu_mul(input: Tensor, approximate: str) -> Tensor:
    """Return gelu(first half) · second half, with `input` halved along its last dim."""
    first, second = input.chunk(2, -1)
    return F.gelu(first, approximate=approximate or "none") * second


def _geglu_halves(self: Tensor, dim: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """Split `self` in two halves along `dim`; return (half to activate, other half)."""
    first, second = self.chunk(2, dim)
    return (first, second) if activate_left else (second, first)


def _approximate(approximate: int) -> str:
    return "tanh" if approximate == 1 else "none"


@stands_for("npu::npu_geglu")
def geglu(self: Tensor, dim: int, approximate: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """Return (other half · g, g) with g = gelu(activated half). The right half is activated by default."""
    active, other = _geglu_halves(self, dim, activate_left)
    gelu = F.gelu(active, approximate=_approximate(approximate))
    return other * gelu, gelu


@stands_for("npu::npu_geglu_grad")
def geglu_grad(c: Call) -> Tensor:
    """Return the gradient of npu_geglu."""
    active, other = _geglu_halves(c.self, c.dim, c.activate_left)
    dactive = torch.ops.aten.gelu_backward(c.grad_output * other, active, approximate=_approximate(c.approximate))
    dother = c.grad_output * c.gelu
    return torch.cat((dactive, dother) if c.activate_left else (dother, dactive), c.dim)


@stands_for("npu::npu_silu")
def silu(self: Tensor) -> Tensor:
    """Return SiLU."""
    return F.silu(self)


@stands_for("npu::npu_silu_")
def silu_(self: Tensor) -> Tensor:
    """Apply SiLU in place."""
    return self.copy_(F.silu(self))


@stands_for("npu::npu_silu_backward")
def silu_backward(grad_output: Tensor, x0: Tensor) -> Tensor:
    """Return the gradient of SiLU at x0; x1, the result of SiLU, is not needed."""
    return torch.ops.aten.silu_backward(grad_output, x0)


@stands_for("npu::npu_mish")
def mish(self: Tensor) -> Tensor:
    """Return Mish."""
    return F.mish(self)


@stands_for("npu::npu_mish_backward")
def mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    """Return the gradient of Mish."""
    inner = torch.tanh(F.softplus(input))
    return grad * (inner + input * torch.sigmoid(input) * (1 - inner * inner))


@stands_for("npu::npu_clipped_swiglu")
def clipped_swiglu(c: Call) -> Tensor:
    """Return (up + bias) · gate · sigmoid(alpha · gate), with gate and up clamped, as in gpt-oss.

    Rows after the last group are zero.
    """
    dim = c.dim
    if c.interleaved:
        pairs = c.x.unflatten(dim, (-1, 2)).movedim(dim + 1 if dim >= 0 else dim, -1)
        gate, up = pairs[..., 0], pairs[..., 1]
    else:
        gate, up = c.x.chunk(2, dim)
    gate, up = gate.float().clamp(max=c.limit), up.float().clamp(-c.limit, c.limit)
    out = ((up + c.bias) * gate * torch.sigmoid(c.alpha * gate)).to(c.x.dtype)
    if c.group_index is None:
        return out
    row = torch.arange(out.shape[0], device=c.x.device).reshape(-1, *[1] * (out.dim() - 1))
    return out.masked_fill(row >= c.group_index.sum(), 0.0)


def _scaled_mask(x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool) -> Tensor:
    hidden = mask.to(torch.bool)
    if fixed_triu_mask:
        hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    # The kernels put −10000 where the mask is set, not −∞.
    return (x.float() * scale).masked_fill(hidden, -10000.0)


@stands_for("npu::npu_scaled_masked_softmax")
def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool) -> Tensor:
    """Return softmax(scale · x) over the last dim, with masked scores set to −10000.

    Scores are masked where `mask` is set or, with `fixed_triu_mask`, above the diagonal.
    """
    return _scaled_mask(x, mask, scale, fixed_triu_mask).softmax(-1).to(x.dtype)


@stands_for("npu::npu_scaled_masked_softmax_backward")
def scaled_masked_softmax_backward(c: Call) -> Tensor:
    """Return the gradient of npu_scaled_masked_softmax, computed from its result y."""
    hidden = c.mask.to(torch.bool)
    if c.fixed_triu_mask:
        hidden = torch.ones(c.y.shape[-2:], dtype=torch.bool, device=c.y.device).triu(1)
    wide = c.y.float()
    inner = (c.y_grad.float() - (c.y_grad.float() * wide).sum(-1, keepdim=True)) * wide * c.scale
    return inner.masked_fill(hidden, 0.0).to(c.y.dtype)


@stands_for("npu::npu_attn_softmax_")
def attn_softmax_(self: Tensor) -> Tensor:
    """Apply softmax over the last dim, in place."""
    return self.copy_(self.float().softmax(-1))


@stands_for("npu::npu_attn_softmax_backward_")
def attn_softmax_backward_(self: Tensor, grad_output: Tensor, values: Tensor) -> Tensor:
    """Replace `self`, a softmax result, by the gradient of the softmax's input.

    The incoming gradient is grad_output @ valuesᵀ.
    """
    upstream = grad_output.float() @ values.float().transpose(-1, -2)
    wide = self.float()
    return self.copy_((upstream - (upstream * wide).sum(-1, keepdim=True)) * wide)


@stands_for("npu::npu_masked_softmax_with_rel_pos_bias")
def masked_softmax_with_rel_pos_bias(c: Call) -> Tensor:
    """Return softmax(scale · x + mask + bias) over the last dim. The mask is [W, S, S]. The bias [N, S, S] has one
    matrix per head.
    """
    scores = c.x.float() * c.scale_value + c.relative_pos_bias.float()
    if c.atten_mask is not None:
        scores = scores + (c.atten_mask.unsqueeze(-3) if c.atten_mask.dim() == 3 else c.atten_mask).float()
    return scores.softmax(-1).to(c.x.dtype)


@stands_for("npu::npu_dtype_cast_")
def dtype_cast_(self: Tensor, src: Tensor) -> Tensor:
    """Copy the values of `src` into `self` and keep the dtype of `self`."""
    return self.copy_(src)


@stands_for("npu::npu_dtype_cast_backward", "npu::_npu_dtype_cast_backward")
def dtype_cast_backward(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `grad` converted to `dtype`, the dtype of the forward op's input."""
    return grad.to(dtype, copy=True)


@stands_for("npu::npu_format_cast_")
def format_cast_(self: Tensor, src: Tensor) -> Tensor:
    """Copy the values of `src` into `self`; the NPU's private memory formats are not reproduced."""
    return self.copy_(src)


@stands_for("npu::npu_dropout_do_mask")
def dropout_do_mask(self: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return (output, mask): the output is self / (1 − p) where the packed mask bit is 1, and zero elsewhere."""
    bits = torch.tensor((1, 2, 4, 8, 16, 32, 64, 128), device=mask.device, dtype=torch.uint8)
    keep = (mask.unsqueeze(-1) & bits).flatten()[: self.numel()] != 0
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    return (self * keep.reshape(self.shape) * scale).to(self.dtype), mask.clone()


@stands_for("npu::_dropout_with_byte_mask", random=True)
def dropout_with_byte_mask_pair(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Apply dropout with probability p, scaling kept elements by 1 / (1 − p); return (output, uint8 mask)."""
    keep = torch.rand(self.shape, device=self.device) >= p
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    return (self * keep * scale).to(self.dtype), keep.to(torch.uint8)


@stands_for("npu::dropout_with_byte_mask", random=True)
def dropout_with_byte_mask(self: Tensor, p: float, train: bool) -> Tensor:
    """Apply dropout in training; return a copy otherwise."""
    return dropout_with_byte_mask_pair(self, p)[0] if train else self.clone()


@stands_for("npu::_dropout_with_byte_mask_backward")
def dropout_with_byte_mask_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """Return grad_output masked by `mask` and scaled by 1 / (1 − p)."""
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    return (grad_output * mask.to(grad_output.dtype) * scale).to(grad_output.dtype)


@stands_for("npu::npu_dropout_with_add_softmax", random=True)
def dropout_with_add_softmax(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the uint8 mask, softmax(alpha · self + x1), and that softmax after dropout."""
    self = c.self
    softmax = (self.float() * c.alpha + c.x1.float()).softmax(c.dim).to(self.dtype)
    keep = torch.rand(self.shape, device=self.device) >= c.prob
    scale = 0.0 if c.prob >= 1 else 1.0 / (1.0 - c.prob)
    return keep.to(torch.uint8), softmax, (softmax * keep * scale).to(self.dtype)


@stands_for("npu::npu_dropout_with_add_softmax_backward")
def dropout_with_add_softmax_backward(c: Call) -> tuple[Tensor, Tensor]:
    """Return the gradients of `self` and `x1`."""
    scale = 0.0 if c.prob >= 1 else 1.0 / (1.0 - c.prob)
    upstream = c.grad.float() * c.mask.float() * scale
    wide = c.softmax_out.float()
    inner = (upstream - (upstream * wide).sum(c.dim, keepdim=True)) * wide
    return (inner * c.alpha).to(c.grad.dtype), inner.to(c.grad.dtype)


@stands_for("npu::npu_alloc_float_status")
def alloc_float_status(self: Tensor) -> Tensor:
    """Return eight zeros, the buffer for the overflow status."""
    return torch.zeros(8, dtype=torch.float32, device=self.device)


@stands_for("npu::npu_get_float_status", "npu::npu_clear_float_status")
def float_status(self: Tensor) -> Tensor:
    """Return a copy of the status: the reference implementation never reports an overflow."""
    return self.clone()


@stands_for("npu::_amp_foreach_non_finite_check", fake=lambda scaled_grads: False)
def non_finite_check(scaled_grads: list[Tensor]) -> bool:
    """Check whether any gradient contains inf or nan."""
    return any(not bool(torch.isfinite(grad).all()) for grad in scaled_grads)


@stands_for("npu::npu_prefetch")
def prefetch(self: Tensor) -> None:
    """Do nothing: prefetching a weight to the cores does not change any result."""


@stands_for("npu::one_")
def one_(self: Tensor) -> Tensor:
    """Fill self with ones."""
    return self.fill_(1)


@stands_for("npu::npu_swiglu")
def npu_swiglu(self: Tensor, dim: int) -> Tensor:
    """Return silu(first half) · second half along dim."""
    gate, up = self.chunk(2, dim=dim)
    return F.silu(gate) * up


@stands_for("npu::npu_swiglu_backward")
def npu_swiglu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Return the gradient of npu_swiglu."""
    gate, up = self.chunk(2, dim=dim)
    share = torch.sigmoid(gate)
    dgate = grad_output * up * share * (1 + gate * (1 - share))
    return torch.cat((dgate, grad_output * gate * share), dim=dim)


@stands_for("npu::npu_gelu")
def npu_gelu(self: Tensor, approximate: str) -> Tensor:
    """Return GELU."""
    return F.gelu(self, approximate=approximate or "none")


@stands_for("npu::_npu_dtype_cast", "npu::npu_dtype_cast")
def npu_dtype_cast(self: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy in another dtype."""
    return self.to(dtype, copy=True)


_BITS = (1, 2, 4, 8, 16, 32, 64, 128)


_MASK_BITS = 128


def _fake_dropout(self: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(self), self.new_empty((mask_bytes(self.numel()),), dtype=torch.uint8)


def mask_bytes(elements: int) -> int:
    """Return the size of a packed mask in bytes: one bit per element, rounded up to 128 bits."""
    return -(-elements // _MASK_BITS) * _MASK_BITS // 8


@stands_for("npu::_npu_dropout", fake=_fake_dropout, random=True)
def npu_dropout(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Apply dropout with probability p and scale the kept elements by 1 / (1 − p).

    Returns (output, uint8 mask). The mask holds 8 elements per byte, the first in bit 0.
    """
    mask_bits = torch.rand(mask_bytes(self.numel()) * 8, device=self.device) >= p
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    out = self * mask_bits[: self.numel()].reshape(self.shape) * scale
    weights = torch.tensor(_BITS, device=self.device, dtype=torch.int32)
    return out.to(self.dtype), (mask_bits.reshape(-1, 8) * weights).sum(-1).to(torch.uint8)


@stands_for("npu::npu_dropout_backward")
def npu_dropout_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """Return grad_output masked by the packed mask and scaled by 1 / (1 − p)."""
    weights = torch.tensor(_BITS, device=mask.device, dtype=torch.uint8)
    mask_bits = (mask.unsqueeze(-1) & weights).flatten()[: grad_output.numel()] != 0
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    return (grad_output * mask_bits.reshape(grad_output.shape) * scale).to(grad_output.dtype)
