# pyright: strict
"""Finds arguments of views by trial: calls the view on a meta tensor with each choice of arguments until a result
matches evidence in the trace.

Decides which values to try for an argument, by its type and name, and where in the trace to search for results. `views`
has the default values for views without evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, combinations, islice, product
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess import copies, inside
from opreplay.replay.resolve.guess.batches import recorded_by_name
from opreplay.replay.resolve.guess.values import NOT_INSIDE, Context, Guess, Relatives, Shape, metas_of, recorded_shape
from opreplay.replay.resolve.match import Match, best_match
from opreplay.replay.resolve.schema import ArgSpec, OpSpec, specs_of
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    import torch

MAX_RANK = 12
"""Maximum rank of a viewed tensor for which arguments are tried."""
MAX_TARGETS = 64
"""Maximum number of possible result shapes that are considered. It is limited because lists read by the next calls may
have thousands of tensors.
"""
MAX_PIECES = 4096
SOON = 4
"""Number of following calls that are searched for the result of a slice, which may be as large as the sliced tensor."""
_CUTS = frozenset({"aten::slice", "aten::narrow"})
_RESHAPES = frozenset({"aten::view", "aten::reshape", "aten::_unsafe_view"})
_NO_READERS = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"})


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


SEARCHED = _aten(
    "view reshape _unsafe_view expand broadcast_to permute transpose transpose_ swapaxes swapdims t mT numpy_T movedim "
    "moveaxis unsqueeze unsqueeze_ squeeze squeeze_ select unbind flatten unflatten slice narrow chunk unsafe_chunk "
    "split unsafe_split tensor_split"
)
"""Views whose arguments are found by trial. This is fast, because a call on a meta tensor costs almost nothing."""
_GRADIENTS = _aten("slice_backward select_backward")
_STRIDED = _aten("as_strided as_strided_ _reshape_alias")
_VIEWS = SEARCHED | _aten("split_with_sizes diagonal unfold expand_as view_as")
"""Views whose result is the result of a nested view."""
_REVERSED = re.compile(
    r"(View|UnsafeView|ReshapeAlias|Expand|Sum|Mean|T|Transpose|Permute|Squeeze|Unsqueeze|Alias)Backward\d*"
)
"""Matches backward nodes of ops. These nodes restore the input size from the result's gradient with a view, possibly
after another op.
"""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments that were tried, with the shape and strides of the result."""

    values: Mapping[str, Any]
    shape: Shape
    strides: Shape
    why: str = ""
    shown: bool = True
    """Whether something in the trace shows the result. If not, the result follows from guessed arguments."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A possible shape of the result, with its evidence."""

    shape: Shape
    why: str
    sure: bool = False
    """Whether the shape is accepted even if it equals that of the viewed tensor."""


Usual = Callable[[OpSpec, ArgSpec, Call, Context], Guess | None]


def search(spec: OpSpec, known: Call, context: Context, usual: Usual) -> Tried | None:
    """Return the first choice of the unknown arguments whose result appears in the trace; None if there is none.

    If the enclosing view has no choice with a result in the trace, `usual` guesses its arguments.
    """
    if spec.name in _GRADIENTS:
        return _forward(spec.name.removesuffix("_backward"), known, context)
    source = known.subject
    if source is None:
        return None
    if spec.name in _STRIDED:
        outer = _result_of_parent(source, context, usual)
        return (
            None
            if outer is None
            else msgspec.structs.replace(outer, values={"size": outer.shape, "stride": outer.strides})
        )
    if spec.name not in SEARCHED or len(source.shape) > MAX_RANK:
        return None
    targets = list(islice(_targets(spec.name, source, context, usual), MAX_TARGETS))
    results = _results(spec, source, known, context.relatives(), [target.shape for target in targets])
    shown = (t for t in targets if t.shape in results if t.sure or t.shape != source.shape)
    return next((msgspec.structs.replace(results[t.shape], why=t.why) for t in shown), None)


def _forward(name: str, known: Call, context: Context) -> Tried | None:
    """Return the arguments for which the view `name` gives the shape of the gradient passed to its backward."""
    sizes, grad = known.value("input_sizes"), known.first_tensor()
    spec = next((spec for spec in specs_of(name) if spec.overload in ("int", "Tensor")), None)
    if spec is None or grad is None or not is_whole_numbers(sizes) or len(sizes) > MAX_RANK:
        return None
    recorded = Call({name: known[name] for name in ("dim", "end") if name in known})
    source = TensorMeta(shape=sizes, dtype=grad.dtype)
    tried = _results(spec, source, recorded, context.relatives(), [grad.shape]).get(grad.shape)
    return tried and msgspec.structs.replace(tried, why="the size of the gradient")


def _result_of_parent(source: TensorMeta, context: Context, usual: Usual) -> Tried | None:
    """Return the result of the view that makes a call; None if no view makes the call.

    The view's own arguments are guessed first.
    """
    around = context.relatives()
    call, above = around.parent, around.above
    if call is None or above is None or call.name not in _VIEWS or recorded_shape(call) != source.shape:
        return None
    match = best_match(specs_of(call.name), recorded_args(call))
    if match is None:
        return None
    caller, known = msgspec.structs.replace(context, relatives=cache(lambda: above(0))), recorded_by_name(match)
    tried = search(match.spec, known, caller, usual)
    if tried is None:
        return _usual_result(match, source, known, caller, usual, place=around.places[0])
    result = _called(match.spec, source, list(tried.values.values()), place=around.places[0])
    return result and msgspec.structs.replace(result, why=f"as {call.name}: {tried.why}")


def _usual_result(
    match: Match, source: TensorMeta, known: Call, caller: Context, usual: Usual, *, place: int
) -> Tried | None:
    """Return the result of a view. `usual` guesses the arguments that are not recorded."""
    why, shown = "recorded", True
    for arg in _positional(match.spec):
        guessed = usual(match.spec, arg, known, caller) if arg.name not in known else None
        if guessed is not None:
            known[arg.name] = ReplayArg(name=arg.name, type=arg.kind, value=guessed.value)
            why, shown = guessed.why, False
    values = [_plain(known, arg) for arg in _positional(match.spec)]
    result = _called(match.spec, source, values, place=place)
    return result and msgspec.structs.replace(result, why=f"as {match.spec.name}: {why}", shown=shown)


def _positional(spec: OpSpec) -> list[ArgSpec]:
    """Return the positional arguments after the tensor, which determine the view."""
    return [arg for arg in spec.args[1:] if not arg.keyword_only]


def _plain(known: Call, arg: ArgSpec) -> Any:
    """Return the value of an argument for a call on meta tensors."""
    meta = known[arg.name].tensors[0] if arg.name in known and known[arg.name].tensors else None
    return known.value(arg.name) if meta is None else _on_meta(meta)


def _on_meta(meta: TensorMeta) -> torch.Tensor:
    import torch

    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype or "float32", torch.float32), device="meta")


def _called(
    spec: OpSpec, source: TensorMeta, values: Sequence[Any], count: int | None = None, place: int = 0
) -> Tried | None:
    """Call an overload on a meta tensor and return its result number `place`.

    Returns None if the call fails or does not return `count` results.
    """
    named = dict(zip((arg.name for arg in _positional(spec)), values, strict=True))
    bounded = not spec.returns_list or named.keys() & {"chunks", "sections", "split_sizes"}
    if not bounded and max(source.shape, default=0) > MAX_PIECES * max(1, named.get("split_size") or 1):
        return None
    import torch

    overload = getattr(getattr(torch.ops.aten, spec.name.partition("::")[2]), spec.overload or "default")
    with suppress(RuntimeError, IndexError, ValueError, TypeError):
        result: Any = overload(_on_meta(source), *values)
        if count is not None and len(result) != count:
            return None
        view: torch.Tensor = result[place] if spec.returns_list else result
        return Tried(values=named, shape=tuple(view.shape), strides=view.stride())
    return None


def _results(
    spec: OpSpec, source: TensorMeta, known: Call, around: Relatives, targets: Sequence[Shape]
) -> dict[Shape, Tried]:
    """Map each possible result shape to the first choice of arguments that gives this shape."""
    choices = [
        [_plain(known, arg)] if arg.name in known else _choices(spec.name, arg, source.shape, around, targets)
        for arg in _positional(spec)
    ]
    results: dict[Shape, Tried] = {}
    count = _pieces_inside(around) if spec.returns_list else None
    for values in product(*choices):
        tried = _called(spec, source, values, count)
        if tried is not None and ("dim0" not in tried.values or tried.values["dim0"] != tried.values["dim1"]):
            results.setdefault(tried.shape, tried)
    return results


def _pieces_inside(around: Relatives) -> int | None:
    """Return the number of nested views that a call makes; None if no view is recorded."""
    names = [call.name for call in around.inside]
    counts = (names.count(f"aten::{name}") for name in ("narrow", "slice", "select", "as_strided"))
    return next((count for count in counts if count), None)


def _choices(op: str, arg: ArgSpec, shape: Shape, around: Relatives, targets: Sequence[Shape]) -> Iterable[Any]:
    """Return the values to try for an argument. If several values give the same result shape, the first one is used."""
    rank = len(shape)
    if op in ("aten::squeeze", "aten::squeeze_"):
        return _squeezed(arg, shape, around)
    match arg.name:
        case "dim" | "dim0" | "start_dim" | "end_dim":
            return range(rank + 1)
        case "dim1":
            return range(1, rank)
        case "dims":
            return [_order(shape, target, around) for target in targets if sorted(target) == sorted(shape)]
        case "size" | "shape":
            return (*dict.fromkeys(targets), shape)
        case "sizes":
            cuts = (target[d : d + len(target) - rank + 1] for target in targets for d in range(rank))
            return [cut for cut in cuts if len(cut) > 1]
        case "end" | "length" | "split_size":
            return dict.fromkeys(filter(None, chain.from_iterable(targets)))
        case "chunks" | "sections":
            return [_pieces_inside(around) or 2]
        case "source" | "destination":
            return range(rank) if arg.kind == "int" else [(d,) for d in range(rank)]
        case name:
            return [1 if name == "step" else 0]


def _squeezed(arg: ArgSpec, shape: Shape, around: Relatives) -> Iterable[Any]:
    """Return the values to try as `dim` of a squeeze, the last dimension first. Several dimensions at once are tried
    only inside a composite.
    """
    ones = [d for d in reversed(range(len(shape))) if shape[d] == 1]
    max_dims = len(ones) if inside.composite_of(around) is not None else 1
    several = [dims for count in range(max_dims, -1, -1) for dims in combinations(ones, count)]
    return ones if arg.kind == "int" else several


def _order(shape: Shape, target: Shape, around: Relatives) -> tuple[int, ...]:
    """Return the permutation that turns `shape` into `target`.

    Dimensions of equal size keep their order, with three exceptions. Before an `unbind`, the first dimension is assumed
    to come from another position. `repeat` has its own order. A backward permutation is the inverse of the forward one.
    """
    repeated = copies.interleaved(shape, around)
    if repeated is not None and tuple(shape[d] for d in repeated) == target:
        return repeated
    forward = around.forward
    is_back = forward is not None and forward.name == "aten::permute" and recorded_shape(forward) == target
    if is_back and around.before is not None:
        ahead = _order(target, shape, around.before())
        return tuple(sorted(range(len(shape)), key=ahead.__getitem__))
    apart = any(call.name == "aten::unbind" and recorded_shape(call) == target for call in around.following)
    return _by_size(shape, target, apart=apart)


def _by_size(shape: Shape, target: Shape, *, apart: bool) -> tuple[int, ...]:
    """Return the permutation that turns `shape` into `target`.

    Dimensions of equal size keep their order. With `apart`, the first dimension does not stay first if another
    dimension has the same size.
    """
    free = list(range(len(shape)))
    dims: list[int] = []
    for n in target:
        fitting = [d for d in free if shape[d] == n]
        is_next = apart and not dims and fitting[0] == 0 and len(fitting) > 1
        dims.append(fitting[is_next])
        free.remove(dims[-1])
    return tuple(dims)


def _targets(op: str, source: TensorMeta, context: Context, usual: Usual) -> Iterator[Target]:
    """Yield possible shapes of a view's result, most certain first."""
    around = context.relatives()
    composite = inside.composite_of(around)
    outer = _result_of_parent(source, context, usual)
    if outer is not None and outer.shown:
        yield Target(shape=outer.shape, why=outer.why, sure=True)
    if composite is not None:
        for shape, why in inside.view_sizes(composite, op, source):
            yield Target(shape=shape, why=why, sure=True)
    yield from _backward(around, source.shape)
    yield from _read_targets(op, source, around)
    if composite is not None and (piece := inside.even_piece(composite, source.shape)) is not None:
        yield Target(shape=piece, why=f"one of the pieces of {composite.call.name}")
    if outer is not None:
        yield Target(shape=outer.shape, why=outer.why, sure=True)


def _read_targets(op: str, source: TensorMeta, around: Relatives) -> Iterator[Target]:
    """Yield shapes that the next calls read. For slices, stop at a call that reads the whole tensor."""
    first, shape = recorded_shape(around.following[0]) if around.following else None, source.shape
    if first == shape and (around.levels[:1] == (NOT_INSIDE,) or (shape == () and op != "aten::expand")):
        yield Target(shape=shape, why=f"{around.following[0].name} reads sizes {list(shape)} next", sure=True)
    if first == shape and op == "aten::movedim" and around.following[0].name == "aten::reshape":
        # vmap joins the batch with another dimension by `movedim` and `reshape`, whether or not it has to be moved.
        yield Target(shape=shape, why=f"aten::reshape reads sizes {list(shape)} next", sure=around.levels[:1] == (0,))
    if op in _RESHAPES:
        yield from _batch_targets(source.shape, around)
    for call in around.following[: SOON if op in _CUTS else None]:
        metas = list(metas_of(call)) if call.name not in _NO_READERS else []
        for meta in metas:
            if "" in (meta.dtype, source.dtype) or meta.dtype == source.dtype:
                yield Target(shape=meta.shape, why=f"{call.name} reads sizes {list(meta.shape)} next")
        if op in _CUTS and call.name not in inside.VIEWS and any(meta.shape == shape for meta in metas):
            break


def _batch_targets(shape: Shape, around: Relatives) -> Iterator[Target]:
    """Yield batched shapes of tensors read later, if vmap makes this view inside the call for one sample."""
    for call, level in zip(around.following, around.levels, strict=True):
        if level == 0:
            continue
        for meta in metas_of(call):
            count, rest = divmod(math.prod(shape), max(1, math.prod(meta.shape)))
            if not rest and count > 1 and _makes_batch(around, count):
                whole = (count, *meta.shape)
                yield Target(
                    shape=whole,
                    why=f"a batch of {count} tensors of sizes {list(meta.shape)}, which {call.name} reads next",
                )


def _makes_batch(around: Relatives, count: int) -> bool:
    """Check whether the enclosing op is recorded for one of `count` samples and its nested call for the batch."""
    outer = next((call for call in around.ancestors if call.name not in inside.VIEWS), None)
    shape = None if outer is None else recorded_shape(outer)
    if outer is None or shape is None or around.above is None:
        return False
    level = around.above(around.ancestors.index(outer))
    read = (meta.shape for call in level.inside for meta in metas_of(call))
    return any(size[:1] == (count,) and size[1:] == shape for size in read)


def _backward(around: Relatives, source_shape: Shape) -> Iterator[Target]:
    """Yield the shape that a view in a backward node restores. It is the shape of the forward call's argument."""
    node = next((call.name for call in around.ancestors if "::" not in call.name), "")
    forward = around.forward_shape
    if node.startswith("Cat"):
        forward = inside.joined_forward(around)
    elif _REVERSED.fullmatch(node) is None:
        forward = None
    if around.forward is not None and forward is not None:
        yield Target(
            shape=forward, why=f"{around.forward.name} had sizes {list(forward)} in the forward pass", sure=True
        )
    if source_shape[:1] == (1,) and around.parent_name.startswith("autograd::engine"):
        shape = _without_front(source_shape, around)
        yield Target(shape=shape, why="a summed gradient loses its leading dimensions", sure=True)


def _without_front(shape: Shape, around: Relatives) -> Shape:
    """Return the shape without some or all of its leading dimensions of size 1.

    The result is the first such shape that a following call reads. If none is read, all leading dimensions of size 1
    are removed.
    """
    ones = next((d for d, n in enumerate(shape) if n != 1), len(shape))
    stripped = [shape[at:] for at in range(1, ones + 1)]
    read = (meta.shape for call in around.following for meta in metas_of(call))
    return next((size for size in read if size in stripped), stripped[-1])
