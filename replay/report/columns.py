# pyright: strict
"""A table of ops for a terminal of any width: narrow columns of numbers, and the op in what is left."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from opreplay.replay.report.text import end, middle, safe

MIN_OP_WIDTH = 24
ONE_LINE_WIDTH = 34
"""Room for a name and the sizes that tell it from others, where each op has one line."""
NAMES_WIDTH = 48
"""Most that other columns leave for a long name."""
LEAST_NAME = 18
"""Characters of a name that its sizes leave it."""
GAP = 2
"""Characters between two columns."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One narrow column, its cells ready as text."""

    title: str
    cells: tuple[str, ...]
    styles: tuple[str, ...] = ()
    """One a cell, beside `style`; empty for none."""
    style: str = ""
    left: bool = False
    gives_way: float = 0
    """Where room is short, columns with the highest number go first; 0 stays."""
    named: bool = True
    """Whether the line below the table says that the column had to go."""

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.title, *self.cells, " "))


def names_room(names: Sequence[str]) -> int:
    """Characters that a table should leave for names that are all there is to tell rows apart."""
    return max(MIN_OP_WIDTH, min(max(map(cell_len, names), default=0), NAMES_WIDTH))


class OpCell(msgspec.Struct, frozen=True, kw_only=True):
    """The last cell of a row: an op and its arguments, or why it is not replayed."""

    name: str
    detail: str = ""
    style: str = "dim"
    """Of the detail."""
    short: str = ""
    """The detail where room is short; "" for no other than `detail`."""


def plain_table() -> Table:
    """A table with a rule below its head and no borders."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")


def ops_table(
    columns: Sequence[Column],
    ops: Sequence[OpCell],
    *,
    width: int,
    title: str = "op",
    one_line: bool = False,
    room: int = 0,
) -> list[RenderableType]:
    """The table, and a line that names the columns for which there was no room.

    `one_line`: no op takes a second line; its details are then those that tell it from others of its name. `room`:
    columns give way until so many characters are left for the op.
    """
    kept, hidden = fitting(columns, width, room or (ONE_LINE_WIDTH if one_line else MIN_OP_WIDTH))
    table = plain_table()
    for column in kept:
        table.add_column(
            Text(column.title),
            justify="left" if column.left else "right",
            style=column.style,
            no_wrap=True,
            width=column.width,
        )
    table.add_column(Text(title), no_wrap=True)
    space = max(width - sum(column.width + GAP for column in kept), 8)
    for row, op in enumerate(ops):
        cells = (Text(c.cells[row], style=c.styles[row] if c.styles else "") for c in kept)
        table.add_row(*cells, op_line(op, space) if one_line else op_text(op, space))
    if not hidden:
        return [table]
    return [table, Text(f"no room at {width} columns for: {', '.join(hidden)}", style="dim", overflow="fold")]


def fitting(columns: Sequence[Column], width: int, room: int = MIN_OP_WIDTH) -> tuple[list[Column], list[str]]:
    """The columns that leave `room` for the op, and the titles of those that had to go."""
    kept = list(columns)
    for column in sorted((c for c in columns if c.gives_way), key=lambda c: -c.gives_way):
        if width - sum(c.width + GAP for c in kept) >= room:
            break
        kept = [c for c in kept if c is not column]
    return kept, [c.title for c in columns if c.named and not any(c is k for k in kept)]


def op_line(op: OpCell, space: int) -> Text:
    """Name and detail on one line: the detail where it fits, else its short form; the name has what is left."""
    name, detail, short = safe(op.name), safe(op.detail), safe(op.short or op.detail)
    if len(name) + 2 + len(detail) <= space or not detail:
        return Text.assemble(middle(name, space), ("  " + detail if detail else "", op.style), no_wrap=True)
    kept = max(min(len(name), LEAST_NAME), space - 1 - len(short))
    name = middle(name, min(kept, space))
    return Text.assemble(name, (" " + end(short, space - len(name) - 1), op.style), no_wrap=True)


def op_text(op: OpCell, space: int) -> Text:
    """Name and detail in `space` characters: on one line where both fit or there is much room, else on two."""
    name, detail = safe(op.name), safe(op.detail)
    if not detail:
        return Text(middle(name, space), no_wrap=True)
    room = space - len(name) - 2
    if len(detail) <= room or (space >= 2 * MIN_OP_WIDTH and room >= MIN_OP_WIDTH):
        return Text.assemble(name, "  ", (end(detail, room), op.style), no_wrap=True)
    return Text.assemble(middle(name, space), "\n", (end(detail, space), op.style), no_wrap=True)
