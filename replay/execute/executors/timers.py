# pyright: strict
"""Timers for the single calls of a sequence: the host counter, or a pair of events. Uses no tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

from opreplay.replay.execute.executors.clocks import HOLD_MARGIN, HOLD_US_PER_CALL, MAX_HOLD_US
from opreplay.replay.host.interruptions import switches

CHUNK = 50
"""Number of calls that are queued while the device is blocked. It is smaller than the depth of the device's queue."""


class Timer:
    """Times the calls of one pass through a sequence."""

    def begin(self) -> None:
        """Start a pass."""
        raise NotImplementedError

    def timed(self, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call the function, record its time and return its result. Exceptions pass through and record no time."""
        raise NotImplementedError

    def end(self) -> list[float]:
        """Return the microseconds of each call of the pass."""
        raise NotImplementedError

    def interrupted(self) -> Sequence[int]:
        """Return the indices of calls that another program interrupted on this thread's processor.

        Empty if the system does not report interruptions.
        """
        return ()


class HostTimer(Timer):
    """Reads the host counter right before and after each call. The overhead is measured once and subtracted."""

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._taken: list[int] = []
        self._switched: list[int] = []
        self._empty_us = 0.0
        for _ in range(200):
            self.timed(_nothing, (), {})
        self._empty_us = min(self.end())

    def begin(self) -> None:
        self._taken, self._switched = [], []

    def timed(self, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        before = switches()
        started = self._now_ns()
        result = function(*args, **named)
        self._taken.append(self._now_ns() - started)
        if switches() != before:
            self._switched.append(len(self._taken) - 1)
        return result

    def end(self) -> list[float]:
        return [max(0.0, taken * 1e-3 - self._empty_us) for taken in self._taken]

    def interrupted(self) -> Sequence[int]:
        return self._switched


class EventTimer(Timer):
    """Records a pair of events on the device's queue around each call, and reads them after the pass.

    The device is kept busy while a chunk of calls is queued. Slow launches on the host therefore do not count. It is
    kept busy for as long as it took to queue the previous chunk.
    """

    def __init__(
        self, new_event: Callable[[], Any], synchronize: Callable[[], None], hold: Callable[[float], None] | None
    ) -> None:
        self._new_event, self._synchronize, self._hold = new_event, synchronize, hold
        self._pairs: list[tuple[Any, Any]] = []
        self._used = 0
        self._empty_us = 0.0
        self._queued_from = 0
        self._launch_us = HOLD_US_PER_CALL
        for _ in range(CHUNK):
            self.timed(_nothing, (), {})
        self._empty_us = min(self.end())

    def begin(self) -> None:
        self._used = 0
        self._synchronize()
        self._queued_from = perf_counter_ns()

    def timed(self, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if self._hold is not None and self._used % CHUNK == 0:
            self._begin_chunk(self._hold)
        if self._used == len(self._pairs):
            self._pairs.append((self._new_event(), self._new_event()))
        before, after = self._pairs[self._used]
        before.record()
        result = function(*args, **named)
        after.record()
        self._used += 1
        return result

    def end(self) -> list[float]:
        self._synchronize()
        used = self._pairs[: self._used]
        self._used = 0
        return [max(0.0, before.elapsed_time(after) * 1e3 - self._empty_us) for before, after in used]

    def _begin_chunk(self, hold: Callable[[float], None]) -> None:
        now = perf_counter_ns()
        if self._used:
            self._launch_us = max(HOLD_US_PER_CALL, (now - self._queued_from) * 1e-3 / CHUNK)
        self._synchronize()
        hold(min(MAX_HOLD_US, HOLD_MARGIN * CHUNK * self._launch_us))
        self._queued_from = perf_counter_ns()


def _nothing() -> None:
    """Do nothing; called to measure the timing overhead."""
