"""A part of a trace as a trace of its own."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError
from opreplay.traces.trim import SPOOL_BYTES, Wanted, first_time_ns, op_spans, step_span, trim


def load(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)


def events_of(document: Any) -> list[dict[str, Any]]:
    return document if isinstance(document, list) else document["traceEvents"]


def expected(events: list[dict[str, Any]], low: float, high: float) -> int:
    """By the rule, with the standard library: all metadata, what starts in the span, device work launched in it."""
    inside = [e for e in events if e.get("ph") != "M" and "ts" in e and low <= float(e["ts"]) < high]
    launched = {
        e["args"]["correlation"]
        for e in inside
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]
    }
    arrows = {e["id"] for e in inside if e.get("cat") == "ac2g" and e["ph"] == "s"}
    late = [
        e
        for e in events
        if e.get("ph") != "M"
        and "ts" in e
        and float(e["ts"]) >= high
        and (
            (e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e["args"].get("correlation") in launched)
            or (e.get("cat") == "ac2g" and e["ph"] == "f" and e["id"] in arrows | launched)
        )
    ]
    return sum(e.get("ph") == "M" for e in events) + len(inside) + len(late)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),
    [("mi300_resnet_ddp_act_checkpoint", 16), ("nvidia_trace_diff_control", 1012), ("nvidia_nccl_parser", 5)],
)
def test_a_step_reads_back_with_equal_counts(shared_traces: Path, tmp_path: Path, name: str, step: int) -> None:
    source, target = shared_traces / f"{name}.json.gz", tmp_path / "small.json.gz"
    span = step_span(source, step)
    made = trim(source, target, Wanted(spans=(span,)))
    before, after = load(source), load(target)
    assert made.of_events == len(events_of(before))
    assert made.events == len(events_of(after))
    assert {k: v for k, v in after.items() if k != "traceEvents"} == {
        k: v for k, v in before.items() if k != "traceEvents"
    }
    ids = {json.dumps(e, sort_keys=True) for e in events_of(before)}
    assert all(json.dumps(e, sort_keys=True) in ids for e in events_of(after))
    if name != "nvidia_trace_diff_control":  # its arrows have another category
        assert made.events == expected(events_of(before), *(time_ns / 1e3 for time_ns in span))
    trace = read_trace(target)
    assert trace.info.events == made.events
    assert len(trace.kernels) == made.device_events
    assert not trace.info.report.losses


def test_a_list_stays_a_list(shared_traces: Path, tmp_path: Path) -> None:
    source, target = shared_traces / "npu_timeline_trace_view.json.gz", tmp_path / "small.json"
    first = first_time_ns(source)
    made = trim(source, target, Wanted(spans=((first, first + 5_000_000),)))
    after = load(target)
    assert isinstance(after, list)
    assert len(after) == made.events < made.of_events
    assert read_trace(target).info.dialect == "ascend"


def test_ops_with_what_runs_inside_them(shared_traces: Path, tmp_path: Path) -> None:
    source, target = shared_traces / "h100_qwen1.5_0.5b.json.gz", tmp_path / "small.json.gz"
    trim(source, target, Wanted(of_threads=op_spans(source, ["aten::addmm"])))
    before, after = read_trace(source), read_trace(target)

    def owned(trace: Any) -> int:
        names = [s.name for s in trace.signatures]
        return sum(names[trace.ops.signature[row]] == "aten::addmm" for row in trace.kernels.owner if row >= 0)

    assert owned(after) == owned(before) > 0
    with pytest.raises(TraceError, match="no op"):
        op_spans(source, ["aten::nothing*"])


def test_what_does_not_match_leaves_no_file(shared_traces: Path, tmp_path: Path) -> None:
    source, target = shared_traces / "h100_bert_small.json.gz", tmp_path / "small.json"
    with pytest.raises(TraceError, match="no event"):
        trim(source, target, Wanted(spans=((1_000, 2_000),)))
    assert not target.exists()
    with pytest.raises(TraceError, match="marks no ProfilerStep#77"):
        step_span(source, 77)


def test_odd_entries_and_device_work_before_its_launch(tmp_path: Path) -> None:
    def event(cat: str, ts: Any, corr: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": cat,
            "name": "x",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": 1,
            "args": {"correlation": corr},
        }

    events = [
        event("kernel", 250.0, 1),
        event("kernel", 260.0, 2),
        3,
        None,
        {"ph": "X"},
        {"ph": "X", "ts": "soon"},
        event("cuda_runtime", "150.5", 1),
        event("cuda_runtime", 90, 2),
        {"ph": "M", "name": "process_name"},
    ]
    source, target = tmp_path / "t.json", tmp_path / "small.json"
    source.write_text(json.dumps({"traceEvents": events, "x": [1]}))
    made = trim(source, target, Wanted(spans=((100_000, 200_000),)))
    after = load(target)
    assert after["x"] == [1]
    assert sorted(e.get("cat", "M") for e in after["traceEvents"]) == ["M", "cuda_runtime", "kernel"]
    assert made.device_events == 1


def complete(cat: Any, ts: Any, dur: float = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": "x", "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def written(path: Path, events: list[Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.mark.parametrize("category", [["kernel"], {"kernel": 1}, 5, True, 1.5])
def test_a_category_that_is_no_text_is_no_device_work(tmp_path: Path, category: Any) -> None:
    events = [complete("cpu_op", 1.0), complete(category, 1.5, correlation=1), complete(category, 9.0, correlation=1)]
    made = trim(written(tmp_path / "t.json", events), tmp_path / "o.json", Wanted(spans=((1_000, 2_000),)))
    assert (made.events, made.device_events) == (2, 0)


def test_the_first_time_where_it_straddles_what_is_read_at_once(tmp_path: Path) -> None:
    """A number whose digits come in two readings is the number that stands there."""
    events = [complete("cpu_op", 1_234_567 + at, note="n" * 200) for at in range(30_000)]
    assert first_time_ns(written(tmp_path / "t.json", events)) == 1_234_567_000


def test_ops_without_a_duration_at_times_since_1970(tmp_path: Path) -> None:
    """A microsecond of Unix time is no multiple of what float64 tells apart."""
    events = [complete("cpu_op", 1_736_405_443_893_560 + at, 0) | {"name": "aten::mm"} for at in range(50)]
    source = written(tmp_path / "t.json", events)
    spans = op_spans(source, ["aten::mm"])
    assert spans["1", "1"][0] == (1_736_405_443_893_560_000, 1_736_405_443_893_560_001)
    assert trim(source, tmp_path / "o.json", Wanted(of_threads=spans)).events == 50


@pytest.mark.slow
def test_device_work_that_waits_for_its_launch_is_not_held_in_memory(tmp_path: Path) -> None:
    launches = [complete("cuda_runtime", at, correlation=at) for at in range(1, 101)]
    work = [complete("kernel", 200 + at, correlation=at, note="n" * 1000) for at in range(1, 40_001)]
    source = written(tmp_path / "t.json", [*work, *launches])
    tracemalloc.start()
    made = trim(source, tmp_path / "o.json", Wanted(spans=((0, 101_000),)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (made.device_events, made.missing_device_work) == (100, 0)
    assert source.stat().st_size > 1.5 * SPOOL_BYTES
    assert peak < 1.5 * SPOOL_BYTES


def test_an_execution_trace_has_no_times(shared_traces: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        first_time_ns(shared_traces / "param_linear_et.json.gz")
    with pytest.raises(TraceError):
        trim(shared_traces / "param_linear_et.json.gz", tmp_path / "o.json", Wanted(spans=((0, 10**18),)))
    assert not (tmp_path / "o.json").exists()


def test_begin_and_end_events_are_not_separated(tmp_path: Path) -> None:
    source = Path(__file__).parent / "dialects" / "others" / "begin_end_pairs.json"
    with pytest.raises(TraceError, match="begin and end events"):
        trim(source, tmp_path / "part.json", Wanted(spans=((0, 2_000_000),)))
    assert not (tmp_path / "part.json").exists()
