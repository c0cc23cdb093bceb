# pyright: strict
"""`opreplay mcp`: serve the Model Context Protocol on stdin and stdout, for an AI assistant."""

from __future__ import annotations

import click

from opreplay.cli.options.types import FileName


@click.command("mcp", hidden=True, short_help="Let an assistant ask about traces in folders.")
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=FileName())
@click.option(
    "--allow-run", is_flag=True, help="Allow it to run code: `check`, with your plugins and functions in FOLDERs."
)
def command(folders: tuple[str, ...], allow_run: bool) -> None:
    """Serve files in FOLDERs to an assistant, over the Model Context Protocol on stdin and stdout. It reads no other
    files, writes nothing, and without --allow-run executes neither your code nor a trace's.
    """
    from importlib.util import find_spec

    from opreplay.traces.errors import EnvironmentRefused

    if find_spec("mcp") is None:
        raise EnvironmentRefused(
            "the server needs the package mcp, which is not installed", hint="pip install 'opreplay[mcp]'"
        )
    from opreplay.cli.assistant.server import server_of

    server_of(folders, allow_run=allow_run).run("stdio")
