"""Which recorded ops a simulated device has rules for, how far its times are from the recorded device's, and why.

    python benchmarks/lowering_coverage.py [--traces DIR_OR_FILES ...] [--soc NAME] [--factor 5] [--share 0.5%]

For each trace: the share of the device time of its simulated ops that has a rule, the simulated over the recorded time
of those ops, and the ops above `share` of the time that are predicted more than `factor` times slower or faster. A
factor may have a reason (a launch takes longer, a pageable copy, waiting for other ranks); what has none is an error of
the lowering. Nothing is executed. Bar: rules for 97 % of the time, but in traces with autograd nodes of C++ functions,
of which only the gradient is recorded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opreplay.replay.ascend import load_device, lower
from opreplay.replay.ascend.simulate.step import simulate_step
from opreplay.replay.ascend.simulate.step_residency import held_in_caches, step_kernels
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
HEAD = f"{'trace':34} {'recorded':>11} {'simulated':>11} {'ratio':>6} {'with rule':>9}"


def files(named: list[Path]) -> list[Path]:
    """The traces that files and folders mean."""
    return [file for path in named for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]


def report(plan: ReplayPlan, soc: str, factor: float, share: float) -> list[str]:
    """One line for the trace, and one for each op that is far off."""
    device = load_device(soc)
    known = held_in_caches(step_kernels(plan.ops, plan.sequence, None), [device])[0] if plan.sequence else None
    step = simulate_step(plan.ops, device, None, known)
    ops = {op.id: op for op in plan.ops}
    done = [
        (ops[simulated_op.id], simulated_op)
        for simulated_op in step.ops
        if ops[simulated_op.id].recorded.device_us_total > 0
    ]
    recorded = sum(op.recorded.device_us_total for op, _ in done)
    if not recorded:
        return []
    ruled = sum(op.recorded.device_us_total for op, _ in done if lower(op).known)
    total = sum(simulated_op.simulated.time_us * simulated_op.count for _, simulated_op in done)
    lines = [
        f"{plan.source[:34]:34} {recorded / 1e3:8.2f} ms {total / 1e3:8.2f} ms {total / recorded:6.2f} "
        f"{100 * ruled / recorded:8.1f}%"
    ]
    for op, simulated_op in done:
        us, ratio = (
            op.recorded.device_us_total,
            simulated_op.simulated.time_us * simulated_op.count / op.recorded.device_us_total,
        )
        if us >= share * recorded and not 1 / factor <= ratio <= factor:
            notes = "; ".join(lower(op).notes)
            lines.append(
                f"    x{ratio:7.2f} {100 * us / recorded:5.1f} % {simulated_op.simulated.bound:6} {op.name[:48]} "
                f"{describe_inputs(op)[:60]} {notes[:80]}"
            )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", type=Path, default=[SHARED])
    parser.add_argument("--soc", default="910b2")
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--share", default="0.5%", help="of the simulated ops' recorded time")
    options = parser.parse_args()
    print(HEAD)
    for file in files(options.traces):
        plan = with_outputs(build_plan(read_trace(file), in_order=True))
        for line in report(plan, options.soc, options.factor, float(options.share.rstrip("%")) / 100):
            print(line, flush=True)


if __name__ == "__main__":
    main()
