"""What isolation, lanes, Ray and merging cost or save, on plans of small ops that are all different.

    python benchmarks/batch.py                     # all parts; --parts isolation,lanes,ray,nodes,ranks,stored

isolation: wall time of a run of unique ops over the sum of their measuring loops (the bar is 3).
lanes, ray: ops a second with one and two lanes, and with two Ray workers.
nodes: `run` on 8 ranks and a Ray cluster of two nodes, also with one node killed halfway, beside the local engine; all
    three must replay the same ops and give the same sums of traces and jobs.
ranks: ops and wall time of 20 ranks of one job over those of one rank, reading and merging included.
stored: time to get a rank's plan back from the file beside the results, over that to read and plan it, and its bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, sleep

from opreplay.replay.execute.engines import worker_config
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.execute.processes.lanes import Engine
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.model import TensorMeta

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from tests.running import run_plan

RANKS = 20
SCRIPT = Path(sys.executable).parent / "opreplay"


def plan_of(ops: int) -> ReplayPlan:
    """`ops` different additions of 4 to 4 * `ops` floats."""
    return ReplayPlan(
        source="batch", device_us_total=0.0, host_us_total=float(ops), ops=tuple(_add(index) for index in range(ops))
    )


def _add(index: int) -> ReplayOp:
    meta = TensorMeta(shape=(4, 1 + index), dtype="float32")
    args = (
        *(ReplayArg(name=name, type="Tensor", tensors=(meta,)) for name in ("self", "other")),
        ReplayArg(name="alpha", type="Scalar", value=1, keyword_only=True),
    )
    return ReplayOp(
        id=f"{index:012x}",
        name="aten::add",
        count=1,
        overload="Tensor",
        resolved_by="jit",
        args=args,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
    )


def run(plan: ReplayPlan, options: RunOptions, engine: Engine | None = None) -> tuple[float, float, float]:
    """Wall time in s, the part of it before the first op, and the sum of the measuring loops."""
    first: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        started = perf_counter()
        with JsonLinesSink.open(path) as sink:
            run_plan(plan, options, sink=sink, engine=engine, on_progress=lambda now: first.append(perf_counter()))
        wall = perf_counter() - started
        results = read_result_file(path).results
    failed = [result for result in results if result.status != "replayed"]
    if failed:
        raise SystemExit(f"{len(failed)} ops were not replayed, e.g. {failed[0].reason}")
    return wall, first[0] - started, sum(result.measure_s or 0.0 for result in results)


def isolation(ops: int) -> None:
    """A run through the console's path: child process, result file on the disk."""
    wall, start, loops = run(plan_of(ops), RunOptions(max_op_bytes=10**8))
    each_ms = 1e3 * (wall - start - loops) / ops
    print(
        f"isolation: {ops:,} ops in {wall:.1f} s = {wall / loops:.2f} x {loops:.1f} s of measuring loops; "
        f"start {start:.1f} s, {each_ms:.2f} ms an op beside its loop"
    )


def lanes(ops: int) -> None:
    """One and two lanes on the same ops."""
    for count in (1, 2):
        wall, start, _ = run(plan_of(ops), RunOptions(max_op_bytes=10**8, lanes=count))
        print(f"lanes: {count}: {ops / (wall - start):.1f} ops/s, start {start:.1f} s")


def ray(ops: int) -> None:
    """Two Ray workers on this machine; starting the cluster counts as start."""
    from opreplay.replay.execute.processes.ray import RayLanes

    for count in (1, 2):
        options = RunOptions(max_op_bytes=10**8, lanes=count)
        engine = RayLanes(worker_config(options), limit_s=options.hard_limit_s(), lanes=count)
        wall, start, _ = run(plan_of(ops), options, engine)
        print(f"ray: {count} workers: {ops / (wall - start):.1f} ops/s, start {start:.1f} s")


def nodes(ops: int) -> None:
    """`run` with the local engine, on two Ray nodes, and with one of them killed once half of the ops are measured."""
    from opreplay.replay.execute.processes.ray import LOCAL_IP, import_ray

    ray = import_ray()  # sets up Ray for this machine only, before the next import
    from ray.cluster_utils import Cluster

    one_cpu = {"num_cpus": 1, "node_ip_address": LOCAL_IP}
    found: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(8):
            _write_rank(Path(folder) / f"rank{rank}.json.gz", rank, ops)
        for how in ("local", "two nodes", "one node lost"):
            output = Path(folder) / f"{how}.jsonl"
            command = [SCRIPT, "run", Path(folder) / "*.json.gz", "-o", output, "--set", "shared_device=true"]
            command += ["--set", "threads=1", "--set", "op_time=50ms"]
            started = perf_counter()
            if how == "local":
                subprocess.run(command, check=True, capture_output=True)
            else:
                cluster = Cluster(initialize_head=True, head_node_args={**one_cpu, "include_dashboard": False})
                lost = cluster.add_node(**one_cpu)
                command += ["--engine", "ray", "--set", f"address={cluster.address}"]
                with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                    while how == "one node lost" and process.poll() is None:
                        if output.exists() and output.read_bytes().count(b"\n") > ops // 2:
                            cluster.remove_node(lost, allow_graceful=False)
                            break
                        sleep(0.05)
                cluster.shutdown()
                if process.returncode:
                    raise SystemExit(f"nodes: {how}: exit status {process.returncode}")
            wall, file = perf_counter() - started, read_result_file(output)
            retried = sum(result.attempts > 1 for result in file.results)
            sums = [(trace.source, trace.job, trace.ops, trace.replayed, trace.recorded_us) for trace in file.traces]
            jobs = [(job.job, job.ranks, job.ops, job.replayed, job.recorded_us) for job in file.jobs]
            found.append(({(result.id, result.status, result.reason) for result in file.results}, sums, jobs))
            print(f"nodes: {how}: {len(file.results)} ops, {retried} retried, {wall:.1f} s", flush=True)
    ray.shutdown()
    if any(one != found[0] for one in found):
        raise SystemExit("nodes: the engines give different results")


def ranks(ops: int) -> None:
    """The console command on one rank, and on 20 ranks of the same job that share all ops but one."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            _write_rank(Path(folder) / f"rank{rank}.json.gz", rank, ops)
        walls = []
        for name, pattern in (("one", "rank0.json.gz"), ("all", "")):
            output = Path(folder) / f"{name}.jsonl"
            started = perf_counter()
            subprocess.run(
                [SCRIPT, "run", Path(folder) / pattern, "-o", output, "--set", "shared_device=true"],
                check=True,
                capture_output=True,
            )
            walls.append(perf_counter() - started)
            file = read_result_file(output)
            ops_of_traces = sum(trace.ops for trace in file.traces)
            print(
                f"ranks: {len(file.traces)} traces, {ops_of_traces} ops, {len(file.results)} unique, {walls[-1]:.1f} s"
            )
        print(f"ranks: 20 ranks take {walls[1] / walls[0]:.2f} x one")


def stored(ops: int) -> None:
    """The plans of 20 ranks of a job that share all ops but one, in processor time."""
    from opreplay.replay.batch.merge import TracePlan
    from opreplay.replay.batch.plan_store import PlanStore
    from opreplay.replay.batch.reading import HowToRead, decoded
    from opreplay.replay.plan.selection import Selection

    selection = Selection(select="owner", include=(), exclude=(), top=None, min_share=None, allow_imports={})
    how = HowToRead(selection=selection, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{rank}.json.gz" for rank in range(RANKS)]
        for rank, path in enumerate(paths):
            _write_rank(path, rank, ops, calls=50)
        read = how.reader()
        read(str(paths[0]))  # loads torch
        store, planned = PlanStore("benchmark"), []
        started = process_time()
        for path in paths:
            plan_read = decoded(read(str(path)))
            assert isinstance(plan_read, TracePlan)
            planned.append(plan_read)
            store.add(plan_read)
        reading = process_time() - started
        started = process_time()
        again = [store.load(str(path), how.files(str(path))) for path in paths]
        loading = process_time() - started
        store.undo()
    if again != planned:
        raise SystemExit("a stored plan differs from the one that was read")
    each_ms = 1e3 * reading / RANKS
    print(
        f"stored: {RANKS} ranks of {ops} ops, {50 * ops:,} calls each: read in {each_ms:.1f} ms a rank, "
        f"from the cache in {1e3 * loading / RANKS:.1f} ms = {loading / reading:.3f} of it"
    )


def _write_rank(path: Path, rank: int, ops: int, calls: int = 1) -> None:
    """A trace of CPU ops, each called so many times: those of every rank, and one of its own."""
    sizes = [*range(1, ops), 10_000 + rank] * calls
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::relu",
            "ts": 10 * i,
            "dur": 5,
            "pid": 1,
            "tid": 1,
            "args": {
                "Input Dims": [[4, size]],
                "Input type": ["float"],
                "Input Strides": [[size, 1]],
                "Concrete Inputs": [""],
            },
        }
        for i, size in enumerate(sizes)
    ]
    content = {"distributedInfo": {"rank": rank, "world_size": RANKS}, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


PARTS: dict[str, tuple[Callable[[int], None], int]] = {
    "isolation": (isolation, 1000),
    "lanes": (lanes, 120),
    "ray": (ray, 120),
    "nodes": (nodes, 40),
    "ranks": (ranks, 60),
    "stored": (stored, 200),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what isolation, lanes, Ray and merging cost or save.")
    parser.add_argument("--parts", default=",".join(PARTS), help="of isolation, lanes, ray, nodes, ranks, stored")
    parser.add_argument("--ops", type=int, help="unique ops; by default as many as each part has in the documentation")
    args = parser.parse_args()
    for name in args.parts.split(","):
        measure, ops = PARTS[name]
        measure(args.ops or ops)


if __name__ == "__main__":
    main()
