"""The fit: finds constants that made the data, and leaves alone what data say nothing about."""

from __future__ import annotations

import math

import msgspec
import pytest

from opreplay.replay.ascend import KernelCall, TensorSpec, load_device
from opreplay.replay.ascend.calibrate.calibrate import Group, cross_validate, training_samples
from opreplay.replay.ascend.calibrate.fit import Sample, fit
from opreplay.replay.ascend.cost.predict import predict_time_us
from opreplay.replay.ascend.measured.accuracy import Launch
from opreplay.replay.ascend.measured.kernel_tables import KernelRow

DEVICE = load_device("910b3")


def add(n: int) -> KernelCall:
    spec = TensorSpec(shape=(n,), dtype="float32")
    return KernelCall(type="Add", inputs=(spec, spec), outputs=(spec,))


def test_recovers_a_slower_device() -> None:
    slow = msgspec.structs.replace(
        DEVICE, rates=msgspec.structs.replace(DEVICE.rates, launch_full_us=DEVICE.rates.launch_full_us * 1.5)
    )
    calls = [add(1 << k) for k in range(8, 27)]
    samples = [Sample(call=c, soc="x", duration_us=predict_time_us(c, slow)) for c in calls]
    fitted, _, _ = fit(samples, {"x": DEVICE})
    for call, sample in zip(calls, samples, strict=True):
        assert predict_time_us(call, fitted["x"]) == pytest.approx(sample.duration_us, rel=0.06)


def test_one_odd_kernel_does_not_ruin_the_rest() -> None:
    calls = [add(1 << k) for k in range(8, 27)]
    samples = [Sample(call=c, soc="x", duration_us=predict_time_us(c, DEVICE)) for c in calls]
    samples[7] = msgspec.structs.replace(samples[7], duration_us=samples[7].duration_us * 50)
    fitted, _, _ = fit(samples, {"x": DEVICE})
    errors = [
        abs(math.log(predict_time_us(s.call, fitted["x"]) / s.duration_us)) for i, s in enumerate(samples) if i != 7
    ]
    assert sorted(errors)[len(errors) // 2] < 0.05


def test_other_families_keep_their_constants() -> None:
    samples = [Sample(call=add(1 << k), soc="x", duration_us=50.0) for k in (8, 20)]
    fitted, _, _ = fit(samples, {"x": DEVICE})
    assert fitted["x"].families["RmsNorm"] == DEVICE.families["RmsNorm"]


def group(n: int, times: list[float]) -> Group:
    rows = [Launch(row=KernelRow(call=add(n), duration_us=t), duration_us=t) for t in times]
    return Group(soc="x", launches=tuple(rows))


def test_samples_of_one_kernel_weigh_one() -> None:
    samples = training_samples(group(1 << 20, [10.0, 11.0, 30.0]), DEVICE)
    assert sum(s.weight for s in samples) == pytest.approx(1.0)
    assert samples[0].duration_us == 11.0


def test_cross_validation_predicts_each_kernel_once() -> None:
    groups = [group(1 << k, [predict_time_us(add(1 << k), DEVICE)]) for k in range(8, 18)]
    held = cross_validate(groups, {"x": DEVICE}, folds=2)
    assert len(held) == len(groups)
    assert max(h.compared.ape for h in held) < 0.1
