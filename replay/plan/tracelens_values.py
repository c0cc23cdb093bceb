"""Converts single arguments between TraceLens's notation and `ReplayArg`.

A tensor is `{"shape", "dtype", "strides", "init"}`, with the dtype as profiled ("c10::Half"). A ScalarType, Layout or
MemoryFormat is the integer that the profiler records. This module reads no files and does not need torch.
"""

from __future__ import annotations

import math
import re
from typing import Any

from opreplay.replay.ir.model import PlainValue, ReplayArg, Value
from opreplay.replay.ir.recorded_call import CODES
from opreplay.traces.dtypes import CPP_SPELLINGS, torch_dtype_name
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta, contiguous_strides

_MAX_ITEMS = 100_000
_KINDS = {
    "Tensor": "Tensor",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "double": "float",
    "SymFloat": "float",
    "bool": "bool",
    "SymBool": "bool",
    "Scalar": "Scalar",
    "number": "Scalar",
    "complex": "complex",
    "str": "str",
    "string": "str",
    "ScalarType": "ScalarType",
    "Layout": "Layout",
    "Device": "Device",
    "MemoryFormat": "MemoryFormat",
    "Generator": "Generator",
}
"""Type names as written in the file, without "?", "[]" and alias set → type names of the IR."""
_DECLARED = re.compile(r"(\w{1,40})(?:\([a-zA-Z0-9!*|> -]{0,40}\))?(\?)?(\[\d{0,3}\])?(\?)?")
_TORCHSCRIPT = re.compile(r"(Optional\[)?(List\[)?(?:Optional\[)?(\w{1,40})\]*")
_CODE_OF = {name: code for names in CODES.values() for code, name in enumerate(names)}
_SPELLINGS = {name: spelling for spelling, name in reversed(CPP_SPELLINGS.items())}
_SPELLINGS |= {"int64": "long int", "int16": "short int", "uint8": "unsigned char", "int8": "signed char"}


class Refused(ValueError):
    """Raised for an invalid argument; the text says what is wrong."""


class Unknown(ValueError):
    """Raised for a well-formed argument whose type or dtype does not exist in the IR."""


def code_of(value: Value) -> Value:
    """Return the profiler's integer for a constant such as "torch.float16"; other values are returned unchanged."""
    return _CODE_OF.get(value, value) if isinstance(value, str) else value


def is_unicode(text: str) -> bool:
    """Check whether a text is valid Unicode. An unpaired surrogate can be written as a JSON escape, but not into a
    file.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def kind_of(declared: str) -> str:
    """Return the IR type name of a declared type: "SymInt[2]?" or "Optional[List[int]]" → "int[]". Raises Unknown."""
    match = _DECLARED.fullmatch(declared)
    if match and match[1] in _KINDS:
        return _KINDS[match[1]] + ("[]" if match[3] else "")
    match = _TORCHSCRIPT.fullmatch(declared)
    if match and match[3] in _KINDS:
        return _KINDS[match[3]] + ("[]" if match[2] else "")
    raise Unknown(f"argument type {declared[:60]!r}")


def read_argument(entry: Any, *, keyword_only: bool) -> ReplayArg:
    """Read an element of list_pos_args or list_kwargs. Raises Refused, or Unknown for an unknown type or dtype."""
    if not isinstance(entry, dict):
        raise Refused("an argument is not an object")
    name, declared = entry.get("arg_name"), entry.get("arg_type")
    if not isinstance(name, str) or not re.fullmatch(r"\w{1,200}", name):
        raise Refused("arg_name is missing or not an identifier")
    if not isinstance(declared, str):
        raise Refused(f"argument {name}: arg_type is missing or not text")
    if "value" not in entry:
        raise Refused(f"argument {name}: the value is missing")
    try:
        return _argument(name, kind_of(declared), entry["value"], keyword_only)
    except Refused as error:
        raise Refused(f"argument {name}: {error}") from None
    except Unknown as error:
        raise Unknown(f"argument {name}: {error}") from None


def _argument(name: str, kind: str, value: Any, keyword_only: bool) -> ReplayArg:
    if kind == "Tensor" and value is not None:
        return ReplayArg(name=name, type=kind, tensors=(_tensor(value),), keyword_only=keyword_only)
    if kind == "Tensor[]" and value is not None:
        tensors = tuple(None if item is None else _tensor(item) for item in _list(value, "a list of tensors"))
        return ReplayArg(
            name=name, type=kind, tensors=tensors, value=None if tensors else (), keyword_only=keyword_only
        )
    return ReplayArg(name=name, type=kind, value=_plain(kind, value), keyword_only=keyword_only)


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(f"not {what}")
    if len(value) > _MAX_ITEMS:
        raise Refused(f"{len(value)} items exceed the limit of {_MAX_ITEMS}")
    return value


def _tensor(value: Any) -> TensorMeta:
    if not isinstance(value, dict):
        raise Refused("a tensor is not an object")
    shape = _sizes(value.get("shape"), "shape")
    strides = None if value.get("strides") is None else _sizes(value["strides"], "strides")
    if strides is not None and len(strides) != len(shape):
        raise Refused(f"{len(shape)} dims do not match {len(strides)} strides")
    recorded = value.get("dtype")
    if not isinstance(recorded, str):
        raise Refused("dtype is missing or not text")
    dtype = torch_dtype_name(recorded)
    if dtype is None:
        raise Unknown(f"dtype {recorded[:60]!r}")
    return TensorMeta(shape=shape, dtype=dtype, strides=strides)


def _sizes(value: Any, what: str) -> tuple[int, ...]:
    items = _list(value, f"a list of integers ({what})")
    if len(items) > MAX_RANK:
        raise Refused(f"rank {len(items)} exceeds the limit of {MAX_RANK}")
    if any(type(item) is not int or not 0 <= item < 2**63 for item in items):
        raise Refused(f"{what} is not a list of sizes")
    return tuple(items)


def _plain(kind: str, value: Any) -> Value:
    """Return a value that is not a tensor, after a check that JSON can express it. Lists may be nested once."""
    if not isinstance(value, list):
        return _scalar(kind, value)
    return tuple(
        tuple(_scalar(kind, inner) for inner in _list(item, "a list"))
        if isinstance(item, list)
        else _scalar(kind, item)
        for item in _list(value, "a list")
    )


def _scalar(kind: str, value: Any) -> PlainValue:
    codes = CODES.get(kind.removesuffix("[]"))
    if codes is not None and type(value) is int:
        if not 0 <= value < len(codes):
            raise Unknown(f"{kind} has no code {value}")
        return codes[value]
    if isinstance(value, str) and not is_unicode(value):
        raise Refused("a text is not valid Unicode")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise Refused(f"an integer has {value.bit_length()} bits")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    raise Refused("a value is not a number, a text or a list of these")


def write_argument(argument: ReplayArg) -> dict[str, Any]:
    """Return the argument in TraceLens's notation."""
    kind = argument.type
    if kind == "Tensor" and argument.tensors:
        value: Any = _write_tensor(argument.tensors[0])
    elif kind == "Tensor[]" and (argument.tensors or argument.value is not None):
        value = [_write_tensor(tensor) for tensor in argument.tensors]
    else:
        value = _write_plain(kind.removesuffix("[]"), argument.value)
    declared = kind if value is not None else f"{kind}?"
    return {"arg_name": argument.name, "arg_type": declared, "value": value}


def _write_tensor(tensor: TensorMeta | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    strides = contiguous_strides(tensor.shape) if tensor.strides is None else tensor.strides
    return {
        "shape": list(tensor.shape),
        "dtype": _SPELLINGS.get(tensor.dtype, tensor.dtype),
        # An empty tensor may have sizes whose product is no stride.
        "strides": None if max(strides, default=0) >= 2**63 else list(strides),
        "init": "normal",
    }


def _write_plain(kind: str, value: Value) -> Any:
    if isinstance(value, tuple):
        return [_write_plain(kind, item) for item in value]
    codes = CODES.get(kind)
    if codes is not None and isinstance(value, str) and value in codes:
        return codes.index(value)
    if kind in ("float", "Scalar") and value in ("inf", "-inf", "nan"):
        return float(str(value))
    return value
