# pyright: strict
"""How much memory a call takes at its peak, and whether there is room and time for one of many elements."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, results_of, widened
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case

MOST_PEAK = 1 << 29
"""Bytes that a case of many elements may take at its peak, in float64; to compare its results takes some times that."""
SMALLER_REFUSED = "smaller ones are refused"
"""How the reason begins where it is no size of memory."""
MOST_SECONDS = 4.0
"""That one call of such a case may take: op and reference are called several times within the limit of a case."""


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


def _seconds_of(bench: Bench, case: Case, arguments: Arguments, *, reference: bool = False) -> float:
    """Seconds of a call: of the processor where other programs kept it, of the clock where it had several cores."""
    copy = arguments.copy()
    call = bench.reference_call(case, copy) if reference else bench.call_of(case, copy)
    wall, busy = time.perf_counter(), time.process_time()
    results_of(call, copy)
    if bench.device.type != "cpu":
        getattr(torch, bench.device.type).synchronize(bench.device)
        return time.perf_counter() - wall
    return min(time.perf_counter() - wall, time.process_time() - busy)


def too_much(bench: Bench, case: Case) -> str | None:
    """Why a case of many elements is not tried: what it takes, by smaller ones; None where it may be tried.

    Memory and time may grow with the square of the elements, as those of attention do: two cases tell how much of them
    does.
    """
    if not case.smaller:
        return None
    key = f"memory and time of {case.op.id}"
    if key not in bench.facts_of_op:
        bench.facts_of_op[key] = tuple(why for why in (_foreseen(bench, case),) if why is not None)
    return next(iter(bench.facts_of_op[key]), None)


def _foreseen(bench: Bench, case: Case) -> str | None:
    peaks: list[tuple[int, float]] = []
    times: list[tuple[int, float]] = []
    for one in case.smaller:
        try:
            arguments = bench.arguments(one)
            taken = [float(sum(peak_of(bench, one, arguments)))]
            seconds = [_seconds_of(bench, one, arguments)]
        except Exception as error:  # what the op refuses is judged by other cases
            return f"{SMALLER_REFUSED}: {words(error)}"
        with contextlib.suppress(Exception):  # it refuses the large case as well, then
            wide = widened(arguments)
            taken.append(sum(peak_of(bench, one, wide, reference=True)))
            seconds.append(_seconds_of(bench, one, wide, reference=True))
        size = sum(tensor.numel() * tensor.itemsize for tensor in arguments.tensors())
        peaks.append((size, max(taken)))
        times.append((size, max(seconds)))
    if len(peaks) < 2 or not 0 < peaks[0][0] < peaks[1][0]:
        return None
    wanted = peaks[1][0] * variants.elements(case) / max(1, variants.elements(case.smaller[-1]))
    if (peak := _continued(peaks, wanted)) > MOST_PEAK:
        return f"it would take {peak / 1e9:.1f} GB, by what smaller ones take"
    if (seconds_wanted := _continued(times, wanted)) > MOST_SECONDS:
        return f"a call would take {seconds_wanted:.0f} s, by what smaller ones take"
    return None


def _continued(taken: list[tuple[int, float]], size: float) -> float:
    """What is taken at a size, by two smaller ones: linear · size + square · size²."""
    (few, least), (more, most) = taken
    square = max(0.0, (most / more - least / few) / (more - few))
    return size * (most / more + square * (size - more))
