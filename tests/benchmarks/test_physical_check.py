"""No prediction takes a simulated device for faster than it is, on bundled samples; the limits are what they say."""

from __future__ import annotations

from math import prod

import pytest

from benchmarks.exams.invariants import least_us
from benchmarks.physical_check import too_fast
from opreplay.replay.ascend import list_devices, load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.physical import least_flops
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace
from opreplay.traces.samples import sample_path

pytestmark = pytest.mark.slow

DEVICES = [load_device(name) for name in list_devices()]
SAMPLES = ("cnn_train", "moe_block", "transformer_infer")


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_prediction_is_faster_than_the_device(sample: str) -> None:
    plan = with_outputs(build_plan(read_trace(sample_path(sample)), select="owner"))
    assert any(least_flops(op) for op in plan.ops)
    assert too_fast(plan, DEVICES) == []


@pytest.mark.parametrize("device", DEVICES, ids=[device.name for device in DEVICES])
def test_a_product_takes_at_least_what_the_cube_needs(device: DeviceProfile) -> None:
    plan = with_outputs(build_plan(read_trace(sample_path("transformer_infer")), select="owner"))
    product = next(op for op in plan.ops if op.name == "aten::linear")
    inputs, weight = (arg.tensors[0] for arg in product.args[:2])
    assert inputs is not None
    assert weight is not None
    macs = prod(inputs.shape) * weight.shape[0]
    rates = device.macs_per_cycle
    per_s = max(rates[inputs.dtype], rates["hf32"]) * device.aic_cores * device.freq_hz
    assert least_us(product, device).network > 0.999e6 * macs / per_s
