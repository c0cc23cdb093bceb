# pyright: strict
"""Torch operator schemas as plain values: one `OpSpec` per overload, read from FunctionSchema objects, never from text.

Finds schemas by name in the dispatcher's table. `policy` decides what may be called, `match` which overload fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from opreplay.replay.host.dispatcher import has_kernel, registered_schemas
from opreplay.replay.ir.model import ReplayArg, Value
from opreplay.replay.ir.recorded_call import plain_number

_LIST = "[]"
_KINDS = {
    "Tensor": "Tensor",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "bool": "bool",
    "number": "Scalar",
    "complex": "complex",
    "str": "str",
    "ScalarType": "ScalarType",
    "Layout": "Layout",
    "Device": "Device",
    "MemoryFormat": "MemoryFormat",
    "Generator": "Generator",
    "Dimname": "str",
    "QScheme": "int",
}
"""Text of a schema type, without Optional and List → type name in the IR."""


class ArgSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of an overload."""

    name: str
    kind: str
    """IR type name, "Tensor[]", "int", ...; "opaque" for a type that the IR does not know."""
    type_text: str
    """Type in torch's spelling, e.g. "Optional[List[int]]"."""
    optional: bool
    """Whether None is a valid value."""
    optional_elements: bool
    """Whether elements of the list may be None (`Tensor?[]`)."""
    size: int | None
    """Length of a fixed-size list such as `int[2]`."""
    has_default: bool
    default: Value
    keyword_only: bool
    mutated: bool
    out: bool


class OpSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One overload of one op."""

    name: str
    """Name of the op, "namespace::op"."""
    overload: str
    args: tuple[ArgSpec, ...]
    text: str
    """Schema text for people to read; never parsed."""
    returns_list: bool
    """Whether at least one result is a list of tensors."""
    registered: bool = True
    """Whether torch's dispatcher has the overload. False means that only older versions of torch had it."""

    @property
    def torch_name(self) -> str:
        """The overload's name in torch.ops: "Tensor"; "default" for the default overload."""
        return self.overload or "default"

    @property
    def has_out(self) -> bool:
        """Whether the overload writes its result to an `out=` argument."""
        return any(arg.out for arg in self.args)

    @property
    def full_name(self) -> str:
        """The full name, e.g. "aten::add.Tensor"; "aten::relu" for the default overload."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


def specs_of(name: str) -> tuple[OpSpec, ...]:
    """Return all overloads of "namespace::op" in the dispatcher; () if there are none.

    Ops that exist only in the TorchScript interpreter (`aten::save`, `aten::manual_seed`, list and string methods) are
    not in the dispatcher, so they are never found. The result is cached until `forget` is called. An empty result is
    not cached, because the program may define the op later.
    """
    return _specs_of(name) or _specs_of.__wrapped__(name)


def forget() -> None:
    """Drop the cache; called after an import or registration has added ops."""
    _specs_of.cache_clear()


@lru_cache(maxsize=8192)
def _specs_of(name: str) -> tuple[OpSpec, ...]:
    return tuple(
        compile_schema(schema)
        for schema in registered_schemas(name)
        if _in_dispatcher(schema.name, schema.overload_name)
    )


def _in_dispatcher(name: str, overload: str) -> bool:
    try:
        has_kernel(f"{name}.{overload}" if overload else name, "CPU")
    except RuntimeError:  # "operator ... does not exist"
        return False
    return True


def compile_schema(schema: Any, *, registered: bool = True) -> OpSpec:
    """Convert a torch._C.FunctionSchema to plain values."""
    return OpSpec(
        name=schema.name,
        overload=schema.overload_name,
        args=tuple(_compile_argument(argument) for argument in schema.arguments),
        text=str(schema),
        returns_list=any("List[" in str(result.type) for result in schema.returns),
        registered=registered,
    )


def _compile_argument(argument: Any) -> ArgSpec:
    type_text = str(argument.real_type)
    optional = type_text.startswith("Optional[")
    inner = type_text[len("Optional[") : -1] if optional else type_text
    is_list = inner.startswith("List[")
    element = inner[len("List[") : -1] if is_list else inner
    optional_elements = is_list and element.startswith("Optional[")
    if optional_elements:
        element = element[len("Optional[") : -1]
    kind = _KINDS.get(element)
    if kind is not None and is_list:
        kind += _LIST
    has_default = argument.has_default_value()
    return ArgSpec(
        name=argument.name,
        kind=kind or "opaque",
        type_text=type_text,
        optional=optional,
        optional_elements=optional_elements,
        size=argument.N,
        has_default=has_default,
        default=_plain(argument.default_value) if has_default else None,
        keyword_only=argument.kwarg_only,
        mutated=argument.alias_info is not None and argument.alias_info.is_write,
        out=argument.is_out,
    )


def _plain(value: Any) -> Value:
    """Convert a default to a JSON-safe value. Values of types that JSON lacks, such as devices, become text."""
    if value is None or isinstance(value, bool | int | float | complex | str):
        return plain_number(value)
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return tuple(item if isinstance(item, bool | int | float | str) else str(item) for item in items)
    return str(value)


def named_after_gaps(spec: OpSpec, args: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """Return the arguments; those after an omitted one are marked to be passed by name."""
    names = {arg.name for arg in args}
    left_out = next((at for at, arg in enumerate(spec.args) if arg.name not in names), len(spec.args))
    behind = {arg.name for arg in spec.args[left_out:]}
    return tuple(msgspec.structs.replace(arg, keyword_only=True) if arg.name in behind else arg for arg in args)
