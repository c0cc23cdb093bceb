"""A recorded step of the CPU beside the same step with times of its ops that `run --cache step` measured.

    python benchmarks/measured_step.py [--models cnn_train,mlp_train,...] [--recordings 20] [--op-time 0.05]

Each model is recorded here, in the same process settings, right before its ops are measured; one thread. A machine with
other work makes single recordings up to ten times as long, so two ratios are printed: of the whole step, against the
quickest recording, and of the calls alone, each against the least that it took in all recordings. Bar: within 10 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.plan.build import build_plan, signature_id
from opreplay.replay.results.reading import MemorySink
from opreplay.replay.timeline.measured import MeasuredOps
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import innermost_parent, read_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from benchmarks import record_samples as record
from tests.running import run_plan

Step = Callable[[], None]
WARM_UP = 5


def mlp_train() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    inputs, target = torch.randn(64, 512), torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), target).backward()
        optimizer.step()

    return step


def encoder_infer() -> Step:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    inputs = torch.randn(4, 96, 256, requires_grad=True)
    return lambda: [model(inputs), None][1]


def recurrent_infer() -> Step:
    torch.manual_seed(0)
    cell, head = nn.GRUCell(256, 512), nn.Linear(512, 1000)
    inputs = torch.randn(24, 16, 256)

    def step() -> None:
        with torch.inference_mode():
            state = torch.zeros(16, 512)
            for row in inputs:
                state = cell(row, state)
                head(state).argmax(-1)

    return step


OWN = {"mlp_train": mlp_train, "encoder_infer": encoder_infer, "recurrent_infer": recurrent_infer}
SAMPLES = {"cnn_train": record.cnn_train, "transformer_infer": record.transformer_infer, "moe_block": record.moe_block}


def recordings(name: str, folder: Path, count: int) -> list[Path]:
    """So many recordings of one step, each after a warm-up."""
    once = record.record

    def several(step: Step, path: Path, *, warm_up: int = 1) -> None:
        for _ in range(WARM_UP):
            step()
        for at in range(count):
            once(step, path.with_name(f"{name}.{at}.json.gz"), warm_up=warm_up)

    if name in OWN:
        several(OWN[name](), folder / name)
    else:
        record.record = several
        try:
            SAMPLES[name](folder / f"{name}.json.gz")
        finally:
            record.record = once
    return [folder / f"{name}.{at}.json.gz" for at in range(count)]


def measured(path: Path, op_time_s: float) -> MeasuredOps:
    """Times of the ops of a recording with the caches of its step."""
    sink = MemorySink()
    options = RunOptions(cache="step", op_time_s=op_time_s, threads=1)
    run_plan(build_plan(read_trace(path), in_order=True), options, sink=sink)
    assert sink.header is not None
    return MeasuredOps(
        us={result.id: result.measured_us for result in sink.results if result.measured_us},
        profiler_event_us=float(str(sink.header.environment["profiler_event_us"])),
    )


def calls_us(paths: list[Path], times: MeasuredOps) -> tuple[float, float]:
    """(what measured calls took at least in any recording, what the measurement and the profiler say), summed."""
    shortest: list[np.ndarray] = []
    said = 0.0
    for path in paths:
        trace = read_trace(path)
        us = np.array([times.us.get(signature_id(signature), np.nan) for signature in trace.signatures])[
            trace.ops.signature
        ]
        parents, known = innermost_parent(trace.ops), ~np.isnan(us)
        inside, below, up = np.zeros(len(us), bool), np.zeros(len(us)), parents.copy()
        while (alive := up >= 0).any():
            inside[alive] |= known[up[alive]]
            np.add.at(below, up[alive], 1.0)
            up[alive] = parents[up[alive]]
        top = np.flatnonzero(known & ~inside)
        if shortest and len(top) != len(shortest[0]):
            continue
        shortest.append(trace.ops.dur_ns[top].astype(float) / 1e3)
        said = float((us[top] + (times.profiler_event_us or 0.0) * below[top]).sum())
    return float(np.min(shortest, axis=0).sum()), said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join([*SAMPLES, *OWN]))
    parser.add_argument("--recordings", type=int, default=20)
    parser.add_argument("--op-time", type=float, default=0.05)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':20} {'step ms':>9} {'measured':>9} {'ratio':>7} {'calls ms':>9} {'measured':>9} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            paths = recordings(name, Path(folder), args.recordings)
            times = measured(paths[0], args.op_time)
            steps = [timeline(read_trace(path, activity=True), measured=times).timeline for path in paths]
            quickest = min(steps, key=lambda one: one.recorded_step_us)
            shortest, said = calls_us(paths, times)
            step_us, made_us = quickest.recorded_step_us, quickest.measured_step_us or 0.0
            print(
                f"{name:20} {step_us / 1e3:9.2f} {made_us / 1e3:9.2f} {made_us / step_us:7.2f} "
                f"{shortest / 1e3:9.2f} {said / 1e3:9.2f} {said / shortest:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
