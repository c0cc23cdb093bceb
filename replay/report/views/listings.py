# pyright: strict
"""Lists as tables: the checks of `doctor`, initializers with their options, and what plugins have registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from opreplay.initializers.base import CustomInit
from opreplay.replay.host.doctor import Check
from opreplay.replay.ops.table import Row, cost_of
from opreplay.replay.plugins import Registration
from opreplay.replay.report.table import plain_table
from opreplay.replay.report.text import safe


def checks_table(sections: Mapping[str, Sequence[Check]]) -> RenderableType:
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


def initializer_facts(rules: Iterable[CustomInit]) -> list[dict[str, Any]]:
    """Name, priority, purpose, ops and options of each initializer."""
    return [
        {
            "name": rule.name,
            "priority": rule.priority,
            "purpose": (type(rule).__doc__ or "").strip().partition("\n")[0],
            "ops": list(rule.op_patterns),
            "options": [
                {
                    "name": option.name,
                    "type": option.type.__name__,
                    "default": option.default,
                    "choices": list(option.choices),
                    "help": option.help,
                }
                for option in rule.options
            ],
        }
        for rule in rules
    ]


def initializers_table(known: list[dict[str, Any]]) -> RenderableType:
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


def registration_facts(registrations: Iterable[Registration]) -> list[dict[str, Any]]:
    """Kind, name, ops, source, place and note of each registration."""
    return [asdict(registration) for registration in registrations]


def built_in_facts(ops: Iterable[Row]) -> list[dict[str, Any]]:
    """What is known of each op: where its values come from, what its cost is, and what checks its reference."""
    return [
        {
            "op": op.name,
            "folder": op.folder,
            "family": op.family,
            "initializer": op.inputs or None,
            "cost": cost_of(op.name) is not None and not op.uncosted,
            "uncosted": op.uncosted or None,
            "formula": op.formula is not None,
            "versions": len(op.references),
        }
        for op in ops
    ]


def built_in_table(ops: list[dict[str, Any]]) -> RenderableType:
    """One row a family: its ops, of how many a cost and a formula are known, which initializers they get."""
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for op in ops:
        families.setdefault((op["folder"], op["family"]), []).append(op)
    table = plain_table()
    for name in ("family", "kind", "initializers", "ops", "with a cost", "with a formula"):
        number = name in ("ops", "with a cost", "with a formula")
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for (folder, family), members in sorted(families.items()):
        initializers = ", ".join(sorted({op["initializer"] for op in members if op["initializer"]}))
        costed, checked = sum(op["cost"] for op in members), sum(op["formula"] for op in members)
        table.add_row(folder, family, initializers, str(len(members)), str(costed), str(checked))
    return table


def registrations_table(registrations: list[dict[str, Any]]) -> RenderableType:
    """One row a registration."""
    if not registrations:
        return Text("No plugin has registered anything; --plugin FILE loads one.")
    table = plain_table()
    for name in ("kind", "ops", "name", "from"):
        table.add_column(name, overflow="fold", style="dim" if name == "from" else "", no_wrap=name == "kind")
    for registration in registrations:
        name = f"{registration['name']} ({registration['note']})" if registration["note"] else registration["name"]
        ops = Text("\n".join(map(safe, registration["ops"])))
        table.add_row(
            registration["kind"],
            ops,
            Text(safe(name)),
            Text(safe(f"{registration['source']}, {registration['place']}")),
        )
    return table
