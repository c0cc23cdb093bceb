"""Lists that were not recorded: of tensors (torch before 2.0, or more than 30 elements), and of the sizes of pieces.

What is inside a call tells most: a list is worked on element by element. Then what reads the result. An element type
that is not known is left empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Relatives, Rule, Shape, tensor, value
from opreplay.traces.model import OpSignature, TensorMeta

MAX_ELEMENTS = 1 << 30
"""Of a result that only a following call tells; a larger one is hardly that."""
MAX_RECORDED = 30
"""Elements of the longest list that a profiler records (torch/csrc/profiler: kMaxNumElements... of a TensorList)."""
MAX_RANK = 64
TOO_LONG = f"a list of more than {MAX_RECORDED} tensors is not recorded"
_PIECES = ("aten::narrow", "aten::slice", "aten::as_strided")
_JOINS = ("cat", "_cat", "concat", "concatenate", "stack")
_ASIDE = (*_PIECES, "aten::copy_")


def first_tensor_of(call: OpSignature, position: int = 0) -> TensorMeta | None:
    """The tensor in one position of another recorded call, the only one of a list included; None for anything else."""
    args = recorded_args(call)
    if position >= len(args):
        return None
    arg = args[position]
    if arg.kind == "tensors" and arg.tensors is not None and len(arg.tensors) == 1:
        return arg.tensors[0]
    return arg.tensor


def _inside(calls: Sequence[OpSignature], name: str) -> list[TensorMeta]:
    """First tensors of the calls of one name, where each has one."""
    metas = [first_tensor_of(call) for call in calls if call.name == name]
    tensors = [meta for meta in metas if meta is not None]
    return tensors if len(tensors) == len(metas) else []


def _joined(known: Known, context: Context) -> Guess | None:
    """The parts of cat and concat, of equal size as far as they can be: nothing tells the size of each."""
    dim = value(known, "dim")
    dim = dim if isinstance(dim, int) else 0
    out = tensor(known, "out")
    if out is not None and out.shape:
        return _parts(out, 2, dim, "two halves of the output")
    around = context.relatives()
    if (stacked := _stacked_inside(around)) is not None:
        return stacked
    for calls in (around.children, around.inner):
        pieces = _inside(calls, "aten::narrow")
        if pieces and all(meta.shape == pieces[0].shape for meta in pieces):
            whole = pieces[0]
            return _parts(whole, len(pieces), dim, f"{len(pieces)} parts of the result {list(whole.shape)}")
    return _read_next(around, dim, context)


def _stacked_inside(around: Relatives) -> Guess | None:
    """What a `stack` joins along its first dimension, and views as one more: as many as the view has there."""
    if around.parent is None or around.parent.name != "aten::stack" or len(around.following) < 2:
        return None
    whole, *shown = (first_tensor_of(call) for call in around.following)
    if whole is None or around.following[0].name != "aten::view" or not 0 < math.prod(whole.shape) <= MAX_ELEMENTS:
        return None
    for meta in shown:
        if meta is None or len(meta.shape) != len(whole.shape) + 1 or meta.shape[0] * meta.shape[1] != whole.shape[0]:
            continue
        if meta.shape[2:] == whole.shape[1:]:
            part = TensorMeta(shape=meta.shape[1:], dtype=whole.dtype)
            why = f"{meta.shape[0]} parts of {list(whole.shape)}, which is viewed as {list(meta.shape)}"
            return Guess(tensors=(part,) * meta.shape[0], why=why)
    return None


def _read_next(around: Relatives, dim: int, context: Context) -> Guess | None:
    """Parts of what the next call reads, taking that to be the result: two, or as many as a list must have had."""
    for call in around.following:
        whole = first_tensor_of(call)
        if whole is None or not whole.shape or not 0 < math.prod(whole.shape) <= MAX_ELEMENTS:
            continue
        if not context.lists_recorded:
            return _parts(whole, 2, dim, f"two halves of what {call.name} reads next, {list(whole.shape)}")
        size = whole.shape[dim] if -len(whole.shape) <= dim < len(whole.shape) else 0
        if size > MAX_RECORDED:
            count = next((n for n in range(MAX_RECORDED + 1, size + 1) if not size % n), MAX_RECORDED + 1)
            why = f"{count} even parts of what {call.name} reads next, {list(whole.shape)}: {TOO_LONG}"
            return _parts(whole, count, dim, why)
    return None


def _parts(whole: TensorMeta, count: int, dim: int, why: str) -> Guess | None:
    rank = len(whole.shape)
    if not -rank <= dim < rank or count < 1:
        return None
    dim %= rank
    size, rest = divmod(whole.shape[dim], count)
    sizes = [size + (i < rest) for i in range(count)]
    tensors = tuple(
        TensorMeta(shape=(*whole.shape[:dim], n, *whole.shape[dim + 1 :]), dtype=whole.dtype) for n in sizes
    )
    return Guess(tensors=tensors, why=why)


def _stacked(known: Known, context: Context) -> Guess | None:
    """stack: each element is unsqueezed on its way into cat."""
    around = context.relatives()
    metas = _inside(around.children, "aten::unsqueeze")
    if metas:
        return Guess(tensors=tuple(metas), why=f"the {len(metas)} tensors that aten::unsqueeze inside is given")
    dim = value(known, "dim")
    dim = dim if isinstance(dim, int) else 0
    for call in around.following:
        whole = first_tensor_of(call)
        if whole is None or not -len(whole.shape) <= dim < len(whole.shape):
            continue
        dim %= len(whole.shape)
        count = whole.shape[dim]
        if 0 < count <= 4096 and math.prod(whole.shape) <= MAX_ELEMENTS:
            part = TensorMeta(shape=(*whole.shape[:dim], *whole.shape[dim + 1 :]), dtype=whole.dtype)
            return Guess(tensors=(part,) * count, why=f"{count} slices of what {call.name} reads next")
    return None


def each(known: Known, context: Context) -> Guess | None:
    """A list of a `_foreach_*` op: one call inside for each element, else one tensor for each gradient."""
    if (sibling := _other_list(known)) is not None:
        return Guess(tensors=sibling, why="as the other list of tensors")
    around = context.relatives()
    counts = Counter(call.name for call in around.children if first_tensor_of(call) is not None)
    for name, count in counts.most_common(1):
        metas = _inside(around.children, name)
        if len(metas) == count:
            return Guess(tensors=tuple(metas), why=f"the tensors of the {count} calls of {name} inside")
    return _gradients(around)


def parameters(known: Known, context: Context) -> Guess | None:
    """A list of a fused optimizer: what it calls inside reads its step counters, so the gradients alone tell."""
    if (sibling := _other_list(known)) is not None:
        return Guess(tensors=sibling, why="as the other list of tensors")
    return _gradients(context.relatives())


def _gradients(around: Relatives) -> Guess | None:
    """One tensor for each gradient of a backward pass, which come last to first: an optimizer takes them in order."""
    metas = [meta for call in reversed(around.gradients) if (meta := first_tensor_of(call)) is not None]
    if not metas:
        return None
    return Guess(tensors=tuple(metas), why=f"the {len(metas)} gradients of a backward pass in this trace")


def element_types(
    shapes: Sequence[Shape], op: str, known: Known, context: Context
) -> tuple[tuple[str, ...], str] | None:
    """Element types of a list whose sizes are recorded and whose types are not, and why; None where nothing tells.

    One call inside for each element, else the result that one of the next calls reads.
    """
    around = context.relatives()
    if op.startswith("_fused_"):
        return _gradient_types(shapes, around)
    by_name: dict[str, list[TensorMeta]] = {}
    for call in (*around.children, *(around.inner if op == "cartesian_prod" else ())):
        if (meta := first_tensor_of(call)) is not None and meta.dtype:
            by_name.setdefault(call.name, []).append(meta)
    for name, metas in by_name.items():
        if len(metas) == len(shapes) and sorted(m.shape for m in metas) == sorted(shapes):
            typed = {meta.shape: meta.dtype for meta in metas}
            ordered = [m.dtype for m in metas] if [m.shape for m in metas] == list(shapes) else None
            dtypes = tuple(ordered or (typed[shape] for shape in shapes))
            return dtypes, f"the tensors of {name} inside"
    if op in _JOINS:
        whole = next((m for name in _PIECES for m in by_name.get(name, ()) if _holds(m.shape, shapes, op)), None)
        unsqueezed = _unsqueezed(around)
        if len(unsqueezed) == len(shapes) and all(meta.dtype for meta in unsqueezed):
            return tuple(meta.dtype for meta in unsqueezed), "the tensors of aten::unsqueeze before"
        if whole is not None:
            return (whole.dtype,) * len(shapes), "the result that it writes to inside"
    if op == "broadcast_tensors":
        return _broadcast_types(shapes, by_name.get("aten::expand", []), around)
    read = joined(shapes, op, known, around)
    return None if read is None else ((read[1],) * len(shapes), f"{read[2]} reads the result")


def _gradient_types(shapes: Sequence[Shape], around: Relatives) -> tuple[tuple[str, ...], str] | None:
    """Of the parameters of an optimizer, from gradients of their sizes that the backward pass accumulates."""
    types: dict[Shape, set[str]] = {}
    for meta in map(first_tensor_of, around.gradients):
        if meta is not None and meta.dtype:
            types.setdefault(meta.shape, set()).add(meta.dtype)
    if not shapes or any(len(types.get(shape, ())) != 1 for shape in shapes):
        return None
    return tuple(dtype for shape in shapes for dtype in types[shape]), "that of the gradients of these sizes"


def _holds(whole: Shape, shapes: Sequence[Shape], op: str) -> bool:
    """Whether what is written to inside is what these sizes make together."""
    return math.prod(whole) == sum(math.prod(shape) for shape in shapes) and (op == "stack" or bool(whole))


def _unsqueezed(around: Relatives) -> list[TensorMeta]:
    """What a `stack` unsqueezes before it joins: each has the element type of one tensor."""
    if around.parent is None or around.parent.name != "aten::stack" or around.above is None:
        return []
    return _inside(around.above(0).children, "aten::unsqueeze")


def _broadcast_types(
    shapes: Sequence[Shape], expanded: Sequence[TensorMeta], around: Relatives
) -> tuple[tuple[str, ...], str] | None:
    """Of tensors of which those are expanded that are smaller than the result; the others are read next."""
    if not shapes or max(map(len, shapes)) > MAX_RANK:
        return None
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    types: dict[Shape, str] = {meta.shape: meta.dtype for meta in expanded}
    for call in around.following:
        read = [arg.tensor for arg in recorded_args(call) if arg.tensor is not None and arg.tensor.shape == result]
        # What was expanded has a step of 0, where strides are recorded.
        results = [meta for meta in read if meta.dtype and 0 not in (meta.strides or ())]
        if results:
            other = next((meta.dtype for meta in results if meta.dtype not in types.values()), results[0].dtype)
            types.setdefault(result, other)
            break
    if any(shape not in types for shape in shapes):
        return None
    return tuple(types[shape] for shape in shapes), "the calls inside and after"


def joined(shapes: Sequence[Shape], op: str, known: Known, around: Relatives) -> tuple[int, str, str] | None:
    """(dimension, element type, reader) of the first of the next calls that reads what an op joins."""
    if op not in _JOINS or not shapes:
        return None
    whole = next((shape for shape in shapes if len(shape) != 1), shapes[0])  # cat takes an empty vector beside any
    rank = len(whole) + (op == "stack")
    dim = value(known, "dim")
    dims = [dim % rank] if isinstance(dim, int) and rank and -rank <= dim < rank else list(range(rank))
    results: dict[Shape, int] = {}
    for at in dims:
        if op == "stack":
            results.setdefault((*whole[:at], len(shapes), *whole[at:]), at)
            continue
        total = sum(shape[at] for shape in shapes if len(shape) == rank)
        if all(
            shape[:at] == whole[:at] and shape[at + 1 :] == whole[at + 1 :] for shape in shapes if len(shape) == rank
        ):
            results.setdefault((*whole[:at], total, *whole[at + 1 :]), at)
    for call in around.following:
        for arg in recorded_args(call):
            if arg.tensor is not None and arg.tensor.shape in results and arg.tensor.dtype:
                return results[arg.tensor.shape], arg.tensor.dtype, call.name
    return None


def _joined_dim(op: str) -> Rule:
    """The only dimension in which the tensors differ, else the one in which they add up to what is read next."""

    def rule(known: Known, context: Context) -> Guess | None:
        arg = known.get("tensors")
        shapes = [m.shape for m in arg.tensors if m is not None] if arg is not None else []
        sized = [shape for shape in shapes if shape != (0,)]
        for dim in range(min((len(shape) for shape in sized), default=0)) if op != "stack" else ():
            if len({shape[dim] for shape in sized}) > 1:
                return Guess(value=dim, why="where the tensors differ")
        read = joined(shapes, op, {}, context.relatives())
        if read is not None:
            return Guess(value=read[0], why=f"{read[0]}: {read[2]} reads the result")
        return Guess(value=0, why="dimension 0")

    return rule


def _other_list(known: Known) -> tuple[TensorMeta | None, ...] | None:
    """Another list of the call that is settled and not empty."""
    return next((arg.tensors for arg in known.values() if arg.type == "Tensor[]" and arg.tensors), None)


def _steps(known: Known, context: Context) -> Guess | None:
    """One 0-dim float32 step counter for each parameter of a fused optimizer."""
    others = _other_list(known)
    if others is None:
        return None
    return Guess(tensors=(TensorMeta(shape=(), dtype="float32"),) * len(others), why="one step counter a parameter")


def _no_tensors(known: Known, context: Context) -> Guess | None:
    return Guess(tensors=(), why="empty: only used with amsgrad")


def _sizes(known: Known, context: Context) -> Guess | None:
    """Sizes of pieces from the views made inside, where as many as there are add up to the whole; else even ones."""
    source, recorded_dim = tensor(known, "self"), value(known, "dim")
    dim = recorded_dim if isinstance(recorded_dim, int) else 0
    if source is None or not -len(source.shape) <= dim < len(source.shape):
        return None
    dim, around = dim % len(source.shape), context.relatives()
    views = next((calls for name in _PIECES if (calls := [c for c in around.children if c.name == name])), [])
    if not views:
        return None
    if (read := _pieces_read(source, len(views), around)) is not None and (recorded_dim is None or read[0] == dim):
        return Guess(value=read[1], why=f"the {len(views)} pieces that are read next")
    whole = source.shape[dim]
    exact = [_piece(call, dim) for call in views]
    if all(size is not None for size in exact) and sum(size or 0 for size in exact) == whole:
        return Guess(value=tuple(exact), why=f"the {len(exact)} pieces made inside")
    size, rest = divmod(whole, len(views))
    return Guess(value=tuple(size + (i < rest) for i in range(len(views))), why=f"{len(views)} even pieces")


def _pieces_read(source: TensorMeta, count: int, around: Relatives) -> tuple[int, Shape] | None:
    """(dimension, sizes) of as many pieces, where the next calls read each of them once in turn."""
    shapes = [arg.tensor.shape for call in around.following for arg in recorded_args(call) if arg.tensor is not None]
    for d in range(len(source.shape)) if count > 1 else ():
        other_sizes = (source.shape[:d], source.shape[d + 1 :])
        sizes = [
            shape[d]
            for shape in shapes
            if len(shape) == len(source.shape) and (shape[:d], shape[d + 1 :]) == other_sizes
        ]
        if sum(sizes[:count]) == source.shape[d] and len(sizes) >= count:
            return d, tuple(sizes[:count])
    return None


def _split_dim(known: Known, context: Context) -> Guess | None:
    source, around = tensor(known, "self"), context.relatives()
    counts = [n for name in _PIECES if (n := sum(call.name == name for call in around.children))]
    read = _pieces_read(source, counts[0], around) if source is not None and counts else None
    return None if read is None else Guess(value=read[0], why=f"the {counts[0]} pieces that are read next")


def _piece(call: OpSignature, dim: int) -> int | None:
    """The size along `dim` of the view that a recorded call makes."""
    args = recorded_args(call)
    if call.name == "aten::as_strided":
        size = args[1].value if len(args) > 1 and args[1].kind == "scalars" else None
        return size[dim] if isinstance(size, tuple) and dim < len(size) else None
    if call.name == "aten::narrow":
        return args[3].value if len(args) > 3 and isinstance(args[3].value, int) else None
    bounds = [arg.value for arg in args[2:4]]
    return bounds[1] - bounds[0] if len(bounds) == 2 and all(isinstance(b, int) for b in bounds) else None


def _flattened(known: Known, context: Context) -> Guess | None:
    """flatten_dense_tensors: each is viewed as one dimension before they are joined."""
    for name in ("aten::view", "aten::reshape", "aten::flatten"):
        metas = _inside(context.relatives().children, name)
        if metas:
            return Guess(tensors=tuple(metas), why=f"the tensors of the {len(metas)} calls of {name} inside")
    return _joined(known, context)


def _unflattened(known: Known, context: Context) -> Guess | None:
    """unflatten_dense_tensors: each piece is viewed in the shape of one tensor; else the pieces themselves."""
    flat = tensor(known, "flat")
    views = [call for call in context.relatives().children if call.name == "aten::view"]
    if flat is None or not views:
        return None
    metas = []
    for call in views:
        size, piece = recorded_args(call)[1:2], first_tensor_of(call)
        shape = size[0].value if size and isinstance(size[0].value, tuple) else piece.shape if piece else None
        if shape is None or any(n < 0 for n in shape):
            return None
        metas.append(TensorMeta(shape=shape, dtype=flat.dtype))
    return Guess(tensors=tuple(metas), why=f"the {len(metas)} views made inside")


def size_inside(around: Relatives, writers: Sequence[str]) -> tuple[Shape, str] | None:
    """The shape that one of `writers` is given below the children, and its name."""
    for call in around.inner:
        meta = first_tensor_of(call) if call.name in writers else None
        if meta is not None:
            return meta.shape, call.name
    return None


LIST_RULES: dict[tuple[str, str], Rule] = {
    ("cat", "tensors"): _joined,
    ("concat", "tensors"): _joined,
    ("concatenate", "tensors"): _joined,
    ("stack", "tensors"): _stacked,
    **{(op, "dim"): _joined_dim(op) for op in ("cat", "concat", "concatenate", "stack")},
    ("flatten_dense_tensors", "tensors"): _flattened,
    ("unflatten_dense_tensors", "tensors"): _unflattened,
    ("split_with_sizes", "split_sizes"): _sizes,
    ("split_with_sizes_copy", "split_sizes"): _sizes,
    ("split_with_sizes", "dim"): _split_dim,
}
"""(op without namespace, argument) → rule."""
OPTIMIZER_LISTS: dict[str, Rule] = {"state_steps": _steps, "max_exp_avg_sqs": _no_tensors}
"""Arguments of `_fused_*` optimizers that are not as long or as large as the parameters."""
