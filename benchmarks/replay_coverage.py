"""How many of the ops that own device time can be replayed here, and why the others cannot.

    python benchmarks/replay_coverage.py [--traces DIR_OR_FILES ...] [--max-op-memory 1GB] [--measure] [--verbose]

Builds the plan of each trace (by default the nine with full metadata in ../shared/traces) and replays each unique op
on the CPU, in a worker process, as `opreplay run` does; without --measure each op is called a few times only.
Bar of issue 2: at least 85 % of the 361 ops within 1 GB an op.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from opreplay.replay.build import build_plan
from opreplay.replay.outputs import with_outputs
from opreplay.replay.results import MemorySink, Summary
from opreplay.replay.run import RunOptions, run_plan
from opreplay.traces import read_trace

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
FULL_METADATA = (
    "h100_bert_small", "h100_qwen1.5_0.5b", "h100_falconsai_vit", "h100_timesformer", "h100_owlv2_large",
    "mi300_resnet_ddp_act_checkpoint", "mi300_normalization", "mi300_vllm_piecewise_capture",
    "mi300_vllm_piecewise_exec",
)  # fmt: skip
QUICK = {"op_time_s": 0.0, "min_samples": 1, "max_samples": 1, "warmup_calls": 1, "warmup_s": 0.0}
"""One call to warm up and one sample."""


def replay(path: Path, options: RunOptions, select: str) -> tuple[Summary, MemorySink]:
    """Replay the plan of one trace."""
    sink = MemorySink()
    return run_plan(with_outputs(build_plan(read_trace(path), select=select)), options, sink=sink), sink  # type: ignore[arg-type]


def main() -> None:
    """Print a line for each trace, the total, the reasons, and with --verbose each op that was not replayed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="*", type=Path, default=[SHARED / f"{n}.json.gz" for n in FULL_METADATA])
    parser.add_argument("--max-op-memory", default=1e9, type=float, metavar="BYTES")
    parser.add_argument("--select", default="owner", choices=("owner", "leaf", "top", "all"))
    parser.add_argument("--measure", action="store_true", help="measure as `opreplay run` does, instead of two calls")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    settings = {} if args.measure else QUICK
    options = RunOptions(max_op_bytes=int(args.max_op_memory), **settings)
    replayed = total = 0
    reasons: Counter[str] = Counter()
    print(f"{'trace':36} {'replayed':>9} {'of':>5} {'share of time':>14} {'wall':>8}")
    for path in args.traces:
        summary, sink = replay(path, options, args.select)
        replayed, total = replayed + summary.replayed, total + summary.ops
        reasons.update(summary.reasons)
        name = path.name.partition(".json")[0]
        print(f"{name:36} {summary.replayed:9} {summary.ops:5} {summary.covered_share:14.1%} {summary.wall_s:7.1f}s")
        if args.verbose:
            for result in sink.results:
                if result.status != "replayed":
                    print(f"    {result.recorded_share:6.1%} {result.name} [{result.inputs[:80]}]: {result.reason}")
    print(f"{'all':36} {replayed:9} {total:5} = {replayed / max(1, total):.1%}")
    print("not replayed: " + (", ".join(f"{count} {kind}" for kind, count in reasons.most_common()) or "none"))


if __name__ == "__main__":
    main()
