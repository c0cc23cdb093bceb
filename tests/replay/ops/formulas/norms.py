# pyright: strict
"""Norms of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import (
    Values,
    covers,
    epsilon,
    formula,
    formulas,
    gradients,
    of,
    rms,
    scale_of,
    token_int8,
    wide,
)


def total_of(values: Values) -> Tensor:
    """What is normalised: the input, plus a residual where there is one."""
    x, residual = of(values, "input", "x", "self", "x1"), of(values, "residual", "residual_in", "res1", "x2")
    return x if residual is None else x + residual


@formulas("""
    _C::rms_norm sgl_kernel::rmsnorm aiter::rmsnorm aiter::rms_norm_cu | f32[8,16], f32[8,16], f32[16]
    aiter::rms_norm aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck aiter::_fused_rmsnorm
    vllm::rocm_aiter_rms_norm | f32[8,16], f32[16]
""")
def rms_norm(values: Values) -> Tensor:
    weight = of(values, "weight", "gamma")
    return rms(total_of(values), weight + 1 if values.get("gemma_norm") else weight, epsilon(values))


@formulas("""
    _C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm aiter::fused_add_rms_norm_cu
    vllm::rocm_aiter_rmsnorm2d_fwd_with_add | f32[8,16], f32[8,16], f32[16]
    aiter::_fused_rmsnorm_add | (f32[8,16], f32[16], 1e-6, f32[8,16])
    aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add
    aiter::rmsnorm2d_fwd_with_add_ck | f32[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16]
""")
def added_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    return rms_norm(values), total_of(values)


@formula("npu::npu_rms_norm", "f32[8,16], f32[16]")
def npu_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    return rms_norm(values), scale_of(total_of(values), epsilon(values))


@formula("npu::npu_add_rms_norm npu::npu_add_rms_norm_v2_functional", "f32[8,16], f32[8,16], f32[16]")
def npu_add_rms_norm(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    return *npu_rms_norm(values), total_of(values)


def gemma(compute: Callable[[Values], Any]) -> Callable[[Values], Any]:
    """With Gemma's weights, which are around zero."""
    return lambda values: compute({**values, "gemma_norm": True})


formula("sgl_kernel::gemma_rmsnorm", "f32[8,16], f32[8,16], f32[16]")(gemma(rms_norm))
formula("sgl_kernel::gemma_fused_add_rmsnorm", "f32[8,16], f32[8,16], f32[16]")(gemma(added_rms_norm))
formula("npu::npu_gemma_rms_norm _C_ascend::npu_gemma_rms_norm", "f32[8,16], f32[16]")(gemma(npu_rms_norm))


@formula("npu::npu_rms_norm_backward", "f32[8,16], f32[8,16], f32[16], f32[8,1]")
def npu_rms_norm_backward(values: Values) -> tuple[Tensor, Tensor]:
    dy, x, gamma, rstd = values["dy"], values["self"], values["gamma"], values["rstd"]
    scaled = dy * gamma
    dx = rstd * (scaled - x * rstd * (scaled * x * rstd).mean(-1, keepdim=True))
    by_row = dy * x * rstd
    return dx, by_row.flatten(0, -2).sum(0) if by_row.dim() > 1 else by_row


def layered(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight + bias


@formulas("""
    npu::npu_layer_norm_eval | (f32[8,16], [16], f32[16], f32[16])
    aiter::layer_norm aiter::layernorm2d_fwd sglang::layernorm | (f32[8,16], f32[16], f32[16])
""")
def layer_norm(values: Values) -> Tensor:
    covers(values.get("x_bias") is None, "the plain form")
    weight, bias = of(values, "weight", "gamma"), of(values, "bias", "beta")
    return layered(total_of(values), weight, bias, epsilon(values, 1e-6 if "gamma" in values else 1e-5))


@formula(
    "aiter::layernorm2d_fwd_with_add aiter::layernorm2d_with_add_asm",
    "(f32[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16], f32[16], 1e-5)",
)
def added_layer_norm(values: Values) -> tuple[Tensor, Tensor]:
    return layer_norm(values), total_of(values)


def moments(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean of each row, and one over its deviation."""
    mean = x.mean(-1, keepdim=True)
    return mean, torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + eps)


@formula("npu::npu_add_layer_norm", "f32[8,16], f32[8,16], f32[16], f32[16]")
def npu_add_layer_norm(values: Values) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total, eps = total_of(values), epsilon(values, 1e-5)
    normalised = layered(total, values["gamma"], values["beta"], eps)
    return normalised, *moments(total, eps), total if values.get("additional_output") else total.new_empty(0)


@formula("npu::npu_deep_norm", "f32[8,16], f32[8,16], f32[16], f32[16]")
def npu_deep_norm(values: Values) -> tuple[Tensor, ...]:
    total = values["x"] * values.get("alpha", 0.3) + values["gx"]
    mean, rstd = moments(total, values.get("epsilon", 1e-6))
    return mean.float(), rstd.float(), (total - mean) * rstd * values["gamma"] + values["beta"]


@formula("fb::rms_norm", "(f32[8,16], f32[16], f32[16], 1e-6, 0)")
def fb_rms_norm(values: Values) -> Tensor:
    return rms_norm(values) + values["bias"]


@formula("_C_ascend::npu_add_rms_norm_bias", "f32[8,16], f32[8,16], f32[16], f32[16]")
def ascend_add_rms_norm_bias(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    normalised, scale, total = npu_add_rms_norm(values)
    return normalised + values.get("beta", 0), scale, total


@formula("npu::npu_add_rms_norm_v2", "f32[8,16], f32[8,16], f32[16]")
def npu_add_rms_norm_in_place(values: Values) -> tuple[Tensor, ...]:
    normalised, scale, total = npu_add_rms_norm(values)
    return scale, normalised, total


@formula("npu::npu_add_rms_norm_cast", "f32[8,16], f32[8,16], f32[16]")
def npu_add_rms_norm_cast(values: Values) -> tuple[Tensor, ...]:
    normalised, scale, total = npu_add_rms_norm(values)
    return (wide(total) * scale * wide(values["gamma"])).float(), normalised, scale, total


def whole(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """x over scale in whole numbers of 8 bits from a zero."""
    return (wide(x) / wide(scale) + (0 if zero is None else wide(zero))).round().clamp(-128, 127).to(torch.int8)


@formula("npu::npu_add_rms_norm_quant", "f32[8,16], f32[8,16], f32[16], f32[16], f32[16]")
def npu_add_rms_norm_quant(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("scales2") is None and values.get("div_mode", True) and values.get("beta") is None, "one scale")
    normalised, _, total = npu_add_rms_norm(values)
    quantised = whole(normalised, values["scales1"], values["zero_points1"])
    return quantised, quantised, total


@formulas("""
    npu::npu_rms_norm_quant | (f32[8,16], f32[16], f32[16], f32[1], i8[1])
""")
@formula("npu::npu_rms_norm_quant", "f32[8,16], f32[16], f32[16], f32[1], f32[1]")
def npu_rms_norm_quant(values: Values) -> Tensor:
    normalised = wide(rms_norm(values)) + wide(values["beta"])
    return whole(normalised, values["scale"], values["offset"])


def of_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 8 bits, and the scale of each row. Refuses rows that are nearly zero."""
    covers(not bool((wide(x).abs().amax(-1) < 1e-9).any()), "rows that are not nearly zero")
    data, scale = token_int8(x)
    return data, scale.squeeze(-1)


@formulas("""
    _C_ascend::npu_rms_norm_dynamic_quant | (f32[8,16], f32[16])
""")
@formula("_C_ascend::npu_rms_norm_dynamic_quant", "f32[8,16], f32[16], f32[16], f32[16]")
def ascend_rms_norm_dynamic_quant(values: Values) -> tuple[Tensor, Tensor]:
    normalised = wide(rms_norm(values))
    beta, smooth = values.get("beta"), values.get("smooth_scale")
    normalised = normalised if beta is None else normalised + beta
    return of_rows(normalised if smooth is None else normalised * smooth)


@formula("npu::npu_add_rms_norm_dynamic_quant", "(f32[8,16], f32[8,16], f32[16], smooth_scale1=f32[16])")
def npu_add_rms_norm_dynamic_quant(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("smooth_scale2") is None and values.get("beta") is None, "one smoothing")
    covers(values.get("smooth_scale1") is not None, "one smoothing")
    normalised, _, total = npu_add_rms_norm(values)
    (first, scale), (second, plain) = of_rows(wide(normalised) * values["smooth_scale1"]), of_rows(normalised)
    return first, second, total, scale, plain


@formula("npu::npu_dynamic_quant_asymmetric", "f32[8,16]")
def npu_dynamic_quant_asymmetric(values: Values) -> tuple[Tensor, ...]:
    covers(all(values.get(name) is None for name in ("smooth_scales", "group_index", "dst_type")), "the plain form")
    x = wide(values["input"])
    covers(x.numel(), "rows")
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low) / 255
    covers(bool((scale > 1e-9).all()), "rows of different numbers")
    offset = 127 - high / scale
    quantised = torch.round(x / scale + offset).clamp(-128, 127)
    return quantised.to(torch.int8), scale.squeeze(-1).float(), offset.squeeze(-1).float()


def usual(x: Tensor) -> bool:
    """Whether numbers are neither all zero nor far from it."""
    return 0 < float(x.abs().max()) < 100


def through_norm(scaled: Tensor, normalised: Tensor) -> Tensor:
    """The gradient of a row before its norm, but for the factor, from that of the row behind it."""
    return scaled - scaled.mean(-1, keepdim=True) - normalised * (scaled * normalised).mean(-1, keepdim=True)


@formula("npu::npu_layernorm_grad", "(f32[8,16], f32[8,16], [16], f32[8,1], f32[8,1], f32[16], f32[16])")
def npu_layernorm_grad(values: Values) -> tuple[Tensor, ...]:
    x, grad = wide(values["input"]), wide(values["grad_out"])
    covers(len(values["normalized_shape"]) == 1 and x.dim() > 1 and values["weight"] is not None, "rows")
    covers(values["mean"].numel() * x.shape[-1] == x.numel(), "a mean for each row")
    covers(usual(x), "numbers that do not cancel out")
    return of_layer_norm(values, x, grad)


def of_layer_norm(values: Values, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a layer norm whose mean and scale are given: of its input, weight and bias."""
    mean, rstd = (wide(values[name]).reshape(*x.shape[:-1], 1) for name in ("mean", "rstd"))
    normalised = (x - mean) * rstd
    by_column = (grad * normalised).flatten(0, -2).sum(0), grad.flatten(0, -2).sum(0)
    return rstd * through_norm(grad * wide(of(values, "weight", "gamma")), normalised), *by_column


@formulas("""
    npu::npu_add_layer_norm_backward
            | (f32[8,16], f32[8,16], f32[8,16], f32[8,1], f32[8,1], f32[16], None)
""")
@formula(
    "npu::npu_add_layer_norm_backward", "(f32[8,16], f32[8,16], f32[8,16], f32[8,1], f32[8,1], f32[16], f32[8,16])"
)
def npu_add_layer_norm_backward(values: Values) -> tuple[Tensor, ...]:
    covers(values["dy_opt"] is not None, "a gradient of the norm")
    total, grad = wide(values["x1"] + values["x2"]), wide(of(values, "dy_opt"))
    covers(total.dim() > 1, "rows")
    dx, dgamma, dbeta = of_layer_norm(values, total, grad)
    dx = (dx if values["dsum_opt"] is None else dx + wide(values["dsum_opt"])).to(values["x1"].dtype)
    return dx, dx, dgamma.float(), dbeta.float()


@formula("npu::npu_deep_norm_backward", "(f32[8,16], f32[8,16], f32[8,16], f32[16], f32[8,1], f32[8,1], 0.5)")
def npu_deep_norm_backward(values: Values) -> tuple[Tensor, ...]:
    x, grad = values["x"], wide(values["dy"])
    covers(x.dim() > 1, "rows")
    total = wide(x) * values["alpha"] + wide(values["gx"])
    dx, dgamma, dbeta = of_layer_norm(values, total, grad)
    return (dx * values["alpha"]).to(x.dtype), dx.to(x.dtype), dbeta.float(), dgamma.float()


def grouped_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(the norm, mean [N, groups], one over the deviation)."""
    covers(x.numel() and x.shape[1] % groups == 0, "channels in groups")
    covers(usual(x), "numbers that do not cancel out")
    parts = x.reshape(len(x), groups, -1)
    mean = parts.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(((parts - mean) ** 2).mean(-1, keepdim=True) + eps)
    shape = [1, -1] + [1] * (x.dim() - 2)
    normalised = ((parts - mean) * rstd).reshape(x.shape) * weight.reshape(shape) + bias.reshape(shape)
    return normalised, mean.squeeze(-1), rstd.squeeze(-1)


@formulas("""
    npu::npu_group_norm_silu | (f32[2,8,4,4], f32[8], f32[8], 2)
    npu::npu_group_norm_swish | (f32[2,8,4,4], 2, f32[8], f32[8], 1e-5, 1.5)
""")
def npu_group_norm_swish(values: Values) -> tuple[Tensor, ...]:
    covers(values["weight"] is not None and values["bias"] is not None, "a weight and a bias")
    x, groups = values["input"], of(values, "num_groups", "group")
    y, mean, rstd = grouped_norm(x, groups, of(values, "weight"), of(values, "bias"), values.get("eps") or 1e-5)
    factor = values.get("swish_scale")
    return y / (1 + torch.exp(-(1.0 if factor is None else factor) * y)), mean, rstd


@formula(
    "npu::npu_group_norm_swish_grad",
    "(f32[2,8,4,4], f32[2,8,4,4], 2, f32[8], f32[8], f32[2,2], f32[2,2], [True,True,True], 1.5)",
)
def npu_group_norm_swish_grad(values: Values) -> tuple[Tensor, ...]:
    """By autograd of the norm with the mean and scale that are given."""
    x, groups, factor = wide(values["input"]), values["num_groups"], values.get("swish_scale")
    covers(x.numel() and x.shape[1] % groups == 0, "channels in groups")
    covers(usual(x), "numbers that do not cancel out")
    parts, shape = x.reshape(len(x), groups, -1), [1, -1] + [1] * (x.dim() - 2)
    mean, rstd = (wide(values[name]).reshape(len(x), groups, 1) for name in ("mean", "rstd"))
    normalised = ((parts - mean) * rstd).reshape(x.shape)
    weight, bias = (wide(values[name]).reshape(shape) for name in ("weight", "bias"))

    def swish(y: Tensor) -> Tensor:
        return y * torch.sigmoid((1.0 if factor is None else factor) * y)

    (grad,) = gradients(swish, [normalised * weight + bias], wide(values["grad"]))
    scaled = (grad * weight).reshape(parts.shape)
    inner = normalised.reshape(parts.shape)
    channels = [dim for dim in range(x.dim()) if dim != 1]
    return (rstd * through_norm(scaled, inner)).reshape(x.shape), (grad * normalised).sum(channels), grad.sum(channels)


@formula("aiter::_groupnorm_run", "(f32[2,8,4,4], f32[8], f32[2,8,4,4], 2, f32[8], f32[8], 1e-5)")
def aiter_group_norm(values: Values) -> tuple[Tensor, Tensor]:
    y = grouped_norm(values["input"], values["num_groups"], values["weight"], values["bias"], values["eps"])[0]
    return y, values["workspace"]  # which a stand-in has no use for


@formula("npu::npu_cross_entropy_loss", "(f32[8,16], i64[8], f32[16], 'mean', -100, 0.0)")
def npu_cross_entropy_loss(values: Values) -> tuple[Tensor, ...]:
    x, target, weight = values["input"], values["target"], values["weight"]
    covers(values.get("reduction", "mean") in ("mean", "") and weight is not None, "a mean with weights")
    covers(not values.get("label_smoothing") and not values.get("return_zloss") and len(x), "the plain form")
    covers(bool((target != values.get("ignore_index", -100)).all()), "rows that all count")
    chance = wide(x) - torch.logsumexp(wide(x), -1, keepdim=True)
    shares = wide(of(values, "weight"))[target]
    loss = -(shares * chance[torch.arange(len(x)), target]).sum() / shares.sum()
    return loss.to(x.dtype), chance.to(x.dtype), x.new_empty(0), x.new_empty(0)


@formula("npu::npu_softmax_cross_entropy_with_logits", "f32[8,16], f32[8,16]")
def npu_softmax_cross_entropy(values: Values) -> Tensor:
    x = wide(values["self"])
    covers(x.numel(), "scores")
    chance = x - torch.logsumexp(x, -1, keepdim=True)
    return -torch.einsum("...c,...c->...", wide(values["labels"]), chance).to(values["self"].dtype)


@formula("npu::npu_softmax_cross_entropy_with_logits_backward", "f32[8], f32[8,16], f32[8,16]")
def npu_softmax_cross_entropy_backward(values: Values) -> Tensor:
    x = wide(values["self"])
    covers(x.numel(), "scores")
    shares = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
    return ((shares - wide(values["labels"])) * wide(values["grad"]).unsqueeze(-1)).to(values["self"].dtype)


@formula("npu::npu_trans_quant_param", "f32[16]")
def npu_trans_quant_param(values: Values) -> Tensor:
    covers(values.get("offset") is None and values["scale"].dtype is torch.float32, "a scale alone")
    return values["scale"].contiguous().view(torch.int32).long() % 2**32


@formula(
    "aiter::_fused_qk_rmsnorm_kernel", "(f32[8,16], f32[16], 1e-6, f32[8,24], f32[24], 1e-5, f32[8,16], f32[8,24])"
)
def aiter_qk_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    query = rms(values["q"], values["q_weight"], values["q_eps"])
    return query, rms(values["k"], values["k_weight"], values["k_eps"])


def quantised(values: Values, normalised: Tensor) -> tuple[Tensor, ...]:
    """A norm in whole numbers of 8 bits, the sum that was normalised where there is a residual, the scale of each row.

    Each column is multiplied by a factor before, where factors are given.
    """
    covers(not values.get("group_size") and values.get("out_before_quant") is None, "rows")
    covers(values["out"].dtype is torch.int8, "whole numbers")
    factors, places = values.get("xscale"), of(values, "yscale", "scale")
    data, scale = of_rows(normalised if factors is None else wide(normalised) * wide(factors))
    sums = [total_of(values)] if "residual_in" in values else []
    covers(places.numel() > 1 or not sums, "a scale for each row")
    return data, *sums, scale.reshape(places.shape)


SMOOTHED = "(i8[8,16], f32[8,16], f32[16], f32[8,1], f32[16]"
ADDED_SMOOTHED = "(i8[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16], f32[8,1], f32[16]"


@formulas(f"""
    aiter::rmsnorm2d_fwd_with_smoothquant | {SMOOTHED}, 1e-6)
    aiter::rmsnorm2d_fwd_with_add_smoothquant | {ADDED_SMOOTHED}, 1e-6)
    aiter::rmsnorm2d_fwd_with_dynamicquant aiter::rmsnorm2d_fwd_with_dynamicquant_ck
    aiter::rmsnorm_quant | (i8[8,16], f32[8,16], f32[8,1], f32[16], 1e-6)
    aiter::rmsnorm2d_fwd_with_add_dynamicquant aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck
    aiter::add_rmsnorm_quant | (i8[8,16], f32[8,16], f32[8,16], f32[8,16], f32[8,1], f32[16], 1e-6)
""")
def quantised_rms_norm(values: Values) -> tuple[Tensor, ...]:
    return quantised(values, rms_norm(values))


@formulas(f"""
    aiter::layernorm2d_fwd_with_smoothquant | {SMOOTHED}, f32[16], 1e-6)
    aiter::layernorm2d_fwd_with_add_smoothquant
    aiter::layernorm2d_with_add_smoothquant_asm | {ADDED_SMOOTHED}, f32[16], 1e-6)
""")
def quantised_layer_norm(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("x_bias") is None, "the plain form")
    weight, bias = wide(values["weight"]), wide(values["bias"])
    return quantised(values, layered(wide(total_of(values)), weight, bias, values["epsilon"]))
