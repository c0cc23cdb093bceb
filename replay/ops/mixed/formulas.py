# pyright: strict
"""Activations, norms and products of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: nothing is imported from there, and each formula is the textbook's, without
the blocks and layouts of a kernel. A row is the names of ops that share a formula, tensors to call them with, and the
formula of their arguments by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from opreplay.replay.ops.maths.formula import Values, covers, epsilon, formula, halves, of, rms, scale_of

GATED = "f32[8,16], f32[8,32]"
ADDED = "f32[8,16], f32[8,16], f32[16]"


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


@formula("npu::npu_rotary_mul", "f32[2,8,4,16], f32[1,8,1,16], f32[1,8,1,16]")
def npu_rotary_mul(values: Values) -> Tensor:
    x = values["self"]
    first, second = x.chunk(2, -1)
    return x * values["r1"] + torch.cat([-second, first], -1) * values["r2"]


@formula(
    "_C::rms_norm sgl_kernel::rmsnorm aiter::rmsnorm aiter::rms_norm_cu",
    "f32[8,16], f32[8,16], f32[16]",
)
def rms_norm_into(values: Values) -> Tensor:
    return rms(values["input"], values["weight"] + 1 if values.get("gemma_norm") else values["weight"], epsilon(values))


@formula(
    "aiter::rms_norm aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck aiter::_fused_rmsnorm vllm::rocm_aiter_rms_norm",
    "f32[8,16], f32[16]",
)
def rms_norm(values: Values) -> Tensor:
    return rms(of(values, "input", "x"), values["weight"], epsilon(values))


@formula("sgl_kernel::gemma_rmsnorm", "f32[8,16], f32[8,16], f32[16]")
def gemma_rmsnorm(values: Values) -> Tensor:
    return rms(values["input"], 1 + values["weight"], epsilon(values))


@formula("npu::npu_rms_norm", "f32[8,16], f32[16]")
def npu_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    eps = epsilon(values)
    return rms(values["self"], values["gamma"], eps), scale_of(values["self"], eps)


@formula("npu::npu_gemma_rms_norm", "f32[8,16], f32[16]")
def npu_gemma_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    eps = epsilon(values)
    return rms(values["self"], 1 + values["gamma"], eps), scale_of(values["self"], eps)


@formula("npu::npu_add_rms_norm", "f32[8,16], f32[8,16], f32[16]")
def npu_add_rms_norm(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    total, eps = values["x1"] + values["x2"], epsilon(values)
    return rms(total, values["gamma"], eps), scale_of(total, eps), total


@formula("npu::npu_rms_norm_backward", "f32[8,16], f32[8,16], f32[16], f32[8,1]")
def npu_rms_norm_backward(values: Values) -> tuple[Tensor, Tensor]:
    dy, x, gamma, rstd = values["dy"], values["self"], values["gamma"], values["rstd"]
    scaled = dy * gamma
    dx = rstd * (scaled - x * rstd * (scaled * x * rstd).mean(-1, keepdim=True))
    by_row = dy * x * rstd
    return dx, by_row.flatten(0, -2).sum(0) if by_row.dim() > 1 else by_row


@formula("_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm aiter::fused_add_rms_norm_cu", ADDED)
@formula("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", ADDED)
@formula("aiter::_fused_rmsnorm_add", "(f32[8,16], f32[16], 1e-6, f32[8,16])")
@formula(
    "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add aiter::rmsnorm2d_fwd_with_add_ck",
    "f32[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16]",
)
def added_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("gemma_norm"), "the plain form")
    total = of(values, "input", "x") + of(values, "residual", "residual_in", "res1")
    return rms(total, values["weight"], epsilon(values)), total


@formula("sgl_kernel::gemma_fused_add_rmsnorm", ADDED)
def gemma_fused_add_rmsnorm(values: Values) -> tuple[Tensor, Tensor]:
    total = values["input"] + values["residual"]
    return rms(total, 1 + values["weight"], epsilon(values)), total


def layered(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight + bias


@formula("npu::npu_layer_norm_eval", "(f32[8,16], [16], f32[16], f32[16])")
@formula(
    "aiter::layer_norm aiter::layernorm2d_fwd sglang::layernorm",
    "(f32[8,16], f32[16], f32[16])",
)
def layer_norm(values: Values) -> Tensor:
    covers(values.get("x_bias") is None, "the plain form")
    weight, bias = of(values, "weight", "gamma"), of(values, "bias", "beta")
    return layered(values["input"], weight, bias, epsilon(values, 1e-6 if "gamma" in values else 1e-5))


@formula("npu::npu_add_layer_norm", "f32[8,16], f32[8,16], f32[16], f32[16]")
def npu_add_layer_norm(values: Values) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total, eps = values["x1"] + values["x2"], epsilon(values, 1e-5)
    mean = total.mean(-1, keepdim=True)
    rstd = torch.rsqrt((total - mean).pow(2).mean(-1, keepdim=True) + eps)
    made = layered(total, values["gamma"], values["beta"], eps)
    return made, mean, rstd, total if values.get("additional_output") else total.new_empty(0)


@formula(
    "vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl vllm::unquantized_gemm",
    "(f32[8,16], f32[24,16], f32[24])",
)
def linear(values: Values) -> Tensor:
    return values["x"] @ values["weight"].mT + values["bias"]


@formula("vllm::gpt_oss_router_gemm", "f32[8,16], f32[24,16], f32[24]")
def router(values: Values) -> Tensor:
    return values["x"] @ values["weight"].mT + values["bias"]


@formula("_rocm_C::wvSplitK _rocm_C::LLMM1", "f32[24,16], f32[4,16]")
def wv_split_k(values: Values) -> Tensor:
    covers(values.get("in_bias") is None, "no bias")
    return values["in_b"] @ values["in_a"].mT


@formula(
    "_C::bf16_skinny_gemm _C::fp32_router_gemm _moe_C::dsv3_router_gemm",
    "f32[8,24], f32[8,16], f32[24,16]",
)
def router_gemm(values: Values) -> Tensor:
    return (values["mat_a"] @ values["mat_b"].mT).to(values["output"].dtype)


@formula("_C::dsv3_fused_a_gemm sgl_kernel::dsv3_fused_a_gemm", "f32[8,24], f32[8,16], f32[16,24]{1,16}")
def fused_a_gemm(values: Values) -> Tensor:
    # vLLM and SGLang give it the weight transposed: column by column in memory.
    return (values["mat_a"] @ values["mat_b"]).to(values["output"].dtype)


@formula("aiter::gemm_a16w16", "(f32[8,16], f32[24,16], f32[24])")
def gemm_a16w16(values: Values) -> Tensor:
    covers(all(values.get(name) is None for name in ("otype", "scale_a", "scale_b", "scale_c")), "the plain form")
    made = values["A"] @ values["B"].mT
    return made if values.get("bias") is None else made + values["bias"]


@formula("aiter::gemm_a16w16_asm", "(f32[8,16], f32[24,16], f32[8,24], i32[1])")
def gemm_into(values: Values) -> Tensor:
    return values["out"].copy_(values["A"] @ values["B"].mT)


@formula("aiter::sigmoid", "f32[8,16]")
def sigmoid(values: Values) -> Tensor:
    return 1 / (1 + torch.exp(-values["input"]))


@formula("aiter::tanh", "f32[8,16]")
def tanh(values: Values) -> Tensor:
    grown = torch.expm1(-2 * values["input"].abs())
    return torch.copysign(grown / (grown + 2), values["input"])


@formula("vllm::muls_add", "(f32[8,16], f32[8,16], 0.75)")
def muls_add(values: Values) -> Tensor:
    return values["x"] * values["scale"] + values["y"]


@formula("_C::silu_and_mul_with_clamp", "(f32[8,16], f32[8,32], 0.5)")
def silu_and_mul_with_clamp(values: Values) -> Tensor:
    gate, up = halves(values)
    limit, alpha, beta = values["limit"], values.get("alpha", 1.0), values.get("beta", 0.0)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


@formula("npu::npu_silu", "f32[8,16]")
def npu_silu(values: Values) -> Tensor:
    return values["self"] / (1 + torch.exp(-values["self"]))


@formula("npu::npu_geglu", "f32[8,32]")
def npu_geglu(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("approximate", 1) in (0, 1), "erf and tanh")
    first, second = values["self"].chunk(2, values.get("dim", -1))
    up, gate = (second, first) if values.get("activate_left") else (first, second)
    smooth = tanh_gelu(gate) if values.get("approximate", 1) else gate * (1 + torch.erf(gate / math.sqrt(2))) / 2
    return up * smooth, smooth


@formula("npu::npu_linear", "f32[8,16], f32[24,16], f32[24]")
def npu_linear(values: Values) -> Tensor:
    return values["input"] @ values["weight"].mT + values["bias"]


@formula("npu::npu_dtype_cast", "(f32[8,16], torch.bfloat16)")
def npu_dtype_cast(values: Values) -> Tensor:
    return values["self"].to(values["dtype"])


@formula("npu::npu_transpose", "(f32[2,8,16], [1,0,2])")
def npu_transpose(values: Values) -> Tensor:
    return values["self"].permute(values["perm"]).contiguous()


@formula("npu::npu_bmmV2", "(f32[2,8,16], f32[2,16,24], [])")
def npu_bmm(values: Values) -> Tensor:
    return torch.einsum("bij,bjk->bik", values["self"], values["mat2"])


@formula("npu::npu_scaled_masked_softmax", "(f32[2,3,32,32], bool[2,1,32,32], 0.5)")
def npu_masked_softmax(values: Values) -> Tensor:
    covers(not values.get("fixed_triu_mask"), "the plain form")
    x = (
        values["x"].float() * values.get("scale", 1)
        if values["x"].dtype is not torch.float64
        else values["x"] * values.get("scale", 1)
    )
    return torch.softmax(x.masked_fill(values["mask"].bool(), -10000.0), -1).to(values["x"].dtype)


@formula("npu::npu_deep_norm", "f32[8,16], f32[8,16], f32[16], f32[16]")
def npu_deep_norm(values: Values) -> tuple[Tensor, ...]:
    total = values["x"] * values.get("alpha", 0.3) + values["gx"]
    mean = total.mean(-1, keepdim=True)
    rstd = torch.rsqrt((total - mean).pow(2).mean(-1, keepdim=True) + values.get("epsilon", 1e-6))
    return mean.float(), rstd.float(), (total - mean) * rstd * values["gamma"] + values["beta"]


@formula("fb::rms_norm", "(f32[8,16], f32[16], f32[16], 1e-6, 0)")
def fb_rms_norm(values: Values) -> Tensor:
    return rms(values["input"], values["weight"], values["epsilon"]) + values["bias"]


@formula("sgl_kernel::fast_hadamard_transform torchao::hadamard_transform", "(f32[8,16], 0.25)")
def hadamard(values: Values) -> Tensor:
    covers(values.get("scale"), "a scale")
    x = values["x"]
    size = x.shape[-1]
    covers(size and not size & (size - 1), "a power of two")
    matrix = x.new_ones((1, 1))
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return x @ matrix * values.get("scale", 1.0)


@formula("_C::permute_cols", "(bf16[8,16], i32[16])")
def permute_cols(values: Values) -> Tensor:
    return values["A"][:, values["perm"].long()]


@formula("_C::apply_repetition_penalties_", "(f32[8,16], bool[8,16], bool[8,16], f32[8])")
def repetition_penalties(values: Values) -> Tensor:
    x, penalty = values["logits"], values["repetition_penalties"].unsqueeze(1)
    punished = torch.where(x > 0, x / penalty, x * penalty)
    return torch.where(values["prompt_mask"] | values["output_mask"], punished, x)


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
