"""No verdict rests on times that cannot be: clocks that differ, impossible kernels, launches whose kernel was lost."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from opreplay.replay.ir.step import StepOnDevice, StepReport
from opreplay.replay.plan.inputs import impossible_notes
from opreplay.replay.plan.recorded.where import where_of
from opreplay.replay.report.step.verdict import step_rows, verdict
from opreplay.replay.report.views.trace import render
from opreplay.replay.timeline.timeline import step_of, timeline
from opreplay.traces import Trace, read_trace, summarize
from opreplay.traces.times.doubts import Doubts, doubts_of
from tests.traces.events import DIMS, document, kernel, launch, note, op, write

CASES = Path(__file__).parents[2] / "traces" / "cases"


def step(name: str, number: int | None = None) -> StepReport:
    return timeline(read_trace(CASES / f"{name}.json", activity=True), step=number).timeline.step


def test_differing_clocks_give_no_split_of_idle_time() -> None:
    report = step("kernels_before_launch")
    assert report.bound == "unknown"
    assert report.doubts.clock_offset_us == 55.0
    assert report.idle_us.pop("unknown_cause") == pytest.approx(550.0)
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


def test_device_work_without_an_owner_is_not_said_to_be_missing() -> None:
    alone = step("launches_without_kernels", 1)
    assert verdict(alone).startswith("No device work of this step is recorded: ")
    said = verdict(msgspec.structs.replace(alone, doubts=Doubts(collided_share=1.0)))
    assert said.startswith("No device work of this step is known (ids collide: 100.0 % of the device time")
    assert "4 of its 4 launches have no certain kernel" in said
    assert "recorded:" not in said


def test_a_prediction_says_that_work_of_launches_is_not_in_it() -> None:
    chosen = step("launches_without_kernels")
    socs = {"910b3": StepOnDevice(step_us=10.0, low_us=9.0, high_us=11.0, predicted_share=1.0, host_bound=True)}
    lost = msgspec.structs.replace(chosen, launches=3, launches_without_kernel=2, socs=socs)
    assert "without the unknown work of 2 of 3 launches)" in verdict(lost)
    whole = msgspec.structs.replace(lost, launches_without_kernel=0)
    assert "without the unknown work" not in verdict(whole)
    said = [verdict(msgspec.structs.replace(whole, socs={"910b3": msgspec.structs.replace(
        socs["910b3"], low_us=low_us, host_bound=False)})) for low_us in (9.0, 10.5)]  # fmt: skip
    assert ["the band excludes errors of times copied" in text for text in said] == [False, True]


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


def launched_kernels(
    folder: Path, ids: Callable[[int], tuple[int, int]], *, external: bool = True, scale: float = 1.0
) -> Trace:
    """40 ops that launch a kernel of 20 us each. `ids`: correlation of each launch and kernel; `scale`: of times."""
    events = [note("ProfilerStep#1", 0, 4000)]
    for call in range(40):
        of_launch, of_kernel = ids(call)
        events += [op("aten::mm", 100 * call, 30, 1000 + call, **DIMS), launch(100 * call + 5, of_launch)]
        events.append(op("aten::t", 100 * call + 1, 2, 2000 + call, **DIMS))
        more: dict[str, Any] = {"External id": 1000 + call} if external else {}
        events.append(kernel("k", 100 * call + 15, 20, correlation=of_kernel, **more))
    scaled = [{**event, "ts": event["ts"] * scale, "dur": event["dur"] * scale} for event in events]
    return read_trace(write(folder, document(scaled)), activity=True)


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize(
    ("ids", "shared"),
    [
        (lambda call: (1, 1), 40),
        (lambda call: (0, 0), 40),
        (lambda call: (call + 1, 1), 40),
        (lambda call: (call % 3, call % 3), 40),
        (lambda call: (call + 1, call + 1) if call < 30 else (99, 99), 10),
        (lambda call: (call + 1, call + 1), 0),
        (lambda call: (call % 20, call % 20), 0),  # two runs of the profiler in one file
    ],
)
def test_ids_that_many_launches_share_tell_nothing(
    tmp_path: Path, ids: Callable[[int], tuple[int, int]], shared: int, external: bool
) -> None:
    trace = launched_kernels(tmp_path, ids, external=external)
    assert doubts_of(trace).shared_ids == shared
    assert int((trace.kernels.owner < 0).sum()) == (0 if external else shared), "a guessed owner is a wrong one"
    assert trace.info.links.launches_without_work == 0 or not shared or shared < 40
    report = step_of(trace)
    assert report is not None
    assert (report.bound == "unknown") is (shared > 0)
    assert ("ids do not show" in verdict(report)) is (shared > 0)
    assert len(impossible_notes(trace, "t")) == (shared > 0)
    assert "no launch of its" not in verdict(report)


def test_kernels_of_a_graph_have_one_id(tmp_path: Path) -> None:
    call = {**launch(105, 5), "name": "cudaGraphLaunch"}
    kernels = [kernel("k", 120 + 10 * i, 8, correlation=5) for i in range(20)]
    trace = read_trace(write(tmp_path, document([op("a::b", 100, 30, 1, **DIMS), call, *kernels])))
    assert doubts_of(trace) == Doubts()
    assert (trace.kernels.owner == 0).all()


@pytest.mark.parametrize("on_device", [True, False])
def test_ops_of_duration_zero_give_no_verdict(tmp_path: Path, on_device: bool) -> None:
    events = [note("ProfilerStep#1", 0, 4000)]
    for call in range(40):
        events.append(op("aten::mm", 100 * call, 0 if call else 30, call + 1, **DIMS))
        if on_device:
            ids: dict[str, Any] = {"External id": call + 1, "correlation": call + 1}
            events.append(launch(100 * call, call + 1))
            events.append(kernel("k", 100 * call + 15, 20, **ids))
    trace = read_trace(write(tmp_path, document(events)), activity=True)
    assert doubts_of(trace).zero_ops == 39
    report = step_of(trace)
    assert report is not None
    text = verdict(report)
    assert "host times are not recorded" in text
    assert "Largest" not in text
    assert "ops run" not in text
    assert "bound:" not in text
    assert "times" in [name for name, _, _ in step_rows(report)]


@pytest.mark.parametrize("zero", [0, 8])
def test_a_few_ops_of_duration_zero_are_rounded(tmp_path: Path, zero: int) -> None:
    events = [op("aten::mm", 100 * call, 0 if call < zero else 30, call + 1, **DIMS) for call in range(40)]
    assert doubts_of(read_trace(write(tmp_path, document(events)))) == Doubts()


@pytest.mark.parametrize(
    ("scale", "kernel_us", "view_us"),
    [(1.0, 0.0, 0.0), (1e-3, 0.02, 0.002), (1e-2, 0.0, 0.0), (1e3, 0.0, 2e3), (1e4, 0.0, 2e4), (1e6, 2e7, 2e6)],
)
def test_times_in_another_unit_are_doubted(tmp_path: Path, scale: float, kernel_us: float, view_us: float) -> None:
    """Durations in ms, or in parts of a microsecond, as if they were microseconds."""
    trace = launched_kernels(tmp_path, lambda call: (call + 1, call + 1), scale=scale)
    doubts = doubts_of(trace)
    assert doubts.kernel_us == pytest.approx(kernel_us, abs=1e-6)
    assert (doubts.view_us > 0) == (view_us > 0)
    report = step_of(trace)
    assert report is not None
    assert (report.bound == "unknown") is (view_us > 0)
    assert ("probably not in microseconds" in verdict(report)) is (view_us > 0)
    assert any("microseconds" in note for note in impossible_notes(trace, "t")) is (view_us > 0)


def test_ops_of_an_execution_trace_have_no_times_to_doubt() -> None:
    trace = read_trace(Path(__file__).parents[2] / "traces" / "dialects" / "others" / "et_rank_none.json")
    assert doubts_of(trace).zero_ops == 0
