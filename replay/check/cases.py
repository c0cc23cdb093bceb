# pyright: strict
"""The calls that a check starts from: written down, or made up from the op's schema where nothing tells them.

Owns no variants (`variants`) and no tensors (`calls`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, cast

import msgspec

from opreplay.replay.ir.describe import schema_text
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, Value
from opreplay.replay.ir.notation import CallText, CallValue, TorchName, call_text, parse_call, parse_tensor
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.traces.errors import UsageError
from opreplay.traces.literals import plain_float
from opreplay.traces.model import TensorMeta

ROWS, COLUMNS = 16, 32
"""Sizes of tensors that nobody gave."""
MOST_GUESSES = 200
"""Combinations of shapes that are tried where nobody gave any."""

_PLAIN_SHAPE = re.compile(r"\s*\d+(\s*[x×]\s*\d+)*\s*")
_INDEX_WORDS = ("index", "indices", "idx", "ids", "positions", "offsets", "lengths", "lens", "slot", "loc", "starts")
_MASK_WORDS = ("mask",)


Values = Literal["usual", "large", "far", "small", "denormal", "zeros", "odd", "positive"]
"""Those of the op's initializers; a hundred times as large, whole numbers so large that float32, or float64, does not
hold them; a thousand added; a millionth; below the smallest normal number; zeros of both signs among them; NaN and
infinities among them; between 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call to be tried."""

    kind: str
    """What is special about it: "given", "recorded", "transposed", ..."""
    op: ReplayOp
    values: Values = "usual"
    smaller: tuple[Case, ...] = ()
    """Of a case of many elements the same with fewer, ascending: what they take tells whether there is room for it."""
    instead: tuple[Case, ...] = ()
    """Of made-up sizes that may not belong together: others like them, of which the first is tried that is taken."""

    @property
    def text(self) -> str:
        """As reports name it; the call in it can be given to `--shapes`."""
        return f"{self.kind}: {case_text(self.op)}"


def case_text(op: ReplayOp) -> str:
    """The call in the notation that `--shapes` takes."""
    if "::" in op.called:
        return call_text(op)
    # A Python function has no namespace, and the notation wants one.
    return call_text(msgspec.structs.replace(op, name=f"user::{op.name}", via=None)).removeprefix("user::")


def case_of(kind: str, name: str, spec: OpSpec, args: tuple[ReplayArg, ...]) -> Case:
    """A case of one overload; its id, which its values depend on, follows from its arguments."""
    identity = blake2b(msgspec.json.encode([spec.full_name, args]), digest_size=6).hexdigest()
    op = ReplayOp(
        id=identity,
        name=name,
        count=1,
        recorded=Recorded(host_us_total=0.0, host_us_median=0.0),
        resolved_by="jit",
        overload=spec.overload,
        schema=spec.text,
        args=args,
    )
    return Case(kind=kind, op=op)


def replaced(case: Case, kind: str, args: tuple[ReplayArg, ...]) -> Case:
    """The case with other arguments."""
    identity = blake2b(msgspec.json.encode([case.op.id, kind, args]), digest_size=6).hexdigest()
    op = msgspec.structs.replace(case.op, id=identity, args=args, outputs=None)
    return Case(kind=kind, op=op, values=case.values)


def given_cases(text: str, name: str, specs: Sequence[OpSpec]) -> list[Case]:
    """The cases that one `--shapes` writes down, for each overload that takes such a call, the best one first.

    "4096x4096" is one shape for every tensor, "16x32, 32" one for each, "f32[4,8], f32[8]" says dtypes and strides as
    well, "mylib::op(f32[4,8], 0.5)" is a whole call. Raises UsageError for a text that is none of these, and where no
    overload takes it.
    """
    values = None if "(" in text else _shape_values(text)
    call = _parse_whole(text, name) if values is None else CallText(name=name, args=())
    overload = call.name.partition("::")[2].partition(".")[2]  # a function's name has the dot of its file
    found: list[Case] = []
    for spec in specs:
        if overload and spec.overload != overload:
            continue
        args = _bound(spec, call) if values is None else _filled(spec, values)
        if args is not None:
            found.append(case_of("given", name, spec, args))
    if not found:
        shown = "; ".join(schema_text(spec.text) for spec in specs[:3])
        raise UsageError(f"no overload of {name} takes {text!r}", hint=f"It is {shown}.")
    return sorted(found, key=lambda case: sum(spec.overload == "out" for spec in specs if spec.text == case.op.schema))


def _parse_whole(text: str, name: str) -> CallText:
    stripped = text.strip()
    if "::" not in stripped.partition("(")[0]:
        # The name may be left out: "(f32[4,8], 0.5)"; a Python function has none with a namespace.
        return parse_call(f"user::call({stripped.partition('(')[2]}")
    call = parse_call(stripped)
    if call.name.partition(".")[0] != name.partition(".")[0]:
        raise UsageError(f"--shapes calls {call.name}, but {name} is checked", hint="Name the same op in both.")
    return call


def _shape_values(text: str) -> tuple[CallValue, ...]:
    """The tensors, and maybe other values, that a text without a call lists."""
    parts = [part.strip() for part in re.split(r"[,;](?![^\[{(]*[\]})])", text) if part.strip()]
    if not parts:
        raise UsageError("--shapes names no shape", hint="Write one as 4096x4096 or f32[4,8].")
    return tuple(_shape(part) for part in parts)


def _shape(part: str) -> TensorMeta:
    if _PLAIN_SHAPE.fullmatch(part):
        return TensorMeta(shape=tuple(int(size) for size in re.split(r"[x×]", part)), dtype="")
    return parse_tensor(part)


def _filled(spec: OpSpec, values: Sequence[CallValue]) -> tuple[ReplayArg, ...] | None:
    """Arguments from shapes alone: the tensors in order, one shape for all where one is given, the rest made up."""
    wanted = [arg for arg in spec.args if arg.kind == "Tensor" and (not arg.optional or len(values) > 1)]
    lists = [arg for arg in spec.args if arg.kind == "Tensor[]" and not arg.optional]
    required = [arg for arg in wanted if not arg.optional]
    if len(values) > 1 and not lists and not len(required) <= len(values) <= len(wanted):
        return None
    metas = [cast("TensorMeta", value) for value in values]
    if len(metas) == 1:
        metas = metas * len(required)
        wanted = required
    by_name = {arg.name: _with_dtype(meta, arg) for arg, meta in zip(wanted, metas, strict=False)}
    for arg in lists:
        by_name[arg.name] = _with_dtype(metas[0] if metas else cast("TensorMeta", values[0]), arg)
    return made_up(spec, by_name)


def _with_dtype(meta: TensorMeta, arg: ArgSpec) -> TensorMeta:
    return meta if meta.dtype else msgspec.structs.replace(meta, dtype=_usual_dtype(arg.name))


def _usual_dtype(name: str) -> str:
    words = name.lower()
    if any(word in words for word in _INDEX_WORDS):
        return "int64"
    return "bool" if any(word in words for word in _MASK_WORDS) else "float32"


def made_up(spec: OpSpec, tensors: dict[str, TensorMeta]) -> tuple[ReplayArg, ...] | None:
    """Arguments with these tensors; what has a default keeps it, the rest gets usual values. None where none is."""
    args: list[ReplayArg] = []
    for arg in spec.args:
        if arg.name in tensors:
            metas = (tensors[arg.name],) * (2 if arg.kind == "Tensor[]" else 1)
            made = ReplayArg(
                name=arg.name,
                type=arg.kind,
                tensors=metas,
                keyword_only=arg.keyword_only,
                mutated=arg.mutated,
            )
        elif arg.has_default:
            continue
        elif arg.optional or arg.kind == "Tensor?":
            made = ReplayArg(name=arg.name, type=arg.kind, keyword_only=arg.keyword_only)
        elif arg.kind in _USUAL:
            value: Value = _USUAL[arg.kind]
            if arg.size is not None and isinstance(value, tuple):
                value = tuple(value[0] for _ in range(arg.size))
            made = ReplayArg(name=arg.name, type=arg.kind, value=value, keyword_only=arg.keyword_only)
        else:
            return None
        args.append(made)
    # What follows an argument that is left out has to be given by name; the schema's order is kept.
    return completed(spec, args)


def completed(spec: OpSpec, args: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """Defaults for positional arguments that stand before one that is given."""
    given = {arg.name: arg for arg in args}
    positional = [arg.name for arg in spec.args if not arg.keyword_only]
    last = max((positional.index(name) for name in given if name in positional), default=-1)
    made: list[ReplayArg] = []
    for place, arg in enumerate(spec.args):
        if arg.name in given:
            made.append(given[arg.name])
        elif not arg.keyword_only and place < last:
            made.append(ReplayArg(name=arg.name, type=arg.kind, value=arg.default))
    return tuple(made)


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
"""Values of arguments that have no default and that nobody gave."""


def guesses(name: str, spec: OpSpec) -> Iterator[Case]:
    """Calls that the schema allows, the most usual ones first: one shape for all tensors, then rows and vectors,
    matrices that can be multiplied, images. Which of them the op takes shows when it is called."""
    wanted = [arg for arg in spec.args if arg.kind in ("Tensor", "Tensor[]") and not arg.optional]
    if not wanted:
        args = made_up(spec, {})
        if args is not None:
            yield case_of("made up", name, spec, args)
        return
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for shapes in itertools.islice(_shapes(len(wanted)), MOST_GUESSES):
        if shapes in seen:
            continue
        seen.add(shapes)
        tensors = {
            arg.name: TensorMeta(shape=shape, dtype=_usual_dtype(arg.name))
            for arg, shape in zip(wanted, shapes, strict=True)
        }
        args = made_up(spec, tensors)
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
    """Arguments of a written call by name, in the schema's order; None where they do not go with the schema."""
    positional = [arg for arg in spec.args if not arg.keyword_only]
    values: dict[str, CallValue] = dict(zip((arg.name for arg in positional), call.args, strict=False))
    names = {arg.name for arg in spec.args}
    if len(call.args) > len(positional) or not call.kwargs.keys() <= names - values.keys():
        return None
    values.update(call.kwargs)
    made: list[ReplayArg] = []
    for arg in spec.args:
        if arg.name not in values:
            if not arg.has_default:
                return None
            continue
        bound = _argument(arg, values[arg.name])
        if bound is None:
            return None
        made.append(bound)
    return completed(spec, made)


def _argument(arg: ArgSpec, value: CallValue) -> ReplayArg | None:
    """One argument in the form of the IR; None where its type takes no such value."""
    items: list[CallValue] = value if isinstance(value, list) else [value]
    if arg.kind in ("Tensor", "Tensor[]"):
        if value is None:
            made = ReplayArg(name=arg.name, type=arg.kind) if arg.optional else None
        elif all(item is None or isinstance(item, TensorMeta) for item in items) and (
            isinstance(value, list) == (arg.kind == "Tensor[]")
        ):
            made = ReplayArg(name=arg.name, type=arg.kind, tensors=tuple(cast("list[TensorMeta | None]", items)))
        else:
            made = None
        if made is None:
            return None
        return msgspec.structs.replace(made, keyword_only=arg.keyword_only, mutated=arg.mutated)
    if any(isinstance(item, TensorMeta) for item in items) or not _takes(arg, items):
        return None
    plain = _plain(value)
    if arg.kind.endswith("[]") and not isinstance(plain, tuple) and plain is not None:
        plain = (plain,)
    return ReplayArg(name=arg.name, type=arg.kind, value=plain, keyword_only=arg.keyword_only)


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


def _takes(arg: ArgSpec, items: Sequence[CallValue]) -> bool:
    kinds = _TAKES.get(arg.kind.removesuffix("[]"))
    if kinds is None:
        return arg.kind == "opaque"
    for item in items:
        if item is None:
            if not (arg.optional or arg.optional_elements):
                return False
        elif (isinstance(item, bool) and bool not in kinds and int not in kinds) or not isinstance(item, kinds):
            return False
    return True


def _plain(value: CallValue) -> Value:
    """A value as the IR holds it."""
    if isinstance(value, list):
        return cast("Value", tuple(_plain(item) for item in value))
    if isinstance(value, complex):
        return str(value).strip("()")
    if isinstance(value, float):
        return plain_float(value)
    return str(value) if isinstance(value, str) else cast("Value", value)
