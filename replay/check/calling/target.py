"""Finds the function given as OP or --against: a dispatcher overload, a user's function, a reference implementation or
a decomposition.

Only names that the user gave are looked up as attributes or run from a file; a trace cannot name code here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from opreplay.initializers.user_code import load_user_code, user_module
from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.ir.model import Value
from opreplay.replay.ir.names import split_name
from opreplay.replay.ops.register import stand_in_of
from opreplay.replay.resolve import schema
from opreplay.replay.resolve.names import candidates, near_names
from opreplay.replay.resolve.policy import Policy, refuse_name
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.traces.errors import UsageError


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A callable function with the schemas of its overloads."""

    name: str
    """The name as the user gave it."""
    specs: tuple[OpSpec, ...]
    """Schemas of the op's overloads; for a Python function, one schema derived from its signature."""
    functions: Mapping[str, Callable[..., Any]]
    """Functions by overload name."""

    def function(self, overload: str | None) -> Callable[..., Any]:
        """Return the function to call for an overload."""
        return self.functions[overload or ""]

    def spec(self, overload: str | None) -> OpSpec:
        """Return the schema of an overload."""
        return next(spec for spec in self.specs if spec.overload == (overload or ""))

    def operator(self, overload: str | None) -> torch._ops.OpOverload | None:
        """Return the dispatcher's overload; None for a Python function."""
        function = self.functions[overload or ""]
        return function if isinstance(function, torch._ops.OpOverload) else None


def find_target(name: str) -> Target:
    """Return the target given as OP: "namespace::op", "namespace::op.overload" or "file.py:function".

    If the user registered an executor for the op, that executor is checked. Raises UsageError for an unknown name.
    """
    if is_function(name):
        return _of_function(name, user_function(name, flag="OP"))
    parts = split_name(name)
    if parts is None:
        raise UsageError(
            f"{name!r} is not the name of an op", hint="Name one as mylib::my_op, or a function as file.py:function."
        )
    qualified = f"{parts[0]}::{parts[1]}"
    entry = EXECUTORS.find(qualified)
    specs = schema.specs_of(qualified)
    if entry is not None and (entry.override or not specs):
        if entry.schema is None:
            return _of_function(name, entry.function)
        spec = schema.compile_schema(torch._C.parse_schema(f"{qualified}{entry.schema.strip()}"))
        return Target(name=name, specs=(spec,), functions={spec.overload: entry.function})
    if not specs:
        specs, qualified = _specs_here(name, qualified)
    if parts[2] is not None:
        specs = tuple(spec for spec in specs if spec.overload == parts[2])
        if not specs:
            raise UsageError(f"{qualified} has no overload {parts[2]}", hint=f"Use {qualified} without an overload.")
    specs = tuple(spec for spec in specs if spec.registered)
    return Target(name=name, specs=specs, functions={spec.overload: overload_of(spec) for spec in specs})


def _specs_here(name: str, qualified: str) -> tuple[tuple[OpSpec, ...], str]:
    """Return the overloads of an op, and the name under which they were found.

    They come from an installed library or from a reference implementation. Raises UsageError if there are none.
    """
    policy = Policy()
    known = candidates(qualified, policy)
    if known.specs:
        return known.specs, known.via or qualified
    near = ", ".join(near_names(known.via or qualified))
    # What is checked is loaded by --plugin; that a trace may not import it is beside the point.
    unloaded = known.reason is not None and known.reason.kind == "policy" and refuse_name(qualified, policy) is None
    why = "no loaded library or plugin registers it" if unloaded else str(known.reason)
    raise UsageError(
        f"torch has no op {name} here: {why}",
        hint=f"Did you mean {near}?" if near else "Name the file that registers it: --plugin my_ops.py.",
    )


def packet_of(name: str) -> Any:
    """Return the torch overload packet of "namespace::op"."""
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op)


def overload_of(spec: OpSpec) -> Callable[..., Any]:
    """Return the function that calls one overload."""
    return cast("Callable[..., Any]", getattr(packet_of(spec.name), spec.overload or "default"))


def is_function(text: str) -> bool:
    """Check whether the text names a function in a file."""
    path, colon, function = text.rpartition(":")
    return bool(colon) and path.endswith(".py") and function.isidentifier()


def user_function(text: str, *, flag: str) -> Callable[..., Any]:
    """Execute the file of "file.py:function" once and return the function. Raises UsageError if either does
    not exist.
    """
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise UsageError(f"{flag} {text}: file {path} does not exist", hint="Give it as file.py:function.")
    load_user_code(path, flag=flag)
    function = getattr(user_module(path), name, None)
    if not callable(function):
        raise UsageError(f"{flag} {text}: {path} has no function {name}", hint="Give it as file.py:function.")
    return cast("Callable[..., Any]", function)


def _of_function(name: str, function: Callable[..., Any]) -> Target:
    """Return the target for a Python function. If torch.library.custom_op made the function, it is that op's target."""
    opoverload = function.default if isinstance(function, torch._ops.OpOverloadPacket) else _plain_function(function)
    if isinstance(opoverload, torch._ops.OpOverload):
        spec = schema.compile_schema(opoverload._schema)
        return Target(name=name, specs=(spec,), functions={spec.overload: opoverload})
    spec = _spec_of(name.rpartition(":")[2] or name, function)
    return Target(name=name, specs=(spec,), functions={"": function})


_KINDS = {
    "Tensor": "Tensor",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "complex": "complex",
    "str": "str",
    "dtype": "ScalarType",
}


def _spec_of(name: str, function: Callable[..., Any]) -> OpSpec:
    """Derive a schema from a function's signature: parameters are tensors unless an annotation or a default says
    otherwise.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"{name} has no signature", hint="Write a Python function around it.") from None
    args = tuple(_arg_spec(p) for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    shown = f"{name}({', '.join(f'{arg.kind} {arg.name}' for arg in args)})"
    return OpSpec(name=name, overload="", args=args, text=shown, returns_list=False)


def _arg_spec(parameter: inspect.Parameter) -> ArgSpec:
    annotation, default = parameter.annotation, parameter.default
    note = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    has_default = default is not parameter.empty
    if "list" in note.lower() and "Tensor" in note:
        kind = "Tensor[]"
    else:
        # An annotation says more than the default does; `parameter.empty` is of no kind in the table.
        kind = _KINDS.get(note.split(" ")[0].split(".")[-1]) or _KINDS.get(type(default).__name__, "Tensor")
    return ArgSpec(
        name=parameter.name,
        kind=kind,
        type_text=note or kind,
        optional=default is None,
        optional_elements=False,
        size=None,
        has_default=has_default,
        default=cast("Value", default if isinstance(default, bool | int | float | str) else None),
        keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
        mutated=False,
        out=False,
    )


class OfNames(msgspec.Struct, frozen=True):
    """A reference that takes all arguments in one dict, by their names in the op's schema."""

    compute: Callable[[Mapping[str, Any]], Any]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        return self.compute(values)


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The reference with which results are compared."""

    text: str
    """Description of the reference in words."""
    function: Callable[..., Any] | None
    """The reference function; None if the reference is the op itself, in float64 on contiguous copies."""
    by_overload: Mapping[str, Callable[..., Any]] = msgspec.field(default_factory=dict[str, Callable[..., Any]])
    """Overload of the checked op → reference function for this overload, instead of `function`."""

    def function_for(self, overload: str | None) -> Callable[..., Any] | None:
        """Return the reference function for an overload of the op; None if the op itself is the reference."""
        return self.by_overload.get(overload or "", self.function)


GRADIENT = "gradient:"
"""Prefix in --against: "gradient:OP" names the gradients of the forward op OP as the reference."""
ITSELF = Reference(text="itself in float64 and on contiguous copies", function=None)


def find_reference(text: str | None, target: Target) -> Reference:
    """Return the reference given as --against: an op, "torch.add", "file.py:function", "gradient:OP", "stand-in",
    "decomposition", "float64".

    None means the op itself in float64. This reveals errors that occur in one dtype or layout only, but not errors that
    occur in all of them. Raises UsageError for an unknown name.
    """
    if text is None or text in ("float64", "itself"):
        return ITSELF
    if text == "stand-in":
        stand_in = stand_in_of(target.specs[0].name)
        if stand_in is None:
            raise UsageError(
                f"opreplay has no reference implementation of {target.name}",
                hint="`opreplay list ops` lists those that exist.",
            )
        return Reference(text=f"opreplay's stand-in for {target.specs[0].name}", function=stand_in)
    if text == "decomposition":
        return Reference(text="torch's decomposition", function=None, by_overload=_decompositions(target))
    if text.startswith(GRADIENT):
        forward = find_target(text.removeprefix(GRADIENT))
        function = OfNames(partial(_gradients_of, forward))
        return Reference(text=f"the gradients of {forward.name} by autograd", function=function)
    if is_function(text):
        return Reference(text=text, function=_plain_function(user_function(text, flag="--against")))
    if "::" in text:
        other = find_target(text)
        only = other.specs[0]
        function = other.function(only.overload) if len(other.specs) == 1 else packet_of(only.name)
        return Reference(text=text, function=function)
    if text.startswith("torch."):
        return Reference(text=text, function=_of_torch(text))
    raise UsageError(
        f"--against {text!r} is not a reference",
        hint="Give an op (aten::add), torch.add, file.py:function, gradient:OP, stand-in, decomposition or float64.",
    )


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _gradients_of(forward: Target, values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Return the expected results of a backward op: the gradients that autograd computes for the forward op.

    Arguments of the two ops are matched by name. Arguments of the backward op that are named dy or dout, or have "grad"
    in their name, are the gradients of the forward results. Values saved by the forward op are not used. Raises
    TypeError if arguments are missing.
    """
    spec = next((spec for spec in forward.specs if _has(values, spec)), None)
    if spec is None:
        raise TypeError(f"{forward.name} needs arguments with names that the op does not have")
    named = {arg.name: values[arg.name] for arg in spec.args if arg.name in values}
    leaves = {name: value.detach().requires_grad_() for name, value in named.items() if _is_differentiable(value)}
    with torch.enable_grad():
        results = list(flattened(forward.function(spec.overload)(**{**named, **leaves})))
    results = [item for item in results if isinstance(item, torch.Tensor) and item.requires_grad]
    of_results = (value for name, value in values.items() if "grad" in name.lower() or name in ("dy", "dout"))
    weights = [value for value in of_results if isinstance(value, torch.Tensor)]
    gradients = torch.autograd.grad(results[: len(weights)], list(leaves.values()), weights, allow_unused=True)
    return tuple(gradient for gradient in gradients if gradient is not None)


def _has(values: Mapping[str, Any], spec: OpSpec) -> bool:
    """Check whether all arguments that an overload requires are present and none is an output buffer."""
    return all(arg.has_default or arg.name in values for arg in spec.args) and not any(arg.mutated for arg in spec.args)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "_opoverload", None) or function


def _of_torch(text: str) -> Callable[..., Any]:
    """Return a public torch function: "torch.add", "torch.nn.functional.silu"."""
    parts = text.split(".")
    if any(part.startswith("_") for part in parts):
        raise UsageError(f"--against {text}: only public names of torch are allowed", hint="Name an op as aten::add.")
    named: Any = torch
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(named, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ImportError:
                raise UsageError(f"torch has no {text}", hint="Name a function such as torch.add.") from None
        named = getattr(named, part)
    if not callable(named):
        raise UsageError(f"{text} cannot be called", hint="Name a function such as torch.add.")
    return cast("Callable[..., Any]", named)


def _decompositions(target: Target) -> dict[str, Callable[..., Any]]:
    """Return torch's own decomposition of each overload into other ops. Raises UsageError if there is none."""
    from torch._decomp import global_decomposition_table

    table = cast("dict[Any, Callable[..., Any]]", global_decomposition_table["post_autograd"])
    by_overload = {overload: table[function] for overload, function in target.functions.items() if function in table}
    if not by_overload:
        raise UsageError(
            f"torch has no decomposition of {target.name}", hint="Remove --against, to compare with float64."
        )
    return by_overload
