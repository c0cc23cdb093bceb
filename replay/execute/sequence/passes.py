# pyright: strict
"""Replay a sequence inside the process that runs it, from its ops to its outcome.

Ops that cannot be prepared are excluded. The others are linked, and run once with all checks. An op that raises or a
result that the plan does not expect is a finding. It changes the links, and another checking pass follows. After a pass
without findings, the measured passes follow. Other modules start and end the process.
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from opreplay.replay.arguments.shrink.choose import shrink_to_limit
from opreplay.replay.execute.executors.base import Executor
from opreplay.replay.execute.executors.sequence_tools import Filled, SequenceParts
from opreplay.replay.execute.measure import summarize
from opreplay.replay.execute.messages import PassDone, SequenceOutcome, SequenceTask
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.sequence.lifetimes import MemoryPlan, need_bytes, plan_memory
from opreplay.replay.execute.sequence.program import Form, Program
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable, reason_for
from opreplay.replay.plan.step.linking import counts, link
from opreplay.replay.results import stats
from opreplay.replay.results.measurement import MeasureWarning
from opreplay.replay.results.outcome import NOT_FINITE, OUTSIDE_DOMAIN, VALUES, Outcome, unable
from opreplay.replay.results.records import Filling, Tensors
from opreplay.traces.errors import OpReplayError
from opreplay.traces.garbage import collector_off

BEAT = struct.Struct("<qq")
"""Format of a heartbeat: index of the op, and a counter of calls."""
ROUNDS = 10
"""Maximum number of checking passes. Each pass is linked with the findings of the previous pass. Two or three are
usual.
"""
MIN_PASSES = 3
SAMPLES = 4_000_000
"""Maximum number of stored call times; with many calls per pass, fewer passes are made."""
DEFAULT_BUDGET = 1 << 30
"""Memory limit, in bytes, if the device does not report free memory."""

Tell = Callable[[PassDone], None]


class TimeIsUp(Exception):
    """Raised if the run's time limit is reached."""


class LostDevice(Exception):
    """Raised if the device accepts no more work from this process."""


def serve_sequence(
    executor: Executor, task: SequenceTask, *, seed: int, options: MeasureOptions, op_bytes: int, tell: Tell
) -> SequenceOutcome:
    """Replay the sequence of `task`. Raises LostDevice. Other exceptions end the process.

    If no measured pass is completed, the outcome has no times. `op_bytes` is the memory limit of a single op. `tell` is
    called after each pass.
    """
    parts = executor.for_sequences()
    limit = live_bytes(parts, task)
    with Heartbeat(task.heartbeat) as beat:
        run = SequenceRun(parts, task, seed, op_bytes, limit, beat)
        try:
            run.make_ready()
            return run.measured(options, executor.clock.resolution_us, tell)
        except TimeIsUp:
            return SequenceOutcome(outcomes=run.left_out())


def live_bytes(parts: SequenceParts, task: SequenceTask) -> int:
    """Return the limit for all tensors of a sequence together, in bytes."""
    if task.budget_bytes is not None:
        return task.budget_bytes
    free = parts.free_bytes()
    return DEFAULT_BUDGET if free is None else free // 2


class Heartbeat:
    """A file that records this process's current op, and stays readable after the process dies."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("r+b")  # noqa: SIM115 - closed with the heartbeat
        self._memory = mmap.mmap(self._file.fileno(), BEAT.size)
        self._beats = 0

    def __call__(self, index: int) -> None:
        """Record that this process is at the op with this index in the task; -1 between ops."""
        self._beats += 1
        BEAT.pack_into(self._memory, 0, index, self._beats)

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What ends the process is the fault of the op that it was at.
        if kind is None:
            self(-1)
        self._memory.close()
        self._file.close()


class SequenceRun:
    """Replays one sequence task."""

    def __init__(
        self, parts: SequenceParts, task: SequenceTask, seed: int, op_bytes: int, limit: int, beat: Heartbeat
    ) -> None:
        self._parts, self._task, self._seed, self._op_bytes, self._limit = parts, task, seed, op_bytes, limit
        self._beat = beat
        self._ends = math.inf if task.left_s is None else perf_counter() + task.left_s
        self.reasons: dict[str, Reason] = {}
        self._ops: list[ReplayOp] = list(task.ops)
        """Ops as the device runs them, once resolved."""
        self._functions: dict[int, Callable[..., Any]] = {}
        self._forms: dict[int, Form] = {}
        self._fillings: dict[int, tuple[str, Filling | None, tuple[Assumption, ...]]] = {}
        self._ruled: set[str] = set()
        self._unshared: set[str] = set(task.unshared)
        self._unknown: set[tuple[str, int]] = set()
        self._plan: MemoryPlan | None = None
        self._made_up: dict[int, tuple[Assumption, ...]] = {}
        """Op index → notes on refilled values."""
        self._pass_s = 0.0

    def make_ready(self) -> None:
        """Resolve and fill each op once, to find out how to call it."""
        for index, op in enumerate(self._task.ops):
            self._at(index)
            try:
                self._make_ready(index, op)
            except NotReplayable as stopped:
                self.reasons[op.id] = stopped.reason
            except OpReplayError as error:
                self.reasons[op.id] = Reason("failed", error.problem)
            except Exception as error:
                self._check_device(error)
                self.reasons[op.id] = reason_for(error)

    def repeat_check_passes(self, tell: Tell) -> Program:
        """Repeat the checking pass until no finding changes the program, and return the program."""
        number = 0
        while True:
            number += 1
            tell(PassDone(passes=0, spent_s=0.0, time_s=self._task.time_s))
            program, started = self._linked(), perf_counter()
            findings = program.first_pass(self._parts.timer, self.at_call)
            self._parts.timer.end()
            self._pass_s = perf_counter() - started
            if not findings:
                return program
            for index, error in findings.raised.items():
                self._check_device(error)
                self._raised(index, error, last=number >= ROUNDS)
            self._unknown |= findings.unknown
            del program  # its tensors are gone before others are made

    def measured(self, options: MeasureOptions, resolution_us: float, tell: Tell) -> SequenceOutcome:
        """Run the checking passes, then the measured ones, and return the outcome."""
        program = self.repeat_check_passes(
            tell
        )  # held by no caller: its tensors are gone before those of another one are made
        assert self._plan is not None
        calls = self.calls()
        samples: dict[int, array[float]] = defaultdict(lambda: array("d"))
        sums: list[float] = []
        walls: list[float] = []
        max_passes = max(MIN_PASSES, min(options.max_samples, SAMPLES // max(1, len(calls))))
        refilled = 0
        interrupted: Counter[int] = Counter()
        self._warm_up(program)
        try:
            with collector_off():
                started = perf_counter()
                while calls and len(sums) < max_passes:
                    before, aside_s, begun = program.refilled, program.aside_s, perf_counter()
                    try:
                        program.run_pass(self._parts.timer, self.at_call)
                    except TimeIsUp:
                        break
                    times = self._parts.timer.end()
                    wall_us = (perf_counter() - begun - (program.aside_s - aside_s)) * 1e6
                    if program.raised:
                        # What it made in earlier passes was of another program.
                        self.exclude_raised(program.raised)
                        del program
                        program = self.repeat_check_passes(tell)
                        calls = self.calls()
                        samples.clear()
                        interrupted.clear()
                        sums, walls = [], []
                        continue
                    walls.append(wall_us)
                    sums.append(sum(times))
                    for index, time_us in zip(calls, times, strict=True):
                        samples[index].append(time_us)
                    interrupted.update(calls[at] for at in self._parts.timer.interrupted())
                    program.mend()
                    refilled = max(refilled, program.refilled - before)
                    spent = perf_counter() - started
                    tell(PassDone(passes=len(sums), spent_s=spent, time_s=self._task.time_s))
                    if self._enough(sums, spent, options):
                        break
        finally:
            self._beat(-1)
        self.note_refilled(program)
        return self.outcome(samples, sums, walls, refilled, options, resolution_us, interrupted)

    def note_refilled(self, program: Program) -> None:
        """Record notes on the ops whose values were refilled during the passes of a program."""
        for number, (before, after) in program.refilled_ops().items():
            notes = [*([OUTSIDE_DOMAIN] if before else []), *([NOT_FINITE] if after else [])]
            self._made_up[self._numbers[number]] = tuple(Assumption(argument=VALUES, what=what) for what in notes)

    def places(self) -> list[int]:
        """Return, for each call of the task and for the task's end, the position in the program."""
        there = set(self._numbers)
        return [0, *accumulate(index in there for index in self._task.calls)]

    def calls(self) -> list[int]:
        """Return, for each call of the program, the index of its op in the task."""
        assert self._plan is not None
        return [self._numbers[index] for index in self._plan.linked.calls]

    def index_of(self, number: int) -> int:
        """Return the task index of the op with this number in the program."""
        return self._numbers[number]

    def at_call(self, number: int) -> None:
        """Record in the heartbeat that the op with this number in the program runs next.

        Raises TimeIsUp if the time is used up.
        """
        self._at(self._numbers[number])

    def left_out(self) -> dict[str, Outcome]:
        """Return the outcomes of excluded ops by op id."""
        return {id_: unable(reason) for id_, reason in self.reasons.items()}

    def exclude_raised(self, raised: Mapping[int, Exception]) -> None:
        """Exclude ops that raised in a later pass. `raised` maps each op's number in the program to its error."""
        for at, error in raised.items():
            self._check_device(error)
            self.reasons[self._task.ops[self._numbers[at]].id] = reason_for(error)

    def _warm_up(self, program: Program) -> None:
        """Run one pass that does not count, unless one pass takes longer than the time for all passes.

        The checks in the first pass leave other data in the caches than a measured pass.
        """
        if self._pass_s > self._task.time_s:
            return
        program.run_pass(self._parts.timer, self.at_call)
        self._parts.timer.end()
        program.mend()

    def _at(self, index: int) -> None:
        """Record in the heartbeat that this op of the task runs next. Raises TimeIsUp if the time is used up."""
        if perf_counter() > self._ends:
            raise TimeIsUp
        self._beat(index)

    def _make_ready(self, index: int, op: ReplayOp) -> None:
        # A pool that is larger than it need be leaves the work as it is; slices of an op have other results.
        part = shrink_to_limit(op, min(self._op_bytes, self._limit))
        whole = part.op if part.part == 1.0 else op
        if (reason := budget.over_budget(whole, self._op_bytes)) is not None:
            raise NotReplayable(reason)
        resolved, function, notes = self._parts.resolve(whole)
        if (need := need_bytes(resolved)) > self._limit:
            needs, limit = budget.readable(need), budget.readable(self._limit)
            raise NotReplayable(
                Reason("budget", f"needs {needs}, but all tensors together may take {limit} (--set max_live_memory)")
            )
        filled = self._parts.fill(resolved, function, self._seed, notes)
        self._ops[index], self._functions[index] = filled.op, function
        self._forms[index] = Form(filled, self._parts.tools)
        self._fillings[index] = (filled.initializer, filled.filling, (*part.assumptions, *filled.assumptions))
        if filled.ruled:
            self._ruled.add(op.id)

    def _linked(self) -> Program:
        """Link the remaining ops within the memory budget. Returns their program, with its tensors."""
        self._numbers = [index for index in sorted(self._forms) if self._task.ops[index].id not in self.reasons]
        place = {index: at for at, index in enumerate(self._numbers)}
        ops = [self._ops[index] for index in self._numbers]
        calls = [place[index] for index in self._task.calls if index in place]
        pairs = zip(self._task.calls, self._task.memories, strict=False)
        memories = [both for index, both in pairs if index in place]
        self._beat(-1)  # what takes long here is the fault of no op
        linked = link(
            ops, calls, memories=memories, fixed_integers=self._ruled, own=self._unshared, unknown=self._unknown
        )
        self._links = counts(linked)
        self._beat(-1)
        self._plan = plan_memory(ops, linked, self._limit)
        forms = [self._forms[index] for index in self._numbers]
        return Program(ops, self._plan, forms, self._fill, self._parts.tools)

    def _fill(self, at: int) -> Filled:
        index = self._numbers[at]
        self._at(index)
        return self._parts.fill(self._ops[index], self._functions[index], self._seed, ())

    def _raised(self, at: int, error: Exception, *, last: bool) -> None:
        """Give separate arguments to an op that raised. If it already has them, or if `last`, exclude the op."""
        op = self._ops[self._numbers[at]]
        if op.id in self._unshared or last:
            self.reasons[op.id] = reason_for(error)
        self._unshared.add(op.id)

    def _check_device(self, error: Exception) -> None:
        """Raise LostDevice if the device is unusable after the error, e.g. because its CUDA context is broken."""
        try:
            self._parts.synchronize()
        except Exception:
            raise LostDevice(str(error)) from error

    def _enough(self, sums: Sequence[float], spent_s: float, options: MeasureOptions) -> bool:
        if len(sums) < MIN_PASSES:
            return spent_s + spent_s / len(sums) > 2 * self._task.time_s
        narrow = len(sums) >= options.min_samples and stats.is_narrow(sorted(sums), options.target_ci)
        return spent_s >= self._task.time_s or (narrow and spent_s >= options.min_share * options.op_time_s)

    def outcome(
        self,
        samples: Mapping[int, array[float]],
        sums: Sequence[float],
        walls: Sequence[float],
        refilled: int,
        options: MeasureOptions,
        resolution_us: float,
        interrupted: Mapping[int, int] | None = None,
    ) -> SequenceOutcome:
        """Return the outcome of the passes.

        `samples` maps an op's index in the task to its times. `interrupted` maps the index to the number of samples
        during which another program ran on the processor.
        """
        assert self._plan is not None
        outcomes = self.left_out()
        for index, samples_us in samples.items():
            op, (initializer, filling, said) = self._task.ops[index], self._fillings[index]
            if op.id in outcomes:
                continue
            measurement = summarize(sorted(samples_us), calls=1, resolution_us=resolution_us, options=options)
            warnings = (*measurement.warnings, *_interrupted((interrupted or {}).get(index, 0), len(samples_us)))
            measurement = msgspec.structs.replace(measurement, cache="sequence", warnings=warnings)
            outcomes[op.id] = Outcome(
                status="replayed",
                measurement=measurement,
                initializer=initializer,
                filling=filling,
                assumptions=said + self._made_up.get(index, ()),
            )
        shared = self._plan
        return SequenceOutcome(
            outcomes=outcomes,
            calls=len(shared.linked.calls) if sums else 0,
            sums_us=tuple(sums),
            walls_us=tuple(walls),
            tensors=Tensors(
                recorded=shared.linked.recorded,
                results=self._links["result"],
                views=self._links["view"],
                outside_arguments=self._links["outside"],
                remade=shared.remade,
                outside=len(shared.linked.outside),
                recycled=shared.recycled,
                refilled=refilled,
                peak_bytes=shared.peak_bytes,
                budget_bytes=self._limit,
            ),
        )


def _interrupted(count: int, samples: int) -> list[MeasureWarning]:
    """Return a warning if other programs ran on the processor in most samples of an op. The times stay unchanged."""
    if 2 * count <= samples:
        return []
    data = {"interrupted": float(count), "samples": float(samples), "left_out_share": 0.0}
    return [MeasureWarning(kind="interrupted", data=data)]
