"""Whether every unique op of real traces survives the way through files: plans, and TraceLens's IR.

    python benchmarks/round_trips.py [TRACE ...]

For each trace (default: the bundled samples and all of ../shared/traces): its plan of all ops is saved and read again;
its calls are written as TraceLens's IR, read, resolved by argument names, saved as a plan, read, and written again.
Counts ops that differ anywhere on the way, and calls that are resolved otherwise than from the trace. Bar: none.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import msgspec

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.tracelens import read_tracelens_ir, write_tracelens_ir
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError
from opreplay.traces.samples import SAMPLES, sample_path

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
DEFAULT = [*(sample_path(name) for name in SAMPLES), *sorted(SHARED.glob("*.json.gz"))]


def differing(plan: ReplayPlan, folder: Path) -> tuple[int, int, int, int]:
    """(calls, ops that a plan file changes, calls that TraceLens's file changes, calls resolved otherwise)."""
    data = dump_plan(plan)
    again = parse_plan(data)
    changed = sum(a != b for a, b in zip(plan.ops, again.ops, strict=True)) or int(dump_plan(again) != data)
    calls = [op for op in plan.ops if op.reason is None]
    first, second = folder / "first.json", folder / "second.json"
    write_tracelens_ir(plan, first, force=True)
    resolved = parse_plan(dump_plan(resolve_named(read_tracelens_ir(first), Policy())))
    anew = tuple(msgspec.structs.replace(op, origin=None) for op in resolved.ops)
    lost = 0
    for ops in (resolved.ops, anew):
        write_tracelens_ir(msgspec.structs.replace(resolved, ops=ops), second, force=True)
        entries = [msgspec.json.decode(path.read_bytes(), type=list[msgspec.Raw]) for path in (first, second)]
        lost += sum(bytes(a) != bytes(b) for a, b in zip(*entries, strict=True))
    others = sum(_way(a) != _way(b) for a, b in zip(calls, resolved.ops, strict=True))
    return len(calls), changed, lost, others


def _way(op: ReplayOp) -> tuple[object, ...]:
    return op.name, op.overload, op.resolved_by, op.via, op.reason


def main() -> None:
    """Print one line a trace and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=DEFAULT)
    args = parser.parse_args()
    sums = [0, 0, 0, 0, 0]
    print(f"{'trace':40} {'ops':>6} {'calls':>6} {'plan file':>10} {'TraceLens':>10} {'resolved otherwise':>19}")
    with tempfile.TemporaryDirectory() as folder:
        for path in args.traces:
            try:
                plan = with_outputs(build_plan(read_trace(path), select="all"))
            except TraceError as error:
                print(f"{path.name}: {error}")
                continue
            row = [len(plan.ops), *differing(plan, Path(folder))]
            sums = [a + b for a, b in zip(sums, row, strict=True)]
            print(_line(path.name.removesuffix(".json.gz"), row), flush=True)
    print(_line("all", sums))


def _line(name: str, row: list[int]) -> str:
    return f"{name:40} {row[0]:6,} {row[1]:6,} {row[2]:10,} {row[3]:10,} {row[4]:19,}"


if __name__ == "__main__":
    main()
