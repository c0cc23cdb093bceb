"""aiter's norms (aiter/ops/rmsnorm.py, norm.py, groupnorm.py): some write given outputs, some return theirs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.standins.declared.register import reference
from opreplay.replay.standins.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.standins.maths.quantize import group_scale, largest, quantize_groups, row_scale, to_quantized

_SENSITIVE = "SymInt use_model_sensitive_rmsnorm=0"


@reference(f"aiter::rms_norm(Tensor input, Tensor weight, float epsilon, {_SENSITIVE}) -> Tensor", since="2025-10-29")
@reference(
    f"aiter::rmsnorm2d_fwd(Tensor input, Tensor weight, float epsilon, {_SENSITIVE}) -> Tensor", since="2025-10-29"
)
@reference(
    f"aiter::rmsnorm2d_fwd_ck(Tensor input, Tensor weight, float epsilon, {_SENSITIVE}) -> Tensor", since="2026-01-27"
)
def rms_norm_returned(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """rms_norm(input) · weight."""
    return rms_norm(input, weight, epsilon)


_OUT = "Tensor! out, Tensor input, Tensor weight, float epsilon"


@reference(f"aiter::rmsnorm({_OUT}, bool gemma_norm=False) -> ()", since="2026-06-27")
@reference(f"aiter::rmsnorm({_OUT}) -> ()", since="2026-01-27")
@reference(f"aiter::rms_norm_cu({_OUT}) -> ()", since="2025-10-29")
def rms_norm_out(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, gemma_norm: bool = False) -> None:
    """out = rms_norm(input) · weight."""
    out.copy_(rms_norm(input, weight, epsilon, gemma=gemma_norm))


_ADD = "Tensor! out, Tensor input, Tensor residual_in, Tensor! residual_out, Tensor weight, float epsilon"


@reference(f"aiter::add_rmsnorm({_ADD}, bool gemma_norm=False) -> ()", since="2026-06-27")
@reference(f"aiter::add_rmsnorm({_ADD}) -> ()", since="2026-01-27")
@reference(f"aiter::rmsnorm2d_fwd_with_add({_ADD}, bool gemma_norm=False, {_SENSITIVE}) -> ()", since="2026-07-07")
@reference(f"aiter::rmsnorm2d_fwd_with_add({_ADD}, {_SENSITIVE}) -> ()", since="2025-10-29")
@reference(f"aiter::rmsnorm2d_fwd_with_add_ck({_ADD}, {_SENSITIVE}) -> ()", since="2026-01-27")
def add_rms_norm(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
) -> None:
    """residual_out = input + residual_in; out = its norm."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon, gemma=gemma_norm)
    residual_out.copy_(total)
    out.copy_(normed)


_DYNAMIC = f"Tensor! yscale, Tensor weight, float epsilon, {_SENSITIVE}"
_DYNAMIC_ADD = f"Tensor! out, Tensor input, Tensor residual_in, Tensor! residual_out, {_DYNAMIC}"


@reference(f"aiter::rmsnorm2d_fwd_with_add_dynamicquant({_DYNAMIC_ADD}) -> ()", since="2025-10-29")
@reference(f"aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck({_DYNAMIC_ADD}) -> ()", since="2026-01-27")
def add_rms_norm_dynamic_quant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
) -> None:
    """As add_rms_norm; the norm quantised with a scale for each row."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon)
    residual_out.copy_(total)
    _write_rows(normed, out, yscale)


@reference(f"aiter::rmsnorm2d_fwd_with_dynamicquant(Tensor! out, Tensor input, {_DYNAMIC}) -> ()", since="2025-10-29")
@reference(
    f"aiter::rmsnorm2d_fwd_with_dynamicquant_ck(Tensor! out, Tensor input, {_DYNAMIC}) -> ()", since="2026-01-27"
)
def rms_norm_dynamic_quant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, epsilon: float) -> None:
    """The norm quantised with a scale for each row."""
    _write_rows(rms_norm(input, weight, epsilon), out, yscale)


@reference(
    "aiter::rmsnorm_quant(Tensor! out, Tensor input, Tensor! scale, Tensor weight, float epsilon, "
    "SymInt group_size=0, bool shuffle_scale=False, bool gemma_norm=False) -> ()",
    since="2026-01-27",
)
def rms_norm_quant(
    out: Tensor, input: Tensor, scale: Tensor, weight: Tensor, epsilon: float, group_size: int, gemma_norm: bool
) -> None:
    """The norm quantised by row (group_size 0) or by group; a shuffled scale is written unshuffled."""
    normed = rms_norm(input, weight, epsilon, gemma=gemma_norm)
    if not group_size:
        _write_rows(normed, out, scale)
        return
    groups = group_scale(normed, group_size, largest(out.dtype))
    scale.copy_(groups.reshape(scale.shape))
    out.copy_(quantize_groups(normed, groups, out.dtype))


def _write_rows(normed: Tensor, out: Tensor, scale: Tensor) -> None:
    rows = row_scale(normed, out.dtype)
    scale.copy_(rows.reshape(scale.shape))
    out.copy_(to_quantized(normed, rows, out.dtype))


_LAYER = "Tensor input, Tensor? weight=None, Tensor? bias=None, float epsilon=1e-05, Tensor? x_bias=None"


@reference(f"aiter::layernorm2d_fwd({_LAYER}) -> Tensor", since="2025-10-29")
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, x_bias: Tensor | None
) -> Tensor:
    """Layer norm over the last dim of input + x_bias."""
    x = input if x_bias is None else input + x_bias
    return F.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)


@reference(
    "aiter::layernorm2d_fwd_with_add(Tensor! out, Tensor input, Tensor residual_in, Tensor! residual_out, "
    "Tensor weight, Tensor bias, float epsilon, Tensor? x_bias=None) -> ()",
    since="2025-10-29",
)
def add_layer_norm(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    x_bias: Tensor | None,
) -> None:
    """residual_out = input + residual_in (+ x_bias); out = its layer norm."""
    total = input + residual_in if x_bias is None else input + residual_in + x_bias
    residual_out.copy_(total)
    out.copy_(layer_norm(total, weight, bias, epsilon, None))


@reference(
    "aiter::_groupnorm_run(Tensor! y, Tensor! workspace, Tensor input, SymInt num_groups, Tensor weight, Tensor bias, "
    "float eps) -> ()",
    since="2026-07-27",
)
def group_norm_out(y: Tensor, input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> None:
    """y = group norm of input [N, C, ..]."""
    y.copy_(F.group_norm(input, num_groups, weight, bias, eps))


@reference(
    "aiter::_groupnorm_run(Tensor input, SymInt num_groups, Tensor weight, Tensor bias, float eps) -> Tensor",
    since="2026-01-07",
    fake=lambda input: torch.empty_like(input),
)
def group_norm(input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Group norm of input [N, C, ..], in input's layout."""
    return torch.empty_like(input).copy_(F.group_norm(input, num_groups, weight, bias, eps))
