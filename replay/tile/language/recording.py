# pyright: strict
"""Records what a program does on one core: its list of instructions, its buffers, and what it does to GM.

Owns places of the source, buffers, capacity by liveness, loops whose iterations repeat, and hazards. What a function
of the language costs is for `vector`, `cube` and `memory`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType
from typing import Literal, TypeVar

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.language.instructions import Instruction, Repeat, Step
from opreplay.replay.tile.language.places import (
    Place,
    Spot,
    TileError,
    capacity,
    fail,
    kib,
    padded_bytes,
    spot,
)
from opreplay.replay.tile.language.tiles import Memory, Tile

Kind = Literal["vector", "cube"]
"""Which cores blocks are dealt to: vector cores, or cube cores with two vector cores each."""

UNITS = ("cube", "vec0", "vec1")
"""Cores of a group."""
LONGEST_PERIOD = 12
"""Iterations that a loop's instructions may take to repeat: buffers take turns."""
TAIL = 2
"""Iterations at the end of a loop that are always run."""
PROBED = 8
"""Repetitions that are left out at once; more, and an iteration in the middle is run and compared."""
PROBES = 8
"""Iterations, spread over those left out, that are run and compared where the body looks at positions."""
MOST_LOOKED = 2048
"""Iterations of a loop whose body looks at positions that are all run; of more, `PROBES` are."""
MOST_INSTRUCTIONS = 3_000_000
"""Of one core, as recorded."""

Item = TypeVar("Item")


class Unsteady(Exception):
    """A loop that seemed to repeat does other things in the middle: the program is run again without leaving it out."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class NeedsCube(Exception):
    """A program that was taken for one of vector cores uses the cube core."""


@dataclass(slots=True)
class Recording:
    """What one core does."""

    steps: list[Step] = field(default_factory=list[Step])
    lines: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """By place: file and line."""
    peaks: dict[Place, int] = field(default_factory=dict[Place, int])
    """Most bytes in use at once."""
    deals: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=list[tuple[tuple[int, ...], tuple[int, ...]]]
    )
    """(sizes, block sizes) that were dealt out to cores."""
    index_seen: bool = False
    """The program looked at where its blocks lie, so that other cores may do other things."""
    left_out: int = 0
    """Iterations that repeat others and were not run."""
    looked: int = 0
    """Of these, those of loops whose body looks at positions, so that it may do other things in one of them."""
    kind: Kind = "vector"
    mixed: bool = False
    """Both the cube core and vector cores of the group are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """More in use of a memory than there is."""

    memory: Place
    used: int
    """Bytes, the most of the program."""
    there: int
    line: tuple[str, int]
    """The first that does not fit."""
    most_at: tuple[str, int]
    buffers: str
    """The largest that are set aside then."""


class Core:
    """The core that a program is run on; `current` is the one of the moment."""

    def __init__(
        self,
        device: DeviceProfile,
        *,
        number: int = 0,
        cores: int = 1,
        kind: Kind = "vector",
        values: bool = False,
        root: CodeType | None = None,
        settings: str = "",
        unsteady: frozenset[Spot] = frozenset(),
        every: bool = False,
    ) -> None:
        self.device, self.number, self.cores, self.kind, self.values = device, number, cores, kind, values
        self.every = every
        self.unit = "vec0" if kind == "vector" else "cube"
        self.recording = Recording(kind=kind)
        self.index_seen = False
        self._root, self._settings, self._unsteady = root, settings, unsteady
        self._places: dict[tuple[Spot, str], int] = {}
        self._spots: list[Spot] = []
        self._uses: list[int] = []
        self._buffers: dict[int, tuple[Place, int, int, str]] = {}
        # Place of the source → memory, slots, bytes of a slot and core, set aside for it until its loop ends.
        self._scopes: list[list[int]] = [[]]
        self._in_use: dict[tuple[str, Place], int] = {}
        self._unchecked: tuple[str, Place, tuple[str, int], list[tuple[list[int], int]]] | None = None
        self._overflow: Overflow | None = None
        self.rings: dict[tuple[int, int], Memory] = {}
        """By buffer of scratch memory: which of those that take turns there was stored to last."""

    @property
    def me(self) -> int:
        """Number of the core and the one of its group."""
        return self.number * 3 + UNITS.index(self.unit)

    # Places and instructions

    def here(self, part: str = "") -> int:
        """The place of the source that is being run; `part` tells buffers of one place from each other."""
        at, line = spot(self._root)
        key = (at, self.unit + part)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._spots)
            self._spots.append(at)
            self._uses.append(0)
            self.recording.lines.append(line)
        return place

    def line(self, place: int) -> tuple[str, int]:
        """File and line of a place."""
        return self.recording.lines[place]

    def next_slot(self, place: int, slots: int) -> tuple[int, int]:
        """The buffer that is next at a place whose buffers take turns."""
        used = self._uses[place]
        self._uses[place] = used + 1
        return place, used % slots

    def uses(self, place: int) -> int:
        """How often a place has been come by."""
        return self._uses[place]

    def emit(
        self,
        name: str,
        pipe: str,
        cycles: float,
        place: int,
        *,
        reads: Sequence[tuple[int, int]] = (),
        writes: Sequence[tuple[int, int]] = (),
        path: str = "",
        size: int = 0,
        memory: str = "",
    ) -> None:
        """Add one instruction to the list."""
        steps = self.recording.steps
        if len(steps) >= MOST_INSTRUCTIONS:
            raise fail("size", f"more than {MOST_INSTRUCTIONS:,} instructions a core", hint="Take larger tiles.")
        steps.append(Instruction(name, self.unit, pipe, cycles, path, size, memory, tuple(reads), tuple(writes), place))
        if self.kind == "cube" and self.unit != "cube":
            self.recording.mixed = True

    # Buffers

    def reserve(self, place: int, memory: Place, slots: int, size: int) -> None:
        """Set `slots` buffers of a place aside until the loop around it ends. Raises TileError for what does not
        fit."""
        self.check_reserved()
        known = self._buffers.get(place)
        if known is not None and known[1] >= slots and known[2] >= size:
            return
        old = known[1] * known[2] if known else 0
        slots, size = max(slots, known[1] if known else 0), max(size, known[2] if known else 0)
        if known is None:
            self._scopes[-1].append(place)
        self._buffers[place] = (memory, slots, size, self.unit)
        self._grow(memory, slots * size - old)
        self._check(self.unit, memory, self.line(place))

    def reserve_tile(self, tile: Tile, operands: Sequence[Tile] = ()) -> None:
        """Set memory aside for a computed tile until nothing refers to it.

        It may take that of an operand that is not used again, but for `operands`, which are read while it is written.
        """
        self.check_reserved()
        size = padded_bytes(tile.shape, tile.dtype, tile.place)
        tile.reserved = [size]
        self._grow(tile.place, size)
        owners = [operand if operand.owner is None else operand.owner for operand in operands]
        beside = [(owner.reserved, owner.reserved[0]) for owner in owners if owner.reserved]
        self._unchecked = (self.unit, tile.place, tile.line, beside)

    def released(self, value: Tile) -> None:
        """Nothing refers to a computed tile any more."""
        key = (value.unit, value.place)
        self._in_use[key] = self._in_use.get(key, 0) - value.reserved[0]
        value.reserved[0] = 0

    def check_reserved(self) -> None:
        """Check what was set aside by the last instruction: what the program holds no more is free by now, but for
        operands that had to be there beside the result."""
        if self._unchecked is not None:
            unit, place, line, beside = self._unchecked
            self._unchecked = None
            self._check(unit, place, line, sum(size for reserved, size in beside if not reserved[0]))

    def _grow(self, memory: Place, size: int) -> None:
        key = (self.unit, memory)
        self._in_use[key] = self._in_use.get(key, 0) + size

    def _check(self, unit: str, memory: Place, line: tuple[str, int], beside: int = 0) -> None:
        used, there = self._in_use.get((unit, memory), 0) + beside, capacity(memory, self.device)
        if used > there and (
            self._overflow is None or (self._overflow.memory == memory and used > self._overflow.used)
        ):
            largest = sorted(
                (slots * size, slots, size, self.line(place)[1])
                for place, (at, slots, size, of) in self._buffers.items()
                if (of, at) == (unit, memory)
            )[-3:]
            parts = [f"{slots} × {kib(size)} of line {at}" for _, slots, size, at in reversed(largest)]
            # Tiles that were computed have no buffers of their own.
            others = used - sum(total for total, *_ in largest)
            shown = "; ".join([*parts, *([f"{kib(others)} of others"] if parts and others else [])])
            self._overflow = Overflow(
                memory=memory,
                used=used,
                there=there,
                line=line if self._overflow is None else self._overflow.line,
                most_at=line,
                buffers=shown,
            )
        if used > self.recording.peaks.get(memory, 0):
            self.recording.peaks[memory] = used

    def check_overflow(self, *, whole: bool) -> None:
        """Raises TileError where more was needed of a memory than there is: `whole`, by all of the program; else at
        least that, as something else stopped it."""
        overflow = self._overflow
        if overflow is None:
            return
        settings = f" ({self._settings})" if self._settings else ""
        peak = "" if overflow.most_at == overflow.line else f", most at line {overflow.most_at[1]}"
        raise TileError(
            "UB" if overflow.memory == "GM" else overflow.memory,
            f"{overflow.memory}: {'' if whole else 'at least '}{kib(overflow.used)} needed, {kib(overflow.there)} there"
            f"{settings}{peak}",
            overflow.line,
            hint=f"Smaller blocks, or fewer buffers: {overflow.buffers}."
            if overflow.buffers
            else "Take smaller blocks.",
        )

    def check_fresh(self, value: Tile) -> None:
        """Raises TileError for a tile whose buffer was loaded over since."""
        source = value if value.owner is None else value.owner
        if source.generation < 0:
            return
        place, slot = source.buffer
        slots = max(self._buffers[place][1] if place in self._buffers else 0, slot + 1)
        ahead = self._uses[place] - source.generation
        if ahead > slots:
            raise fail(
                "stale",
                f"the tile loaded at line {source.line[1]} is gone: {ahead - 1} loads came "
                f"after it, and that place has "
                f"{slots} buffer{'s' if slots > 1 else ''}",
                hint=f"Give that load buffers={ahead}, or use it earlier.",
            )

    # Loops

    def loop(self, count: int, item: Callable[[int], Item]) -> Iterator[Item]:
        """The items of a loop; in time mode iterations that repeat those before them are left out, but for the last."""
        place = self.here("loop")
        self._scopes.append([])
        # A body that looks at positions inside of this loop may branch on them.
        outside, self.index_seen = self.index_seen, False
        try:
            if self.values or self.every or self._spots[place] in self._unsteady:
                for i in range(count):
                    yield item(i)
            else:
                yield from self._collapsed(count, item, place)
        finally:
            self.index_seen = self.index_seen or outside
            self.check_reserved()
            for source_place in self._scopes.pop():
                memory, slots, size, unit = self._buffers.pop(source_place)
                key = (unit, memory)
                self._in_use[key] = self._in_use.get(key, 0) - slots * size

    def _collapsed(self, count: int, item: Callable[[int], Item], place: int) -> Iterator[Item]:
        steps = self.recording.steps
        bounds, uses, counters = [len(steps)], [list(self._uses)], [_counters()]
        i = 0
        while i < count:
            yield item(i)
            i += 1
            bounds.append(len(steps))
            uses.append(list(self._uses))
            counters.append(_counters())
            period = _period(steps, bounds)
            times = (count - i - TAIL) // period if period else 0
            if times < 1:
                continue
            # What counts iterations for itself would be told nothing of those left out.
            if counters[-1] != counters[-1 - period] or (self.index_seen and count - i <= MOST_LOOKED):
                break
            body, before = steps[bounds[-1 - period] :], uses[-1 - period]
            probes = 0 if times < PROBED else PROBES if self.index_seen else 1
            for probe in range(probes):
                i += self._leave_out(len(body), before, (count - i - TAIL) // period // (probes + 1 - probe), period)
                begin, before = len(steps), list(self._uses)
                for _ in range(period):
                    yield item(i)
                    i += 1
                if steps[begin:] != body:
                    raise Unsteady(place)
            i += self._leave_out(len(body), before, (count - i - TAIL) // period, period)
            break
        while i < count:
            yield item(i)
            i += 1

    def _leave_out(self, length: int, before: list[int], times: int, period: int) -> int:
        """Note that the last `length` steps come `times` more often; how many iterations that are."""
        if times < 1:
            return 0
        self.recording.steps.append(Repeat(length, times))
        before = before + [0] * (len(self._uses) - len(before))
        self._uses = [now + (now - then) * times for now, then in zip(self._uses, before, strict=True)]
        self.recording.left_out += times * period
        self.recording.looked += times * period if self.index_seen else 0
        return times * period

    def spot_of(self, place: int) -> Spot:
        """The place of the source of a loop, for `unsteady` of another run."""
        return self._spots[place]


def _period(steps: list[Step], bounds: list[int]) -> int:
    """Iterations after which the instructions of a loop repeat; 0 while they do not."""
    for period in range(1, LONGEST_PERIOD + 1):
        if len(bounds) - 1 < 2 * period:
            return 0
        last, middle, first = bounds[-1], bounds[-1 - period], bounds[-1 - 2 * period]
        if last - middle == middle - first and last > middle and steps[middle:last] == steps[first:middle]:
            return period
    return 0


def _counters() -> tuple[tuple[str, object], ...]:
    """Numbers, flags and lengths of lists among the variables of the program's function that takes a loop's items: what
    differs from one iteration to the next may decide what is done in another one."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LANGUAGE):
        frame = frame.f_back
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return ()
    variables = frame.f_locals
    counters: list[tuple[str, object]] = []
    for name, value in variables.items():
        if type(value) in (int, float, bool, str):
            counters.append((name, value))
        elif type(value) in (list, dict, set):
            counters.append((name, len(value)))
    if type(variables) is dict:
        # Before Python 3.13 the frame keeps this copy, and with it tiles that the program holds no more.
        variables.clear()
    return tuple(counters)


_LANGUAGE = str(Path(__file__).parent)


_current: ContextVar[Core | None] = ContextVar("core", default=None)


def current() -> Core:
    """The core that the running program is on. Raises TileError outside of a program."""
    core = _current.get()
    if core is None:
        raise fail("program", "no program is running", hint="Functions of tile are called inside of @tile.kernel.")
    return core


def run_on(core: Core, body: Callable[[], object]) -> Recording:
    """Run a program on a core and give what it did."""
    token = _current.set(core)
    try:
        body()
        core.check_reserved()
        core.recording.index_seen = core.index_seen
    except TileError:
        # What a program does on buffers that do not fit is no finding of its own.
        core.check_overflow(whole=False)
        raise
    finally:
        _current.reset(token)
    core.check_overflow(whole=True)
    return core.recording
