# pyright: strict
"""What a call must not depend on: values of the call before it, memory that nobody wrote, threads, other calls.

And what it must leave as it was: the state of torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import torch

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check.calling.calls import Arguments, Bench, Results, contiguous, seed_torch
from opreplay.replay.check.calling.closeness import compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.trials import Attempt, nothing

CALLERS, ROUNDS = 4, 6
"""Threads that call an op at once, and how often each does."""
THREADS = (1, 3)
"""Of torch, within a call: one, and a number that no usual size is a multiple of."""


def unsettled(bench: Bench, base: Case) -> list[Attempt]:
    """The same call after another with other values in the same memory, in memory full of NaN, by other numbers of
    threads, and by several threads at once."""
    made = [
        Attempt(f"again with other values: {base.text}", lambda: _after_another(bench, base)),
        Attempt(f"in memory full of NaN: {base.text}", lambda: _changed(bench, base, "in memory full of NaN", _filled)),
    ]
    if bench.device.type == "cpu":
        for count in THREADS:
            name = f"by {count} thread{'s' if count > 1 else ''}"
            made.append(
                Attempt(
                    f"{name}: {base.text}",
                    lambda count=count, name=name: _changed(bench, base, name, lambda: _threads(count)),
                )
            )
    made.append(Attempt(f"by {CALLERS} callers at once: {base.text}", lambda: _at_once(bench, base)))
    return made


def _random(bench: Bench, case: Case) -> bool:
    operator = bench.operator(case)
    return operator is not None and torch.Tag.nondeterministic_seeded in operator.tags


def _results(call: Callable[[], object], arguments: Arguments) -> list[torch.Tensor]:
    """What a call gives, and what it wrote to, copied; without touching torch's random numbers."""
    with torch.no_grad():
        returned = [one for one in flattened(call()) if isinstance(one, torch.Tensor)]
    written = [one for name in arguments.written for one in flattened([arguments.values.get(name)])]
    both = Results(returned=returned, written=[one for one in written if isinstance(one, torch.Tensor)])
    return [one.detach().clone(memory_format=torch.contiguous_format) for one in both.all()]


def _apart(found: list[torch.Tensor], wanted: list[torch.Tensor], arguments: Arguments) -> str | None:
    """Where results differ; None where they are the same but for the order of sums."""
    if [(a.shape, a.dtype) for a in found] != [(b.shape, b.dtype) for b in wanted]:
        return "other sizes or dtypes"
    largest = max((tensor.numel() for tensor in arguments.tensors()), default=1)
    for one, other in zip(found, wanted, strict=True):
        distance = compare(one, other, terms=largest / max(1, one.numel()))
        if not distance.fits:
            return distance.where
    return None


def _after_another(bench: Bench, case: Case) -> Finding:
    """An op that keeps results by address or shape gives the first ones again."""
    text = f"again with other values: {case.text}"
    if _random(bench, case):
        return nothing(text, "the op is random")
    arguments = bench.arguments(case).copy()
    first = contiguous(arguments)
    seed_torch(0)
    try:
        _results(bench.call_of(case, arguments), arguments)
        for mine, before in zip(arguments.tensors(), first.tensors(), strict=True):
            if 0 not in mine.stride():
                mine.copy_(before / 2 if before.dtype.is_floating_point and before.itemsize > 1 else before)
        other = contiguous(arguments)
        again = _results(bench.call_of(case, arguments), arguments)
        wanted = _results(bench.call_of(case, other), other)
    except Exception as error:  # judged by other trials
        return nothing(text, words(error))
    if (where := _apart(again, wanted, arguments)) is not None:
        return Finding(case=text, verdict="fail", detail=f"it depends on the call before: {where}")
    return Finding(case=text, verdict="pass")


@contextlib.contextmanager
def _filled() -> Generator[None, None, None]:
    """New memory of torch is filled with NaN and the largest numbers (use_deterministic_algorithms)."""
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


def _changed(
    bench: Bench, case: Case, name: str, state: Callable[[], contextlib.AbstractContextManager[None]]
) -> Finding:
    """The same results in another state of torch."""
    text = f"{name}: {case.text}"
    if _random(bench, case):
        return nothing(text, "the op is random")
    arguments = bench.arguments(case)
    try:
        seed_torch(0)
        wanted = _results(bench.call_of(case, plain := arguments.copy()), plain)
        with state():
            seed_torch(0)
            found = _results(bench.call_of(case, other := arguments.copy()), other)
    except Exception as error:  # judged by other trials
        return nothing(text, words(error))
    if (where := _apart(found, wanted, arguments)) is not None:
        return Finding(case=text, verdict="fail", detail=where)
    return Finding(case=text, verdict="pass")


def _at_once(bench: Bench, case: Case) -> Finding:
    """Several threads of Python call the op on tensors of their own."""
    text = f"by {CALLERS} callers at once: {case.text}"
    if _random(bench, case):
        return nothing(text, "the op is random")
    mine: list[Arguments] = []
    for number in range(CALLERS):
        one = bench.arguments(case).copy()
        for tensor in one.tensors():
            if tensor.dtype.is_floating_point and tensor.itemsize > 1 and 0 not in tensor.stride():
                tensor.mul_(1 + number / 4)
        mine.append(one)
    try:
        wanted = [_results(bench.call_of(case, copy := one.copy()), copy) for one in mine]
    except Exception as error:  # judged by other trials
        return nothing(text, words(error))

    def caller(number: int) -> str | None:
        for _ in range(ROUNDS):
            copy = mine[number].copy()
            where = _apart(_results(bench.call_of(case, copy), copy), wanted[number], copy)
            if where is not None:
                return where
        return None

    with ThreadPoolExecutor(CALLERS) as pool:
        found = [one for one in pool.map(caller, range(CALLERS)) if one is not None]
    if found:
        return Finding(case=text, verdict="fail", detail=f"calls disturb each other: {found[0]}")
    return Finding(case=text, verdict="pass")


def left_alone(bench: Bench, case: Case) -> Finding:
    """Whether a call leaves the state of torch as it was: random numbers, dtype, threads, gradients, device."""
    text = f"state of torch: {case.text}"
    arguments = bench.arguments(case).copy()
    seed_torch(0)
    before = _state()
    try:
        bench.call_of(case, arguments)()
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    after = _state()
    changed = [name for name, value in before.items() if not _equal(value, after[name])]
    if _random(bench, case):
        changed = [name for name in changed if name != "random numbers"]
    if changed:
        hint = ": it lacks the tag nondeterministic_seeded" if changed == ["random numbers"] else ""
        return Finding(case=text, verdict="fail", detail=f"leaves other {', '.join(changed)} behind{hint}")
    return Finding(case=text, verdict="pass")


def _state() -> dict[str, object]:
    return {
        "random numbers": torch.get_rng_state(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "number of threads": torch.get_num_threads(),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def _equal(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    return left == right
