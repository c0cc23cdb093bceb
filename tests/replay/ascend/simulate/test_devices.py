"""A plan on several simulated devices."""

from __future__ import annotations

import msgspec

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step import Inversion, OpStep, Step, inversions
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.plan.inputs import open_trace, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.records import Simulated
from opreplay.traces.samples import sample_path


def test_a_smaller_device_that_is_predicted_faster_is_told() -> None:
    def step(name: str, peaks: tuple[float, ...], times: tuple[float, ...]) -> Step:
        ops = tuple(
            OpStep(
                id=str(i),
                simulated=Simulated(
                    time_us=us, bound="hbm", terms_us={}, kernels=(), confidence="calibrated", low_us=us, high_us=us
                ),
                families_us={},
                count=1,
            )
            for i, us in enumerate(times)
        )
        return Step(
            device=name,
            device_version="1",
            total_us=sum(times),
            low_us=0.0,
            high_us=0.0,
            uncalibrated_share=0.0,
            by_bound={},
            by_family={},
            ops=ops,
            peaks=peaks,
        )

    small, large = step("small", (1.0, 2.0), (5.0, 9.0, 9.9)), step("large", (2.0, 2.0), (6.0, 8.0, 10.0))
    assert inversions([small, large]) == [Inversion("small", "large", 1, 3, 1.2)]
    assert inversions([step("other", (3.0, 1.0), (1.0, 1.0, 1.0)), large]) == []


def test_a_device_with_slower_cubes_is_not_the_larger_one() -> None:
    """L2 and product rates both count: neither of these devices has at least as much of everything."""
    device = load_device("910b3")
    half = {dtype: macs / 2 for dtype, macs in device.macs_per_cycle.items()}
    slow_cubes = msgspec.structs.replace(device, name="slow cubes", macs_per_cycle=half)
    small_cache = msgspec.structs.replace(device, name="small cache", l2_bytes=device.l2_bytes / 8)
    plan, _ = plan_of_calls([Written(text="aten::mm(bf16[4096,4096],bf16[4096,4096])")])
    steps = simulate_plan(PlannedStep(plan), [slow_cubes, small_cache])
    total_us = {step.device: step.total_us for step in steps}
    assert total_us["small cache"] < total_us["slow cubes"]
    assert inversions(steps) == []


def test_the_band_of_a_total_follows_from_the_bands_of_its_ops() -> None:
    """An irregular op that nobody measured makes a total uncertain in proportion to its time."""
    texts = ["aten::mm(bf16[4096,4096],bf16[4096,4096])", "aten::cummin(f32[64,4096],1)"]
    plan, _ = plan_of_calls([Written(text=text) for text in texts])
    both, product = (
        simulate_plan(PlannedStep(msgspec.structs.replace(plan, ops=ops)), [load_device("910b2")])[0]
        for ops in (plan.ops, plan.ops[:1])
    )
    share = 1 - product.total_us / both.total_us
    assert 0.1 < share < 0.9
    assert product.high_us / product.total_us < 1.6
    assert both.high_us / both.total_us > 1 + 5 * share


def test_a_changed_device_of_the_same_name_has_its_own_caches() -> None:
    """What one device held was taken for the other's, because both had one name."""
    trace = open_trace(str(sample_path("transformer_infer")), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    device = load_device("910b3")
    tiny = msgspec.structs.replace(device, l2_bytes=device.l2_bytes // 256)
    step = PlannedStep(plan)
    together = simulate_plan(step, [device]) + simulate_plan(step, [tiny])
    apart = simulate_plan(PlannedStep(plan), [device]) + simulate_plan(PlannedStep(plan), [tiny])
    assert [one.total_us for one in together] == [one.total_us for one in apart]
    assert step.held([device, tiny])[0] != step.held([device, tiny])[1]
