# pyright: strict
"""Launches of an NPU's tasks: flows of older msprof with numbers other than the tasks', and calls that compile."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from opreplay.replay.report.step.text import render
from opreplay.replay.timeline.timeline import Timeline, timeline
from opreplay.traces import read_trace

PYTHON, NPU, CANN = 77, 800, 7702
MAIN, QUEUE, STREAM = 77, 78, 3
COMPILE_US = 2000.0


def event(pid: int, tid: int, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": f"{ts:.3f}", "dur": dur, **more}


def arrow(kind: str, ident: object, source: tuple[int, int, float], target: tuple[int, int, float]):
    common = {"cat": kind, "id": ident, "name": kind}
    return [
        {**common, "ph": "s", "pid": source[0], "tid": source[1], "ts": f"{source[2]:.3f}"},
        {**common, "ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": f"{target[2]:.3f}"},
    ]


def compiling(steps: int = 4) -> list[dict[str, Any]]:
    """Each op is handed to the queue's thread, which compiles for long, launches twice and returns after the tasks."""
    names = {PYTHON: "Python", NPU: "Ascend Hardware", CANN: "CANN"}
    out = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": n}} for pid, n in names.items()]
    mark = event(PYTHON, MAIN, "ProfilerStep#1", 1000, steps * 2500.0, cat="cpu_op", args={})
    out.append(mark)
    for i in range(steps):
        at = 1100 + 2500.0 * i
        out.append(event(PYTHON, MAIN, "aten::convolution", at, 50, cat="cpu_op", args={}))
        out.append(event(PYTHON, MAIN, "Enqueue", at + 10, 5, cat="enqueue", args={"correlation_id": 8 + i}))
        work = at + 40
        queued = event(PYTHON, QUEUE, "Dequeue@Conv2D", work, COMPILE_US, cat="dequeue", args={"correlation_id": 8 + i})
        call = {"level": "acl", "id": "aclopCompileAndExecute", "item_id": "0", "connection_id": 500 + i}
        out += [queued, event(CANN, QUEUE, "AscendCL@aclopCompileAndExecute", work + 1, COMPILE_US - 2, args=call)]
        out += arrow("async_task_queue", 8 + i, (PYTHON, MAIN, at + 10), (PYTHON, QUEUE, work))
        for part in range(2):
            connection, launch = 8 + 2 * i + part, work + COMPILE_US - 60 + 20 * part
            start = launch + 5
            args = {"Task Type": "AI_CORE", "Stream Id": STREAM, "Task Id": connection, "connection_id": connection}
            out.append(event(NPU, STREAM, "Conv2D", start, 10, args=args))
            flow = str((connection << 32) + 0xFFFFFFFF)
            out += arrow("HostToDevice", flow, (CANN, QUEUE, launch), (NPU, STREAM, start))
            out += arrow("async_npu", f"{start}", (PYTHON, MAIN, at + 10), (NPU, STREAM, start))
    return out


def found(folder: Path) -> Timeline:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(compiling()))
    return timeline(read_trace(path, activity=True)).timeline


def test_flows_numbered_otherwise_than_tasks_tell_their_launches(tmp_path: Path) -> None:
    """No launch was found, and the host's compiling was called waiting for another stream, where there is one."""
    made = found(tmp_path)
    assert made.edges["launch"].recorded == 8
    categories = made.categories_us
    assert categories.idle_waiting_for_host == pytest.approx(3 * 2500, rel=0.02)
    assert categories.idle_gaps_between_tasks == 0
    assert abs(made.structure_error) < 0.001


def test_one_stream_waits_for_no_other(tmp_path: Path) -> None:
    stream = io.StringIO()
    Console(file=stream, width=100).print(render(found(tmp_path), 100))
    assert "waiting for the host" in stream.getvalue()
    assert "another stream" not in stream.getvalue()


def test_a_recorded_step_that_compiles_is_bound_by_its_host(shared_traces: Path) -> None:
    made = timeline(read_trace(shared_traces / "npu_timeline_trace_view.json.gz", activity=True)).timeline
    assert made.edges["launch"].recorded == 274
    assert made.categories_us.idle_waiting_for_host > 0.9 * 9480
    assert made.unexplained_us < 100
    assert abs(made.structure_error) < 0.001
