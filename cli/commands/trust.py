# pyright: strict
"""`opreplay trust`: allow an options file to specify code, files and limits."""

from __future__ import annotations

from pathlib import Path

import click

from opreplay.cli.options.types import FileName


@click.command("trust", hidden=True, short_help="Trust the options of a file that was found.")
@click.argument("file", metavar="[FILE]", required=False, type=FileName())
def command(file: str | None) -> None:
    """Allow FILE, in its current state, to name code to run, files to write and limits. Read it first. FILE is the
    nearest opreplay.toml or pyproject.toml by default. After an edit it must be trusted again.

    Trusted files are remembered in $XDG_STATE_HOME/opreplay or ~/.local/state/opreplay.
    """
    from opreplay.cli.settings import OWN, SHARED, content_of, find_file, trust
    from opreplay.cli.terminal.console import narrate
    from opreplay.traces.errors import UsageError

    path = find_file(Path.cwd()) if file is None else Path(file)
    if path is None:
        raise UsageError(
            f"no {OWN} here or in a parent folder, and no [tool.opreplay] in a {SHARED}", hint="Name the file."
        )
    trust(path, content_of(path))
    narrate(f"{path.resolve()} is trusted until it is changed")
