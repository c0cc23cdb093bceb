"""How many of the recorded ops can be replayed here, how much of the device time they own, and why the others cannot.

    python benchmarks/replay_coverage.py [--traces DIR_OR_FILES ...] [--select owner|leaf|top|all]
                                         [--max-op-memory BYTES] [--measure | --meta] [--verbose]

Builds the plan of each trace (by default the nine with full metadata in ../shared/traces) and replays each unique op
on the CPU, in a worker process, as `opreplay run` does; without --measure each op is called a few times only. With
--meta nothing is computed: each op is called on meta tensors, as `opreplay plan --meta` does.
Collectives and Triton kernels, which one process cannot replay from a trace, are counted apart. "of the rest" is the
share that replayed ops have of the device time that ops own, those apart and those over the budget left out; "no op" is
the share of device time whose kernels no recorded op launched, such as those of a captured graph.
Bars: at least 98 % of the unique ops that own device time, 97 % of the leaves (--select leaf), and 97 % of the rest of
the device time of each trace, within 1 GB an op; with --meta no trace takes more than tens of seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.planned import planned_results
from opreplay.replay.plan.build import build_plan
from opreplay.replay.report.views.plan import planned_summary
from opreplay.replay.resolve.meta.check import check_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.results.reading import MemorySink
from opreplay.replay.results.records import OpResult, Summary
from opreplay.traces import read_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from tests.running import run_plan

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
FULL_METADATA = (
    "h100_bert_small",
    "h100_qwen1.5_0.5b",
    "h100_falconsai_vit",
    "h100_timesformer",
    "h100_owlv2_large",
    "mi300_resnet_ddp_act_checkpoint",
    "mi300_normalization",
    "mi300_vllm_piecewise_capture",
    "mi300_vllm_piecewise_exec",
)
QUICK = {"op_time_s": 0.0, "min_samples": 1, "max_samples": 1, "warmup_calls": 1, "warmup_s": 0.0}
"""One call to warm up and one sample."""
APART = ("collective", "triton kernel")
HEAD = f"{'trace':32} {'replayed':>9} {'of':>5} {'apart':>6} {'of all':>7} {'of the rest':>12} {'no op':>7} {'wall':>8}"


def on_meta(plan: ReplayPlan, options: RunOptions) -> tuple[Summary, list[OpResult]]:
    """What `opreplay plan --meta` says."""
    plan = with_outputs(plan)
    results = planned_results(plan, max_op_bytes=options.max_op_bytes, checks=check_plan(plan))
    return planned_summary(plan, results), results


def replayed(plan: ReplayPlan, options: RunOptions) -> tuple[Summary, list[OpResult]]:
    """What `opreplay run` says."""
    sink = MemorySink()
    return run_plan(with_outputs(plan), options, sink=sink), sink.results


def files(named: list[Path]) -> list[Path]:
    """The traces that files and folders mean."""
    return [file for path in named for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]


def problem(result: OpResult) -> str | None:
    """Why a result is listed with --verbose."""
    if result.status != "replayed":
        return str(result.why_not())
    return str(result.meta) if result.meta is not None and result.meta.status != "ok" else None


def measure(args: argparse.Namespace) -> None:
    """Print a line for each trace, the totals, the reasons, and with --verbose each op that was not replayed."""
    options = RunOptions(max_op_bytes=int(args.max_op_memory), **({} if args.measure else QUICK))  # type: ignore[arg-type]
    able = total = 0
    reasons: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    print(HEAD)
    for path in files(args.traces):
        started = perf_counter()
        plan = build_plan(read_trace(path), select=args.select)
        summary, results = (on_meta if args.meta else replayed)(plan, options)
        apart = [total for total in summary.not_replayed if total.kind in APART]
        ops = summary.ops - sum(reason.ops for reason in apart)
        owned = sum(result.recorded_share for result in results)
        rest = owned - sum(reason.share for reason in summary.not_replayed if reason.kind in (*APART, "budget"))
        able, total = able + summary.replayed, total + ops
        reasons.update(summary.reasons)
        verdicts.update(result.meta.status for result in results if result.meta is not None)
        print(
            f"{path.name.partition('.json')[0]:32} {summary.replayed:9} {ops:5} {summary.ops - ops:6} "
            f"{summary.covered_share:7.1%} {summary.covered_share / rest if rest > 1e-9 else 1:12.1%} "
            f"{max(0.0, 1 - owned):7.1%} {perf_counter() - started:7.1f}s"
        )
        for result in results if args.verbose else ():
            if (why := problem(result)) is not None:
                print(f"    {result.recorded_share:6.1%} {result.name} [{result.inputs[:80]}]: {why}")
    print(f"{'all':32} {able:9} {total:5} = {able / max(1, total):.1%}")
    print("not replayed: " + (", ".join(f"{count} {kind}" for kind, count in reasons.most_common()) or "none"))
    if args.meta:
        print("on meta tensors: " + ", ".join(f"{count} {kind}" for kind, count in verdicts.most_common()))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="*", type=Path, default=[SHARED / f"{n}.json.gz" for n in FULL_METADATA])
    parser.add_argument("--max-op-memory", default=1e9, type=float, metavar="BYTES")
    parser.add_argument("--select", default="owner", choices=("owner", "leaf", "top", "all"))
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--measure", action="store_true", help="measure as `opreplay run` does, instead of two calls")
    how.add_argument("--meta", action="store_true", help="compute nothing: call each op on meta tensors")
    parser.add_argument("--verbose", action="store_true")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
