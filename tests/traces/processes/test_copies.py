"""Events that a file holds twice count once, and how many is said; events that are merely alike stay."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.replay.plan.inputs import loss_notes
from opreplay.replay.report.step.verdict import verdict
from opreplay.replay.timeline.timeline import step_of
from opreplay.traces import Trace, read_trace, summarize
from opreplay.traces.losses import COPIED_OPS, COPIED_WORK
from tests.traces.events import DIMS, document, flow, kernel, launch, note, op, write

Event = dict[str, Any]


def recording(calls: int = 8) -> list[Event]:
    events = [note("ProfilerStep#1", 0, 100 * calls)]
    for call in range(calls):
        ident, at = call + 1, 100 * call
        ids = {"External id": ident, "correlation": ident}
        events += [op("aten::mm", at, 30, ident, **DIMS), launch(at + 5, ident), flow("s", ident, at + 5)]
        events += [kernel("gemm", at + 15, 20 + call, **ids), flow("f", ident, at + 15, pid=0, tid=20)]
    return events


def read(folder: Path, events: list[Event], **options: Any) -> Trace:
    return read_trace(write(folder, document(events)), **options)


def shuffled(events: list[Event]) -> list[Event]:
    twice = [event for event in events for _ in range(2)]
    random.Random(0).shuffle(twice)
    return twice


@pytest.mark.parametrize("merge", [lambda events: events + events, shuffled, lambda events: events * 3])
@pytest.mark.parametrize("activity", [False, True])
def test_a_file_written_twice_counts_once(tmp_path: Path, merge: Any, activity: bool) -> None:
    once, twice = recording(), merge(recording())
    alone, both = (summarize(read(tmp_path, events, activity=activity)) for events in (once, twice))
    copies = len(twice) // len(once) - 1
    assert both.losses == {COPIED_OPS: 8 * copies, COPIED_WORK: 8 * copies}
    assert (both.cpu_ops, both.kernels, both.device_time_us) == (8, 8, alone.device_time_us)
    assert (both.owned_device_time_us, both.iterations) == (alone.device_time_us, 1)
    assert (both.links, both.annotations, both.doubts) == (alone.links, alone.annotations, alone.doubts)


@pytest.mark.parametrize(
    ("category", "left_out"), [("kernel", {COPIED_WORK: 8}), ("cpu_op", {COPIED_OPS: 8}), ("cuda_runtime", {})]
)
def test_copies_of_one_category(tmp_path: Path, category: str, left_out: dict[str, int]) -> None:
    events = recording()
    trace = read(tmp_path, events + [event for event in events if event["cat"] == category])
    assert trace.info.report.losses == left_out
    assert summarize(trace).owned_device_time_us == sum(range(20, 28))


def test_the_first_lines_say_it(tmp_path: Path) -> None:
    trace = read(tmp_path, recording() * 2, activity=True)
    (line,) = loss_notes(trace.info.report.losses, "x.json")
    assert "16 duplicate events" in line
    step = step_of(trace)
    assert step is not None
    assert step.bound == "host"
    assert "16 duplicate events in the file were counted only once" in verdict(step)


def test_a_file_of_the_host_alone_lost_no_device_work(tmp_path: Path) -> None:
    events = [event for event in recording() if event["cat"] in ("cpu_op", "user_annotation")]
    step = step_of(read(tmp_path, events * 2, activity=True))
    assert step is not None
    assert verdict(step).startswith("On the host alone")


@pytest.mark.parametrize("us", [3, 3.125])
def test_a_call_without_id_inside_its_like_stays_where_times_are_coarse(tmp_path: Path, us: float) -> None:
    call = op("aten::contiguous", 10, us, None, **DIMS)
    del call["args"]["External id"]
    trace = read(tmp_path, [*recording(), call, call])
    assert len(trace.ops) == (10 if us == 3 else 9)


def test_kernels_that_are_merely_alike_stay(tmp_path: Path) -> None:
    ids = {"External id": 1, "correlation": 1}
    alike = [
        kernel("gemm", 15, 0, **ids),  # two of a graph, too short for the clock
        kernel("gemm", 15, 0, **ids),
        kernel("gemm", 40, 2, **ids),
        kernel("gemm", 40, 2, **{**ids, "stream": 21}),
        kernel("gemm", 40, 2, **{**ids, "device": 1}),
        kernel("gemm", 40, 2, **{**ids, "correlation": 2}),
        kernel("relu", 40, 2, **ids),
    ]
    trace = read(tmp_path, [op("aten::mm", 0, 30, 1), launch(5, 1), *alike])
    assert len(trace.kernels) == 7
    assert not trace.info.report.losses


def test_zero_is_no_time_that_tells_kernels_apart(tmp_path: Path) -> None:
    events = [kernel("gemm", 0, 2), kernel("gemm", 0, 2), kernel("gemm", 5, 2)]
    assert len(read(tmp_path, events).kernels) == 3


def test_parts_read_at_once_have_their_copies_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, document(recording(200) * 2))
    whole, cut = read_trace(path), read_trace(path, _block_bytes=512)
    assert whole.info.report.losses == {COPIED_OPS: 200, COPIED_WORK: 200}
    assert cut.info.report == whole.info.report
    assert np.array_equal(cut.kernels.start_ns, whole.kernels.start_ns)
    assert np.array_equal(cut.kernels.owner, whole.kernels.owner)
