# pyright: strict
"""Settings of a process that runs ops: memory and file limits, reuse of freed memory, end with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from opreplay.replay.host import environment

FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that no op raises by itself.

They come from a scheduler, from a user, or from the kernel when it is out of memory.
"""

WORKSPACE = 2.0
"""Memory for inputs, outputs and workspace that an op may take before allocations fail, in multiples of its budget."""
SLACK_BYTES = 512 << 20
"""Additional memory for code, thread stacks and library caches that the first op of a kind sets up."""
FILE_BYTES = 256 << 20
"""Maximum size of a file that an op can write. Compilers cache their kernels. Nothing else has a reason to write."""
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameter numbers of mallopt(3)."""
NEVER = 2**31 - 1


def limit_memory(op_bytes: int) -> None:
    """Limit how much this process's private memory can grow.

    Beyond the limit, malloc fails. The limit is `WORKSPACE` times the budget `op_bytes` plus slack, or most of the free
    memory if that is less.
    """
    if sys.platform != "linux":
        return
    import resource

    used, free = environment.process_bytes("VmData"), environment.free_memory_bytes()
    if used is None:
        return
    room = int(WORKSPACE * op_bytes) + SLACK_BYTES
    if free is not None:
        room = min(room, int(free * environment.RESERVE))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + room
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends for any reason. The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        # If memory runs out in spite of all, the kernel shall take this process and not its parent.
        file.write("1000")


def limit_files() -> None:
    """Forbid core dumps and large files for all ops."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = FILE_BYTES if hard == resource.RLIM_INFINITY else min(FILE_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


MAPPED_BYTES = 128 << 10
"""Size from which glibc by default maps new memory for each result (mallopt(3), M_MMAP_THRESHOLD)."""


def keep_freed_memory() -> bool:
    """Make malloc reuse freed blocks of any size instead of returning them.

    Returns whether the C library supports that. By default, glibc maps new memory for each block above a moving
    threshold. The time of an op with a large result may then include page faults, depending on the sizes of earlier
    ops. A model in its steady state gets memory that was used before. So does a model on the caching allocator of an
    accelerator.
    """
    libc = _libc()
    return libc is not None and bool(libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, NEVER))


def give_back() -> None:
    """Return free memory to the system; called between two ops."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, otherwise None."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
