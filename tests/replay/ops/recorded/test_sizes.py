"""Operations and bytes of the ops that serving spends its time in, and that no recorded op exceeds its device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from opreplay.replay.ops.recorded.roofline import roofline
from opreplay.replay.ops.recorded.sizes import CallWork, work_of
from opreplay.traces import read_trace
from opreplay.traces.model import OpSignature, Trace
from opreplay.traces.samples import SAMPLES, sample_path
from opreplay.traces.times.breakdown import breakdown, classes_of_launches
from opreplay.traces.times.kernel_classes import CLASSES, class_of_op, class_of_work

HALF = "c10::BFloat16"


def work(name: str, *arguments: Any) -> CallWork:
    """Of a call: a list is a bfloat16 tensor, (type, sizes) one of another type, all else a value."""
    dims: list[Any] = []
    types: list[str] = []
    concrete: list[str] = []
    for one in arguments:
        type_, sizes = one if isinstance(one, tuple) else (HALF, one)
        is_tensor = isinstance(sizes, list)
        dims.append(tuple(sizes) if is_tensor else ())
        types.append(type_ if is_tensor else "" if one is None else "Scalar")
        concrete.append("" if is_tensor or one is None else str(one))
    signature = OpSignature(name=name, dims=tuple(dims), types=tuple(types), concrete=tuple(concrete))
    return work_of(signature)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_equal_sequences(causal: bool) -> None:
    """16 sequences of 559 tokens, 16 heads of 64: 20.5 GFLOP, half where a token looks back only."""
    pairs = 16 * 16 * 559 * 559
    flops, bytes_ = 4.0 * pairs * 64 / (2 if causal else 1), 4.0 * 2 * 16 * 16 * 559 * 64
    heads_first, heads_last = [16, 16, 559, 64], [16, 559, 16, 64]
    found = [
        work("aten::_scaled_dot_product_flash_attention", *[heads_first] * 3, 0.0, causal, False),
        work("aten::_scaled_dot_product_efficient_attention", *[heads_first] * 3, None, True, 0.0, causal),
        work("aten::_flash_attention_forward", *[heads_last] * 3, None, None, 559, 559, 0.0, causal, False),
        work("aten::_efficient_attention_forward", *[heads_last] * 3, *[None] * 3, 559, 559, 0.0, int(causal), True),
    ]
    assert [(one.flops, one.bytes) for one in found] == [(flops, bytes_)] * 4


F32, INT8 = "float", "signed char"


@pytest.mark.parametrize(
    ("name", "arguments", "flops", "bytes_"),
    [
        ("aten::add", [(F32, [64, 1]), (F32, [1, 128]), 1], 64 * 128, 4 * (64 + 128 + 64 * 128)),
        ("aten::mul", [[64, 128], (F32, [64, 1])], 64 * 128, 2 * 64 * 128 + 4 * 64 + 4 * 64 * 128),
        ("aten::mul_", [[64, 128], ("double", [])], 64 * 128, 4 * 64 * 128 + 8),
        ("aten::mul", [(F32, [64, 128]), ("long int", [64, 128])], 64 * 128, (4 + 8 + 4) * 64 * 128),
        ("aten::mul", [("long int", [64, 128]), 0.5], 64 * 128, (8 + 4) * 64 * 128),
        ("aten::masked_fill", [("long int", [64, 128]), ("bool", [64, 128]), 0.5], 64 * 128, 17 * 64 * 128),
        ("aten::add", [[64, 128], ("c10::Half", [64, 128]), 1], 64 * 128, (2 + 2 + 4) * 64 * 128),
        ("aten::div", [("long int", [64, 128]), ("long int", [64, 128])], 64 * 128, (8 + 8 + 4) * 64 * 128),
        ("aten::div", [("long int", [64, 128]), ("long int", [64, 128]), "floor"], 64 * 128, 24 * 64 * 128),
        ("aten::abs", [("c10::complex<float>", [64, 128])], 64 * 128, (8 + 4) * 64 * 128),
        ("aten::__and__", [("bool", [64, 1]), ("bool", [1, 128])], 64 * 128, 64 + 128 + 64 * 128),
        ("aten::cumsum", [("bool", [64, 128]), 1, None], 0, (1 + 8) * 64 * 128),
        # With the buffer for the result.
        ("aten::mul", [(F32, [64, 128]), ("double", []), (F32, [64, 128])], 64 * 128, 2 * 4 * 64 * 128 + 8),
        ("aten::eq", [(F32, [64, 128]), (F32, [64, 128]), ("bool", [64, 128])], 64 * 128, 9 * 64 * 128),
        ("aten::mm", [[64, 32], [32, 128], [64, 128]], 2 * 32 * 64 * 128, 2 * (64 * 32 + 32 * 128 + 64 * 128)),
        ("aten::nll_loss_forward", [[64, 128], ("long int", [64]), None, 0, -100], 64, 64 * (2 + 8 + 2)),
        ("aten::gt", [(F32, [64, 1]), (F32, [1, 128])], 64 * 128, 4 * (64 + 128) + 64 * 128),
        ("aten::where", [("bool", [64]), (F32, []), (F32, [])], 0, 64 + 8 + 4 * 64),
        ("aten::cos", [(F32, [64])], 64, 8 * 64),
        ("aten::nan_to_num", [(F32, [64]), None, None, None, (F32, [64])], 64, 8 * 64),
        ("aten::linalg_vector_norm", [(F32, [64]), 2, None, False, None], 64, 4 * 64 + 4),
        ("aten::_softmax", [[8, 64], 1, False], 4 * 512, 4 * 512),
        ("aten::_softmax", [[8, 64], 1, True], 4 * 512, 6 * 512),
        ("aten::_int_mm", [(INT8, [32, 64]), (INT8, [64, 16])], 2 * 32 * 64 * 16, 64 * 48 + 4 * 32 * 16),
        ("aten::quantize_per_tensor", [(F32, [64]), 0.1, 0, 13], 64, 5 * 64),
        ("aten::nll_loss_forward", [(F32, [8, 64]), ("long int", [8]), None, 1, -100], 8, 8 * 12),
        (
            "aten::cudnn_convolution_transpose",
            [[2, 8, 5, 6], [8, 3, 3, 4], "[1, 0]", "[1, 0]", "[2, 3]", "[1, 2]", 2],
            2 * 2 * 8 * 5 * 6 * 3 * 3 * 4,
            2 * (2 * 8 * 5 * 6 + 8 * 3 * 3 * 4 + 2 * 6 * (4 * 2 - 2 + 2 + 2) * (5 * 3 + 2 * 3 + 1)),
        ),
    ],
)
def test_a_result_counts_with_its_own_size(name: str, arguments: list[Any], flops: float, bytes_: float) -> None:
    found = work(name, *arguments)
    assert (found.flops, found.bytes) == (flops, bytes_)


@pytest.mark.parametrize(("reduction", "bytes_"), [(0, 12 * 4096), (1, 8 * 4096 + 4), (2, 8 * 4096 + 4), (None, None)])
@pytest.mark.parametrize(
    ("name", "between"),
    [
        ("mse_loss", []),
        ("smooth_l1_loss", []),
        ("binary_cross_entropy", [None]),
        ("binary_cross_entropy_with_logits", [None, None]),
    ],
)
def test_a_loss_writes_one_element_unless_it_is_not_reduced(
    name: str, between: list[None], reduction: int | None, bytes_: int | None
) -> None:
    found = work(f"aten::{name}", (F32, [64, 64]), (F32, [64, 64]), *between, reduction)
    assert (found.flops, found.bytes) == (4096, bytes_)


@pytest.mark.parametrize(
    "arguments",
    [
        ("quantized::linear_dynamic", (F32, [32, 256]), None, True),
        ("aten::upsample_nearest2d", (F32, [8, 8, 12, 12]), None, 2.0, 2.0),
    ],
)
def test_a_result_of_unknown_size_leaves_the_bytes_unknown(arguments: tuple[Any, ...]) -> None:
    """The weights of a quantized product are packed in an object whose sizes no trace has."""
    found = work(*arguments)
    assert (found.flops, found.bytes) == (None, None)
    assert found.why


@pytest.mark.parametrize(("name", "is_known"), [("aten::addmm", False), ("mkldnn::_linear_pointwise", True)])
def test_a_sparse_tensor_stores_an_unknown_part(name: str, is_known: bool) -> None:
    """A tensor without strides among tensors with strides is sparse; those of mkldnn store all elements in blocks."""
    shapes, strides = ((50, 32), (50, 40), (40, 32)), ((32, 1), (), (32, 1))
    if is_known:
        shapes, strides = ((50, 40), (32, 40)), ((40, 1), ())
    found = work_of(OpSignature(name=name, dims=shapes, types=(F32,) * len(shapes), strides=strides))
    assert (found.flops, found.bytes is not None) == (2 * 50 * 40 * 32 if is_known else None, is_known)
    assert bool(found.why) != is_known


def test_packed_sequences_tell_where_all_are_as_long() -> None:
    def flash(tokens: int, sequences: int, longest: int) -> CallWork:
        starts = ("int", [sequences + 1])
        return work(
            "aten::_flash_attention_forward",
            *[[tokens, 8, 64]] * 3, starts, starts, longest, longest, 0.0, False, False,
        )  # fmt: skip

    assert flash(400, 4, 100).flops == 4 * 8 * 64 * 4 * 100 * 100
    assert flash(300, 4, 100).flops is None, "nobody knows which are shorter"
    assert flash(300, 4, 100).bytes == 4 * 2 * 300 * 8 * 64, "yet all of them are read"


def test_a_cache_is_read_by_its_pages() -> None:
    """15 sequences of 1,024 new tokens over a cache for 835,874, of which 15,616 slots are listed."""
    ints = "int"
    rest = [1024, 1024, 0.0, 0.088, 0.0, False, True, -1, -1]
    caches = [[835874, 8, 128]] * 2
    starts = [(ints, [16]), (ints, [16])]
    found = work("aiter::mha_batch_prefill", [15360, 32, 128], *caches, *starts, (ints, [15616]), *rest)
    assert found.flops == 4 * 32 * 128 * 15 * 1024 * 1024 / 2
    assert found.bytes == 2 * (2 * 15360 * 32 * 128 + 2 * 15360 * 8 * 128)
    rest[:2] = [1, 5000]
    decode = work("aiter::mha_batch_prefill", [15, 32, 128], *caches, *starts, (ints, [15616]), *rest)
    assert decode.flops is None
    assert decode.bytes == 2 * (2 * 15 * 32 * 128 + 2 * 15616 * 8 * 128)
    one = work("_C::paged_attention_v1", *[[1, 32, 128]] * 2, [900, 8, 16, 16, 8], [900, 8, 128, 16], 8, 0.1,
               (ints, [1, 64]), (ints, [1]), 16, 1000)  # fmt: skip
    assert (one.flops, one.bytes) == (4 * 32 * 128 * 1000, 2 * (2 * 32 * 128 + 2 * 1000 * 8 * 128))


def test_what_is_written_to_a_cache_is_no_cache() -> None:
    token, cache = [8192, 8, 64], [224304, 32, 8, 64]
    found = work("_C_cache_ops::reshape_and_cache_flash", token, token, cache, cache, ("long int", [8000]))
    assert found.bytes == 2 * 2 * 2 * 8000 * 8 * 64, "two tensors of 8,000 tokens, read and written"
    narrow = ("c10::Float8_e4m3fn", cache)
    found = work("_C_cache_ops::reshape_and_cache_flash", token, token, narrow, narrow, ("long int", [8192]))
    assert found.bytes == 2 * (2 + 1) * 8192 * 8 * 64


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vllm::moe_forward", [[8192, 3072], [8192, 32], None]),
        ("vllm::unified_attention_with_output", [[8192, 64, 64], [8192, 8, 64], [8192, 8, 64], [8192, 64, 64], None]),
        ("fbgemm::split_embedding_codegen_lookup_adagrad_function", [[1000000]]),
    ],
)
def test_work_that_is_in_no_argument_is_not_told(name: str, arguments: list[Any]) -> None:
    found = work(name, *arguments)
    assert (found.flops, found.bytes) == (None, None)


def test_experts_among_the_arguments_are_multiplied() -> None:
    found = work("vllm::inplace_fused_experts", [64, 512], [8, 2048, 512], [8, 512, 1024], ("float", [64, 2]))
    assert found.flops == 2 * 64 * 2 * (2048 * 512 + 512 * 1024)
    assert found.bytes is None, "which experts are read, the scores decide"


def test_tensors_are_joined_by_reading_and_writing_them() -> None:
    signature = OpSignature(name="aten::cat", dims=(((4, 8), (2, 8)), ()), types=("TensorList", "Scalar"))
    assert work_of(signature).bytes is None, "of what type they are is not recorded"
    assert work_of(signature, 2).bytes == 2 * 2 * 48
    typed = OpSignature(
        name="aten::cat", dims=(((4, 8), (2, 8)), ()), types=("", ""), list_types=(("float", "float"), ())
    )
    assert work_of(typed).bytes == 2 * 4 * 48


@pytest.mark.parametrize(
    ("op", "kernel", "kind"),
    [
        ("_C::fused_add_rms_norm", "void vllm::_typeConvert<c10::BFloat16> fused_add_rms_norm_kernel", "normalization"),
        ("", "std::enable_if<vllm::_typeConvert<c10::BFloat16>> vllm::fused_add_rms_norm_kernel", "normalization"),
        ("vllm::moe_forward", "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x64x512_s4_et128x64", "GEMM"),
        ("vllm::moe_forward", "void tensorrt_llm::kernels::quantize_kernel<flashinfer::X>", "elementwise"),
        ("vllm::moe_forward", "moe::dev::routing::routingRenormalize::routingIndicesKernel", "indexing and sorting"),
        ("vllm::moe_forward", "void moe::dev::finalize::finalizeKernel<cutlass::bfloat16_t>", "reduction"),
        ("_C_cache_ops::reshape_and_cache_flash", "vllm::reshape_and_cache_flash_kernel", "indexing and sorting"),
        ("vllm::unified_attention_with_output", "reduce_segments", "attention"),
        ("aten::addmm", "Memset (Device)", "GEMM"),
        ("aten::convolution_backward", "volta_sgemm_64x64_nt", "convolution"),
        ("fbgemm::asynchronous_complete_cumsum", "x", "indexing and sorting"),
        ("_C::rotary_embedding", "x", "elementwise"),
        ("torch::autograd::CppNode<Foo>", "void cutlass::Kernel<x>", "GEMM"),
        ("Torch-Compiled Region: conv", "triton_poi_fused_add_0", "Triton"),
    ],
)
def test_the_owner_tells_the_class_and_else_the_kernel(op: str, kernel: str, kind: str) -> None:
    assert class_of_work(op, kernel) == kind


@pytest.mark.parametrize("name", list(SAMPLES))
def test_no_op_of_a_sample_exceeds_its_device(name: str) -> None:
    assert_holds(read_trace(sample_path(name)))


@pytest.mark.slow
def test_no_op_of_a_public_trace_exceeds_its_device(shared_traces: Path) -> None:
    rated = [assert_holds(read_trace(path)) for path in sorted(shared_traces.glob("*.json.gz"))]
    assert sum(rated) > 100


def assert_holds(trace: Trace) -> int:
    """No row of ops is above a peak, and ops, kernels and classes are summed up alike; returns how many have a rate."""
    rated = roofline(trace).rows
    assert [(row.name, row.peak_share) for row in rated if (row.peak_share or 0.0) > 1.05 and not row.assumed] == []
    rows = breakdown(trace, "op").rows
    if not len(trace.kernels):
        return 0
    owned = trace.kernels.owner >= 0
    classes = classes_of_launches(trace)
    by_op: dict[str, set[str]] = {}
    for signature, kind in set(
        zip(trace.ops.signature[trace.kernels.owner[owned]].tolist(), classes[owned].tolist(), strict=True)
    ):
        by_op.setdefault(trace.signatures[signature].name, set()).add(CLASSES[kind])
    for row in rows:
        if row.name in by_op:
            assert row.kind in by_op[row.name], row.name
            assert class_of_op(row.name) == "other" or by_op[row.name] == {row.kind}, row.name
    of_class = {row.name: row.time_us for row in breakdown(trace, "category").rows}
    assert sum(of_class.values()) == pytest.approx(float(trace.kernels.dur_ns.sum()) / 1e3)
    return sum(row.peak_share is not None for row in rated)


def with_values(name: str, shapes: list[tuple[int, ...]], values: tuple[object, ...]) -> CallWork:
    """Of a call with bfloat16 tensors, then values as a profile records them."""
    count = len(values)
    return work_of(
        OpSignature(
            name=name,
            dims=(*shapes, *((),) * count),
            types=(*(HALF,) * len(shapes), *("" if value is None else "Scalar" for value in values)),
            concrete=(*("",) * len(shapes), *("" if value is None else str(value) for value in values)),
        )
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("convolution", lambda groups: (None, [2, 3], [1, 0], [1, 2], True, [1, 0], groups)),
        ("cudnn_convolution_transpose", lambda groups: ([1, 0], [1, 0], [2, 3], [1, 2], groups, False, False, True)),
        ("miopen_convolution_transpose", lambda groups: (None, [1, 0], [1, 0], [2, 3], [1, 2], groups, False, False)),
        ("conv_transpose2d", lambda groups: (None, [2, 3], [1, 0], [1, 0], groups, [1, 2])),
    ],
)
def test_a_transposed_convolution_writes_its_larger_result(name: str, values: Any, groups: int) -> None:
    data, weight = torch.empty(4, 32, 56, 50, device="meta"), torch.empty(32, 16, 4, 3, device="meta")
    result = torch.nn.functional.conv_transpose2d(data, weight, None, (2, 3), (1, 0), (1, 0), groups, (1, 2))
    found = with_values(f"aten::{name}", [(4, 32, 56, 50), (32, 16, 4, 3)], values(groups))
    assert found.bytes == 2 * (data.numel() + weight.numel() + result.numel())


@pytest.mark.parametrize(
    ("call", "shapes", "values"),
    [
        ("upsample_bilinear2d", [(4, 32, 56, 56)], ([112, 100], False, None, None)),
        ("upsample_nearest1d", [(4, 32, 56)], ([112], None)),
        ("_upsample_nearest_exact3d", [(1, 3, 8, 8, 8)], ([16, 9, 8], None, None, None)),
        ("upsample_bicubic2d_backward", [(4, 3, 9, 9)], ([9, 9], [4, 3, 5, 6], True, None, None)),
        ("im2col", [(4, 32, 56, 50)], ([3, 5], [1, 2], [1, 0], [2, 1])),
        *((name, [(32, 100)], ()) for name in ("tril", "cos", "reciprocal", "log1p", "square")),
        ("flip", [(32, 100)], ([0],)),
        ("roll", [(32, 100)], ([1], [0])),
        ("maximum", [(32, 100), (32, 100)], ()),
    ],
)
def test_results_of_other_sizes_and_of_pointwise_ops_are_written(
    call: str, shapes: list[tuple[int, ...]], values: tuple[object, ...]
) -> None:
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    result = getattr(torch.ops.aten, call)(*tensors, *values)
    found = with_values(f"aten::{call}", shapes, values)
    assert found.bytes == 2 * (sum(one.numel() for one in tensors) + result.numel())
    assert found.flops is not None


@pytest.mark.parametrize(
    ("biases", "mask", "written"), [("", [True, True, False], 0), ("[32]", [True, True, True], 32)]
)
def test_gradients_of_a_convolution_include_that_of_its_bias(biases: str, mask: list[bool], written: int) -> None:
    gradient, data, weight = (4, 32, 8, 8), (4, 16, 8, 8), (32, 16, 3, 3)
    values = (biases, "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", str(mask))
    found = work_of(
        OpSignature(
            name="aten::convolution_backward",
            dims=(gradient, data, weight, *[()] * len(values)),
            types=(F32, F32, F32, *["" if value == "" else "Scalar" for value in values]),
            concrete=("", "", "", *values),
        )
    )
    sizes = [torch.Size(shape).numel() for shape in (gradient, data, weight)]
    assert found.bytes == 4 * (sum(sizes) + sizes[1] + sizes[2] + written)


def test_bytes_are_unknown_where_the_result_is() -> None:
    """A view moves nothing, and of other ops the arguments alone would be too little."""
    for name in ("as_strided", "view", "result_type", "empty_like", "_fft_r2c", "upsample_bilinear2d"):
        assert with_values(f"aten::{name}", [(64, 1024)], ()).bytes is None
    assert with_values("aten::isneginf", [(64, 1024)], ()).bytes == 3 * 64 * 1024


@pytest.mark.parametrize(("name", "arguments"), [("aten::clone", (None,)), ("aten::_softmax", (-1, False))])
def test_results_of_expanded_tensors_have_all_elements(name: str, arguments: tuple[Any, ...]) -> None:
    signature = OpSignature(
        name=name,
        dims=((64, 128), *[()] * len(arguments)),
        types=(F32, *["Scalar"] * len(arguments)),
        strides=((0, 1), *[()] * len(arguments)),
        concrete=("", *["" if one is None else str(one) for one in arguments]),
    )
    assert work_of(signature).bytes == 4 * (128 + 64 * 128)


@pytest.mark.parametrize(
    ("dims", "strides", "elements"),
    [
        ((4, 101, 400), (16400, 160, 1), 4 * 16400),  # frames of stft
        ((4, 80, 11, 16), (8080, 101, 8, 1), 4 * 80 * 96),
        ((64, 128), (1, 64), 64 * 128),
        ((64, 128), (512, 2), 64 * 128),
        ((64, 1, 128), (0, 0, 1), 128),
        ((0, 128), (128, 1), 0),
    ],
)
def test_elements_of_overlapping_windows_are_read_once(
    dims: tuple[int, ...], strides: tuple[int, ...], elements: int
) -> None:
    signature = OpSignature(name="aten::mul_", dims=(dims,), types=(F32,), strides=(strides,), concrete=("",))
    assert work_of(signature).bytes == 4 * (elements + torch.Size(dims).numel())


INT64 = "long int"


@pytest.mark.parametrize("rows", [2000, 100000])
@pytest.mark.parametrize(
    ("name", "before", "indices", "index_bytes"),
    [
        ("aten::embedding", (), [10000], 8 * 10000),
        ("aten::index_select", (0,), [10000], 8 * 10000),
        ("aten::gather", (0,), [10000, 32], 8 * 10000 * 32),
    ],
)
def test_no_more_of_a_table_is_read_than_it_has(
    name: str, before: tuple[int, ...], indices: list[int], index_bytes: int, rows: int
) -> None:
    found = work(name, (F32, [rows, 32]), *before, (INT64, indices))
    assert found.bytes == 4 * 32 * (min(rows, 10000) + 10000) + index_bytes
