# pyright: strict
"""Turn off Python's garbage collector: while calls are timed, and while thousands of values without cycles are made."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Generator[None, None, None]:
    """Disable cycle collection within the context; it would take a third of the time needed to build large tables,
    and fall into measured times.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
