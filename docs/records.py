"""Sphinx directive `records`: a table of the keys of each record of a module, from the docstrings of its fields.

`{records} opreplay.replay.results.records Header OpResult` makes two of them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from sphinx.util.docutils import SphinxDirective


def fields_of(record: type) -> list[tuple[str, str, str]]:
    """Name, type and description of each field of a class."""
    (declared,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(declared, ast.ClassDef)
    fields: list[tuple[str, str, str]] = []
    for node in declared.body:
        if isinstance(node, ast.AnnAssign):
            fields.append((ast.unparse(node.target), ast.unparse(node.annotation), ""))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and fields:
            fields[-1] = (*fields[-1][:2], " ".join(str(node.value.value).split()))
    return fields


def type_text(annotation: str, module: ModuleType) -> str:
    """An annotation as JSON has it: null, and the values of a choice in place of its name."""

    def values(name: re.Match[str]) -> str:
        choice = getattr(module, name[0], None)
        return " or ".join(map(repr, get_args(choice))) if get_origin(choice) is Literal else name[0]

    return re.sub(r"\b[A-Z]\w+", values, annotation.replace(" | None", " or null"))


def table_of(record: type) -> str:
    """Markdown: what a record is, then a row a key."""
    assert record.__doc__ is not None, record
    rows = [
        f"| `{name}` | `{type_text(kind, sys.modules[record.__module__])}` | {text} |"
        for name, kind, text in fields_of(record)
        if "UnsetType" not in kind  # in no file
    ]
    return "\n".join(
        [f"**{record.__name__}**: {record.__doc__}", "", "| key | type | meaning |", "|---|---|---|", *rows]
    )


class Records(SphinxDirective):
    """`{records} MODULE CLASS...`"""

    required_arguments = 1
    optional_arguments = 30

    def run(self) -> list[Any]:
        """One paragraph and one table a class."""
        module = importlib.import_module(self.arguments[0])
        return [
            node for name in self.arguments[1:] for node in self.parse_text_to_nodes(table_of(getattr(module, name)))
        ]


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("records", Records)
    return {"parallel_read_safe": True}
