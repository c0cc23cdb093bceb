"""Two real runs of one trace, compared from the outside; a slowdown is written into the second file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.forked_children import opreplay_here

SLOWED = {"aten::gelu", "aten::mm"}

pytestmark = pytest.mark.slow


def trace(path: Path) -> Path:
    """Six ops of some 100 us."""
    shapes = {
        "aten::mm": [[256, 256], [256, 256]],
        "aten::gelu": [[1 << 18], []],
        "aten::exp": [[1 << 18]],
        "aten::relu": [[1 << 20]],
        "aten::sigmoid": [[1 << 18]],
        "aten::tanh": [[1 << 18]],
    }
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": 100 * at,
            "dur": 50,
            "args": {
                "Input Dims": dims,
                "Input type": ["float" if d else "" for d in dims],
                "Concrete Inputs": ["" if d else "none" for d in dims],
                "External id": at,
            },
        }
        for at, (name, dims) in enumerate(shapes.items(), start=1)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def slower(source: Path, target: Path, factor: float) -> Path:
    """The results with all times of some ops multiplied."""
    lines = []
    for line in source.read_text().splitlines():
        record = json.loads(line)
        if record["record"] == "op" and record["name"] in SLOWED:
            found = record["measurement"]
            record["measured_us"] *= factor
            for key in ("median_us", "min_us", "max_us", "iqr_us", "ci_low_us", "ci_high_us"):
                found[key] *= factor
            found["relative"] *= factor
            found["deciles_us"] = [factor * value for value in found["deciles_us"]]
        lines.append(json.dumps(record))
    target.write_text("\n".join(lines) + "\n")
    return target


def opreplay(*args: object) -> subprocess.CompletedProcess[str]:
    return opreplay_here(*args)


def test_two_runs_are_compared(tmp_path: Path) -> None:
    source, files = trace(tmp_path / "t.json"), [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        done = opreplay(
            "run", source, "--set", "threads=1", "--set", "visits=1", "--set", "op_time=50ms", "--output", file
        )
        assert done.returncode == 0, done.stderr
    real = json.loads(opreplay("compare", *files, "--format", "json").stdout)
    assert sum(real["counts"].values()) == 6
    # Between two runs a busy machine may be twice as fast; the same run has no such excuse.
    copy = slower(files[0], tmp_path / "c.jsonl", 1.10)
    found = opreplay("compare", files[0], copy, "--format", "json", "--fail-if", "slower>5%")
    assert found.returncode == (5 if json.loads(found.stdout)["counts"]["slower"] else 0), found.stderr
    verdicts = {op["name"]: op["verdict"] for op in json.loads(found.stdout)["ops"]}
    assert all(verdict == "same" for name, verdict in verdicts.items() if name not in SLOWED)
    slow = {op["name"]: op for op in json.loads(found.stdout)["ops"] if op["name"] in SLOWED}
    for op in slow.values():
        # The intervals of a noisy measurement may be wider than 10 %: then nothing can be said.
        assert op["verdict"] == "slower" or op["low"] <= 1.0 or op["verdict"] == "unclear"
    big = opreplay("compare", files[0], slower(files[0], tmp_path / "d.jsonl", 1000.0), "--fail-if", "slower>5%")
    assert big.returncode == 5
    assert "slower>5%: aten::mm" in big.stderr
    report = opreplay("show", files[0], "--format", "csv")
    assert report.stdout.splitlines()[0].startswith("id,name,count,status")
