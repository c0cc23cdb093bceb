# pyright: strict
"""Plain Python functions of a module that the user named: what runs an op of its namespace that has no schema.

Owns which attribute of such a module counts. The user names the module, never a trace, and a trace's name reaches only
a public function that the module itself defines or lists in `__all__`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from opreplay.replay.ir.model import Assumption, Reason, ReplayArg
from opreplay.replay.resolve.policy import VENDOR_STRING_ARGUMENTS
from opreplay.replay.resolve.user.executors import UserExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction(UserExecutor):
    """One function of the module that the user named for a namespace."""

    module: str

    @property
    def note(self) -> Assumption:
        """That no schema named its arguments, for reports."""
        what = f"no schema: {self.module}.{self.shown} is called with the arguments by position, as recorded"
        return Assumption(argument="*", what=what)


def python_function(name: str, module: ModuleType) -> PythonFunction | Reason:
    """The function of `module` that an op "namespace::function" stands for, or why there is none."""
    attribute = name.partition("::")[2]
    root = module.__name__.partition(".")[0]
    if root in sys.stdlib_module_names or root == "torch":
        return Reason("policy", f"functions of {root} stand for no op: name a module of your own")
    value = None if attribute.startswith("_") else vars(module).get(attribute)
    if value is None:
        return Reason("library missing", f"{module.__name__} registers no {name}, nor has it a function {attribute}")
    if not inspect.isroutine(value):
        return Reason("policy", f"{module.__name__}.{attribute} is no function")
    home = getattr(value, "__module__", None)
    if not f"{home}.".startswith(f"{module.__name__}."):
        exported = cast("Sequence[Any]", vars(module).get("__all__") or ())
        if not inspect.isfunction(value) or attribute not in exported:
            return Reason("policy", f"{module.__name__} does not define {attribute}, {home} does (list it in __all__)")
    return PythonFunction(ops=(name,), function=value, source="--allow-import", module=module.__name__)


def refused_text(args: Sequence[ReplayArg]) -> Reason | None:
    """Why a function may not be called with these: as for ops, a text is given only under names that choose a mode."""
    for arg in args:
        if arg.type.removesuffix("[]") == "str" and arg.value is not None and arg.name not in VENDOR_STRING_ARGUMENTS:
            return Reason("policy", f"string argument {arg.name!r} not on the list")
    return None
