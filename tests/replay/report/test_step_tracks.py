"""Timelines for Perfetto: recorded and simulated side by side."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from tests.replay.timeline.machine import training


def test_recorded_and_simulated_side_by_side(shared_traces: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    args = ["timeline", str(shared_traces / "h100_bert_small.json.gz"), "--soc", "910b3", "--format", "json"]
    result = CliRunner().invoke(opreplay, [*args, "--timeline", str(target)])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == {1: "recorded", 2: "simulated 910b3"}
    tasks = [e for e in events if e["ph"] == "X" and e["cat"] != "host"]
    assert len(tasks) == 2 * 61
    assert sum(e["dur"] for e in tasks if e["pid"] == 1) == pytest.approx(
        found["categories_us"]["computing"] + found["categories_us"]["copies"], rel=0.01
    )
    kernel = next(e for e in tasks if e["pid"] == 2 and e["cat"] == "kernel")
    assert {"op", "recorded_us", "families", "low_us", "high_us"} <= kernel["args"].keys()
    arrows = Counter((e["ph"], e["id"]) for e in events if e["ph"] in "sf")
    assert set(arrows.values()) == {1}
    assert {i for p, i in arrows if p == "s"} == {i for p, i in arrows if p == "f"}
    assert len(arrows) == 2 * 2 * 61


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    trace, target = training().write(tmp_path / "t.json"), tmp_path / "out.json"
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target)]).exit_code == 0
    assert json.loads(target.read_text())["traceEvents"]
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target)]).exit_code == 2
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target), "--force"]).exit_code == 0


def test_perfettos_own_format_says_the_same(tmp_path: Path) -> None:
    messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="extra perfetto")
    trace, plain, own = training().write(tmp_path / "t.json"), tmp_path / "a.json", tmp_path / "a.pftrace"
    for target in (plain, own):
        result = CliRunner().invoke(opreplay, ["timeline", trace, "--timeline", str(target)])
        assert result.exit_code == 0, result.stderr
    packets = messages.Trace.FromString(own.read_bytes()).packet
    tracks = {one.track_descriptor.uuid: one.track_descriptor for one in packets if one.HasField("track_descriptor")}
    assert {one.name for one in tracks.values()} == {"recorded", "thread 1", "stream 7", "stream 20"}
    begun: dict[int, object] = {}
    made: list[tuple[str, str, int, int]] = []
    flows: Counter[int] = Counter()
    for one in sorted((p for p in packets if p.HasField("track_event")), key=lambda p: p.timestamp):
        event = one.track_event
        track = tracks[event.track_uuid]
        flows.update([*event.flow_ids, *event.terminating_flow_ids])
        if event.type == event.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in begun  # slices of a track lie one after the other
            begun[event.track_uuid] = one
        elif event.type == event.TYPE_SLICE_END:
            start = begun.pop(event.track_uuid)
            made.append((track.name, start.track_event.name, start.timestamp, one.timestamp))
    assert not begun
    assert set(flows.values()) == {2}
    chrome = json.loads(plain.read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in chrome if e["name"] == "thread_name"}
    same = [
        (lanes[e["tid"]], e["name"], round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3))
        for e in chrome
        if e["ph"] == "X"
    ]
    assert sorted(made) == sorted(same)
    assert len(flows) == sum(e["ph"] == "s" for e in chrome)


def test_tasks_that_overlap_get_tracks_of_their_own(tmp_path: Path) -> None:
    messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="extra perfetto")
    from opreplay.replay.report.step import pftrace

    path = tmp_path / "a.pftrace"
    slice_ = {"ph": "X", "pid": 1, "tid": 1, "dur": 10.0, "cat": "kernel"}
    made = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "recorded"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "stream 7"}},
        *({**slice_, "name": name, "ts": ts} for name, ts in (("a", 0.0), ("b", 5.0), ("c", 12.0))),
    ]
    with path.open("wb") as stream:
        assert pftrace._write(made, stream) == 3
    packets = messages.Trace.FromString(path.read_bytes()).packet
    tracks = {one.track_descriptor.uuid: one.track_descriptor.name for one in packets}
    begun = [(tracks[p.track_event.track_uuid], p.track_event.name) for p in packets if p.track_event.type == 1]
    assert begun == [("stream 7", "a"), ("stream 7 (2)", "b"), ("stream 7", "c")]
