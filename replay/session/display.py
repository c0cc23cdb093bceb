# pyright: strict
"""What objects look like at a prompt and in a notebook: the tables that the command line prints; owns no content."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

PROMPT_WIDTH, NOTEBOOK_WIDTH = 100, 120
"""Characters a line: at a prompt of unknown width, and in a notebook, which scrolls."""
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


class Shown:
    """Base of objects whose repr is a table; in a notebook the same with its styles, every text of a trace escaped."""

    def _line(self) -> str:
        """The first line, never broken."""
        raise NotImplementedError

    def _table(self, width: int) -> RenderableType:
        """What comes below it, fitted to so many characters."""
        raise NotImplementedError

    def __repr__(self) -> str:
        from rich.console import Console

        width = shutil.get_terminal_size((PROMPT_WIDTH, 24)).columns
        out = io.StringIO()
        console = Console(file=out, markup=False, emoji=False, highlight=False, width=width, no_color=True)
        console.print(self._table(width))
        return "\n".join(line.rstrip() for line in (self._line(), *out.getvalue().splitlines()))

    def _repr_html_(self) -> str:
        """For Jupyter and the like (IPython's display protocol)."""
        from rich.console import Console
        from rich.text import Text

        console = Console(
            file=io.StringIO(), record=True, markup=False, emoji=False, highlight=False, width=NOTEBOOK_WIDTH
        )
        console.print(Text(self._line(), style="bold"), soft_wrap=True)
        console.print(self._table(NOTEBOOK_WIDTH))
        return console.export_html(inline_styles=True, code_format=_PRE)
