# pyright: strict
"""Find the arguments that a reference implementation reads, and call it with them.

A reference implementation has one parameter per argument that it reads, named as in the schema. If it reads many, it
has a single parameter instead, a `Call`, and reads the arguments as its attributes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

Call = SimpleNamespace
"""Arguments of one call, as attributes.

`c.weight` reads an argument. `getattr(c, "bias", None)` reads an argument that some versions lack.
"""


def with_changes(c: Call, **changes: Any) -> Call:
    """Return a copy of the call with some arguments changed or added."""
    return SimpleNamespace(**{**vars(c), **changes})


def takes_call(run: Callable[..., Any]) -> bool:
    """Check whether a function receives its arguments as a `Call`."""
    first = next(iter(inspect.signature(run).parameters.values()), None)
    return first is not None and first.annotation in ("Call", Call)


@cache
def arguments_read(run: Callable[..., Any]) -> dict[str, bool]:
    """Return {argument that a function reads: whether the argument is required}."""
    if takes_call(run):
        return dict(sorted(_read(run)))
    parameters = inspect.signature(run).parameters.values()
    return {parameter.name: parameter.default is parameter.empty for parameter in parameters}


def call_with(run: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with the subset of `arguments` that it accepts."""
    values = {name: arguments[name] for name in arguments_read(run) if name in arguments}
    return run(SimpleNamespace(**values)) if takes_call(run) else run(**values)


def by_schema(run: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    """Return a function that takes the arguments of `schema` and calls `run` with a `Call`.

    Its arguments can be positional or keyword arguments. If `run` does not take a `Call`, it is returned unchanged.
    """
    if not takes_call(run):
        return run
    names = [argument.name for argument in schema.arguments]
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}

    def called(*args: Any, **kwargs: Any) -> Any:
        return call_with(run, {**defaults, **dict(zip(names, args, strict=False)), **kwargs})

    return called


def _read(run: Callable[..., Any]) -> Iterator[tuple[str, bool]]:
    """Yield (argument, whether it is required) for each `Call` argument that a function or its callees read."""
    function = ast.parse(textwrap.dedent(inspect.getsource(run))).body[0]
    assert isinstance(function, ast.FunctionDef)
    c = function.args.args[0].arg
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and _is(node.value, c):
            yield node.attr, True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            yield from _read_by(run.__globals__.get(node.func.id, getattr), node.args, c)


def _read_by(function: Callable[..., Any], arguments: list[ast.expr], c: str) -> Iterator[tuple[str, bool]]:
    """Yield (argument, whether it is required) for each argument that a called function reads from its `Call`."""
    first = arguments[0]
    changed: set[str | None] = set()
    if isinstance(first, ast.Call) and isinstance(first.func, ast.Name) and first.func.id == with_changes.__name__:
        changed = {keyword.arg for keyword in first.keywords}
        first = first.args[0]
    if not _is(first, c) or function is with_changes:
        return
    if function is getattr:
        name = arguments[1]
        assert isinstance(name, ast.Constant)
        yield str(name.value), False
    else:
        yield from ((name, needed) for name, needed in arguments_read(function).items() if name not in changed)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
