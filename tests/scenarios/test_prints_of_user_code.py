"""What users' code prints goes to stderr, from each process that runs it; results on stdout stay JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
import opreplay
import torch
from opreplay import CustomInit, register_initializer
from opreplay.replay.ascend.custom import register_op_estimator

print("says the file")


@register_initializer
class Talks(CustomInit):
    name, op_patterns, priority = "talks", ("aten::relu",), 5

    def initialize(self, context):
        print("says the initializer")
        for value in context.args.values():
            value.fill_(1)


@opreplay.register_executor("printing::twice", schema="(Tensor x) -> Tensor")
def twice(x):
    print("says the executor")
    return x * 2


@register_op_estimator("aten::relu")
def estimate(info, device):
    print("says the estimator")
    return 3e-6
"""


def trace(folder: Path) -> Path:
    def call(name: str, start: int) -> dict[str, object]:
        args = {"Input Dims": [[8]], "Input type": ["float"], "Input Strides": [[1]], "Concrete Inputs": [""]}
        return {
            "ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": 5, "pid": 1, "tid": 1, "args": args,
        }  # fmt: skip

    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": [call("aten::relu", 0), call("printing::twice", 10)]}))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("lanes", ["1", "2"])
def test_results_stay_json(tmp_path: Path, lanes: str) -> None:
    plugin = tmp_path / "talks.py"
    plugin.write_text(PLUGIN)
    command = [
        *(sys.executable, "-c", "from opreplay.cli.main import main; main()", "run", str(trace(tmp_path))),
        *("--plugin", str(plugin), "--quick", "--select", "all", "--format", "json", "--workers", lanes),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {op["name"] for op in json.loads(done.stdout)["ops"]} == {"aten::relu", "printing::twice"}
    for who in ("file", "initializer", "executor", "estimator"):
        assert f"says the {who}" in done.stderr
