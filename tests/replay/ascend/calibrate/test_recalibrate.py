"""The report of a calibration, and products that experts share out."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import KernelCall, TensorSpec, load_device, predict_kernel
from opreplay.replay.ascend.calibrate.calibrate import Group
from opreplay.replay.ascend.calibrate.recalibrate import recalibrate
from opreplay.replay.ascend.cost.cube import gemm_of
from opreplay.replay.ascend.measured.accuracy import Launch
from opreplay.replay.ascend.measured.kernel_tables import KernelRow
from opreplay.replay.report.views.calibration import facts, verdict
from opreplay.traces.errors import Malformed

DEVICE = load_device("910b3")


def group(n: int, factor: float) -> Group:
    spec = TensorSpec(shape=(n,), dtype="float32")
    call = KernelCall(type="Relu", inputs=(spec,), outputs=(spec,))
    us = predict_kernel(call, DEVICE).time_us * factor
    return Group(soc=DEVICE.name, launches=(Launch(row=KernelRow(call=call, duration_us=us), duration_us=us),))


def test_a_device_that_is_right_stays_as_it_is() -> None:
    found = recalibrate([group(1 << k, 1.0) for k in range(8, 16)], DEVICE)
    assert found.caution == 0
    assert found.after.rates == DEVICE.rates
    assert verdict(found).startswith("device unchanged")
    assert facts(found, output="x.toml")["after_held_out"] is None


def test_a_consistent_difference_is_learned_and_reported() -> None:
    found = recalibrate([group(1 << k, 1.3) for k in range(8, 24, 2)], DEVICE)
    report = facts(found, output="x.toml")
    assert found.caution > 0
    assert report["after_held_out"]["overall"]["mape"] < report["before"]["overall"]["mape"]


def test_nothing_to_calibrate_to() -> None:
    with pytest.raises(Malformed, match="no measured kernels"):
        recalibrate([], DEVICE)


def test_rows_of_a_grouped_product_are_dealt_out_to_experts() -> None:
    rows, weights = TensorSpec(shape=(512, 1024), dtype="bfloat16"), TensorSpec(shape=(8, 1024, 256), dtype="bfloat16")
    product = gemm_of(KernelCall(type="GroupedMatmul", inputs=(rows, weights), outputs=()))
    assert product is not None
    assert (product.batch, product.m, product.n, product.k) == (8, 64, 256, 1024)
    few = gemm_of(
        KernelCall(type="GroupedMatmul", inputs=(TensorSpec(shape=(3, 1024), dtype="int8"), weights), outputs=())
    )
    assert few is not None
    assert (few.batch, few.m) == (3, 1)
