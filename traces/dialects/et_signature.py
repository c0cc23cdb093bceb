"""Convert the arguments of one ExecutionTrace node to the notation of a Kineto event."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from opreplay.traces.dialects.et_nodes import Node
from opreplay.traces.dtypes import unknown_types
from opreplay.traces.literals import format_literal, parse_literal
from opreplay.traces.model import Dims, OpSignature

_SCALARS = frozenset({"Int", "Double", "Bool", "SymInt", "SymFloat", "SymBool", "ComplexDouble"})
_UNDEFINED = "nullptr (uninitialized)"
_OVERLOAD = re.compile(r"[\w:]{1,500}?(?:\.(\w{1,200}))?\(")
_ALIGNMENT_BYTES = 512
"""Alignment in bytes of the memory that CUDA's caching allocator returns. How a kernel can load a view depends on the
view's offset modulo this alignment.
"""


class BrokenArguments(Exception):
    """The recorded arguments contradict each other; the op is kept without them."""


class _Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded tensor; `key` identifies its storage within the file, or is None."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    type: str
    key: tuple[int, str] | None = None
    offset: int = 0
    itemsize: int = 0

    @property
    def extent(self) -> int:
        """Return the number of elements from the first to the last one, including the gaps that the strides leave. An
        empty tensor has extent 0.
        """
        if 0 in self.shape:
            return 0
        if len(self.strides) == len(self.shape):
            return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return math.prod(self.shape)


class _Arguments(msgspec.Struct, kw_only=True):
    """The columns of an `OpSignature`, with one entry per argument."""

    dims: list[Dims] = msgspec.field(default_factory=list)
    types: list[str] = msgspec.field(default_factory=list)
    strides: list[Dims] = msgspec.field(default_factory=list)
    concrete: list[str] = msgspec.field(default_factory=list)
    tensors: list[tuple[_Tensor | None, ...]] = msgspec.field(default_factory=list)

    def add(
        self,
        type_: str,
        *,
        concrete: str = "",
        dims: Dims = (),
        strides: Dims = (),
        tensors: tuple[_Tensor | None, ...] = (),
    ) -> None:
        self.types.append(type_)
        self.concrete.append(concrete)
        self.dims.append(dims)
        self.strides.append(strides)
        self.tensors.append(tensors)


def signature_of(node: Node, name: str, op_schema: object) -> OpSignature:
    """Return the signature of a node. Raises BrokenArguments if the node's lists of arguments do not match.

    Types are spelled as in Kineto. Unlike Kineto, an ExecutionTrace also records the values of strings, lists longer
    than 30, the tensors of a `Tensor?[]` (here a "TensorList") with their types, and which tensors share storage.
    """
    values, shapes, types, strides = _columns(node)
    if not types:  # as in Kineto, where nothing is recorded of an op without arguments
        return OpSignature(name=name, overload=overload_of(op_schema))
    arguments = _Arguments()
    for index, (value, shape, type_) in enumerate(zip(values, shapes, types, strict=True)):
        if not isinstance(type_, str):
            raise BrokenArguments(f"the type of argument {index} is not text")
        _add(arguments, value, shape, type_, None if strides is None else strides[index])
    return OpSignature(
        name=name,
        dims=tuple(arguments.dims),
        types=tuple(arguments.types),
        strides=None if strides is None else tuple(arguments.strides),
        concrete=tuple(arguments.concrete),
        overload=overload_of(op_schema),
        list_types=_list_types(arguments),
        storage=_storages(arguments.tensors),
    )


def _result_columns(node: Node) -> list[Any] | None:
    """Return the values, shapes and types of the results as lists of equal length; None if none are recorded."""
    columns: list[Any] = [node.outputs, node.output_shapes, node.output_types]
    if isinstance(node.outputs, dict):
        columns = [node.outputs.get(name) for name in ("values", "shapes", "types")]
    if all(column is None for column in columns):
        return None
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
        raise BrokenArguments("the lists of results have different lengths")
    return columns


def results_of(node: Node) -> tuple[tuple[str, tuple[int, ...]] | None, ...] | None:
    """Return (type, dims) of each result of a node; None if none are recorded. Raises BrokenArguments."""
    recorded = _result_columns(node)
    if recorded is None:
        return None
    results = _Arguments()
    for value, shape, type_ in zip(*recorded, strict=True):
        if not isinstance(type_, str):
            raise BrokenArguments("the type of a result is not text")
        _add(results, value, shape, type_, None)
    return tuple(
        None if tensor is None else (tensor.type, tensor.shape)
        for tensors in results.tensors
        for tensor in tensors or (None,)
    )


def overload_of(op_schema: object) -> str | None:
    """Return the overload name in a recorded schema, using only the text before the first "("."""
    match = _OVERLOAD.match(op_schema) if isinstance(op_schema, str) else None
    return (match[1] or "") if match else None


def _columns(node: Node) -> tuple[list[Any], list[Any], list[Any], list[Any] | None]:
    """Return the values, shapes, types and strides of a node's arguments, from either generation of the schema. Raises
    BrokenArguments unless they are lists of equal length.
    """
    if isinstance(node.inputs, dict):
        get = node.inputs.get
        strides = get("strides")
        recorded: list[Any] = [get("values"), get("shapes"), get("types")]
    else:
        strides = node.input_strides
        recorded = [node.inputs, node.input_shapes, node.input_types]
    values, shapes, types = ([] if column == () else column for column in recorded)
    columns = (values, shapes, types) if strides is None else (values, shapes, types, strides)
    if not all(isinstance(column, list) for column in columns):
        raise BrokenArguments("an argument list is not a list")
    if len({len(column) for column in columns}) > 1:
        raise BrokenArguments("the argument lists have different lengths")
    return values, shapes, types, strides


def _add(to: _Arguments, value: Any, shape: Any, type_: str, strides: Any) -> None:
    if type_.startswith("Tensor("):
        tensor = _tensor(value, shape, type_, strides)
        if tensor is None:
            to.add("", tensors=(None,))
        else:
            to.add(tensor.type, dims=tensor.shape, strides=tensor.strides, tensors=(tensor,))
    elif type_ in _SCALARS:
        to.add("Scalar", concrete=_text(value))
    elif type_.startswith("GenericList[") and isinstance(value, list):
        _add_list(to, value, shape, type_, strides)
    elif type_ == "String" and isinstance(value, str):
        to.add("", concrete=value)
    else:  # None, Device, Generator, Object, Tuple...: Kineto does not record them either
        to.add(type_ if unknown_types((type_,)) else "")


def _add_tensors(to: _Arguments, *columns: Any) -> None:
    """Add tensors; `columns` are their values, shapes, types and strides."""
    if any(not isinstance(column, list) or len(column) != len(columns[2]) for column in columns):
        raise BrokenArguments("a list of tensors has different numbers of values, shapes and types")
    tensors = tuple(map(_tensor, *columns))
    layouts = [(tensor.shape, tensor.strides) if tensor else ((), ()) for tensor in tensors]
    dims, steps = zip(*layouts, strict=True)
    to.add("TensorList", dims=dims, strides=steps, tensors=tensors)


def _add_list(to: _Arguments, values: list[Any], shape: Any, type_: str, strides: Any) -> None:
    elements = _split(type_.removeprefix("GenericList[").removesuffix("]"))
    if elements and all(element == "None" or element.startswith("Tensor(") for element in elements):
        _add_tensors(to, values, shape, elements, [None] * len(values) if strides is None else strides)
    elif all(element in _SCALARS for element in elements):
        to.add("ScalarList", concrete=_text(values))
    else:
        to.add("")


def _split(text: str) -> list[str]:
    """Split element types at the outermost level: "Int,Tuple[Int,Int]" → ["Int", "Tuple[Int,Int]"]."""
    if "[" not in text:
        return text.split(",") if text else []
    parts, depth, begin = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append(text[begin:index])
            begin = index + 1
    return [*parts, text[begin:]]


def _text(value: Any) -> str:
    """Format a value as Kineto does. An ExecutionTrace writes inf and nan as text, and floats with six decimals."""
    if isinstance(value, list) and all(not isinstance(item, list | dict) for item in value):
        return format_literal([parse_literal(item) if isinstance(item, str) else item for item in value])
    if isinstance(value, str):
        return format_literal(parse_literal(value))
    return "" if isinstance(value, list | dict) else format_literal(value)


def _ints(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise BrokenArguments(f"{what} are not a list of integers")
    return tuple(value)


def _tensor(value: Any, shape: Any, type_: str, strides: Any) -> _Tensor | None:
    """Return one tensor; None if it is undefined or absent.

    `value` is [tensor, storage, offset, numel, itemsize, device].
    """
    element = type_.removeprefix("Tensor(").removesuffix(")")
    if type_ == "None" or element == _UNDEFINED:
        return None
    dims = _ints(shape, "dims")
    if any(size < 0 for size in dims):
        raise BrokenArguments("negative dims")
    recorded = () if strides is None else _ints(strides, "strides")
    if strides is not None and len(recorded) != len(dims):
        raise BrokenArguments("strides and dims have different lengths")
    return _Tensor(shape=dims, strides=recorded, type=element, **_place(value))


def _place(value: Any) -> dict[str, Any]:
    """Return the storage, offset and element size of a recorded tensor; empty if they are invalid."""
    known = isinstance(value, list) and len(value) >= 5 and all(type(item) is int for item in value[:5])
    if not known or value[1] <= 0 or value[2] < 0 or value[4] <= 0:
        return {}
    device = value[5] if len(value) > 5 and isinstance(value[5], str) else ""
    return {"key": (value[1], device), "offset": value[2], "itemsize": value[4]}


def _list_types(arguments: _Arguments) -> tuple[tuple[str, ...], ...] | None:
    if "TensorList" not in arguments.types:
        return None
    return tuple(
        tuple(tensor.type if tensor else "" for tensor in tensors) if type_ == "TensorList" else ()
        for type_, tensors in zip(arguments.types, arguments.tensors, strict=True)
    )


def _storages(arguments: list[tuple[_Tensor | None, ...]]) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Return (storage, offset) of each argument's tensors, as in `OpSignature`; None if no tensor names its storage."""
    tensors = [tensor for argument in arguments for tensor in argument]
    parts = _shared_parts([tensor for tensor in tensors if tensor is not None and tensor.key is not None])
    if not parts:
        return None
    number: dict[object, int] = {}

    def place(tensor: _Tensor | None) -> tuple[int, int]:
        if tensor is None:
            return -1, 0
        if tensor.key is None:
            return number.setdefault(object(), len(number)), 0
        first_byte = parts[id(tensor)]
        base = first_byte // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES
        offset = (tensor.offset * tensor.itemsize - base) // tensor.itemsize
        return number.setdefault((tensor.key, first_byte), len(number)), offset

    return tuple(tuple(place(tensor) for tensor in argument) for argument in arguments)


def _shared_parts(tensors: list[_Tensor]) -> dict[int, int]:
    """Return, by the `id` of each tensor, the first byte of its shared part of the storage.

    A shared part holds tensors that overlap. Views that do not overlap count as independent even in one storage, so a
    replay does not need the memory between them.
    """
    parts: dict[int, int] = {}
    key, begin, end = None, 0, 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.key or (0, ""), tensor.offset * tensor.itemsize)):
        first = tensor.offset * tensor.itemsize
        if tensor.key != key or first >= end:
            key, begin, end = tensor.key, first, first
        end = max(end, first + tensor.extent * tensor.itemsize)
        parts[id(tensor)] = begin
    return parts
