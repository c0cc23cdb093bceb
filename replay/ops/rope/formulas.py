# pyright: strict
"""Rotary position embedding, and caches of keys and values that are written by place.

As in `formulas` beside it: from public documentation, independent of the stand-ins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, formula, numbers, split


def turned(x: Tensor, cos: Tensor, sin: Tensor, *, neox: bool) -> Tensor:
    """Pairs of x [.., R] as complex numbers times those with the angles' cosines and sines [.., R/2]: element i and
    i + R/2 are a pair (GPT-NeoX), or 2i and 2i + 1 (GPT-J)."""
    kind = torch.complex128 if x.dtype is torch.float64 else torch.complex64
    real = torch.float64 if kind is torch.complex128 else torch.float32
    x = x.to(real)
    pairs = split(x, -1, (2, -1)).movedim(-2, -1) if neox else split(x, -1, (-1, 2))
    angles = torch.complex(cos.to(real), sin.to(real))
    products = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * angles)
    return products.movedim(-1, -2).flatten(-2) if neox else products.flatten(-2)


def embedded(x: Tensor, positions: Tensor, table: Tensor, size: int, *, neox: bool) -> Tensor:
    """Heads of x [tokens, heads · size] with their first elements turned by the angles of their token's position."""
    heads = x.reshape(positions.numel(), -1, size)
    cos, sin = table[positions.flatten()].unsqueeze(1).chunk(2, -1)
    count = table.shape[-1]
    rotated = turned(heads[..., :count], cos, sin, neox=neox).to(x.dtype)
    return torch.cat([rotated, heads[..., count:]], -1).reshape(x.shape)


@formula("_C::rotary_embedding sgl_kernel::rotary_embedding", "(i64[8], f32[8,64], f32[8,32], 16, f32[32,16], True)")
def rotary_embedding(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("rope_dim_offset") and not values.get("inverse"), "the plain form")
    tensors = [values["query"], *([] if values.get("key") is None else [values["key"]])]
    places, table, size = values["positions"], values["cos_sin_cache"], values["head_size"]
    covers(places.numel() == len(tensors[0].flatten(0, places.dim() - 1)), "a position for each token")
    return tuple(embedded(tensor, places, table, size, neox=values["is_neox"]) for tensor in tensors)


@formula("npu::npu_apply_rotary_pos_emb", "f32[2,8,4,16], f32[2,8,2,16], f32[2,8,1,16], f32[2,8,1,16]")
def npu_rotary(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("rotary_mode", "half") == "half" and values.get("layout", "BSH") == "BSH", "the plain form")
    cos, sin = values["cos"], values["sin"]
    rotated: list[Tensor] = []
    for x in (values["query"], values["key"]):
        half = x.shape[-1] // 2
        low = x[..., :half] * cos[..., :half] - x[..., half:] * sin[..., :half]
        high = x[..., half:] * cos[..., half:] + x[..., :half] * sin[..., half:]
        rotated.append(torch.cat([low, high], -1))
    return tuple(rotated)


def written(cache: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """A cache [places, ..] with rows at some of its places; a negative one is of a token that is left out."""
    covers(len(places) <= len(rows), "a row for each place")
    result, named = cache.clone(), places >= 0
    targets = places[named]
    covers(len(set(numbers(targets))) == len(targets), "one row a place")
    result[targets.long()] = rows[: len(places)][named].to(cache.dtype)
    return result


CACHED = "'auto', f32[1], f32[1])"


@formula(
    "_C_cache_ops::reshape_and_cache_flash",
    f"(f32[8,2,16], f32[8,2,16], f32[4,8,2,16], f32[4,8,2,16], i64[8], {CACHED}",
)
def cache_flash(values: Values) -> tuple[Tensor, ...]:
    # Caches [blocks, block, heads, D].
    covers(values["kv_cache_dtype"] == "auto", "caches of the same dtype")
    pairs = (("key_cache", "key"), ("value_cache", "value"))
    return tuple(
        written(values[cache].flatten(0, 1), values["slot_mapping"], values[rows]).view(values[cache].shape)
        for cache, rows in pairs
    )


@formula(
    "_C_cache_ops::reshape_and_cache", f"(f32[8,2,16], f32[8,2,16], f32[4,2,4,8,4], f32[4,2,16,8], i64[8], {CACHED}"
)
def cache_paged(values: Values) -> tuple[Tensor, ...]:
    # Keys [blocks, heads, D/x, block, x], values [blocks, heads, D, block].
    covers(values["kv_cache_dtype"] == "auto", "caches of the same dtype")
    keys, stored, places = values["key_cache"], values["value_cache"], values["slot_mapping"]
    blocks, heads, parts, size, x = keys.shape
    by_place = written(keys.permute(0, 3, 1, 2, 4).reshape(blocks * size, heads, parts * x), places, values["key"])
    keys = by_place.reshape(blocks, size, heads, parts, x).permute(0, 2, 3, 1, 4)
    by_place = written(stored.permute(0, 3, 1, 2).flatten(0, 1), places, values["value"])
    return keys.contiguous(), split(by_place, 0, (blocks, size)).permute(0, 2, 3, 1).contiguous()


@formula("_C_cache_ops::concat_and_cache_mla", "(f32[8,16], f32[8,4], f32[4,8,20], i64[8], 'auto', f32[1])")
def cache_mla(values: Values) -> Tensor:
    covers(values["kv_cache"].numel(), "a cache")
    covers(values["kv_cache_dtype"] == "auto", "a cache of the same dtype")
    cache, rows = values["kv_cache"], torch.cat([values["kv_c"], values["k_pe"]], -1)
    return written(cache.flatten(0, 1), values["slot_mapping"], rows).view(cache.shape)


@formula("sglang::store_cache", "(f32[8,32], f32[8,32], f32[64,32], f32[64,32], i64[8])")
def store_cache(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("reserved_skip_index", 0) not in numbers(values["indices"]), "places that are written")
    return tuple(
        written(values[cache], values["indices"], values[rows]) for cache, rows in (("k_cache", "k"), ("v_cache", "v"))
    )


@formula("sgl_kernel::store_kv_cache", "(f32[64,32], f32[64,32], i64[8], f32[8,32], f32[8,32])")
def store_kv_cache(values: Values) -> tuple[Tensor, ...]:
    return tuple(
        written(values[cache], values["out_loc"], values[rows]) for cache, rows in (("k_cache", "k"), ("v_cache", "v"))
    )


@formula("_C_cache_ops::concat_mla_q", "f32[8,4,16], f32[8,4,8], f32[8,4,24]")
def concat_mla_q(values: Values) -> Tensor:
    return torch.cat([values["ql_nope"], values["q_pe"]], -1)


@formula("_C::weak_ref_tensor", "f32[8,16]")
def weak_ref_tensor(values: Values) -> Tensor:
    return values["input"]


@formula("npu::npu_rotary_mul", "f32[2,8,4,16], f32[1,8,1,16], f32[1,8,1,16]")
def npu_rotary_mul(values: Values) -> Tensor:
    x = values["self"]
    first, second = x.chunk(2, -1)
    return x * values["r1"] + torch.cat([-second, first], -1) * values["r2"]
