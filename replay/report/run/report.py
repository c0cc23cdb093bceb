# pyright: strict
"""A run in every format: terminal, Markdown, CSV, Parquet, JSON and HTML page. Each table is defined only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report import doubts, first_screen, formats, suspects
from opreplay.replay.report.run import batch, facts, ops, sequence
from opreplay.replay.report.run.tables import TOTALS, Run, file_tables, tables
from opreplay.replay.report.step.verdict import step_facts
from opreplay.replay.report.table import (
    ROWS_SHOWN,
    Table,
    decisive,
    notes_lines,
    rows_that_matter,
    terminal,
)
from opreplay.replay.report.view import View
from opreplay.replay.results.records import OpResult

if TYPE_CHECKING:
    from opreplay.replay.report.page.model import Page

RATIOS_FROM = 110
"""Minimum terminal width for showing ratios to the recorded time."""


def render(run: Run, width: int, *, everything: bool = True, all_rows: bool = True) -> RenderableType:
    """Render a run in `width` characters: traces and jobs, the sequence, ops, totals and notes.

    The first lines of the report are not included. Without `everything`, show only notes that may change a decision,
    and how many other notes there are. Without `all_rows`, show only the rows that account for most of the time.
    """
    results, device, rows = run.results, run.by_device, None if all_rows else ROWS_SHOWN
    parts: list[RenderableType] = []
    if run.traces:
        parts += [Text(batch.sharing_line(run.traces, len(results)))]
        parts += batch.rendered(run.traces, run.jobs, width=width, rows=rows)
    parts += sequence.rendered(run.sequence, run.step)
    parts += [] if results or run.summary.interrupted else [no_ops()]
    name = run.header.trace.get("device")
    where = first_screen.where_in(run.header.trace)
    head = first_screen.lines(where, str(name) if name else None, results)
    parts += first_screen.rendered(head if everything else first_screen.warning_lines(where))
    parts += suspects.rendered(suspects.lines(results))
    shown = results if all_rows else results[: rows_that_matter([r.recorded_share for r in results])]
    ratios = width >= RATIOS_FROM and not all(map(facts.is_untimed, shown))
    measured = [ops.MEASURED, *([ops.ratio(ops.MEASURED, device=device)] if ratios else [])]
    columns = [
        *ops.recordings(shown, device=device),
        *measured,
        *ops.predictions(facts.socs_of(shown), ratios=ratios, device=device),
        ops.op_column(shown),
    ]
    table = Table("Ops", columns, results, noun="op", weight=lambda r: r.recorded_share)
    parts += terminal(table, width, all_rows=all_rows, one_line=True)
    for table in tables(run):
        if everything or table.title != TOTALS:
            parts += terminal(table, width, limit=rows)
    warnings = facts.work_notes(results)
    chosen = [*warnings, *facts.decisive_notes(run.header, results, run.summary)]
    parts += notes_lines(run.notes if everything else decisive(run.notes, chosen))
    return Group(*parts)


def markdown(run: Run) -> str:
    """Return the first lines, all tables with all rows, and notes as Markdown, for issues and pull requests."""
    results, socs = run.results, facts.socs_of(run.results)
    why = ops.OpColumn(
        "note", lambda r: str(r.why_not() if r.status != "replayed" else f"via {r.via}" if r.via else "")
    )
    columns = [ops.NAME, ops.inputs_and_numbers(results), ops.CALLS, ops.RECORDED_SHARE]
    columns += [ops.recorded(device=run.by_device), ops.MEASURED, *map(ops.simulated, socs), ops.BOUND, why]
    lines = [formats.escaped(line) for line in run.first_lines]
    for table in (Table("Ops", columns, results), *tables(run)):
        lines += formats.markdown(table)
    lines += formats.bullets(run.notes)
    for table in batch.tables(run.traces, run.jobs):
        lines += formats.markdown(table)
    lines += formats.bullets(batch.notes(run.traces, run.jobs))
    if run.sequence is not None:
        lines += [
            "",
            formats.escaped(sequence.first_line(run.sequence)),
            *formats.markdown(sequence.table(run.sequence)),
        ]
        lines += formats.bullets(sequence.notes(run.sequence))
    return "\n".join(lines) + "\n"


def view(run: Run, *, everything: bool = True, all_rows: bool = True) -> View:
    """Return a run in every output format; for `everything` and `all_rows` see `render`."""
    return View(
        lines=run.first_lines,
        render=lambda width: render(run, width, everything=everything, all_rows=all_rows),
        facts=lambda: facts_of(run),
        table=lambda: file_table(run.results),
        markdown=lambda: markdown(run),
        page=lambda command: _page(run, command),
        tables={"ops": lambda: file_table(run.results), **file_tables(run)},
    )


def _page(run: Run, command: str) -> Page:
    """Return the HTML page of a run."""
    from opreplay.replay.report.run.page import page

    return page(run, command)


def file_table(results: Sequence[OpResult]) -> Table[OpResult]:
    """Return one row per op, with all columns of CSV, Parquet and data frames."""
    return Table("Ops", ops.file_columns(results), results, noun="op")


def parquet(run: Run) -> bytes:
    """Return the CSV columns as typed Parquet. Its metadata `opreplay` holds the header and the summary as JSON."""
    about = msgspec.json.encode({"header": run.header, "summary": run.summary})
    return formats.parquet(file_table(run.results), about)


def facts_of(run: Run) -> dict[str, object]:
    """Return the run as one JSON object.

    It is `{"header": ..., "ops": [...], "summary": ..., "notes": [...], "suspects": [...], "marks": {...}}`. A batch
    also has `traces` and `jobs`. A sequence also has `sequence` and `step`. `notes` and `suspects` are lines of text,
    as in the table report. `marks` maps an op id to the reasons why the op's measured time has a star.
    """
    comparable = suspects.not_comparable(run.header)
    of_batch = [*batch.loss_lines(run.traces), *batch.part_lines(run.traces)]
    body: dict[str, object] = {
        "header": run.header,
        "ops": run.results,
        "summary": run.summary,
        "notes": [*([comparable] if comparable else []), *run.notes, *(line.lstrip("! ") for line in of_batch)],
        "suspects": suspects.lines(run.results),
        "marks": {result.id: marks for result in run.results if (marks := doubts.marks(result))},
    }
    if run.traces:
        body |= {"traces": run.traces, "jobs": run.jobs}
    if run.sequence is not None:
        body["sequence"] = run.sequence
    if run.header.step is not None:
        body["step"] = step_facts(run.header.step)
    return body


def no_ops() -> Text:
    """Return the text that replaces a table without rows."""
    return Text("no op to replay: the trace records no ops, or none is selected", style="yellow", overflow="fold")
