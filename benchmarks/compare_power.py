"""How often `compare` is wrong about runs of the same, and whether it finds a slowdown that was put in.

    python benchmarks/compare_power.py [--repetitions N] [--slowdown SHARE] [--runs N] [--visits N] [--op-time SECONDS]
                                       [--load PROCESSES]

50 real ops of 100 us and more are measured in two runs, N times. In a third run 5 of them spin for a share of their
time after the call: these are to be found, and the others are to be left alone. `--load` starts so many processes that
compute, stream through memory and sleep, for random times, as users' machines do other work.

Bars, on a quiet machine: at most 1 % of the ops of equal runs called slower; slowdowns of 10 % found.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from time import perf_counter, sleep
from typing import Any

import torch

from opreplay.replay.execute.executors.torch.device import TorchExecutor, TorchPrepared
from opreplay.replay.execute.measure import measure
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.visits import Visits
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.results.compare.judge import Comparison, compare
from opreplay.replay.results.compare.pooling import pool
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import Header, OpResult

OPS, SLOWED = 50, 5
FALSE_SHARE = 0.01
HEADER = Header(opreplay_version="0", started_at="", trace={}, environment={}, options={})


def calls() -> list[partial[Any]]:
    """50 calls of some 0.1 to 10 ms on one core."""
    ops = torch.ops.aten
    partials: list[partial[Any]] = []
    for step in range(10):
        size, count, rows = 160 + 32 * step, (1 << 18) * (step + 1), 128 * (step + 1)
        matrix, values, table = torch.randn(size, size), torch.randn(count), torch.randn(rows, 1024)
        partials += [
            partial(ops.mm.default, matrix, matrix),
            partial(ops.gelu.default, values),
            partial(ops.exp.default, values),
            partial(ops._softmax.default, table, -1, False),
            partial(ops.sum.dim_IntList, torch.randn(8 * rows, 1024), [-1]),
        ]
    return partials[:OPS]


def work(seed: int) -> None:
    """Other work until the parent ends: products, streams through memory, Python, and pauses, 0.05 to 1 s each."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    matrix, block = torch.randn(768, 768), torch.zeros(1 << 24)
    parts: list[Callable[[], object]] = [
        lambda: matrix @ matrix,
        lambda: block.add_(1.0),
        lambda: sum(range(100_000)),
        lambda: sleep(0.01),
    ]
    while (parent := parent_process()) is not None and parent.is_alive():
        part, until = chance.choice(parts), perf_counter() + chance.uniform(0.05, 1.0)
        while perf_counter() < until:
            part()


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes beside that do other work."""
    started = [get_context("spawn").Process(target=work, args=(seed,), daemon=True) for seed in range(processes)]
    for process in started:
        process.start()
    sleep(3.0 if started else 0.0)  # until they have imported torch
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def slowed(call: partial[Any], extra_us: float) -> partial[Any]:
    """The call, and then a wait for so many microseconds in the same thread."""

    def and_wait(function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        until = perf_counter() + extra_us * 1e-6
        while perf_counter() < until:
            pass
        return result

    return partial(and_wait, call.func, *call.args)


def run_apart(extra_us: Mapping[int, float], options: MeasureOptions, visits: int = 1) -> ResultFile:
    """`run` in a process of its own, as users' runs are: another one's memory lies elsewhere."""
    with get_context("spawn").Pool(1) as apart:
        return apart.apply(run, (dict(extra_us), options, visits))


def run(extra_us: Mapping[int, float], options: MeasureOptions, visits: int) -> ResultFile:
    """One run over all ops as `opreplay run` measures them; with `visits`, one pass after the other."""
    torch.manual_seed(0)
    executor = TorchExecutor("cpu", partial(find_overload, policy=Policy()), memory_bytes=10**9, threads=1)
    timed_calls = calls()
    known = [Visits(visits) for _ in timed_calls]
    measurements: dict[int, Measurement] = {}
    for _ in range(visits):
        for index, call in enumerate(timed_calls):
            called = slowed(call, extra_us[index]) if index in extra_us else call
            measurements[index] = measure(executor, TorchPrepared(called, (), 10**9), options, visits=known[index])
    executor.close()
    results: list[OpResult] = []
    for index, call in enumerate(timed_calls):
        results.append(
            OpResult(
                id=f"{index:012x}",
                name=str(call.func),
                count=1,
                status="replayed",
                resolved_by="jit",
                measured_us=measurements[index].median_us,
                measurement=measurements[index],
            )
        )
    return ResultFile(header=HEADER, results=tuple(results), summary=None, complete_bytes=0)


def shown(result: Comparison) -> str:
    """What a comparison came to, on one line."""
    spread = 0.0 if result.spread is None else result.spread
    wrong = ", ".join(f"{op.name} {op.ratio:.2f}" for op in result.of("slower", "faster") if op.ratio)
    counts = (
        f"{len(result.of('slower'))} slower, {len(result.of('faster'))} faster, {len(result.of('unclear'))} unclear"
    )
    return f"{counts}; spread {spread:.1%}, threshold {result.applied:.1%}, machine {result.machine or 1:.2f}; {wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--slowdown", type=float, default=0.10)
    parser.add_argument("--runs", type=int, default=1, help="runs of each side, in turns, for the slowed ops")
    parser.add_argument("--visits", type=int, default=1, help="visits to each op, as of run")
    parser.add_argument("--op-time", type=float, default=MeasureOptions().op_time_s, help="seconds an op, as of run")
    parser.add_argument("--load", type=int, default=0, help="processes beside that do other work")
    args = parser.parse_args()
    with load(args.load):
        return compared(args)


def compared(args: argparse.Namespace) -> int:
    """The runs of one set of options, and 0 where the bar is met."""
    options = MeasureOptions(cache="cold", op_time_s=args.op_time)
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    before = run_apart({}, options, args.visits)
    false = 0
    for repetition in range(args.repetitions):
        after = run_apart({}, options, args.visits)
        result = compare(before, after)
        false += len(result.of("slower"))
        print(f"the same, {repetition + 1}: {shown(result)}", flush=True)
        before = after
    chosen = set(random.Random(0).sample(range(OPS), SLOWED))
    extra = {i: args.slowdown * (before.results[i].measured_us or 0.0) for i in chosen}
    sides: tuple[list[ResultFile], list[ResultFile]] = ([before], [run_apart(extra, options, args.visits)])
    for _ in range(args.runs - 1):
        sides[0].append(run_apart({}, options, args.visits))
        sides[1].append(run_apart(extra, options, args.visits))
    result = compare(pool(sides[0]), pool(sides[1]))
    hit = {int(op.id, 16) for op in result.of("slower")}
    share = false / (OPS * args.repetitions) if args.repetitions else 0.0
    print(f"slowed by {args.slowdown:.0%}: {shown(result)}")
    print(f"false regressions: {share:.2%} of ops (bar {FALSE_SHARE:.0%}); load {busy:.1f} at the start")
    print(f"found {len(hit & chosen)} of {SLOWED} slowed ops, {len(hit - chosen)} others")
    return 0 if share <= FALSE_SHARE and hit >= chosen else 1


if __name__ == "__main__":
    raise SystemExit(main())
