# pyright: strict
"""Decides whether an error means that the op refused the call or that the op broke on it."""

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
"""Parts of error messages that show an accident inside an op: the op should have rejected the call itself."""
BROKEN = "must not also be an input"
"""Part of the error message with which torch.library rejects an op that returns one of its arguments."""
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
"""Parts of error messages for a dtype or device that has no kernel."""


def is_refusal(error: BaseException) -> bool:
    """Check whether an error explains why the op rejects a call that the reference accepts.

    False if something inside the op broke, or if there is no message.
    """
    text = str(error).strip()
    if isinstance(error, NotImplementedError) or any(part in text for part in _SUPPORT):
        return True
    if not text or BROKEN in text or isinstance(error, _ACCIDENTAL):
        return False
    return not any(part in text for part in ACCIDENTS) or _raised_on_purpose(error)


def _raised_on_purpose(error: BaseException) -> bool:
    """Check whether the innermost Python line is a raise or an assert, in the op's own code or in torch's checks."""
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
