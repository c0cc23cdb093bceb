"""Cold caches and the gauge on a device of torch: copies of arguments, a buffer that evicts them, a fixed work."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from opreplay.initializers import fill
from opreplay.replay.execute.executors.reference_load import Gauge
from opreplay.replay.host import environment

MAX_EVICTED_BYTES = 64 << 20
"""Most of a cache that is flushed: writing more would take longer than the op, and leave fewer samples."""
GAUGE_NUMBERS = 1 << 14
"""Below the size from which torch splits work among threads (at::internal::GRAIN_SIZE, 32,768): waiting for a second
thread on a busy machine can take a hundred times as long as the work."""
GAUGE_STEPS = 64
GAUGE_PIECES = 16
"""Pieces of 64 KiB of a reading of the memory gauge: 1 MiB read and written."""
GAUGE_DEVICE_ROWS, GAUGE_DEVICE_STEPS = 1024, 4
"""On an accelerator a reading is so many products, or passes over the buffer: events resolve half a microsecond."""


class Caches:
    """The last cache of a device and what it takes to flush it; the buffer is made when it is first needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: torch.Tensor | None = None
        self._pieces: list[torch.Tensor] = []
        self._turn = 0
        self.cache_bytes = _cache_bytes(device)
        self.evicted_bytes = min(self.cache_bytes, MAX_EVICTED_BYTES)

    def evict(self) -> None:
        """Read and write as many bytes as are to be flushed, on all threads or cores that run ops."""
        self._whole().add_(1.0)

    def gauge(self) -> Gauge:
        """The device's gauges; that of memory goes through the buffer, and needs a cache of known size."""
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
    """Some 0.2 ms of the same arithmetic in every run: on one core of a host, on all of an accelerator."""
    if device.type != "cpu":
        rows = torch.ones(GAUGE_DEVICE_ROWS, GAUGE_DEVICE_ROWS, device=device)
        return partial(_repeat, torch.mm, rows, torch.empty_like(rows), GAUGE_DEVICE_STEPS)
    numbers = torch.ones(GAUGE_NUMBERS)
    # A product is a loop of torch's own; functions like erf go to libraries that bring threads of their own.
    return partial(_repeat, torch.mul, numbers, torch.empty_like(numbers), GAUGE_STEPS)


def _repeat(product: Callable[..., Any], values: torch.Tensor, out: torch.Tensor, times: int) -> None:
    for _ in range(times):
        product(values, values, out=out)


def argument_bytes(call: partial[Any]) -> int:
    """Memory that the tensor arguments of a call span, shared memory once."""
    spans = {}
    for tensor in _tensors([*call.args, *call.keywords.values()]):
        span = fill.span(tensor)
        spans[span.data_ptr()] = max(spans.get(span.data_ptr(), 0), span.numel() * span.element_size())
    return sum(spans.values())


def copies(call: partial[Any], count: int) -> list[Callable[[], Any]]:
    """The call and `count` - 1 more, their tensors in memory of their own, shared among arguments as before."""
    made: list[Callable[[], Any]] = [call]
    for _ in range(count - 1):
        memo: dict[int, Any] = {}
        args = [_copied(value, memo) for value in call.args]
        named = {name: _copied(value, memo) for name, value in call.keywords.items()}
        made.append(partial(call.func, *args, **named))
    return made


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return copy.deepcopy(value, memo)
    if type(value) in (list, tuple):
        return type(value)(_copied(item, memo) for item in value)
    return value


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _cache_bytes(device: torch.device) -> int:
    """Size of the last cache: of the host from the system, of a GPU from torch; 0 where neither says."""
    if device.type == "cpu":
        return environment.last_cache_bytes()
    if device.type != "cuda":
        return 0
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
