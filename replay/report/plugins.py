"""What users' code has registered, as facts and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.plugins import Registration
from opreplay.replay.report.table import plain_table
from opreplay.replay.report.text import safe


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
