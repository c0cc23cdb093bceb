"""Breaks runs at random moments and continues them: what is lost, repeated or left behind?

    python benchmarks/faults.py --runs 200

Each run has a plan of fake ops that take some real time, and one fault: an op that raises, hangs, crashes, aborts or
eats memory; or SIGKILL of the worker, SIGKILL or Ctrl-C of the run itself, or a full disk, at a random moment.
Afterwards no process may be left, every op whose result was reported must be in the file, and continuing must complete
the file with each op exactly once. Prints one line a kind; exits with 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic, sleep

from opreplay.replay.attempt import Outcome
from opreplay.replay.ir import Recorded, ReplayOp, ReplayPlan
from opreplay.replay.isolation import ChildProcess
from opreplay.replay.result_lines import JsonLinesSink
from opreplay.replay.results import OpResult, Record, read_result_file
from opreplay.replay.run import RunOptions, make_runner, run_plan
from opreplay.traces.errors import OpReplayError

OPS = 12
IN_OP = {
    "raise": "failed: RuntimeError", "segfault": "failed: SIGSEGV", "abort": "failed: SIGABRT",
    "exit": "failed: the process ended", "allocate": "budget: ", "hang": "budget: time",
}  # fmt: skip
"""Fake op → start of the reason that its result must have."""
OUTSIDE = ("kill the worker", "kill the run", "Ctrl-C", "full disk")
OPTIONS = RunOptions(executor="fake", max_op_bytes=10**6, limit_s=2.0)
MOMENTS_S = (0.0, 1.2)
"""When a fault comes after the first result; a run takes about a second of measuring."""


def plan_with(fault: str, position: int) -> ReplayPlan:
    """Ops of some 20 ms each, one of them the faulty one."""
    names = [f"sleep{1 + index % 3}ms" for index in range(OPS)]
    if fault in IN_OP:
        names[position] = fault
    ops = tuple(
        ReplayOp(id=f"{i:012x}", name=f"fake::{name}", count=1, recorded=Recorded(host_us_total=1, host_us_median=1))
        for i, name in enumerate(names)
    )
    return ReplayPlan(source="faults", device_us_total=0.0, host_us_total=float(OPS), ops=ops)


class Telling(JsonLinesSink):
    """Says on stdout which results are written, after they are."""

    def write(self, record: Record) -> None:
        super().write(record)
        if isinstance(record, OpResult):
            os.write(1, f"op {record.id}\n".encode())


class Named(ChildProcess):
    """Says on stdout which processes it has."""

    def begin(self, op: ReplayOp) -> None:
        super().begin(op)
        os.write(1, f"child {self.pid}\n".encode())

    def step(self) -> Outcome | None:
        outcome = super().step()
        os.write(1, f"child {self.pid}\n".encode())
        return outcome


def work(path: Path, fault: str, position: int, file_bytes: int) -> int:
    """One process of a run: begins or continues the file."""
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    earlier = None
    with contextlib.ExitStack() as stack:
        if path.exists() and b"\n" in path.read_bytes():
            sink, earlier = Telling.reopen(path)
        else:
            sink = Telling.open(path, force=True)
        stack.enter_context(sink)
        runner = make_runner(OPTIONS)
        assert isinstance(runner, ChildProcess)
        runner.__class__ = Named
        try:
            run_plan(plan_with(fault, position), OPTIONS, sink=sink, runner=runner, earlier=earlier)
        except OpReplayError:
            return 4
        except KeyboardInterrupt:
            return 130
    return 0


def started(path: Path, fault: str, position: int, file_bytes: int = 0) -> subprocess.Popen[str]:
    """`work` in a process of its own."""
    arguments = ["--work", str(path), fault, str(position), str(file_bytes)]
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)


def one(fault: str, rng: random.Random, path: Path) -> list[str]:
    """Break one run and continue it; what was wrong."""
    position = rng.randrange(OPS)
    file_bytes = rng.randrange(200, 9000) if fault == "full disk" else 0
    process = started(path, fault, position, file_bytes)
    assert process.stdout is not None
    told = ""
    if fault in ("kill the worker", "kill the run", "Ctrl-C"):
        told = _until_an_op(process)
        sleep(rng.uniform(*MOMENTS_S))
        children = re.findall(r"child (\d+)", told)
        victim = int(children[-1]) if fault == "kill the worker" and children else process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGINT if fault == "Ctrl-C" else signal.SIGKILL)
    told += process.stdout.read()
    process.wait(60)
    wrong = _left_behind(told)
    reported = re.findall(r"op (\w+)", told)
    kept = _results(path)
    lost = set(reported) - set(kept)
    wrong += [f"lost {len(lost)} results that were reported"] if lost else []
    if len(kept) - len(reported) > 1:
        wrong.append("more results than were reported")
    if fault not in OUTSIDE and len(kept) < OPS:
        wrong.append(f"a fault of one op cost {OPS - len(kept)}")
    again = started(path, fault, position)
    repeated = set(re.findall(r"op (\w+)", again.communicate(timeout=120)[0])) & set(kept)
    wrong += [f"repeated {len(repeated)} ops"] if repeated else []
    return wrong + _whole(path, fault, position)


def _until_an_op(process: subprocess.Popen[str]) -> str:
    """What the process says up to its first result."""
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if line.startswith("op "):
            break
    return told


def _left_behind(told: str) -> list[str]:
    """Children of a run that has ended must end as well, within moments."""
    waiting = {int(pid) for pid in re.findall(r"child (\d+)", told)}
    deadline = monotonic() + 5
    while waiting and monotonic() < deadline:
        waiting = {pid for pid in waiting if _is_alive(pid)}
        sleep(0.02)
    return [f"{len(waiting)} processes left"] if waiting else []


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _results(path: Path) -> list[str]:
    """Ids in the file; none for one without a whole line."""
    if b"\n" not in path.read_bytes():
        return []
    return [result.id for result in read_result_file(path).results]


def _whole(path: Path, fault: str, position: int) -> list[str]:
    """What is wrong with a file that was continued to its end."""
    file = read_result_file(path)
    wrong = []
    if file.summary is None or file.summary.interrupted:
        wrong.append("not completed")
    if sorted(result.id for result in file.results) != [f"{i:012x}" for i in range(OPS)]:
        wrong.append("not each op once")
    if not path.read_bytes().endswith(b"\n"):
        wrong.append("a partial line")
    for index, result in enumerate(sorted(file.results, key=lambda result: result.id)):
        expected = IN_OP.get(fault, "") if index == position else ""
        if not (result.reason or "").startswith(expected) or (not expected and result.status != "replayed"):
            wrong.append(f"op {index} came to {result.status}: {result.reason}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Break runs at random moments and continue them.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        path, fault, position, file_bytes = args.work
        return work(Path(path), fault, int(position), int(file_bytes))
    rng = random.Random(args.seed)
    kinds = [*IN_OP, *OUTSIDE]
    runs, bad = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for index in range(args.runs):
            fault = kinds[index % len(kinds)]
            wrong = one(fault, rng, Path(folder) / f"{index}.jsonl")
            runs[fault] += 1
            bad[fault] += bool(wrong)
            for what in wrong:
                print(f"run {index}, {fault}: {what}", flush=True)
    for fault, count in runs.items():
        print(f"{fault:16} {count:4} runs, {bad[fault]} wrong")
    print(f"{'all':16} {runs.total():4} runs, {bad.total()} wrong")
    return 1 if bad.total() else 0


if __name__ == "__main__":
    sys.exit(main())
