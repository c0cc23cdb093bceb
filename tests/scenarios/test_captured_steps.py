"""A model and no trace: the console script captures it, checks it, and every command takes the plan without a time."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.scenarios.conftest import Console

FILE = """
import torch
from torch import nn

def make():
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return net, (torch.randn(8, 16),), {"optimizer": torch.optim.AdamW(net.parameters()), "loss": torch.sum}

def branches():
    return (lambda x: x if x.sum() > 0 else -x), (torch.randn(3),)
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(FILE)
    return path


def test_a_training_step_is_captured_and_checked(console: Console, train: Path, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    found = json.loads(
        console("capture", f"{train}:make", "--check", "--seed", "3", "--format", "json", "-o", plan).stdout
    )
    assert found["equal"] is True
    assert found["largest_error"] == 0.0
    assert [one["name"] for one in found["outputs"]] == ["[0]", "[1]"]
    assert {one["name"] for one in found["parameters"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert set(found["flops"]) == {"forward", "backward", "optimizer"}
    assert json.loads(plan.read_text())["captured"] is True
    assert console("capture", f"{train}:make", "-o", plan, code=2).stderr.startswith("opreplay: ")
    shown = console("capture", f"{train}:make", "--check", "-o", plan, "--force").stdout
    assert "check: equal: 2 outputs, 4 updated tensors" in shown
    assert "peak memory" in shown


def test_every_command_takes_the_plan_and_shows_no_recorded_time(console: Console, train: Path, tmp_path: Path) -> None:
    plan, results = tmp_path / "step.plan.json", tmp_path / "r.jsonl"
    console("capture", f"{train}:make", "-o", plan)
    shown = [
        console("plan", plan, "--soc", "910b3", "--no-cache").stdout,
        console("simulate", plan, "--soc", "910b3", "--no-cache").stdout,
        console("run", plan, "--top", "3", "--op-time", "1ms", "-o", results).stdout,
        console("report", results).stdout,
        console("compare", results, results).stdout,
        console("inspect", plan).stdout,
    ]
    for text in shown:
        assert "recorded" not in text.replace("no times recorded", "")
        assert "rec." not in text
    assert "memory: fits 910b3" in shown[1]
    facts = json.loads(console("simulate", plan, "--soc", "910b3", "--format", "json", "--no-cache").stdout)
    assert facts["captured"] is True
    assert facts["socs"]["910b3"]["memory"]["fits"] is True
    assert all(op["recorded_host_us_total"] is None for op in facts["unique_ops"])
    rows = list(csv.DictReader(io.StringIO(console("report", results, "--format", "csv").stdout)))
    assert {row["recorded_host_us"] for row in rows} == {""}
    console("export", plan, "-o", tmp_path / "bundle")
    assert "| – | aten::addcdiv_" in (tmp_path / "bundle" / "README.md").read_text()
    assert json.loads(console("inspect", plan, "--format", "json").stdout)["captured"] is True
    assert "no times" in console("inspect", plan, "--by", "op", code=2).stderr


def test_the_plan_runs_in_order(console: Console, train: Path, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    console("capture", f"{train}:make", "-o", plan)
    shown = console("run", plan, "--mode", "sequence", "--op-time", "1ms").stdout
    assert "as recorded" in shown


def test_values_that_decide_need_real_tensors(console: Console, train: Path) -> None:
    failed = console("capture", f"{train}:branches", code=2).stderr
    assert "train.py, line 10" in failed
    assert "--real" in failed
    console("capture", f"{train}:branches", "--real", "--check")


def test_what_is_no_target_says_what_one_is(console: Console, train: Path, tmp_path: Path) -> None:
    assert "names no function" in console("capture", train, code=2).stderr
    assert "It has branches, make." in console("capture", f"{train}:mak", code=2).stderr
    assert "no file" in console("capture", "nothing.py:make", code=2).stderr
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('x')")
    assert "cannot be run: ValueError: x" in console("capture", f"{broken}:make", code=2).stderr


DISTRIBUTED = """
import torch
import torch.distributed as dist

def make():
    dist.init_process_group("nccl")
    def step(x):
        dist.all_reduce(x)
        return x * dist.get_world_size() + dist.get_rank()
    return step, (torch.ones(6),)
"""


def test_a_rank_of_a_job_is_captured_without_the_others(console: Console, tmp_path: Path) -> None:
    path, plan = tmp_path / "job.py", tmp_path / "plan.json"
    path.write_text(DISTRIBUTED)
    console("capture", f"{path}:make", "--world-size", "64", "--rank", "3", "-o", plan)
    held = json.loads(plan.read_text())
    assert (held["capture"]["world_size"], held["capture"]["rank"]) == (64, 3)
    (collective,) = [op for op in held["ops"] if op["name"] == "c10d::allreduce_"]
    assert collective["ranks"] == 64
    assert [t["shape"] for arg in collective["args"] for t in arg.get("tensors", ())] == [[6]]
    scalars = [arg.get("value") for op in held["ops"] for arg in op["args"] if op["name"] in ("aten::mul", "aten::add")]
    assert {64, 3} <= {value for value in scalars if isinstance(value, int)}
    assert "rank 3 of 64" in console("inspect", plan).stdout
    assert "--world-size" in console("capture", f"{path}:make", "--rank", "3", code=2).stderr + "--world-size"
    assert "exchange nothing" in console("capture", f"{path}:make", "--world-size", "2", "--check", code=2).stderr
