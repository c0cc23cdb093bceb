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


def told(made: Composite, name: str, own: TensorMeta) -> Iterator[tuple[Shape, str]]:
    """Sizes that a view inside a composite may have, by what that was given, the surest first."""
    why = f"as {made.call.name} does it"
    for shape, reader in _multiplied(made, own):
        yield shape, f"{reader} reads {list(shape)} inside {made.call.name}"
    shapes = [transformed(made, own), statistics(made, own.shape), filters(made, own.shape), stacked(made, own.shape)]
    if name in ("aten::expand", "aten::broadcast_to"):
        shapes = [copies.expanded(made.around) if not made.number else None, operands(made, own.shape)]
    elif name in ("aten::slice", "aten::narrow"):
        shapes = [joined_part(made)]
    elif name in ("aten::unsqueeze", "aten::select", "aten::unbind"):
        shapes = [_image_of_a_row(made, own.shape), _picked(made, own.shape)]
    elif name == "aten::permute":
        order = copies.interleaved(own.shape, made.around)
        shapes = [None if order is None else tuple(own.shape[d] for d in order)]
        shapes += [own.shape] if made.after and recorded_shape(made.after[0]) == own.shape else []
    elif (indices := indexing(made, own)) is not None:
        shapes.append(indices[0])
    yield from ((shape, why) for shape in shapes if shape is not None)


def _image_of_a_row(made: Composite, own: Shape) -> Shape | None:
    """What a vector for each channel is convolved as."""
    return (*own[:2], 1, own[2]) if "convolution" in made.call.name and len(own) == 3 else None


def _picked(made: Composite, own: Shape) -> Shape | None:
    """What an `index_select` takes at once: one index less; `nonzero_numpy` takes the numbers of one dimension."""
    if made.call.name == "aten::nonzero_numpy":
        return own[:1]
    if made.call.name != "aten::index_select" or not own or len(own) != len(recorded_shape(made.call) or ()):
        return None
    whole, *rest = metas_of(made.call)
    count = math.prod(rest[0].shape) if rest else 1
    read = [meta.shape for call in made.above.following for meta in metas_of(call)]
    dims = range(len(own))
    dim = next((d for d in dims if (*whole.shape[:d], count, *whole.shape[d + 1 :]) in read), 0)
    return (*own[:dim], *own[dim + 1 :])


def _multiplied(made: Composite, own: TensorMeta) -> Iterator[tuple[Shape, str]]:
    """Sizes in which the product inside a `matmul`, `linear` or `einsum` reads its arguments; after the product of a
    `matmul`, the size of that one's result."""
    if made.call.name not in _MULTIPLYING:
        return
    reader = next((call for call in made.after if call.name in _PRODUCTS), None)
    if reader is None:
        result = _product(made.call) if made.call.name == "aten::matmul" else None
        if result is not None:
            yield result, made.call.name
        return
    shapes = [arg.tensor.shape for arg in recorded_args(reader) if arg.tensor is not None]
    turned = made.name in ("aten::t", "aten::transpose")  # of a matrix
    ordered = sorted(shapes, key=lambda shape: (shape == own.shape) == turned)
    first = [] if turned else shapes[made.place : made.place + 1]
    yield from ((shape, reader.name) for shape in (*first, *ordered))


def _product(call: OpSignature) -> Shape | None:
    """The size of the result of a recorded `matmul`."""
    shapes = [arg.tensor.shape for arg in recorded_args(call)[:2] if arg.tensor is not None]
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    left, right = shapes
    batch = broadcast([left[:-2], right[:-2]])
    if batch is None:
        return None
    return (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common size of tensors of these sizes; None where they have none."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [{n for n in column if n != 1} or {1} for column in zip(*padded, strict=True)]
    return None if any(len(one) > 1 for one in sizes) else tuple(one.pop() for one in sizes)


def _fits_broadcast(own: Shape, whole: Shape) -> bool:
    return len(own) <= len(whole) and all(n in (m, 1) for n, m in zip(reversed(own), reversed(whole), strict=False))


def written_over(made: Composite, own: Shape) -> Shape | None:
    """The view of self that an `index_copy_` or `index_add_` writes to: as large as what is written; and that of the
    index of an `index_copy_`, of size 1 in all other dimensions."""
    args = recorded_args(made.call)
    if made.call.name not in ("aten::index_copy_", "aten::index_add_") or len(args) < 4:
        return None
    source, whole = args[3].tensor, args[0].tensor
    if source is None or whole is None or len(source.shape) != len(whole.shape):
        return None
    if whole.shape == own:
        return source.shape
    dim = next((d for d, (n, m) in enumerate(zip(source.shape, whole.shape, strict=True)) if n != m), None)
    if made.call.name != "aten::index_copy_" or dim is None or own != (source.shape[dim],):
        return None
    return tuple(n if d == dim else 1 for d, n in enumerate(source.shape))


def operands(made: Composite, own: Shape) -> Shape | None:
    """The common size of all that a composite is given, to which it expands each."""
    if made.call.name == "aten::meshgrid":
        sizes = tuple(math.prod(meta.shape) for meta in metas_of(made.call))
        # "xy" swaps the first two; a vector of the second one's size comes first then.
        return sizes if own.count(1) < len(own) and _fits_broadcast(own, sizes) else (*sizes[1::-1], *sizes[2:])
    return broadcast([meta.shape for meta in metas_of(made.call)])


def statistics(made: Composite, own: Shape) -> Shape | None:
    """The view of the mean, or of the deviation, of a layer norm: of size 1 in each dimension that is normalised."""
    source = first_tensor_of(made.call)
    if made.call.name != "aten::native_layer_norm" or source is None or len(own) != 1:
        return None
    axis = next((d for d in range(len(source.shape)) if math.prod(source.shape[:d]) == own[0]), None)
    return None if axis is None else (*source.shape[:axis], *(1,) * (len(source.shape) - axis))


def filters(made: Composite, own: Shape) -> Shape | None:
    """The view of the filters of a convolution that is computed as a product: a row each."""
    weights = recorded_args(made.call)[1:3]
    if "_slow_conv" not in made.call.name or len(own) < 3:
        return None
    if own not in [arg.tensor.shape for arg in weights if arg.tensor is not None] or not own[0]:
        return None
    return (own[0], math.prod(own[1:]))


def indexing(made: Composite, own: TensorMeta) -> tuple[Shape, Shape] | None:
    """(size of an index's view, size of the view of what is indexed) inside an `index` or `index_put`.

    torch gives each index a dimension of size 1 for each dimension that is not indexed, before and after, and views
    self as it will be read: with the index's size in the place of the dimensions that are indexed.
    """
    if made.call.name not in _INDEXING:
        return None
    args = recorded_args(made.call)
    source = args[0].tensor if args else None
    if source is None:
        return None
    known = {"self": ReplayArg(name="self", type="Tensor", tensors=(source,))}
    if len(args) > 2 and args[2].tensor is not None:
        known["values"] = ReplayArg(name="values", type="Tensor", tensors=(args[2].tensor,))
    found = index_tensors(known, Context(relatives=lambda: made.above))
    if found is None or not found.tensors:
        return None
    given = [at for at, meta in enumerate(found.tensors) if meta is not None]
    widths = [len(m.shape) if m is not None and m.dtype in MASKS else 1 for m in found.tensors]
    if not given or given[-1] - given[0] + 1 != len(given):
        return None
    before, width = given[0], sum(widths[at] for at in given)
    rest = source.shape[before + width :]
    view = (*(1,) * before, *own.shape, *(1,) * len(rest))
    shapes = [m.shape for m in found.tensors if m is not None and m.dtype not in MASKS]
    views = [meta.shape for call in made.after if call.name == "aten::reshape" and (meta := first_tensor_of(call))]
    index = views[0] if views else max(shapes, key=len) if shapes else own.shape
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


def joined_part(made: Composite) -> Shape | None:
    """The part of a `cat` that is written through a view."""
    if made.call.name not in _JOINING:
        return None
    args = recorded_args(made.call)
    parts = args[0].tensors if args else None
    if not parts or made.place >= len(parts):
        return None
    part = parts[made.place]
    return None if part is None else part.shape


def even_piece(made: Composite, own: Shape) -> Shape | None:
    """One of the pieces that a composite makes of one tensor, along the first dimension that these fill."""
    if made.name not in ("aten::narrow", "aten::slice") or made.siblings < 2 or made.call.name.startswith("aten::_pad"):
        return None
    if any(call.name == made.name and recorded_shape(call) != own for call in made.after):
        return None
    shapes = [(*own[:d], n // made.siblings, *own[d + 1 :]) for d, n in enumerate(own) if n and not n % made.siblings]
    read = [meta.shape for call in made.around.following for meta in metas_of(call)]
    return next((shape for shape in shapes if shape in read), shapes[0] if shapes else None)


def stacked(made: Composite, own: Shape) -> Shape | None:
    """What `stack` views a `cat` of its tensors as: with one more dimension, of as many as there are."""
    if made.call.name != "aten::stack" or not own:
        return None
    args = recorded_args(made.call)
    parts = args[0].tensors if args else None
    one = parts[0].shape if parts and parts[0] is not None else None
    if not parts or one is None or len(one) != len(own):
        return None
    dim = next((d for d, (n, m) in enumerate(zip(own, one, strict=True)) if n != m), 0)
    return (*own[:dim], len(parts), *one[dim:]) if own[dim] == len(parts) * one[dim] else None


def reduced_view(made: Composite, own: Shape) -> Shape | None:
    """The view of a reduction's result: of size 1 in each dimension that is reduced."""
    source = first_tensor_of(made.call)
    if source is None or len(source.shape) < len(own):
        return None
    for call in made.after[:3]:
        meta = first_tensor_of(call) if call.name == "aten::fill_" else None
        if meta is not None and len(meta.shape) == len(source.shape):
            return meta.shape
    if len(source.shape) == len(own):
        return own
    found = reduction_to(source.shape, own)
    if found is None:
        return None
    return tuple(1 if d in found[0] else n for d, n in enumerate(source.shape))


WRITERS = frozenset(
    f"aten::{name}" for name in ("zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_")
)


def allocated_meta(around: Relatives) -> TensorMeta | None:
    """The tensor that an `out=` variant of the composite inside is given: what the composite allocates for it."""
    made = composite_of(around)
    if made is None or made.number:
        return None
    for call in made.after[:4]:
        metas = list(metas_of(call)) if call.name == made.call.name else []
        if metas:
            return metas[-1]
    return None


def allocated(around: Relatives, written: frozenset[str] = WRITERS) -> tuple[Shape, str] | None:
    """The size of memory that a composite allocates: empty for what is given to an `out=` variant of itself, which
    makes it larger; else what the next calls inside write, view or resize."""
    made = composite_of(around)
    if made is None or made.number:
        return None
    given = {meta.shape for meta in metas_of(made.call)}
    if made.call.name in _BEGIN_EMPTY and made.place == 0:
        return _EMPTY, f"{made.call.name} makes its result larger later"
    for call in made.after[:4]:
        metas = list(metas_of(call)) if call.name == made.call.name else []
        if metas and (metas[-1].shape == _EMPTY or metas[-1].shape not in given):
            return metas[-1].shape, f"the out= variant of {made.call.name} inside writes to it"
    if made.after and made.after[0].name in _FACTORIES:
        resized = next((call for call in made.after if call.name not in _FACTORIES), None)
        if resized is not None and resized.name in ("aten::as_strided_", "aten::resize_") and made.place == 0:
            return _EMPTY, f"{resized.name} inside is given what is allocated next"
    more = next((i for i, call in enumerate(made.after) if call.name not in _FACTORIES), len(made.after))
    read = [(m.shape, c.name) for c in made.after[more:] if (m := first_tensor_of(c)) is not None]
    read = [one for one in read if one[1] in written or one[0] not in given]
    # The last that is allocated in a row is read first; what is read for none of them is the result.
    if more > len(read) or (more and read and more >= sum(one == read[0] for one in read)):
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


def transformed(made: Composite, own: TensorMeta) -> Shape | None:
    """What a Fourier transform makes of its argument: one batch dimension before those that are transformed."""
    if not made.call.name.startswith("aten::_fft_"):
        return None
    for call in made.after:
        meta = first_tensor_of(call) if call.name == "aten::as_strided_" else None
        if meta is not None and 0 < len(meta.shape) <= len(own.shape) + 1:
            kept = own.shape[len(own.shape) - len(meta.shape) + 1 :]
            return (math.prod(own.shape[: len(own.shape) - len(kept)]), *kept)
    return None


def own_meta(known: Known) -> TensorMeta | None:
    """The tensor that a view is taken of."""
    return tensor(known, "self") or tensor(known, "input")
