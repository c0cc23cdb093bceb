# pyright: strict
"""The schedule of a core's pipes: each in order, across pipes only data wait; repetitions are extrapolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.language.instructions import FIXP, MTE3, Instruction, Repeat, Step

SETTLED = 1e-6
"""Cycles by which two repetitions may differ to count as the same."""
MOST_REPETITIONS = 24
"""Repetitions that are scheduled before their mean is taken for all others."""

Slot = tuple[int, int]
Pipe = tuple[str, str]
"""(core of the group, pipe)."""


@dataclass(slots=True)
class Traffic:
    """How data of GM are reached: what the state of L2 and the demand of all cores make of each path."""

    missing: Mapping[str, float]
    """By tensor: share of a load's bytes that come from HBM."""
    slow_l2: float = 1.0
    """Factor on what moves between L2 and cores, for all cores together ask for more than L2 gives."""
    slow_hbm: float = 1.0


@dataclass(slots=True)
class Span:
    """One instruction in time, in cycles."""

    instruction: Instruction
    start: float
    end: float


@dataclass(slots=True)
class Schedule:
    """When the pipes of a group work, in cycles."""

    end: float = 0.0
    busy: dict[Pipe, float] = field(default_factory=dict[Pipe, float])
    """Occupied or waiting for memory."""
    occupied: dict[Pipe, float] = field(default_factory=dict[Pipe, float])
    """Cycles that instructions take one behind the other, latencies hidden."""
    by_place: dict[int, float] = field(default_factory=dict[int, float])
    """Busy cycles by place of the source."""
    spans: list[Span] = field(default_factory=list[Span])
    """The first instructions, for timelines."""
    averaged: int = 0
    """Repetitions of loops whose schedule had not settled: their mean was taken."""
    repeated: int = 0
    """Repetitions that were not scheduled one by one."""


def costs(device: DeviceProfile, traffic: Traffic, one: Instruction) -> tuple[float, float]:
    """(cycles on the pipe, cycles until the data are there after that) of an instruction."""
    if not one.path:
        return one.cycles, 0.0
    pipes = device.pipes
    if one.path == "l0c_to_gm":
        return one.cycles + one.size / pipes.l0c_to_gm * traffic.slow_l2, pipes.write_latency
    if one.path == "ub_to_gm":
        return one.cycles + one.size / pipes.ub_to_gm * traffic.slow_l2, pipes.write_latency
    miss = traffic.missing.get(one.memory, 0.0)
    fast, slow = pipes.gm_to_ub, pipes.gm_to_ub_miss
    if one.path == "gm_to_l1":
        fast, slow = pipes.gm_to_l1, device.rates.cube_core_hbm_bytes_per_cycle
    each = (1 - miss) / fast * traffic.slow_l2 + miss / slow * traffic.slow_hbm
    return one.cycles + one.size * each, (1 - miss) * pipes.read_latency + miss * pipes.miss_latency


class _State:
    """Where the pipes stand."""

    def __init__(self, device: DeviceProfile, traffic: Traffic, keep: int) -> None:
        self.device, self.traffic, self.keep = device, traffic, keep
        self.free: dict[Pipe, float] = {}
        self.done: dict[Pipe, float] = {}
        # End of the last data of each pipe: what is busy until then is counted once.
        self.issued: dict[str, float] = {}
        self.buffers: dict[Slot, tuple[float, str, str, float, str, str]] = {}
        # Slot → end, core and pipe of the last write, and of the last read.
        self.made = Schedule()
        self._known: dict[Instruction, tuple[float, float]] = {}

    def one(self, step: Instruction) -> None:
        """Schedule an instruction."""
        known = self._known.get(step)
        if known is None:
            known = self._known[step] = costs(self.device, self.traffic, step)
        cycles, latency = known
        unit, pipe = step.unit, step.pipe
        facts = self.device.pipes
        issued = self.issued[unit] = self.issued.get(unit, 0.0) + facts.issue
        start = max(issued, self.free.get((unit, pipe), 0.0))
        buffers = self.buffers
        for slot in step.reads:
            entry = buffers.get(slot)
            if entry is not None:
                start = max(start, entry[0] + self._flag(entry[1], entry[2], unit, pipe))
        for slot in step.writes:
            entry = buffers.get(slot)
            if entry is not None:
                start = max(start, entry[3] + self._flag(entry[4], entry[5], unit, pipe))
                if entry[1:3] != (unit, pipe):
                    start = max(start, entry[0] + self._flag(entry[1], entry[2], unit, pipe))
        key = (unit, pipe)
        free = start + cycles
        end = free + latency
        self.free[key] = free
        for slot in step.reads:
            entry = buffers.get(slot)
            written = entry[:3] if entry is not None else (0.0, unit, pipe)
            if entry is None or free >= entry[3]:
                buffers[slot] = (*written, free, unit, pipe)
        for slot in step.writes:
            entry = buffers.get(slot)
            read = entry[3:] if entry is not None else (0.0, unit, pipe)
            buffers[slot] = (end, unit, pipe, *read)
        self._count(step, key, start, cycles, end)

    def _flag(self, from_unit: str, from_pipe: str, unit: str, pipe: str) -> float:
        if from_unit != unit:
            return self.device.pipes.core_flag
        return self.device.pipes.flag if from_pipe != pipe else 0.0

    def _count(self, step: Instruction, key: Pipe, start: float, cycles: float, end: float) -> None:
        made = self.made
        last = self.done.get(key, 0.0)
        busy = end - max(start, last) if end > last else 0.0
        self.done[key] = max(last, end)
        made.busy[key] = made.busy.get(key, 0.0) + busy
        made.occupied[key] = made.occupied.get(key, 0.0) + cycles
        made.by_place[step.place] = made.by_place.get(step.place, 0.0) + busy
        scalar = (key[0], "S")
        issue = self.device.pipes.issue
        made.busy[scalar] = made.busy.get(scalar, 0.0) + issue
        made.occupied[scalar] = made.occupied.get(scalar, 0.0) + issue
        made.end = max(made.end, end)
        if len(made.spans) < self.keep:
            made.spans.append(Span(step, start, end))

    def repeat(self, body: Sequence[Step], times: int) -> None:
        """Schedule a body `times` more often: until it has settled, and then all at once."""
        touched = {slot for step in _flat(body) for slot in (*step.reads, *step.writes)}
        before = self._standing(touched)
        marks: list[float] = []
        counts = self._counts()
        for done in range(times):
            if done >= MOST_REPETITIONS:
                # It swings on: the mean of the last half stands for the rest.
                half = len(marks) // 2
                mean = (marks[-1] - marks[half]) / (len(marks) - 1 - half)
                self._jump(touched, mean, times - done, counts)
                self.made.averaged += times - done
                return
            counts = self._counts()
            self.run(body)
            after = self._standing(touched)
            shift = _shift(before, after)
            marks.append(self.made.end)
            if shift is not None and times - done - 1 > 0:
                self._jump(touched, shift, times - done - 1, counts)
                self.made.repeated += times - done - 1
                return
            before = after

    def run(self, steps: Sequence[Step]) -> None:
        """Schedule steps in order."""
        for at, step in enumerate(steps):
            if isinstance(step, Repeat):
                self.repeat(steps[at - step.length : at], step.times)
            else:
                self.one(step)

    def _standing(self, touched: set[Slot]) -> dict[object, float]:
        # Not the scalar unit, which may run ahead.
        out: dict[object, float] = {("free", *key): value for key, value in self.free.items()}
        out |= {("done", *key): value for key, value in self.done.items()}
        for slot in touched:
            entry = self.buffers.get(slot)
            if entry is not None:
                out["written", slot], out["read", slot] = entry[0], entry[3]
        return out

    def _counts(self) -> tuple[dict[Pipe, float], dict[Pipe, float], dict[int, float]]:
        made = self.made
        return dict(made.busy), dict(made.occupied), dict(made.by_place)

    def _jump(
        self,
        touched: set[Slot],
        shift: float,
        times: int,
        before: tuple[dict[Pipe, float], dict[Pipe, float], dict[int, float]],
    ) -> None:
        made, by = self.made, shift * times
        self.free = {key: value + by for key, value in self.free.items()}
        self.done = {key: value + by for key, value in self.done.items()}
        self.issued = {key: value + by for key, value in self.issued.items()}
        for slot in touched:
            entry = self.buffers.get(slot)
            if entry is not None:
                self.buffers[slot] = (entry[0] + by, entry[1], entry[2], entry[3] + by, entry[4], entry[5])
        made.end += by
        for now, then in zip((made.busy, made.occupied), before[:2], strict=True):
            for key, value in now.items():
                now[key] = value + (value - then.get(key, 0.0)) * times
        for place, value in made.by_place.items():
            made.by_place[place] = value + (value - before[2].get(place, 0.0)) * times


def _shift(before: dict[object, float], after: dict[object, float]) -> float | None:
    """By how much everything that moved did, where that is one amount."""
    found: float | None = None
    for key, value in after.items():
        moved = value - before.get(key, 0.0)
        if moved == 0.0:
            continue
        if found is None:
            found = moved
        elif abs(found - moved) > SETTLED * max(1.0, abs(found)):
            return None
    return found


def _flat(steps: Sequence[Step]) -> list[Instruction]:
    return [step for step in steps if not isinstance(step, Repeat)]


def schedule(steps: Sequence[Step], device: DeviceProfile, traffic: Traffic, *, keep: int = 0) -> Schedule:
    """When each pipe of a group works; `keep` instructions are kept with their times.

    The clock starts at the first instruction. Times are cycles of `device.freq_hz`.
    """
    state = _State(device, traffic, keep)
    state.run(steps)
    return state.made


def moved(steps: Sequence[Step]) -> dict[tuple[str, str, str], float]:
    """Bytes by (core, pipe, tensor) that move from and to GM, repetitions included."""
    out: dict[tuple[str, str, str], float] = {}

    def add(part: Sequence[Step], times: float) -> None:
        for at, step in enumerate(part):
            if isinstance(step, Repeat):
                add(part[at - step.length : at], times * step.times)
            elif step.size:
                key = (step.unit, step.pipe, step.memory)
                out[key] = out.get(key, 0.0) + step.size * times

    add(steps, 1.0)
    return out


WRITES = frozenset({MTE3, FIXP})
"""Pipes that write to GM."""
