# pyright: strict
"""Writing the HTML page of a command: the command line that made it, and the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from opreplay.cli.outputs import check_writable, command_line, write_file
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.report.page.model import Page


def check_page(name: str | None, *, force: bool) -> Path | None:
    """The file to write a page to, None for none. Raises UsageError for another suffix or a file that is there."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() != ".html":
        raise UsageError(f"no output format for {path.name}", hint="The suffix is .html.")
    check_writable(path, force=force)
    return path


def write_page(path: Path | None, make: Callable[[str], Page], *, force: bool) -> None:
    """Make the page of a command line and write it, where one is asked for."""
    if path is None:
        return
    from opreplay.replay.report.page.render import render

    write_file(path, render(make(command_line())), force=force)
