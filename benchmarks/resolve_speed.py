"""How long it takes to resolve one unique op and to build its IR.

    python benchmarks/resolve_speed.py [TRACE ...] [--select all]

Resolves every unique op of each trace (default: all of ../shared/traces that can be read) and prints the median and the
90th percentile per op, first with cold schema caches, then with warm ones. Bar: median at most 150 µs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

from opreplay.replay.ir.model import Recorded, ReplayOp
from opreplay.replay.plan.build import signature_id
from opreplay.replay.plan.select import selected_rows
from opreplay.replay.resolve import schema
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.resolver import Resolver
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError
from opreplay.traces.model import Trace

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


def times_us(trace: Trace, select: str) -> list[float]:
    """Microseconds for each unique selected op: its id, its resolution and its arguments."""
    resolver = Resolver(trace, Policy(), "cpu")
    first: dict[int, int] = {}
    for row in selected_rows(trace, select).tolist():
        first.setdefault(int(trace.ops.signature[row]), row)
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    times = []
    for index, row in first.items():
        signature = trace.signatures[index]
        start = perf_counter()
        op = ReplayOp(id=signature_id(signature), name=signature.name, count=1, recorded=recorded)
        resolver.resolve(op, signature, row)
        times.append((perf_counter() - start) * 1e6)
    return times


def main() -> None:
    """Print one line a trace, then all ops together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=sorted(SHARED.glob("*.json.gz")))
    parser.add_argument("--select", default="all", choices=("owner", "leaf", "top", "all"))
    args = parser.parse_args()
    cold: list[float] = []
    warm: list[float] = []
    print(f"{'trace':40} {'ops':>6} {'cold median':>12} {'warm median':>12} {'warm p90':>9}  (microseconds)")
    for path in args.traces:
        try:
            trace = read_trace(path)
        except TraceError as error:
            print(f"{path.name}: {error}")
            continue
        schema.forget()
        first, again = times_us(trace, args.select), times_us(trace, args.select)
        if first:
            p90 = sorted(again)[int(0.9 * (len(again) - 1))]
            print(f"{path.name:40} {len(first):6} {median(first):12.0f} {median(again):12.0f} {p90:9.0f}")
        cold += first
        warm += again
    if cold:
        p90 = sorted(warm)[int(0.9 * (len(warm) - 1))]
        print(f"{'all':40} {len(cold):6} {median(cold):12.0f} {median(warm):12.0f} {p90:9.0f}")


if __name__ == "__main__":
    main()
