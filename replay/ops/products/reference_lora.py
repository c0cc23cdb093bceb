# pyright: strict
"""LoRA's two products, shrink to the rank and expand from it, under the names of vLLM, Punica and vllm-ascend.

Weights are [adapters, out, in] (or [adapters, 1, out, in]); a token whose adapter is negative gets nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for


def _matrices(weights: Tensor) -> Tensor:
    return weights.squeeze(1) if weights.dim() == 4 else weights


def _by_adapter(x: Tensor, weights: Tensor, adapters: Tensor) -> tuple[Tensor, Tensor]:
    """(x [T, in] times the weight of each token's adapter, float32 [T, out]; whether a token has an adapter)."""
    matrices = _matrices(weights)
    which = adapters[: x.shape[0]].to(torch.int64)
    known = (which >= 0) & (which < matrices.shape[0])
    out = torch.zeros((x.shape[0], matrices.shape[1]), dtype=torch.float32, device=x.device)
    for adapter in range(matrices.shape[0]):
        rows = (which == adapter).nonzero().flatten()
        if rows.numel():
            out[rows] = x[rows].float() @ matrices[adapter].float().t()
    return out, known


def _expand_into(
    target: Tensor, x: Tensor, weights: Tensor, adapters: Tensor, *, add: bool, scale: float = 1.0
) -> None:
    """target [T, out] (+)= scale · x's product, for tokens that have an adapter."""
    expanded, known = _by_adapter(x, weights, adapters)
    rows = target[: x.shape[0], : expanded.shape[1]]
    value = expanded * scale
    rows.copy_(torch.where(known.unsqueeze(1), (rows.float() + value) if add else value, rows.float()))


def tokens_adapters(starts: Tensor, lengths: Tensor, indices: Tensor, tokens: int) -> Tensor:
    """The adapter of each token, from the sequences' starts, lengths and adapters; −1 behind the last one."""
    place = torch.arange(tokens, device=indices.device)
    sequence = torch.searchsorted(starts.to(torch.int64).contiguous(), place, right=True) - 1
    sequence = sequence.clamp(0, indices.numel() - 1)
    inside = place < starts.to(torch.int64)[sequence] + lengths.to(torch.int64)[sequence]
    return torch.where(inside, indices.to(torch.int64)[sequence], torch.full_like(place, -1))


@stands_for("vllm::lora_shrink", "vllm::v1_shrink")
def lora_shrink(
    inputs: Tensor, lora_a_weights: list[Tensor], output_tensor: Tensor, token_lora_mapping: Tensor, scaling: float
) -> None:
    """output_tensor [slices, T, rank] = scaling · inputs [T, H] @ A of each slice; tokens without adapter give 0."""
    output_tensor.zero_()
    for number, weights in enumerate(lora_a_weights):
        target = output_tensor[number]
        _expand_into(target, inputs, weights, token_lora_mapping, add=False, scale=scaling)


@stands_for("vllm::lora_expand", "vllm::v1_expand")
def lora_expand(
    inputs: Tensor,
    lora_b_weights: list[Tensor],
    output_tensor: Tensor,
    token_lora_mapping: Tensor,
    offset_start: int,
    add_inputs: bool,
) -> None:
    """Columns of output_tensor [T, ..] from offset_start on (+)= inputs [slices, T, rank] @ B, slice behind slice."""
    start = offset_start
    for number, weights in enumerate(lora_b_weights):
        width = _matrices(weights).shape[1]
        target = output_tensor[:, start : start + width]
        _expand_into(target, inputs[number], weights, token_lora_mapping, add=add_inputs)
        start += width


@stands_for("vllm::sgmv_shrink")
def sgmv_shrink(
    inputs: Tensor,
    lora_a_weights: list[Tensor] | Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    scaling: float,
) -> None:
    """As lora_shrink, adapters by sequence; one weight gives [T, rank]."""
    mapping = tokens_adapters(b_seq_start_loc, seq_len_tensor, lora_indices_tensor, inputs.shape[0])
    several = isinstance(lora_a_weights, (list, tuple))
    weights = list(lora_a_weights) if several else [lora_a_weights]
    targets = output_tensor if several else output_tensor.unsqueeze(0)
    for number, matrix in enumerate(weights):
        assert isinstance(matrix, Tensor)
        _expand_into(targets[number], inputs, matrix, mapping, add=False, scale=scaling)


@stands_for("vllm::sgmv_expand", "vllm::sgmv_expand_slice")
def sgmv_expand(
    inputs: Tensor,
    lora_b_weights: list[Tensor] | Tensor,
    output_tensor: Tensor,
    b_seq_start_loc: Tensor,
    seq_len_tensor: Tensor,
    lora_indices_tensor: Tensor,
    add_inputs: bool,
    offset_start: int = 0,
    slice_offset: int = 0,
    slice_size: int | None = None,
) -> None:
    """As lora_expand, adapters by sequence; one weight takes inputs [T, rank]."""
    several = isinstance(lora_b_weights, (list, tuple))
    weights = list(lora_b_weights) if several else [lora_b_weights]
    rows = inputs if several else inputs.unsqueeze(0)
    mapping = tokens_adapters(b_seq_start_loc, seq_len_tensor, lora_indices_tensor, rows.shape[1])
    start = offset_start + slice_offset
    for number, matrix in enumerate(weights):
        assert isinstance(matrix, Tensor)
        width = slice_size or _matrices(matrix).shape[1]
        _expand_into(output_tensor[:, start : start + width], rows[number], matrix, mapping, add=add_inputs)
        start += width


@stands_for("vllm::bgmv_shrink", "vllm::xpu_bgmv_shrink")
def bgmv_shrink(
    inputs: Tensor, lora_a_weights: Tensor, output_tensor: Tensor, lora_indices_tensor: Tensor, scaling: float
) -> None:
    """output_tensor [T, rank] = scaling · inputs @ A of each token's adapter."""
    _expand_into(output_tensor, inputs, lora_a_weights, lora_indices_tensor, add=False, scale=scaling)


@stands_for("vllm::bgmv_expand", "vllm::bgmv_expand_slice", "vllm::xpu_bgmv_expand", "vllm::xpu_bgmv_expand_slice")
def bgmv_expand(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    lora_indices_tensor: Tensor,
    add_inputs: bool,
    slice_offset: int = 0,
    slice_size: int | None = None,
) -> None:
    """output_tensor [T, ..] from slice_offset on (+)= inputs [T, rank] @ B of each token's adapter."""
    width = slice_size or _matrices(lora_b_weights).shape[1]
    target = output_tensor[:, slice_offset : slice_offset + width]
    _expand_into(target, inputs, lora_b_weights, lora_indices_tensor, add=add_inputs)


@stands_for("_punica_C::dispatch_bgmv", "_punica_C::dispatch_bgmv_low_level")
def punica_bgmv(
    y: Tensor,
    x: Tensor,
    w: Tensor,
    indicies: Tensor,
    layer_idx: int,
    scale: float,
    h_in: int | None = None,
    h_out: int | None = None,
    y_offset: int = 0,
) -> None:
    """y [T, ..] += scale · x [T, in] @ w [adapters, layers, out, in] of one layer."""
    matrices = w[:, layer_idx, : h_out or w.shape[2], : h_in or w.shape[3]]
    target = y[:, y_offset : y_offset + matrices.shape[1]]
    _expand_into(target, x[:, : matrices.shape[2]], matrices, indicies, add=True, scale=scale)


@stands_for("_C_ascend::bgmv_shrink", "npu::bgmv_shrink", writes=("y",))
def ascend_bgmv_shrink(x: Tensor, weight: Tensor, indices: Tensor, y: Tensor, scale: float) -> None:
    """y [T, rank] += scale · x @ A of each token's adapter."""
    _expand_into(y, x, weight, indices, add=True, scale=scale)


def _fake_expanded(y: Tensor) -> Tensor:
    return torch.empty_like(y)


@stands_for("_C_ascend::bgmv_expand", "npu::bgmv_expand", writes=("y",), fake=_fake_expanded)
def ascend_bgmv_expand(
    x: Tensor, weight: Tensor, indices: Tensor, y: Tensor, slice_offset: int, slice_size: int
) -> Tensor:
    """y [T, ..] from slice_offset on += x [T, rank] @ B; returns y's values."""
    _expand_into(y[:, slice_offset : slice_offset + slice_size], x, weight, indices, add=True)
    return y.clone()


def _ascend_adapters(lora_indices: Tensor, seq_len: Tensor, tokens: int) -> Tensor:
    ends = seq_len.to(torch.int64).cumsum(0)
    return tokens_adapters(ends - seq_len.to(torch.int64), seq_len, lora_indices, tokens)


@stands_for("_C_ascend::sgmv_shrink", "npu::sgmv_shrink", writes=("y",))
def ascend_sgmv_shrink(
    x: Tensor, weight: Tensor, lora_indices: Tensor, seq_len: Tensor, y: Tensor, scale: float
) -> None:
    """As bgmv_shrink, adapters by sequence."""
    _expand_into(y, x, weight, _ascend_adapters(lora_indices, seq_len, x.shape[0]), add=True, scale=scale)


@stands_for("_C_ascend::sgmv_expand", "npu::sgmv_expand", writes=("y",), fake=_fake_expanded)
def ascend_sgmv_expand(
    x: Tensor, weight: Tensor, lora_indices: Tensor, seq_len: Tensor, y: Tensor, slice_offset: int, slice_size: int
) -> Tensor:
    """As bgmv_expand, adapters by sequence."""
    mapping = _ascend_adapters(lora_indices, seq_len, x.shape[0])
    _expand_into(y[:, slice_offset : slice_offset + slice_size], x, weight, mapping, add=True)
    return y.clone()
