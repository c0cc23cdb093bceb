"""What of each kernel's data is still in L2, judged from the sequence of kernels and the sizes of their tensors.

A kernel table names no addresses. A tensor is taken to be the one of the same number of elements and dtype that was
touched last and has not been taken yet by another operand of the same kernel; what lies between the two touches is the
reuse distance.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ascend.cost.sizes import itemsize
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.profile import DeviceProfile

Touch = tuple[float, float | None]
"""(bytes of a tensor, bytes touched since it was last touched); None for a tensor not seen before."""

MAX_REMEMBERED = 64
"""Touches of one size that are kept; older ones are far beyond any cache."""


def reuse_distances(calls: Iterable[KernelCall | None]) -> list[tuple[Touch, ...]]:
    """For each kernel in launch order, its tensors with their reuse distances, the kernel's own bytes included.

    None stands for a kernel of unknown shapes (a collective): it is taken to touch nothing.
    """
    clock = 0.0
    last: dict[tuple[int, str], list[float]] = {}
    out: list[tuple[Touch, ...]] = []
    for call in calls:
        if call is None:
            out.append(())
            continue
        tensors = [(prod(s.shape), s.dtype) for s in call.inputs + call.outputs if s is not None]
        sizes = [n * itemsize(dtype) for n, dtype in tensors]
        own = float(sum(sizes))
        touches: list[Touch] = []
        for key, size in zip(tensors, sizes, strict=True):
            stack = last.get(key)
            before = stack.pop() if stack else None
            touches.append((float(size), None if before is None else clock - before + own))
        clock += own
        for key in tensors:
            stack = last.setdefault(key, [])
            stack.append(clock)
            if len(stack) > MAX_REMEMBERED:
                del stack[0]
        out.append(tuple(touches))
    return out


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
