"""KV-cache writes and reads, FBGEMM's sparse ops, tables and 8-bit floats, SGLang's stores and wrappers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opreplay.replay.ops.tables.reference_sparse import permute_jagged

Op = Callable[[str], Any]
FP8 = torch.float8_e4m3fn


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("heads_first", [False, True])
def test_cache_writes_reach_their_slots_whatever_the_strides(op: Op, heads_first: bool) -> None:
    key, value = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    slots = torch.tensor([7, -1, 0, 11])  # shorter than key: its length rules
    shape = (3, 2, 4, 8) if heads_first else (3, 4, 2, 8)
    caches = [torch.zeros(shape) for _ in range(2)]
    views = [cache.transpose(1, 2) if heads_first else cache for cache in caches]
    one = torch.ones(1)
    op("_C_cache_ops::reshape_and_cache_flash")(key, value, *views, slots, "auto", one, one)
    wanted = torch.zeros(12, 2, 8)
    for token, slot in ((0, 7), (2, 0), (3, 11)):
        wanted[slot] = key[token]
    assert torch.equal(views[0].reshape(12, 2, 8), wanted)
    packed_k, packed_v = torch.zeros(3, 2, 2, 4, 4), torch.zeros(3, 2, 8, 4)
    op("_C_cache_ops::reshape_and_cache")(key, value, packed_k, packed_v, slots, "auto", one, one)
    assert torch.equal(packed_k.permute(0, 3, 1, 2, 4).reshape(12, 2, 8), wanted)
    assert torch.equal(packed_v.permute(0, 3, 1, 2), views[1])


def test_a_byte_cache_holds_scaled_fp8(op: Op) -> None:
    key, cache = torch.randn(3, 2, 8), torch.zeros(2, 4, 2, 8, dtype=torch.uint8)
    scale = torch.tensor([0.5, 0.25])
    op("_C_cache_ops::reshape_and_cache_flash")(key, key, cache, cache.clone(), torch.arange(3), "", scale, scale)
    stored = cache.view(FP8).reshape(8, 2, 8)[:3].float() * scale.reshape(1, 2, 1)
    assert ((stored - key).abs() <= key.abs() / 16 + 1e-3).all()
    wide = torch.empty(2, 4, 2, 8)
    op("_C_cache_ops::convert_fp8")(wide, cache, 2.0, "fp8")
    close(wide, cache.view(FP8).float() * 2)


def test_mla_rows_are_written_and_gathered_back(op: Op) -> None:
    latent, rope, cache = torch.randn(6, 8), torch.randn(6, 4), torch.zeros(5, 2, 12)
    table = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    slots = torch.tensor([8, 9, 2, 4, 5, 0])
    op("_C_cache_ops::concat_and_cache_mla")(latent, rope, cache, slots, "auto", torch.ones(1))
    out, rows = torch.empty(6, 12), torch.cat((latent, rope), 1)
    op("_C_cache_ops::gather_cache")(cache, out, table, torch.tensor([0, 3, 6], dtype=torch.int32), 2, None)
    assert torch.equal(out, rows)
    with pytest.raises(ValueError, match="do not fit"):
        op("_C_cache_ops::concat_and_cache_mla")(latent, rope, torch.zeros(5, 2, 656), slots, "", torch.ones(1))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.sampled_from([None, 0, 5, 40]))
def test_jagged_permute_survives_lengths_that_disagree(seed: int, total: int | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(-(2**31), 2**31, (4, 3), generator=generator, dtype=torch.int64)
    found = permute_jagged(torch.tensor([9, -4, 1, 2]), lengths, torch.arange(20), torch.rand(20), total)
    assert found[1].numel() == (total if total is not None else found[1].numel()) <= 80


def test_cumulative_sums_and_ranges(op: Op) -> None:
    x = torch.tensor([3, 0, 2], dtype=torch.int32)
    assert op("fbgemm::asynchronous_complete_cumsum")(x).tolist() == [0, 3, 3, 5]
    assert op("fbgemm::asynchronous_exclusive_cumsum")(x).tolist() == [0, 3, 3]
    assert op("fbgemm::asynchronous_inclusive_cumsum")(x).dtype == torch.int32
    assert op("fbgemm::offsets_range")(torch.tensor([0, 3, 3]), 5).tolist() == [0, 1, 2, 0, 1]
    assert op("fb::offsets_range")(torch.tensor([0, 3, 3, 5]), torch.zeros(5)).tolist() == [0, 1, 2, 0, 1]
    assert op("fb::lengths_range_w_truncation_size")(x, None, 2).tolist() == [0, 1, 0, 1]


def test_pooled_embeddings_permute_and_regroup(op: Op) -> None:
    pooled, offsets = torch.randn(3, 6), torch.tensor([0, 1, 3, 6])
    order = torch.tensor([2, 0, 1])
    found = op("fbgemm::permute_pooled_embs_auto_grad")(pooled, offsets, order, offsets, order)
    assert torch.equal(found, torch.cat((pooled[:, 3:], pooled[:, :1], pooled[:, 1:3]), 1))
    flat = op("fbgemm::recat_embedding_grad_output_mixed_D_batch")(
        pooled, torch.tensor([2, 4]), torch.tensor([0, 2, 6])
    )
    assert torch.equal(flat, torch.cat((pooled[:, :2].reshape(-1), pooled[:, 2:].reshape(-1))))


def test_bounds_check_rewrites_bad_indices(op: Op) -> None:
    rows, indices = torch.tensor([4, 2]), torch.tensor([3, 4, -1, 1, 2])
    offsets, warning = torch.tensor([0, 2, 3, 4, 9]), torch.zeros(1, dtype=torch.int64)
    op("fbgemm::bounds_check_indices")(rows, indices, offsets, 1, warning, None)
    assert indices.tolist() == [3, 0, -1, 1, 0]
    assert offsets.tolist() == [0, 2, 3, 4, 5]
    assert warning.item() == 3


def test_buckets_follow_the_blocks_of_each_table(op: Op) -> None:
    lengths = torch.tensor([2, 1, 0, 2], dtype=torch.int32)  # two tables, batch of two
    indices = torch.tensor([0, 7, 3, 9, 1], dtype=torch.int32)
    weights = torch.arange(5).float()
    found = op("fbgemm::block_bucketize_sparse_features")(
        lengths, indices, True, True, torch.tensor([4, 5], dtype=torch.int32), 2, weights
    )
    # Rank 0: table 0 ids below 4, table 1 ids below 5; the rest goes to rank 1, numbered from its own start.
    assert found[0].tolist() == [1, 1, 0, 1, 1, 0, 0, 1]
    assert found[1].tolist() == [0, 3, 1, 3, 4]
    assert found[2].tolist() == [0, 2, 4, 1, 3]
    assert found[3].tolist() == [0, 0, 1, 1, 0]
    assert found[4].tolist() == [0, 3, 1, 4, 2]
    with pytest.raises(ValueError, match="my_size"):
        op("fbgemm::block_bucketize_sparse_features")(lengths, indices, False, False, indices, 0, None)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_table_lookups(op: Op, mode: int, weighted: bool, dtype: torch.dtype) -> None:
    rows, dims, batch = [5, 3], [4, 8], 3
    tables = [torch.randn(r, d).to(dtype) for r, d in zip(rows, dims, strict=True)]
    flat = torch.cat([table.flatten() for table in tables])
    lengths = torch.tensor([2, 0, 3, 1, 1, 2])
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    indices = torch.cat((torch.randint(0, 5, (5,)), torch.randint(0, 3, (4,))))
    scale = torch.rand(9) if weighted else None
    wanted = torch.zeros(batch, 12, dtype=torch.float64)
    for t in range(2):
        for b in range(batch):
            bag = slice(offsets[t * batch + b], offsets[t * batch + b + 1])
            picked = tables[t][indices[bag]].double()
            if scale is not None:
                picked = picked * scale[bag].double().unsqueeze(1)
            total = picked.sum(0) / (max(picked.shape[0], 1) if mode == 1 else 1)
            wanted[b, t * 4 : t * 4 + dims[t]] = total
    layout = (torch.tensor([0, 20]), torch.tensor([0, 4, 12], dtype=torch.int32))
    hashes = torch.tensor([0, 5, 8])
    found = op("fbgemm::dense_embedding_codegen_lookup_function")(
        flat, *layout, 12, 8, hashes, 3, indices, offsets, mode, scale, None, 0
    )
    close(found, wanted)
    empty, kinds = torch.empty(0, dtype=dtype), torch.zeros(2, dtype=torch.int32)
    found = op("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function")(
        torch.empty(0),
        flat,
        empty,
        empty.reshape(0, 0),
        kinds,
        *layout,
        12,
        8,
        hashes,
        3,
        indices,
        offsets,
        mode,
        scale,
        None,
        kinds[:0],
        False,
        1.0,
        False,
        torch.zeros(8),
        empty.float(),
        kinds,
        layout[0],
        1e-8,
        0.1,
        0.0,
        0,
        0,
    )
    close(found, wanted)
    unpooled = op("fbgemm::dense_embedding_codegen_lookup_function")(
        flat[:20], layout[0][:1], torch.tensor([0, 4]), 4, 4, hashes[:2], 3, indices[:5], offsets[:4], 2, None, None, 0
    )
    close(unpooled, tables[0][indices[:5]])


def test_lookups_survive_metadata_of_zeros(op: Op) -> None:
    zeros = torch.zeros(3, dtype=torch.int64)
    found = op("fbgemm::dense_embedding_codegen_lookup_function")(
        torch.randn(28), zeros[:2], zeros, 12, 8, zeros, 3, zeros, torch.zeros(7, dtype=torch.int64), 0, None, None, 0
    )
    assert found.shape == (3, 12)
    assert not found.any()


def test_eight_bit_floats_round_trip(op: Op) -> None:
    x = torch.randn(4, 10)
    for ebits, bias, top, digits in ((4, 15, 0.9375, 4), (5, 31, 0.875, 3)):
        small = (x / x.abs().max() * top).clamp(-top, top)
        back = op("fbgemm::HFP8QuantizedToFloat")(
            op("fbgemm::FloatToHFP8Quantized")(small, ebits, bias, top), ebits, bias
        )
        assert ((back - small).abs() <= small.abs() / 2**digits + 1e-4).all()
    rows = op("fbgemm::FloatToFP8RowwiseQuantized")(x, True)
    assert rows.shape == (4, 12 + 8)
    back = op("fbgemm::FP8RowwiseQuantizedToFloat")(rows, True)
    assert back.shape == (4, 12)
    assert ((back[:, :10] - x).abs() <= x.abs() / 16 + 1e-3).all()
    with pytest.raises(ValueError, match="exponent bits"):
        op("fbgemm::FloatToHFP8Quantized")(x, 3, 7, 1.0)


def test_all_codes_of_fbgemm_are_finite(op: Op) -> None:
    codes = torch.tensor([0x7F, 0xFF, 0x7E, 0x01], dtype=torch.uint8)
    assert op("fbgemm::HFP8QuantizedToFloat")(codes, 4, 15).tolist() == [1.875, -1.875, 1.75, 2.0**-17]
    assert op("fbgemm::HFP8QuantizedToFloat")(codes, 5, 31).tolist() == [1.75, -1.75, 1.5, 2.0**-32]


def test_sparse_labels(op: Op) -> None:
    lengths, ids = torch.tensor([2, 0, 1], dtype=torch.int32), torch.tensor([1, 3, 0])
    dense = op("fb::sparse_label_to_dense")(lengths, ids, torch.tensor([5.0, 6.0, 7.0]), 4)
    assert dense.tolist() == [[0, 5, 0, 6], [0, 0, 0, 0], [7, 0, 0, 0]]
    assert torch.equal(op("fb::sparse_label_to_bool")(lengths, ids, 4), dense > 0)


def test_npu_mla_cache_write(op: Op) -> None:
    kv, gamma = torch.randn(2, 1, 3, 8 + 4), torch.rand(8)
    angles = torch.rand(2, 1, 3, 2).repeat(1, 1, 1, 2)
    k_cache, latent_cache = torch.zeros(4, 4, 1, 4), torch.zeros(4, 4, 1, 8)
    slots = torch.tensor([3, 0, 9, -1, 5, 15])
    found = op("npu::npu_kv_rmsnorm_rope_cache")(
        kv, gamma, angles.cos(), angles.sin(), slots, k_cache, latent_cache, is_output_kv=True
    )
    assert found[0] is k_cache
    latent = kv[..., :8].double()
    wanted = latent / (latent.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gamma
    close(found[3], wanted)
    pairs = torch.view_as_complex(kv[..., 8:].double().reshape(2, 1, 3, 2, 2))
    turned = pairs * torch.polar(torch.ones(2, 1, 3, 2).double(), angles[..., :2].double())
    close(found[2], torch.cat((turned.real, turned.imag), -1))
    rows = found[2].reshape(6, 4)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            assert torch.equal(k_cache.reshape(16, 4)[slot], rows[token])


def mla_cache_write(op: Op, index: torch.Tensor, **mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, k_cache [2, 1, 5, 4] or pages of it) of a write of two batches of one token."""
    kv, k_cache, latents = torch.randn(2, 1, 1, 8 + 4), torch.zeros(2, 1, 5, 4), torch.zeros(2, 1, 5, 8)
    tables = torch.ones(2, 1, 1, 4), torch.zeros(2, 1, 1, 4)
    if mode:
        k_cache, latents = k_cache.reshape(2, 5, 1, 4), latents.reshape(2, 5, 1, 8)
    found = op("npu::npu_kv_rmsnorm_rope_cache")(
        kv, torch.rand(8), *tables, index, k_cache, latents, is_output_kv=True, **mode
    )
    return found[2].reshape(2, 4), k_cache.reshape(2, 5, 4)


def test_npu_mla_cache_write_has_places_in_each_batch_by_default(op: Op) -> None:
    rows, cache = mla_cache_write(op, torch.tensor([[3], [1]]))
    assert torch.equal(cache[0, 3], rows[0])
    assert torch.equal(cache[1, 1], rows[1])
    assert int(cache.any(-1).sum()) == 2
    rows, cache = mla_cache_write(op, torch.tensor([[-1], [4]]))
    assert torch.equal(cache[1, 4], rows[1])
    assert int(cache.any(-1).sum()) == 1


@pytest.mark.parametrize("mode", ["PA", "PA_BNSD"])
def test_npu_mla_cache_write_has_slots_of_pages(op: Op, mode: str) -> None:
    rows, cache = mla_cache_write(op, torch.tensor([3, 6]), cache_mode=mode)
    assert torch.equal(cache[0, 3], rows[0])
    assert torch.equal(cache[1, 1], rows[1])


@pytest.mark.parametrize("mode", ["PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"])
def test_npu_mla_cache_write_refuses_other_modes(op: Op, mode: str) -> None:
    with pytest.raises(ValueError, match=mode):
        mla_cache_write(op, torch.tensor([3, 6]), cache_mode=mode)


@pytest.mark.parametrize(("name", "base"), [("merge_state", 2.0), ("merge_state_v2", math.e)])
def test_partial_attentions_are_joined_to_the_base_of_their_logarithms(op: Op, name: str, base: float) -> None:
    a, b = torch.full((1, 1, 2), 3.0), torch.full((1, 1, 2), 9.0)
    logs = [torch.tensor([[math.log(weight, base)]]) for weight in (1.0, 2.0)]
    out, total = torch.empty_like(a), torch.empty(1, 1)
    op(f"sgl_kernel::{name}")(a, logs[0], b, logs[1], out, total)
    close(out, torch.full((1, 1, 2), 7.0))
    close(total, torch.tensor([[math.log(3.0, base)]]))
