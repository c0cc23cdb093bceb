"""Ops of traces that would do more work than was recorded, by what memory can move at best: guessed too large.

    python benchmarks/physical_check.py [--traces DIR_OR_FILES ...] [--select owner|leaf|top|all] [--verbose]

Builds the plan of each trace (by default all in ../shared/traces) with the shapes of its results, and looks at each
ATen op with recorded device time: bytes that a call must touch, over the peak bandwidth of the recorded device (or of
the fastest there is), must not exceed 1.3 times the recorded time. "guessed" are failing ops of which an argument that
sizes follow from was guessed; the others fail as they were recorded, so that their time or owner is the wrong one.
Bar: no op fails unexplained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.physical import impossible
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError

EXPLAINED = {"npu_alexnet_trace_view": "all its device times were replaced by 10 µs before it was published"}
"""Trace → why its recorded times are no times."""
SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


def files(named: list[Path]) -> list[Path]:
    """The traces that files and folders mean."""
    return [file for path in named for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]


def measure(args: argparse.Namespace) -> None:
    """Print a line for each trace and the sum, and with --verbose each op that fails."""
    print(f"{'trace':36} {'checked':>8} {'failing':>8} {'guessed':>8}")
    sums = [0, 0, 0]
    for path in files(args.traces):
        try:
            trace = read_trace(path)
        except TraceError as error:
            print(f"{path.name}: {error}")
            continue
        plan = with_outputs(build_plan(trace, select=args.select))
        looked = [op for op in plan.ops if op.reason is None and op.recorded.device_us_median is not None]
        failing = [(op, why) for op in looked if (why := impossible(op, plan.device)) is not None]
        guessed = [(op, why) for op, why in failing if any(note.argument != "*" for note in op.assumptions)]
        row = (len(looked), len(failing), len(guessed))
        explained = EXPLAINED.get(path.name.partition(".json")[0])
        if explained is None:
            sums = [total + n for total, n in zip(sums, row, strict=True)]
        if looked:
            note = f"  {explained}" if explained and failing else ""
            print(f"{path.name.partition('.json')[0]:36} {row[0]:8} {row[1]:8} {row[2]:8}{note}")
        for op, why in failing if args.verbose else ():
            shapes = [meta.shape for arg in op.args for meta in arg.tensors if meta is not None]
            notes = "; ".join(f"{note.argument}: {note.what}" for note in op.assumptions)
            print(f"    {op.name} {shapes[:4]} → {[m and m.shape for m in op.outputs or ()]}: {why} [{notes[:200]}]")
    print(f"{'all that are not explained':36} {sums[0]:8} {sums[1]:8} {sums[2]:8}")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="*", type=Path, default=[SHARED])
    parser.add_argument("--select", default="owner", choices=("owner", "leaf", "top", "all"))
    parser.add_argument("--verbose", action="store_true")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
