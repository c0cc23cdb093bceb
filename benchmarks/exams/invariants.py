# pyright: strict
"""What must hold of predictions whatever was measured: limits of a chip, larger chips, more work, warm caches."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from benchmarks.exams.kinds import SIZES, texts
from benchmarks.exams.scoring import Figures, Result
from opreplay.replay.ascend import load_device, simulate_op
from opreplay.replay.ascend.cost.predict import L2_PEAK_BYTES
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.physical import least_bytes, least_flops
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.records import L2State

SOCS = ("910b2", "910b3", "910b4", "910c", "950pr")
STATES: tuple[L2State, ...] = ("cold", "warm", "sequence")
TOLERATED = 1.03
CHEAPER_TOLERATED = 1.05
"""Of more work: sizes that cores divide evenly are quicker than a little less."""


SLOWER_AS_MEASURED = "slower on a larger chip, as measured"
"""Not counted as failing: constants of kernels in networks were fitted on each generation, and the 910C's network,
served by vLLM, starts its kernels more slowly than the 910B2's and 910B4's, which trained."""


class Times(NamedTuple):
    """Microseconds of one call on one device, by what the caches hold."""

    cold: float
    warm: float
    network: float
    """Inside a network, as `sequence` predicts a single op."""


class Violation(NamedTuple):
    """A call that breaks an invariant."""

    factor: float
    """By how much, more than 1."""
    invariant: str
    kind: str
    call: str
    what: str


def has_at_least(device: DeviceProfile, other: DeviceProfile) -> bool:
    """Whether a device has no less of anything than another one with the same kind of cores."""

    def numbers(of: DeviceProfile) -> tuple[float, ...]:
        macs = (of.macs_per_cycle[dtype] for dtype in sorted(of.macs_per_cycle))
        return of.aic_cores, of.aiv_cores, of.freq_hz, of.l2_bytes, of.hbm_bytes_per_s, *macs

    return device.kind == other.kind and all(a >= b for a, b in zip(numbers(device), numbers(other), strict=True))


def least_us(op: ReplayOp, device: DeviceProfile) -> Times:
    """Microseconds below which a device cannot do what a call must.

    Products go at the cube's peak, other bytes through the vector cores at the peak of L2. Operands that L2 cannot hold
    all go through HBM in a loop; else as much as L2 holds may be there before, or stay there after, once.
    """
    dtypes = [meta.dtype for arg in op.args for meta in arg.tensors if meta is not None]
    rates = device.macs_per_cycle
    macs = max((rates.get(dtype, rates["hf32"]) for dtype in dtypes), default=max(rates.values()))
    flops_per_s = 2 * max(macs, rates["hf32"]) * device.aic_cores * device.freq_hz
    l2_per_s = L2_PEAK_BYTES * device.vector_width * device.aiv_cores * device.freq_hz
    touched, flops = least_bytes(op), least_flops(op)
    inside = max(flops / flops_per_s, 0.0 if flops else touched / l2_per_s)
    once = 1e6 * max(inside, (touched - device.l2_bytes) / device.hbm_bytes_per_s)
    again = touched / device.hbm_bytes_per_s if touched > device.l2_bytes else 0.0
    return Times(cold=once, warm=1e6 * max(inside, again), network=once)


def times_of(op: ReplayOp, device: DeviceProfile) -> Times:
    """What a call by itself is predicted to take. Raises ValueError for one that no rule predicts."""
    cold, *others = (simulate_op(op, device, l2=state) for state in STATES)
    if op.reason is not None or cold.by != "rule":
        raise ValueError(f"{op.name}: {op.reason or cold.by}")
    return Times(cold.time_us, *(one.time_us for one in others))


class Call(NamedTuple):
    """A kind at sizes, and its predictions by device."""

    kind: str
    sizes: dict[str, int]
    op: ReplayOp
    times: dict[str, Times]

    @property
    def sizes_text(self) -> str:
        """The sizes that the kind names."""
        named = set(re.findall(r"\b[rckbsp]\b", self.kind))
        return " ".join(f"{name}={size}" for name, size in self.sizes.items() if name in named)


def drawn_sizes(kind: str) -> tuple[dict[str, int], ...]:
    """One draw a kind, the same each time: sizes that nobody chose, even in their last dimension."""
    draw = random.Random(kind)
    octaves = {"r": 14.0, "c": 12.5, "k": 13.0, "b": 4.0, "s": 12.0, "p": 7.0}
    sizes = {name: int(2 ** draw.uniform(0, most)) for name, most in octaves.items()}
    return ({**sizes, "c": 8 + sizes["c"] // 2 * 2, "p": max(4, sizes["p"])},)


def sized(several: Sequence[dict[str, int]], grows: str) -> Iterator[dict[str, int]]:
    """Sizes, each followed by one with an eighth more rows (or one more of a batch)."""
    for sizes in several:
        yield sizes
        yield {**sizes, grows: sizes[grows] + max(1, sizes[grows] // 8)}


def calls_of(
    kinds: dict[str, str],
    devices: list[DeviceProfile],
    sizes_of: Callable[[str], Sequence[dict[str, int]]] = lambda kind: SIZES,
) -> dict[str, list[Call]]:
    """Kind → its calls from small to large. Raises ValueError for one that no rule predicts."""
    written = [
        Written(text=kind, sizes=sizes) for kind, grows in kinds.items() for sizes in sized(sizes_of(kind), grows)
    ]
    plan, ids = plan_of_calls(written)
    ops = {op.id: op for op in plan.ops}
    known: dict[str, dict[str, Times]] = {}
    out: dict[str, list[Call]] = {}
    for case, place in zip(written, ids, strict=True):
        if place not in known:
            known[place] = {device.name: times_of(ops[place], device) for device in devices}
        out.setdefault(case.text, []).append(Call(case.text, dict(case.sizes), ops[place], known[place]))
    return out


def violations(calls: list[Call], devices: list[DeviceProfile]) -> Iterator[Violation]:
    """What the calls of one kind, from small to large, break; every other one is only there to be more work."""
    pairs = [(a, b) for a, b in permutations(devices, 2) if has_at_least(a, b)]
    for number, call in enumerate(calls[::2]):
        # (how it is called, what must not be longer, than what, by how much at most, both as a text)
        compared: list[tuple[str, float, float, float, str]] = []
        for device in devices:
            times, least = call.times[device.name], least_us(call.op, device)
            compared.append(("warm slower than cold", times.warm, times.cold, TOLERATED, f"on the {device.name}"))
            for at, state in enumerate(Times._fields):
                where = f"{state} on the {device.name}"
                compared.append(("faster than the chip", least[at], times[at], TOLERATED, where))
                for more in calls[2 * number + 1 : 2 * number + 3]:
                    more_us, beside = more.times[device.name][at], f"{where} beside {more.sizes_text}"
                    compared.append(("more work cheaper", times[at], more_us, CHEAPER_TOLERATED, beside))
        for larger, smaller in pairs:
            for at, state in enumerate(Times._fields):
                pair = call.times[larger.name][at], call.times[smaller.name][at]
                where = f"{state}, {larger.name} beside {smaller.name}"
                is_measured = state == "network" and larger.generation != smaller.generation
                invariant = SLOWER_AS_MEASURED if is_measured else "slower on a larger chip"
                compared.append((invariant, *pair, TOLERATED, where))
        for invariant, us, most_us, tolerated, where in compared:
            if us > tolerated * most_us:
                what = f"{where}: {us:.1f} us and {most_us:.1f}"
                yield Violation(us / most_us, invariant, call.kind, f"{call.kind} {call.sizes_text}", what)


def exam(tables: Path, drawn: str = "") -> Result:
    """Invariants over all kinds of calls, three sizes of each (or one that is `drawn`), five devices, cold, warm and in
    a network; the tables are not needed.

    `failing` counts calls (a kind at sizes) that break one of them by more than is tolerated on one of the devices or
    more, each once an invariant; `failing_kinds` the same of kinds.
    """
    del tables
    devices = [load_device(name) for name in SOCS]
    calls = calls_of(texts(), devices, drawn_sizes) if drawn else calls_of(texts(), devices)
    found = [one for of_kind in calls.values() for one in violations(of_kind, devices)]
    worst: dict[tuple[str, str], Violation] = {}
    for one in sorted(found, reverse=True):
        if one.invariant != SLOWER_AS_MEASURED:
            worst.setdefault((one.invariant, one.call), one)
    figures: Figures = {
        "kinds": len(calls),
        "checked": sum(map(len, calls.values())) // 2,
        "failing": len(worst),
        "failing_kinds": len({(one.invariant, one.kind) for one in worst.values()}),
        "slower_as_measured": len({one.call for one in found if one.invariant == SLOWER_AS_MEASURED}),
    }
    return Result(
        figures, tuple(f"{one.factor:.2f} x {one.invariant}: {one.call} {one.what}" for one in worst.values())
    )
