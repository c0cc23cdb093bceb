# pyright: strict
"""The C library's allocator in a process that measures: freed memory is kept for the next call; owns no tensor.

By default glibc maps blocks above a moving limit anew for each call and unmaps them after it: an op with a large result
is timed with the page faults of its result, or without, as the sizes of earlier ops happen to have moved the limit. A
model in its steady state, as one on the caching allocator of an accelerator, finds memory that was used before.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let freed blocks of any size be used again without the system; whether the C library can."""
    libc = _libc()
    return libc is not None and bool(libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, NEVER))


def give_back() -> None:
    """Return what is free to the system; for the time between two ops."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    """The C library where it is glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
