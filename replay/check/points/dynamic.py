"""Symbolic sizes: opcheck's dispatch test, torch.export at other sizes, torch.compile without recompilation."""

from __future__ import annotations

import contextlib
import itertools
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import msgspec
import torch

from opreplay.replay.arguments.tensors import tensors_in
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, NotApplicable, with_finite_results
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.promises import opcheck, without_fake
from opreplay.replay.check.points.trials import Attempt, attempt, failed, passed

OTHER_SIZES = 3


def dynamic_shapes(bench: Bench) -> list[Attempt]:
    """Return the trials of torch.export, torch.compile and opcheck."""
    base = with_finite_results(bench, bench.compact_bases[0])
    return [
        attempt(bench, base, _unless_no_fake(_exported), "torch.export"),
        attempt(bench, base, _unless_no_fake(_compiled), "torch.compile"),
        Attempt(f"opcheck: {base.text}", lambda: opcheck(bench, base, "test_aot_dispatch_dynamic")),
    ]


def _unless_no_fake(judge: Callable[[Bench, Case], Finding]) -> Callable[[Bench, Case], Finding]:
    """Wrap a trial so that a failure caused by a missing fake kernel is reported as the missing kernel, not as torch's
    error.
    """

    def judged(bench: Bench, case: Case) -> Finding:
        finding = judge(bench, case)
        return (without_fake(bench, case) if finding.verdict == "fail" else None) or finding

    return judged


def _function(bench: Bench, case: Case, arguments: Arguments) -> Callable[..., Any]:
    """Return the op as a function of its tensors, with other arguments fixed. Raises NotApplicable without tensors."""
    if not arguments.tensors():
        raise NotApplicable("no tensor among the arguments")
    function = bench.target.function(case.op.overload)
    # What is compiled holds places in place of tensors: the sizes of those that it held would be guarded.
    numbers = itertools.count()
    places = arguments.changed(lambda _: cast("torch.Tensor", _Place(next(numbers))))
    positional, by_name = places.positional, places.by_name

    def call(*tensors: torch.Tensor) -> Any:
        args = [_placed(value, tensors) for value in positional]
        return function(*args, **{name: _placed(value, tensors) for name, value in by_name.items()})

    return call


def _placed(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the value with each placeholder (`_Place`) replaced by its tensor, also in lists."""
    if isinstance(value, _Place):
        return tensors[value.number]
    return [_placed(item, tensors) for item in value] if isinstance(value, list) else value


class _Place(msgspec.Struct, frozen=True):
    """Placeholder for the tensor with this number."""

    number: int


def _other_sizes(bench: Bench, base: Case) -> list[tuple[Case, Arguments, list[torch.Tensor]]]:
    """Return calls with other sizes that the op accepts: the case, its arguments and its results."""
    try:
        results = len(tensors_in(bench.call_of(base, bench.arguments(base))()))
    except Exception:  # nothing to compare: what export and compile say of it is told
        return []
    others: list[tuple[Case, Arguments, list[torch.Tensor]]] = []
    for case in variants.other_sizes(base, OTHER_SIZES):
        try:
            arguments = bench.arguments(case)
            real = tensors_in(bench.call_of(case, arguments.copy())())
        except Exception:  # it does not take these sizes
            continue
        # Numbers that follow sizes are constants of the graph, and so is how many results it has (`split`, `unbind`).
        numbers = [a for a in case.op.args if not a.tensors] == [a for a in base.op.args if not a.tensors]
        if numbers and len(real) == results:
            others.append((case, arguments, real))
    return others


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
    arguments = bench.arguments(base)
    call = _function(bench, base, arguments)

    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return call(*tensors)

    auto, tensors = torch.export.Dim.AUTO, tuple(arguments.tensors())
    dims = tuple({d: auto for d, size in enumerate(tensor.shape) if size > 1} for tensor in tensors)
    others = _other_sizes(bench, base)
    strict = bench.operator(base) is None
    try:
        with _quiet():
            program = torch.export.export(Module(), tensors, dynamic_shapes=(dims,), strict=strict).module()
    except Exception as error:  # export raises anything
        return failed(_reason(error))
    for case, other, real in others:
        text = f"torch.export: {case.text}"
        try:
            with _quiet():
                results = tensors_in(program(*other.copy().tensors()))
        except Exception as error:  # guards of sizes, and whatever the op raises
            return Finding(case=text, verdict="fail", detail=f"exported for only one size: {_reason(error)}")
        if not _alike(results, real):
            return Finding(case=text, verdict="fail", detail="returns results that differ from the op's")
    return passed(f"passes at {len(others)} other sizes, too")


def _compiled(bench: Bench, base: Case) -> Finding:
    import torch._dynamo

    arguments = bench.arguments(base)
    call = _function(bench, base, arguments)
    graphs = 0

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(call, dynamic=True, fullgraph=True, backend=backend)
    others = _other_sizes(bench, base)
    text = f"torch.compile: {base.text}"
    try:
        with _quiet():
            compiled(*arguments.copy().tensors())
            for case, other, real in others:
                text = f"torch.compile: {case.text}"
                if not _alike(tensors_in(compiled(*other.copy().tensors())), real):
                    return Finding(case=text, verdict="fail", detail="returns results that differ from the op's")
        # Ranges of sizes may have graphs of their own, as torch's convolutions have for kernels beyond 3.
        if others and graphs > len(others):
            return Finding(case=text, verdict="fail", detail="every new size triggers a recompilation")
    except Exception as error:  # dynamo raises anything
        return Finding(case=text, verdict="fail", detail=_reason(error))
    finally:
        torch._dynamo.reset()
    return passed(f"{'one graph' if graphs == 1 else f'{graphs} graphs'} for {1 + len(others)} sizes")


def _alike(results: list[torch.Tensor], real: list[torch.Tensor]) -> bool:
    """Check whether results have the same shapes and dtypes. Values are checked by "correctness", because some ops are
    random.
    """
    return [(a.shape, a.dtype) for a in results] == [(b.shape, b.dtype) for b in real]


def _reason(error: Exception) -> str:
    """Return the lines of torch's error message that say what happened, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    explaining = [line for line in lines if line.startswith(("Explanation:", "Developer debug", "Guard failed"))]
    first = lines[0] if lines else type(error).__name__
    return " ".join(dict.fromkeys([f"{type(error).__name__}: {first}", *explaining]))[:400]
