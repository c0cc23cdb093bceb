"""Writes and copies of caches cost the rows and blocks that they move, not a scale or a whole cache."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device, lower, simulate_op
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls

TOKENS, WIDTH = 65_536, 576
LATENT = f"bf16[{TOKENS},512],bf16[{TOKENS},64]"


def written(call: str) -> ReplayOp:
    (op,) = plan_of_calls(over_sizes([call], []), allow_imports={}, device="cpu")[0].ops
    return op


def moved(call: str) -> float:
    """Return the bytes that the last kernel of the call reads, which it writes as well."""
    (*_, last) = lower(written(call)).kernels
    given, source = last.attrs.get("moved_bytes"), last.inputs[0]
    assert source is not None
    return float(given) if isinstance(given, int) else 2.0 * source.shape[0]  # bfloat16


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (f"_C_cache_ops::concat_and_cache_mla({LATENT},bf16[2000,64,576],i64[{TOKENS}],'auto',f32[1])", TOKENS),
        (f"aiter::concat_and_cache_mla({LATENT},bf16[2000,64,576],i64[{TOKENS}],'auto',f32[1])", TOKENS),
        (
            f"_C_cache_ops::concat_and_cache_mla_rope_fused(i64[{TOKENS}],bf16[{TOKENS},16,64],bf16[{TOKENS},64],"
            f"bf16[{TOKENS},512],bf16[8192,64],True,i64[{TOKENS}],bf16[2000,64,576],'auto',f32[1])",
            TOKENS,
        ),
        (
            f"_C_cache_ops::cp_fused_concat_and_cache_mla({LATENT},i64[8192],bf16[2000,64,576],i64[8192],'auto',f32[1])",
            8192,
        ),
        (
            f"npu::_npu_reshape_and_cache(bf16[{TOKENS},1,512],bf16[{TOKENS},1,64],bf16[2000,64,1,512],"
            f"bf16[2000,64,1,64],i32[{TOKENS}])",
            TOKENS,
        ),
        (
            "npu::npu_kv_rmsnorm_rope_cache(bf16[32,1,2048,576],bf16[512],bf16[32,1,2048,64],bf16[32,1,2048,64],"
            f"i64[{TOKENS}],bf16[2000,64,1,64],bf16[2000,64,1,512])",
            TOKENS,
        ),
    ],
)
def test_a_latent_cache_write_moves_each_token(call: str, tokens: int) -> None:
    assert moved(call) == tokens * WIDTH * 2
    predicted = simulate_op(written(call), load_device("910b3"))
    assert predicted.time_us is not None
    assert predicted.time_us > tokens * WIDTH * 2 / 1.6e6


@pytest.mark.parametrize(
    ("call", "blocks"),
    [
        ("_C_cache_ops::swap_blocks(bf16[2000,64,576],bf16[2000,64,576],i64[10,2])", 10),
        ("_C_cache_ops::swap_blocks(bf16[2000,64,576],bf16[2000,64,576],73728,i64[10,2])", 10),
        ("aiter::copy_blocks(bf16[2000,64,576],bf16[2000,64,576],i64[10,2])", 20),
        ("_C_cache_ops::copy_blocks([bf16[2000,64,576]],[bf16[2000,64,576]],i64[10,2])", 20),
        ("_C_cache_ops::copy_blocks_mla([bf16[2000,64,576],bf16[2000,64,576],bf16[2000,64,576]],i64[10,2])", 30),
    ],
)
def test_a_cache_copy_moves_the_listed_blocks(call: str, blocks: int) -> None:
    assert moved(call) == blocks * 64 * WIDTH * 2


def test_a_converted_cache_is_read_in_its_own_dtype() -> None:
    (cast,) = lower(written("_C_cache_ops::convert_fp8(u8[8192,4096],f32[8192,4096],0.5,'fp8')")).kernels
    dtypes = [tensor and tensor.dtype for tensor in (*cast.inputs, *cast.outputs)]
    assert (cast.type, dtypes) == ("Cast", ["float32", "uint8"])
