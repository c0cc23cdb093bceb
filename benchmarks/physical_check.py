"""Ops of traces that would do more work than was recorded, by what memory can move at best: guessed too large; and
predictions in which a simulated device would do more than it can.

    python -m benchmarks.physical_check [--traces DIR_OR_FILES ...] [--select owner|leaf|top|all] [--soc NAME ...]
        [--verbose]

Builds the plan of each trace (by default all in ../shared/traces) with the shapes of its results, and looks at each
ATen op with recorded device time: bytes that a call must touch, over the peak bandwidth of the recorded device (or of
the fastest there is), must not exceed 1.3 times the recorded time. "guessed" are failing ops of which an argument that
sizes follow from was guessed; the others fail as they were recorded, so that their time or owner is the wrong one.

"too fast" are predictions by rules, over all shipped devices, that take less than the chip needs in a network
(`exams.invariants.least_us`). Bar: no op fails unexplained, no prediction is too fast.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.exams.invariants import least_us
from opreplay.replay.ascend import list_devices, load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.opaque_layers import with_layers
from opreplay.replay.plan.physical import impossible, mark_impossible
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError

EXPLAINED = {"npu_alexnet_trace_view": "all its device times were replaced by 10 µs before it was published"}
"""Trace → why its recorded times are no times."""
ROUNDING = 1.001
SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


def files(named: list[Path]) -> list[Path]:
    """The traces that files and folders mean."""
    return [file for path in named for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]


def too_fast(plan: ReplayPlan, devices: list[DeviceProfile]) -> list[tuple[str, str]]:
    """(op, why) of predictions by rules that a device would have to be faster for than it is."""
    ops = {op.id: op for op in plan.ops}
    return [
        (ops[simulated_op.id].name, f"{step.device}: {simulated_op.simulated.time_us:.1f} µs, at least {limit:.1f} µs")
        for step, device in zip(simulate_plan(PlannedStep(plan), devices), devices, strict=True)
        for simulated_op in step.ops
        if simulated_op.simulated.by == "rule"
        and simulated_op.simulated.time_us > 0
        and (limit := least_us(ops[simulated_op.id], device).network) > ROUNDING * simulated_op.simulated.time_us
    ]


def measure(args: argparse.Namespace) -> None:
    """Print a line for each trace and the sum, and with --verbose each op that fails."""
    print(f"{'trace':36} {'checked':>8} {'failing':>8} {'guessed':>8} {'too fast':>8}")
    sums = [0, 0, 0, 0]
    devices = [load_device(name) for name in args.soc or list_devices()]
    for path in files(args.traces):
        try:
            trace = read_trace(path)
        except TraceError as error:
            print(f"{path.name}: {error}")
            continue
        plan = mark_impossible(with_outputs(with_layers(build_plan(trace, select=args.select))))
        looked = [op for op in plan.ops if op.reason is None and op.recorded.device_us_median is not None]
        failing = [(op, why) for op in looked if (why := impossible(op, plan.device)) is not None]
        guessed = [(op, why) for op, why in failing if any(note.argument != "*" for note in op.assumptions)]
        fast = too_fast(plan, devices)
        row = (len(looked), len(failing), len(guessed), len(fast))
        explained = EXPLAINED.get(path.name.partition(".json")[0])
        if explained is None:
            sums = [total + n for total, n in zip(sums, row, strict=True)]
        if plan.ops:
            note = f"  {explained}" if explained and failing else ""
            print(f"{path.name.partition('.json')[0]:36} {row[0]:8} {row[1]:8} {row[2]:8} {row[3]:8}{note}")
        for op, why in failing if args.verbose else ():
            shapes = [meta.shape for arg in op.args for meta in arg.tensors if meta is not None]
            notes = "; ".join(f"{note.argument}: {note.what}" for note in op.assumptions)
            print(f"    {op.name} {shapes[:4]} → {[m and m.shape for m in op.outputs or ()]}: {why} [{notes[:200]}]")
        for name, why in fast if args.verbose else ():
            print(f"    {name}: {why}")
    print(f"{'all that are not explained':36} {sums[0]:8} {sums[1]:8} {sums[2]:8} {sums[3]:8}")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="*", type=Path, default=[SHARED])
    parser.add_argument("--select", default="owner", choices=("owner", "leaf", "top", "all"))
    parser.add_argument("--soc", action="append")
    parser.add_argument("--verbose", action="store_true")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
