"""The small protocol that every back-end implements; the fake one ships with the package."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from opreplay.replay.ir import ReplayOp


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


class Executor(Protocol):
    """Prepares, runs and closes; never prints."""

    device: str
    """"cpu", "cuda:0", "npu:0"."""

    def prepare(self, op: ReplayOp, *, seed: int) -> Any:
        """Allocate and fill the arguments of `op`. Raises `NotReplayable` with a reason."""
        ...

    def run(self, prepared: Any) -> Any:
        """Call the op once and return its outputs, without waiting for the device."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...

    def close(self) -> None: ...
