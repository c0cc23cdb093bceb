"""The recorded kernels of an op by CANN type, for results; the trace's kernels have names of their own a launch."""

from __future__ import annotations

from opreplay.replay.ir import Recorded
from opreplay.replay.results import NpuKernel


def npu_kernels(recorded: Recorded) -> tuple[NpuKernel, ...]:
    """All launches whose type is known, all calls together, heaviest type first; () without a kernel table."""
    by_type: dict[str, tuple[int, float]] = {}
    for kernel in recorded.kernels:
        if kernel.type is not None:
            count, total_us = by_type.get(kernel.type, (0, 0.0))
            by_type[kernel.type] = (count + kernel.count, total_us + kernel.total_us)
    made = (NpuKernel(type=type_, count=count, total_us=total_us) for type_, (count, total_us) in by_type.items())
    return tuple(sorted(made, key=lambda kernel: -kernel.total_us))
