"""How long `opreplay run` takes from start to report on a bundled sample, and how much memory its processes take.

    python benchmarks/end_to_end.py [--sample transformer_infer] [-- any flags of run]

Bar: the transformer sample within 60 s on two cores.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from opreplay.traces.samples import SAMPLES, sample_path

RUN = "from opreplay.cli.main import main; main()"


def main() -> None:
    """Run once, let its output through, then print the wall time and the peak memory of the largest process."""
    parser = argparse.ArgumentParser(description="Wall time of a whole run on a bundled sample.")
    parser.add_argument("--sample", choices=list(SAMPLES), default="transformer_infer")
    parser.add_argument("flags", nargs="*", help="flags for `opreplay run`, after --")
    options = parser.parse_args()
    start = time.perf_counter()
    command = [sys.executable, "-c", RUN, "run", str(sample_path(options.sample)), *options.flags]
    done = subprocess.run(command, check=False)
    wall = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"\n{options.sample}: exit code {done.returncode}, {wall:.1f} s, largest process {peak_kib / 1024:.0f} MiB")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
