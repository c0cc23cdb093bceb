# pyright: strict
"""Guesses lists that were not recorded: tensor lists (torch before 2.0, or over 30 elements) and sizes of pieces.

The best evidence is nested calls, because they handle the list element by element. Next best are the calls that read
the result. A dtype that remains unknown is left empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Relatives,
    Rule,
    Shape,
    broadcast,
    by_shape,
    first_tensor_of,
    first_tensors,
    listed_tensors,
    metas_of,
    recorded_numbers,
    recorded_shape,
)
from opreplay.replay.resolve.schema import OpSpec
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature, TensorMeta

MAX_ELEMENTS = 1 << 30
"""Maximum number of elements of a result that is derived only from a following call; larger results are unlikely."""
MAX_RECORDED = 30
"""Length of the longest list that a profiler records (torch/csrc/profiler: kMaxNumElements... of a TensorList)."""
TOO_LONG = f"a list of more than {MAX_RECORDED} tensors is not recorded"
_PIECES = ("aten::narrow", "aten::slice", "aten::as_strided")
_JOINS = ("cat", "_cat", "concat", "concatenate", "stack")
_STACKS = ("hstack", "vstack", "dstack", "column_stack", "row_stack")
_PLACES = 4
"""Number of leading arguments of a nested call that are searched for an element of the list."""


def _each(calls: Sequence[OpSignature], op: str) -> tuple[TensorMeta, ...]:
    """Return the first argument of each call of `op`; empty if one of them is not a tensor."""
    metas = tuple(meta for meta, _ in first_tensors(calls, (op,)))
    return metas if len(metas) == sum(call.name == op for call in calls) else ()


def _joined(known: Call, context: Context) -> Guess | None:
    """Guess the tensors joined by cat and concat: equal parts of the result.

    The parts are equal because nothing shows their sizes.
    """
    around, dim, out = context.relatives(), _dim(known), known.tensor("out")
    if out is not None and out.shape:
        return _parts(out, 2, dim, "two halves of the output")
    if (stacked := _stacked_inside(around)) is not None:
        return stacked
    for calls in (around.children, around.inner):
        pieces = _each(calls, "aten::narrow")
        if pieces and all(meta.shape == pieces[0].shape for meta in pieces):
            return _parts(pieces[0], len(pieces), dim, f"{len(pieces)} parts of the result {list(pieces[0].shape)}")
    return _read_next(around, dim, context)


def _dim(known: Call) -> int:
    dim = known.value("dim")
    return dim if isinstance(dim, int) else 0


def _stacked_inside(around: Relatives) -> Guess | None:
    """Guess the tensors of a `cat` that `stack` calls. Their number is the first size of `stack`'s view of
    the result.
    """
    whole = next(first_tensors(around.following[:1], ("aten::view",)), (None,))[0]
    if around.parent_name != "aten::stack" or whole is None:
        return None
    if not 0 < math.prod(whole.shape) <= MAX_ELEMENTS:
        return None
    for view in (meta.shape for meta, _ in first_tensors(around.following[1:])):
        # The view has the first dimension of the whole in two.
        if len(view) > 1 and (view[0] * view[1], *view[2:]) == whole.shape:
            why = f"{view[0]} parts of {list(whole.shape)}, which is viewed as {list(view)}"
            return Guess(tensors=(TensorMeta(shape=view[1:], dtype=whole.dtype),) * view[0], why=why)
    return None


def _read_next(around: Relatives, dim: int, context: Context) -> Guess | None:
    """Guess equal parts of the tensor that the next call reads, which is assumed to be the result.

    If lists are not recorded, there are two parts. Otherwise, there are more parts than a recorded list can have
    (`MAX_RECORDED`), because a shorter list would have been recorded.
    """
    for whole, reader in first_tensors(around.following):
        if not whole.shape or not 0 < math.prod(whole.shape) <= MAX_ELEMENTS:
            continue
        if not context.lists_recorded:
            return _parts(whole, 2, dim, f"two halves of the tensor that {reader} reads next, {list(whole.shape)}")
        size = whole.shape[dim] if -len(whole.shape) <= dim < len(whole.shape) else 0
        if size > MAX_RECORDED:
            count = next((n for n in range(MAX_RECORDED + 1, size + 1) if not size % n), MAX_RECORDED + 1)
            why = f"{count} equal parts of the tensor that {reader} reads next, {list(whole.shape)}: {TOO_LONG}"
            return _parts(whole, count, dim, why)
    return None


def _parts(whole: TensorMeta, count: int, dim: int, why: str) -> Guess | None:
    rank = len(whole.shape)
    if not -rank <= dim < rank:
        return None
    dim %= rank
    shapes = ((*whole.shape[:dim], n, *whole.shape[dim + 1 :]) for n in _even(whole.shape[dim], count))
    return Guess(tensors=tuple(TensorMeta(shape=shape, dtype=whole.dtype) for shape in shapes), why=why)


def _even(size: int, count: int) -> Shape:
    """Divide `size` into `count` parts that are as equal as possible."""
    each, rest = divmod(size, count)
    return tuple(each + (i < rest) for i in range(count))


def _stacked(known: Call, context: Context) -> Guess | None:
    """Guess the tensors of `stack` from nested `unsqueeze` calls, or as slices of a tensor that is read next."""
    around, dim = context.relatives(), _dim(known)
    if metas := _each(around.children, "aten::unsqueeze"):
        return Guess(tensors=metas, why=f"the {len(metas)} tensors that aten::unsqueeze inside the op reads")
    for whole, reader in first_tensors(around.following):
        rank = len(whole.shape)
        if not -rank <= dim < rank:
            continue
        dim %= rank
        count = whole.shape[dim]
        if 0 < count <= 4096 and math.prod(whole.shape) <= MAX_ELEMENTS:
            part = TensorMeta(shape=(*whole.shape[:dim], *whole.shape[dim + 1 :]), dtype=whole.dtype)
            return Guess(tensors=(part,) * count, why=f"{count} slices of the tensor that {reader} reads next")
    return None


def each(known: Call, context: Context, place: int = 0) -> Guess | None:
    """Guess one of the lists of a `_foreach_*` op; `place` is its position among the lists.

    If the op makes one nested call per list element, the elements are the arguments at position `place` of these calls.
    Otherwise, the guess is a copy of the other list, or one tensor per gradient.
    """
    children, sibling = context.relatives().children, _other_list(known)
    counts = Counter(name for _, name in first_tensors(children))
    for name, count in counts.most_common(1):
        metas = [first_tensor_of(call, place) for call in children if call.name == name]
        found = tuple(meta for meta in metas if meta is not None)
        if len(found) == len(metas) and (sibling is None or len(found) == len(sibling)):
            return Guess(tensors=found, why=f"the tensors of the {count} calls of {name} inside the op")
    return parameters(known, context)


def read_inside(known: Call, context: Context) -> Guess | None:
    """Guess a list whose elements may be None; torch's profiler does not record such lists.

    The guess is the tensors of the most frequent nested op, without those that have the shape of another argument.
    """
    others = {meta.shape for arg in known.values() for meta in arg.tensors if meta is not None}
    read = first_tensors(context.relatives().children)
    found = [(meta, name) for meta, name in read if meta.shape and meta.shape not in others]
    for most, count in Counter(name for _, name in found).most_common(1):
        tensors = tuple(meta for meta, name in found if name == most)
        return Guess(
            tensors=tensors, why=f"the tensors of {count} calls of {most} inside the op, without elements that are None"
        )
    return None


def parameters(known: Call, context: Context) -> Guess | None:
    """Guess a tensor list of a fused optimizer: a copy of another known list or, without one, one tensor per gradient.

    Nested calls are no evidence, because they read only the optimizer's step counters. The gradients are taken in
    reverse, because a backward pass computes them in reverse order.
    """
    if (sibling := _other_list(known)) is not None:
        return Guess(tensors=sibling, why="the same as in the other list of tensors")
    metas = tuple(meta for meta, _ in first_tensors(reversed(context.relatives().gradients)))
    return Guess(tensors=metas, why=f"the {len(metas)} gradients of a backward pass in this trace") if metas else None


ElementTypes = tuple[tuple[str, ...], str]
"""(dtype of each tensor in a list, reason for these dtypes)."""


def element_types(
    shapes: Sequence[Shape], spec: OpSpec, name: str, known: Call, context: Context
) -> ElementTypes | None:
    """Return the dtypes of the list `name`, of which only the sizes are recorded; None if nothing shows the dtypes.

    Evidence, best first: one nested call per element; nested calls that read tensors of these sizes; a following call
    that reads the result.
    """
    around, op = context.relatives(), spec.name.partition("::")[2]
    if op.startswith("_fused_"):
        return _gradient_types(shapes, around)
    calls = around.inside if op == "cartesian_prod" else around.children
    if op in _JOINS or op in _STACKS:
        return _types_of_joined(shapes, op, known, around)
    if (found := _types_in_each_call(shapes, op, _place_of_list(spec, name, known), calls)) is not None:
        return found
    if op == "broadcast_tensors":
        expanded = [meta for meta, _ in first_tensors(calls, ("aten::expand",)) if meta.dtype]
        return _broadcast_types(shapes, expanded, around)
    if op.startswith("_foreach_"):
        return None
    return _types_of_sizes(shapes, known, around.inside) or _types_joined_inside(shapes, around.children)


def _place_of_list(spec: OpSpec, name: str, known: Call) -> int:
    """Return how many lists precede the list `name`.

    For a `_foreach_*` op, all preceding lists count. For other ops, only lists with the same sizes count.
    """
    before = [arg.name for arg in spec.args[: [arg.name for arg in spec.args].index(name)] if arg.kind == "Tensor[]"]
    if spec.name.partition("::")[2].startswith("_foreach_"):
        return len(before)
    return sum(known.shapes(other) == known.shapes(name) for other in before)


def _types_of_joined(shapes: Sequence[Shape], op: str, known: Call, around: Relatives) -> ElementTypes | None:
    """Return the dtypes of joined tensors from nested conversions or, if there are none, from the pieces or
    the result.
    """
    for calls in (around.children, around.inner):
        if (converted := _converted_types(len(shapes), calls)) is not None:
            return converted
    by_name = _typed_by_name(around.children)
    for name, metas in by_name.items():
        if (dtypes := _dtypes_by_shape(shapes, metas)) is not None:
            return dtypes, f"the tensors of {name} inside the op"
    if op in _JOINS and (inside := _types_inside_join(shapes, op, by_name, around)) is not None:
        return inside
    out = known.tensor("out")
    if out is not None and out.dtype:
        return (out.dtype,) * len(shapes), "dtype of the output"
    read = joined(shapes, op, known, around)
    return None if read is None else ((read[1],) * len(shapes), f"{read[2]} reads the result")


def _converted_types(count: int, calls: Sequence[OpSignature]) -> ElementTypes | None:
    """Return the dtypes of joined tensors with mixed dtypes; None if no tensor is converted.

    A tensor's dtype comes from the `copy_` that converts it into its piece of the result.
    """
    types: list[str] = []
    is_converted = False
    for call in calls:
        if call.name == "aten::narrow":
            result = first_tensor_of(call)
            types.append("" if result is None else result.dtype)
        elif call.name == "aten::copy_" and types and (source := first_tensor_of(call, 1)) is not None:
            is_converted = is_converted or source.dtype != types[-1]
            types[-1] = source.dtype
    if not is_converted or len(types) != count or not all(types):
        return None
    return tuple(types), "dtypes of the pieces that aten::copy_ inside the op converts, and of the result"


def _types_in_each_call(
    shapes: Sequence[Shape], op: str, place: int, calls: Sequence[OpSignature]
) -> ElementTypes | None:
    """Return the dtypes of a list's elements if each element is an argument of one nested call.

    `place` is the number of lists with the same sizes before this one. For a `_foreach_*` op, it is also the element's
    position among the arguments of a nested call. For other ops, this position is tried first. If it does not fit, the
    lists are assigned in order to the positions that fit.
    """
    by_name: dict[str, list[OpSignature]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call)
    found: list[tuple[int, ElementTypes]] = []
    for name, named_calls in by_name.items():
        for position in range(_PLACES):
            metas = [meta for call in named_calls if (meta := first_tensor_of(call, position)) and meta.dtype]
            if metas and (dtypes := _dtypes_by_shape(shapes, metas)) is not None:
                found.append((position, (dtypes, f"the tensors of {name} inside the op")))
    in_place = [types for position, types in found if position == place]
    if in_place or op.startswith("_foreach_") or not found:
        return in_place[0] if in_place else None
    return found[min(place, len(found) - 1)][1]


def _types_of_sizes(shapes: Sequence[Shape], known: Call, calls: Sequence[OpSignature]) -> ElementTypes | None:
    """Return the dtypes of the tensors of these shapes that nested calls read, whatever the number of calls.

    If a shape is read with several dtypes, the first is used. A tensor with the shape and dtype of another argument is
    no evidence, because it may be that argument. Elements that no call reads get the dtype of the other elements.
    """
    others = {(meta.shape, meta.dtype) for arg in known.values() for meta in arg.tensors if meta and meta.dtype}
    found: dict[Shape, str] = {}
    for meta in chain.from_iterable(map(metas_of, calls)):
        if meta.dtype and (meta.shape, meta.dtype) not in others:
            found.setdefault(meta.shape, meta.dtype)
    dtypes = [found.get(shape, "") for shape in shapes]
    known_types = set(filter(None, dtypes))
    if not known_types or ("" in dtypes and len(known_types) > 1):
        return None
    usual = next(iter(known_types))
    return tuple(dtype or usual for dtype in dtypes), "the tensors of these sizes that the calls inside the op read"


def _types_joined_inside(shapes: Sequence[Shape], calls: Sequence[OpSignature]) -> ElementTypes | None:
    """Return the dtypes of a list that a nested call joins, from the next call that reads the result."""
    for place, call in enumerate(calls):
        op = call.name.partition("::")[2]
        if op not in _JOINS or [meta and meta.shape for meta in listed_tensors(call)] != list(shapes):
            continue
        results = _join_results(shapes, op, Call())
        for later in calls[place + 1 :]:
            for meta in metas_of(later):
                if meta.shape in results and meta.dtype:
                    return (meta.dtype,) * len(shapes), f"{later.name} inside the op reads the joined tensor"
    return None


def _typed_by_name(calls: Sequence[OpSignature]) -> dict[str, list[TensorMeta]]:
    """Return, by op name, the first tensor of each call if its dtype is recorded."""
    by_name: dict[str, list[TensorMeta]] = {}
    for meta, name in first_tensors(calls):
        if meta.dtype:
            by_name.setdefault(name, []).append(meta)
    return by_name


def _dtypes_by_shape(shapes: Sequence[Shape], metas: Sequence[TensorMeta]) -> tuple[str, ...] | None:
    """Return the dtypes of `metas` in the order of `shapes`; None if they do not match or are ambiguous."""
    if [meta.shape for meta in metas] == list(shapes):
        return tuple(meta.dtype for meta in metas)
    if sorted(meta.shape for meta in metas) != sorted(shapes):
        return None
    dtypes = {meta.shape: meta.dtype for meta in metas}
    if len(dtypes) < len({(meta.shape, meta.dtype) for meta in metas}):
        return None
    return tuple(dtypes[shape] for shape in shapes)


def _types_inside_join(
    shapes: Sequence[Shape], op: str, by_name: Mapping[str, Sequence[TensorMeta]], around: Relatives
) -> ElementTypes | None:
    """Return the dtypes of joined tensors.

    They come from the `unsqueeze` calls of an enclosing `stack`, or from the result that nested calls write.
    """
    inside_stack = around.parent_name == "aten::stack"
    unsqueezed = _each(around.above(0).children, "aten::unsqueeze") if inside_stack and around.above else ()
    dtypes = tuple(meta.dtype for meta in unsqueezed)
    if len(dtypes) == len(shapes) and all(dtypes):
        return dtypes, "the tensors of the preceding aten::unsqueeze"
    elements = sum(map(math.prod, shapes))
    # A stack along the first dimension joins its tensors and views the result.
    names = (*_PIECES, "aten::view") if op == "stack" else _PIECES
    views = (meta for name in names for meta in by_name.get(name, ()))
    whole = next((m for m in views if math.prod(m.shape) == elements and (op == "stack" or m.shape)), None)
    return None if whole is None else ((whole.dtype,) * len(shapes), "the result that a call inside the op writes")


def _gradient_types(shapes: Sequence[Shape], around: Relatives) -> ElementTypes | None:
    """Return the dtypes of an optimizer's parameters, from accumulated gradients of the same sizes."""
    types: dict[Shape, set[str]] = {}
    for meta, _ in first_tensors(around.gradients):
        if meta.dtype:
            types.setdefault(meta.shape, set()).add(meta.dtype)
    if not shapes or any(len(types.get(shape, ())) != 1 for shape in shapes):
        return None
    return tuple(dtype for shape in shapes for dtype in types[shape]), "dtype of the gradients of these sizes"


def _broadcast_types(shapes: Sequence[Shape], expanded: Sequence[TensorMeta], around: Relatives) -> ElementTypes | None:
    """Return the dtypes of broadcast tensors.

    The dtype of a smaller tensor comes from the nested call that expands it. The others come from a following call.
    """
    result = broadcast(shapes)
    if result is None or not shapes:
        return None
    dtypes: dict[Shape, str] = {meta.shape: meta.dtype for meta in expanded}
    for call in around.following:
        read = [arg.tensor for arg in recorded_args(call) if arg.tensor is not None and arg.tensor.shape == result]
        # What was expanded has a step of 0, where strides are recorded.
        if results := [meta.dtype for meta in read if meta.dtype and 0 not in (meta.strides or ())]:
            dtypes.setdefault(result, next((dtype for dtype in results if dtype not in dtypes.values()), results[0]))
            break
    if not dtypes.keys() >= set(shapes):
        return None
    return tuple(map(dtypes.__getitem__, shapes)), "the calls inside and after the op"


def _join_results(shapes: Sequence[Shape], op: str, known: Call) -> dict[Shape, int]:
    """Return the possible shapes of a join's result, each with the dimension along which joining the tensors gives it.
    If several dimensions give a shape, it is the first.
    """
    whole = next((shape for shape in shapes if len(shape) != 1), shapes[0])  # cat takes an empty vector beside any
    parts = [shape for shape in shapes if len(shape) == len(whole)]
    rank = len(whole) + (op == "stack")
    dim = known.dim(rank)
    results: dict[Shape, int] = {}
    for at in range(rank) if dim is None else (dim,):
        if op == "stack":
            results.setdefault((*whole[:at], len(shapes), *whole[at:]), at)
        elif len({(shape[:at], shape[at + 1 :]) for shape in parts}) == 1:
            results.setdefault((*whole[:at], sum(shape[at] for shape in parts), *whole[at + 1 :]), at)
    return results


def joined(shapes: Sequence[Shape], op: str, known: Call, around: Relatives) -> tuple[int, str, str] | None:
    """Return (dimension, dtype, op) from the first of the next calls that reads the result of a join."""
    results = _join_results(shapes, op, known) if op in _JOINS and shapes else {}
    for call in around.following if results else ():
        for meta in filter(None, (arg.tensor for arg in recorded_args(call))):
            if meta.shape in results and meta.dtype:
                return results[meta.shape], meta.dtype, call.name
    return None


def _joined_dim(op: str) -> Rule:
    """Return the rule that guesses the joined dimension.

    It is the only dimension in which the tensors differ. If they differ in none, it is the dimension that gives a
    joined shape which a following call reads.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        shapes = known.shapes("tensors")
        columns = zip(*(shape for shape in shapes if shape != (0,)), strict=False) if op != "stack" else ()
        dim = next((dim for dim, sizes in enumerate(columns) if len(set(sizes)) > 1), None)
        if dim is not None:
            return Guess(value=dim, why="the dimension in which the tensors differ")
        read = joined(shapes, op, Call(), context.relatives())
        if read is not None:
            return Guess(value=read[0], why=f"{read[0]}: {read[2]} reads the result")
        return Guess(value=0, why="dimension 0")

    return rule


def _other_list(known: Call) -> tuple[TensorMeta | None, ...] | None:
    """Return a known, non-empty tensor list of the call, for guessing another list."""
    return next((arg.tensors for arg in known.values() if arg.type == "Tensor[]" and arg.tensors), None)


def _steps(known: Call, context: Context) -> Guess | None:
    """Guess one 0-dim float32 step counter for each parameter of a fused optimizer."""
    others = _other_list(known)
    if others is None:
        return None
    return Guess(tensors=(TensorMeta(shape=(), dtype="float32"),) * len(others), why="one step counter per parameter")


def _no_tensors(known: Call, context: Context) -> Guess | None:
    return Guess(tensors=(), why="empty: only used with amsgrad")


@by_shape
def _sizes(shape: Shape, known: Call, context: Context) -> Guess | None:
    """Guess the sizes of pieces from nested views. If these do not add up to the whole, guess equal sizes."""
    around, recorded = context.relatives(), known.value("dim") is not None
    dim = known.dim(len(shape)) if recorded else 0
    by_name = ([call for call in around.children if call.name == name] for name in _PIECES)
    views = next(filter(None, by_name), None)
    if not shape or dim is None or views is None:
        return None
    if (read := _pieces_read(shape, len(views), around)) is not None and (not recorded or read[0] == dim):
        return Guess(value=read[1], why=f"the {len(views)} pieces that are read next")
    return _pieces_made(shape[dim], [_piece(call, dim) for call in views])


def _pieces_made(whole: int, pieces: Sequence[int | None]) -> Guess:
    """Guess pieces of these sizes if they add up to the whole, otherwise the same number of equal pieces."""
    sizes = tuple(size for size in pieces if size is not None)
    if len(sizes) == len(pieces) and sum(sizes) == whole:
        return Guess(value=sizes, why=f"the {len(sizes)} pieces created inside the op")
    return Guess(value=_even(whole, len(pieces)), why=f"{len(pieces)} even pieces")


def _pieces_read(whole: Shape, count: int, around: Relatives) -> tuple[int, Shape] | None:
    """Return (dimension, sizes) of `count` pieces if the next calls read each of them once, in order."""
    shapes = [arg.tensor.shape for call in around.following for arg in recorded_args(call) if arg.tensor is not None]
    shapes = [shape for shape in shapes if len(shape) == len(whole)]
    for d in range(len(whole)) if count > 1 else ():
        pieces = [shape[d] for shape in shapes if (*shape[:d], whole[d], *shape[d + 1 :]) == whole][:count]
        if sum(pieces) == whole[d] and len(pieces) == count:
            return d, tuple(pieces)
    return None


@by_shape
def _split_dim(shape: Shape, known: Call, context: Context) -> Guess | None:
    around = context.relatives()
    count = next((n for name in _PIECES if (n := sum(call.name == name for call in around.children))), 0)
    read = _pieces_read(shape, count, around)
    return read and Guess(value=read[0], why=f"the {count} pieces that are read next")


def _piece(call: OpSignature, dim: int) -> int | None:
    """Return the size along `dim` of the view that a recorded call makes; None if not recorded."""
    if call.name == "aten::as_strided":
        size = recorded_numbers(call, 1)
        return size[dim] if size is not None and dim < len(size) else None
    bounds = [arg.value for arg in recorded_args(call)[2:4]]
    if len(bounds) < 2 or not is_whole_numbers(tuple(bounds)):
        return None
    return bounds[1] if call.name == "aten::narrow" else bounds[1] - bounds[0]


def _flattened(known: Call, context: Context) -> Guess | None:
    """Guess the tensors of flatten_dense_tensors. Nested calls show them: they view each tensor as one dimension before
    the tensors are joined.
    """
    for name in ("aten::view", "aten::reshape", "aten::flatten"):
        if metas := _each(context.relatives().children, name):
            return Guess(tensors=metas, why=f"the tensors of the {len(metas)} calls of {name} inside the op")
    return _joined(known, context)


def _unflattened(known: Call, context: Context) -> Guess | None:
    """Guess the tensors of unflatten_dense_tensors from the nested views of the pieces."""
    flat, views = known.tensor("flat"), [c for c in context.relatives().children if c.name == "aten::view"]
    sizes = [size if (size := recorded_numbers(call, 1)) is not None else recorded_shape(call) for call in views]
    shapes = [size for size in sizes if size is not None and min(size, default=0) >= 0]
    if flat is None or not shapes or len(shapes) < len(views):
        return None
    metas = tuple(TensorMeta(shape=shape, dtype=flat.dtype) for shape in shapes)
    return Guess(tensors=metas, why=f"the {len(metas)} views created inside the op")


LIST_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "tensors"): _joined for op in ("cat", "concat", "concatenate")},
    ("stack", "tensors"): _stacked,
    **{(op, "dim"): _joined_dim(op) for op in ("cat", "concat", "concatenate", "stack")},
    ("flatten_dense_tensors", "tensors"): _flattened,
    ("unflatten_dense_tensors", "tensors"): _unflattened,
    ("split_with_sizes", "split_sizes"): _sizes,
    ("split_with_sizes_copy", "split_sizes"): _sizes,
    ("split_with_sizes", "dim"): _split_dim,
}
"""(op without namespace, argument) → rule that guesses the argument."""
OPTIMIZER_LISTS: dict[str, Rule] = {"state_steps": _steps, "max_exp_avg_sqs": _no_tensors}
"""Rules for arguments of `_fused_*` optimizers that are not tensor lists like the parameters, by argument name."""
