# pyright: strict
"""Data types for guesses and their evidence; contains no rules."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature, TensorMeta

Shape = tuple[int, ...]
NOT_INSIDE = 99
"""Level of the backward node of the call itself, if this node is the first call in `following`."""


class Relatives(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded calls around one call, which show shapes that the call itself does not show."""

    name: str = ""
    """Op name of the call itself."""
    parent: OpSignature | None = None
    children: tuple[OpSignature, ...] = ()
    inner: tuple[OpSignature, ...] = ()
    """A few calls made by the children, outer levels first."""
    following: tuple[OpSignature, ...] = ()
    """The next few calls in order: those with the same parent, then those after the parent.

    Before the calls that follow the call or its parent comes the backward node of its result. This node is included
    because it has a gradient of the result's shape. A label without sizes, as autograd writes them, is replaced by the
    first nested call that has sizes.
    """
    levels: tuple[int, ...] = ()
    """Level of each call in `following`: 0 if it has the same parent, 1 if it has the parent's parent, and so on. The
    backward node of the call itself has the level NOT_INSIDE.
    """
    ancestors: tuple[OpSignature, ...] = ()
    """The parent, the parent's parent, and so on, up to a few levels."""
    places: tuple[int, ...] = ()
    """Number of earlier calls of the same name with the same parent. The first number is for the call itself, the
    second for its parent, and so on.
    """
    labels: tuple[str, ...] = ()
    """Names of the next labels without sizes, in order."""
    above: Callable[[int], Relatives] | None = None
    """Function that returns the calls around an ancestor, given its index in `ancestors`."""
    forward: OpSignature | None = None
    """The forward call whose backward contains this call, found by autograd's sequence number."""
    before: Callable[[], Relatives] | None = None
    """Function that returns the calls around the call `forward`."""
    backward: tuple[OpSignature, ...] = ()
    """The calls inside the backward node of this call."""
    gradients: tuple[OpSignature, ...] = ()
    """autograd's labels for the gradients of one backward pass; the first tensor of each is as large as a parameter."""
    batched: Callable[[], tuple[OpSignature, Relatives] | None] | None = None
    """Returns the nested call of the same op and the calls around it; under `vmap` this is the call for the batch."""

    @property
    def parent_name(self) -> str:
        """Return the name of the calling op; "" if there is none."""
        return "" if self.parent is None else self.parent.name

    @property
    def forward_shape(self) -> Shape | None:
        """Return the shape of the first tensor of the forward call."""
        return None if self.forward is None else recorded_shape(self.forward)

    @property
    def inside(self) -> tuple[OpSignature, ...]:
        """Return the nested calls, outer levels first."""
        return (*self.children, *self.inner)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a call besides its own arguments, as evidence for guesses."""

    device: str = "cpu"
    """Device on which the plan will be replayed."""
    float_dtype: str = "float32"
    """The most common floating-point dtype of the trace."""
    kernels: tuple[str, ...] = ()
    """Names of the device kernels launched by the recorded calls."""
    lists_recorded: bool = False
    """Whether the trace records sizes of tensor lists. If so, a list without sizes has more elements than profilers
    record.
    """
    number_lists_told: bool = True
    """Whether the trace marks lists of numbers by a type. If not, they look like absent arguments."""
    calls: int = 1
    """Number of recorded calls that are merged into this op."""
    recorded_us: float | None = None
    """Recorded time of one call in microseconds. It is the device time if the call launched device work."""
    relatives: Callable[[], Relatives] = Relatives


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is not in the trace, with the reason for choosing it."""

    why: str
    value: Any = None
    tensors: tuple[TensorMeta | None, ...] | None = None
    """Tensors of a Tensor[] argument."""
    evident: bool = True
    """Whether something in the trace supports the guess. If not, the guess is just a usual value."""


Rule = Callable[[Call, Context], "Guess | None"]
ShapeRule = Callable[[Shape, Call, Context], "Guess | None"]


def by_shape(rule: ShapeRule) -> Rule:
    """Return a rule that calls `rule` with the shape of the op's tensor, and guesses None if that shape is unknown."""

    def guess(known: Call, context: Context) -> Guess | None:
        source = known.subject
        return None if source is None else rule(source.shape, known, context)

    return guess


def always(constant: Any, why: str) -> Rule:
    """Return a rule that always guesses the same value."""
    return lambda known, context: Guess(value=constant, why=why)


last_dim = always(-1, "the last dimension")


def names(text: str) -> tuple[str, ...]:
    """Split names at spaces."""
    return tuple(text.split())


def first_tensor_of(call: OpSignature, position: int = 0) -> TensorMeta | None:
    """Return the tensor at a position of a recorded call. If the position has a list of a single tensor, return this
    tensor.

    Returns None in all other cases.
    """
    args = recorded_args(call)
    if position >= len(args):
        return None
    arg = args[position]
    return arg.tensors[0] if arg.kind == "tensors" and arg.tensors and len(arg.tensors) == 1 else arg.tensor


def first_tensors(calls: Iterable[OpSignature], ops: Container[str] | None = None) -> Iterator[tuple[TensorMeta, str]]:
    """Yield (first tensor, name of the op) for each call that has a tensor, or only for calls of `ops`."""
    for call in calls:
        if (ops is None or call.name in ops) and (meta := first_tensor_of(call)) is not None:
            yield meta, call.name


def listed_tensors(call: OpSignature) -> tuple[TensorMeta | None, ...]:
    """Return the tensors of a recorded call's first argument if it is a list, otherwise ()."""
    args = recorded_args(call)
    return (args[0].tensors if args else None) or ()


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the broadcast shape of tensors of these shapes; None if they do not broadcast."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [{n for n in column if n != 1} or {1} for column in zip(*padded, strict=True)]
    return None if any(len(column) > 1 for column in sizes) else tuple(column.pop() for column in sizes)


def recorded_numbers(call: OpSignature, position: int) -> tuple[int, ...] | None:
    """Return the list of integers at a position of a recorded call's arguments; None if there is none."""
    args = recorded_args(call)
    numbers = args[position].value if position < len(args) else None
    return numbers if is_whole_numbers(numbers) else None


def metas_of(call: OpSignature) -> Iterator[TensorMeta]:
    """Yield the tensors passed to a recorded call, including those in lists."""
    for arg in recorded_args(call):
        yield from (meta for meta in (arg.tensor, *(arg.tensors or ())) if meta is not None)


def tensor_shapes(call: OpSignature, places: slice = slice(None)) -> list[Shape]:
    """Return the shapes of the recorded tensor arguments, without lists."""
    return [arg.tensor.shape for arg in recorded_args(call)[places] if arg.tensor is not None]


def recorded_shape(signature: OpSignature) -> Shape | None:
    """Return the shape of a recorded call's first argument; None if it is not a tensor."""
    if not signature.dims or not signature.types or signature.types[0] in ("", "Scalar", "ScalarList", "TensorList"):
        return None
    first: Any = signature.dims[0]
    return tuple(first) if all(isinstance(n, int) for n in first) else None
