# pyright: strict
"""Run ops that compute slices independently on some of their slices, to fit a memory budget.

This module decides which dimension of which op may be cut. The time must be proportional to the remaining size, so
nothing may be summed, sorted or shared along the dimension. Ops that are not listed here are never cut. Does not import
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

import msgspec

from opreplay.replay.arguments.shrink.pools import largest_fitting, names, resize_tensor, single_tensors
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.sizes import tensors_of
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import TensorMeta

MIN_PART = 1 / 64
"""Minimum share of an op's slices that must run for their time to be scaled up to the whole op."""

Shape = tuple[int, ...]


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A dimension of the work that can be cut, with its position in each argument and result."""

    size: int
    dims: dict[str, int]
    """Dimension to cut in each argument, the same in all tensors of a list. Arguments that are not listed are
    not cut.
    """
    out: int | None
    """Dimension to cut in results that have the full size in it; None to cut no results."""
    what: str


Rule = Callable[[ReplayOp], Iterator[Cut]]
Fits = Callable[[ReplayOp], bool]


def cut_to_slices(op: ReplayOp, fits: Fits) -> tuple[ReplayOp, float, str] | None:
    """Return (op on as many slices as fit, their share of the work, a note); None if no cut fits.

    If several dimensions can be cut, the cut that keeps the largest share is used.
    """
    rule = RULES.get(op.name.partition("::")[2] if op.name.startswith("aten::") else op.name)
    best: tuple[ReplayOp, float, str] | None = None
    for cut in rule(op) if rule is not None else ():
        if cut.size < 2:
            continue
        count = largest_fitting(0, cut.size, partial(_apply, op, cut), fits)
        share = count / cut.size
        if count and share >= MIN_PART and (best is None or share > best[1]):
            best = (_apply(op, cut, count), share, f"{count} of {cut.size} {cut.what}")
    return best


def _apply(op: ReplayOp, cut: Cut, count: int) -> ReplayOp:
    args = tuple(_cut_argument(arg, cut, count) if arg.name in cut.dims else arg for arg in op.args)
    outputs = op.outputs
    if outputs is not None and cut.out is not None:
        at = cut.out
        outputs = tuple(
            _cut_tensor(m, at, count)
            if m is not None and -len(m.shape) <= at < len(m.shape) and m.shape[at] == cut.size
            else m
            for m in outputs
        )
    return msgspec.structs.replace(op, args=args, outputs=outputs)


def _cut_argument(arg: ReplayArg, cut: Cut, count: int) -> ReplayArg:
    dim = cut.dims[arg.name]
    if arg.type == "int[]":
        assert isinstance(arg.value, tuple)
        value = tuple(count if i == dim else n for i, n in enumerate(arg.value))
        return msgspec.structs.replace(arg, value=value)
    return msgspec.structs.replace(arg, tensors=tuple(m and _cut_tensor(m, dim, count) for m in arg.tensors))


def _cut_tensor(meta: TensorMeta, dim: int, count: int) -> TensorMeta:
    at = dim % len(meta.shape)
    return resize_tensor(meta, (*meta.shape[:at], count, *meta.shape[at + 1 :]))


def _value(op: ReplayOp, name: str) -> object:
    return op.values.get(name)


def _named(op: ReplayOp, *names: str) -> dict[str, TensorMeta]:
    return {name: meta for name, meta in single_tensors(op).items() if name in names}


def _pointwise(op: ReplayOp) -> Iterator[Cut]:
    """Yield cuts of tensors that broadcast together, along any dimension of the widest tensor."""
    tensors = single_tensors(op)
    if not tensors or any(arg.type == "Tensor[]" for arg in op.args):
        return
    rank = max(len(meta.shape) for meta in tensors.values())
    for back in range(rank, 0, -1):
        sizes = {name: meta.shape[-back] for name, meta in tensors.items() if len(meta.shape) >= back}
        size = max(sizes.values())
        if {n for n in sizes.values() if n != 1} == {size}:
            dims = {name: -back for name, n in sizes.items() if n == size}
            yield Cut(size=size, dims=dims, out=-back, what=f"slices of dimension {rank - back}")


def _dimensions(op: ReplayOp, names: tuple[str, ...], rank: int) -> set[int]:
    """Return the dimensions (>= 0) that the first argument of `names` that is set gives.

    Empty if none is set, or if a dimension is invalid.
    """
    said = next((v for name in names if (v := _value(op, name)) is not None), None)
    dims = cast("tuple[object, ...]", said) if isinstance(said, tuple) else (said,)
    known = {d % rank for d in dims if isinstance(d, int) and -rank <= d < rank}
    return known if all(isinstance(d, int) and -rank <= d < rank for d in dims) else set()


def _along(*names: str, squeezes: bool = False) -> Rule:
    """Return a rule for ops that reduce, sort or normalise along the dimensions in an argument of `names`.

    The rule cuts another dimension.
    """

    def rule(op: ReplayOp) -> Iterator[Cut]:
        tensors = single_tensors(op)
        rank = max((len(meta.shape) for meta in tensors.values()), default=0)
        taken = _dimensions(op, names, rank)
        if not taken:
            return
        keeps = not squeezes or _value(op, "keepdim") is True
        whole = {name: meta for name, meta in tensors.items() if len(meta.shape) == rank}
        for dim in sorted(set(range(rank)) - taken):
            size = max(meta.shape[dim] for meta in whole.values())
            if all(meta.shape[dim] == size for meta in whole.values()):
                out = dim if keeps else dim - sum(d < dim for d in taken)
                yield Cut(size=size, dims=dict.fromkeys(whole, dim), out=out, what=f"slices of dimension {dim}")
                return

    return rule


def _first(*names: str, rank: int = 2) -> Rule:
    """Return a rule that cuts dimension 0 of the arguments `names`. They have one entry per sample, batch or token in
    it.
    """

    def rule(op: ReplayOp) -> Iterator[Cut]:
        tensors = {name: meta for name, meta in single_tensors(op).items() if name in names and len(meta.shape) >= rank}
        sizes = {meta.shape[0] for meta in tensors.values()}
        if len(sizes) == 1:
            yield Cut(size=sizes.pop(), dims=dict.fromkeys(tensors, 0), out=0, what="slices of dimension 0")

    return rule


def _product(first: str, second: str, *, column_dim: int = 1, bias: str | None = None) -> Rule:
    """Return a rule for matrix products: keep fewer rows of the left operand or fewer columns of the right operand."""

    def rule(op: ReplayOp) -> Iterator[Cut]:
        tensors = single_tensors(op)
        a, b = tensors.get(first), tensors.get(second)
        if a is None or b is None or len(b.shape) != 2 or len(a.shape) < 2:
            return
        added = {bias: tensors[bias]} if bias is not None and bias in tensors else {}
        by_row = {name: meta for name, meta in added.items() if len(meta.shape) == len(a.shape)}
        others = {name: meta for name, meta in tensors.items() if name not in (first, second)}
        rows = Cut(size=a.shape[0], dims={first: 0}, out=0, what="rows")
        columns = Cut(size=b.shape[column_dim], dims={second: column_dim}, out=-1, what="columns")
        yield from _with_others(rows, 0, by_row, others)
        yield from _with_others(columns, -1, added, others)

    return rule


def _with_others(
    cut: Cut, dim: int, added: Mapping[str, TensorMeta], others: Mapping[str, TensorMeta]
) -> Iterator[Cut]:
    """Yield the cut of a matrix product, extended to shrink the operand that is added to the product, too.

    Other arguments, e.g. scales and out=, may also have one entry per row or column. They would have to be cut, too, so
    nothing is yielded then.
    """
    alike = {name for name, meta in others.items() if meta.shape and meta.shape[dim] == cut.size}
    if alike <= added.keys():
        yield msgspec.structs.replace(cut, dims=cut.dims | dict.fromkeys(alike, dim))


def _heads(op: ReplayOp) -> Iterator[Cut]:
    """Yield cuts of attention on [batch, heads, length, width].

    The cuts have fewer batches and, if all operands have the same number of heads, fewer heads.
    """
    tensors = _named(op, "query", "key", "value")
    if len(tensors) != 3 or any(len(meta.shape) != 4 for meta in tensors.values()):
        return
    extra = _named(op, "attn_mask", "attn_bias", "grad_out", "out")
    for dim, what in ((0, "batches"), (1, "heads")):
        size = tensors["query"].shape[dim]
        if all(meta.shape[dim] == size for meta in tensors.values()):
            more = {n: dim for n, m in extra.items() if len(m.shape) == 4 and m.shape[dim] == size}
            yield Cut(size=size, dims=dict.fromkeys(tensors, dim) | more, out=dim, what=what)


def _joined(op: ReplayOp) -> Iterator[Cut]:
    """Yield a cut of `cat` along the first dimension that is not concatenated and has the same size in all tensors."""
    dim = _value(op, "dim")
    metas = list(tensors_of(op))
    rank = len(metas[0].shape) if metas else 0
    if not rank or not isinstance(dim, int) or any(len(meta.shape) != rank for meta in metas):
        return
    for at in range(rank):
        sizes = {meta.shape[at] for meta in metas}
        if at != dim % rank and len(sizes) == 1:
            yield Cut(size=sizes.pop(), dims={"tensors": at}, out=at, what=f"slices of dimension {at}")
            return


def _factory(op: ReplayOp) -> Iterator[Cut]:
    size = _value(op, "size")
    if isinstance(size, tuple) and size and isinstance(size[0], int):
        yield Cut(size=size[0], dims={"size": 0}, out=0, what="slices of dimension 0")


def _normalised(op: ReplayOp) -> Iterator[Cut]:
    """Cut dimension 0 of layer_norm, unless it is normalised. Saved statistics have one entry per sample and are cut,
    too.
    """
    source, normalised = single_tensors(op).get("input"), _value(op, "normalized_shape")
    if source is not None and is_whole_numbers(normalised) and len(source.shape) > len(normalised):
        yield from _first("input", "grad_out", "mean", "rstd", "out")(op)


_POINTWISE = names(
    "add sub mul div pow neg abs exp log sqrt rsqrt reciprocal sigmoid tanh relu gelu silu elu leaky_relu hardtanh "
    "hardswish clamp clamp_min clamp_max cos sin erf sign floor ceil round maximum minimum where masked_fill eq ne "
    "lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not isnan isinf addcmul addcdiv "
    "lerp threshold threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
    "native_dropout native_dropout_backward dropout bernoulli fill zero copy clone _to_copy to contiguous rsub "
    "square softplus remainder fmod floor_divide nan_to_num log1p expm1 mish normal uniform"
)
_ATTENTION = names(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable"
)
_SAMPLES = names(
    "convolution _convolution conv1d conv2d conv3d cudnn_convolution miopen_convolution convolution_backward "
    "miopen_convolution_backward native_batch_norm cudnn_batch_norm miopen_batch_norm max_pool2d_with_indices "
    "max_pool2d avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d upsample_bilinear2d upsample_nearest2d "
    "upsample_bicubic2d"
)
_ROWS = names(
    "_C::silu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul _C::rms_norm _C::fused_add_rms_norm "
    "sgl_kernel::silu_and_mul sgl_kernel::rmsnorm aiter::rms_norm aiter::rmsnorm2d_fwd npu::npu_rms_norm "
    "npu::npu_swiglu"
)

RULES: dict[str, Rule] = {
    **{op + tail: _pointwise for op in _POINTWISE for tail in ("", "_")},
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "log_softmax", "_softmax_backward_data",
                     "_log_softmax_backward_data", "cumsum", "cumsum_", "sort", "topk", "argsort"), _along("dim")),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std", "max", "min", "argmax", "argmin", "prod", "all",
                     "any", "logsumexp", "norm", "linalg_vector_norm"), _along("dim", squeezes=True)),
    "bmm": _first("self", "mat2", "out", rank=3),
    "baddbmm": _first("self", "batch1", "batch2", "out", rank=3),
    "mm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", bias="self"),
    "_addmm_activation": _product("mat1", "mat2", bias="self"),
    "linear": _product("input", "weight", column_dim=0, bias="bias"),
    "matmul": _product("self", "other"),
    **dict.fromkeys(_ATTENTION, _heads),
    **dict.fromkeys(_SAMPLES, _first("input", "self", "grad_output", rank=3)),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "native_layer_norm_backward", "rms_norm", "_fused_rms_norm"),
                    _normalised),
    **dict.fromkeys(_ROWS, _first("out", "input", "residual", "x", "self", "result", "output", "res_ins")),
    "embedding": _first("indices", rank=1),
    **dict.fromkeys(("cat", "concat"), _joined),
    **dict.fromkeys(("zeros", "ones", "empty", "full", "rand", "randn", "randint", "new_zeros", "new_empty",
                     "new_ones", "new_full"), _factory),
}  # fmt: skip
"""Op name (without namespace for aten) → rule that yields its possible cuts."""
