"""The first advice on steps with a planted bottleneck of known size: is it the right one, and is its gain true?

    python benchmarks/advice.py [--seeds 6] [--first 0] [--only KIND] [--list]

Each case is a program for the simulated machine of `synthetic_steps.py`, run twice: with the bottleneck, of which a
profile is written that `timeline --advise` reads, and without it. The difference of the two paces is the true gain, so
no figure of the truth comes from the graph. Kinds: a data loader, a host that launches too slowly, communication that
nothing hides, one kernel far below its roof, runs of small elementwise kernels. Everything else varies by seed: layers,
host and device times, streams, waits, launch latency, stacks or ranges or neither as names, and a second, smaller
bottleneck of another kind in half of the cases. Seeds below 1000 were looked at while the advice was written.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opreplay.replay.ir.advice import Advice
from opreplay.replay.timeline.advice import advise
from opreplay.replay.timeline.timeline import timeline, with_other_steps
from opreplay.traces import read_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from benchmarks.synthetic_steps import GAP_US, STEPS, Machine, Task

ON_TOP_BAR, GAIN_BAR = 19 / 20, 18 / 20
CLOSE = 0.10
HELD_BACK = 1000
DEVICE = "NVIDIA H100 80GB HBM3"
TFLOPS, GB_PER_S = 989.0, 3350.0
"""Of its data sheet, bfloat16 and memory: the truth has its own figures."""
GOOD = 0.8
LOADER = "torch/utils/data/dataloader.py(701): __next__"


@dataclass
class Profiled(Machine):
    """A machine whose ops record shapes, with Python frames or ranges, and its own launch latency."""

    latency_us: float = 6.0
    names: str = "stack"
    """How host work is named: "stack", "range" or ""."""
    shapes: dict[str, Any] = field(default_factory=dict)

    def _ready(self, task: Task) -> float:
        begin = max(task.launched + self.latency_us, self.free.get(task.stream, 0.0) + GAP_US)
        return max(begin, self.device_now)

    def call(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        if category == "cpu_op" and self.shapes:
            args |= self.shapes
        super().call(category, name, ts, dur, **args)

    def shaped(self, name: str, host_us: float, kernel: str, us: float, dims: Sequence[Sequence[int]]) -> None:
        """An op on bfloat16 tensors."""
        self.shapes = {"Input Dims": [list(one) for one in dims], "Input type": ["c10::BFloat16"] * len(dims)}
        self.op(name, host_us, (kernel, us))
        self.shapes = {}

    def load(self, us: float, parts: int) -> None:
        """Host work of a data loader."""
        begin = self.now
        self.now += us
        if self.names == "stack":
            self.call("python_function", LOADER, begin, us)
            self.call(
                "python_function", "torch/utils/data/_utils/fetch.py(47): fetch", begin + 5.0, max(1.0, us - 10.0)
            )
            each = (us - 20.0) / parts
            for part in range(parts if each > 120.0 else 0):
                self.call("python_function", "project/data.py(31): __getitem__", begin + 8.0 + part * each, each - 1.0)
        elif self.names == "range":
            self.call("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, us)


Layer = tuple[str, float, float, tuple[tuple[int, ...], ...]]
"""(op, host µs, device µs, shapes)."""


def roof_us(dims: Sequence[Sequence[int]]) -> float:
    """Least time of a product of bfloat16 matrices."""
    (m, k), (_, n) = dims
    return max(2.0 * m * n * k / TFLOPS / 1e6, 2.0 * (m * k + k * n + m * n) / GB_PER_S / 1e3)


def layers(rng: random.Random, count: int, host: tuple[float, float]) -> list[Layer]:
    """Products near their roof, and kernels of no known work."""
    out: list[Layer] = []
    for _ in range(count):
        if rng.random() < 0.6:
            m, n, k = (rng.choice((1024, 2048, 4096, 8192)) for _ in range(3))
            dims = ((m, k), (k, n))
            out.append(("aten::mm", rng.uniform(*host), roof_us(dims) / rng.uniform(0.7, 0.9), dims))
        else:
            out.append(("acme::mix", rng.uniform(*host), rng.uniform(30, 120), ()))
    return out


def run_layers(machine: Profiled, some: Sequence[Layer]) -> None:
    for op, host_us, us, dims in some:
        machine.host(host_us / 4)
        kernel = "nvjet_tst_128x256" if op == "aten::mm" else "acme_mix_kernel"
        machine.shaped(op, host_us, kernel, us, dims) if dims else machine.op(op, host_us, (kernel, us))


def ending(rng: random.Random) -> Callable[[Profiled], None]:
    """How a step ends: it does not wait, waits for the device, or reads a value."""
    return rng.choice((lambda machine: None, lambda machine: machine.synchronize(), lambda machine: machine.item()))


Program = Callable[[Profiled, bool], None]
"""One step on a machine, with the bottleneck or without."""


def of_loader(rng: random.Random) -> Program:
    some, end = layers(rng, rng.randint(8, 24), (5, 12)), ending(rng)
    device_us = sum(us for _, _, us, _ in some)
    us, parts = device_us * rng.uniform(0.3, 2.0) + 600.0, rng.choice((1, 4, 16))
    # A host that does not wait has the loader's time for nothing while the device has work of the step before.
    us = us if end.__code__.co_names else us + device_us
    middle = rng.randint(1, len(some) - 1) if rng.random() < 0.3 else 0
    copy_us = rng.uniform(5, 60)

    def run(machine: Profiled, planted: bool) -> None:
        run_layers(machine, some[:middle])
        machine.load(us if planted else 15.0, parts)
        machine.op("aten::copy_", 10.0, ("Memcpy HtoD (Pinned -> Device)", copy_us), category="gpu_memcpy")
        run_layers(machine, some[middle:])
        end(machine)

    return run


def of_launches(rng: random.Random) -> Program:
    count, host = rng.randint(40, 160), rng.uniform(12, 60)
    some = [
        (rng.choice(("aten::addmm", "acme::mix", "aten::native_layer_norm")), host * rng.uniform(0.7, 1.3), us)
        for us in (rng.uniform(0.15, 0.6) * host for _ in range(count))
    ]
    end, has_input = ending(rng), rng.random() < 0.5

    def run(machine: Profiled, planted: bool) -> None:
        if has_input:
            machine.op("aten::copy_", 10.0, ("Memcpy HtoD (Pinned -> Device)", 12.0), category="gpu_memcpy")
        if planted:
            for op, host_us, us in some:
                machine.host(host_us / 4)
                machine.op(op, host_us, (f"{op[6:]}_kernel", us))
        else:
            machine.host(some[0][1])
            machine.graph(*((f"{op[6:]}_kernel", us) for op, _, us in some))
        end(machine)

    return run


def of_communication(rng: random.Random) -> Program:
    blocks = [layers(rng, rng.randint(2, 5), (4, 9)) for _ in range(rng.randint(3, 8))]
    sizes = [sum(us for _, _, us, _ in block) * rng.uniform(0.3, 0.9) for block in blocks]
    end = ending(rng)

    def run(machine: Profiled, planted: bool) -> None:
        for block, us in zip(blocks, sizes, strict=True):
            if planted:
                run_layers(machine, block)
            machine.wait(20, 7)
            machine.op("c10d::allreduce_", 10.0, ("ncclDevKernel_AllReduce_Sum_bf16", us), stream=20)
            if not planted:
                run_layers(machine, block)
            machine.wait(7, 20)
        machine.op("aten::_foreach_add_", 20.0, ("multi_tensor_apply_kernel", 60.0))
        end(machine)

    return run


def of_slow_kernel(rng: random.Random) -> Program:
    some, end = layers(rng, rng.randint(8, 20), (5, 10)), ending(rng)
    total_us = sum(us for _, _, us, _ in some)
    dims = ((rng.choice((1000, 3072, 5120)), 1536), (1536, rng.choice((640, 2560, 7168))))
    calls = rng.choice((1, 1, 3))
    us = max(3.0 * roof_us(dims), total_us * rng.uniform(0.2, 1.2) / calls)
    places = sorted(rng.randint(1, len(some)) for _ in range(calls))

    def run(machine: Profiled, planted: bool) -> None:
        for at, layer in enumerate(some, 1):
            run_layers(machine, [layer])
            for _ in range(places.count(at)):
                took = us if planted else max(5.0, roof_us(dims) / GOOD)
                machine.shaped("aten::mm", 9.0, "sm80_gemm_fallback", took, dims)
        end(machine)

    return run


def of_small_kernels(rng: random.Random) -> Program:
    blocks = [layers(rng, rng.randint(1, 3), (4, 8)) for _ in range(rng.randint(4, 10))]
    names = ("aten::add", "aten::mul", "aten::pow", "aten::sigmoid", "aten::mul", "aten::rsqrt")
    each = sum(us for block in blocks for _, _, us, _ in block) / len(blocks)
    runs: list[list[tuple[str, float]]] = []
    for _ in blocks:
        size, us = rng.randint(5, 14), rng.uniform(8, 25)
        count = max(size, int(each * rng.uniform(0.4, 1.2) / us))
        runs.append([(rng.choice(names), us * rng.uniform(0.8, 1.2)) for _ in range(count)])
    end = ending(rng)

    def run(machine: Profiled, planted: bool) -> None:
        for block, parts in zip(blocks, runs, strict=True):
            run_layers(machine, block)
            left = parts if planted else [(parts[0][0], max(us for _, us in parts))]
            for op, us in left:
                machine.host(0.5)
                machine.op(op, 5.0, (f"vectorized_elementwise_kernel<{op[6:]}>", us))
        end(machine)

    return run


KINDS: dict[str, tuple[Callable[[random.Random], Program], str]] = {
    "loader": (of_loader, "python"),
    "launch-bound host": (of_launches, "cudagraph"),
    "exposed communication": (of_communication, "overlap"),
    "one slow kernel": (of_slow_kernel, "op"),
    "small kernels": (of_small_kernels, "fusion"),
}


def distractor(rng: random.Random, kind: str) -> Callable[[Profiled], None]:
    """A smaller bottleneck of another kind, the same with and without the planted one."""
    if rng.random() < 0.5:
        return lambda machine: None
    name = rng.choice([other for other in ("copy", "log", "side stream", "adds", "product") if other != kind])
    us = rng.uniform(20, 60)

    def run(machine: Profiled) -> None:
        if name == "copy":
            machine.op("aten::copy_", 8.0, ("Memcpy DtoD (Device -> Device)", us), category="gpu_memcpy")
        elif name == "log":
            machine.host(us)
        elif name == "side stream":
            machine.wait(31, 7)
            machine.op("acme::side", 8.0, ("acme_side_kernel", us), stream=31)
            machine.wait(7, 31)
        elif name == "adds":
            for _ in range(2):
                machine.op("aten::add", 5.0, ("vectorized_elementwise_kernel<add>", us / 3))
        else:
            machine.shaped("aten::mm", 8.0, "nvjet_tst_64x8", 12.0, ((512, 512), (512, 512)))

    return run


@dataclass(frozen=True)
class Outcome:
    """One case: what was told beside the truth, µs."""

    kind: str
    seed: int
    step_us: float
    truth_us: float
    first: Advice | None
    right: Advice | None

    @property
    def is_on_top(self) -> bool:
        return self.first is not None and self.first is self.right

    @property
    def error(self) -> float:
        return abs(self.right.gain_us / self.truth_us - 1.0) if self.right is not None else 1.0

    @property
    def is_close(self) -> bool:
        return self.error <= CLOSE

    @property
    def is_in_range(self) -> bool:
        return self.right is not None and self.right.low_us <= self.truth_us <= self.right.high_us


def outcome(kind: str, seed: int, folder: Path) -> Outcome:
    """Make one case and ask for advice on it."""
    make, wanted = KINDS[kind]
    rng = random.Random(f"{kind} {seed}")
    program, other = make(rng), distractor(rng, kind)
    machine_of = {"seed": seed, "latency_us": rng.uniform(3.0, 9.0), "names": rng.choice(("stack", "range", ""))}
    paces: list[float] = []
    for planted in (False, True):
        machine = Profiled(**machine_of)
        for _ in range(STEPS):
            machine.step(lambda one, _, planted=planted: (program(one, planted), other(one))[0])  # type: ignore[arg-type]
        paces.append(machine.pace())
    path = folder / "trace.json"
    properties = [{"id": 0, "name": DEVICE}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": machine.events}))
    trace = read_trace(path, activity=True)
    found = advise(with_other_steps(trace, timeline(trace)))
    items = found.items
    return Outcome(
        kind=kind,
        seed=seed,
        step_us=found.step_us,
        truth_us=paces[1] - paces[0],
        first=items[0] if items else None,
        right=next((item for item in items if item.kind == wanted), None),
    )


def outcomes(seeds: Sequence[int], only: str | None = None) -> list[Outcome]:
    """Make and judge the cases of all kinds."""
    with tempfile.TemporaryDirectory() as folder:
        return [outcome(kind, seed, Path(folder)) for kind in KINDS if only in (None, kind) for seed in seeds]


def holds(found: Sequence[Outcome]) -> bool:
    """Whether the bars hold."""
    on_top = sum(one.is_on_top for one in found) / len(found)
    return on_top >= ON_TOP_BAR and sum(one.is_close for one in found) / len(found) >= GAIN_BAR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help=f"first seed; {HELD_BACK} for those held back")
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--list", action="store_true", help="print every case")
    chosen = parser.parse_args()
    found = outcomes(range(chosen.first, chosen.first + chosen.seeds), chosen.only)
    print(f"{'planted':24} {'cases':>6} {'on top':>7} {'gain within 10 %':>17} {'in range':>9} {'median error':>13}")
    for kind in KINDS:
        if mine := [one for one in found if one.kind == kind]:
            errors = sorted(one.error for one in mine)
            print(
                f"{kind:24} {len(mine):6} {sum(one.is_on_top for one in mine):7} "
                f"{sum(one.is_close for one in mine):17} {sum(one.is_in_range for one in mine):9} "
                f"{errors[len(errors) // 2]:13.1%}"
            )
    for one in found:
        if chosen.list or not one.is_on_top or not one.is_close:
            told = "nothing" if one.first is None else f"{one.first.what} {one.first.gain_us:.0f} µs"
            right = "none" if one.right is None else f"{one.right.gain_us:.0f} µs"
            print(
                f"    {one.kind}, seed {one.seed}: step {one.step_us:.0f} µs, true gain {one.truth_us:.0f} µs, told "
                f"{right}; first: {told}"
            )
    good = holds(found)
    print(
        f"{sum(one.is_on_top for one in found)} of {len(found)} right on top (bar {ON_TOP_BAR:.0%}), "
        f"{sum(one.is_close for one in found)} with a gain within 10 % (bar {GAIN_BAR:.0%})"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
