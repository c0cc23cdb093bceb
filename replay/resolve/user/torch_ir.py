# pyright: strict
"""Registration as in torch_ir's extension guide: `register_op` and `register_executor`, with nodes as input and output.

Defines the nodes and builds them from recorded calls. The functions are stored in the tables of `conversions` and
`executors`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from opreplay.initializers.user_code import place_of
from opreplay.replay.ir.recorded_call import RecordedArg
from opreplay.replay.resolve.match import best_match
from opreplay.replay.resolve.schema import specs_of
from opreplay.replay.resolve.user import conversions, executors
from opreplay.replay.resolve.user.conversions import CONVERSIONS, Conversion, RecordedCall
from opreplay.replay.resolve.user.executors import EXECUTORS, op_and_overload, takes_inputs_and_attrs
from opreplay.replay.resolve.user.table import OpFunction
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

Function = TypeVar("Function", bound=Callable[..., Any])


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a conversion: one recorded call."""

    name: str
    """Name of the op without its namespace."""
    op: str = "call_function"
    target: str
    """Name of the op as recorded, "namespace::op"."""
    args: tuple[Any, ...]
    """Arguments in recorded order: TensorMeta, lists of TensorMeta, numbers, None."""
    kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    input_metas: list[TensorMeta]
    """All tensors, with lists flattened."""
    output_metas: list[TensorMeta] = msgspec.field(default_factory=list[TensorMeta])
    """Always empty, because a trace does not hold the outputs."""
    attrs: dict[str, Any]
    """All arguments except tensors, by the names in the op's schema."""


class OpNode(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a conversion: the op to run, "aten.relu.default" or "custom.gate", and its arguments."""

    name: str = ""
    op_type: str
    inputs: Sequence[TensorMeta]
    outputs: Sequence[TensorMeta] = ()
    attrs: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


def register_op(*ops: str) -> Callable[[Function], Function]:
    """Decorator: register a function (NodeInfo) -> OpNode that chooses the op to run.

    It is used before torch's own implementation. Raises UsageError for malformed names and duplicates.
    """

    def register(function: Function) -> Function:
        conversions.register_conversion(*map(_without_overload, ops), override=True)(_converting(function))
        return function

    return register


def register_executor(*ops: str, **options: Any) -> Callable[[Function], Function]:
    """Decorator: register a function (inputs, attrs) -> list of tensors that runs these ops instead of torch.

    Options are `schema`, `mutates` and `fake` of `opreplay.register_executor`. Raises UsageError for malformed names,
    for duplicates, and for a function with other parameters.
    """

    def register(function: Function) -> Function:
        if not takes_inputs_and_attrs(function):
            raise UsageError(
                f"{place_of(function)} must take the arguments (inputs, attrs)",
                hint="Or register a function of tensors and numbers with opreplay.register_executor.",
            )
        return executors.register_executor(*ops, override=True, **options)(function)

    return register


def get_conversion_fn(op_type: str) -> Callable[..., Any] | None:
    """Return the registered conversion of an op; None if torch's own op is used."""
    return _users_function(CONVERSIONS.find(op_and_overload(op_type)[0]))


def get_execution_fn(op_type: str) -> Callable[..., Any] | None:
    """Return the registered executor of an op; None if torch's own implementation is used."""
    return _users_function(EXECUTORS.find(op_and_overload(op_type)[0]))


def _users_function(entry: OpFunction | None) -> Callable[..., Any] | None:
    return None if entry is None else getattr(entry.function, "__wrapped__", entry.function)


def _without_overload(name: str) -> str:
    op, overload = op_and_overload(name)
    if overload:
        raise UsageError(f"{name}: a conversion applies to all overloads of an op", hint=f"Register {op}.")
    return op


def _converting(function: Callable[..., Any]) -> Callable[[RecordedCall], Conversion]:
    @functools.wraps(function)
    def convert(call: RecordedCall) -> Conversion:
        node: Any = function(node_of(call))
        if not isinstance(node, OpNode):
            raise TypeError(f"the function returned {type(node).__name__} instead of an OpNode")
        op, overload = op_and_overload(node.op_type)
        return Conversion(
            op=f"{op}.{overload}" if overload else op,
            args=list(node.inputs),
            kwargs=dict(node.attrs),
            note=f"passed as a node with inputs and the attributes {', '.join(node.attrs) or 'none'}",
        )

    return convert


def node_of(call: RecordedCall) -> NodeInfo:
    """Return a recorded call as a node. Raises ValueError if the call has values whose argument names are unknown."""
    base = call.name.rpartition("::")[2]
    return NodeInfo(
        name=base,
        target=call.name,
        args=tuple(_plain(arg) for arg in call.args),
        input_metas=[meta for arg in call.args for meta in arg.metas if meta is not None],
        attrs=dict(_attributes(call)),
    )


def _plain(arg: RecordedArg) -> Any:
    return arg.tensor if arg.kind == "tensor" else list(arg.tensors or ()) if arg.kind == "tensors" else arg.value


def _attributes(call: RecordedCall) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of every argument that is not a tensor."""
    values = [arg for arg in call.args if arg.kind in ("scalar", "scalars", "unknown")]
    if not values:
        return
    entry = EXECUTORS.find(call.name)
    specs = executors.schemas_for(entry, call.name) if entry is not None else list(specs_of(call.name))
    match = best_match(specs, call.args) if specs else None
    if match is None:
        raise ValueError(
            f"{_plain(values[0])} has no argument name: register an executor of {call.name} with a schema="
        )
    for arg, recorded in zip(match.spec.args, match.recorded, strict=False):
        if recorded in values:
            yield arg.name, recorded.value
