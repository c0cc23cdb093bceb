"""Kernels of captured graphs get the ops of their capture, told by names (ROCm) or by order (CUDA)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces import Limits, Trace, read_trace
from opreplay.traces.joins.graph_capture import (
    HINT,
    capture_candidates,
    captures_of,
    join_text,
    with_captures,
    with_captures_in_folder,
)
from opreplay.traces.model import CapturedGraph

Part = Sequence[tuple[str, int, str]]
"""(op, rows of its matrix, kernel) of each launch of a graph."""

LAYER = (("aten::mm", 1, "gemm"), ("aten::relu", 1, "relu"))
TAIL = (("aten::mm", 1, "gemm"), ("aten::tanh", 1, "tanh"), ("aten::mm", 2, "gemm"))


def op(name: str, rows: int, ts: int, dur: int) -> dict[str, Any]:
    count = 2 if name == "aten::mm" else 1
    arguments = {
        "Input Dims": [[rows, rows]] * count,
        "Input type": ["float"] * count,
        "Input Strides": [[rows, 1]] * count,
        "Concrete Inputs": [""] * count,
    }
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": {"External id": ts, **arguments},
    }


def call(name: str, ts: int, correlation: int, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": 1,
        "args": {"correlation": correlation, **args},
    }


def note(name: str, ts: int, dur: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def capture(api: str, sizes: dict[int, Sequence[Part]], scale: int = 1) -> list[dict[str, Any]]:
    """Captures of the parts of a model, for batches of several sizes; the matrices are as large as the batch."""
    events, now, correlation = [], 1000, 1
    for size, parts in sizes.items():
        first = now
        for part in parts:
            events.append(call(f"{api}StreamBeginCapture", now, correlation))
            for name, rows, kernel in part:
                now, correlation = now + 100, correlation + 1
                events.append(op(name, rows * size * scale, now, 50))
                named = {"kernel": kernel} if api == "hip" else {}
                events.append(call(f"{api}LaunchKernel", now + 10, correlation, **named))
            now, correlation = now + 100, correlation + 1
            events.append(call(f"{api}StreamEndCapture", now, correlation))
            now += 10
        events.append(note(f"capture_{size}_PIECEWISE", first - 1, now - first + 1))
        now += 10
    return events


def execution(api: str, runs: Sequence[tuple[int, Sequence[Part]]]) -> list[dict[str, Any]]:
    """Iterations of so many tokens, each a launch of some parts; every kernel takes 10 µs."""
    events, now, device, correlation = [], 1000, 50_000, 100
    for tokens, parts in runs:
        first = now
        for part in parts:
            correlation += 1
            events.append(call(f"{api}GraphLaunch", now, correlation))
            for _, _, kernel in part:
                events.append(
                    {
                        "ph": "X",
                        "cat": "kernel",
                        "name": kernel,
                        "pid": 0,
                        "tid": 7,
                        "ts": device,
                        "dur": 10,
                        "args": {"correlation": correlation, "device": 0, "stream": 7},
                    }
                )
                device += 20
            now += 1000
        events.append(note(f"execute_context_0(0)_generation_{tokens}({tokens})", first - 1, now - first))
    return events


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def owners(trace: Trace) -> list[tuple[str, int] | None]:
    """(op, rows of its matrix) of each kernel."""
    found = []
    for row in trace.kernels.owner.tolist():
        signature = None if row < 0 else trace.signatures[trace.ops.signature[row]]
        found.append(None if signature is None or not signature.dims else (signature.name, signature.dims[0][0]))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("api", ["hip", "cuda"])
def test_each_kernel_gets_the_op_of_the_capture_for_its_batch(tmp_path: Path, api: str) -> None:
    parts = [LAYER, TAIL]
    file = write(tmp_path / "capture.json", capture(api, {4: parts, 8: parts}))
    trace = read_trace(write(tmp_path / "run.json", execution(api, [(3, parts), (8, parts)])))
    joined = with_captures(trace, [file], Limits())
    assert owners(joined) == [
        ("aten::mm", 4),
        ("aten::relu", 4),
        ("aten::mm", 4),
        ("aten::tanh", 4),
        ("aten::mm", 8),
        ("aten::mm", 8),
        ("aten::relu", 8),
        ("aten::mm", 8),
        ("aten::tanh", 8),
        ("aten::mm", 16),
    ]
    graphs = joined.info.graphs
    assert graphs is not None
    assert (graphs.launches, graphs.matched_launches, graphs.matched_kernels, graphs.ambiguous) == (4, 4, 10, 0)
    assert graphs.by_name == (4 if api == "hip" else 0)
    assert graphs.matched_us == graphs.device_us == 100.0
    written = msgspec.to_builtins(graphs)
    assert (written["told_launches"], written["told_kernels"], written["told_us"]) == (4, 10, 100.0)
    assert joined.info.links.unowned == 0
    assert (joined.ops.dur_ns == 0).all()


def test_recorded_calls_keep_what_is_known_of_them(tmp_path: Path) -> None:
    """Sequence numbers and gradients were lost with the calls that a capture added."""
    file = write(tmp_path / "capture.json", capture("cuda", {4: [LAYER]}))
    recorded = {**op("aten::mul", 4, 900, 50), "args": {**op("aten::mul", 4, 900, 50)["args"], "Sequence number": 7}}
    trace = read_trace(write(tmp_path / "run.json", [recorded, *execution("cuda", [(4, [LAYER])])]), gradients=True)
    joined = with_captures(trace, [file], Limits())
    added = len(joined.ops) - 1
    assert added > 0
    for column, value in (("sequence", -1), ("gradients", False), ("gradients_assumed", True)):
        before, after = getattr(trace.ops, column), getattr(joined.ops, column)
        assert before is not None, column
        assert after.tolist() == [*before.tolist(), *[value] * added]


def test_parts_of_equal_kernels_go_by_the_order_of_their_capture(tmp_path: Path) -> None:
    narrow, wide = (
        (("aten::mm", 1, "gemm"), ("aten::relu", 1, "relu")),
        (("aten::mm", 3, "gemm"), ("aten::relu", 3, "relu")),
    )
    file = write(tmp_path / "capture.json", capture("hip", {2: [narrow, wide]}))
    trace = read_trace(write(tmp_path / "run.json", execution("hip", [(2, [narrow, wide]), (1, [narrow, wide])])))
    expected = [("aten::mm", 2), ("aten::relu", 2), ("aten::mm", 6), ("aten::relu", 6)]
    assert owners(with_captures(trace, [file], Limits())) == expected * 2


def test_kernels_that_fit_captures_of_several_sizes_are_left_alone_where_nothing_tells_the_batch(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "capture.json", capture("cuda", {4: [LAYER], 8: [LAYER]}))
    events = [e for e in execution("cuda", [(3, [LAYER])]) if e["cat"] != "user_annotation"]
    joined = with_captures(read_trace(write(tmp_path / "run.json", events)), [file], Limits())
    assert owners(joined) == [None, None]
    assert joined.info.graphs is not None
    assert (joined.info.graphs.matched_launches, joined.info.graphs.ambiguous) == (0, 1)


def test_a_capture_of_another_model_tells_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "capture.json", capture("hip", {4: [TAIL]}))
    joined = with_captures(read_trace(write(tmp_path / "run.json", execution("hip", [(3, [LAYER])]))), [file], Limits())
    assert owners(joined) == [None, None]
    graphs = joined.info.graphs
    assert graphs is not None
    assert graphs.unmatched_kernels == 2
    assert graphs.read_captures == (CapturedGraph(source=str(file), kernels=3),)
    line = join_text(graphs)
    assert HINT not in line
    assert "capture.json" in line


def test_the_captures_that_are_named_are_those_of_the_nearest_size(tmp_path: Path) -> None:
    parts = [[("aten::mm", 1, "other")] * count for count in (9, 1, 3, 2, 6)]
    file = write(tmp_path / "capture.json", capture("hip", {4: parts}))
    joined = with_captures(read_trace(write(tmp_path / "run.json", execution("hip", [(3, [LAYER])]))), [file], Limits())
    graphs = joined.info.graphs
    assert graphs is not None
    assert [one.kernels for one in graphs.read_captures] == [2, 1, 3]
    assert join_text(graphs).count("capture.json") == 1


def test_kernels_that_overtake_each_other_are_told_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "capture.json", capture("hip", {4: [LAYER]}))
    events = execution("hip", [(3, [LAYER[::-1]])])
    joined = with_captures(read_trace(write(tmp_path / "run.json", events)), [file], Limits())
    assert owners(joined) == [("aten::relu", 4), ("aten::mm", 4)]


def test_the_capture_beside_is_found_by_its_name(tmp_path: Path) -> None:
    write(tmp_path / "model_rank0_capture.json", capture("hip", {4: [LAYER]}))
    write(tmp_path / "model_rank1_capture.json", capture("hip", {4: [LAYER]}, scale=3))
    write(tmp_path / "broken_capture.json", [])
    (tmp_path / "capture_notes.json").write_text("no trace")
    trace = read_trace(write(tmp_path / "model_rank1_run.json", execution("hip", [(3, [LAYER])])))
    assert capture_candidates(trace)[0].name == "model_rank1_capture.json"
    assert owners(with_captures_in_folder(trace, Limits())) == [("aten::mm", 12), ("aten::relu", 12)]


def test_captures_need_the_runtime_calls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="runtime calls"):
        captures_of(read_trace(write(tmp_path / "capture.json", capture("hip", {4: [LAYER]}))))


def test_a_trace_without_graphs_is_left_as_it_is(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "capture.json", capture("hip", {4: [LAYER]})))
    assert trace.graphs is None
    assert with_captures_in_folder(trace, Limits()) is trace


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [str(arg) for arg in args], catch_exceptions=False)


@pytest.mark.slow
def test_commands_hint_without_and_tell_with_the_capture(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    write(folder / "first.json", capture("hip", {4: [LAYER]}))
    run = write(tmp_path / "run.json", execution("hip", [(3, [LAYER])]))
    without = invoke("plan", run)
    assert "--set capture=FILE" in without.stderr
    for command in ("plan", "inspect", "simulate"):
        done = invoke(
            command, run, "--set", f"capture={folder}", *(("--soc", "910b3") if command == "simulate" else ())
        )
        assert done.exit_code == 0, done.output
        assert "matched 1 with first.json" in done.stderr
    assert (
        "would replay 2 of 2 ops = 100.0 % of device time" in invoke("plan", run, "--set", f"capture={folder}").stdout
    )
    ran = invoke("run", run, "--set", f"capture={folder / 'first.json'}", "--set", "op_time=1ms", "--set", "threads=1")
    assert "replayed 2 of 2 ops" in ran.stdout, ran.output
    missing = invoke("plan", run, "--set", f"capture={tmp_path / 'nowhere'}")
    assert missing.exit_code == 2
    assert "does not exist" in missing.stderr


def test_the_public_pair(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "mi300_vllm_piecewise_exec.json.gz")
    joined = with_captures_in_folder(trace, Limits())
    graphs = joined.info.graphs
    assert graphs is not None
    assert (graphs.launches, graphs.matched_launches, graphs.by_name) == (25, 25, 25)
    owned = joined.kernels.dur_ns[joined.kernels.owner >= 0].sum() / joined.kernels.dur_ns.sum()
    assert owned > 0.99


def test_a_simulated_part_is_not_called_the_step(tmp_path: Path) -> None:
    events = execution("hip", [(3, [LAYER] * 20)])
    mm = {**op("aten::mm", 64, 1000, 50), "tid": 2}
    events += [
        mm,
        {**call("hipLaunchKernel", 1010, 9), "tid": 2},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": 40_000,
            "dur": 10,
            "args": {"correlation": 9, "device": 0, "stream": 7},
        },
    ]
    done = invoke("simulate", write(tmp_path / "run.json", events), "--soc", "910b3")
    assert done.exit_code == 0, done.output
    assert "sum of 2.4 %" in done.stdout
    assert "--set capture=FILE" in done.stderr
