"""How often `compare --history` finds a change of 20 % in one of 50 ops, and names a change in noise.

    python benchmarks/history_power.py [--scatter 0.03]

Bars, from 12 runs on: 95 % of the changes found, and named changes in 5 % of the histories of noise.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from opreplay.replay.results.compare.changes import changes_of
from opreplay.replay.results.history import Point, Series

HISTORIES, OPS, CHANGE = 150, 50, 1.2


def series(op: int, times: np.ndarray[Any, Any]) -> Series:
    """One op whose run i took times[i] microseconds."""
    points = tuple(Point(started_at=f"{i:04d}", label="", measured_us=float(us)) for i, us in enumerate(times))
    return Series(id=str(op), name="aten::mm", inputs="", machine="", machine_name="", points=points)


def main() -> None:
    """Print one line for each number of runs; exit with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="Changes planted in made-up histories.")
    parser.add_argument("--scatter", type=float, default=0.03, help="standard deviation of log times")
    scatter = parser.parse_args().scatter
    rng, missed = np.random.default_rng(0), False
    for runs in (8, 12, 20, 30, 60):
        at, alarms, found, exact = runs * 3 // 5, 0, 0, 0
        for _ in range(HISTORIES):
            times = 100.0 * np.exp(scatter * rng.standard_normal((OPS, runs)))
            alarms += any(op.changes for op in changes_of([series(i, row) for i, row in enumerate(times)]))
            times[0, at:] *= CHANGE
            (op,) = (op for op in changes_of([series(i, row) for i, row in enumerate(times)]) if op.id == "0")
            found += bool(op.changes)
            exact += [change.at for change in op.changes] == [at]
        shares = [f"{count / HISTORIES:.1%}" for count in (found, exact, alarms)]
        print(f"{runs} runs: {shares[0]} found, {shares[1]} at the right run; {shares[2]} of histories of noise")
        missed |= runs >= 12 and (found < 0.95 * HISTORIES or alarms > 0.05 * HISTORIES)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
