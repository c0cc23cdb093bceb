# pyright: strict
"""`opreplay mcp`: a server of the Model Context Protocol on stdin and stdout, for the user's assistant."""

from __future__ import annotations

import click

from opreplay.cli.options.types import FileName


@click.command("mcp", hidden=True, short_help="Let an assistant ask about traces in folders.")
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=FileName())
@click.option("--allow-run", is_flag=True, help="Let it run code: `check`, with your plugins and functions in FOLDERs.")
def command(folders: tuple[str, ...], allow_run: bool) -> None:
    """Serve files in FOLDERs to an assistant, over the Model Context Protocol on stdin and stdout. It reads nothing
    elsewhere, writes nothing, and without --allow-run runs no code of yours or of a trace's.
    """
    from importlib.util import find_spec

    from opreplay.traces.errors import EnvironmentRefused

    if find_spec("mcp") is None:
        raise EnvironmentRefused(
            "the server needs the package mcp, which is not installed", hint="pip install 'opreplay[mcp]'"
        )
    from opreplay.cli.assistant.server import server_of

    server_of(folders, allow_run=allow_run).run("stdio")
