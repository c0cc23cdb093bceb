"""A recorded step beside its replay in order, and beside its ops replayed one by one with cold caches.

    python benchmarks/sequence.py [--samples cnn_train,transformer_infer] [--threads 2] [--op-time 0.05]

For each bundled sample (all recorded on a CPU): wall time of the recorded step and sum of its calls, the sum of the
same calls in a sequence (median of the passes), the wall time of a pass, and count times the cold median of each op.
What is to be compared is the last three columns with the sum recorded, on one machine in one run: the samples were
recorded on another one, and other load shows at once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.step.of_step import step_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.results.reading import MemorySink
from opreplay.traces import read_trace
from opreplay.traces.samples import SAMPLES, sample_path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from tests.running import run_plan

COLUMNS = ("step rec.", "calls rec.", "sequence", "pass", "one by one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default=",".join(SAMPLES))
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--op-time", type=float, default=0.05, help="seconds an op, in both modes")
    args = parser.parse_args()
    print(f"{'sample':20} {'calls':>6}" + "".join(f"{title:>12}" for title in COLUMNS) + f"{'passes':>8}   ms")
    for name in args.samples.split(","):
        plan = with_outputs(build_plan(read_trace(sample_path(name)), in_order=True))
        ordered, single = MemorySink(), MemorySink()
        options = {"op_time_s": args.op_time, "threads": args.threads}
        run_plan(plan, RunOptions(mode="sequence", **options), sink=ordered)
        run_plan(step_plan(plan), RunOptions(**options), sink=single)
        record = ordered.sequence
        assert record is not None
        replayed = {result.id for result in ordered.results if result.status == "replayed"}
        alone = sum((r.measured_us or 0.0) * r.count for r in single.results if r.id in replayed)
        times = (record.recorded_step_us, record.recorded_us, record.sum_us or 0.0, record.wall_us or 0.0, alone)
        shown = "".join(f"{time_us / 1e3:12.2f}" for time_us in times)
        print(f"{name:20} {record.calls_replayed:>6}{shown}{record.passes:>8}", flush=True)


if __name__ == "__main__":
    main()
