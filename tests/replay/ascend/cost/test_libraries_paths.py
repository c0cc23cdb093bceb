"""What CANN does with products of one column, and with convolutions on cubes that read plain layouts."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls


def half(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="bfloat16")


def product(rows: int, columns: int, soc: str = "910b4-1") -> float:
    call = KernelCall(type="MatMulV3", inputs=(half(rows, 2048), half(2048, columns)), outputs=(half(rows, columns),))
    return predict_kernel(call, load_device(soc), state="warm").time_us


@pytest.mark.parametrize(("rows", "measured_us"), [(32, 17.0), (496, 28.0), (2048, 50.0), (16384, 213.0)])
def test_one_column_is_read_at_a_third_of_a_terabyte_a_second(rows: int, measured_us: float) -> None:
    assert product(rows, 1) == pytest.approx(measured_us, rel=0.25)


def test_few_rows_of_one_column_take_the_cube() -> None:
    assert product(8, 1) < 7.5
    assert product(32, 64) < product(32, 1)


def convolution(text: str, soc: str) -> dict[str, float]:
    kernels = lower(plan_of_calls([Written(text=text)])[0].ops[0]).kernels
    times: dict[str, float] = {}
    for call in kernels:
        times[call.type] = times.get(call.type, 0.0) + predict_kernel(call, load_device(soc), state="cold").time_us
    return times


@pytest.mark.parametrize(
    ("text", "measured_us"),
    [
        ("aten::conv2d(f16[3,63,31,31],f16[63,63,3,3],f16[63],[1,1],[1,1],[1,1],1)", 8.6),
        ("aten::conv2d(bf16[2,255,127,127],bf16[255,255,3,3],bf16[255],[1,1],[1,1],[3,3],1)", 176.2),
    ],
)
def test_the_950pr_converts_no_layouts_for_a_convolution_forward(text: str, measured_us: float) -> None:
    times = convolution(text, "950pr")
    assert times["TransData"] == 0.0
    assert times["Conv2D"] == pytest.approx(measured_us, rel=0.25)
    assert convolution(text, "910b2")["TransData"] > 10.0


def test_output_channels_are_dealt_out_where_pixels_are_few() -> None:
    text = "aten::conv2d(bf16[2,2048,16,16],bf16[2048,2048,1,1],bf16[2048],[1,1],[0,0],[1,1],1)"
    assert convolution(text, "950pr")["Conv2D"] < 40.0


SIZES = (64, 3584, 4095, 11008)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 16, 65, 129, 1024, 4096])
def test_cores_and_clock_make_no_product_slower(rows: int, dtype: str) -> None:
    """With the constants of one chip: what a chip was measured to differ by is not in question."""
    small = load_device("910b3")
    large = msgspec.structs.replace(small, aic_cores=24, freq_hz=1.8e9)
    for columns, depth in itertools.product(SIZES, SIZES):
        operands = TensorSpec(shape=(rows, depth), dtype=dtype), TensorSpec(shape=(depth, columns), dtype=dtype)
        call = KernelCall(type="MatMulV3", inputs=operands, outputs=(TensorSpec(shape=(rows, columns), dtype=dtype),))
        fewer, more = (predict_kernel(call, device, state="warm").time_us for device in (small, large))
        assert more <= 1.01 * fewer, (columns, depth)


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("depth", SIZES)
def test_64_rows_are_not_dearer_than_65(columns: int, depth: int) -> None:
    device = load_device("910b4-1")
    times = [
        predict_kernel(
            KernelCall(
                type="MatMulV3", inputs=(half(rows, depth), half(depth, columns)), outputs=(half(rows, columns),)
            ),
            device,
            state="warm",
        ).time_us
        for rows in (64, 65)
    ]
    assert times[0] <= 1.05 * times[1]
