"""Tracks the storage of each tensor in a step: when storages are allocated and freed, and their total size.

It manages numbers and bytes only. The code for modules, optimizers and gradients describes what a storage holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from opreplay.replay.capture.calls.patching import replaced
from opreplay.replay.ir.captured import CapturedStorage, Kind, PhasePeak, StepPhase, peaks_of

_functorch: Any = import_module("torch._C")._functorch


def inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that a tensor consists of: itself, or the inner tensors of a DTensor or similar."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):
            if isinstance(part, torch.Tensor):  # a DTensor also has its mesh
                yield from inner_tensors(part)
    else:
        yield tensor


class _Storage:
    """Properties of one storage."""

    __slots__ = ("first_size", "kind", "names", "outside", "size")

    def __init__(self, size: int) -> None:
        self.size = self.first_size = size
        self.kind: Kind | None = None
        self.names: dict[str, None] = {}
        self.outside = False
        """Whether the storage existed before the step."""


class Storages:
    """All storages that a step uses, numbered in order of first use."""

    def __init__(self, seen_as: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """`seen_as` maps a real tensor to the tensor that replaces it in the step."""
        self._seen_as = seen_as or (lambda tensor: tensor)
        self._all: list[_Storage] = []
        self._numbers: dict[int, int] = {}
        """Numbers of live storages by address; an address may be reused."""
        self._events: list[tuple[int, int, int]] = []
        """One (index of the call, storage number, bytes allocated or freed) for each change of a storage."""
        self._memories: dict[tuple[int, int, bool], int] = {}
        self.call = -1
        """Index of the running call; -1 before the first one."""

    def number(self, tensor: torch.Tensor, *, outside: bool = False) -> int:
        """Return the number of a plain tensor's storage."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return self._numbers[key]
        number = self._numbers[key] = len(self._all)
        entry = _Storage(storage.nbytes())
        entry.outside = outside
        self._all.append(entry)
        self._events.append((-1 if outside else self.call, number, entry.size))
        weakref.finalize(storage, self._gone, key, number).atexit = False
        return number

    def memory(self, tensor: torch.Tensor, *, outside: bool = False) -> int:
        """Return a number for the place in memory at which a dense tensor starts.

        A view that is conjugated or negated starts at the same place as its base, but gets another number.
        """
        place = (
            self.number(tensor, outside=outside),
            int(tensor.storage_offset()) * tensor.itemsize,
            tensor.is_conj() or tensor.is_neg(),
        )
        return self._memories.setdefault(place, len(self._memories))

    def describe(self, tensor: torch.Tensor, kind: Kind, name: str = "", *, outside: bool = True) -> None:
        """Record what kind of data a tensor's storage holds. The first kind recorded for a storage stays."""
        for real in inner_tensors(tensor):
            if _functorch.is_functorch_wrapped_tensor(real):
                continue  # the model's own, as what transforms it sees it
            plain = self._seen_as(real)
            if plain.layout is not torch.strided:
                continue
            entry = self._all[self.number(plain, outside=outside)]
            entry.kind = entry.kind or kind
            if name and entry.kind == kind:
                entry.names[name] = None

    def of(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage. If a fake tensor replaces a real one, it is the number of the fake
        one's storage.
        """
        return self.number(self._seen_as(tensor))

    def is_outside(self, number: int) -> bool:
        return self._all[number].outside

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Pairs (storage number, byte offset), indexed by memory number."""
        return tuple((storage, offset) for storage, offset, _ in self._memories)

    def listed(self) -> tuple[CapturedStorage, ...]:
        """Return the storages that existed before the step."""
        return tuple(
            CapturedStorage(
                storage=number, kind=entry.kind or "constant", names=tuple(entry.names), size_bytes=entry.first_size
            )
            for number, entry in enumerate(self._all)
            if entry.outside
        )

    def peaks(self, phases: list[StepPhase]) -> tuple[PhasePeak, ...]:
        """Return the peak memory in each phase of the step, by kind of data. `phases` holds the phase of each call."""
        return peaks_of(((call, self._kind(number), delta) for call, number, delta in self._events), phases)

    def _kind(self, number: int) -> Kind:
        entry = self._all[number]
        return entry.kind or ("constant" if entry.outside else "activation")

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """Track `UntypedStorage.resize_`, by which FSDP frees memory. No dispatched op shows this."""
        plain: Any = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            if storage._cdata in self._numbers:
                self._resize(self._numbers[storage._cdata], int(size))
            return plain(storage, size)

        with replaced(torch.UntypedStorage, resize_=resize_):
            yield

    def grown(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record the new storage sizes of tensors that an op has resized, as `resize_` and `out=` do."""
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            number = self._numbers.get(storage._cdata)
            if number is not None and storage.nbytes() != self._all[number].size:
                self._resize(number, storage.nbytes())

    def _resize(self, number: int, size: int) -> None:
        self._events.append((self.call, number, size - self._all[number].size))
        self._all[number].size = size

    def _gone(self, key: int, number: int) -> None:
        if self._numbers.get(key) == number:
            del self._numbers[key]
        self._events.append((self.call + 1, number, -self._all[number].size))
