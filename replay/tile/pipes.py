# pyright: strict
"""The schedule of a core's pipes (units that work in parallel).

Each pipe runs its instructions in order. Data dependencies connect the pipes. Repetitions are extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import gcd, lcm
from typing import NamedTuple, TypeVar

import msgspec

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.language.instructions import FIXP, MTE3, SCALAR, Advance, Instruction, Part, Repeat, Step
from opreplay.replay.tile.language.recording import advance_of

SETTLED = 1e-6
"""Maximum difference in cycles between two repetitions that count as the same."""
MOST_REPETITIONS = 24
"""Maximum number of repetitions that are scheduled before their mean is used for the remaining repetitions."""

Slot = tuple[int, int]
Pipe = tuple[str, str]
"""(core of the group, pipe)."""


class Traffic(msgspec.Struct):
    """Costs of accessing GM: the effects of the L2 state and of the demand of all cores on each path."""

    missing: Mapping[str, float]
    """Tensor → share of its loaded bytes that come from HBM."""
    slow_l2: float = 1.0
    """Slowdown factor of transfers between L2 and cores if all cores together request more than L2 can deliver."""
    slow_hbm: float = 1.0


class Span(msgspec.Struct):
    """One instruction with its start and end, in cycles."""

    instruction: Instruction
    start: float
    end: float


class Schedule(msgspec.Struct):
    """Times at which the pipes of a group work, in cycles."""

    end: float = 0.0
    busy: dict[Pipe, float] = msgspec.field(default_factory=dict[Pipe, float])
    """Cycles in which each pipe is occupied or waits for memory."""
    occupied: dict[Pipe, float] = msgspec.field(default_factory=dict[Pipe, float])
    """Cycles that the instructions of each pipe take back to back, with latencies hidden."""
    by_place: dict[int, float] = msgspec.field(default_factory=dict[int, float])
    """Busy cycles of each place in the source."""
    spans: list[Span] = msgspec.field(default_factory=list[Span])
    """The first instructions with their times, for timelines."""
    averaged: int = 0
    """Number of repetitions whose times are a mean, because their loop reached no steady state."""


def costs(device: DeviceProfile, traffic: Traffic, instruction: Instruction) -> tuple[float, float]:
    """Return (cycles on the pipe, further cycles until the data are available) for an instruction."""
    if not instruction.path:
        return instruction.cycles, 0.0
    pipes = device.pipes
    if instruction.path == "l0c_to_gm":
        return instruction.cycles + instruction.size / pipes.l0c_to_gm * traffic.slow_l2, pipes.write_latency
    if instruction.path == "ub_to_gm":
        return instruction.cycles + instruction.size / pipes.ub_to_gm * traffic.slow_l2, pipes.write_latency
    miss = traffic.missing.get(instruction.memory, 0.0)
    latency = (1 - miss) * pipes.read_latency + miss * pipes.miss_latency
    if instruction.path == "gm_to_scalar":
        return instruction.cycles + latency, 0.0
    fast, slow = pipes.gm_to_ub, pipes.gm_to_ub_miss
    if instruction.path == "gm_to_l1":
        fast, slow = pipes.gm_to_l1, device.rates.cube_core_hbm_bytes_per_cycle
    each = (1 - miss) / fast * traffic.slow_l2 + miss / slow * traffic.slow_hbm
    return instruction.cycles + instruction.size * each, latency


class _Scheduled(NamedTuple):
    """An instruction in the form used for scheduling: with integer ids of pipe, core and buffers."""

    pipe: int
    unit: int
    cycles: float
    latency: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    place: int
    awaited: bool
    """Whether the scalar unit issues no further instruction until this one is done."""


Counts = tuple[list[float], list[float], dict[int, float], list[int]]


class _Numbers:
    """Integer ids of pipes, cores and buffers, and instructions with these ids, which all cores share."""

    def __init__(self, device: DeviceProfile, traffic: Traffic) -> None:
        self.device, self.traffic = device, traffic
        self.pipes: dict[Pipe, int] = {}
        self.units: dict[str, int] = {}
        self.slots: dict[Slot, int] = {}
        self.flags: list[list[float]] = []
        self.turns: dict[int, int] = {}
        """Place in the source → number of uses after which the place's first buffer is used again."""
        self.by_phase: dict[tuple[tuple[int, int], ...], dict[int, _Scheduled]] = {}
        """Advance of the buffers at each source place → `id` of an instruction → instruction with these buffers."""
        self.cost_of: dict[int, tuple[float, float]] = {}
        self.counted: set[int] = set()

    def count_turns(self, steps: Sequence[Step]) -> None:
        """Record, for each place in the source, the number of uses after which its buffers repeat."""
        for step in steps:
            if isinstance(step, Part):
                if id(step.steps) not in self.counted:
                    self.counted.add(id(step.steps))
                    self.count_turns(step.steps)
            elif isinstance(step, Instruction):
                for place, _, slots in (*step.reads, *step.writes):
                    if slots > 1:
                        self.turns[place] = lcm(slots, self.turns.get(place, 1))

    def known(self, step: Instruction, moved: Mapping[int, int]) -> _Scheduled:
        """Return an instruction with its buffers advanced by `moved`."""
        cost = self.cost_of.get(id(step))
        if cost is None:
            cost = self.cost_of[id(step)] = costs(self.device, self.traffic, step)
        unit = self.units.setdefault(step.unit, len(self.units))
        pipe = self.pipes.setdefault((step.unit, step.pipe), len(self.pipes))
        if pipe == len(self.flags):
            facts, names = self.device.pipes, list(self.pipes)
            self.flags[:] = [
                [
                    0.0 if first == second else facts.flag if first[0] == second[0] else facts.core_flag
                    for second in names
                ]
                for first in names
            ]
        slots = self.slots
        reads, writes = (
            tuple(
                [
                    slots.setdefault((place, (used + moved.get(place, 0)) % turns), len(slots))
                    for place, used, turns in buffers
                ]
            )
            for buffers in (step.reads, step.writes)
        )
        return _Scheduled(pipe, unit, *cost, reads, writes, step.place, step.pipe == SCALAR)


class _State:
    """State of the pipes: for each buffer, when and by which pipe it was last written and read."""

    def __init__(self, numbers: _Numbers, keep: int) -> None:
        self.numbers, self.keep, self.issue = numbers, keep, numbers.device.pipes.issue
        self.free: list[float] = []
        self.done: list[float] = []
        # End of the last data of each pipe: what is busy until then is counted once.
        self.busy: list[float] = []
        self.occupied: list[float] = []
        self.issued: list[float] = []
        self.issues: list[int] = []
        self.flags = numbers.flags
        self.written: list[float] = []
        self.writer: list[int] = []
        self.read: list[float] = []
        self.reader: list[int] = []
        self.by_place: dict[int, float] = {}
        self.end = 0.0
        self.spans: list[Span] = []
        self.averaged = 0
        self.moved: dict[int, int] = {}
        """Place in the source → how far its buffers have advanced because of repetitions."""
        self._known: dict[int, _Scheduled] = {}
        self._grow()
        self.move((), 1)

    def _grow(self) -> None:
        """Enlarge the arrays for all current pipes, cores and buffers."""
        for numbers in (self.free, self.done, self.busy, self.occupied):
            numbers += [0.0] * (len(self.numbers.pipes) - len(numbers))
        self.issued += [0.0] * (len(self.numbers.units) - len(self.issued))
        self.issues += [0] * (len(self.numbers.units) - len(self.issues))
        for times in (self.written, self.read):
            times += [0.0] * (len(self.numbers.slots) - len(times))
        for pipes in (self.writer, self.reader):
            pipes += [-1] * (len(self.numbers.slots) - len(pipes))

    def move(self, advance: Advance, times: int) -> None:
        """Advance the buffers of each place in `advance` by `times` times the number given there."""
        turns = self.numbers.turns
        for place, by in advance:
            if place in turns:
                self.moved[place] = (self.moved.get(place, 0) + by * times) % turns[place]
        phase = tuple(sorted((place, by) for place, by in self.moved.items() if by))
        self._known = self.numbers.by_phase.setdefault(phase, {})

    def add(self, step: Instruction) -> None:
        """Schedule an instruction."""
        known = self._known.get(id(step))
        if known is None:
            known = self._known[id(step)] = self.numbers.known(step, self.moved)
            if len(self.numbers.slots) > len(self.written) or len(self.numbers.pipes) > len(self.free):
                self._grow()
        pipe, unit, cycles, latency, reads, writes, place, awaited = known
        self.issues[unit] += 1
        self.issued[unit] += self.issue
        start = self._start(known)
        written, writer, read, reader = self.written, self.writer, self.read, self.reader
        free = start + cycles
        end = free + latency
        self.free[pipe] = free
        if awaited:
            self.issued[unit] = end
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

    def _start(self, step: _Scheduled) -> float:
        """Return the earliest time at which an instruction can start.

        It must have been issued, its pipe must be free, its inputs must be written, and nothing may still read or write
        its output buffers.
        """
        pipe, start = step.pipe, self.issued[step.unit]
        if self.free[pipe] > start:
            start = self.free[pipe]
        flags, written, writer = self.flags, self.written, self.writer
        for slot in step.reads:
            by = writer[slot]
            if by >= 0 and (ready := written[slot] + flags[by][pipe]) > start:
                start = ready
        for slot in step.writes:
            by = self.reader[slot]
            if by >= 0 and (ready := self.read[slot] + flags[by][pipe]) > start:
                start = ready
            by = writer[slot]
            if by >= 0 and by != pipe and (ready := written[slot] + flags[by][pipe]) > start:
                start = ready
        return start

    def repeat(self, body: Sequence[Step], times: int, advance: Advance) -> None:
        """Schedule a body `times` more times: one by one up to a steady state, then all remaining repetitions
        at once.
        """
        total = advance_of(body, advance)
        turns = self.numbers.turns
        # After so many the same buffers are next.
        period = lcm(*(n // gcd(n, total[place]) for place, n in turns.items() if total.get(place)))
        rounds = times // period
        before: list[float] | None = None
        marks: list[float] = []
        for done in range(rounds):
            counts = self._counts()
            if before is None:
                before = self._standing()
            for _ in range(period):
                self._once(body, advance)
            after = self._standing()
            marks.append(self.end)
            shift = _shift(before, after) if done else None
            left = rounds - done - 1
            if shift is None and done + 1 >= MOST_REPETITIONS and left:
                # It swings on: the mean of the last half stands for the rest.
                half = len(marks) // 2
                shift = (marks[-1] - marks[half]) / (len(marks) - 1 - half)
                self.averaged += left * period
            if shift is not None:
                self._jump(before, after, shift, left, counts)
                break
            before = after
        for _ in range(times - rounds * period):
            self._once(body, advance)

    def _once(self, body: Sequence[Step], advance: Advance) -> None:
        self.move(advance, 1)
        self.run(body)

    def run(self, steps: Sequence[Step]) -> None:
        """Schedule steps in order."""
        for at, step in enumerate(steps):
            if isinstance(step, Instruction):
                self.add(step)
            elif isinstance(step, Repeat):
                self.repeat(steps[at - step.length : at], step.times, step.advance)
            else:
                self.run(step.written_out())
                self.move(step.advance, 1)

    def _standing(self) -> list[float]:
        # Not the scalar unit, which may run ahead.
        return [*self.free, *self.done, *self.written, *self.read]

    def _counts(self) -> Counts:
        return list(self.busy), list(self.occupied), dict(self.by_place), list(self.issues)

    def _jump(self, before: Sequence[float], after: Sequence[float], shift: float, times: int, counts: Counts) -> None:
        """Skip `times` repetitions of `shift` cycles each: advance the values that changed in the last repetition."""
        by = shift * times
        moved = iter([now != then for then, now in zip(before, after, strict=True)])
        for numbers in (self.free, self.done, self.written, self.read):
            for at in range(len(numbers)):
                if next(moved):
                    numbers[at] += by
        for unit, (now, then) in enumerate(zip(self.issues, counts[3], strict=True)):
            if now != then:
                self.issued[unit] += by
                self.issues[unit] += (now - then) * times
        self.end += by
        for sums, then in ((self.busy, counts[0]), (self.occupied, counts[1])):
            for pipe in range(len(then)):
                sums[pipe] += (sums[pipe] - then[pipe]) * times
        for place, value in self.by_place.items():
            self.by_place[place] = value + (value - counts[2].get(place, 0.0)) * times

    def schedule(self) -> Schedule:
        """Return the schedule of all instructions added so far."""
        names = list(self.numbers.pipes)
        busy = dict(zip(names, self.busy, strict=True))
        occupied = dict(zip(names, self.occupied, strict=True))
        for unit, number in self.numbers.units.items():
            for cycles in (busy, occupied):
                cycles[unit, SCALAR] = cycles.get((unit, SCALAR), 0.0) + self.issues[number] * self.issue
        return Schedule(self.end, busy, occupied, self.by_place, self.spans, self.averaged)


def _shift(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return the amount by which all changed values changed; None if they changed by different amounts."""
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


class Scheduler:
    """Schedules the pipes of a group, for cores with the same access to GM."""

    def __init__(self, device: DeviceProfile, traffic: Traffic) -> None:
        self._numbers = _Numbers(device, traffic)

    def schedule(self, steps: Sequence[Step], *, keep: int = 0) -> Schedule:
        """Return the schedule of a core's steps, with times in cycles of `device.freq_hz`.

        The clock starts at the first instruction. `keep` is the number of instructions whose times are kept.
        """
        before = dict(self._numbers.turns)
        self._numbers.count_turns(steps)
        if self._numbers.turns != before:
            self._numbers.by_phase.clear()
        state = _State(self._numbers, keep)
        state.run(steps)
        return state.schedule()


Total = TypeVar("Total", bound=Hashable)


def _sums(
    steps: Sequence[Step],
    amount: Callable[[Instruction], tuple[Total, float] | None],
    known: dict[int, list[dict[Total, float]]],
) -> dict[Total, float]:
    """Sum the amounts of all instructions by key, including those of repetitions. `known` caches the sums of blocks."""

    def add(out: dict[Total, float], other: Mapping[Total, float], times: float) -> None:
        for key, value in other.items():
            out[key] = out.get(key, 0.0) + value * times

    def of(part: Sequence[Step]) -> dict[Total, float]:
        out: dict[Total, float] = {}
        for at, step in enumerate(part):
            if isinstance(step, Repeat):
                add(out, of(part[at - step.length : at]), step.times)
            elif isinstance(step, Part):
                # What is done once, and of each repetition, where none lies in another.
                each = known.get(id(step.steps))
                if each is None:
                    each = known[id(step.steps)] = _by_repetition(step.steps, of)
                for sums, times in (
                    zip(each, (1, *step.times), strict=False) if each else ((of(step.written_out()), 1),)
                ):
                    add(out, sums, times)
            elif (pair := amount(step)) is not None:
                out[pair[0]] = out.get(pair[0], 0.0) + pair[1]
        return out

    return of(steps)


def _by_repetition(
    steps: Sequence[Step], of: Callable[[Sequence[Step]], dict[Total, float]]
) -> list[dict[Total, float]]:
    """Return the sums of steps outside repetitions, and of one iteration of each repetition.

    Return [] if repetitions are nested.
    """
    each = [of([step for step in steps if not isinstance(step, Repeat)])]
    for at, step in enumerate(steps):
        if isinstance(step, Repeat):
            body = steps[at - step.length : at]
            if any(isinstance(one, Repeat) for one in body):
                return []
            each.append(of(body))
    return each


Moved = dict[tuple[str, str, str], float]
"""(core, pipe, tensor) → bytes moved from and to GM, including repetitions."""


def moved(cores: Sequence[Sequence[Step]]) -> list[Moved]:
    """Return the data moved by each core."""
    known: dict[int, list[Moved]] = {}

    def size(step: Instruction) -> tuple[tuple[str, str, str], float] | None:
        return ((step.unit, step.pipe, step.memory), float(step.size)) if step.size else None

    return [_sums(steps, size, known) for steps in cores]


def work(cores: Sequence[Sequence[Step]], device: DeviceProfile, traffic: Traffic) -> list[float]:
    """Return the cycles of each core's instructions, with repetitions. They show the busiest core without a
    schedule.
    """
    known: dict[int, list[dict[str, float]]] = {}
    return [_sums(steps, lambda step: ("", costs(device, traffic, step)[0]), known).get("", 0.0) for steps in cores]


def does_more(steps: Sequence[Step], others: Sequence[Step]) -> bool:
    """Check whether a core does at least the work of another core: in each block the same in the same order, or more.

    If so, it finishes later than the other core.
    """
    return (
        any(isinstance(step, Part) for step in steps)
        and len(steps) == len(others)
        and all(
            step is other or (isinstance(step, Part) and isinstance(other, Part) and _contains(step, other))
            for step, other in zip(steps, others, strict=True)
        )
    )


def _covers(mine: Step, step: Step) -> bool:
    if isinstance(mine, Repeat):
        return isinstance(step, Repeat) and mine.times >= step.times
    if not isinstance(mine, Instruction) or not isinstance(step, Instruction):
        return False
    return mine.place == step.place and mine.cycles >= step.cycles and mine.size >= step.size


def _contains(part: Part, other: Part) -> bool:
    if part.steps is other.steps:
        return all(times >= fewer for times, fewer in zip(part.times, other.times, strict=True))
    wanted = iter(other.written_out())
    step = next(wanted, None)
    for mine in part.written_out():
        if step is None:
            return True
        if _covers(mine, step):
            step = next(wanted, None)
    return step is None


WRITES = frozenset({MTE3, FIXP})
"""Pipes that write to GM."""
