# pyright: strict
"""Entry point of the console script: Ctrl-C ends the command without a traceback, even during imports."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C. It is a copy of the value in `exit_codes.ExitCode`, which is slow to import."""


def main() -> NoReturn:
    """Import and run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where it is ignored, as in a background job
        signal.signal(signal.SIGINT, _leave)
    from opreplay.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit immediately on SIGINT, because no work has started yet."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
