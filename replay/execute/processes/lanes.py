# pyright: strict
"""Who runs which op next on this machine: one after the other, or in several lanes at once.

Owns the order and the waiting; a lane is a child process of `isolation`, and other machines are `schedule_ray`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from time import monotonic
from typing import Protocol

from opreplay.replay.execute.processes.runner import ChildProcess, Runner
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.results.outcome import Outcome
from opreplay.traces.errors import UsageError

Decide = Callable[[ReplayOp], Outcome | None]
"""Asked right before an op would run: its outcome where it is not to run after all."""


class Engine(Protocol):
    """Something that makes outcomes of many ops."""

    def start(self) -> dict[str, object]:
        """Get ready; the facts of the device, or of the first of several. Raises OpReplayError when it is missing."""
        ...

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[tuple[ReplayOp, Outcome]]:
        """Each op with what became of it, as soon as that is known."""
        ...

    def close(self) -> None:
        """End all that runs; leaves no process behind."""
        ...


class OneByOne:
    """Runs ops in their order with one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def start(self) -> dict[str, object]:
        return self._runner.start()

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[tuple[ReplayOp, Outcome]]:
        for op in ops:
            yield op, decide(op) or self._runner.measure(op)

    def close(self) -> None:
        self._runner.close()


class Lanes:
    """Runs ops in several child processes; an op is handed to the first lane that is free."""

    def __init__(self, lanes: Sequence[ChildProcess]) -> None:
        self._lanes = lanes

    def start(self) -> dict[str, object]:
        """All children load at once; the facts are those of the first, and the number of lanes."""
        for lane in self._lanes:
            lane.open()
        facts = [lane.start() for lane in self._lanes]
        return {**facts[0], "lanes": len(self._lanes)}

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[tuple[ReplayOp, Outcome]]:
        waiting = iter(ops)
        idle = list(self._lanes)
        busy: dict[ChildProcess, ReplayOp] = {}
        more = True
        while more or busy:
            while more and idle:
                op = next(waiting, None)
                if op is None:
                    more = False
                elif (outcome := decide(op)) is not None:
                    yield op, outcome
                else:
                    lane = idle.pop(0)
                    lane.begin(op)
                    busy[lane] = op
            for lane in ready_lanes(list(busy)):
                outcome = lane.step()
                if outcome is not None:
                    op = busy.pop(lane)
                    idle.append(lane)
                    yield op, outcome

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def ready_lanes(lanes: Sequence[ChildProcess]) -> list[ChildProcess]:
    """Those of the busy lanes that have something to say or are late; waits until there is one."""
    if not lanes:
        return []
    by_descriptor = {lane.fileno(): lane for lane in lanes}
    first = min(lane.deadline for lane in lanes)
    limit_s = max(0.0, first - monotonic()) if first < float("inf") else None
    readable = wait(list(by_descriptor), limit_s)
    now = monotonic()
    return [lane for descriptor, lane in by_descriptor.items() if descriptor in readable or now >= lane.deadline]


def split_cpus(lanes: int) -> list[tuple[int, ...]]:
    """Disjoint sets of this process's processors, one a lane, as even as can be; empty sets where they do not suffice
    or the system has no such thing."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * lanes
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < lanes:
        return [()] * lanes
    return [tuple(cpus[len(cpus) * lane // lanes : len(cpus) * (lane + 1) // lanes]) for lane in range(lanes)]


def lane_devices(device: str, lanes: int, *, shared: bool) -> list[str]:
    """The device of each lane: the CPU for all; "cuda" means cuda:0, cuda:1 and so on, or cuda:0 for all if `shared`.

    Raises UsageError for several lanes on one accelerator that they may not share.
    """
    if device == "cpu" or shared or lanes == 1:
        return [device] * lanes
    if ":" in device:
        raise UsageError(
            f"{lanes} lanes would measure on {device} at once",
            hint="Leave its number out for one device a lane, or allow it with --shared-device.",
        )
    return [f"{device}:{index}" for index in range(lanes)]
