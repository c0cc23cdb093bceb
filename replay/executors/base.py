"""The small protocol that every back-end implements; the fake one ships with the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from opreplay.replay.ir import Assumption, Reason, ReplayOp
from opreplay.replay.work.amounts import Work


class NotReplayable(Exception):
    """Stops one op, never the run; carries the reason that the result shows."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets that hold for each op."""

    memory_bytes: int
    """Inputs, outputs and expected workspace together."""
    time_s: float = 10.0
    """Wall time of one op, set-up included."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one replayed op, in microseconds a call, overhead of the clock subtracted."""

    median_us: float
    iqr_us: float
    min_us: float
    max_us: float
    samples: int
    calls_per_sample: int
    ci_low_us: float
    ci_high_us: float
    """Order-statistic 95 % confidence interval of the median."""
    warnings: tuple[str, ...] = ()
    part: float = 1.0
    """Share of the op's work that ran; the times are what that part took, divided by it."""


class Clock(Protocol):
    """Measures batches of calls; a device has the clock that fits it."""

    @property
    def resolution_us(self) -> float:
        """Smallest difference of two readings that is not zero."""
        ...

    @property
    def max_calls(self) -> int:
        """Most calls that one batch may hold."""
        ...

    def time_calls(self, call: Callable[[], Any], calls: int) -> float:
        """Microseconds that `calls` calls in a row take together, the clock's own overhead subtracted."""
        ...

    def now_s(self) -> float:
        """Wall time in seconds, for budgets."""
        ...


class Prepared(Protocol):
    """An op that is ready to be called."""

    @property
    def call(self) -> Callable[[], Any]:
        """Calls the op once, without waiting for the device."""
        ...

    @property
    def max_calls(self) -> int | None:
        """Most calls in a row before `Executor.reset`, for an op that writes to its arguments; None for others."""
        ...

    @property
    def initializer(self) -> str | None: ...

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was assumed while the arguments were made, beyond the assumptions of the plan."""
        ...

    @property
    def work(self) -> Work | None:
        """What the values of the arguments make the op do; None where that was not asked, or shapes alone decide."""
        ...


class Executor(Protocol):
    """Prepares, runs and closes; never prints."""

    @property
    def device(self) -> str:
        """ "cpu", "cuda:0", "npu:0"."""
        ...

    @property
    def clock(self) -> Clock: ...

    def facts(self) -> dict[str, object]:
        """Versions and device for the result's header; no host names, paths or secrets."""
        ...

    def prepare(self, op: ReplayOp, *, seed: int) -> Prepared:
        """Allocate and fill the arguments of `op`. Raises `NotReplayable` with a reason."""
        ...

    def run(self, prepared: Any) -> Any:
        """Call the op once and return its outputs, without waiting for the device."""
        ...

    def reset(self, prepared: Any) -> None:
        """Give arguments that the op writes to their first values again."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...

    def close(self) -> None: ...
