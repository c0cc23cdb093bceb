# pyright: strict
"""Lowering of reductions, tensor norms, scans and extrema."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, broadcast
from opreplay.replay.ops.op_view import OpView, kernel, spec
from opreplay.replay.ops.table import Cost, costs, costs_by_kernel


def reduced(op: OpView) -> tuple[int, ...]:
    """Return the shape after reducing over `dim`, or over all dimensions."""
    meta = op.need("self", "input", at=0)
    rank = max(1, len(meta.shape))
    dims = {d % rank for d in op.integers("dim", "dims", "axis")} or set(range(rank))
    if op.flag("keepdim"):
        return tuple(1 if i in dims else s for i, s in enumerate(meta.shape))
    return tuple(s for i, s in enumerate(meta.shape) if i not in dims)


def inside(shape: tuple[int, ...], dim: int | None) -> dict[str, int]:
    """Return {"inner": product of all sizes after `dim`}, which is an attribute of kernels.

    Returns {} if `dim` is None or innermost.
    """
    if dim is None:
        return {}
    inner = prod(shape[dim + 1 :])
    return {"inner": inner} if inner > 1 else {}


def across(op: OpView, shape: tuple[int, ...]) -> dict[str, bool]:
    """Return {"across": whether a kept dimension follows a reduced one}, or {} if all dimensions are reduced."""
    dims = {d % len(shape) for d in op.integers("dim", "dims", "axis")} if shape else set[int]()
    if not dims:
        return {}
    return {"across": any(size > 1 and i not in dims for i, size in enumerate(shape) if i > min(dims))}


SCANS = frozenset({"Cumsum", "Cumprod", "Cummax", "Cummin", "LogCumsumExp"})
"""Kernels that process a dimension sequentially."""
SORTED = frozenset({"Median", "KthValue", "Mode", "Quantile"})
"""Kernels that may need to sort all elements; costed as a sort."""


def _rule(kind: str) -> Cost:
    def rule(op: OpView) -> Iterable[KernelCall]:
        source = op.dense("self", "input", at=0)
        if source is None:
            return []
        same = kind in SCANS or kind in SORTED or kind == "Sub"
        wide = source.dtype if source.dtype not in ("bool", "int32", "int8", "uint8") else "int64"
        out = spec(source.shape if same else reduced(op), wide)
        kernels = [] if wide == source.dtype or same else [kernel("Cast", [source], [spec(source.shape, wide)])]
        read = spec(source.shape, wide) if kernels else source
        if (widths := op.meta("x")) is not None and op.op.name in ("aten::trapezoid", "aten::trapz"):
            kernels.append(kernel("Mul", [read, op.packed(widths)], [read]))
        if kind in SCANS:
            dim = op.axis("dim", rank=len(source.shape))
            cols = source.shape[dim] if dim is not None else prod(source.shape[-1:])
            along = kernel(kind, [read], op.outputs(out), cols=max(1, cols), **inside(source.shape, dim))
            return [*kernels, along]
        return [*kernels, kernel(kind, [read], op.outputs(out), **across(op, source.shape))]

    rule.__name__ = f"reduce_{kind}"
    return rule


costs_by_kernel(
    """
        ReduceSum=sum,nansum,count_nonzero,trace,trapezoid,trapz,_grad_sum_to_size,sum_to_size,hash_tensor
        ReduceSum=_nested_sum_backward ReduceMean=mean,nanmean ReduceMax=amax ReduceMin=amin ReduceProd=prod
        ReduceAll=all,_is_all_true ReduceAny=any,_is_any_true ReduceStdV2=var,std,var_mean,std_mean
        LpNormV2=norm,linalg_vector_norm,linalg_norm,frobenius_norm,native_norm,linalg__powsum
        Cumsum=cumsum,cumulative_trapezoid Cumprod=cumprod Cummax=cummax,_cummax_helper,cummaxmin_backward
        Cummin=cummin,_cummin_helper LogCumsumExp=logcumsumexp,_logcumsumexp Sub=diff
        Median=median,nanmedian KthValue=kthvalue Mode=mode Quantile=quantile,nanquantile
    """,
    _rule,
)


@costs("aten::equal aten::allclose")
def same_values(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that compare two tensors elementwise and reduce the result to one boolean."""
    compared = spec(broadcast([meta.shape for meta in op.tensors[:2]]), "bool")
    equal = kernel("Equal", [op.packed(meta) for meta in op.tensors[:2]], [compared])
    return [equal, kernel("ReduceAll", [compared], [spec((), "bool")])]


def _extremum(kind: str) -> Cost:
    def rule(op: OpView) -> Iterable[KernelCall]:
        metas = op.tensors
        source = op.dense("self", "input", "grad", at=0)
        if source is None:
            return []
        if len(metas) == 2 and op.op.name in ("aten::max", "aten::min"):
            inputs = [op.packed(t) for t in metas]
            return [kernel("Maximum" if "max" in op.op.name else "Minimum", inputs, [op.broadcast_output()])]
        dim = op.axis("dim", rank=len(source.shape))
        cols = source.shape[dim] if dim is not None else prod(source.shape)
        inner = inside(source.shape, dim)
        shape = reduced(op)
        outs = op.outputs(spec(shape, source.dtype), spec(shape, "int64"))
        if op.number("dim") is None and op.op.name in ("aten::max", "aten::min"):
            return [kernel("ReduceMax" if "max" in op.op.name else "ReduceMin", [source], outs[:1])]
        return [kernel(kind, [source], outs, cols=max(1, cols), **inner)]

    rule.__name__ = f"extremum_{kind}"
    return rule


costs_by_kernel(
    """
        ArgMaxV2=argmax ArgMinV2=argmin ArgMaxWithValue=max ArgMinWithValue=min ReduceMax=aminmax,_aminmax
        ScatterElements=value_selecting_reduction_backward
    """,
    _extremum,
)
