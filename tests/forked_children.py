"""Child processes of opreplay that are forked from one that has loaded torch: a start costs 20 ms and not 2 s.

For tests of what children answer. How they are started is tested where this fixture is not used: in
`tests/integration`, in `tests/replay/execute/processes`, and by every test that starts the console script.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

PR_SET_CHILD_SUBREAPER = 36
PRELOADED = (
    "torch",
    "torch._dynamo",  # 2 s at the first call of a custom op or of a fake tensor
    "torch.testing._internal.optests",
    "opreplay.replay.check.worker",
    "opreplay.replay.check.check",
    "opreplay.replay.execute.processes.worker",
    "opreplay.replay.execute.executors.torch.device",
    "opreplay.replay.execute.ranks.rank",
)
"""What every child loads sooner or later."""
ABOVE = 100
"""Descriptors that are received are moved to numbers from here on, out of the way of those that a command names."""


class Forked:
    """A process that was forked for us: as much of `subprocess.Popen` as `replay.execute.processes.child` takes."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the same once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            select.select([self._handle], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)
        return code


class Template:
    """The process that has loaded what children need, and forks them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def _open(self) -> None:
        """Start the process; loading torch takes 2 s."""
        self._channel, theirs = socket.socketpair()
        paths = [entry for entry in sys.path if os.path.isabs(entry)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), json.dumps(paths)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def start(self, command: list[str], *, stdout: int, stderr: int, pass_fds: tuple[int, ...]) -> Forked:
        """Return a child of this process that runs `python -c CODE ARGUMENTS` of a command as a fresh one would."""
        if self._process is None:
            self._open()
        at = command.index("-c")
        request = {
            "code": command[at + 1],
            "arguments": command[at + 2 :],
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "descriptors": [1, 2, *pass_fds],
            "parent": os.getpid(),
        }
        text = json.dumps(request).encode()
        library = ctypes.CDLL(None)
        library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the one between ends at once: its child becomes ours
        try:
            self._channel.sendall(len(text).to_bytes(4, "big"))
            socket.send_fds(self._channel, [text[:1]], [stdout, stderr, *pass_fds])
            self._channel.sendall(text[1:])
            pid = int.from_bytes(_exactly(self._channel, 4), "big")
        finally:
            library.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return Forked(pid)

    def close(self) -> None:
        """End it, if it was started."""
        if self._process is not None:
            self._channel.close()
            self._process.wait(10)
            self._process = None


TEMPLATE = Template()


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Children are forked while this lasts."""
    from opreplay.replay.execute.processes import child

    def start(command: list[str], *, stdout: int, stderr: Any, pass_fds: tuple[int, ...], **_: Any) -> Forked:
        if stdout != subprocess.DEVNULL:
            return TEMPLATE.start(command, stdout=stdout, stderr=stderr.fileno(), pass_fds=pass_fds)
        with open(os.devnull, "w") as nothing:
            return TEMPLATE.start(command, stdout=nothing.fileno(), stderr=stderr.fileno(), pass_fds=pass_fds)

    known = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", SimpleNamespace(Popen=start, **known))
        yield


@pytest.fixture
def forked_children() -> Iterator[None]:
    """Children of this test are forked."""
    with forking():
        yield


def python_module(
    name: str, *arguments: str, cwd: Path | None = None, timeout: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `python -m name` with these arguments prints; its process is forked as children are."""
    code = f"import runpy, sys; sys.path.insert(0, ''); runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as errors,
    ):
        patch.chdir(cwd or Path.cwd())
        for variable, value in environment.items():
            patch.setenv(variable, value)
        process = TEMPLATE.start(["-c", code, *arguments], stdout=out.fileno(), stderr=errors.fileno(), pass_fds=())
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        texts = [file.seek(0) or file.read() for file in (out, errors)]
    return subprocess.CompletedProcess([name, *arguments], status, *texts)


def opreplay_here(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`opreplay` with these arguments in this process, as if it were one of its own; its children are forked."""
    from opreplay.cli.main import opreplay
    from opreplay.initializers.extensions import clear_registrations as clear_initializers
    from opreplay.replay import plugins
    from opreplay.replay.ascend.custom.estimators import clear_registrations as clear_estimators

    def forget() -> None:
        clear_estimators()
        plugins.clear_registrations()
        clear_initializers()

    words = [str(argument) for argument in arguments]
    forget()
    with forking():
        done = CliRunner(env={"COLUMNS": "80", **environment}).invoke(opreplay, words)
    forget()
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = channel.recv(size - len(data))
        if not more:
            raise EOFError("the process at the other end is gone")
        data += more
    return data


def _received(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request and the descriptors that came along, moved out of the way."""
    size = int.from_bytes(_exactly(channel, 4), "big")
    first, descriptors, _, _ = socket.recv_fds(channel, 1, 16)
    request = json.loads(first + _exactly(channel, size - 1))
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, ABOVE) for one in descriptors]
    for one in descriptors:
        os.close(one)
    return request, moved


def _forked(channel: socket.socket, request: dict[str, Any], descriptors: list[int]) -> bool:
    """Whether this is the new process, a child of the one that asked, which has been told its number."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        for one in descriptors:
            os.close(one)
        return False
    if os.fork():
        os._exit(0)
    while os.getppid() != request["parent"]:
        time.sleep(0.0005)
    os.setsid()
    channel.sendall(os.getpid().to_bytes(4, "big"))
    channel.close()
    for given, number in zip(descriptors, request["descriptors"], strict=True):
        os.dup2(given, number)
        os.close(given)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    return True


def _serve(channel: socket.socket) -> str | None:
    """Fork for each request; in the new process return the code to run, None at the end."""
    while True:
        try:
            request, descriptors = _received(channel)
        except EOFError:
            return None
        if _forked(channel, request, descriptors):
            return request["code"]


if __name__ == "__main__":
    number, sys.path[:] = int(sys.argv[1]), json.loads(sys.argv[2])
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    if (code := _serve(socket.socket(fileno=number))) is not None:
        exec(code, {"__name__": "__main__"})  # noqa: S102 - the command of one of our own processes
