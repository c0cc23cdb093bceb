# pyright: strict
"""Clocks (host counter, device events), and reference workloads.

A reference workload is fixed work that is timed together with the samples. It tells a slower machine from a slower op.
Other modules decide when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from time import get_clock_info, perf_counter, perf_counter_ns
from typing import Any

from opreplay.replay.host.interruptions import Interruptions, interruptions, threads_waited_us

QUEUE_CALLS = 200
"""Maximum number of calls in a batch on a device with a queue. CUDA queues 1,024 launches before it blocks."""
HOLD_US_PER_CALL = 10.0
"""Time, in µs per call of a batch, for which the device is blocked. The host can then queue the whole batch first.

If the host needs longer, the device is blocked for `HOLD_MARGIN` times the launch time.
"""
HOLD_MARGIN = 1.25
MAX_HOLD_US = 20000.0
UNSTABLE = 1.15
"""Ratio of two reference readings above which a warning is given. On a quiet machine, they agree within 3 %."""


class Clock:
    """Measures batches of calls; subclasses exist for host and device."""

    resolution_us: float
    """Smallest non-zero difference of two readings."""
    max_calls: int
    """Maximum number of calls in one batch."""

    def time_calls(self, call: Callable[[], Any], calls: int) -> float:
        """Return the total microseconds of `calls` consecutive calls, never below zero."""
        return self._timed(repeat(call, calls), calls)

    def time_each(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Return the total microseconds of different calls, run one after the other."""
        return self._timed(calls, len(calls))

    def launch_us(self, call: Callable[[], Any], calls: int) -> float | None:
        """Return the time per call, in µs, that the host needs to queue a batch of `calls`.

        None if the host does the work itself.
        """
        return None

    def now_s(self) -> float:
        """Return wall time in seconds, for budgets."""
        return perf_counter()

    def interruptions(self) -> Interruptions:
        """Return how often other programs have taken the processor so far.

        The counts are zero if the device keeps working while the host waits.
        """
        return Interruptions()

    def threads_waited_us(self) -> float:
        """Return the total time for which compute threads have waited for processors so far.

        It is 0 if the host does not compute.
        """
        return 0.0

    def _timed(self, calls: Iterable[Callable[[], Any]], count: int) -> float:
        """Return the microseconds of `count` calls, minus the clock's own overhead."""
        raise NotImplementedError


class HostClock(Clock):
    """Clock that reads `perf_counter_ns` around a loop and subtracts an overhead that it measures once.

    The overhead has two parts. One is the time of an empty loop. The other is the time by which a call through
    `partial` takes longer than a direct call.
    """

    max_calls = 100_000

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        """`now_ns` reads the counter. Benchmarks of this clock pass another function, e.g. for processor time."""
        self._now_ns = now_ns
        self.resolution_us = max(get_clock_info("perf_counter").resolution * 1e6, 1e-3)
        self.loop_us = 0.0
        self.call_us = 0.0
        self._calibrate()

    def interruptions(self) -> Interruptions:
        return interruptions()

    def threads_waited_us(self) -> float:
        return threads_waited_us()

    def _timed(self, calls: Iterable[Callable[[], Any]], count: int) -> float:
        now_ns = self._now_ns
        started = now_ns()
        for call in calls:
            call()
        ended = now_ns()
        return max(0.0, (ended - started) * 1e-3 - self.loop_us - count * self.call_us)

    def _calibrate(self, calls: int = 1000, rounds: int = 15) -> None:
        """Measure the overhead as the minimum over `rounds`, since all disturbances add time."""
        empty = partial(id, None)
        loop_us = min(self.time_calls(empty, 0) for _ in range(rounds))
        full_us = min(self.time_calls(empty, calls) for _ in range(rounds))
        written_us = min(self._time_written(calls) for _ in range(rounds))
        self.loop_us, self.call_us = loop_us, max(0.0, (full_us - loop_us - written_us) / calls)

    def _time_written(self, calls: int) -> float:
        """Return the time, in µs, of `calls` direct calls that do nothing, without the loop around them."""
        started = self._now_ns()
        for _ in repeat(None, calls):
            pass
        between = self._now_ns()
        for _ in repeat(None, calls):
            id(None)
        return max(0.0, (self._now_ns() - between - (between - started)) * 1e-3)


class EventClock(Clock):
    """Device time between two events on the device's queue, without the host's launch gaps if possible.

    `new_event()` makes an event with `record()` and `elapsed_time(other)` in milliseconds, like torch.cuda.Event.
    `synchronize()` waits for the device. `hold(us)`, if given, keeps the device busy for about that long. The batch can
    then be queued before it runs.
    """

    max_calls = QUEUE_CALLS
    resolution_us = 0.5
    """Resolution in µs that the CUDA documentation gives for cudaEventElapsedTime."""

    def __init__(
        self,
        new_event: Callable[[], Any],
        synchronize: Callable[[], None],
        hold: Callable[[float], None] | None = None,
    ) -> None:
        self._start, self._end = new_event(), new_event()
        self._synchronize = synchronize
        self._hold = hold
        self._hold_us_per_call = HOLD_US_PER_CALL
        self.pair_us = 0.0
        self.pair_us = min(self.time_calls(partial(id, None), 0) for _ in range(15))

    def launch_us(self, call: Callable[[], Any], calls: int) -> float:
        """Return the microseconds per call that the host needs to queue `calls` calls, without waiting for the device.

        From then on, the device is blocked before each batch for as long as the batch takes to launch.
        """
        self._synchronize()
        started = perf_counter_ns()
        for _ in repeat(None, calls):
            call()
        taken_us = (perf_counter_ns() - started) * 1e-3 / max(calls, 1)
        self._synchronize()
        self._hold_us_per_call = max(HOLD_US_PER_CALL, HOLD_MARGIN * taken_us)
        return taken_us

    def _timed(self, calls: Iterable[Callable[[], Any]], count: int) -> float:
        self._synchronize()
        if self._hold is not None and count > 1:
            self._hold(min(MAX_HOLD_US, count * self._hold_us_per_call))
        self._start.record()
        for call in calls:
            call()
        self._end.record()
        self._synchronize()
        return max(0.0, self._start.elapsed_time(self._end) * 1e3 - self.pair_us)


class Gauge:
    """Reference workloads on the device that runs the ops. They are the same for every op.

    `compute` stays in the nearest cache. `memory`, if available, uses memory outside the caches. A disturbance, e.g.
    another program on the same core or memory bus, may slow only `compute` or only `memory`.
    """

    def __init__(self, compute: Callable[[], Any], memory: Callable[[], Any] | None = None) -> None:
        self._compute, self._memory = compute, memory
        self.best_us: float | None = None
        """Lowest reading of `compute` so far, in µs. It shows the highest speed of the machine in this run."""

    def read(self, clock: Clock, *, memory: bool = False) -> tuple[float, ...]:
        """Time the reference workloads once. Return µs of `compute` and, if requested and available, of `memory`."""
        compute_us = clock.time_calls(self._compute, 1)
        self.best_us = compute_us if self.best_us is None else min(self.best_us, compute_us)
        if not memory or self._memory is None:
            return (compute_us,)
        return compute_us, clock.time_calls(self._memory, 1)
