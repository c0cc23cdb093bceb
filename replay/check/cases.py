# pyright: strict
"""The base cases of a check: given by the user, or generated from the op's schema.

Variants of cases are in `variants`, tensors in `calls`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Literal, cast

import msgspec

from opreplay.replay.ir.describe import schema_text
from opreplay.replay.ir.model import NOT_RECORDED, ReplayArg, ReplayOp, Value
from opreplay.replay.ir.notation import CallText, CallValue, TorchName, call_text, parse_call, parse_tensor
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.replay.resolve.written.call import values_by_name
from opreplay.traces.errors import UsageError
from opreplay.traces.literals import plain_float
from opreplay.traces.model import TensorMeta

ROWS, COLUMNS = 16, 32
"""Default sizes of generated tensors."""
MOST_GUESSES = 200
"""Maximum number of combinations of generated shapes that are tried."""

_PLAIN_SHAPE = re.compile(r"\s*\d+(\s*[x×]\s*\d+)*\s*")
_INDEX_WORDS = ("index", "indices", "idx", "ids", "positions", "offsets", "lengths", "lens", "slot", "loc", "starts")
_MASK_WORDS = ("mask",)


Trait = Literal["expanded", "inside memory", "one tensor", "value", "dtype", "conjugated", "negated"]
"""What is special about a variant.

"expanded": a stride of 0. "inside memory": memory around the tensor. "one tensor": one tensor for several arguments.
"value": another value of a non-tensor argument. "dtype": another dtype of one tensor. "conjugated", "negated": a
conjugation or negation that torch has not yet applied.
"""

Values = Literal[
    "usual",
    "wide",
    "large",
    "beyond",
    "far",
    "small",
    "denormal",
    "zeros",
    "ties",
    "halves",
    "odd",
    "NaN in rows",
    "rows of -inf",
    "rows far below zero",
    "rows of zeros",
    "positive",
    "signed",
    "too large",
    "negative",
]
"""Kinds of values.

"usual": from the op's initializers. "wide": 8 times as large. "large": 100 times as large, or integers too large for
float32. "beyond": beyond float16's range. "far": a large number added. "small": about a millionth. "denormal": below
the smallest normal number. "zeros": some zeros of both signs. "ties": few distinct values. "halves": values that
quantization must round from the middle between two integers. "odd": some NaN and infinities. "NaN in rows": one NaN in
every second row. "rows of -inf", "rows of zeros": every second row has only this value. "rows far below zero": every
second row has only one large negative number, like masked scores. "positive": between 0 and 1. "signed": integers of
both signs without zeros. "too large": an index beyond any tensor. "negative": a negative index.
"""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One call to try."""

    kind: str
    """What is special about the call: "given", "recorded", "transposed", ..."""
    op: ReplayOp
    values: Values = "usual"
    trait: Trait | None = None
    smaller: tuple[Case, ...] = ()
    """For a case with many elements: the same call with fewer elements, in ascending order. Their memory use shows
    whether the large case fits.
    """
    instead: tuple[Case, ...] = ()
    """Alternatives if the case's generated sizes are not valid together: the same call with other sizes. The first one
    that the op accepts is used.
    """

    @property
    def text(self) -> str:
        """The name of the case in reports. It contains the call in the notation of `--shapes`."""
        return f"{self.kind}: {case_text(self.op)}"


def case_text(op: ReplayOp) -> str:
    """Return the call in the notation of `--shapes`."""
    if "::" in op.called:
        return call_text(op)
    # A Python function has no namespace, and the notation wants one.
    return call_text(msgspec.structs.replace(op, name=f"user::{op.name}", via=None)).removeprefix("user::")


def case_of(kind: str, name: str, spec: OpSpec, args: tuple[ReplayArg, ...]) -> Case:
    """Return a case of one overload. The case's id, a hash of overload and arguments, seeds its values."""
    identity = blake2b(msgspec.json.encode([spec.full_name, args]), digest_size=6).hexdigest()
    op = ReplayOp(
        id=identity,
        name=name,
        count=1,
        recorded=NOT_RECORDED,
        resolved_by="jit",
        overload=spec.overload,
        schema=spec.text,
        args=args,
    )
    return Case(kind=kind, op=op)


def replaced(case: Case, kind: str, args: tuple[ReplayArg, ...], trait: Trait | None = None) -> Case:
    """Return the case with other arguments."""
    identity = blake2b(msgspec.json.encode([case.op.id, kind, args]), digest_size=6).hexdigest()
    op = msgspec.structs.replace(case.op, id=identity, args=args, outputs=None)
    return Case(kind=kind, op=op, values=case.values, trait=trait)


def argument(arg: ArgSpec, *, tensors: tuple[TensorMeta | None, ...] = (), value: Value = None) -> ReplayArg:
    """Return one schema argument in the form of the IR."""
    mutated = arg.mutated and bool(tensors)
    return ReplayArg(
        name=arg.name, type=arg.kind, tensors=tensors, value=value, keyword_only=arg.keyword_only, mutated=mutated
    )


def given_cases(text: str, name: str, specs: Sequence[OpSpec]) -> list[Case]:
    """Parse one `--shapes` text into cases: one for each overload that accepts the call, best match first.

    "4096x4096" is one shape for all tensors. "16x32, 32" is one shape for each tensor. "f32[4,8], f32[8]" also gives
    dtypes and strides. "mylib::op(f32[4,8], 0.5)" is a whole call. Raises UsageError for any other text, and if no
    overload accepts the call.
    """
    if "(" in text:
        call = _parse_whole(text, name)
        overload = call.name.partition("::")[2].partition(".")[2]  # a function's name has the dot of its file
        bound = [(spec, _bound(spec, call)) for spec in specs if overload in ("", spec.overload)]
    else:
        shapes = _listed_shapes(text)
        bound = [(spec, _filled(spec, shapes)) for spec in specs]
    cases = [case_of("given", name, spec, args) for spec, args in bound if args is not None]
    if not cases:
        shown = "; ".join(schema_text(spec.text) for spec in specs[:3])
        raise UsageError(f"no overload of {name} accepts {text!r}", hint=f"It is {shown}.")
    return sorted(cases, key=lambda case: case.op.overload == "out")


def _parse_whole(text: str, name: str) -> CallText:
    stripped = text.strip()
    if "::" not in stripped.partition("(")[0]:
        # The name may be left out: "(f32[4,8], 0.5)"; a Python function has none with a namespace.
        return parse_call(f"user::call({stripped.partition('(')[2]}")
    call = parse_call(stripped)
    if call.name.partition(".")[0] != name.partition(".")[0]:
        raise UsageError(f"--shapes calls {call.name}, but the checked op is {name}", hint="Name the same op in both.")
    return call


def _listed_shapes(text: str) -> list[TensorMeta]:
    """Return the tensors listed in a `--shapes` text that is not a whole call. The dtype of a tensor given only by its
    sizes is "".
    """
    parts = [part.strip() for part in re.split(r"[,;](?![^\[{(]*[\]})])", text) if part.strip()]
    if not parts:
        raise UsageError("--shapes contains no shape", hint="Write one as 4096x4096 or f32[4,8].")
    return [
        TensorMeta(shape=tuple(map(int, re.split(r"[x×]", part))), dtype="")
        if _PLAIN_SHAPE.fullmatch(part)
        else parse_tensor(part)
        for part in parts
    ]


def _filled(spec: OpSpec, metas: Sequence[TensorMeta]) -> tuple[ReplayArg, ...] | None:
    """Return arguments built from shapes alone; None if the number of shapes does not fit.

    Several shapes are assigned to the tensor arguments in order. A single shape is assigned to all tensor arguments.
    The values of all other arguments are generated.
    """
    tensors = [arg for arg in spec.args if arg.kind == "Tensor" and (not arg.optional or len(metas) > 1)]
    lists = [arg for arg in spec.args if arg.kind == "Tensor[]" and not arg.optional]
    required = sum(not arg.optional for arg in tensors)
    if len(metas) > 1 and not lists and not required <= len(metas) <= len(tensors):
        return None
    repeated = [metas[0]] * len(tensors) if len(metas) == 1 else metas
    metas_of_args = [*zip(tensors, repeated, strict=False), *((arg, metas[0]) for arg in lists)]
    return fill_arguments(
        spec,
        {
            arg.name: meta if meta.dtype else msgspec.structs.replace(meta, dtype=_usual_dtype(arg.name))
            for arg, meta in metas_of_args
        },
    )


def _usual_dtype(name: str) -> str:
    words = name.lower()
    if any(word in words for word in _INDEX_WORDS):
        return "int64"
    return "bool" if any(word in words for word in _MASK_WORDS) else "float32"


def fill_arguments(spec: OpSpec, tensors: dict[str, TensorMeta]) -> tuple[ReplayArg, ...] | None:
    """Return an op's arguments. Each one is the tensor given for it, else its default, else a common value for its
    kind.

    None if there is no common value for the kind of an argument.
    """
    args: list[ReplayArg] = []
    for arg in spec.args:
        if arg.name in tensors:
            args.append(argument(arg, tensors=(tensors[arg.name],) * (2 if arg.kind == "Tensor[]" else 1)))
        elif arg.has_default:
            continue
        elif arg.optional:
            args.append(argument(arg))
        elif arg.kind in _USUAL:
            value = _USUAL[arg.kind]
            repeats = 1 if arg.size is None else arg.size
            args.append(argument(arg, value=value * repeats if isinstance(value, tuple) else value))
        else:
            return None
    # What follows an argument that is left out has to be given by name; the schema's order is kept.
    return add_defaults(spec, args)


def add_defaults(spec: OpSpec, args: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """Insert the default of each positional argument that was not given but precedes a given one."""
    by_name = {arg.name: arg for arg in args}
    positional = [arg.name for arg in spec.args if not arg.keyword_only]
    last = max((positional.index(name) for name in by_name if name in positional), default=0)
    needed = by_name.keys() | set(positional[:last])
    return tuple(by_name.get(arg.name) or argument(arg, value=arg.default) for arg in spec.args if arg.name in needed)


_USUAL: dict[str, Value] = {
    "int": 1,
    "float": 0.5,
    "Scalar": 0.5,
    "bool": False,
    "int[]": (1,),
    "float[]": (0.5,),
    "ScalarType": "torch.float32",
    "complex": "(1+0j)",
    "MemoryFormat": "torch.contiguous_format",
    "Layout": "torch.strided",
    "Device": "cpu",
}
"""Argument type → value of an argument that has no default and was not given."""


def guesses(name: str, spec: OpSpec) -> Iterator[Case]:
    """Yield calls that the schema allows, to be tried on the op, the most common ones first.

    The first calls have one shape for all tensors. Rows and vectors, matrices that can be multiplied, and images
    follow.
    """
    wanted = [arg for arg in spec.args if arg.kind in ("Tensor", "Tensor[]") and not arg.optional]
    guessed = itertools.islice(_shapes(len(wanted)), MOST_GUESSES) if wanted else [()]
    for shapes in dict.fromkeys(guessed):
        tensors = {
            arg.name: TensorMeta(shape=shape, dtype=_usual_dtype(arg.name))
            for arg, shape in zip(wanted, shapes, strict=True)
        }
        args = fill_arguments(spec, tensors)
        if args is None:
            return
        yield case_of("made up", name, spec, args)


def _shapes(count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    rows, row, image = (ROWS, COLUMNS), (COLUMNS,), (2, 8, 12, 12)
    yield (rows,) * count
    yield (rows, *(row,) * (count - 1))
    if count >= 2:
        yield (rows, (COLUMNS, 24), *((24,),) * (count - 2))
        yield (rows, (24, COLUMNS), *((24,),) * (count - 2))
        yield ((ROWS, COLUMNS // 2), rows, *(row,) * (count - 2))
        yield ((2, *rows), (2, COLUMNS, 24), *((24,),) * (count - 2))
        yield (image, (4, 8, 3, 3), *((4,),) * (count - 2))
        yield (image, *((8,),) * (count - 1))
    yield (row,) * count
    yield ((2, *rows),) * count
    yield (image,) * count
    yield ((),) * count
    for rest in itertools.product((rows, row, (ROWS,), (1,), ()), repeat=min(count - 1, 4)):
        yield (rows, *rest, *(row,) * (count - 1 - len(rest)))


def _bound(spec: OpSpec, call: CallText) -> tuple[ReplayArg, ...] | None:
    """Return the arguments of a call text by name, in the schema's order; None if they do not match the schema."""
    values = values_by_name(spec, call)
    if values is None:
        return None
    bound = [_argument(arg, values[arg.name]) for arg in spec.args if arg.name in values]
    args = [arg for arg in bound if arg is not None]
    return add_defaults(spec, args) if len(args) == len(bound) else None


def _tensor_argument(arg: ArgSpec, value: CallValue, items: Sequence[CallValue]) -> ReplayArg | None:
    if value is None:
        return argument(arg) if arg.optional else None
    of_kind = isinstance(value, list) == (arg.kind == "Tensor[]")
    if not of_kind or not all(item is None or isinstance(item, TensorMeta) for item in items):
        return None
    return argument(arg, tensors=tuple(cast("Sequence[TensorMeta | None]", items)))


def _argument(arg: ArgSpec, value: CallValue) -> ReplayArg | None:
    """Return one argument in the form of the IR; None if its type does not accept the value."""
    items: list[CallValue] = value if isinstance(value, list) else [value]
    if arg.kind in ("Tensor", "Tensor[]"):
        return _tensor_argument(arg, value, items)
    if not all(_takes(arg, item) for item in items):
        return None
    plain = _plain(value)
    if arg.kind.endswith("[]") and not isinstance(plain, tuple) and plain is not None:
        plain = (plain,)
    return argument(arg, value=plain)


_TAKES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "Scalar": (int, float, complex, bool),
    "complex": (int, float, complex),
    "str": (str,),
    "ScalarType": (TorchName,),
    "Layout": (TorchName,),
    "MemoryFormat": (TorchName,),
    "Device": (str,),
}


def _takes(arg: ArgSpec, item: CallValue) -> bool:
    kinds = _TAKES.get(arg.kind.removesuffix("[]"))
    if kinds is None and item is None and arg.optional:  # a generator
        return True
    if kinds is None:
        return arg.kind == "opaque" and not isinstance(item, TensorMeta)
    if item is None:
        return arg.optional or arg.optional_elements
    return isinstance(item, kinds) and not (isinstance(item, bool) and bool not in kinds and int not in kinds)


def _plain(value: CallValue) -> Value:
    """Return a value in the form of the IR."""
    if isinstance(value, list):
        return cast("Value", tuple(_plain(item) for item in value))
    if isinstance(value, complex):
        return str(value).strip("()")
    if isinstance(value, float):
        return plain_float(value)
    return str(value) if isinstance(value, str) else cast("Value", value)
