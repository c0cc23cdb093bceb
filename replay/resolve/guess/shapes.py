# pyright: strict
"""Guesses that follow from shapes: sizes of views and factories, dimensions, windows of convolutions, index tensors.

Two tables of small rules, by (op, argument) and by (type, argument name). A rule returns None when it has nothing to go
by. Owns no constants (`guess`).
"""

from __future__ import annotations

import math
from typing import cast

from opreplay.replay.resolve.guess.copies import COPY_RULES
from opreplay.replay.resolve.guess.embedding_tables import TABLE_RULES, WIDTH_RULES
from opreplay.replay.resolve.guess.indices import INDEX_RULES
from opreplay.replay.resolve.guess.inside import WRITERS, allocated, literal, metas_of, of_the_same_parent
from opreplay.replay.resolve.guess.lists import LIST_RULES, size_inside
from opreplay.replay.resolve.guess.networks import NETWORK_RULES, PER_TENSOR
from opreplay.replay.resolve.guess.results import RESULT_RULES
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Known,
    Rule,
    Shape,
    first_tensor,
    names,
    recorded_shape,
    tensor,
    value,
)
from opreplay.replay.resolve.guess.views import VIEW_ARGUMENTS, VIEW_RULES
from opreplay.replay.resolve.guess.windows import WINDOW_RULES

RANGE_READERS = 6


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
    shape = cast("Shape", size) if isinstance(size, tuple) or meta is None else meta.shape
    if meta is not None and meta.strides is not None and shape == meta.shape:
        return Guess(value=meta.strides, why="the strides of the first tensor")
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return Guess(value=tuple(strides), why="contiguous")


def _factory_size(known: Known, context: Context) -> Guess | None:
    """A new tensor is as large as what is next written into it, or as what its caller was given."""
    around, first_shape = context.relatives(), _own_shape(known, context)
    if first_shape is not None and not around.name.partition("::")[2].startswith("new_"):
        return first_shape
    parent = "" if around.parent is None else around.parent.name
    if parent == "aten::linalg_solve_ex":
        return Guess(value=(0,), why=f"[0]: {parent} makes its results larger later")
    if parent == "aten::_pad_circular" and (padded := recorded_shape(around.following[0])) is not None:
        return Guess(value=padded, why=f"what {around.following[0].name} is given next")
    for call in (*around.children, *(around.following[:3] if first_shape is None else of_the_same_parent(around)[:1])):
        shape = recorded_shape(call) if call.name in WRITERS else None
        if shape is not None:
            return Guess(value=shape, why=f"what {call.name} writes to")
    if first_shape is not None:
        return first_shape
    if (numbers := literal(around)) is not None:
        return Guess(value=numbers.shape, why="what is made of numbers and read next")
    if (memory := allocated(around)) is not None:
        return Guess(value=memory[0], why=memory[1])
    if (inside := size_inside(around, sorted(WRITERS))) is not None:
        return Guess(value=inside[0], why=f"what {inside[1]} writes to")
    if around.parent is not None and around.parent.name.startswith("aten::"):
        shape = recorded_shape(around.parent)
        if shape is not None:
            return Guess(value=shape, why=f"the first tensor of the calling {around.parent.name}")
    return None


def _empty_size(known: Known, context: Context) -> Guess | None:
    """Allocating without writing takes the same time for all sizes but the largest."""
    return _factory_size(known, context) or Guess(value=(1,), why="[1]: nothing in the trace tells it")


def _range_end(known: Known, context: Context) -> Guess | None:
    out, around = _shape(known, "out"), context.relatives()
    if out is not None and out != (0,):  # torch gives an empty one its size later
        return Guess(value=math.prod(out), why="the length of the output")
    calls = (*around.children, *around.following[:RANGE_READERS])
    metas = [(meta, call.name) for call in calls for meta in metas_of(call) if len(meta.shape) == 1]
    empty = next((meta.dtype for meta, _ in metas if not meta.shape[0] and meta.dtype), None)  # what is written inside
    metas = [candidate for candidate in metas if candidate[0].shape[0]]
    types = ("int64", "int32") if empty is None else (empty,)
    vector = next((candidate for candidate in metas if candidate[0].dtype in types), metas[0] if metas else None)
    return None if vector is None else Guess(value=vector[0].shape[0], why=f"the length of what {vector[1]} is given")


def _last_dim(known: Known, context: Context) -> Guess | None:
    return Guess(value=-1, why="the last dimension")


def _dims_list(known: Known, context: Context) -> Guess | None:
    meta = first_tensor(known)
    if meta is None:
        return None
    return Guess(value=(0,) if meta.shape else (), why="dimension 0")


def _normalized_shape(known: Known, context: Context) -> Guess | None:
    weight = _shape(known, "weight")
    if weight is not None:
        return Guess(value=weight, why="the shape of the weight")
    shape = _shape(known, "input", "self")
    return Guess(value=shape[-1:], why="the last dimension of the input") if shape else None


def _all_true(length: int) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        return Guess(value=(True,) * length, why="all gradients wanted")

    return rule


def _gradients_of_norm(known: Known, context: Context) -> Guess | None:
    """Of a normalisation without weights only the input has a gradient."""
    weighted = tensor(known, "weight") is not None
    return Guess(value=(True, weighted, weighted), why="gradients of the input and of weights that there are")


def _halves(known: Known, context: Context) -> Guess | None:
    shape, dim = _shape(known, "self", "input"), value(known, "dim")
    if not shape:
        return None
    size = shape[dim if isinstance(dim, int) and -len(shape) <= dim < len(shape) else 0]
    return Guess(value=(size - size // 2, size // 2), why="two halves")


def _half(known: Known, context: Context) -> Guess | None:
    shape, dim = _shape(known, "self"), value(known, "dim")
    if not shape:
        return None
    size = shape[dim if isinstance(dim, int) and -len(shape) <= dim < len(shape) else 0]
    return Guess(value=max(1, (size + 1) // 2), why="half of the dimension")


def _reduced_shape(known: Known, context: Context) -> Guess | None:
    """Input of a max or min whose gradient goes to one position of dimension 0: at least that wide."""
    grad = _shape(known, "grad")
    if grad is None:
        return None
    return Guess(value=(2, *grad) if not value(known, "keepdim") else (2, *grad[1:]), why="dimension 0 of size 2")


def _where_index_differs(known: Known, context: Context) -> Guess | None:
    """gather and scatter: every other dimension of the index must fit into self."""
    shape, index = _shape(known, "self"), _shape(known, "index")
    if not shape or index is None or len(shape) != len(index):
        return None
    over = [d for d, (n, m) in enumerate(zip(index, shape, strict=True)) if n > m]
    differing = [d for d, (n, m) in enumerate(zip(index, shape, strict=True)) if n != m]
    dim = (over or differing or [len(shape) - 1])[0]
    return Guess(value=dim, why="where index and self differ")


def _where_source_differs(known: Known, context: Context) -> Guess | None:
    shape, source = _shape(known, "self"), _shape(known, "source")
    if shape and source and len(shape) == len(source):
        dims = [d for d, (n, m) in enumerate(zip(shape, source, strict=True)) if n != m]
        return Guess(value=(dims or [0])[0], why="where source and self differ")
    return None


def _dot_dims(side: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        self_shape, other_shape = _shape(known, "self"), _shape(known, "other")
        if self_shape is None or other_shape is None:
            return None
        for a in range(len(self_shape) - 1, -1, -1):
            for b in range(len(other_shape)):
                if self_shape[a] == other_shape[b]:
                    return Guess(value=(a,) if side == "self" else (b,), why="dimensions of equal size")
        return Guess(value=(), why="no common dimension")

    return rule


_SCANS = names(
    "_safe_softmax cumprod cumprod_backward logcumsumexp _logcumsumexp cummax cummin _cummax_helper "
    "_cummin_helper cummaxmin_backward logsumexp"
)

BY_OP: dict[tuple[str, str], Rule] = {
    ("empty", "size"): _empty_size,
    ("value_selecting_reduction_backward", "sizes"): _reduced_shape,
    ("gather", "dim"): _where_index_differs,
    ("gather_backward", "dim"): _where_index_differs,
    ("scatter_add_", "dim"): _where_index_differs,
    ("scatter_add", "dim"): _where_index_differs,
    ("scatter_", "dim"): _where_index_differs,
    ("scatter", "dim"): _where_index_differs,
    ("index_add_", "dim"): _where_source_differs,
    ("index_copy_", "dim"): _where_source_differs,
    ("tensordot", "dims_self"): _dot_dims("self"),
    ("tensordot", "dims_other"): _dot_dims("other"),
    **{(op, "output_mask"): _gradients_of_norm
       for op in ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward")},
    ("linear_backward", "output_mask"): _all_true(3),
    **{(op, "dim"): _last_dim for op in (
        "softmax", "_softmax", "log_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
        "cumsum", "topk", "sort", "argsort",
    )},
    **{(op, "dim"): _last_dim for op in _SCANS},
    **INDEX_RULES,
    **VIEW_RULES,
    **WINDOW_RULES,
    **LIST_RULES,
    **TABLE_RULES,
    **NETWORK_RULES,
    **COPY_RULES,
    **RESULT_RULES,
}  # fmt: skip

BY_ARGUMENT: dict[tuple[str, str], Rule] = {
    ("int[]", "size"): _factory_size,
    ("int[]", "shape"): _own_shape,
    ("int[]", "new_size"): _own_shape,
    ("int[]", "input_sizes"): _own_shape,
    ("int[]", "stride"): _own_strides,
    ("int[]", "dim"): _dims_list,
    ("int[]", "split_sizes"): _halves,
    ("int", "split_size"): _half,
    ("int[]", "normalized_shape"): _normalized_shape,
    ("Scalar", "end"): _range_end,
    **PER_TENSOR,
    **WIDTH_RULES,
    **VIEW_ARGUMENTS,
}
