# pyright: strict
"""One child process and its socket: starting it, exchanging frames, and ending it without leftovers.

This module handles the process and its cause of death. `workers` decides when a child is replaced, and `runner` decides
which op is retried.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from opreplay.replay.execute.messages import RankConfig, Ready, Refused, Reply
from opreplay.replay.host import environment
from opreplay.replay.host.channel import receive, send
from opreplay.replay.host.limits import FROM_OUTSIDE
from opreplay.replay.host.needs_torch import require_torch
from opreplay.replay.ir.model import Reason
from opreplay.traces.child_process import python_command

START_S = 180.0
"""Time limit for loading torch and opening the device, which is slow if file caches are cold."""
GRACE_S = 5.0
"""Time for a child to exit after its socket is closed."""
FRAME_S = 10.0
"""Time limit for the rest of a frame that has begun to arrive."""
NOISE_BYTES = 2000
"""Bytes of a dying child's stderr that are searched for a reason."""
LOOK_S = 5.0
"""Interval, in seconds, between checks of a starting child. A child that is stopped at two checks in a row is
given up.
"""
STARTS = 3
"""Maximum number of consecutive failed starts.

It is 1 if no child has started before and no signal ended or stopped the child.
"""
OPS, RANK = "execute.processes.worker", "execute.ranks.rank"
"""Modules that run in a child: `OPS` runs ops, `RANK` is one rank of a process group."""


def _stderr_or_nothing() -> int:
    """Return the file descriptor to which a child prints: stderr.

    Users' code may print, and stdout is reserved for results.
    """
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _unbuffered(command: list[str]) -> list[str]:
    """Return the command with unbuffered output. Prints of users' code then appear even if the child is
    killed later.
    """
    return [command[0], "-u", *command[1:]]


class Child:
    """A worker process. Its configuration is sent at the start; `receive` reports when it is ready."""

    def __init__(self, config: msgspec.Struct, *, module: str | None = None, replies: Any = Reply) -> None:
        """Start the child with `config` as the first message.

        `module` is a module below `opreplay.replay` with a function `serve`, which sends messages of the type
        `replies`. Raises EnvironmentRefused without torch.
        """
        require_torch()
        self._decoder = msgspec.msgpack.Decoder[Any](replies)
        self.facts: dict[str, object] | None = None
        """Facts about the child's device; None until the child is ready."""
        self._ready_by, self._was_stopped = monotonic() + START_S, False
        self._kills_before = environment.kills_for_memory()
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        serving = "opreplay.replay." + (module or (RANK if isinstance(config, RankConfig) else OPS))
        mine, theirs = socket.socketpair()
        self._channel = mine
        with theirs:
            self.process = subprocess.Popen(
                _unbuffered(python_command(serving, "serve", theirs.fileno(), os.getpid())),
                stdin=subprocess.DEVNULL,
                stdout=_stderr_or_nothing(),
                stderr=self._noise,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.send(config)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has a message."""
        return self._channel.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Write one frame; does not raise if the child is gone."""
        self._channel.settimeout(FRAME_S)
        with contextlib.suppress(OSError):
            send(self._channel, message)

    def receive(self) -> Any:
        """Return the child's next message, or None if it is gone.

        Raises UsageError or EnvironmentRefused if the child reports that it cannot work at all.
        """
        self._channel.settimeout(FRAME_S)
        try:
            frame = receive(self._channel)
        except OSError:
            return None
        if frame is None:
            return None
        reply = self._decoder.decode(frame)
        if isinstance(reply, Refused):
            raise reply.error()
        if isinstance(reply, Ready):
            self.facts = reply.facts
        return reply

    def next_look(self) -> float:
        """Return when to check `overdue` next for a child that is not ready. The time is on the monotonic clock."""
        return min(self._ready_by, monotonic() + LOOK_S)

    def overdue(self) -> str:
        """Return why the child will not become ready; "" if it still may."""
        before, self._was_stopped = self._was_stopped, self.is_stopped
        if before and self._was_stopped:
            return "was stopped before it was ready"
        return f"was not ready after {START_S:g} s" if monotonic() >= self._ready_by else ""

    def cause_of_death(self) -> Reason:
        """Return why a child closed its socket unexpectedly: its signal or exit status."""
        try:
            code = self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return Reason("failed", "closed its channel but kept running")
        last = self._last_words()
        if code < 0:
            name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            if name not in FROM_OUTSIDE:
                return Reason("failed", f"{name}: {last}" if last else name)
            if name == "SIGKILL" and self._ran_out_of_memory():
                return Reason("budget", "memory: killed by the kernel because memory ran out (--set max_op_memory)")
            return Reason("worker lost", f"{name} from outside")
        return Reason("failed", f"the process ended with status {code}" + (f": {last}" if last else ""))

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended or stopped the child. The cause may lie outside the child, so a retry may succeed."""
        code = self.process.poll()
        return self.is_stopped if code is None else code < 0

    @property
    def is_stopped(self) -> bool:
        """Check whether a signal stopped the child; False if the system does not report it."""
        return is_stopped(self.process.pid)

    def _ran_out_of_memory(self) -> bool:
        """Check whether the kernel has killed processes because memory ran out since this child started."""
        before, now = self._kills_before, environment.kills_for_memory()
        return before is not None and now is not None and now > before

    def end(self, *, grace_s: float) -> None:
        """Close the socket, wait `grace_s`, kill and reap the child. Never raises and leaves no process behind."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if grace_s:
                self.process.wait(grace_s)
        # The child leads a session of its own: this takes what it may have started along.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._noise.close()

    def _last_words(self) -> str:
        """Return the last line on stderr, skipping the frames of a Python traceback."""
        self._noise.flush()
        size = self._noise.seek(0, os.SEEK_END)
        self._noise.seek(max(0, size - NOISE_BYTES))
        lines = self._noise.read().decode("utf-8", errors="replace").splitlines()
        # Torch's profiler tells its probes there.
        words = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t", "USDT:"))]
        return words[-1][:200] if words else ""


def is_stopped(pid: int) -> bool:
    """Check whether a signal or a debugger stopped a process; False if the system does not report it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] in (["T"], ["t"])
