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

from opreplay.replay.ops.maths.formula import FP8, Values, covers, formula, gradients, halves, of, wide

GATED = "f32[8,16], f32[8,32]"


@formula("_C::silu_and_mul sgl_kernel::silu_and_mul aiter::silu_and_mul", GATED)
def silu_and_mul(values: Values) -> Tensor:
    covers(not values.get("limit"), "numbers without a limit")
    gate, up = halves(values)
    return gate / (1 + torch.exp(-gate)) * up


@formula("_C::mul_and_silu", GATED)
def mul_and_silu(values: Values) -> Tensor:
    up, gate = halves(values)
    return gate * torch.sigmoid(gate) * up


@formula("_C::gelu_and_mul sgl_kernel::gelu_and_mul aiter::gelu_and_mul", GATED)
def gelu_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * up


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@formula("_C::gelu_tanh_and_mul sgl_kernel::gelu_tanh_and_mul aiter::gelu_tanh_and_mul", GATED)
def gelu_tanh_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return tanh_gelu(gate) * up


@formula("_C::gelu_new _C::gelu_fast aiter::gelu_fast", "f32[8,16], f32[8,16]")
def gelu_new(values: Values) -> Tensor:
    return tanh_gelu(of(values, "input"))


@formula("_C::gelu_quick sgl_kernel::gelu_quick", "f32[8,16], f32[8,16]")
def gelu_quick(values: Values) -> Tensor:
    x = of(values, "input")
    return x / (1 + torch.exp(-1.702 * x))


@formula("_C::relu_squared", "f32[8,16], f32[8,16]")
def relu_squared(values: Values) -> Tensor:
    return of(values, "input").clamp(min=0) ** 2


@formula("_C::fatrelu_and_mul", "(f32[8,16], f32[8,32], 0.25)")
def fatrelu_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return torch.where(gate > values["threshold"], gate, torch.zeros_like(gate)) * up


@formula("_C::swigluoai_and_mul", GATED)
def swigluoai_and_mul(values: Values) -> Tensor:
    x, alpha, limit = of(values, "input"), values.get("alpha", 1.702), values.get("limit", 7.0)
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


@formula("npu::npu_swiglu", "f32[8,32]")
def npu_swiglu(values: Values) -> Tensor:
    gate, up = values["self"].chunk(2, values.get("dim", -1))
    return functional.silu(gate) * up


@formula("npu::npu_swiglu_backward", "f32[8,16], f32[8,32]")
def npu_swiglu_backward(values: Values) -> Tensor:
    dim = values.get("dim", -1)
    gate, up = values["self"].chunk(2, dim)
    grad, gated = values["grad_output"], torch.sigmoid(gate)
    return torch.cat([grad * up * gated * (1 + gate * (1 - gated)), grad * gate * gated], dim)


@formula("fbgemm::silu_mul", "f32[8,16], f32[8,16]")
def silu_mul(values: Values) -> Tensor:
    return functional.silu(values["x0"]) * values["x1"]


@formula("npu::npu_fast_gelu npu::fast_gelu", "f32[8,16]")
def npu_fast_gelu(values: Values) -> Tensor:
    x = of(values, "self")
    return x * torch.sigmoid(1.702 * x)


@formula("npu::npu_fast_gelu_backward", "f32[8,16], f32[8,16]")
def npu_fast_gelu_backward(values: Values) -> Tensor:
    x, gate = values["self"], torch.sigmoid(1.702 * values["self"])
    return values["grad"] * (gate + 1.702 * x * gate * (1 - gate))


@formula("npu::npu_gelu", "f32[8,16]")
def npu_gelu(values: Values) -> Tensor:
    x = values["self"]
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


@formula("npu::npu_gelu_backward", "f32[8,16], f32[8,16]")
def npu_gelu_backward(values: Values) -> Tensor:
    x = values["self"]
    cdf = (1 + torch.erf(x / math.sqrt(2))) / 2
    return values["grad_output"] * (cdf + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi))


@formula("npu::npu_gelu_mul", "f32[8,32]")
def npu_gelu_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return gate * (1 + torch.erf(gate / math.sqrt(2))) / 2 * up


@formula("aiter::sigmoid", "f32[8,16]")
def sigmoid(values: Values) -> Tensor:
    return 1 / (1 + torch.exp(-values["input"]))


@formula("aiter::tanh", "f32[8,16]")
def tanh(values: Values) -> Tensor:
    grown = torch.expm1(-2 * values["input"].abs())
    return torch.copysign(grown / (grown + 2), values["input"])


@formula("_C::silu_and_mul_with_clamp", "(f32[8,16], f32[8,32], 0.5)")
def silu_and_mul_with_clamp(values: Values) -> Tensor:
    gate, up = halves(values)
    limit, alpha, beta = values["limit"], values.get("alpha", 1.0), values.get("beta", 0.0)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


@formula("npu::npu_silu npu::npu_silu_", "f32[8,16]")
def npu_silu(values: Values) -> Tensor:
    return values["self"] / (1 + torch.exp(-values["self"]))


@formula("npu::npu_geglu", "f32[8,32]")
def npu_geglu(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("approximate", 1) in (0, 1), "erf and tanh")
    first, second = values["self"].chunk(2, values.get("dim", -1))
    up, gate = (second, first) if values.get("activate_left") else (first, second)
    smooth = tanh_gelu(gate) if values.get("approximate", 1) else gate * (1 + torch.erf(gate / math.sqrt(2))) / 2
    return up * smooth, smooth


@formula("npu::npu_dtype_cast", "(f32[8,16], torch.bfloat16)")
def npu_dtype_cast(values: Values) -> Tensor:
    return values["self"].to(values["dtype"])


@formula("npu::npu_scaled_masked_softmax", "(f32[2,3,32,32], bool[2,1,32,32], 0.5)")
def npu_masked_softmax(values: Values) -> Tensor:
    covers(not values.get("fixed_triu_mask"), "the plain form")
    x = (
        values["x"].float() * values.get("scale", 1)
        if values["x"].dtype is not torch.float64
        else values["x"] * values.get("scale", 1)
    )
    return torch.softmax(x.masked_fill(values["mask"].bool(), -10000.0), -1).to(values["x"].dtype)


ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "aiter::add": torch.add,
    "aiter::sub": torch.sub,
    "aiter::mul": torch.mul,
    "aiter::div": torch.div,
}


for _name, _function in ARITHMETIC.items():
    formula(_name, "f32[8,16], f32[8,16]")(
        lambda values, function=_function: function(values["input"], values["other"])
    )


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
    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    return gradients(silu, [values["x0"]], values["grad_output"])[0]


@formula("npu::npu_mish", "f32[8,16]")
def npu_mish(values: Values) -> Tensor:
    x = values["self"]
    return x * torch.tanh(torch.logaddexp(x, x.new_zeros(())))


@formula("npu::npu_mish_backward", "f32[8,16], f32[8,16]")
def npu_mish_backward(values: Values) -> Tensor:
    return gradients(functional.mish, [values["input"]], values["grad"])[0]


@formula("npu::npu_clipped_swiglu", "(f32[8,32])")
def npu_clipped_swiglu(values: Values) -> Tensor:
    x, dim, limit = values["x"], values.get("dim", -1), values.get("limit", 7.0)
    covers(values.get("group_index") is None, "all rows")
    sizes = x.shape[dim]
    covers(sizes % 2 == 0, "halves")
    order = torch.arange(sizes, device=x.device)
    even, odd = (order[::2], order[1::2]) if values.get("interleaved", True) else order.chunk(2)
    gate = wide(x.index_select(dim, even)).clamp(max=limit)
    up = wide(x.index_select(dim, odd)).clamp(-limit, limit)
    return ((up + values.get("bias", 1.0)) * gate * torch.sigmoid(values.get("alpha", 1.702) * gate)).to(x.dtype)


def softmax_of(scores: Tensor) -> Tensor:
    shares = torch.exp(scores - scores.amax(-1, keepdim=True))
    return shares / shares.sum(-1, keepdim=True)


def softmax_gradient(y: Tensor, grad: Tensor) -> Tensor:
    """The Jacobian diag(y) - y yT of each row, times a gradient."""
    return y * (grad - torch.einsum("...i,...i->...", y, grad).unsqueeze(-1))


@formula("npu::npu_scaled_masked_softmax_backward", "(f32[2,2,8,8], f32[2,2,8,8], bool[2,1,8,8], 0.5, False)")
def npu_scaled_masked_softmax_backward(values: Values) -> Tensor:
    covers(not values.get("fixed_triu_mask"), "a mask that is given")
    y, grad = wide(values["y"]), wide(values["y_grad"])
    inner = values.get("scale", 1.0) * softmax_gradient(y, grad)
    return torch.where(values["mask"].bool(), torch.zeros_like(inner), inner).to(values["y"].dtype)


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


@formula("npu::npu_dtype_cast_ npu::npu_format_cast_", "f32[8,16], f32[8,16]")
def npu_taken(values: Values) -> Tensor:
    return values["src"].to(values["self"].dtype, copy=True)


@formula("npu::npu_dtype_cast_backward npu::_npu_dtype_cast_backward", "(f32[8,16], torch.bfloat16)")
@formula("npu::_npu_dtype_cast", "(f32[8,16], torch.bfloat16)")
def npu_cast(values: Values) -> Tensor:
    return of(values, "self", "grad").to(values["dtype"], copy=True)


def unpacked(mask: Tensor, count: int) -> Tensor:
    """Bits of bytes, the lowest first."""
    bits = [mask.long() // 2**bit % 2 for bit in range(8)]
    covers(mask.dtype is torch.uint8 and mask.numel() * 8 >= count, "a bit for each element")
    return torch.stack(bits, -1).flatten()[:count].bool()


@formula("npu::npu_dropout_backward", "(f32[8,16], u8[16], 0.25)")
def npu_dropout_backward(values: Values) -> Tensor:
    grad, p = values["grad_output"], values["p"]
    covers(0 <= p < 1, "a chance below one")
    kept = unpacked(values["mask"], grad.numel()).reshape(grad.shape)
    return kept * grad / (1 - p)


@formula("npu::npu_dropout_do_mask", "(f32[8,16], u8[16], 0.25)")
def npu_dropout_do_mask(values: Values) -> tuple[Tensor, Tensor]:
    x, p = values["self"], values["p"]
    covers(0 <= p < 1, "a chance below one")
    bits = unpacked(values["mask"], x.numel()).reshape(x.shape)
    return bits * x / (1 - p), values["mask"].clone()


@formula("npu::_dropout_with_byte_mask_backward", "(f32[8,16], u8[8,16], 0.25)")
def dropout_byte_mask_backward(values: Values) -> Tensor:
    covers(0 <= values["p"] < 1, "a chance below one")
    return values["grad_output"] * values["mask"] / (1 - values["p"])


@formula("npu::npu_dropout_with_add_softmax_backward", "(f32[8,16], u8[8,16], f32[8,16], 0.5, 0.25, -1)")
def dropout_add_softmax_backward(values: Values) -> tuple[Tensor, Tensor]:
    covers(0 <= values["prob"] < 1 and values["dim"] in (-1, values["grad"].dim() - 1), "rows")
    upstream = wide(values["grad"]) * values["mask"] / (1 - values["prob"])
    y = wide(values["softmax_out"])
    inner = softmax_gradient(y, upstream)
    return (values["alpha"] * inner).to(values["grad"].dtype), inner.to(values["grad"].dtype)


@formula("npu::npu_alloc_float_status", "f32[8]")
def npu_no_status(values: Values) -> Tensor:
    return torch.tensor([0.0] * 8, device=values["self"].device)


@formula("npu::npu_get_float_status npu::npu_clear_float_status", "f32[8]")
def npu_status(values: Values) -> Tensor:
    return values["self"] * 1


@formula("npu::_amp_foreach_non_finite_check", "([f32[8,16], f32[4]])")
def non_finite(values: Values) -> bool:
    return any((grad - grad).ne(0).any().item() for grad in values["scaled_grads"])


@formula("npu::one_", "f32[8,16]")
def npu_one(values: Values) -> Tensor:
    return torch.ones_like(values["self"])


@formula("aiter::add_", "f32[8,16], f32[8,16]")
def aiter_add(values: Values) -> tuple[Tensor, Tensor]:
    total = values["other"] + values["input"]
    return total, total


@formula("aiter::sub_", "f32[8,16], f32[8,16]")
def aiter_sub(values: Values) -> tuple[Tensor, Tensor]:
    rest = values["input"] - values["other"]
    return rest, rest


@formula("aiter::mul_", "f32[8,16], f32[8,16]")
def aiter_mul(values: Values) -> tuple[Tensor, Tensor]:
    product = values["other"] * values["input"]
    return product, product


@formula("aiter::div_", "f32[8,16], f32[8,16]")
def aiter_div(values: Values) -> tuple[Tensor, Tensor]:
    share = values["input"] / values["other"]
    return share, share


@formula("aiter::scaled_silu_and_mul", "(f8e4m3[8,16], f32[8,32], f32[1])")
def scaled_silu_and_mul(values: Values) -> Tensor:
    gate, up = (wide(half) for half in halves(values))
    return (gate / (1 + torch.exp(-gate)) * up / values["scale"]).clamp(-FP8, FP8).to(values["out"].dtype)
