"""Signals that end a run: Ctrl-C, also twice, SIGTERM to one or all, a closed terminal; nothing is left over."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opreplay.replay.results.reading import read_result_file

SCRIPT = Path(sys.executable).parent / "opreplay"
SAMPLE = Path(__file__).parents[2] / "traces" / "samples" / "transformer_infer.json.gz"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


def children_of(pid: int) -> set[int]:
    """Process ids of all descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, last = set[int](), {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last} - found
        found |= last
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Started:
    """A run of the console command that takes minutes, in a terminal of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.terminal, theirs = pty.openpty()
        # Eight rounds, as on a busy machine, would end the first op when two dozen have run.
        command = [SCRIPT, "run", SAMPLE, "-o", path]
        for setting in ("op_time=0.4s", "shared_device=true", "repeats=1"):
            command += ["--set", setting]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=take_terminal
        )
        os.close(theirs)
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        """A terminal that nobody reads stops who writes to it."""
        while not self._over.is_set():
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    os.read(self.terminal, 1 << 16)
                except OSError:
                    return

    def close(self) -> None:
        """Close the terminal."""
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            os.close(self.terminal)

    def until_an_op(self) -> set[int]:
        """Waits for the first result; the processes that the run has then."""
        deadline = time.monotonic() + 120
        while not self.path.exists() or self.path.read_bytes().count(b"\n") < 2:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return children_of(self.process.pid)


def ctrl_c_twice(run: Started, children: set[int]) -> None:
    os.write(run.terminal, b"\x03")
    time.sleep(0.02)
    run.process.send_signal(signal.SIGINT)


def all_terminated(run: Started, children: set[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGTERM)
    time.sleep(0.3)
    run.process.terminate()


def terminal_closed(run: Started, children: set[int]) -> None:
    run.close()


ENDS: tuple[Callable[[Started, set[int]], None], ...] = (ctrl_c_twice, all_terminated, terminal_closed)


@pytest.mark.slow
def test_every_way_to_end_a_run_keeps_the_results_and_leaves_no_process(tmp_path: Path) -> None:
    # At once, since each of them takes its seconds to load torch.
    runs = [Started(tmp_path / f"{end.__name__}.jsonl") for end in ENDS]
    try:
        for end, run in zip(ENDS, runs, strict=True):
            children = run.until_an_op()
            assert children
            end(run, children)
            assert run.process.wait(60) == 130, end.__name__
            deadline = time.monotonic() + 10
            while any(map(is_alive, children)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not [child for child in children if is_alive(child)], end.__name__
            file = read_result_file(run.path)
            assert file.summary is not None, end.__name__
            assert file.summary.interrupted
            assert file.results
            assert not [result.reason for result in file.results if "SIG" in str(result.reason)], end.__name__
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()
            run.close()
