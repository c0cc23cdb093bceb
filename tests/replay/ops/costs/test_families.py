"""Lowering rules by family: sizes of kernels, counts of launches, and what a rule notes as assumed."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import msgspec
import pytest

from opreplay.replay.ascend import load_device, lower, simulate_op
from opreplay.replay.ascend.cost.cube import gemm_of
from opreplay.replay.ascend.lowering import lowers_like
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ir.model import Reason, Recorded, RecordedKernel, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta
from tests.factories import RECORDED
from tests.factories import meta as any_meta
from tests.factories import op_of as op

DEVICE = load_device("910b3")


meta = partial(any_meta, dtype="bfloat16")


def macs(kernels: tuple[KernelCall, ...]) -> int:
    total = 0
    for one in kernels:
        gemm = gemm_of(one) if "atmul" in one.type.lower() else None
        if gemm is not None:
            total += one.count * gemm.batch * gemm.m * gemm.n * gemm.k
    return total


def test_recurrent_layers_do_all_steps_directions_and_layers() -> None:
    steps, batch, width, hidden = 20, 4, 32, 64

    def layer(gates: int, wide: int) -> int:
        return steps * batch * gates * hidden * (wide + hidden)

    lstm = op(
        "aten::lstm",
        input=meta(steps, batch, width),
        hx=[meta(1, batch, hidden)] * 2,
        num_layers=1,
        bidirectional=False,
        batch_first=False,
    )
    assert macs(lower(lstm).kernels) == layer(4, width)
    two = op(
        "aten::gru",
        input=meta(batch, steps, width),
        hx=meta(4, batch, hidden),
        num_layers=2,
        bidirectional=True,
        batch_first=True,
    )
    assert macs(lower(two).kernels) == 2 * (layer(3, width) + layer(3, 2 * hidden))
    cell = op(
        "aten::lstm_cell",
        input=meta(batch, width),
        hx=[meta(batch, hidden)] * 2,
        w_ih=meta(4 * hidden, width),
        w_hh=meta(4 * hidden, hidden),
    )
    assert macs(lower(cell).kernels) == batch * 4 * hidden * (width + hidden)
    cudnn = op(
        "aten::_cudnn_rnn",
        input=meta(steps, batch, width),
        hx=meta(1, batch, hidden),
        mode=2,
        hidden_size=hidden,
        num_layers=1,
        batch_first=False,
    )
    assert macs(lower(cudnn).kernels) == layer(4, width)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (
            op(
                "aten::_weight_int4pack_mm",
                self=meta(8, 256),
                mat2=meta(64, 4, 32, 4, dtype="int32"),
                outputs=(meta(8, 512),),
            ),
            8 * 256 * 512,
        ),
        (
            op("aten::_weight_int8pack_mm", self=meta(8, 256), mat2=meta(512, 256, dtype="int8"), scales=meta(512)),
            8 * 256 * 512,
        ),
        (op("aten::_grouped_mm", self=meta(64, 32), mat2=meta(4, 32, 16), offs=meta(4, dtype="int32")), 64 * 32 * 16),
        (op("aten::_grouped_mm", self=meta(32, 64), mat2=meta(64, 16), offs=meta(4, dtype="int32")), 64 * 32 * 16),
        (op("aten::_grouped_mm", self=meta(4, 8, 32), mat2=meta(4, 32, 16)), 4 * 8 * 32 * 16),
        (
            op("aten::einsum", equation=None, tensors=[meta(6, 8, 32), meta(6, 32, 16)], outputs=(meta(6, 8, 16),)),
            6 * 8 * 32 * 16,
        ),
        (
            op("aten::einsum", equation="bij,bjk,kl->bil", tensors=[meta(6, 8, 32), meta(6, 32, 16), meta(16, 3)]),
            6 * 8 * 32 * 16 + 6 * 8 * 16 * 3,
        ),
        (op("aten::tensordot", self=meta(8, 4, 5), other=meta(4, 5, 16), outputs=(meta(8, 16),)), 8 * 20 * 16),
        (op("aten::linalg_multi_dot", tensors=[meta(8, 16), meta(16, 32), meta(32, 4)]), 8 * 16 * 32 + 8 * 32 * 4),
        (op("aten::matmul_backward", grad=meta(8, 32), self=meta(8, 16), other=meta(16, 32)), 2 * 8 * 16 * 32),
        (op("aten::_euclidean_dist", x1=meta(8, 16), x2=meta(32, 16)), 8 * 16 * 32),
        (op("aten::conv_tbc", self=meta(10, 2, 8), weight=meta(3, 8, 16), bias=meta(16)), 3 * 20 * 8 * 16),
        (
            op("aten::_sparse_addmm", self=meta(8, 4), mat1=meta(8, 16), mat2=meta(16, 4), outputs=(meta(8, 4),)),
            8 * 16 * 4,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ReplayOp) else "",
)
def test_products_multiply_what_they_should(one: ReplayOp, expected: int) -> None:
    found = lower(one)
    assert found.known
    assert macs(found.kernels) == expected


def written(one: ReplayOp, kind: str) -> int:
    return sum(prod(s.shape) for k in lower(one).kernels if k.type == kind for s in k.outputs if s is not None)


def types(one: ReplayOp) -> list[str]:
    return [kernel.type for kernel in lower(one).kernels]


def test_pooling_of_one_two_and_three_dimensions() -> None:
    line = op("aten::max_pool1d", self=meta(2, 16, 64), kernel_size=(4,), stride=(), padding=(0,))
    assert lower(line).kernels[1].outputs[0].shape == (2, 1, 1, 16, 16)  # type: ignore[union-attr]
    cube = op("aten::avg_pool3d", self=meta(2, 3, 8, 8, 8), kernel_size=(2, 2, 2), stride=(2, 2, 2), padding=(0,))
    assert written(cube, "AvgPoolV2") == 2 * 3 * 4 * 4 * 4
    everything = op("aten::adaptive_avg_pool3d", self=meta(2, 3, 8, 8, 8), output_size=(1, 1, 1))
    assert types(everything) == ["ReduceMean"]
    assert types(
        op("aten::max_unpool2d", self=meta(1, 2, 4, 4), indices=meta(1, 2, 4, 4, dtype="int64"), output_size=(8, 8))
    ) == ["ZerosLike", "MaxUnpool2D"]


def test_overlapping_windows_visit_positions_more_than_once() -> None:
    def visited(*sizes: int, out: tuple[int, ...]) -> object:
        one = op(f"aten::adaptive_avg_pool{len(out)}d", self=meta(2, 3, *sizes), output_size=out)
        return lower(one).kernels[1].attrs["visited"]

    assert visited(8, 8, out=(4, 2)) == 2 * 8 * 8
    assert visited(8, 7, out=(4, 2)) == 2 * 8 * 8
    assert visited(5, 8, 7, out=(2, 4, 2)) == 2 * 6 * 8 * 8


@pytest.mark.parametrize(
    ("sizes", "strides", "swapped"),
    [
        ((8, 4), (1, 8), (4, 8)),
        ((2, 8, 4), (32, 1, 8), (4, 8)),
        ((2, 4, 2, 4), (32, 2, 1, 8), (4, 8)),
        ((4, 8, 2), (1, 4, 32), None),
        ((4, 8, 2), (2, 8, 1), None),
    ],
)
def test_matrices_that_are_only_turned_are_told_from_dimensions_backwards(
    sizes: tuple[int, ...], strides: tuple[int, ...], swapped: tuple[int, int] | None
) -> None:
    (turned,) = lower(op("aten::contiguous", self=meta(*sizes, strides=strides))).kernels
    assert turned.attrs.get("swapped") == swapped


def test_halves_of_odd_rows_are_cut_before_swiglu_where_they_lie_one_after_the_other() -> None:
    assert types(op("npu::npu_swiglu", self=meta(16, 30), dim=0)) == ["Slice", "SwiGlu"]
    assert types(op("npu::npu_swiglu", self=meta(16, 64), dim=0)) == ["SwiGlu"]
    assert types(op("npu::npu_swiglu", self=meta(16, 30), dim=-1)) == ["SwiGlu"]


@pytest.mark.parametrize(
    ("values", "lines", "cols", "steps"),
    [
        ({"group_list": (1024, 1024, 4096)}, 24, 3072 * 128, 3072),
        ({"group_list": (1024, 1024, 2048), "group_list_type": 1}, 24, 2048 * 128, 2048),
        ({"row_block_size": 128}, 8, 4096 * 128, 32),
    ],
)
def test_columns_of_blocks_of_the_largest_group(values: dict[str, Any], lines: int, cols: int, steps: int) -> None:
    call: dict[str, Any] = {"x": meta(4096, 1024), "col_block_size": 128, "row_block_size": 1, **values}
    (quantised,) = lower(op("npu::npu_grouped_dynamic_block_quant", **call)).kernels
    assert {name: quantised.attrs[name] for name in ("lines", "cols", "steps")} == {
        "lines": lines, "cols": cols, "steps": steps
    }  # fmt: skip


def test_cross_entropy_clears_weighs_and_turns_as_it_is_asked_to() -> None:
    flat, labels = meta(8, 16), meta(8, dtype="int64")
    plain = ["LogSoftmaxV2", "OnesLike", "MemSet", "NLLLoss"]
    assert types(op("aten::cross_entropy_loss", self=flat, target=labels)) == plain
    assert types(op("aten::cross_entropy_loss", self=flat, target=labels, reduction=0)) == [*plain[:2], plain[3]]
    assert "OnesLike" not in types(op("aten::cross_entropy_loss", self=flat, target=labels, weight=meta(16)))
    images = op("aten::cross_entropy_loss", self=meta(2, 16, 4, 4), target=meta(2, 4, 4, dtype="int64"))
    assert types(images) == [*plain[:2], "Transpose", *plain[2:]]


def test_cross_entropy_of_probabilities_reads_them_and_smoothed_labels_add_all_scores() -> None:
    scores, labels = meta(8, 16), meta(8, dtype="int64")
    by_probabilities = op("aten::cross_entropy_loss", self=scores, target=scores)
    assert types(by_probabilities) == ["LogSoftmaxV2", "Mul", "ReduceSum"]
    smooth = types(op("aten::cross_entropy_loss", self=scores, target=labels, label_smoothing=0.1))
    assert smooth == [*types(op("aten::cross_entropy_loss", self=scores, target=labels)), "ReduceSum"]
    weighted = op("aten::cross_entropy_loss", self=scores, target=scores, weight=meta(16), label_smoothing=0.1)
    assert types(weighted) == ["LogSoftmaxV2", "Muls", "Adds", "Mul", "Mul", "ReduceSum"]


def test_rows_shorter_than_a_block_are_no_runs_of_their_own() -> None:
    table, index = meta(4096, 4096), meta(4096, dtype="int64")
    assert types(op("aten::index_select", self=table, index=index, dim=0)) == ["GatherV2"]
    inner = op("aten::index_select", self=table, index=index, dim=1)
    single = op("aten::gather", self=table, dim=1, index=meta(4096, 4096, dtype="int64"))
    device = load_device("910b2")
    assert simulate_op(inner, device).time_us == pytest.approx(simulate_op(single, device).time_us, rel=0.1)


def test_added_rows_of_an_inner_dimension_are_turned() -> None:
    table, index = meta(512, 256), meta(256, dtype="int64")
    added = ["InplaceIndexAdd"]
    assert types(op("aten::index_add_", self=table, dim=0, index=index, source=meta(256, 256)))[-1:] == added
    turned = types(op("aten::index_add", self=table, dim=1, index=index, source=table))
    assert turned == ["Transpose", "Transpose", *added, "Transpose"]


def test_what_is_no_kernel_of_a_pass_over_its_elements() -> None:
    table = meta(512, 256)
    assert types(op("aten::masked_scatter", self=table, mask=meta(512, 256, dtype="bool"), source=table))[-1] == "AiCpu"
    targets = meta(32, 20, dtype="int64")
    slow, slower = (op("aten::_ctc_loss", log_probs=meta(t, 32, 50), targets=targets) for t in (100, 200))
    device = load_device("910b2")
    assert simulate_op(slower, device).time_us > 1.5 * simulate_op(slow, device).time_us > 500
    (exponential,) = lower(op("aten::linalg_matrix_exp", self=meta(64, 64))).kernels
    assert (exponential.type, exponential.count) == ("MatMulV3", 9)


def test_contractions_of_squares_have_no_batch() -> None:
    square = meta(256, 256)
    (named,) = lower(op("aten::tensordot", self=square, other=square, dims_self=(1,), dims_other=(0,))).kernels
    assert named.type == "MatMulV3"
    assert [s.shape for s in (*named.inputs, *named.outputs) if s is not None] == [(256, 256)] * 3
    cubes = op("aten::tensordot", self=meta(8, 4, 16), other=meta(16, 4, 32), dims_self=(2, 1), dims_other=(0, 1))
    assert [s.shape for s in lower(cubes).kernels[0].inputs if s is not None] == [(8, 64), (64, 32)]
    unnamed = msgspec.structs.replace(op("aten::einsum", a=square, b=square), outputs=(square,))
    assert [k.type for k in lower(unnamed).kernels] == ["MatMulV3"]
    layer = lower(op("aten::bilinear", input1=meta(32, 8), input2=meta(32, 4), weight=meta(16, 8, 4)))
    assert [k.type for k in layer.kernels] == ["MatMulV3", "Mul", "ReduceSum"]
    assert [s.shape for s in layer.kernels[0].inputs if s is not None] == [(32, 8), (8, 64)]


def test_distances_of_all_pairs_take_as_long_as_their_differences() -> None:
    (written, _, added) = lower(op("aten::cdist", x1=meta(64, 16), x2=meta(32, 16), p=1.0)).kernels
    assert [s.shape for s in (*written.outputs, *added.inputs) if s is not None] == [(1, 64, 32, 16)] * 3


def test_a_mask_of_each_head_is_read_and_an_expanded_one_once() -> None:
    q, size = meta(2, 4, 64, 32), 2 * 4 * 64 * 32 * 2

    def moved(mask: TensorMeta) -> object:
        attention = op("aten::scaled_dot_product_attention", query=q, key=q, value=q, attn_mask=mask)
        return lower(attention).kernels[-1].attrs["moved_bytes"]

    assert moved(meta(2, 4, 64, 64)) == 4 * size + 2 * 4 * 64 * 64 * 2
    expanded = TensorMeta(shape=(2, 4, 64, 64), dtype="bfloat16", strides=(0, 0, 64, 1))
    assert moved(expanded) == 4 * size + 64 * 64 * 2


def test_scores_of_few_classes_are_read_together() -> None:
    def reads(classes: int) -> object:
        one = op("aten::nll_loss_forward", self=meta(1024, classes), target=meta(1024, dtype="int64"))
        return lower(one).kernels[-1].attrs["lines"]

    assert reads(2) == 1024 * 4 // 128
    assert reads(1000) == 1024


def test_what_a_quantisation_writes_is_of_the_dtype_that_it_is_asked_for() -> None:
    x = meta(64, 128)
    (eight,), (four,) = (
        lower(op("npu::npu_add_rms_norm_dynamic_mx_quant", x1=x, x2=x, gamma=meta(128), dst_type=code)).kernels
        for code in (36, 40)
    )
    assert [written.dtype for written in eight.outputs if written] == ["bfloat16", "float8_e4m3fn", "uint8"]
    assert [written.shape for written in four.outputs if written] == [(64, 128), (64, 64), (256,)]


@pytest.mark.parametrize("device", ["910b3", "910b2", "910c"])
def test_the_nearest_element_is_moved_and_no_resampling_counts_as_measured(device: str) -> None:
    """An element that is repeated costs no arithmetic: pooling's was charged, twelve times what memory takes."""
    images, profile = any_meta(8, 512, 32, 32, dtype="float32"), load_device(device)
    nearest = simulate_op(op("aten::upsample_nearest2d", self=images, output_size=(64, 64)), profile)
    linear = simulate_op(op("aten::upsample_bilinear2d", self=images, output_size=(64, 64)), profile)
    moved = 4 * 8 * 512 * (32 * 32 + 64 * 64)
    assert 0.6e6 < moved / nearest.time_us < 1.8e6, "bytes a microsecond, as memory and L2 move them"
    assert 4 * nearest.time_us < linear.time_us
    assert nearest.confidence == linear.confidence == "uncalibrated"
    assert any(
        "expansion" in note for note in lower(op("aten::upsample_nearest2d", self=images, output_size=(64, 64))).notes
    )


def test_resampling_writes_the_size_asked_for() -> None:
    up = op("aten::upsample_bilinear2d", self=meta(1, 3, 8, 8), output_size=(16, 24), align_corners=False)
    assert written(up, "UpsampleBilinear2d") == 3 * 16 * 24
    by_scale = op("aten::upsample_nearest2d", input=meta(1, 3, 8, 8), output_size=None, scale_factors=(2.0, 3.0))
    assert written(by_scale, "UpsampleNearest") == 3 * 16 * 24
    down = op(
        "aten::upsample_nearest2d_backward",
        grad_output=meta(1, 3, 16, 16),
        output_size=(16, 16),
        input_size=(1, 3, 8, 8),
    )
    assert written(down, "UpsampleBilinear2dGrad") == 3 * 64
    grid = op("aten::grid_sampler_2d", input=meta(2, 4, 8, 8), grid=meta(2, 5, 6, 2), interpolation_mode=0)
    assert written(grid, "GridSampler2D") == 2 * 4 * 5 * 6


def test_sorting_along_another_dimension_turns_the_tensor() -> None:
    assert types(op("aten::sort", self=meta(8, 16), dim=-1)) == ["Sort"]
    assert types(op("aten::sort", self=meta(8, 16), dim=0)) == ["Transpose", "Sort", "Transpose", "Transpose"]
    top = op("aten::topk", self=meta(64, 16), k=4, dim=0, outputs=(meta(4, 16), meta(4, 16, dtype="int64")))
    assert written(top, "TopKV2") == 2 * 64
    assert types(op("aten::msort", self=meta(8, 16)))[0] == "Transpose"


def test_only_writes_that_make_a_new_tensor_copy_the_old_one() -> None:
    args: dict[str, Any] = {"dim": 0, "index": meta(4, dtype="int64"), "source": meta(4, 16)}
    assert types(op("aten::index_add_", self=meta(64, 16), **args)) == ["InplaceIndexAdd"]
    assert types(op("aten::index_add", self=meta(64, 16), **args)) == ["TensorMove", "InplaceIndexAdd"]


def test_single_elements_cost_the_same_under_either_name_and_more_where_the_row_outgrows_a_core() -> None:
    def indices(name: str, size: int, n: int) -> object:
        args: dict[str, Any] = {"self": meta(size), "dim": 0, "index": meta(n, dtype="int64")}
        if "add" in name:
            args["source"] = meta(n)
        last = lower(op(name, **args)).kernels[-1]
        return last.attrs["indices"]

    for size in (1024, 1 << 20):
        assert indices("aten::index_add_", size, 4096) == indices("aten::scatter_add_", size, 4096)
    assert indices("aten::scatter_add_", 1024, 4096) == 65
    assert indices("aten::gather", 1024, 4096) == indices("aten::scatter_", 1024, 4096) == 2, "moved by their bytes"
    for name in ("aten::gather", "aten::scatter_add_", "aten::scatter_"):
        assert indices(name, 1 << 20, 1 << 20) == round((1 << 20) * (1 - 96 / 2048)), "a core holds 96 KiB of 2 MiB"
        assert indices(name, 1 << 20, 4096) == 1024, "a core holds 96 KiB of the 128 in which they lie"


def test_single_elements_of_another_dimension_than_the_last_are_turned_before_and_after() -> None:
    def kinds(dim: int, *shape: int) -> list[str]:
        return types(op("aten::gather", self=meta(*shape), dim=dim, index=meta(*shape, dtype="int32")))

    assert kinds(0, 64, 32) == ["Transpose", "Transpose", "GatherElements", "Transpose"]
    assert kinds(-1, 64, 32) == kinds(0, 64) == ["GatherElements"]
    kernels = lower(op("aten::gather", self=meta(2, 64, 32), dim=1, index=meta(2, 16, 32, dtype="int64"))).kernels
    assert [spec and spec.shape for call in kernels for spec in call.outputs] == [
        (2, 32, 64), (2, 32, 16), (2, 16, 32), (2, 16, 32),
    ]  # fmt: skip


def test_a_mask_covers_its_dimensions_and_selects_half_where_nothing_tells() -> None:
    mask = meta(64, 32, dtype="bool")
    alone = lower(op("aten::index", self=meta(64, 32, 8), indices=[mask]))
    assert [one.type for one in alone.kernels] == ["NonZero", "Index"]
    assert alone.kernels[1].outputs[0].shape == (1024, 8)
    assert alone.kernels[1].attrs["moved_bytes"] == 1024 * 8 * 2
    assert any("half of them assumed" in note for note in alone.notes)
    told = lower(op("aten::index", self=meta(64, 32, 8), indices=[mask], outputs=(meta(100, 8),)))
    assert told.kernels[1].attrs["moved_bytes"] == 100 * 8 * 2
    assert not told.notes
    behind = lower(op("aten::index", self=meta(8, 64, 32), indices=[None, mask], outputs=(meta(8, 100),)))
    assert behind.kernels[1].attrs["moved_bytes"] == 8 * 100 * 2
    put = lower(op("aten::index_put_", self=meta(64, 32, 8), indices=[mask], values=meta(100, 8)))
    assert [one.type for one in put.kernels] == ["NonZero", "IndexPutV2"]
    assert put.kernels[1].attrs["moved_bytes"] == 100 * 8 * 2


def test_the_tensor_of_an_out_variant_is_not_read() -> None:
    plain = op("aten::mul", self=meta(64, 64), other=meta(64, 64))
    out = ReplayArg(name="out", type="Tensor", tensors=(meta(64, 64),), keyword_only=True, mutated=True)
    with_out = ReplayOp(id="0" * 12, name="aten::mul", count=1, recorded=RECORDED, args=(*plain.args, out))
    assert lower(with_out).kernels == lower(plain).kernels


def test_losses_keep_or_reduce_their_elements() -> None:
    both: dict[str, Any] = {"self": meta(8, 16), "target": meta(8, 16)}
    assert types(op("aten::mse_loss", reduction=1, **both)) == ["Sub", "ReduceMean"]
    assert types(op("aten::mse_loss", reduction=0, **both)) == ["Sub"]
    images = op("aten::nll_loss2d_forward", self=meta(2, 10, 4, 4), target=meta(2, 4, 4, dtype="int64"))
    assert lower(images).kernels[-1].inputs[0].shape == (32, 1)  # type: ignore[union-attr]


def test_decompositions_take_time_by_their_arithmetic() -> None:
    small, large = (
        simulate_op(op("aten::linalg_inv", A=meta(n, n, dtype="float32")), DEVICE).time_us for n in (64, 2048)
    )
    assert small < 500
    assert large > 1e6 * 2 * 2048**3 / 1e10


def test_three_dimensional_convolutions_have_their_own_kernels() -> None:
    both: dict[str, Any] = {"input": meta(1, 3, 8, 16, 16), "weight": meta(8, 3, 3, 3, 3)}
    one = op("aten::convolution", bias=None, stride=(1, 1, 1), padding=(1, 1, 1), dilation=(1, 1, 1), **both)
    assert types(one) == ["TransData", "TransData", "Conv3D", "TransData"]
    back = op("aten::convolution_backward", grad_output=meta(1, 8, 8, 16, 16), output_mask=(True, True, False), **both)
    assert [kind for kind in types(back) if kind != "TransData"] == ["Conv3DBackpropInput", "Conv3DBackpropFilter"]


def test_tables_of_many_embeddings_have_their_recorded_widths() -> None:
    lookup = op(
        "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function",
        dev_weights=meta(10**6, dtype="float16"),
        weights_offsets=meta(4, dtype="int64"),
        total_D=256,
        indices=meta(1000, dtype="int64"),
        offsets=meta(4 * 32 + 1, dtype="int64"),
    )
    (kernel,) = lower(lookup).kernels
    assert kernel.outputs[0].shape == (32, 256)  # type: ignore[union-attr]
    assert kernel.attrs["moved_bytes"] == 1000 * 64 * 2


def test_generated_kernels_move_each_tensor_once() -> None:
    one = op("triton_poi_fused_mul_0", arg0=meta(64, 64), arg1=meta(64, 64))
    (kernel,) = lower(one).kernels
    assert (len(kernel.inputs), len(kernel.outputs)) == (1, 1)
    assert simulate_op(one, DEVICE).confidence == "uncalibrated"


NAMES = {
    "c10d::allreduce_": "hcom_allReduce_",
    "_c10d_functional::all_reduce": "hcom_allReduce_",
    "_c10d_functional::all_gather_into_tensor": "hcom_allGather_",
    "_c10d_functional::wait_tensor": None,
    "_c10d_functional::reduce_scatter_tensor_coalesced": "hcom_reduceScatter_",
    "_c10d_functional_autograd::all_to_all_single": "hcom_alltoallv_",
    "nccl:all_reduce": "hcom_allReduce_",
    "nccl:_all_gather_base": "hcom_allGather_",
    "gloo:broadcast": "hcom_broadcast_",
    "hccl:reduce": "hcom_reduce_",
    "hcom_allReduce__123_4_1": "hcom_allReduce_",
    "HcclAllGather": "hcom_allGather_",
    "vllm::all_reduce": "hcom_allReduce_",
    "vllm::reduce_scatter": "hcom_reduceScatter_",
    "sglang::outplace_all_reduce": "hcom_allReduce_",
    "symm_mem::one_shot_all_reduce": "hcom_allReduce_",
    "_C_custom_ar::all_reduce": "hcom_allReduce_",
    "npu::npu_moe_distribute_dispatch": "MoeDistributeDispatch",
}


@pytest.mark.parametrize("name", NAMES)
def test_collectives_by_any_name(name: str) -> None:
    found = lower(op(name, arg0=meta(1024, 8), ranks=16))
    expected = NAMES[name]
    assert [kernel.type for kernel in found.kernels] == ([expected] if expected else [])
    assert all(kernel.attrs["world_size"] == 16 for kernel in found.kernels)


def test_the_other_side_of_a_collective_follows_from_the_ranks() -> None:
    def message(name: str, **args: Any) -> tuple[int, int]:
        (kernel,) = lower(op(name, ranks=8, **args)).kernels
        return tuple(sum(prod(s.shape) for s in side if s is not None) for side in (kernel.inputs, kernel.outputs))  # type: ignore[return-value]

    assert message("_c10d_functional::all_gather_into_tensor", arg0=meta(100)) == (100, 800)
    assert message("_c10d_functional::reduce_scatter_tensor", arg0=meta(800)) == (800, 800)
    assert message("c10d::reduce_scatter_", arg0=[meta(100)]) == (100, 800)
    assert message("c10d::_allgather_base_", arg0=meta(800), arg1=meta(100)) == (900, 800)


def test_ranks_by_sizes_where_nothing_else_tells() -> None:
    found = lower(op("c10d::_allgather_base_", arg0=meta(6400), arg1=meta(100)))
    assert found.kernels[0].attrs["world_size"] == 64
    assert "assumed" not in " ".join(found.notes)


def test_recorded_parameters_take_the_kind_from_the_devices_kernel() -> None:
    def kind(kernel: str) -> tuple[str, str]:
        kernels = (RecordedKernel(name=kernel, count=1, total_us=1.0),)
        one = ReplayOp(
            id="0" * 12,
            name="record_param_comms",
            count=1,
            ranks=8,
            reason=Reason("collective"),
            recorded=Recorded(host_us_total=1, host_us_median=1, kernels=kernels),
            args=(ReplayArg(name="arg0", type="Tensor", tensors=(meta(64),)),),
        )
        found = lower(one)
        return found.kernels[0].type, " ".join(found.notes)

    assert kind("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)")[0] == "hcom_allGather_"
    assert kind("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)")[0] == "hcom_alltoallv_"
    assert "taken as all-reduce" in kind("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)")[1]


def test_an_op_without_recorded_arguments_is_no_tiny_op() -> None:
    bare = ReplayOp(
        id="0" * 12, name="aten::add_", count=1, recorded=RECORDED, reason=Reason("metadata missing", "shapes")
    )
    found = lower(bare)
    assert (found.kernels, found.known, found.notes) == ((), False, ("no arguments recorded",))
    assert simulate_op(bare, DEVICE).time_us == 0


def test_a_pattern_is_registered_once() -> None:
    with pytest.raises(ValueError, match="already has a built-in lowering rule"):
        lowers_like(r"triton_")(lambda view: ())


def pairs(name: str, **args: Any) -> float:
    call = next(k for k in lower(op(name, **args)).kernels if "Attention" in k.type)
    return float(call.attrs["pairs"])  # type: ignore[arg-type]


def test_causal_masks_by_where_they_start_and_sliding_windows() -> None:
    for queries, keys in ((64, 64), (16, 64), (64, 16), (1, 64)):
        first = sum(min(i + 1, keys) for i in range(queries)) if queries > 1 else keys
        last = sum(max(0, keys - queries + i + 1) for i in range(queries)) if queries > 1 else keys
        heads_second = {"query": meta(2, 4, queries, 32), "key": meta(2, 4, keys, 32), "value": meta(2, 4, keys, 32)}
        heads_third = {"query": meta(2, queries, 4, 32), "key": meta(2, keys, 2, 32), "value": meta(2, keys, 2, 32)}
        assert pairs("aten::scaled_dot_product_attention", is_causal=True, **heads_second) == 8 * first
        assert pairs("aten::scaled_dot_product_attention", is_causal=False, **heads_second) == 8 * queries * keys
        for more in ({}, {"max_q": queries, "max_k": keys}):
            assert pairs("aten::_flash_attention_forward", is_causal=True, **more, **heads_third) == 8 * last
        assert pairs("aten::_efficient_attention_forward", custom_mask_type=1, **heads_third) == 8 * first
        assert pairs("aten::_efficient_attention_forward", custom_mask_type=2, **heads_third) == 8 * last
    same = {"query": meta(1, 64, 4, 32), "key": meta(1, 64, 4, 32), "value": meta(1, 64, 4, 32)}
    narrow = pairs("aten::_flash_attention_forward", is_causal=True, window_size_left=7, **same)
    assert narrow == 4 * 64 * 8
    packed = {"query": meta(128, 4, 32), "key": meta(128, 4, 32), "value": meta(128, 4, 32)}
    lengths = meta(5, dtype="int32")
    found = pairs("flash_attn::_flash_attn_varlen_forward", causal=True, cu_seqlens_q=lengths, **packed)
    assert found == 4 * 4 * 32 * 33 / 2
    one_batch = {name: meta(1, *one.shape) for name, one in packed.items()}
    assert pairs("aten::_efficient_attention_forward", custom_mask_type=2, cu_seqlens_q=lengths, **one_batch) == found


@pytest.mark.parametrize("name", ["fbgemm::FloatToHFP8Quantized", "_C::static_scaled_int8_quant", "npu::npu_quantize"])
def test_a_long_vector_is_quantised_by_all_cores(name: str) -> None:
    n = 1 << 24
    flat, rows = (
        simulate_op(op(name, input=meta(*shape, dtype="float32")), DEVICE).time_us
        for shape in ((n,), (4096, n // 4096))
    )
    assert flat == pytest.approx(rows, rel=0.1)


def test_one_large_image_is_dealt_out_to_all_cores() -> None:
    one, many = (
        simulate_op(
            op("aten::max_pool2d", self=meta(n, 16, 4096 // n, 4096), kernel_size=(2, 2), stride=(2, 2)), DEVICE
        ).time_us
        for n in (1, 64)
    )
    assert one < 3 * many


BUS = {"Memcpy HtoD (Pageable -> Device)": 8e3, "Memcpy DtoH (Device -> Pinned)": 64e3, "CopyHostToDevice": 64e3}


@pytest.mark.parametrize("name", BUS)
def test_copies_over_the_bus_take_the_buss_time(name: str) -> None:
    kernels = (RecordedKernel(name=name, count=1, total_us=900.0), RecordedKernel(name="fill", count=1, total_us=1.0))
    args = op("aten::copy_", self=meta(1 << 24, dtype="float32"), src=meta(1 << 24, dtype="float32")).args
    recorded = Recorded(host_us_total=1, host_us_median=1, device_us_total=900.0, kernels=kernels)
    one = ReplayOp(id="0" * 12, name="aten::copy_", count=1, recorded=recorded, args=args)
    found = simulate_op(one, DEVICE)
    assert (found.bound, found.confidence) == ("link", "uncalibrated")
    assert found.time_us == pytest.approx((1 << 26) / BUS[name], rel=0.05)
    within = ReplayOp(id="0" * 12, name="aten::copy_", count=1, recorded=RECORDED, args=args)
    assert simulate_op(within, DEVICE).time_us < found.time_us / 2


def test_sums_say_whether_a_dimension_is_kept_inside_of_one_that_they_reduce() -> None:
    def across(dims: list[int]) -> Any:
        source = TensorMeta(shape=(16, 256, 64), dtype="float32")
        one = op("aten::sum", self=source)
        dim = ReplayArg(name="dim", type="ScalarList", value=dims)
        made = lower(msgspec.structs.replace(one, args=(*one.args, dim))).kernels[-1]
        assert made.type == "ReduceSum"
        return made.attrs.get("across")

    assert [across(dims) for dims in ([0], [1], [-2], [0, 1], [2], [-1], [1, 2], [0, 1, 2])] == [True] * 4 + [False] * 4


@pytest.mark.parametrize("name", ["t_copy", "transpose_copy", "permute_copy"])
def test_a_copy_of_turned_dimensions_is_a_transposition(name: str) -> None:
    dims: dict[str, Any] = {"t_copy": {}, "transpose_copy": {"dim0": 0, "dim1": 1}, "permute_copy": {"dims": (1, 0)}}[
        name
    ]
    assert types(op(f"aten::{name}", self=meta(64, 32), **dims)) == ["Transpose"]
    assert types(op(f"aten::{name}", self=meta(64, 1), **dims)) == ["TensorMove"]


def test_the_gradient_of_a_loss_is_written_out_before_it_is_read() -> None:
    both = {"self": meta(64, 32), "target": meta(64, 32)}
    (call,) = lower(op("aten::mse_loss_backward", grad_output=meta(), **both, reduction=1)).kernels
    assert [tensor and tensor.shape for tensor in call.inputs] == [(64, 32)] * 3


def test_a_whole_layer_multiplies_all_its_weights() -> None:
    rows, width, inner = 4 * 128, 256, 1024
    weights = {"qkv_weight": meta(3 * width, width), "proj_weight": meta(width, width)}
    half = {"ffn_weight_1": meta(inner, width), "ffn_weight_2": meta(width, inner)}
    layer = lower(op("aten::_transformer_encoder_layer_fwd", src=meta(4, 128, width), num_heads=8, **weights, **half))
    assert macs(layer.kernels) == rows * (4 * width * width + 2 * width * inner)
    assert [call.type for call in layer.kernels].count("FlashAttentionScore") == 1


def test_delta_gates_are_one_pass_that_writes_float32_decays() -> None:
    rows, heads = meta(64, 32), meta(32)
    (call,) = lower(op("_C_ascend::npu_fused_gdn_gating", A_log=heads, a=rows, b=rows, dt_bias=heads)).kernels
    assert [tensor and tensor.shape for tensor in call.inputs] == [(32,), (64, 32), (64, 32), (32,)]
    assert [tensor and tensor.dtype for tensor in call.outputs] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    ("name", "second", "product", "moved"),
    [
        ("npu_mm_all_reduce_base", (64, 16), (32, 64), ("hcom_allReduce_", (32, 16), (32, 16))),
        ("npu_mm_all_reduce_base", (16, 64), (32, 64), ("hcom_allReduce_", (32, 16), (32, 16))),
        ("npu_all_gather_base_mm", (64, 16), (128, 64), ("hcom_allGather_", (32, 64), (128, 64))),
        ("npu_mm_reduce_scatter_base", (64, 16), (32, 64), ("hcom_reduceScatter_", (32, 16), (8, 16))),
        ("npu_all_to_all_matmul", (256, 16), (8, 256), ("hcom_alltoallv_", (32, 64), (32, 64))),
        ("npu_matmul_all_to_all", (64, 16), (32, 64), ("hcom_alltoallv_", (32, 16), (32, 16))),
    ],
)
def test_a_product_with_a_collective_has_the_time_of_both(
    name: str, second: tuple[int, int], product: tuple[int, int], moved: tuple[object, ...]
) -> None:
    made = lower(op(f"npu::{name}", x1=meta(32, 64), x2=meta(*second), world_size=4))
    assert made.assumed
    (one,) = (call for call in made.kernels if call.type == "MatMulV3")
    assert [tensor and tensor.shape for tensor in one.inputs][:1] == [product]
    assert macs((one,)) == product[0] * product[1] * 16
    (call,) = (call for call in made.kernels if call.type != "MatMulV3")
    assert (call.type, *(tensor.shape for tensor in (*call.inputs, *call.outputs) if tensor)) == moved


def test_products_with_collectives_have_each_weight_and_the_norm() -> None:
    rows, weight = meta(32, 64), meta(64, 16)
    (_, *products) = lower(op("symm_mem::fused_all_gather_matmul", A_shard=rows, Bs=[weight] * 3)).kernels
    assert [call.type for call in products] == ["MatMulV3"] * 3
    normed: dict[str, Any] = {"residual": meta(32, 16), "gamma": meta(16)}
    layer = lower(op("_C_ascend::matmul_allreduce_add_rmsnorm", x1=rows, x2=weight, **normed)).kernels
    assert [call.type for call in layer] == ["MatMulV3", "hcom_allReduce_", "AddRmsNorm"]
    sent, experts = lower(op("npu::npu_alltoallv_gmm", gmm_x=rows, gmm_weight=meta(4, 64, 16))).kernels
    assert (experts.type, [tensor and tensor.shape for tensor in sent.inputs]) == ("GroupedMatmul", [(32, 64)])


def test_a_list_of_weights_is_read_whole() -> None:
    """`npu_grouped_matmul` takes E weights as one tensor (E, K, N) or as a list: the same bytes and work."""
    rows, groups = meta(64, 256), meta(8, dtype="int64")
    stacked = lower(op("npu::npu_grouped_matmul", x=[rows], weight=[meta(8, 256, 512)], group_list=groups))
    listed = lower(op("npu::npu_grouped_matmul", x=[rows], weight=[meta(256, 512)] * 8, group_list=groups))
    assert listed.kernels == stacked.kernels
    assert listed.notes == stacked.notes != ()


def test_lists_of_rows_and_weights_are_multiplied_in_pairs() -> None:
    name, weight = "npu::npu_grouped_matmul", meta(256, 512)
    alike = lower(op(name, x=[meta(64, 256), meta(640, 256)], weight=[weight, weight]))
    assert [(k.attrs["rows"], k.attrs["busiest"], k.inputs[1].shape) for k in alike.kernels if k.inputs[1]] == [
        (704, 640, (2, 256, 512))
    ]
    assert alike.notes == (), "the shapes say how many rows each weight has"
    other = lower(op(name, x=[meta(64, 256), meta(640, 128)], weight=[weight, meta(128, 512)]))
    assert [k.inputs[1].shape for k in other.kernels if k.inputs[1]] == [(1, 256, 512), (1, 128, 512)]
    unpaired = lower(op(name, x=[meta(64, 256), meta(64, 256)], weight=[weight] * 3))
    assert not unpaired.known


def test_gradients_of_weights_split_the_summed_dimension() -> None:
    x, dy = meta(256, 64), meta(64, 512)
    (gradient,) = lower(
        op("npu::npu_grouped_matmul", x=[x], weight=[dy], group_list=meta(4, dtype="int64"), group_type=2)
    ).kernels
    assert [t.shape for t in gradient.inputs if t] == [(4, 256, 16), (4, 16, 512)]
