"""How long commands take that need no torch: `--help` of all, and `inspect` of a bundled sample.

    python benchmarks/startup.py [--runs 15]

Each command runs in a fresh process; the first run, which may compile bytecode, is not counted. Bar: `opreplay --help`
in at most 150 ms, without importing torch or pandas.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from opreplay.traces.samples import sample_path

RUN = "from opreplay.cli.main import main; main()"
LISTS_MODULES = (
    "import sys, atexit\n"
    "atexit.register(lambda: print('torch' in sys.modules, 'pandas' in sys.modules, file=sys.stderr))\n"
)


def seconds(arguments: list[str], runs: int) -> list[float]:
    """Wall time of each of `runs` fresh processes."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", RUN, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return times[1:]


def heavy_imports(arguments: list[str]) -> str:
    """Which of torch and pandas the command imports."""
    command = [sys.executable, "-c", LISTS_MODULES + RUN, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    flags = done.stderr.split()[-2:]
    return ", ".join(name for name, flag in zip(("torch", "pandas"), flags, strict=True) if flag == "True") or "neither"


def main() -> None:
    """Print one line a command."""
    parser = argparse.ArgumentParser(description="Wall time of commands that need no torch.")
    parser.add_argument("--runs", type=int, default=15, help="fresh processes a command (default 15)")
    runs = parser.parse_args().runs
    print(f"{'command':34} {'median ms':>9} {'min ms':>8} {'max ms':>8}  imports of torch, pandas")
    for arguments in (
        ["--help"],
        ["run", "--help"],
        ["list", "devices"],
        ["inspect", str(sample_path("transformer_infer"))],
    ):
        times = [1000 * second for second in seconds(arguments, runs)]
        shown = "opreplay " + " ".join(argument.rpartition("/")[2] for argument in arguments)
        figures = f"{statistics.median(times):9.0f} {min(times):8.0f} {max(times):8.0f}"
        print(f"{shown[:34]:34} {figures}  {heavy_imports(arguments)}")


if __name__ == "__main__":
    main()
