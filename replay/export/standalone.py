# pyright: strict
"""Generates Python source that computes an op with torch alone.

The source either calls torch.ops, or contains opreplay's reference implementation with its helper functions. This
module determines what the source may contain; `flashinfer_trace` determines its arguments.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from opreplay.replay.export.whole import whole_arguments
from opreplay.replay.ir.model import ReplayArg, ReplayOp, Value
from opreplay.replay.ir.names import is_overload, split_name
from opreplay.replay.ops.calls import Call, arguments_read, takes_call
from opreplay.replay.ops.register import reference_of
from opreplay.replay.ops.table import Reference
from opreplay.replay.resolve.policy import TORCH_NAMESPACES

_MODULES = ("torch", "math", "itertools", "functools", "types")
"""Modules, including their submodules, that the generated source may import."""
MAX_HELPERS = 40
"""Maximum number of functions in the source of a reference, so that it stays readable."""


def called_text(op: ReplayOp, parameters: Sequence[str], given: Mapping[str, str]) -> str | None:
    """Return source text with a function `run` that takes `parameters` and calls the op. None if torch alone cannot
    compute the op.

    `given` has the source text of each argument of the op, as an expression of the parameters. If the op has no
    results, `run` returns the arguments that the op writes to. Op names that are not identifiers never enter the text.
    """
    if split_name(op.called) is None or not is_overload(op.overload or ""):
        return None
    written = tuple(given[arg.name] for arg in op.args if arg.mutated and arg.tensors)
    if op.called.partition("::")[0] in TORCH_NAMESPACES and op.resolved_by != "reference":
        lines, call = ["import torch"], _torch_call(op, given)
    else:
        version = reference_of(op.called, op.overload or "")
        sources = None if version is None else _sources(version.run)
        if version is None or sources is None:
            return None
        call = f"{version.run.__name__}({_by_name(op, version, given)})"
        lines = sources
        if version.into:
            targets = "".join(f"{given[name]}, " for name in version.into)
            values = call if len(version.into) > 1 else f"[{call}]"
            call = f"[target.copy_(value.reshape(target.shape)) for target, value in zip([{targets}], {values})][0]"
    result = f"    return {call}" if op.outputs else f"    {call}\n    return {', '.join(written) or None}"
    return (
        "\n\n\n".join(["from __future__ import annotations", *lines, f"def run({', '.join(parameters)}):\n{result}"])
        + "\n"
    )


def refusing_text(op: ReplayOp, parameters: Sequence[str]) -> str:
    """Return source text whose `run` raises NotImplementedError. It is used for an op without a reference."""
    return f"def run({', '.join(parameters)}):\n    raise NotImplementedError({op.called!r})\n"


def _torch_call(op: ReplayOp, given: Mapping[str, str]) -> str:
    by_place = [given[arg.name] for arg in op.args if not arg.keyword_only]
    by_name = [(arg.name, given[arg.name]) for arg in op.args if arg.keyword_only]
    plain = [f"{name}={text}" for name, text in by_name if name.isidentifier()]
    namespace, _, name = op.called.partition("::")
    return f"torch.ops.{namespace}.{name}.{op.overload or 'default'}({', '.join([*by_place, *plain])})"


def _by_name(op: ReplayOp, version: Reference, given: Mapping[str, str]) -> str:
    """Return the source text of the reference's arguments. Arguments that the call lacks get the schema's defaults."""
    defaults = {arg.name: value_text(arg.type, arg.value) for arg in whole_arguments(op)}
    texts = {**defaults, **given}
    ours: dict[str, str] = {}
    for name, needed in arguments_read(version.run).items():
        here, *attribute = version.renames.get(name, name).partition(".")
        if here in texts or needed:
            ours[name] = "".join((texts[here], *attribute)) if here in texts else "None"
    ours |= {name: repr(value) for name, value in version.fixed.items()}
    named = ", ".join(f"{name}={text}" for name, text in ours.items())
    return f"SimpleNamespace({named})" if takes_call(version.run) else named


def value_text(kind: str, value: Value) -> str:
    """Return the Python source of an argument value that is not a tensor."""
    if isinstance(value, tuple):
        return f"[{', '.join(value_text(kind.removesuffix('[]'), item) for item in value)}]"
    if not isinstance(value, str) or kind in ("str", "Device"):
        return repr(value)
    if kind in ("ScalarType", "Layout", "MemoryFormat"):
        return value if value.startswith("torch.") and value.isprintable() and value[6:].isidentifier() else repr(value)
    return f"float({value!r})" if value in ("inf", "-inf", "nan") else f"complex({value!r})"


def constant(arg: ReplayArg) -> str:
    """Return the Python source of the value of an argument without tensors."""
    return value_text(arg.type, arg.value)


def _sources(run: Callable[..., Any]) -> list[str] | None:
    """Return the source texts of the imports, constants and functions that a reference needs, with the reference last.
    None if it needs anything else.
    """
    imports: dict[str, str] = {}
    constants: dict[str, str] = {}
    functions: dict[str, tuple[FunctionType, str]] = {}
    waiting: list[Callable[..., Any]] = [run]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function.__closure__ or len(functions) > MAX_HELPERS:
            return None
        name = function.__name__
        if name in functions:
            if functions[name][0] is not function:
                return None
            continue
        tree = _definition(function)
        if tree is None:
            return None
        functions[name] = (function, ast.unparse(tree))
        for used in sorted(_globals_used(tree, function)):
            value = function.__globals__[used]
            text = _import_text(used, value)
            if text is not None:
                if imports.setdefault(used, text) != text:
                    return None
            elif isinstance(value, FunctionType):
                if inspect.unwrap(value).__name__ != used:
                    return None
                waiting.append(value)
            elif (text := _constant_text(value)) is not None:
                if constants.setdefault(used, text) != text:
                    return None
            else:
                return None
    defined = [text for _, text in reversed(functions.values())]
    if takes_call(run):
        imports[Call.__name__] = f"from types import {Call.__name__}"
    heads = ["\n".join(sorted({"import torch", *imports.values()}))]
    return [
        *heads,
        *(["\n".join(f"{name} = {text}" for name, text in constants.items())] if constants else []),
        *defined,
    ]


def _definition(function: FunctionType) -> ast.FunctionDef | None:
    """Return a function's syntax tree without decorators and annotations. None for a lambda, or if there is
    no source.
    """
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
    tree = module.body[0]
    if not isinstance(tree, ast.FunctionDef):
        return None
    tree.decorator_list = []
    tree.returns = None
    arguments = tree.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    return _Untyped().visit(tree)


class _Untyped(ast.NodeTransformer):
    """Removes casts and variable annotations, because they need names from `typing`."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Replace `x: T = value` by `x = value`."""
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace `cast(T, value)` by `value`."""
        self.generic_visit(node)
        is_cast = isinstance(node.func, ast.Name) and node.func.id == "cast" and len(node.args) == 2
        return node.args[1] if is_cast else node


def _globals_used(tree: ast.FunctionDef, function: FunctionType) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {name for name in names - stored if name in function.__globals__}


def _import_text(name: str, value: Any) -> str | None:
    """Return an import statement for an allowed module, or for an object of such a module that has its own name. None
    for any other value.
    """
    if isinstance(value, ModuleType):
        module = value.__name__
        return f"import {module} as {name}" if module.partition(".")[0] in _MODULES else None
    home = str(getattr(value, "__module__", None))
    if home.partition(".")[0] in _MODULES and getattr(value, "__name__", None) == name:
        return f"from {home} import {name}"
    return None


def _constant_text(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, dict):
        texts = {_constant_text(key): _constant_text(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        is_plain = all(key is not None and item is not None for key, item in texts.items())
        return f"{{{', '.join(f'{key}: {item}' for key, item in texts.items())}}}" if is_plain else None
    if isinstance(value, tuple | list) and all(_constant_text(item) for item in value):  # pyright: ignore[reportUnknownVariableType]
        inner = ", ".join(str(_constant_text(item)) for item in value)  # pyright: ignore[reportUnknownVariableType]
        return f"({inner},)" if isinstance(value, tuple) and value else f"[{inner}]"
    return None
