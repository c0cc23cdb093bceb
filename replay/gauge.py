"""A fixed piece of work that is timed around every op: tells a slower machine from a slower op; owns no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opreplay.replay.executors.base import Clock

READINGS = 3
"""The least of so many is taken: what disturbs only ever adds time."""
UNSTABLE = 1.15
"""Readings further apart than this ratio are worth a warning; on a quiet machine they agree within 3 %."""


class Gauge:
    """The same work whatever the op, on the device that runs the ops."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.best_us: float | None = None
        """The least reading so far: the machine at its fastest in this run."""

    def read(self, clock: Clock) -> float:
        """Microseconds that the work takes now."""
        reading = min(clock.time_calls(self._work, 1) for _ in range(READINGS))
        self.best_us = reading if self.best_us is None else min(self.best_us, reading)
        return reading
