# pyright: strict
"""Record a program's work on one core: its instructions, its buffers, and its accesses to GM.

This module handles places in the source, buffers, used memory (by the lifetime of tiles), repeating loops, and hazards.
`vector`, `cube` and `memory` define the costs of the language's functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from inspect import CO_OPTIMIZED
from math import prod
from pathlib import Path
from types import CodeType
from typing import Any, Generic, Literal, TypeVar

import msgspec

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.language.instructions import Advance, Buffer, Instruction, Part, Repeat, Step
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
from opreplay.replay.tile.language.positions import (
    ONE,
    Atom,
    Compared,
    Explicit,
    Expr,
    Guard,
    Notes,
    NotKnown,
    Skipped,
    Trail,
    count_true_periods,
)
from opreplay.replay.tile.language.tiles import Memory, Tile
from opreplay.traces.names import plural

Kind = Literal["vector", "cube"]
"""Kind of cores that blocks are distributed to: vector cores, or cube cores with two vector cores each."""

UNITS = ("cube", "vec0", "vec1")
"""Cores of a group."""
LONGEST_PERIOD = 12
"""Maximum period, in iterations, of a loop's instructions. Rotating buffers make the period longer than 1."""
TAIL = 2
"""Number of iterations at the end of a loop that are always run."""
PROBED = 8
"""If at least this number of repetitions is skipped at once, an iteration in the middle is run and compared."""
PROBES = 8
"""Number of iterations, spread over the skipped ones, that are run and compared if the loop body inspects positions."""
MOST_LOOKED = 2048
"""Maximum number of position-dependent iterations that are all run. In longer loops, only `PROBES` are run."""
FEWEST_SURVEYED = 3
"""Minimum number of blocks per core for grouping blocks by the work they do. With fewer blocks, each core is run."""
MOST_SURVEYED = 64
"""Number of blocks that a survey may run in any case. If it runs more, each must stand for two blocks on average."""
MOST_INSTRUCTIONS = 3_000_000
"""Maximum number of recorded instructions of one core."""

Item = TypeVar("Item")


class Unsteady(Exception):
    """Raised if a loop that seemed to repeat changes in the middle. All its iterations are then run again."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class PositionInspected(Exception):
    """Raised if the work of a block depends on its position. A survey of all blocks then finds each core's work."""


class Unsurveyed(Exception):
    """Raised if a survey cannot determine what all cores do; each core is then run."""


class NeedsCube(Exception):
    """Raised if a program uses the cube core although it was assumed to run only on vector cores."""


class Recording(msgspec.Struct):
    """The recorded work of one core."""

    steps: list[Step] = msgspec.field(default_factory=list[Step])
    lines: list[tuple[str, int]] = msgspec.field(default_factory=list[tuple[str, int]])
    """File and line of each place in the source, by the place's id."""
    peaks: dict[Place, int] = msgspec.field(default_factory=dict[Place, int])
    """Memory → maximum number of bytes in use at the same time."""
    deals: list[tuple[tuple[int, ...], tuple[int, ...]]] = msgspec.field(
        default_factory=list[tuple[tuple[int, ...], tuple[int, ...]]]
    )
    """(sizes, block sizes) of each loop that was distributed to cores."""
    longest: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """Source place of a loop that a core runs in sequence → largest number of iterations of the loop."""
    index_seen: bool = False
    """Whether the program's work depends on its blocks' positions. Other cores may then do different work."""
    left_out: int = 0
    """Number of iterations that were not run because they repeat other iterations."""
    position_dependent: int = 0
    """Number of iterations left out of loops whose body inspects positions. They may do different work."""
    kind: Kind = "vector"
    mixed: bool = False
    """Whether both the cube core and vector cores of the group are used."""


class Iteration(msgspec.Struct):
    """An iteration that was run."""

    begin: int
    end: int
    """Number of steps in the recording at the end of the iteration."""
    uses: list[int]
    """Number of executions of each place in the source before the iteration."""
    counters: tuple[tuple[str, object], ...]
    guards: tuple[Guard, ...]
    cut: object
    """Which sizes of the iteration's blocks are smaller than the block size."""
    relative: list[Step] | None = None


class Body(msgspec.Struct):
    """The common work of blocks that differ only in their repetition counts."""

    steps: list[Step]
    counts: list[tuple[Atom, int]]
    """(variable, value) of the count of each repetition."""
    advance: Advance


class Survey(msgspec.Struct):
    """The work of each block of a program, independent of its core."""

    bodies: list[Body] = msgspec.field(default_factory=list[Body])
    body_of: list[int] = msgspec.field(default_factory=list[int])
    """For each block, the index of its work in `bodies`."""
    times: list[tuple[int, ...]] = msgspec.field(default_factory=list[tuple[int, ...]])
    """Repetition counts of each block."""
    before: list[Step] = msgspec.field(default_factory=list[Step])
    """Steps of the program before its loop over blocks."""
    uses: Advance = ()
    """Number of executions of each place in the source before the loop over blocks."""
    behind: tuple[int, list[int]] = (0, [])
    """(number of recorded steps, executions of each place in the source) at the end of the loop over blocks."""


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that is used beyond its capacity."""

    memory: Place
    used: int
    """Maximum number of bytes used in the program."""
    there: int
    line: tuple[str, int]
    """First line at which the memory is too small."""
    most_at: tuple[str, int]
    buffers: str
    """Description of the largest buffers reserved at that line."""


class Skipping(msgspec.Struct, frozen=True, kw_only=True):
    """Which work of a core is not run because it repeats other work."""

    every: bool = False
    """Whether everything is run and nothing is skipped."""
    unsteady: frozenset[Spot] = frozenset()
    """Loops that turned out not to repeat. All of their iterations are run."""
    probing: bool = False
    """Whether some of the skipped iterations are run and compared."""
    survey: Survey | None = None
    """Survey that runs one block for each kind of work, independent of cores; None to run a core's own blocks."""


REPEATED = Skipping()


class Core:
    """The core that runs a program; `current` returns the active core."""

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
        skipping: Skipping = REPEATED,
    ) -> None:
        self.device, self.number, self.cores, self.values = device, number, cores, values
        self.kind: Kind = kind
        self.every, self.probing, self.survey = skipping.every, skipping.probing, skipping.survey
        self.notes = Notes()
        self.differs = self.stored_read = False
        """`differs`: whether the work depends on the core; `stored_read`: whether it loads data that it stored."""
        self.env: dict[Atom, Any] = {}
        """Current values of the loop counters."""
        self._in_full = skipping.every
        self.unit = "vec0" if kind == "vector" else "cube"
        self.recording = Recording(kind=kind)
        self._root, self._settings, self._unsteady = root, settings, skipping.unsteady
        self._places: dict[tuple[Spot, str], int] = {}
        self._spots: list[Spot] = []
        self._uses: list[int] = []
        self._left: dict[int, int] = {}
        # How often a place was left out.
        self._counts: dict[int, Atom] = {}
        # Repetitions among the steps whose number depends on positions.
        self._buffers: dict[int, tuple[Place, int, int, str]] = {}
        # Place of the source → memory, slots, bytes of a slot and core, set aside for it until its loop ends.
        self._scopes: list[list[int]] = [[]]
        self._in_use: dict[tuple[str, Place], int] = {}
        self._unchecked: tuple[str, Place, tuple[str, int], list[tuple[list[int], int]]] | None = None
        self._overflow: Overflow | None = None
        self.rings: dict[tuple[int, int], Memory] = {}
        """Buffer of scratch memory → scratch memory whose data were last stored to this buffer."""

    @property
    def me(self) -> int:
        """Unique number of the core, combined from its group's number and its number in the group."""
        return self.number * 3 + UNITS.index(self.unit)

    # Places and instructions

    def here(self, part: str = "") -> int:
        """Return the id of the current place in the source. `part` distinguishes several buffers of the same place."""
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
        """Return the file and the line of a place in the source."""
        return self.recording.lines[place]

    def next_slot(self, place: int, slots: int) -> Buffer:
        """Return the next rotating buffer of a place in the source."""
        used = self._uses[place]
        self._uses[place] = used + 1
        return place, used, slots

    def uses(self, place: int) -> int:
        """Return how often a place in the source has been executed, including skipped iterations."""
        return self._uses[place] + self._left.get(place, 0)

    def emit(
        self,
        name: str,
        pipe: str,
        cycles: float,
        place: int,
        *,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
        moves: tuple[str, int, str] = ("", 0, ""),
    ) -> None:
        """Add one instruction to the recording. `moves` is the (path, bytes, tensor) of data moved from or to GM."""
        steps = self.recording.steps
        if len(steps) >= MOST_INSTRUCTIONS:
            raise fail("size", f"more than {MOST_INSTRUCTIONS:,} instructions per core", hint="Use larger tiles.")
        steps.append(Instruction(name, self.unit, pipe, cycles, *moves, tuple(reads), tuple(writes), place))
        if self.kind == "cube" and self.unit != "cube":
            self.recording.mixed = True

    # Buffers

    def reserve(self, place: int, memory: Place, slots: int, size: int) -> None:
        """Reserve `slots` buffers for a source place until the enclosing loop ends; record any overflow."""
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
        """Reserve memory for a computed tile until nothing refers to the tile.

        The tile may reuse the memory of a tile that is not used any more. `operands` are the exception: they are read
        while the tile is written, so their memory cannot be reused.
        """
        self.check_reserved()
        size = padded_bytes(tile.shape, tile.dtype, tile.place)
        tile.reserved = [size]
        self._grow(tile.place, size)
        owners = [operand if operand.owner is None else operand.owner for operand in operands]
        beside = [(owner.reserved, owner.reserved[0]) for owner in owners if owner.reserved]
        self._unchecked = (self.unit, tile.place, tile.line, beside)

    def released(self, value: Tile) -> None:
        """Free the memory of a computed tile whose last reference is gone."""
        key = (value.unit, value.place)
        self._in_use[key] = self._in_use.get(key, 0) - value.reserved[0]
        value.reserved[0] = 0

    def check_reserved(self) -> None:
        """Record an overflow if the memory that the last instruction reserved does not fit.

        By now, tiles that are no longer referenced are free. Operands that had to exist at the same time as the result
        are still counted.
        """
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
            self._overflow = Overflow(
                memory=memory,
                used=used,
                there=there,
                line=line if self._overflow is None else self._overflow.line,
                most_at=line,
                buffers=self._largest_buffers(unit, memory, used),
            )
        if used > self.recording.peaks.get(memory, 0):
            self.recording.peaks[memory] = used

    def _largest_buffers(self, unit: str, memory: Place, used: int) -> str:
        largest = sorted(
            (slots * size, slots, size, self.line(place)[1])
            for place, (at, slots, size, of) in self._buffers.items()
            if (of, at) == (unit, memory)
        )[-3:]
        parts = [f"{slots} × {kib(size)} of line {at}" for _, slots, size, at in reversed(largest)]
        # Tiles that were computed have no buffers of their own.
        others = used - sum(total for total, *_ in largest)
        return "; ".join([*parts, *([f"{kib(others)} of others"] if parts and others else [])])

    def check_overflow(self, *, whole: bool) -> None:
        """Raise TileError if a memory was used beyond its size.

        With `whole`, the reported amount is that of the entire program. Otherwise it is a lower bound, because another
        error stopped the program.
        """
        overflow = self._overflow
        if overflow is None:
            return
        settings = f" ({self._settings})" if self._settings else ""
        peak = "" if overflow.most_at == overflow.line else f", most at line {overflow.most_at[1]}"
        raise TileError(
            "UB" if overflow.memory == "GM" else overflow.memory,
            f"{overflow.memory}: {'' if whole else 'at least '}{kib(overflow.used)} needed, "
            f"{kib(overflow.there)} available{settings}{peak}",
            overflow.line,
            hint=f"Use smaller blocks, or fewer buffers: {overflow.buffers}."
            if overflow.buffers
            else "Use smaller blocks.",
        )

    def check_fresh(self, value: Tile) -> None:
        """Raise TileError for a tile whose buffer has been overwritten by a later load."""
        source = value if value.owner is None else value.owner
        if source.generation < 0:
            return
        place, used, turns = source.buffer
        slots = max(self._buffers[place][1] if place in self._buffers else 0, used % turns + 1)
        ahead = self._uses[place] - source.generation
        if ahead > slots:
            raise fail(
                "stale",
                f"the tile loaded at line {source.line[1]} was overwritten: {ahead - 1} loads "
                f"followed, but it has only {plural(slots, 'buffer')}",
                hint=f"Use buffers={ahead} in that load, or use its result earlier.",
            )

    # Loops

    @property
    def at_top(self) -> bool:
        """Whether the program is outside all loops."""
        return len(self._scopes) == 1

    def loop(
        self,
        count: int,
        item: Callable[[int], Item],
        trail: Trail,
        cut: Callable[[int], object] | None = None,
        *,
        dealt: bool = False,
    ) -> Iterator[Item]:
        """Yield the items of a loop.

        If values are not needed, repeating iterations are skipped, except the last ones. `cut` returns which sizes of
        an iteration's blocks are below the block size. With `dealt`, the items are distributed to cores.
        """
        place, notes = self.here("loop"), self.notes
        if not dealt:
            self.recording.longest[place] = max(count, self.recording.longest.get(place, 0))
        self._scopes.append([])
        before = len(notes.guards)
        probed = dealt and self.probing and len(self._scopes) == 2 and count >= FEWEST_SURVEYED
        try:
            if self.values:
                for i in range(count):
                    yield item(i)
            else:
                turns = _Turns(self, item, trail, cut, in_full=self._in_full or self._spots[place] in self._unsteady)
                yield from turns.iterations_to_run(count, place, dealt=dealt, probed=probed)
        except GeneratorExit:
            trail.left_early = True
            raise
        finally:
            self._end_of_scope()
            self.env.pop(trail.variable, None)
            if len(notes.guards) > before:  # the program broke out of the loop
                trail.parts.append(Explicit(trail.end, _distinct(notes.guards[before:])))
                trail.end = trail.end.plus(ONE)
                del notes.guards[before:]
            notes.note(trail)

    def _end_of_scope(self) -> None:
        self.check_reserved()
        for source_place in self._scopes.pop():
            memory, slots, size, unit = self._buffers.pop(source_place)
            key = (unit, memory)
            self._in_use[key] = self._in_use.get(key, 0) - slots * size

    def repeat(self, iteration: Iteration, times: int) -> Atom:
        """Record that the steps since this iteration repeat `times` more times, and return the variable of
        this count.
        """
        steps, advance, number = self.recording.steps, self.advance_since(iteration.uses), Atom()
        self._counts[len(steps)] = number
        steps.append(Repeat(len(steps) - iteration.begin, times, advance))
        for at, by in advance:
            self._left[at] = self._left.get(at, 0) + by * times
        self.env[number] = times
        return number

    def uses_by_place(self) -> list[int]:
        """Return how often each place in the source was executed, without skipped iterations."""
        return list(self._uses)

    def relative_steps(self, iteration: Iteration) -> list[Step]:
        """Return an iteration's steps, with buffers numbered from the start of the iteration."""
        if iteration.relative is None:
            iteration.relative = relative(self.recording.steps[iteration.begin : iteration.end], iteration.uses)
        return iteration.relative

    def surveyed(
        self,
        survey: Survey,
        counts: Sequence[int],
        partial: Sequence[bool],
        placed: Callable[[Sequence[int], Sequence[Expr]], Item],
    ) -> Iterator[Item]:
        """Yield the blocks that do different work than earlier blocks.

        Some of the blocks assumed to do equal work are also run, and compared. Raises Unsurveyed if they differ, or if
        a block depends on earlier blocks.
        """
        if survey.body_of:
            raise Unsurveyed  # a second loop over blocks
        survey.before, survey.uses = list(self.recording.steps), _uses_of(self._uses)
        self._scopes.append([])
        blocks = _Blocks(self, counts, partial, placed)
        yield from blocks.looked_at()
        survey.bodies, survey.times = blocks.bodies, blocks.times_of
        survey.body_of = [int(n) for n in blocks.body_of]
        survey.behind = len(self.recording.steps), list(self._uses)
        self._end_of_scope()

    def run_block(self, item: Item, numbers: Mapping[Atom, int]) -> Generator[Item, None, Iteration]:
        """Run a block and return its work; `numbers` holds its block number in each dimension."""
        begin, uses = len(self.recording.steps), list(self._uses)
        self.env.update(numbers)
        yield item
        noted = _distinct(self.notes.guards)
        self.notes.guards.clear()
        return Iteration(begin, len(self.recording.steps), uses, (), noted, None)

    def run_block_in_full(self, item: Item, numbers: Mapping[Atom, int]) -> Generator[Item, None, Iteration]:
        """Run a block like `run_block`, but with all iterations of its loops."""
        self._in_full = True
        iteration = yield from self.run_block(item, numbers)
        self._in_full = False
        return iteration

    def body_of(self, iteration: Iteration) -> Body:
        """Return a block's work in a form that other blocks with the same work can share."""
        there = range(iteration.begin, iteration.end)
        counts = [(atom, self.env[atom]) for at, atom in self._counts.items() if at in there]
        return Body(self.relative_steps(iteration), counts, self.advance_since(iteration.uses))

    def advance_since(self, uses: Sequence[int]) -> Advance:
        """Return by how much each source place's buffers have advanced since the counts in `uses`."""
        before = [*uses, *[0] * (len(self._uses) - len(uses))]
        return tuple(
            (at, now - then) for at, (now, then) in enumerate(zip(self._uses, before, strict=True)) if now > then
        )

    def spot_of(self, place: int) -> Spot:
        """Return the source location of a loop's place, as put into `Skipping.unsteady` for a later run."""
        return self._spots[place]


class _Turns(Generic[Item]):
    """The iterations of a loop. Iterations that do the same work are detected."""

    def __init__(
        self,
        core: Core,
        item: Callable[[int], Item],
        trail: Trail,
        cut: Callable[[int], object] | None,
        *,
        in_full: bool,
    ) -> None:
        self._core, self._item, self._trail, self._cut, self._in_full = core, item, trail, cut, in_full
        self._before = len(core.notes.guards)
        self._history: list[Iteration] = []
        self._number = 0
        # Of the next iteration.

    def iterations_to_run(self, count: int, place: int, *, dealt: bool, probed: bool) -> Iterator[Item]:
        """Yield the iterations that must be run. Raises PositionInspected and Unsteady."""
        while self._number < count:
            yield from self._run(dealt=dealt)
            if probed and self._number == 1 and self._history[-1].guards:
                raise PositionInspected
            period = 0 if self._in_full else self._period()
            most = (count - self._number - TAIL) // period if period else 0
            if most < 1:
                continue
            body = self._history[-period:]
            times = self._count_repeats(body, most)
            looked = times < 1 and count - self._number > MOST_LOOKED
            if times < 1 and not looked:
                continue
            probes = PROBES if looked else 1 if times >= PROBED and self._core.survey is None else 0
            for probe in range(probes):
                self._leave_out(body, most // (probes + 1 - probe) if looked else times // 2, half=True, looked=looked)
                for _ in range(period):
                    yield from self._run(dealt=dealt)
                again = self._history[-period:]
                relative_steps = self._core.relative_steps
                if [*map(relative_steps, again)] != [*map(relative_steps, body)]:
                    raise Unsteady(place)
                body, most = again, (count - self._number - TAIL) // period
            self._leave_out(body, most if looked else self._count_repeats(body, most), looked=looked)
            self._history.clear()

    def _run(self, *, dealt: bool) -> Iterator[Item]:
        core, trail, guards = self._core, self._trail, self._core.notes.guards
        begin, uses = len(core.recording.steps), core.uses_by_place()
        core.env[trail.variable] = self._number
        yield self._item(self._number)
        noted = _distinct(guards[self._before :])
        del guards[self._before :]
        trail.parts.append(Explicit(trail.end, noted))
        trail.end = trail.end.plus(ONE)
        cut = self._cut(self._number) if self._cut else None
        counters = () if self._in_full else _counters()
        self._history.append(Iteration(begin, len(core.recording.steps), uses, counters, noted, cut))
        self._number += 1
        core.differs = core.differs or (dealt and bool(noted))

    def _count_repeats(self, body: list[Iteration], most: int) -> int:
        """Return how many of the periods that follow, at most `most`, repeat the last period."""
        period, i, variable = len(body), self._number, self._trail.variable
        if self._cut is not None:
            for k in range(most * period):
                if self._cut(i + k) != body[k % period].cut:
                    most = k // period
                    break
        listed = [iteration.guards for iteration in body]
        if most < 1 or not any(listed):
            return most
        try:
            return int(count_true_periods(listed, variable, i, self._core.env, most))
        except NotKnown:
            return self._scan_periods(listed, variable, i, most)

    def _scan_periods(self, guards: Sequence[tuple[Guard, ...]], variable: Atom, first: int, most: int) -> int:
        """Return the number of consecutive periods in which all guards are true, by testing each iteration."""
        listed = [[guard for guard in each if variable in guard.free()] for each in guards]
        if any(isinstance(guard, Trail) for each in listed for guard in each):
            return 0  # what repeats in the iteration may do so more often in another
        env = dict(self._core.env)
        for at in range(most * len(listed)):
            env[variable] = first + at
            try:
                if not all(guard.holds(env) for guard in listed[at % len(listed)]):
                    return at // len(listed)
            except NotKnown:
                return 0
        return most

    def _leave_out(self, body: list[Iteration], times: int, *, half: bool = False, looked: bool = False) -> None:
        """Record that `body`, which holds the last iterations, is repeated `times` more times."""
        if times < 1:
            return
        trail, recording = self._trail, self._core.recording
        number = self._core.repeat(body[0], times)
        trail.sampled = trail.sampled or looked
        trail.parts.append(Skipped(trail.end, tuple(one.guards for one in body), number, TAIL, half))
        trail.end = trail.end.plus(Expr(((number, len(body)),)))
        recording.left_out += times * len(body)
        recording.position_dependent += times * len(body) if looked else 0
        self._number += times * len(body)

    def _period(self) -> int:
        """Return the period, in iterations, with which a loop repeats; 0 if it does not repeat."""
        history, last = self._history, self._history[-1]
        for period in range(1, LONGEST_PERIOD + 1):
            if len(history) < 2 * period:
                return 0
            before = history[-1 - period]
            if (
                last.end > last.begin
                and last.counters == before.counters
                and all(map(self._same, history[-period:], history[-2 * period : -period]))
            ):
                return period
        return 0

    def _same(self, first: Iteration, second: Iteration) -> bool:
        """Check whether two iterations do the same work."""
        relative_steps = self._core.relative_steps
        return (
            first.end - first.begin == second.end - second.begin
            and first.cut == second.cut
            and relative_steps(first) == relative_steps(second)
        )


class _Blocks(Generic[Item]):
    """The blocks of a program. Blocks that do the same work are detected."""

    def __init__(
        self,
        core: Core,
        counts: Sequence[int],
        partial: Sequence[bool],
        placed: Callable[[Sequence[int], Sequence[Expr]], Item],
    ) -> None:
        import numpy as np

        self._core, self._placed = core, placed
        variables = [Atom() for _ in counts]
        self._numbers = [Expr(((variable, 1),)) for variable in variables]
        places = [np.asarray(each) for each in np.unravel_index(np.arange(prod(counts)), tuple(counts))]
        self._places = dict(zip(variables, places, strict=True))
        self._cuts = [(at == n - 1) & p for at, n, p in zip(places, counts, partial, strict=True)]
        # By dimension: which blocks are smaller.
        self._runs = 0
        self._in_full: set[tuple[Step, ...]] = set()
        # Repetitions that were compared with all of theirs.
        self.bodies: list[Body] = []
        self.body_of: Any = np.full(prod(counts), -1)
        self.times_of: list[tuple[int, ...]] = [()] * prod(counts)

    def looked_at(self) -> Iterator[Item]:
        """Yield the blocks that must be run. Raises Unsurveyed."""
        first = yield from self._run(0)
        block = -1
        while bool((self.body_of < 0).any()):
            block = self._next(block)
            iteration = yield from self._run(block)
            if block == 0 and self._core.relative_steps(iteration) != self._core.relative_steps(first):
                raise Unsurveyed
            body = self._core.body_of(iteration)
            alike = self._alike(iteration, body, block)
            yield from self._compared(body, [int(member) for member in alike.nonzero()[0]])
            self.body_of[alike] = len(self.bodies)
            self.bodies.append(body)

    def _next(self, block: int) -> int:
        """Return the next block to run, if possible on the same core. Its memory then holds the same data."""
        following = block + self._core.cores
        if block >= 0 and following < len(self.body_of) and self.body_of[following] < 0:
            return following
        return int((self.body_of < 0).argmax())

    def _run(self, block: int, *, in_full: bool = False) -> Generator[Item, None, Iteration]:
        self._runs += 1
        if self._runs > MOST_SURVEYED and int((self.body_of >= 0).sum()) < 2 * self._runs:
            raise Unsurveyed
        numbers = {variable: int(each[block]) for variable, each in self._places.items()}
        item = self._placed([*numbers.values()], self._numbers)
        return (yield from (self._core.run_block_in_full if in_full else self._core.run_block)(item, numbers))

    def _alike(self, iteration: Iteration, body: Body, block: int) -> Any:
        """Return a mask of the blocks that repeat this block's work, and record the repetition count of each."""
        alike, times = _alike(iteration.guards, dict(self._places), body)
        for each in self._cuts:
            alike = alike & (each == each[block])
        alike = alike & (self.body_of < 0)
        if not bool(alike[block]):
            raise Unsurveyed
        for member in alike.nonzero()[0]:
            self.times_of[member] = tuple(int(each[member]) for each in times)
        return alike

    def _compared(self, body: Body, members: Sequence[int]) -> Iterator[Item]:
        """Run one of the blocks `members`, and check that it does the work `body`, as is assumed for all of them.

        If a block has many repetitions that were not compared yet, all iterations of its loops are run. Raises
        Unsurveyed if the work differs.
        """
        repeats = [(at, step) for at, step in enumerate(body.steps) if isinstance(step, Repeat)]
        repeated = {tuple(body.steps[at - step.length : at]) for at, step in repeats}
        often = [m for m in members if max(self.times_of[m], default=0) >= PROBED]
        in_full = bool(often) and not repeated <= self._in_full
        if not in_full and len(members) < 2:
            return
        member = often[0] if in_full else members[-1]
        iteration = yield from self._run(member, in_full=in_full)
        expected: list[Any] = Part(body.steps, self.times_of[member], ()).written_out()
        if in_full:
            self._in_full |= repeated
            expected = unrolled(expected)
        if self._core.relative_steps(iteration) != expected:
            raise Unsurveyed


def relative(steps: Sequence[Step], uses: Sequence[int]) -> list[Step]:
    """Return the steps with buffers numbered relative to `uses`, the execution counts of places in the source."""
    there = len(uses)

    def since(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple([(p, used - uses[p] if p < there else used, slots) for p, used, slots in buffers])

    return [
        Instruction(*step[:7], since(step.reads), since(step.writes), step.place)
        if isinstance(step, Instruction)
        else step
        for step in steps
    ]


def _advance(used: dict[int, int], advance: Iterable[tuple[int, int]], times: int = 1) -> None:
    for place, by in advance:
        used[place] = used.get(place, 0) + by * times


def unrolled(steps: Sequence[Step]) -> list[Instruction]:
    """Return all instructions, with repetitions written out."""
    out: list[Instruction] = []
    begins: list[tuple[int, dict[int, int]]] = []
    later: dict[int, int] = {}

    def moved(step: Instruction, by: dict[int, int], times: int = 1) -> Instruction:
        def since(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
            return tuple((p, used + by.get(p, 0) * times, slots) for p, used, slots in buffers)

        return step._replace(reads=since(step.reads), writes=since(step.writes))

    for step in steps:
        begins.append((len(out), dict(later)))
        if isinstance(step, Instruction):
            out.append(moved(step, later))
        elif isinstance(step, Repeat):
            begin, before = begins[-1 - step.length]
            advance = {p: later[p] - before.get(p, 0) for p in later}
            _advance(advance, step.advance)
            segment = out[begin:]
            for times in range(1, step.times + 1):
                out += [moved(one, advance, times) for one in segment]
            _advance(later, advance.items(), step.times)
        else:
            out += [moved(one, later) for one in unrolled(step.written_out())]
            _advance(later, advance_of(step.written_out(), step.advance).items())
    return out


def advance_of(steps: Sequence[Step], own: Advance) -> dict[int, int]:
    """Return by how much the steps advance each place's buffers: `own`, plus the repetitions among the steps."""
    totals: list[dict[int, int]] = [{}]
    for step in steps:
        now = dict(totals[-1])
        if isinstance(step, Repeat):
            before = totals[-1 - step.length]
            each = {p: now[p] - before.get(p, 0) for p in now}
            for p, by in step.advance:
                each[p] = each.get(p, 0) + by
            for p, by in each.items():
                now[p] = now.get(p, 0) + by * step.times
        elif isinstance(step, Part):
            for p, by in advance_of(step.written_out(), step.advance).items():
                now[p] = now.get(p, 0) + by
        totals.append(now)
    out = totals[-1]
    for p, by in own:
        out[p] = out.get(p, 0) + by
    return out


def _uses_of(uses: Sequence[int]) -> Advance:
    return tuple((place, count) for place, count in enumerate(uses) if count)


def _distinct(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return each guard once, in order."""
    return tuple({(guard if isinstance(guard, Compared) else id(guard)): guard for guard in guards}.values())


def _alike(guards: Sequence[Guard], env: dict[Atom, Any], body: Body) -> tuple[Any, list[Any]]:
    """Return for which blocks the guards are true, and the repetition counts of each block.

    Raises Unsurveyed if that is unknown.
    """
    import numpy as np

    blocks = np.shape(next(iter(env.values())))
    alike: Any = np.ones(blocks, dtype=bool)
    try:
        for guard in guards:
            alike = alike & guard.holds(env)
        times = [np.broadcast_to(np.asarray(env.get(atom, times)), blocks) for atom, times in body.counts]
    except NotKnown:
        raise Unsurveyed from None
    return alike, times


def _counters() -> tuple[tuple[str, object], ...]:
    """Return the numbers, flags, texts and container lengths among the local variables of the function that runs a
    loop.

    If such a variable changes between iterations, it may determine what a later iteration does.
    """
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
    """Return the core of the running program. Raises TileError outside of a program."""
    core = _current.get()
    if core is None:
        raise fail("program", "no program is running", hint="tile functions may only be called inside @tile.kernel.")
    return core


def run_on(core: Core, body: Callable[[], object]) -> Recording:
    """Run a program on a core and return its recording."""
    token = _current.set(core)
    try:
        body()
        core.check_reserved()
        core.recording.index_seen = core.differs or bool(core.notes.guards)
    except TileError:
        # What a program does on buffers that do not fit is no finding of its own.
        core.check_overflow(whole=False)
        raise
    finally:
        _current.reset(token)
    core.check_overflow(whole=True)
    return core.recording
