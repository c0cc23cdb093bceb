"""Guesses that follow from shapes: sizes of views and factories, dimensions, windows of convolutions, index tensors.

Two tables of small rules, by (op, argument) and by (type, argument name). A rule returns None when it has nothing to go
by. Owns no constants (`inference`).
"""

from __future__ import annotations

import math
from typing import Any

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.einsum import equation
from opreplay.replay.resolve.guess.embedding_tables import TABLE_RULES
from opreplay.replay.resolve.guess.indices import INDEX_RULES
from opreplay.replay.resolve.guess.legacy import LEGACY_RULES, LEGACY_TEXTS
from opreplay.replay.resolve.guess.lists import LIST_RULES, size_inside
from opreplay.replay.resolve.guess.networks import NETWORK_RULES, PER_TENSOR
from opreplay.replay.resolve.guess.results import RESULT_RULES
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Rule, Shape, first_tensor, tensor, value
from opreplay.replay.resolve.guess.windows import WINDOW_RULES
from opreplay.traces.model import OpSignature


def _shape(known: Known, *names: str) -> Shape | None:
    for name in names:
        meta = tensor(known, name)
        if meta is not None:
            return meta.shape
    return None


def _own_shape(known: Known, context: Context) -> Guess | None:
    meta = first_tensor(known)
    return Guess(value=meta.shape, why="the shape of the first tensor") if meta is not None else None


def _own_strides(known: Known, context: Context) -> Guess | None:
    meta, size = first_tensor(known), value(known, "size")
    if meta is None and not isinstance(size, tuple):
        return None
    shape: Shape = size if isinstance(size, tuple) or meta is None else meta.shape
    if meta is not None and meta.strides is not None and shape == meta.shape:
        return Guess(value=meta.strides, why="the strides of the first tensor")
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return Guess(value=tuple(strides), why="contiguous")


def _recorded_shape(signature: OpSignature) -> Shape | None:
    """Shape of the first argument of another recorded call, if that is a tensor."""
    if not signature.dims or not signature.types or signature.types[0] in ("", "Scalar", "ScalarList", "TensorList"):
        return None
    first: Any = signature.dims[0]
    return tuple(first) if all(isinstance(n, int) for n in first) else None


def _rounding_mode(known: Known, context: Context) -> Guess | None:
    """Integers divided in place have to be rounded: they cannot hold a quotient."""
    own = tensor(known, "self")
    if own is None or not own.dtype.startswith(("int", "uint")):
        return None
    return Guess(value="floor", why="'floor': integers cannot hold a quotient")


def _reduction(name: str) -> Rule:
    """How an op combines, of which most that others know are not allowed."""
    return lambda known, context: Guess(value=name, why=f"{name!r} (strings are not recorded)")


def _side(known: Known, context: Context) -> Guess | None:
    """The side of a search that the flag `right` already says."""
    return Guess(value=None, why="None: `right` says it")


def _named_padding(known: Known, context: Context) -> Guess | None:
    """ "same" where a convolution inside is padded, or what goes into it is; else "valid"."""
    around = context.relatives()
    for call in (*around.children, *around.inner):
        if call.name == "aten::constant_pad_nd":
            return Guess(value="same", why=f"'same': padded by {call.name} inside")
        if call.name != "aten::convolution":
            continue
        padding = recorded_args(call)[4:5]
        if padding and isinstance(padding[0].value, tuple):
            text = "same" if any(padding[0].value) else "valid"
            return Guess(value=text, why=f"{text!r}: padding {list(padding[0].value)} of {call.name} inside")
    return None


def _factory_size(known: Known, context: Context) -> Guess | None:
    """A new tensor is as large as what is next written into it, or as what its caller was given."""
    if (own := _own_shape(known, context)) is not None:
        return own
    around = context.relatives()
    writers = ("aten::zero_", "aten::fill_", "aten::copy_", "aten::normal_", "aten::uniform_", "aten::random_")
    for call in (*around.children, *around.following[:3]):
        shape = _recorded_shape(call) if call.name in writers else None
        if shape is not None:
            return Guess(value=shape, why=f"what {call.name} writes to")
    if (inside := size_inside(around, writers)) is not None:
        return Guess(value=inside[0], why=f"what {inside[1]} writes to")
    if around.parent is not None and around.parent.name.startswith("aten::"):
        shape = _recorded_shape(around.parent)
        if shape is not None:
            return Guess(value=shape, why=f"the first tensor of the calling {around.parent.name}")
    return None


def _empty_size(known: Known, context: Context) -> Guess | None:
    """Allocating without writing takes the same time for all sizes but the largest."""
    return _factory_size(known, context) or Guess(value=(1,), why="[1]: nothing in the trace tells it")


def _range_end(known: Known, context: Context) -> Guess | None:
    out = _shape(known, "out")
    if out is None:
        out = next((s for call in context.relatives().children if (s := _recorded_shape(call)) and len(s) == 1), None)
    return Guess(value=math.prod(out), why="the length of the output") if out is not None else None


def _last_dim(known: Known, context: Context) -> Guess | None:
    return Guess(value=-1, why="the last dimension")


def _dims_list(known: Known, context: Context) -> Guess | None:
    meta = first_tensor(known)
    if meta is None:
        return None
    return Guess(value=(0,) if meta.shape else (), why="dimension 0")


def _reversed_dims(known: Known, context: Context) -> Guess | None:
    meta = first_tensor(known)
    return Guess(value=tuple(reversed(range(len(meta.shape)))), why="all dimensions reversed") if meta else None


def _transposed(offset: int) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        meta = first_tensor(known)
        if meta is None:
            return None
        dim = len(meta.shape) + offset if len(meta.shape) >= 2 else 0
        return Guess(value=dim, why="the last two dimensions")

    return rule


def _normalized_shape(known: Known, context: Context) -> Guess | None:
    weight = _shape(known, "weight")
    if weight is not None:
        return Guess(value=weight, why="the shape of the weight")
    own = _shape(known, "input", "self")
    return Guess(value=own[-1:], why="the last dimension of the input") if own else None


def _all_true(length: int) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        return Guess(value=(True,) * length, why="all gradients wanted")

    return rule


def _gradients_of_norm(known: Known, context: Context) -> Guess | None:
    """Of a normalisation without weights only the input has a gradient."""
    weighted = tensor(known, "weight") is not None
    return Guess(value=(True, weighted, weighted), why="gradients of the input and of weights that there are")


def _halves(known: Known, context: Context) -> Guess | None:
    own, dim = _shape(known, "self", "input"), value(known, "dim")
    if not own:
        return None
    size = own[dim if isinstance(dim, int) and -len(own) <= dim < len(own) else 0]
    return Guess(value=(size - size // 2, size // 2), why="two halves")


def _half(known: Known, context: Context) -> Guess | None:
    own, dim = _shape(known, "self"), value(known, "dim")
    if not own:
        return None
    size = own[dim if isinstance(dim, int) and -len(own) <= dim < len(own) else 0]
    return Guess(value=max(1, (size + 1) // 2), why="half of the dimension")


def _whole(known: Known, context: Context) -> Guess | None:
    own = _shape(known, "self", "grad_output", "grad")
    return Guess(value=own[0], why="all of dimension 0") if own else None


def _reduced_shape(known: Known, context: Context) -> Guess | None:
    """Input of a max or min whose gradient goes to one position of dimension 0: at least that wide."""
    grad = _shape(known, "grad")
    if grad is None:
        return None
    return Guess(value=(2, *grad) if not value(known, "keepdim") else (2, *grad[1:]), why="dimension 0 of size 2")


def _where_index_differs(known: Known, context: Context) -> Guess | None:
    """gather and scatter: every other dimension of the index must fit into self."""
    own, index = _shape(known, "self"), _shape(known, "index")
    if not own or index is None or len(own) != len(index):
        return None
    over = [d for d, (n, m) in enumerate(zip(index, own, strict=True)) if n > m]
    differing = [d for d, (n, m) in enumerate(zip(index, own, strict=True)) if n != m]
    dim = (over or differing or [len(own) - 1])[0]
    return Guess(value=dim, why="where index and self differ")


def _where_source_differs(known: Known, context: Context) -> Guess | None:
    own, source = _shape(known, "self"), _shape(known, "source")
    if own and source and len(own) == len(source):
        dims = [d for d, (n, m) in enumerate(zip(own, source, strict=True)) if n != m]
        return Guess(value=(dims or [0])[0], why="where source and self differ")
    return None


def _joined_dim(known: Known, context: Context) -> Guess | None:
    """cat: the only dimension in which the tensors may differ."""
    arg = known.get("tensors")
    metas = [m.shape for m in arg.tensors if m is not None and m.shape] if arg is not None else []
    for dim in range(min((len(shape) for shape in metas), default=0)):
        if len({shape[dim] for shape in metas}) > 1:
            return Guess(value=dim, why="where the tensors differ")
    return Guess(value=0, why="dimension 0")


def _dot_dims(side: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        left, right = _shape(known, "self"), _shape(known, "other")
        if left is None or right is None:
            return None
        for a in range(len(left) - 1, -1, -1):
            for b in range(len(right)):
                if left[a] == right[b]:
                    return Guess(value=(a,) if side == "self" else (b,), why="dimensions of equal size")
        return Guess(value=(), why="no common dimension")

    return rule


BY_OP: dict[tuple[str, str], Rule] = {
    **LEGACY_RULES,
    ("permute", "dims"): _reversed_dims,
    ("transpose", "dim0"): _transposed(-2),
    ("transpose", "dim1"): _transposed(-1),
    ("empty", "size"): _empty_size,
    ("narrow", "length"): _whole,
    ("slice", "end"): _whole,
    ("slice_backward", "end"): _whole,
    ("split", "split_size"): _half,
    ("value_selecting_reduction_backward", "sizes"): _reduced_shape,
    ("gather", "dim"): _where_index_differs,
    ("gather_backward", "dim"): _where_index_differs,
    ("scatter_add_", "dim"): _where_index_differs,
    ("scatter_add", "dim"): _where_index_differs,
    ("scatter_", "dim"): _where_index_differs,
    ("scatter", "dim"): _where_index_differs,
    ("index_add_", "dim"): _where_source_differs,
    ("index_copy_", "dim"): _where_source_differs,
    ("cat", "dim"): _joined_dim,
    ("concat", "dim"): _joined_dim,
    ("tensordot", "dims_self"): _dot_dims("self"),
    ("tensordot", "dims_other"): _dot_dims("other"),
    **{(op, "output_mask"): _gradients_of_norm
       for op in ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward")},
    ("convolution_backward", "output_mask"): _all_true(3),
    ("linear_backward", "output_mask"): _all_true(3),
    **{(op, "dim"): _last_dim for op in (
        "softmax", "_softmax", "log_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
        "cumsum", "topk", "sort", "argsort", "glu",
    )},
    ("unsafe_split", "split_size"): _half,
    **INDEX_RULES,
    **WINDOW_RULES,
    **LIST_RULES,
    **TABLE_RULES,
    **NETWORK_RULES,
    **RESULT_RULES,
}  # fmt: skip

TEXTS: dict[tuple[str, str], Rule] = {
    **LEGACY_TEXTS,
    ("einsum", "equation"): equation,
    ("div_", "rounding_mode"): _rounding_mode,
    ("divide_", "rounding_mode"): _rounding_mode,
    ("searchsorted", "side"): _side,
    **{(op, "padding"): _named_padding for op in ("conv1d", "conv2d", "conv3d", "_convolution_mode")},
    **{(op, "reduce"): _reduction("mean") for op in ("index_reduce", "index_reduce_")},
    **{(op, "reduce"): _reduction("add") for op in ("scatter", "scatter_")},
}  # fmt: skip
"""As `BY_OP`, for texts: of two overloads one may name what the other one counts."""

BY_ARGUMENT: dict[tuple[str, str], Rule] = {
    ("int[]", "size"): _factory_size,
    ("int[]", "shape"): _own_shape,
    ("int[]", "new_size"): _own_shape,
    ("int[]", "input_sizes"): _own_shape,
    ("int[]", "stride"): _own_strides,
    ("int[]", "dim"): _dims_list,
    ("int[]", "split_sizes"): _halves,
    ("int[]", "normalized_shape"): _normalized_shape,
    ("Scalar", "end"): _range_end,
    **PER_TENSOR,
}
