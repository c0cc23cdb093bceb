# pyright: strict
"""A deterministic executor on a virtual clock, for tests of everything above executors; touches no device and no torch.

An op's name says what it does: "fake::10us" takes ten microseconds a call, "fake::sleep3ms" three real milliseconds as
well, "fake::raise" raises, "fake::hang" never returns, "fake::abort" and "fake::segfault" end the process,
"fake::allocate" asks for memory without end, "fake::exit" leaves silently, "fake::budget" is refused while it is
prepared; every other name takes one microsecond.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.replay.execute.executors.base import Profile
from opreplay.replay.execute.executors.clocks import Gauge
from opreplay.replay.execute.executors.sequence_tools import Filled, ResolvedOp, SequenceParts
from opreplay.replay.execute.executors.timers import HostTimer
from opreplay.replay.host.interruptions import Interruptions
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ir.verdicts import ValueCheck
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results.records import Filling
from opreplay.traces.model import TensorMeta

JITTER = (0.0, 0.01, -0.01, 0.005, -0.005)
"""Relative deviations that successive batches show, so that spreads are not zero."""


class FakeClock:
    """Time passes only when a fake op is called."""

    resolution_us = 1e-3
    max_calls = 100_000

    def __init__(self) -> None:
        self.elapsed_us = 0.0
        self._batches = 0

    def time_calls(self, call: Callable[[], Any], calls: int) -> float:
        return self.time_each([call] * calls)

    def launch_us(self, call: Callable[[], Any], calls: int) -> float | None:
        """None: there is no queue."""
        return None

    def time_each(self, calls: Sequence[Callable[[], Any]]) -> float:
        before = self.elapsed_us
        for call in calls:
            call()
        took = (self.elapsed_us - before) * (1.0 + JITTER[self._batches % len(JITTER)])
        self._batches += 1
        return took

    def now_s(self) -> float:
        return self.elapsed_us * 1e-6

    def interruptions(self) -> Interruptions:
        return Interruptions()

    def threads_waited_us(self) -> float:
        return 0.0


class FakePrepared:
    """One call of a fake op."""

    argument_bytes = 0
    max_calls: int | None = None
    first_call_us: float | None = None
    initializer: str | None = "fake"
    filling: Filling | None = None
    assumptions: tuple[Assumption, ...] = ()
    work: Work | None = None

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def copies(self, count: int) -> Sequence[Callable[[], Any]]:
        return [self.call] * count


class FakeExecutor:
    """See the module's docstring for what the op names do."""

    device = "fake"
    cache_bytes = evicted_bytes = 0
    gauge: Gauge | None = None
    threads: int | None = None

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.prepared: list[tuple[str, int]] = []
        """(op id, seed) of each op prepared so far."""
        self.resets = 0

    def facts(self) -> dict[str, object]:
        return {"device": self.device}

    def prepare(self, op: ReplayOp, *, seed: int) -> FakePrepared:
        if op.name == "fake::budget":
            raise NotReplayable(Reason("budget", "needs 3.2 GB, limit 1.0 GB (--set max_op_memory)"))
        self.prepared.append((op.id, seed))
        return FakePrepared(self._behaviour(op.name))

    def run(self, prepared: FakePrepared) -> Any:
        return prepared.call()

    def reset(self, prepared: FakePrepared) -> None:
        self.resets += 1

    def check_values(self, prepared: FakePrepared, op: ReplayOp) -> ValueCheck:
        return ValueCheck(status="own")

    def profile(self, prepared: FakePrepared, op: ReplayOp) -> Profile:
        prepared.call()
        return Profile(children=("fake::child",))

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any] | None:
        """None: there are no graphs."""
        return None

    def use_threads(self, count: int) -> None:
        """There are none."""

    def evict(self) -> None:
        """There are no caches."""

    def as_in_step(self, prepared: FakePrepared, recency: Recency) -> Callable[[], None] | None:
        """None: there are no caches."""
        return None

    def for_sequences(self) -> SequenceParts:
        def resolve(op: ReplayOp) -> ResolvedOp:
            if op.name == "fake::budget":
                raise NotReplayable(Reason("budget", "needs 3.2 GB, limit 1.0 GB (--set max_op_memory)"))
            return op, self._behaviour(op.name), ()

        return SequenceParts(
            resolve=resolve,
            fill=_filled,
            tools=NoTensors(),
            synchronize=self.synchronize,
            free_bytes=lambda: None,
            timer=HostTimer(lambda: int(self.clock.elapsed_us * 1e3)),
        )

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""

    def close(self) -> None:
        """Nothing is held."""

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
    """A call without arguments."""
    op = msgspec.structs.replace(op, args=())
    return Filled(op=op, function=function, args={}, initializer="fake", ruled=False, assumptions=notes, lengths=None)


class NoTensors:
    """What the passes of a sequence do with tensors where there are none."""

    def as_called(self, call: partial[Any]) -> partial[Any]:
        return call

    def flat(self, returned: Any) -> list[Any]:
        return []

    def fits(self, result: Any, meta: TensorMeta) -> bool:
        return False

    def seen_as(self, result: Any, meta: TensorMeta) -> Any:
        return result

    def is_finite(self, tensor: Any) -> bool:
        return True

    def refill(self, tensor: Any, spread: float = 1.0) -> None:
        """There is nothing to fill."""

    def has_domain(self, op: str, argument: str) -> bool:
        return False

    def in_domain(self, tensor: Any, op: str, argument: str) -> bool:
        return True

    def fit(self, tensor: Any, op: str, argument: str) -> None:
        """There is nothing to fill."""

    def copy_into(self, tensor: Any, values: Any) -> None:
        """There is nothing to fill."""


def _raise() -> None:
    raise RuntimeError("the fake op raised\nas it was told to")


def _allocate() -> None:
    blocks: list[bytearray] = []
    while True:
        blocks.append(bytearray(64 << 20))
