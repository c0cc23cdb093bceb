# pyright: strict
"""An op called again and again: the same bits, nothing kept, how much memory meanwhile, and when a call returns."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, Results, results_of, seed_torch
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import peak_of, too_much
from opreplay.replay.check.points.trials import Attempt, attempt, nothing

RUNS = 10
LEAK_CALLS, LEAK_ROUNDS, LEAK_WARM_UP = 24, 4, 24
LEAK_BYTES = 16
"""Least that a call which keeps something keeps: the smallest block of the C library."""


def determinism(bench: Bench) -> list[Attempt]:
    """Usual, small and large cases, and the one with deterministic algorithms asked for."""
    base = bench.compact_bases[0]
    large = variants.huge(base)
    cases = list(dict.fromkeys([*bench.bases[:2], base, *large]))
    return [
        *(attempt(case, lambda case: _same_bits(bench, case)) for case in cases),
        Attempt(f"deterministic algorithms: {base.text}", lambda: _on_request(bench, base)),
    ]


def _same_bits(bench: Bench, case: Case) -> Finding:
    text = case.text
    if (why := too_much(bench, case)) is not None:
        return nothing(text, why)
    try:
        arguments = bench.arguments(case)
        first = bench.call(case, arguments.copy())
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    operator = bench.operator(case)
    random = operator is not None and torch.Tag.nondeterministic_seeded in operator.tags
    if not random:
        first = _unseeded(bench, case, arguments)
    for run in range(1, RUNS):
        again = bench.call(case, arguments.copy()) if random else _unseeded(bench, case, arguments)
        if (spread := _spread(first, again)) is not None:
            seeded = _spread(bench.call(case, arguments.copy()), bench.call(case, arguments.copy())) is None
            hint = "; the same with the same seed: it lacks the tag nondeterministic_seeded" if seeded else ""
            return Finding(case=text, verdict="fail", detail=f"run {run + 1} differs from the first: {spread}{hint}")
    return Finding(case=text, verdict="pass", detail=f"{RUNS} runs{' with one seed' if random else ''}")


def _unseeded(bench: Bench, case: Case, arguments: Arguments) -> Results:
    """One call that finds the state of random numbers as it happens to be."""
    copy = arguments.copy()
    seed_torch(perf_counter().as_integer_ratio()[0] % 2**31)
    call = bench.call_of(case, copy)
    with torch.no_grad():
        returned = list(flattened(call()))
    written = [v for n in copy.written for v in flattened([copy.values.get(n)]) if isinstance(v, torch.Tensor)]
    return Results(returned=[one for one in returned if isinstance(one, torch.Tensor)], written=written)


def _spread(first: Results, again: Results) -> str | None:
    """How far two runs are apart; None for the same bits."""
    left, right = first.all(), again.all()
    if [(a.shape, a.dtype) for a in left] != [(b.shape, b.dtype) for b in right]:
        return "other sizes or dtypes"
    for a, b in zip(left, right, strict=True):
        x, y = _bytes(a), _bytes(b)
        if not torch.equal(x, y):
            wrong = int((x != y).sum())
            if a.dtype.is_floating_point:
                gap = float((a.double() - b.double()).abs().nan_to_num(0.0).max())
                return f"{wrong:,} bytes, {gap:.3g} at most"
            return f"{wrong:,} bytes"
    return None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)


def _on_request(bench: Bench, case: Case) -> Finding:
    text = f"deterministic algorithms: {case.text}"
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        found = _same_bits(bench, case)
        try:
            bench.call(case, bench.arguments(case))
        except RuntimeError as error:
            return Finding(case=text, verdict="refused", detail=words(error))
        except Exception as error:  # judged by other points
            return nothing(text, words(error))
    finally:
        torch.use_deterministic_algorithms(before)
    return Finding(case=text, verdict=found.verdict, detail=found.detail)


def memory(bench: Bench) -> list[Attempt]:
    """What stays after each call, and the peak of one."""
    base, first = bench.compact_bases[0], bench.first
    return [
        Attempt(f"kept: {base.text}", lambda: _kept(bench, base)),
        Attempt(f"peak: {first.text}", lambda: _peak(bench, first)),
    ]


def _kept(bench: Bench, case: Case) -> Finding:
    """Memory in use after rounds of calls whose results are dropped: more each time is a leak."""
    text = f"kept: {case.text}"
    try:
        arguments = bench.arguments(case).copy()
        call = bench.call_of(case, arguments)
        results_of(call, arguments)
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    gc.collect()
    gc.freeze()  # what was there before needs not be gone through again
    try:
        grown = {name: _growth(call, read) for name, read in _readings(bench.device).items()}
    finally:
        gc.unfreeze()
    for name, per_round in grown.items():
        least = min(per_round) / LEAK_CALLS
        if least >= (1.0 if name == "objects" else LEAK_BYTES):
            unit = "objects" if name == "objects" else "bytes"
            detail = f"keeps {least:,.0f} {unit} a call ({LEAK_ROUNDS} times {LEAK_CALLS} calls)"
            return Finding(case=text, verdict="fail", detail=detail)
    return Finding(case=text, verdict="pass", detail=f"nothing kept in {LEAK_ROUNDS * LEAK_CALLS} calls")


def _growth(call: Callable[[], Any], read: Callable[[], int]) -> list[int]:
    """How much a reading rises from round to round."""
    with torch.no_grad():
        for _ in range(LEAK_WARM_UP):
            call()
        levels = [_settled(read)]
        for _ in range(LEAK_ROUNDS):
            for _ in range(LEAK_CALLS):
                call()
            levels.append(_settled(read))
    return [after - before for before, after in itertools.pairwise(levels)]


def _settled(read: Callable[[], int]) -> int:
    gc.collect()
    return read()


def _readings(device: torch.device) -> dict[str, Callable[[], int]]:
    """What tells how much memory is in use: Python's objects, the C library's blocks, the device's allocator."""
    found: dict[str, Callable[[], int]] = {"objects": sys.getallocatedblocks}
    if device.type == "cpu":
        if (heap := _heap()) is not None:
            found["heap"] = heap
    else:
        backend = getattr(torch, device.type)
        found["device"] = lambda: int(backend.memory_allocated(device))
    return found


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
    """Bytes in blocks that the C library has handed out; None where it does not tell."""
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
    """The most memory of a call beyond its results, as a share of arguments and results."""
    text = f"peak: {case.text}"
    try:
        arguments = bench.arguments(case)
        temporary, given = peak_of(bench, case, arguments)
        if bench.has_reference(case):
            other, _ = peak_of(bench, case, arguments, reference=True)
        else:
            other = None
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    detail = f"temporaries of {temporary / max(1, given):.2f} times arguments and results"
    if other is not None:
        detail += f", the reference {other / max(1, given):.2f}"
    return Finding(case=text, verdict="pass", detail=detail)


def asynchrony(bench: Bench) -> list[Attempt]:
    """Whether a call returns while the device is still busy with what was queued before it."""
    first = bench.first
    return [Attempt(first.text, lambda: _returns_early(bench, first))]


def _returns_early(bench: Bench, case: Case) -> Finding:
    text = case.text
    device = bench.device
    if device.type != "cuda":
        return nothing(text, f"on {device.type} a call returns when it is done")
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
    detail = f"returned after {returned * 1e3:.3g} ms of {done * 1e3:.3g} ms"
    return Finding(case=text, verdict="pass" if returned < done / 2 else "fail", detail=detail)


HOLD_CYCLES = 100_000_000
"""Some 50 ms of a GPU: far longer than a launch takes."""
