from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import msgspec
import pytest

from opreplay.replay.execute.executors.clocks import Gauge
from opreplay.replay.execute.executors.fake import FakeClock, FakeExecutor, FakePrepared
from opreplay.replay.execute.measure import (
    FEW_BYTES,
    NEAR_BYTES,
    SAMPLE_US,
    calls_per_sample,
    gauge_warnings,
    measure,
    scale_to_whole_op,
    summarize,
)
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.visits import Visits
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.measurement import KINDS, Measurement, MeasureWarning, kind_of
from tests.factories import op as fake_op

FAST = MeasureOptions()


def timed(name: str, options: MeasureOptions | None = None, executor: FakeExecutor | None = None) -> Measurement:
    executor = executor or FakeExecutor()
    prepared = executor.prepare(fake_op(name), seed=0)
    return measure(executor, prepared, options or MeasureOptions())


@pytest.mark.parametrize("duration_us", [1, 20, 700, 5000])
def test_median_is_the_time_of_a_call(duration_us: int) -> None:
    found = timed(f"fake::{duration_us}us")
    assert found.median_us == pytest.approx(duration_us, rel=0.01)
    assert found.ci_low_us is not None
    assert found.ci_high_us is not None
    assert found.ci_low_us <= found.median_us <= found.ci_high_us
    assert found.min_us <= found.ci_low_us
    assert found.max_us >= found.ci_high_us
    assert found.warnings == ()


def test_short_ops_are_batched_until_a_sample_is_long_enough() -> None:
    assert timed("fake::1us").calls_per_sample == pytest.approx(SAMPLE_US, rel=0.02)
    assert timed("fake::5000us").calls_per_sample == 1


def test_stops_as_soon_as_the_interval_is_narrow() -> None:
    assert timed("fake::20us", MeasureOptions(min_share=0.0)).samples == 8


def test_goes_on_for_a_share_of_its_time_even_so() -> None:
    executor = FakeExecutor()
    found = timed("fake::20us", MeasureOptions(op_time_s=0.2, min_share=0.25, warmup_s=0.0), executor)
    assert 0.05 <= executor.clock.now_s() < 0.06
    assert found.samples == 100


def test_goes_on_to_the_limit_when_it_never_is() -> None:
    options = MeasureOptions(target_ci=0.0, max_samples=60, op_time_s=1e9, warmup_s=0.0)
    assert timed("fake::20us", options).samples == 60


def test_time_budget_ends_sampling() -> None:
    executor = FakeExecutor()
    options = MeasureOptions(target_ci=0.0, op_time_s=0.1)
    timed("fake::1000us", options, executor)
    assert executor.clock.now_s() < 0.15


@pytest.mark.parametrize(("duration_us", "samples", "calls"), [(900_000, 6, 8), (2_500_000, 1, 2)])
def test_slow_op_gets_few_samples_and_a_warning(duration_us: int, samples: int, calls: int) -> None:
    executor = FakeExecutor()
    measured = timed(f"fake::{duration_us}us", executor=executor)
    assert measured.samples == samples
    assert [str(warning) for warning in measured.warnings] == [f"few samples: {samples} of 8"]
    assert executor.clock.elapsed_us == calls * duration_us


@pytest.mark.parametrize("duration_us", [5, 30_000, 400_000])
@pytest.mark.parametrize("op_time_s", [1e-4, 0.01])
def test_an_op_has_an_interval_of_its_median_however_short_its_time(duration_us: int, op_time_s: float) -> None:
    measured = timed(f"fake::{duration_us}us", MeasureOptions(op_time_s=op_time_s))
    assert measured.samples >= 6
    assert measured.ci_low_us is not None


def test_the_first_visit_takes_as_many() -> None:
    executor, visits = FakeExecutor(), Visits(8)
    prepared = executor.prepare(fake_op("fake::30000us"), seed=0)
    samples = [measure(executor, prepared, MeasureOptions(op_time_s=1e-4), visits=visits).samples for _ in range(8)]
    assert samples == list(range(6, 14))


def test_a_visit_with_other_threads_takes_as_many_again() -> None:
    executor, visits = FakeExecutor(), Visits(3)
    prepared = executor.prepare(fake_op("fake::30000us"), seed=0)
    samples: list[int] = []
    for threads in (2, 2, 1):
        executor.threads = threads
        samples.append(measure(executor, prepared, MeasureOptions(op_time_s=1e-4), visits=visits).samples)
    assert samples == [6, 7, 6]


class Settling(FakePrepared):
    """An op whose calls take these times, the last one from then on."""

    def __init__(self, executor: FakeExecutor, *seconds: float) -> None:
        self.calls = 0
        self._clock, self._seconds = executor.clock, seconds
        super().__init__(self._run)

    def _run(self) -> None:
        self._clock.elapsed_us += 1e6 * self._seconds[min(self.calls, len(self._seconds) - 1)]
        self.calls += 1


@pytest.mark.parametrize(
    "seconds",
    [(3.0, 70e-6), (3.0, 1.5, 70e-6), (2.5, 3.5, 70e-6), (19.0, 70e-6), (27.0, 70e-6), (3.0, 0.02, 70e-6)],
    ids=["compiles", "compiles twice", "compiles at the second call", "long", "very long", "loads, then tunes"],
)
def test_what_the_first_calls_set_up_is_not_measured(seconds: tuple[float, ...]) -> None:
    executor = FakeExecutor()
    found = measure(executor, Settling(executor, *seconds), MeasureOptions())
    assert found.median_us == pytest.approx(70.0, rel=0.02)
    assert found.first_call_us == pytest.approx(1e6 * seconds[0], rel=0.02)
    assert found.samples >= 30
    assert found.warnings == ()


def test_first_call_is_the_measurement_where_a_second_is_too_much_and_says_so() -> None:
    executor = FakeExecutor()
    prepared = Settling(executor, 6.0, 70e-6)
    found = measure(executor, prepared, MeasureOptions(limit_s=10.0))
    assert prepared.calls == 1
    assert found.median_us == pytest.approx(6e6)
    assert "first call: --set op_limit left no time for a second call; the 6 s include setup" in map(
        str, found.warnings
    )


class Importing(Settling):
    """An op whose first call imports modules."""

    def _run(self) -> None:
        sys.modules.setdefault(f"imported by {id(self)}", sys)
        super()._run()


def test_a_first_call_that_imports_is_followed_by_a_second() -> None:
    executor = FakeExecutor()
    measured = measure(executor, Importing(executor, 6.0, 70e-6), MeasureOptions(limit_s=10.0))
    assert measured.median_us == pytest.approx(70.0, rel=0.02)


def test_a_first_call_that_imports_and_takes_all_of_the_limit_is_no_time_of_the_op() -> None:
    executor = FakeExecutor()
    with pytest.raises(NotReplayable) as stopped:
        measure(executor, Importing(executor, 9.5, 70e-6), MeasureOptions(limit_s=10.0))
    assert stopped.value.reason.kind == "budget"


def test_times_that_do_not_settle_end_within_the_limit_and_say_so() -> None:
    executor = FakeExecutor()
    found = measure(executor, Settling(executor, 6.0, 3.5, 8.0, 4.0, 9.0, 5.0, 10.0), MeasureOptions(limit_s=60.0))
    assert executor.clock.now_s() < 60.0 / 2
    assert [kind_of(warning) for warning in found.warnings] == ["few samples", "not settled"]
    assert found.median_us < 9e6


def test_samples_end_before_the_limit() -> None:
    executor = FakeExecutor()
    found = measure(executor, executor.prepare(fake_op("fake::300000us"), seed=0), MeasureOptions(limit_s=1.0))
    assert executor.clock.now_s() < 1.0
    assert found.median_us == pytest.approx(300_000, rel=0.02)


def test_op_that_writes_its_arguments_is_reset_after_each_sample() -> None:
    executor = FakeExecutor()
    prepared = executor.prepare(fake_op("fake::1us"), seed=0)
    prepared.max_calls = 4
    found = measure(executor, prepared, MeasureOptions())
    assert found.calls_per_sample == 3
    assert executor.resets >= found.samples


class Memory(FakePrepared):
    """An op with arguments of so many bytes, whose copies tell which of them was called."""

    def __init__(self, executor: FakeExecutor, size: int, room: int = 10**9, us: float = 20.0) -> None:
        self.called: list[int] = []
        self.argument_bytes, self._room, self._us, self._executor = size, room, us, executor
        super().__init__(partial(self._run, 0))

    def _run(self, which: int) -> None:
        self.called.append(which)
        self._executor.clock.elapsed_us += self._us

    def copies(self, count: int) -> list[partial[None]]:
        return [partial(self._run, which) for which in range(min(count, 1 + self._room // self.argument_bytes))]


class Written(Memory):
    """An op that writes to its arguments, and may be called so many times before a reset."""

    def __init__(self, executor: FakeExecutor, size: int, max_calls: int, us: float) -> None:
        super().__init__(executor, size, us=us)
        self.max_calls = max_calls


class Resetting(FakeExecutor):
    """A device with a cache of 1000 bytes that logs resets and touches among the calls of its op."""

    cache_bytes = evicted_bytes = 1000

    def __init__(self) -> None:
        super().__init__()
        self.op: Written | None = None
        self.resets_at: list[int] = []
        self.touches_at: list[int] = []

    def reset(self, prepared: FakePrepared) -> None:
        assert self.op is not None
        self.resets_at.append(len(self.op.called))

    def touch(self, prepared: FakePrepared) -> None:
        assert self.op is not None
        self.touches_at.append(len(self.op.called))


def written(size: int, max_calls: int, us: float, *, by_values: bool = False) -> tuple[Measurement, Resetting]:
    executor = Resetting()
    executor.op = Written(executor, size, max_calls, us)
    executor.op.time_goes_by_values = by_values
    options = MeasureOptions(cache="warm", warmup_s=0.0, min_share=0.0)
    return measure(executor, executor.op, options), executor


def calls_between(executor: Resetting) -> set[int]:
    """Calls between each reset of the samples and the next, the calls of the warm-up left out."""
    return {after - before for before, after in pairwise(executor.resets_at[2:])}


def test_a_reset_waits_until_values_might_run_away() -> None:
    found, executor = written(10, 8, 600.0)
    assert found.calls_per_sample == 1
    assert calls_between(executor) == {8}


def test_arguments_are_touched_after_each_reset_and_at_no_other_time() -> None:
    _, executor = written(10, 4, 600.0)
    assert executor.touches_at == executor.resets_at[2:]


def test_an_op_whose_time_goes_by_values_is_reset_before_each_sample_and_not_called_untimed() -> None:
    found, executor = written(10, 8, 600.0, by_values=True)
    assert found.calls_per_sample == 1
    assert calls_between(executor) == {1}


def test_a_call_that_is_not_timed_counts_for_what_may_be_called_in_a_row() -> None:
    found, executor = written(10, 8, 1.0)
    assert found.calls_per_sample == 7
    assert calls_between(executor) == {8}


def test_arguments_beyond_the_cache_are_warmed_by_a_call() -> None:
    found, executor = written(1500, 8, 600.0)
    assert executor.touches_at == []
    assert calls_between(executor) == {8}
    assert found.calls_per_sample == 1


def test_cold_samples_of_large_arguments_have_neither_touch_nor_untimed_call() -> None:
    executor = Resetting()
    executor.op = Written(executor, 3000, 8, 600.0)
    found = measure(executor, executor.op, MeasureOptions(cache="cold", warmup_s=0.0, min_share=0.0))
    assert (found.cache, executor.touches_at) == ("cold", [])
    assert calls_between(executor) == {1}


def test_calls_per_sample_stay_within_the_clock() -> None:
    assert calls_per_sample(1.0, 200) == 200
    assert calls_per_sample(0.0, 10**9) == SAMPLE_US * 1000
    assert calls_per_sample(1e9, 200) == 1


def test_warnings_name_noise_and_the_clock() -> None:
    options = MeasureOptions()
    noisy = summarize([1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0], calls=1, resolution_us=1e-3, options=options)
    assert [kind_of(warning) for warning in noisy.warnings] == ["noisy"]
    coarse = summarize([1.0] * 8, calls=2, resolution_us=0.5, options=options)
    assert [str(warning) for warning in coarse.warnings] == [
        "timer resolution: the clock resolves 0.5 us, and a sample takes 2 us"
    ]


def test_what_the_op_raises_passes_through() -> None:
    with pytest.raises(RuntimeError, match="the fake op raised"):
        partial(timed, "fake::raise")()


class Cached(FakeExecutor):
    """A device with a cache of 1000 bytes that counts how often it is flushed."""

    cache_bytes = evicted_bytes = 1000

    def __init__(self) -> None:
        super().__init__()
        self.flushes: list[int] = []
        self.op: Memory | None = None

    def evict(self) -> None:
        self.flushes.append(len(self.op.called) if self.op else 0)


def cold(size: int, *, room: int = 10**9, us: float = 20.0, cache: Literal["cold", "warm"] = "cold"):
    executor = Cached()
    executor.op = Memory(executor, size, room, us)
    options = MeasureOptions(cache=cache, warmup_s=0.0, min_share=0.0)
    found = measure(executor, executor.op, options)
    return found, executor, executor.op.called[2:]


def test_small_arguments_take_turns_after_a_flush() -> None:
    found, executor, called = cold(10)
    assert (found.cache, found.calls_per_sample) == ("cold", 25)
    assert len(executor.flushes) == found.samples == 8
    assert called[:25] == list(range(25)), "each copy once in a sample"


def test_copies_that_fill_the_cache_need_no_flush() -> None:
    found, executor, called = cold(300)
    assert found.cache == "cold"
    assert executor.flushes == []
    assert called[:14] == [*range(7), *range(7)]
    assert found.calls_per_sample == 25


def test_arguments_larger_than_the_cache_push_themselves_out() -> None:
    found, executor, called = cold(2000)
    assert found.cache == "cold"
    assert executor.flushes == []
    assert set(called) == {0}


def test_without_memory_for_copies_each_call_has_its_flush() -> None:
    found, executor, _ = cold(300, room=0)
    assert found.calls_per_sample == 1
    assert len(executor.flushes) == found.samples


def test_slow_ops_take_turns_from_sample_to_sample() -> None:
    found, _, called = cold(800, us=5000.0)
    assert found.calls_per_sample == 1
    assert called[:6] == [0, 1, 2, 0, 1, 2]


def test_warm_is_one_set_of_arguments() -> None:
    found, executor, called = cold(10, cache="warm")
    assert found.cache == "warm"
    assert executor.flushes == []
    assert set(called) == {0}


def test_in_the_state_of_a_step_each_call_is_laid_out_and_timed_alone() -> None:
    executor = Cached()
    executor.op = Memory(executor, 10, 10**9, 20.0)
    laid: list[int] = []
    executor.as_in_step = lambda prepared, recency: lambda: laid.append(len(executor.op.called))  # type: ignore[method-assign,union-attr]
    options = MeasureOptions(cache="step", warmup_s=0.0, min_share=0.0)
    found = measure(executor, executor.op, options, recency=Recency(arguments=(5,)))
    assert (found.cache, found.calls_per_sample, executor.flushes) == ("step", 1, [])
    assert laid == list(range(laid[0], laid[0] + found.samples)), "before each call, after all that was before"
    without = measure(executor, executor.op, options)
    assert without.cache == "cold", "of an op that the step does not call nothing is known"


def test_a_few_numbers_whose_op_just_ran_are_measured_call_after_call() -> None:
    executor = Cached()
    executor.op = Memory(executor, FEW_BYTES, 10**9, 1.0)
    executor.as_in_step = lambda prepared, recency: lambda: None  # type: ignore[method-assign,union-attr]
    options = MeasureOptions(cache="step", warmup_s=0.0, min_share=0.0)
    near, far = Recency(arguments=(1 << 30,), code=NEAR_BYTES), Recency(arguments=(1 << 30,), code=NEAR_BYTES + 1)
    assert measure(executor, executor.op, options, recency=near).calls_per_sample > 100
    assert measure(executor, executor.op, options, recency=far).calls_per_sample == 1
    executor.op = Memory(executor, FEW_BYTES + 1, 10**9, 1.0)
    assert measure(executor, executor.op, options, recency=near).calls_per_sample == 1


def test_a_cache_that_is_flushed_in_part_is_a_warning() -> None:
    executor = Cached()
    executor.evicted_bytes = 400
    found = measure(executor, Memory(executor, 10), MeasureOptions(warmup_s=0.0, cache="cold"))
    assert [str(w) for w in found.warnings] == ["cache partly warm: 400 of 1e+03 bytes of cache were flushed"]


def test_the_gauge_tells_a_slower_machine() -> None:
    executor = FakeExecutor()
    speed = [100.0]

    def work() -> None:
        executor.clock.elapsed_us += speed[0]

    executor.gauge = Gauge(work)
    first = timed("fake::20us", executor=executor)
    assert first.gauge_us == pytest.approx((100.0, 100.0), rel=0.05)
    assert first.relative == pytest.approx(20 / 100**0.5, rel=0.05)
    assert first.relative_error == pytest.approx(0.0, abs=0.01)
    assert first.warnings == ()
    speed[0] = 150.0
    (warning,) = timed("fake::20us", executor=executor).warnings
    assert isinstance(warning, MeasureWarning)
    assert warning.kind == "other load"
    assert warning.data["times"] == pytest.approx(1.5, rel=0.05)
    assert [w.kind for w in gauge_warnings((100.0, 130.0), 100.0)] == ["unstable clock"]


def test_memory_is_gauged_where_caches_are_to_be_cold() -> None:
    executor = FakeExecutor()
    turn = {"compute": 0, "memory": 0}

    def work(name: str, us: float) -> None:
        turn[name] += 1
        executor.clock.elapsed_us += us

    executor.gauge = Gauge(lambda: work("compute", 100.0), lambda: work("memory", 50.0))
    executor.cache_bytes, prepared = 1, executor.prepare(fake_op("fake::20us"), seed=0)
    assert measure(executor, prepared, MeasureOptions(cache="warm")).relative == pytest.approx(2.0, rel=0.05)
    assert turn["memory"] == 0
    prepared.argument_bytes = 10
    found = measure(executor, prepared, MeasureOptions(cache="cold"))
    assert found.cache == "cold"
    assert found.relative == pytest.approx(20 / (100 * 50) ** (1 / 3), rel=0.05)


def test_a_machine_that_changes_its_speed_hardly_changes_the_relative_time() -> None:
    """The gauge takes 1.5 times as long, the op the root of that squared: as much as it is taken to."""
    executor = FakeExecutor()
    calls = [0]

    def at_speed(us: float, power: float) -> None:
        calls[0] += 1
        executor.clock.elapsed_us += us * (1.0 if calls[0] // 40 % 2 else 1.5) ** power

    executor.gauge = Gauge(lambda: at_speed(100.0, 1.0))
    found = measure(executor, FakePrepared(lambda: at_speed(1000.0, 0.5)), MeasureOptions())
    assert found.iqr_us > 0.15 * found.min_us
    assert found.relative == pytest.approx(100.0, rel=0.02)
    assert found.relative_error is not None
    assert found.relative_error < 0.02


def test_outliers_are_counted_and_not_dropped() -> None:
    found = summarize([1.0, 1.0, 1.01, 1.01, 1.02, 1.02, 1.03, 9.0], calls=1, resolution_us=1e-3, options=FAST)
    assert (found.outliers, found.max_us, found.samples) == (1, 9.0, 8)
    assert found.deciles_us[0] == 1.0
    assert found.deciles_us[-1] == 9.0
    assert len(found.deciles_us) == 11


def test_a_part_is_scaled_in_all_its_times() -> None:
    found = scale_to_whole_op(summarize([1.0, 2.0], calls=1, resolution_us=1e-3, options=FAST), 0.5)
    assert (found.min_us, found.max_us, found.deciles_us[-1], found.part) == (2.0, 4.0, 4.0, 0.5)
    assert scale_to_whole_op(msgspec.structs.replace(found, relative=3.0), 0.5).relative == 6.0
    assert str(found.warnings[-1]) == "part of the op: 0.5 of the op ran; times are scaled up"


def test_every_warning_has_a_text_even_without_its_numbers() -> None:
    for kind in KINDS:
        assert str(MeasureWarning(kind=kind)).startswith(kind)
    assert kind_of("noisy: 12 %") == "noisy"


class Queue(FakeClock):
    """The clock of a device that the host needs 50 us to launch a call on."""

    def launch_us(self, call: Callable[[], Any], calls: int) -> float | None:
        return 50.0


class Capturing(FakeExecutor):
    """A device with graphs; `refuses` to capture where told so."""

    refuses = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = Queue()
        self.captured: list[int] = []

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any] | None:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captured.append(len(calls))

        def replay() -> None:
            for call in calls:
                call()

        return replay


def test_ops_that_the_host_launches_too_slowly_are_captured_where_asked() -> None:
    executor = Capturing()
    found = timed("fake::20us", MeasureOptions(cuda_graph=True), executor)
    assert found.graph
    assert executor.captured[0] in (25, 26)
    assert found.median_us == pytest.approx(20.0, rel=0.01)
    assert found.host_us == 50.0
    assert found.warnings == ()
    plain = timed("fake::20us", executor=Capturing())
    assert not plain.graph
    assert [kind_of(w) for w in plain.warnings] == ["launch-bound"]
    slow = timed("fake::100us", MeasureOptions(cuda_graph=True), Capturing())
    assert not slow.graph, "the device is the slower one"


def test_what_cannot_be_captured_is_launched_and_said() -> None:
    executor = Capturing()
    executor.refuses = True
    found = timed("fake::20us", MeasureOptions(cuda_graph=True), executor)
    assert not found.graph
    assert [kind_of(w) for w in found.warnings] == ["not captured", "launch-bound"]
    nothing = timed("fake::20us", MeasureOptions(cuda_graph=True))
    assert (nothing.graph, nothing.warnings) == (False, ())


@pytest.mark.parametrize(("samples", "known"), [(1, False), (2, False), (5, False), (6, True)])
def test_few_samples_have_no_interval(samples: int, known: bool) -> None:
    """One sample had a 95 % interval of no width."""
    found = summarize([float(i + 1) for i in range(samples)], calls=1, resolution_us=1e-3, options=MeasureOptions())
    assert [found.ci_low_us is not None, found.ci_high_us is not None] == [known, known]
    assert (found.low_us, found.high_us) == (1.0, float(samples))
    assert ("95 %" in repr(found)) == known
