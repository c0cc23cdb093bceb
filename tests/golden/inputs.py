"""The folder that transcripts run in: bundled samples, and small files that users would have written."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from opreplay.initializers.extensions import clear_registrations as clear_initializers
from opreplay.replay import plugins
from opreplay.replay.ascend import KernelCall, TensorSpec, load_device
from opreplay.replay.ascend.cost.predict import predict_time_us
from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators
from opreplay.replay.tile.registration import forget_programs
from opreplay.traces.samples import SAMPLES, sample_path
from tests.collectives import collective_event
from tests.replay.timeline.job_machine import data_parallel
from tests.replay.timeline.machine import training
from tests.scenarios.conftest import kernel, launch, op
from tests.scenarios.events import owner

MODEL = """
import torch


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    return model, (torch.randn(32, 64),), {"optimizer": torch.optim.AdamW(model.parameters()), "loss": torch.sum}
"""

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}

TILE = """
from opreplay import tile


@tile.kernel("mylib::scale", reference=lambda x, by: x * by)
def scale(x, y: tile.Out, by=2.0, *, rows=8):
    for r in tile.blocks(x.shape[0], rows):
        tile.store(y[r], tile.load(x[r]) * by)
"""

PLUGIN = """
import opreplay
import torch


@opreplay.register_executor("mylib::double", fake=lambda x: torch.empty_like(x))
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""

CALLS = """\
aten::mm(bf16[64,32], bf16[32,48])
aten::add(f32[4,8]{1,4}, f32[8])
"""


def write_inputs(folder: Path) -> None:
    """Fill `folder` with everything that a transcript may name."""
    for name in SAMPLES:
        shutil.copy(sample_path(name), folder / f"{name}.json.gz")
    training().write(folder / "gpu.json")
    ranks = folder / "ranks"
    ranks.mkdir()
    data_parallel({1: 1.5}).write(ranks)
    events = [
        *owner("aten::mm", 1, [[512, 1024], [1024, 256]], 40.0),
        *owner("mylib::double", 2, [[512, 256]], 25.0),
        *owner("vllm::unheard_of", 3, [[7, 9]], 8.0),
        *owner("aten::softmax", 4, [[512, 256]], 12.0),
        *owner("aten::nonzero", 5, [[64, 64]], 5.0, ["bool"]),
    ]
    _trace(folder / "mixed.json", events)
    _trace(folder / "step.json", _distributed())
    whole = (folder / "mixed.json").read_text()
    (folder / "cut.json").write_text(whole[: len(whole) * 3 // 4])
    (folder / "model.py").write_text(MODEL)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tiles.py").write_text(TILE)
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "calls.txt").write_text(CALLS)
    _kernel_table(folder / "kernel_details_910b3.csv")


def _trace(path: Path, events: list[dict[str, object]]) -> None:
    device = [{"id": 0, "name": "NVIDIA H100"}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": events}))


def _distributed() -> list[dict[str, object]]:
    """An all-reduce of 64 MiB over 16 ranks, and an op beside it."""
    group, elements = range(16), 1 << 24
    reduced = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60, 9000, 1, stream=20)
    reduced["args"] |= {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements}
    reduced["args"] |= {"dtype": "Float", "Group size": len(group), "Process Group Ranks": str(list(group))}
    return [
        *collective_event("c10d::allreduce_", 10, collective="allreduce", elements=elements, group=group, dur=30),
        launch(15, 1),
        reduced,
        op("aten::relu", 50, [[1 << 22]], ["float"], values=[""], dur=20, id_=2),
        launch(55, 2),
        kernel("elementwise", 80, 900, 2),
    ]


def _kernel_table(path: Path) -> None:
    """Kernels of the Ascend profiler that take 30 % longer than predicted, give or take 3 %."""
    device, spread = load_device("910b3"), random.Random(1)
    rows = ["Type,Accelerator Core,Duration(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types,Count"]
    for kind in ("Relu", "Exp", "Cast", "Neg"):
        for size in (1 << k for k in range(8, 22, 2)):
            spec = TensorSpec(shape=(size,), dtype="float32")
            expected_us = predict_time_us(KernelCall(type=kind, inputs=(spec,), outputs=(spec,)), device)
            measured_us = expected_us * 1.3 * spread.uniform(0.97, 1.03)
            rows.append(f'{kind},AI_VECTOR_CORE,{measured_us:.4f},"""{size}""",FLOAT,"""{size}""",FLOAT,3')
    path.write_text("\n".join(rows) + "\n")


def forget_registrations() -> None:
    """What a user's file registered holds for no later command."""
    for clear in (plugins.clear_registrations, clear_initializers, clear_estimators, forget_programs):
        clear()
