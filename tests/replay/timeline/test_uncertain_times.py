"""No verdict rests on times that cannot be: clocks that differ, impossible kernels, launches whose kernel was lost."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from opreplay.replay.ir.step import StepReport
from opreplay.replay.plan.recorded.where import where_of
from opreplay.replay.report.step.verdict import step_rows, verdict
from opreplay.replay.report.views.trace import render
from opreplay.replay.timeline.timeline import step_of, timeline
from opreplay.traces import read_trace, summarize
from opreplay.traces.times.doubts import doubts_of
from tests.traces.events import DIMS, document, kernel, launch, note, op, write

CASES = Path(__file__).parents[2] / "traces" / "cases"


def step(name: str, number: int | None = None) -> StepReport:
    return timeline(read_trace(CASES / f"{name}.json", activity=True), step=number).timeline.step


def test_differing_clocks_give_no_split_of_idle_time() -> None:
    report = step("kernels_before_launch")
    assert report.bound == "unknown"
    assert report.doubts.clock_offset_us == 55.0
    assert report.idle_us.pop("unexplained") == pytest.approx(550.0)
    assert set(report.idle_us.values()) == {0.0}


def test_impossible_times_give_no_busy_share() -> None:
    report = step("duration_overflow")
    assert report.bound == "unknown"
    assert [name for name, _, _ in step_rows(report)] == ["step", "times"]
    where = where_of(read_trace(CASES / "duration_overflow.json"))
    assert where is not None
    assert where.busy_share is None


def test_a_step_whose_kernels_were_lost() -> None:
    alone = step("launches_without_kernels", 1)
    assert (alone.bound, alone.launches, alone.launches_without_kernel) == ("host alone", 4, 4)
    chosen = step("launches_without_kernels")
    assert (chosen.name, chosen.steps, chosen.steps_with_work) == ("ProfilerStep#2", 3, 1)
    assert (chosen.bound, chosen.launches_without_kernel) == ("host", 0)


@pytest.mark.parametrize(("lost", "bound"), [(range(0), "host"), (range(0, 40, 2), "unknown"), (range(1), "host")])
def test_idle_time_of_lost_kernels_is_no_verdict(tmp_path: Path, lost: range, bound: str) -> None:
    events = [note("ProfilerStep#1", 0, 4000)]
    for call in range(40):
        events += [op("aten::mm", 100 * call, 30, call + 1, **DIMS), launch(100 * call + 5, call + 1)]
        if call not in lost:
            events.append(kernel("k", 100 * call + 15, 20, **{"External id": call + 1, "correlation": call + 1}))
    report = step_of(read_trace(write(tmp_path, document(events)), activity=True))
    assert report is not None
    assert (report.bound, report.launches_without_kernel) == (bound, len(lost))


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "hipLaunchKernel"])
def test_launches_without_any_kernel_are_no_work_of_the_host_alone(tmp_path: Path, name: str) -> None:
    events = [note("ProfilerStep#1", 0, 2000)]
    for call in range(20):
        events += [op("aten::mm", 100 * call, 30, call + 1, **DIMS)]
        events += [{**launch(100 * call + 5, call + 1), "name": name}]
    trace = read_trace(write(tmp_path, document(events)), activity=True)
    assert (trace.info.links.launches, trace.info.links.launches_without_work) == (20, 20)
    where = where_of(trace)
    assert where is not None
    assert where.launches == 20
    report = step_of(trace)
    assert report is not None
    assert (report.launches, report.launches_without_kernel) == (20, 20)
    assert "Largest" not in verdict(report)


@pytest.mark.parametrize(("zero", "untimed"), [(40, True), (4, True), (2, True), (1, False), (0, False)])
def test_durations_of_zero_are_no_timings(tmp_path: Path, zero: int, untimed: bool) -> None:
    events = [note("ProfilerStep#1", 0, 4000)]
    for call in range(40):
        events += [op("aten::mm", 100 * call, 30, call + 1, **DIMS), launch(100 * call + 5, call + 1)]
        dur = 0 if call < zero else 20
        events.append(kernel("k", 100 * call + 15, dur, **{"External id": call + 1, "correlation": call + 1}))
    trace = read_trace(write(tmp_path, document(events)), activity=True)
    assert doubts_of(trace).untimed is untimed
    assert doubts_of(trace).zero_durations == (zero if untimed else 0)
    report = step_of(trace)
    assert report is not None
    assert (report.bound == "unknown") is untimed
    console = Console(width=100, record=True, file=StringIO())
    console.print(render(summarize(trace), report, width=100))
    assert "Ops by device time" in console.export_text()


@pytest.mark.parametrize(("dur", "bound"), [(20, "unknown"), (80, "device")])
def test_without_launches_nothing_tells_what_idle_time_was_for(tmp_path: Path, dur: float, bound: str) -> None:
    events = [note("ProfilerStep#1", 0, 2000)]
    for call in range(20):
        events += [op("aten::mm", 100 * call, 30, call + 1, **DIMS)]
        events.append(kernel("k", 100 * call + 15, dur, **{"External id": call + 1}))
    report = step_of(read_trace(write(tmp_path, document(events)), activity=True))
    assert report is not None
    assert (report.bound, report.launches_unknown) == (bound, bound == "unknown")
    assert ("no launch" in verdict(report)) == report.launches_unknown
