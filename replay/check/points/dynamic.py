"""Sizes as symbols: opcheck's dispatch, torch.export at other sizes, torch.compile without a second compilation."""

from __future__ import annotations

import contextlib
import itertools
import logging
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, with_finite_results
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.promises import opcheck
from opreplay.replay.check.points.trials import Attempt, nothing

OTHER_SIZES = 3


def dynamic_shapes(bench: Bench) -> list[Attempt]:
    """Export, compilation and opcheck."""
    base = with_finite_results(bench, bench.compact_bases[0])
    return [
        Attempt(f"torch.export: {base.text}", lambda: _exported(bench, base)),
        Attempt(f"torch.compile: {base.text}", lambda: _compiled(bench, base)),
        Attempt(f"opcheck: {base.text}", lambda: opcheck(bench, base, "test_aot_dispatch_dynamic")),
    ]


def _function(bench: Bench, case: Case, arguments: Arguments) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The op as a function of its tensors alone, and these."""
    function = bench.target.function(case.op.overload)
    # What is compiled holds places in place of tensors: the sizes of those that it held would be guarded.
    numbers = itertools.count()
    form: list[tuple[bool, Any]] = []
    for value in arguments.values.values():
        is_list = isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value)
        items = [_Place(next(numbers)) if isinstance(v, torch.Tensor) else v for v in (value if is_list else [value])]
        form.append((is_list, items))
    names = [name if name in arguments.keyword_only else None for name in arguments.values]

    def call(*given: torch.Tensor) -> Any:
        positional: list[Any] = []
        by_name: dict[str, Any] = {}
        for name, (is_list, items) in zip(names, form, strict=True):
            placed = [given[item.number] if isinstance(item, _Place) else item for item in items]
            value = placed if is_list else placed[0]
            if name is None:
                positional.append(value)
            else:
                by_name[name] = value
        return function(*positional, **by_name)

    return call, arguments.tensors()


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands for one of the tensors."""

    number: int


def _others(bench: Bench, base: Case) -> list[tuple[Case, Arguments, list[torch.Tensor]]]:
    """Other sizes that the op takes: arguments, and what it gives for them."""
    found = []
    try:
        results = len(_tensors(bench.call_of(base, bench.arguments(base))()))
    except Exception:  # nothing to compare: what export and compile say of it is told
        return []
    for case in variants.other_sizes(base, OTHER_SIZES):
        try:
            arguments = bench.arguments(case)
            real = _tensors(bench.call_of(case, arguments.copy())())
        except Exception:  # it does not take these sizes
            continue
        # Numbers that follow sizes are constants of the graph, and so is how many results it has (`split`, `unbind`).
        numbers = [a for a in case.op.args if not a.tensors] == [a for a in base.op.args if not a.tensors]
        if numbers and len(real) == results:
            found.append((case, arguments, real))
    return found


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _exported(bench: Bench, base: Case) -> Finding:
    text = f"torch.export: {base.text}"
    arguments = bench.arguments(base)
    call, tensors = _function(bench, base, arguments)
    if not tensors:
        return nothing(text, "no tensor among the arguments")

    class Module(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return call(*given)

    auto = torch.export.Dim.AUTO
    dims = tuple({d: auto for d, size in enumerate(tensor.shape) if size > 1} for tensor in tensors)
    others = _others(bench, base)
    try:
        with _quiet():
            program = torch.export.export(
                Module(), tuple(tensors), dynamic_shapes=(dims,), strict=bench.operator(base) is None
            ).module()
    except Exception as error:  # export raises anything
        return Finding(case=text, verdict="fail", detail=_reason(error))
    for case, given, real in others:
        try:
            with _quiet():
                made = _tensors(program(*given.copy().tensors()))
        except Exception as error:  # guards of sizes, and whatever the op raises
            detail = f"exported for one size only: {_reason(error)}"
            return Finding(case=f"torch.export: {case.text}", verdict="fail", detail=detail)
        if not _alike(made, real):
            return Finding(case=f"torch.export: {case.text}", verdict="fail", detail="gives other results than the op")
    return Finding(case=text, verdict="pass", detail=f"and at {len(others)} other sizes")


def _compiled(bench: Bench, base: Case) -> Finding:
    text = f"torch.compile: {base.text}"
    import torch._dynamo

    arguments = bench.arguments(base)
    call, tensors = _function(bench, base, arguments)
    if not tensors:
        return nothing(text, "no tensor among the arguments")
    count = 0

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(call, dynamic=True, fullgraph=True, backend=backend)
    others = _others(bench, base)
    try:
        with _quiet():
            compiled(*arguments.copy().tensors())
            for case, given, real in others:
                text = f"torch.compile: {case.text}"
                made = _tensors(compiled(*given.copy().tensors()))
                if not _alike(made, real):
                    return Finding(case=text, verdict="fail", detail="gives other results than the op")
        # Ranges of sizes may have graphs of their own, as torch's convolutions have for kernels beyond 3.
        if others and count > len(others):
            return Finding(case=text, verdict="fail", detail="each other size is compiled once more")
    except Exception as error:  # dynamo raises anything
        return Finding(case=text, verdict="fail", detail=_reason(error))
    finally:
        torch._dynamo.reset()
    graphs = "one graph" if count == 1 else f"{count} graphs"
    return Finding(case=f"torch.compile: {base.text}", verdict="pass", detail=f"{graphs} for {1 + len(others)} sizes")


def _tensors(results: Any) -> list[torch.Tensor]:
    return [one for one in flattened(results) if isinstance(one, torch.Tensor)]


def _alike(made: list[torch.Tensor], real: list[torch.Tensor]) -> bool:
    """Whether results look alike; whether they are right is judged elsewhere, and some ops are random."""
    return [(a.shape, a.dtype) for a in made] == [(b.shape, b.dtype) for b in real]


def _reason(error: Exception) -> str:
    """The lines of torch's message that say what happened, without the advice around them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("Explanation:", "Developer debug", "Guard failed"))]
    first = lines[0] if lines else type(error).__name__
    return " ".join(dict.fromkeys([f"{type(error).__name__}: {first}", *told]))[:400]
