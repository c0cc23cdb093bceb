"""A model and no trace: the console script captures it, checks it, and every command takes the plan without a time."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from tests.scenarios.conftest import Console

pytestmark = pytest.mark.slow

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
        console("capture", f"{train}:make", "--check", "--set", "seed=3", "--format", "json", "-o", plan).stdout
    )
    assert found["equal"] is True
    assert found["largest_error"] == 0.0
    assert [one["name"] for one in found["outputs"]] == ["[0]", "[1]"]
    assert {one["name"] for one in found["parameters"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert set(found["flops"]) == {"forward", "backward", "optimizer"}
    assert json.loads(plan.read_text())["captured"] is True
    assert console("capture", f"{train}:make", "-o", plan, code=2).stderr.startswith("opreplay: ")
    shown = console("capture", f"{train}:make", "--check", "-o", plan, "--force").stdout
    assert "check: equal: 2 outputs, 4 parameters and buffers" in shown
    assert "peak memory" in shown


def test_every_command_takes_the_plan_and_shows_no_recorded_time(console: Console, train: Path, tmp_path: Path) -> None:
    plan, results = tmp_path / "step.plan.json", tmp_path / "r.jsonl"
    console("capture", f"{train}:make", "-o", plan)
    shown = [
        console("plan", plan, "--soc", "910b3", "--set", "no_cache=true").stdout,
        console("simulate", plan, "--soc", "910b3", "--set", "no_cache=true").stdout,
        console("run", plan, "--top", "3", "--set", "op_time=1ms", "-o", results).stdout,
        console("show", results).stdout,
        console("compare", results, results).stdout,
        console("inspect", plan).stdout,
    ]
    for text in shown:
        assert "recorded" not in text.replace("no times recorded", "")
        assert "rec." not in text
    assert "memory: fits 910b3" in shown[1]
    facts = json.loads(console("simulate", plan, "--soc", "910b3", "--format", "json", "--set", "no_cache=true").stdout)
    assert facts["captured"] is True
    assert facts["socs"]["910b3"]["memory"]["fits"] is True
    assert all(op["recorded_host_us_total"] is None for op in facts["unique_ops"])
    rows = list(csv.DictReader(io.StringIO(console("show", results, "--format", "csv").stdout)))
    assert {row["recorded_host_us"] for row in rows} == {""}
    console("export", plan, "-o", tmp_path / "bundle")
    assert "| – | aten::addcdiv_" in (tmp_path / "bundle" / "README.md").read_text()
    assert json.loads(console("inspect", plan, "--format", "json").stdout)["captured"] is True
    assert "no times" in console("inspect", plan, "--by", "op", code=2).stderr


def test_nothing_is_divided_by_a_recording_that_there_is_not(console: Console, train: Path, tmp_path: Path) -> None:
    plan, results = tmp_path / "step.plan.json", tmp_path / "r.jsonl"
    console("capture", f"{train}:make", "-o", plan)
    console("run", plan, "--mode", "sequence", "--set", "op_time=1ms", "-o", results)
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(opreplay, ["show", str(results)]).stdout
    assert "replayed, sum of the calls" in shown
    assert "rec." not in shown


def test_the_plan_runs_in_order(console: Console, train: Path, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    console("capture", f"{train}:make", "-o", plan)
    shown = console("run", plan, "--mode", "sequence", "--set", "op_time=1ms").stdout
    assert "as recorded" in shown


def test_values_that_decide_need_real_tensors(console: Console, train: Path) -> None:
    failed = console("capture", f"{train}:branches", code=2).stderr
    assert "train.py, line 10" in failed
    assert "--real" in failed
    console("capture", f"{train}:branches", "--real", "--check")


def test_what_is_no_target_says_what_one_is(console: Console, train: Path, tmp_path: Path) -> None:
    assert "does not name a function" in console("capture", train, code=2).stderr
    assert "Its functions: branches, make." in console("capture", f"{train}:mak", code=2).stderr
    assert "does not exist" in console("capture", "nothing.py:make", code=2).stderr
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
    console("capture", f"{path}:make", "--set", "world_size=64", "--rank", "3", "-o", plan)
    held = json.loads(plan.read_text())
    assert (held["capture"]["world_size"], held["capture"]["rank"]) == (64, 3)
    (collective,) = [op for op in held["ops"] if op["name"] == "c10d::allreduce_"]
    assert collective["ranks"] == 64
    assert [t["shape"] for arg in collective["args"] for t in arg.get("tensors", ())] == [[6]]
    scalars = [arg.get("value") for op in held["ops"] for arg in op["args"] if op["name"] in ("aten::mul", "aten::add")]
    assert {64, 3} <= {value for value in scalars if isinstance(value, int)}
    assert "rank 3 of 64" in console("inspect", plan).stdout
    assert "--world-size" in console("capture", f"{path}:make", "--rank", "3", code=2).stderr + "--world-size"
    assert (
        "do not exchange data" in console("capture", f"{path}:make", "--set", "world_size=2", "--check", code=2).stderr
    )


GRAPHS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.b(self.norm(torch.relu(self.a(x)))).softmax(-1)

def make():
    return Net(), (torch.randn(8, 3, 16),)

def train():
    net = Net()
    return net, (torch.randn(8, 3, 16),), {"loss": lambda out: out.square().mean()}

def broken():
    def step(x):
        x = x * 2
        torch._dynamo.graph_break()
        return x.sin()
    return step, (torch.randn(3),)
"""
FLOPS = 2 * 24 * (16 * 32 + 32 * 4)
PARAMETERS = 4 * (16 * 32 + 32 + 64 + 32 * 4 + 4)


def names(plan: Path) -> list[str]:
    held = json.loads(plan.read_text())
    by_id = {op["id"]: op["name"] for op in held["ops"]}
    return [by_id[held["sequence"]["ids"][index]] for index in held["sequence"]["calls"]]


def test_a_graph_of_export_before_and_after_decomposition(console: Console, tmp_path: Path) -> None:
    path, plan = tmp_path / "net.py", tmp_path / "plan.json"
    path.write_text(GRAPHS)
    options = ("--check", "--format", "json", "--force", "-o", plan)
    whole = json.loads(console("capture", f"{path}:make", "--via", "export", *options).stdout)
    ops = ["linear", "relu", "layer_norm", "linear", "softmax"]
    assert names(plan) == [f"aten::{name}" for name in ops]
    held = json.loads(plan.read_text())["sequence"]
    assert [held["module_names"][number] for number in held["modules"]] == ["a", "", "norm", "b", ""]
    core = json.loads(console("capture", f"{path}:make", "--via", "export", "--decompose", *options).stdout)
    assert {"aten::addmm", "aten::native_layer_norm", "aten::_softmax"} <= set(names(plan))
    for found in (whole, core):
        assert found["equal"] is True
        assert found["flops"] == {"forward": FLOPS}
        assert found["peaks"][0]["by_kind"]["parameter"] == PARAMETERS
    assert "not a training step" in console("capture", f"{path}:train", "--via", "export", code=2).stderr
    assert "--via export" in console("capture", f"{path}:make", "--decompose", code=2).stderr


def test_an_exported_file_is_captured(console: Console, tmp_path: Path) -> None:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    torch.export.save(torch.export.export(net, (torch.randn(2, 4),)), tmp_path / "net.pt2")
    console("capture", tmp_path / "net.pt2", "--trust", "-o", tmp_path / "plan.json")
    assert names(tmp_path / "plan.json") == ["aten::linear", "aten::relu"]
    (tmp_path / "no.pt2").write_bytes(b"PK")
    assert "not an exported program" in console("capture", tmp_path / "no.pt2", "--trust", code=2).stderr


def test_an_exported_file_runs_nothing_without_trust(console: Console, tmp_path: Path) -> None:
    import os
    import pickle
    import zipfile

    import torch

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    sound, evil, cut = (tmp_path / f"{name}.pt2" for name in ("sound", "evil", "cut"))
    torch.export.save(torch.export.export(torch.nn.Linear(4, 8), (torch.randn(2, 4),)), sound)
    with zipfile.ZipFile(sound) as whole, zipfile.ZipFile(evil, "w") as changed, zipfile.ZipFile(cut, "w") as less:
        for name in whole.namelist():
            pickled = name.endswith(".pt") or "weight" in name or "constants" in name
            changed.writestr(name, pickle.dumps(Evil()) if pickled else whole.read(name))
            if not pickled:
                less.writestr(name, whole.read(name))
    refused = console("capture", evil, code=2)
    assert "--trust" in refused.stderr
    assert not (tmp_path / "ran").exists()
    for damaged in (evil, cut):
        said = console("capture", damaged, "--trust", code=2)
        assert "Traceback" not in said.stderr


def test_graphs_of_compile_are_those_of_its_backend(console: Console, tmp_path: Path) -> None:
    path, plan = tmp_path / "net.py", tmp_path / "plan.json"
    path.write_text(GRAPHS)
    found = json.loads(console("capture", f"{path}:train", "--via", "compile", "--format", "json", "-o", plan).stdout)
    assert (found["graphs"], found["graph_breaks"], found["real"]) == (1, [], True)
    assert found["flops"]["forward"] == FLOPS
    assert "aten::native_layer_norm_backward" in names(plan)
    broken = json.loads(console("capture", f"{path}:broken", "--via", "compile", "--format", "json").stdout)
    assert broken["graphs"] == 2
    assert len(broken["graph_breaks"]) == 1


def test_what_a_capture_is_not_stands_beside_the_prediction(console: Console, train: Path, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    console("capture", f"{train}:make", "-o", plan)
    held = json.loads(plan.read_text())
    held["capture"]["notes"] = ["servers fuse [bold]attention[/] and take less"]
    plan.write_text(json.dumps(held))
    for command in ("plan", "simulate"):
        shown = " ".join(console(command, plan, "--soc", "910b3", "--set", "no_cache=true").stdout.split())
        assert "captured: servers fuse [bold]attention[/] and take less" in shown
    facts = json.loads(console("simulate", plan, "--soc", "910b3", "--format", "json", "--set", "no_cache=true").stdout)
    assert facts["capture_notes"] == held["capture"]["notes"]


@pytest.mark.parametrize(("made", "on_host"), [("AdamW", True), ("AdamW fused", False), ("NAdam", True)])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_counters_of_an_optimizer_are_no_work_of_a_device(
    made: str, on_host: bool, device: str, console: Console, tmp_path: Path
) -> None:
    """torch keeps them on the host unless the optimizer is fused."""
    name, _, fused = made.partition(" ")
    (tmp_path / "train.py").write_text(
        FILE.replace("AdamW(net.parameters())", f"{name}(net.parameters(){', fused=True' if fused else ''})")
    )
    plan = tmp_path / "step.plan.json"
    console("capture", f"{tmp_path}/train.py:make", "--device", device, "--output", plan)
    found = json.loads(console("simulate", plan, "--format", "json", "--set", "no_cache=true").stdout)["unique_ops"]
    counting = [op for op in found if op["name"] in ("aten::add_", "aten::_foreach_add_") and "[]" in op["inputs"][:6]]
    assert counting
    for op in counting:
        assert (op["simulated"]["910b3"]["time_us"] == 0.0) is on_host, op["inputs"]
    (ones,) = [op for op in found if op["name"] == "aten::ones_like" and op["inputs"].startswith("f32[]")]
    assert ones["simulated"]["910b3"]["time_us"] > 0.0, "a scalar of the model is work"


def test_the_optimizer_of_another_device(console: Console, train: Path) -> None:
    here = json.loads(console("capture", f"{train}:make", "--format", "json").stdout)
    assert any("--device" in note for note in here["notes"])
    there = json.loads(console("capture", f"{train}:make", "--device", "npu", "--format", "json").stdout)
    assert there["notes"] == []
    assert there["calls"] < here["calls"]


def test_an_op_whose_library_is_not_here_would_not_replay(console: Console, train: Path, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    console("capture", f"{train}:make", "-o", plan)
    plan.write_text(plan.read_text().replace("aten::relu", "elsewhere::relu"))
    for command in ("plan", "run"):
        shown = console(command, plan, "--include", "elsewhere::*", "--max-failed", "0", code=1).stdout
        assert "0 of 1 op, no times recorded; 1 skipped: 1 policy" in shown
        assert "namespace elsewhere is on no" in shown
    rewritten = tmp_path / "again.plan.json"
    console("plan", plan, "-o", rewritten)
    rewritten.write_text(rewritten.read_text().replace("elsewhere::relu", "aten::relu"))
    assert "1 of 1 op" in console("plan", rewritten, "--include", "aten::relu").stdout
