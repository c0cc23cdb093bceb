"""Where time goes and how busy devices were: sums that agree with the trace, by hand and for any intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ops.recorded.roofline import roofline
from opreplay.replay.ops.recorded.sizes import work_of
from opreplay.traces import read_trace
from opreplay.traces.limits import Limits
from opreplay.traces.model import OpSignature
from opreplay.traces.times.breakdown import NO_OP, breakdown, self_time_us
from opreplay.traces.times.busy import _at_least_two, _length, _union, device_busy
from opreplay.traces.times.kernel_classes import class_of, class_of_op
from opreplay.traces.times.modules import modules_of_ops
from opreplay.traces.times.peaks import PEAKS, peak_of


def host(name: str, ts: float, dur: float, number: int | None = None, **more: Any) -> dict[str, Any]:
    args = {"External id": number} if number is not None else {}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args | more}


def work(name: str, ts: float, dur: float, number: int, stream: int = 7) -> list[dict[str, Any]]:
    args = {"correlation": number, "External id": number}
    return [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": ts / 100,
            "dur": 0.1,
            "args": args,
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": stream,
            "ts": ts,
            "dur": dur,
            "args": {**args, "device": 0, "stream": stream},
        },
    ]


def written(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "t.json"
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": list(events)}))
    return path


MM = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2, "Concrete Inputs": ["", ""]}


def test_rows_of_every_table_add_up(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path,
            host("aten::mm", 10, 5, 1, **MM),
            *work("sm90_xmma_gemm_bf16", 1000, 300, 1),
            host("aten::add", 20, 5, 2),
            *work("vectorized_elementwise_kernel", 2000, 100, 2),
            *work("ncclDevKernel_AllReduce", 1900, 100, 99, stream=9),
        )
    )
    by = {name: breakdown(trace, name) for name in ("op", "category", "kernel", "phase")}
    for one in by.values():
        assert sum(row.time_us for row in one.rows) == pytest.approx(one.total_us) == pytest.approx(500)
        assert sum(row.share for row in one.rows) == pytest.approx(1)
    assert [(row.name, row.calls) for row in by["op"].rows] == [("aten::mm", 1), (NO_OP, 1), ("aten::add", 1)]
    assert {row.name for row in by["category"].rows} == {"GEMM", "elementwise", "communication"}
    mm = next(row for row in roofline(trace).rows if row.name == "aten::mm")
    assert mm.lost_us == pytest.approx(300 * (1 - (mm.peak_share or 0)))
    assert mm.tflops_per_s == pytest.approx(2 * 4096**3 / 300e-6 / 1e12)
    assert mm.gb_per_s == pytest.approx(3 * 4096**2 * 2 / 300e-6 / 1e9)
    assert mm.peak_share == pytest.approx(2 * 4096**3 / 300e-6 / 989e12)
    (busy,) = device_busy(trace)
    assert (busy.span_us, busy.busy_us, busy.overlapped_us) == (1100, 500, 0)
    assert (busy.communication_us, busy.hidden_communication_us) == (100, 0)


SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>"
TF32_GEMM = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align4>"


@pytest.mark.parametrize(
    ("kernel", "peak", "kind"),
    [
        (SGEMM, 67.0, "float32"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", 495.0, "tf32"),
        (TF32_GEMM, 495.0, "tf32"),
        ("nvjet_sss_64x64", 67.0, "float32"),
    ],
)
def test_products_of_float32_have_the_peak_that_their_kernels_tell(
    tmp_path: Path, kernel: str, peak: float, kind: str
) -> None:
    sizes: dict[str, Any] = {**MM, "Input type": ["float"] * 2}
    trace = read_trace(written(tmp_path, host("aten::mm", 10, 5, 1, **sizes), *work(kernel, 1000, 2000, 1)))
    (mm,) = roofline(trace).rows
    assert mm.tflops_per_s is not None
    assert (mm.peak_share, mm.peak_kind) == (pytest.approx(mm.tflops_per_s / peak), kind)


def test_calls_of_both_kinds_have_the_peak_of_their_times(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**MM, "Input type": ["float"] * 2}
    calls = (host("aten::mm", 10, 5, 1, **sizes), host("aten::mm", 48, 5, 2, **sizes))
    trace = read_trace(written(tmp_path, *calls, *work(SGEMM, 1000, 3000, 1), *work(TF32_GEMM, 5000, 1000, 2)))
    (mm,) = roofline(trace).rows
    assert mm.peak_share == pytest.approx(4 * 4096**3 / (3000e-6 * 67e12 + 1000e-6 * 495e12))
    assert mm.peak_kind == "tf32, float32"


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-PG509-200", "A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM"),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A10G", None),
    ],
)
def test_a_device_is_known_by_its_whole_name(name: str, device: str | None) -> None:
    found = peak_of((name,))
    assert (found.device if found else None) == device


def test_no_float32_peak_is_that_of_shorter_formats() -> None:
    """TF32 is half of float16 and twice float32 at least (L4, L40S), in every datasheet that quotes it."""
    for _, peak in PEAKS:
        assert peak.tflops["float16"] >= 1.9 * peak.tflops.get("tf32", 0)
        assert peak.tflops.get("tf32", 4e9) > 1.9 * peak.tflops["float32"]


def test_a_host_op_has_its_own_time_without_what_is_inside(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, host("aten::linear", 10, 50), host("aten::addmm", 20, 30)))
    assert self_time_us(trace).tolist() == [20, 30]
    found = breakdown(trace, "op")
    assert (found.clock, found.total_us) == ("host", 50)
    assert [(row.name, row.time_us) for row in found.rows] == [("aten::addmm", 30), ("aten::linear", 20)]
    assert breakdown(trace, "kernel").rows == ()


def test_phases_of_training(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path,
            host("aten::mm", 10, 5),
            host("autograd::engine::evaluate_function: MmBackward0", 20, 20),
            host("aten::mm", 25, 10),
            {**host("Optimizer.step#SGD.step", 50, 20), "cat": "user_annotation"},
            host("aten::_foreach_add_", 55, 10),
        )
    )
    found = {row.name: row.time_us for row in breakdown(trace, "phase").rows}
    assert found == {"forward": 5, "backward": 20, "optimizer": 10}


def test_modules_are_told_by_the_python_stack(tmp_path: Path) -> None:
    def module(name: str, ts: float, dur: float) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": "python_function",
            "name": f"nn.Module: {name}",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": dur,
            "args": {"Python id": 3},
        }

    path = written(
        tmp_path,
        module("Net_0", 0, 100),
        module("Linear_0", 5, 20),
        host("aten::mm", 10, 5),
        module("Linear_1", 30, 20),
        host("aten::mm", 35, 5),
        host("aten::add", 60, 5),
        host("aten::add", 200, 5),
    )
    trace = read_trace(path)
    modules = modules_of_ops(trace, str(path), limits=Limits())
    assert list(modules) == ["Net/Linear", "Net/Linear", "Net", ""]
    rows = {row.name: row.calls for row in breakdown(trace, "module", modules=modules).rows}
    assert rows == {"Net/Linear": 2, "Net": 1, "(no module)": 1}
    assert "with_stack=True" in breakdown(trace, "module").note


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "GEMM"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64", "GEMM"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", "GEMM"),
        ("aten::addmm", "GEMM"),
        ("aten::add", "elementwise"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "attention"),
        ("aten::_flash_attention_forward", "attention"),
        ("ncclDevKernel_AllGather_RING_LL", "communication"),
        ("Memcpy HtoD (Pageable -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float>", "normalization"),
        ("triton_poi_fused_add_0", "Triton"),
        ("triton_poi_fused_mm_relu_1", "Triton"),
        ("triton_red_fused__softmax_0", "Triton"),
        ("triton_poi_fused__scaled_dot_product_efficient_attention_view_3", "Triton"),
        ("triton_unk_fused_mean_mm_relu_4", "Triton"),
        ("triton_spl_fused_cumsum_mm_5", "Triton"),
        ("triton_tem_fused_mm_0", "GEMM"),
        ("triton_tem_fused_convert_element_type_mm_1", "GEMM"),
        ("triton_tem_fused_addmm_relu_3", "GEMM"),
        ("triton_tem_fused_convolution_4", "convolution"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_mm", "Triton"),
        ("void at::native::reduce_kernel<512, 1>", "reduction"),
        ("cudnn_volta_scudnn_128x64_relu", "convolution"),
        ("aten::_log_softmax", "softmax"),
        ("aten::cross_entropy_loss", "softmax"),
        ("aten::binary_cross_entropy_with_logits", "elementwise"),
        ("aclnnBinaryCrossEntropy", "elementwise"),
        ("aten::hardswish_", "elementwise"),
        ("aten::elu_backward", "elementwise"),
        ("aten::linalg_vector_norm", "reduction"),
        ("aten::_foreach_norm", "reduction"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>",
            "reduction",
        ),
        ("aten::native_group_norm", "normalization"),
        ("aten::normal_", "random"),
        ("distribution_elementwise_grid_stride_kernel<float, 4, cuda::normal_and_transform<float>>", "random"),
        ("aten::reciprocal", "elementwise"),
        ("aten::cos_", "elementwise"),
        ("aten::maximum", "elementwise"),
        ("aten::var_mean", "reduction"),
        ("aten::_int_mm", "GEMM"),
        ("Conv2DTranspose", "convolution"),
        ("void conv2d_transpose_kernel<float>", "convolution"),
        ("ConvTranspose_1", "convolution"),
        ("aclnnConvolution_Transpose_Transpose", "copies"),
        ("my_kernel_7", "other"),
    ],
)
def test_classes(name: str, kind: str) -> None:
    assert class_of(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::conv_transpose2d", "convolution"),
        ("aten::cudnn_convolution_transpose", "convolution"),
        ("aten::transpose", "copies"),
        ("aten::amax.out", "reduction"),
        ("aten::sin.default", "elementwise"),
        ("aten::__and__", "elementwise"),
        ("quantized::linear_dynamic", "GEMM"),
        ("quantized::conv2d_relu", "convolution"),
        ("quantized::add_relu", "elementwise"),
        ("mkldnn::_linear_pointwise", "GEMM"),
        ("onednn::qlinear_pointwise", "GEMM"),
        ("mkl::_mkl_linear", "GEMM"),
        ("aten::quantized_lstm", "other"),
        ("fbgemm::FloatToFP8RowwiseQuantized", "elementwise"),
    ],
)
def test_classes_of_ops(name: str, kind: str) -> None:
    assert class_of_op(name) == kind


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "flops", "result"),
    [
        (
            "aten::_convolution",
            ((8, 6, 32, 32), (16, 3, 3, 5), (16,)),
            ("", "", "", "[2, 1]", "[1, 0]", "[1, 2]", "False", "[0, 0]", "2"),
            2 * 8 * 16 * 16 * 24 * 3 * 3 * 5,
            8 * 16 * 16 * 24,
        ),
        (
            "aten::miopen_convolution",
            ((8, 6, 32, 32), (16, 6, 1, 1), ()),
            ("", "", "", "[0, 0]", "[2, 2]", "[1, 1]", "1"),
            2 * 8 * 16 * 16 * 16 * 6,
            8 * 16 * 16 * 16,
        ),
        (
            "aten::convolution",
            ((8, 6, 32, 32), (6, 4, 2, 2), ()),
            ("", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"),
            2 * 8 * 6 * 32 * 32 * 4 * 2 * 2,
            None,
        ),
        (
            "aten::convolution_backward",
            ((8, 16, 16, 16), (8, 6, 32, 32), (16, 6, 3, 3)),
            ("", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"),
            2 * 2 * 8 * 16 * 16 * 16 * 6 * 3 * 3,
            None,
        ),
        ("aten::cudnn_convolution", ((8, 6, 32, 32), (16, 6, 3, 3)), None, None, None),
    ],
)
def test_work_of_convolutions(
    name: str, dims: Any, concrete: tuple[str, ...] | None, flops: float | None, result: int | None
) -> None:
    found = work_of(
        OpSignature(name=name, dims=dims, types=tuple("float" if one else "" for one in dims), concrete=concrete)
    )
    assert found.flops == flops
    if result is not None:
        assert found.bytes == 4 * (sum(int(np.prod(one)) for one in dims if one) + result)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("size", "window", "stride", "padding", "dilation"),
    [(64, 3, 2, 1, 1), (7, 2, 2, 0, 1), (9, 3, None, 1, 2), (5, 3, 3, 1, 1), (8, 2, 3, 1, 1)],
)
def test_pools_write_their_result_and_its_indices(
    size: int, window: int, stride: int | None, padding: int, dilation: int, *, ceil: bool
) -> None:
    data = torch.zeros(2, 3, size, size + 1)
    result, _ = torch.ops.aten.max_pool2d_with_indices(
        data, [window, window], [stride] * 2 if stride else [], [padding] * 2, [dilation] * 2, ceil
    )
    concrete = ("", *map(str, ([window] * 2, [stride] * 2 if stride else [], [padding] * 2, [dilation] * 2, ceil)))
    signature = OpSignature(
        name="aten::max_pool2d_with_indices",
        dims=(tuple(data.shape), (), (), (), (), ()),
        types=("float", "", "", "", "", ""),
        concrete=concrete,
    )
    assert work_of(signature).bytes == 4 * data.numel() + (4 + 8) * result.numel()


def test_room_made_for_a_result_is_work_of_the_op_itself(tmp_path: Path) -> None:
    """A small convolution of oneDNN spends a fifth of its time on that, and had no rate."""
    sizes: dict[str, Any] = {
        "Input Dims": [[4, 3, 64, 64], [64, 3, 3, 3], [64], [], [], [], []],
        "Input type": ["float"] * 3 + ["ScalarList"] * 3 + ["Scalar"],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"],
    }
    path = written(tmp_path, host("aten::mkldnn_convolution", 0, 125.0, **sizes), host("aten::empty", 5, 25.0))
    rows = {row.name: row for row in roofline(read_trace(path)).rows}
    assert rows["aten::mkldnn_convolution"].tflops_per_s == pytest.approx(2 * 4 * 64 * 64 * 64 * 27 / 100e-6 / 1e12)


def test_a_host_op_whose_work_is_divided_says_so(tmp_path: Path) -> None:
    """The backward of a convolution that also makes a copy of its gradient seemed to do nothing itself."""
    events = (host("aten::convolution_backward", 0, 100.0), host("aten::clone", 5, 45.0), host("aten::copy_", 7, 43.0))
    why = {row.name: row.why for row in roofline(read_trace(written(tmp_path, *events))).rows}
    assert why["aten::convolution_backward"] == "the ops inside it do part of its work"
    assert why["aten::clone"] == "the ops inside it do its work"


def test_a_host_op_that_does_its_work_itself_has_rates(tmp_path: Path) -> None:
    """An op that only calls others has their work and none of their time."""
    sizes: dict[str, Any] = {"Input Dims": [[1000, 1000]] * 2, "Input type": ["float"] * 2}
    path = written(tmp_path, host("aten::linear", 0, 1010.0, **sizes), host("aten::mm", 5, 1000.0, **sizes))
    rows = {row.name: row for row in roofline(read_trace(path)).rows}
    assert rows["aten::mm"].tflops_per_s == pytest.approx(2.0)
    assert rows["aten::mm"].gb_per_s == pytest.approx(12.0)
    assert rows["aten::linear"].tflops_per_s is None
    assert rows["aten::mm"].peak_share is None


def test_work_of_absurd_sizes_is_not_told() -> None:
    huge = OpSignature(name="aten::mm", dims=((2**62, 2**62), (2**62, 2**62)), types=("float", "float"))
    assert work_of(huge).flops is None
    assert work_of(huge).bytes is None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_union_and_overlap_are_those_of_single_moments(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs], np.int64) * 1000
    end = start + np.array([b for _, b in pairs], np.int64) * 1000
    depth = [sum(a <= moment < a + b for a, b in pairs) for moment in range(81)]
    assert _length(_union(start, end)) == sum(n > 0 for n in depth)
    assert _at_least_two(start, end) == sum(n > 1 for n in depth)
