# pyright: strict
"""Write a table as Markdown, CSV, Parquet or a data frame. Text from a trace is escaped as each format requires."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opreplay.replay.report.table import AnyTable, Column
from opreplay.replay.report.text import safe
from opreplay.traces.errors import EnvironmentRefused

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs]

_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def escaped(text: str | None) -> str:
    """Escape text so that Markdown shows it literally: control characters, HTML and Markdown's own characters."""
    plain = safe(text or "").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def code(text: str | None) -> str:
    """Return text from a trace as a Markdown code span, which contains no markup.

    The fence is longer than any run of backticks in the text.
    """
    # A backslash right before a bar cannot be kept apart from an escaped bar inside a table.
    plain = safe(text or "").replace("\\|", "\\¦").replace("|", "\\|").strip()
    if not plain:
        return ""
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    pad = " " if longest else ""
    return f"{'`' * (longest + 1)}{pad}{plain}{pad}{'`' * (longest + 1)}"


def markdown(table: AnyTable) -> list[str]:
    """Return the lines of the table, starting with an empty line; no lines if the table has no rows."""
    if not table.rows:
        return []
    rows = [[escaped(column.title) for column in table.columns]]
    rows.append(["---:" if column.is_number or column.right else "---" for column in table.columns])
    rows += [
        [(code if c.form in ("code", "paste") else escaped)(c.shown(row)) for c in table.columns] for row in table.rows
    ]
    return ["", *(f"| {' | '.join(row)} |" for row in rows)]


def bullets(lines: Iterable[str]) -> list[str]:
    """Return the notes below a table as a list, after an empty line; nothing if there are no notes."""
    items = [f"- {escaped(line)}" for line in lines]
    return ["", *items] if items else []


def csv_cell(text: str | None) -> str:
    """Escape control characters for a CSV cell, and put an apostrophe in front of text that starts like a formula."""
    if not text:
        return ""
    return ("'" if text.startswith(FORMULA_STARTS) else "") + safe(text)


def csv_text(table: AnyTable) -> str:
    """Return the table as CSV with column keys as the header, plain numbers, and empty cells for missing values."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(column.key or column.title) for column in table.columns])
    for row in table.rows:
        values = (column.value(row) for column in table.columns)
        writer.writerow([csv_cell(value) if isinstance(value, str) else value for value in values])
    return out.getvalue()


def _columns(table: AnyTable) -> dict[str, list[Any]]:
    """Map the key of each column to its values, with control characters escaped and None for empty text."""

    def stored(column: Column[Any], row: Any) -> Any:
        value = column.value(row)
        return (safe(value) or None) if isinstance(value, str) else value

    return {safe(column.key or column.title): [stored(column, row) for row in table.rows] for column in table.columns}


def parquet(table: AnyTable, about: bytes) -> bytes:
    """Return the bytes of a Parquet file, with `about` as its metadata entry `opreplay`.

    Types come from the column definitions, not from the values. Thus, files of several runs can be read as one data
    set. Raises EnvironmentRefused if pyarrow is not installed.
    """
    try:
        pyarrow, files = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise EnvironmentRefused(
            "Parquet needs pyarrow, which is not installed",
            hint="pip install 'opreplay[parquet]', or use --format csv.",
        ) from None
    types = {"int": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string(), "bool": pyarrow.bool_()}
    columns = _columns(table)
    fields = [(key, types[column.unit.kind]) for key, column in zip(columns, table.columns, strict=True)]
    out = io.BytesIO()
    files.write_table(pyarrow.table(columns, schema=pyarrow.schema(fields, metadata={"opreplay": about})), out)
    return out.getvalue()


def frame(table: AnyTable) -> pandas.DataFrame:
    """Return the table as a data frame with column keys as names and the same types as in Parquet."""
    import pandas  # pyright: ignore[reportMissingTypeStubs]

    columns, types = _columns(table), {"int": "Int64", "float": "float64", "text": "string", "bool": "boolean"}
    kinds = {key: types[column.unit.kind] for key, column in zip(columns, table.columns, strict=True)}
    data: Any = pandas.DataFrame(columns)
    return data.astype(kinds)
