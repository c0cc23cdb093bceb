# pyright: strict
"""Definition of a table (title, key, value and unit of each column), and its display in a terminal.

`opreplay.replay.report.formats` writes the same table as Markdown, CSV, Parquet and a data frame. Pages write it as
HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from opreplay.replay.report.text import DASH, cells, end, middle, plural, ratio_text, safe, share_text, time_text

Row = TypeVar("Row")

MIN_OP_WIDTH = 24
HARD_MIN_OP_WIDTH = 8
"""Minimum width of the op column. To keep it, even numeric columns with drop priority 0 are dropped."""
ONE_LINE_WIDTH = 34
"""Minimum width of an op's name and distinguishing sizes, in a table with one line per op."""
NAMES_WIDTH = 48
"""Maximum width, in characters, that a table reserves for long names."""
LEAST_NAME = 18
"""Minimum number of characters to which a name is shortened to make room for the sizes after it."""
GAP = 2
"""Characters between two columns."""
PAGE_ROWS = 500
SHARE_SHOWN, ROWS_SHOWN = 0.95, 20
"""Share of the total weight, and number of rows, after which a terminal sums up the remaining rows in one line."""


class Unit(msgspec.Struct, frozen=True):
    """How the values of a column are displayed, and their type in files."""

    text: Callable[[Any], str]
    kind: Literal["text", "lines", "int", "float", "bool"] = "float"
    """Type of the values; `lines` is a list of texts, one per line, and not used in files."""


def number(form: str, kind: Literal["int", "float"] = "float") -> Unit:
    """Return a unit for numbers with the given format string; missing values are shown as a dash."""
    return Unit(lambda value: DASH if value is None else form.format(value), kind)


TEXT = Unit(lambda value: "" if value is None else str(value), "text")
FLAG = Unit(lambda value: "" if value is None else str(value), "bool")
COUNT = number("{:,}", "int")
NUMBER = number("{:,.3g}")
SIGNED_PERCENT = Unit(lambda value: DASH if value is None else f"{100 * value:+.1f} %")
TIME = Unit(time_text)
"""Unit of times in microseconds."""
SHARE = Unit(share_text)
RATIO = Unit(lambda value: ratio_text(value, 1.0))


class Column(msgspec.Struct, Generic[Row], frozen=True):
    """A column of a table: one quantity of each row."""

    title: str
    value: Callable[[Row], Any]
    """Value as written to files and used for sorting; None if the row has no value."""
    unit: Unit = TEXT
    key: str = ""
    """Name of the column in files; the title if empty."""
    text: Callable[[Row], str] | None = None
    """Displayed text of the cell; None to format the value with the unit."""
    style: str | Callable[[Row], str] = ""
    drop: float = 0
    """Drop priority if the terminal is too narrow: highest first; 0 is dropped only as a last resort."""
    named: bool = True
    """Whether the line below the table lists the column if it was dropped."""
    right: bool = False
    """Whether text is right-aligned, like numbers."""
    form: Literal["", "code", "fold", "name", "paste"] = ""
    """How the text is displayed.

    `code`: a name or call of the trace, shown as code. `fold`: text that wraps over several lines. `name`: text that
    takes the remaining width of a terminal. `paste`: one unwrapped line of any length, to be copied.
    """
    chars: int = 0
    """Maximum width; 0 for no limit. A `fold` column wraps longer text, other columns leave out its middle."""
    detail: Callable[[Row], str] | None = None
    """Returns the text after the name in a column of ops: the arguments, or why the op is not replayed.

    A column with `detail` is a column of ops, which takes the remaining width. The text has the column's `style`, or is
    dim if there is none.
    """
    short: Callable[[Row], str] | None = None
    """Shorter detail for narrow terminals; None or "" to use `detail`."""

    @property
    def is_number(self) -> bool:
        return self.unit.kind not in ("text", "lines")

    @property
    def is_flexible(self) -> bool:
        """Whether the column takes the remaining width of a terminal."""
        return self.detail is not None or self.form in ("fold", "name")

    def shown(self, row: Row) -> str:
        """Return the cell as displayed text, not escaped."""
        text = self.unit.text(self.value(row)) if self.text is None else self.text(row)
        return text if self.detail is None else f"{text}  {self.detail(row)}".rstrip()

    def with_text(self, text: Callable[[Row], str]) -> Column[Row]:
        """Return the same column with other displayed text."""
        return msgspec.structs.replace(self, text=text)

    def style_of(self, row: Row) -> str:
        """Return the style of the cell, or of the column if it is the same for all rows."""
        return self.style if isinstance(self.style, str) else self.style(row)

    def sort_value(self, row: Row) -> float | None:
        """Number by which `page.html.j2` sorts the cell; None for a text column."""
        return self.value(row) if self.is_number else None


class Table(msgspec.Struct, Generic[Row], frozen=True):
    """A table with title, columns and rows."""

    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    left_out: int = 0
    """Number of rows left out of the table: the rows with the least weight."""
    noun: str = "row"
    """Singular noun for a row."""
    weight: Callable[[Row], float | None] | None = None
    """Weight by which rows are sorted, largest first; None if no row matters more than others."""


AnyTable = Table[Any]


def of_fields(
    title: str,
    rows: Sequence[Any],
    fields: Mapping[str, Unit],
    keys: Mapping[str, str] = MappingProxyType({}),
    noun: str = "row",
) -> AnyTable:
    """Return a table with `fields` of the rows as columns, for files and data frames; `keys` renames columns."""
    columns = [
        Column[Any](keys.get(field, field), lambda row, field=field: getattr(row, field), unit)
        for field, unit in fields.items()
    ]
    return Table(title, columns, rows, noun=noun)


def readable(table: AnyTable) -> AnyTable:
    """Return a table made for files in a form that people can read more easily.

    Empty columns are left out. Titles are made from the keys. The first text column takes the remaining width.
    """
    columns = [column for column in table.columns if any(column.value(row) not in (None, "") for row in table.rows)]
    first = next((column for column in columns if column.unit.kind == "text"), None)
    shown = [
        msgspec.structs.replace(
            column,
            title=(column.key or column.title).replace("_us", "").replace("_", " "),
            form="name" if column is first else column.form,
            drop=0 if column is first else 1 + place / 100,
        )
        for place, column in enumerate(columns)
    ]
    return msgspec.structs.replace(table, columns=shown)


def heaviest(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    weight: Callable[[Row], float],
    limit: int = PAGE_ROWS,
) -> Table[Row]:
    """Return the rows with the largest weight, largest first, and the number of other rows."""
    order = sorted(rows, key=lambda row: -weight(row))[:limit]
    return Table(title, columns, order, len(rows) - len(order))


def plain_table() -> RichTable:
    """Return a table with a rule below its header and no borders."""
    return RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold"
    )


def cut(table: Table[Row], limit: int | None) -> Table[Row]:
    """Return a table with the first `limit` rows; None keeps all rows."""
    rows = table.rows[:limit]
    return msgspec.structs.replace(table, rows=rows, left_out=table.left_out + len(table.rows) - len(rows))


def rows_that_matter(weights: Sequence[float | None]) -> int:
    """Return how many of the first rows to show: as many as hold 95 % of the total weight, but at most 20.

    If only one row would be left out, return the number of all rows.
    """
    total, held = sum(weight or 0.0 for weight in weights), 0.0
    for count, weight in enumerate(weights, 1):
        held += weight or 0.0
        if held >= SHARE_SHOWN * total > 0 or count == ROWS_SHOWN:
            return count if count < len(weights) - 1 else len(weights)
    return len(weights)


def heaviest_rows(table: Table[Row]) -> tuple[Table[Row], float | None]:
    """Return the table with the rows that hold 95 % of the weight, and the share of the weight of the other rows."""
    if table.weight is None:
        return table, None
    weights = [table.weight(row) for row in table.rows]
    shown = rows_that_matter(weights)
    total = sum(weight or 0.0 for weight in weights)
    rest = sum(weight or 0.0 for weight in weights[shown:])
    return cut(table, shown), rest / total if total else None


def more_line(table: Table[Row], where: str, share: float | None = None) -> str:
    """Return how many rows are left out and where to find them: "… 71 more ops, 7.0 %; --all shows them"."""
    held = "" if share is None else f", {share_text(share)}"
    return f"… {plural(table.left_out, f'more {table.noun}')}{held}" + (f"; {where}" if where else "")


def terminal(
    table: Table[Row],
    width: int = 0,
    *,
    limit: int | None = None,
    rest: str = "--all shows them",
    all_rows: bool = True,
    one_line: bool = False,
    room: int = 0,
) -> list[RenderableType]:
    """Return the first rows of the table in `width` characters, after an empty line; [] if there are no rows.

    Without `all_rows`, only rows that hold 95 % of the weight are shown. Lines below the table name the dropped
    columns, the number of rows not shown, and where to find them (`rest`). With `width` 0, no column is dropped.

    A column of ops takes the remaining width. Other columns are dropped until it has at least `room` characters. With
    `one_line`, each op takes one line, with only the details that distinguish it from others of the same name.
    """
    table, share = (table, None) if all_rows else heaviest_rows(table)
    table = cut(table, limit)
    if not table.rows:
        return []
    widths = {id(column): _width(column, table.rows) for column in table.columns if not column.is_flexible}
    has_names = any(column.detail is not None or column.form == "name" for column in table.columns)
    if has_names:
        room = room or (ONE_LINE_WIDTH if one_line else MIN_OP_WIDTH)
    shown, hidden = fitting(table.columns, widths, width, room) if width else (list(table.columns), [])
    space = max(width - _total_width(shown, widths), HARD_MIN_OP_WIDTH) if width else 1 << 16
    grid = plain_table()
    for column in shown:
        _add_column(grid, column, widths.get(id(column)) if has_names else None)
    for row in table.rows:
        grid.add_row(*(_cell(column, row, space, one_line=one_line) for column in shown))
    below = [more_line(table, rest, share)] if table.left_out and rest else []
    below += [f"hidden at a width of {width} columns: {', '.join(hidden)}"] if hidden else []
    return [Text(), grid, *([Text("; ".join(below), style="dim", overflow="fold")] if below else [])]


def _total_width(columns: Sequence[Column[Row]], widths: dict[int, int]) -> int:
    """Return the width of the fixed-width columns plus the gaps between all columns, in characters."""
    return sum(widths.get(id(column), -GAP) + GAP for column in columns)


def _add_column(grid: RichTable, column: Column[Row], width: int | None) -> None:
    fold = column.form == "fold"
    grid.add_column(
        Text("\n".join(map(safe, column.title.split("\n")))),
        justify="right" if column.is_number or column.right else "left",
        no_wrap=not fold,
        overflow="fold" if fold else "ellipsis",
        width=width,
        max_width=column.chars or None,
    )


def _width(column: Column[Row], rows: Sequence[Row]) -> int:
    texts = [*map(safe, column.title.split("\n")), *(_cell(column, row).plain for row in rows)]
    return max(1, *map(cell_len, texts))


def _cell(column: Column[Row], row: Row, space: int = 0, *, one_line: bool = False) -> Text:
    """Return the cell for a terminal. `space` is the width in characters of a column that takes the remaining width."""
    if column.detail is not None:
        return (op_line if one_line else _op_text)(column, row, space)
    chars = space if column.form == "name" else 0 if column.form == "fold" else column.chars
    if column.unit.kind == "lines":
        return Text("\n".join(map(safe, column.value(row))), style=column.style_of(row))
    text = safe(column.shown(row))
    return Text(middle(text, chars) if chars else text, style=column.style_of(row))


def fitting(
    columns: Sequence[Column[Row]], widths: dict[int, int], width: int, room: int
) -> tuple[list[Column[Row]], list[str]]:
    """Return the columns that leave `room` characters for the flexible column, and the titles of dropped columns."""
    shown = list(columns)
    for column in sorted((c for c in columns if c.drop), key=lambda c: -c.drop):
        if width - _total_width(shown, widths) >= room:
            break
        shown = [c for c in shown if c is not column]
    op_width = HARD_MIN_OP_WIDTH if any(c.is_flexible for c in shown) else 0
    hidden = {id(c) for c in columns if c.named} - {id(c) for c in shown}
    for column in [c for c in reversed(shown) if c.is_number][:-1]:
        # Half a number is another number: rather none.
        if _total_width(shown, widths) + op_width <= width:
            break
        hidden.add(id(column))
        shown = [c for c in shown if c is not column]
    return shown, [safe(c.title) for c in columns if id(c) in hidden]


def names_room(names: Iterable[str]) -> int:
    """Return the width that a table should leave for names if only the names distinguish its rows."""
    return max(MIN_OP_WIDTH, min(max((cell_len(safe(name)) for name in names), default=0), NAMES_WIDTH))


def op_line(column: Column[Row], row: Row, space: int) -> Text:
    """Return name and detail on one line. If they do not fit, the detail is shortened first, then the name."""
    name, detail, style = _op_parts(column, row)
    short = safe(column.short(row) if column.short is not None else "") or detail
    if cells(name) + 2 + cells(detail) <= space or not detail:
        return Text.assemble(middle(name, space), ("  " + detail if detail else "", style), no_wrap=True)
    name_chars = max(min(cells(name), LEAST_NAME), space - 1 - cells(short))
    name = middle(name, min(name_chars, space))
    return Text.assemble(name, (" " + end(short, space - cells(name) - 1), style), no_wrap=True)


def _op_parts(column: Column[Row], row: Row) -> tuple[str, str, str]:
    """Return (name of the op, detail, style of the detail)."""
    detail = "" if column.detail is None else column.detail(row)
    return safe(column.value(row)), safe(detail), column.style_of(row) or "dim"


def _op_text(column: Column[Row], row: Row, space: int) -> Text:
    """Return name and detail in `space` characters: on one line if there is enough room, otherwise on two."""
    name, detail, style = _op_parts(column, row)
    if not detail:
        return Text(middle(name, space), no_wrap=True)
    room = space - cells(name) - 2
    if cells(detail) <= room or (space >= 2 * MIN_OP_WIDTH and room >= MIN_OP_WIDTH):
        return Text.assemble(name, "  ", (end(detail, room), style), no_wrap=True)
    return Text.assemble(middle(name, space), "\n", (end(detail, space), style), no_wrap=True)


Fact = tuple[str, str, str]
"""A fact: name, text, and style in a terminal."""


def facts_grid(facts: Iterable[Fact]) -> RichTable:
    """Return a grid with one line per fact; facts without text are omitted."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for title, text, style in facts:
        if text:
            grid.add_row(Text(title), Text(safe(text), style=style))
    return grid


def warnings_of(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts that are printed in colour because they may change a decision."""
    return [fact for fact in facts if fact[1] and fact[2] in ("yellow", "red", "bold red")]


def decisive(lines: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return the chosen notes, and a line with the number of the other notes."""
    shown = [line for line in lines if line in chosen]
    rest = len(lines) - len(shown)
    return [*shown, f"{plural(rest, 'more note')} with --notes"] if rest else shown


def notes_lines(lines: Sequence[str]) -> list[RenderableType]:
    """Return notes below a table, one bullet each."""
    if not lines:
        return []
    grid = RichTable.grid(padding=(0, 1))
    for line in lines:
        grid.add_row(Text("·", style="dim"), Text(line, style="dim", overflow="fold"))
    return [Text(), grid]
