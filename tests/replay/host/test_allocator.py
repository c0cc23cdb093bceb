from __future__ import annotations

import subprocess
import sys

import pytest

from opreplay.replay.host import limits


@pytest.mark.skipif(limits._libc() is None, reason="the C library is not glibc")
def test_large_blocks_stay_with_the_process_until_they_are_given_back() -> None:
    code = (
        "import ctypes\n"
        "from opreplay.replay.host import limits\n"
        "from opreplay.replay.host.environment import process_bytes\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]\n"
        "libc.free.argtypes = [ctypes.c_void_p]\n"
        "assert limits.keep_freed_memory()\n"
        "before = process_bytes()\n"
        "libc.free(libc.malloc(200 << 20))\n"
        "kept = process_bytes() - before\n"
        "limits.give_back()\n"
        "print(kept, process_bytes() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept >= 190 << 20
    assert left < 20 << 20
