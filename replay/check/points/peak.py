# pyright: strict
"""How much memory a call takes at its peak, and whether there is room for one of many elements."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, results_of, widened
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case

MOST_PEAK = 1 << 29
"""Bytes that a case of many elements may take at its peak, in float64; to compare its results takes some times that."""


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


def too_much(bench: Bench, case: Case) -> str | None:
    """Why a case of many elements is not tried: what it takes, by smaller ones; None where there is room for it.

    Memory may grow with the square of the elements, as that of attention does: two cases tell how much of it does.
    """
    if not case.smaller:
        return None
    key = f"memory of {case.op.id}"
    if key not in bench.facts_of_op:
        bench.facts_of_op[key] = tuple(why for why in (_foreseen(bench, case),) if why is not None)
    return next(iter(bench.facts_of_op[key]), None)


def _foreseen(bench: Bench, case: Case) -> str | None:
    taken: list[tuple[int, float]] = []
    for one in case.smaller:
        try:
            arguments = bench.arguments(one)
            peaks = [sum(peak_of(bench, one, arguments))]
        except Exception as error:  # what the op refuses is judged by other cases
            return f"smaller ones are refused: {words(error)}"
        with contextlib.suppress(Exception):  # it refuses the large case as well, then
            peaks.append(sum(peak_of(bench, one, widened(arguments), reference=True)))
        size = sum(tensor.numel() * tensor.itemsize for tensor in arguments.tensors())
        taken.append((size, max(peaks)))
    if len(taken) < 2 or not 0 < taken[0][0] < taken[1][0]:
        return None
    (few, least), (more, most) = taken
    wanted = more * variants.elements(case) / max(1, variants.elements(case.smaller[-1]))
    # Peak = linear · size + square · size².
    square = max(0.0, (most / more - least / few) / (more - few))
    peak = wanted * (most / more + square * (wanted - more))
    return f"it would take {peak / 1e9:.1f} GB, by what smaller ones take" if peak > MOST_PEAK else None
