"""Fills the arguments of a case with the op's initializers, calls the op and its reference, and splits results into
tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from opreplay.replay.arguments.tensors import flattened, tensors_in
from opreplay.replay.check import variants
from opreplay.replay.check.calling.target import OfNames, Reference, Target
from opreplay.replay.check.cases import Case, Trait, Values
from opreplay.replay.execute.executors.torch.caches import copied
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.resolve.schema import OpSpec
from opreplay.traces.dtypes import SCALAR_TYPE_CODES

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
"""Dtype → the wider dtype in which its exact result is computed; dtypes without a wider one are missing."""


ROOM_BYTES, ROOM_BYTE = 256, 0x55
"""Number of bytes added behind the last element of a slice, and the value of each of these bytes."""
LARGE = 100.0
"""Factor for "large" values: some of their exponentials overflow float32, and many of their squares overflow
float16.
"""
LARGE_INTEGER = 2**24 + 1
"""Factor for "large" int32 values: the first integer that float32 cannot represent."""
FAR_OFFSET, FAR_OFFSET_16_BITS = 1024.0, 32.0
"""Offsets that are added to make "far" values. The second one is for 16-bit dtypes. With these offsets, values are far
from zero, but float16 and float32 still represent each of them to about a hundredth.
"""
SMALL = 2.0**-20
BEYOND_FLOAT16_FACTOR = 2.0**18
"""Factor for "beyond" values: float16 can represent only a few of the values multiplied by it."""
OUTSIDE: dict[Values, int] = {"too large": 1_000_003, "negative": -1_000_003}
"""Integers that are not a valid index into any tensor."""
INTEGER_ONLY_VALUES = frozenset[Values](("signed", *OUTSIDE))
"""Kinds of values that apply to integers only."""
MOST_ZEROS = 64
HALVES_LARGEST, HALVES_EVERY = 63.5, 8
"""Every `HALVES_EVERY`-th of the "halves" values is the largest one, so that each group of a quantization has it. The
int8 scale is then 1/2, and multiples of 1/4 are rounded from the middle between two integers.
"""
OF_ROWS: dict[Values, float] = {
    "NaN in rows": float("nan"),
    "rows of -inf": float("-inf"),
    "rows far below zero": -(2.0**15),
    "rows of zeros": 0.0,
}
"""Kind of values → value written into selected rows. The value far below zero fits into float16, and sums of it are
exact.
"""
SIGNS: dict[Trait, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugated": lambda t: t.conj_physical().conj() if t.is_complex() else t,
    "negated": lambda t: torch.ops.aten._neg_view(-t) if is_float(t) else t,
}
"""For the traits "conjugated" and "negated": a function that returns an equal tensor as a lazy view. Torch has not yet
applied the view's conjugation or negation to the memory.
"""


class Arguments(msgspec.Struct, frozen=True):
    """Arguments of one call, by name, in the schema's order."""

    values: dict[str, Any]
    keyword_only: frozenset[str]
    written: tuple[str, ...]
    """Names of the arguments that the op writes to, according to its schema."""

    @property
    def positional(self) -> list[Any]:
        return [value for name, value in self.values.items() if name not in self.keyword_only]

    @property
    def by_name(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if name in self.keyword_only}

    def copy(self) -> Arguments:
        """Return a copy with the same values and strides in separate memory. Arguments that shared memory also share it
        in the copy.
        """
        memo: dict[int, Any] = {}
        return Arguments(
            {name: copied(value, memo) for name, value in self.values.items()}, self.keyword_only, self.written
        )

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        """Return the arguments with each tensor `t` replaced by `change(t)`."""

        def replaced(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return change(value)
            return [replaced(item) for item in value] if isinstance(value, list) else value

        values = {name: replaced(value) for name, value in self.values.items()}
        return Arguments(values, self.keyword_only, self.written)

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, with lists flattened; a tensor passed twice is listed twice."""
        return tensors_in(list(self.values.values()))

    def named_tensors(self) -> dict[str, torch.Tensor]:
        """Return the arguments that are single tensors."""
        return {name: value for name, value in self.values.items() if isinstance(value, torch.Tensor)}


class Results(msgspec.Struct):
    """The results of a call: what it returned, and the arguments that it wrote to, after the call."""

    returned: list[torch.Tensor] = msgspec.field(default_factory=list)
    written: list[torch.Tensor] = msgspec.field(default_factory=list)
    others: list[Any] = msgspec.field(default_factory=list)
    """Returned values that are not tensors."""

    def all(self) -> list[torch.Tensor]:
        """Return the returned tensors, followed by written tensors that were not returned."""
        ids = {id(tensor) for tensor in self.returned}
        places = {(t.data_ptr(), t.shape, t.stride()) for t in self.returned if t.numel()}
        only_written = [
            t for t in self.written if id(t) not in ids and (t.data_ptr(), t.shape, t.stride()) not in places
        ]
        return [*self.returned, *only_written]


def pair_results(mine: Results, other: Results) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Pair each result tensor of the op with one of the reference.

    Returned tensors may be paired with written ones, because the reference may return what the op writes. None if no
    such pairing has the same number of tensors on both sides.
    """
    for ours, theirs in (
        (mine.all(), other.all()),
        (mine.all(), other.returned),
        (mine.returned, other.returned),
        (mine.written, other.returned),
        (mine.written, other.written),
        (mine.returned, other.written),
    ):
        if ours and len(ours) == len(theirs):
            return list(zip(ours, theirs, strict=True))
    return [] if not mine.all() and not other.all() else None


class NotApplicable(Exception):
    """Raised if a case cannot be tried; the text says why."""


class BothRefuse(NotApplicable):
    """Raised if a case cannot be tried because both the op and its reference refuse it."""


class Bench(msgspec.Struct):
    """An op, its reference and its cases on one device."""

    target: Target
    reference: Reference
    executor: TorchExecutor
    seed: int
    bases: list[Case] = msgspec.field(default_factory=list[Case])
    compact_bases: list[Case] = msgspec.field(default_factory=list[Case])
    """Small versions of `bases`, with few elements, that the op accepts."""
    refused: list[Case] = msgspec.field(default_factory=list)
    """Calls from the user or a trace that the reference accepts but the op refuses."""
    isolated: bool = False
    """Whether the op runs in its own process, so that a crash in a call ends only that process."""
    trying: Callable[[str], None] | None = None
    """Called with the text of each call before the call is made, and with "" after the call, until the trials begin."""
    lost: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Text of each case that terminated an earlier process before the first trial → how that process ended."""
    too_large: dict[str, NotApplicable | None] = msgspec.field(default_factory=dict[str, NotApplicable | None])
    """Id of a case with many elements → why memory or time does not suffice for it; None if both suffice."""
    alternatives: list[int | None] = msgspec.field(default_factory=list[int | None])
    """For each case whose sizes were refused: index of the alternative sizes that were accepted; None if none were."""
    not_differentiable: tuple[str, ...] | None = None
    """Arguments for which the op refuses a gradient; None until this is determined."""
    at_random: dict[str, None] = msgspec.field(default_factory=dict[str, None])
    """Names of arguments created so far whose values decide how much work the op does, but that have no initializer.
    Their integers are random.
    """

    @property
    def device(self) -> torch.device:
        return torch.device(self.executor.device)

    @property
    def first(self) -> Case:
        """The case for trials that need only one case."""
        return self.bases[0]

    def spec(self, case: Case) -> OpSpec:
        return self.target.spec(case.op.overload)

    def operator(self, case: Case) -> torch._ops.OpOverload | None:
        """Return the overload of a case; None for a Python function."""
        return self.target.operator(case.op.overload)

    def is_random(self, case: Case) -> bool:
        """Check whether the op declares that its results depend on torch's random numbers."""
        operator = self.operator(case)
        return operator is not None and torch.Tag.nondeterministic_seeded in operator.tags

    def has_reference(self, case: Case) -> bool:
        """Check whether results can be compared with anything other than the op itself."""
        return self.reference.function_for(case.op.overload) is not None

    def arguments(self, case: Case) -> Arguments:
        """Create fresh arguments, with the same values each time. Raises NotReplayable if they cannot be created."""
        filled = self.executor.fill(case.op, self.target.function(case.op.overload), self.seed)
        self.at_random.update(dict.fromkeys(filled.filling.at_random if filled.filling else ()))
        keyword_only = frozenset(arg.name for arg in filled.op.args if arg.keyword_only)
        written = tuple(arg.name for arg in filled.op.args if arg.mutated)
        arguments = _united(Arguments(dict(filled.args), keyword_only, written))
        if case.trait == "inside memory":
            for tensor in arguments.tensors():
                _give_room(tensor)
        for number, tensor in enumerate(distinct(arguments) if case.values != "usual" else ()):
            _change_values(tensor, case.values, number)
        return arguments

    def other_calls(self, case: Case) -> list[Case]:
        """Return variants of the case with other ranks and other argument values. String arguments also get the strings
        that occur in the reference's code.
        """
        function = self.reference.function_for(case.op.overload)
        constants = getattr(getattr(function, "__code__", None), "co_consts", ())
        words = [word for word in constants if isinstance(word, str) and word.isidentifier()]
        return variants.other_calls(case, self.spec(case), words)

    def reference_refuses(self, case: Case, arguments: Arguments) -> bool:
        """Check whether the case has a reference and this reference refuses these arguments."""
        if self.has_reference(case):
            try:
                self.refer(case, arguments.copy())
            except Exception:  # references raise anything
                return True
        return False

    def call(self, case: Case, arguments: Arguments) -> Results:
        """Call the op on these arguments; the op may write to them.

        Exceptions of the op propagate. Raises RuntimeError for a case that terminated an earlier process.
        """
        if self.trying is None:
            return results_of(self.call_of(case, arguments), arguments)
        if case.text in self.lost:
            raise RuntimeError(self.lost[case.text])
        self.trying(case.text)
        try:
            return results_of(self.call_of(case, arguments), arguments)
        finally:
            self.trying("")

    def call_of(self, case: Case, arguments: Arguments) -> Callable[[], Any]:
        """Return a function that calls the op on these arguments."""
        if case.trait in SIGNS:
            arguments = arguments.changed(SIGNS[case.trait])
        return partial(self.target.function(case.op.overload), *arguments.positional, **arguments.by_name)

    def reference_call(self, case: Case, arguments: Arguments) -> Callable[[], Any]:
        """Return a function that calls the reference on these arguments.

        Arguments are passed in the reference's order or by its parameter names. If there is no reference, the function
        calls the op itself.
        """
        function = self.reference.function_for(case.op.overload)
        if function is None:
            return self.call_of(case, arguments)
        return call_of_reference(function, arguments, _defaults(self.spec(case)))

    def refer(self, case: Case, arguments: Arguments) -> Results:
        """Call the reference on these arguments; the reference may write to them. Exceptions propagate."""
        return results_of(self.reference_call(case, arguments), arguments)


def distinct(arguments: Arguments) -> list[torch.Tensor]:
    """Return all tensors; a tensor passed twice is listed once."""
    return list({id(tensor): tensor for tensor in arguments.tensors()}.values())


def _united(arguments: Arguments) -> Arguments:
    """Replace tensors that view the same elements of the same memory by one tensor object; return the arguments."""
    first: dict[object, torch.Tensor] = {}

    def united(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if not place:
            return tensor
        return first.setdefault((place, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype), tensor)

    return arguments.changed(united)


def _give_room(tensor: torch.Tensor) -> None:
    """Extend the tensor's memory beyond its last element, as in a slice of a larger tensor, to detect writes past the
    end.
    """
    memory = tensor.untyped_storage()
    larger = torch.full((memory.nbytes() + ROOM_BYTES,), ROOM_BYTE, dtype=torch.uint8, device=tensor.device)
    if memory.nbytes():
        larger[: memory.nbytes()] = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(memory)
    tensor.set_(larger.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _change_values(tensor: torch.Tensor, values: Values, number: int) -> None:
    """Replace a tensor's values in place by values of the given kind. Expanded tensors stay unchanged.

    `number` is the index of the tensor among the arguments; it shifts the positions of special values.
    """
    if not tensor.numel() or 0 in tensor.stride():
        return
    if not is_float(tensor):
        _change_whole(tensor, values, number)
    elif values not in INTEGER_ONLY_VALUES:
        _change_floats(tensor, values, number)


def _change_whole(tensor: torch.Tensor, values: Values, number: int) -> None:
    """Replace integers in place if the kind of values has a form for integers.

    int64 values are indices or sizes, so they change only for the out-of-range kinds ("too large", "negative").
    """
    if values in OUTSIDE and tensor.dtype in (torch.int32, torch.int64):
        tensor[_index(tensor, -1)] = OUTSIDE[values]
    if tensor.dtype is not torch.int32:
        return
    if values == "large":
        tensor.mul_(LARGE_INTEGER)
    elif values == "signed":
        places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
        tensor.abs_().add_(1).mul_(1 - 2 * (places // (number + 1) % 2))


def _change_floats(tensor: torch.Tensor, values: Values, number: int) -> None:
    info = torch.finfo(tensor.dtype)
    factors: dict[Values, float] = {
        "wide": 8.0,
        "large": LARGE,
        "beyond": BEYOND_FLOAT16_FACTOR if info.max > BEYOND_FLOAT16_FACTOR else 1.0,
        "small": 2.0**-6 if tensor.dtype is torch.float16 else SMALL,
        "denormal": info.tiny / 4,
    }
    if values in factors:
        tensor.mul_(factors[values])
    elif values == "far":
        tensor.add_(FAR_OFFSET if info.bits > 16 else FAR_OFFSET_16_BITS)
    elif values == "positive":
        tensor.abs_().clamp_(max=3.0).mul_(0.3).add_(0.05)
    elif values == "ties":
        tensor.mul_(2).round_()
    elif values == "halves" and number:  # a scale
        tensor.copy_(torch.exp2(tensor.abs().clamp_(2.0**-10, 2.0**10).log2_().round_()))
    elif values == "halves":
        places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
        tensor.mul_(4).round_().div_(4)
        tensor.masked_fill_(places % HALVES_EVERY == 0, HALVES_LARGEST)
    elif values in OF_ROWS:
        tensor.masked_fill_(_in_rows(tensor, values, number), OF_ROWS[values])
    else:
        for place, value in _scattered(values, tensor.numel(), number).items():
            tensor[_index(tensor, place)] = value


def _scattered(values: Values, count: int, number: int) -> dict[int, float]:
    """Return special values for a tensor of `count` elements, by flat position. `number` shifts the positions.

    For "zeros", two of three elements become zeros, some of each sign. Only the first `MOST_ZEROS` elements are
    affected. For other kinds, there is one NaN and one infinity of each sign, at the beginning, middle and end.
    """
    if values == "zeros":
        places = range(min(count, MOST_ZEROS))
        return {at: 0.0 if (at + number) % 3 else -0.0 for at in places if (at + number) % 3 != 2}
    return {number: torch.nan, count // 2 + number: torch.inf, number - 1: -torch.inf}


def _in_rows(tensor: torch.Tensor, values: Values, number: int) -> torch.Tensor:
    """Return a mask that selects elements in every second row. For "NaN in rows" it selects one element per row, in a
    column that differs from row to row. Otherwise it selects the whole row.
    """
    columns = tensor.shape[-1] if tensor.dim() else 1
    row = torch.arange(tensor.numel() // columns, device=tensor.device).unsqueeze(-1)
    column = torch.arange(columns, device=tensor.device)
    there = column == (7 * row + 3 + number) % columns if values == "NaN in rows" else column >= 0
    return (there & (row % 2 == 1 if len(row) > 1 else row == 0)).reshape(tensor.shape)


def _index(tensor: torch.Tensor, place: int) -> tuple[torch.Tensor, ...]:
    return torch.unravel_index(torch.tensor(place % tensor.numel()), tensor.shape)


def seed_torch(seed: int) -> None:
    """Seed torch's random number generators, on the CPU and on devices in use.

    `torch.manual_seed` does the same, but stores a stack trace for each device that is not in use yet.
    """
    torch.default_generator.manual_seed(seed)
    for kind in ("cuda", "npu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_initialized():
            backend.manual_seed_all(seed)


def results_of(call: Callable[[], Any], arguments: Arguments, *, seed: int | None = 0) -> Results:
    """Run one call without gradients and return its results; `seed=None` leaves torch's random state unchanged."""
    if seed is not None:
        seed_torch(seed)
    with torch.no_grad():
        returned = list(flattened(call()))
    return Results(
        returned=tensors_in(returned),
        written=tensors_in([arguments.values.get(name) for name in arguments.written]),
        others=[item for item in returned if not isinstance(item, torch.Tensor)],
    )


def is_float(tensor: torch.Tensor) -> bool:
    """Check whether the elements are floats of at least 16 bits. Torch does not compute with 8-bit floats."""
    return tensor.is_floating_point() and tensor.itemsize > 1


def reach_of(arguments: Arguments) -> float:
    """Return the largest finite absolute value in the arguments' float and complex tensors; 0 if there is none."""
    numbers = [t.detach() for t in arguments.tensors() if t.numel() and (t.is_complex() or is_float(t))]
    return max((float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) for tensor in numbers), default=0.0)


def as_float64(arguments: Arguments) -> Arguments:
    """Return the arguments as contiguous copies in a wider dtype (see `WIDER`), in separate memory."""
    memo: dict[int, torch.Tensor] = {}

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            dtype = WIDER.get(tensor.dtype, tensor.dtype)
            memo[id(tensor)] = tensor.detach().to(dtype, copy=True).contiguous()
        return memo[id(tensor)]

    return arguments.changed(wide)


def contiguous(arguments: Arguments) -> Arguments:
    """Return contiguous copies with the same values, in separate memory."""
    return arguments.changed(lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format))


def _defaults(spec: OpSpec) -> dict[str, Any]:
    """Return the defaults of an op's arguments as Python values, without layouts and memory formats."""
    return {
        arg.name: getattr(torch, SCALAR_TYPE_CODES[arg.default])
        if arg.kind == "ScalarType" and isinstance(arg.default, int)
        else arg.default
        for arg in spec.args
        if arg.has_default and (arg.default is None or arg.kind not in ("Layout", "MemoryFormat"))
    }


def call_of_reference(
    function: Callable[..., Any], arguments: Arguments, defaults: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return a function that calls a reference.

    Arguments are passed by name if the reference's parameters are named like the op's arguments, otherwise by position.
    Result buffers are left out if the reference has no parameter for them. If the reference requires an argument that
    the call lacks, it gets the op's default from `defaults`.
    """
    values = arguments.values
    if isinstance(function, OfNames):
        return partial(function, values)
    parameters = _parameters(function)
    if parameters is not None:
        left_out = {name for name, needed in parameters.items() if needed} - values.keys()
        values = {**values, **{name: defaults[name] for name in left_out & defaults.keys()}}
        wanted = {name for name, needed in parameters.items() if needed}
        if parameters and wanted <= values.keys():
            named = {name: values[name] for name in parameters if name in values}
            if len(named) == len(values) or not _by_place(parameters, arguments):
                return partial(function, **named)
        places = _by_place(parameters, arguments)
        if places is not None:
            return partial(function, *places[0], **places[1])
    return partial(function, *arguments.positional, **arguments.by_name)


def _by_place(parameters: Mapping[str, bool], arguments: Arguments) -> tuple[list[Any], dict[str, Any]] | None:
    """Return positional and keyword arguments for a function whose parameter names differ from the op's.

    Keyword-only arguments are passed by name if the function has a parameter of that name. The others are passed by
    position. If the function takes fewer arguments, those that the op writes are left out. None if the number still
    does not fit.
    """
    named = {name: value for name, value in arguments.by_name.items() if name in parameters}
    room = [needed for name, needed in parameters.items() if name not in named]
    for left_out in ((), arguments.written):
        chosen = [v for name, v in arguments.values.items() if name not in named and name not in left_out]
        if sum(room) <= len(chosen) <= len(room):
            return chosen, named
    return None


def _parameters(function: Callable[..., Any]) -> dict[str, bool] | None:
    """Return a function's parameter names and whether each is required. None if the function takes *args or **kwargs,
    or has no signature.
    """
    if isinstance(function, torch._ops.OpOverload):
        return {a.name: not a.has_default_value() for a in function._schema.arguments}
    if isinstance(function, torch._ops.OpOverloadPacket):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return {p.name: p.default is p.empty for p in parameters}


def with_finite_results(bench: Bench, case: Case) -> Case:
    """Return the case. If its usual values give non-finite results, its values are changed to lie between 0 and 1.

    A logarithm, for example, gives NaN for negative values.
    """

    def finite(values: Values) -> bool:
        variant = msgspec.structs.replace(case, values=values)
        try:
            results = bench.call(variant, bench.arguments(variant).copy()).all()
        except Exception:  # judged by other points
            return False
        return all(bool(torch.isfinite(t).all()) for t in results if is_float(t))

    return case if finite(case.values) or not finite("positive") else msgspec.structs.replace(case, values="positive")


def first_working(bench: Bench, cases: Sequence[Case]) -> tuple[Case | None, BaseException | None]:
    """Return (case, None) for the first case that the op and its reference, if it has one, both accept.

    If there is none, return (case, error). The case is the first one that the op alone accepts, or None; the error is
    the first one raised.
    """
    error: BaseException | None = None
    by_op_alone: Case | None = None
    for case in cases:
        try:
            arguments = bench.arguments(case)
            bench.call(case, arguments.copy())
            by_op_alone = by_op_alone or case
            if bench.has_reference(case):
                bench.refer(case, arguments)
            return case, None
        except Exception as raised:  # ops raise anything
            error = error or raised
    return by_op_alone, error
