# pyright: strict
"""Handle signals that end a command early: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a closed terminal.

The first signal ends the command in an orderly way: processes are stopped, measurements are kept, and results are
marked incomplete. This module installs the handlers; code that catches KeyboardInterrupt does the clean-up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

from opreplay.cli.exit_codes import ExitCode

AGAIN_S = 0.01
"""Time in seconds until an interrupt that Python swallowed is raised again, and between further attempts."""
FLAG = "opreplay.replay.host.interrupts"
"""Module with the flag that tells loops to end. Loops run only after it is imported, so --help need not import it."""
PATIENCE = 3
"""Number of signals at which the process ends immediately, without clean-up. Its child processes die with it."""


class Interrupts:
    """Handlers that turn the first signal into KeyboardInterrupt and keep a second one from disturbing clean-up."""

    def __init__(self) -> None:
        self._received = 0
        self._report = sys.unraisablehook
        # Asked now: a terminal that is gone is none any more.
        self._terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]

    def install(self) -> None:
        """Install handlers for signals that would end the process.

        Signals that the caller ignores, as nohup does, stay ignored.
        """
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._handle)
        if hasattr(signal, "setitimer"):
            self._report, sys.unraisablehook = sys.unraisablehook, self._swallowed

    @property
    def came(self) -> bool:
        """Check whether a signal asked the process to end, even if the exception it raised was swallowed."""
        return self._received > 0 or (FLAG in sys.modules and sys.modules[FLAG].is_asked_to_end())

    def _swallowed(self, lost: sys.UnraisableHookArgs, /) -> None:
        """Raise KeyboardInterrupt again shortly after Python swallowed it; installed as `sys.unraisablehook`.

        Python swallows exceptions in `__del__`, in callbacks of weak references and in fork hooks. Other exceptions are
        reported as usual.
        """
        if lost.exc_type is not KeyboardInterrupt:
            self._report(lost)
            return
        signal.signal(signal.SIGALRM, _raise_again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGHUP", None):
            self._leave_terminal()
        self._received += 1
        if self._received == 1:
            if FLAG in sys.modules:
                sys.modules[FLAG].ask_to_end()
            raise KeyboardInterrupt
        if self._received >= PATIENCE:
            os._exit(ExitCode.INTERRUPTED)
        with contextlib.suppress(OSError):
            # Past Python's buffers, which may be in use right now.
            os.write(2, b"opreplay: ending; once more ends it at once\n")

    def _leave_terminal(self) -> None:
        """Redirect the streams of a closed terminal to /dev/null; writing to them would fail during clean-up."""
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in self._terminals:
            os.dup2(null, descriptor)
        os.close(null)


def _raise_again(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, unless the hook for swallowed exceptions is still running.

    Inside the hook, Python would drop the exception. The timer then calls this function again later.
    """
    while frame is not None:
        if frame.f_code is Interrupts._swallowed.__code__:  # pyright: ignore[reportPrivateUsage]
            return  # the timer repeats
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt
