"""Begin and end events: they give the tables of complete ones, whatever their order; what is left over is a loss."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces import Trace, read_trace
from opreplay.traces.summary import summarize
from tests.traces.events import document, kernel, launch, note, op, write

OTHERS = Path(__file__).parents[1] / "dialects" / "others"
FULL = {"Input Dims": [[2, 2]], "Input type": ["float"]}


def halves(event: dict[str, Any], *, named: bool = True, both: str = "BE") -> list[dict[str, Any]]:
    """A complete event as its begin and its end."""
    begin = {name: value for name, value in event.items() if name != "dur"} | {"ph": both[0]}
    end = {"ph": both[1], "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]}
    if named:
        end |= {"name": event["name"], "cat": event["cat"]}
    if both == "be":
        begin["id"] = end["id"] = f"{event['cat']} {event['ts']}"
        end["cat"] = event["cat"]
    return [begin, end]


def nested_events(count: int) -> list[dict[str, Any]]:
    """Steps of an op around an op, launch and kernel."""
    events = [note("ProfilerStep#1", 0, 100 * count + 50)]
    for i in range(count):
        at = 100 * i + 10
        events += [
            op("aten::linear", at, 60, 10 * i, **FULL),
            op("aten::mm", at + 5, 30, 10 * i + 1, **FULL),
            launch(at + 10, i),
            kernel("gemm", at + 20, 7.5, correlation=i, **{"External id": 10 * i + 1}),
            op("aten::relu", at + 40, 10, 10 * i + 2, tid=2, **FULL),
        ]
    return events


def read(folder: Path, events: list[dict[str, Any]], **options: Any) -> Trace:
    return read_trace(write(folder, document(events)), **options)


def by_time(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(events, key=lambda event: (event["ts"], event["ph"] == "B"))


def rows(trace: Trace) -> list[Any]:
    """Ops, kernels with their owners, and annotations, in order of time."""
    names = [trace.signatures[i].name for i in trace.ops.signature]
    ops = zip(names, trace.ops.start_ns.tolist(), trace.ops.dur_ns.tolist(), strict=True)
    starts = trace.ops.start_ns.tolist()
    kernels = [
        (start, duration, starts[owner] if owner >= 0 else None)
        for start, duration, owner in zip(
            trace.kernels.start_ns.tolist(), trace.kernels.dur_ns.tolist(), trace.kernels.owner.tolist(), strict=True
        )
    ]
    notes = [(each.name, each.start_ns, each.dur_ns) for each in trace.annotations]
    return [sorted(ops), sorted(kernels), sorted(notes)]


def test_the_pairs_of_a_converter(tmp_path: Path) -> None:
    summary = summarize(read_trace(OTHERS / "begin_end_pairs.json"))
    assert (summary.cpu_ops, summary.kernels, summary.device_time_us, summary.events) == (3, 3, 30.0, 18)
    assert summary.owned_device_time_us == 30.0
    assert summary.losses == {}


@pytest.mark.parametrize("activity", [False, True])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("order", ["of time", "latest first", "begins first", "ends first", "pair by pair", "shuffled"])
def test_pairs_give_what_complete_events_give(tmp_path: Path, named: bool, order: str, activity: bool) -> None:
    whole = nested_events(5)
    want = read(tmp_path, whole, activity=activity)
    parts = [half for event in whole for half in halves(event, named=named)]
    if order in ("of time", "latest first"):
        parts = by_time(parts)[:: 1 if order == "of time" else -1]
    elif order == "shuffled":
        random.Random(7).shuffle(parts)
    elif order != "pair by pair":
        parts = [half for ph in ("BE" if order == "begins first" else "EB") for half in parts if half["ph"] == ph]
    got = read(tmp_path, parts, activity=activity)
    assert got.info.report.losses == {}
    assert rows(got) == rows(want)
    assert got.info.events == 2 * len(whole)
    assert got.info.events_by_category == want.info.events_by_category


def test_asynchronous_pairs_and_a_mixture(tmp_path: Path) -> None:
    whole = nested_events(4)
    parts = [
        half
        for i, event in enumerate(whole)
        for half in ([event] if i % 3 == 0 else halves(event, both="be" if i % 3 == 1 else "BE"))
    ]
    got = read(tmp_path, parts)
    assert rows(got) == rows(read(tmp_path, whole))
    assert got.info.report.losses == {}


def test_ends_add_their_arguments(tmp_path: Path) -> None:
    begin, end = halves(op("aten::mm", 10, 20, 1))
    trace = read(tmp_path, [begin, end | {"args": FULL}])
    (signature,) = trace.signatures
    assert signature.dims == ((2, 2),)


def test_what_has_no_other_half_is_a_loss(tmp_path: Path) -> None:
    whole = nested_events(3)
    parts = by_time([half for event in whole for half in halves(event)])
    begins = [part for part in parts if part["ph"] == "B" and part["name"] == "aten::mm"]
    ends = [part for part in parts if part["ph"] == "E" and part["name"] == "gemm"]
    got = read(tmp_path, [part for part in parts if part not in (begins[0], begins[1], ends[2])])
    assert got.info.report.losses == {"end event without a begin event": 2, "begin event without an end event": 1}
    assert (len(got.ops), len(got.kernels)) == (7, 2)


def test_overlapping_pairs_are_told_by_name(tmp_path: Path) -> None:
    first, second = halves(op("a::b", 10, 20, 1)), halves(op("c::d", 20, 20, 2))
    trace = read(tmp_path, [first[0], second[0], first[1], second[1]])
    assert rows(trace)[0] == [("a::b", 10_000, 20_000), ("c::d", 20_000, 20_000)]


@pytest.mark.parametrize("block", [256, 1 << 18])
def test_pairs_behind_the_first_megabyte(tmp_path: Path, block: int) -> None:
    whole = nested_events(1200)
    later = [{**event, "ts": event["ts"] + 1e6} for event in nested_events(2)]
    late = [half for event in later for half in halves(event)]
    path = write(tmp_path, document([*whole, *late]))
    assert path.stat().st_size > 1 << 20
    trace = read_trace(path, _block_bytes=block)
    assert (len(trace.ops), len(trace.kernels)) == (3 * 1202, 1202)
    assert trace.info.report.losses == {}


@pytest.mark.slow
def test_a_file_read_by_several_processes_keeps_its_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opreplay.traces.reading.parallel.MIN_PART_BYTES", 1 << 16)
    parts = by_time([half for event in nested_events(900) for half in halves(event)])
    path = write(tmp_path, document(parts))
    one, two = read_trace(path), read_trace(path, processes=2)
    assert rows(one) == rows(two)
    assert len(two.ops) == 2700
    assert two.info.report.losses == {}


@pytest.mark.parametrize("phase", ["i", "P", "N", 3, None])
def test_another_phase_of_a_known_category_is_a_loss(tmp_path: Path, phase: object) -> None:
    trace = read(tmp_path, [op("aten::mm", 1, 1, 1), op("aten::mm", 5, 1, 2) | {"ph": phase}])
    assert trace.info.report.losses == {f"event of phase {phase if isinstance(phase, str) else ''!r} (cpu_op)": 1}
    assert len(trace.ops) == 1


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), dropped=st.integers(0, 4))
def test_any_order_loses_no_event_but_those_cut(
    tmp_path_factory: pytest.TempPathFactory, seed: int, dropped: int
) -> None:
    """Pairs of distinct names in any order; each half that is missing costs one event and is counted."""
    draw = random.Random(seed)
    events = [op(f"aten::op{i}", draw.randrange(1000), draw.randrange(50), i, tid=i % 3) for i in range(12)]
    parts = [half for event in events for half in halves(event)]
    draw.shuffle(parts)
    cut = {(part["name"], part["ph"]) for part in draw.sample(parts, dropped)}
    kept = [part for part in parts if (part["name"], part["ph"]) not in cut]
    trace = read(tmp_path_factory.mktemp("pairs"), kept)
    whole = {event["name"] for event in events} - {name for name, _ in cut}
    assert {trace.signatures[i].name for i in trace.ops.signature} == whole
    by_name = {event["name"]: event["dur"] * 1000 for event in events}
    assert all(
        by_name[trace.signatures[i].name] == duration
        for i, duration in zip(trace.ops.signature, trace.ops.dur_ns.tolist(), strict=True)
    )
    broken = sum((name, other) not in cut for name, ph in cut for other in ("BE".replace(ph, ""),))
    assert sum(trace.info.report.losses.values()) == broken


@pytest.mark.slow
def test_many_open_begins_stay_linear(tmp_path: Path) -> None:
    events = [op(f"aten::op{i % 5}", i, 0.5, i) for i in range(6000)]
    parts = [half for both in ("B", "E") for event in events for half in halves(event) if half["ph"] == both]
    trace = read_trace(write(tmp_path, json.dumps({"traceEvents": parts}).encode()))
    assert len(trace.ops) == 6000
    assert np.unique(trace.ops.dur_ns).tolist() == [500]


def same_name(*spans: tuple[float, float]) -> list[dict[str, Any]]:
    """The halves of calls of one op on one thread: begin, end, begin, end, ..."""
    return [half for i, (start, end) in enumerate(spans) for half in halves(op("aten::mm", start, end - start, i))]


def durations(trace: Trace) -> list[tuple[int, int]]:
    return sorted(zip(trace.ops.start_ns.tolist(), trace.ops.dur_ns.tolist(), strict=True))


SPANS = ((10.0, 15.0), (20.0, 25.0), (30.0, 38.0), (40.0, 41.0))


@pytest.mark.parametrize("activity", [False, True])
@pytest.mark.parametrize(
    "order",
    [
        (1, 0, 3, 2, 5, 4, 7, 6),  # each end ahead of its begin
        (7, 6, 5, 4, 3, 2, 1, 0),
        (3, 0, 1, 2, 5, 4, 7, 6),
        (0, 1, 2, 3, 4, 7, 6, 5),  # in order, until two pairs were made
        (0, 3, 2, 1, 4, 5, 6, 7),  # a pair is made that proves wrong later
        (6, 7, 0, 1, 4, 5, 2, 3),
    ],
)
def test_calls_of_one_name_are_paired_by_time(tmp_path: Path, order: tuple[int, ...], activity: bool) -> None:
    """An end ahead of its begin in the file closed the begin of another call."""
    parts = same_name(*SPANS)
    got = read(tmp_path, [parts[i] for i in order], activity=activity)
    assert durations(got) == [(int(1000 * start), int(1000 * (end - start))) for start, end in SPANS]
    assert got.info.report.losses == {}
    assert got.info.events == 8


@pytest.mark.parametrize("named", [True, False])
def test_calls_that_follow_at_once_are_not_one_inside_the_other(tmp_path: Path, named: bool) -> None:
    events = [op("aten::mm", 10 * i, 10, i) for i in range(4)]
    parts = [half for event in events for half in halves(event, named=named)]
    assert durations(read(tmp_path, parts[::-1])) == [(10_000 * i, 10_000) for i in range(4)]


def test_a_call_of_no_duration_closes_itself(tmp_path: Path) -> None:
    parts = [half for event in (op("aten::b", 5, 20, 1), op("aten::a", 10, 0, 2)) for half in halves(event)]
    assert durations(read(tmp_path, [parts[i] for i in (1, 3, 2, 0)])) == [(5_000, 20_000), (10_000, 0)]


def test_ends_without_a_name_at_the_time_of_a_begin_are_said(tmp_path: Path) -> None:
    parts = [
        half for event in (op("aten::b", 5, 20, 1), op("aten::a", 10, 0, 2)) for half in halves(event, named=False)
    ]
    trace = read(tmp_path, [parts[i] for i in (3, 1, 2, 0)])
    assert trace.info.report.losses == {"end event without a name, at the same time as a begin event": 1}


def test_pairs_of_no_order_are_read_from_a_pipe(tmp_path: Path) -> None:
    parts = same_name(*SPANS)
    path = write(tmp_path, document([parts[i] for i in (0, 3, 2, 1, 4, 5, 6, 7)]))
    command = [sys.executable, "-c", "from opreplay.traces import *; print(read_trace('-').ops.dur_ns.tolist())"]
    done = subprocess.run(command, input=path.read_text(), capture_output=True, text=True, check=True)
    assert sorted(json.loads(done.stdout)) == [1000, 5000, 5000, 8000]


@pytest.mark.slow
def test_the_pairs_of_one_name_in_any_order_take_linear_time(tmp_path: Path) -> None:
    parts = same_name(*((10.0 * i, 10.0 * i + 4) for i in range(20_000)))
    random.Random(3).shuffle(parts)
    trace = read(tmp_path, parts)
    assert np.unique(trace.ops.dur_ns).tolist() == [4000]
    assert len(trace.ops) == 20_000
