"""The checks of `doctor` as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.doctor import Check
from opreplay.replay.report.table import plain_table
from opreplay.replay.report.text import safe


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
