# pyright: strict
"""Peak memory of a call, and whether there is enough memory and time for a call with many elements."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable
from typing import Any

import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, BothRefuse, NotApplicable, as_float64, results_of
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.execute.executors.torch.profile import torch_profiler
from opreplay.replay.ir.reasons import NotReplayable

MOST_PEAK = 1 << 29
"""Maximum peak memory, in bytes, of a case with many elements in float64. Comparing its results takes several times
that.
"""
MOST_SECONDS = 4.0
"""Maximum duration, in seconds, of one call with many elements. Op and reference are called several times within a
trial's time limit.
"""


def peak_of(bench: Bench, case: Case, arguments: Arguments, *, reference: bool = False) -> tuple[int, int]:
    """Return the peak memory of a call beyond its results, and the size of arguments and results, in bytes."""
    copy = arguments.copy()
    call = bench.reference_call(case, copy) if reference else bench.call_of(case, copy)
    results_of(call, copy)
    device = bench.device
    if device.type != "cpu":
        backend = getattr(torch, device.type)
        backend.synchronize(device)
        backend.reset_peak_memory_stats(device)
        before = backend.memory_allocated(device)
        results = results_of(call, copy)
        backend.synchronize(device)
        peak = backend.max_memory_allocated(device) - before
    else:
        profiler: Any = torch_profiler(memory=True)
        with profiler:
            results = results_of(call, copy)
        ordered = sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
        changes = [event.nbytes() for event in ordered if event.name() == "[memory]"]
        peak = max(itertools.accumulate(changes, initial=0))
    returned = _bytes(results.returned)
    return max(0, int(peak) - returned), _bytes(copy.tensors()) + returned


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def _seconds_of(bench: Bench, case: Case, arguments: Arguments, *, reference: bool = False) -> float:
    """Return the duration of a call in seconds.

    On the CPU, the processor time and the wall time are measured, and the smaller one is returned. The processor time
    excludes other programs; the wall time counts several cores once. On other devices, it is the wall time.
    """
    copy = arguments.copy()
    call = bench.reference_call(case, copy) if reference else bench.call_of(case, copy)
    wall, busy = time.perf_counter(), time.process_time()
    results_of(call, copy)
    if bench.device.type != "cpu":
        getattr(torch, bench.device.type).synchronize(bench.device)
        return time.perf_counter() - wall
    return min(time.perf_counter() - wall, time.process_time() - busy)


def arguments_for(bench: Bench, case: Case) -> Arguments:
    """Return the arguments of a case. Raises NotApplicable if they cannot be created, or if the call would take too
    much memory or time.
    """
    if (reason := too_much(bench, case)) is not None:
        raise reason
    try:
        return bench.arguments(case)
    except NotReplayable as stopped:
        raise NotApplicable(f"arguments cannot be created: {stopped.reason}") from None


def too_much(bench: Bench, case: Case) -> NotApplicable | None:
    """Return the reason not to try a case with many elements; None if it may be tried.

    Its memory and time are estimated from two smaller cases. Two are needed because the cost may grow with the square
    of the number of elements, as for attention.
    """
    if not case.smaller:
        return None
    if case.op.id not in bench.too_large:
        bench.too_large[case.op.id] = _foreseen(bench, case)
    return bench.too_large[case.op.id]


def _foreseen(bench: Bench, case: Case) -> NotApplicable | None:
    peaks: list[tuple[int, float]] = []
    times: list[tuple[int, float]] = []
    for smaller in case.smaller:
        try:
            arguments = bench.arguments(smaller)
            peak_bytes = [float(sum(peak_of(bench, smaller, arguments)))]
            call_s = [_seconds_of(bench, smaller, arguments)]
        except Exception as error:  # what the op refuses is judged by other cases
            return BothRefuse(f"smaller calls are refused: {words(error)}")
        with contextlib.suppress(Exception):  # it refuses the large case as well, then
            wide = as_float64(arguments)
            peak_bytes.append(sum(peak_of(bench, smaller, wide, reference=True)))
            call_s.append(_seconds_of(bench, smaller, wide, reference=True))
        size = _bytes(arguments.tensors())
        peaks.append((size, max(peak_bytes)))
        times.append((size, max(call_s)))
    if len(peaks) < 2 or not 0 < peaks[0][0] < peaks[1][0]:
        return None
    size = peaks[1][0] * variants.elements(case) / max(1, variants.elements(case.smaller[-1]))
    if (peak := _continued(peaks, size)) > MOST_PEAK:
        return NotApplicable(f"a call would take {peak / 1e9:.1f} GB, estimated from smaller calls")
    if (seconds := _continued(times, size)) > MOST_SECONDS:
        return NotApplicable(f"a call would take {seconds:.0f} s, estimated from smaller calls")
    return None


def _continued(measured: list[tuple[int, float]], size: float) -> float:
    """Extrapolate a cost from (size, cost) of two smaller sizes to `size`, as linear · n + square · n²."""
    (small, of_small), (large, of_large) = measured
    square = max(0.0, (of_large / large - of_small / small) / (large - small))
    return size * (of_large / large + square * (size - large))
