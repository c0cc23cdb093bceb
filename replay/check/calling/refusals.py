# pyright: strict
"""Decides whether an error means that an op refuses a call, or that the op broke on it."""

from __future__ import annotations

import linecache
import traceback

ACCIDENTS = (
    "view size is not compatible with input tensor",
    "INTERNAL ASSERT FAILED",
    "Expected reduction dim",
    "integer division or modulo by zero",
    "ZeroDivisionError",
    "cannot reshape tensor of 0 elements",
    "CUDA error",
    "illegal memory access",
    "is invalid for input of size",
    "The size of tensor a",
    "out of range",
    "bad_alloc",
    "vector::_M",
    "std::",
)
"""Parts of messages that come from below an op which let a call through that it does not take."""
BROKEN = "must not also be an input"
"""In what torch.library says of an op that gives an argument back."""
_ACCIDENTAL = (
    ZeroDivisionError,
    IndexError,
    KeyError,
    AttributeError,
    UnboundLocalError,
    NameError,
    MemoryError,
    RecursionError,
    OverflowError,
    StopIteration,
)
_SUPPORT = ("not implemented for", "not supported", "unsupported", "Could not run", "expected scalar type", "got dtype")
"""Parts of messages that say that a dtype or device has no kernel."""


def is_refusal(error: BaseException) -> bool:
    """Check whether an error explains what is wrong with a call that the reference accepts.

    False if something inside the op broke, or if there is no message.
    """
    text = str(error).strip()
    if isinstance(error, NotImplementedError) or any(part in text for part in _SUPPORT):
        return True
    if not text or BROKEN in text or isinstance(error, _ACCIDENTAL):
        return False
    return not any(part in text for part in ACCIDENTS) or _raised_on_purpose(error)


def _raised_on_purpose(error: BaseException) -> bool:
    """Check whether the innermost Python line raises or asserts, in the op's own code or in torch's checks."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return False
    last = frames[-1]
    line = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    return line.startswith(("raise", "assert"))


def words(error: BaseException) -> str:
    """Return the error as one line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {first[:240]}"
