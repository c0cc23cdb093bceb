# pyright: strict
"""The schedule of a core's pipes: each in order, across pipes only data wait; repetitions are extrapolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.language.instructions import FIXP, MTE3, SCALAR, Instruction, Repeat, Step

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


def costs(device: DeviceProfile, traffic: Traffic, instruction: Instruction) -> tuple[float, float]:
    """(cycles on the pipe, cycles until the data are there after that) of an instruction."""
    if not instruction.path:
        return instruction.cycles, 0.0
    pipes = device.pipes
    if instruction.path == "l0c_to_gm":
        return instruction.cycles + instruction.size / pipes.l0c_to_gm * traffic.slow_l2, pipes.write_latency
    if instruction.path == "ub_to_gm":
        return instruction.cycles + instruction.size / pipes.ub_to_gm * traffic.slow_l2, pipes.write_latency
    miss = traffic.missing.get(instruction.memory, 0.0)
    fast, slow = pipes.gm_to_ub, pipes.gm_to_ub_miss
    if instruction.path == "gm_to_l1":
        fast, slow = pipes.gm_to_l1, device.rates.cube_core_hbm_bytes_per_cycle
    each = (1 - miss) / fast * traffic.slow_l2 + miss / slow * traffic.slow_hbm
    return instruction.cycles + instruction.size * each, (1 - miss) * pipes.read_latency + miss * pipes.miss_latency


class _Scheduled(NamedTuple):
    """An instruction as the schedule works on it: numbers of pipe, core and buffers in place of their names."""

    pipe: int
    unit: int
    cycles: float
    latency: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    place: int


Counts = tuple[list[float], list[float], dict[int, float], list[int]]


class _State:
    """Where the pipes stand. Buffers know when they were last written and read, and by which pipe."""

    def __init__(self, device: DeviceProfile, traffic: Traffic, keep: int) -> None:
        self.device, self.traffic, self.keep = device, traffic, keep
        self.pipes: dict[Pipe, int] = {}
        self.units: dict[str, int] = {}
        self.slots: dict[Slot, int] = {}
        self.free: list[float] = []
        self.done: list[float] = []
        # End of the last data of each pipe: what is busy until then is counted once.
        self.busy: list[float] = []
        self.occupied: list[float] = []
        self.issued: list[float] = []
        self.issues: list[int] = []
        self.flags: list[list[float]] = []
        self.written: list[float] = []
        self.writer: list[int] = []
        self.read: list[float] = []
        self.reader: list[int] = []
        self.by_place: dict[int, float] = {}
        self.end = 0.0
        self.spans: list[Span] = []
        self.averaged = 0
        self._known: dict[int, _Scheduled] = {}

    def _numbered(self, step: Instruction) -> _Scheduled:
        cycles, latency = costs(self.device, self.traffic, step)
        unit = self.units.setdefault(step.unit, len(self.units))
        if unit == len(self.issued):
            self.issued.append(0.0)
            self.issues.append(0)
        pipe = self.pipes.setdefault((step.unit, step.pipe), len(self.pipes))
        if pipe == len(self.free):
            for numbers in (self.free, self.done, self.busy, self.occupied):
                numbers.append(0.0)
            facts = self.device.pipes
            names = list(self.pipes)
            self.flags = [
                [
                    0.0 if first == second else facts.flag if first[0] == second[0] else facts.core_flag
                    for second in names
                ]
                for first in names
            ]
        known = _Scheduled(pipe, unit, cycles, latency, self._slots(step.reads), self._slots(step.writes), step.place)
        self._known[id(step)] = known
        return known

    def _slots(self, slots: Sequence[Slot]) -> tuple[int, ...]:
        numbers: list[int] = []
        for slot in slots:
            number = self.slots.setdefault(slot, len(self.slots))
            if number == len(self.written):
                self.written.append(0.0)
                self.read.append(0.0)
                self.writer.append(-1)
                self.reader.append(-1)
            numbers.append(number)
        return tuple(numbers)

    def add(self, step: Instruction) -> None:
        """Schedule an instruction."""
        known = self._known.get(id(step)) or self._numbered(step)
        pipe, unit, cycles, latency, reads, writes, place = known
        self.issues[unit] += 1
        start = self.issued[unit] = self.issued[unit] + self.device.pipes.issue
        start = max(start, self.free[pipe])
        flags, written, writer, read, reader = self.flags, self.written, self.writer, self.read, self.reader
        for slot in reads:
            if writer[slot] >= 0:
                start = max(start, written[slot] + flags[writer[slot]][pipe])
        for slot in writes:
            if reader[slot] >= 0:
                start = max(start, read[slot] + flags[reader[slot]][pipe])
            if writer[slot] >= 0 and writer[slot] != pipe:
                start = max(start, written[slot] + flags[writer[slot]][pipe])
        free = start + cycles
        end = free + latency
        self.free[pipe] = free
        for slot in reads:
            if free >= read[slot]:
                read[slot], reader[slot] = free, pipe
        for slot in writes:
            written[slot], writer[slot] = end, pipe
        last = self.done[pipe]
        if end > last:
            busy = end - (start if start > last else last)
            self.done[pipe] = end
            self.busy[pipe] += busy
            self.by_place[place] = self.by_place.get(place, 0.0) + busy
            if end > self.end:
                self.end = end
        self.occupied[pipe] += cycles
        if len(self.spans) < self.keep:
            self.spans.append(Span(step, start, end))

    def repeat(self, body: Sequence[Step], times: int) -> None:
        """Schedule a body `times` more often: until it has settled, and then all at once."""
        before: list[float] | None = None
        counts = self._counts()
        marks: list[float] = []
        for done in range(times):
            if done >= MOST_REPETITIONS:
                # It swings on: the mean of the last half stands for the rest.
                half = len(marks) // 2
                mean = (marks[-1] - marks[half]) / (len(marks) - 1 - half)
                self._jump(body, mean, times - done, counts)
                self.averaged += times - done
                return
            counts = self._counts()
            self.run(body)
            after = self._standing()
            marks.append(self.end)
            shift = _shift(before, after) if before is not None else None
            if shift is not None and times - done - 1 > 0:
                self._jump(body, shift, times - done - 1, counts)
                return
            before = after

    def run(self, steps: Sequence[Step]) -> None:
        """Schedule steps in order."""
        for at, step in enumerate(steps):
            if isinstance(step, Repeat):
                self.repeat(steps[at - step.length : at], step.times)
            else:
                self.add(step)

    def _standing(self) -> list[float]:
        # Not the scalar unit, which may run ahead.
        return [*self.free, *self.done, *self.written, *self.read]

    def _counts(self) -> Counts:
        return list(self.busy), list(self.occupied), dict(self.by_place), list(self.issues)

    def _jump(self, body: Sequence[Step], shift: float, times: int, before: Counts) -> None:
        """Go on by `times` repetitions of a body that take `shift` cycles each."""
        by = shift * times
        touched: set[int] = set()
        pipes: set[int] = set()
        units: set[int] = set()
        for step in body:
            if not isinstance(step, Repeat):
                known = self._known[id(step)]
                touched |= {*known.reads, *known.writes}
                pipes.add(known.pipe)
                units.add(known.unit)
        for pipe in pipes:
            self.free[pipe] += by
            self.done[pipe] += by
        for unit in units:
            self.issued[unit] += by
            self.issues[unit] += (self.issues[unit] - before[3][unit]) * times
        for slot in touched:
            self.written[slot] += by
            self.read[slot] += by
        self.end += by
        for now, then in ((self.busy, before[0]), (self.occupied, before[1])):
            for pipe in range(len(then)):
                now[pipe] += (now[pipe] - then[pipe]) * times
        for place, value in self.by_place.items():
            self.by_place[place] = value + (value - before[2].get(place, 0.0)) * times

    def schedule(self) -> Schedule:
        """The schedule of all instructions added so far."""
        names = list(self.pipes)
        busy = dict(zip(names, self.busy, strict=True))
        occupied = dict(zip(names, self.occupied, strict=True))
        for unit, number in self.units.items():
            busy[unit, SCALAR] = occupied[unit, SCALAR] = self.issues[number] * self.device.pipes.issue
        return Schedule(self.end, busy, occupied, self.by_place, self.spans, self.averaged)


def _shift(before: Sequence[float], after: Sequence[float]) -> float | None:
    """By how much everything that moved did, where that is one amount."""
    if len(before) != len(after):
        return None
    shift: float | None = None
    for then, now in zip(before, after, strict=True):
        change = now - then
        if change == 0.0:
            continue
        if shift is None:
            shift = change
        elif abs(shift - change) > SETTLED * max(1.0, abs(shift)):
            return None
    return shift


def schedule(steps: Sequence[Step], device: DeviceProfile, traffic: Traffic, *, keep: int = 0) -> Schedule:
    """When each pipe of a group works; `keep` instructions are kept with their times.

    The clock starts at the first instruction. Times are cycles of `device.freq_hz`.
    """
    state = _State(device, traffic, keep)
    state.run(steps)
    return state.schedule()


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


def work(steps: Sequence[Step], device: DeviceProfile, traffic: Traffic) -> float:
    """Cycles of all instructions, repetitions included: what tells the busiest core without its schedule."""
    known: dict[int, float] = {}

    def total(part: Sequence[Step]) -> float:
        out = 0.0
        for at, step in enumerate(part):
            if isinstance(step, Repeat):
                out += total(part[at - step.length : at]) * step.times
            else:
                cycles = known.get(id(step))
                if cycles is None:
                    cycles = known[id(step)] = costs(device, traffic, step)[0]
                out += cycles
        return out

    return total(steps)
