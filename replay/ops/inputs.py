# pyright: strict
"""Initializers of ops: the built-in ones, named in each op's table row, and those of the user."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.initializers.extensions import extend
from opreplay.initializers.registry import Registry, built_in_kinds
from opreplay.replay.ops.table import rows


def built_in() -> Registry:
    """Return a new registry with all initializers that ship with opreplay. Imports torch."""
    ops: dict[str, list[str]] = {}
    for row in rows():
        for name in row.inputs.split(","):
            ops.setdefault(name, []).append(row.name)
    registry = Registry({row.name: row.role for row in rows() if row.role})
    for kind in built_in_kinds():
        initializer = kind()
        initializer.op_patterns = tuple(ops[kind.name])
        registry.register(initializer)
    return registry


def open_registry(modules: Sequence[str] = (), settings: Sequence[str] = (), *, plugins: bool = True) -> Registry:
    """Return a registry of built-in and user initializers, with `settings` applied.

    With `plugins`, it also has the initializers of installed packages. `modules` are .py files or module names; both
    are executed. Raises UsageError for modules that cannot be loaded, for duplicates and for invalid settings.
    """
    return extend(built_in(), modules, settings, plugins=plugins)
