# pyright: strict
"""Count how often other programs preempted this process, as Linux reports it.

Other systems report no counts.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from time import thread_time_ns
from typing import NamedTuple

SCHEDSTAT = "/proc/thread-self/schedstat"
"""File with the nanoseconds that the thread spent on a CPU and waiting for a CPU, and the number of time slices.

Source: Documentation/scheduler/sched-stats.rst.
"""


THREADS = "/proc/self/task"
"""Folder with one subfolder per thread of this process."""


class Interruptions(NamedTuple):
    """Totals since the process started; they are zero if the system does not report them."""

    switches: int = 0
    """Number of involuntary context switches of all threads of this process."""
    waited_us: float = 0.0
    """Time that the calling thread waited for a CPU while it was runnable."""
    used_us: float | None = None
    """CPU time of the calling thread; None if a device does the work."""

    def waited_since(self, before: Interruptions, took_us: float) -> float:
        """Return how much of the `took_us` of wall time after `before` was spent waiting for a CPU.

        The counts are read outside the timed region, where switches are most likely. Hence the result is limited to the
        part of `took_us` in which the thread did not compute.
        """
        idle_us = took_us - ((self.used_us or 0.0) - (before.used_us or 0.0))
        return max(0.0, min(self.waited_us - before.waited_us, idle_us))


class _ThreadWait:
    """File that reports how long a thread waited for a CPU.

    It is kept open, because reading it then takes less than 1 us.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        try:
            self._descriptor = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1
            return
        weakref.finalize(self, os.close, self._descriptor)

    def us(self) -> float:
        if self._descriptor < 0:
            return 0.0
        try:
            return _waited_ns(os.pread(self._descriptor, 96, 0)) * 1e-3
        except OSError:  # the thread has ended
            return 0.0


class _OfThread(threading.local):
    """Thread-local open file: one `_ThreadWait` per thread."""

    wait: _ThreadWait | None = None


_own = _OfThread()


def interruptions() -> Interruptions:
    """Return the number of preemptions of all threads, and the waiting time and CPU time of the calling thread.

    Counts that the system does not report are zero.
    """
    if not sys.platform.startswith("linux"):
        return Interruptions(used_us=thread_time_ns() * 1e-3)
    if _own.wait is None or _own.wait.process != os.getpid():  # after a fork the file is the parent's
        _own.wait = _ThreadWait()
    return Interruptions(switches=switches(), waited_us=_own.wait.us(), used_us=thread_time_ns() * 1e-3)


def switches() -> int:
    """Return how often threads of this process were preempted, or 0 if the system does not report it."""
    if not sys.platform.startswith("linux"):
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def threads_waited_us() -> float:
    """Return the total time that runnable threads of this process waited for a CPU.

    Returns 0 if the system does not report it. Takes about 10 us per thread. The time includes the wait of a thread
    that was woken for its share of an op and found no free CPU. This thread was not switched out. Hence neither
    `Interruptions.switches` nor the waiting time of the calling thread shows its wait.
    """
    waited_ns = 0
    try:
        for thread in os.listdir(THREADS):
            with suppress(OSError), open(f"{THREADS}/{thread}/schedstat", "rb") as file:  # a thread may end meanwhile
                waited_ns += _waited_ns(file.read(96))
    except OSError:
        return 0.0
    return waited_ns * 1e-3


def _waited_ns(schedstat: bytes) -> int:
    fields = schedstat.split()
    return int(fields[1]) if len(fields) == 3 else 0
