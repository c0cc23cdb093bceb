"""How many of a trace's ops a bundle replays with torch alone, and whether its script does what a run does.

    python benchmarks/bundles.py [TRACE ...] [--max-bytes 30000000]

For each trace: unique ops that can be replayed here, those of ATen among them, those in the bundle, and, of those whose
tensors stay below --max-bytes, how many the script replays and opreplay does; `differ` counts ops whose results have
other shapes than opreplay says.

Bar: 1,869 of 1,872 small ops of the public traces are replayed with the result shapes of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.export import make_bundle, write_bundle
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.results.reading import MemorySink
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from tests.running import run_plan

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Threads that wait for each other on a busy machine take longest of all."""


def script_results(folder: Path) -> dict[str, dict[str, Any]]:
    """By op id: what the script alone says."""
    command = [sys.executable, "-I", "-W", "ignore", str(folder / "replay.py"), "--json", "--iterations", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ONE_THREAD)
    return {result["id"]: result for result in json.loads(done.stdout)["results"]}


def line(path: Path, plan: ReplayPlan, max_bytes: int) -> str:
    """One row of the table."""
    bundle = make_bundle(plan, built_in(), policy=Policy(), memory_bytes=1 << 30)
    can = [op for op in plan.ops if op.reason is None]
    aten = [op for op in can if op.name.startswith("aten::")]
    small = tuple(op for op in bundle.plan.ops if budget.need_of(op).total <= max_bytes)
    chosen = msgspec.structs.replace(
        plan, ops=tuple(op for op in can if op.id in {op_in_bundle.id for op_in_bundle in small})
    )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "bundle"
        write_bundle(make_bundle(chosen, built_in(), policy=Policy(), memory_bytes=1 << 30), target)
        results_by_id = script_results(target) if chosen.ops else {}
    sink = MemorySink()
    run_plan(chosen, RunOptions(op_time_s=0.001, threads=1), sink=sink)
    mine = {result.id: result for result in sink.results}
    outputs = {
        op.id: [list(m.shape) for m in op.outputs if m is not None] for op in chosen.ops if op.outputs is not None
    }
    ran = [result for result in results_by_id.values() if result["status"] == "replayed"]
    differ = sum(r["outputs"] != outputs[r["id"]] for r in ran if r["id"] in outputs and r["via"] is None)
    here = sum(result.status == "replayed" for result in mine.values())
    name = path.name.removesuffix(".json.gz")
    return (
        f"{name:34} {len(can):5} {len(aten):5} {len(bundle.plan.ops):5} {len(small):6} {len(ran):7} {here:9} {differ:7}"
    )


def main() -> None:
    """Print one line a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=sorted(SHARED.glob("*.json.gz")))
    parser.add_argument("--max-bytes", type=int, default=30_000_000)
    args = parser.parse_args()
    heads = f"{'ops':>5} {'ATen':>5} {'in it':>5} {'small':>6} {'script':>7} {'opreplay':>9} {'differ':>7}"
    print(f"{'trace':34} {heads}")
    for path in args.traces:
        try:
            plan = with_outputs(build_plan(read_trace(path)))
        except TraceError as error:
            print(f"{path.name}: {error}")
            continue
        print(line(path, plan, args.max_bytes), flush=True)


if __name__ == "__main__":
    main()
