# pyright: strict
"""Run ops on this machine, one after the other or on several workers at once.

This module decides the order and waits for workers. Workers are child processes (`runner`). Those on other machines are
in `ray`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec

from opreplay.replay.execute.messages import PassDone
from opreplay.replay.execute.processes.runner import Runner
from opreplay.replay.execute.visits import Visit, visits_of
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome, is_lost, unable
from opreplay.traces.errors import UsageError

Decide = Callable[[ReplayOp], Outcome | None]
"""Function called right before an op runs. It returns an outcome to skip the op, or None to run it."""
Step = ReplayOp | PassDone | tuple[ReplayOp, Outcome]
"""What an engine yields: the next op, a finished pass of a sequence, or an op with its outcome."""


class Engine(Protocol):
    """Runs many ops and yields their outcomes."""

    def start(self) -> dict[str, object]:
        """Prepare the engine and return the facts of its device, or of the first device if it has several.

        Raises OpReplayError if the device is missing.
        """
        ...

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[Step]:
        """Yield each op before it runs, and its outcome as soon as it is known."""
        ...

    def close(self) -> None:
        """Stop all work and leave no process behind."""
        ...


TRIES = 2
"""Number of workers that may be lost during one op before the op is given up."""
APART = 16
"""Number of ops between two rounds of one op. They take some seconds, in which the load of the machine changes."""
SETUP = 15.0
"""Maximum set-up time over all rounds of an op, as a multiple of `op_time_s`."""


class OneByOne:
    """Runs ops in order with one runner.

    Each op is measured in `visits` rounds, which are `APART` ops apart. If one round uses up the time of all rounds, no
    other round follows. If `visits` is None, the load of other programs at the start decides the number of rounds.
    """

    def __init__(self, runner: Runner, *, visits: int | None = 1, op_time_s: float = 0.0) -> None:
        self._runner, self._asked, self._op_time_s = runner, visits, op_time_s
        self._visits = visits or 1

    def start(self) -> dict[str, object]:
        facts = self._runner.start()
        self._visits = visits_of(self._asked, facts)
        return facts | {"visits": self._visits}

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[Step]:
        if self._visits == 1:
            for op in ops:
                yield op
                yield op, decide(op) or self._runner.measure(op)
            return
        yield from self._visited(list(ops), decide)

    def _visited(self, ops: Sequence[ReplayOp], decide: Decide) -> Iterator[Step]:
        """Yield ops in order. An op is yielded when its last round and the last rounds of all earlier ops are done.

        If the run ends early, yield the outcomes of the rounds done so far.
        """
        outcomes: dict[int, Outcome] = {}
        unfinished: set[int] = set()
        next_index = 0
        try:
            for step in range(len(ops) + (self._visits - 1) * APART):
                for number in range(self._visits):
                    index = step - number * APART
                    if number == 0 and index < len(ops):
                        yield ops[index]
                        outcomes[index], again = self._first(ops[index], decide)
                    elif index in unfinished:
                        yield ops[index]
                        outcomes[index], again = self._again(ops[index], outcomes[index], number, decide)
                    else:
                        continue
                    (unfinished.add if again else unfinished.discard)(index)
                while next_index in outcomes and next_index not in unfinished:
                    next_index += 1
                    yield ops[next_index - 1], outcomes.pop(next_index - 1)
        except GeneratorExit:
            raise
        except BaseException:
            yield from ((ops[index], outcome) for index, outcome in sorted(outcomes.items()))
            raise

    def _first(self, op: ReplayOp, decide: Decide) -> tuple[Outcome, bool]:
        """Measure the first round of an op. Return (outcome, whether another round should follow)."""
        if (decided := decide(op)) is not None:
            return decided, False
        started = monotonic()
        outcome = self._runner.measure(op, Visit(of=self._visits))
        around_s = monotonic() - started - (outcome.measure_s or 0.0)
        measurement = outcome.measurement
        if measurement is None or not measurement.visits or around_s * self._visits > SETUP * self._op_time_s:
            return outcome, False
        calls = (measurement.samples + measurement.repeated) * measurement.calls_per_sample
        return outcome, calls * measurement.median_us * 1e-6 < self._op_time_s

    def _again(self, op: ReplayOp, before: Outcome, number: int, decide: Decide) -> tuple[Outcome, bool]:
        """Measure one more round of an op if the run has time. Return (outcome, whether another round should follow).

        The results of checks made in the first round are kept.
        """
        if decide(op) is not None:
            return before, False
        outcome = self._runner.measure(op, Visit(number=number, of=self._visits))
        if is_lost(outcome.reason):
            return before, False
        if outcome.measurement is None:
            return outcome, False
        if not outcome.measurement.visits:
            return before, False
        together = msgspec.structs.replace(
            outcome,
            fidelity=before.fidelity,
            values=before.values,
            attempts=max(before.attempts, outcome.attempts),
            measure_s=(before.measure_s or 0.0) + (outcome.measure_s or 0.0),
        )
        return together, number + 1 < self._visits

    def close(self) -> None:
        self._runner.close()


class Lane(Protocol):
    """A worker for one op at a time, like `ChildProcess`. Call `step` when it has a message or is past its deadline."""

    @property
    def facts(self) -> dict[str, object]: ...
    @property
    def is_starting(self) -> bool: ...
    def open(self) -> None: ...
    def begin(self, op: ReplayOp) -> None: ...
    def step(self) -> Outcome | Reason | None:
        """Return the op's outcome; None if there is none yet.

        If the worker was lost, return the reason. Another worker can then run the op.
        """
        ...

    def close(self) -> None: ...


class Waited(Protocol):
    """An object with a file descriptor to wait for, and a deadline."""

    @property
    def deadline(self) -> float: ...
    def fileno(self) -> int: ...


_Waited = TypeVar("_Waited", bound=Waited)


def ready_lanes(lanes: Sequence[_Waited]) -> list[_Waited]:
    """Wait for workers; return those with a message or past their deadline."""
    if not lanes:
        return []
    by_descriptor = {lane.fileno(): lane for lane in lanes}
    first = min(lane.deadline for lane in lanes)
    limit_s = max(0.0, first - monotonic()) if first < float("inf") else None
    readable = wait(list(by_descriptor), limit_s)
    now = monotonic()
    return [lane for descriptor, lane in by_descriptor.items() if descriptor in readable or now >= lane.deadline]


class Lanes:
    """Runs ops on several workers; an op goes to the first idle worker."""

    def __init__(self, lanes: Sequence[Lane], listen: Callable[[Sequence[Any]], Sequence[Any]] = ready_lanes) -> None:
        """`listen` waits for workers and returns those whose `step` should be called."""
        self._lanes, self._listen = lanes, listen
        self._idle: list[Lane] = []
        self._starting: list[Lane] = []

    def start(self) -> dict[str, object]:
        """Start all workers at once. Return the facts of the first worker, and the number of workers."""
        return self._started(len(self._lanes))

    def _started(self, needed: int) -> dict[str, object]:
        """Start all workers, wait until `needed` of them are ready, and return the facts about the engine."""
        self._starting = list(self._lanes)
        for lane in self._lanes:
            lane.open()
        while len(self._idle) < needed:
            for lane in self._listen(self._starting):
                lane.step()
                self._join(lane)
        return {**next(lane.facts for lane in self._lanes if lane in self._idle), "lanes": len(self._lanes)}

    def _join(self, lane: Lane) -> None:
        """Mark a starting worker as idle once it is ready."""
        if not lane.is_starting:
            self._starting.remove(lane)
            self._idle.append(lane)

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[Step]:
        waiting, again = iter(ops), deque[tuple[ReplayOp, int]]()
        busy: dict[Lane, tuple[ReplayOp, int]] = {}
        more = True
        while more or again or busy:
            while self._idle and (more or again):
                op, tries = again.popleft() if again else (next(waiting, None), 0)
                if op is None:
                    more = False
                    continue
                if not tries:
                    yield op
                if not tries and (outcome := decide(op)) is not None:
                    yield op, outcome
                else:
                    lane = self._idle.pop(0)
                    lane.begin(op)
                    busy[lane] = op, tries + 1
            for lane in self._listen([*busy, *self._starting]) if busy or more or again else ():
                if (ended := self._ended(lane, busy, again)) is not None:
                    yield ended

    def _ended(
        self, lane: Lane, busy: dict[Lane, tuple[ReplayOp, int]], again: deque[tuple[ReplayOp, int]]
    ) -> tuple[ReplayOp, Outcome] | None:
        """Process the message of a worker. Return (op, outcome), or None if there is no outcome yet.

        Also return None if the worker was lost. Another worker then gets the op.
        """
        outcome = lane.step()
        if lane in self._starting:
            self._join(lane)
            return None
        if outcome is None:
            return None
        op, tries = busy.pop(lane)
        (self._starting if lane.is_starting else self._idle).append(lane)
        if not isinstance(outcome, Reason):
            return op, outcome if tries == 1 else msgspec.structs.replace(outcome, attempts=tries)
        if tries < TRIES:
            again.append((op, tries))
            return None
        return op, unable(outcome)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def split_cpus(lanes: int) -> list[tuple[int, ...]]:
    """Split this process's processors into disjoint sets of nearly equal size, one per worker.

    Returns empty sets if there are too few processors or the system does not support this.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [()] * lanes
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < lanes:
        return [()] * lanes
    return [tuple(cpus[len(cpus) * lane // lanes : len(cpus) * (lane + 1) // lanes]) for lane in range(lanes)]


def lane_devices(device: str, lanes: int, *, shared: bool) -> list[str]:
    """Return each worker's device.

    All workers get the same device if it is the CPU or `shared`. Otherwise, "cuda" becomes cuda:0, cuda:1 and so on.
    Raises UsageError if several workers would use one accelerator that they may not share.
    """
    if device == "cpu" or shared or lanes == 1:
        return [device] * lanes
    if ":" in device:
        raise UsageError(
            f"{lanes} workers would measure on {device} at the same time",
            hint=(
                "Remove the device number to give each worker its own device, or allow sharing with "
                "--set shared_device=true."
            ),
        )
    return [f"{device}:{index}" for index in range(lanes)]
