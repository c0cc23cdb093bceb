# pyright: strict
"""Runs a command in a fresh process and measures the processor time and peak memory of all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.1
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB", "POLARS", "RAYON")
} | {"POLARS_MAX_THREADS": "1"}
"""Environment in which common numeric libraries use one thread."""


class Cost(NamedTuple):
    """What a command took, and what it printed."""

    code: int | None
    """Exit status; None if the time limit stopped it."""
    cpu_s: float
    """User and system time of the process and of all descendants that it waited for."""
    peak_mb: float
    """Largest sum of memory over the process tree, with shared pages counted once."""
    largest_mb: float
    """Most memory of a single process of them."""
    stdout: str
    stderr: str

    @property
    def failure(self) -> str:
        """Return "" for success, else why the command failed: the last line that it wrote to stderr."""
        if self.code is None:
            return "time limit"
        last = self.stderr.strip().rpartition("\n")[2]
        return "" if self.code == 0 else last or f"exit code {self.code}"


def cost_of(
    command: Sequence[str | Path],
    *,
    limit_s: float = 600.0,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Cost:
    """Run a command to its end, or stop it and its descendants after `limit_s`; return what it took."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
        peak = largest = 0.0
        end, over = time.monotonic() + limit_s, False
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            # Not `ru_maxrss`, which begins with the memory of this process.
            processes = [child.pid, *_descendants(child.pid)]
            largest = max(largest, *(_memory_mb(one, "status", "VmHWM:") for one in processes))
            if len(processes) > 1:
                peak = max(peak, sum(_memory_mb(one, "smaps_rollup", "Pss:") for one in processes))
            if not over and time.monotonic() > end:
                over = True
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(POLL_S)
        child.returncode = os.waitstatus_to_exitcode(status)  # waited for here, so that Popen does not
        texts = [_text(file.fileno()) for file in (stdout, stderr)]
    return Cost(
        code=None if over else child.returncode,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=max(peak, largest),
        largest_mb=largest,
        stdout=texts[0],
        stderr=texts[1],
    )


def _text(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")


def _descendants(pid: int) -> Iterable[int]:
    """Return the descendants of a process that run now."""
    try:
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:  # it has just ended
        return
    for child in children:
        yield child
        yield from _descendants(child)


def _memory_mb(pid: int, file: str, field: str) -> float:
    """Return one of the sizes that the system tells of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
