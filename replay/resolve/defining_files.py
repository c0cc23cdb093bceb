# pyright: strict
"""Finds the file that defines a torch op with `custom_op`, a `Library`, or functions of torch.library."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from opreplay.initializers.user_code import loaded_files
from opreplay.replay.host.dispatcher import registered_in
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.names import imported_libraries
from opreplay.replay.resolve.user.executors import EXECUTORS

_DEFINING = frozenset({"define", "custom_op", "triton_op"})
"""Functions of torch.library whose first argument names the op."""


def defining_file(name: str, overload: str, files: Collection[str]) -> Path | None:
    """Return the file among `files` (resolved paths) that defines "ns::op", or None. Reads no other files."""
    if not files:
        return None
    file = _place(name, overload)
    if file == _torch_library():
        # torch.library.define does it in the caller's place: then the file is the one that calls it.
        return next((Path(file) for file in files if _calls_for(file, name)), None)
    return file if str(file) in files else None


def definition_of(name: str, overload: str) -> Path | None:
    """Return the Python file that defined "ns::op".

    If the caller of torch.library is unknown, the result is torch.library's own file. Returns None if C++ or another
    file of torch defined the op.
    """
    file = _place(name, overload)
    return None if file is None or (_torch_library().parent in file.parents and file != _torch_library()) else file


def _place(name: str, overload: str) -> Path | None:
    """Return the file that defines an op; for a `custom_op`, the file that contains its function."""
    defined: Any = getattr(import_module("torch._library.custom_ops"), "OPDEFS").get(name)  # noqa: B009 - untyped
    if defined is not None:
        code = getattr(inspect.unwrap(defined._init_fn), "__code__", None)
        return None if code is None else Path(code.co_filename).resolve()
    file = registered_in(f"{name}.{overload}" if overload else name)
    return None if file is None else Path(file).resolve()


def _torch_library() -> Path:
    return Path(str(import_module("torch.library").__file__)).resolve()


def registered_by(op: ReplayOp) -> str | None:
    """Return what registered the function that a plan's op calls: the user's name for it, or its file.

    Returns None if the function belongs to torch or opreplay.
    """
    namespace = op.called.partition("::")[0]
    if op.resolved_by == "import":
        return ", ".join(imported_libraries().get(namespace, ())) or None
    if op.resolved_by == "executor":
        entry = EXECUTORS.find(op.called)
        return None if entry is None else entry.source
    if op.resolved_by != "torch.ops":
        return None
    sources = loaded_files()
    file = defining_file(op.called, op.overload or "", sources)
    if file is not None:
        return sources[str(file)]
    where = definition_of(op.called, op.overload or "")
    return None if where is None else where.name


def _calls_for(file: str, name: str) -> bool:
    """Check whether a file calls one of `_DEFINING` with the op's name as a literal first argument."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _DEFINING and str(node.args[0].value).partition("(")[0].strip() == name:
            return True
    return False
