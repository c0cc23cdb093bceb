"""Cold caches and reference workloads on a torch device: copies of arguments, an eviction buffer, fixed work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from opreplay.initializers import fill
from opreplay.replay.arguments.tensors import tensors_in
from opreplay.replay.execute.executors.clocks import Gauge
from opreplay.replay.host import environment
from opreplay.replay.plan.step.recency import Recency

MAX_EVICTED_BYTES = 64 << 20
"""Maximum number of bytes to flush from the cache. Flushing more would take longer than the op."""
LINE_BYTES = 64
"""Bytes of a cache line: reading one byte loads the line."""
SECTOR_BYTES = 32
"""Bytes that a GPU's cache loads to read a single byte (CUDA C++ Best Practices Guide, coalesced access to global
memory).
"""
CODE_BYTES = 1 << 20
"""Maximum reuse distance, in bytes, that is restored for the op's code.

At that distance, the op is called on a copy of its arguments, which brings the code into the caches. In a step, the
dispatcher and most kernels run again and again, and a private cache holds more than this. If the step ran the code more
recently, the distance is shorter.
"""
TWIN_BYTES = 16 << 20
"""Maximum bytes of arguments with which the op is called on a copy. With larger arguments, cached code makes no
difference to the time.
"""
GAUGE_NUMBERS = 1 << 14
"""Elements of the compute workload. They are few enough for torch to use one thread (at::internal::GRAIN_SIZE is
32,768).

On a busy machine, waiting for a second thread can take a hundred times as long as the work.
"""
GAUGE_STEPS = 64
GAUGE_PIECES = 16
"""Number of 64 KiB pieces that one reading of the memory workload reads and writes: 1 MiB in total."""
GAUGE_DEVICE_ROWS, GAUGE_DEVICE_STEPS = 1024, 4
"""Size of the matrices, and number of matrix products or passes over the buffer, for one reading on an accelerator.

The accelerator's events have a resolution of half a microsecond.
"""


class Caches:
    """The last-level cache of a device, and a buffer that flushes this cache. The buffer is allocated on first use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: torch.Tensor | None = None
        self._pieces: list[torch.Tensor] = []
        self._turn = self._at = 0
        self.cache_bytes = _cache_bytes(device)
        self.evicted_bytes = min(self.cache_bytes, MAX_EVICTED_BYTES)

    def evict(self) -> None:
        """Read and write enough bytes to flush the cache, on all threads or cores that run ops."""
        self._whole().add_(1.0)

    def as_in_step(self, call: partial[Any], recency: Recency, spare_bytes: int) -> Callable[[], None] | None:
        """Return a function that accesses a call's tensors at their reuse distances in the step, farthest first.

        Between two accesses, the function reads other memory in place of the step's data. `spare_bytes` is the memory
        available for a second set of arguments. None if the tensors or the device do not permit this.
        """
        tensors = tensors_in([*call.args, *call.keywords.values()])
        if self._device.type != "cpu" or not self.evicted_bytes or len(tensors) != len(recency.arguments):
            return None
        if any(tensor.layout is not torch.strided for tensor in tensors):
            return None
        accesses: list[tuple[int, int, Callable[[], Any]]] = [
            (distance, 0, partial(_read, tensor))
            for tensor, distance in zip(tensors, recency.arguments, strict=True)
            if tensor.numel()
        ]
        accesses += [
            (distance, 0, partial(_take, size)) for size, distance in recency.results if 0 < size <= spare_bytes
        ]
        size = argument_bytes(call)
        if size <= min(TWIN_BYTES, spare_bytes):
            accesses.append((min(CODE_BYTES, recency.code), size, copies(call, 2)[1]))
        accesses.sort(key=lambda one: -one[0])
        small = torch.ones(4)

        def restore() -> None:
            buffers: list[Any] = []
            for place, (distance, copy_bytes, access) in enumerate(accesses):
                buffer = access()
                if not copy_bytes:
                    buffers.append(buffer)
                next_distance = accesses[place + 1][0] if place + 1 < len(accesses) else 0
                self._pass(min(distance, self.evicted_bytes) - min(next_distance, self.evicted_bytes) - copy_bytes)
            buffers.clear()  # the call gets memory of the sizes of its results that was touched just so
            for _ in range(3):
                small.add(small)  # the dispatcher is never far away

        return restore

    def _pass(self, size: int) -> None:
        """Read `size` bytes of otherwise unused memory. Caches need not write these bytes back."""
        whole = self._whole()
        remaining = max(0, size) // whole.element_size()
        while remaining > 0:
            part = whole[self._at : self._at + remaining]
            part.sum()
            remaining -= part.numel()
            self._at = (self._at + part.numel()) % whole.numel()

    def gauge(self) -> Gauge:
        """Return the device's reference workloads.

        The memory workload uses the buffer, so it exists only if the cache size is known.
        """
        return Gauge(_arithmetic(self._device), self._stream if self.evicted_bytes else None)

    def _stream(self) -> None:
        if not self._pieces:
            whole = self._whole()
            self._pieces += whole.split(GAUGE_NUMBERS) if self._device.type == "cpu" else [whole]
        for _ in range(GAUGE_PIECES if self._device.type == "cpu" else GAUGE_DEVICE_STEPS):
            self._pieces[self._turn % len(self._pieces)].add_(1.0)
            self._turn += 1

    def _whole(self) -> torch.Tensor:
        if self._buffer is None:
            self._buffer = torch.zeros(self.evicted_bytes // 4, dtype=torch.float32, device=self._device)
        return self._buffer


def _arithmetic(device: torch.device) -> Callable[[], Any]:
    """Return a function that does about 0.2 ms of arithmetic, on one host core or on a whole accelerator.

    The work is the same in every run.
    """
    if device.type != "cpu":
        rows = torch.ones(GAUGE_DEVICE_ROWS, GAUGE_DEVICE_ROWS, device=device)
        return partial(_repeat, torch.mm, rows, torch.empty_like(rows), GAUGE_DEVICE_STEPS)
    numbers = torch.ones(GAUGE_NUMBERS)
    # A product is a loop of torch's own; functions like erf go to libraries that bring threads of their own.
    return partial(_repeat, torch.mul, numbers, torch.empty_like(numbers), GAUGE_STEPS)


def _repeat(product: Callable[..., Any], values: torch.Tensor, out: torch.Tensor, times: int) -> None:
    for _ in range(times):
        product(values, values, out=out)


def touch(call: partial[Any]) -> None:
    """Read the memory that the dense tensor arguments of a call span."""
    for tensor in tensors_in([*call.args, *call.keywords.values()]):
        if tensor.layout is torch.strided and tensor.numel():
            _read(tensor)


def _read(tensor: torch.Tensor) -> None:
    """Read one byte of each cache line of the memory that a tensor spans."""
    first = tensor.storage_offset() * tensor.element_size()
    size = fill.span(tensor).numel() * tensor.element_size()
    step = LINE_BYTES if tensor.device.type == "cpu" else SECTOR_BYTES
    lines = -(-size // step)
    numbers = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    numbers.set_(tensor.untyped_storage(), first, (lines,), (step,)).max()


def _take(size: int) -> torch.Tensor:
    """Allocate memory of this size and write to it."""
    return torch.empty(size, dtype=torch.uint8).fill_(1)


def argument_bytes(call: partial[Any]) -> int:
    """Return the bytes that the tensor arguments of a call span; shared memory counts once."""
    spans = {}
    for tensor in tensors_in([*call.args, *call.keywords.values()]):
        span = fill.span(tensor)
        spans[span.data_ptr()] = max(spans.get(span.data_ptr(), 0), span.numel() * span.element_size())
    return sum(spans.values())


def copies(call: partial[Any], count: int) -> list[Callable[[], Any]]:
    """Return the call and `count` - 1 copies with separate tensor memory.

    Arguments that share memory in the call also share memory in a copy.
    """
    calls: list[Callable[[], Any]] = [call]
    for _ in range(count - 1):
        memo: dict[int, Any] = {}
        args = [copied(value, memo) for value in call.args]
        named = {name: copied(value, memo) for name, value in call.keywords.items()}
        calls.append(partial(call.func, *args, **named))
    return calls


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a value with separate tensor memory. Copies made with the same `memo` share memory as the
    originals do.
    """
    if isinstance(value, torch.Tensor):
        return copy.deepcopy(value, memo)
    if type(value) in (list, tuple):
        return type(value)(copied(item, memo) for item in value)
    return value


def _cache_bytes(device: torch.device) -> int:
    """Return the last-level cache's bytes; 0 if unknown. The system reports them for a host, torch for a GPU."""
    if device.type == "cpu":
        return environment.last_cache_bytes()
    if device.type != "cuda":
        return 0
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
