# pyright: strict
"""What objects look like at a prompt and in a notebook: the tables and pages that the command line writes; owns no
content."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opreplay.replay.report.page.model import Page

PROMPT_WIDTH, NOTEBOOK_WIDTH = 100, 120
"""Characters a line: at a prompt of unknown width, and in a notebook, which scrolls."""
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'

_STYLE = "width:100%;height:44rem;border:0"
_FRAME = f'<iframe sandbox="allow-scripts" srcdoc="{{page}}" title="opreplay" style="{_STYLE}"></iframe>'


class Shown:
    """Base of objects whose repr is a table; in a notebook the page with its figures, else the table with its styles.

    Every text of a trace is escaped.
    """

    def _line(self) -> str:
        """The first line, never broken."""
        raise NotImplementedError

    def _table(self, width: int) -> RenderableType:
        """What comes below it, fitted to so many characters."""
        raise NotImplementedError

    def _page(self) -> Page | None:
        """What a notebook shows of it; None for the table alone."""
        return None

    def __repr__(self) -> str:
        from rich.console import Console

        width = shutil.get_terminal_size((PROMPT_WIDTH, 24)).columns
        out = io.StringIO()
        console = Console(file=out, markup=False, emoji=False, highlight=False, width=width, no_color=True)
        console.print(self._table(width))
        return "\n".join(line.rstrip() for line in (self._line(), *out.getvalue().splitlines()))

    def _repr_html_(self) -> str:
        """For Jupyter and the like (IPython's display protocol): the page in a frame that loads nothing and reaches
        nothing of the notebook; the table below it, for viewers that leave frames out."""
        page, table = self._page(), self._html_table()
        if page is None:
            return table
        from html import escape

        from opreplay.replay.report.page.render import render

        frame = _FRAME.format(page=escape(render(page)))
        return f"{frame}<details><summary>as text</summary>{table}</details>"

    def _html_table(self) -> str:
        from rich.console import Console
        from rich.text import Text

        console = Console(
            file=io.StringIO(), record=True, markup=False, emoji=False, highlight=False, width=NOTEBOOK_WIDTH
        )
        console.print(Text(self._line(), style="bold"), soft_wrap=True)
        console.print(self._table(NOTEBOOK_WIDTH))
        return console.export_html(inline_styles=True, code_format=_PRE)
