# pyright: strict
"""Norms of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, epsilon, formula, gradients, of, rms, scale_of, wide

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


@formula("_C_ascend::npu_gemma_rms_norm", "f32[8,16], f32[16]")
def ascend_gemma_rms_norm(values: Values) -> tuple[Tensor, Tensor]:
    eps = epsilon(values)
    return rms(values["x"], 1 + values["gamma"], eps), scale_of(values["x"], eps)


@formula("_C_ascend::npu_add_rms_norm_bias", "f32[8,16], f32[8,16], f32[16], f32[16]")
def ascend_add_rms_norm_bias(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    total, eps = values["x1"] + values["x2"], epsilon(values)
    normalised = rms(total, values["gamma"], eps)
    return normalised + values.get("beta", 0), scale_of(total, eps), total


@formula("npu::npu_add_rms_norm_v2_functional", "f32[8,16], f32[8,16], f32[16]")
def npu_add_rms_norm_functional(values: Values) -> tuple[Tensor, ...]:
    return npu_add_rms_norm(values)


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


@formula("npu::npu_rms_norm_quant", "f32[8,16], f32[16], f32[16], f32[1], f32[1]")
def npu_rms_norm_quant(values: Values) -> Tensor:
    normalised = wide(rms(values["x"], values["gamma"], epsilon(values))) + wide(values["beta"])
    return whole(normalised, values["scale"], values["offset"])


def of_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 8 bits, and the scale of each row. Refuses rows that are nearly zero."""
    magnitude = wide(x).abs().amax(-1, keepdim=True)
    covers(not bool((magnitude < 1e-9).any()), "rows that are not nearly zero")
    scale = magnitude / 127
    return (wide(x) / scale).round().to(torch.int8), scale.squeeze(-1).float()


@formula("_C_ascend::npu_rms_norm_dynamic_quant", "f32[8,16], f32[16], f32[16], f32[16]")
def ascend_rms_norm_dynamic_quant(values: Values) -> tuple[Tensor, Tensor]:
    normalised = wide(rms(values["x"], values["gamma"], epsilon(values)))
    covers(all(values.get(name) is not None for name in ("beta", "smooth_scale")), "a bias and a smoothing")
    return of_rows((normalised + values["beta"]) * values["smooth_scale"])


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


@formula("npu::npu_layernorm_grad", "(f32[8,16], f32[8,16], [16], f32[8,1], f32[8,1], f32[16], f32[16])")
def npu_layernorm_grad(values: Values) -> tuple[Tensor, ...]:
    x, grad = wide(values["input"]), wide(values["grad_out"])
    covers(len(values["normalized_shape"]) == 1 and x.dim() > 1 and values["weight"] is not None, "rows")
    covers(values["mean"].numel() * x.shape[-1] == x.numel(), "a mean for each row")
    covers(usual(x), "numbers that do not cancel out")
    return of_layer_norm(values, x, grad * wide(of(values, "weight")), grad, values["mean"], values["rstd"])


def of_layer_norm(
    values: Values, x: Tensor, scaled: Tensor, grad: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of a layer norm whose mean and scale are given: of its input, weight and bias."""
    mean, rstd = (wide(part).reshape(*x.shape[:-1], 1) for part in (mean, rstd))
    normalised = (x - mean) * rstd
    rows = scaled - scaled.mean(-1, keepdim=True) - normalised * (scaled * normalised).mean(-1, keepdim=True)
    by_column = (grad * normalised).flatten(0, -2).sum(0), grad.flatten(0, -2).sum(0)
    return rstd * rows, *by_column


@formula(
    "npu::npu_add_layer_norm_backward", "(f32[8,16], f32[8,16], f32[8,16], f32[8,1], f32[8,1], f32[16], f32[8,16])"
)
def npu_add_layer_norm_backward(values: Values) -> tuple[Tensor, ...]:
    covers(values["dy_opt"] is not None and values["dsum_opt"] is not None, "both gradients")
    total, grad = wide(values["x1"] + values["x2"]), wide(of(values, "dy_opt"))
    covers(total.dim() > 1, "rows")
    dx, dgamma, dbeta = of_layer_norm(values, total, grad * wide(values["gamma"]), grad, values["mean"], values["rstd"])
    dx = (dx + wide(of(values, "dsum_opt"))).to(values["x1"].dtype)
    return dx, dx, dgamma.float(), dbeta.float()


@formula("npu::npu_deep_norm_backward", "(f32[8,16], f32[8,16], f32[8,16], f32[16], f32[8,1], f32[8,1], 0.5)")
def npu_deep_norm_backward(values: Values) -> tuple[Tensor, ...]:
    x, grad = values["x"], wide(values["dy"])
    covers(x.dim() > 1, "rows")
    total = wide(x) * values["alpha"] + wide(values["gx"])
    dx, dgamma, dbeta = of_layer_norm(values, total, grad * wide(values["gamma"]), grad, values["mean"], values["rstd"])
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


@formula("npu::npu_group_norm_silu", "(f32[2,8,4,4], f32[8], f32[8], 2)")
@formula("npu::npu_group_norm_swish", "(f32[2,8,4,4], 2, f32[8], f32[8], 1e-5, 1.5)")
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
    rows = scaled - scaled.mean(-1, keepdim=True) - inner * (scaled * inner).mean(-1, keepdim=True)
    channels = [dim for dim in range(x.dim()) if dim != 1]
    return (rstd * rows).reshape(x.shape), (grad * normalised).sum(channels), grad.sum(channels)


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


@formula(
    "aiter::layernorm2d_fwd_with_add aiter::layernorm2d_with_add_asm",
    "(f32[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16], f32[16], 1e-5)",
)
def added_layer_norm(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("x_bias") is None, "the plain form")
    total = values["input"] + values["residual_in"]
    return layered(total, values["weight"], values["bias"], values["epsilon"]), total


SMOOTHED = "(i8[8,16], f32[8,16], f32[16], f32[8,1], f32[16]{}, 1e-6)"
ADDED_SMOOTHED = "(i8[8,16], f32[8,16], f32[8,16], f32[8,16], f32[16], f32[8,1], f32[16]{}, 1e-6)"


@formula("aiter::rmsnorm2d_fwd_with_smoothquant", SMOOTHED.replace("{}", ""))
def rms_norm_smoothed(values: Values) -> tuple[Tensor, Tensor]:
    normalised = rms(wide(values["input"]), values["weight"], values["epsilon"])
    quantised, scale = of_rows(normalised * wide(values["xscale"]))
    return quantised, scale.reshape(values["yscale"].shape)


@formula("aiter::layernorm2d_fwd_with_smoothquant", SMOOTHED.replace("{}", ", f32[16]"))
def layer_norm_smoothed(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("x_bias") is None, "the plain form")
    normalised = layered(wide(values["input"]), wide(values["weight"]), wide(values["bias"]), values["epsilon"])
    quantised, scale = of_rows(normalised * wide(values["xscale"]))
    return quantised, scale.reshape(values["yscale"].shape)


@formula("aiter::rmsnorm2d_fwd_with_add_smoothquant", ADDED_SMOOTHED.replace("{}", ""))
def added_rms_norm_smoothed(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("out_before_quant") is None, "the plain form")
    total = values["input"] + values["residual_in"]
    normalised = rms(total, values["weight"], values["epsilon"])
    quantised, scale = of_rows(wide(normalised) * wide(values["xscale"]))
    return quantised, total, scale.reshape(values["yscale"].shape)


@formula(
    "aiter::layernorm2d_fwd_with_add_smoothquant aiter::layernorm2d_with_add_smoothquant_asm",
    ADDED_SMOOTHED.replace("{}", ", f32[16]"),
)
def added_layer_norm_smoothed(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("x_bias") is None, "the plain form")
    total = values["input"] + values["residual_in"]
    normalised = layered(wide(total), wide(values["weight"]), wide(values["bias"]), values["epsilon"])
    quantised, scale = of_rows(normalised * wide(values["xscale"]))
    return quantised, total, scale.reshape(values["yscale"].shape)


@formula(
    "aiter::rmsnorm2d_fwd_with_dynamicquant aiter::rmsnorm2d_fwd_with_dynamicquant_ck",
    "(i8[8,16], f32[8,16], f32[8,1], f32[16], 1e-6)",
)
@formula("aiter::rmsnorm_quant", "(i8[8,16], f32[8,16], f32[8,1], f32[16], 1e-6)")
def rms_norm_rows(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("group_size") and values["out"].dtype is torch.int8, "whole numbers by rows")
    weight = values["weight"] + 1 if values.get("gemma_norm") else values["weight"]
    quantised, scale = of_rows(rms(values["input"], weight, values["epsilon"]))
    return quantised, scale.reshape(of(values, "yscale", "scale").shape)


@formula(
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck",
    "(i8[8,16], f32[8,16], f32[8,16], f32[8,16], f32[8,1], f32[16], 1e-6)",
)
@formula("aiter::add_rmsnorm_quant", "(i8[8,16], f32[8,16], f32[8,16], f32[8,16], f32[8,1], f32[16], 1e-6)")
def added_rms_norm_rows(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("group_size") and values["out"].dtype is torch.int8, "whole numbers by rows")
    places = of(values, "yscale", "scale")
    covers(places.numel() > 1, "a scale for each row")
    total = values["input"] + values["residual_in"]
    weight = values["weight"] + 1 if values.get("gemma_norm") else values["weight"]
    quantised, scale = of_rows(rms(total, weight, values["epsilon"]))
    return quantised, total, scale.reshape(places.shape)
