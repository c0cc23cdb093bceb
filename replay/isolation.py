"""Runs each op where it can do no harm: in one child process that is replaced when it dies, or in this process.

A hang, a crash, an abort or a lack of memory costs the op that caused it and nothing else. Owns the child's life; what
the child does is in `worker`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from time import monotonic
from typing import Protocol

import msgspec

from opreplay.replay.attempt import Outcome, attempt, unable
from opreplay.replay.executors.base import Executor
from opreplay.replay.ir import Reason, ReplayOp
from opreplay.replay.measure import MeasureOptions
from opreplay.replay.worker import Ready, Refused, Reply, Task, WorkerConfig, receive, send
from opreplay.traces.errors import EnvironmentRefused, UsageError

START_S = 180.0
"""Time for a child to load torch and open its device; cold file caches are slow."""
GRACE_S = 5.0
"""Time for a child to end by itself once its socket is closed."""
NOISE_BYTES = 2000
"""How much of what a dying child wrote to stderr is looked at for a reason."""
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from opreplay.replay.worker import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
"""Gives the child the parent's module path, so that the folder it runs in cannot slip a module in."""


class Runner(Protocol):
    """Something that makes outcomes of ops."""

    def start(self) -> dict[str, object]:
        """Get ready; the device's facts. Raises OpReplayError when the device is missing."""
        ...

    def measure(self, op: ReplayOp) -> Outcome: ...

    def close(self) -> None: ...


class InProcess:
    """Runs ops in this process, for tests and debuggers: fast to start, and as fragile as the ops are."""

    def __init__(self, executor: Executor, *, seed: int, options: MeasureOptions, shrink_to: int | None = None) -> None:
        self._executor, self._seed, self._options, self._shrink_to = executor, seed, options, shrink_to

    def start(self) -> dict[str, object]:
        return self._executor.facts()

    def measure(self, op: ReplayOp) -> Outcome:
        return attempt(self._executor, op, seed=self._seed, options=self._options, shrink_to=self._shrink_to)

    def close(self) -> None:
        self._executor.close()


class ChildProcess:
    """Runs ops in a child, one at a time, with a time limit for each."""

    def __init__(self, config: WorkerConfig, *, limit_s: float) -> None:
        self._config, self._limit_s = config, limit_s
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child, while there is one."""
        return None if self._child is None else self._child.process.pid

    def start(self) -> dict[str, object]:
        """Start the first child now, so that a missing device is known before anything is measured."""
        self._child = _Child(self._config)
        return self._child.facts

    def measure(self, op: ReplayOp) -> Outcome:
        """The op's outcome; a crash after other ops ran in the same child is tried once more in a fresh one."""
        fresh = self._child is None or self._child.tasks == 0
        outcome, crashed = self._try(op)
        if crashed and not fresh:
            outcome, _ = self._try(op)
        return outcome

    def close(self) -> None:
        """End the child; it has `GRACE_S` to do so by itself."""
        if self._child is not None:
            self._child.end(grace_s=GRACE_S)
            self._child = None

    def _try(self, op: ReplayOp) -> tuple[Outcome, bool]:
        """The outcome, and whether the child died of a signal or left."""
        child = self._child if self._child is not None else _Child(self._config)
        self._child = child
        try:
            reply = child.ask(op, self._limit_s)
        except TimeoutError:
            self._drop()
            detail = f"time: no result after {self._limit_s:g} s (--op-time)"
            return unable(Reason("budget", detail)), False
        except BaseException:
            # Ctrl-C and everything else that ends the run: leave no child behind.
            self._drop()
            raise
        if reply is not None:
            return reply, False
        why = child.cause_of_death()
        self._drop()
        return unable(why), True

    def _drop(self) -> None:
        if self._child is not None:
            self._child.end(grace_s=0.0)
            self._child = None


class _Child:
    """One child process and the socket to it."""

    def __init__(self, config: WorkerConfig) -> None:
        self.tasks = 0
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        mine, theirs = socket.socketpair()
        self._channel = mine
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._noise,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        try:
            self.facts = self._shake_hands(config)
        except BaseException:
            self.end(grace_s=0.0)
            raise

    def ask(self, op: ReplayOp, limit_s: float) -> Outcome | None:
        """The outcome, or None when the child died of it. Raises TimeoutError when it takes too long."""
        self._channel.settimeout(limit_s)
        try:
            send(self._channel, Task(op=op))
            frame = self._receive_until(monotonic() + limit_s)
        except ConnectionError:
            return None
        self.tasks += 1
        return None if frame is None else msgspec.msgpack.decode(frame, type=Outcome)

    def cause_of_death(self) -> Reason:
        """The signal or exit status of a child whose socket closed by itself."""
        try:
            code = self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return Reason("failed", "closed its channel and lived on")
        last = self._last_words()
        if code < 0:
            name = signal.Signals(-code).name
            if -code == signal.SIGKILL:
                return Reason("budget", "memory: SIGKILL, most likely since memory ran out (--max-op-memory)")
            return Reason("failed", f"{name}: {last}" if last else name)
        return Reason("failed", f"the process ended with status {code}" + (f": {last}" if last else ""))

    def end(self, *, grace_s: float) -> None:
        """Close the socket, wait, kill, reap; never raises and leaves nothing behind."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if grace_s:
                self.process.wait(grace_s)
        # The child leads a session of its own: this takes what it may have started along.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._noise.close()

    def _shake_hands(self, config: WorkerConfig) -> dict[str, object]:
        self._channel.settimeout(START_S)
        try:
            send(self._channel, config)
            frame = self._receive_until(monotonic() + START_S)
        except TimeoutError:
            raise EnvironmentRefused(f"the worker process was not ready after {START_S:g} s") from None
        except ConnectionError:
            frame = None
        if frame is None:
            why = self.cause_of_death()
            raise EnvironmentRefused(f"the worker process did not start: {why.detail}", hint="Run `opreplay doctor`.")
        reply = msgspec.msgpack.decode(frame, type=Reply)
        if isinstance(reply, Refused):
            kind = UsageError if reply.exit_code == UsageError.exit_code else EnvironmentRefused
            raise kind(reply.message, hint=reply.hint)
        if not isinstance(reply, Ready):
            raise EnvironmentRefused("the worker process answered out of turn")
        return reply.facts

    def _receive_until(self, deadline: float) -> bytes | None:
        """One frame; the socket's timeout holds for each read, so a child that trickles bytes is cut off as well."""
        self._channel.settimeout(max(0.01, deadline - monotonic()))
        return receive(self._channel)

    def _last_words(self) -> str:
        """The last line on stderr that is not a part of a Python traceback's frames."""
        self._noise.flush()
        size = self._noise.seek(0, os.SEEK_END)
        self._noise.seek(max(0, size - NOISE_BYTES))
        lines = self._noise.read().decode("utf-8", errors="replace").splitlines()
        words = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
        return words[-1][:200] if words else ""
