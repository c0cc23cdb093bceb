# pyright: strict
"""Loading of plugins that the user names or that are installed, and a list of what they registered and where.

The registries are in `conversions`, `executors`, `opreplay.initializers.extensions` and `ascend.custom`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, get_args

import msgspec

from opreplay.initializers import extensions
from opreplay.initializers.user_code import entry_points, load_entry_point, load_user_code, place_of_class
from opreplay.initializers.user_code import installed as installed_plugins
from opreplay.initializers.user_table import Kind, UserFunction, UserTable, tables
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.reasons import not_needed
from opreplay.replay.ops.table import Row, rows

ENTRY_POINTS = "opreplay.plugins"
"""Entry point group of plugins. Each entry names a module, which makes its registrations when it is imported."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One function or initializer that a user or a package registered."""

    kind: Kind
    name: str
    """Name of the function or initializer."""
    ops: tuple[str, ...]
    source: str
    """Origin of the registration: "--plugin my_ops.py", "entry point mine = my_package.ops"."""
    place: str
    """"file:line", or the module for a class without a file."""
    note: str = ""
    """What gives the registration priority over others.

    It is "override", a priority like "priority 5", or the simulated device.
    """


def built_in_ops() -> list[Row]:
    """Return the ops that have a built-in reference implementation, by name. Imports torch."""
    return [row for row in rows() if row.references]


def load_plugins(names: Sequence[str] = (), *, installed: bool = True) -> None:
    """Run the user's files, modules and folders in `names`, each once.

    With `installed`, the plugins of installed packages are run as well. Raises UsageError for a plugin that cannot be
    loaded and for registrations that are refused.
    """
    for entry in installed_plugins(ENTRY_POINTS) if installed else ():
        load_entry_point(entry)
    for name in names:
        if _is_folder(name):
            from opreplay.replay.ascend.custom.estimators import load_custom_ops

            load_custom_ops(name)
        else:
            load_user_code(name, flag="--plugin")


def plugin_files(names: Sequence[str]) -> tuple[str, ...]:
    """Return the files, modules and packages among `names`, in execution order.

    Other folders are replaced by their files.
    """
    return tuple(file for name in names for file in _parts(name))


def _parts(name: str) -> list[str]:
    if not _is_folder(name):
        return [name]
    if (Path(name) / "__init__.py").is_file():
        return [str(Path(name).resolve())]
    return [str(file.resolve()) for file in sorted(Path(name).glob("*.py"))]


def _is_folder(name: str) -> bool:
    """Check whether the name is a folder of files and not an installed package of that name."""
    if not Path(name).is_dir():
        return False
    if os.sep in name or not name.isidentifier():
        return True
    spec = importlib.util.find_spec(name)
    return spec is None or spec.origin is None or Path(spec.origin) == Path(name).resolve() / "__init__.py"


def any_installed() -> bool:
    """Check whether an installed package provides plugins or initializers."""
    return any(map(entry_points, (ENTRY_POINTS, extensions.ENTRY_POINTS)))


def _of_ops() -> list[UserTable[Any]]:
    """Return the tables of conversions and of executors that have registrations, in this order."""
    return [table for kind in ("conversion", "executor") for table in tables() if table.what == kind]


def registrations() -> tuple[Registration, ...]:
    """Return everything that user code has registered so far, sorted by kind."""
    order = get_args(Kind)
    return tuple(sorted((*_functions(), *_initializers()), key=lambda entry: order.index(entry.kind)))


def refuse_unusable_registrations(socs: Sequence[str] = ()) -> None:
    """Raise UsageError, with file and line, for a registration that commands on plans refuse.

    A registration is refused if its device does not exist and no file among `socs` describes that device. An
    initializer is refused if its name, or one of its ops, belongs to another initializer.
    """
    from opreplay.replay.ascend.simulate.devices import load_socs

    load_socs(socs)
    if extensions.registered():
        from opreplay.replay.ops.inputs import open_registry

        open_registry()


def unused_functions(ops: Sequence[ReplayOp]) -> list[str]:
    """Return one line, with the reason, for each conversion and executor that these planned ops do not use."""
    used: set[str] = set()
    needless: dict[str, str] = {}
    for op in ops:
        for note in op.assumptions:
            if (shown := not_needed(note.what)) is not None:
                needless.setdefault(shown, op.name)
            else:
                used.add(note.what)
    lines: list[str] = []
    for kind, entry in ((table.what, entry) for table in _of_ops() for entry in table):
        if any(entry.shown in what for what in used):
            continue
        head = f"not used: {kind} of {' '.join(entry.ops)} ({PurePath(entry.place).name})"
        if entry.shown in needless:
            lines.append(
                f"{head}: {needless[entry.shown]} can be replayed without it; to use it anyway, set override=True"
            )
        elif not any(_is_for(entry, op) for op in ops):
            lines.append(f"{head}: no selected op has that name")
    return lines


def _is_for(entry: UserFunction, op: ReplayOp) -> bool:
    """Check whether a registration is for a planned op, or for the op that replaced it."""
    names = {op.name, op.called, *([op.via] if op.via else [])}
    return any(
        fnmatchcase(name, pattern) or name.rpartition("::")[2] == pattern for name in names for pattern in entry.ops
    )


def clear_registrations() -> None:
    """Remove all conversions and executors; for tests and long-lived programs."""
    for table in _of_ops():
        table.clear()


def _functions() -> Iterator[Registration]:
    for table in tables():
        for entry in table:
            yield Registration(
                kind=table.what,
                name=entry.name,
                ops=entry.ops,
                source=entry.source,
                place=entry.place,
                note="override" if entry.override else entry.device or "",
            )


def _initializers() -> Iterator[Registration]:
    for name, (kind, source) in extensions.registered().items():
        note = f"priority {kind.priority}" if kind.priority else ""
        yield Registration(
            kind="initializer",
            name=name,
            ops=tuple(kind.op_patterns),
            source=source,
            place=place_of_class(kind),
            note=note,
        )
