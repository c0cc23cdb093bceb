# pyright: strict
"""Output files of commands. They are checked before any work; a failed write gives a clear error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import click

from opreplay.cli.terminal import console
from opreplay.replay.results.records import LINES
from opreplay.traces.errors import EnvironmentRefused, UsageError

if TYPE_CHECKING:
    from opreplay.replay.report.view import View

FORMS = {".csv": "csv", ".md": "markdown", ".html": "html", ".json": "json"}
"""File suffix → output format of a view."""
PAGES = (".csv", ".md", ".html")
"""Suffixes of files that a run writes in one piece at its end."""


def check_writable(path: Path, *, force: bool) -> None:
    """Check that a file may be written.

    Raises UsageError if `path` exists and `force` is not set, if the command reads it, if it is a folder, or if its
    folder does not exist.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.")
    if _is_input(path):
        raise UsageError(f"this command reads {path}: the file would be lost", hint="Name another file.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}", hint="Name a file in an existing folder.")


def _is_input(path: Path) -> bool:
    """Check whether an argument of the current command names the file at `path`."""
    context = click.get_current_context(silent=True)
    if context is None or not path.exists():
        return False
    arguments = (param.name or "" for param in context.command.params if isinstance(param, click.Argument))
    for argument in arguments:
        value: object = context.params.get(argument)
        names = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        if any(isinstance(name, str) and os.path.exists(name) and path.samefile(name) for name in names):
            return True
    return False


def check_plan_file(path: Path, *, force: bool) -> None:
    """Raise UsageError if `check_writable` does, or for a suffix of another output format, such as .csv."""
    if path.suffix.lower() in (*PAGES, *LINES):
        raise UsageError(
            f"a plan is written as JSON, not as {path.suffix}",
            hint=f"Name it {path.stem}.json; results of `run` are written as {', '.join((*LINES, *PAGES))}.",
        )
    check_writable(path, force=force)


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write a text file in UTF-8. Raises UsageError if it exists without `force`, or cannot be written."""
    write_bytes(path, text.encode(errors="backslashreplace"), force=force)


def open_file(path: Path, mode: Literal["ab", "wb", "xb"]) -> BinaryIO:
    """Open a file to write. Raises UsageError if it exists and `mode` is "xb", or if it cannot be opened."""
    try:
        return path.open(mode)
    except FileExistsError:
        raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Check the folder and its permissions."
        ) from None


def write_bytes(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file.

    Raises UsageError if it exists without `force` or cannot be opened. Raises EnvironmentRefused if it cannot be
    written completely.
    """
    stream = open_file(path, "wb" if force else "xb")
    try:
        with stream:
            stream.write(data)
    except OSError as error:
        raise EnvironmentRefused(
            f"cannot write {path}: {error.strerror}", hint="Free some space, or name a file on another disk."
        ) from None


def check_outputs(names: Iterable[str | None], suffixes: Sequence[str] = (".html",), *, force: bool) -> None:
    """Raise UsageError for a file that may not be written or whose suffix is not in `suffixes`. None means no file."""
    for path in map(Path, filter(None, names)):
        if path.suffix.lower() not in suffixes:
            known = f"Suffixes are {', '.join(suffixes)}." if len(suffixes) > 1 else f"The suffix is {suffixes[0]}."
            raise UsageError(f"no output format for the suffix of {path.name}", hint=known)
        check_writable(path, force=force)


def write_view(view: View, names: Iterable[str | None], *, force: bool) -> None:
    """Write a view to each file, in the format of the file's suffix; None means no file."""
    for path in map(Path, filter(None, names)):
        write_file(path, view.text(FORMS[path.suffix.lower()], console.command_line()), force=force)
