# pyright: strict
"""Rotary position embedding, and caches of keys and values that are written by place.

Written from public documentation, independent of the references.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import (
    FP8,
    Values,
    covers,
    epsilon,
    formula,
    formulas,
    gradients,
    numbers,
    of,
    rms,
    split,
    wide,
)


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


@formulas("""
    _C::rotary_embedding sgl_kernel::rotary_embedding | (i64[8], f32[8,64], None, 16, f32[32,16], False)
""")
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


@formula(
    "_C_cache_ops::concat_and_cache_mla aiter::concat_and_cache_mla",
    "(f32[8,16], f32[8,4], f32[4,8,20], i64[8], 'auto', f32[1])",
)
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


def turned_heads(x: Tensor, cos: Tensor, sin: Tensor, values: Values) -> Tensor:
    """aiter's x [S, B, H, D] by angles that broadcast to [S, B, 1, R]."""
    neox = values["rotate_style"] == 0
    covers(values["rotate_style"] in (0, 1), "the styles of GPT-NeoX and GPT-J")
    covers(values["reuse_freqs_front_part"] and not values["nope_first"], "angles of pairs, in the front")
    count = 2 * cos.shape[-1]
    covers(0 < count <= x.shape[-1] and x.numel(), "angles of a part of the head")
    parts = (part.expand(*x.shape[:-1], part.shape[-1]) for part in (cos, sin))
    return torch.cat([turned(x[..., :count], *parts, neox=neox).to(x.dtype), x[..., count:]], -1)


def angles_of(values: Values) -> tuple[Tensor, Tensor]:
    """Cosines and sines: of given angles, or read from a table at the positions of tokens."""
    if (given := values.get("freqs")) is not None:
        return given.cos(), given.sin()
    if (places := values.get("positions")) is None:
        return values["cos"], values["sin"]
    places = places + (0 if values.get("offsets") is None else values["offsets"])
    covers(bool((places >= 0).all()) and int(places.max()) < len(values["cos"]), "positions in the table")
    cos, sin = (values[name].flatten(1)[places.long()].unsqueeze(-2) for name in ("cos", "sin"))
    return cos, sin


@formulas("""
    aiter::rope_fwd_impl | (f32[8,2,4,16], f32[8,2,4,16], f32[8,1,1,8], 0, True, False)
    aiter::rope_cached_fwd_impl | (f32[8,2,4,16], f32[8,2,4,16], f32[8,1,1,8], f32[8,1,1,8], 1, True, False)
    aiter::rope_cached_positions_fwd_impl
        | (f32[8,2,4,16], f32[8,2,4,16], f32[32,1,1,8], f32[32,1,1,8], i64[8,2], 0, True, False)
    aiter::rope_cached_positions_offsets_fwd_impl
        | (f32[8,2,4,16], f32[8,2,4,16], f32[32,1,1,8], f32[32,1,1,8], i64[8,2], i64[8,2], 0, True, False)
""")
def aiter_rope(values: Values) -> Tensor:
    return turned_heads(values["input"], *angles_of(values), values)


TWO = "(f32[8,2,4,16], f32[8,2,2,16], f32[8,2,4,16], f32[8,2,2,16]"
TABLE = "f32[32,1,1,8], f32[32,1,1,8], i64[8,2]"


@formulas(f"""
    aiter::rope_2c_fwd_impl | {TWO}, f32[8,1,1,8], 0, True, False)
    aiter::rope_cached_2c_fwd_impl | {TWO}, f32[8,1,1,8], f32[8,1,1,8], 0, True, False)
    aiter::rope_cached_positions_2c_fwd_impl | {TWO}, {TABLE}, 0, True, False)
    aiter::rope_cached_positions_offsets_2c_fwd_impl | {TWO}, {TABLE}, i64[8,2], 0, True, False)
""")
def aiter_rope_of_two(values: Values) -> tuple[Tensor, ...]:
    cos, sin = angles_of(values)
    return tuple(turned_heads(values[name], cos, sin, values) for name in ("input_x", "input_y"))


@formulas("""
    aiter::rope_bwd_impl | (f32[8,2,4,16], f32[8,2,4,16], f32[8,1,1,8], 0, True, False)
    aiter::rope_cached_bwd_impl | (f32[8,2,4,16], f32[8,2,4,16], f32[8,1,1,8], f32[8,1,1,8], 1, True, False)
""")
def aiter_rope_backward(values: Values) -> Tensor:
    cos, sin = angles_of(values)
    grad = values["output_grads"]

    def forward(x: Tensor) -> Tensor:
        return turned_heads(x, cos, sin, values)

    return gradients(forward, [torch.zeros_like(grad)], grad)[0]


@formulas("""
    sglang::rotary_embedding_with_key vllm::rocm_aiter_triton_rotary_embedding vllm::flashinfer_rotary_embedding
        | (i64[8], f32[8,64], f32[8,32], 16, f32[32,16], True)
    sglang::rotary_embedding_without_key | (i64[8], f32[8,64], 16, f32[32,16], True)
    sglang::rotary_embedding_with_key vllm::rocm_aiter_triton_rotary_embedding
            | (i64[8], f32[8,64], f32[8,32], 16, f32[32,16], False)
    sglang::rotary_embedding_without_key | (i64[8], f32[8,64], 16, f32[32,16], False)
""")
def rotary_of_others(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("offsets") is None, "the plain form")
    return rotary_embedding({"is_neox": True, **values})


@formulas("""
    _C_ascend::rotary_embedding | (i64[8], f32[8,64], f32[8,32], 16, f32[32,16], False)
""")
@formula("_C_ascend::rotary_embedding", "(i64[8], f32[8,64], f32[8,32], 16, f32[32,16], True)")
def ascend_rotary(values: Values) -> tuple[Tensor, ...]:
    """Returned, and written in place."""
    return (*rotary_embedding(values), *rotary_embedding(values))


@formula("npu::npu_interleave_rope", "f32[2,4,8,16], f32[2,1,8,16], f32[2,1,8,16]")
def npu_interleave_rope(values: Values) -> Tensor:
    """Pairs 2i and 2i + 1 go to i and i + D/2, and are turned there."""
    x = values["x"]
    covers(x.shape[-1] % 2 == 0 and x.dim() == 4, "pairs")
    halves = torch.cat([x[..., ::2], x[..., 1::2]], -1)
    first, second = halves.chunk(2, -1)
    return halves * values["cos"] + torch.cat([-second, first], -1) * values["sin"]


@formula("sgl_kernel::concat_mla_absorb_q", "f32[8,4,16], f32[8,4,8], f32[8,4,24]")
def concat_absorbed(values: Values) -> Tensor:
    return torch.cat([values["a"], values["b"]], -1).to(values["out"].dtype)


@formula("sgl_kernel::concat_mla_k vllm::flashinfer_concat_mla_k", "f32[8,4,24], f32[8,4,16], f32[8,1,8]")
def concat_mla_k(values: Values) -> Tensor:
    nope, rope = values["k_nope"], of(values, "k_rope", "k_pe")
    covers(rope.dim() == 3 and rope.shape[1] == 1, "one head of positions")
    return torch.cat([nope, rope.expand(*nope.shape[:-1], rope.shape[-1])], -1).to(values["k"].dtype)


@formulas("""
    sgl_kernel::timestep_embedding | (f32[8], f32[8,16], 16, False, 1.0, 1.0, 10000)
""")
@formula("sgl_kernel::timestep_embedding", "(f32[8], f32[8,16], 16, True, 0.0, 1.0, 10000)")
def timestep_embedding(values: Values) -> tuple[Tensor, Tensor]:
    half = values["dim"] // 2
    covers(values["dim"] % 2 == 0 and half > values["downscale_freq_shift"], "pairs")
    steps = torch.arange(half, dtype=torch.float64) / (half - values["downscale_freq_shift"])
    angles = values["scale"] * values["input"].double().reshape(-1, 1) * values["max_period"] ** -steps
    parts = [angles.cos(), angles.sin()] if values["flip_sin_to_cos"] else [angles.sin(), angles.cos()]
    embedded_steps = torch.cat(parts, -1).to(values["output"].dtype)
    return embedded_steps, embedded_steps


@formulas(f"""
    npu::_npu_reshape_and_cache npu::npu_scatter_pa_kv_cache npu::npu_scatter_pa_kv_cache_functional
        | (f32[8,2,16], f32[8,2,16], f32[4,8,2,16], f32[4,8,2,16], i64[8])
    aiter::reshape_and_cache_flash | (f32[8,2,16], f32[8,2,16], f32[4,8,2,16], f32[4,8,2,16], i64[8], {CACHED}
""")
def cache_flash_of_others(values: Values) -> tuple[Tensor, ...]:
    covers(all(values.get(name) is None for name in ("compress_lens", "seq_lens")), "the plain form")
    return cache_flash({"kv_cache_dtype": "auto", "slot_mapping": values.get("slot_indices"), **values})


@formula("aiter::reshape_and_cache", "(f32[8,2,16], f32[8,2,16], f32[4,2,4,8,4], f32[4,2,16,8], i64[8], 'auto')")
def cache_paged_of_aiter(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("asm_layout"), "vLLM's layout")
    return cache_paged(values)


def copied(cache: Tensor, source: Tensor, pairs: Tensor) -> Tensor:
    """A cache with blocks of another one, or of itself before."""
    places = [tuple(numbers(pair)) for pair in pairs]
    targets = {target for _, target in places}
    covers(len(targets) == len(places), "one block a place")
    covers(source is not cache or not targets & {first for first, _ in places}, "blocks that are not written too")
    result = cache.clone()
    for first, target in places:
        result[target] = source[first].to(cache.dtype)
    return result


@formula("_C_cache_ops::copy_blocks", "([f32[4,8]], [f32[4,8]], i64[1,2])")
def copy_blocks(values: Values) -> tuple[Tensor, ...]:
    caches = (*values["key_caches"], *values["value_caches"])
    return tuple(copied(cache, cache, values["block_mapping"]) for cache in caches)


@formula("_C_cache_ops::copy_blocks_mla", "([f32[4,8], f32[4,8]], i64[1,2])")
def copy_blocks_mla(values: Values) -> tuple[Tensor, ...]:
    return tuple(copied(cache, cache, values["block_mapping"]) for cache in values["kv_caches"])


@formula("aiter::copy_blocks", "f32[4,8], f32[4,8], i64[1,2]")
def copy_blocks_of_aiter(values: Values) -> tuple[Tensor, ...]:
    return tuple(copied(values[name], values[name], values["block_mapping"]) for name in ("key_caches", "value_caches"))


@formula("_C_cache_ops::swap_blocks aiter::swap_blocks", "f32[4,8], f32[4,8], i64[1,2]")
def swap_blocks(values: Values) -> Tensor:
    return copied(values["dst"], values["src"], values["block_mapping"])


@formula(
    "sglang_profiler::memory_pool__set_kv_buffer_impl", "f32[8,2,16], f32[8,2,16], f32[64,2,16], f32[64,2,16], i64[8]"
)
def set_kv_buffer(values: Values) -> tuple[Tensor, ...]:
    return store_cache({**values, "reserved_skip_index": None})


def by_position(x: Tensor, values: Values, neox: bool, size: int | None = None) -> Tensor:
    """`embedded` with the table and the positions of a call; heads of the last dim where no size is given."""
    places, table = of(values, "positions", "pos_ids", "position_ids").flatten(), values["cos_sin_cache"]
    covers(places.numel() and bool(((places >= 0) & (places < len(table))).all()), "positions in the table")
    covers(values.get("rope_dim", 0) in (0, table.shape[-1]), "a table as wide as what is turned")
    return embedded(x, places, table, size or x.shape[-1], neox=neox)


HEADS = "(f32[8,4,16], f32[8,2,16], f32[8,4,16], f32[8,2,16], f32[32,16], i64[8]"
BUFFERS = "f32[8,2,16], f32[64,2,16], f32[64,2,16], i64[8]"


@formulas(f"""
    sgl_kernel::apply_rope_pos_ids_cos_sin_cache | {HEADS}, False, False, None, None, None, None)
    sglang::apply_rope_pos_ids_cos_sin_cache_with_kv_cache | {HEADS}, {BUFFERS}, False)
    sglang::apply_rope_pos_ids_cos_sin_cache_without_kv_cache | {HEADS}, False)
    sglang::apply_rope_pos_ids_cos_sin_cache_with_kv_cache | {HEADS}, {BUFFERS}, True)
""")
def rope_into(values: Values) -> tuple[Tensor, ...]:
    neox = not values.get("interleave")
    query, key = (by_position(values[name], values, neox) for name in ("q", "k"))
    if values.get("k_buffer") is None:
        return query, key
    return query, key, *stored_pair(key, values["v"], values["k_buffer"], values["v_buffer"], values["kv_cache_loc"])


def stored_pair(key: Tensor, value: Tensor, keys: Tensor, all_values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Caches [places, ..] with the keys and values of tokens."""
    covers(bool(((places >= 0) & (places < len(keys))).all()), "places in the cache")
    first, second = (
        written(cache, places, rows.reshape(len(rows), *cache.shape[1:]))
        for cache, rows in ((keys, key), (all_values, value))
    )
    return first, second


@formula("sglang::apply_rope_inplace", "(f32[8,4,16], f32[8,2,16], f32[32,16], i64[8], is_neox=True)")
def rope_inplace(values: Values) -> tuple[Tensor, ...]:
    return tuple(by_position(values[name], values, values["is_neox"]) for name in ("q", "k"))


@formula(
    "sglang::apply_rope_inplace_with_kvcache",
    "(f32[8,4,16], f32[8,2,16], f32[8,2,16], f32[64,2,16], f32[64,2,16], f32[32,16], i64[8], i64[8], is_neox=True)",
)
def rope_with_cache(values: Values) -> tuple[Tensor, ...]:
    query, key = rope_inplace(values)
    return query, key, *stored_pair(key, values["v"], values["k_cache"], values["v_cache"], values["out_loc"])


@formulas("""
    vllm::rope_forward_triton | (f32[8,4,16], f32[8,2,16], f32[8,8], f32[8,8], is_neox_style=False)
""")
@formula("vllm::rope_forward_triton", "(f32[8,4,16], f32[8,2,16], f32[8,8], f32[8,8])")
def rope_of_angles(values: Values) -> tuple[Tensor, ...]:
    cos, sin = (values[name].unsqueeze(1) for name in ("cos", "sin"))
    count = 2 * cos.shape[-1]
    covers(values.get("rope_dim", -1) in (-1, count) and cos.dim() == 3, "angles of all pairs")
    neox = values.get("is_neox_style", True)
    return tuple(
        torch.cat([turned(x[..., :count], cos, sin, neox=neox).to(x.dtype), x[..., count:]], -1)
        for x in (values["q"], values["k"])
    )


ANGLES = "(i64[8], f32[32,1,1,8], f32[32,1,1,8], f32[8,4,16]"


@formulas(f"""
    vllm::rocm_aiter_rotary_emb_with_key_forward_hip | {ANGLES}, f32[8,2,16], None, 0, False)
    vllm::rocm_aiter_rotary_emb_with_key_forward_triton | {ANGLES}, f32[8,2,16], 1, False)
    vllm::rocm_aiter_rotary_emb_without_key_forward_hip | {ANGLES}, None, 0, False)
    vllm::rocm_aiter_rotary_emb_with_key_forward_hip | {ANGLES}, f32[8,2,16], None, 1, False)
""")
def rocm_rotary(values: Values) -> tuple[Tensor, ...]:
    cos, sin = angles_of({**values, "freqs": None, "positions": values["positions"].flatten()})
    covers(not values.get("is_nope_first") and values["query"].dim() == 3, "angles of the front of heads")
    neox, count = values.get("rotate_style", 0) == 0, 2 * cos.shape[-1]
    return tuple(
        torch.cat([turned(x[..., :count], cos, sin, neox=neox).to(x.dtype), x[..., count:]], -1)
        for x in (values[name] for name in ("query", "key") if values.get(name) is not None)
    )


@formula("_C::batched_rotary_embedding", "(i64[8], f32[8,64], f32[8,32], 16, f32[64,16], True, 16, i64[8])")
def batched_rotary(values: Values) -> tuple[Tensor, ...]:
    moved = {**values, "positions": values["positions"].flatten() + values["cos_sin_cache_offsets"].flatten()}
    parts = [values[name] for name in ("query", "key") if values.get(name) is not None]
    return tuple(by_position(part, moved, values["is_neox"], values["head_size"]) for part in parts)


@formulas("""
    npu::npu_mrope | (i64[8], f32[8,64], f32[8,32], f32[32,16], 16)
    vllm::npu_rotary_embedding | (i64[8], f32[8,64], f32[8,32], f32[32,16], 16, 16, True)
    vllm::npu_rotary_embedding | (i64[8], f32[8,64], f32[8,32], f32[32,16], 16, 16, False)
""")
def npu_embedded(values: Values) -> tuple[Tensor, ...]:
    covers(not any(values.get("mrope_section") or ()) and values.get("offsets") is None, "positions of text")
    neox = values.get("is_neox_style", values.get("rotary_mode", "half") == "half")
    return tuple(by_position(values[name], values, neox, values["head_size"]) for name in ("query", "key"))


def normed_heads(packed: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of each head of [tokens, heads · size], in float32."""
    return rms(split(wide(packed), -1, (-1, len(weight))), weight, eps).flatten(-2)


def normed_and_turned(packed: Tensor, weights: tuple[Tensor, Tensor], values: Values, neox: bool) -> Tensor:
    """qkv [tokens, heads · size] with its query and key heads normed and turned by their position."""
    size = values["head_dim"]
    ends = [values["num_heads_q"] * size, (values["num_heads_q"] + values["num_heads_k"]) * size]
    covers(packed.dim() == 2 and ends[1] <= packed.shape[1], "heads that are there")
    query, key, rest = packed[:, : ends[0]], packed[:, ends[0] : ends[1]], packed[:, ends[1] :]
    parts = (
        by_position(normed_heads(part, weight, values["eps"]), values, neox, size).to(packed.dtype)
        for part, weight in zip((query, key), weights, strict=True)
    )
    return torch.cat([*parts, rest], -1)


@formula("_C::fused_qk_norm_rope", "(f32[8,128], 4, 2, 2, 16, 1e-6, f32[16], f32[16], f32[32,16], True, i64[8])")
def qk_norm_rope(values: Values) -> Tensor:
    return normed_and_turned(values["qkv"], (values["q_weight"], values["k_weight"]), values, values["is_neox"])


@formulas("""
    sgl_kernel::fused_qk_norm_rope
        | (f32[8,128], 4, 2, 2, 16, 1e-6, f32[16], f32[16], 10000.0, True, i64[8], 4.0, 1.0, 5.0, 1.25, 16)
    sglang::fused_qk_norm_rope_out
        | (f32[8,128], f32[16], f32[16], i64[8], 4, 2, 2, 16, 1e-6, 10000.0, True, 4.0, 1.0, 5.0, 1.25, 16)
""")
def qk_norm_yarn(values: Values) -> Tensor:
    """YaRN: angles of fast pairs as they are, of slow ones divided by the factor, mixed between low and high."""
    width, low, high = values.get("rotary_dim") or values["head_dim"], values["low"], values["high"]
    covers(high > low or values["factor"] == 1, "a span")
    places = values["position_ids"].flatten()
    covers(places.numel() and int(places.min()) >= 0 and int(places.max()) < 1 << 16, "positions of float32")
    speeds: list[float] = []
    for pair in range(width // 2):
        speed = values["base"] ** (-2 * pair / width)
        slow = 0.0 if values["factor"] == 1 else min(1.0, max(0.0, (pair - low) / (high - low)))
        speeds.append(speed * (1 - slow) + speed / values["factor"] * slow)
    angles = places.double().unsqueeze(1) * torch.tensor(speeds, dtype=torch.float64)
    table = torch.cat([angles.cos(), angles.sin()], -1).float() * values["attention_factor"]
    given = {**values, "cos_sin_cache": table, "position_ids": torch.arange(len(table))}
    return normed_and_turned(values["qkv"], (values["q_weight"], values["k_weight"]), given, values["is_neox"])


@formula(
    "sglang::fused_inplace_qknorm_rope",
    "(f32[8,4,16], f32[8,2,16], f32[16], f32[16], f32[32,16], i64[8], is_neox=True)",
)
def qknorm_rope(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("cache_has_full_width") and not values.get("round_norm_before_rope"), "the plain form")
    covers(values.get("head_dim", 0) in (0, len(values["q_weight"])), "weights of a head")
    results: list[Tensor] = []
    for name in ("q", "k"):
        x, weight = values[name], values[f"{name}_weight"]
        covers(x.shape[-1] == len(weight), "heads apart")
        normed = rms(wide(x), weight, epsilon(values))
        results.append(by_position(normed, values, values["is_neox"]).to(x.dtype))
    return tuple(results)


@formula(
    "vllm::qkv_rmsnorm_rope vllm::qkv_rmsnorm_rope_simt",
    "(f32[8,128], f32[32,16], i64[8], f32[16], f32[16], 64, 32, 16, 1e-6, f32[16], f32[16])",
)
def qkv_rmsnorm_rope(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("cos_sin_cache") is not None, "a table")
    x, ends = values["input"], (values["q_hidden_size"], values["q_hidden_size"] + values["kv_hidden_size"])
    results: list[Tensor] = []
    for name, part in (("q", x[:, : ends[0]]), ("k", x[:, ends[0] : ends[1]])):
        normed, bias = normed_heads(part, values[f"{name}_weight"], values["eps"]), values.get(f"{name}_bias")
        if bias is not None:
            normed = normed + wide(bias).repeat(normed.shape[-1] // len(bias))
        results.append(by_position(normed, values, True, values["head_dim"]).to(x.dtype))
    return *results, x[:, ends[1] :]


@formula(
    "npu::npu_kv_rmsnorm_rope_cache",
    "(f32[2,1,4,24], f32[16], f32[2,1,4,8], f32[2,1,4,8], i64[2,4], f32[2,1,8,8], f32[2,1,8,16], is_output_kv=True)",
)
def kv_rmsnorm_rope_cache(values: Values) -> tuple[Tensor, ...]:
    """The front of each row normed, the rest turned (as by `npu_interleave_rope`), both put into a batch's cache."""
    kv, index, rank = values["kv"], values["index"], len(values["gamma"])
    names = ("k_rope_scale", "c_kv_scale", "k_rope_offset", "c_kv_offset")
    covers(all(values.get(name) is None for name in names) and values.get("is_output_kv"), "the plain form")
    covers(values.get("cache_mode", "Norm") == "Norm" and index.dim() == 2, "a cache for each batch")
    latent = rms(kv[..., :rank], values["gamma"], epsilon(values, 1e-5))
    rotated = npu_interleave_rope({"x": kv[..., rank:], "cos": values["cos"], "sin": values["sin"]})
    caches: list[Tensor] = []
    for name, rows in (("k_cache", rotated), ("ckv_cache", latent)):
        batches = zip(values[name], index, rows, strict=True)
        caches.append(torch.stack([written(cache[0], places, part[0]).unsqueeze(0) for cache, places, part in batches]))
    return *caches, rotated, latent


@formula(
    "_C_cache_ops::concat_and_cache_mla_rope_fused",
    "(i64[8], f32[8,4,16], f32[8,16], f32[8,32], f32[32,16], True, i64[8], f32[4,8,48], 'auto', f32[1])",
)
def cache_mla_rope(values: Values) -> tuple[Tensor, ...]:
    query, key = (by_position(values[name], values, values["is_neox"]) for name in ("q_pe", "k_pe"))
    return query, key, cache_mla({**values, "k_pe": key})


@formula(
    "_C_cache_ops::cp_fused_concat_and_cache_mla",
    "(f32[16,16], f32[16,4], i64[8], f32[4,8,20], i64[8], 'auto', f32[1])",
)
def cache_some_mla(values: Values) -> Tensor:
    tokens = values["cp_local_token_select_indices"].long()
    covers(bool(((tokens >= 0) & (tokens < len(values["kv_c"]))).all()), "tokens that are there")
    return cache_mla({**values, "kv_c": values["kv_c"][tokens], "k_pe": values["k_pe"][tokens]})


@formula("_C_cache_ops::convert_fp8", "(u8[8,16], f32[8,16], 0.5, 'fp8')")
def convert_fp8(values: Values) -> Tensor:
    covers(values["kv_cache_dtype"] in ("auto", "fp8", "fp8_e4m3") and values["scale"] > 0, "float8 e4m3fn")
    if values["dst_cache"].dtype is torch.uint8:
        x = wide(values["src_cache"]) / values["scale"]
        return x.clamp(-FP8, FP8).to(torch.float8_e4m3fn).view(torch.uint8)
    return (values["src_cache"].view(torch.float8_e4m3fn).float() * values["scale"]).to(values["dst_cache"].dtype)


GATHERED = "(f32[4,8,20], f32[32,20], i32[2,2], i32[3], 2"


@formulas(f"""
    _C_cache_ops::gather_cache _C_cache_ops::cp_gather_cache | {GATHERED}, None)
    _C_cache_ops::gather_and_maybe_dequant_cache | {GATHERED}, 'auto', f32[1], None)
""")
def gather_cache(values: Values) -> Tensor:
    """Rows of sequences, one after another, from the blocks that the table names; other rows are left."""
    cache, result = values["src_cache"], values["dst"].clone()
    covers(values.get("seq_starts") is None and cache.dtype is result.dtype, "whole sequences in the same dtype")
    ends, size = numbers(values["cu_seq_lens"]), cache.shape[1]
    covers(len(ends) > values["batch_size"] and 0 <= ends[0] <= ends[values["batch_size"]] <= len(result), "rows")
    for sequence in range(values["batch_size"]):
        for place, row in enumerate(range(ends[sequence], ends[sequence + 1])):
            block = int(values["block_table"][sequence, place // size])
            covers(0 <= block < len(cache), "blocks that are there")
            result[row] = cache[block, place % size]
    return result
