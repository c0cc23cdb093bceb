# pyright: strict
"""How much memory a call takes at its peak."""

from __future__ import annotations

from typing import Any

import torch

from opreplay.replay.check.calling.calls import Arguments, Bench, results_of
from opreplay.replay.check.cases import Case


def peak_of(bench: Bench, case: Case, arguments: Arguments, *, reference: bool = False) -> tuple[int, int]:
    """Bytes at the peak of a call beyond its results, and those of arguments and results."""
    copy = arguments.copy()
    call = bench.reference_call(case, copy) if reference else bench.call_of(case, copy)
    results_of(call, copy)
    device = bench.device
    if device.type != "cpu":
        backend = getattr(torch, device.type)
        backend.synchronize(device)
        backend.reset_peak_memory_stats(device)
        before = backend.memory_allocated(device)
        found = results_of(call, copy)
        backend.synchronize(device)
        peak = backend.max_memory_allocated(device) - before
    else:
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            found = results_of(call, copy)
        peak = level = 0
        events: Any = profile.profiler
        for event in sorted(events.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                level += event.nbytes()
                peak = max(peak, level)
    results = sum(one.numel() * one.itemsize for one in found.returned)
    given = sum(one.numel() * one.itemsize for one in copy.tensors())
    return max(0, int(peak) - results), given + results
