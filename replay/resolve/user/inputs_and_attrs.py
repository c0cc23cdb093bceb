# pyright: strict
"""Functions of the form (inputs, attrs) that torch_ir's guide writes: tensors as one list, all else by name.

Owns how such a function is known and called, and how its names of ops are read. Where they come from, and which
arguments a call has, is for `executors`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

_DOTTED = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)(?:\.(\w+))?")


def takes_inputs_and_attrs(function: Callable[..., Any]) -> bool:
    """Whether a callable has two parameters called `inputs` and `attrs`, or the second is annotated as a dict."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-in functions have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 2 or any(one.kind not in kinds for one in parameters):
        return False
    if [one.name for one in parameters] == ["inputs", "attrs"]:
        return True
    annotation = parameters[1].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") + repr(annotation)
    return re.search(r"\b(Dict|dict|Mapping)\b", text) is not None


def called_with_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as executors are called: tensors by position, everything else by name.

    Lists of tensors are laid out one after another, as the inputs of a node are; absent ones are left out. Raises
    TypeError where the function returns anything but a list of tensors: a tensor would be taken for its rows.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **attrs: Any) -> list[Any]:
        given = {name: value for name, value in attrs.items() if value is not None}
        made = function(list(_flat(tensors)), given)
        if not isinstance(made, (list, tuple)):
            raise TypeError(f"{function.__name__} returned {type(made).__name__}; (inputs, attrs) returns a list")
        results: list[Any] = list(made)  # pyright: ignore[reportUnknownArgumentType]
        return results

    return call


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None:
            yield value


def op_and_overload(name: str) -> tuple[str, str | None]:
    """The op of a name in torch_ir's spelling, and the overload where it tells one.

    "aten.add.Tensor" is ("aten::add", "Tensor"), "aten.conv2d.default" is ("aten::conv2d", ""), "custom.gate" is
    ("custom::gate", None); "gate" and "custom::gate" stay as they are.
    """
    found = _DOTTED.fullmatch(name)
    if found is None:
        return name, None
    overload = found[3]
    return f"{found[1]}::{found[2]}", "" if overload == "default" else overload
