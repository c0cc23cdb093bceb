"""Work that no argument of a call tells: of experts by their launches, of attention by a server's batch."""

from __future__ import annotations

from typing import Any

import pytest

from opreplay.replay.ops.recorded.layers import Evidence, Grid, work_of_call
from opreplay.replay.ops.recorded.sizes import CallWork, work_of
from opreplay.traces.links.annotations import batch_context
from opreplay.traces.model import OpSignature

HALF = "c10::BFloat16"


def call(name: str, *arguments: Any) -> OpSignature:
    """A list is a bfloat16 tensor, (type, sizes) one of another type, all else a value."""
    dims: list[Any] = []
    types: list[str] = []
    concrete: list[str] = []
    for one in arguments:
        type_, sizes = one if isinstance(one, tuple) else (HALF, one)
        is_tensor = isinstance(sizes, list)
        dims.append(tuple(sizes) if is_tensor else ())
        types.append(type_ if is_tensor else "" if one is None else "Scalar")
        concrete.append("" if is_tensor or one is None else str(one))
    return OpSignature(name=name, dims=tuple(dims), types=tuple(types), concrete=tuple(concrete))


def tiles(rows: int, experts: int, tile: int) -> int:
    """The most tiles of rows that any routing needs: one for each expert, and as many as the other rows fill."""
    return min(rows, experts) + (rows - min(rows, experts)) // tile


def experts(up: str, up_grid: Grid | None, down: str, down_grid: Grid | None, top_k: int | None = None) -> Evidence:
    return Evidence(kernels=((up, up_grid), ("_finalize", None), (down, down_grid)), top_k=top_k)


OGS = "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1"
BMM = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512u2_s3_et64x8_m64x8x32"


def test_experts_are_as_wide_as_their_launches() -> None:
    """gpt-oss-20b: 8,192 tokens, 4 of 32 experts, 46 tiles of 128 columns, hidden states of 24 tiles."""
    high = tiles(4 * 8192, 32, 128)
    layer = call("vllm::moe_forward", [8192, 3072], [8192, 32], None, None)
    found = work_of_call(layer, experts(f"{OGS}_swiglu", (46 * high, 1, 1), OGS, (24 * high, 1, 1), 4))
    weights = 3072 * 5888 + 2944 * 3072
    assert found.flops == 2 * 4 * 8192 * weights
    assert found.bytes == 2 * 2 * 8192 * 3072 + 32 * weights * 4.25 / 8
    assert (found.dtype, found.why) == ("bfloat16", "")
    assert "2,944" in found.assumed


def test_grids_tell_the_experts_of_a_token_as_well() -> None:
    """gpt-oss-120b on a B200: 64 tokens, of which even routing reads 111 of 128 experts."""
    high = tiles(4 * 64, 128, 8)
    layer = call("vllm::moe_forward", [64, 3072], [64, 128], None)
    found = work_of_call(layer, experts(f"{BMM}_swiGlu", (48, high, 1), BMM, (24, high, 1)))
    weights = 3 * 3072 * 3072
    read = 128 * (1 - (1 - 4 / 128) ** 64)
    assert found.flops == 2 * 4 * 64 * weights
    assert found.bytes == pytest.approx(2 * 2 * 64 * 3072 + read * weights * 4.25 / 8)
    assert found.dtype == "float8_e4m3fn"
    assert "4 experts per token" in found.assumed
    assert "111 of 128 experts" in found.assumed


@pytest.mark.parametrize(
    ("evidence", "word"),
    [
        (Evidence(), "no argument"),
        (experts(f"{OGS}_swiglu", None, OGS, None, 4), "not recorded"),
        (experts(f"{OGS}_swiglu", (46 * 287, 1, 1), OGS, (20 * 287, 1, 1), 4), "no sizes"),
        (experts(f"{OGS}_swiglu", (304, 1, 1), OGS, (304, 1, 1), 4), "no sizes"),
        (experts(OGS, (46 * 287, 1, 1), OGS, (24 * 287, 1, 1), 4), "activation"),
    ],
)
def test_experts_that_no_launch_shows_have_a_reason(evidence: Evidence, word: str) -> None:
    found = work_of_call(call("vllm::moe_forward", [8192, 3072], [8192, 32], None), evidence)
    assert (found.flops, found.bytes) == (None, None)
    assert word in found.why


@pytest.mark.parametrize("packed", [False, True])
def test_experts_among_the_arguments_need_no_launch(packed: bool) -> None:
    """64 tokens choose 2 of 8 experts: all are read, up to one in 10 million."""
    weights: list[Any] = [[8, 2048, 512], [8, 512, 1024]]
    if packed:
        weights = [("unsigned char", [8, 2048, 256]), ("unsigned char", [8, 512, 512])]
    ids = ("int", [64, 2])
    found = work_of_call(call("vllm::fused_marlin_moe", [64, 512], *weights, ("float", [64, 2]), ids), Evidence())
    per_expert = 2048 * 512 + 512 * 1024
    assert found.flops == 2 * 64 * 2 * per_expert
    assert found.bytes == 2 * 2 * 64 * 512 + 8 * per_expert * (0.5 if packed else 2)


BATCH = batch_context("execute_112_context_1(sq100sk300sqsq10000sqsk30000)_generation_12(sq12sk6000sqsq12sqsk6000)")
PAIRS = 30000 - (10000 - 100) // 2 + 6000


@pytest.mark.parametrize("name", ["vllm::unified_attention_with_output", "sglang::unified_attention_with_output"])
def test_attention_over_a_batch(name: str) -> None:
    """A prompt's 100 tokens after 200, and 12 sequences that see 6,000 tokens; 16 rows are padding."""
    layer = call(name, [128, 32, 64], [128, 8, 64], [128, 8, 64], [128, 32, 64], None, None, None)
    found = work_of_call(layer, Evidence(batch=BATCH, shortest_us=10, longest_us=12))
    assert found.flops == 4 * 32 * 64 * PAIRS
    assert found.bytes == 2 * (112 * 32 * 128 + 6300 * 8 * 128)
    varies = work_of_call(layer, Evidence(batch=BATCH, shortest_us=10, longest_us=22))
    assert (varies.flops, varies.bytes) == (None, None)
    assert "window" in varies.why
    assert "annotation" in work_of_call(layer, Evidence()).why


def flash(sequences: int, window: int = -1) -> OpSignature:
    """FlashAttention 2 over a paged cache."""
    ints, cache = "int", [900, 16, 8, 64]
    return call(
        "_vllm_fa2_C::varlen_fwd", [112, 32, 64], cache, cache, [112, 32, 64], (ints, [sequences + 1]),
        (ints, [sequences + 1]), (ints, [sequences]), None, (ints, [sequences, 32]), None, 100, 512, 0.0, 0.125, False,
        True, window, -1, 0.0, False, 0, None,
    )  # fmt: skip


def test_attention_by_the_names_of_its_arguments() -> None:
    found = work_of_call(flash(13), Evidence(batch=BATCH))
    assert found.flops == 4 * 32 * 64 * PAIRS
    assert found.bytes == 2 * (112 * 32 * 128 + 6300 * 8 * 128)
    assert found.assumed == ""
    decoding = work_of_call(flash(12), Evidence(batch=BATCH))
    assert decoding.flops == 4 * 32 * 64 * 6000, "the prompts are another call's"
    assert "13 sequences" in work_of_call(flash(7), Evidence(batch=BATCH)).why
    assert "window" in work_of_call(flash(13, 128), Evidence(batch=BATCH)).why


def sized(name: str, *arguments: Any) -> CallWork:
    return work_of(call(name, *arguments))


def test_bytes_of_library_ops_are_those_that_they_read_and_write() -> None:
    """A result among the arguments is written once, what is changed in place is read and written."""
    rows, wide = [1000, 64], [1000, 128]
    assert sized("sgl_kernel::silu_and_mul", rows, wide).bytes == 2 * 1000 * (64 + 128)
    assert sized("aiter::add_rmsnorm", rows, rows, rows, rows, [64], 1e-6).bytes == 2 * (4 * 1000 * 64 + 64)
    assert sized("_C::fused_add_rms_norm", rows, rows, [64], 1e-6).bytes == 2 * (4 * 1000 * 64 + 64)
    assert sized("aten::copy_", rows, rows, False).bytes == 2 * 2 * 1000 * 64


def test_a_rotary_embedding_reads_a_row_a_token() -> None:
    """116.9 % of the peak was shown where the whole table counted."""
    found = sized("_C::rotary_embedding", ("long int", [100]), [100, 4096], [100, 512], 64, [131072, 64], True)
    assert found.bytes == 100 * 8 + 100 * 64 * 2 + 2 * 2 * 100 * (4096 + 512)
    assert found.flops == 3 * 100 * (4096 + 512)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sgl_kernel::fp8_scaled_mm", [("c10::Float8_e4m3fn", [64, 512]), ("c10::Float8_e4m3fn", [512, 256]),
                                       ("float", [64, 1]), ("float", [1, 256]), 15, None]),
        ("_C::cutlass_scaled_mm", [[64, 256], ("c10::Float8_e4m3fn", [64, 512]), ("c10::Float8_e4m3fn", [512, 256]),
                                   ("float", [64, 1]), ("float", [1, 256]), None]),
    ],
)  # fmt: skip
def test_products_of_libraries(name: str, arguments: list[Any]) -> None:
    assert sized(name, *arguments).flops == 2 * 64 * 512 * 256
