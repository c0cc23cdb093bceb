# pyright: strict
"""Fixed pieces of work that are timed beside every sample: tell a slower machine from a slower op; own no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opreplay.replay.execute.executors.clocks import Clock

UNSTABLE = 1.15
"""Readings further apart than this ratio are worth a warning; on a quiet machine they agree within 3 %."""


class Gauge:
    """The same work whatever the op, on the device that runs the ops.

    `compute` stays in the nearest cache; `memory`, where there is one, goes through memory outside the caches. What
    slows the machine may slow one of them alone: a neighbour on the same core, or on the same memory bus.
    """

    def __init__(self, compute: Callable[[], Any], memory: Callable[[], Any] | None = None) -> None:
        self._compute, self._memory = compute, memory
        self.best_us: float | None = None
        """The least reading of `compute` so far: the machine at its fastest in this run."""

    def read(self, clock: Clock, *, memory: bool = False) -> tuple[float, ...]:
        """Microseconds that the work takes now: `compute`, and then `memory` where that is asked for and there."""
        compute_us = clock.time_calls(self._compute, 1)
        self.best_us = compute_us if self.best_us is None else min(self.best_us, compute_us)
        if not memory or self._memory is None:
            return (compute_us,)
        return compute_us, clock.time_calls(self._memory, 1)
