"""Guesses for views, conversions and new tensors, from what is read next: what is made is mostly used at once.

Owns sizes and dimensions of views, element types and memory formats that are recorded without their values. Where no
call nearby has a size that the view could have, the usual one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Rule, Shape, tensor, value
from opreplay.traces.model import OpSignature, TensorMeta

NEXT_READERS = 12
SOON = 4
"""Calls in which the result of a view is looked for that may as well be as large as what it is taken of."""
TO_THE_END = 2**63 - 1
Fits = Callable[[Shape], bool]
_WRITERS = (
    "aten::copy_",
    "aten::fill_",
    "aten::zero_",
    "aten::normal_",
    "aten::uniform_",
    "aten::random_",
    "aten::bernoulli_",
    "aten::exponential_",
)
_NO_READERS = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"})


def read_next(context: Context, count: int = NEXT_READERS) -> Iterator[tuple[TensorMeta, str]]:
    """Tensors that the next calls are given, and the name of the call."""
    for call in context.relatives().following[:count]:
        if call.name in _NO_READERS:
            continue
        for arg in recorded_args(call):
            for meta in (arg.tensor, *(arg.tensors or ())):
                if meta is not None:
                    yield meta, call.name


def _first(context: Context, fits: Fits, count: int = NEXT_READERS) -> tuple[Shape, str] | None:
    return next(((meta.shape, name) for meta, name in read_next(context, count) if fits(meta.shape)), None)


def _own(known: Known) -> Shape | None:
    meta = tensor(known, "self") or tensor(known, "input")
    return None if meta is None else meta.shape


def _why(found: tuple[Shape, str]) -> str:
    return f"{found[1]} reads {list(found[0])} next"


def _as_many(own: Shape) -> Fits:
    return lambda shape: shape != own and math.prod(shape) == math.prod(own)


def _permuted(own: Shape) -> Fits:
    return lambda shape: shape != own and sorted(shape) == sorted(own)


def _expanded(own: Shape) -> Fits:
    def fits(shape: Shape) -> bool:
        if len(shape) < len(own) or shape == own:
            return False
        return all(n in (m, 1) for n, m in zip(reversed(own), reversed(shape), strict=False))

    return fits


def _cut(own: Shape) -> Fits:
    """Smaller along one dimension."""
    return lambda shape: (
        len(shape) == len(own)
        and sum(n != m for n, m in zip(shape, own, strict=True)) == 1
        and all(n <= m for n, m in zip(shape, own, strict=True))
    )


def _without_one(own: Shape) -> Fits:
    return lambda shape: any(shape == (*own[:d], *own[d + 1 :]) for d in range(len(own)))


def _with_one(own: Shape) -> Fits:
    return lambda shape: any(shape == (*own[:d], 1, *own[d:]) for d in range(len(own) + 1))


def _squeezed(own: Shape) -> Fits:
    return lambda shape: shape != own and tuple(n for n in shape if n != 1) == tuple(n for n in own if n != 1)


def _view_size(known: Known, context: Context) -> Guess | None:
    own = _own(known)
    if own is None:
        return None
    found = _first(context, _as_many(own))
    return Guess(value=found[0], why=_why(found)) if found is not None else Guess(value=own, why="as it is")


def _expand_size(known: Known, context: Context) -> Guess | None:
    own = _own(known)
    if own is None:
        return None
    found = _first(context, _expanded(own))
    return Guess(value=found[0], why=_why(found)) if found is not None else Guess(value=own, why="as it is")


_PARENTS: dict[str, Callable[[Shape], Fits]] = {
    **dict.fromkeys(("transpose", "transpose_", "t", "permute", "numpy_T", "mT", "swapaxes", "movedim"), _permuted),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expanded),
    **dict.fromkeys(("slice", "narrow", "split", "chunk", "split_with_sizes"), _cut),
    **dict.fromkeys(("select", "unbind"), _without_one),
    **dict.fromkeys(("unsqueeze", "unsqueeze_"), _with_one),
    **dict.fromkeys(("squeeze", "squeeze_"), _squeezed),
    **dict.fromkeys(("view", "reshape", "_reshape_alias", "flatten"), _as_many),
}


def _strided_size(known: Known, context: Context) -> Guess | None:
    """What the view that is made inside another call gives, by the kind of that call."""
    own, parent = _own(known), context.relatives().parent
    if own is None:
        return None
    kind = _PARENTS.get(parent.name.partition("::")[2]) if parent is not None else None
    found = _first(context, kind(own)) if kind is not None else None
    if found is not None:
        return Guess(value=found[0], why=_why(found))
    if kind is _permuted and len(own) >= 2:
        return Guess(value=(*own[:-2], own[-1], own[-2]), why="the last two dimensions swapped")
    if kind is _without_one and own:
        return Guess(value=own[1:], why="without the first dimension")
    return Guess(value=own, why="as it is")


def _strides_of_view(known: Known, context: Context) -> Guess | None:
    """Those of a view of this size of contiguous memory, never beyond it."""
    own, size = _own(known), value(known, "size")
    if own is None or not isinstance(size, tuple):
        return None
    meta = tensor(known, "self")
    mine = meta.strides if meta is not None and meta.strides is not None else _contiguous(own)
    if size == own:
        return Guess(value=mine, why="the strides of the first tensor")
    if math.prod(size) == math.prod(own) and sorted(size) == sorted(own) and len(size) == len(own):
        free, strides = list(range(len(own))), []
        for n in size:
            at = next(d for d in free if own[d] == n)
            free.remove(at)
            strides.append(mine[at])
        return Guess(value=tuple(strides), why="a permutation")
    if _expanded(own)(size):
        more = len(size) - len(own)
        kept = [step if n == m else 0 for n, m, step in zip(own, size[more:], mine, strict=True)]
        return Guess(value=(*(0,) * more, *kept), why="expanded")
    if len(size) == len(own) and all(n <= m for n, m in zip(size, own, strict=True)):
        return Guess(value=mine, why="a part of the first tensor")
    for d in range(len(own)):
        if size == (*own[:d], *own[d + 1 :]):
            return Guess(value=(*mine[:d], *mine[d + 1 :]), why=f"without dimension {d}")
    fits = math.prod(size) <= math.prod(own)
    return Guess(value=_contiguous(size) if fits else (0,) * len(size), why="contiguous" if fits else "expanded")


def _contiguous(shape: Shape) -> Shape:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return tuple(strides)


def _permutation(known: Known, context: Context) -> Guess | None:
    own = _own(known)
    if own is None:
        return None
    found = _first(context, _permuted(own))
    if found is None:
        return Guess(value=tuple(reversed(range(len(own)))), why="all dimensions reversed")
    free, dims = list(range(len(own))), []
    for n in found[0]:
        at = next(d for d in free if own[d] == n)
        free.remove(at)
        dims.append(at)
    return Guess(value=tuple(dims), why=_why(found))


def _swapped(which: int) -> Rule:
    """One of the two dimensions that a transposition swaps: the last two where nothing tells."""

    def rule(known: Known, context: Context) -> Guess | None:
        own, parent = _own(known), context.relatives().parent
        if own is None:
            return None
        if len(own) < 2:
            return Guess(value=0, why="the only dimension")
        if parent is None or parent.name not in ("aten::t", "aten::t_", "aten::mT"):
            for meta, name in read_next(context):
                differ = [d for d, (n, m) in enumerate(zip(meta.shape, own, strict=False)) if n != m]
                if len(meta.shape) == len(own) and len(differ) == 2 and sorted(meta.shape) == sorted(own):
                    return Guess(value=differ[which], why=_why((meta.shape, name)))
        return Guess(value=len(own) - 2 + which, why="the last two dimensions")

    return rule


def _added_dim(known: Known, context: Context) -> Guess | None:
    own = _own(known)
    if own is None:
        return None
    found = _first(context, _with_one(own))
    if found is None:
        return Guess(value=-1, why="the last dimension")
    dim = next(d for d in range(len(own) + 1) if found[0] == (*own[:d], 1, *own[d:]))
    return Guess(value=dim, why=_why(found))


def _removed_dim(known: Known, context: Context) -> Guess | None:
    """Of a select or unbind."""
    own = _own(known)
    if not own:
        return None
    found = _first(context, _without_one(own))
    if found is None:
        return Guess(value=0, why="the first dimension")
    return Guess(value=next(d for d in range(len(own)) if found[0] == (*own[:d], *own[d + 1 :])), why=_why(found))


def _squeezed_dim(known: Known, context: Context) -> Guess | None:
    own = _own(known)
    ones = [d for d, n in enumerate(own or ()) if n == 1]
    if own is None or not ones:
        return Guess(value=-1, why="the last dimension") if own else None
    for meta, name in read_next(context):
        fitting = [d for d in ones if meta.shape == (*own[:d], *own[d + 1 :])]
        if fitting:
            return Guess(value=fitting[-1], why=_why((meta.shape, name)))
    return Guess(value=ones[-1], why="the last dimension of size 1")


def _slice(which: str) -> Rule:
    """Dimension, beginning or end of a slice: along the dimension in which what is read next is smaller."""

    def rule(known: Known, context: Context) -> Guess | None:
        own, dim = _own(known), value(known, "dim")
        if not own:
            return None
        found = None
        for meta, name in read_next(context, SOON):
            if _cut(own)(meta.shape):
                found = meta.shape, name
                break
            if meta.shape == own:
                break
        at = next((d for d, (n, m) in enumerate(zip(found[0], own, strict=True)) if n != m), 0) if found else 0
        at = dim if isinstance(dim, int) and -len(own) <= dim < len(own) else at
        if which == "dim":
            return Guess(value=at, why=_why(found) if found else "dimension 0")
        if which == "start":
            return Guess(value=0, why="from the beginning")
        length = found[0][at] if found else own[at]
        if which == "end" and found is None:
            return Guess(value=TO_THE_END, why="to the end")
        return Guess(value=length, why=_why(found) if found else "all of the dimension")

    return rule


def _calls_inside(context: Context) -> tuple[OpSignature, ...]:
    around = context.relatives()
    return (*around.children, *around.inner)


def _converted(known: Known, context: Context) -> Guess | None:
    """The element type that a conversion writes to, or its own where it writes nothing; else what is read next."""
    own = tensor(known, "self") or tensor(known, "input")
    if own is None:
        return None
    calls = _calls_inside(context)
    written = next((m for call in calls if call.name == "aten::copy_" and (m := first_tensor_of(call))), None)
    if written is not None and written.dtype:
        return Guess(value=f"torch.{written.dtype}", why=f"{written.dtype}: aten::copy_ inside writes to it")
    if context.relatives().parent is None or calls:
        read = next((m for m, _ in read_next(context, SOON) if m.shape == own.shape and m.dtype != own.dtype), None)
        if calls and read is not None and read.dtype:
            return Guess(value=f"torch.{read.dtype}", why=f"{read.dtype}: read next")
    return Guess(value=f"torch.{own.dtype}", why=f"{own.dtype}: as it is, nothing is written inside")


def _made(known: Known, context: Context) -> Guess | None:
    """The element type of a new tensor: that of what is written into it, or read next."""
    around = context.relatives()
    for call in (*around.children, *around.inner, *around.following[:2]):
        meta = first_tensor_of(call) if call.name in _WRITERS else None
        if meta is not None and meta.dtype:
            return Guess(value=f"torch.{meta.dtype}", why=f"{meta.dtype}: what {call.name} writes to")
    size = value(known, "size")
    for meta, name in read_next(context, SOON):
        if meta.dtype and (not isinstance(size, tuple) or meta.shape == size) and meta.shape:
            return Guess(value=f"torch.{meta.dtype}", why=f"{meta.dtype}: {name} reads it next")
    return None


def _contiguous_format(known: Known, context: Context) -> Guess | None:
    return Guess(value="torch.contiguous_format", why="contiguous format, the usual one that is given")


def _gradient_size(known: Known, context: Context) -> Guess | None:
    """The backward of a view writes into zeros of the input's size, of which it takes the same view."""
    for call in _calls_inside(context):
        if call.name.partition("::")[2] in ("select", "slice", "narrow", "diagonal", "as_strided", "copy_"):
            meta = first_tensor_of(call)
            if meta is not None and call.name != "aten::copy_":
                return Guess(value=meta.shape, why=f"what {call.name} inside is taken of")
    return None


def _gradient_dim(known: Known, context: Context) -> Guess | None:
    sizes, grad = value(known, "input_sizes"), tensor(known, "grad_output") or tensor(known, "grad")
    if not isinstance(sizes, tuple) or grad is None:
        return None
    whole = tuple(int(n) for n in sizes)
    for d in range(len(whole)):
        if grad.shape == (*whole[:d], *whole[d + 1 :]):
            return Guess(value=d, why="where the sizes differ")
        if len(grad.shape) == len(whole) and grad.shape[d] != whole[d]:
            return Guess(value=d, why="where the sizes differ")
    return None


def _gradient_end(known: Known, context: Context) -> Guess | None:
    dim, grad = value(known, "dim"), tensor(known, "grad_output") or tensor(known, "grad")
    sizes = value(known, "input_sizes")
    if not isinstance(dim, int) or grad is None or not isinstance(sizes, tuple) or len(grad.shape) != len(sizes):
        return None
    if not -len(sizes) <= dim < len(sizes):
        return None
    length = grad.shape[dim]
    if length == sizes[dim]:
        return Guess(value=TO_THE_END, why="to the end")
    return Guess(value=length, why="the size of the gradient")


_CONVERSIONS = ("to", "_to_copy", "type_as", "_autocast_to_reduced_precision", "_autocast_to_full_precision")
_FACTORIES = (
    "empty",
    "empty_strided",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "arange",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "scalar_tensor",
    "new_empty_strided",
    "linspace",
    "eye",
    "randperm",
    "tril_indices",
    "triu_indices",
    "one_hot",
)

VIEW_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "size"): _view_size for op in ("view", "_unsafe_view", "_reshape_alias")},
    ("reshape", "shape"): _view_size,
    ("expand", "size"): _expand_size, ("broadcast_to", "size"): _expand_size,
    **{(op, "size"): _strided_size for op in ("as_strided", "as_strided_")},
    **{(op, "stride"): _strides_of_view for op in ("as_strided", "as_strided_", "_reshape_alias")},
    ("permute", "dims"): _permutation,
    **{(op, f"dim{at}"): _swapped(at) for op in ("transpose", "transpose_", "swapaxes") for at in (0, 1)},
    **{(op, "dim"): _added_dim for op in ("unsqueeze", "unsqueeze_")},
    **{(op, "dim"): _squeezed_dim for op in ("squeeze", "squeeze_")},
    **{(op, "dim"): _removed_dim for op in ("select", "unbind")},
    **{("slice", name): _slice(name) for name in ("dim", "start", "end")},
    **{("narrow", name): _slice(name) for name in ("dim", "start", "length")},
    **{(op, "dtype"): _converted for op in _CONVERSIONS},
    **{(op, "dtype"): _made for op in _FACTORIES},
    **{(op, "input_sizes"): _gradient_size for op in ("select_backward", "slice_backward", "diagonal_backward")},
    **{(op, "dim"): _gradient_dim for op in ("select_backward", "slice_backward")},
    ("slice_backward", "end"): _gradient_end,
}  # fmt: skip
"""(op without namespace, argument) → rule."""
VIEW_ARGUMENTS: dict[tuple[str, str], Rule] = {("MemoryFormat", "memory_format"): _contiguous_format}
"""(type, argument) → rule."""
