# pyright: strict
"""`opreplay show`: a saved run in any form, without running anything again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from opreplay.cli.options.shared import force_option, format_option, notes_option

if TYPE_CHECKING:
    from rich.console import RenderableType

SUFFIXES = {".csv": "csv", ".md": "markdown", ".html": "html", ".json": "json", ".parquet": "parquet"}
"""What a file is written as where no --format is given."""
TABLES = (".txt", ".log", "")
"""Suffixes of the table, all rows of it."""


@click.command("show", short_help="Print a saved run again, in any format.")
@click.argument("result", metavar="RESULT")
@format_option("table", "csv", "markdown", "html", "json", "parquet")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write it there in place of stdout, without --format as .csv, .md, .html, .json or .parquet say.",
)
@force_option
@notes_option
def command(result: str, format_: str, output: str | None, force: bool, notes: bool) -> None:
    """Show the results in RESULT, a .jsonl file of `opreplay run` or `batch --output`; nothing is measured.

    A file that was cut short is shown as far as it goes, and called interrupted.
    """
    from opreplay.cli.outputs import PAGES, check_writable, write_bytes, write_file
    from opreplay.cli.terminal import console
    from opreplay.replay.report.run import report
    from opreplay.replay.report.suspects import not_comparable
    from opreplay.replay.results.reading import read_result_file
    from opreplay.replay.results.summary import summary_of
    from opreplay.traces.errors import UsageError

    if output is not None:
        check_writable(Path(output), force=force)
        if click.get_current_context().get_parameter_source("format_") is ParameterSource.DEFAULT:
            suffix = Path(output).suffix.lower()
            if suffix not in (*SUFFIXES, *TABLES):
                known = ", ".join((*SUFFIXES, *filter(None, TABLES)))
                raise UsageError(f"no report is a {suffix}", hint=f"Suffixes are {known}; or say the --format.")
            format_ = SUFFIXES.get(suffix, format_)
    if format_ == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("Parquet is binary: it does not go to a terminal", hint="Name a file with --output.")
    file = read_result_file(result)
    run = report.run_of(file, summary_of(file))
    assert run is not None
    if format_ == "parquet":
        body = report.parquet(run)
        if output is None:
            sys.stdout.buffer.write(body)
        else:
            write_bytes(Path(output), body, force=force)
        return
    if format_ == "table":
        line = "\n".join(filter(None, (run.first_lines, not_comparable(run.header))))

        def show(width: int) -> RenderableType:
            in_file = output is not None
            rows = None if in_file else report.MAX_ROWS
            return report.render(run, width, everything=notes or in_file, rows=rows)

        if output is None:
            console.show_line(line)
            console.show_fitted(show)
            return
        text = console.plain_text(line, show)
    else:
        text = {"csv": PAGES[".csv"], "markdown": PAGES[".md"], "html": PAGES[".html"], "json": report.json}[format_](
            run
        )
    if output is None:
        console.write(text)
    else:
        write_file(Path(output), text, force=force)
