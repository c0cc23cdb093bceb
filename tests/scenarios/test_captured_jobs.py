"""Code for jobs of many ranks, as its authors write it, captured as one rank: which collectives, of what size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Console

pytestmark = pytest.mark.slow

FILE = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def net():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters())
    return model, (torch.randn(4, 32),), {"optimizer": optimizer, "loss": torch.sum}


def ddp():
    dist.init_process_group("nccl")
    return trained(nn.parallel.DistributedDataParallel(net()))


def fsdp():
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return trained(fully_shard(model, mesh=mesh))


def tensor():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return trained(parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    part = torch.randn(2, 16, requires_grad=True)
    stage = PipelineStage(
        nn.Linear(16, 16), dist.get_rank(), dist.get_world_size(), torch.device("cpu"),
        input_args=(part,), output_args=(part,),
    )
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    return (lambda: schedule.step()), ()


def experts():
    weights = nn.Parameter(torch.randn(2, 16, 32))
    def step(tokens):
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens)
        return torch.bmm(received.view(2, -1, 16), weights).sum()
    return step, (torch.randn(64, 16),)
"""
EXPECTED: dict[str, dict[str, list[tuple[int, list[list[int]]]]]] = {
    # All 6,792 parameters in one bucket.
    "ddp": {"c10d::allreduce_": [(1, [[6792]])]},
    # Each layer is gathered for forward and for backward; its gradients are scattered once.
    "fsdp": {
        "c10d::_allgather_base_": [(2, [[520], [65]]), (2, [[2112], [264]]), (2, [[4160], [520]])],
        "c10d::_reduce_scatter_base_": [(1, [[65], [520]]), (1, [[264], [2112]]), (1, [[520], [4160]])],
    },
    "tensor": {"_c10d_functional::all_reduce": [(1, [[4, 64]])]},
    # Four microbatches come from the rank before and go to the next one, gradients the other way.
    "pipeline": {"c10d::recv_": [(4, [[2, 16]]), (4, [[2, 16]])], "c10d::send": [(4, [[2, 16]]), (4, [[2, 16]])]},
    "experts": {"c10d::alltoall_base_": [(1, [[64, 16], [64, 16]])]},
}


def collectives(plan: dict[str, Any]) -> dict[str, list[tuple[int, list[list[int]]]]]:
    """Name → (calls, shapes) of each collective, but waiting."""
    found: dict[str, list[tuple[int, list[list[int]]]]] = {}
    for op in plan["ops"]:
        if "c10d" in op["name"] and "wait" not in op["name"]:
            assert op["ranks"] == op["collective"]["group_size"] == 8
            shapes = [t["shape"] for arg in op["args"] for t in arg.get("tensors", ())]
            found.setdefault(op["name"], []).append((op["count"], shapes))
    return {name: sorted(ops) for name, ops in sorted(found.items())}


@pytest.mark.parametrize("form", EXPECTED)
def test_one_rank_of_a_job(console: Console, tmp_path: Path, form: str) -> None:
    path, plan = tmp_path / "job.py", tmp_path / "plan.json"
    path.write_text(FILE)
    console("capture", f"{path}:{form}", "--set", "world_size=8", "--rank", "3", "-o", plan)
    assert collectives(json.loads(plan.read_text())) == EXPECTED[form]


def test_sharded_parameters_take_a_share_of_the_memory(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(FILE)
    found = json.loads(console("capture", f"{path}:fsdp", "--set", "world_size=8", "--format", "json").stdout)
    assert found["peaks"][0]["by_kind"]["parameter"] == 6792 * 4 // 8


KINDS = {"ddp": ["all_reduce"], "tensor": ["all_reduce"], "fsdp": ["all_gather", "reduce_scatter"]}


@pytest.mark.parametrize("form", KINDS)
def test_what_a_rank_exchanges_is_predicted_on_a_cluster(console: Console, tmp_path: Path, form: str) -> None:
    path, plan = tmp_path / "job.py", tmp_path / "plan.json"
    path.write_text(FILE)
    console("capture", f"{path}:{form}", "--set", "world_size=2", "-o", plan)
    moved = [op["collective"] for op in json.loads(plan.read_text())["ops"] if op.get("collective")]
    assert sorted({one["kind"] for one in moved}) == KINDS[form]
    assert all(one["group_ranks"] == [0, 1] for one in moved)
    shown = console("simulate", plan, "--cluster", "1x2x910b3", "--set", "no_cache=true", "--format", "json").stdout
    assert json.loads(shown)["socs"]["910b3"]["by_family_us"]["Collective"] > 0
    if form == "fsdp":
        return
    out = tmp_path / "out.jsonl"
    console("run", plan, "--ranks", "2", "--set", "backend=gloo", "--include", "*all*reduce*", "--quick", "-o", out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    (ran,) = [line for line in lines if line.get("collective")]
    assert ran["status"] == "replayed"
    assert ran["collective"]["replayed"]["ranks"] == 2
    assert ran["collective"]["replayed"]["checked"] == "right"


def test_groups_of_a_mesh_are_told_apart(console: Console, tmp_path: Path) -> None:
    path, plan = tmp_path / "mesh.py", tmp_path / "plan.json"
    path.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "def make():\n"
        "    mesh = init_device_mesh('cpu', (2, 4), mesh_dim_names=('data', 'model'))\n"
        "    def step(x):\n"
        "        for name in ('data', 'model'):\n"
        "            dist.all_reduce(x, group=mesh.get_group(name))\n"
        "        dist.broadcast(x, 4, group=mesh.get_group('model'))\n"
        "        dist.all_gather([torch.empty(6) for _ in range(4)], x, group=mesh.get_group('model'))\n"
        "    return step, (torch.ones(6),)\n"
    )
    console("capture", f"{path}:make", "--set", "world_size=8", "--rank", "5", "-o", plan)
    moved = [op["collective"] for op in json.loads(plan.read_text())["ops"] if op.get("collective")]
    found = {(one["kind"], tuple(one["group_ranks"]), one["in_elements"], one["out_elements"]) for one in moved}
    assert found == {
        ("all_reduce", (1, 5), 6, 6),
        ("all_reduce", (4, 5, 6, 7), 6, 6),
        ("broadcast", (4, 5, 6, 7), 6, 6),
        ("all_gather", (4, 5, 6, 7), 6, 24),
    }
    assert next(one for one in moved if one["kind"] == "broadcast")["root"] == 0
