# pyright: strict
"""Flag that says that the user asked this process to end.

It is needed in case Python lost the exception. Python loses a handler's KeyboardInterrupt where it cannot raise it: in
`__del__`, in callbacks of weak references and in fork hooks. Hence the signal handler also sets this flag, and loops
check it before each iteration.
"""

from __future__ import annotations

_asked = [False]


def ask_to_end() -> None:
    """Set the flag, so that `raise_if_asked` raises from now on."""
    _asked[0] = True


def is_asked_to_end() -> bool:
    """Check whether a signal has arrived."""
    return _asked[0]


def raise_if_asked() -> None:
    """Raise KeyboardInterrupt if a signal has arrived."""
    if _asked[0]:
        raise KeyboardInterrupt
