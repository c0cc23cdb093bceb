"""Keeps torch from importing its compiler and sympy for calls on meta tensors, which use neither.

torch 2.x imports `torch._dynamo` (some 340 modules) at the first call of a decomposition, only to mark it as not to be
compiled. It imports `symbolic_shapes` with sympy (some 490 modules) at the first check of a size or type promotion,
only to find that there is no symbol. These imports take most of the time for a small plan.

Light modules replace them. They behave as torch does for plain values, and load the real module as soon as another name
is used. They are intended for a process that makes only such calls: see `forked`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, cast

DYNAMO = "torch._dynamo"
SYMBOLS = "torch.fx.experimental.symbolic_shapes"
SYMPY = "sympy"
PACKAGES = (DYNAMO, SYMPY)


class _StandIn(ModuleType):
    """A module with a few names only. Access to any other name puts the real module in its place."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and (name != "__path__" or self.__name__ not in PACKAGES):
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def put_stand_ins() -> None:
    """Make torch's calls on meta tensors use the light modules, unless the real modules are already loaded."""
    if DYNAMO not in sys.modules:
        sys.modules[DYNAMO] = dynamo = _StandIn(DYNAMO)
        dynamo.__dict__["disable"] = _disable
    if SYMBOLS not in sys.modules:
        with suppress(ImportError):  # its import would bring it, and torch counts on that
            importlib.import_module("torch.fx.experimental._config")
        sys.modules[SYMBOLS] = symbols = _StandIn(SYMBOLS)
        symbols.__dict__.update({name: _for_plain(name, of_plain) for name, of_plain in _OF_PLAIN.items()})
    if SYMPY not in sys.modules:
        sys.modules[SYMPY] = sympy = _StandIn(SYMPY)
        sympy.__dict__["Basic"] = _Symbol


class _Symbol:
    """Replacement for `sympy.Basic` while the real class is not loaded. No object is an instance of it."""


def _real(name: str) -> ModuleType:
    """Import and return the real module, and remove its light version."""
    there = sys.modules.get(name)
    if not isinstance(there, _StandIn):
        return there if there is not None else importlib.import_module(name)
    del sys.modules[name]
    there.__dict__.pop("Basic", None)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules and sys.modules[parent].__dict__.get(child) is there:
        delattr(sys.modules[parent], child)
    return importlib.import_module(name)


def _disable(fn: Any = None, recursive: bool = True, **others: Any) -> Any:
    """Return the function unchanged, because nothing is compiled. With other options, call the real `disable`."""
    if callable(fn) and recursive is True and set(others) <= {"wrapping"}:
        return fn
    return _real(DYNAMO).disable(fn, recursive, **others)


def _are_bools(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(type(value) is bool for value in values)


def _equal_sizes(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int:
        return a == b
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        sizes = cast("list[object]", [*a, *b])
        return list(a) == list(b) if all(isinstance(size, int) for size in sizes) else None
    return None


_OF_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true"),
        lambda value: value if type(value) is bool else None,
    ),
    "guarding_hint_or_throw": lambda value: value if type(value) is int else None,
    "has_guarding_hint": lambda value: True if type(value) is int else None,
    "sym_and": lambda *values: all(values) if _are_bools(values) else None,
    "sym_or": lambda *values: any(values) if _are_bools(values) else None,
    "sym_eq": _equal_sizes,
    "is_nested_int": lambda value: False if type(value) in (int, float) else None,
}
"""Replacements for functions of `symbolic_shapes` that handle only plain bools and integers. For other arguments, they
return None.
"""


def _for_plain(name: str, of_plain: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **others: Any) -> Any:
        try:
            answer = None if others else of_plain(*args)
        except TypeError:  # not so many arguments
            answer = None
        return getattr(_real(SYMBOLS), name)(*args, **others) if answer is None else answer

    function.__name__ = name
    return function
