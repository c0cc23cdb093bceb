# pyright: strict
"""Checks that results depend on the arguments only.

They must not depend on the previous call's values, uninitialized memory, thread counts or concurrent calls. A call must
also leave torch's state unchanged.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, contiguous, is_float, results_of, seed_torch
from opreplay.replay.check.calling.closeness import compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.trials import Attempt, attempt, failed, nothing, passed
from opreplay.traces.names import plural

CALLERS, ROUNDS = 4, 20
"""Number of threads that call an op at once, and least number of calls per thread."""
AT_ONCE_S = 0.5
"""Seconds for which fast ops are called at once. The moment in which two calls share a buffer is short."""
SWITCH_S = 1e-5
"""Seconds after which Python may switch threads while ops are called at once. The usual 5 ms are longer than all calls
of a caller, so that Python code of ops would hardly overlap.
"""
THREADS = (1, 3)
"""torch's thread counts that are tried: one, and a number that does not divide any usual size."""


def stateless(bench: Bench, base: Case) -> list[Attempt]:
    """Return trials that repeat the same call under other conditions. The conditions are: after a call with other
    values in the same memory, in memory full of NaN, with other thread counts, and from several threads at once.
    """
    states: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {"in memory full of NaN": _filled}
    if bench.device.type == "cpu":
        for count in THREADS:
            states[f"by {plural(count, 'thread')}"] = partial(_threads, count)
    empty = [case for case in variants.vary_sizes(base) if case.kind == "no columns"]
    return [
        *([] if bench.operator(base) is not None else [attempt(bench, base, leaves_state, "state of torch")]),
        *(_trial(bench, case, "in memory full of NaN", partial(_in_state, state=_filled)) for case in empty),
        _trial(bench, base, "again with other values", _after_another),
        _trial(bench, base, "results after another call", _keeps_results),
        *(_trial(bench, base, name, partial(_in_state, state=state)) for name, state in states.items()),
        _trial(bench, base, f"by {CALLERS} callers at once", _at_once),
    ]


def _trial(bench: Bench, base: Case, name: str, judge: Callable[[Bench, Case], Finding]) -> Attempt:
    """Return a trial that is not applicable if the op's results depend on torch's random numbers."""

    def judged(bench: Bench, case: Case) -> Finding:
        return nothing("the op is random") if bench.is_random(case) else judge(bench, case)

    return attempt(bench, base, judged, name)


def _results(bench: Bench, case: Case, arguments: Arguments) -> list[torch.Tensor]:
    """Return copies of a call's results and of the arguments that it wrote, without seeding torch's generators."""
    results = results_of(bench.call_of(case, arguments), arguments, seed=None)
    return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in results.all()]


def _difference(actual: list[torch.Tensor], wanted: list[torch.Tensor], arguments: Arguments) -> str | None:
    """Describe the first difference that another order of summation cannot explain; None if there is none."""
    if [(a.shape, a.dtype) for a in actual] != [(b.shape, b.dtype) for b in wanted]:
        return "sizes or dtypes differ"
    largest = max((tensor.numel() for tensor in arguments.tensors()), default=1)
    for tensor, other in zip(actual, wanted, strict=True):
        distance = compare(tensor, other, terms=largest / max(1, tensor.numel()))
        if not distance.fits:
            return distance.where
    return None


def _after_another(bench: Bench, case: Case) -> Finding:
    """Check a call that follows a call with other values in the same memory. An op that caches results by address or
    shape would return the results of the earlier call.
    """
    arguments = bench.arguments(case).copy()
    first = contiguous(arguments)
    seed_torch(0)
    try:
        _results(bench, case, arguments)
        for mine, before in zip(arguments.tensors(), first.tensors(), strict=True):
            if 0 not in mine.stride():
                mine.copy_(_other_values(before))
        other = contiguous(arguments)
        again = _results(bench, case, arguments)
        wanted = _results(bench, case, other)
    except Exception as error:  # judged by other trials
        return nothing(words(error))
    where = _difference(again, wanted, arguments)
    return passed() if where is None else failed(f"the result depends on the previous call: {where}")


def _other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return half of each float in reverse order, because results of a norm or a sort do not depend on the scale.

    Other dtypes are returned unchanged: they may be indices, which the op expects in this order.
    """
    return tensor.flip(tuple(range(tensor.dim()))) / 2 if is_float(tensor) else tensor


def _keeps_results(bench: Bench, case: Case) -> Finding:
    """Check that a call with other values, in other memory, leaves the results of the previous call unchanged. An op
    that returns its workspace would overwrite them.
    """
    arguments = bench.arguments(case).copy()
    other = contiguous(arguments).changed(_other_values)
    try:
        kept = results_of(bench.call_of(case, arguments), arguments).all()
        before = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in kept]
        results_of(bench.call_of(case, other), other)
    except Exception as error:  # judged by other trials
        return nothing(words(error))
    where = _difference(kept, before, arguments)
    return passed() if where is None else failed(f"the next call overwrites the result: {where}")


@contextlib.contextmanager
def _filled() -> Generator[None, None, None]:
    """Context manager in which torch fills new memory with NaN or the largest numbers
    (use_deterministic_algorithms).
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextlib.contextmanager
def _threads(count: int) -> Generator[None, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_state(bench: Bench, case: Case, state: Callable[[], contextlib.AbstractContextManager[None]]) -> Finding:
    """Check that results inside the context `state` equal those outside it."""
    arguments = bench.arguments(case)
    try:
        seed_torch(0)
        wanted = _results(bench, case, arguments.copy())
        with state():
            seed_torch(0)
            actual = _results(bench, case, arguments.copy())
    except Exception as error:  # judged by other trials
        return nothing(words(error))
    where = _difference(actual, wanted, arguments)
    return passed() if where is None else failed(where)


def _at_once(bench: Bench, case: Case) -> Finding:
    """Call the op from several Python threads, each on its own tensors."""
    arguments = [bench.arguments(case).copy() for _ in range(CALLERS)]
    for number, of_caller in enumerate(arguments):
        for tensor in of_caller.tensors():
            if is_float(tensor) and 0 not in tensor.stride():
                tensor.mul_(1 + number / 4)
    try:
        wanted = [_results(bench, case, of_caller.copy()) for of_caller in arguments]
    except Exception as error:  # judged by other trials
        return nothing(words(error))

    def caller(number: int) -> list[list[torch.Tensor]]:
        other: list[list[torch.Tensor]] = []
        calls, end = 0, time.monotonic() + AT_ONCE_S
        while len(other) < ROUNDS and (calls < ROUNDS or time.monotonic() < end):
            results = _results(bench, case, arguments[number].copy())
            # Comparing takes longer than calling, so that calls would hardly meet.
            if len(results) != len(wanted[number]) or not all(map(_equals, results, wanted[number])):
                other.append(results)
            calls += 1
        return other

    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            others = list(pool.map(caller, range(CALLERS)))
    finally:
        sys.setswitchinterval(usual)
    where = next(
        (
            where
            for number, other in enumerate(others)
            for results in other
            if (where := _difference(results, wanted[number], arguments[number])) is not None
        ),
        None,
    )
    return passed() if where is None else failed(f"simultaneous calls disturb each other: {where}")


def _equals(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    try:
        return actual.dtype == wanted.dtype and torch.equal(actual, wanted)
    except RuntimeError:  # not every dtype and layout can be compared: `_difference` does it
        return False


def leaves_state(bench: Bench, case: Case) -> Finding:
    """Check that a call leaves torch's state unchanged, such as random state, default dtype, threads and gradient mode.

    The op is called twice, with all flags off and on, because an earlier call may have left either behind.
    """
    changed: dict[str, None] = {}
    for flags in (False, True):
        arguments = bench.arguments(case).copy()
        with _unusual_state(), _flags(flags):
            before = _state()
            try:
                bench.call_of(case, arguments)()
            except Exception as error:  # judged by other points
                if not flags:
                    return nothing(words(error))
            changed |= {name: None for name, value in _state().items() if not _equal(value, before[name])}
    if bench.is_random(case):
        changed.pop("random numbers", None)
    hint = ": the op lacks the tag nondeterministic_seeded" if list(changed) == ["random numbers"] else ""
    return failed(f"changes the {', '.join(changed)}{hint}") if changed else passed()


@contextlib.contextmanager
def _flags(on: bool) -> Generator[None, None, None]:
    """Turn torch's flags on or off, including the default dtype (on: float64), and restore them afterwards."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )
    _set_flags(on, on, torch.float64 if on else torch.float32, "high" if on else "highest", on, on)
    try:
        yield
    finally:
        _set_flags(*before)


def _set_flags(
    deterministic: bool, warn_only: bool, dtype: torch.dtype, precision: str, anomaly: bool, check_nan: bool
) -> None:
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.autograd.set_detect_anomaly(anomaly, check_nan)


@contextlib.contextmanager
def _unusual_state() -> Generator[None, None, None]:
    """Set random generators, thread count and denormal handling to a state that no earlier call can have left behind.

    The previous state is restored afterwards. Torch's random state is not restored, because each call seeds it.
    """
    of_python, of_numpy, threads = random.getstate(), np.random.get_state(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    seed_torch(UNUSUAL_SEED)
    random.seed(UNUSUAL_SEED)
    np.random.seed(UNUSUAL_SEED)
    torch.set_flush_denormal(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


UNUSUAL_SEED = 9_176_301


def _state() -> dict[str, object]:
    return {
        "random numbers of Python": random.getstate(),
        "random numbers of numpy": str(np.random.get_state()),
        "handling of denormal numbers": bool(torch.tensor([1e-39]) * 1.0),
        "working directory": os.getcwd(),
        "floating-point errors of numpy": str(np.geterr()),
        "random numbers": torch.get_rng_state(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "number of threads": torch.get_num_threads(),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "precision of float32 products": torch.get_float32_matmul_precision(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def _equal(before: object, after: object) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return torch.equal(before, after)
    return before == after
