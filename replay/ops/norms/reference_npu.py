# pyright: strict
"""torch_npu's norms, activations, rotary embedding, casts, dropout, quantisation and cache writes (`npu::*`).

Formats: a private layout (npu_format_cast 29, NZ) is not reproduced; tensors stay as they are.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.cache.reference_vllm import write_slots
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm_backward, rms_norm_with_scale
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized
from opreplay.replay.ops.maths.rope import rotate_by_position, rotate_whole


@stands_for("npu::npu_rms_norm")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(norm · gamma, reciprocal root mean square float32 [.., 1])."""
    return rms_norm_with_scale(self, gamma, epsilon)


@stands_for("npu::npu_rms_norm_backward")
def npu_rms_norm_backward(dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """(dx in self's dtype, dgamma float32)."""
    return rms_norm_backward(dy, self, gamma, rstd)


@stands_for("npu::npu_add_rms_norm")
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(norm of the sum, rstd float32, x1 + x2)."""
    total = x1 + x2
    normed, rstd = rms_norm_with_scale(total, gamma, epsilon)
    return normed, rstd, total


@stands_for("npu::npu_add_layer_norm")
def npu_add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, additional_output: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(layer norm of x1 + x2, mean, rstd, x1 + x2 or an empty tensor)."""
    total = x1 + x2
    mean = total.float().mean(-1, keepdim=True)
    rstd = torch.rsqrt(total.float().var(-1, unbiased=False, keepdim=True) + epsilon)
    normed = F.layer_norm(total, (total.shape[-1],), gamma.to(total.dtype), beta.to(total.dtype), epsilon)
    return normed, mean, rstd, total if additional_output else total.new_empty((0,))


@stands_for("npu::npu_layer_norm_eval")
def npu_layer_norm_eval(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Layer norm over the last dims."""
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


@stands_for("npu::npu_swiglu")
def npu_swiglu(self: Tensor, dim: int) -> Tensor:
    """silu(first half) · second half along dim."""
    gate, up = self.chunk(2, dim=dim)
    return F.silu(gate) * up


@stands_for("npu::npu_swiglu_backward")
def npu_swiglu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Gradient of npu_swiglu."""
    gate, up = self.chunk(2, dim=dim)
    share = torch.sigmoid(gate)
    dgate = grad_output * up * share * (1 + gate * (1 - share))
    return torch.cat((dgate, grad_output * gate * share), dim=dim)


@stands_for("npu::npu_fast_gelu")
def npu_fast_gelu(self: Tensor) -> Tensor:
    """x · sigmoid(1.702 x)."""
    return self * torch.sigmoid(1.702 * self)


@stands_for("npu::npu_gelu")
def npu_gelu(self: Tensor, approximate: str) -> Tensor:
    """GELU."""
    return F.gelu(self, approximate=approximate or "none")


@stands_for("npu::npu_rotary_mul")
def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """self · r1 + turned(self) · r2, with cosines r1 and sines r2 of every element; half or interleaved pairs."""
    return rotate_whole(self, r1, r2, neox=rotary_mode != "interleave")


@stands_for("npu::npu_apply_rotary_pos_emb")
def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """As npu_rotary_mul for query and key [B, S, N, D]."""
    neox = rotary_mode != "interleave"
    return rotate_whole(query, cos, sin, neox=neox), rotate_whole(key, cos, sin, neox=neox)


@stands_for("npu::npu_interleave_rope")
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved pairs of x [B, N, S, D] brought into halves, then rotated as halves."""
    return rotate_whole(_to_halves(x), cos, sin, neox=True)


def _to_halves(x: Tensor) -> Tensor:
    pairs = cast("Tensor", x.unflatten(-1, (-1, 2)))
    return pairs.transpose(-1, -2).flatten(-2)


@stands_for("npu::npu_mrope")
def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    mrope_section: list[int] | None,
    rotary_mode: str | None,
) -> tuple[Tensor, Tensor]:
    """As vLLM's rotary embedding, out of place. Raises ValueError for several sections (multimodal positions)."""
    if mrope_section and any(mrope_section):
        raise ValueError("npu_mrope with sections is not implemented")
    neox = rotary_mode != "interleave"
    flat = positions.flatten()
    return (
        rotate_by_position(query, flat, cos_sin_cache, head_size=head_size, neox=neox),
        rotate_by_position(key, flat, cos_sin_cache, head_size=head_size, neox=neox),
    )


@stands_for("npu::_npu_dtype_cast", "npu::npu_dtype_cast")
def npu_dtype_cast(self: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in another dtype."""
    return self.to(dtype, copy=True)


@stands_for("npu::_npu_format_cast", "npu::npu_format_cast")
def npu_format_cast(self: Tensor) -> Tensor:
    """A copy: the bytes move, their order stays."""
    return self.clone()


@stands_for("npu::npu_transpose")
def npu_transpose(self: Tensor, perm: list[int]) -> Tensor:
    """A contiguous permuted copy."""
    return self.permute(perm).clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_linear")
def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """input [.., K] @ weight [N, K]ᵀ + bias."""
    return F.linear(input, weight, bias)


_BITS = (1, 2, 4, 8, 16, 32, 64, 128)
_MASK_BITS = 128


def _fake_dropout(self: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(self), self.new_empty((mask_bytes(self.numel()),), dtype=torch.uint8)


def mask_bytes(elements: int) -> int:
    """Bytes of a packed mask: one bit an element, rounded up to 128 bits."""
    return -(-elements // _MASK_BITS) * _MASK_BITS // 8


@stands_for("npu::_npu_dropout", fake=_fake_dropout)
def npu_dropout(self: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(self with each element kept with probability 1 − p and scaled, packed mask uint8, first element in bit 0)."""
    kept = torch.rand(mask_bytes(self.numel()) * 8, device=self.device) >= p
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    out = self * kept[: self.numel()].reshape(self.shape) * scale
    weights = torch.tensor(_BITS, device=self.device, dtype=torch.int32)
    return out.to(self.dtype), (kept.reshape(-1, 8) * weights).sum(-1).to(torch.uint8)


@stands_for("npu::npu_dropout_backward")
def npu_dropout_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """grad_output where the packed mask has a one, scaled as in the forward pass."""
    weights = torch.tensor(_BITS, device=mask.device, dtype=torch.uint8)
    kept = (mask.unsqueeze(-1) & weights).flatten()[: grad_output.numel()] != 0
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    return (grad_output * kept.reshape(grad_output.shape) * scale).to(grad_output.dtype)


@stands_for("npu::npu_dynamic_quant")
def npu_dynamic_quant(
    input: Tensor, smooth_scales: Tensor | None, dst_type: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """(int8, float32 scale of each row [..])."""
    if dst_type not in (None, torch.int8):
        raise ValueError(f"dynamic quantisation to {dst_type} is not implemented")
    x = input if smooth_scales is None else input * smooth_scales
    rows = row_scale(x, torch.int8)
    return to_quantized(x, rows, torch.int8), rows.squeeze(-1)


@stands_for("npu::npu_quantize")
def npu_quantize(
    self: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: torch.dtype, axis: int, div_mode: bool
) -> Tensor:
    """round(self / scales (or · scales) + zero_points), saturated to int8 whatever kind of it dtype is."""
    shape = [1] * self.dim()
    if scales.numel() > 1:
        shape[axis] = -1
    factor = scales.float().reshape(shape)
    scaled = self.float() / factor if div_mode else self.float() * factor
    if zero_points is not None:
        scaled = scaled + zero_points.float().reshape(shape if zero_points.numel() > 1 else [1] * self.dim())
    low, high = (0, 255) if dtype in (torch.uint8, torch.quint8) else (-128, 127)
    kind = torch.uint8 if low == 0 else torch.int32 if dtype in (torch.int32, torch.qint32) else torch.int8
    return scaled.round().clamp(low, high).to(kind)


def _float_scale(scale: Tensor) -> Tensor:
    """A scale that may come packed as the low half of 64-bit integers."""
    if scale.dtype == torch.int64:
        return (scale & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    return scale.float()


def _fake_quant_matmul(x1: Tensor, x2: Tensor, output_dtype: torch.dtype | None) -> Tensor:
    return x1.new_empty((*x1.shape[:-1], x2.shape[-1]), dtype=output_dtype or torch.int8)


@stands_for("npu::npu_quant_matmul", fake=_fake_quant_matmul)
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: torch.dtype | None,
) -> Tensor:
    """(x1 [.., M, K] @ x2 [K, N] + int32 bias) · scale ([1] or [N]) · pertoken_scale [M] (+ offset)."""
    product = x1.float() @ x2.float()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    product = product * _float_scale(scale)
    if pertoken_scale is not None:
        product = product * pertoken_scale.unsqueeze(-1)
    if bias is not None and bias.dtype != torch.int32:
        product = product + bias
    if offset is not None:
        product = product + offset
    dtype = output_dtype or torch.int8
    return product.round().clamp(-128, 127).to(dtype) if dtype == torch.int8 else product.to(dtype)


@stands_for("npu::npu_scatter_nd_update_")
def npu_scatter_nd_update_(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """self[indices[.., 0], indices[.., 1], ..] = updates, in place."""
    return self.index_put_(tuple(indices.to(torch.int64).unbind(-1)), updates)


@stands_for("npu::npu_scatter_nd_update")
def npu_scatter_nd_update(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """As npu_scatter_nd_update_ on a copy."""
    return npu_scatter_nd_update_(self.clone(), indices, updates)


@stands_for("npu::_npu_reshape_and_cache", "npu::npu_scatter_pa_kv_cache")
def npu_write_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor | None = None,
    slot_indices: Tensor | None = None,
) -> None:
    """key, value [T, Hkv, D] into caches [blocks, page, Hkv, D] at their slots."""
    slots = slot_mapping if slot_mapping is not None else slot_indices
    assert slots is not None
    write_slots(key.reshape(key.shape[0], *key_cache.shape[2:]).to(key_cache.dtype), key_cache, slots)
    write_slots(value.reshape(value.shape[0], *value_cache.shape[2:]).to(value_cache.dtype), value_cache, slots)


@stands_for("npu::npu_kv_rmsnorm_rope_cache")
def npu_kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    epsilon: float,
    cache_mode: str,
    is_output_kv: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """kv [B, 1, S, rank + rope]: the normed rank part into ckv_cache, the rotated rope part into k_cache.

    Mode Norm: index int64 [B, S] are places in each batch's own cache [B, 1, places, ..]. Modes PA and PA_BNSD: index
    [B · S] are slots of paged caches [blocks, page, 1, ..], as is a flat index without a mode, which traces do not
    record. Negative ones are skipped. Unquantised caches in token order only; raises ValueError for other modes.
    """
    if cache_mode not in ("Norm", "PA", "PA_BNSD"):
        raise ValueError(f"caches of mode {cache_mode} are not stood in for: Norm, PA and PA_BNSD are")
    rank = gamma.shape[0]
    latent, _ = rms_norm_with_scale(kv[..., :rank], gamma, epsilon)
    turned = rotate_whole(_to_halves(kv[..., rank:]), cos, sin, neox=True)
    if cache_mode == "Norm" and index.dim() == 2:
        places = k_cache[0].numel() // k_cache.shape[-1]
        first = places * torch.arange(index.shape[0], device=index.device).unsqueeze(1)
        index = torch.where(index < 0, index, index + first)
    slots = index.flatten()
    for rows, cache in ((turned, k_cache), (latent, ckv_cache)):
        flat = cache.view(-1, 1, cache.shape[-1])
        write_slots(rows.reshape(-1, rows.shape[-1]).to(cache.dtype), flat, slots)
    empty = kv.new_empty((0,))
    return (k_cache, ckv_cache, turned, latent) if is_output_kv else (k_cache, ckv_cache, empty, empty.clone())
