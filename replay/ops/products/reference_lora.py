# pyright: strict
"""LoRA's two products as ops of vLLM, Punica and vllm-ascend: shrink (to the rank) and expand (from the rank).

Weights are [adapters, out, in] or [adapters, 1, out, in]. A token with a negative adapter index gets no contribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for


def _matrices(weights: Tensor) -> Tensor:
    return weights.squeeze(1) if weights.dim() == 4 else weights


def _by_adapter(x: Tensor, weights: Tensor, adapters: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x [T, in] @ the weight of each token's adapter, mask of tokens with an adapter).

    The product is float32 [T, out].
    """
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
    """Write scale · (x @ weight) to `target` [T, out], or add it if `add`, for tokens with an adapter."""
    expanded, known = _by_adapter(x, weights, adapters)
    rows = target[: x.shape[0], : expanded.shape[1]]
    value = expanded * scale
    rows.copy_(torch.where(known.unsqueeze(1), (rows.float() + value) if add else value, rows.float()))


def tokens_adapters(starts: Tensor, lengths: Tensor, indices: Tensor, tokens: int) -> Tensor:
    """Return the adapter of each token, from the start, length and adapter of each sequence.

    Tokens outside all sequences get −1.
    """
    place = torch.arange(tokens, device=indices.device)
    sequence = torch.searchsorted(starts.to(torch.int64).contiguous(), place, right=True) - 1
    sequence = sequence.clamp(0, indices.numel() - 1)
    inside = place < starts.to(torch.int64)[sequence] + lengths.to(torch.int64)[sequence]
    return torch.where(inside, indices.to(torch.int64)[sequence], torch.full_like(place, -1))


@stands_for("vllm::lora_shrink", "vllm::v1_shrink")
def lora_shrink(c: Call) -> None:
    """Write scaling · inputs [T, H] @ A to output_tensor [slices, T, rank].

    Each slice has its own A. Tokens without an adapter give 0.
    """
    c.output_tensor.zero_()
    for number, weights in enumerate(c.lora_a_weights):
        target = c.output_tensor[number]
        _expand_into(target, c.inputs, weights, c.token_lora_mapping, add=False, scale=c.scaling)


@stands_for("vllm::lora_expand", "vllm::v1_expand")
def lora_expand(c: Call) -> None:
    """Write or add inputs [slices, T, rank] @ B to output_tensor [T, ..].

    The slices follow each other, starting at column offset_start.
    """
    start = c.offset_start
    for number, weights in enumerate(c.lora_b_weights):
        width = _matrices(weights).shape[1]
        target = c.output_tensor[:, start : start + width]
        _expand_into(target, c.inputs[number], weights, c.token_lora_mapping, add=c.add_inputs)
        start += width


@stands_for("vllm::sgmv_shrink")
def sgmv_shrink(c: Call) -> None:
    """Same as lora_shrink, with one adapter per sequence; for a single weight, the output is [T, rank]."""
    mapping = tokens_adapters(c.b_seq_start_loc, c.seq_len_tensor, c.lora_indices_tensor, c.inputs.shape[0])
    several = isinstance(c.lora_a_weights, (list, tuple))
    weights = list(c.lora_a_weights) if several else [c.lora_a_weights]
    targets = c.output_tensor if several else c.output_tensor.unsqueeze(0)
    for number, matrix in enumerate(weights):
        assert isinstance(matrix, Tensor)
        _expand_into(targets[number], c.inputs, matrix, mapping, add=False, scale=c.scaling)


@stands_for("vllm::sgmv_expand", "vllm::sgmv_expand_slice")
def sgmv_expand(c: Call) -> None:
    """Do the same as lora_expand, with one adapter per sequence. A single weight takes inputs [T, rank]."""
    several = isinstance(c.lora_b_weights, (list, tuple))
    weights = list(c.lora_b_weights) if several else [c.lora_b_weights]
    rows = c.inputs if several else c.inputs.unsqueeze(0)
    mapping = tokens_adapters(c.b_seq_start_loc, c.seq_len_tensor, c.lora_indices_tensor, rows.shape[1])
    start = getattr(c, "offset_start", 0) + getattr(c, "slice_offset", 0)
    for number, matrix in enumerate(weights):
        assert isinstance(matrix, Tensor)
        width = getattr(c, "slice_size", None) or _matrices(matrix).shape[1]
        _expand_into(c.output_tensor[:, start : start + width], rows[number], matrix, mapping, add=c.add_inputs)
        start += width


@stands_for("vllm::bgmv_shrink", "vllm::xpu_bgmv_shrink")
def bgmv_shrink(c: Call) -> None:
    """Write `scaling` · (`inputs` @ A of each token's adapter) to `output_tensor` [T, rank]."""
    _expand_into(c.output_tensor, c.inputs, c.lora_a_weights, c.lora_indices_tensor, add=False, scale=c.scaling)


@stands_for("vllm::bgmv_expand", "vllm::bgmv_expand_slice", "vllm::xpu_bgmv_expand", "vllm::xpu_bgmv_expand_slice")
def bgmv_expand(c: Call) -> None:
    """Write or add inputs [T, rank] @ B of each token's adapter to output_tensor [T, ..].

    The columns start at slice_offset.
    """
    slice_offset = getattr(c, "slice_offset", 0)
    width = getattr(c, "slice_size", None) or _matrices(c.lora_b_weights).shape[1]
    target = c.output_tensor[:, slice_offset : slice_offset + width]
    _expand_into(target, c.inputs, c.lora_b_weights, c.lora_indices_tensor, add=c.add_inputs)


@stands_for("_punica_C::dispatch_bgmv", "_punica_C::dispatch_bgmv_low_level")
def punica_bgmv(c: Call) -> None:
    """Add scale · x [T, in] @ (the weight of layer `layer_idx`) to y [T, ..]. w is [adapters, layers, out, in]."""
    y_offset = getattr(c, "y_offset", 0)
    matrices = c.w[
        :, c.layer_idx, : getattr(c, "h_out", None) or c.w.shape[2], : getattr(c, "h_in", None) or c.w.shape[3]
    ]
    target = c.y[:, y_offset : y_offset + matrices.shape[1]]
    _expand_into(target, c.x[:, : matrices.shape[2]], matrices, c.indicies, add=True, scale=c.scale)


@stands_for("_C_ascend::bgmv_shrink", "npu::bgmv_shrink", writes=("y",))
def ascend_bgmv_shrink(x: Tensor, weight: Tensor, indices: Tensor, y: Tensor, scale: float) -> None:
    """Add `scale` · (`x` @ A of each token's adapter) to `y` [T, rank]."""
    _expand_into(y, x, weight, indices, add=True, scale=scale)


def _fake_expanded(y: Tensor) -> Tensor:
    return torch.empty_like(y)


@stands_for("_C_ascend::bgmv_expand", "npu::bgmv_expand", writes=("y",), fake=_fake_expanded)
def ascend_bgmv_expand(c: Call) -> Tensor:
    """Add x [T, rank] @ B to `y` [T, ..] from column `slice_offset` on; return a copy of `y`."""
    _expand_into(c.y[:, c.slice_offset : c.slice_offset + c.slice_size], c.x, c.weight, c.indices, add=True)
    return c.y.clone()


def _ascend_adapters(lora_indices: Tensor, seq_len: Tensor, tokens: int) -> Tensor:
    ends = seq_len.to(torch.int64).cumsum(0)
    return tokens_adapters(ends - seq_len.to(torch.int64), seq_len, lora_indices, tokens)


@stands_for("_C_ascend::sgmv_shrink", "npu::sgmv_shrink", writes=("y",))
def ascend_sgmv_shrink(c: Call) -> None:
    """Same as ascend_bgmv_shrink, with one adapter per sequence."""
    _expand_into(c.y, c.x, c.weight, _ascend_adapters(c.lora_indices, c.seq_len, c.x.shape[0]), add=True, scale=c.scale)


@stands_for("_C_ascend::sgmv_expand", "npu::sgmv_expand", writes=("y",), fake=_fake_expanded)
def ascend_sgmv_expand(c: Call) -> Tensor:
    """Same as ascend_bgmv_expand, with one adapter per sequence."""
    mapping = _ascend_adapters(c.lora_indices, c.seq_len, c.x.shape[0])
    _expand_into(c.y[:, c.slice_offset : c.slice_offset + c.slice_size], c.x, c.weight, mapping, add=True)
    return c.y.clone()
