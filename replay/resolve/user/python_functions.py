# pyright: strict
"""Plain Python functions of a module that the user named. They run ops of a namespace that have no schema.

This module decides which attributes of the named module may be called. Only the user names a module, never a trace. A
name in a trace can access only a public function that the module itself defines or lists in `__all__`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

from opreplay.replay.ir.model import Assumption, Reason, ReplayArg
from opreplay.replay.resolve.policy import VENDOR_STRING_ARGUMENTS
from opreplay.replay.resolve.user.executors import UserExecutor


class PythonFunction(UserExecutor, frozen=True, kw_only=True):
    """A function of the module that the user named for an op namespace."""

    module: str

    @property
    def note(self) -> Assumption:
        """Return a note that tells readers of reports that no schema gave the arguments their names."""
        what = f"no schema: {self.module}.{self.shown} is called with the arguments by position, as recorded"
        return Assumption(argument="*", what=what)


def python_function(name: str, module: ModuleType) -> PythonFunction | Reason:
    """Return the function of `module` for an op "namespace::function", or why there is none."""
    attribute = name.partition("::")[2]
    root = module.__name__.partition(".")[0]
    if root in sys.stdlib_module_names or root == "torch":
        return Reason("policy", f"functions of {root} cannot replace an op: name a module of your own")
    value = None if attribute.startswith("_") else vars(module).get(attribute)
    if value is None:
        return Reason("library missing", f"{module.__name__} registers no {name} and has no function {attribute}")
    if not inspect.isroutine(value):
        return Reason("policy", f"{module.__name__}.{attribute} is not a function")
    home = getattr(value, "__module__", None)
    if not f"{home}.".startswith(f"{module.__name__}."):
        exported = cast("Sequence[Any]", vars(module).get("__all__") or ())
        if not inspect.isfunction(value) or attribute not in exported:
            return Reason("policy", f"{attribute} is defined in {home}, not in {module.__name__} (list it in __all__)")
    return PythonFunction(ops=(name,), function=value, source="--allow-import", module=module.__name__)


def refused_text(args: Sequence[ReplayArg]) -> Reason | None:
    """Return why a function may not be called with these arguments; None if it may.

    Only `VENDOR_STRING_ARGUMENTS` may be strings.
    """
    for arg in args:
        if arg.type.removesuffix("[]") == "str" and arg.value is not None and arg.name not in VENDOR_STRING_ARGUMENTS:
            return Reason("policy", f"string argument {arg.name!r} is not on the list of allowed arguments")
    return None
