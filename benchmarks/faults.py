"""Breaks runs at random moments and continues them: what is lost, repeated or left behind?

    python benchmarks/faults.py --runs 200                    # all kinds in turn
    python benchmarks/faults.py --runs 20 --kinds "power loss,kill a Ray worker"
    python benchmarks/faults.py --runs 1000 --kinds "one signal"    # a worker, from its first microsecond on

Each run has a plan of fake ops that take some real time, and one fault: an op that raises, hangs, crashes, aborts or
eats memory; or, at a random moment, SIGKILL of the worker, SIGKILL, SIGTERM or Ctrl-C of the run itself, a full disk, a
power loss (what was not forced to the disk may be gone, cut or zeros), the same with the two lanes of a batch, and
SIGKILL of a worker or of the run on a Ray cluster, which this command starts. "One signal" sends a worker that is
forked from this process, not executed, one of several signals at a moment from its first microsecond on: nothing may be
lost, and no op blamed. "Kill the worker" does so to one that is executed.
Afterwards no process may be left, every op whose result was reported must be in the file, and continuing must complete
the file with each op exactly once. Prints one line a kind; exits with 1 when anything was wrong.

Bar: 200 broken runs lose nothing but the op in flight, `--resume` completes them, and no process is left.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import msgspec

from opreplay.cli.terminal.signals import Interrupts
from opreplay.replay.batch.merge import Batch, TracePlan
from opreplay.replay.execute.engines import worker_config
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.execute.processes import child, worker
from opreplay.replay.execute.processes.lanes import Engine, Lanes, OneByOne
from opreplay.replay.execute.processes.runner import ChildProcess
from opreplay.replay.execute.visits import WHOLE, Visit
from opreplay.replay.ir.model import Recorded, ReplayOp, ReplayPlan
from opreplay.replay.results.outcome import Outcome
from opreplay.replay.results.reading import MemorySink, read_result_file
from opreplay.replay.results.records import OpResult, Record
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.errors import OpReplayError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from tests.running import run_plan

OPS = 12
IN_OP = {
    "raise": "failed: RuntimeError",
    "segfault": "failed: SIGSEGV",
    "abort": "failed: SIGABRT",
    "exit": "failed: the process ended",
    "allocate": "budget: ",
    "hang": "budget: time",
}
"""Fake op → start of the reason that its result must have."""
SURVIVED = ("kill the worker", "kill a lane", "kill a Ray worker")
"""What a run must live through without being continued."""
SIGNALS = {
    "kill the worker": signal.SIGKILL,
    "kill the run": signal.SIGKILL,
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "power loss": signal.SIGKILL,
    "kill a lane": signal.SIGKILL,
    "kill a batch": signal.SIGKILL,
    "Ctrl-C of a batch": signal.SIGINT,
    "kill a Ray worker": signal.SIGKILL,
    "kill a run on Ray": signal.SIGKILL,
}
FORKED = "one signal"
KINDS = (*IN_OP, "full disk", FORKED, *SIGNALS)
OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGSTOP")
"""What a worker gets from outside; of some of them an op may be the cause."""
OPTIONS = RunOptions(executor="fake", max_op_bytes=10**6, limit_s=2.0)
LIFE_S = 0.4
"""What all ops of a run take a forked worker."""
MOMENTS_S = (0.0, 1.2)
"""When a fault comes after the first results; a run takes about a second of measuring."""
ENDED_S = 20.0
"""Time for the processes of a run that has ended to end as well; Ray takes some to notice."""


def is_on_ray(fault: str) -> bool:
    """Whether the run is on the cluster."""
    return "Ray" in fault


def is_batch(fault: str) -> bool:
    """Whether the run is that of two traces in two lanes."""
    return fault in ("kill a lane", "kill a batch", "Ctrl-C of a batch")


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
    """Says on stdout which results are written, and how long the file is then, after they are."""

    def write(self, record: Record) -> None:
        super().write(record)
        if isinstance(record, OpResult):
            os.write(1, f"op {record.id} {os.fstat(self._stream.fileno()).st_size}\n".encode())


class Named(ChildProcess):
    """Says on stdout which processes it has."""

    def open(self) -> None:
        super().open()
        os.write(1, f"child {self.pid}\n".encode())

    def begin(self, op: ReplayOp, visit: Visit = WHOLE) -> None:
        super().begin(op, visit)
        os.write(1, f"child {self.pid}\n".encode())

    def step(self, *, waits: bool = False) -> Outcome | None:
        outcome = super().step(waits=waits)
        os.write(1, f"child {self.pid}\n".encode())
        return outcome


def engine_for(fault: str, address: str) -> Engine:
    """One process, two lanes, or two workers on the cluster at `address`."""
    config, limit_s = worker_config(OPTIONS), OPTIONS.hard_limit_s()
    if is_on_ray(fault):
        from opreplay.replay.execute.processes.ray import RayLanes

        return RayLanes(config, limit_s=limit_s, lanes=2, address=address)
    if is_batch(fault):
        return Lanes([Named(config, limit_s=limit_s) for _ in range(2)])
    return OneByOne(Named(config, limit_s=limit_s))


def work(path: Path, fault: str, position: int, file_bytes: int, address: str) -> int:
    """One process of a run: begins or continues the file."""
    Interrupts().install()
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    plan, earlier, options = plan_with(fault, position), None, OPTIONS
    records: dict[str, Any] = {}
    if is_batch(fault):
        batch = Batch.of(TracePlan(path=f"rank{rank}.json", plan=plan, rank=rank, world_size=2) for rank in range(2))
        plan, options = batch.plan(), msgspec.structs.replace(OPTIONS, lanes=2)
        records = {"sums": batch.close}
    with contextlib.ExitStack() as stack:
        if path.exists() and b"\n" in path.read_bytes():
            sink, earlier = Telling.reopen(path)
        else:
            sink = Telling.open(path, force=True)
        stack.enter_context(sink)
        try:
            run_plan(plan, options, sink=sink, engine=engine_for(fault, address), earlier=earlier, **records)
        except OpReplayError:
            return 4
        except KeyboardInterrupt:
            return 130
    return 0


def started(path: Path, fault: str, position: int, file_bytes: int, address: str) -> subprocess.Popen[str]:
    """`work` in a process of its own."""
    arguments = ["--work", str(path), fault, str(position), str(file_bytes), address]
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)


def one(fault: str, rng: random.Random, path: Path, address: str) -> list[str]:
    """Break one run and continue it; what was wrong."""
    position = rng.randrange(OPS)
    file_bytes = rng.randrange(200, 9000) if fault == "full disk" else 0
    process = started(path, fault, position, file_bytes, address)
    assert process.stdout is not None
    output, actors, workers = "", set[int](), set[int]()
    if fault in SIGNALS:
        # A worker from its first moment on: loading takes it as long as measuring.
        first = ("child ", 1) if fault == "kill the worker" else ("op ", 4 if is_batch(fault) else 1)
        output = _until(process, *first)
        sleep(rng.uniform(*MOMENTS_S) / _pace(fault))
        if is_on_ray(fault):
            actors, workers = _ray_workers()
            if not actors and process.poll() is None:
                return ["found no worker to kill"]
        children = re.findall(r"child (\d+)", output)
        victims = sorted(actors) or [int(pid) for pid in children[-1:]]
        victim = rng.choice(victims) if fault in SURVIVED and victims else process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, SIGNALS[fault])
    output += process.stdout.read()
    process.wait(120)
    wrong = _left_behind({int(pid) for pid in re.findall(r"child (\d+)", output)} | workers)
    if fault == "power loss":
        _lose_power(path, output, rng)
    reported = re.findall(r"op (\w+)", output)
    results = _results(path)
    lost = set(reported) - set(results)
    wrong += [f"lost {len(lost)} results that were reported"] if lost else []
    if len(results) - len(reported) > 1:
        wrong.append("more results than were reported")
    if (fault in IN_OP or fault in SURVIVED) and len(results) < OPS:
        wrong.append(f"a fault of one op or worker cost {OPS - len(results)}")
    again = started(path, fault, position, 0, address)
    repeated = set(re.findall(r"op (\w+)", again.communicate(timeout=240)[0])) & set(results)
    wrong += [f"repeated {len(repeated)} ops"] if repeated else []
    return wrong + _whole(path, fault, position)


class Forked:
    """A worker in place of `subprocess.Popen`: forked, so that a thousand of them take a minute. The first of a run is
    sent a signal by a process beside it."""

    started = 0

    def __init__(
        self, moments: list[tuple[float, str]], command: object, *, pass_fds: tuple[int], stderr: Any, **_: object
    ) -> None:
        parent, worker_fd = os.getpid(), pass_fds[0]
        self.returncode: int | None = None
        self.pid = os.fork()
        moment_s, name = moments.pop() if moments else (0.0, "")
        if self.pid:
            Forked.started += 1
            return
        try:
            os.setsid()
            for descriptor, target in ((os.open(os.devnull, os.O_RDWR), (0, 1)), (stderr.fileno(), (2,))):
                for number in target:
                    os.dup2(descriptor, number)
            for path in os.listdir("/proc/self/fd"):
                if int(path) not in (0, 1, 2, worker_fd):
                    with contextlib.suppress(OSError):
                        os.close(int(path))
            if name and not os.fork():
                os.close(worker_fd)
                sleep(moment_s)
                os.kill(os.getppid(), getattr(signal, name))
                os._exit(0)
            worker.serve(worker_fd, parent)
        finally:
            os._exit(1)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = monotonic() + (timeout or 1e9)
        while (code := self.poll()) is None:
            if monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            sleep(0.0005)
        return code


def one_signal(rng: random.Random) -> list[str]:
    """Send the first worker of a run a signal at a moment of its life; what is wrong with the results."""
    name, moment_s = rng.choice(OUTSIDE), rng.uniform(0.0, LIFE_S) * rng.choice((0.05, 1.0))
    start = functools.partial(Forked, [(moment_s, name)])
    names = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    executed, child.subprocess = child.subprocess, SimpleNamespace(Popen=start, **names)  # type: ignore[assignment]
    looks, child.LOOK_S = child.LOOK_S, 0.05
    options, sink = msgspec.structs.replace(OPTIONS, limit_s=0.5), MemorySink()
    try:
        engine = OneByOne(ChildProcess(worker_config(options), limit_s=options.hard_limit_s()))
        run_plan(plan_with(FORKED, 0), options, sink=sink, engine=engine)
    except OpReplayError as error:
        return [f"{name} after {moment_s * 1e3:.1f} ms ended the run: {error}"]
    finally:
        child.subprocess, child.LOOK_S = executed, looks
    wrong = [f"{OPS - len(sink.results)} ops lost"] if len(sink.results) != OPS else []
    blamed = [str(result.reason) for result in sink.results if result.status != "replayed"]
    return wrong + [f"{name} after {moment_s * 1e3:.1f} ms: blamed: {reason}" for reason in blamed]


def _pace(fault: str) -> float:
    """How much sooner than `MOMENTS_S` a fault is to come."""
    if fault == "kill the worker":
        return 0.5
    return 2.0 if is_batch(fault) else 4.0 if is_on_ray(fault) else 1.0


def _until(process: subprocess.Popen[str], begin: str, count: int) -> str:
    """What the process says up to its first lines that begin so."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        count -= line.startswith(begin)
        if not count:
            break
    return output


def _lose_power(path: Path, output: str, rng: random.Random) -> None:
    """Of what was written after the last line that was reported, any part may be on the disk, or zeros in its place."""
    safe = max((int(size) for size in re.findall(r"op \w+ (\d+)", output)), default=0)
    size = path.stat().st_size
    os.truncate(path, rng.randint(min(safe, size), size))
    with path.open("ab") as file:
        file.write(bytes(rng.choice((0, 1, 100, 4096))))


def _ray_workers() -> tuple[set[int], set[int]]:
    """Actors of this command's cluster, and all processes below them, in which they run ops."""
    parents, titles = dict[int, int](), dict[int, bytes]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_bytes()

    def is_below(pid: int, tops: set[int]) -> bool:
        return pid in tops or (pid in parents and is_below(parents[pid], tops))

    named = {pid for pid, title in titles.items() if title.startswith(b"ray::LaneActor")}
    actors = {pid for pid in named if is_below(pid, {os.getpid()})}
    return actors, {pid for pid in parents if is_below(pid, actors)}


def _left_behind(waiting: set[int]) -> list[str]:
    """Children of a run that has ended must end as well, within moments."""
    deadline = monotonic() + ENDED_S
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
    if is_batch(fault) and [trace.replayed for trace in file.traces] != [OPS, OPS]:
        wrong.append("not each trace once")
    if not path.read_bytes().endswith(b"\n"):
        wrong.append("a partial line")
    for index, result in enumerate(sorted(file.results, key=lambda result: result.id)):
        expected = IN_OP.get(fault, "") if index == position else ""
        if not str(result.reason or "").startswith(expected) or (not expected and result.status != "replayed"):
            wrong.append(f"op {index} came to {result.status}: {result.reason}")
    return wrong


@contextlib.contextmanager
def cluster(wanted: bool) -> Iterator[str]:
    """The address of a cluster of this machine for all runs on Ray; an empty one where there are none."""
    if not wanted:
        yield ""
        return
    from opreplay.replay.execute.processes.ray import LOCAL_IP, import_ray

    ray = import_ray()
    started = ray.init(
        num_cpus=4, include_dashboard=False, _node_ip_address=LOCAL_IP, log_to_driver=False, logging_level="ERROR"
    )
    try:
        yield started.address_info["address"]
    finally:
        ray.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description="Break runs at random moments and continue them.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="faults to take in turn, by default all")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        path, fault, position, file_bytes, address = args.work
        return work(Path(path), fault, int(position), int(file_bytes), address)
    kinds = [kind.strip() for kind in args.kinds.split(",")]
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the kinds are {', '.join(KINDS)}")
    if importlib.util.find_spec("ray") is None:
        kinds = [kind for kind in kinds if not is_on_ray(kind)]
        print("Ray is not installed: its faults are left out")
    rng = random.Random(args.seed)
    runs, bad = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, cluster(any(map(is_on_ray, kinds[: args.runs]))) as address:
        for index in range(args.runs):
            fault = kinds[index % len(kinds)]
            wrong = one_signal(rng) if fault == FORKED else one(fault, rng, Path(folder) / f"{index}.jsonl", address)
            runs[fault] += 1
            bad[fault] += bool(wrong)
            for what in wrong:
                print(f"run {index}, {fault}: {what}", flush=True)
    if FORKED in runs:
        print(f"{Forked.started - runs[FORKED]} of the signals ended a worker at work; the others came later")
    for fault, count in runs.items():
        print(f"{fault:18} {count:4} runs, {bad[fault]} wrong")
    print(f"{'all':18} {runs.total():4} runs, {bad.total()} wrong")
    return 1 if bad.total() else 0


if __name__ == "__main__":
    sys.exit(main())
