# pyright: strict
"""Checks repeated calls of an op.

The questions are: are results bitwise equal, does memory leak, what is the peak memory, and do calls return before the
device has finished?
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, Results, results_of
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import arguments_for, peak_of
from opreplay.replay.check.points.trials import Attempt, attempt, failed, nothing, passed, refused

RUNS = 10
LEAK_CALLS, LEAK_ROUNDS = 24, 4
LEAK_BYTES = 16
"""Smallest leak per call that is detected, in bytes: the smallest block that the C library allocates."""


def determinism(bench: Bench) -> list[Attempt]:
    """Return trials of usual, small and large cases, and one with deterministic algorithms enabled."""
    base = bench.compact_bases[0]
    cases = dict.fromkeys([*bench.bases[:2], base, *variants.huge(base)])
    return [
        *(attempt(bench, case, _same_bits) for case in cases),
        attempt(bench, base, _on_request, "deterministic algorithms"),
    ]


def _same_bits(bench: Bench, case: Case) -> Finding:
    arguments = arguments_for(bench, case)
    try:
        first = bench.call(case, arguments.copy())
    except Exception as error:  # judged by other points
        return nothing(words(error))
    random = bench.is_random(case)
    if not random:
        first = _unseeded(bench, case, arguments)
    for run in range(1, RUNS):
        again = bench.call(case, arguments.copy()) if random else _unseeded(bench, case, arguments)
        if (spread := _spread(first, again)) is not None:
            seeded = _spread(bench.call(case, arguments.copy()), bench.call(case, arguments.copy())) is None
            hint = "; runs with one seed are equal: the op lacks the tag nondeterministic_seeded" if seeded else ""
            return failed(f"run {run + 1} differs from the first: {spread}{hint}")
    return passed(f"{RUNS} runs{' with one seed' if random else ''}")


def _unseeded(bench: Bench, case: Case, arguments: Arguments) -> Results:
    """Run one call with a random seed taken from the clock."""
    copy = arguments.copy()
    return results_of(bench.call_of(case, copy), copy, seed=perf_counter().as_integer_ratio()[0] % 2**31)


def _spread(first: Results, again: Results) -> str | None:
    """Describe how the results of two runs differ; None if they are bitwise equal."""
    before, after = first.all(), again.all()
    if [(a.shape, a.dtype) for a in before] != [(b.shape, b.dtype) for b in after]:
        return "sizes or dtypes differ"
    for a, b in zip(before, after, strict=True):
        wrong = int((_bytes(a) != _bytes(b)).sum())
        if wrong and a.dtype.is_floating_point:
            gap = float((a.double() - b.double()).abs().nan_to_num(0.0).max())
            return f"{wrong:,} bytes differ, values by at most {gap:.3g}"
        if wrong:
            return f"{wrong:,} bytes"
    return None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # As one dimension of stride 1: a single element may have any other, of which torch makes no bytes.
    dense = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    return dense.view(torch.uint8) if tensor.numel() else tensor.new_empty(0)


def _on_request(bench: Bench, case: Case) -> Finding:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        finding = _same_bits(bench, case)
        try:
            bench.call(case, bench.arguments(case))
        except RuntimeError as error:
            return refused(words(error))
        except Exception as error:  # judged by other points
            return nothing(words(error))
    finally:
        torch.use_deterministic_algorithms(before)
    return finding


def memory(bench: Bench) -> list[Attempt]:
    """Return trials of the memory that stays allocated after each call, and of the peak memory of one call."""
    return [attempt(bench, bench.compact_bases[0], _growth, "kept"), attempt(bench, bench.first, _peak, "peak")]


def _growth(bench: Bench, case: Case) -> Finding:
    """Measure the memory in use after rounds of calls whose results are dropped. An increase in every round
    is a leak.
    """
    try:
        arguments = bench.arguments(case).copy()
        call = bench.call_of(case, arguments)
        results_of(call, arguments)
    except Exception as error:  # judged by other points
        return nothing(words(error))
    gc.collect()
    gc.freeze()  # what was there before needs not be gone through again
    try:
        grown = {name: _growth_by_round(call, read) for name, read in _readings(bench.device).items()}
    finally:
        gc.unfreeze()
    for name, by_round in grown.items():
        per_call = min(by_round) / LEAK_CALLS
        unit, leak = ("bytes", LEAK_BYTES) if name in ("heap", "device") else (name, 1.0)
        if per_call >= leak:
            return failed(f"keeps {per_call:,.0f} {unit} per call ({LEAK_ROUNDS} times {LEAK_CALLS} calls)")
    return passed(f"no memory kept in {LEAK_ROUNDS * LEAK_CALLS} calls")


def _growth_by_round(call: Callable[[], Any], read: Callable[[], int]) -> list[int]:
    """Return the increase of `read()` from each round of calls to the next."""
    levels: list[int] = []
    with torch.no_grad():
        for _ in range(1 + LEAK_ROUNDS):  # the first warms up
            for _ in range(LEAK_CALLS):
                call()
            gc.collect()
            levels.append(read())
    return [after - before for before, after in itertools.pairwise(levels)]


def _readings(device: torch.device) -> dict[str, Callable[[], int]]:
    """Return functions by resource name; each reads how much of the resource is in use.

    The resources are Python objects, open files and threads. In addition, memory is read: bytes allocated by the C
    library (on the CPU) or by the device's allocator.
    """
    readings: dict[str, Callable[[], int]] = {"objects": sys.getallocatedblocks}
    for name, folder in {"open files": "/proc/self/fd", "threads": "/proc/self/task"}.items():
        if os.path.isdir(folder):
            readings[name] = lambda folder=folder: len(os.listdir(folder))
    if device.type == "cpu":
        if (heap := _heap()) is not None:
            readings["heap"] = heap
    else:
        backend = getattr(torch, device.type)
        readings["device"] = lambda: int(backend.memory_allocated(device))
    return readings


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and later (mallinfo(3))."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


@lru_cache(maxsize=1)
def _heap() -> Callable[[], int] | None:
    """Return a function that reads the bytes allocated by the C library; None if the library does not report them."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _MallInfo

    def read() -> int:
        info = function()
        return int(info.uordblks) + int(info.hblkhd)

    return read


def _peak(bench: Bench, case: Case) -> Finding:
    """Measure the peak memory of a call beyond its results, relative to the size of arguments and results."""
    try:
        arguments = bench.arguments(case)
        temporary, total = peak_of(bench, case, arguments)
        detail = f"temporary memory is {temporary / max(1, total):.2f} times the memory of arguments and results"
        if bench.has_reference(case):
            of_reference, _ = peak_of(bench, case, arguments, reference=True)
            detail += f", {of_reference / max(1, total):.2f} times for the reference"
    except Exception as error:  # judged by other points
        return nothing(words(error))
    return passed(detail)


def asynchrony(bench: Bench) -> list[Attempt]:
    """Return the trial that checks whether a call returns while the device is still busy with earlier work."""
    return [attempt(bench, bench.first, _returns_early)]


def _returns_early(bench: Bench, case: Case) -> Finding:
    device = bench.device
    if device.type != "cuda":
        return nothing(f"on {device.type} a call returns only when it is done")
    arguments = bench.arguments(case).copy()
    call = bench.call_of(case, arguments)
    results_of(call, arguments)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(HOLD_CYCLES)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    started = perf_counter()
    results_of(call, arguments)
    returned = perf_counter() - started
    torch.cuda.synchronize(device)
    done = perf_counter() - started
    detail = f"returned after {returned * 1e3:.3g} ms; the device needed {done * 1e3:.3g} ms"
    return passed(detail) if returned < done / 2 else failed(detail)


HOLD_CYCLES = 100_000_000
"""Cycles for which the GPU is kept busy, about 50 ms: far longer than a launch takes."""
