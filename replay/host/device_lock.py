# pyright: strict
"""Lock each physical device while a job measures on it, so that two jobs do not disturb each other's times.

The module manages the lock files of this user on this machine. A lock ends with its process, however that ends. The
caller decides which jobs may share a device.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

from opreplay.traces.errors import EnvironmentRefused

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

WAIT_S = 30.0
"""Maximum time that a job waits for the previous one."""
POLL_S = 0.1
VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Environment variables that renumber the devices of a kind.

Because of them, "cuda:0" of two processes may be two devices.
"""


def physical_device(device: str, environ: Mapping[str, str]) -> str:
    """Return a file-safe name of the physical device that "cuda:1" refers to.

    It is "cuda-3", for example, if the environment renumbers devices.
    """
    kind, _, index = device.partition(":")
    number = int(index) if index.isdecimal() else 0
    for variable in VISIBLE.get(kind, ()):
        visible = [entry.strip() for entry in environ.get(variable, "").split(",") if entry.strip()]
        if number < len(visible):
            return re.sub(r"[^A-Za-z0-9_-]", "_", f"{kind}-{visible[number]}")
    return kind if kind == "cpu" else re.sub(r"[^A-Za-z0-9_-]", "_", f"{kind}-{number}")


@contextlib.contextmanager
def hold_locks(
    devices: Sequence[str],
    *,
    wait_s: float | None = None,
    on_wait: Callable[[str], None] | None = None,
    folder: Path | None = None,
) -> Generator[tuple[str, ...], None, None]:
    """Hold the locks of devices ("cpu", "cuda:1").

    Yields the devices on which another job measures at the same time. Waits up to `wait_s` (default `WAIT_S`), and
    calls `on_wait` when it first has to wait. If a CPU is still locked afterwards, both jobs run at the same time, and
    the caller must report that. Running together is allowed because a CPU is shared with other programs anyway. Raises
    EnvironmentRefused for an accelerator that is still in use.
    """
    names = sorted({physical_device(device, os.environ) for device in devices})
    beside: list[str] = []
    wait_s = WAIT_S if wait_s is None else wait_s
    with contextlib.ExitStack() as stack:
        for name in names if fcntl is not None else ():
            descriptor = os.open((folder or lock_folder()) / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, descriptor)
            if _locked(descriptor, name, wait_s, on_wait):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            elif name == "cpu":
                beside.append(name)
            else:
                raise EnvironmentRefused(
                    f"{name} is in use by another opreplay{_holder(descriptor)}",
                    hint="Wait for it, or measure at the same time with --set shared_device=true.",
                )
        yield tuple(beside)


def lock_folder() -> Path:
    """Return the folder for locks, which belongs to this user alone.

    Raises EnvironmentRefused if another user created it.
    """
    path = Path(tempfile.gettempdir()) / f"opreplay-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise EnvironmentRefused(
            f"{path} is not a folder of this user", hint="Remove it, or set TMPDIR to another folder."
        )
    return path


def _locked(descriptor: int, name: str, wait_s: float, on_wait: Callable[[str], None] | None) -> bool:
    """Try for up to `wait_s` to take the lock; return whether that succeeded."""
    assert fcntl is not None
    deadline, announced = monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() >= deadline:
                return False
        if not announced and on_wait is not None:
            other = f"another opreplay{_holder(descriptor)} on {name}"
            on_wait(f"waiting up to {wait_s:g} s for {other}; --set shared_device=true does not wait")
        announced = True
        sleep(POLL_S)


def _holder(descriptor: int) -> str:
    """Return " (process 123)" with the process id that the lock's holder wrote, or "" if it wrote nothing."""
    text = os.pread(descriptor, 20, 0)
    return f" (process {text.decode()})" if text.isdigit() else ""
