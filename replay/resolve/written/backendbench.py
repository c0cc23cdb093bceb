# pyright: strict
"""Reads op traces of BackendBench, and logs of PyTorch's operator benchmarks, into a plan.

A file consists of blocks of `Operator: aten.add.Tensor` and lines `cnt: 42, ((T([10, 20], f16), 3), {'alpha': 2})`.
Defines the grammar of the lines, which are never evaluated; `export.tritonbench` writes them.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.ir.describe import SHORT_DTYPES
from opreplay.replay.ir.model import NOT_RECORDED, Reason, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import LARGEST, MOST_NESTING, CallText, CallValue, TokenReader, TorchName, call_text
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.resolve.names import candidates
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.call import argument_forms
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.folders import read_regular
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta

MAX_FILE_BYTES = 256 << 20
MAX_CALLS = 1_000_000
MAX_LINE_CHARS = 100_000
DTYPES = {
    short: name
    for name, short in (SHORT_DTYPES | {"bool": "b8"}).items()
    if short in {"bf16", "f64", "f32", "f16", "c32", "c64", "c128", "i8", "i16", "i32", "i64", "b8", "u8"}
}
"""Short dtype name → dtype; the format has no other dtypes."""
MADE_UP = '{"cnt":0}'
"""Mark of a call that was never recorded. A plan counts the call once, and an exported file lists it with cnt
0 again.
"""

_HINT = (
    "Expected a file of BackendBench: 'Operator: aten.mm.default', then lines 'cnt: 1, ((T([4, 8], f16), ...), {})'."
)
_OPERATOR = re.compile(r"Operator:\s*([A-Za-z_]\w{0,127})\.([A-Za-z_]\w{0,255})(?:\.(\w{1,128}))?")
_CALL = re.compile(r"cnt:\s*(\d{1,15}),\s*(\(.*\))")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?j?)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<word>[A-Za-z_][\w.]*)
    | (?P<sign>[-+()\[\]{},:=])
    )""",
    re.VERBOSE,
)
_WORDS: dict[str, CallValue] = {
    "None": None,
    "True": True,
    "False": False,
    "inf": math.inf,
    "nan": math.nan,
    **{short: TorchName(f"torch.{name}") for short, name in DTYPES.items()},
}

_OF_NUMBERS = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
"""Type of a Python number → dtype of the tensor that torch creates from it."""


def read_backendbench(path: str | Path) -> ReplayPlan:
    """Read the calls of a file in order, with their counts.

    They have no recorded times, and their overloads are resolved afterwards. If torch has no schema for a call's op,
    the call stays in the plan with a reason. Raises FormatError, with the line, for an invalid call.
    """
    calls: dict[str, ReplayOp] = {}
    name, overload = "", None
    for number, line in enumerate(_lines(Path(path)), 1):
        if not line:
            continue
        if (head := _OPERATOR.fullmatch(line)) is not None:
            name, overload = f"{head[1]}::{head[2]}", {"default": "", None: None}.get(head[3], head[3])
            continue
        call = _CALL.fullmatch(line)
        if call is None or not name:
            raise FormatError(f"{path}: line {number} is neither an operator nor a call", hint=_HINT)
        try:
            op = _op(name, overload, int(call[1]), call[2])
        except UsageError as error:
            raise FormatError(f"{path}: line {number}: {error.problem}", hint=_HINT) from None
        before = calls.get(op.id)
        if before is not None:
            count = before.count * (before.origin is None) + int(call[1])
            origin = None if count else MADE_UP
            op = msgspec.structs.replace(op, count=max(count, 1), origin=origin)
        calls[op.id] = op
        if len(calls) > MAX_CALLS:
            raise FormatError(f"{path} has more than {MAX_CALLS:,} different calls", hint=_HINT)
    return ReplayPlan(
        source=Path(path).name, selection="all", device_us_total=0.0, host_us_total=0.0, ops=tuple(calls.values())
    )


def written_calls(path: str | Path) -> tuple[tuple[str, ...], Counter[str]]:
    """Return the distinct calls of a file in the notation of `ir.notation`. Also return, by reason, the number of calls
    that cannot be made.
    """
    ops = read_backendbench(path).ops
    refused = Counter(f"{op.name}: {op.reason}" for op in ops if op.reason is not None)
    return tuple(dict.fromkeys(call_text(op) for op in ops if op.reason is None)), refused


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in read_regular(path, MAX_FILE_BYTES).decode().split("\n")]
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}", hint="Check the path and its permissions.") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8: byte {error.start}", hint=_HINT) from None


def _op(name: str, overload: str | None, count: int, text: str) -> ReplayOp:
    """Return the op of one call in a file. Raises UsageError if the call is invalid."""
    full_name = name if overload is None else f"{name}.{overload or 'default'}"
    op = ReplayOp(
        id=blake2b(f"{full_name}\0{text}".encode(), digest_size=6).hexdigest(),
        name=name,
        count=max(count, 1),
        recorded=NOT_RECORDED,
        overload=overload,
        origin=None if count else MADE_UP,
    )
    try:
        call = parse_arguments(name, text)
    except NotReplayable as stopped:
        return msgspec.structs.replace(op, reason=stopped.reason)
    overloads = candidates(full_name, Policy())
    for spec in overloads.specs:
        args = argument_forms(spec, call)
        if args is not None:
            kinds = {arg.name: arg.kind for arg in spec.args}
            whole = tuple(_as_tensor(arg) if kinds[arg.name] == "Tensor" else arg for arg in args)
            return msgspec.structs.replace(op, overload=spec.overload, args=whole)
    reason = overloads.reason or Reason("failed", f"no overload of {full_name} accepts these arguments")
    return msgspec.structs.replace(op, reason=reason)


def _as_tensor(arg: ReplayArg) -> ReplayArg:
    """Return the argument as a tensor. A Python number becomes the tensor that torch would create from it."""
    dtype = _OF_NUMBERS.get(arg.type)
    tensors = arg.tensors if dtype is None else (TensorMeta(shape=(), dtype=dtype, strides=()),)
    return msgspec.structs.replace(arg, type="Tensor", tensors=tensors)


def parse_arguments(name: str, text: str) -> CallText:
    """Parse the arguments `((positional, ...), {'name': value})` of an op call.

    Raises UsageError for any other text, NotReplayable for a tensor that is not strided.
    """
    if len(text) > MAX_LINE_CHARS:
        raise UsageError(f"{len(text):,} characters exceed the limit of {MAX_LINE_CHARS:,}", hint=_HINT)
    reader = _Reader(text)
    reader.need("(")
    args = reader.sequence()
    reader.need(",")
    kwargs = reader.by_name()
    reader.need(")")
    reader.expect_end()
    return CallText(name=name, args=tuple(args), kwargs=kwargs)


class _Reader(TokenReader):
    """Parser for the arguments in one line."""

    tokens = _TOKEN
    hint = _HINT

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._functions: dict[str, Callable[[list[CallValue], dict[str, CallValue]], CallValue]] = {
            "T": self._tensor,
            "float": self._float,
            "complex": self._complex,
            "device": self._device,
            "ST": self._sparse,
        }

    def sequence(self, depth: int = 0) -> list[CallValue]:
        """Parse a list or a tuple."""
        end = "]" if self.take("[") else ")"
        if end == ")":
            self.need("(")
        return self._items(end, depth)

    def _items(self, end: str, depth: int) -> list[CallValue]:
        items: list[CallValue] = []
        while not self.take(end):
            items.append(self._value(depth + 1))
            if not self.take(","):
                self.need(end)
                break
        return items

    def by_name(self) -> dict[str, CallValue]:
        """Parse a dict of arguments by name."""
        self.need("{")
        values: dict[str, CallValue] = {}
        while not self.take("}"):
            name = self._value(0)
            if type(name) is not str or name in values:
                raise self._wrong("a quoted name that was not used before")
            self.need(":")
            values[name] = self._value(0)
            if not self.take(","):
                self.need("}")
                break
        return values

    def _value(self, depth: int) -> CallValue:
        if depth > MOST_NESTING:
            raise UsageError(
                f"lists are nested more than {MOST_NESTING} deep", hint="No op takes an argument like this."
            )
        match = self._peek()
        if match is None:
            raise self._wrong("a value")
        if match["sign"] in ("[", "("):
            return self.sequence(depth)
        if match["text"]:
            self._at = match.end()
            return _text_of(match["text"])
        if match["word"] and match["word"] not in _WORDS:
            self._at = match.end()
            return self._named(match["word"], depth)
        return self._number()

    def _named(self, word: str, depth: int) -> CallValue:
        """Parse a torch constant, or a call of one of the known functions."""
        name = re.sub(r"^(?:torch|th)\.", "", word)
        if name not in self._functions or not self.take("("):
            if name == word or not re.fullmatch(r"[a-z_0-9]{1,60}", name):
                raise UsageError(f"{word[:60]} is not a value of this format", hint=_HINT)
            return TorchName(f"torch.{name}")
        args: list[CallValue] = []
        kwargs: dict[str, CallValue] = {}
        while not self.take(")"):
            key = re.compile(r"\s*([a-z_]+)\s*=").match(self._text, self._at)
            self._at = self._at if key is None else key.end()
            value = self._value(depth + 1)
            if key is None:
                args.append(value)
            else:
                kwargs[key[1]] = value
            if not self.take(","):
                self.need(")")
                break
        return self._functions[name](args, kwargs)

    def _tensor(self, args: list[CallValue], kwargs: dict[str, CallValue]) -> TensorMeta:
        sizes, dtype, strides, *beyond = (*args, None, None, None)[: max(3, len(args))]
        strides = kwargs.pop("stride", strides)
        shape, steps = _sizes(sizes), None if strides is None else _sizes(strides)
        name = dtype.removeprefix("torch.") if isinstance(dtype, TorchName) else ""
        if name not in DTYPES.values() or shape is None or (strides is not None and steps is None) or beyond or kwargs:
            raise self._wrong("T([sizes], dtype[, [strides]])")
        if steps is not None and len(steps) != len(shape):
            raise UsageError(f"{len(steps)} strides do not match {len(shape)} sizes", hint="One each.")
        return TensorMeta(shape=shape, dtype=name, strides=steps)

    def _sparse(self, args: list[CallValue], kwargs: dict[str, CallValue]) -> CallValue:
        raise NotReplayable(Reason("layout not recorded", "a sparse tensor: the file does not contain its indices"))

    def _float(self, args: list[CallValue], kwargs: dict[str, CallValue]) -> CallValue:
        if len(args) != 1 or kwargs or args[0] not in ("inf", "-inf", "nan"):
            raise self._wrong("float('inf'), float('-inf') or float('nan')")
        return float(str(args[0]))

    def _complex(self, args: list[CallValue], kwargs: dict[str, CallValue]) -> CallValue:
        try:
            if len(args) == 1 and not kwargs:
                return complex(str(args[0])[:200])
            raise ValueError
        except ValueError:
            raise self._wrong("complex('1+2j')") from None

    def _device(self, args: list[CallValue], kwargs: dict[str, CallValue]) -> CallValue:
        kind, index = (*args, *kwargs.values(), None)[:2] if args or kwargs else (None, None)
        if type(kind) is not str or kwargs.keys() - {"type", "index"} or not isinstance(index, int | None):
            raise self._wrong("device(type='cuda', index=0)")
        return kind if index is None else f"{kind}:{index}"

    def _number(self) -> CallValue:
        """Parse a number, or a complex number with two parts."""
        first = self._signed()
        sign = self._peek()
        if sign is None or sign["sign"] not in ("+", "-") or not isinstance(first, int | float):
            return first
        second = self._signed()
        if not isinstance(second, complex):
            raise self._wrong("a complex number")
        return complex(float(first), second.imag)

    def _signed(self) -> CallValue:
        negative = self.take("-")
        if not negative:
            self.take("+")
        match = self._peek()
        if match is None or not (match["number"] or match["word"] in _WORDS):
            raise self._wrong("a value")
        self._at = match.end()
        value = _WORDS[match["word"]] if match["word"] else _number_of(match["number"])
        if not negative:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float | complex):
            raise self._wrong("a number after -")
        # The real part of -0-0j; no whole number is written so.
        return -value if value or isinstance(value, complex) else -0.0


def _number_of(text: str) -> CallValue:
    if text.endswith("j"):
        return complex(text)
    if not text.isdecimal():
        return float(text)
    if len(text) > 20 or int(text) > 2 * LARGEST + 1:
        raise UsageError("a number exceeds 2^64", hint="No op takes a number that large.")
    return int(text)


def _text_of(text: str) -> str:
    """Return the contents of a quoted string, with Python's escapes resolved."""
    try:
        value: Any = ast.literal_eval(text)
        value.encode()
    except (ValueError, SyntaxError):
        raise UsageError(f"{text[:60]} is not a quoted text", hint=_HINT) from None
    return str(value)


def _sizes(value: CallValue) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        return None
    sizes = tuple(item for item in value if type(item) is int and 0 <= item <= LARGEST)
    return sizes if len(sizes) == len(value) else None
