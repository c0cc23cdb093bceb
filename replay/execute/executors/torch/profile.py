# pyright: strict
"""Run one call of an op under torch.profiler to get its kernels and child ops.

Times from the profiler are never reported as measurements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.autograd.profiler import profile

from opreplay.replay.execute.executors.base import Profile
from opreplay.replay.ir.call_tree import names_below
from opreplay.replay.ir.model import RecordedKernel

EVENT_ROUNDS, EVENT_CALLS = 5, 200
"""Number of rounds, and of calls per round, to measure the profiler's overhead per child op.

The fastest round counts, because all disturbances add time.
"""
MAX_BELOW = 512
"""Maximum number of nested ops that are reported."""


def torch_profiler(*, device: str = "cpu", record_shapes: bool = False, memory: bool = False) -> profile:
    """Return torch's profiler as a context manager for the host and, if `device` is "cuda", for the device.

    This is the class that torch.profiler wraps. The wrapper would import torch._inductor, which takes 1.7 s of CPU
    time.
    """
    use_device = "cuda" if device == "cuda" else None
    return profile(use_kineto=True, use_device=use_device, record_shapes=record_shapes, profile_memory=memory)


def profile_call(call: Callable[[], Any], device: torch.device, synchronize: Callable[[], None], name: str) -> Profile:
    """Return the children of one call of the op `name`: what it launches.

    If another function replaces the op, return all ops of that function. Raises RuntimeError if the profiler cannot
    start.
    """
    synchronize()
    profiler = torch_profiler(device=device.type)
    with profiler:
        call()
        synchronize()
    events: list[Any] = list(profiler.function_events or ())
    host = [event for event in events if event.device_type.name == "CPU"]
    top = [event for event in host if event.cpu_parent is None and "::" in event.name]
    children, below = _ops_below(top, name)
    return Profile(kernels=_kernels(events), children=children, below=below, has_device=device.type != "cpu")


def _ops_below(top: list[Any], name: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return the names of the direct children of op `name`, and of all ops nested in it.

    If the op is missing, return (top-level ops, None).
    """
    op_event = next((event for event in top if event.name == name), None)
    if op_event is None:
        return tuple(event.name for event in top), None
    direct = tuple(event.name for event in _children(op_event) if "::" in event.name)
    return names_below(op_event, _children, _name, limit=MAX_BELOW) or (direct, None)


def _kernels(events: list[Any]) -> tuple[RecordedKernel, ...]:
    """Return CUDA kernels by name, with the number of runs and the total time in µs."""
    times_us: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.device_type.name == "CUDA":
            times_us[event.name].append(float(event.time_range.elapsed_us()))
    return tuple(RecordedKernel(name=name, count=len(us), total_us=sum(us)) for name, us in times_us.items())


def profiler_event_us() -> float:
    """Return the overhead of torch.profiler with `record_shapes=True`, in µs per child op.

    Raises RuntimeError if the profiler cannot start.
    """
    row = torch.ones(4)

    def least() -> float:
        rounds: list[float] = []
        for _ in range(EVENT_ROUNDS):
            started = perf_counter()
            for _ in range(EVENT_CALLS):
                row.chunk(2)
            rounds.append((perf_counter() - started) / EVENT_CALLS)
        return 1e6 * min(rounds)

    plain_us = least()
    profiler = torch_profiler(record_shapes=True)
    with profiler:
        profiled_us = least()
    events: list[Any] = list(profiler.function_events or ())
    count = sum(event.device_type.name == "CPU" for event in events)
    return max(0.0, profiled_us - plain_us) * EVENT_ROUNDS * EVENT_CALLS / max(count, 1)


def _children(event: Any) -> list[Any]:
    return sorted(event.cpu_children, key=lambda child: child.time_range.start)


def _name(event: Any) -> str:
    return str(event.name)
