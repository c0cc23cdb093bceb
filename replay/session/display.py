# pyright: strict
"""Display of objects at a Python prompt and in a notebook, with the tables and pages of the command line."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas  # pyright: ignore[reportMissingTypeStubs]
    from rich.console import Console

    from opreplay.replay.report.table import AnyTable
    from opreplay.replay.report.view import View

PROMPT_WIDTH, NOTEBOOK_WIDTH = 100, 120
"""Characters per line: at a prompt of unknown width, and in a notebook, which can scroll."""
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'

_STYLE = "width:100%;height:44rem;border:0"
_FRAME = f'<iframe sandbox="allow-scripts" srcdoc="{{page}}" title="opreplay" style="{_STYLE}"></iframe>'


ROWS = 40
"""Maximum number of table rows shown at a prompt and in a notebook."""


class Shown:
    """Base class of objects that Python and notebooks display as tables.

    The repr is a table as text. A notebook shows a page with figures or, if there is none, a styled table. Every text
    from a trace is escaped.
    """

    _command: ClassVar[str] = ""
    """Command or function that is named on a page as the page's origin."""

    def _view(self) -> View:
        """Return the object's view, from which every format is rendered."""
        raise NotImplementedError

    def __repr__(self) -> str:
        view, width = self._view(), shutil.get_terminal_size((PROMPT_WIDTH, 24)).columns
        out = io.StringIO()
        console = _console(out, width, plain=True)
        console.print(view.render(width))
        return "\n".join(line.rstrip() for line in (*view.lines, *out.getvalue().splitlines()))

    def _repr_html_(self) -> str:
        """Return HTML for Jupyter (IPython's display protocol).

        The page is in a sandboxed frame that loads nothing and cannot access the notebook. The table is repeated below
        the frame, because some viewers remove frames.
        """
        view, table = self._view(), self._html_table()
        if view.page is None:
            return table
        from html import escape

        frame = _FRAME.format(page=escape(view.text("html", self._command)))
        return f"{frame}<details><summary>as text</summary>{table}</details>"

    def _html_table(self) -> str:
        from rich.text import Text

        console = _console(io.StringIO(), NOTEBOOK_WIDTH, record=True)
        view = self._view()
        for line in view.lines:
            console.print(Text(line, style="bold"), soft_wrap=True)
        console.print(view.render(NOTEBOOK_WIDTH))
        return console.export_html(inline_styles=True, code_format=_PRE)


def _console(out: io.StringIO, width: int, *, record: bool = False, plain: bool = False) -> Console:
    """Return a console that writes only to `out`. By default, rich would also display the output in a notebook."""
    from rich.console import Console

    return Console(
        file=out,
        width=width,
        record=record,
        no_color=plain,
        markup=False,
        emoji=False,
        highlight=False,
        force_jupyter=False,
    )


class Tabular(Shown):
    """Base class of objects with tables, which are also available as data frames."""

    def _tables(self) -> Mapping[str, Callable[[], AnyTable]]:
        """Return the object's tables by name; the first is the main table."""
        return self._view().tables

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables; `frame` accepts them, and each is an attribute."""
        return tuple(self._tables())

    def frame(self, table: str | None = None) -> pandas.DataFrame:
        """Return a table as a data frame, by default the first table.

        Times are in microseconds, shares from 0 to 1. Missing values are represented as in pandas. Raises UsageError if
        there is no table of that name.
        """
        from opreplay.replay.report.formats import frame

        return frame(self._table(table))

    def _table(self, name: str | None) -> AnyTable:
        tables = self._tables()
        table = tables.get(next(iter(tables)) if name is None else name)
        if table is None:
            from opreplay.traces.errors import UsageError

            raise UsageError(f"there is no table {name}", hint=f"Its tables are {', '.join(tables)}.")
        return table()

    def __getattr__(self, name: str) -> ShownTable:
        if name.startswith("_") or name not in self.tables:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return ShownTable(self._table(name))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.tables})


class ShownTable(Tabular):
    """One table of a result."""

    def __init__(self, table: AnyTable) -> None:
        self._rows = table

    def __len__(self) -> int:
        return len(self._rows.rows)

    def _tables(self) -> Mapping[str, Callable[[], AnyTable]]:
        return {"rows": lambda: self._rows}

    def _view(self) -> View:
        from rich.console import Group

        from opreplay.replay.report.table import readable, terminal
        from opreplay.replay.report.view import View

        table = readable(self._rows)
        return View(
            lines=[table.title if table.rows else f"{table.title}: no rows"],
            render=lambda width: Group(*terminal(table, width, limit=ROWS, rest="frame() has all")[1:]),
            facts=lambda: [[column.value(row) for column in table.columns] for row in table.rows],
        )
