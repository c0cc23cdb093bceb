# pyright: strict
"""Norms of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, epsilon, formula, of, rms, scale_of

ADDED = "f32[8,16], f32[8,16], f32[16]"


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
    normalised = layered(total, values["gamma"], values["beta"], eps)
    return normalised, mean, rstd, total if values.get("additional_output") else total.new_empty(0)


@formula("npu::npu_deep_norm", "f32[8,16], f32[8,16], f32[16], f32[16]")
def npu_deep_norm(values: Values) -> tuple[Tensor, ...]:
    total = values["x"] * values.get("alpha", 0.3) + values["gx"]
    mean = total.mean(-1, keepdim=True)
    rstd = torch.rsqrt((total - mean).pow(2).mean(-1, keepdim=True) + values.get("epsilon", 1e-6))
    return mean.float(), rstd.float(), (total - mean) * rstd * values["gamma"] + values["beta"]


@formula("fb::rms_norm", "(f32[8,16], f32[16], f32[16], 1e-6, 0)")
def fb_rms_norm(values: Values) -> Tensor:
    return rms(values["input"], values["weight"], values["epsilon"]) + values["bias"]
