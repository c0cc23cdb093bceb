"""Real steps of the CPU and the same with a change: what `timeline --what-if` predicts of it, and what they took.

    python benchmarks/cpu_pairs.py [--noise 0.03] [--seconds 60] [--only NAME]

Each pair is one program, recorded as it is and with one op called twice or left out, step by step in turns, so that
both meet the same load; one thread. Predicted is the ratio of the step after the change to the step before, from the
quickest step as it is; recorded is that of the quickest ones, which no other program broke off. A pair is recorded
again until the 95 % interval of the median ratio is narrower than --noise either way, for --seconds at most: what is
still wider is undecided. Exit status 1: a pair is more than 10 % off; 2: one is undecided.

Bar: within 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from opreplay.replay.results.stats import median_interval
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import read_trace
from opreplay.traces.links.steps import steps_of

STEPS, WARM_UP = 24, 4
BAR = 0.10
LEAST_ROUNDS, MOST_ROUNDS = 8, 200
Op = Callable[..., Tensor]
Program = Callable[[], Callable[[Op], object]]
"""Makes the step of a program, which takes its op in question."""


def products() -> Callable[[Op], object]:
    """Products between activations."""
    x, weights = torch.randn(128, 256), [torch.randn(256, 256) for _ in range(12)]

    def step(op: Op) -> object:
        y = x
        for weight in weights:
            y = torch.relu(op(y, weight))
        return y.sum()

    return step


def activations() -> Callable[[Op], object]:
    """Products with an activation that takes a good part of the time."""
    x, weights = torch.randn(256, 384), [torch.randn(384, 384) for _ in range(8)]

    def step(op: Op) -> object:
        y = x
        for weight in weights:
            y = op(torch.mm(y, weight) / 20.0)
        return y.sum()

    return step


def attention() -> Callable[[Op], object]:
    """Softmax between batched products."""
    q, k, v = (torch.randn(16, 192, 64) for _ in range(3))

    def step(op: Op) -> object:
        y = q
        for _ in range(6):
            y = torch.bmm(op(torch.bmm(y, k.transpose(1, 2)), -1), v)
        return y.sum()

    return step


def small_ops() -> Callable[[Op], object]:
    """Many ops whose dispatch is most of their time."""
    x = torch.randn(64)

    def step(op: Op) -> object:
        y = x
        for _ in range(150):
            y = op(y * 0.5, x)
        return y

    return step


def training() -> Callable[[Op], object]:
    """A step of SGD; the op is in the forward pass, without a gradient of its own."""
    model = torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(6)])
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(192, 192)

    def step(op: Op) -> object:
        with torch.no_grad():
            inputs = op(x)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def twice(op: Op) -> Op:
    """The op, called twice: of an op whose work is most of its time as if it were twice as slow."""

    def called(*arguments: object) -> Tensor:
        op(*arguments)
        return op(*arguments)

    return called


def first(x: Tensor, *_: object) -> Tensor:
    """In place of an op that is left out."""
    return x


@dataclass(frozen=True)
class Pair:
    """One program and one change of it."""

    program: Program
    op: Op
    changed: Op
    what_if: str


PAIRS = {
    "mm twice": Pair(products, torch.mm, twice(torch.mm), "aten::mm=2x"),
    "erf left out": Pair(activations, torch.erf, first, "aten::erf=0"),
    "erf twice": Pair(activations, torch.erf, twice(torch.erf), "aten::erf=2x"),
    "softmax twice": Pair(attention, torch.softmax, twice(torch.softmax), "aten::softmax=2x"),
    "softmax left out": Pair(attention, torch.softmax, first, "aten::softmax=0"),
    "small add left out": Pair(small_ops, torch.add, first, "aten::add=0"),
    "cumsum in training left out": Pair(training, lambda x: torch.cumsum(x, 0), first, "aten::cumsum=0"),
}


def recorded(pair: Pair, path: Path) -> None:
    """A profile of steps of the program as it is and changed, in turns."""
    step, turns = pair.program(), schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=turns, record_shapes=True) as profiler:
        for at in range(WARM_UP + STEPS):
            step(pair.changed if at % 2 else pair.op)
            profiler.step()
    profiler.export_chrome_trace(str(path))


def ratios(pair: Pair, path: Path) -> tuple[float, float]:
    """(predicted, recorded) ratio of the step after the change to the one before, of one recording."""
    recorded(pair, path)
    trace = read_trace(path, activity=True)
    steps = steps_of(trace)
    before, after = (min(steps[turn::2], key=lambda step: step.end_ns - step.start_ns) for turn in (0, 1))
    told = timeline(trace, step=before.number, what_if=[pair.what_if]).timeline
    if not told.what_if[0].matched:
        raise RuntimeError(f"{pair.what_if} matches nothing")
    return (
        told.what_if[0].step_us / told.recorded_step_us,
        (after.end_ns - after.start_ns) / (before.end_ns - before.start_ns),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.03, help="half the width of an interval, as a share")
    parser.add_argument("--seconds", type=float, default=120.0, help="for one pair")
    parser.add_argument("--only", metavar="NAME", choices=list(PAIRS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'pair':30} {'rounds':>6} {'predicted':>10} {'recorded':>10} {'noise':>7} {'error':>7}")
    wrong = undecided = False
    for name, pair in PAIRS.items():
        if chosen.only not in (None, name):
            continue
        predicted: list[float] = []
        truth: list[float] = []
        noise, until = 1.0, time.monotonic() + chosen.seconds
        with tempfile.TemporaryDirectory() as folder:
            while noise > chosen.noise and len(truth) < MOST_ROUNDS and time.monotonic() < until:
                foreseen, became = ratios(pair, Path(folder) / "trace.json")
                predicted.append(foreseen)
                truth.append(became)
                if len(truth) >= LEAST_ROUNDS and (interval := median_interval(sorted(truth))) is not None:
                    noise = (interval[1] - interval[0]) / 2.0 / statistics.median(truth)
        error = statistics.median(predicted) / statistics.median(truth) - 1.0
        is_undecided = noise > chosen.noise
        undecided |= is_undecided
        wrong |= abs(error) > BAR and not is_undecided
        print(
            f"{name:30} {len(truth):6} {statistics.median(predicted):10.3f} {statistics.median(truth):10.3f} "
            f"{noise:7.1%} {error:+7.1%}{'  undecided' if is_undecided else ''}",
            flush=True,
        )
    return 1 if wrong else 2 if undecided else 0


if __name__ == "__main__":
    sys.exit(main())
