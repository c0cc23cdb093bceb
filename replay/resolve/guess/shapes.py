# pyright: strict
"""Guesses based on shapes: sizes of views and factories, dimensions, windows of convolutions, index tensors.

Consists of two tables of small rules, by (op, argument) and by (type, argument name). A rule returns None if it has no
evidence; constants are in `guess`.
"""

from __future__ import annotations

import math

import msgspec

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.guess.copies import COPY_RULES
from opreplay.replay.resolve.guess.embedding_tables import TABLE_RULES, WIDTH_RULES
from opreplay.replay.resolve.guess.indices import INDEX_RULES
from opreplay.replay.resolve.guess.inside import WRITERS, allocated, literal, of_the_same_parent
from opreplay.replay.resolve.guess.lists import LIST_RULES
from opreplay.replay.resolve.guess.networks import NETWORK_RULES, PER_TENSOR
from opreplay.replay.resolve.guess.results import RESULT_RULES
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Relatives,
    Rule,
    Shape,
    always,
    by_shape,
    first_tensor_of,
    first_tensors,
    last_dim,
    metas_of,
    names,
    recorded_shape,
)
from opreplay.replay.resolve.guess.views import VIEW_ARGUMENTS, VIEW_RULES
from opreplay.replay.resolve.guess.windows import WINDOW_RULES
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import contiguous_strides

RANGE_READERS = 6


def _first_shape(known: Call, context: Context) -> Guess | None:
    meta = known.first_tensor()
    return meta and Guess(value=meta.shape, why="the shape of the first tensor")


def _first_strides(known: Call, context: Context) -> Guess | None:
    meta, size = known.first_tensor(), known.value("size")
    if meta is not None and meta.strides is not None and (not is_whole_numbers(size) or size == meta.shape):
        return Guess(value=meta.strides, why="the strides of the first tensor")
    shape = size if is_whole_numbers(size) else None if meta is None else meta.shape
    return None if shape is None else Guess(value=contiguous_strides(shape), why="contiguous")


def _factory_size(known: Call, context: Context) -> Guess | None:
    """Guess the size of a new tensor from the call that writes it next, or from an argument of the calling op."""
    around, like = context.relatives(), _first_shape(known, context)
    if (sample := _size_without_batch(known, context)) is not None:
        return sample
    if like is not None and not around.name.partition("::")[2].startswith("new_"):
        return like
    parent = around.parent_name
    if parent == "aten::linalg_solve_ex":
        return Guess(value=(0,), why=f"[0]: {parent} makes its results larger later")
    if parent == "aten::_pad_circular" and (padded := recorded_shape(around.following[0])) is not None:
        return Guess(value=padded, why=f"the size that {around.following[0].name} reads next")
    next_calls = around.following[:3] if like is None else of_the_same_parent(around)[:1]
    for call in (*around.children, *next_calls):
        if call.name in WRITERS and (shape := recorded_shape(call)) is not None:
            return Guess(value=shape, why=f"the size that {call.name} writes")
    return like or _memory_size(around)


def _size_without_batch(known: Call, context: Context) -> Guess | None:
    """Guess the size for one sample under vmap. It is the size in the nested batched call, without the batch dimension,
    which is first.
    """
    around, own = context.relatives(), known.first_tensor()
    inside = around.batched() if around.batched is not None else None
    batch = None if inside is None else first_tensor_of(inside[0])
    if own is None or inside is None or batch is None or not batch.shape or batch.shape[1:] != own.shape:
        return None
    given = Call({"self": ReplayArg(name="self", type="Tensor", tensors=(batch,))})
    guessed = _factory_size(given, msgspec.structs.replace(context, relatives=lambda: inside[1]))
    if guessed is None or guessed.value[:1] != batch.shape[:1]:
        return None
    return msgspec.structs.replace(
        guessed, value=guessed.value[1:], why=f"the same as for a batch of {batch.shape[0]}: {guessed.why}"
    )


def _memory_size(around: Relatives) -> Guess | None:
    """Guess the size of a new tensor that no adjacent call writes."""
    if (numbers := literal(around)) is not None:
        return Guess(value=numbers.shape, why="the size of the tensor that is built from numbers and read next")
    if (memory := allocated(around)) is not None:
        return Guess(value=memory[0], why=memory[1])
    for meta, writer in first_tensors(around.inner, WRITERS):
        return Guess(value=meta.shape, why=f"the size that {writer} writes")
    aten_parent = around.parent if around.parent_name.startswith("aten::") else None
    shape = aten_parent and recorded_shape(aten_parent)
    return None if shape is None else Guess(value=shape, why=f"the first tensor of the calling {around.parent_name}")


def _empty_size(known: Call, context: Context) -> Guess | None:
    """Guess a size for `empty`; [1] if nothing shows it. This hardly matters: allocating takes the same time for all
    but the largest sizes.
    """
    return _factory_size(known, context) or Guess(value=(1,), why="[1]: the trace does not show the size")


def _range_end(known: Call, context: Context) -> Guess | None:
    out, around = known.shape("out"), context.relatives()
    if out is not None and out != (0,):  # torch gives an empty one its size later
        return Guess(value=math.prod(out), why="the length of the output")
    calls = (*around.children, *around.following[:RANGE_READERS])
    vectors = [(meta, call.name) for call in calls for meta in metas_of(call) if len(meta.shape) == 1]
    written = next((meta.dtype for meta, _ in vectors if meta.shape == (0,) and meta.dtype), None)
    dtypes = ("int64", "int32") if written is None else (written,)
    vectors = sorted((vector for vector in vectors if vector[0].shape != (0,)), key=lambda v: v[0].dtype not in dtypes)
    return next(
        (Guess(value=m.shape[0], why=f"the length of the tensor that {name} reads") for m, name in vectors), None
    )


def _dims_list(known: Call, context: Context) -> Guess | None:
    meta = known.first_tensor()
    return meta and Guess(value=(0,) if meta.shape else (), why="dimension 0")


def _normalized_shape(known: Call, context: Context) -> Guess | None:
    weight, shape = known.shape("weight"), known.shape("input", "self")
    if weight is not None:
        return Guess(value=weight, why="the shape of the weight")
    return Guess(value=shape[-1:], why="the last dimension of the input") if shape else None


def _gradients_of_norm(known: Call, context: Context) -> Guess | None:
    """Guess which gradients of a normalisation are required. The input's gradient always is. The gradients of the
    weights are if there are weights.
    """
    weighted = known.tensor("weight") is not None
    return Guess(value=(True, weighted, weighted), why="gradients of the input, and of the weights if given")


@by_shape
def _halves(shape: Shape, known: Call, context: Context) -> Guess | None:
    size = shape[known.dim(len(shape)) or 0] if shape else 0
    return Guess(value=(size - size // 2, size // 2), why="two halves") if shape else None


@by_shape
def _half(shape: Shape, known: Call, context: Context) -> Guess | None:
    size = shape[known.dim(len(shape)) or 0] if shape else 0
    return Guess(value=max(1, (size + 1) // 2), why="half of the dimension") if shape else None


def _reduced_shape(known: Call, context: Context) -> Guess | None:
    """Guess the input shape of a max or min whose gradient goes to one position of dimension 0.

    That dimension is given the minimum size, 2.
    """
    grad = known.shape("grad")
    if grad is None:
        return None
    return Guess(value=(2, *(grad[1:] if known.value("keepdim") else grad)), why="dimension 0 of size 2")


@by_shape
def _where_index_differs(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the dimension of gather and scatter: the first one in which index is larger than self. If there is none, it
    is the first one in which they differ.
    """
    index = known.shape("index")
    if not shape or index is None or len(shape) != len(index):
        return None
    over = [d for d, (n, m) in enumerate(zip(index, shape, strict=True)) if n > m]
    differing = [d for d, (n, m) in enumerate(zip(index, shape, strict=True)) if n != m]
    return Guess(value=(over or differing or [len(shape) - 1])[0], why="the dimension in which index and self differ")


@by_shape
def _where_source_differs(shape: Shape, known: Call, context: Context) -> Guess | None:
    source = known.shape("source")
    if not shape or source is None or len(shape) != len(source):
        return None
    dim = next((d for d, (n, m) in enumerate(zip(shape, source, strict=True)) if n != m), 0)
    return Guess(value=dim, why="the dimension in which source and self differ")


def _is_stable(known: Call, context: Context) -> Guess | None:
    """Guess the argument `stable` of a sort.

    The guess is True, because this overload is called only if the argument is passed. It is False if an `aten::sort`
    without the argument makes the call.
    """
    parent = context.relatives().parent
    if parent is not None and parent.name in ("aten::sort", "aten::argsort") and len(parent.dims or ()) < 4:
        return Guess(value=False, why=f"False: {parent.name} was called without this argument")
    return Guess(value=True, why="True: the recorded overload has this argument")


def _dot_dims(side: int) -> Rule:
    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        other = known.shape("other")
        if other is None:
            return None
        pairs = ((a, b) for a in reversed(range(len(shape))) for b in range(len(other)) if shape[a] == other[b])
        if (pair := next(pairs, None)) is not None:
            return Guess(value=(pair[side],), why="dimensions of equal size")
        return Guess(value=(), why="no common dimension")

    return rule


_ALONG_LAST_DIM = names(
    "softmax _softmax log_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax cumsum "
    "cumprod cumprod_backward logcumsumexp _logcumsumexp cummax cummin _cummax_helper _cummin_helper "
    "cummaxmin_backward logsumexp topk sort argsort"
)

BY_OP: dict[tuple[str, str], Rule] = {
    ("empty", "size"): _empty_size,
    ("value_selecting_reduction_backward", "sizes"): _reduced_shape,
    **{(op, "dim"): _where_index_differs
       for op in names("gather gather_backward scatter_add_ scatter_add scatter_ scatter")},
    **{(op, "dim"): _where_source_differs for op in ("index_add_", "index_copy_")},
    **{(op, "stable"): _is_stable for op in ("sort", "argsort")},
    ("tensordot", "dims_self"): _dot_dims(0),
    ("tensordot", "dims_other"): _dot_dims(1),
    **{(op, "output_mask"): _gradients_of_norm
       for op in ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward")},
    ("linear_backward", "output_mask"): always((True,) * 3, "all gradients wanted"),
    **{(op, "dim"): last_dim for op in _ALONG_LAST_DIM},
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
    ("int[]", "shape"): _first_shape,
    ("int[]", "new_size"): _first_shape,
    ("int[]", "input_sizes"): _first_shape,
    ("int[]", "stride"): _first_strides,
    ("int[]", "dim"): _dims_list,
    ("int[]", "split_sizes"): _halves,
    ("int", "split_size"): _half,
    ("int[]", "normalized_shape"): _normalized_shape,
    ("Scalar", "end"): _range_end,
    **PER_TENSOR,
    **WIDTH_RULES,
    **VIEW_ARGUMENTS,
}
