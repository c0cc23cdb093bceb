"""How often the comparison of times in `opreplay check` is wrong: equal implementations, and one that is 10 % slower.

    python benchmarks/check_speed.py [--repetitions N] [--time SECONDS] [--load PROCESSES]

The slower one does the same work and then a tenth of it again. `--load` starts processes that keep processors busy.

Bars: equal implementations called different in at most 1 %, one that is 10 % slower found in at least 90 %, within
60 s.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from opreplay.replay.check.speed import compared
from opreplay.replay.execute.executors.clocks import HostClock

ROWS = 250
BUSY = "import time\nwhile True: sum(range(10000))"


def sampler(clock: HostClock, calls: tuple[Callable[[], Any], Callable[[], Any]]) -> Callable[[int], float]:
    """What the check does with two calls of some hundred microseconds on one thread."""

    def sample(which: int) -> float:
        at = clock.interruptions()
        took = clock.time_calls(calls[which], 3)
        return max(took - clock.interruptions().waited_since(at, took), 0.0) / 3

    return sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--time", type=float, default=10.0)
    parser.add_argument("--load", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = HostClock()
    x = torch.randn(10 * ROWS, 64)
    parts = [x[:ROWS].clone() for _ in range(11)]

    def work(count: int) -> Callable[[], Any]:
        def call() -> None:
            for part in parts[:count]:
                torch.exp(part)

        return call

    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.load)]
    try:
        for name, calls, wanted in (
            ("equal", (work(10), work(10)), False),
            ("10 % slower", (work(11), work(10)), True),
        ):
            right, longest, pairs = 0, 0.0, 0
            for repetition in range(options.repetitions):
                started = time.perf_counter()
                done, (_, low, high), _ = compared(sampler(clock, calls), limit_s=options.time, seed=repetition)
                longest = max(longest, time.perf_counter() - started)
                pairs += len(done)
                right += (low > 0) == wanted and (wanted or high >= 0)
            print(
                f"{name}: {right} of {options.repetitions} right, {pairs / options.repetitions:.0f} pairs on average, "
                f"at most {longest:.1f} s, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    finally:
        for process in busy:
            process.send_signal(signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
