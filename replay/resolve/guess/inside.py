# pyright: strict
"""Guesses for calls that a composite op makes inside itself: what the composite was given tells them.

Owns which sizes the views have that products, indexing, joins, reductions and transforms make of their arguments, and
which sizes the memory has that they allocate. A rule returns None where the call is made by something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess import copies
from opreplay.replay.resolve.guess.indices import index_tensors
from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.results import reduction_to
from opreplay.replay.resolve.guess.values import Context, Known, Relatives, Shape, recorded_shape, tensor
from opreplay.traces.dtypes import MASKS
from opreplay.traces.model import OpSignature, TensorMeta

_VIEW_NAMES = (
    "view reshape _reshape_alias _unsafe_view flatten unflatten contiguous expand expand_as broadcast_to transpose t "
    "permute movedim numpy_T mT swapaxes slice narrow select squeeze unsqueeze view_as as_strided"
)
VIEWS = frozenset(f"aten::{name}" for name in _VIEW_NAMES.split())
"""Ops that are made of views: what is inside one of them belongs to whatever called it."""
_PRODUCTS = frozenset(
    {"aten::bmm", "aten::mm", "aten::addmm", "aten::baddbmm", "aten::mv", "aten::dot", "aten::_euclidean_dist"}
)
_MULTIPLYING = frozenset(
    f"aten::{name}" for name in ("matmul", "linear", "einsum", "cdist", "tensordot", "bilinear", "_trilinear", "inner")
)
_INDEXING = frozenset(
    f"aten::{name}" for name in ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
)
_JOINING = frozenset({"aten::cat", "aten::_cat", "aten::concat", "aten::concatenate"})
_FACTORIES = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"})
_BEGIN_EMPTY = frozenset(
    f"aten::{name}"
    for name in ("index_select", "nonzero", "masked_select", "mish_backward", "hardtanh_backward", "searchsorted")
)
"""Ops whose implementation for a CPU begins with `at::empty({0})`."""
_EMPTY: Shape = (0,)

Fits = Callable[[Shape], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """The call that makes a view, with views around that one left out."""

    call: OpSignature
    number: int
    """Of the ancestor."""
    place: int
    """How many calls of the same name as what leads to the view come before it inside."""
    name: str
    """Of what leads to the view: itself, or the outermost of the views around it."""
    after: tuple[OpSignature, ...]
    """The next calls inside."""
    around: Relatives

    @property
    def above(self) -> Relatives:
        """What surrounds the composite itself."""
        return self.around.above(self.number) if self.around.above is not None else Relatives()

    @property
    def siblings(self) -> int:
        """How many calls of the name of what leads to the view are inside, as far as is known."""
        return self.place + 1 + sum(call.name == self.name for call in self.after)


def composite_of(around: Relatives) -> Composite | None:
    """The composite that makes a call, or None for one that nothing but views, or a label, encloses."""
    number = next((i for i, call in enumerate(around.ancestors) if call.name not in VIEWS), None)
    if number is None or not around.ancestors[number].name.startswith("aten::") or number >= len(around.places):
        return None
    pairs = zip(around.following, around.levels, strict=True)
    return Composite(
        call=around.ancestors[number],
        number=number,
        place=around.places[number],
        name=around.name if number == 0 else around.ancestors[number - 1].name,
        after=tuple(call for call, level in pairs if level <= number),
        around=around,
    )


def metas_of(call: OpSignature) -> Iterator[TensorMeta]:
    """The tensors that a recorded call was given, those of lists among them."""
    for arg in recorded_args(call):
        for meta in (arg.tensor, *(arg.tensors or ())):
            if meta is not None:
                yield meta


def told(composite: Composite, name: str, source: TensorMeta) -> Iterator[tuple[Shape, str]]:
    """Sizes that a view inside a composite may have, by what that was given, the surest first."""
    why = f"as {composite.call.name} does it"
    for shape, reader in _multiplied(composite, source):
        yield shape, f"{reader} reads {list(shape)} inside {composite.call.name}"
    shapes = [
        transformed(composite, source),
        statistics(composite, source.shape),
        filters(composite, source.shape),
        stacked(composite, source.shape),
    ]
    if name in ("aten::expand", "aten::broadcast_to"):
        shapes = [
            copies.expanded(composite.around) if not composite.number else None,
            operands(composite, source.shape),
        ]
    elif name in ("aten::slice", "aten::narrow"):
        shapes = [joined_part(composite)]
    elif name in ("aten::unsqueeze", "aten::select", "aten::unbind"):
        shapes = [_image_of_a_row(composite, source.shape), _picked(composite, source.shape)]
    elif name == "aten::permute":
        order = copies.interleaved(source.shape, composite.around)
        shapes = [None if order is None else tuple(source.shape[d] for d in order)]
        shapes += [source.shape] if composite.after and recorded_shape(composite.after[0]) == source.shape else []
    elif (indices := indexing(composite, source)) is not None:
        shapes.append(indices[0])
    yield from ((shape, why) for shape in shapes if shape is not None)


def _image_of_a_row(composite: Composite, shape: Shape) -> Shape | None:
    """What a vector for each channel is convolved as."""
    return (*shape[:2], 1, shape[2]) if "convolution" in composite.call.name and len(shape) == 3 else None


def _picked(composite: Composite, shape: Shape) -> Shape | None:
    """What an `index_select` takes at once: one index less; `nonzero_numpy` takes the numbers of one dimension."""
    if composite.call.name == "aten::nonzero_numpy":
        return shape[:1]
    if (
        composite.call.name != "aten::index_select"
        or not shape
        or len(shape) != len(recorded_shape(composite.call) or ())
    ):
        return None
    whole, *rest = metas_of(composite.call)
    count = math.prod(rest[0].shape) if rest else 1
    read = [meta.shape for call in composite.above.following for meta in metas_of(call)]
    dims = range(len(shape))
    dim = next((d for d in dims if (*whole.shape[:d], count, *whole.shape[d + 1 :]) in read), 0)
    return (*shape[:dim], *shape[dim + 1 :])


def _multiplied(composite: Composite, source: TensorMeta) -> Iterator[tuple[Shape, str]]:
    """Sizes in which the product inside a `matmul`, `linear` or `einsum` reads its arguments; after the product of a
    `matmul`, the size of that one's result."""
    if composite.call.name not in _MULTIPLYING:
        return
    reader = next((call for call in composite.after if call.name in _PRODUCTS), None)
    if reader is None:
        result = _product(composite.call) if composite.call.name == "aten::matmul" else None
        if result is not None:
            yield result, composite.call.name
        return
    shapes = [arg.tensor.shape for arg in recorded_args(reader) if arg.tensor is not None]
    turned = composite.name in ("aten::t", "aten::transpose")  # of a matrix
    ordered = sorted(shapes, key=lambda shape: (shape == source.shape) == turned)
    first = [] if turned else shapes[composite.place : composite.place + 1]
    yield from ((shape, reader.name) for shape in (*first, *ordered))


def _product(call: OpSignature) -> Shape | None:
    """The size of the result of a recorded `matmul`."""
    shapes = [arg.tensor.shape for arg in recorded_args(call)[:2] if arg.tensor is not None]
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    first, second = shapes
    batch = broadcast([first[:-2], second[:-2]])
    if batch is None:
        return None
    return (*batch, *first[-2:-1], *(second[-1:] if len(second) > 1 else ()))


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common size of tensors of these sizes; None where they have none."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [{n for n in column if n != 1} or {1} for column in zip(*padded, strict=True)]
    return (
        None
        if any(len(column_sizes) > 1 for column_sizes in sizes)
        else tuple(column_sizes.pop() for column_sizes in sizes)
    )


def _fits_broadcast(shape: Shape, whole: Shape) -> bool:
    return len(shape) <= len(whole) and all(n in (m, 1) for n, m in zip(reversed(shape), reversed(whole), strict=False))


def written_over(composite: Composite, shape: Shape) -> Shape | None:
    """The view of self that an `index_copy_` or `index_add_` writes to: as large as what is written; and that of the
    index of an `index_copy_`, of size 1 in all other dimensions."""
    args = recorded_args(composite.call)
    if composite.call.name not in ("aten::index_copy_", "aten::index_add_") or len(args) < 4:
        return None
    source, whole = args[3].tensor, args[0].tensor
    if source is None or whole is None or len(source.shape) != len(whole.shape):
        return None
    if whole.shape == shape:
        return source.shape
    dim = next((d for d, (n, m) in enumerate(zip(source.shape, whole.shape, strict=True)) if n != m), None)
    if composite.call.name != "aten::index_copy_" or dim is None or shape != (source.shape[dim],):
        return None
    return tuple(n if d == dim else 1 for d, n in enumerate(source.shape))


def operands(composite: Composite, shape: Shape) -> Shape | None:
    """The common size of all that a composite is given, to which it expands each."""
    if composite.call.name == "aten::meshgrid":
        sizes = tuple(math.prod(meta.shape) for meta in metas_of(composite.call))
        # "xy" swaps the first two; a vector of the second one's size comes first then.
        return sizes if shape.count(1) < len(shape) and _fits_broadcast(shape, sizes) else (*sizes[1::-1], *sizes[2:])
    return broadcast([meta.shape for meta in metas_of(composite.call)])


def statistics(composite: Composite, shape: Shape) -> Shape | None:
    """The view of the mean, or of the deviation, of a layer norm: of size 1 in each dimension that is normalised."""
    source = first_tensor_of(composite.call)
    if composite.call.name != "aten::native_layer_norm" or source is None or len(shape) != 1:
        return None
    axis = next((d for d in range(len(source.shape)) if math.prod(source.shape[:d]) == shape[0]), None)
    return None if axis is None else (*source.shape[:axis], *(1,) * (len(source.shape) - axis))


def filters(composite: Composite, shape: Shape) -> Shape | None:
    """The view of the filters of a convolution that is computed as a product: a row each."""
    weights = recorded_args(composite.call)[1:3]
    if "_slow_conv" not in composite.call.name or len(shape) < 3:
        return None
    if shape not in [arg.tensor.shape for arg in weights if arg.tensor is not None] or not shape[0]:
        return None
    return (shape[0], math.prod(shape[1:]))


def indexing(composite: Composite, viewed: TensorMeta) -> tuple[Shape, Shape] | None:
    """(size of an index's view, size of the view of what is indexed) inside an `index` or `index_put`.

    torch gives each index a dimension of size 1 for each dimension that is not indexed, before and after, and views
    self as it will be read: with the index's size in the place of the dimensions that are indexed.
    """
    if composite.call.name not in _INDEXING:
        return None
    args = recorded_args(composite.call)
    source = args[0].tensor if args else None
    if source is None:
        return None
    known = {"self": ReplayArg(name="self", type="Tensor", tensors=(source,))}
    if len(args) > 2 and args[2].tensor is not None:
        known["values"] = ReplayArg(name="values", type="Tensor", tensors=(args[2].tensor,))
    index_list = index_tensors(known, Context(relatives=lambda: composite.above))
    if index_list is None or not index_list.tensors:
        return None
    positions = [at for at, meta in enumerate(index_list.tensors) if meta is not None]
    widths = [len(m.shape) if m is not None and m.dtype in MASKS else 1 for m in index_list.tensors]
    if not positions or positions[-1] - positions[0] + 1 != len(positions):
        return None
    before, width = positions[0], sum(widths[at] for at in positions)
    rest = source.shape[before + width :]
    view = (*(1,) * before, *viewed.shape, *(1,) * len(rest))
    shapes = [m.shape for m in index_list.tensors if m is not None and m.dtype not in MASKS]
    views = [meta.shape for call in composite.after if call.name == "aten::reshape" and (meta := first_tensor_of(call))]
    index = views[0] if views else max(shapes, key=len) if shapes else viewed.shape
    return view, (*source.shape[:before], *index, *rest)


def joined_forward(around: Relatives) -> Shape | None:
    """The part of the forward `cat` whose gradient this is: the node takes them in turn."""
    number = next((i for i, call in enumerate(around.ancestors) if call.name not in VIEWS), len(around.places))
    args = recorded_args(around.forward) if around.forward is not None else ()
    parts = args[0].tensors if args else None
    if not parts or number >= len(around.places) or around.places[number] >= len(parts):
        return None
    part = parts[around.places[number]]
    return None if part is None else part.shape


def joined_part(composite: Composite) -> Shape | None:
    """The part of a `cat` that is written through a view."""
    if composite.call.name not in _JOINING:
        return None
    args = recorded_args(composite.call)
    parts = args[0].tensors if args else None
    if not parts or composite.place >= len(parts):
        return None
    part = parts[composite.place]
    return None if part is None else part.shape


def even_piece(composite: Composite, source_shape: Shape) -> Shape | None:
    """One of the pieces that a composite makes of one tensor, along the first dimension that these fill."""
    if (
        composite.name not in ("aten::narrow", "aten::slice")
        or composite.siblings < 2
        or composite.call.name.startswith("aten::_pad")
    ):
        return None
    if any(call.name == composite.name and recorded_shape(call) != source_shape for call in composite.after):
        return None
    shapes = [
        (*source_shape[:d], n // composite.siblings, *source_shape[d + 1 :])
        for d, n in enumerate(source_shape)
        if n and not n % composite.siblings
    ]
    read = [meta.shape for call in composite.around.following for meta in metas_of(call)]
    return next((shape for shape in shapes if shape in read), shapes[0] if shapes else None)


def stacked(composite: Composite, shape: Shape) -> Shape | None:
    """What `stack` views a `cat` of its tensors as: with one more dimension, of as many as there are."""
    if composite.call.name != "aten::stack" or not shape:
        return None
    args = recorded_args(composite.call)
    parts = args[0].tensors if args else None
    part_shape = parts[0].shape if parts and parts[0] is not None else None
    if not parts or part_shape is None or len(part_shape) != len(shape):
        return None
    dim = next((d for d, (n, m) in enumerate(zip(shape, part_shape, strict=True)) if n != m), 0)
    return (*shape[:dim], len(parts), *part_shape[dim:]) if shape[dim] == len(parts) * part_shape[dim] else None


def reduced_view(composite: Composite, shape: Shape) -> Shape | None:
    """The view of a reduction's result: of size 1 in each dimension that is reduced."""
    source = first_tensor_of(composite.call)
    if source is None or len(source.shape) < len(shape):
        return None
    for call in composite.after[:3]:
        meta = first_tensor_of(call) if call.name == "aten::fill_" else None
        if meta is not None and len(meta.shape) == len(source.shape):
            return meta.shape
    if len(source.shape) == len(shape):
        return shape
    reduction = reduction_to(source.shape, shape)
    if reduction is None:
        return None
    return tuple(1 if d in reduction[0] else n for d, n in enumerate(source.shape))


WRITERS = frozenset(
    f"aten::{name}" for name in ("zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_")
)


def allocated_meta(around: Relatives) -> TensorMeta | None:
    """The tensor that an `out=` variant of the composite inside is given: what the composite allocates for it."""
    composite = composite_of(around)
    if composite is None or composite.number:
        return None
    for call in composite.after[:4]:
        metas = list(metas_of(call)) if call.name == composite.call.name else []
        if metas:
            return metas[-1]
    return None


def allocated(around: Relatives, written: frozenset[str] = WRITERS) -> tuple[Shape, str] | None:
    """The size of memory that a composite allocates: empty for what is given to an `out=` variant of itself, which
    makes it larger; else what the next calls inside write, view or resize."""
    composite = composite_of(around)
    if composite is None or composite.number:
        return None
    argument_shapes = {meta.shape for meta in metas_of(composite.call)}
    if composite.call.name in _BEGIN_EMPTY and composite.place == 0:
        return _EMPTY, f"{composite.call.name} makes its result larger later"
    for call in composite.after[:4]:
        metas = list(metas_of(call)) if call.name == composite.call.name else []
        if metas and (metas[-1].shape == _EMPTY or metas[-1].shape not in argument_shapes):
            return metas[-1].shape, f"the out= variant of {composite.call.name} inside writes to it"
    if composite.after and composite.after[0].name in _FACTORIES:
        resized = next((call for call in composite.after if call.name not in _FACTORIES), None)
        if resized is not None and resized.name in ("aten::as_strided_", "aten::resize_") and composite.place == 0:
            return _EMPTY, f"{resized.name} inside is given what is allocated next"
    more = next((i for i, call in enumerate(composite.after) if call.name not in _FACTORIES), len(composite.after))
    read = [(m.shape, c.name) for c in composite.after[more:] if (m := first_tensor_of(c)) is not None]
    read = [read_shape for read_shape in read if read_shape[1] in written or read_shape[0] not in argument_shapes]
    # The last that is allocated in a row is read first; what is read for none of them is the result.
    if more > len(read) or (more and read and more >= sum(read_shape == read[0] for read_shape in read)):
        return None
    return (read[0][0], f"{read[0][1]} inside is given it") if read else None


def literal(around: Relatives) -> TensorMeta | None:
    """What `torch.tensor` makes of numbers, if that is what allocates: it lifts what it has copied."""
    calls = of_the_same_parent(around)[:2]
    if [call.name for call in calls] != ["aten::to", "aten::lift_fresh"]:
        return None
    return first_tensor_of(calls[0])


def of_the_same_parent(around: Relatives) -> tuple[OpSignature, ...]:
    """The next calls that the same parent makes."""
    return tuple(call for call, level in zip(around.following, around.levels, strict=True) if level == 0)


def transformed(composite: Composite, source: TensorMeta) -> Shape | None:
    """What a Fourier transform makes of its argument: one batch dimension before those that are transformed."""
    if not composite.call.name.startswith("aten::_fft_"):
        return None
    for call in composite.after:
        meta = first_tensor_of(call) if call.name == "aten::as_strided_" else None
        if meta is not None and 0 < len(meta.shape) <= len(source.shape) + 1:
            signal = source.shape[len(source.shape) - len(meta.shape) + 1 :]
            return (math.prod(source.shape[: len(source.shape) - len(signal)]), *signal)
    return None


def own_meta(known: Known) -> TensorMeta | None:
    """The tensor that a view is taken of."""
    return tensor(known, "self") or tensor(known, "input")
