"""`run --check kernels` from the outside: a profile made here is replayed by the same ops."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.results.reading import read_results

SCRIPT = Path(sys.executable).parent / "opreplay"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python"),
]


def trace(path: Path) -> Path:
    """A linear layer whose calls claim to call nothing, and a relu that claims to call one that it does not."""

    def event(name: str, ts: int, dur: int, dims: list[list[int]], types: list[str]) -> dict[str, object]:
        args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(dims), "External id": ts}
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}

    floats = ["float", "float", "float"]
    events = [
        event("aten::linear", 10, 50, [[8, 16], [4, 16], [4]], floats),
        event("aten::t", 11, 5, [[4, 16]], floats[:1]),
        event("aten::addmm", 20, 30, [[4], [8, 16], [16, 4]], floats),
        event("aten::relu", 100, 20, [[8, 4]], floats[:1]),
        event("aten::sigmoid", 105, 5, [[8, 4]], floats[:1]),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def profiled(path: Path) -> Path:
    """A real profile of an op that calls itself with `out=`, and of a layer whose calls call others."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    x, weight, bias = torch.randn(8, 16), torch.randn(4, 16), torch.randn(4)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.nn.functional.linear(x, weight, bias)
        torch.std(x)
        x.mean(1)
        torch.nn.functional.layer_norm(x, [16], torch.ones(16), torch.zeros(16))
        torch.nn.functional.softmax(x, -1)
    profiler.export_chrome_trace(str(path))
    return path


def test_a_profile_of_this_torch_agrees_at_all_depths(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    command = [
        SCRIPT,
        "run",
        profiled(tmp_path / "t.json"),
        "--select",
        "all",
        "--set",
        "op_time=1ms",
        "--set",
        "threads=1",
        "--check",
        "kernels",
        "--output",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    compared = {r.name: r.fidelity for r in read_results(out)[1] if r.fidelity is not None}
    assert {"aten::linear", "aten::layer_norm", "aten::softmax"} <= compared.keys()
    assert {name: one.extra for name, one in compared.items() if one.children == "differ"} == {}


def test_child_ops_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    command = [
        SCRIPT,
        "run",
        trace(tmp_path / "t.json"),
        "--select",
        "top",
        "--set",
        "op_time=5ms",
        "--set",
        "threads=1",
        "--cache",
        "warm",
        "--check",
        "kernels",
        "--output",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    results = {result.name: result for result in read_results(out)[1]}
    linear, relu = results["aten::linear"].fidelity, results["aten::relu"].fidelity
    assert linear is not None
    assert relu is not None
    # What it calls directly is the same, what that calls is not.
    assert (linear.kernels, linear.children) == ("not recorded", "differ")
    assert "aten::copy_" in linear.extra
    assert linear.time_ratio is not None
    assert relu.children == "differ"
    assert "aten::sigmoid" in relu.missing
    measured = results["aten::linear"].measurement
    assert measured is not None
    assert measured.cache == "warm"
    assert "fidelity of 2 ops: child ops: 2 differ" in " ".join(done.stdout.split())
