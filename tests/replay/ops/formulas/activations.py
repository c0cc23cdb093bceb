# pyright: strict
"""Activations of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tests.replay.ops.formulas.formula import (
    FP8,
    Values,
    covers,
    expressions,
    formula,
    formulas,
    gradients,
    halves,
    of,
    wide,
)


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-1.702 * x))


def asked_gelu(values: Values) -> Callable[[Tensor], Tensor]:
    return tanh_gelu if values.get("approximate") == "tanh" else gelu


def tanh(x: Tensor) -> Tensor:
    grown = torch.expm1(-2 * x.abs())
    return torch.copysign(grown / (grown + 2), x)


expressions(
    "f32[8,16], f32[8,16]",
    {
        "_C::gelu_new _C::gelu_fast aiter::gelu_fast": lambda v: tanh_gelu(v["input"]),
        "_C::gelu_quick sgl_kernel::gelu_quick": lambda v: quick_gelu(v["input"]),
        "_C::relu_squared": lambda v: v["input"].clamp(min=0) ** 2,
        "fbgemm::silu_mul": lambda v: silu(v["x0"]) * v["x1"],
        "aiter::add": lambda v: v["other"] + v["input"],
        "aiter::sub": lambda v: v["input"] - v["other"],
        "aiter::mul": lambda v: v["other"] * v["input"],
        "aiter::div": lambda v: v["input"] / v["other"],
        # In place: written, and returned.
        "aiter::add_": lambda v: (v["other"] + v["input"],) * 2,
        "aiter::sub_": lambda v: (v["input"] - v["other"],) * 2,
        "aiter::mul_": lambda v: (v["other"] * v["input"],) * 2,
        "aiter::div_": lambda v: (v["input"] / v["other"],) * 2,
        "npu::npu_mish_backward": lambda v: gradients(functional.mish, [v["input"]], v["grad"])[0],
        "npu::npu_dtype_cast_ npu::npu_format_cast_": lambda v: v["src"].to(v["self"].dtype, copy=True),
    },
)
expressions(
    "f32[8,16]",
    {
        "npu::npu_fast_gelu npu::fast_gelu": lambda v: quick_gelu(v["self"]),
        "npu::npu_gelu": lambda v: asked_gelu(v)(v["self"]),
        "npu::npu_silu npu::npu_silu_": lambda v: silu(v["self"]),
        "npu::npu_mish": lambda v: v["self"] * torch.tanh(torch.logaddexp(v["self"], v["self"].new_zeros(()))),
        "npu::one_": lambda v: torch.ones_like(v["self"]),
        "aiter::sigmoid": lambda v: 1 / (1 + torch.exp(-v["input"])),
        "aiter::tanh": lambda v: tanh(v["input"]),
    },
)


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Values], Tensor]:
    """The activated first half of each row times the second half."""

    def compute(values: Values) -> Tensor:
        covers(not values.get("limit"), "numbers without a limit")
        gate, up = halves(values)
        return activation(gate) * up

    return compute


def mul_and_silu(values: Values) -> Tensor:
    up, gate = halves(values)
    return silu(gate) * up


def swigluoai_and_mul(values: Values) -> Tensor:
    x, alpha, limit = of(values, "input"), values.get("alpha", 1.702), values.get("limit", 7.0)
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


expressions(
    "f32[8,16], f32[8,32]",
    {
        "_C::silu_and_mul sgl_kernel::silu_and_mul aiter::silu_and_mul": gated(silu),
        "_C::gelu_and_mul sgl_kernel::gelu_and_mul aiter::gelu_and_mul": gated(gelu),
        "_C::gelu_tanh_and_mul sgl_kernel::gelu_tanh_and_mul aiter::gelu_tanh_and_mul": gated(tanh_gelu),
        "_C::mul_and_silu": mul_and_silu,
        "_C::swigluoai_and_mul": swigluoai_and_mul,
    },
)
expressions("f32[8,32]", {"npu::npu_swiglu": gated(functional.silu)})


@formulas("""
    npu::npu_gelu_backward | (f32[8,16], f32[8,16], approximate='tanh')
""")
@formula("npu::npu_gelu_backward", "f32[8,16], f32[8,16]")
def npu_gelu_backward(values: Values) -> Tensor:
    x, grad = values["self"], values["grad_output"]
    if values.get("approximate") == "tanh":
        return gradients(tanh_gelu, [x], grad)[0]
    cdf = (1 + torch.erf(x / math.sqrt(2))) / 2
    return grad * (cdf + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi))


@formulas("""
    npu::npu_gelu_mul | f32[8,32]
    npu::npu_gelu_mul | (f32[8,32], approximate="tanh")
""")
def npu_gelu_mul(values: Values) -> Tensor:
    return gated(asked_gelu(values))(values)


@formula("npu::npu_fast_gelu_backward", "f32[8,16], f32[8,16]")
def npu_fast_gelu_backward(values: Values) -> Tensor:
    x, gate = values["self"], torch.sigmoid(1.702 * values["self"])
    return values["grad"] * (gate + 1.702 * x * gate * (1 - gate))


@formulas("""
    npu::npu_swiglu_backward | (f32[8,16,4], f32[8,32,4], 1)
""")
@formula("npu::npu_swiglu_backward", "f32[8,16], f32[8,32]")
def npu_swiglu_backward(values: Values) -> Tensor:
    def swiglu(x: Tensor) -> Tensor:
        return gated(functional.silu)({**values, "self": x})

    return gradients(swiglu, [values["self"]], values["grad_output"])[0]


@formula("_C::fatrelu_and_mul", "(f32[8,16], f32[8,32], 0.25)")
def fatrelu_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return torch.where(gate > values["threshold"], gate, torch.zeros_like(gate)) * up


@formulas("""
    _C::silu_and_mul_with_clamp | (f32[8,16], f32[8,32], 0.5, 2.0, 1.0)
""")
@formula("_C::silu_and_mul_with_clamp", "(f32[8,16], f32[8,32], 0.5)")
def silu_and_mul_with_clamp(values: Values) -> Tensor:
    gate, up = halves(values)
    limit, alpha, beta = values["limit"], values.get("alpha", 1.0), values.get("beta", 0.0)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


@formulas("""
    npu::npu_geglu | (f32[8,32], approximate=0)
    npu::npu_geglu | (f32[8,32], activate_left=True)
""")
@formula("npu::npu_geglu", "f32[8,32]")
def npu_geglu(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("approximate", 1) in (0, 1), "erf and tanh")
    first, second = values["self"].chunk(2, values.get("dim", -1))
    up, gate = (second, first) if values.get("activate_left") else (first, second)
    smooth = tanh_gelu(gate) if values.get("approximate", 1) else gelu(gate)
    return up * smooth, smooth


def hidden(values: Values, scores: Tensor) -> Tensor:
    """Which scores are masked: those above the diagonal, or as a mask says."""
    if values.get("fixed_triu_mask"):
        return torch.ones_like(scores, dtype=torch.bool).triu(1)
    return values["mask"].bool()


@formulas("""
    npu::npu_scaled_masked_softmax | (f32[2,3,8,8], bool[2,1,8,8], 0.5, True)
""")
@formula("npu::npu_scaled_masked_softmax", "(f32[2,3,32,32], bool[2,1,32,32], 0.5)")
def npu_masked_softmax(values: Values) -> Tensor:
    x = wide(values["x"]) * values.get("scale", 1)
    return torch.softmax(x.masked_fill(hidden(values, x), -10000.0), -1).to(values["x"].dtype)


@formulas("""
    npu::npu_geglu_grad | (f32[8,16], f32[8,32], f32[8,16], -1, 0, True)
""")
@formula("npu::npu_geglu_grad", "(f32[8,16], f32[8,32], f32[8,16], -1, 1, False)")
def npu_geglu_grad(values: Values) -> Tensor:
    dim, smooth = values.get("dim", -1), tanh_gelu if values.get("approximate", 1) == 1 else functional.gelu

    def forward(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim)
        return smooth(left) * right if values.get("activate_left") else left * smooth(right)

    (grad,) = gradients(forward, [values["self"]], values["grad_output"])
    # The kernel takes the activated half as it was saved, and not from its input.
    left, right = values["self"].chunk(2, dim)
    saved = values["grad_output"] * values["gelu"]
    active = right if not values.get("activate_left") else left
    first, second = grad.chunk(2, dim)
    covers(active.shape == saved.shape, "halves")
    return torch.cat([first, saved] if values.get("activate_left") else [saved, second], dim)


@formula("npu::npu_silu_backward", "f32[8,16], f32[8,16], f32[8,16]")
def npu_silu_backward(values: Values) -> Tensor:
    return gradients(functional.silu, [values["x0"]], values["grad_output"])[0]


@formulas("""
    npu::npu_clipped_swiglu | (f32[8,32], group_index=i64[3], limit=1.0)
    npu::npu_clipped_swiglu | (f32[8,32], limit=0.5, bias=0.0, interleaved=False)
""")
@formula("npu::npu_clipped_swiglu", "(f32[8,32])")
def npu_clipped_swiglu(values: Values) -> Tensor:
    x, dim, limit = values["x"], values.get("dim", -1), values.get("limit", 7.0)
    groups, sizes = values.get("group_index"), x.shape[dim]
    covers(sizes % 2 == 0 and (groups is None or x.dim() == 2), "halves of rows")
    covers(groups is None or (not groups.is_floating_point() and bool((groups >= 0).all())), "numbers of rows")
    order = torch.arange(sizes, device=x.device)
    even, odd = (order[::2], order[1::2]) if values.get("interleaved", True) else order.chunk(2)
    gate = wide(x.index_select(dim, even)).clamp(max=limit)
    up = wide(x.index_select(dim, odd)).clamp(-limit, limit)
    result = ((up + values.get("bias", 1.0)) * gate * torch.sigmoid(values.get("alpha", 1.702) * gate)).to(x.dtype)
    if groups is not None:
        # Rows behind the last group.
        result[int(groups.sum()) :] = 0
    return result


def softmax_of(scores: Tensor) -> Tensor:
    shares = torch.exp(scores - scores.amax(-1, keepdim=True))
    return shares / shares.sum(-1, keepdim=True)


def softmax_gradient(y: Tensor, grad: Tensor) -> Tensor:
    """The Jacobian diag(y) - y yT of each row, times a gradient."""
    return y * (grad - torch.einsum("...i,...i->...", y, grad).unsqueeze(-1))


@formulas("""
    npu::npu_scaled_masked_softmax_backward | (f32[2,2,8,8], f32[2,2,8,8], bool[2,1,8,8], 0.5, True)
""")
@formula("npu::npu_scaled_masked_softmax_backward", "(f32[2,2,8,8], f32[2,2,8,8], bool[2,1,8,8], 0.5, False)")
def npu_scaled_masked_softmax_backward(values: Values) -> Tensor:
    y, grad = wide(values["y"]), wide(values["y_grad"])
    inner = values.get("scale", 1.0) * softmax_gradient(y, grad)
    return inner.masked_fill(hidden(values, inner), 0).to(values["y"].dtype)


@formula("npu::npu_attn_softmax_", "f32[2,8,8]")
def npu_attn_softmax(values: Values) -> Tensor:
    covers(values["self"].numel(), "any scores")
    return softmax_of(wide(values["self"])).to(values["self"].dtype)


@formula("npu::npu_attn_softmax_backward_", "f32[2,8,8], f32[2,8,16], f32[2,8,16]")
def npu_attn_softmax_backward(values: Values) -> Tensor:
    y = wide(values["self"])
    upstream = torch.einsum("...ik,...jk->...ij", wide(values["grad_output"]), wide(values["values"]))
    return softmax_gradient(y, upstream).to(values["self"].dtype)


@formula("npu::npu_masked_softmax_with_rel_pos_bias", "(f32[2,3,4,8,8], f32[3,8,8], f32[4,8,8], 0.5)")
def npu_masked_softmax_with_bias(values: Values) -> Tensor:
    x, mask = values["x"], values["atten_mask"]
    covers(x.dim() == 5 and mask is not None, "windows with a mask")
    scores = wide(x) * values.get("scale_value", 1.0) + wide(values["relative_pos_bias"])
    scores = scores + wide(of(values, "atten_mask"))[:, None]
    covers(scores.numel(), "any scores")
    return softmax_of(scores).to(x.dtype)


@formula(
    "npu::npu_dtype_cast npu::_npu_dtype_cast npu::npu_dtype_cast_backward npu::_npu_dtype_cast_backward",
    "(f32[8,16], torch.bfloat16)",
)
def npu_cast(values: Values) -> Tensor:
    return of(values, "self", "grad").to(values["dtype"], copy=True)


def unpacked(mask: Tensor, count: int) -> Tensor:
    """Bits of bytes, the lowest first."""
    bits = [mask.long() // 2**bit % 2 for bit in range(8)]
    covers(mask.dtype is torch.uint8 and mask.numel() * 8 >= count, "a bit for each element")
    return torch.stack(bits, -1).flatten()[:count].bool()


def undropped(values: Values, mask: Tensor, x: Tensor) -> Tensor:
    """x where a mask is set, over the chance that it is."""
    p = of(values, "p", "prob")
    covers(0 <= p < 1, "a chance below one")
    return x * mask.reshape(x.shape) / (1 - p)


@formula("npu::npu_dropout_backward", "(f32[8,16], u8[16], 0.25)")
def npu_dropout_backward(values: Values) -> Tensor:
    grad = values["grad_output"]
    return undropped(values, unpacked(values["mask"], grad.numel()), grad)


@formula("npu::npu_dropout_do_mask", "(f32[8,16], u8[16], 0.25)")
def npu_dropout_do_mask(values: Values) -> tuple[Tensor, Tensor]:
    x = values["self"]
    return undropped(values, unpacked(values["mask"], x.numel()), x), values["mask"].clone()


@formula("npu::_dropout_with_byte_mask_backward", "(f32[8,16], u8[8,16], 0.25)")
def dropout_byte_mask_backward(values: Values) -> Tensor:
    return undropped(values, values["mask"], values["grad_output"])


@formula("npu::npu_dropout_with_add_softmax_backward", "(f32[8,16], u8[8,16], f32[8,16], 0.5, 0.25, -1)")
def dropout_add_softmax_backward(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["dim"] in (-1, values["grad"].dim() - 1), "rows")
    upstream = undropped(values, values["mask"], wide(values["grad"]))
    inner = softmax_gradient(wide(values["softmax_out"]), upstream)
    return (values["alpha"] * inner).to(values["grad"].dtype), inner.to(values["grad"].dtype)


expressions(
    "f32[8]",
    {
        "npu::npu_alloc_float_status": lambda v: torch.tensor([0.0] * 8, device=v["self"].device),
        "npu::npu_get_float_status npu::npu_clear_float_status": lambda v: v["self"] * 1,
    },
)


@formula("npu::_amp_foreach_non_finite_check", "([f32[8,16], f32[4]])")
def non_finite(values: Values) -> bool:
    return any((grad - grad).ne(0).any().item() for grad in values["scaled_grads"])


@formula("aiter::scaled_silu_and_mul", "(f8e4m3[8,16], f32[8,32], f32[1])")
def scaled_silu_and_mul(values: Values) -> Tensor:
    gate, up = (wide(half) for half in halves(values))
    return (silu(gate) * up / values["scale"]).clamp(-FP8, FP8).to(values["out"].dtype)
