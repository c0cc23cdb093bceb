from __future__ import annotations

from functools import partial

import pytest

from opreplay.replay.executors.base import Measurement
from opreplay.replay.executors.fake import FakeExecutor
from opreplay.replay.ir import Recorded, ReplayOp
from opreplay.replay.measure import SAMPLE_US, MeasureOptions, calls_per_sample, measure, summarize


def fake_op(name: str) -> ReplayOp:
    return ReplayOp(id="0" * 12, name=name, count=1, recorded=Recorded(host_us_total=1, host_us_median=1))


def timed(name: str, options: MeasureOptions | None = None, executor: FakeExecutor | None = None) -> Measurement:
    executor = executor or FakeExecutor()
    prepared = executor.prepare(fake_op(name), seed=0)
    return measure(executor, prepared, options or MeasureOptions())


@pytest.mark.parametrize("duration_us", [1, 20, 700, 5000])
def test_median_is_the_time_of_a_call(duration_us: int) -> None:
    found = timed(f"fake::{duration_us}us")
    assert found.median_us == pytest.approx(duration_us, rel=0.01)
    assert found.ci_low_us <= found.median_us <= found.ci_high_us
    assert found.min_us <= found.ci_low_us
    assert found.max_us >= found.ci_high_us
    assert found.warnings == ()


def test_short_ops_are_batched_until_a_sample_is_long_enough() -> None:
    assert timed("fake::1us").calls_per_sample == pytest.approx(SAMPLE_US, rel=0.02)
    assert timed("fake::5000us").calls_per_sample == 1


def test_stops_as_soon_as_the_interval_is_narrow() -> None:
    assert timed("fake::20us").samples == 8


def test_goes_on_to_the_limit_when_it_never_is() -> None:
    options = MeasureOptions(target_ci=0.0, max_samples=60, op_time_s=1e9, warmup_s=0.0)
    assert timed("fake::20us", options).samples == 60


def test_time_budget_ends_sampling() -> None:
    executor = FakeExecutor()
    options = MeasureOptions(target_ci=0.0, op_time_s=0.1)
    timed("fake::1000us", options, executor)
    assert executor.clock.now_s() < 0.15


@pytest.mark.parametrize(("duration_us", "calls"), [(900_000, 2), (2_500_000, 1)])
def test_slow_op_gets_few_samples_and_a_warning(duration_us: int, calls: int) -> None:
    executor = FakeExecutor()
    found = timed(f"fake::{duration_us}us", executor=executor)
    assert found.samples == 1
    assert [str(warning) for warning in found.warnings] == ["few samples: 1 of 8"]
    assert executor.clock.elapsed_us == calls * duration_us


def test_op_that_writes_its_arguments_is_reset_after_each_sample() -> None:
    executor = FakeExecutor()
    prepared = executor.prepare(fake_op("fake::1us"), seed=0)
    prepared.max_calls = 4
    found = measure(executor, prepared, MeasureOptions())
    assert found.calls_per_sample == 4
    assert executor.resets >= found.samples


def test_calls_per_sample_stay_within_the_clock() -> None:
    assert calls_per_sample(1.0, 200) == 200
    assert calls_per_sample(0.0, 10**9) == SAMPLE_US * 1000
    assert calls_per_sample(1e9, 200) == 1


def test_warnings_name_noise_and_the_clock() -> None:
    options = MeasureOptions()
    noisy = summarize([1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0], calls=1, resolution_us=1e-3, options=options)
    assert [warning.kind for warning in noisy.warnings] == ["noisy"]
    coarse = summarize([1.0] * 8, calls=2, resolution_us=0.5, options=options)
    assert [str(warning) for warning in coarse.warnings] == ["timer resolution: 0.5 us for samples of 2 us"]


def test_what_the_op_raises_passes_through() -> None:
    with pytest.raises(RuntimeError, match="the fake op raised"):
        partial(timed, "fake::raise")()
