# pyright: strict
"""A deterministic executor on a virtual clock, to test all layers above executors. It uses no device and no torch.

An op's name defines its behaviour. "fake::10us" takes ten virtual microseconds a call, "fake::sleep3ms" three virtual
and real milliseconds. "fake::raise" raises, "fake::hang" never returns, "fake::abort" and "fake::segfault" end the
process. "fake::allocate" allocates memory without limit, "fake::exit" exits silently, "fake::budget" is refused during
preparation. Every other name takes one microsecond.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from opreplay.replay.execute.executors.base import Executor, Prepared, Profile
from opreplay.replay.execute.executors.clocks import Clock
from opreplay.replay.execute.executors.sequence_tools import Filled, ResolvedOp, SequenceParts, Tools
from opreplay.replay.execute.executors.timers import HostTimer
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable

JITTER = (0.0, 0.01, -0.01, 0.005, -0.005)
"""Relative deviations of successive batches, so that spreads are not zero."""


class FakeClock(Clock):
    """A virtual clock that advances only when a fake op is called."""

    resolution_us = 1e-3
    max_calls = 100_000

    def __init__(self) -> None:
        self.elapsed_us = 0.0
        self._batches = 0

    def _timed(self, calls: Iterable[Callable[[], Any]], count: int) -> float:
        before = self.elapsed_us
        for call in calls:
            call()
        took = (self.elapsed_us - before) * (1.0 + JITTER[self._batches % len(JITTER)])
        self._batches += 1
        return took

    def now_s(self) -> float:
        return self.elapsed_us * 1e-6


class FakePrepared(Prepared):
    """One call of a fake op."""

    initializer = "fake"

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def copies(self, count: int) -> Sequence[Callable[[], Any]]:
        return [self.call] * count


class FakeExecutor(Executor):
    """An executor for tests; the module docstring lists the op names."""

    device = "fake"
    threads: int | None = None  # pyright: ignore[reportIncompatibleMethodOverride] - tests have some

    def __init__(self) -> None:
        self.clock: FakeClock = FakeClock()  # pyright: ignore[reportIncompatibleVariableOverride] - ops add to its time
        self.prepared: list[tuple[str, int]] = []
        """(op id, seed) of each op that was prepared."""
        self.resets = 0

    def prepare(self, op: ReplayOp, *, seed: int) -> FakePrepared:
        if op.name == "fake::budget":
            raise NotReplayable(Reason("budget", "needs 3.2 GB, limit 1.0 GB (--set max_op_memory)"))
        self.prepared.append((op.id, seed))
        return FakePrepared(self._behaviour(op.name))

    def reset(self, prepared: FakePrepared) -> None:
        self.resets += 1

    def profile(self, prepared: FakePrepared, op: ReplayOp) -> Profile:
        prepared.call()
        return Profile(children=("fake::child",))

    def for_sequences(self) -> SequenceParts:
        def resolve(op: ReplayOp) -> ResolvedOp:
            if op.name == "fake::budget":
                raise NotReplayable(Reason("budget", "needs 3.2 GB, limit 1.0 GB (--set max_op_memory)"))
            return op, self._behaviour(op.name), ()

        return SequenceParts(
            resolve=resolve,
            fill=_filled,
            tools=Tools(),
            synchronize=self.synchronize,
            free_bytes=lambda: None,
            timer=HostTimer(lambda: int(self.clock.elapsed_us * 1e3)),
        )

    def _behaviour(self, name: str) -> Callable[[], Any]:
        faults: dict[str, Callable[[], Any]] = {
            "fake::raise": _raise,
            "fake::hang": lambda: time.sleep(3600),
            "fake::abort": os.abort,
            "fake::segfault": lambda: ctypes.string_at(0),
            "fake::exit": lambda: os._exit(0),
            "fake::allocate": _allocate,
        }
        if name in faults:
            return faults[name]
        match = re.fullmatch(r"fake::(\d+)us", name)
        slept = re.fullmatch(r"fake::sleep(\d+)ms", name)
        duration_us = float(match[1]) if match else 1000.0 * float(slept[1]) if slept else 1.0

        def advance() -> None:
            self.clock.elapsed_us += duration_us
            if slept is not None:
                time.sleep(duration_us * 1e-6)

        return advance


def _filled(op: ReplayOp, function: Callable[..., Any], seed: int, notes: tuple[Assumption, ...]) -> Filled:
    """Return the fake op as a call without arguments."""
    op = msgspec.structs.replace(op, args=())
    return Filled(op=op, function=function, args={}, initializer="fake", ruled=False, assumptions=notes, lengths=None)


def _raise() -> None:
    raise RuntimeError("the fake op raised\nas it was told to")


def _allocate() -> None:
    blocks: list[bytearray] = []
    while True:
        blocks.append(bytearray(64 << 20))
