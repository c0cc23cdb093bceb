# pyright: strict
"""What vendor ops compute, written down again from their public documentation, in few lines of plain torch.

Independent of `opreplay.replay.standins`: nothing is imported from there, and each formula is the textbook's, without
the blocks and layouts of a kernel. A row is the names of ops that share a formula, tensors to call them with, and the
formula of their arguments by name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Values = Mapping[str, Any]
FP8 = 448.0
"""Largest finite number of float8 e4m3fn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One formula and the ops that compute it."""

    names: tuple[str, ...]
    call: str
    """Tensors, or a whole call with the op's name left out: "(f32[8,16], ...)"."""
    compute: Callable[[Values], Any]


FORMULAS: list[Formula] = []


def formula(names: str, call: str) -> Callable[[Callable[[Values], Any]], Callable[[Values], Any]]:
    """Decorator: what these ops compute."""

    def add(compute: Callable[[Values], Any]) -> Callable[[Values], Any]:
        FORMULAS.append(Formula(names=tuple(names.split()), call=call, compute=compute))
        return compute

    return add


def of(values: Values, *names: str, otherwise: Any = None) -> Any:
    """The first of these arguments that was given."""
    return next((values[name] for name in names if name in values), otherwise)


def halves(values: Values) -> tuple[Tensor, Tensor]:
    return of(values, "input", "self", "x").chunk(2, -1)


def epsilon(values: Values, otherwise: float = 1e-6) -> float:
    return of(values, "epsilon", "eps", "variance_epsilon", otherwise=otherwise)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double() if x.dtype is torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.to(wide.dtype)).to(x.dtype)


GATED = "f32[8,16], f32[8,32]"


@formula("_C::silu_and_mul sgl_kernel::silu_and_mul aiter::silu_and_mul", GATED)
def silu_and_mul(values: Values) -> Tensor:
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
    gate, up = halves(values)
    return functional.silu(gate) * up


@formula("npu::npu_swiglu_backward", "f32[8,16], f32[8,32]")
def npu_swiglu_backward(values: Values) -> Tensor:
    gate, up = values["self"].chunk(2, -1)
    grad, gated = values["grad_output"], torch.sigmoid(gate)
    return torch.cat([grad * up * gated * (1 + gate * (1 - gated)), grad * gate * gated], -1)


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
    return rms(values["input"], values["weight"], epsilon(values))


@formula(
    "aiter::rms_norm aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck aiter::_fused_rmsnorm vllm::rocm_aiter_rms_norm",
    "f32[8,16], f32[16]",
)
def rms_norm(values: Values) -> Tensor:
    return rms(of(values, "input", "x"), values["weight"], epsilon(values))


@formula("sgl_kernel::gemma_rmsnorm", "f32[8,16], f32[8,16], f32[16]")
def gemma_rmsnorm(values: Values) -> Tensor:
    return rms(values["input"], 1 + values["weight"], epsilon(values))


def scale_of(x: Tensor, eps: float) -> Tensor:
    wide = x.double() if x.dtype is torch.float64 else x.float()
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


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
    return dx, (dy * x * rstd).sum(0)


@formula("_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm", "f32[8,16], f32[8,16], f32[16]")
def fused_add_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    total = values["input"] + values["residual"]
    return rms(total, values["weight"], epsilon(values)), total


@formula("sgl_kernel::gemma_fused_add_rmsnorm", "f32[8,16], f32[8,16], f32[16]")
def gemma_fused_add_rmsnorm(values: Values) -> tuple[Tensor, Tensor]:
    total = values["input"] + values["residual"]
    return rms(total, 1 + values["weight"], epsilon(values)), total


@formula("aiter::fused_add_rms_norm_cu", "f32[8,16], f32[8,16], f32[16]")
def fused_add_rms_norm_cu(values: Values) -> tuple[Tensor, Tensor]:
    total = values["input"] + values["residual_in"]
    return rms(total, values["weight"], epsilon(values)), total


@formula("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", "f32[8,16], f32[8,16], f32[16]")
def rms_norm_with_add(values: Values) -> tuple[Tensor, Tensor]:
    total = values["x"] + values["residual"]
    return rms(total, values["weight"], epsilon(values)), total


@formula("aiter::_fused_rmsnorm_add", "(f32[8,16], f32[16], 1e-6, f32[8,16])")
def fused_rmsnorm_add(values: Values) -> tuple[Tensor, Tensor]:
    total = values["x"] + values["res1"]
    return rms(total, values["weight"], epsilon(values)), total


@formula(
    "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add aiter::rmsnorm2d_fwd_with_add_ck",
    "f32[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16]",
)
def add_rmsnorm(values: Values) -> tuple[Tensor, Tensor]:
    total = values["input"] + values["residual_in"]
    return rms(total, values["weight"], epsilon(values)), total


def layered(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight + bias


@formula(
    "aiter::layer_norm aiter::layernorm2d_fwd sglang::layernorm npu::npu_layer_norm_eval",
    "(f32[8,16], f32[16], f32[16])",
)
def layer_norm(values: Values) -> Tensor:
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
    return values["in_b"] @ values["in_a"].mT


@formula(
    "_C::bf16_skinny_gemm _C::dsv3_fused_a_gemm _C::fp32_router_gemm _moe_C::dsv3_router_gemm",
    "f32[8,24], f32[8,16], f32[24,16]",
)
def skinny(values: Values) -> Tensor:
    b = values["mat_b"]
    a = values["mat_a"]
    return (a @ (b if b.shape[0] == a.shape[1] else b.mT)).to(values["output"].dtype)


@formula("aiter::gemm_a16w16_asm", "f32[8,16], f32[24,16], f32[8,24]")
def gemm_into(values: Values) -> Tensor:
    return values["A"] @ values["B"].mT


@formula("aiter::sigmoid", "f32[8,16]")
def sigmoid(values: Values) -> Tensor:
    return 1 / (1 + torch.exp(-values["input"]))


@formula("aiter::tanh", "f32[8,16]")
def tanh(values: Values) -> Tensor:
    return 1 - 2 / (torch.exp(2 * values["input"]) + 1)


@formula("vllm::muls_add", "(f32[8,16], f32[8,16], 0.75)")
def muls_add(values: Values) -> Tensor:
    return values["x"] * values["scale"] + values["y"]


@formula("fbgemm::asynchronous_complete_cumsum fb::asynchronous_complete_cumsum", "i64[12]")
def complete_cumsum(values: Values) -> Tensor:
    t = values["t_in"]
    return functional.pad(t.cumsum(-1), (1, 0)).to(t.dtype)


@formula("fbgemm::asynchronous_exclusive_cumsum", "i64[12]")
def exclusive_cumsum(values: Values) -> Tensor:
    return (values["t_in"].cumsum(-1) - values["t_in"]).to(values["t_in"].dtype)


@formula("fbgemm::asynchronous_inclusive_cumsum", "i64[12]")
def inclusive_cumsum(values: Values) -> Tensor:
    return values["t_in"].cumsum(-1).to(values["t_in"].dtype)


@formula("fbgemm::invert_permute", "i64[12]")
def invert_permute(values: Values) -> Tensor:
    return torch.argsort(values["permute"]).to(values["permute"].dtype)


@formula("fbgemm::gather_along_first_dim", "(bf16[16,8], i32[5])")
def gather_rows(values: Values) -> Tensor:
    return values["Data"][values["Index"].long()]


@formula("fbgemm::index_select_dim0", "(f32[16,8], i64[5])")
def select_rows(values: Values) -> Tensor:
    return torch.stack([values["input"][i] for i in values["indices"].tolist()])


@formula("fbgemm::jagged_to_padded_dense fbgemm::jagged_to_padded_dense_forward", "(f32[12,4], [i64[5]], [6], 0.0)")
def padded(values: Values) -> Tensor:
    (offsets,), (most,) = values["offsets"], values["max_lengths"]
    rows, bounds = values["values"], offsets.tolist()
    made = rows.new_full((len(bounds) - 1, most, rows.shape[1]), values.get("padding_value", 0.0))
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        part = rows[begin : min(end, begin + most)]
        made[i, : len(part)] = part
    return made


@formula("_moe_C::moe_sum sgl_kernel::moe_sum aiter::moe_sum aiter::_moe_sum", "(f32[8,2,16], f32[8,16])")
def moe_sum(values: Values) -> Tensor:
    return values["input"].sum(1)


@formula("sgl_kernel::moe_sum_reduce", "(f32[8,2,16], f32[8,16], 1.5)")
def moe_sum_reduce(values: Values) -> Tensor:
    return values["input"].sum(1) * values["routed_scaling_factor"]


@formula("_C::static_scaled_fp8_quant", "(f8e4m3[8,16], f32[8,16], f32[1])")
def static_fp8(values: Values) -> Tensor:
    return (values["input"].float() / values["scale"].float()).clamp(-FP8, FP8).to(torch.float8_e4m3fn)


@formula("_C::static_scaled_int8_quant", "(i8[8,16], f32[8,16], f32[1])")
def static_int8(values: Values) -> Tensor:
    return (values["input"].float() / values["scale"].float()).round().clamp(-128, 127).to(torch.int8)


@formula("_C::dynamic_scaled_int8_quant", "(i8[8,16], f32[8,16], f32[8,1])")
def dynamic_int8(values: Values) -> tuple[Tensor, Tensor]:
    x = values["input"].float()
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


@formula("_C::cutlass_scaled_mm", "(f32[8,24], i8[8,16], i8[16,24]{1,16}, f32[8,1], f32[1,24], None)")
def scaled_mm(values: Values) -> Tensor:
    product = values["a"].double() @ values["b"].double()
    return (product * values["a_scales"] * values["b_scales"]).to(values["out"].dtype)


@formula("sgl_kernel::int8_scaled_mm", "(i8[8,16], i8[16,24]{1,16}, f32[8], f32[24], torch.bfloat16, None)")
def int8_scaled_mm(values: Values) -> Tensor:
    product = values["mat_a"].double() @ values["mat_b"].double()
    scaled = product * values["scales_a"].reshape(-1, 1) * values["scales_b"].reshape(1, -1)
    return scaled.to(values["out_dtype"])


@formula("te_softmax::scaled_softmax_fwd", "(bf16[2,3,8,16], 0.5)")
def scaled_softmax(values: Values) -> Tensor:
    x = values["inputs"].float() * values["scale"]
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return (powers / powers.sum(-1, keepdim=True)).to(values["inputs"].dtype)


@formula("te_softmax::scaled_upper_triang_masked_softmax_fwd", "(bf16[6,16,16], 0.5)")
def causal_softmax(values: Values) -> Tensor:
    x = values["inputs"].float() * values["scale"]
    seen = torch.tril(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device))
    return torch.softmax(x.masked_fill(~seen, -torch.inf), -1).to(values["inputs"].dtype)


def routed(values: Values, weights: Tensor, count: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    chosen, places = torch.sort(weights, dim=-1, descending=True, stable=True)
    chosen, places = chosen[..., :count], places[..., :count]
    return (chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen).float(), places


@formula("sgl_kernel::topk_softmax", "(f32[8,2], i32[8,2], f32[8,16], True)")
def topk_softmax(values: Values) -> tuple[Tensor, Tensor]:
    chance = torch.softmax(values["gating_output"].float(), -1)
    weights, places = routed(values, chance, values["topk_weights"].shape[-1], values["renormalize"])
    return weights, places.to(values["topk_indices"].dtype)


@formula(
    "flash_attn::_flash_attn_forward",
    "(f32[2,6,2,8], f32[2,6,2,8], f32[2,6,2,8], 0.0, 0.35, True, -1, -1, 0.0, None, False)",
)
def flash_attention(values: Values) -> tuple[Tensor, ...]:
    q, k, v = (values[name].transpose(1, 2) for name in ("q", "k", "v"))
    scores = (q @ k.mT) * values["softmax_scale"]
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    scores = scores.masked_fill(~seen.tril(k.shape[-2] - q.shape[-2]), -torch.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2), torch.logsumexp(scores, -1).float()


ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "aiter::add": torch.add,
    "aiter::sub": torch.sub,
    "aiter::mul": torch.mul,
    "aiter::div": torch.div,
}


def formula_of(name: str) -> tuple[str, Callable[[Values], Any]] | None:
    """The call and the formula of an op; None where none is written down."""
    if name in ARITHMETIC:
        function = ARITHMETIC[name]
        return "f32[8,16], f32[8,16]", lambda values: function(values["input"], values["other"])
    for one in FORMULAS:
        if name in one.names:
            return one.call, one.compute
    return None
