# pyright: strict
"""A result in all its output formats, each created only when requested. Commands, prompts and notebooks use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.report import formats
from opreplay.replay.report.text import shown_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opreplay.replay.report.page.model import Page
    from opreplay.replay.report.table import AnyTable


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The output formats of one result; None for a format that the result does not have."""

    lines: Sequence[str] = ()
    """First lines on a terminal."""
    render: Callable[[int], RenderableType]
    """Renders the part below the first lines; the argument is the width in characters."""
    facts: Callable[[], Any]
    """Returns the whole result for JSON."""
    table: Callable[[], AnyTable] | None = None
    """One row per item with all its values, for CSV and data frames."""
    tables: Mapping[str, Callable[[], AnyTable]] = {}
    """All tables for data frames by name, with all rows and plain values."""
    markdown: Callable[[], str] | None = None
    page: Callable[[str], Page] | None = None
    """Returns the page; the argument is the command line that created the result."""

    def text(self, form: str, command: str = "") -> str:
        """Return the result as "json", "csv", "markdown" or "html"; the HTML page names the command."""
        if form == "csv" and self.table is not None:
            return formats.csv_text(self.table())
        if form == "markdown" and self.markdown is not None:
            return self.markdown()
        if form == "html" and self.page is not None:
            from opreplay.replay.report.page.render import render

            return render(self.page(command))
        assert form == "json", f"no such form: {form}"
        return shown_json(self.facts())
