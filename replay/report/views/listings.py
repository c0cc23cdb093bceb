# pyright: strict
"""Lists in every output format: checks of `doctor`, initializers with options, known ops, plugin registrations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group
from rich.text import Text

from opreplay.replay.report.table import COUNT, Column, Table, Unit, terminal
from opreplay.replay.report.view import View

if TYPE_CHECKING:
    from opreplay.initializers.base import CustomInit
    from opreplay.replay.host.doctor import Check
    from opreplay.replay.ops.table import Row
    from opreplay.replay.plugins import Registration

_Facts = dict[str, Any]
_LINES = Unit(str, "lines")


def _listed(columns: Sequence[Column[Any]], rows: Sequence[Any], facts: Any) -> View:
    """Return rows as a table that drops no columns, and as facts for JSON."""
    return View(render=lambda width: Group(*terminal(Table("List", columns, rows))[1:]), facts=lambda: facts)


def checks_view(sections: Mapping[str, Sequence[Check]]) -> View:
    """Return one row per check, grouped by section with the section's title above."""
    rows: list[Check | str] = []
    for title, checks in sections.items():
        rows += [*([""] if rows else []), title, *checks]
    column = Column["Check | str"]
    columns = [
        column("", _mark, style=lambda row: {"✓": "green", "✗": "red"}.get(_mark(row), "dim")),
        column(
            "what",
            lambda row: row if isinstance(row, str) else row.name,
            style=lambda row: "bold" if isinstance(row, str) else "",
        ),
        column("found", lambda row: "" if isinstance(row, str) else row.found or "not found", form="fold"),
        column("note", lambda row: "" if isinstance(row, str) or row.ok else row.note, form="fold", style="dim"),
    ]
    return _listed(columns, rows, sections)


def _mark(row: Check | str) -> str:
    if isinstance(row, str):
        return ""
    return "✓" if row.ok else "✗" if row.required else "–"


OPS_CHARS = 100
"""Width at which a list of ops wraps, even in a pipe."""


def initializers_view(rules: Iterable[CustomInit]) -> View:
    """Return one row per initializer: its purpose, its options and all its ops."""
    facts = [
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
    column = Column[_Facts]
    columns = [
        column("name", lambda rule: rule["name"]),
        column("purpose and options", _purpose, _LINES, form="fold"),
        column("ops", lambda rule: ", ".join(rule["ops"]), form="fold", style="dim", chars=OPS_CHARS),
    ]
    return _listed(columns, facts, facts)


def _purpose(rule: _Facts) -> list[str]:
    """Return an initializer's purpose, its options and its priority, one line each."""
    options = [
        f"{option['name']}={'|'.join(option['choices']) or option['type']} [{option['default']}]: {option['help']}"
        for option in rule["options"]
    ]
    return [rule["purpose"], *options, *([f"priority {rule['priority']}"] if rule["priority"] else [])]


def built_in_view(ops: Iterable[Row]) -> View:
    """Return one row per family of ops: initializers, number of ops, how many have a cost. JSON lists each op."""
    from opreplay.replay.ops.table import cost_of

    facts: list[_Facts] = [
        {
            "op": op.name,
            "folder": op.folder,
            "family": op.family,
            "initializer": op.inputs or None,
            "cost": cost_of(op.name) is not None and not op.uncosted,
            "uncosted": op.uncosted or None,
            "versions": len(op.references),
        }
        for op in ops
    ]
    families: dict[tuple[str, str], list[_Facts]] = {}
    for op in facts:
        families.setdefault((op["folder"], op["family"]), []).append(op)
    column = Column[tuple[tuple[str, str], list[_Facts]]]
    columns = [
        column("family", lambda row: row[0][0], form="fold"),
        column("kind", lambda row: row[0][1], form="fold"),
        column(
            "initializers",
            lambda row: ", ".join(sorted({op["initializer"] for op in row[1] if op["initializer"]})),
            form="fold",
        ),
        column("ops", lambda row: len(row[1]), COUNT),
        column("with a cost", lambda row: sum(op["cost"] for op in row[1]), COUNT),
    ]
    return _listed(columns, sorted(families.items(), key=lambda item: item[0]), facts)


def registrations_view(registrations: Iterable[Registration]) -> View:
    """Return one row per plugin registration."""
    facts = [msgspec.structs.asdict(registration) for registration in registrations]
    if not facts:
        nothing = Text("No plugin has registered anything; --plugin FILE loads one.")
        return View(render=lambda width: nothing, facts=lambda: facts)
    column = Column[_Facts]
    columns = [
        column("kind", lambda row: row["kind"]),
        column("ops", lambda row: row["ops"], _LINES, form="fold"),
        column("name", lambda row: f"{row['name']} ({row['note']})" if row["note"] else row["name"], form="fold"),
        column("from", lambda row: f"{row['source']}, {row['place']}", form="fold", style="dim"),
    ]
    return _listed(columns, facts, facts)
