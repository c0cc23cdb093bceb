# pyright: strict
"""How objects look at a prompt and in a notebook: with the tables and pages of the command line."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs]

    from opreplay.replay.report.view import View

PROMPT_WIDTH, NOTEBOOK_WIDTH = 100, 120
"""Characters a line: at a prompt of unknown width, and in a notebook, which scrolls."""
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'

_STYLE = "width:100%;height:44rem;border:0"
_FRAME = f'<iframe sandbox="allow-scripts" srcdoc="{{page}}" title="opreplay" style="{_STYLE}"></iframe>'


class Shown:
    """Base class of objects whose repr is a table; in a notebook they show a page with figures, or a styled table.

    Every text from a trace is escaped.
    """

    _command: ClassVar[str] = ""
    """What a page says made it."""

    def _view(self) -> View:
        """Return the object's view, from which every format is rendered."""
        raise NotImplementedError

    def _frame(self) -> pandas.DataFrame:
        """Return its table; missing values are those of pandas."""
        from opreplay.replay.report.formats import frame

        table = self._view().table
        assert table is not None
        return frame(table())

    def __repr__(self) -> str:
        from rich.console import Console

        view, width = self._view(), shutil.get_terminal_size((PROMPT_WIDTH, 24)).columns
        out = io.StringIO()
        console = Console(file=out, markup=False, emoji=False, highlight=False, width=width, no_color=True)
        console.print(view.render(width))
        return "\n".join(line.rstrip() for line in (*view.lines, *out.getvalue().splitlines()))

    def _repr_html_(self) -> str:
        """Return HTML for Jupyter (IPython's display protocol).

        The page is in a sandboxed frame that loads nothing and cannot access the notebook; the table below it is for
        viewers that remove frames.
        """
        view, table = self._view(), self._html_table()
        if view.page is None:
            return table
        from html import escape

        frame = _FRAME.format(page=escape(view.text("html", self._command)))
        return f"{frame}<details><summary>as text</summary>{table}</details>"

    def _html_table(self) -> str:
        from rich.console import Console
        from rich.text import Text

        console = Console(
            file=io.StringIO(), record=True, markup=False, emoji=False, highlight=False, width=NOTEBOOK_WIDTH
        )
        view = self._view()
        for line in view.lines:
            console.print(Text(line, style="bold"), soft_wrap=True)
        console.print(view.render(NOTEBOOK_WIDTH))
        return console.export_html(inline_styles=True, code_format=_PRE)
