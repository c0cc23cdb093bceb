"""Whether `compare` of two traces of one device tells a change of its clock from changes of ops.

    python benchmarks/compare_clock.py [--repetitions 8] [--clock 0.04]

A trace holds 40 ops of 24 calls each, whose times scatter by 3, 6 or 10 % a call. Eight of the second trace's ops are
slowed by 5, 10 or 20 %, or none (A/A); with another clock, all its times are longer or shorter by one random factor of
that standard deviation. Bars for another clock: at most one percentage point more false alarms among unchanged ops than
without it, and at most one in ten of the planted slowdowns missed that are found without it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from opreplay.replay.plan.recorded.times import times_of_trace
from opreplay.replay.results.compare.sides import Times, compare_times
from opreplay.traces import read_trace

OPS, CALLS, SLOWED = 40, 24, 8
NOISES, SLOWDOWNS = (0.03, 0.06, 0.10), (0.0, 0.05, 0.10, 0.20)
ALARM_BAR, MISSED_BAR = 0.01, 0.10
Json = dict[str, Any]


def trace_of(seed: int, noise: float, clock: float, slowdown: float, folder: Path) -> Times:
    """Times of a trace of one GPU; `clock` multiplies all times, 1 + `slowdown` those of the first ops."""
    numbers = random.Random(seed)
    usual = random.Random(7)
    base_us = [usual.uniform(20, 400) for _ in range(OPS)]
    device: Json = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}
    events: list[Json] = []
    at = 1000.0
    for call in range(CALLS):
        for op, us in enumerate(base_us):
            number = call * OPS + op + 1
            took = us * clock * (1 + slowdown * (op < SLOWED)) * max(0.2, numbers.gauss(1, noise))
            dims = [[op + 8, 64], [op + 8, 64]]
            ids = {"External id": number}
            of_op = {**ids, "Input Dims": dims, "Input type": ["float", "float"]}
            placed = {"ph": "X", "pid": 1, "tid": 1}
            of_kernel = {**ids, "device": 0, "stream": 7, "correlation": number}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1, "dur": 2}
            kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": at + 5, "dur": took}
            events.append({**placed, "cat": "cpu_op", "name": "aten::add", "ts": at, "dur": 4, "args": of_op})
            events.append({**placed, **launch, "args": {**ids, "correlation": number}})
            events.append({**kernel, "args": of_kernel})
            at += took + 10
    path = folder / f"{seed}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}))
    return times_of_trace(read_trace(path), "owner")


def outcome(seed: int, noise: float, clock_spread: float, slowdown: float, folder: Path) -> tuple[int, int]:
    """Return how many slowed ops are reported as slower, and how many unchanged ops as changed, in a pair of traces."""
    clocks = [max(0.5, random.Random(seed + which).gauss(1, clock_spread)) for which in (1, 2)]
    before = trace_of(10 * seed + 1, noise, clocks[0], 0.0, folder)
    after = trace_of(10 * seed + 2, noise, clocks[1], slowdown, folder)
    first_ids = [op.id for op in sorted(before.ops, key=lambda op: int(op.inputs.split("[")[1].split(",")[0]))]
    slowed = set(first_ids[:SLOWED]) if slowdown else set[str]()
    ops = compare_times(before, after).ops
    found = sum(op.verdict == "slower" for op in ops if op.id in slowed)
    return found, sum(op.verdict in ("slower", "faster") for op in ops if op.id not in slowed)


def main() -> int:
    """Print a row for each noise and slowdown, without and with another clock."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--clock", type=float, default=0.04)
    asked = parser.parse_args()
    good = True
    print(f"{'noise':>6} {'slowed by':>10} {'found':>12} {'false':>8}   {'found, clock':>14} {'false, clock':>13}")
    with tempfile.TemporaryDirectory() as name:
        for noise in NOISES:
            for slowdown in SLOWDOWNS:
                counts = [
                    [outcome(100 * seed, noise, clock, slowdown, Path(name)) for seed in range(asked.repetitions)]
                    for clock in (0.0, asked.clock)
                ]
                found, false = zip(*[tuple(map(sum, zip(*runs, strict=True))) for runs in counts], strict=True)
                planted = SLOWED * asked.repetitions if slowdown else 0
                rates = [count / (OPS * asked.repetitions - planted) for count in false]
                print(
                    f"{noise:6.0%} {slowdown:10.0%} {found[0]:6} of {planted:2} {rates[0]:8.1%}"
                    f"   {found[1]:8} of {planted:2} {rates[1]:13.1%}"
                )
                good &= rates[1] <= rates[0] + ALARM_BAR and found[1] >= found[0] - MISSED_BAR * planted
    print("ok" if good else "worse with another clock")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
