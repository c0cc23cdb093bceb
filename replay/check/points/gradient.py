"""Gradients: registered, right by gradcheck, equal to those of the reference's autograd, and of second order."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import (
    Arguments,
    Bench,
    first_working,
    reach_of,
    seed_torch,
    widened,
    with_finite_results,
)
from opreplay.replay.check.calling.closeness import compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import too_much
from opreplay.replay.check.points.promises import opcheck
from opreplay.replay.check.points.trials import Attempt, attempt, nothing
from opreplay.replay.check.points.values import layouts
from opreplay.replay.ir.reasons import NotReplayable

NOT_REGISTERED = (
    "no autograd formula was registered",
    "autograd kernel was not registered",
    "is not implemented",
    "not implemented for",
    "does not require grad",
    "one of the differentiated Tensors appears to not have been used",
    "the derivative for",
)
"""In what torch says where an op has no gradient."""
MOST_DERIVATIVES = 1 << 18
"""Of results by arguments, each of which torch computes and keeps: 3 million of a convolution took 12 GB."""
ONCE = ("once_differentiable", "does not require grad", "not implemented", "no autograd formula", "derivative for")
"""In what it says where a gradient has none."""


class NoGradient(Exception):
    """The op, or its reference, has no gradient here; the text says why."""


def gradient(bench: Bench) -> list[Attempt]:
    """Whether there is one, gradcheck of first and second order, and every layout against the reference."""
    base = bench.compact_bases[0]
    if not any(t.is_floating_point() or t.is_complex() for t in _tensors(bench, base)):
        return [Attempt(base.text, lambda: nothing(base.text, "no argument is a number that could have a gradient"))]
    # Arguments that are one tensor are equal everywhere: where numbers are compared, gradients have a step there.
    apart = [case for case in layouts(bench) if not case.kind.startswith(variants.SHARED)]
    sized = [
        case
        for case in variants.sized(base)
        if case.kind not in variants.MANY_ELEMENTS and variants.elements(case) <= variants.HUGE_ELEMENTS
    ]
    cases = [*apart, *sized, *variants.broadcast(base)]
    return [
        Attempt(f"registered: {base.text}", lambda: _registered(bench, base)),
        Attempt(f"gradcheck: {base.text}", lambda: _numerically(bench, base, second=False)),
        *(attempt(case, lambda case: _against_reference(bench, case)) for case in cases),
        *(_formed(bench, base, form) for form in FORMS),
        *_alone(bench, base),
        Attempt(f"twice: {base.text}", lambda: _twice(bench, base)),
        Attempt(f"nobody asked: {base.text}", lambda: _unasked(bench, base)),
        Attempt(f"second order: {base.text}", lambda: _numerically(bench, base, second=True)),
        Attempt(f"opcheck: {base.text}", lambda: _opcheck(bench, base)),
    ]


def _tensors(bench: Bench, case: Case) -> list[torch.Tensor]:
    try:
        return bench.arguments(case).tensors()
    except NotReplayable:
        return []


def _differentiable(tensor: torch.Tensor) -> bool:
    return (tensor.is_floating_point() and tensor.itemsize > 1) or tensor.is_complex()


def _with_grad(bench: Bench, arguments: Arguments, only: str | None = None) -> Arguments:
    """Leaves that record what becomes of them; the tensors themselves otherwise, as those of arguments that the op says
    are not differentiable, and all but `only`."""
    fixed = {id(arguments.values[name]) for name in _fixed(bench) if name in arguments.values}
    if only is not None:
        fixed |= {id(value) for name, value in arguments.named_tensors().items() if name != only}
    leaves: dict[int, torch.Tensor] = {}

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        if not _differentiable(tensor) or id(tensor) in fixed:
            return tensor
        # What is one tensor for two arguments is one leaf.
        return leaves.setdefault(id(tensor), tensor.detach().requires_grad_())

    return arguments.changed(leaf)


_NOT_DIFFERENTIABLE = re.compile(r"not differentiable with respect to argument '(\w+)'")


def _fixed(bench: Bench) -> tuple[str, ...]:
    """Names of arguments that the op refuses to have a gradient for, found by asking for one."""
    known = bench.facts_of_op.get("fixed")
    if known is None:
        names: list[str] = []
        bench.facts_of_op["fixed"] = tuple(names)
        base = bench.compact_bases[0]
        for _ in base.op.args:
            arguments = _with_grad(bench, bench.arguments(base))
            try:
                with torch.enable_grad():
                    bench.call_of(base, arguments)()
                break
            except Exception as error:  # ops raise anything
                found = _NOT_DIFFERENTIABLE.search(str(error))
                if found is None:
                    break
                names.append(found[1])
                bench.facts_of_op["fixed"] = tuple(names)
        known = bench.facts_of_op["fixed"]
    return known


def _gradients(
    call: Callable[[], Any], arguments: Arguments, form: Form | None = None
) -> list[tuple[str, torch.Tensor | None]]:
    """Gradients of a fixed combination of all results for each argument; those of the results have the strides that
    `form` gives them. Raises NoGradient, and whatever is raised."""
    with torch.enable_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seed_torch(0)
        results = [one for one in flattened(call()) if isinstance(one, torch.Tensor)]
        results = [one for one in results if _differentiable(one)]
        if not results:
            raise NoGradient("no result is a number that could have a gradient")
        results = [one for one in results if one.requires_grad]
        if not results:
            raise NoGradient("results do not record where they come from: no gradient is registered")
        names, leaves = [], []
        for name, value in arguments.values.items():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, torch.Tensor) and item.requires_grad:
                    names.append(name)
                    leaves.append(item)
        weights = [_weights(one) if form is None else form(_weights(one)) for one in results]
        found = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    for one in caught:
        if any(part in str(one.message) for part in NOT_REGISTERED):
            raise NoGradient(f"no gradient is registered: {str(one.message).splitlines()[0][:160]}")
    return list(zip(names, found, strict=True))


def _weights(result: torch.Tensor) -> torch.Tensor:
    """What the gradient of a result is: fixed numbers between 0.5 and 1.5, the same ones in every dtype and layout."""
    numbers = torch.arange(result.numel(), device=result.device, dtype=torch.float64)
    return (((numbers * 37) % 64) / 64 + 0.5).reshape(result.shape).to(result.dtype)


def _registered(bench: Bench, case: Case) -> Finding:
    text = f"registered: {case.text}"
    arguments = _with_grad(bench, bench.arguments(case))
    if arguments.written:
        return nothing(text, "the op writes to its arguments")
    try:
        found = _gradients(bench.call_of(case, arguments), arguments)
    except NoGradient as reason:
        if "no result" in str(reason):
            return nothing(text, str(reason))
        return Finding(case=text, verdict="missing", detail=str(reason))
    except Exception as error:  # backward formulas raise anything
        missing = any(part in str(error) for part in NOT_REGISTERED)
        return Finding(case=text, verdict="missing" if missing else "fail", detail=words(error))
    return Finding(case=text, verdict="pass", detail=f"for {', '.join(name for name, one in found if one is not None)}")


def _numerically(bench: Bench, base: Case, *, second: bool) -> Finding:
    """torch.autograd.gradcheck, or gradgradcheck, on few elements in float64."""
    text = f"{'gradgradcheck' if second else 'gradcheck'}: {base.text}"
    case, error = first_working(bench, [variants.typed(one, "float64", "small") for one in variants.small(base)])
    if case is None:
        return nothing(text, f"float64 is refused: {words(error)}" if error else "no small case")
    case = with_finite_results(bench, case)
    text = f"{'gradgradcheck' if second else 'gradcheck'}: {case.text}"
    arguments = _with_grad(bench, bench.arguments(case).copy())
    if arguments.written:
        return nothing(text, "the op writes to its arguments")
    try:
        _gradients(bench.call_of(case, arguments), arguments)
    except NoGradient as reason:
        return nothing(text, str(reason))
    except Exception as error:  # judged by the trial that asks whether there is one
        return nothing(text, words(error))
    leaves = [tensor for tensor in arguments.tensors() if tensor.requires_grad]
    results = bench.call(case, arguments.copy()).returned
    if not all(bool(torch.isfinite(one).all()) for one in results):
        return nothing(text, "results are not finite where gradients would be looked at")
    if second and (why := _once_only(bench, case, arguments, leaves)) is not None:
        return nothing(text, why)

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_leaf = {id(leaf): value for leaf, value in zip(leaves, given, strict=True)}
        seed_torch(0)
        returned = flattened(bench.call_of(case, arguments.changed(lambda t: by_leaf.get(id(t), t)))())
        return tuple(one for one in returned if isinstance(one, torch.Tensor) and one.requires_grad)

    # Each element is moved by itself where the derivatives are few, else all at once in a random direction.
    inputs, outputs = (sum(one.numel() for one in some) for some in (leaves, results))
    fast = (inputs + outputs if second else inputs) * outputs > MOST_DERIVATIVES
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if second:
                torch.autograd.gradgradcheck(function, leaves, nondet_tol=1e-10, fast_mode=fast)
            else:
                torch.autograd.gradcheck(function, leaves, nondet_tol=1e-10, check_undefined_grad=False, fast_mode=fast)
    except GradcheckError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        names = [n for n, v in arguments.values.items() if isinstance(v, torch.Tensor) and v.requires_grad]
        said = f"{' '.join(lines[:2])[:300]} (inputs: {', '.join(names)})"
        return Finding(case=text, verdict="fail", detail=f"{said}{_of_float32(bench, case, arguments)}")
    except Exception as error:  # backward formulas raise anything
        return Finding(case=text, verdict="fail", detail=words(error))
    return Finding(case=text, verdict="pass")


def _of_float32(bench: Bench, case: Case, arguments: Arguments) -> str:
    """What likely makes gradcheck fail where results of float64 arguments, moved by less than float32 holds, have no
    more digits than float32: its differences of 1e-6 are then rounding. Nothing otherwise."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach() * (1 + 2.0**-30) if tensor.dtype is torch.float64 else tensor

    results = [one for one in bench.call(case, arguments.changed(moved)).all() if one.dtype is torch.float64]
    if not results or any(not torch.equal(one, one.to(torch.float32).to(torch.float64)) for one in results):
        return ""
    return (
        "; likely cause: the op computes in float32 though its arguments are float64 (its results hold no more "
        "digits), so the differences that gradcheck takes are rounding: compute in float64 for float64, or refuse it"
    )


def _once_only(bench: Bench, case: Case, arguments: Arguments, leaves: list[torch.Tensor]) -> str | None:
    """Why there is no gradient of the gradient; None where there is one."""
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = [one for one in flattened(bench.call_of(case, arguments)()) if isinstance(one, torch.Tensor)]
            results = [one for one in results if one.requires_grad]
            # Weights that need a gradient: the gradient of a linear op depends on nothing else.
            weights = [_weights(one).requires_grad_() for one in results]
            first = torch.autograd.grad(results, leaves, weights, create_graph=True, allow_unused=True)
            again = [one for one in first if one is not None and one.requires_grad]
            if not again:
                return "the gradient has none: it is of first order only"
            torch.autograd.grad(again, [*leaves, *weights], [_weights(one) for one in again], allow_unused=True)
        except Exception as error:  # backward formulas raise anything
            if any(part in str(error) for part in ONCE):
                return f"the gradient has none: {words(error)}"
            return None
    return None


Form = Callable[[torch.Tensor], torch.Tensor]


def _transposed(weights: torch.Tensor) -> torch.Tensor:
    if weights.dim() < 2:
        return weights
    return weights.transpose(-1, -2).contiguous().transpose(-1, -2)


def _in_pieces(weights: torch.Tensor) -> torch.Tensor:
    """Every second element of larger memory."""
    return torch.stack([weights, torch.full_like(weights, 7)], -1)[..., 0]


FORMS: dict[str, Form] = {
    "gradient of a sum": lambda weights: weights.new_ones(()).expand(weights.shape),
    "transposed gradient": _transposed,
    "sliced gradient": _in_pieces,
}
"""How the gradients of results may lie in memory: backward formulas must not take them for contiguous."""


def _formed(bench: Bench, base: Case, form: str) -> Attempt:
    text = f"{form}: {base.text}"
    return Attempt(text, lambda: _against_reference(bench, base, text, form=FORMS[form]))


def _alone(bench: Bench, base: Case) -> list[Attempt]:
    """Each argument the only one that needs a gradient, as beside frozen weights."""
    try:
        tensors = bench.arguments(base).named_tensors()
    except NotReplayable:
        return []
    names = [name for name, tensor in tensors.items() if _differentiable(tensor)]
    made: list[Attempt] = []
    for name in names if len(names) > 1 else ():
        text = f"only {name} needs one: {base.text}"
        made.append(Attempt(text, lambda name=name, text=text: _against_reference(bench, base, text, only=name)))
    return made


def _twice(bench: Bench, case: Case) -> Finding:
    """Backward again through the same graph, as for several losses: what was saved must be as it was."""
    text = f"twice: {case.text}"
    arguments = _with_grad(bench, bench.arguments(case).copy())
    if arguments.written:
        return nothing(text, "the op writes to its arguments")
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed_torch(0)
            results = [one for one in flattened(bench.call_of(case, arguments)()) if isinstance(one, torch.Tensor)]
            results = [one for one in results if one.requires_grad]
            leaves = [one for one in arguments.tensors() if one.requires_grad]
            if not results:
                return nothing(text, "no gradient is registered")
            first, again = (
                torch.autograd.grad(
                    results, leaves, [_weights(one) for one in results], allow_unused=True, retain_graph=True
                )
                for _ in range(2)
            )
    except Exception as error:  # judged by the trial that asks whether there is one
        return nothing(text, words(error))
    for leaf, one, other in zip(leaves, first, again, strict=True):
        if one is None or other is None:
            continue
        distance = compare(other, one, terms=float(max(t.numel() for t in leaves)))
        if not distance.fits:
            name = next(n for n, v in arguments.values.items() if v is leaf or isinstance(v, list))
            detail = f"the gradient of {name} is another the second time: {distance.where}"
            return Finding(case=text, verdict="fail", detail=detail)
    return Finding(case=text, verdict="pass")


def _unasked(bench: Bench, case: Case) -> Finding:
    """Where no argument needs a gradient, no result does."""
    text = f"nobody asked: {case.text}"
    arguments = bench.arguments(case).copy()
    try:
        with torch.enable_grad():
            results = list(flattened(bench.call_of(case, arguments)()))
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    for i, one in enumerate(results):
        if isinstance(one, torch.Tensor) and one.requires_grad:
            detail = f"result {i} needs a gradient, though no argument does"
            return Finding(case=text, verdict="fail", detail=detail)
    return Finding(case=text, verdict="pass")


def _against_reference(
    bench: Bench, case: Case, text: str = "", *, form: Form | None = None, only: str | None = None
) -> Finding:
    """Gradients of one case beside those of the reference in float64."""
    text = text or case.text
    if (why := too_much(bench, case)) is not None:
        return nothing(text, why)
    try:
        arguments = bench.arguments(case)
    except NotReplayable as stopped:
        return nothing(text, f"no arguments can be made: {stopped.reason}")
    if arguments.written:
        return nothing(text, "the op writes to its arguments")
    try:
        bench.call(case, arguments.copy())
    except Exception as error:  # judged by other points
        return nothing(text, f"the call itself is refused: {words(error)}")
    mine = _with_grad(bench, arguments.copy(), only)
    try:
        found = _gradients(bench.call_of(case, mine), mine, form)
    except NoGradient as reason:
        return nothing(text, str(reason))
    except Exception as error:  # backward formulas raise anything
        if (why := _reference_fails(bench, case, arguments)) is not None:
            return nothing(text, why)
        if any(part in str(error) for part in NOT_REGISTERED):
            return nothing(text, words(error))
        return Finding(case=text, verdict="fail", detail=words(error))
    wide, own = _with_grad(bench, widened(arguments), only), _with_grad(bench, arguments.copy(), only)
    try:
        exact = _gradients(bench.reference_call(case, wide), wide, form)
    except Exception as error:  # references raise anything
        return nothing(text, f"the reference has no gradient in float64: {words(error)}")
    try:
        same: list[torch.Tensor | None] = [one for _, one in _gradients(bench.reference_call(case, own), own, form)]
    except Exception:  # its own rounding is then not known
        same = [None] * len(exact)
    return _compared(text, mine, found, exact, same)


def _compared(
    text: str,
    mine: Arguments,
    found: list[tuple[str, torch.Tensor | None]],
    exact: list[tuple[str, torch.Tensor | None]],
    same: list[torch.Tensor | None],
) -> Finding:
    """The gradient of each argument against that of the reference."""
    leaves = [tensor for tensor in mine.tensors() if tensor.requires_grad]
    worst, reach = 0.0, max(1.0, reach_of(mine))
    if all(one is None for _, one in exact):
        return nothing(text, "the reference does not say where its results come from")
    for leaf, (name, gradient), (_, wanted), own in zip(leaves, found, exact, same, strict=True):
        if gradient is None or wanted is None:
            other = wanted if gradient is None else gradient
            if other is not None and bool((other != 0).any()):
                which = "has none, the reference has one" if gradient is None else "has one, the reference has none"
                return Finding(case=text, verdict="fail", detail=f"the gradient of {name}: it {which}")
            continue
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            detail = f"the gradient of {name} is {gradient.dtype} {list(gradient.shape)}"
            return Finding(case=text, verdict="fail", detail=detail)
        # Where the reference's is none, as that of a root at 0, any number will do.
        wanted = torch.where(torch.isnan(wanted) & torch.isfinite(gradient), gradient.to(wanted.dtype), wanted)
        distance = compare(
            gradient, wanted, own, terms=float(max(1, max(t.numel() for t in mine.tensors()))), reach=reach
        )
        if not distance.fits:
            return Finding(case=text, verdict="fail", detail=f"the gradient of {name}: {distance.where}")
        worst = max(worst, distance.ulp or 0.0)
    return Finding(case=text, verdict="pass", ulp=worst)


def _reference_fails(bench: Bench, case: Case, arguments: Arguments) -> str | None:
    """Why the reference has no gradient for a case either."""
    own = _with_grad(bench, arguments.copy())
    try:
        _gradients(bench.reference_call(case, own), own)
    except Exception as error:  # references raise anything
        return f"the reference has none either: {words(error)}"
    return None


def _opcheck(bench: Bench, case: Case) -> Finding:
    if _registered(bench, case).verdict != "pass":
        return nothing(f"opcheck: {case.text}", "no gradient is registered")
    return opcheck(bench, case, "test_autograd_registration")
