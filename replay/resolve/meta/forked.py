# pyright: strict
"""Calls functions on ops in a forked copy of this process, so that a hang or crash affects only the op that caused it.

Intended for calls on meta tensors. These compute nothing, but they run torch's code on arguments from a trace. Such an
argument may set the loop count of a composite op. This module handles the fork and its limits. Ops that compute run in
a worker (`isolation`) instead.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

import msgspec
import torch

from opreplay.replay.host.channel import receive, send
from opreplay.replay.host.dispatcher import registered_ops
from opreplay.replay.host.limits import FROM_OUTSIDE, die_with, limit_memory
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.ops.register import overloads_defined
from opreplay.replay.resolve.meta.tracing_modules import put_stand_ins
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.traces.names import plural

Function = Callable[[ReplayOp, Policy], bytes]
"""Function at module level that does not raise. It runs in the child, where its side effects and output are lost."""
CPU_S = 10.0
"""CPU time limit per op in seconds. It is this large because the first op may have to import torch's decompositions."""
WALL_S = 120.0
"""Wall-clock limit in seconds for an op that waits without computing."""
MOST_LOST = 6
"""Number of ops that may hang or crash before the remaining ops are skipped. There is a limit because a file could hold
any number of such ops.
"""
MEMORY_BYTES = 512 << 20
"""Memory limit of the child in bytes, see `worker.limit_memory`. The limit can be small because meta tensors have no
memory.
"""
TOGETHER = 64
"""Number of ops sent to the child at once."""


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    policy: Policy
    cpu_s: float
    ops: tuple[ReplayOp, ...]


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes


FUNCTIONS: dict[str, Function] = {}
_lock = Lock()
_lost: dict[bytes, Reason] = {}
"""Reasons of calls that never returned, by the call's key.

Such calls are not repeated. Their number is limited by `MOST_LOST`, which bounds the time that they cost.
"""


def function(wanted: Function) -> Function:
    """Decorator: register a function under its name so that the child can call it."""
    if wanted.__qualname__ in FUNCTIONS:
        raise ValueError(f"two functions have the name {wanted.__qualname__}")
    FUNCTIONS[wanted.__qualname__] = wanted
    return wanted


def each(wanted: Function, ops: Sequence[ReplayOp], policy: Policy) -> list[bytes | Reason]:
    """Return the function's result for each op, or the reason why it did not return."""
    if not hasattr(os, "fork"):
        return [wanted(op, policy) for op in ops]
    with _lock:
        known = [_lost.get(_call_of(op)) for op in ops]
        unknown = [op for op, why in zip(ops, known, strict=True) if why is None]
        answers = iter(_answers(wanted, unknown, policy, len(ops) - len(unknown)))
        return [next(answers) if why is None else why for why in known]


def _answers(wanted: Function, ops: Sequence[ReplayOp], policy: Policy, lost: int) -> list[bytes | Reason]:
    """Return the child's reply for each op; `lost` is the number of ops that failed to return in earlier calls."""
    answers: list[bytes | Reason] = []
    retried: int | None = None
    while len(answers) < len(ops):
        if lost >= MOST_LOST:
            why = Reason(
                "budget", f"time: not called on meta tensors, because {plural(lost, 'op')} hung or crashed on them"
            )
            return answers + [why] * (len(ops) - len(answers))
        batch = tuple(ops[len(answers) : len(answers) + TOGETHER])
        task = _Task(function=wanted.__qualname__, policy=policy, cpu_s=CPU_S, ops=batch)
        reason = _Copy.current().work(task, answers)
        if reason is not None and reason.kind != "budget" and len(answers) != retried:
            retried = len(answers)  # somebody may have ended the child: the op is to blame where it happens again
        elif reason is not None:
            _lost[_call_of(ops[len(answers)])] = reason
            answers.append(reason)
            lost += 1
    return answers


def any_lost() -> bool:
    """Check whether any call of this process did not return. Whether a call does may depend on the machine's load."""
    return bool(_lost)


def _call_of(op: ReplayOp) -> bytes:
    """Return a key that is equal for ops with identical calls on meta tensors."""
    return msgspec.msgpack.encode((op.called, op.overload, op.resolved_by, op.via, op.args))


class _Copy:
    """A child forked from this process, and the socket to it."""

    running: _Copy | None = None

    def __init__(self, state: object) -> None:
        self._state = state
        self._parent = os.getpid()
        self._channel, theirs = socket.socketpair()
        with theirs, warnings.catch_warnings():
            # Python warns of threads that the child lacks; it computes nothing that would need them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
            if self._pid == 0:
                _serve(theirs.fileno(), self._parent)
        self._channel.settimeout(WALL_S)

    @classmethod
    def current(cls) -> _Copy:
        """Return the child process.

        A new one is forked if there is none, or if ops or functions were registered since the fork. Reference
        implementations do not count, because the child registers them itself.
        """
        state = (os.getpid(), tuple(FUNCTIONS), tuple(EXECUTORS), len(registered_ops()) - overloads_defined())
        if cls.running is not None and (cls.running._state != state or cls.running._ended() is not None):
            cls.running.end()
        if cls.running is None:
            cls.running = cls(state)
        return cls.running

    def work(self, task: _Task, answers: list[bytes | Reason]) -> Reason | None:
        """Append the child's replies to `answers`.

        Returns None if all ops have a reply. Otherwise, returns why the first op without a reply has none.
        """
        try:
            send(self._channel, task)
            for _ in task.ops:
                frame = receive(self._channel)
                if frame is None:
                    return self._why(task.cpu_s)
                answers.append(msgspec.msgpack.decode(frame, type=_Answer).body)
        except TimeoutError:
            self.end()
            return Reason("budget", f"time: no result on meta tensors after {WALL_S:g} s")
        except OSError:
            return self._why(task.cpu_s)
        except BaseException:  # Ctrl-C: what is still to come would be taken for other answers
            self.end()
            raise
        return None

    def end(self) -> None:
        """Kill and reap the child, unless another process forked it."""
        self._channel.close()
        if os.getpid() == self._parent and self._ended() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
        type(self).running = None

    def _ended(self) -> int | None:
        """Return the exit status of the child; None if it is alive. If the child has ended and was reaped before, the
        result is 0.
        """
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        return status if pid else None

    def _why(self, cpu_s: float) -> Reason:
        """Return why the child closed its socket."""
        _, status = os.waitpid(self._pid, 0)
        self.end()
        if not os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status)
            return Reason("failed", f"the process ended with status {code} on meta tensors")
        number = os.WTERMSIG(status)
        if number == signal.SIGPROF:
            return Reason("budget", f"time: no result on meta tensors after {cpu_s:g} s")
        name = signal.Signals(number).name
        if name in FROM_OUTSIDE:
            return Reason("worker lost", f"{name} on meta tensors")
        return Reason("failed", f"{name} on meta tensors")


def _serve(descriptor: int, parent: int) -> None:
    """Serve requests in the child until its socket closes. Never returns, and runs none of the parent's exit
    handlers.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):  # the parent's handlers would raise and blame the op
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        # Else files and sockets of the parent would stay open for as long as this process lives.
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX") if sys.platform != "linux" else 1 << 16)
        die_with(parent)
        limit_memory(MEMORY_BYTES)
        put_stand_ins()
        torch.set_num_threads(1)  # the threads of the parent's pool do not exist here
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        with socket.socket(fileno=descriptor) as channel:
            while (frame := receive(channel)) is not None:
                task = msgspec.msgpack.decode(frame, type=_Task)
                for op in task.ops:
                    signal.setitimer(signal.ITIMER_PROF, task.cpu_s)
                    send(channel, _Answer(body=FUNCTIONS[task.function](op, task.policy)))
                signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        os._exit(0 if sys.exc_info()[0] is None else 1)


@atexit.register
def _end() -> None:
    if _Copy.running is not None:
        _Copy.running.end()
