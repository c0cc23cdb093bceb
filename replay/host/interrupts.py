# pyright: strict
"""Whether somebody asked this process to end: a flag beside the exception, which may have been swallowed on its way.

A handler's KeyboardInterrupt is lost where Python can raise none: in `__del__`, in callbacks of weak references, in
hooks of a fork. Loops ask here before each turn. Owns the flag; who sets it is the handler of signals.
"""

from __future__ import annotations

_asked = [False]


def ask_to_end() -> None:
    """From now on `raise_if_asked` raises."""
    _asked[0] = True


def is_asked_to_end() -> bool:
    """Whether a signal has come."""
    return _asked[0]


def raise_if_asked() -> None:
    """Raise KeyboardInterrupt once a signal has come."""
    if _asked[0]:
        raise KeyboardInterrupt
