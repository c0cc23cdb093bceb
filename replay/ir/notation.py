# pyright: strict
"""The notation of calls in reports and on the command line: `aten::mm(bf16[4096,1024], bf16[1024,n]{1,1024}, alpha=2)`.

A tensor is its dtype, short (`bf16`) or torch's name, and its sizes. Properties that differ from the defaults follow in
this order: strides in braces; the offset into its memory after `+`, in elements like the strides; and after `@` the
number of a memory that several tensors of the call share. An example is `f32[4,8]{1,4}+16@0`. Sizes, strides and
integers may be named and computed with `+ - * // ^` and parentheses. Lists are written in brackets or parentheses,
strings in quotes, dtypes and similar values as `torch.bfloat16`. Nothing outside this grammar is evaluated. Parsing
does not need torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Union, cast

import msgspec

from opreplay.replay.ir.describe import SHORT_DTYPES, shorter_float
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.errors import UsageError
from opreplay.traces.literals import is_whole_numbers, plain_float
from opreplay.traces.model import OpSignature, TensorMeta, contiguous_strides

MOST_CHARACTERS = 100_000
MOST_VALUES = 10_000
"""Maximum number of values for one size in a sweep."""
MOST_NESTING = 16
LARGEST = (1 << 63) - 1
"""Maximum size, stride or other integer: torch uses 64 bits for each."""


class TorchName(str):
    """A torch constant such as "torch.bfloat16", as opposed to a string."""

    __slots__ = ()


CallValue = Union[TensorMeta, None, bool, int, float, complex, TorchName, str, "list[CallValue]"]


class CallText(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed call."""

    name: str
    """"namespace::op" or "namespace::op.overload"."""
    args: tuple[CallValue, ...] = ()
    kwargs: dict[str, CallValue] = {}


_LONG_DTYPES = {short: name for name, short in SHORT_DTYPES.items()}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)+(?:\.[A-Za-z_][A-Za-z0-9_]*)?")
_FUNCTION = re.compile(r"(?:[^():]*\.py:|[A-Za-z_][\w.]*\.)?([A-Za-z_]\w*)\(")
"""Matches the start of a function call. The function may be preceded by a file or a module."""
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<torch>torch\.[a-z_0-9]+)
    | (?P<complex>(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[+-])?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?j)
    | (?P<float>(?:\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+))
    | (?P<int>\d{1,20})
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>'[^']*'|"(?:[^"\\]|\\.)*")
    | (?P<sign>//|[-+*^()\[\]{},=@])
    )""",
    re.VERBOSE,
)
_WORDS: dict[str, CallValue] = {
    "None": None,
    "none": None,
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "inf": math.inf,
    "nan": math.nan,
}


def parse_call(text: str, *, sizes: Mapping[str, int] | None = None) -> CallText:
    """Parse a call; `sizes` gives the values of named sizes. Raises UsageError, which says where parsing stopped."""
    head = _head(text)
    reader = _Reader(text.strip()[head.end() :], sizes or {})
    args, kwargs = reader.arguments()
    return CallText(name=head[0], args=tuple(args), kwargs=kwargs)


def _head(text: str) -> re.Match[str]:
    """Match the name of the op. Raises UsageError."""
    head = _NAME.match(text.strip())
    if head is None:
        hint = "Write one as aten::mm(f32[64,32], f32[32,8])."
        if function := _FUNCTION.match(text.strip()):
            hint = (
                f"torch's own ops are written aten::{function[1]}(…). To make a Python function an op, put "
                f"@register_executor('mylib::{function[1]}') above it and load the file with "
                "--plugin; `opreplay check FILE.py:FUNCTION` also checks a plain function."
            )
        raise UsageError(f"{_cut(text)!r} is not a call of an op", hint=hint)
    return head


def parse_tensor(text: str, *, sizes: Mapping[str, int] | None = None) -> TensorMeta:
    """Parse a tensor such as "bf16[4096,1024]". Raises UsageError for any other text."""
    value = parse_value(text, sizes=sizes)
    if not isinstance(value, TensorMeta):
        raise UsageError(f"{_cut(text)!r} is not a tensor", hint="Write one as bf16[4096,1024].")
    return value


def parse_value(text: str, *, sizes: Mapping[str, int] | None = None) -> CallValue:
    """Parse an argument of a call: a tensor, number, text, list or None. Raises UsageError."""
    reader = _Reader(text, sizes or {})
    value = reader.value(0)
    reader.expect_end()
    return value


def size_names(text: str) -> tuple[str, ...]:
    """Return the names of sizes in a call, in the order of first use. Raises UsageError."""
    head = _head(text)
    body = text.strip()[head.end() :]
    names: dict[str, None] = {}
    for match in _TOKEN.finditer(body):
        word, after = match["word"], body[match.end() :].lstrip()
        if word and word not in _WORDS and not after.startswith(("[", "=")):
            names[word] = None
    return tuple(names)


def parse_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse the name and the values of a size to sweep.

    Examples are "n=1,47,4k", "n=2^7..2^14" (powers), "n=1..8" and "n=128..1024:128" (steps). Raises UsageError for any
    other text, and for more than 10,000 values.
    """
    name, _, right = text.partition("=")
    if not re.fullmatch(r"\s*[A-Za-z_][A-Za-z0-9_]*\s*", name) or not right.strip():
        raise UsageError(f"{_cut(text)!r} is not NAME=SIZES", hint="Write them as n=1,47,128 or n=2^7..2^14.")
    values: list[int] = []
    for part in right.split(","):
        values += _range(part)
        if len(values) > MOST_VALUES:
            raise UsageError(f"{name.strip()} has more than {MOST_VALUES:,} values", hint="Use a larger step.")
    return name.strip(), tuple(dict.fromkeys(values))


def _range(text: str) -> list[int]:
    first, dots, rest = text.partition("..")
    if not dots:
        return [whole_number(first)]
    last, colon, step_text = rest.partition(":")
    power = re.fullmatch(r"\s*(\d+)\^(\d+)\s*", first), re.fullmatch(r"\s*(\d+)\^(\d+)\s*", last)
    if power[0] and power[1] and power[0][1] == power[1][1] and not colon:
        base = whole_number(power[0][1])
        return [_power(base, exponent) for exponent in range(int(power[0][2]), int(power[1][2]) + 1)]
    begin, end, step = whole_number(first), whole_number(last), whole_number(step_text) if colon else 1
    if step < 1 or end < begin:
        raise UsageError(f"{_cut(text)!r} is not a range", hint="Write first..last or first..last:step.")
    return list(range(begin, min(end, begin + step * MOST_VALUES) + 1, step))


def whole_number(text: str) -> int:
    """Parse an integer of a sweep or of an option: "4096", "4k" (4096), "2^12". Raises UsageError."""
    if thousands := re.fullmatch(r"\s*(\d{1,12})k\s*", text):
        return 1024 * int(thousands[1])
    reader = _WholeNumber(text, {})
    value = reader.whole(0)
    reader.expect_end()
    return value


def _power(base: int, exponent: int) -> int:
    if exponent < 0 or (abs(base) > 1 and exponent > 62):
        raise UsageError(f"{base}^{exponent} is not a valid size", hint="Sizes must be below 2^62.")
    return base**exponent


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


class TokenReader:
    """Reads the tokens of one text from left to right."""

    tokens: re.Pattern[str]
    """Pattern of a token; its group `sign` matches punctuation."""
    hint: str

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _peek(self) -> re.Match[str] | None:
        return self.tokens.match(self._text, self._at)

    def _wrong(self, wanted: str) -> UsageError:
        return UsageError(f"expected {wanted} at {self._text[self._at :][:60]!r}", hint=self.hint)

    def take(self, sign: str) -> bool:
        """Consume the next token if it is `sign`, and return whether it was."""
        match = self._peek()
        if match is None or match["sign"] != sign:
            return False
        self._at = match.end()
        return True

    def need(self, sign: str) -> None:
        """Consume the next token. Raises UsageError if it is not `sign`."""
        if not self.take(sign):
            raise self._wrong(repr(sign))

    def expect_end(self) -> None:
        """Raise UsageError unless all tokens have been read."""
        if self._text[self._at :].strip():
            raise self._wrong("the end")


class _Reader(TokenReader):
    """Parser of a call, a tensor or sizes."""

    tokens = _TOKEN
    hint = "Write a call as aten::mm(bf16[4096,1024], bf16[1024,n], name=value)."

    def __init__(self, text: str, sizes: Mapping[str, int]) -> None:
        if len(text) > MOST_CHARACTERS:
            raise UsageError(f"a call of {len(text):,} characters is too long", hint="Use a trace instead.")
        super().__init__(text)
        self._sizes = sizes

    def _wrong(self, wanted: str) -> UsageError:
        return UsageError(
            f"expected {wanted} at {_cut(self._text[self._at :].strip())!r} of {_cut(self._text)!r}", hint=self.hint
        )

    def arguments(self) -> tuple[list[CallValue], dict[str, CallValue]]:
        """Parse the arguments in parentheses after the name."""
        args: list[CallValue] = []
        kwargs: dict[str, CallValue] = {}
        self.need("(")
        while not self.take(")"):
            if args or kwargs:
                self.need(",")
            name = self._keyword()
            if name is None and kwargs:
                raise self._wrong("name=value")
            if name is not None and name in kwargs:
                raise UsageError(f"{name} is given twice in {_cut(self._text)!r}", hint="Give each argument once.")
            value = self.value(0)
            if name is None:
                args.append(value)
            else:
                kwargs[name] = value
        self.expect_end()
        return args, kwargs

    def _keyword(self) -> str | None:
        match = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=").match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[1]

    def value(self, depth: int) -> CallValue:
        """Parse one argument; `depth` is the number of enclosing lists."""
        if depth > MOST_NESTING:
            raise UsageError(
                f"lists are nested more than {MOST_NESTING} deep", hint="No op takes an argument like this."
            )
        match = self._peek()
        if match is None:
            raise self._wrong("a value")
        if match["word"] and match["word"] not in _WORDS and self._text[match.end() :].lstrip().startswith("["):
            return self._tensor(match)
        if match["sign"] == "[" or (match["sign"] == "(" and self._is_list(match.end())):
            self._at = match.end()
            return self._list({"[": "]", "(": ")"}[match["sign"]], depth)
        if not match["torch"] and not match["text"]:
            return self._plain(match)
        self._at = match.end()
        return TorchName(match["torch"]) if match["torch"] else self._quoted(match["text"])

    def _quoted(self, text: str) -> str:
        """Return the contents of a quoted text: plain in single quotes, JSON-escaped in double quotes."""
        if text.startswith("'"):
            return text[1:-1]
        try:
            return msgspec.json.decode(text, type=str)
        except (msgspec.DecodeError, UnicodeError):
            raise self._wrong("a quoted string") from None

    def _plain(self, match: re.Match[str]) -> CallValue:
        """Parse a number or a word."""
        negative = match["sign"] == "-"
        inner = _TOKEN.match(self._text, match.end()) if negative else match
        if inner is None or not (inner["complex"] or inner["float"] or inner["word"] in _WORDS):
            return self.whole(0)
        self._at = inner.end()
        if inner["word"]:
            known = _WORDS[inner["word"]]
            return -known if negative and isinstance(known, float) else known
        text = "-" * negative + (inner["complex"] or inner["float"])
        return complex(text) if inner["complex"] else float(text)

    def _is_list(self, at: int) -> bool:
        """Check whether the bracket just before `at` opens a list, not a sum. A list contains a comma or a tensor."""
        depth = 0
        for match in re.compile(r"[()\[\],]").finditer(self._text, at):
            sign = match[0]
            if depth == 0 and sign in ",[)":
                return sign != ")" or not self._text[at : match.start()].strip()
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(sign, 0)
        return False

    def _list(self, end: str, depth: int) -> list[CallValue]:
        items: list[CallValue] = []
        while not self.take(end):
            if items:
                self.need(",")
                if self.take(end):
                    break
            items.append(self.value(depth + 1))
        return items

    def _tensor(self, match: re.Match[str]) -> TensorMeta:
        word = match["word"]
        dtype = _LONG_DTYPES.get(word, word)
        if dtype not in ITEMSIZE_BYTES:
            known = ", ".join(_LONG_DTYPES)
            raise UsageError(f"{word} is not a dtype", hint=f"Use one of {known}, bool, or torch's name for it.")
        self._at = match.end()
        self.need("[")
        shape = self._wholes("]")
        strides = self._wholes("}") if self.take("{") else None
        if strides is not None and len(strides) != len(shape):
            raise UsageError(f"{len(strides)} strides for {len(shape)} sizes in {_cut(self._text)!r}", hint="One each.")
        offset = self._factor(0) if self.take("+") else 0
        storage = self._factor(0) if self.take("@") else None
        if min((*shape, *(strides or ()), offset, storage or 0), default=0) < 0:
            raise UsageError(
                f"a tensor in {_cut(self._text)!r} has a negative number",
                hint="Sizes, strides and offsets must be >= 0.",
            )
        return TensorMeta(shape=shape, dtype=dtype, strides=strides, storage_offset=offset, storage=storage)

    def _wholes(self, end: str) -> tuple[int, ...]:
        items: list[int] = []
        while not self.take(end):
            if items:
                self.need(",")
            items.append(self.whole(0))
        return tuple(items)

    def whole(self, depth: int) -> int:
        """Parse an expression: a sum of products of integers and named sizes."""
        total = self._product(depth)
        while (plus := self.take("+")) or self.take("-"):
            term = self._product(depth)
            total = self._bounded(total + term if plus else total - term)
        return total

    def _product(self, depth: int) -> int:
        total = self._factor(depth)
        while (times := self.take("*")) or self.take("//"):
            factor = self._factor(depth)
            if not times and factor == 0:
                raise UsageError(f"{_cut(self._text)!r} divides by zero", hint="Use other sizes.")
            total = self._bounded(total * factor if times else total // factor)
        return total

    def _factor(self, depth: int) -> int:
        if depth > MOST_NESTING:
            raise UsageError(f"parentheses are nested more than {MOST_NESTING} deep", hint="Simplify the expression.")
        if self.take("-"):
            return -self._factor(depth + 1)
        if self.take("("):
            value = self.whole(depth + 1)
            self.need(")")
        else:
            value = self._number_or_size()
        if self.take("^"):
            value = _power(value, self._factor(depth + 1))
        return self._bounded(value)

    def _number_or_size(self) -> int:
        """Parse a whole number, or look up a named size."""
        match = self._peek()
        if match is None or not (match["int"] or match["word"]):
            raise self._wrong("a whole number or the name of a size")
        if match["word"] and match["word"] not in self._sizes:
            raise UsageError(
                f"{match['word']} in {_cut(self._text)!r} has no value", hint=f"Give it a value: {match['word']}=128."
            )
        self._at = match.end()
        return int(match["int"]) if match["int"] else self._sizes[match["word"]]

    @staticmethod
    def _bounded(value: int) -> int:
        if abs(value) > LARGEST:
            raise UsageError("a number beyond 2^63 is not a valid size", hint="Use smaller sizes.")
        return value


class _WholeNumber(_Reader):
    """Parser of one integer."""

    hint = "Write a whole number: 4096, 4k (4,096) or 2^12."


def tensor_text(meta: TensorMeta) -> str:
    """Return the tensor in the form that `parse_tensor` reads. Strides are written only if the tensor is not
    contiguous.
    """
    shape = ",".join(map(str, meta.shape))
    usual = meta.strides is None or meta.strides == contiguous_strides(meta.shape)
    strides = "" if usual or meta.strides is None else f"{{{','.join(map(str, meta.strides))}}}"
    offset = f"+{meta.storage_offset}" if meta.storage_offset else ""
    storage = "" if meta.storage is None else f"@{meta.storage}"
    return f"{SHORT_DTYPES.get(meta.dtype, meta.dtype)}[{shape}]{strides}{offset}{storage}"


def call_text(op: ReplayOp) -> str:
    """Return the op's full call in the form that `parse_call` reads. Leading tensors are passed by position, the
    arguments after them by name.
    """
    name = f"{op.called}.{op.overload}" if op.overload and "." not in op.called else op.called
    parts: list[str] = []
    by_place = True
    for arg in op.args:
        named = arg.name.isidentifier()
        by_place = by_place and not arg.keyword_only and arg.type.startswith("Tensor")
        text = _argument_text(arg)
        parts.append(text if by_place or not named else f"{arg.name}={text}")
    return f"{name}({', '.join(parts)})"


_TENSORS = {"aten::mm": 2, "aten::bmm": 2}
"""Number of tensor arguments of matrix products. In calls by compiled code, the result tensor follows these
arguments.
"""


def recorded_call_text(signature: OpSignature) -> str:
    """Return a recorded call in the form that `parse_call` reads, with all arguments by position. "" if a value is not
    recorded.
    """
    dims, spelled = signature.dims, signature.types
    if dims is None or spelled is None or len(dims) != len(spelled):
        return ""
    places = range(len(dims))
    concrete, strides = signature.concrete or (), signature.strides or ()
    parts: list[str] = []
    for place, shape, kind in zip(places, dims, spelled, strict=True):
        value = concrete[place] if place < len(concrete) else ""
        dtype = torch_dtype_name(kind) if kind else None
        if dtype is not None and is_whole_numbers(shape):
            apart = strides[place] if place < len(strides) else ()
            usable = apart if is_whole_numbers(apart) and len(apart) == len(shape) else None
            parts.append(tensor_text(TensorMeta(shape=shape, dtype=dtype, strides=usable)))
        elif value or not kind:
            parts.append(value or "None")
        else:
            return ""
    while parts and parts[-1] == "None":
        parts.pop()
    name = signature.name
    if len(parts) == _TENSORS.get(name, -1) + 1:
        name, parts[-1] = f"{name}.out", f"out={parts[-1]}"
    text = f"{name}({', '.join(parts)})"
    try:
        parse_call(text)
    except UsageError:
        return ""
    return text


_SINCE = re.compile(r"[._]since_\d{8}(?=\()")
"""Matches the part of an overload name that says in which release its schema appeared (`ops.register`). Only some calls
have this part; the same calls in a profile do not.
"""


def call_identity(op: ReplayOp) -> str:
    """Return the text that identifies a call in tables of measurements and in device files. It is the same for all
    releases of the call's schema.
    """
    return _SINCE.sub("", call_text(op), count=1)


def telling_arguments(ops: Sequence[tuple[str, str, str, str]]) -> dict[str, str]:
    """Map op ids to the arguments that tell an op from others with the same name and inputs, e.g. "dim=1 · k=True".

    `ops` are (id, name, inputs, call). The text is "" if no other op has the same name and inputs. It is also "" if the
    calls are unknown or equal.
    """
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for id_, name, inputs, call in ops:
        if call:
            alike.setdefault((name, inputs), []).append((id_, call))
    differences = {id_: "" for id_, *_ in ops}
    for group in alike.values():
        if len(group) > 1:
            differences |= _differing({id_: argument_texts(call) for id_, call in group})
    return differences


def _differing(calls: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the arguments that differ between calls, by name or position. Floats are shortened, unless different calls
    would then look equal.
    """
    names = dict.fromkeys(name for args in calls.values() for name in args)
    differing = [name for name in names if len({args.get(name) for args in calls.values()}) > 1]
    texts = {id_: _pieces(differing, args, shorter=True) for id_, args in calls.items()}
    if len(set(texts.values())) < len({tuple(args.values()) for args in calls.values()}):
        texts = {id_: _pieces(differing, args, shorter=False) for id_, args in calls.items()}
    return {id_: " · ".join(filter(None, pieces)) for id_, pieces in texts.items()}


def _pieces(names: list[str], args: dict[str, str], *, shorter: bool) -> tuple[str, ...]:
    """Return a text for each name; "" for an argument that the call does not have."""
    pieces: list[str] = []
    for name in names:
        text = shorter_float(args.get(name, "")) if shorter else args.get(name, "")
        pieces.append(text if name not in args or name.isdecimal() else f"{name}={text}")
    return tuple(pieces)


def argument_texts(call: str) -> dict[str, str]:
    """Return the arguments of a `call_text` as unparsed texts, by name, or by position ("0", "1", ...) if they have no
    name.
    """
    head, _, rest = call.partition("(")
    texts: dict[str, str] = {"op": head} if head else {}
    for place, piece in enumerate(_split(rest.removesuffix(")"))):
        name, equals, value = piece.partition("=")
        if equals and name.isidentifier():
            texts[name] = value
        else:
            texts[str(place)] = piece
    return texts


def _split(body: str) -> Iterator[str]:
    """Yield the pieces between commas, ignoring commas inside parentheses, brackets and quotes."""
    depth, quoted, start = 0, False, 0
    for at, sign in enumerate(body):
        if sign == '"' and (at == 0 or body[at - 1] != "\\"):
            quoted = not quoted
        depth += 0 if quoted else (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0 and not quoted:
            yield body[start:at].strip()
            start = at + 1
    if body[start:].strip():
        yield body[start:].strip()


def _argument_text(arg: ReplayArg) -> str:
    if arg.type == "Tensor":
        present = [meta for meta in arg.tensors if meta is not None]
        return tensor_text(present[0]) if present else "None"
    if arg.type.startswith("Tensor"):
        items = ["None" if meta is None else tensor_text(meta) for meta in arg.tensors]
        return f"[{', '.join(items)}]" if arg.tensors or arg.value is not None else "None"
    return _value_text(arg.value, arg.type)


def _value_text(value: object, kind: str) -> str:
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return f"[{', '.join(_value_text(item, kind) for item in items)}]"
    base = kind.removesuffix("[]")
    if isinstance(value, str):
        # Non-finite floats and complex numbers are texts in the IR, and so are dtypes.
        if base in ("float", "Scalar", "complex") or value.startswith("torch."):
            return value
        return msgspec.json.encode(value).decode()
    if isinstance(value, float):
        return str(plain_float(value))
    return str(value)
