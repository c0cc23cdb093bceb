"""`opreplay initializers`: what fills the arguments of ops, and what can be set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from opreplay.cli.options.shared import format_option, init_module_option
from opreplay.initializers.base import CustomInit
from opreplay.replay.report.run.table import plain_table
from opreplay.replay.report.text import safe


@click.command("initializers", short_help="List what fills the arguments of ops, and their options.")
@init_module_option
@format_option("table", "json")
def command(init_module: tuple[str, ...], format_: str) -> None:
    """List the initializers with their ops and options, those of plugins and of --init-module included."""
    from opreplay.cli.terminal import console
    from opreplay.initializers.extensions import open_registry

    known = facts(open_registry(init_module))
    if format_ == "json":
        console.write(console.json_text(known))
    else:
        console.show(render(known))


def facts(rules: Iterable[CustomInit]) -> list[dict[str, Any]]:
    """Name, priority, purpose, ops and options of each initializer."""
    return [
        {
            "name": rule.name,
            "priority": rule.priority,
            "purpose": (type(rule).__doc__ or "").strip().partition("\n")[0],
            "ops": list(rule.op_patterns),
            "options": [
                {
                    "name": option.name, "type": option.type.__name__, "default": option.default,
                    "choices": list(option.choices), "help": option.help,
                }
                for option in rule.options
            ],
        }
        for rule in rules
    ]  # fmt: skip


def render(known: list[dict[str, Any]]) -> RenderableType:
    """One row an initializer: its options below its purpose, all its ops."""
    table = plain_table()
    table.add_column("name", no_wrap=True)
    table.add_column("purpose and options", overflow="fold", ratio=2)
    table.add_column("ops", overflow="fold", ratio=3, style="dim")
    for rule in known:
        lines = [rule["purpose"]]
        for option in rule["options"]:
            values = "|".join(option["choices"]) or option["type"]
            lines.append(f"{option['name']}={values} [{option['default']}]: {option['help']}")
        if rule["priority"]:
            lines.append(f"priority {rule['priority']}")
        table.add_row(Text(safe(rule["name"])), Text("\n".join(map(safe, lines))), Text(safe(", ".join(rule["ops"]))))
    return table
