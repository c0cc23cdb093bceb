"""Situations in which a measured time was wrong by ten times and more, each through the console script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(sys.executable).parent / "opreplay"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python"),
]


def trace(path: Path, **ops: list[list[int]]) -> Path:
    """One call of each op, "lib__op" for lib::op, with float tensors of these sizes."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name.replace("__", "::"),
            "pid": 1,
            "tid": 1,
            "ts": 100 * at,
            "dur": 50,
            "args": {
                "Input Dims": dims,
                "Input type": ["float" for _ in dims],
                "Input Strides": [strides(d) for d in dims],
                "Concrete Inputs": ["" for _ in dims],
                "External id": at,
            },
        }
        for at, (name, dims) in enumerate(ops.items(), start=1)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def strides(shape: list[int]) -> list[int]:
    made = [1]
    for size in reversed(shape[1:]):
        made.insert(0, made[0] * size)
    return made


def opreplay(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(cwd)} if cwd else {})}
    return subprocess.run(
        [SCRIPT, *map(str, args)], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


def results(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The header, and the ops by name."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return records[0], {record["name"]: record for record in records if record["record"] == "op"}


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Other programs that compute all the time."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


CUSTOM = """
import time, torch

@torch.library.custom_op("slowstart::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0

torch.library.define("slowstart::compiles", "(Tensor x) -> Tensor")
calls = []

@torch.library.impl("slowstart::compiles", "CPU")
def compiles(x):
    calls.append(1)
    if len(calls) < 3:
        time.sleep(0.7 / len(calls))
    return x * 2.0
"""


def test_what_a_custom_op_sets_up_in_its_first_call_is_not_its_time(tmp_path: Path) -> None:
    (tmp_path / "slowstart_ops.py").write_text(CUSTOM)
    source = trace(tmp_path / "t.json", slowstart__scale=[[64, 64]], slowstart__compiles=[[64, 64]])
    # Of the time of an op, less than what is set up takes, and enough for eight samples on a busy machine.
    flags = ["--allow-import", "slowstart=slowstart_ops", "--set", "op_time=1s", "-o", tmp_path / "r.jsonl"]
    done = opreplay("run", source, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, ops = results(tmp_path / "r.jsonl")
    assert set(ops) == {"slowstart::scale", "slowstart::compiles"}
    for op in ops.values():
        assert op["status"] == "replayed", op["reason"]
        assert op["measured_us"] < 20_000
        assert op["measurement"]["samples"] >= 8
        assert not {w["kind"] for w in op["measurement"]["warnings"]} & {"first call", "not settled", "few samples"}
    assert ops["slowstart::compiles"]["measurement"]["first_call_us"] > 700_000


HANGS = """
import time, torch

torch.library.define("stuck::hang", "(Tensor x) -> Tensor")
torch.library.impl("stuck::hang", "CPU")(lambda x: time.sleep(3600))
torch.library.define("stuck::slow", "(Tensor x) -> Tensor")

@torch.library.impl("stuck::slow", "CPU")
def slow(x):
    time.sleep(2.2)
    return x
"""


def test_an_op_that_hangs_costs_its_limit_once_and_a_first_call_that_had_to_do_is_marked(tmp_path: Path) -> None:
    (tmp_path / "stuck_ops.py").write_text(HANGS)
    source = trace(tmp_path / "t.json", aten__relu=[[64, 64]], stuck__hang=[[8]], stuck__slow=[[8]])
    flags = ["--allow-import", "stuck=stuck_ops", "--set", "op_limit=4s", "-o", tmp_path / "r.jsonl"]
    done = opreplay("run", source, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, ops = results(tmp_path / "r.jsonl")
    assert ops["stuck::hang"]["reason"] == {"kind": "budget", "detail": "time: no result after 4 s (--set op_limit)"}
    assert ops["stuck::hang"]["attempts"] == 1
    assert ops["stuck::slow"]["measured_us"] == pytest.approx(2.2e6, rel=0.2)
    assert "first call" in {warning["kind"] for warning in ops["stuck::slow"]["measurement"]["warnings"]}
    assert "* 1 op =" in done.stdout
    assert "only the first call, including setup" in " ".join(done.stdout.split())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="idle processors are read from /proc/stat")
def test_a_machine_that_is_not_idle_gets_fewer_threads_and_times_like_those_of_a_quiet_one(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    if cpus == 1:
        pytest.skip("one processor has no threads to spare")
    source = trace(tmp_path / "t.json", aten__mm=[[512, 512], [512, 512]], aten__exp=[[1 << 20]])
    with load(cpus):
        told = opreplay("run", source, "--quick", "--notes", "-o", tmp_path / "told.jsonl")
        forced = opreplay("run", source, "--quick", "--set", f"threads={cpus}", "-o", tmp_path / "forced.jsonl")
    assert told.returncode == forced.returncode == 0, told.stderr + forced.stderr
    alone = opreplay("run", source, "--quick", "--set", "threads=1", "-o", tmp_path / "alone.jsonl")
    assert alone.returncode == 0, alone.stderr
    header, ops = results(tmp_path / "told.jsonl")
    assert header["environment"]["threads"] < cpus
    assert header["environment"]["idle_cpus"] < 0.9 * cpus
    assert f"instead of torch's {cpus}, because only" in told.stderr, "said before anything is measured"
    assert f"instead of torch's {cpus}, because only" in " ".join(told.stdout.split())
    _, quiet = results(tmp_path / "alone.jsonl")
    for name, op in ops.items():
        marked = {warning["kind"] for warning in op["measurement"]["warnings"]} & {"interrupted", "other load"}
        assert op["measured_us"] < 2.0 * quiet[name]["measured_us"] or marked
    for name, op in results(tmp_path / "forced.jsonl")[1].items():
        marked = {warning["kind"] for warning in op["measurement"]["warnings"]} & {
            "interrupted",
            "one thread",
            "threads waited",
        }
        assert op["measured_us"] < 2.0 * quiet[name]["measured_us"] or marked


CUSTOM_OP = """
import torch

@torch.library.custom_op("mylib::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x + x
"""


def test_a_custom_op_is_not_timed_by_the_call_that_imports_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "my_ops.py").write_text(CUSTOM_OP)
    source = trace(tmp_path / "t.json", mylib__double=[[1024, 1024]])
    flags = ["--plugin", tmp_path / "my_ops.py", "--set", "threads=1", "--quick", "--set", "op_limit=4s"]
    done = opreplay("run", source, *flags, "-o", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    _, ops = results(tmp_path / "r.jsonl")
    measurement = ops["mylib::double"]["measurement"]
    assert measurement["samples"] >= 6
    assert measurement["median_us"] < 0.1e6
    assert measurement["first_call_us"] < 0.5e6
