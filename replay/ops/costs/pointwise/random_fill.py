# pyright: strict
"""Lowering of ops that generate tensors: constants, ranges, random numbers and dropout."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.op_view import OpView, elements, kernel, spec, whole
from opreplay.replay.ops.table import costs


def _made(op: OpView) -> TensorSpec:
    meta = op.meta("self", at=0)
    if meta is not None and "new_" not in op.op.name:
        return op.output(spec(meta.shape, meta.dtype))
    dtype = op.value("dtype")
    kind = dtype.removeprefix("torch.") if isinstance(dtype, str) else meta.dtype if meta is not None else "float32"
    return op.output(spec(op.integers("size") or (1,), kind))


@costs(
    """
        aten::zeros aten::zeros_like aten::new_zeros aten::zero aten::_efficientzerotensor
        aten::_new_zeros_with_same_feature_meta aten::_no_grad_zero
    """
)
def zeros(op: OpView) -> Iterable[KernelCall]:
    """Return the ZerosLike kernel."""
    out = _made(op)
    return [kernel("ZerosLike", [out], [out])]


@costs(
    """
        aten::ones aten::ones_like aten::new_ones aten::full aten::full_like aten::new_full aten::fill
        aten::scalar_tensor aten::fill_diagonal aten::_no_grad_fill aten::_fill_mem_eff_dropout_mask
        aten::_cudnn_init_dropout_state
    """
)
def full(op: OpView) -> Iterable[KernelCall]:
    """Return the Fill kernel."""
    out = _made(op)
    return [kernel("Fill", [], [out])]


@costs(
    """
        aten::arange aten::range aten::linspace aten::eye aten::logspace aten::tril_indices aten::triu_indices
        aten::_dim_arange
    """
)
def range_kernel(op: OpView) -> Iterable[KernelCall]:
    """Return the Range kernel."""
    end, start = op.number("end", "n", "steps"), op.number("start")
    length = max(1, whole((end or 1) - (start or 0)))
    return [kernel("Range", [], [op.output(spec((length,), "int64"))])]


RANDOM: dict[str, str] = {
    "uniform": "StatelessRandomUniformV2", "rand": "StatelessRandomUniformV2", "rand_like": "StatelessRandomUniformV2",
    "normal": "StatelessRandomNormalV2", "randn": "StatelessRandomNormalV2", "randn_like": "StatelessRandomNormalV2",
    "normal_functional": "StatelessRandomNormalV2", "bernoulli": "StatelessBernoulli", "randint": "RandomUniform",
    "random": "RandomUniform", "exponential": "StatelessRandomUniformV2", "log_normal": "StatelessRandomNormalV2",
    "randint_like": "RandomUniform", "randperm": "StatelessRandperm", "multinomial": "Multinomial",
    "geometric": "StatelessRandomUniformV2", "cauchy": "StatelessRandomUniformV2", "poisson": "RandomPoisson",
    "binomial": "StatefulRandomBinomial", "_standard_gamma": "RandomGamma", "_sample_dirichlet": "RandomGamma",
    "_philox_normal": "StatelessRandomNormalV2", "_philox_uniform": "StatelessRandomUniformV2",
    "_no_grad_normal": "StatelessRandomNormalV2", "_no_grad_uniform": "StatelessRandomUniformV2",
    "_sobol_engine_draw": "RandomUniform", "_sobol_engine_scramble": "RandomUniform",
    "_sobol_engine_ff": "RandomUniform", "_sobol_engine_initialize_state": "RandomUniform",
}  # fmt: skip
"""Random op of aten → CANN type."""

SHAPED = frozenset({"self", "generator"})
"""Arguments that a normal op, or a Bernoulli op with argument `p`, fills and does not read."""


def _parameters(op: OpView, name: str) -> list[TensorSpec]:
    """Return the tensors of distribution parameters: probabilities, rates, counts, means, deviations."""
    if name not in (
        "bernoulli",
        "normal",
        "multinomial",
        "poisson",
        "binomial",
        "_standard_gamma",
        "_sample_dirichlet",
    ):
        return []
    filled = SHAPED if name == "normal" or (name == "bernoulli" and "p" in op.args) else frozenset[str]()
    read = [arg for arg in op.op.args if not arg.mutated and arg.name not in filled]
    return [op.packed(meta) for arg in read for meta in arg.tensors if meta is not None]


@costs(*(f"aten::{name}" for name in RANDOM))
def random(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that draws random numbers, with the kernels that adjust them.

    Probabilities and rates are inputs of the drawing kernel. Means and deviations are applied by separate kernels
    afterwards. A Dirichlet distribution is drawn as gammas, which are then divided by their sum.
    """
    name = op.op.name.removeprefix("aten::").split(".")[0].rstrip("_")
    kind = RANDOM[name]
    out = spec((op.integer("n", default=1),), "int64") if kind == "StatelessRandperm" else _made(op)
    read = _parameters(op, name)
    if name == "normal":
        steps = [kernel("Mul" if len(read) == 2 and p is read[1] else "Add", [out, p], [out]) for p in read]
        return [kernel(kind, [], [out]), *reversed(steps)]
    if name == "_sample_dirichlet":
        sums = spec((*out.shape[:-1], 1), out.dtype)
        over = [kernel("ReduceSum", [out], [sums]), kernel("RealDiv", [out, sums], [out])]
        return [kernel(kind, read, [out]), *over]
    return [kernel(kind, read, [out])]


@costs("aten::native_dropout aten::dropout aten::feature_dropout aten::alpha_dropout aten::feature_alpha_dropout")
def dropout(op: OpView) -> Iterable[KernelCall]:
    """Return DSAGenBitMask (one bit per element) and DropOutDoMask, or no kernels outside training."""
    meta = op.meta("input", "self", at=0)
    training = op.value("train", "training")
    if meta is None or training is False or op.number("p") == 0:
        return []
    x = spec(meta.shape, meta.dtype)
    mask = spec((-(-elements(x) // 8),), "uint8")
    return [kernel("DSAGenBitMask", [], [mask]), kernel("DropOutDoMask", [op.packed(meta), mask], [x])]


def dropout_backward(op: OpView) -> Iterable[KernelCall]:
    """Return DropOutDoMask on the gradient."""
    tensors = [spec(t.shape, t.dtype) for t in op.tensors]
    return [kernel("DropOutDoMask", tensors, tensors[:1])]
