# pyright: strict
"""Initializers for float arguments that must lie in a domain: logarithms, divisors, probabilities, saved outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, extent

Fill = Callable[[torch.Tensor, torch.Generator], None]


class Between(msgspec.Struct, frozen=True):
    """Function that fills a tensor uniformly from [low, high), a range well inside the domain of the op."""

    low: float
    high: float

    def __call__(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            fill.uniform(tensor, generator, self.low, self.high)
        elif tensor.dtype is not torch.bool:
            fill.integers(tensor, generator, max(1, round(self.low)), max(9, round(self.high)))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Check whether all values lie strictly between the integers around [low, high).

        For [0.05, 0.95) these integers are 0 and 1. If `high` exceeds 1, there is no upper bound. Denormals near 0 and
        NaN fail the check.
        """
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return True
        low, high = torch.aminmax(tensor)
        # Numbers too small to be normal are as slow as they are useless.
        lowest = math.floor(self.low) or torch.finfo(tensor.dtype).tiny
        return float(low) > lowest and (self.high > 1 or float(high) < math.ceil(self.high))


_between = Between


def _with_in_place(*bases: str) -> tuple[str, ...]:
    return tuple(f"aten::{base}{suffix}" for base in bases for suffix in ("", "_"))


def _special(*bases: str) -> tuple[str, ...]:
    return tuple(f"aten::special_{base}" for base in bases)


POSITIVE, UNIT, SYMMETRIC = _between(0.5, 2.0), _between(0.05, 0.95), _between(-0.95, 0.95)

RULES: tuple[tuple[tuple[str, ...], dict[str, Fill]], ...] = (
    (_with_in_place("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma", "pow",
                    "_foreach_sqrt", "_foreach_log", "_foreach_reciprocal", "_foreach_rsqrt", "_foreach_pow",
                    "float_power", "polygamma", "mvlgamma"),
     {"self": POSITIVE, "exponent": _between(0.5, 1.5)}),
    (_special("log1p", "gammaln", "digamma", "psi", "polygamma", "multigammaln", "entr", "bessel_y0", "bessel_y1",
              "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
     {"self": POSITIVE, "x": POSITIVE}),
    (("aten::poisson", "aten::_standard_gamma", "aten::_sample_dirichlet"), {"self": POSITIVE}),
    (_with_in_place("normal"), {"std": POSITIVE}),
    (("aten::binomial",), {"count": _between(1, 20), "prob": UNIT}),
    ((*_with_in_place("igamma", "igammac"), *_special("gammainc", "gammaincc")), {"self": POSITIVE, "other": POSITIVE}),
    (("aten::special_zeta",), {"self": _between(1.5, 3.0), "other": POSITIVE}),
    ((*_with_in_place("xlogy"), *_special("xlogy", "xlog1py")), {"other": POSITIVE}),
    (_with_in_place("div", "divide", "true_divide", "fmod", "remainder", "floor_divide", "_foreach_div", "atan2"),
     {"other": POSITIVE}),
    (("aten::mul_", "aten::div_", "aten::divide_", "aten::multiply_", "aten::_foreach_mul_", "aten::_foreach_div_"),
     {"other": fill.signs, "scalar": fill.signs}),
    (_with_in_place("addcdiv", "_foreach_addcdiv"), {"tensor2": POSITIVE}),
    (_with_in_place("asin", "acos", "atanh", "arcsin", "arccos", "arctanh"), {"self": SYMMETRIC}),
    ((*_with_in_place("erfinv"), "aten::special_erfinv"), {"self": _between(-0.5, 0.5)}),
    (_with_in_place("acosh", "arccosh"), {"self": _between(1.05, 3.0)}),
    ((*_with_in_place("logit", "bernoulli"), *_special("ndtri", "logit")), {"self": UNIT, "p": UNIT}),
    (("aten::binary_cross_entropy", "aten::binary_cross_entropy_backward"), {"self": UNIT, "target": UNIT}),
    (("aten::kl_div", "aten::binary_cross_entropy_with_logits", "aten::kl_div_backward",
      "aten::binary_cross_entropy_with_logits_backward"), {"target": UNIT}),
    (("aten::multinomial",), {"self": UNIT}),
    (("aten::quantile", "aten::nanquantile"), {"q": UNIT}),
    (("aten::sigmoid_backward", "aten::logit_backward"), {"output": UNIT, "self": UNIT}),
    (("aten::tanh_backward",), {"output": SYMMETRIC}),
    (("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::grid_sampler", "aten::grid_sampler_2d_backward",
      "aten::grid_sampler_3d_backward", "aten::cudnn_grid_sampler"), {"grid": SYMMETRIC}),
    (("aten::bitwise_left_shift", "aten::bitwise_right_shift", "aten::__lshift__", "aten::__rshift__"),
     {"other": _between(1, 7)}),
)  # fmt: skip
"""Groups of ops, and how to fill their arguments for which N(0, 1) is unsuitable.

There, N(0, 1) would give nan, inf or an error, or values would drift when the op is repeated in place. If an op is
listed twice, the later entry applies.
"""

DOMAINS: dict[str, dict[str, Fill]] = {op: rule for ops, rule in RULES for op in ops}


def domain_of(op: str, argument: str) -> Between | None:
    """Return the required domain of an op's argument; None if any finite value is valid."""
    rule = DOMAINS.get(op, {}).get(argument)
    return rule if isinstance(rule, Between) else None


class DomainInit(CustomInit):
    """Keeps arguments in the op's domain, and factors of in-place products at ±1 so that values do not drift."""

    name = "domain"

    def initialize(self, context: InitContext) -> InitReport:
        filled: list[str] = []
        for name, tensor in context.tensors():
            if (rule := DOMAINS[context.op].get(name)) is not None:
                rule(tensor, context.generator)
                filled.append(name)
        return InitReport(summary=f"{', '.join(dict.fromkeys(filled)) or 'no tensor'} inside the op's domain")


class SavedSoftmaxInit(CustomInit):
    """Fills the saved output of a softmax or log-softmax with values that this op could return."""

    name = "saved_softmax"

    def initialize(self, context: InitContext) -> InitReport:
        output = context.need("output")
        dim = context.args.get("dim")
        dim = int(dim) if isinstance(dim, int) else -1
        extent(output if output.dim() else output.reshape(1), dim)
        values = torch.softmax(output.float(), dim)
        if "log_softmax" in context.op:
            values = values.log()
        fill.assign(output, values)
        return InitReport(summary=f"output is normalised over dim {dim}")


class PoolIndicesInit(CustomInit):
    """Fills the saved indices of max-pooling by pooling its input. If that fails, fills valid indices per plane."""

    name = "pool_indices"

    def initialize(self, context: InitContext) -> InitReport:
        source, indices = context.need("self"), context.need("indices")
        pooled = _pooled_indices(context, source)
        if pooled is not None and pooled.shape == indices.shape:
            fill.assign(indices, pooled)
            return InitReport(summary="indices that the pooling itself returned")
        dims = 3 if "3d" in context.op else 2
        plane = int(torch.Size(source.shape[-dims:]).numel())
        fill.integers(indices, context.generator, 0, plane)
        return InitReport(summary=f"indices in [0, {plane})", assumed={"indices": "uniform inside each plane"})


class UnpoolIndicesInit(CustomInit):
    """Fills the indices of an unpooling with positions inside the output plane."""

    name = "unpool_indices"

    def initialize(self, context: InitContext) -> InitReport:
        listed: object = context.args.get("output_size")
        items = cast("Sequence[object]", listed) if isinstance(listed, (list, tuple)) else (None,)
        sizes = [n for n in items if isinstance(n, int) and n > 0]
        if len(sizes) < len(items):
            raise InitializerError(f"{context.op}: output_size is unknown")
        plane = math.prod(sizes)
        fill.integers(context.need("indices"), context.generator, 0, plane)
        return InitReport(summary=f"indices in [0, {plane})", assumed={"indices": "uniform inside each plane"})


class WellConditionedInit(CustomInit):
    """Makes square matrices for factorisations and solvers positive definite: symmetric and diagonally dominant."""

    name = "well_conditioned"

    def initialize(self, context: InitContext) -> InitReport:
        done: list[str] = []
        for name, tensor in context.tensors():
            if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] and tensor.numel():
                size = tensor.shape[-1]
                exact = tensor if tensor.itemsize > 1 else tensor.float()  # torch adds no numbers of eight bits
                half = exact / (2 * size)
                fill.assign(tensor, half + half.mH + 2 * torch.eye(size, dtype=exact.dtype, device=tensor.device))
                done.append(name)
        return InitReport(summary=f"{', '.join(done) or 'no matrix'} positive definite")


def _pooled_indices(context: InitContext, source: torch.Tensor) -> torch.Tensor | None:
    """Run the forward pooling and return its indices; None if pooling fails with the call's arguments."""
    forward: Any = getattr(torch.ops.aten, context.op.removeprefix("aten::").removesuffix("_backward"))
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    values = [context.args[name] for name in names if name in context.args]
    if not values:
        grad = context.need("grad_output")
        values = [list(grad.shape[-(3 if "3d" in context.op else 2) :])]
    try:
        return forward(source, *values)[1]
    except RuntimeError:
        return None


INITIALIZERS = (DomainInit, SavedSoftmaxInit, PoolIndicesInit, UnpoolIndicesInit, WellConditionedInit)
