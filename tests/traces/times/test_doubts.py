"""Times that carry no headline: clocks that differ, kernels that overlap themselves, launches without kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opreplay.traces import Trace, read_trace, summarize
from opreplay.traces.links.steps import busy_steps, chosen_step, launches_in, steps_of
from opreplay.traces.times.doubts import Doubts, doubts_of
from opreplay.traces.times.placed import WITHOUT_TIME
from opreplay.traces.times.steps import launch_table
from tests.traces.events import DIMS, document, kernel, launch, note, op, write

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> Trace:
    return read_trace(CASES / f"{name}.json", activity=True)


def recorded(folder: Path, delays: list[float], dur: float = 20, extra: tuple[dict[str, Any], ...] = ()) -> Trace:
    """A trace of one launch each 100 us whose kernels start so much after it."""
    events: list[dict[str, Any]] = [*extra]
    for call, delay in enumerate(delays, 1):
        ids = {"External id": call, "correlation": call}
        events += [op("aten::mm", 100 * call, 30, call, **DIMS), launch(100 * call + 5, call)]
        events.append(kernel("k", 100 * call + 5 + delay, dur, **ids))
    return read_trace(write(folder, document(events)), activity=True)


def test_sound_times_have_no_doubts(tmp_path: Path) -> None:
    trace = recorded(tmp_path, [3.0, 0.0, 50.0])
    assert doubts_of(trace) == Doubts()
    assert launch_table(trace).rows[0].delay_us == 2.0


@pytest.mark.parametrize(("delays", "offset"), [([-7.5, 3, 3], 7.5), ([-1e6] * 5, 1e6), ([3] * 200 + [-2], 0.0)])
def test_kernels_before_their_launch(tmp_path: Path, delays: list[float], offset: float) -> None:
    trace = recorded(tmp_path, delays)
    assert doubts_of(trace).clock_offset_us == offset
    assert (launch_table(trace).rows[0].delay_us is None) == (offset > 0)


def test_nanoseconds_in_place_of_microseconds(tmp_path: Path) -> None:
    """Device times a thousand times those of the host, on a clock that counts from the start of the machine."""
    events = [
        event
        for call in range(1, 6)
        for at in (5_000_000 + 100 * call,)
        for event in (
            op("aten::mm", at, 30, call, **DIMS),
            launch(at + 5, call),
            kernel("k", 1000 * (at + 8), 20_000, **{"External id": call, "correlation": call}),
        )
    ]
    trace = read_trace(write(tmp_path, document(events)))
    assert doubts_of(trace).clock_offset_us > 4.9e9


def test_clocks_hours_apart(tmp_path: Path) -> None:
    trace = recorded(tmp_path, [7.2e9, 7.2e9, 7.2e9])
    assert doubts_of(trace).clock_offset_us == 7.2e9
    assert len(trace.kernels) == 3


def test_a_few_overlaps_are_a_warning_and_most_are_a_doubt(tmp_path: Path) -> None:
    assert doubts_of(recorded(tmp_path, [3.0] * 50)) == Doubts()
    trace = recorded(tmp_path, [3.0] * 50, dur=350)
    assert [fault.kind for fault in doubts_of(trace).impossible] == ["overlaps another kernel on its stream"]
    ids = {"External id": 3, "correlation": 3}
    trace = recorded(tmp_path, [3.0] * 50, extra=(kernel("late twin", 309, 19, **ids),))
    assert doubts_of(trace) == Doubts()


def test_launches_without_kernels_are_counted() -> None:
    trace = case("launches_without_kernels")
    assert (trace.info.links.launches, trace.info.links.launches_without_work) == (12, 8)
    assert [step.name for step in busy_steps(trace)] == ["ProfilerStep#2"]
    assert [launches_in(trace, step) for step in steps_of(trace)] == [(4, 4), (4, 4), (4, 0)]
    assert chosen_step(trace).name == "ProfilerStep#2"


def test_calls_that_launch_no_kernel_are_not_counted(tmp_path: Path) -> None:
    others = ("cudaLaunchHostFunc", "cudaStreamSynchronize", "cudaMalloc", "cudaMemcpyAsync")
    calls = [{**launch(20 + i, 90 + i), "name": name} for i, name in enumerate(others)]
    trace = recorded(tmp_path, [3.0], extra=(*calls, launch(50, 99)))
    assert (trace.info.links.launches, trace.info.links.launches_without_work) == (2, 1)


@pytest.mark.parametrize("launches", [0, 3])
def test_without_any_kernel_every_launch_lacks_its_own(tmp_path: Path, launches: int) -> None:
    events = [op("aten::mm", 0, 9, 1, **DIMS), *(launch(3 + i, 1 + i) for i in range(launches))]
    links = read_trace(write(tmp_path, document(events))).info.links
    assert (links.launches, links.launches_without_work) == (launches, launches)


def test_one_step_marked_by_two_threads_is_one() -> None:
    trace = case("steps_on_two_threads")
    assert [(step.name, step.end_ns - step.start_ns) for step in steps_of(trace)] == [
        ("ProfilerStep#0", 1_000_000),
        ("ProfilerStep#1", 1_000_000),
    ]
    assert {trace.tracks[step.track][1] for step in steps_of(trace)} == {"1"}
    assert summarize(trace).iterations == 2


def test_steps_of_one_number_at_other_times_are_several(tmp_path: Path) -> None:
    """The profiler ran twice; and a longer mark of a thread without ops does not hide the one with ops."""
    marks = [note("ProfilerStep#1", start, 80) for start in (100, 200)]
    marks.append({**note("ProfilerStep#1", 95, 90), "tid": 9})
    steps = steps_of(recorded(tmp_path, [3.0, 3.0], extra=tuple(marks)))
    assert [(step.start_ns, step.end_ns) for step in steps] == [(100_000, 180_000), (200_000, 280_000)]


def test_cases() -> None:
    trace = case("kernels_ts0")
    assert trace.info.report.losses == {WITHOUT_TIME: 2}
    (busy,) = summarize(trace).busy
    assert (busy.span_us, busy.busy_us) == (110.0, 20.0)
    assert doubts_of(case("kernels_before_launch")).clock_offset_us == 55.0
    assert doubts_of(case("duration_overflow")).impossible[0].kind == "longer than the rest of the recording"
