"""Guesses for views, conversions and new tensors, from the tensors that are read next.

Tensors read next are evidence because most results are used at once. Covers sizes and dimensions of views, and dtypes
and memory formats that are not recorded. If no nearby call has a size that the view could have, a default is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess import copies
from opreplay.replay.resolve.guess.inside import (
    Composite,
    allocated_meta,
    composite_of,
    filters,
    indexing,
    literal,
    reduced_view,
    written_over,
)
from opreplay.replay.resolve.guess.results import REDUCTIONS
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Relatives,
    Rule,
    Shape,
    by_shape,
    first_tensor_of,
    first_tensors,
    last_dim,
    metas_of,
    names,
    recorded_shape,
)
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature, TensorMeta, contiguous_strides

SOON = 4
"""Number of following calls that are searched for the result of a conversion or factory."""
TO_THE_END = 2**63 - 1
_WINDOW = ("dimension", "size", "step")
_WRITERS = names(
    "aten::copy_ aten::fill_ aten::zero_ aten::normal_ aten::uniform_ aten::random_ aten::bernoulli_ aten::exponential_"
)
_NO_READERS = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"})


def _read_next(context: Context, count: int = 12) -> Iterator[tuple[TensorMeta, str]]:
    """Yield (tensor, name of the call) for each tensor that is passed to one of the next calls."""
    for call in context.relatives().following[:count]:
        if call.name in _NO_READERS:
            continue
        yield from ((meta, call.name) for meta in metas_of(call))


def _reads(name: str, shape: Shape) -> str:
    return f"{name} reads sizes {list(shape)} next"


def _strided_in_place(meta: TensorMeta, composite: Composite) -> Guess:
    """Guess the size that `as_strided_` gives new memory.

    It is the shape of the memory. In a Fourier transform, the memory's single batch dimension is split into those of
    the input.
    """
    source = first_tensor_of(composite.call)
    if composite.call.name.startswith("aten::_fft_") and source is not None and len(source.shape) >= len(meta.shape):
        batch = source.shape[: len(source.shape) - len(meta.shape) + 1]
        if math.prod(batch) == math.prod(meta.shape[:1]):
            return Guess(value=(*batch, *meta.shape[1:]), why=f"as in {composite.call.name}")
    return Guess(value=meta.shape, why="as it is")


def _strided_size(known: Call, context: Context) -> Guess | None:
    """Guess the size of a strided view that a composite makes of its argument. The default is the argument's shape."""
    source = known.subject
    return source and (_strided_inside(source, context) or Guess(value=source.shape, why="as it is"))


def _strided_inside(source: TensorMeta, context: Context) -> Guess | None:
    composite, shape = composite_of(context.relatives()), source.shape
    if composite is None:
        return None
    why = f"as in {composite.call.name}"
    if (indices := indexing(composite, source)) is not None and shape == recorded_shape(composite.call):
        return Guess(value=indices[1], why=why)
    view = filters(composite.call, shape) or written_over(composite.call, shape)
    if view is None and composite.call.name.partition("::")[2] in REDUCTIONS:
        view = reduced_view(composite, shape)
    if view is not None:
        return Guess(value=view, why=why)
    if context.relatives().name == "aten::as_strided_":
        return _strided_in_place(source, composite)
    larger = ((meta, call.name) for call in composite.after for meta in metas_of(call))
    views = ((m.shape, name) for m, name in larger if m.dtype == source.dtype and len(m.shape) > len(shape))
    return next((Guess(value=view, why=_reads(name, view)) for view, name in views if _repeats(view, shape)), None)


def _repeats(view: Shape, shape: Shape) -> bool:
    """Check whether a view has the given shape, apart from repetition and dimensions of size 1."""
    return view[: len(shape)] == shape or [n for n in view if n != 1] == [n for n in shape if n != 1]


def _strides(known: Call, context: Context) -> Guess | None:
    """Guess strides with which a view of the guessed size stays within the viewed tensor's memory."""
    source, size = known.subject, known.value("size")
    if source is None or not is_whole_numbers(size):
        return None
    shape = source.shape
    strides = source.strides if source.strides is not None else contiguous_strides(shape)
    expanded = _expanded_strides(shape, size, strides)
    if expanded is not None:
        return Guess(value=expanded, why="the strides of the first tensor" if size == shape else "expanded")
    if len(size) == len(shape) and all(n <= m for n, m in zip(size, shape, strict=True)):
        return Guess(value=strides, why="a part of the first tensor")
    if math.prod(size) <= math.prod(shape):
        return Guess(value=contiguous_strides(size), why="contiguous")
    return Guess(value=(0,) * len(size), why="expanded")


def _expanded_strides(shape: Shape, size: Shape, strides: Shape) -> Shape | None:
    """Return the strides of an expanded view; None for other views.

    An expanded view has extra dimensions at one end, or larger sizes where `shape` has 1.
    """
    more = len(size) - len(shape)
    if more >= 0 and size[: len(shape)] == shape:
        return (*strides, *(0,) * more)
    if more < 0 or any(n not in (m, 1) for n, m in zip(shape, size[more:], strict=True)):
        return None
    return (*(0,) * more, *(s if n == m else 0 for n, m, s in zip(shape, size[more:], strides, strict=True)))


@by_shape
def _view_size(shape: Shape, known: Call, context: Context) -> Guess | None:
    parent = context.relatives().parent
    if parent is not None and parent.name == "aten::flatten":
        return Guess(value=(math.prod(shape),), why="flattened as a whole")
    return Guess(value=shape, why="as it is")


def _swapped(which: int) -> Rule:
    """Return the rule that guesses one of the two dimensions swapped by a transposition."""

    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        parent = context.relatives().parent
        if len(shape) < 2:
            return Guess(value=0, why="the only dimension")
        inside_attention = parent is not None and parent.name.startswith("aten::_scaled_dot_product_flash_attention")
        if len(shape) == 4 and (parent is None or inside_attention):  # what is read at once has the last two swapped
            return Guess(value=1 + which, why="heads before the sequence, the usual order of attention")
        return Guess(value=len(shape) - 2 + which, why="the last two dimensions")

    return rule


@by_shape
def _reversed(shape: Shape, known: Call, context: Context) -> Guess | None:
    return Guess(value=tuple(reversed(range(len(shape)))), why="all dimensions reversed")


@by_shape
def _squeezed_dim(shape: Shape, known: Call, context: Context) -> Guess | None:
    ones = [d for d, n in enumerate(shape) if n == 1]
    return Guess(value=ones[-1] if ones else -1, why="the last dimension of size 1") if shape else None


def _sliced(which: str) -> Rule:
    """Return the rule that guesses the dimension, start or end of a slice for which there is no evidence. The guess is
    all of dimension 0.
    """

    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        if not shape:
            return None
        bounds = {"end": TO_THE_END, "length": shape[known.dim(len(shape)) or 0]}
        return Guess(value=bounds.get(which, 0), why="all of the dimension")

    return rule


@by_shape
def _unflattened_sizes(shape: Shape, known: Call, context: Context) -> Guess | None:
    dim = known.dim(len(shape))
    return None if dim is None else Guess(value=(shape[dim],), why="as it is")


def _diagonal_of(which: str) -> Rule:
    """Return the rule that guesses the dimensions or the offset of a diagonal.

    The dimensions are the last two of a batch. The offset follows from the length of the diagonal, which is shown by a
    call that writes to it.
    """

    @by_shape
    def rule(shape: Shape, known: Call, context: Context) -> Guess | None:
        around = context.relatives()
        if len(shape) < 2:
            return None
        if which != "offset":
            dim = len(shape) - 2 + (which == "dim2")
            return Guess(value=dim, why="the diagonal of the last two dimensions")
        inside = around.parent_name == "aten::diag_embed"
        written = recorded_shape(around.following[0]) if inside and around.following else None
        if written is None or written[:-1] != shape[:-2]:
            return None
        return Guess(value=shape[-1] - written[-1], why=_reads(around.following[0].name, written))

    return rule


def _step(n: int, size: int, count: int) -> int:
    """Return the step between `count` windows of `size` elements in `n` elements; 0 if they do not fit."""
    step = (n - size) // (count - 1) if count > 1 else size
    return step if step and (n - size) // step + 1 == count else 0


def _windows(source: TensorMeta, context: Context) -> tuple[dict[str, int], str] | None:
    """Return the dimension, size and step of an unfold's windows, with the reason.

    They follow from the tensor that is read next. It has the number of windows in place of the unfolded dimension, and
    the window size as its last dimension.
    """
    shape = source.shape
    if (repeated := copies.window(shape, context.relatives())) is not None:
        return dict(zip(_WINDOW, repeated, strict=True)), copies.WHY_REPEATED
    for meta, reader in _read_next(context):
        if len(meta.shape) != len(shape) + 1 or meta.dtype != source.dtype:
            continue
        size = meta.shape[-1]
        for d, (n, count) in enumerate(zip(shape, meta.shape, strict=False)):
            if (*shape[:d], count, *shape[d + 1 :], size) != meta.shape or not 0 < size <= n or count < 1:
                continue
            if step := _step(n, size, count):
                return {"dimension": d, "size": size, "step": step}, _reads(reader, meta.shape)
    return None


def _unfolded(which: str) -> Rule:
    """Return the rule that guesses the dimension, size or step of an unfold."""

    def rule(known: Call, context: Context) -> Guess | None:
        source = known.subject
        if source is None:
            return None
        if (windows := _windows(source, context)) is not None:
            return Guess(value=windows[0][which], why=windows[1])
        if which == "size":
            return (
                Guess(value=max(1, source.shape[-1] // 2), why="half of the last dimension") if source.shape else None
            )
        return Guess(value=-1 if which == "dimension" else 1, why="along the last dimension, one by one")

    return rule


def _converted(known: Call, context: Context) -> Guess | None:
    """Guess the dtype of a conversion.

    It is the dtype of the first of these that exists: a tensor that a nested copy writes; a tensor that a following
    call reads; the source.
    """
    source, calls = known.subject, context.relatives().inside
    if source is None:
        return None
    written = next((meta for meta, _ in first_tensors(calls, ("aten::copy_",))), None)
    if written is not None and written.dtype:
        return Guess(value=f"torch.{written.dtype}", why=f"{written.dtype}: aten::copy_ in the op writes this dtype")
    read = (m.dtype for m, _ in _read_next(context, SOON) if m.shape == source.shape and m.dtype != source.dtype)
    if calls and (dtype := next(read, "")):
        return Guess(value=f"torch.{dtype}", why=f"{dtype}: dtype of the tensor that is read next")
    return Guess(value=f"torch.{source.dtype}", why=f"{source.dtype}: unchanged, because no call inside the op writes")


def _new_dtype(known: Call, context: Context) -> Guess | None:
    """Guess the dtype of a new tensor from the tensor that is written or read next."""
    if (result := _result_dtype(context.relatives())) is not None:
        return result
    size = known.value("size")
    candidates = (
        (meta.dtype, why)
        for meta, why in _written_or_read(context, size if is_whole_numbers(size) else None)
        if meta.dtype
    )
    return next((Guess(value=f"torch.{dtype}", why=f"{dtype}: {why}") for dtype, why in candidates), None)


def _result_dtype(around: Relatives) -> Guess | None:
    """Guess the dtype of memory that an op allocates for its result, if the op determines it."""
    if around.parent_name in ("aten::searchsorted", "aten::bucketize"):
        return Guess(value="torch.int64", why=f"int64: {around.parent_name} returns positions")
    if around.parent_name == "aten::_fft_r2c" and around.parent is not None:
        source = first_tensor_of(around.parent)
        dtype = "complex128" if source is not None and source.dtype == "float64" else "complex64"
        return Guess(value=f"torch.{dtype}", why=f"{dtype}: the result of {around.parent_name}")
    return None


def _written_or_read(context: Context, size: Shape | None) -> Iterator[tuple[TensorMeta, str]]:
    """Yield recorded tensors that may be the new tensor, each with its use; most certain first."""
    around = context.relatives()
    if (allocated := literal(around) or allocated_meta(around)) is not None:
        yield allocated, "the dtype in which the next op reads the new tensor"
    if around.name == "aten::scalar_tensor":
        yield from ((meta, "the tensor that is read next") for meta, _ in _read_next(context, 2) if meta.shape == ())
    for meta, writer in first_tensors((*around.inside, *around.following[:2]), _WRITERS):
        yield meta, f"the tensor that {writer} writes"
    for meta, reader in _read_next(context, SOON):
        if meta.shape and (size is None or meta.shape == size):
            yield meta, f"the tensor that {reader} reads next"


def _contiguous_format(known: Call, context: Context) -> Guess | None:
    around = context.relatives()
    names = [around.name, *(call.name for call in around.ancestors)]
    like_count = next((i for i, name in enumerate(names) if not name.endswith("_like")), len(names))
    caller = around.ancestors[like_count - 1] if 0 < like_count < len(names) else None
    if like_count and (caller is None or "::" not in caller.name or _clones_plainly(caller)):
        return Guess(value="torch.preserve_format", why="the format of the first tensor, the default of such ops")
    return Guess(value="torch.contiguous_format", why="contiguous format, the usual choice")


def _clones_plainly(call: OpSignature) -> bool:
    return call.name == "aten::clone" and [arg.kind for arg in recorded_args(call)[1:2]] == ["absent"]


def _gradient_size(known: Call, context: Context) -> Guess | None:
    """Guess the input shape in a view's backward, which writes into zeros of this shape through the same view."""
    views = [f"aten::{name}" for name in ("select", "slice", "narrow", "diagonal", "as_strided")]
    inside = first_tensors(context.relatives().inside, views)
    return next((Guess(value=m.shape, why=f"the tensor that {name} inside the op reads") for m, name in inside), None)


_CONVERSIONS = ("to", "_to_copy", "type_as", "_autocast_to_reduced_precision", "_autocast_to_full_precision")
_FACTORIES = names(
    "empty empty_strided zeros ones full rand randn randint arange new_empty new_zeros new_ones new_full "
    "empty_like zeros_like ones_like full_like scalar_tensor new_empty_strided linspace eye randperm tril_indices "
    "triu_indices one_hot"
)

_STRIDED = ("as_strided", "as_strided_", "_reshape_alias")

VIEW_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "size"): _view_size for op in ("view", "_unsafe_view", "expand", "broadcast_to")},
    ("reshape", "shape"): _view_size,
    **{(op, "size"): _strided_size for op in _STRIDED}, **{(op, "stride"): _strides for op in _STRIDED},
    ("permute", "dims"): _reversed,
    **{(op, f"dim{at}"): _swapped(at) for op in ("transpose", "transpose_", "swapaxes") for at in (0, 1)},
    **{(op, "dim"): last_dim for op in ("unsqueeze", "unsqueeze_")},
    **{(op, "dim"): _squeezed_dim for op in ("squeeze", "squeeze_")},
    **{("diagonal", name): _diagonal_of(name) for name in ("dim1", "dim2", "offset")},
    **{("unfold", name): _unfolded(name) for name in _WINDOW},
    ("unflatten", "sizes"): _unflattened_sizes,
    **{("slice", name): _sliced(name) for name in ("dim", "start", "end")},
    **{("narrow", name): _sliced(name) for name in ("dim", "start", "length")},
    **{(op, "dtype"): _converted for op in _CONVERSIONS},
    **{(op, "dtype"): _new_dtype for op in _FACTORIES},
    **{(op, "input_sizes"): _gradient_size for op in ("select_backward", "slice_backward", "diagonal_backward")},
}  # fmt: skip
"""(op without namespace, argument) → rule that guesses the argument."""
VIEW_ARGUMENTS: dict[tuple[str, str], Rule] = {("MemoryFormat", "memory_format"): _contiguous_format}
"""(type, argument) → rule that guesses the argument."""
