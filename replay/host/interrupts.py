# pyright: strict
"""A flag that says that the user asked this process to end, in case the exception was swallowed.

A handler's KeyboardInterrupt is lost where Python cannot raise one: in `__del__`, in callbacks of weak references, in
fork hooks. Loops check the flag before each iteration; the signal handler sets it.
"""

from __future__ import annotations

_asked = [False]


def ask_to_end() -> None:
    """Make `raise_if_asked` raise from now on."""
    _asked[0] = True


def is_asked_to_end() -> bool:
    """Check whether a signal has arrived."""
    return _asked[0]


def raise_if_asked() -> None:
    """Raise KeyboardInterrupt if a signal has arrived."""
    if _asked[0]:
        raise KeyboardInterrupt
