# pyright: strict
"""`opreplay show`: show a saved run in any format, without running anything again."""

from __future__ import annotations

from pathlib import Path

import click

from opreplay.cli.options.settings import is_default
from opreplay.cli.options.shared import all_option, force_option, format_option, notes_option

SUFFIXES = {".csv": "csv", ".md": "markdown", ".html": "html", ".json": "json", ".parquet": "parquet"}
"""File suffix → format that is used if --format is not given."""
TABLES = (".txt", ".log", "")
"""Suffixes of files to which `show` writes the text table with all rows."""


@click.command("show", short_help="Print a saved run again, in any format.")
@click.argument("result", metavar="RESULT")
@format_option("table", "csv", "markdown", "html", "json", "parquet")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help=(
        "Write to this file instead of stdout; the suffix gives the format without --format: "
        ".csv, .md, .html, .json, .parquet."
    ),
)
@force_option
@all_option
@notes_option
def command(result: str, format_: str, output: str | None, force: bool, all_rows: bool, notes: bool) -> None:
    """Show the results in RESULT, a .jsonl file of `opreplay run` or `batch --output`; nothing is measured.

    A file that was cut short is shown as far as it goes and marked as interrupted.
    """
    from opreplay.cli.outputs import check_writable, write_bytes, write_file
    from opreplay.cli.terminal import console
    from opreplay.replay.report.run import report
    from opreplay.replay.report.run.tables import run_of
    from opreplay.replay.results.reading import read_result_file
    from opreplay.replay.results.summary import summary_of
    from opreplay.traces.errors import UsageError

    in_file = output is not None
    if in_file:
        check_writable(Path(output), force=force)
        if is_default("format_"):
            format_ = _format_of(Path(output).suffix.lower(), format_)
    if format_ == "parquet" and not in_file and console.stdout().isatty():
        raise UsageError("Parquet is binary and is not written to a terminal", hint="Name a file with --output.")
    file = read_result_file(result)
    run = run_of(file, summary_of(file))
    assert run is not None
    view = report.view(run, everything=notes or in_file, all_rows=all_rows or in_file)
    if format_ == "parquet" and in_file:
        write_bytes(Path(output), report.parquet(run), force=force)
    elif format_ == "parquet":
        console.stdout().buffer.write(report.parquet(run))
    elif not in_file:
        console.show_view(view, format_)
    else:
        text = console.plain_text(view) if format_ == "table" else view.text(format_, console.command_line())
        write_file(Path(output), text, force=force)


def _format_of(suffix: str, default: str) -> str:
    """Return the format for a file suffix, or `default` for a text file. Raises UsageError for an unknown suffix."""
    from opreplay.traces.errors import UsageError

    if suffix not in (*SUFFIXES, *TABLES):
        known = ", ".join((*SUFFIXES, *filter(None, TABLES)))
        raise UsageError(f"no report format for the suffix {suffix}", hint=f"Suffixes are {known}; or give --format.")
    return SUFFIXES.get(suffix, default)
