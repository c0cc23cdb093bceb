"""Whether ops of real traces survive the way through a folder of FlashInfer-Trace, and how much of their time is in it.

    python benchmarks/flashinfer_trace.py [TRACE ...]

For each trace (default: all of ../shared/traces): its plan is written as definitions and workloads, read, resolved by
argument names and compared call by call. Prints ops, workloads, definitions, those without a reference, calls that
changed, and the share of the ops' recorded device time that is in definitions.
Bars: no call changes; of vLLM's and SGLang's traces at least 90 % of the time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opreplay.initializers.registry import Registry
from opreplay.replay.export.flashinfer_trace import Exported, flashinfer_trace, write_flashinfer_trace
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.flashinfer_trace import read_flashinfer_trace
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
MEMORY_BYTES = 256 << 20


def changed(plan: ReplayPlan, exported: Exported) -> int:
    """Calls that the folder does not give back as they were, or gives a reason."""
    left_out = {op.id for op in exported.left_out}
    with tempfile.TemporaryDirectory() as folder:
        write_flashinfer_trace(exported, Path(folder))
        again = resolve_named(read_flashinfer_trace(folder), Policy())
    before, after = _counted([op for op in plan.ops if op.id not in left_out]), _counted(again.ops)
    return sum(((before - after) + (after - before)).values()) + sum(op.reason is not None for op in again.ops)


def _counted(ops: Sequence[ReplayOp]) -> Counter[object]:
    calls: Counter[object] = Counter()
    for op in ops:
        calls[op.called, op.overload, op.args] += op.count
    return calls


def row(path: Path, registry: Registry) -> list[float]:
    """Ops, workloads, definitions, ops without a reference, changed calls, and device time: said, and in all."""
    plan = with_outputs(build_plan(read_trace(path)))
    exported = flashinfer_trace(plan, registry, memory_bytes=MEMORY_BYTES)
    times = [exported.covered_share * exported.device_us, exported.device_us]
    counts = [len(plan.ops), exported.workloads, exported.definitions, len(exported.without_reference)]
    return [*counts, changed(plan, exported), *times]


def main() -> None:
    """Print one line a trace and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=sorted(SHARED.glob("*.json.gz")))
    args = parser.parse_args()
    registry = built_in()
    sums = [0.0] * 7
    print(f"{'trace':40} {'ops':>6} {'said':>6} {'definitions':>12} {'no reference':>13} {'changed':>8} {'time':>8}")
    for path in args.traces:
        try:
            line = row(path, registry)
        except TraceError as error:
            print(f"{path.name}: {error}")
            continue
        sums = [a + b for a, b in zip(sums, line, strict=True)]
        print(_line(path.name.removesuffix(".json.gz"), line), flush=True)
    print(_line("all", sums))


def _line(name: str, row: list[float]) -> str:
    ops, said, definitions, without, changes, said_us, all_us = row
    time = f"{100 * said_us / all_us:7.1f} %" if all_us else "      –"
    return f"{name:40} {ops:6,.0f} {said:6,.0f} {definitions:12,.0f} {without:13,.0f} {changes:8,.0f} {time}"


if __name__ == "__main__":
    main()
