# pyright: strict
"""Guesses arguments of the calls that a composite op makes, from the composite's arguments.

Covers sizes of views and of new memory. The views are those that products, indexing, joins, reductions and transforms
make of their arguments; the memory is what they allocate. A rule returns None if another op makes the call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set

import msgspec

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.guess import copies
from opreplay.replay.resolve.guess.indices import index_tensors
from opreplay.replay.resolve.guess.results import reduction_to
from opreplay.replay.resolve.guess.values import (
    Context,
    Relatives,
    Shape,
    broadcast,
    first_tensor_of,
    first_tensors,
    listed_tensors,
    metas_of,
    recorded_shape,
    tensor_shapes,
)
from opreplay.traces.dtypes import MASKS
from opreplay.traces.model import OpSignature, TensorMeta

_VIEW_NAMES = (
    "view reshape _reshape_alias _unsafe_view flatten unflatten contiguous expand expand_as broadcast_to transpose t "
    "permute movedim numpy_T mT swapaxes slice narrow select squeeze unsqueeze view_as as_strided"
)
VIEWS = frozenset(f"aten::{name}" for name in _VIEW_NAMES.split())
"""Ops that consist of views. A call within such an op counts as made by the op that calls the view."""
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
_BEGIN_EMPTY_NAMES = "index_select nonzero masked_select mish_backward hardtanh_backward searchsorted bucketize where"
_BEGIN_EMPTY = frozenset(f"aten::{name}" for name in _BEGIN_EMPTY_NAMES.split())
"""Ops whose CPU implementation begins with `at::empty({0})`."""
_EMPTY: Shape = (0,)


class Composite(msgspec.Struct, frozen=True, kw_only=True):
    """The composite op that makes a view. Other views between this op and the view are skipped."""

    call: OpSignature
    number: int
    """Index of the composite among the view's ancestors."""
    place: int
    """Number of earlier calls of `name` that the composite makes."""
    name: str
    """Name of the view itself, or of the outermost view that encloses it inside the composite."""
    after: tuple[OpSignature, ...]
    """Calls that the composite makes after this one."""
    around: Relatives

    @property
    def above(self) -> Relatives:
        """Return the calls around the composite itself."""
        return self.around.above(self.number) if self.around.above is not None else Relatives()

    @property
    def siblings(self) -> int:
        """Return the number of calls of `name` that the composite is known to make."""
        return self.place + 1 + sum(call.name == self.name for call in self.after)


def composite_of(around: Relatives) -> Composite | None:
    """Return the composite that makes a call; None if the call is enclosed only by views, or by a label."""
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


def view_sizes(composite: Composite, name: str, source: TensorMeta) -> Iterator[tuple[Shape, str]]:
    """Yield possible shapes of a view inside a composite, each with a reason; most certain first.

    The shapes are derived from the composite's arguments.
    """
    call, shape = composite.call, source.shape
    for size, reader in _multiplied(composite, source):
        yield size, f"{reader} reads sizes {list(size)} inside {call.name}"
    if name in ("aten::expand", "aten::broadcast_to"):
        sizes = [copies.expanded(composite.around) if not composite.number else None, operands(call, shape)]
    elif name in ("aten::slice", "aten::narrow"):
        sizes = [joined_part(composite)]
    elif name in ("aten::unsqueeze", "aten::select", "aten::unbind"):
        sizes = [_image_of_a_row(call, shape), _picked(composite, shape)]
    elif name == "aten::permute":
        order = copies.interleaved(shape, composite.around)
        sizes = [None if order is None else tuple(shape[d] for d in order)]
        sizes += [shape] if composite.after and recorded_shape(composite.after[0]) == shape else []
    else:
        sizes = [transformed(composite, shape), statistics(call, shape), filters(call, shape), stacked(call, shape)]
        sizes += (indexing(composite, source) or ())[:1]
    yield from ((size, f"as in {call.name}") for size in sizes if size is not None)


def _image_of_a_row(call: OpSignature, shape: Shape) -> Shape | None:
    """Return the shape of the 2-d image to which a 1-d convolution reshapes its input."""
    return (*shape[:2], 1, shape[2]) if "convolution" in call.name and len(shape) == 3 else None


def _picked(composite: Composite, shape: Shape) -> Shape | None:
    """Return the shape of a view that picks from a tensor.

    In `index_select`, it is a slice, which has one dimension less. In `nonzero_numpy`, it is the indices of one
    dimension.
    """
    call = composite.call
    if call.name == "aten::nonzero_numpy":
        return shape[:1]
    if call.name != "aten::index_select" or not shape or len(shape) != len(recorded_shape(call) or ()):
        return None
    whole, *rest = metas_of(call)
    count = math.prod(rest[0].shape) if rest else 1
    read = [meta.shape for reader in composite.above.following for meta in metas_of(reader)]
    dims = range(len(shape))
    dim = next((d for d in dims if (*whole.shape[:d], count, *whole.shape[d + 1 :]) in read), 0)
    return (*shape[:dim], *shape[dim + 1 :])


def _multiplied(composite: Composite, source: TensorMeta) -> Iterator[tuple[Shape, str]]:
    """Yield the shapes of what the product inside a `matmul`, `linear` or `einsum` reads.

    If the product inside a `matmul` has already run, yield the shape of the `matmul`'s result.
    """
    if composite.call.name not in _MULTIPLYING:
        return
    reader = next((call for call in composite.after if call.name in _PRODUCTS), None)
    if reader is None:
        result = _product(composite.call) if composite.call.name == "aten::matmul" else None
        if result is not None:
            yield result, composite.call.name
        return
    shapes = tensor_shapes(reader)
    turned = composite.name in ("aten::t", "aten::transpose")  # of a matrix
    ordered = sorted(shapes, key=lambda shape: (shape == source.shape) == turned)
    first = [] if turned else shapes[composite.place : composite.place + 1]
    yield from ((shape, reader.name) for shape in (*first, *ordered))


def _product(call: OpSignature) -> Shape | None:
    """Return the shape of the result of a recorded `matmul`."""
    shapes = tensor_shapes(call, slice(2))
    if len(shapes) < 2 or not all(shapes):
        return None
    batch = broadcast([shape[:-2] for shape in shapes])
    return None if batch is None else (*batch, *shapes[0][-2:-1], *shapes[1][1:][-1:])


def written_over(call: OpSignature, shape: Shape) -> Shape | None:
    """Return the shape of a view that an `index_copy_` or `index_add_` makes.

    The view of self to which it writes has the shape of the written tensor. The view of the index of an `index_copy_`
    has the index's size, and 1 in all other dimensions.
    """
    whole, source = (first_tensor_of(call, position) for position in (0, 3))
    if call.name not in ("aten::index_copy_", "aten::index_add_") or source is None or whole is None:
        return None
    if len(source.shape) != len(whole.shape):
        return None
    if whole.shape == shape:
        return source.shape
    dim = next((d for d, (n, m) in enumerate(zip(source.shape, whole.shape, strict=True)) if n != m), None)
    if call.name != "aten::index_copy_" or dim is None or shape != (source.shape[dim],):
        return None
    return tuple(n if d == dim else 1 for d, n in enumerate(source.shape))


def operands(call: OpSignature, shape: Shape) -> Shape | None:
    """Return the common shape to which a composite expands all its arguments."""
    if call.name == "aten::meshgrid":
        sizes = tuple(math.prod(meta.shape) for meta in metas_of(call))
        # "xy" swaps the first two; a vector of the second one's size comes first then.
        ordered = shape.count(1) < len(shape) and broadcast([shape, sizes]) == sizes
        return sizes if ordered else (*sizes[1::-1], *sizes[2:])
    return broadcast([meta.shape for meta in metas_of(call)])


def statistics(call: OpSignature, shape: Shape) -> Shape | None:
    """Return the shape in which a layer norm views its mean or deviation. It has size 1 in each normalised
    dimension.
    """
    source = first_tensor_of(call)
    if call.name != "aten::native_layer_norm" or source is None or len(shape) != 1:
        return None
    rank = len(source.shape)
    axis = next((d for d in range(rank) if math.prod(source.shape[:d]) == shape[0]), None)
    return None if axis is None else (*source.shape[:axis], *(1,) * (rank - axis))


def filters(call: OpSignature, shape: Shape) -> Shape | None:
    """Return the shape in which a convolution views its filters if it is computed as a matrix product. It has one row
    per filter.
    """
    if "_slow_conv" not in call.name or len(shape) < 3 or not shape[0]:
        return None
    weights = tensor_shapes(call, slice(1, 3))
    return (shape[0], math.prod(shape[1:])) if shape in weights else None


def indexing(composite: Composite, viewed: TensorMeta) -> tuple[Shape, Shape] | None:
    """Return (shape of an index's view, shape of the indexed tensor's view) inside an `index` or `index_put`.

    torch gives each index a size-1 dimension for each unindexed dimension before and after it. It views self with the
    index's shape in place of the indexed dimensions.
    """
    if composite.call.name not in _INDEXING:
        return None
    tensors = {name: first_tensor_of(composite.call, position) for name, position in (("self", 0), ("values", 2))}
    source = tensors["self"]
    known = Call({name: ReplayArg(name=name, type="Tensor", tensors=(meta,)) for name, meta in tensors.items() if meta})
    indices = index_tensors(known, Context(relatives=lambda: composite.above))
    if source is None or indices is None or indices.tensors is None:
        return None
    places = [place for place, meta in enumerate(indices.tensors) if meta is not None]
    if not places or places[-1] - places[0] + 1 != len(places):
        return None
    metas = list(filter(None, indices.tensors))
    before, width = places[0], sum(len(meta.shape) if meta.dtype in MASKS else 1 for meta in metas)
    rest = source.shape[before + width :]
    views = first_tensors(composite.after, ("aten::reshape",))
    shapes = (meta.shape for meta in metas if meta.dtype not in MASKS)
    index = next((meta.shape for meta, _ in views), max(shapes, key=len, default=viewed.shape))
    return (*(1,) * before, *viewed.shape, *(1,) * len(rest)), (*source.shape[:before], *index, *rest)


def joined_forward(around: Relatives) -> Shape | None:
    """Return the shape of the part of the forward `cat` to which this gradient belongs.

    The backward handles the parts in order. The part therefore has the same position in the `cat` as the call has in
    the backward.
    """
    number = next((i for i, call in enumerate(around.ancestors) if call.name not in VIEWS), len(around.places))
    if around.forward is None or number >= len(around.places):
        return None
    part = next(iter(listed_tensors(around.forward)[around.places[number] :]), None)
    return None if part is None else part.shape


def joined_part(composite: Composite) -> Shape | None:
    """Return the shape of the part of a `cat` that is written through a view."""
    parts = listed_tensors(composite.call)[composite.place :] if composite.call.name in _JOINING else ()
    return parts[0].shape if parts and parts[0] is not None else None


def even_piece(composite: Composite, shape: Shape) -> Shape | None:
    """Return the shape of a piece if a composite splits a tensor evenly, along the first dimension that fits."""
    name, count = composite.name, composite.siblings
    if name not in ("aten::narrow", "aten::slice") or count < 2 or composite.call.name.startswith("aten::_pad"):
        return None
    if any(call.name == name and recorded_shape(call) != shape for call in composite.after):
        return None
    pieces = [(*shape[:d], n // count, *shape[d + 1 :]) for d, n in enumerate(shape) if n and not n % count]
    read = [meta.shape for call in composite.around.following for meta in metas_of(call)]
    return next((piece for piece in pieces if piece in read), pieces[0] if pieces else None)


def stacked(call: OpSignature, shape: Shape) -> Shape | None:
    """Return the shape in which `stack` views the `cat` of its tensors. The extra dimension has one entry per
    tensor.
    """
    parts = listed_tensors(call) if call.name == "aten::stack" else ()
    if not shape or not parts or parts[0] is None or len(parts[0].shape) != len(shape):
        return None
    part = parts[0].shape
    dim = next((d for d, (n, m) in enumerate(zip(shape, part, strict=True)) if n != m), 0)
    return (*shape[:dim], len(parts), *part[dim:]) if shape[dim] == len(parts) * part[dim] else None


def reduced_view(composite: Composite, shape: Shape) -> Shape | None:
    """Return the shape of a reduction's result when it is viewed with size 1 in each reduced dimension."""
    source = first_tensor_of(composite.call)
    if source is None or len(source.shape) < len(shape):
        return None
    filled = (meta.shape for meta, _ in first_tensors(composite.after[:3], ("aten::fill_",)))
    if (view := next((size for size in filled if len(size) == len(source.shape)), None)) is not None:
        return view
    if len(source.shape) == len(shape):
        return shape
    reduction = reduction_to(source.shape, shape)
    return reduction and tuple(1 if d in reduction[0] else n for d, n in enumerate(source.shape))


WRITERS = frozenset(
    f"aten::{name}" for name in ("zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_")
)


def allocated_meta(around: Relatives) -> TensorMeta | None:
    """Return the result tensor for which a composite allocates memory before it calls its own `out=` variant."""
    composite = composite_of(around)
    if composite is None or composite.number:
        return None
    return next(_results_of_variants(composite), None)


def _results_of_variants(composite: Composite) -> Iterator[TensorMeta]:
    """Yield the results of the next nested calls that have the composite's own name. The result of such a call is its
    last tensor.
    """
    for call in composite.after[:4]:
        yield from list(metas_of(call))[-1:] if call.name == composite.call.name else ()


def allocated(around: Relatives, written: frozenset[str] = WRITERS) -> tuple[Shape, str] | None:
    """Return the shape of the memory that a composite allocates, with the reason.

    If the memory is passed to the composite's own `out=` variant, it is empty, because the variant resizes it.
    Otherwise, its shape is the one that the next nested calls write, view or resize.
    """
    composite = composite_of(around)
    if composite is None or composite.number:
        return None
    name, after = composite.call.name, composite.after
    if name in _BEGIN_EMPTY and composite.place == 0:
        return _EMPTY, f"{name} makes its result larger later"
    argument_shapes = {meta.shape for meta in metas_of(composite.call)}
    for result in _results_of_variants(composite):
        if result.shape == _EMPTY or result.shape not in argument_shapes:
            return result.shape, f"the out= variant of {name} inside the op writes a tensor of this shape"
    more = next((i for i, call in enumerate(after) if call.name not in _FACTORIES), len(after))
    if 0 < more < len(after) and composite.place == 0 and after[more].name in ("aten::as_strided_", "aten::resize_"):
        return _EMPTY, f"{after[more].name} inside the op receives the tensor allocated next"
    return _read_after(after, more, argument_shapes, written)


def _read_after(
    after: Sequence[OpSignature], more: int, argument_shapes: Set[Shape], written: frozenset[str]
) -> tuple[Shape, str] | None:
    """Return the shape of the first tensor of the next calls that is not an argument of the composite, and the reason.

    `more` is the number of further calls that allocate memory. They are skipped.
    """
    read = [(meta.shape, reader) for meta, reader in first_tensors(after[more:])]
    read = [(size, reader) for size, reader in read if reader in written or size not in argument_shapes]
    # The last that is allocated in a row is read first; what is read for none of them is the result.
    if not read or 0 < read.count(read[0]) <= more:
        return None
    return read[0][0], f"{read[0][1]} inside the op reads a tensor of this shape"


def literal(around: Relatives) -> TensorMeta | None:
    """Return the tensor that the enclosing `torch.tensor` creates from numbers; None for another caller."""
    calls = of_the_same_parent(around)[:2]
    return first_tensor_of(calls[0]) if [call.name for call in calls] == ["aten::to", "aten::lift_fresh"] else None


def of_the_same_parent(around: Relatives) -> tuple[OpSignature, ...]:
    """Return those of the following calls that the same parent makes."""
    return tuple(call for call, level in zip(around.following, around.levels, strict=True) if level == 0)


def transformed(composite: Composite, shape: Shape) -> Shape | None:
    """Return the shape to which a Fourier transform reshapes its argument. It has one batch dimension before the
    transformed dimensions.
    """
    if not composite.call.name.startswith("aten::_fft_"):
        return None
    for meta, _ in first_tensors(composite.after, ("aten::as_strided_",)):
        if 0 < len(meta.shape) <= len(shape) + 1:
            batch_rank = len(shape) - len(meta.shape) + 1
            return (math.prod(shape[:batch_rank]), *shape[batch_rank:])
    return None
