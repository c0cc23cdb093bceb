"""`run --check-kernels` from the outside: a profile made here is replayed by the same ops."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.results.reading import read_results

SCRIPT = Path(sys.executable).parent / "opreplay"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python")


def trace(path: Path) -> Path:
    """A linear layer with the ops that it calls, and a relu that claims to call one that it does not."""

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


def test_child_ops_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    command = [
        SCRIPT, "run", trace(tmp_path / "t.json"), "--select", "top", "--op-time", "5ms", "--threads", "1",
        "--cache", "warm", "--check-kernels", "--output", out,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    results = {result.name: result for result in read_results(out)[1]}
    linear, relu = results["aten::linear"].fidelity, results["aten::relu"].fidelity
    assert linear is not None
    assert relu is not None
    assert (linear.kernels, linear.children) == ("not recorded", "match")
    assert linear.time_ratio is not None
    assert relu.children == "differ"
    assert "aten::sigmoid" in relu.missing
    measured = results["aten::linear"].measurement
    assert measured is not None
    assert measured.cache == "warm"
    assert "fidelity of 2 ops: child ops: 1 match, 1 differ" in " ".join(done.stdout.split())
