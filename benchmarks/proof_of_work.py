"""Which data-dependent ops of traces get contents that make them work, and whether these add up to the batches told.

    python benchmarks/proof_of_work.py [TRACE ...]

Bars: every data-dependent op has an initializer, and none is idle; query and context tokens of each annotated iteration
equal those that the arguments encode. Without traces, the public ones beside the checkout are read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from opreplay.initializers.registry import built_in
from opreplay.replay.build import build_plan
from opreplay.replay.work.amounts import work_text
from opreplay.replay.work.audit import audit_iterations, audit_ops
from opreplay.traces import read_trace

PUBLIC = Path(__file__).parent.parent.parent / "shared" / "traces"


def main() -> None:
    """Print one line a trace, its offenders and its iterations; exit with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="Proof of work over traces.")
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print the work of every op")
    options = parser.parse_args()
    missed = 0
    registry = built_in()
    for path in options.traces or sorted(PUBLIC.glob("*.json.gz")):
        trace = read_trace(path)
        plan = build_plan(trace, select="all")
        ops = audit_ops(plan, registry)
        lacking = [one for one in ops if one.initializer is None]
        idle = [one for one in ops if one.work is not None and (one.work.idle or one.work.warnings)]
        counted = sum(one.work is not None for one in ops)
        print(f"{path.name}: {len(ops)} data-dependent ops, {len(ops) - len(lacking)} with an initializer, "
              f"{counted} counted, {counted - len(idle)} at work")  # fmt: skip
        for one in (*lacking, *idle, *(ops if options.verbose else ())):
            said = one.problem or (work_text(one.work) if one.work is not None else "")
            print(f"    {one.op.name}: {one.initializer or 'no initializer'} {said}")
        missed += len(lacking) + len(idle)
        for iteration in audit_iterations(trace, plan, registry):
            print(f"    iteration {iteration.told} {'=' if iteration.equal else '≠'} {iteration.encoded} "
                  f"{iteration.name or 'no attention op inside'}")  # fmt: skip
            missed += not iteration.equal
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
