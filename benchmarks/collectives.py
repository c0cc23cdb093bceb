"""Collectives on real ranks: how many of a folder's traces are replayed right, how fast beside a plain loop, and what
broken ranks cost.

    python benchmarks/collectives.py coverage ../shared/traces --ranks 2,4
    python benchmarks/collectives.py bandwidth --rounds 60
    python benchmarks/collectives.py faults --runs 100

coverage runs `opreplay run --ranks N --backend gloo` on every trace that records collectives, and counts those that
name operation, size and group: calls and distinct ones, replayed with a right result or not. bandwidth times
all-reduces of 1 KB to 64 MB on two gloo ranks by turns: as `run` does, and in a loop as one writes it by hand, in the
same two processes and group. (In processes of its own even the plain loop differs from itself by three times: which
processors the scheduler puts the ranks' threads on decides it, for seconds at a time.) The ratio is the median over the
turns, with its 95 % bootstrap interval. faults kills, stops, or delays a rank of each of many collectives: what is lost
but the one in flight, is any process left behind?
Each exits with 1 where its bar is missed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter, sleep

from opreplay.replay.collectives.mapping import map_collective
from opreplay.replay.collectives.model import Collective, bandwidth
from opreplay.replay.execute.messages import RankConfig, RankReply, RankTask
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.replay.execute.ranks.crew import local_ranks, reason_of
from opreplay.replay.execute.ranks.engine import outcome_of
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.plan.collectives.recorded import collective_calls
from opreplay.replay.results.reading import read_result_file
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError

SCRIPT = Path(sys.executable).parent / "opreplay"
COVERED = 0.98
WITHIN = 0.05
TURN_S = 0.03
"""Of measuring, before the other side has its turn."""
SIZES = tuple(1 << k for k in range(10, 27, 2))
"""Bytes, 1 KB to 64 MB."""
NAMES = ("c10d*", "_c10d*", "record_param_comms", "gloo:*", "nccl:*", "hccl:*", "hcom*", "vllm::*", "sglang::*")


def crew_of(ranks: int, *, op_time_s: float, limit_s: float, memory_bytes: int = 1 << 30) -> Workers:
    """Ranks here."""
    options = MeasureOptions(op_time_s=op_time_s, limit_s=limit_s)
    config = RankConfig(
        rank=0, world=ranks, backend="gloo", device="cpu", store="", memory_bytes=memory_bytes, measure=options
    )
    return local_ranks(config, limit_s=limit_s)


def all_reduce(size_bytes: int) -> Collective:
    """An all-reduce of float32."""
    return Collective(kind="all_reduce", dtype="float32", in_elements=size_bytes // 4, out_elements=size_bytes // 4)


def coverage(folder: Path, ranks: list[int], memory: str) -> bool:
    """Whether enough of the collectives were replayed, with right results."""
    good = True
    for count in ranks:
        named = right = named_calls = right_calls = cut = 0
        missed: list[str] = []
        for path in sorted(folder.glob("*.json*")):
            try:
                calls = collective_calls(read_trace(path, activity=True))
            except TraceError:
                continue
            if not calls:
                continue
            with tempfile.TemporaryDirectory() as into:
                out = Path(into, "out.jsonl")
                command = [str(SCRIPT), "run", str(path), "-o", str(out)]
                command += [
                    "--ranks",
                    str(count),
                    "--set",
                    "backend=gloo",
                    "--set",
                    "op_time=20ms",
                    "--set",
                    f"max_op_memory={memory}",
                ]
                command += [part for name in NAMES for part in ("--include", name)]
                subprocess.run(command, check=True, capture_output=True)
                results = [r for r in read_result_file(out).results if r.collective is not None]
            for result in results:
                collective = result.collective
                if collective is None or collective.collective.group_size is None:
                    continue
                replayed = collective.replayed
                done = replayed is not None and replayed.checked == "right"
                named, named_calls = named + 1, named_calls + result.count
                right, right_calls = right + done, right_calls + result.count * done
                cut += replayed is not None and done and "to save memory" in replayed.mapping
                if not done:
                    missed.append(f"{path.name}: {result.name}: {result.reason}")
        share = right / named if named else 0.0
        print(
            f"{count} ranks: {right} of {named} distinct collectives = {share:.1%}, {right_calls} of {named_calls} "
            f"calls that name operation, size and group; {cut} on a part of the message for memory ({memory})"
        )
        print("\n".join(missed[:20]))
        good &= share >= COVERED
    return good


def bandwidths(rounds: int) -> bool:
    """Whether what is reported of all-reduces is what a plain loop sees, on the same group, in the same processes."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe(duplex=False) for _ in range(2)]
        ranks = [
            context.Process(target=_by_turns, args=(rank, str(Path(folder, "store")), rounds, ends[rank][1]))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        try:
            good = [_compared(size, [end.recv() for end, _ in ends]) for size in SIZES]
            return all(good)
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _by_turns(rank: int, store: str, rounds: int, connection: Connection) -> None:
    """Be a rank: of each size, by turns what `run` does and a loop as one writes it by hand, with as many calls."""
    import torch
    import torch.distributed as dist

    from opreplay.replay.execute.ranks.rank import Rank

    options = MeasureOptions(op_time_s=TURN_S, limit_s=120, min_samples=2)
    config = RankConfig(
        rank=rank, world=2, backend="gloo", device="cpu", store=store, memory_bytes=1 << 30, measure=options
    )
    me = Rank(config)
    for size in SIZES:
        share = map_collective(all_reduce(size), 2)
        turns: list[tuple[RankReply, list[float]]] = []
        for turn in range(rounds):
            ours = me.run(RankTask(share=share)) if turn % 2 == 0 or not turns else None
            like = ours or turns[-1][0]
            tensor = torch.zeros(size // 4)
            for _ in range(3):
                dist.all_reduce(tensor)
            dist.barrier()
            plain: list[float] = []
            for _ in like.samples_us:
                started = perf_counter()
                for _ in range(like.calls):
                    dist.all_reduce(tensor)
                plain.append((perf_counter() - started) / like.calls * 1e6)
            turns.append((ours or me.run(RankTask(share=share)), plain))
        connection.send(turns)
    sleep(3600)  # a rank that leaves first would break the other's last call


def _compared(size: int, sides: list[list[tuple[RankReply, list[float]]]]) -> bool:
    """Print one size; whether the plain loop took as long as was reported, within the bar."""
    pairs: list[tuple[float, float]] = []
    means: list[tuple[float, float]] = []
    for (reply, plain_one), (other, plain_other) in zip(*sides, strict=True):
        outcome = outcome_of(
            all_reduce(size),
            map_collective(all_reduce(size), 2),
            [reply, other],
            backend="gloo",
            options=MeasureOptions(),
        )
        assert outcome.measurement is not None, outcome.reason
        plain = [max(both) for both in zip(plain_one, plain_other, strict=True)]
        ours = [max(both) for both in zip(reply.samples_us, other.samples_us, strict=True)]
        pairs.append((outcome.measurement.median_us, statistics.median(plain)))
        means.append((statistics.fmean(ours), statistics.fmean(plain)))
    ratio, low, high = _ratio(pairs)
    mean = _ratio(means)[0]
    reported, seen = (statistics.median(side) for side in zip(*pairs, strict=True))
    spread = [f"{min(side):.0f}-{max(side):.0f}" for side in zip(*pairs, strict=True)]
    bandwidths_seen = [bandwidth("all_reduce", size, 2, us) for us in (reported, seen)]
    rates = [0.0 if rate is None else rate.bus_gb_s for rate in bandwidths_seen]
    print(
        f"{size:>10,} B  ours {reported:>8.1f} us ({spread[0]}) {rates[0]:.3f} GB/s  plain {seen:>8.1f} us "
        f"({spread[1]}) {rates[1]:.3f} GB/s  plain/ours {ratio:.3f} (95 %: {low:.3f} to {high:.3f}), means {mean:.3f}",
        flush=True,
    )
    return abs(ratio - 1) <= WITHIN


def _ratio(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median of plain over ours, turn by turn, and its 95 % bootstrap interval."""
    draw = random.Random(0)
    logs = [math.log(plain / ours) for ours, plain in pairs]
    again = sorted(statistics.median(draw.choices(logs, k=len(logs))) for _ in range(2000))
    return tuple(math.exp(x) for x in (statistics.median(logs), again[50], again[1949]))  # type: ignore[return-value]


def faults(runs: int, seed: int) -> bool:
    """Whether a broken rank costs its collective and nothing else."""
    draw = random.Random(seed)
    crew = crew_of(2, op_time_s=1.0, limit_s=10.0)
    quick = map_collective(all_reduce(4096), 2)
    wrong: list[str] = []
    seen: set[int] = set()
    counts = {"kill": 0, "hang": 0, "late": 0}
    started = monotonic()
    for run in range(runs):
        crew.start()
        seen |= set(crew.pids)
        kind, victim = ("kill", "hang", "late")[run % 3], draw.choice(crew.pids)
        counts[kind] += 1
        after = draw.uniform(0.0, 0.8)
        harm = threading.Thread(target=_harm, args=(kind, victim, after))
        harm.start()
        # The harm may come just after the first: then the second is the one in flight. The third has a new group.
        said: list[Reason | None] = []
        for _ in range(3):
            answer = crew.run([RankTask(share=quick)] * 2)
            broken = "" if isinstance(answer, Death) else next((reply.wrong for reply in answer if reply.wrong), "")
            wrong_result = Reason("failed", broken) if broken else None
            said.append(reason_of(answer, 2, 10.0) if isinstance(answer, Death) else wrong_result)
            harm.join()
        lost = [str(reason) for reason in said if reason is not None]
        if len(lost) != (kind != "late") or said[2] is not None:
            wrong.append(f"{run} {kind} after {after:.2f} s: lost {lost}")
        seen |= set(crew.pids)
    crew.close()
    alive = [pid for pid in seen if Path(f"/proc/{pid}").exists()]
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{runs} runs ({counted}) in {monotonic() - started:.0f} s, {crew.starts - 1} new groups")
    print(f"wrong: {len(wrong)}; processes left: {len(alive)}")
    print("\n".join(wrong[:20]))
    return not wrong and not alive


def _harm(kind: str, pid: int, after: float) -> None:
    sleep(after)
    os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    if kind == "late":
        sleep(0.7)
        os.kill(pid, signal.SIGCONT)


def main() -> int:
    """Parse, run one, say whether its bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    covering = commands.add_parser("coverage")
    covering.add_argument("folder", type=Path)
    covering.add_argument("--ranks", default="2,4")
    covering.add_argument("--memory", default="1GB")
    timing = commands.add_parser("bandwidth")
    timing.add_argument("--rounds", type=int, default=60)
    breaking = commands.add_parser("faults")
    breaking.add_argument("--runs", type=int, default=100)
    breaking.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = perf_counter()
    if options.what == "coverage":
        good = coverage(options.folder, [int(n) for n in options.ranks.split(",")], options.memory)
    elif options.what == "bandwidth":
        good = bandwidths(options.rounds)
    else:
        good = faults(options.runs, options.seed)
    print(f"{'met' if good else 'MISSED'}, {perf_counter() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
