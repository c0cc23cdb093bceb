# pyright: strict
"""Operations on torch tensors for running a sequence. Other modules manage order and lifetimes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from opreplay.initializers import fill
from opreplay.initializers.rules.domains import domain_of
from opreplay.replay.arguments.tensors import DTYPES, flattened
from opreplay.replay.execute.executors.sequence_tools import Tools
from opreplay.replay.execute.executors.timers import EventTimer, HostTimer, Timer
from opreplay.replay.execute.executors.torch.python_call import python_call
from opreplay.replay.host import environment
from opreplay.replay.plan.step.linking import key_of
from opreplay.traces.model import TensorMeta, contiguous_strides

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
CHECKED_BYTES = 2
"""Minimum element size, in bytes, of floats to check. torch cannot check one-byte floats, and most of these have no
infinity.
"""


class TorchTools(Tools):
    """Tensor operations of a sequence on one torch device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(0)

    def as_called(self, call: partial[Any]) -> partial[Any]:
        return python_call(call)

    def flat(self, returned: Any) -> list[Any]:
        return list(flattened(returned))

    def fits(self, result: Any, meta: TensorMeta) -> bool:
        """Check whether a result is the expected tensor on this device. A scalar that was copied to the host does not
        count.
        """
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or result.device != self._device:
            return False
        name = _NAMES.get(result.dtype)
        if name is None:
            return False
        return key_of(TensorMeta(shape=tuple(result.shape), dtype=name, strides=tuple(result.stride()))) == key_of(meta)

    def seen_as(self, result: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
        strides = contiguous_strides(meta.shape) if meta.strides is None else meta.strides
        return result.as_strided(meta.shape, strides)

    def is_finite(self, tensor: Any) -> bool:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return True
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.itemsize < CHECKED_BYTES:
            return True
        return bool(tensor.isfinite().all())

    def refill(self, tensor: torch.Tensor, spread: float = 1.0) -> None:
        if tensor.is_floating_point():
            fill.normal(tensor, self._generator, std=spread)
        else:
            fill.plain(tensor, self._generator)

    def has_domain(self, op: str, argument: str) -> bool:
        return domain_of(op, argument) is not None

    def in_domain(self, tensor: torch.Tensor, op: str, argument: str) -> bool:
        domain = domain_of(op, argument)
        return domain is None or tensor.itemsize < CHECKED_BYTES or domain.holds(tensor)

    def fit(self, tensor: torch.Tensor, op: str, argument: str) -> None:
        if (domain := domain_of(op, argument)) is not None:
            domain(tensor, self._generator)

    def copy_into(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        fill.assign(tensor, values)


def timer_on(device: torch.device, synchronize: Callable[[], None], hold: Callable[[float], None]) -> Timer:
    """Return the timer for a device; `hold(us)` keeps a CUDA device busy."""
    if device.type == "cpu":
        return HostTimer()
    backend = getattr(torch, device.type)
    return EventTimer(partial(backend.Event, enable_timing=True), synchronize, hold if device.type == "cuda" else None)


def free_bytes_of(device: torch.device) -> int | None:
    """Return the memory available on a device; None if the device does not report it."""
    if device.type == "cpu":
        return environment.free_memory_bytes()
    ask = getattr(getattr(torch, device.type), "mem_get_info", None)
    return None if ask is None else int(ask(device)[0])
