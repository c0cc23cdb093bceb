"""`opreplay plugins`: what users' code has registered, and where it is from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from opreplay.cli.options.shared import format_option, plugin_option
from opreplay.replay.plugins import Registration
from opreplay.replay.report.run.table import plain_table
from opreplay.replay.report.text import safe


@click.command("plugins", short_help="List what users' plugins have registered, and where it is from.")
@plugin_option
@format_option("table", "json")
def command(plugin: tuple[str, ...], format_: str) -> None:
    """List the conversions, executors, initializers and estimators that installed packages and --plugin register."""
    from opreplay.cli.terminal import console
    from opreplay.replay.plugins import load_plugins, registrations

    load_plugins(plugin)
    found = facts(registrations())
    if format_ == "json":
        console.write(console.json_text(found))
    else:
        console.show(render(found))


def facts(found: Iterable[Registration]) -> list[dict[str, Any]]:
    """Kind, name, ops, source, place and note of each registration."""
    return [asdict(one) for one in found]


def render(found: list[dict[str, Any]]) -> RenderableType:
    """One row a registration."""
    if not found:
        return Text("No plugin has registered anything; --plugin FILE loads one.")
    table = plain_table()
    for name in ("kind", "ops", "name", "loaded by", "defined in"):
        table.add_column(name, overflow="fold", style="dim" if name == "defined in" else "")
    for one in found:
        name = f"{one['name']} ({one['note']})" if one["note"] else one["name"]
        ops = Text("\n".join(map(safe, one["ops"])))
        table.add_row(one["kind"], ops, *(Text(safe(cell)) for cell in (name, one["source"], one["place"])))
    return table
