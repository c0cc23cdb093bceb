"""`opreplay doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from rich.console import RenderableType
from rich.text import Text

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.shared import format_option
from opreplay.replay.host.doctor import Check
from opreplay.replay.report.run.table import plain_table
from opreplay.replay.report.text import safe


@click.command("doctor", short_help="Check Python, torch, devices and libraries.")
@format_option("table", "json")
def command(format_: str) -> int:
    """Check what opreplay needs and what it can use. Exits with 4 when torch is missing or too old.

    Installs nothing, changes nothing, and imports no library but torch.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.host.doctor import examine

    sections = examine()
    if format_ == "json":
        console.write(console.json_text(sections))
    else:
        console.show(render(sections))
    broken = [check for checks in sections.values() for check in checks if check.required and not check.ok]
    return ExitCode.ENVIRONMENT if broken else ExitCode.OK


def render(sections: Mapping[str, Sequence[Check]]) -> RenderableType:
    """One row a check, sections apart."""
    table = plain_table()
    table.add_column("")
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("note", overflow="fold", style="dim")
    for title, checks in sections.items():
        if table.row_count:
            table.add_row()
        table.add_row("", Text(title, style="bold"))
        for check in checks:
            mark = (
                Text("✓", style="green")
                if check.ok
                else Text("✗" if check.required else "–", style="red" if check.required else "dim")
            )
            note = "" if check.ok else check.note
            table.add_row(mark, Text(safe(check.name)), Text(safe(check.found or "not found")), Text(safe(note)))
    return table
