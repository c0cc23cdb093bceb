"""What OP and --against name: an overload of the dispatcher, a user's function, a stand-in, a decomposition.

Only what the user typed is looked up as an attribute or run from a file; a trace names no code here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from opreplay.initializers.user_code import load_user_code, user_module
from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.ir.model import Value
from opreplay.replay.ir.names import split_name
from opreplay.replay.ops.register import stand_in_of
from opreplay.replay.resolve import schema
from opreplay.replay.resolve.names import candidates, near_names
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.traces.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing that can be called, with what is known of its arguments."""

    name: str
    """As asked for."""
    specs: tuple[OpSpec, ...]
    """Its overloads; of a Python function one, made from its signature."""
    functions: Mapping[str, Callable[..., Any]]
    """By overload name."""
    in_dispatcher: bool
    """Whether the functions are overloads of torch's dispatcher, and not Python's."""

    def function(self, overload: str | None) -> Callable[..., Any]:
        """What is called for an overload."""
        return self.functions[overload or ""]

    def spec(self, overload: str | None) -> OpSpec:
        """The schema of an overload."""
        return next(spec for spec in self.specs if spec.overload == (overload or ""))

    def operator(self, overload: str | None) -> torch._ops.OpOverload | None:
        """The overload of the dispatcher; None for a function of Python's."""
        function = self.functions[overload or ""]
        return function if isinstance(function, torch._ops.OpOverload) else None


def find_target(name: str) -> Target:
    """What OP names: "namespace::op", "namespace::op.overload" or "file.py:function".

    An op that a user's executor runs is that executor. Raises UsageError for a name that is not known here.
    """
    if is_function(name):
        return _of_function(name, user_function(name, flag="OP"))
    parts = split_name(name)
    if parts is None:
        raise UsageError(f"{name!r} names no op", hint="Name one as mylib::my_op, or a function as file.py:function.")
    qualified = f"{parts[0]}::{parts[1]}"
    entry = EXECUTORS.find(qualified)
    specs = schema.specs_of(qualified)
    if entry is not None and (entry.override or not specs):
        if entry.schema is None:
            return _of_function(name, entry.function)
        spec = schema.compile_schema(torch._C.parse_schema(f"{qualified}{entry.schema.strip()}"))
        return Target(name=name, specs=(spec,), functions={spec.overload: entry.function}, in_dispatcher=False)
    if not specs:
        found = candidates(qualified, Policy())
        specs, qualified = found.specs, found.via or qualified
        if not specs:
            # What is checked is loaded by --plugin; that a trace may not import it is beside the point.
            said = str(found.reason)
            near = ", ".join(near_names(qualified))
            why = "nothing that was loaded registers it" if "--allow-import" in said else said
            raise UsageError(
                f"{name} is no op that torch knows here: {why}",
                hint=f"Did you mean {near}?" if near else "Give the file that registers it: --plugin my_ops.py.",
            )
    if parts[2] is not None:
        specs = tuple(spec for spec in specs if spec.overload == parts[2])
        if not specs:
            raise UsageError(f"{qualified} has no overload {parts[2]}", hint=f"Leave it out: {qualified}.")
    specs = tuple(spec for spec in specs if spec.registered)
    return Target(
        name=name, specs=specs, functions={spec.overload: _overload(spec) for spec in specs}, in_dispatcher=True
    )


def _overload(spec: OpSpec) -> Callable[..., Any]:
    namespace, _, op = spec.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op)
    return cast("Callable[..., Any]", getattr(packet, spec.overload or "default"))


def is_function(text: str) -> bool:
    """Whether a text names a function in a file."""
    path, colon, function = text.rpartition(":")
    return bool(colon) and path.endswith(".py") and function.isidentifier()


def user_function(text: str, *, flag: str) -> Callable[..., Any]:
    """The function that "file.py:function" names; the file runs once. Raises UsageError."""
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise UsageError(f"{flag} {text}: there is no file {path}", hint="Give it as file.py:function.")
    load_user_code(path, flag=flag)
    found = getattr(user_module(path), name, None)
    if not callable(found):
        raise UsageError(f"{flag} {text}: {path} has no function {name}", hint="Give it as file.py:function.")
    return cast("Callable[..., Any]", found)


def _of_function(name: str, function: Callable[..., Any]) -> Target:
    """A function as a target; one that torch.library.custom_op made is the op that it is."""
    opoverload = getattr(function, "_opoverload", None)
    if isinstance(function, torch._ops.OpOverloadPacket):
        opoverload = function.default
    if isinstance(function, torch._ops.OpOverload):
        opoverload = function
    if isinstance(opoverload, torch._ops.OpOverload):
        spec = schema.compile_schema(opoverload._schema)
        return Target(name=name, specs=(spec,), functions={spec.overload: opoverload}, in_dispatcher=True)
    spec = _spec_of(name.rpartition(":")[2] or name, function)
    return Target(name=name, specs=(spec,), functions={"": function}, in_dispatcher=False)


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
    """The schema that a function's signature amounts to: tensors, unless an annotation or a default says otherwise."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"{name} has no signature", hint="Write a Python function around it.") from None
    args: list[ArgSpec] = []
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        note = one.annotation if isinstance(one.annotation, str) else getattr(one.annotation, "__name__", "")
        has_default = one.default is not one.empty
        kind = next((kind for word, kind in _KINDS.items() if note.split(" ")[0].split(".")[-1] == word), None)
        if kind is None:
            kind = _KINDS.get(type(one.default).__name__, "Tensor") if has_default else "Tensor"
        if "list" in note.lower() and "Tensor" in note:
            kind = "Tensor[]"
        default: Any = one.default if has_default else None
        args.append(
            ArgSpec(
                name=one.name,
                kind=kind,
                type_text=note or kind,
                optional=has_default and default is None,
                optional_elements=False,
                size=None,
                has_default=has_default,
                default=cast("Value", default if isinstance(default, bool | int | float | str) else None),
                keyword_only=one.kind is one.KEYWORD_ONLY,
                mutated=False,
                out=False,
            )
        )
    shown = f"{name}({', '.join(f'{arg.kind} {arg.name}' for arg in args)})"
    return OpSpec(name=name, overload="", args=tuple(args), text=shown, returns_list=False)


@dataclass(frozen=True, slots=True)
class OfNames:
    """A reference that takes all arguments in one table, by their names in the op's schema."""

    compute: Callable[[Mapping[str, Any]], Any]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        return self.compute(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What results are held against."""

    text: str
    """In words."""
    function: Callable[..., Any] | None
    """None: the op itself, in float64 and on contiguous copies."""
    op: str | None = None
    """ "namespace::op" where it is one."""
    by_overload: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    """Functions for single overloads of the op that is checked."""

    def function_for(self, overload: str | None) -> Callable[..., Any] | None:
        """What an overload of the op is held against; None where that is the op itself."""
        return self.by_overload.get(overload or "", self.function)


GRADIENT = "gradient:"
"""Before the name of a forward op whose gradients are the reference."""
ITSELF = Reference(text="itself in float64 and on contiguous copies", function=None)


def find_reference(text: str | None, target: Target) -> Reference:
    """What --against names: an op, "torch.add", "file.py:function", "stand-in", "decomposition", "float64".

    None is the op itself in float64: it shows what a dtype or a layout breaks, not what is wrong everywhere.
    Raises UsageError for a name that is not known here.
    """
    if text is None or text in ("float64", "itself"):
        return ITSELF
    if text == "stand-in":
        found = stand_in_of(target.specs[0].name)
        if found is None:
            raise UsageError(f"there is no stand-in for {target.name}", hint="docs/vendor-ops.md lists them.")
        return Reference(text=f"opreplay's stand-in for {target.specs[0].name}", function=found)
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
        function = other.function(other.specs[0].overload) if len(other.specs) == 1 else _packet(other.specs)
        return Reference(text=text, function=function, op=text.partition(".")[0])
    if text.startswith("torch."):
        return Reference(text=text, function=_of_torch(text))
    raise UsageError(
        f"--against {text!r} is no reference",
        hint="Give an op (aten::add), torch.add, file.py:function, gradient:OP, stand-in, decomposition or float64.",
    )


def _gradients_of(forward: Target, values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """What a backward op has to give: autograd's gradients of the forward op, whose arguments it has by their names.

    Gradients of results are those of its tensors that have "grad" in their name, or are called dy or dout; what forward
    saved is not used. Raises TypeError where arguments are missing.
    """
    spec = next((one for one in forward.specs if _has(values, one)), None)
    if spec is None:
        raise TypeError(f"{forward.name} needs arguments that the op does not have by their names")
    given = [value for name, value in values.items() if "grad" in name.lower() or name in ("dy", "dout")]
    named = {arg.name: values[arg.name] for arg in spec.args if arg.name in values}
    leaves = {
        name: value.detach().requires_grad_()
        for name, value in named.items()
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    }
    with torch.enable_grad():
        results = list(flattened(forward.function(spec.overload)(**{**named, **leaves})))
    results = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
    weights = [one for one in given if isinstance(one, torch.Tensor)]
    found = torch.autograd.grad(results[: len(weights)], list(leaves.values()), weights, allow_unused=True)
    return tuple(one for one in found if one is not None)


def _has(values: Mapping[str, Any], spec: OpSpec) -> bool:
    """Whether all arguments that an overload needs are among these, and none is a buffer for a result."""
    return all(arg.has_default or arg.name in values for arg in spec.args) and not any(arg.mutated for arg in spec.args)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "_opoverload", None) or function


def _packet(specs: Sequence[OpSpec]) -> Callable[..., Any]:
    namespace, _, op = specs[0].name.partition("::")
    return cast("Callable[..., Any]", getattr(getattr(torch.ops, namespace), op))


def _of_torch(text: str) -> Callable[..., Any]:
    """A public function of torch's: "torch.add", "torch.nn.functional.silu"."""
    parts = text.split(".")
    if any(part.startswith("_") for part in parts):
        raise UsageError(f"--against {text}: only public names of torch", hint="Name an op as aten::add.")
    found: Any = torch
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ImportError:
                raise UsageError(f"torch has no {text}", hint="Name a function as torch.add.") from None
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{text} cannot be called", hint="Name a function as torch.add.")
    return cast("Callable[..., Any]", found)


def _decompositions(target: Target) -> dict[str, Callable[..., Any]]:
    """torch's own decomposition of each overload into other ops. Raises UsageError where there is none."""
    from torch._decomp import global_decomposition_table

    table = cast("dict[Any, Callable[..., Any]]", global_decomposition_table["post_autograd"])
    found = {overload: table[function] for overload, function in target.functions.items() if function in table}
    if not found:
        raise UsageError(f"torch has no decomposition of {target.name}", hint="Leave --against out: float64.")
    return found
