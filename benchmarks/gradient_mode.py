"""Ops that choose their way by gradients, recorded in a training step here and replayed in both modes.

    python benchmarks/gradient_mode.py [--op-time 0.05]

For each composite that autograd recorded: whether the ops inside are those of the trace, and the time of a call beside
the recorded one, with gradients (as it is replayed) and without (as it was before). Then the same two modes for leaf
ops, which are always replayed without: what gradients would add to their times.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.execute.attempt import compare_kernels
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.executors.torch.python_call import require_gradients, with_gradients
from opreplay.replay.execute.measure import measure
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.inputs import open_input, plan_of, with_recorded_children
from opreplay.replay.plan.selection import Selection
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy

LEAVES = ("aten::addmm", "aten::mm", "aten::bmm", "aten::native_layer_norm", "aten::gelu", "aten::add", "aten::mul")


def record(path: Path) -> None:
    """Two training steps of layers that torch composes of simpler ops."""
    torch.manual_seed(0)
    linear, table = torch.nn.Linear(256, 256, bias=False), torch.nn.EmbeddingBag(1000, 64)
    lstm, norm, conv = torch.nn.LSTM(64, 64), torch.nn.LayerNorm(256), torch.nn.Conv2d(8, 16, 3)
    q = torch.randn(2, 4, 64, 32, requires_grad=True)
    weight = torch.randn(256, 256, requires_grad=True)
    x, series, image = torch.randn(64, 4, 256), torch.randn(10, 4, 64), torch.randn(4, 8, 32, 32)

    def step() -> None:
        y = torch.matmul(torch.nn.functional.gelu(norm(linear(x))), weight)
        bags = table(torch.randint(0, 1000, (64,)), torch.arange(0, 64, 4))
        attention = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        total = y.sum() + bags.sum() + attention.sum() + lstm(series)[0].sum() + conv(image).relu().sum()
        total.backward()

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step()
        step()
    recorded.export_chrome_trace(str(path))


def replayed(executor: TorchExecutor, op: ReplayOp, options: MeasureOptions) -> tuple[str, float]:
    """(whether the child ops are those recorded, µs a call)."""
    prepared = executor.prepare(op, seed=0)
    measurement = measure(executor, prepared, options)
    return compare_kernels(op, executor.profile(prepared, op), measurement.median_us).children, measurement.median_us


def both_modes(executor: TorchExecutor, op: ReplayOp, options: MeasureOptions) -> tuple[float, float]:
    """µs a call of a leaf op without and with gradients, one after the other."""
    times: list[float] = []
    for on in (False, True):
        prepared: Any = executor.prepare(op, seed=0)
        if on:
            require_gradients(prepared.call.args)
            prepared.call = type(prepared.call)(with_gradients, prepared.call.func, *prepared.call.args)
        times.append(measure(executor, prepared, options).median_us)
    return times[0], times[1]


def main() -> None:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op-time", type=float, default=0.05, help="seconds for each measurement")
    options = MeasureOptions(op_time_s=parser.parse_args().op_time, cache="warm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        record(path)
        read = open_input(str(path))
        plan = with_recorded_children(plan_of(read, Selection(select="all"), device="cpu"), read)
    executor = TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=1 << 30, threads=1)
    agree = [0, 0]
    print(f"{'composite':36} {'recorded':>9} {'with':>9} {'without':>9}  child ops with, without gradients")
    composites = [op for op in plan.ops if op.gradients]
    for op in composites:
        ways = [replayed(executor, msgspec.structs.replace(op, gradients=on), options) for on in (True, False)]
        agree = [count + (children == "match") for count, (children, _) in zip(agree, ways, strict=True)]
        (first, with_us), (second, without_us) = ways
        us = op.recorded.host_us_median
        print(f"{op.name:36} {us:7.1f}us {with_us:7.1f}us {without_us:7.1f}us  {first}, {second}")
    print(f"child ops as recorded: {agree[0]} of {len(composites)} with gradients, {agree[1]} without\n")
    print(f"{'leaf (replayed without)':36} {'without':>9} {'with':>9}  gradients would add")
    for op in plan.ops:
        if op.name in LEAVES and op.recorded.gradient_calls and op.reason is None:
            without_us, with_us = both_modes(executor, op, options)
            print(f"{op.name:36} {without_us:7.1f}us {with_us:7.1f}us  {with_us - without_us:+.1f} us")
    executor.close()


if __name__ == "__main__":
    main()
