"""Guesses for views, conversions and new tensors, from what is read next: what is made is mostly used at once.

Owns sizes and dimensions of views, element types and memory formats that are recorded without their values. Where no
call nearby has a size that the view could have, the usual one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess import copies
from opreplay.replay.resolve.guess.inside import (
    Composite,
    allocated_meta,
    composite_of,
    filters,
    indexing,
    literal,
    metas_of,
    own_meta,
    reduced_view,
    written_over,
)
from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.results import REDUCTIONS
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Known,
    Rule,
    Shape,
    names,
    recorded_shape,
    tensor,
    value,
)
from opreplay.traces.model import OpSignature, TensorMeta

SOON = 4
"""Calls in which what a conversion or a factory makes is looked for."""
TO_THE_END = 2**63 - 1
_WRITERS = names(
    "aten::copy_ aten::fill_ aten::zero_ aten::normal_ aten::uniform_ aten::random_ aten::bernoulli_ aten::exponential_"
)
_NO_READERS = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"})


def _read_next(context: Context, count: int = 12) -> Iterator[tuple[TensorMeta, str]]:
    """Tensors that the next calls are given, and the name of the call."""
    for call in context.relatives().following[:count]:
        if call.name in _NO_READERS:
            continue
        yield from ((meta, call.name) for meta in metas_of(call))


def _own(known: Known) -> Shape | None:
    meta = own_meta(known)
    return None if meta is None else meta.shape


def _why(read: tuple[Shape, str]) -> str:
    return f"{read[1]} reads {list(read[0])} next"


def _strided_in_place(meta: TensorMeta, composite: Composite) -> Guess:
    """New memory is given the strides of the result; that of a Fourier transform its batch dimensions."""
    source = first_tensor_of(composite.call)
    if composite.call.name.startswith("aten::_fft_") and source is not None and len(source.shape) >= len(meta.shape):
        batch = source.shape[: len(source.shape) - len(meta.shape) + 1]
        if math.prod(batch) == math.prod(meta.shape[:1]):
            return Guess(value=(*batch, *meta.shape[1:]), why=f"as {composite.call.name} does it")
    return Guess(value=meta.shape, why="as it is")


def _strided(which: str) -> Rule:
    """Size or strides of a view that a composite makes of what it was given."""

    def rule(known: Known, context: Context) -> Guess | None:
        meta = own_meta(known)
        if meta is None:
            return None
        if which == "stride":
            size = value(known, "size")
            return _strides(meta, size) if isinstance(size, tuple) else None
        return _strided_inside(meta, context) or Guess(value=meta.shape, why="as it is")

    return rule


def _strided_inside(meta: TensorMeta, context: Context) -> Guess | None:
    """The view that a composite makes, by what it was given."""
    composite, source_shape = composite_of(context.relatives()), meta.shape
    if composite is None:
        return None
    why = f"as {composite.call.name} does it"
    if (indices := indexing(composite, meta)) is not None and source_shape == recorded_shape(composite.call):
        return Guess(value=indices[1], why=why)
    reduces = composite.call.name.partition("::")[2] in REDUCTIONS
    shape = (
        filters(composite, source_shape)
        or written_over(composite, source_shape)
        or (reduced_view(composite, source_shape) if reduces else None)
    )
    if shape is not None:
        return Guess(value=shape, why=why)
    if context.relatives().name == "aten::as_strided_":
        return _strided_in_place(meta, composite)
    read = ((m.shape, c.name) for c in composite.after for m in metas_of(c) if m.dtype == meta.dtype)
    for shape, reader in read:  # with more dimensions, in which it is repeated, or of size 1
        longer = len(shape) > len(source_shape)
        if longer and (
            shape[: len(source_shape)] == source_shape
            or [n for n in shape if n != 1] == [n for n in source_shape if n != 1]
        ):
            return Guess(value=shape, why=_why((shape, reader)))
    return None


def _strides(meta: TensorMeta, size: Shape) -> Guess:
    """Those of a view of this size, never beyond the memory."""
    source_shape, more = meta.shape, len(size) - len(meta.shape)
    mine = meta.strides if meta.strides is not None else _contiguous(source_shape)
    if more >= 0 and size[: len(source_shape)] == source_shape:
        return Guess(value=(*mine, *(0,) * more), why="expanded" if more else "the strides of the first tensor")
    if more >= 0 and all(n in (m, 1) for n, m in zip(source_shape, size[more:], strict=True)):
        steps = (step if n == m else 0 for n, m, step in zip(source_shape, size[more:], mine, strict=True))
        return Guess(value=(*(0,) * more, *steps), why="expanded")
    if not more and all(n <= m for n, m in zip(size, source_shape, strict=True)):
        return Guess(value=mine, why="a part of the first tensor")
    fits = math.prod(size) <= math.prod(source_shape)
    return Guess(value=_contiguous(size) if fits else (0,) * len(size), why="contiguous" if fits else "expanded")


def _contiguous(shape: Shape) -> Shape:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return tuple(strides)


def _view_size(known: Known, context: Context) -> Guess | None:
    shape, parent = _own(known), context.relatives().parent
    if shape is not None and parent is not None and parent.name == "aten::flatten":
        return Guess(value=(math.prod(shape),), why="flattened as a whole")
    return None if shape is None else Guess(value=shape, why="as it is")


def _swapped(which: int) -> Rule:
    """One of the two dimensions that a transposition swaps."""

    def rule(known: Known, context: Context) -> Guess | None:
        shape, parent = _own(known), context.relatives().parent
        if shape is None:
            return None
        if len(shape) < 2:
            return Guess(value=0, why="the only dimension")
        inside_attention = parent is not None and parent.name.startswith("aten::_scaled_dot_product_flash_attention")
        if len(shape) == 4 and (parent is None or inside_attention):  # what is read at once has the last two swapped
            return Guess(value=1 + which, why="heads before the sequence, the usual order of attention")
        return Guess(value=len(shape) - 2 + which, why="the last two dimensions")

    return rule


def _reversed(known: Known, context: Context) -> Guess | None:
    shape = _own(known)
    return None if shape is None else Guess(value=tuple(reversed(range(len(shape)))), why="all dimensions reversed")


def _squeezed_dim(known: Known, context: Context) -> Guess | None:
    shape = _own(known)
    ones = [d for d, n in enumerate(shape or ()) if n == 1]
    return Guess(value=ones[-1] if ones else -1, why="the last dimension of size 1") if shape else None


def _sliced(which: str) -> Rule:
    """Dimension, beginning or end of a slice that nothing tells: all of dimension 0."""

    def rule(known: Known, context: Context) -> Guess | None:
        shape, dim = _own(known), value(known, "dim")
        if not shape:
            return None
        at = dim if isinstance(dim, int) and -len(shape) <= dim < len(shape) else 0
        return Guess(value={"end": TO_THE_END, "length": shape[at]}.get(which, 0), why="all of the dimension")

    return rule


def _last(known: Known, context: Context) -> Guess | None:
    return Guess(value=-1, why="the last dimension")


def _unflattened_sizes(known: Known, context: Context) -> Guess | None:
    shape, dim = _own(known), value(known, "dim")
    if not shape or not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return None
    return Guess(value=(shape[dim],), why="as it is")


def _diagonal_of(which: str) -> Rule:
    """Dimensions or offset of a diagonal: of the last two of a batch; what writes to it tells its length."""

    def rule(known: Known, context: Context) -> Guess | None:
        shape, around = _own(known), context.relatives()
        if shape is None or len(shape) < 2:
            return None
        if which != "offset":
            dim = len(shape) - 2 + (which == "dim2")
            return Guess(value=dim, why="the diagonal of the last two dimensions")
        inside = around.parent is not None and around.parent.name == "aten::diag_embed"
        written = recorded_shape(around.following[0]) if inside and around.following else None
        if written is None or written[:-1] != shape[:-2]:
            return None
        return Guess(value=shape[-1] - written[-1], why=_why((written, around.following[0].name)))

    return rule


def _unfolded(which: str) -> Rule:
    """Dimension, size or step of windows: what is read next has their number in its place, and their size behind."""

    def rule(known: Known, context: Context) -> Guess | None:
        meta = own_meta(known)
        if meta is None:
            return None
        shape, window = meta.shape, {}
        if (windows := copies.window(shape, context.relatives())) is not None:
            return Guess(value=windows[("dimension", "size", "step").index(which)], why=copies.WHY_REPEATED)
        for read, name in _read_next(context):
            size = read.shape[-1] if read.shape else 0
            if len(read.shape) != len(shape) + 1 or read.dtype != meta.dtype:
                continue
            for d, n in enumerate(shape):
                count = read.shape[d]
                if (*shape[:d], count, *shape[d + 1 :], size) != read.shape or not 0 < size <= n or count < 1:
                    continue
                step = (n - size) // (count - 1) if count > 1 else size
                if step and (n - size) // step + 1 == count:
                    window = {"dimension": d, "size": size, "step": step, "why": _why((read.shape, name))}
                    return Guess(value=window[which], why=str(window["why"]))
        if which == "size":
            return Guess(value=max(1, shape[-1] // 2), why="half of the last dimension") if shape else None
        return Guess(value=-1 if which == "dimension" else 1, why="along the last dimension, one by one")

    return rule


def _calls_inside(context: Context) -> tuple[OpSignature, ...]:
    around = context.relatives()
    return (*around.children, *around.inner)


def _converted(known: Known, context: Context) -> Guess | None:
    """The element type that a conversion writes to, or its own where it writes nothing; else what is read next."""
    source = tensor(known, "self") or tensor(known, "input")
    if source is None:
        return None
    calls = _calls_inside(context)
    written = next((m for call in calls if call.name == "aten::copy_" and (m := first_tensor_of(call))), None)
    if written is not None and written.dtype:
        return Guess(value=f"torch.{written.dtype}", why=f"{written.dtype}: aten::copy_ inside writes to it")
    if context.relatives().parent is None or calls:
        read = next(
            (m for m, _ in _read_next(context, SOON) if m.shape == source.shape and m.dtype != source.dtype), None
        )
        if calls and read is not None and read.dtype:
            return Guess(value=f"torch.{read.dtype}", why=f"{read.dtype}: read next")
    return Guess(value=f"torch.{source.dtype}", why=f"{source.dtype}: as it is, nothing is written inside")


def _made(known: Known, context: Context) -> Guess | None:
    """The element type of a new tensor: that of what is written into it, or read next."""
    around = context.relatives()
    allocated = literal(around) or allocated_meta(around)
    if allocated is not None and allocated.dtype:
        return Guess(value=f"torch.{allocated.dtype}", why=f"{allocated.dtype}: what is given it next")
    if around.name == "aten::scalar_tensor":
        scalar = next((meta for meta, _ in _read_next(context, 2) if meta.shape == () and meta.dtype), None)
        if scalar is not None:
            return Guess(value=f"torch.{scalar.dtype}", why=f"{scalar.dtype}: read next")
    for call in (*around.children, *around.inner, *around.following[:2]):
        meta = first_tensor_of(call) if call.name in _WRITERS else None
        if meta is not None and meta.dtype:
            return Guess(value=f"torch.{meta.dtype}", why=f"{meta.dtype}: what {call.name} writes to")
    size = value(known, "size")
    for meta, name in _read_next(context, SOON):
        if meta.dtype and (not isinstance(size, tuple) or meta.shape == size) and meta.shape:
            return Guess(value=f"torch.{meta.dtype}", why=f"{meta.dtype}: {name} reads it next")
    return None


def _contiguous_format(known: Known, context: Context) -> Guess | None:
    around = context.relatives()
    names = [around.name, *(call.name for call in around.ancestors)]
    like_count = next((i for i, name in enumerate(names) if not name.endswith("_like")), len(names))
    caller = around.ancestors[like_count - 1] if 0 < like_count < len(names) else None
    format_kinds = [arg.kind for arg in recorded_args(caller)[1:2]] if caller is not None and like_count else []
    plain = caller is None or "::" not in caller.name or (caller.name == "aten::clone" and format_kinds == ["absent"])
    if like_count and plain:
        return Guess(value="torch.preserve_format", why="the format of the first tensor, the default of such ops")
    return Guess(value="torch.contiguous_format", why="contiguous format, the usual one that is given")


def _gradient_size(known: Known, context: Context) -> Guess | None:
    """The backward of a view writes into zeros of the input's size, of which it takes the same view."""
    for call in _calls_inside(context):
        if call.name.partition("::")[2] in ("select", "slice", "narrow", "diagonal", "as_strided", "copy_"):
            meta = first_tensor_of(call)
            if meta is not None and call.name != "aten::copy_":
                return Guess(value=meta.shape, why=f"what {call.name} inside is taken of")
    return None


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
    **{(op, name): _strided(name) for op in _STRIDED for name in ("size", "stride")},
    ("permute", "dims"): _reversed,
    **{(op, f"dim{at}"): _swapped(at) for op in ("transpose", "transpose_", "swapaxes") for at in (0, 1)},
    **{(op, "dim"): _last for op in ("unsqueeze", "unsqueeze_")},
    **{(op, "dim"): _squeezed_dim for op in ("squeeze", "squeeze_")},
    **{("diagonal", name): _diagonal_of(name) for name in ("dim1", "dim2", "offset")},
    **{("unfold", name): _unfolded(name) for name in ("dimension", "size", "step")},
    ("unflatten", "sizes"): _unflattened_sizes,
    **{("slice", name): _sliced(name) for name in ("dim", "start", "end")},
    **{("narrow", name): _sliced(name) for name in ("dim", "start", "length")},
    **{(op, "dtype"): _converted for op in _CONVERSIONS},
    **{(op, "dtype"): _made for op in _FACTORIES},
    **{(op, "input_sizes"): _gradient_size for op in ("select_backward", "slice_backward", "diagonal_backward")},
}  # fmt: skip
"""(op without namespace, argument) → rule."""
VIEW_ARGUMENTS: dict[tuple[str, str], Rule] = {("MemoryFormat", "memory_format"): _contiguous_format}
"""(type, argument) → rule."""
