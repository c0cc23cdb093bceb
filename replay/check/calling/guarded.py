# pyright: strict
"""Tensors whose last element lies directly before protected memory: reading beyond it terminates the process."""

from __future__ import annotations

import ctypes
import mmap
import warnings
import weakref

import torch


def copy_guarded(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor whose memory is followed by a page that may not be accessed. Values and strides stay
    the same. Raises OSError if the system refuses to allocate the memory.
    """
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    extent = (1 + last) * tensor.itemsize
    if not tensor.numel() or tensor.device.type != "cpu":
        return tensor
    pages = -(-extent // mmap.PAGESIZE) * mmap.PAGESIZE
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    whole = pages + mmap.PAGESIZE
    start = library.mmap(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value) or library.mprotect(start + pages, mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "no memory with a guard page")
    memory = (ctypes.c_char * extent).from_address(start + pages - extent)
    weakref.finalize(memory, library.munmap, start, whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        placed = torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
    if 0 in tensor.stride():  # nothing is written twice
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
        placed[first].copy_(tensor[first])
        return placed
    return placed.copy_(tensor)
