# pyright: strict
"""Run programs on cores. For times, only cores with different work are run; for values, all cores in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import prod
from typing import Any

import msgspec

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.language.instructions import Part
from opreplay.replay.tile.language.memory import prepare
from opreplay.replay.tile.language.places import Spot, TileError
from opreplay.replay.tile.language.recording import (
    Kind,
    NeedsCube,
    PositionInspected,
    Recording,
    Skipping,
    Survey,
    Unsteady,
    Unsurveyed,
    relative,
    run_on,
)
from opreplay.replay.tile.language.tiles import Memory, Ref
from opreplay.replay.tile.language.vector import TileCore
from opreplay.replay.tile.program import Bound, Parameter, Program
from opreplay.traces.errors import OpReplayError, UsageError
from opreplay.traces.garbage import collector_off

MOST_RERUNS = 16
"""Maximum number of loops in a program that may turn out not to repeat."""


def core_count(device: DeviceProfile, kind: Kind, program: Program, cores: int | None) -> int:
    """Return the number of cores that blocks are distributed to."""
    there = device.aiv_cores if kind == "vector" else device.aic_cores
    wanted = cores or program.cores
    return min(there, wanted) if wanted else there


class CoreRuns(msgspec.Struct):
    """A program run on cores without values: the work of each distinct core, and how many cores do that work."""

    kind: Kind
    cores: int
    """Number of cores that have work."""
    classes: list[tuple[int, Recording]]
    """(number of cores, work that each of these cores does), busiest first."""

    @property
    def mixed(self) -> bool:
        """Whether the program uses both the cube core and the vector cores of a group."""
        return any(recording.mixed for _, recording in self.classes)


@collector_off()
def run_times(bound: Bound, device: DeviceProfile, cores: int | None = None, *, every: bool = False) -> CoreRuns:
    """Run a program without values, once for each group of cores that do the same work. Raises TileError.

    With `every`, all loop iterations are run, including those that repeat others.
    """
    kind: Kind = "vector"
    try:
        core = _run_one(bound, device, 0, cores, kind, every=every, probing=not every)
    except PositionInspected:
        try:
            return _surveyed(_run_one(bound, device, 0, cores, "vector", surveying=True))
        except Unsurveyed:
            core = _run_one(bound, device, 0, cores, "vector")
    first, kind = core.recording, core.kind
    total = core_count(device, kind, bound.program, cores)
    used = max(1, min(total, _blocks_dealt(first)))

    def on(number: int) -> Recording:
        return first if number == 0 else _run_one(bound, device, number, cores, kind, every=every).recording

    if first.index_seen:
        return CoreRuns(kind, used, [(1, on(number)) for number in range(used)])
    groups: dict[object, list[int]] = {}
    for number in range(used):
        groups.setdefault(_shares(first.deals, number, total), []).append(number)
    return CoreRuns(kind, used, [(len(numbers), on(numbers[0])) for numbers in groups.values()])


def _surveyed(core: TileCore) -> CoreRuns:
    """Combine each core's work from the work of its blocks. Raises Unsurveyed if the work depends on anything else."""
    survey, recording = core.survey, core.recording
    if survey is None or core.differs or core.stored_read or core.notes.guards or len(recording.deals) != 1:
        raise Unsurveyed
    parts: dict[tuple[int, tuple[int, ...]], Part] = {}
    keys = list(zip(survey.body_of, survey.times, strict=True))
    for number, times in keys:
        body = survey.bodies[number]
        parts.setdefault((number, times), Part(body.steps, times, body.advance))
    behind, uses = survey.behind
    after = relative(recording.steps[behind:], uses)
    used = min(core.cores, len(keys))
    groups = Counter(tuple(keys[number :: core.cores]) for number in range(used))
    classes: list[tuple[int, Recording]] = []
    for mine, count in groups.items():
        blocks = [parts[key] for key in mine]
        steps = [*survey.before, Part([], (), survey.uses), *blocks, *after]
        left_out = len(blocks) + sum(sum(block.times) for block in blocks)
        classes.append((count, msgspec.structs.replace(recording, steps=steps, left_out=left_out, index_seen=False)))
    return CoreRuns(core.kind, used, classes)


def _blocks_dealt(recording: Recording) -> int:
    """Return the number of blocks in the largest loop that is distributed to cores."""
    return max((prod(-(-t // s) for t, s in zip(*deal, strict=True)) for deal in recording.deals), default=1)


def blocks_of_loops(bound: Bound, device: DeviceProfile) -> list[tuple[int, ...]]:
    """Return how many blocks or iterations each loop of a program has. Raises TileError.

    First come the loops that are distributed to cores, each with its number of blocks by dimension. Then come the
    numbers of iterations of the other loops.
    """
    recording = _run_one(bound, device, 0, None, "vector").recording
    dealt = [tuple(-(-t // s) for t, s in zip(*deal, strict=True)) for deal in recording.deals]
    return [*dealt, *((count,) for count in recording.longest.values())]


def cores_for_values(bound: Bound, device: DeviceProfile) -> int:
    """Return the number of cores for a run with values; it is at least two. Raises TileError.

    If there are at least four blocks, each core gets at least two of them. This tests values that are carried from one
    block to the next.
    """
    core = _run_one(bound, device, 0, None, "vector")
    dealt = _blocks_dealt(core.recording)
    return max(2, min(core_count(device, core.kind, bound.program, None), dealt // 2))


def _shares(deals: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], number: int, cores: int) -> object:
    """Return the sizes of a core's blocks, and how many blocks of each size it has."""
    out: list[object] = []
    for shape, sizes in deals:
        counts = [-(-t // s) for t, s in zip(shape, sizes, strict=True)]
        partial = [bool(t % s) for t, s in zip(shape, sizes, strict=True)]
        if not any(partial):
            out.append(len(range(number, prod(counts), cores)))
            continue
        kinds: dict[tuple[bool, ...], int] = {}
        for i in range(number, prod(counts), cores):
            rest, at = i, list[bool]()
            for count, cut in zip(reversed(counts), reversed(partial), strict=True):
                rest, place = divmod(rest, count)
                at.append(cut and place == count - 1)
            kinds[tuple(at)] = kinds.get(tuple(at), 0) + 1
        out.append(tuple(sorted(kinds.items())))
    return tuple(out)


def _run_one(
    bound: Bound,
    device: DeviceProfile,
    number: int,
    cores: int | None,
    kind: Kind,
    *,
    every: bool = False,
    probing: bool = False,
    surveying: bool = False,
) -> TileCore:
    """Run one core without values; loops that turn out not to repeat are run in full."""
    unsteady: set[Spot] = set()
    for _ in range(MOST_RERUNS):
        core = TileCore(
            device,
            number=number,
            cores=core_count(device, kind, bound.program, cores),
            kind=kind,
            root=bound.program.function.__code__,
            settings=bound.shown_settings,
            skipping=Skipping(
                every=every,
                unsteady=frozenset(unsteady),
                probing=probing,
                survey=Survey() if surveying else None,
            ),
        )
        try:
            _run(bound, core, memories(bound))
            return core
        except NeedsCube:
            kind = "cube"
        except Unsteady as loop:
            unsteady.add(core.spot_of(loop.place))
    raise UsageError(f"{bound.program.name}: more than {MOST_RERUNS} of its loops are not uniform")


def memories(bound: Bound) -> dict[str, Memory]:
    """Return the tensors of a bound program, without data."""
    roles = {p.name: p.role for p in bound.program.parameters}
    out: dict[str, Memory] = {}
    for name, meta in bound.tensors.items():
        try:
            out[name] = Memory(name, meta.shape, meta.dtype, roles[name], meta.strides)
        except TileError as error:
            raise TileError(error.limit, error.message, head_of(bound.program), hint=error.hint) from None
    return out


def head_of(program: Program) -> tuple[str, int]:
    """Return the file and the line where a program starts."""
    code = program.function.__code__
    return code.co_filename, code.co_firstlineno


def _run(bound: Bound, core: TileCore, tensors: Mapping[str, Memory]) -> Recording:
    def value(p: Parameter) -> Any:
        if p.role == "scalar":
            return bound.scalars[p.name]
        memory = tensors[p.name]
        return Ref(memory, memory.shape, memory.strides, memory.offset)

    arguments = [value(p) for p in bound.program.parameters if p.role == "scalar" or p.name in tensors]
    try:
        return run_on(core, lambda: bound.program.function(*arguments, **bound.settings))
    except (OpReplayError, NeedsCube, Unsteady, PositionInspected, Unsurveyed, RecursionError):
        raise
    except Exception as error:
        raise TileError(
            "program", f"{type(error).__name__}: {error}", _line_of(error, bound.program), hint=_hint(error)
        ) from error


def _hint(error: Exception) -> str:
    if isinstance(error, AttributeError):
        wanted = str(error.name)
        names = [name for name in dir(error.obj) if not name.startswith("_")]
        near: list[str] = [name for name in names if wanted in name] or get_close_matches(wanted, names, n=3)
        return f"Did you mean {', '.join(near)}?" if near else "docs/tile.md lists all functions."
    return "Functions of torch do not accept tiles; use those of tile." if isinstance(error, TypeError) else ""


def _line_of(error: Exception, program: Program) -> tuple[str, int]:
    """Return the innermost line in the program's file where a Python error was raised."""
    file, line = head_of(program)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return file, line


def run_on_cores(bound: Bound, device: DeviceProfile, tensors: Mapping[str, Memory], cores: int | None = None) -> int:
    """Run a program with values, core after core, and return how many cores had work. Raises TileError."""
    kind: Kind = "vector"
    number, used = 0, 1
    while number < used:
        total = core_count(device, kind, bound.program, cores)
        core = TileCore(
            device,
            number=number,
            cores=total,
            kind=kind,
            values=True,
            root=bound.program.function.__code__,
            settings=bound.shown_settings,
        )
        try:
            recording = _run(bound, core, tensors)
        except NeedsCube:
            if kind == "cube":
                raise
            kind = "cube"
            for memory in tensors.values():
                if memory.role in ("out", "sum"):
                    prepare(memory, None)
            continue
        dealt = _blocks_dealt(recording)
        used = max(1, min(total, dealt))
        for memory in tensors.values():
            memory.stored.clear()
        number += 1
    return used


def unwritten(bound: Bound, tensors: Mapping[str, Memory]) -> None:
    """Raise TileError if a program left a part of a result unwritten."""
    for name, memory in tensors.items():
        if memory.role != "out" or not prod(memory.shape):
            continue
        written = memory.writers.as_strided(memory.shape, memory.strides, memory.offset) >= 0
        if not bool(written.all()):
            first = tuple(int(i) for i in (~written).nonzero()[0])
            line = memory.lines[-1] if memory.lines else head_of(bound.program)
            raise TileError(
                "unwritten",
                f"{name}: {int((~written).sum())} of {written.numel()} elements are never written, the first at "
                f"{list(first)}",
                line,
                hint="Blocks must cover the whole result.",
            )
