"""Guesses for views, conversions and new tensors, from what is read next: what is made is mostly used at once.

Owns sizes and dimensions of views, element types and memory formats that are recorded without their values. Where no
call nearby has a size that the view could have, the usual one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess import copies
from opreplay.replay.resolve.guess.inside import (
    VIEWS,
    Composite,
    allocated_meta,
    composite_of,
    filters,
    indexing,
    joined_part,
    literal,
    metas_of,
    multiplied,
    operands,
    own_meta,
    reduced_view,
    stacked,
    statistics,
    transformed,
    written_over,
)
from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.results import REDUCTIONS
from opreplay.replay.resolve.guess.values import (
    NOT_INSIDE,
    Context,
    Guess,
    Known,
    Relatives,
    Rule,
    Shape,
    recorded_shape,
    tensor,
    value,
)
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


def _first(context: Context, own: TensorMeta, fits: Fits, count: int = NEXT_READERS) -> tuple[Shape, str] | None:
    """What is read next that a view of `own` can be: of a size that fits, and of its element type. The node that goes
    back through the call tells its size for sure, so that one of the same size means that nothing changes."""
    around = context.relatives()
    node = first_tensor_of(around.following[0]) if around.levels[:1] == (NOT_INSIDE,) else None
    if node is not None and node.shape == own.shape:
        return own.shape, around.following[0].name
    return next(
        (
            (meta.shape, name)
            for meta, name in read_next(context, count)
            if fits(meta.shape) and (meta.dtype == own.dtype or not meta.dtype or not own.dtype)
        ),
        None,
    )


def _own(known: Known) -> Shape | None:
    meta = own_meta(known)
    return None if meta is None else meta.shape


def _why(found: tuple[Shape, str]) -> str:
    return f"{found[1]} reads {list(found[0])} next"


def _widened(own: Shape) -> Fits:
    """With more dimensions behind, in which it is repeated."""
    return lambda shape: len(shape) > len(own) and shape[: len(own)] == own


def _with_ones(own: Shape) -> Fits:
    return lambda shape: len(shape) > len(own) and tuple(n for n in shape if n != 1) == tuple(n for n in own if n != 1)


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
    if 1 not in own:
        return lambda shape: False
    return lambda shape: len(shape) < len(own) and tuple(n for n in shape if n != 1) == tuple(n for n in own if n != 1)


def _diagonal(own: Shape) -> Fits:
    """With one dimension in the place of two, at the end."""
    return lambda shape: (
        len(shape) == len(own) - 1
        and any(
            shape[:-1] == (*own[:a], *own[a + 1 : b], *own[b + 1 :]) and shape[-1] <= min(own[a], own[b])
            for b in range(len(own))
            for a in range(b)
        )
    )


def _view_size(known: Known, context: Context) -> Guess | None:
    own, made = own_meta(known), composite_of(context.relatives())
    if own is None:
        return None
    if made is not None:
        if (found := multiplied(made, own, _as_many(own.shape))) is not None:
            return Guess(value=found[0], why=f"{found[1]} reads {list(found[0])} inside {made.call.name}")
        shaped = transformed(made, own) or statistics(made, own.shape) or filters(made, own.shape)
        shaped = shaped or stacked(made, own.shape)
        if shaped is None and (indices := indexing(made, own)) is not None:
            shaped = indices[0]
        if shaped is not None and math.prod(shaped) == math.prod(own.shape):
            return Guess(value=shaped, why=f"as {made.call.name} does it")
    if (forward := _before(context, lambda shape: math.prod(shape) == math.prod(own.shape))) is not None:
        return forward
    if own.shape[:1] == (1,) and _summed(context):
        ones = next((d for d, n in enumerate(own.shape) if n != 1), len(own.shape))
        stripped = [own.shape[at:] for at in range(1, ones + 1)]
        found = _first(context, own, lambda shape: shape in stripped)
        size = stripped[-1] if found is None else found[0]
        return Guess(value=size, why="the sum of a gradient loses the dimensions in front")
    found = _first(context, own, _as_many(own.shape))
    parent = context.relatives().parent
    if found is None and parent is not None and parent.name == "aten::flatten":
        return Guess(value=(math.prod(own.shape),), why="flattened as a whole")
    return Guess(value=found[0], why=_why(found)) if found is not None else Guess(value=own.shape, why="as it is")


_VIEWED_BACK = "View UnsafeView ReshapeAlias Expand Sum Mean T Transpose Permute Squeeze Unsqueeze Alias"
_REVERSED = frozenset(_VIEWED_BACK.split())
"""Ops whose backward makes what they were given of their result, by a view or after one."""


def _before(context: Context, fits: Fits) -> Guess | None:
    """What the forward call was given, of whose node this is a part: a view back gives its size."""
    around = context.relatives()
    forward = None if around.forward is None else recorded_shape(around.forward)
    node = next((call.name for call in around.ancestors if "::" not in call.name), "")
    if around.forward is None or forward is None or not fits(forward):
        return None
    if node.rstrip("0123456789").removesuffix("Backward") not in _REVERSED:
        return None
    return Guess(value=forward, why=f"{around.forward.name} was given {list(forward)} forward")


def _summed(context: Context) -> bool:
    """Whether autograd sums a gradient to the size of what was expanded forward."""
    parent = context.relatives().parent
    return parent is not None and parent.name.startswith("autograd::engine")


def _expand_size(known: Known, context: Context) -> Guess | None:
    own, made = own_meta(known), composite_of(context.relatives())
    if own is None:
        return None
    if (repeated := copies.expanded(context.relatives())) is not None and made is not None and not made.number:
        return Guess(value=repeated, why=copies.WHY_REPEATED)
    if made is not None and (found := multiplied(made, own, lambda shape: False)) is not None:
        return Guess(value=found[0], why=f"{found[1]} reads {list(found[0])} inside {made.call.name}")
    if made is not None and (common := operands(made, own.shape)) is not None and _expanded(own.shape)(common):
        return Guess(value=common, why=f"the common size of what {made.call.name} is given")
    if (forward := _before(context, _expanded(own.shape))) is not None:
        return forward
    found = _first(context, own, _expanded(own.shape))
    return Guess(value=found[0], why=_why(found)) if found is not None else Guess(value=own.shape, why="as it is")


_PARENTS: dict[str, Callable[[Shape], Fits]] = {
    **dict.fromkeys(("transpose", "transpose_", "t", "permute", "numpy_T", "mT", "swapaxes", "movedim"), _permuted),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expanded),
    **dict.fromkeys(("slice", "narrow", "split", "chunk", "split_with_sizes"), _cut),
    **dict.fromkeys(("select", "unbind"), _without_one),
    **dict.fromkeys(("unsqueeze", "unsqueeze_"), _with_one),
    **dict.fromkeys(("squeeze", "squeeze_"), _squeezed),
    "diagonal": _diagonal,
    **dict.fromkeys(("view", "reshape", "_reshape_alias", "flatten"), _as_many),
}


def _strided_size(known: Known, context: Context) -> Guess | None:
    """What the view that is made inside another call gives, by the kind of that call."""
    meta, parent = own_meta(known), context.relatives().parent
    if meta is None:
        return None
    own = meta.shape
    kind = _PARENTS.get(parent.name.partition("::")[2]) if parent is not None else None
    if (told := _as_its_caller(meta, context) or _strided_inside(meta, kind, context)) is not None:
        return told
    if kind is not None and (forward := _before(context, kind(own))) is not None:
        return forward
    found = _first(context, meta, kind(own)) if kind is not None else None
    if found is not None:
        return Guess(value=found[0], why=_why(found))
    if kind is _permuted and len(own) >= 2:
        return Guess(value=(*own[:-2], own[-1], own[-2]), why="the last two dimensions swapped")
    if kind is _squeezed:
        return Guess(value=tuple(n for n in own if n != 1), why="without dimensions of size 1")
    if kind is _without_one and own:
        return Guess(value=own[1:], why="without the first dimension")
    return Guess(value=own, why="as it is")


def _strided_inside(meta: TensorMeta, kind: Callable[[Shape], Fits] | None, context: Context) -> Guess | None:
    """The view that a composite makes, by what it was given."""
    made, own = composite_of(context.relatives()), meta.shape
    if made is None:
        return None
    if kind is None:
        if (indices := indexing(made, meta)) is not None and own == recorded_shape(made.call):
            return Guess(value=indices[1], why=f"as {made.call.name} does it")
        if (rows := filters(made, own)) is not None:
            return Guess(value=rows, why=f"as {made.call.name} does it")
        if (source := written_over(made, own)) is not None:
            return Guess(value=source, why=f"the part that {made.call.name} writes to")
        if made.call.name.partition("::")[2] in REDUCTIONS and (shape := reduced_view(made, own)) is not None:
            return Guess(value=shape, why=f"the result of {made.call.name}, of size 1 where it is reduced")
        if context.relatives().name == "aten::as_strided_":
            return _strided_in_place(meta, made)
        fits = (_widened(own), _with_ones(own))
        read = ((m.shape, c.name) for c in made.after for m in metas_of(c) if m.dtype == meta.dtype)
        found = next((one for one in read if any(fit(one[0]) for fit in fits)), None)
        return None if found is None else Guess(value=found[0], why=_why(found))
    if kind is _expanded and (common := operands(made, own)) is not None and kind(own)(common):
        return Guess(value=common, why=f"the common size of what {made.call.name} is given")
    part = joined_part(made)
    if part is not None and kind is _cut and len(part) == len(own):
        return Guess(value=part, why=f"a part of what {made.call.name} joins")
    if (found := multiplied(made, meta, kind(own))) is not None:
        return Guess(value=found[0], why=f"{found[1]} reads {list(found[0])} inside {made.call.name}")
    return None


def _as_its_caller(meta: TensorMeta, context: Context) -> Guess | None:
    """The size that the view has which calls this one, from what is guessed for that view's own arguments."""
    around, own = context.relatives(), meta.shape
    if around.parent is None or around.above is None or recorded_shape(around.parent) != own or not own:
        return None
    known = {"self": ReplayArg(name="self", type="Tensor", tensors=(meta,))}
    caller = replace(context, relatives=lambda: around.above(0) if around.above is not None else around)
    name = around.parent.name.partition("::")[2]
    if name == "permute" and (dims := _permutation(known, caller)) is not None:
        return Guess(value=tuple(own[d] for d in dims.value), why=dims.why)
    if name == "unsqueeze" and (dim := _added_dim(known, caller)) is not None:
        at = dim.value % (len(own) + 1)
        return Guess(value=(*own[:at], 1, *own[at:]), why=dim.why)
    if name in ("select", "unbind") and (dim := _removed_dim(known, caller)) is not None:
        at = dim.value % len(own)
        return Guess(value=(*own[:at], *own[at + 1 :]), why=dim.why)
    if name in ("expand", "broadcast_to") and (size := _expand_size(known, caller)) is not None:
        return size
    if name == "unfold":
        return _windows(known, caller)
    if name == "transpose" and len(own) > 1:
        pair = [found.value % len(own) for at in (0, 1) if (found := _swapped(at)(known, caller)) is not None]
        if len(pair) == 2:
            size = list(own)
            size[pair[0]], size[pair[1]] = own[pair[1]], own[pair[0]]
            return Guess(value=tuple(size), why="as the two dimensions of the call are guessed")
    return None


def _windows(known: Known, context: Context) -> Guess | None:
    """The size of what an `unfold` gives."""
    own = _own(known) or ()
    dim, size, step = (_unfolded(which)(known, context) for which in ("dimension", "size", "step"))
    if dim is None or size is None or step is None:
        return None
    at = dim.value % max(1, len(own))
    return Guess(value=(*own[:at], (own[at] - size.value) // step.value + 1, *own[at + 1 :], size.value), why=dim.why)


def _strided_in_place(meta: TensorMeta, made: Composite) -> Guess:
    """New memory is given the strides of the result; that of a Fourier transform its batch dimensions."""
    source = first_tensor_of(made.call)
    if made.call.name.startswith("aten::_fft_") and source is not None and len(source.shape) >= len(meta.shape):
        batch = source.shape[: len(source.shape) - len(meta.shape) + 1]
        if math.prod(batch) == math.prod(meta.shape[:1]):
            return Guess(value=(*batch, *meta.shape[1:]), why=f"as {made.call.name} does it")
    return Guess(value=meta.shape, why="as it is")


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
    if _widened(own)(size):
        return Guess(value=(*mine, *(0,) * (len(size) - len(own))), why="expanded")
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
    meta = own_meta(known)
    if meta is None:
        return None
    own, made = meta.shape, composite_of(context.relatives())
    if (order := copies.interleaved(own, context.relatives())) is not None:
        return Guess(value=order, why=copies.WHY_REPEATED)
    found = None if made is None else multiplied(made, meta, _permuted(own))
    if made is not None and found is None and made.after and recorded_shape(made.after[0]) == own:
        found = own, made.after[0].name
    found = found or _first(context, meta, _permuted(own))
    if found is None:
        return Guess(value=tuple(reversed(range(len(own)))), why="all dimensions reversed")
    if _is_second_operand(context.relatives()):
        return Guess(value=_order(own, found[0], False, summed=True), why=_why(found))
    apart = any(name == "aten::unbind" and meta.shape == found[0] for meta, name in read_next(context))
    if (back := _permuted_back(own, found[0], context)) is not None:
        return Guess(value=back, why="the forward permutation, turned round")
    return Guess(value=_order(own, found[0], apart), why=_why(found))


def _is_second_operand(around: Relatives) -> bool:
    """Whether a permutation is that of the second operand of a product: torch permutes both, then the result
    (ATen/native/Linear.cpp, sumproduct_pair)."""
    if around.parent is None or not around.places:
        return False
    args = recorded_args(around.parent)
    before = {"aten::einsum": len(args[1].tensors or ()) if len(args) > 1 else 0, "aten::_trilinear": 0}
    operands = before.get(around.parent.name)
    return operands is not None and around.places[0] >= operands and (around.places[0] - operands) % 3 == 1


def _order(own: Shape, result: Shape, apart: bool, *, summed: bool = False) -> tuple[int, ...]:
    """The dimensions of `own` in the order of `result`: of those of one size the first. What is taken apart next, with
    `apart`, did not come first before; of an operand with what is `summed` in front, the last ones come first."""
    free: list[int] = list(range(len(own)))
    dims: list[int] = []
    for n in result:
        fitting = [d for d in free if own[d] == n]
        at = fitting[1] if apart and not dims and fitting[0] == 0 and len(fitting) > 1 else fitting[0]
        if summed and n != 1 and (at != len(dims) or dims != list(range(len(dims)))):
            at = fitting[-1]
        free.remove(at)
        dims.append(at)
    return tuple(dims)


def _permuted_back(own: Shape, result: Shape, context: Context) -> tuple[int, ...] | None:
    """The inverse of what the forward `permute` does, guessed as that one is."""
    around = context.relatives()
    if around.forward is None or around.forward.name != "aten::permute" or around.before is None:
        return None
    if recorded_shape(around.forward) != result:
        return None
    known = {"self": ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=result, dtype=""),))}
    ahead = _permutation(known, replace(context, relatives=around.before))
    if ahead is None or tuple(result[d] for d in ahead.value) != own:
        return None
    return tuple(sorted(range(len(own)), key=lambda at: ahead.value[at]))


def _swapped(which: int) -> Rule:
    """One of the two dimensions that a transposition swaps: the last two where nothing tells."""

    def rule(known: Known, context: Context) -> Guess | None:
        own, parent = _own(known), context.relatives().parent
        if own is None:
            return None
        if len(own) < 2:
            return Guess(value=0, why="the only dimension")
        if parent is not None and parent.name == "aten::_scaled_dot_product_flash_attention_for_cpu" and len(own) == 4:
            return Guess(value=1 + which, why="heads before the sequence, as its kernel wants them")
        if parent is None or parent.name not in ("aten::t", "aten::t_", "aten::mT"):
            for meta, name in read_next(context):
                differ = [d for d, (n, m) in enumerate(zip(meta.shape, own, strict=False)) if n != m]
                if len(meta.shape) == len(own) and len(differ) == 2 and sorted(meta.shape) == sorted(own):
                    return Guess(value=differ[which], why=_why((meta.shape, name)))
        return Guess(value=len(own) - 2 + which, why="the last two dimensions")

    return rule


def _added_dim(known: Known, context: Context) -> Guess | None:
    meta = own_meta(known)
    if meta is None:
        return None
    own, parent = meta.shape, context.relatives().parent
    if parent is not None and "convolution" in parent.name and len(own) == 3:
        return Guess(value=2, why="a vector is convolved as an image of one row")
    found = _first(context, meta, _with_one(own))
    if found is None or (parent is not None and parent.name == "aten::einsum"):
        return Guess(value=-1, why="the last dimension")
    dim = next(d for d in range(len(own) + 1) if found[0] == (*own[:d], 1, *own[d:]))
    return Guess(value=dim, why=_why(found))


def _removed_dim(known: Known, context: Context) -> Guess | None:
    """Of a select or unbind."""
    meta = own_meta(known)
    if meta is None or not meta.shape:
        return None
    own, around = meta.shape, context.relatives()
    if around.parent is not None and around.above is not None:
        above = replace(context, relatives=lambda: around.above(0) if around.above is not None else around)
        if around.parent.name == "aten::unbind":
            return _removed_dim(known, above)
        if around.parent.name == "aten::nonzero_numpy":
            return Guess(value=1, why="1: a tensor for each dimension")
        if around.parent.name == "aten::index_select":
            return _indexed_dim(around.parent, above)
    found = _first(context, meta, _without_one(own))
    if found is None:
        return Guess(value=0, why="the first dimension")
    return Guess(value=next(d for d in range(len(own)) if found[0] == (*own[:d], *own[d + 1 :])), why=_why(found))


def _indexed_dim(call: OpSignature, context: Context) -> Guess:
    """That of an `index_select`: where what is read next has as many as there are indices."""
    shapes = [arg.tensor.shape if arg.tensor is not None else None for arg in recorded_args(call)]
    own, index = shapes[0] or (), next((shape for shape in shapes[1:] if shape is not None), ())
    results = {(*own[:d], math.prod(index), *own[d + 1 :]): d for d in reversed(range(len(own)))}
    found = next(((results[m.shape], name) for m, name in read_next(context) if m.shape in results), None)
    return Guess(value=found[0], why=f"{found[1]} reads the result") if found else Guess(value=0, why="dimension 0")


def _diagonal_of(which: str) -> Rule:
    """Dimensions or offset of a diagonal: of the last two of a batch; what writes to it tells its length."""

    def rule(known: Known, context: Context) -> Guess | None:
        own, around = _own(known), context.relatives()
        if own is None or len(own) < 2:
            return None
        if which != "offset":
            dim = len(own) - 2 + (which == "dim2")
            return Guess(value=dim, why="the diagonal of the last two dimensions")
        inside = around.parent is not None and around.parent.name == "aten::diag_embed"
        written = recorded_shape(around.following[0]) if inside and around.following else None
        if written is None or written[:-1] != own[:-2]:
            return None
        return Guess(value=own[-1] - written[-1], why=_why((written, around.following[0].name)))

    return rule


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


def _piece(own: Shape, context: Context) -> tuple[Shape, str] | None:
    """The part of a `cat` that is written next."""
    around = context.relatives()
    made = composite_of(around)
    part = None if made is None else joined_part(made)
    if made is None and around.forward is not None and (back := _joined_forward(around)) is not None:
        return (back, around.forward.name) if len(back) == len(own) else None
    return (part, made.call.name) if made is not None and part is not None and len(part) == len(own) else None


def _joined_forward(around: Relatives) -> Shape | None:
    """The part of the forward `cat` whose gradient this is: the node takes them in turn."""
    if around.forward is None or not around.forward.name.startswith(("aten::cat", "aten::concat")):
        return None
    number = next((i for i, call in enumerate(around.ancestors) if call.name not in VIEWS), len(around.places))
    args = recorded_args(around.forward)
    parts = args[0].tensors if args else None
    if not parts or number >= len(around.places) or around.places[number] >= len(parts):
        return None
    part = parts[around.places[number]]
    return None if part is None else part.shape


def _even_piece(own: Shape, context: Context) -> tuple[Shape, str] | None:
    """One of the pieces that a composite makes of one tensor, along the first dimension that these fill."""
    made = composite_of(context.relatives())
    if made is None or made.name not in ("aten::narrow", "aten::slice") or made.siblings < 2:
        return None
    if made.call.name.startswith("aten::_pad") or any(
        call.name == made.name and recorded_shape(call) != own for call in made.after
    ):
        return None
    shapes = [(*own[:d], n // made.siblings, *own[d + 1 :]) for d, n in enumerate(own) if n and not n % made.siblings]
    read = [meta.shape for meta, _ in read_next(context)]
    found = next((shape for shape in shapes if shape in read), shapes[0] if shapes else None)
    return None if found is None else (found, made.call.name)


def _slice(which: str) -> Rule:
    """Dimension, beginning or end of a slice: along the dimension in which what is read next is smaller."""

    def rule(known: Known, context: Context) -> Guess | None:
        own, dim = _own(known), value(known, "dim")
        if not own:
            return None
        found = _piece(own, context)
        for meta, name in read_next(context, SOON) if found is None else ():
            if _cut(own)(meta.shape):
                found = meta.shape, name
                break
            if meta.shape == own and name not in VIEWS:
                break
        found = found or _even_piece(own, context)
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


def _flattened(which: str) -> Rule:
    """First or last dimension of those that are made one: what is read next is as large without them."""

    def rule(known: Known, context: Context) -> Guess | None:
        meta = own_meta(known)
        if meta is None:
            return None
        own, pairs = meta.shape, {}
        for last in range(len(meta.shape) - 1, 0, -1):
            for first in range(last):
                flat = (*own[:first], math.prod(own[first : last + 1]), *own[last + 1 :])
                pairs.setdefault(flat, (first, last))
        found = _first(context, meta, lambda shape: shape in pairs)
        if found is None:
            return None
        return Guess(value=pairs[found[0]][which == "end_dim"], why=_why(found))

    return rule


def _unfolded(which: str) -> Rule:
    """Dimension, size or step of windows: what is read next has their number in its place, and their size behind."""

    def rule(known: Known, context: Context) -> Guess | None:
        meta = own_meta(known)
        if meta is None:
            return None
        own, found = meta.shape, {}
        if (windows := copies.window(own, context.relatives())) is not None:
            return Guess(value=windows[("dimension", "size", "step").index(which)], why=copies.WHY_REPEATED)
        for read, name in read_next(context):
            size = read.shape[-1] if read.shape else 0
            if len(read.shape) != len(own) + 1 or read.dtype != meta.dtype:
                continue
            for d, n in enumerate(own):
                count = read.shape[d]
                if (*own[:d], count, *own[d + 1 :], size) != read.shape or not 0 < size <= n or count < 1:
                    continue
                step = (n - size) // (count - 1) if count > 1 else size
                if step and (n - size) // step + 1 == count:
                    found = {"dimension": d, "size": size, "step": step, "why": _why((read.shape, name))}
                    return Guess(value=found[which], why=str(found["why"]))
        if which == "size":
            return Guess(value=max(1, own[-1] // 2), why="half of the last dimension") if own else None
        return Guess(value=-1 if which == "dimension" else 1, why="along the last dimension, one by one")

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
    told = literal(around) or allocated_meta(around)
    if told is not None and told.dtype:
        return Guess(value=f"torch.{told.dtype}", why=f"{told.dtype}: what is given it next")
    if around.name == "aten::scalar_tensor":
        scalar = next((meta for meta, _ in read_next(context, 2) if meta.shape == () and meta.dtype), None)
        if scalar is not None:
            return Guess(value=f"torch.{scalar.dtype}", why=f"{scalar.dtype}: read next")
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
    around = context.relatives()
    names = [around.name, *(call.name for call in around.ancestors)]
    kept = next((i for i, name in enumerate(names) if not name.endswith("_like")), len(names))
    caller = around.ancestors[kept - 1] if 0 < kept < len(names) else None
    told = [arg.kind for arg in recorded_args(caller)[1:2]] if caller is not None and kept else []
    plain = caller is None or "::" not in caller.name or (caller.name == "aten::clone" and told == ["absent"])
    if kept and plain:
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
    **{("diagonal", name): _diagonal_of(name) for name in ("dim1", "dim2", "offset")},
    **{("flatten", name): _flattened(name) for name in ("start_dim", "end_dim")},
    **{("unfold", name): _unfolded(name) for name in ("dimension", "size", "step")},
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
