"""What of each kernel's data is still in L2, judged from the sequence of kernels and the sizes of their tensors.

A kernel table names no addresses. A tensor is taken to be the one of the same number of elements and dtype that was
touched last and has not been taken yet by another operand of the same kernel; what lies between the two touches is the
reuse distance. Where a caller knows which tensor is which, it says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import prod

from opreplay.replay.ascend.cost.sizes import itemsize
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.profile import DeviceProfile

Touch = tuple[float, float | None]
"""(bytes of a tensor, bytes touched since it was last touched); None for a tensor not seen before."""

MAX_REMEMBERED = 64
"""Touches of one size that are kept; older ones are far beyond any cache."""


class Stream:
    """The kernels of a device in launch order, and when each tensor was last touched; the clock counts bytes.

    A tensor whose identity is given was last touched when that one was; of any other it is taken that the one of its
    size and dtype touched last is meant, as memory that was freed is given out again.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._by_size: dict[tuple[int, str], list[float]] = {}
        self._by_identity: dict[Hashable, float] = {}

    def touch(
        self, call: KernelCall, inputs: Sequence[Hashable] = (), outputs: Sequence[Hashable] = ()
    ) -> tuple[Touch, ...]:
        """The tensors of the next kernel with their reuse distances, its own bytes included.

        `inputs` and `outputs` say which tensor each is, None where that is not known; what a kernel writes gets its
        memory by size.
        """
        names = [*_padded(inputs, len(call.inputs)), *_padded(outputs, len(call.outputs))]
        tensors = [
            (prod(s.shape), s.dtype, name, place < len(call.inputs))
            for place, (s, name) in enumerate(zip(call.inputs + call.outputs, names, strict=True)) if s is not None
        ]  # fmt: skip
        sizes = [n * itemsize(dtype) for n, dtype, _, _ in tensors]
        own = float(sum(sizes))
        touches: list[Touch] = []
        for (n, dtype, name, is_read), size in zip(tensors, sizes, strict=True):
            stack = self._by_size.get((n, dtype))
            before = stack.pop() if stack else None
            if name is not None and is_read:
                before = self._by_identity.get(name)
            touches.append((float(size), None if before is None else self._clock - before + own))
        self._clock += own
        for n, dtype, name, _ in tensors:
            stack = self._by_size.setdefault((n, dtype), [])
            stack.append(self._clock)
            if len(stack) > MAX_REMEMBERED:
                del stack[0]
            if name is not None:
                self._by_identity[name] = self._clock
        return tuple(touches)


def _padded(names: Sequence[Hashable], length: int) -> list[Hashable]:
    return [*names, *[None] * (length - len(names))]


def reuse_distances(calls: Iterable[KernelCall | None]) -> list[tuple[Touch, ...]]:
    """For each kernel in launch order, its tensors with their reuse distances, the kernel's own bytes included.

    None stands for a kernel of unknown shapes (a collective): it is taken to touch nothing.
    """
    stream = Stream()
    return [() if call is None else stream.touch(call) for call in calls]


def resident_of(touches: tuple[Touch, ...], device: DeviceProfile) -> float | None:
    """Share of a kernel's bytes found in L2; None when nothing is known of its tensors.

    A tensor is found with probability 1 / (1 + (distance / (reach * L2)) ** sharpness).
    """
    rates = device.rates
    reach = rates.sequence_reach * device.l2_bytes
    total = found = 0.0
    for size, distance in touches:
        total += size
        if distance is not None:
            found += size / (1 + (distance / reach) ** rates.sequence_sharpness)
    return found / total if total > 0 else None
