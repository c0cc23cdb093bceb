"""Checks gradients: whether one is registered, passes gradcheck, equals autograd's gradient of the reference, and can
be differentiated again.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import torch
from torch.autograd.gradcheck import GradcheckError

from opreplay.replay.arguments.tensors import flattened, tensors_in
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import (
    Arguments,
    Bench,
    NotApplicable,
    as_float64,
    first_working,
    is_float,
    reach_of,
    seed_torch,
    with_finite_results,
)
from opreplay.replay.check.calling.closeness import compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import arguments_for
from opreplay.replay.check.points.promises import opcheck
from opreplay.replay.check.points.trials import Attempt, attempt, failed, missing, nothing, passed
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
"""Parts of torch's error messages for an op without a registered gradient."""
MOST_DERIVATIVES = 1 << 18
"""Maximum number of derivatives (results times arguments). torch computes and stores each of them: 3 million
derivatives of a convolution took 12 GB.
"""
ONCE = ("once_differentiable", "does not require grad", "not implemented", "no autograd formula", "derivative for")
"""Parts of torch's error messages for a gradient that cannot be differentiated again."""


class NoGradient(NotApplicable):
    """Raised if the op or its reference has no gradient. `missing` says that no gradient is registered; otherwise none
    can exist, e.g. for integer results.
    """

    def __init__(self, why: str, *, missing: bool = True) -> None:
        super().__init__(why)
        self.missing = missing


def gradient(bench: Bench) -> list[Attempt]:
    """Return the trials of this point. They check that a gradient exists, that first- and second-order gradcheck pass,
    and that the gradients for each memory layout match the reference's.
    """
    base = bench.compact_bases[0]
    tensors = _named_tensors(bench, base)
    if not any(t.is_floating_point() or t.is_complex() for t in tensors_in(list(tensors.values()))):
        return [Attempt(base.text, lambda: nothing("no argument has a floating-point or complex dtype"))]
    # Arguments that are one tensor are equal everywhere: where numbers are compared, gradients have a step there.
    apart = [case for case in layouts(bench) if case.trait != "one tensor"]
    sized = [
        case
        for case in variants.vary_sizes(base)
        if case.kind not in variants.MANY_ELEMENTS and variants.elements(case) <= variants.HUGE_ELEMENTS
    ]
    # Beyond where usual values lie: gradients have steps there, as that of a clamp.
    wide = msgspec.structs.replace(base, kind="values far apart", values="wide")
    zeros = msgspec.structs.replace(base, kind="rows of zeros", values="rows of zeros")
    names = [name for name, value in tensors.items() if isinstance(value, torch.Tensor) and _differentiable(value)]
    return [
        attempt(bench, base, _registered, "registered"),
        attempt(bench, base, partial(_numerically, second=False), "gradcheck"),
        *(attempt(bench, case, _against_reference) for case in [*apart, *sized, *variants.broadcast(base)]),
        *(attempt(bench, case, _against_reference) for case in (*bench.other_calls(base), wide, zeros)),
        *(attempt(bench, base, partial(_against_reference, form=form), name) for name, form in FORMS.items()),
        # Each argument the only one that needs a gradient, as beside frozen weights.
        *(
            attempt(bench, base, partial(_against_reference, only=name), f"only {name} needs a gradient")
            for name in (names if len(names) > 1 else ())
        ),
        attempt(bench, base, _twice, "twice"),
        attempt(bench, base, _unasked, "nobody asked"),
        attempt(bench, base, partial(_numerically, second=True), "second order"),
        attempt(bench, base, _opcheck, "opcheck"),
    ]


def _named_tensors(bench: Bench, case: Case) -> dict[str, Any]:
    try:
        return bench.arguments(case).values
    except NotReplayable:
        return {}


def _differentiable(tensor: torch.Tensor) -> bool:
    return is_float(tensor) or tensor.is_complex()


def _with_grad(bench: Bench, arguments: Arguments, only: str | None = None) -> Arguments:
    """Return the arguments as leaves that require gradients.

    Arguments for which the op refuses a gradient stay unchanged. If `only` is given, all arguments except the one of
    that name stay unchanged, too.
    """
    fixed = {id(arguments.values[name]) for name in _not_differentiable(bench) if name in arguments.values}
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


def _not_differentiable(bench: Bench) -> tuple[str, ...]:
    """Return the names of arguments for which the op refuses a gradient, found by requesting one."""
    if bench.not_differentiable is None:
        bench.not_differentiable = ()
        base = bench.compact_bases[0]
        for _ in base.op.args:
            arguments = _with_grad(bench, bench.arguments(base))
            try:
                with torch.enable_grad():
                    bench.call_of(base, arguments)()
                break
            except Exception as error:  # ops raise anything
                match = _NOT_DIFFERENTIABLE.search(str(error))
                if match is None:
                    break
                bench.not_differentiable += (match[1],)
    return bench.not_differentiable


def _gradients(
    call: Callable[[], Any], arguments: Arguments, form: Form | None = None
) -> list[tuple[str, torch.Tensor | None]]:
    """Return the gradient with respect to each argument, with the argument's name.

    The gradient is that of a weighted sum of all results, with fixed weights. The weights are thus the gradients of the
    results; `form` gives them their strides. Raises NoGradient; exceptions of the call propagate.
    """
    with torch.enable_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seed_torch(0)
        results = [tensor for tensor in tensors_in(call()) if _differentiable(tensor)]
        if not results:
            raise NoGradient("no result has a floating-point or complex dtype", missing=False)
        results = [tensor for tensor in results if tensor.requires_grad]
        if not results:
            raise NoGradient("results have no grad_fn: no gradient is registered")
        weights = [_weights(tensor) if form is None else form(_weights(tensor)) for tensor in results]
        leaves = [
            (name, tensor)
            for name, value in arguments.values.items()
            for tensor in tensors_in(value)
            if tensor.requires_grad
        ]
        gradients = torch.autograd.grad(results, [leaf for _, leaf in leaves], weights, allow_unused=True)
    for warning in caught:
        if any(part in str(warning.message) for part in NOT_REGISTERED):
            raise NoGradient(f"no gradient is registered: {str(warning.message).splitlines()[0][:160]}")
    return [(name, gradient) for (name, _), gradient in zip(leaves, gradients, strict=True)]


def _weights(result: torch.Tensor) -> torch.Tensor:
    """Return fixed numbers between 0.5 and 1.5 as the gradient for a result, the same in every dtype and layout."""
    numbers = torch.arange(result.numel(), device=result.device, dtype=torch.float64)
    return (((numbers * 37) % 64) / 64 + 0.5).reshape(result.shape).to(result.dtype)


def _recording(bench: Bench, case: Case) -> Arguments:
    """Return the arguments of a case, with gradients required. Raises NotApplicable if the op writes to any of them."""
    arguments = _with_grad(bench, bench.arguments(case).copy())
    if arguments.written:
        raise NotApplicable("the op writes to its arguments")
    return arguments


def _registered(bench: Bench, case: Case) -> Finding:
    arguments = _recording(bench, case)
    try:
        gradients = _gradients(bench.call_of(case, arguments), arguments)
    except NoGradient as reason:
        return (missing if reason.missing else nothing)(str(reason))
    except Exception as error:  # backward formulas raise anything
        unknown = any(part in str(error) for part in NOT_REGISTERED)
        return (missing if unknown else failed)(words(error))
    return passed(f"for {', '.join(name for name, gradient in gradients if gradient is not None)}")


def _numerically(bench: Bench, base: Case, *, second: bool) -> Finding:
    """Run torch.autograd.gradcheck, or gradgradcheck if `second`, in float64 on a case with few elements."""
    name = "gradgradcheck" if second else "gradcheck"
    smaller = [variants.replace_dtype(case, "float64", "small") for case in variants.small(base)]
    case, error = first_working(bench, smaller)
    if case is None:
        why = f"float64 is refused: {words(error)}" if error else "no small case"
        return msgspec.structs.replace(nothing(why), case=f"{name}: {base.text}")
    case = with_finite_results(bench, case)
    try:
        finding = _checked_numerically(bench, case, second=second)
    except NotApplicable as reason:
        finding = nothing(str(reason))
    return msgspec.structs.replace(finding, case=f"{name}: {case.text}")


def _checked_numerically(bench: Bench, case: Case, *, second: bool) -> Finding:
    arguments = _recording(bench, case)
    try:
        _gradients(bench.call_of(case, arguments), arguments)
    except NoGradient:
        raise
    except Exception as error:  # judged by the trial that asks whether there is one
        return nothing(words(error))
    leaves = [tensor for tensor in arguments.tensors() if tensor.requires_grad]
    results = bench.call(case, arguments.copy()).returned
    if not all(bool(torch.isfinite(tensor).all()) for tensor in results):
        return nothing("results are not finite, so gradients are not compared")
    if second and (why := _once_only(bench, case, arguments, leaves)) is not None:
        return nothing(why)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_leaf = {id(leaf): value for leaf, value in zip(leaves, values, strict=True)}
        seed_torch(0)
        returned = tensors_in(bench.call_of(case, arguments.changed(lambda t: by_leaf.get(id(t), t)))())
        return tuple(tensor for tensor in returned if tensor.requires_grad)

    # Each element is moved by itself where the derivatives are few, else all at once in a random direction.
    inputs, outputs = (sum(tensor.numel() for tensor in some) for some in (leaves, results))
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
        names = [name for name, tensor in arguments.named_tensors().items() if tensor.requires_grad]
        said = f"{' '.join(lines[:2])[:300]} (inputs: {', '.join(names)})"
        return failed(f"{said}{_of_float32(bench, case, arguments)}")
    except Exception as error:  # backward formulas raise anything
        return failed(words(error))
    return passed()


def _of_float32(bench: Bench, case: Case, arguments: Arguments) -> str:
    """Return a text if the op computes float64 results with only float32 precision, which explains a gradcheck failure;
    else "".

    The test changes the arguments by less than float32 can resolve. With float32 precision, gradcheck's steps of 1e-6
    would measure rounding errors.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach() * (1 + 2.0**-30) if tensor.dtype is torch.float64 else tensor

    results = [t for t in bench.call(case, arguments.changed(moved)).all() if t.dtype is torch.float64]
    if not results or any(not torch.equal(t, t.to(torch.float32).to(torch.float64)) for t in results):
        return ""
    return (
        "; likely cause: the op computes in float32 although its arguments are float64. Its results are only accurate "
        "to float32, so gradcheck sees rounding errors. Compute in float64 for float64 arguments, or refuse them"
    )


def _once_only(bench: Bench, case: Case, arguments: Arguments, leaves: list[torch.Tensor]) -> str | None:
    """Return why there is no second-order gradient; None if there is one."""
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = [tensor for tensor in tensors_in(bench.call_of(case, arguments)()) if tensor.requires_grad]
            # Weights that need a gradient: the gradient of a linear op depends on nothing else.
            weights = [_weights(tensor).requires_grad_() for tensor in results]
            first = torch.autograd.grad(results, leaves, weights, create_graph=True, allow_unused=True)
            again = [tensor for tensor in first if tensor is not None and tensor.requires_grad]
            if not again:
                return "the gradient has no gradient itself: only the first order exists"
            torch.autograd.grad(again, [*leaves, *weights], list(map(_weights, again)), allow_unused=True)
    except Exception as error:  # backward formulas raise anything
        if any(part in str(error) for part in ONCE):
            return f"the gradient has no gradient itself: {words(error)}"
    return None


Form = Callable[[torch.Tensor], torch.Tensor]


def _transposed(weights: torch.Tensor) -> torch.Tensor:
    if weights.dim() < 2:
        return weights
    return weights.transpose(-1, -2).contiguous().transpose(-1, -2)


def _in_pieces(weights: torch.Tensor) -> torch.Tensor:
    """Return the weights as a view of every second element of larger memory."""
    return torch.stack([weights, torch.full_like(weights, 7)], -1)[..., 0]


FORMS: dict[str, Form] = {
    "gradient of a sum": lambda weights: weights.new_ones(()).expand(weights.shape),
    "transposed gradient": _transposed,
    "sliced gradient": _in_pieces,
}
"""Memory layouts for the gradients of results: backward formulas must not assume contiguous gradients."""


def _twice(bench: Bench, case: Case) -> Finding:
    """Run backward twice through one graph, as for several losses, to check that saved tensors stay unchanged."""
    arguments = _recording(bench, case)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed_torch(0)
            results = [tensor for tensor in tensors_in(bench.call_of(case, arguments)()) if tensor.requires_grad]
            leaves = [tensor for tensor in arguments.tensors() if tensor.requires_grad]
            if not results:
                return nothing("no gradient is registered")
            weights = list(map(_weights, results))
            first, again = (
                torch.autograd.grad(results, leaves, weights, allow_unused=True, retain_graph=True) for _ in range(2)
            )
    except Exception as error:  # judged by the trial that asks whether there is one
        return nothing(words(error))
    for leaf, before, after in zip(leaves, first, again, strict=True):
        if before is None or after is None:
            continue
        distance = compare(after, before, terms=float(max(t.numel() for t in leaves)))
        if not distance.fits:
            name = next(name for name, v in arguments.values.items() if v is leaf or isinstance(v, list))
            return failed(f"the gradient of {name} differs in the second run: {distance.where}")
    return passed()


def _unasked(bench: Bench, case: Case) -> Finding:
    """Check that no result requires a gradient if no argument does."""
    arguments = bench.arguments(case).copy()
    try:
        with torch.enable_grad():
            results = list(flattened(bench.call_of(case, arguments)()))
    except Exception as error:  # judged by other points
        return nothing(words(error))
    recorded = [i for i, item in enumerate(results) if isinstance(item, torch.Tensor) and item.requires_grad]
    return failed(f"result {recorded[0]} requires grad, although no argument does") if recorded else passed()


def _against_reference(bench: Bench, case: Case, *, form: Form | None = None, only: str | None = None) -> Finding:
    """Compare the gradients of one case with those of the reference in float64."""
    arguments = arguments_for(bench, case)
    if arguments.written:
        return nothing("the op writes to its arguments")
    try:
        results = bench.call(case, arguments.copy()).all()
    except Exception as error:  # judged by other points
        return nothing(f"the op refuses the call itself: {words(error)}")
    if case.values == "wide" and not all(bool(torch.isfinite(t).all()) for t in results if is_float(t)):
        return nothing("results are not finite, so gradients are not compared")
    mine = _with_grad(bench, arguments.copy(), only)
    try:
        gradients = _gradients(bench.call_of(case, mine), mine, form)
    except NoGradient:
        raise
    except Exception as error:  # backward formulas raise anything
        _, why = _of_reference(bench, case, _with_grad(bench, arguments.copy()))
        if why is not None:
            return nothing(f"the reference has no gradient either: {words(why)}")
        unknown = any(part in str(error) for part in NOT_REGISTERED)
        return (nothing if unknown else failed)(words(error))
    exact, why = _of_reference(bench, case, _with_grad(bench, as_float64(arguments), only), form)
    if why is not None:
        return nothing(f"the reference has no gradient in float64: {words(why)}")
    same, why = _of_reference(bench, case, _with_grad(bench, arguments.copy(), only), form)
    # Without a gradient in the same dtype the reference's own rounding is not known.
    if case.values == "rows of zeros":  # where gradients have steps: any number will do, but none that is not finite
        gradients = [
            (name, _any_number(gradient, wanted)) for (name, gradient), wanted in zip(gradients, exact, strict=True)
        ]
    return _compared(mine, gradients, exact, same if why is None else [None] * len(exact))


def _any_number(gradient: torch.Tensor | None, wanted: torch.Tensor | None) -> torch.Tensor | None:
    """Return `gradient` with its finite numbers replaced by those of `wanted`; unchanged if shapes differ."""
    if gradient is None or wanted is None or gradient.shape != wanted.shape:
        return gradient
    return torch.where(torch.isfinite(gradient), wanted.to(gradient.dtype), gradient)


def _of_reference(
    bench: Bench, case: Case, arguments: Arguments, form: Form | None = None
) -> tuple[list[torch.Tensor | None], Exception | None]:
    """Return (gradients of the reference, None), or ([], error) if the reference raises an error."""
    try:
        gradients = _gradients(bench.reference_call(case, arguments), arguments, form)
    except Exception as error:  # references raise anything
        return [], error
    return [gradient for _, gradient in gradients], None


def _compared(
    mine: Arguments,
    gradients: list[tuple[str, torch.Tensor | None]],
    exact: list[torch.Tensor | None],
    same: list[torch.Tensor | None],
) -> Finding:
    """Compare the gradient of each argument with that of the reference."""
    leaves = [tensor for tensor in mine.tensors() if tensor.requires_grad]
    worst_ulp, reach = 0.0, max(1.0, reach_of(mine))
    terms = float(max((tensor.numel() for tensor in mine.tensors()), default=1))
    if all(wanted is None for wanted in exact):
        return nothing("the results of the reference have no grad_fn")
    for leaf, (name, gradient), wanted, native in zip(leaves, gradients, exact, same, strict=True):
        if gradient is None or wanted is None:
            other = wanted if gradient is None else gradient
            if other is not None and bool((other != 0).any()):
                only = "the reference" if gradient is None else "the op"
                return failed(f"the gradient of {name}: only {only} returns one")
            continue
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            return failed(f"the gradient of {name} is {gradient.dtype} {list(gradient.shape)}")
        # Where the reference's is none, as that of a root at 0, any number will do, and infinity, as of a logit.
        wanted = torch.where(torch.isnan(wanted) & ~torch.isnan(gradient), gradient.to(wanted.dtype), wanted)
        distance = compare(gradient, wanted, native, terms=max(1.0, terms), reach=reach)
        if not distance.fits:
            return failed(f"the gradient of {name}: {distance.where}")
        worst_ulp = max(worst_ulp, distance.ulp or 0.0)
    return Finding(verdict="pass", ulp=worst_ulp)


def _opcheck(bench: Bench, case: Case) -> Finding:
    try:
        is_registered = _registered(bench, case).verdict == "pass"
    except NotApplicable:
        is_registered = False
    return opcheck(bench, case, "test_autograd_registration") if is_registered else nothing("no gradient is registered")
