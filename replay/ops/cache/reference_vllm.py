# pyright: strict
"""vLLM's `_C_cache_ops` (csrc/libtorch_stable/cache_kernels.cu): writes to and reads from paged KV caches."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import ends, gather_pages
from opreplay.replay.ops.maths.quantize import FP8_BY_KIND, fp8_view, largest


def as_stored(x: Tensor, cache: Tensor, scale: Tensor | float) -> Tensor:
    """Return x in the cache's dtype.

    For fp8, x is divided by `scale` and saturated. There is one scale, or one per head [Hkv].
    """
    if cache.dtype.itemsize != 1:
        return x.to(cache.dtype)
    if isinstance(scale, Tensor) and scale.numel() > 1:
        scale = scale.reshape(-1, 1)
    limit = largest(cache.dtype)
    return (x.float() / scale).clamp(-limit, limit).to(cache.dtype)


def write_slots(rows: Tensor, pages: Tensor, slots: Tensor) -> None:
    """Write rows [T, ..] to pages [blocks, page, ..] at slot = block · page + offset; negative slots are skipped."""
    slots = slots.flatten()
    rows = rows[: slots.numel()]
    written = slots >= 0
    rows, slots = rows[written], slots[written].to(torch.int64)
    page = pages.shape[1]
    # fp8 has no index_put on every device; a byte view moves the same bits.
    if pages.dtype.itemsize == 1:
        rows, pages = rows.view(torch.uint8), pages.view(torch.uint8)
    pages.index_put_((slots // page, slots % page), rows)


@stands_for("_C_cache_ops::reshape_and_cache")
def reshape_and_cache(c: Call) -> None:
    """Write key, value [T, Hkv, D] into key_cache [blocks, Hkv, D/x, page, x] and value_cache [blocks, Hkv, D,
    page].
    """
    keys, values = fp8_view(c.key_cache, c.kv_cache_dtype), fp8_view(c.value_cache, c.kv_cache_dtype)
    split = cast("Tensor", as_stored(c.key, keys, c.k_scale).unflatten(-1, (keys.shape[2], keys.shape[4])))
    write_slots(split, keys.permute(0, 3, 1, 2, 4), c.slot_mapping)
    write_slots(as_stored(c.value, values, c.v_scale), values.permute(0, 3, 1, 2), c.slot_mapping)


@stands_for("_C_cache_ops::reshape_and_cache_flash")
def reshape_and_cache_flash(c: Call) -> None:
    """Write key, value [T, Hkv, D] into caches [blocks, page, Hkv, D] with any strides (NHD or HND)."""
    for rows, cache, scale in (
        (c.key, c.key_cache, getattr(c, "k_scale", 1.0)),
        (c.value, c.value_cache, getattr(c, "v_scale", 1.0)),
    ):
        pages = fp8_view(cache, c.kv_cache_dtype)
        write_slots(as_stored(rows, pages, scale), pages, c.slot_mapping)


@stands_for("_C_cache_ops::concat_and_cache_mla")
def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    """Write kv_c [T, rank] and k_pe [T, rope], concatenated, into kv_cache [blocks, page, rank + rope].

    Raises ValueError for the 656-byte fp8_ds_mla rows, which are not implemented.
    """
    pages = fp8_view(kv_cache, kv_cache_dtype)
    rows = torch.cat((kv_c, k_pe.reshape(k_pe.shape[0], -1)), dim=-1)
    if rows.shape[-1] != pages.shape[-1]:
        raise ValueError(
            f"cache rows of {pages.shape[-1]} elements do not fit rows of {rows.shape[-1]} elements (fp8_ds_mla?)"
        )
    write_slots(as_stored(rows, pages, scale), pages, slot_mapping)


@stands_for("_C_cache_ops::copy_blocks")
def copy_blocks(key_caches: list[Tensor], value_caches: list[Tensor], block_mapping: Tensor) -> None:
    """Copy block block_mapping[:, 0] to block block_mapping[:, 1] in the caches of all layers."""
    source, target = block_mapping.to(key_caches[0].device, torch.int64).unbind(1)
    for cache in (*key_caches, *value_caches):
        cache[target] = cache[source]


@stands_for("_C_cache_ops::copy_blocks_mla")
def copy_blocks_mla(kv_caches: list[Tensor], block_mapping: Tensor) -> None:
    """Copy block block_mapping[:, 0] to block block_mapping[:, 1] in the MLA caches of all layers."""
    copy_blocks(kv_caches, [], block_mapping)


@stands_for("_C_cache_ops::swap_blocks")
def swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    """Set dst[block_mapping[:, 1]] = src[block_mapping[:, 0]], also between host and device."""
    source, target = block_mapping.to(torch.int64).unbind(1)
    dst[target.to(dst.device)] = src[source.to(src.device)].to(dst.device)


@stands_for("_C_cache_ops::convert_fp8")
def convert_fp8(dst_cache: Tensor, src_cache: Tensor, scale: float, kv_cache_dtype: str) -> None:
    """Convert an fp8 cache stored as uint8 to a wider dtype, or a wider cache to fp8."""
    kind = FP8_BY_KIND.get(kv_cache_dtype, torch.float8_e4m3fn)
    if dst_cache.dtype == torch.uint8:
        dst_cache.copy_(as_stored(src_cache, dst_cache.view(kind), scale).view(torch.uint8))
    else:
        dst_cache.copy_(src_cache.view(kind).float() * scale)


@stands_for(
    "_C_cache_ops::cp_gather_cache", "_C_cache_ops::gather_and_maybe_dequant_cache", "_C_cache_ops::gather_cache"
)
def gather_cache(c: Call) -> None:
    """Gather dst [tokens, ..] from src_cache [blocks, page, ..]; sequence i is read from position seq_starts[i] on."""
    scale = getattr(c, "scale", None)
    pages = fp8_view(c.src_cache, getattr(c, "kv_cache_dtype", "")) if c.dst.dtype != c.src_cache.dtype else c.src_cache
    bounds = ends(c.cu_seq_lens[: c.batch_size + 1], c.dst.shape[0], "cu_seq_lens")
    starts = [int(start) for start in c.seq_starts] if c.seq_starts is not None else [0] * c.batch_size
    for index in range(len(bounds) - 1):
        length = bounds[index + 1] - bounds[index]
        rows = gather_pages(pages, c.block_table[index], starts[index] + length)[starts[index] :]
        dequantized = pages.dtype.itemsize == 1 and c.dst.dtype.itemsize > 1
        c.dst[bounds[index] : bounds[index + 1]] = (
            rows.float() * (1.0 if scale is None else scale) if dequantized else rows
        )
