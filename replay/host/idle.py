# pyright: strict
"""Measure how many CPUs of this machine are not used by other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import sleep

LOOK_S = 0.2
"""Time over which CPU use is measured: twenty of the kernel's ticks."""
IDLE_SHARE = 0.9
"""Share of a CPU that must be idle for each thread.

With fewer idle CPUs, the machine counts as busy, and fewer threads are used.
"""


def is_busy(facts: Mapping[str, object]) -> bool:
    """Check from an executor's facts whether the machine was busy when the executor started.

    It was busy if too few CPUs were idle for torch's default threads. The number of threads that was chosen does not
    matter, because even a single thread is interrupted on a busy machine.
    """
    wanted, idle = facts.get("threads_of_torch"), facts.get("idle_cpus")
    if not isinstance(idle, int | float) or not isinstance(wanted, int):
        return False
    fewer = not facts.get("threads_asked") and facts.get("threads") != wanted  # before `idle_cpus` was rounded
    return fewer or idle < max(1.0, IDLE_SHARE * wanted)


def idle_cpus(look_s: float = LOOK_S) -> float | None:
    """Return how many of the CPUs available to this process are not used by other programs.

    CPU time of this process and its parent counts as idle. Returns None if Linux does not report CPU times.
    """
    before = _ticks()
    if before is None:
        return None
    ticks_before = _own_ticks()
    sleep(look_s)
    after = _ticks()
    if after is None or after[1] <= before[1]:
        return None
    cpus = len(os.sched_getaffinity(0))
    idle, total = after[0] - before[0] + _own_ticks() - ticks_before, after[1] - before[1]
    free = cpus * min(1.0, idle / total)
    quota = _quota()
    return free if quota is None else min(free, quota)


def _ticks() -> tuple[int, int] | None:
    """Return the idle ticks and all ticks of the CPUs available to this process (proc(5), /proc/stat)."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        mine = {f"cpu{index}" for index in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    rows = [[int(number) for number in line[1:9]] for line in lines if line[0] in mine]
    return (sum(row[3] + row[4] for row in rows), sum(map(sum, rows))) if rows else None


def _own_ticks() -> int:
    """Return the CPU time that this process and its parent have used so far, in kernel ticks."""
    ticks = 0
    for process in ("self", str(os.getppid())):
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks


def _quota() -> float | None:
    """Return the number of CPUs that this process's control group may use, or None without a limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, _, period = file.read().partition(" ")
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None
