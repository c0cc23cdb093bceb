# pyright: strict
"""Run the exams and print one table; with --update write benchmarks/exams/results.json.

    python -m benchmarks.exams [--list] [--only NAME ...] [--slow] [--rows N] [--update [--why TEXT]]

Needs the measured tables (by default ../shared/ascend). Figures are percentages but for counts: the median of
|predicted / measured - 1| and the median of the ops' medians (`per_op`), the error weighted by time, shares within
25 %, within 2 times and inside the 80 % band, the signed error of the sum. `failing` counts violations. Exits with 1
where a result is worse than the committed one.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of NumPy: threads that wait for each other cost processor time

import argparse
import gc
import sys
import time
from pathlib import Path

from benchmarks.exams import ledger
from benchmarks.exams.scoring import Figures, Result

COLUMNS = ("rows", "asked", "median", "per_op", "weighted", "within_25", "within_2x", "in_band", "sum")


def line(name: str, figures: Figures, seconds: float) -> str:
    """One exam as a line of the table, with what only it has at the end."""
    cells = [f"{figures[column]:g}" if column in figures else "" for column in COLUMNS]
    others = ", ".join(f"{key} {value:g}" for key, value in figures.items() if key not in COLUMNS)
    return f"{name:24}" + "".join(f"{cell:>10}" for cell in cells) + f"{seconds:7.1f} s  {others}".rstrip()


def main() -> int:
    """Parse the command line and run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say what the exams are, and run none")
    parser.add_argument("--only", nargs="+", choices=list(ledger.EXAMS), metavar="NAME", help="run these alone")
    parser.add_argument("--slow", action="store_true", help="run the exams that refit all constants too (2 minutes)")
    parser.add_argument("--rows", type=int, default=0, metavar="N", help="print the N worst rows of each exam")
    parser.add_argument("--update", action="store_true", help="write the results file")
    parser.add_argument("--why", default="", metavar="TEXT", help="why a figure may get worse; goes into the history")
    parser.add_argument("--tables", type=Path, default=ledger.TABLES, metavar="FOLDER")
    options = parser.parse_args()
    gc.set_threshold(200_000, 50, 100)  # captures make many objects that stay
    asked = options.only or [name for name, exam in ledger.EXAMS.items() if options.slow or not exam.is_slow]
    chosen = [name for name in ledger.EXAMS if name in asked]
    if options.list:
        print("\n".join(f"{name:24} {ledger.EXAMS[name].about}" for name in chosen))
        return 0
    if not options.tables.is_dir():
        parser.error(f"no folder {options.tables}: say where the measured tables are, --tables FOLDER")
    committed = ledger.read()
    found: dict[str, Result] = {}
    print(f"{'percent':24}" + "".join(f"{column:>10}" for column in COLUMNS) + "      CPU")
    for name in chosen:
        start = time.process_time()
        result = ledger.EXAMS[name].run(options.tables)
        found[name] = result
        print(line(name, result.figures, time.process_time() - start), flush=True)
        for row in result.worst[: options.rows]:
            print(f"    {row}")
    lines = [
        text for name in found for text in ledger.worse(name, found[name].figures, committed["exams"].get(name, {}))
    ]
    print("\n".join(f"worse: {text}" for text in lines))
    if not options.update:
        return int(bool(lines))
    try:
        ledger.write(ledger.updated(committed, found, options.why))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
