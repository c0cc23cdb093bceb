"""What-ifs of steps whose truth is known: a simulated machine runs a program, and runs it again with the change made.

    python benchmarks/synthetic_steps.py [--seeds 5] [--only CLASS] [--list] [--levels]

Each class of program runs eight steps on a machine of one host and one device: the host works, launches and waits;
streams run tasks in order; tasks of several streams run beside each other, or one at a time, or slow each other down.
The profile of that run is written as torch.profiler does, `timeline` predicts each change from it, and the machine
tells the truth: its pace over the last steps with the changed tasks. An answer is right if it is within 10 % of that
pace or the truth lies within the band that is told with it.

--levels holds what-ifs of the same run against each other that was written at several levels of detail: with every wait
of a stream for an event, without what each is for, and with no calls but launches, as an NPU's profile of level 0
(not of programs that wait outside of ops, of which such a profile holds nothing). Bar: all within 10 % or, as where a
wait never delayed anything and is in no profile without events, the full profile's answer in the range.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from opreplay.replay.timeline.timeline import WhatIf, timeline
from opreplay.traces import read_trace

STEPS, SHOWN = 8, 5
LATENCY_US, GAP_US, CALL_US = 6.0, 1.0, 4.0
P90_BAR, WORST_BAR = 0.05, 0.10
Json = dict[str, Any]


@dataclass
class Task:
    """One item of a stream: device work, or (without a name) a mark or a wait of an event."""

    name: str
    us: float
    stream: int
    launched: float
    correlation: int = -1
    external: int = 0
    category: str = "kernel"
    event: int | None = None
    waits_for: int | None = None
    start: float = -1.0
    end: float = -1.0
    left: float = 0.0
    step: int = 0


@dataclass
class Machine:
    """A host and a device, and what a profiler would record of them. Times in µs."""

    scale: dict[str, float] = field(default_factory=dict)
    """Pattern of kernel names → factor on their time."""
    exclusive: bool = False
    """Kernels of different streams run one at a time; copies and collectives beside them."""
    slowdown: float = 1.0
    """How much longer kernels take while a collective runs."""
    records_waits: bool = True
    """The profile says which event each wait is for."""
    seed: int = 0

    now: float = 1000.0
    tid: int = 1
    numbers: int = 0
    events: list[Json] = field(default_factory=list)
    queues: dict[int, deque[Task]] = field(default_factory=dict)
    running: list[Task] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)
    device_now: float = 0.0
    done_events: dict[int, float] = field(default_factory=dict)
    recorded_by: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Event → (correlation of the call that recorded it, stream)."""
    completed: list[float] = field(default_factory=list)
    """Per step: when its host was done."""
    steps: int = 0
    external: int = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def host(self, us: float) -> None:
        """Python between ops."""
        self.now += us

    def op(self, name: str, us: float, *kernels: tuple[str, float], stream: int = 7, category: str = "kernel") -> None:
        """An op that works on the host for a while and launches tasks halfway."""
        begin, self.external = self.now, self.number()
        self.now += us / 2
        for kernel, task_us in kernels:
            self.launch(kernel, task_us, stream=stream, category=category)
        self.now += us / 2
        self.call("cpu_op", name, begin, self.now - begin, **{"External id": self.external})
        self.external = 0

    def launch(self, kernel: str, us: float, *, stream: int = 7, category: str = "kernel", call: str = "") -> None:
        """One task."""
        correlation = self.number()
        api = call or ("cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel")
        self.call("cuda_runtime", api, self.now, CALL_US, correlation=correlation)
        self._queue(kernel, us, stream, correlation, category)
        self.now += CALL_US

    def graph(self, *kernels: tuple[str, float], stream: int = 7) -> None:
        """A captured graph: one launch of many tasks."""
        correlation = self.number()
        self.call("cuda_runtime", "cudaGraphLaunch", self.now, 3 * CALL_US, correlation=correlation)
        for kernel, us in kernels:
            self._queue(kernel, us, stream, correlation, "kernel")
        self.now += 3 * CALL_US

    def _queue(self, kernel: str, us: float, stream: int, correlation: int, category: str) -> None:
        jitter = 1.0 + 0.02 * (random.Random(f"{self.seed} {correlation}").random() - 0.5)
        for pattern, factor in self.scale.items():
            us *= factor if fnmatchcase(kernel, pattern) else 1.0
        task = Task(
            kernel,
            us * jitter,
            stream,
            self.now,
            correlation,
            self.external,
            category,
            left=us * jitter,
            step=self.steps,
        )
        self.queues.setdefault(stream, deque()).append(task)

    def record(self, stream: int) -> int:
        """An event of a stream."""
        event, correlation = self.number(), self.number()
        self.call("cuda_runtime", "cudaEventRecord", self.now, 1.0, correlation=correlation)
        self.queues.setdefault(stream, deque()).append(Task("", 0.0, stream, self.now, event=event))
        self.recorded_by[event] = correlation, stream
        self.now += 1.0
        return event

    def wait_event(self, stream: int, event: int) -> None:
        """A stream waits for an event."""
        correlation = self.number()
        self.call("cuda_runtime", "cudaStreamWaitEvent", self.now, 1.0, correlation=correlation)
        if self.records_waits:
            record, source = self.recorded_by[event]
            args = {
                "stream": stream,
                "correlation": correlation,
                "wait_on_stream": source,
                "wait_on_cuda_event_record_corr_id": record,
            }
            self._add("cuda_sync", "Stream Wait Event", self.now, 0.0, 0, stream, args)
        self.queues.setdefault(stream, deque()).append(Task("", 0.0, stream, self.now, waits_for=event))
        self.now += 1.0

    def wait(self, waiting: int, stream: int) -> None:
        """One stream waits for all that was launched on another one."""
        self.wait_event(waiting, self.record(stream))

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all."""
        begin = self.now
        streams = list(self.queues) if stream is None else [stream]
        self.now = max([self.now + 2.0, *(self._drain(drained) + 2.0 for drained in streams)])
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        self.call("cuda_runtime", name, begin, self.now - begin, correlation=self.number())

    def item(self, us: float = 1.5) -> None:
        """`.item()`: a copy to pageable memory that the host waits for."""
        begin, self.external, correlation = self.now, self.number(), self.number()
        self.now += 5.0
        called = self.now
        self._queue("Memcpy DtoH (Device -> Pageable)", us, 7, correlation, "gpu_memcpy")
        self.now = max(called + 8.0, self._drain(7) + 2.0)
        self.call("cuda_runtime", "cudaMemcpyAsync", called, self.now - called, correlation=correlation)
        self.now += 3.0
        self.call("cpu_op", "aten::_local_scalar_dense", begin, self.now - begin, **{"External id": self.external})
        self.external = 0

    def step(self, program: Callable[[Machine, int], None]) -> None:
        """One step of a program, marked as torch.profiler does."""
        began = self.now
        program(self, self.steps)
        self.call("user_annotation", f"ProfilerStep#{self.steps}", began, self.now - began)
        self.steps += 1
        self.completed.append(self.now)

    def pace(self) -> float:
        """µs a step over the last ones, from completion to completion of all that they launched."""
        for stream in list(self.queues):
            self._drain(stream)
        done = list(self.completed)
        for step, end in self.ends:
            done[step] = max(done[step], end)
        half = STEPS // 2
        return (done[-1] - done[half - 1]) / (STEPS - half)

    ends: list[tuple[int, float]] = field(default_factory=list)
    """(step that launched it, end) of each task."""

    def _drain(self, stream: int) -> float:
        """Run the device until a stream has done all that it was given; when that was."""
        while self.queues.get(stream) or any(task.stream == stream for task in self.running):
            self._advance()
        return self.free.get(stream, 0.0)

    def _advance(self) -> None:
        """To the next time at which a task starts or ends."""
        busy = {task.stream for task in self.running}
        idle = [queue for stream, queue in self.queues.items() if stream not in busy]
        passed = False
        while sum(self._pass_marks(queue) for queue in idle):
            passed = True
        ready = [(self._ready(queue[0]), queue[0]) for queue in idle if queue and queue[0].name]
        if self.exclusive and any(task.category == "kernel" for task in self.running):
            ready = [(at, task) for at, task in ready if task.category != "kernel"]
        speeds = {id(task): self._speed(task) for task in self.running}
        ends = [(self.device_now + task.left / speeds[id(task)], task) for task in self.running]
        first_end = min(ends, key=lambda pair: pair[0], default=None)
        first_ready = min(ready, key=lambda pair: pair[0], default=None)
        if first_ready is None and first_end is None:
            if passed:
                return
            raise RuntimeError("the device waits for an event that nothing records")
        starts = first_ready is not None and (first_end is None or first_ready[0] < first_end[0])
        until = first_ready[0] if starts and first_ready is not None else first_end[0]  # type: ignore[index]
        for task in self.running:
            task.left -= max(0.0, until - self.device_now) * speeds[id(task)]
        self.device_now = max(self.device_now, until)
        if starts and first_ready is not None:
            task = first_ready[1]
            self.queues[task.stream].popleft()
            task.start = until
            self.running.append(task)
            return
        task = first_end[1]  # type: ignore[index]
        self.running.remove(task)
        task.end = until
        self.free[task.stream] = until
        self.ends.append((task.step, until))
        args = {"device": 0, "stream": task.stream, "correlation": task.correlation, "External id": task.external}
        self._add(task.category, task.name, task.start, task.end - task.start, 0, task.stream, args)

    def _ready(self, task: Task) -> float:
        begin = max(task.launched + LATENCY_US, self.free.get(task.stream, 0.0) + GAP_US)
        return max(begin, self.device_now)

    def _pass_marks(self, queue: deque[Task]) -> bool:
        """Take marks and waits that are over from the head of a stream's queue; whether there were any."""
        passed = False
        while queue and not queue[0].name:
            head = queue[0]
            if head.event is not None:
                self.done_events[head.event] = max(self.free.get(head.stream, 0.0), head.launched)
            elif head.waits_for in self.done_events:
                waited = self.done_events[head.waits_for]
                self.free[head.stream] = max(self.free.get(head.stream, 0.0), waited)
            else:
                break
            queue.popleft()
            passed = True
        return passed

    def _speed(self, task: Task) -> float:
        beside = any("nccl" in other.name for other in self.running)
        return 1.0 / self.slowdown if beside and "nccl" not in task.name and task.category == "kernel" else 1.0

    def call(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self._add(category, name, ts, dur, 9, self.tid, args)

    def _add(self, category: str, name: str, ts: float, dur: float, pid: int, tid: int, args: Json) -> None:
        """Start and end rounded to whole nanoseconds, the length their difference."""
        start, end = round(ts, 3), round(ts + dur, 3)
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start}
        self.events.append({**event, "dur": round(end - start, 3), "args": args})


Program = Callable[[Machine, int], None]


@dataclass(frozen=True)
class Scenario:
    """A class of programs."""

    program: Callable[[random.Random], Program]
    machine: Json = field(default_factory=dict)


def _layers(rng: random.Random, host: tuple[float, float], device: tuple[float, float], n: int = 12) -> list[Any]:
    kinds = ("ampere_gemm", "elementwise_add", "softmax_warp", "cutlass_bmm")
    return [(rng.choice(kinds), rng.uniform(*host), rng.uniform(*device)) for _ in range(n)]


def _chain(machine: Machine, layers: list[Any], stream: int = 7) -> None:
    for kernel, host, us in layers:
        machine.host(host / 3)
        machine.op(f"aten::{kernel.split('_')[1]}", host, (kernel, us), stream=stream)


def host_bound(rng: random.Random) -> Program:
    layers = _layers(rng, (30, 60), (5, 30))
    return lambda machine, _: (_chain(machine, layers), machine.synchronize())[0]


def device_bound(rng: random.Random) -> Program:
    layers = _layers(rng, (5, 12), (40, 200))
    return lambda machine, _: _chain(machine, layers)


def device_bound_sync(rng: random.Random) -> Program:
    layers = _layers(rng, (5, 12), (40, 200))
    return lambda machine, _: (_chain(machine, layers), machine.synchronize())[0]


def sync_first(rng: random.Random) -> Program:
    """A loop that waits for the step before at its start."""
    layers = _layers(rng, (10, 30), (30, 120))
    return lambda machine, _: (machine.synchronize(), _chain(machine, layers))[1]


def many_syncs(rng: random.Random) -> Program:
    layers = _layers(rng, (10, 40), (20, 120))

    def run(machine: Machine, _: int) -> None:
        for at in range(0, len(layers), 3):
            _chain(machine, layers[at : at + 3])
            machine.synchronize(7)

    return run


def items(rng: random.Random) -> Program:
    layers = _layers(rng, (10, 40), (20, 120))

    def run(machine: Machine, _: int) -> None:
        _chain(machine, layers[:6])
        machine.item()
        _chain(machine, layers[6:])
        machine.item()

    return run


def mixed(rng: random.Random) -> Program:
    """The host runs ahead by a bit."""
    first, second = _layers(rng, (30, 50), (10, 40), 6), _layers(rng, (8, 12), (40, 90), 6)
    return lambda machine, _: (_chain(machine, first), _chain(machine, second))[1]


def graphs(rng: random.Random) -> Program:
    layers = _layers(rng, (5, 12), (10, 60), 20)

    def run(machine: Machine, _: int) -> None:
        machine.host(120.0)
        machine.graph(*((kernel, us) for kernel, _, us in layers))
        machine.host(60.0)
        machine.item()

    return run


def two_streams(rng: random.Random) -> Program:
    """Two branches that are joined each step; the second one begins when the step before is done."""
    first, second = _layers(rng, (5, 10), (20, 120), 6), _layers(rng, (5, 10), (20, 120), 6)

    def run(machine: Machine, _: int) -> None:
        machine.wait(20, 7)
        _chain(machine, second, stream=20)
        _chain(machine, first)
        machine.wait(7, 20)
        machine.op("aten::add", 8.0, ("elementwise_add", 40.0))

    return run


def side_unsynced(rng: random.Random) -> Program:
    main, side = _layers(rng, (8, 20), (20, 120)), _layers(rng, (5, 10), (20, 60), 4)

    def run(machine: Machine, _: int) -> None:
        _chain(machine, side, stream=20)
        _chain(machine, main)
        machine.synchronize()

    return run


def prefetch(rng: random.Random) -> Program:
    """Copies of the next batch on a stream of their own, which computing waits for."""
    layers, copy = _layers(rng, (6, 15), (30, 140)), rng.uniform(200, 1200)

    def run(machine: Machine, step: int) -> None:
        event = machine.__dict__.pop("batch", None)
        if event is not None:
            machine.wait_event(7, event)
        machine.op("aten::copy_", 10.0, ("Memcpy HtoD (Pinned -> Device)", copy), stream=21, category="gpu_memcpy")
        machine.__dict__["batch"] = machine.record(21)
        _chain(machine, layers)

    return run


def copy_then_compute(rng: random.Random) -> Program:
    """Copy, event, computing that waits for it; the next copy runs beside it."""
    layers, copy = _layers(rng, (6, 15), (30, 140)), rng.uniform(100, 900)

    def run(machine: Machine, _: int) -> None:
        machine.op("aten::copy_", 10.0, ("Memcpy HtoD (Pinned -> Device)", copy), stream=21, category="gpu_memcpy")
        event = machine.record(21)
        machine.op("aten::add", 8.0, ("elementwise_add", 30.0))
        machine.wait_event(7, event)
        _chain(machine, layers)

    return run


def ddp(rng: random.Random) -> Program:
    """Backward with all-reduces on a stream of their own, which the optimizer waits for."""
    forward, backward = _layers(rng, (8, 20), (30, 90), 8), _layers(rng, (8, 20), (40, 150), 12)
    sizes = [rng.uniform(100, 400) for _ in range(4)]

    def run(machine: Machine, _: int) -> None:
        _chain(machine, forward)
        for at, us in enumerate(sizes):
            _chain(machine, backward[3 * at : 3 * at + 3])
            machine.wait(20, 7)
            machine.op("c10d::allreduce_", 10.0, ("ncclDevKernel_AllReduce_Sum", us), stream=20)
        machine.wait(7, 20)
        machine.op("aten::_foreach_add_", 20.0, ("multi_tensor_apply", 90.0))

    return run


def autograd(rng: random.Random) -> Program:
    """Backward on a thread of its own, for which the main one waits."""
    forward, backward = _layers(rng, (20, 40), (10, 60), 8), _layers(rng, (20, 40), (10, 80), 8)

    def run(machine: Machine, _: int) -> None:
        _chain(machine, forward)
        machine.tid = 2
        machine.host(40.0)
        _chain(machine, backward)
        machine.tid = 1
        machine.host(30.0)
        machine.op("aten::_foreach_add_", 20.0, ("multi_tensor_apply", 90.0))
        machine.item()

    return run


CLASSES: dict[str, Scenario] = {
    "host bound": Scenario(host_bound),
    "device bound": Scenario(device_bound),
    "device bound, waits": Scenario(device_bound_sync),
    "waits first": Scenario(sync_first),
    "many waits": Scenario(many_syncs),
    "items": Scenario(items),
    "mixed": Scenario(mixed),
    "captured graph": Scenario(graphs),
    "two streams": Scenario(two_streams),
    "two streams, waits not recorded": Scenario(two_streams, {"records_waits": False}),
    "two streams, one device": Scenario(two_streams, {"exclusive": True}),
    "side stream": Scenario(side_unsynced),
    "prefetch": Scenario(prefetch),
    "prefetch, waits not recorded": Scenario(prefetch, {"records_waits": False}),
    "copy, then compute": Scenario(copy_then_compute),
    "copy, then compute, waits not recorded": Scenario(copy_then_compute, {"records_waits": False}),
    "all-reduce": Scenario(ddp),
    "all-reduce, waits not recorded": Scenario(ddp, {"records_waits": False}),
    "all-reduce, contention": Scenario(ddp, {"slowdown": 1.25}),
    "autograd": Scenario(autograd),
}
CHANGES = ("*gemm*", "*elementwise*", "*bmm*", "*Memcpy HtoD*", "nccl*", "*softmax*")
FACTORS = (0.0, 0.5, 2.0, 4.0)


def run(scenario: Scenario, seed: int, scale: dict[str, float] | None = None) -> tuple[Machine, float]:
    """(the machine after eight steps, its pace) with tasks scaled."""
    program = scenario.program(random.Random(seed))
    machine = Machine(scale=scale or {}, seed=seed, **scenario.machine)
    for _ in range(STEPS):
        machine.step(program)
    return machine, machine.pace()


@dataclass(frozen=True)
class Answer:
    """One what-if beside the truth."""

    seed: int
    change: str
    truth_us: float
    predicted_us: float
    low_us: float
    high_us: float
    base_us: float

    @property
    def error(self) -> float:
        return abs(self.predicted_us / self.truth_us - 1.0)

    @property
    def right(self) -> bool:
        return self.error <= WORST_BAR or 0.98 * self.low_us <= self.truth_us <= 1.02 * self.high_us


def answers(scenario: Scenario, seed: int, folder: Path) -> tuple[float, list[Answer]]:
    """(error of the unchanged step, all what-ifs of one program)."""
    machine, pace = run(scenario, seed)
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": machine.events}))
    names = {event["name"] for event in machine.events if event["cat"] in ("kernel", "gpu_memcpy")}
    rng = random.Random(seed)
    changes = [(p, rng.choice(FACTORS)) for p in CHANGES if any(fnmatchcase(name, p) for name in names)]
    study = timeline(read_trace(path, activity=True), step=SHOWN, what_if=[f"{p}={f:g}x" for p, f in changes])
    answered = [
        answer_of(what_if, seed, run(scenario, seed, {pattern: factor})[1], pace)
        for (pattern, factor), what_if in zip(changes, study.timeline.what_if, strict=True)
    ]
    return study.timeline.recorded_step_us / pace - 1.0, answered


def answer_of(what_if: WhatIf, seed: int, truth_us: float, base_us: float) -> Answer:
    return Answer(
        seed=seed,
        change=what_if.change,
        truth_us=truth_us,
        predicted_us=what_if.step_us,
        low_us=what_if.low_us,
        high_us=what_if.high_us,
        base_us=base_us,
    )


def at_level(events: list[Json], level: str) -> list[Json]:
    """What a profile of less detail has of a run that was recorded with all waits."""
    if level == "all":
        return events
    kept = [event for event in events if event["cat"] != "cuda_sync"]
    if level == "no waits":
        return kept
    launches = [event for event in kept if not (event["cat"] == "cuda_runtime" and event["name"] in WAITING)]
    return [
        {**event, "dur": min(event["dur"], CALL_US)} if event["name"] == "cudaMemcpyAsync" else event
        for event in launches
    ]


WAITING = ("cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaDeviceSynchronize")
LEVELS = ("all", "no waits", "launches alone")
OUTSIDE_OPS = ("host bound", "device bound, waits", "waits first", "many waits", "side stream")
"""Programs that call synchronize(), which no op holds: a profile of launches alone has no trace of that wait."""


def levels_of(scenario: Scenario, seed: int, folder: Path) -> list[tuple[str, Answer]]:
    """(level, its what-if beside that of the full profile, taken for the truth) of all changes of one program."""
    machine, pace = run(Scenario(scenario.program, {**scenario.machine, "records_waits": True}), seed)
    names = {event["name"] for event in machine.events if event["cat"] in ("kernel", "gpu_memcpy")}
    rng = random.Random(seed)
    changes = [(p, rng.choice(FACTORS)) for p in CHANGES if any(fnmatchcase(name, p) for name in names)]
    by_level: dict[str, Sequence[WhatIf]] = {}
    for level in LEVELS:
        path = folder / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": at_level(machine.events, level)}))
        study = timeline(read_trace(path, activity=True), step=SHOWN, what_if=[f"{p}={f:g}x" for p, f in changes])
        by_level[level] = study.timeline.what_if
    return [
        (level, answer_of(what_if, seed, full.step_us, pace))
        for level in LEVELS[1:]
        for what_if, full in zip(by_level[level], by_level["all"], strict=True)
    ]


def compare_levels(seeds: int, only: str | None) -> bool:
    """Print how far what-ifs of a profile of less detail are off; whether all are within the bar."""
    print(f"{'class':40} {'level':16} {'what-ifs':>8} {'median':>8} {'p90':>8} {'worst':>8} {'outside':>8}")
    good = True
    for name, scenario in CLASSES.items():
        if (only and only != name) or not scenario.machine.get("records_waits", True):
            continue
        with tempfile.TemporaryDirectory() as folder:
            compared = [pair for seed in range(seeds) for pair in levels_of(scenario, seed, Path(folder))]
        for level in LEVELS[1 : 2 if name in OUTSIDE_OPS else 3]:
            at_it = [answer for other, answer in compared if other == level]
            errors = sorted(answer.error for answer in at_it)
            p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
            outside = sum(not answer.right for answer in at_it)
            good &= p90 <= WORST_BAR and not outside
            print(
                f"{name:40} {level:16} {len(errors):8} {statistics.median(errors):8.1%} {p90:8.1%} {errors[-1]:8.1%} "
                f"{outside:8}"
            )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", metavar="CLASS")
    parser.add_argument("--list", action="store_true", help="print every what-if that is wrong")
    parser.add_argument("--levels", action="store_true", help="compare profiles of one run at several levels")
    chosen = parser.parse_args()
    if chosen.levels:
        return 0 if compare_levels(chosen.seeds, chosen.only) else 1
    print(f"{'class':40} {'what-ifs':>8} {'step':>8} {'median':>8} {'p90':>8} {'worst':>8} {'wrong':>6}")
    good = True
    for name, scenario in CLASSES.items():
        if chosen.only and chosen.only != name:
            continue
        bases: list[float] = []
        answered: list[Answer] = []
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(chosen.seeds):
                base, more = answers(scenario, seed, Path(folder))
                bases.append(abs(base))
                answered += more
        wrong = [answer for answer in answered if not answer.right]
        # An answer whose band holds the truth is right, however wide the band: its error counts as none.
        errors = sorted(0.0 if a.error > WORST_BAR and a.right else a.error for a in answered)
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        good &= not wrong and p90 <= P90_BAR
        print(
            f"{name:40} {len(answered):8} {max(bases):8.1%} {statistics.median(errors):8.1%} {p90:8.1%} "
            f"{max(a.error for a in answered):8.1%} {len(wrong):6}"
        )
        if chosen.list:
            for miss in wrong:
                print(
                    f"    seed {miss.seed} {miss.change}: truth {miss.truth_us:.0f}, predicted {miss.predicted_us:.0f} "
                    f"({miss.low_us:.0f} to {miss.high_us:.0f}), unchanged {miss.base_us:.0f}"
                )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
