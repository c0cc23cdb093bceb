# pyright: strict
"""One call of an op under torch.profiler: its kernels and child ops; measures nothing that is reported as a time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.execute.executors.base import Profile
from opreplay.replay.ir.call_tree import names_below
from opreplay.replay.ir.model import RecordedKernel

EVENT_ROUNDS, EVENT_CALLS = 5, 200
"""Of the call whose events are counted: the least of so many rounds, since all that disturbs adds time."""
MAX_BELOW = 512
"""Ops below the profiled one that are told at most."""


def profile_call(call: Callable[[], Any], device: torch.device, synchronize: Callable[[], None], name: str) -> Profile:
    """What one call of the op `name` launches; the children of the op itself, or all that a stand-in calls.

    Raises RuntimeError where the profiler cannot start.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    synchronize()
    with profile(activities=activities) as profiler:
        call()
        synchronize()
    events = list(profiler.events() or ())
    host = [event for event in events if event.device_type.name == "CPU"]
    top = [event for event in host if event.cpu_parent is None and "::" in event.name]
    below = [event for event in host if event.cpu_parent is not None and event.cpu_parent in top]
    own = [event for event in top if event.name == name]
    children = [event for event in below if event.cpu_parent in own[:1]] if own else top
    tree = names_below(own[0], _children, _name, most=MAX_BELOW) if own else None
    kernels: dict[str, RecordedKernel] = {}
    for event in events:
        if event.device_type.name != "CUDA":
            continue
        known = kernels.get(event.name)
        count, total = (0, 0.0) if known is None else (known.count, known.total_us)
        kernels[event.name] = RecordedKernel(
            name=event.name, count=count + 1, total_us=total + float(event.time_range.elapsed_us())
        )
    return Profile(
        kernels=tuple(kernels.values()),
        children=tuple(event.name for event in children if "::" in event.name) if tree is None else tree[0],
        below=None if tree is None else tree[1],
        has_device=device.type != "cpu",
    )


def profiler_event_us() -> float:
    """What torch.profiler with `record_shapes=True` adds to an op on the host for each op that it calls, microseconds.

    Raises RuntimeError where the profiler cannot start.
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
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        profiled_us = least()
    events: list[Any] = list(profiler.events() or ())
    count = sum(event.device_type.name == "CPU" for event in events)
    return max(0.0, profiled_us - plain_us) * EVENT_ROUNDS * EVENT_CALLS / max(count, 1)


def _children(event: Any) -> list[Any]:
    return sorted(event.cpu_children, key=lambda child: child.time_range.start)


def _name(event: Any) -> str:
    return str(event.name)
