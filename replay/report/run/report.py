# pyright: strict
"""A run in every format: terminal, Markdown, CSV, Parquet, JSON and page; the rows are tables, said once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ir.reasons import ReasonTotal
from opreplay.replay.ir.step import StepReport
from opreplay.replay.report import collectives, doubts, first_screen, formats, suspects
from opreplay.replay.report.page.model import Answer, Page, Waterfall
from opreplay.replay.report.page.parts import (
    answer,
    bars_by_name,
    module_trees,
    opened_ops,
    roofline,
    roofs_of,
    step_bars,
    times_by_class,
    times_by_op,
    waterfall,
)
from opreplay.replay.report.run import batch, facts, npu, ops, sequence
from opreplay.replay.report.step.verdict import page_facts, step_facts, verdict
from opreplay.replay.report.table import (
    COUNT,
    RATIO,
    SHARE,
    TIME,
    AnyTable,
    Column,
    Table,
    cut,
    decisive,
    heaviest,
    more_line,
    notes_lines,
    terminal,
)
from opreplay.replay.report.text import plural, quotient, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.results.reading import MemorySink, ResultFile
from opreplay.replay.results.records import Header, JobResult, OpResult, SequenceResult, Summary, TraceResult
from opreplay.replay.results.summary import reasons_of

MAX_ROWS = 40
"""Rows printed before the rest is summed up; files hold all of them."""
RATIOS_FROM = 110
"""Terminal width from which ratios to the recorded time are shown."""
KIND_CHARS = 20
"""Longer than every kind of reason; only a damaged file has longer ones."""


class Run(msgspec.Struct, frozen=True):
    """All that a report on a run is made of."""

    header: Header
    results: Sequence[OpResult]
    summary: Summary
    traces: Sequence[TraceResult] = ()
    jobs: Sequence[JobResult] = ()
    sequence: SequenceResult | None = None

    @property
    def by_device(self) -> bool:
        """Whether recorded times and shares are of the device."""
        return facts.has_device_time(self.header, self.results)

    @property
    def first_line(self) -> str:
        where = first_screen.where_in(self.header.trace)
        processes = 1 if where is None else where.processes
        return facts.coverage_line(self.header, self.results, self.summary, processes=processes)

    @property
    def step(self) -> StepReport | None:
        """The recorded step that the run is of, where the trace marks it."""
        step = self.header.step
        return step if step is not None and step.marked else None

    @property
    def first_lines(self) -> list[str]:
        """What bounds the recorded step, of a run of one, and the first line."""
        return [*([] if self.step is None else [verdict(self.step)]), self.first_line]

    @property
    def notes(self) -> list[str]:
        return [*facts.work_notes(self.results), *facts.notes(self.header, self.results, self.summary)]


def run_of(records: MemorySink | ResultFile, summary: Summary | None = None) -> Run | None:
    """What a sink or a file holds; None where it has no header or no summary, and none is given."""
    summary = summary or records.summary
    if records.header is None or summary is None:
        return None
    return Run(records.header, records.results, summary, records.traces, records.jobs, records.sequence)


def render(run: Run, width: int, *, everything: bool = True, rows: int | None = MAX_ROWS) -> RenderableType:
    """All but the first line, fitted to `width` characters: traces and jobs, the sequence, ops, totals and notes.

    Without `everything` only the notes that may change a decision, and how many others there are. `rows`: of a table at
    most, None for all.
    """
    results, device = run.results, run.by_device
    parts: list[RenderableType] = []
    if run.traces:
        parts += [Text(batch.sharing_line(run.traces, len(results)))]
        parts += batch.rendered(run.traces, run.jobs, width=width, rows=rows)
    parts += sequence.rendered(run.sequence, run.step)
    parts += [] if results or run.summary.interrupted else [no_ops()]
    name = run.header.trace.get("device")
    where = first_screen.where_in(run.header.trace)
    parts += first_screen.rendered(first_screen.lines(where, str(name) if name else None, results))
    parts += suspects.rendered(suspects.lines(results))
    shown = results[:rows]
    ratios = width >= RATIOS_FROM and not all(map(facts.is_untimed, shown))
    measured = [ops.MEASURED, *([ops.ratio(ops.MEASURED, device=device)] if ratios else [])]
    columns = [
        *ops.recordings(shown, device=device),
        *measured,
        *ops.predictions(facts.socs_of(shown), ratios=ratios, device=device),
        ops.op_column(shown),
    ]
    parts += terminal(Table("Ops", columns, shown), width, one_line=True)
    parts += rest_line(results, rows)
    for table in tables(run):
        parts += terminal(table, width, limit=rows)
    warnings = facts.work_notes(results)
    chosen = [*warnings, *facts.decisive_notes(run.header, results, run.summary)]
    parts += notes_lines(run.notes if everything else decisive(run.notes, chosen))
    return Group(*parts)


def markdown(run: Run) -> str:
    """The first line, all tables with all rows, and notes, for issues and pull requests."""
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


def view(run: Run, *, everything: bool = True, rows: int | None = MAX_ROWS) -> View:
    """A run in every form; `everything` and `rows` are those of `render`."""
    return View(
        lines=list(filter(None, [*run.first_lines, suspects.not_comparable(run.header)])),
        render=lambda width: render(run, width, everything=everything, rows=rows),
        facts=lambda: facts_of(run),
        table=lambda: file_table(run.results),
        markdown=lambda: markdown(run),
        page=lambda command: page(run, command),
    )


def file_table(results: Sequence[OpResult]) -> Table[OpResult]:
    """One row an op, with all that CSV, Parquet and data frames hold of it."""
    return Table("Ops", ops.file_columns(results), results, noun="op")


def parquet(run: Run) -> bytes:
    """The columns of the CSV, typed; the metadata `opreplay` is the header and the summary as JSON."""
    about = msgspec.json.encode({"header": run.header, "summary": run.summary})
    return formats.parquet(file_table(run.results), about)


def facts_of(run: Run) -> dict[str, object]:
    """`{"header": ..., "ops": [...], "summary": ..., "notes": [...], "suspects": [...], "marks": {...}}`; a
    batch has `traces` and `jobs` too, a sequence `sequence` and `step`.

    Notes and suspects are the lines of the table's report, marks what stands behind the star of a measured time, by id.
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


def page(run: Run, command: str) -> Page:
    """Everything of a run that a page shows."""
    header, results, device = run.header, run.results, run.by_device
    socs = facts.socs_of(results)
    source = str(header.trace.get("source") or header.trace.get("path") or "a trace")
    measured = [ops.MEASURED] if any(r.measured_us is not None for r in results) else []
    times = [ops.recorded(device=device), *measured, *map(ops.simulated, socs)]
    versions = header.identity.get("devices", "").split(",")
    return Page(
        title=f"opreplay: {source}",
        headline=run.first_line if run.step is None else verdict(run.step),
        command=command,
        answers=_answers(run),
        facts=(
            *([] if run.step is None else page_facts(run.step, run.first_line)),
            ("machine", str(header.environment.get("cpu") or header.environment.get("device") or "–")),
            ("started", f"{header.started_at} with opreplay {header.opreplay_version}"),
            *((total.label, _total_text(total)) for total in _totals(run)),
        ),
        bars=(
            *([] if run.step is None else [step_bars(run.step)]),
            bars_by_name("Time by op, all calls", times_by_op(results, times)),
            bars_by_name("Time by class of work", times_by_class(results, times), "class"),
            *([bars_by_name("Time by trace", batch.times(run.traces), "trace")] if len(run.traces) > 1 else []),
        ),
        trees=module_trees(run.step),
        waterfalls=tuple(_waterfall(results, times[0], column) for column in times[1:]),
        roofline=roofline(results, times[0], _device(header), roofs_of(socs, versions)),
        tables=(
            opened_ops(heaviest("Ops", _page_columns(results, device), results, lambda r: r.recorded_share), source),
            *tables(run),
            *batch.tables(run.traces, run.jobs),
            *([sequence.table(run.sequence)] if run.sequence is not None else []),
        ),
        notes=(*run.notes, *batch.notes(run.traces, run.jobs)),
    )


def _page_columns(results: Sequence[OpResult], device: bool) -> list[ops.OpColumn]:
    """What a page shows of an op."""
    columns = [ops.NAME, ops.INPUTS, ops.RECORDED_SHARE, ops.CALLS, ops.recorded(device=device), ops.MEASURED]
    columns += [column for soc in facts.socs_of(results) for column in (ops.simulated(soc), ops.bound_of(soc))]
    columns.append(ops.ratio(ops.MEASURED, device=device))
    return [*columns, ops.REASON] if any(r.reason for r in results) else columns


def _totals(run: Run) -> list[facts.Totals]:
    """Sums over the calls of a run."""
    return facts.totals(run.results, device=run.by_device, header=run.header, sequence=run.sequence)


def _device(header: Header) -> str | None:
    name = header.trace.get("device")
    return str(name) if name else None


def _answers(run: Run) -> tuple[Answer, ...]:
    """How many times the recorded time the ops took here, and would take on each simulated device."""
    results, device = run.results, run.by_device
    answers: list[Answer] = []
    for total in _totals(run)[:1]:
        if total.recorded_us and total.measured_us is not None:
            what = f"measured here, {total.label}"
            answers.append(answer(what, total.measured_us, None, None, total.recorded_us))
    for soc in facts.socs_of(results):
        recorded = [(facts.recorded_us(r, device=device) or 0.0) * r.count for r in results if soc in r.simulated_us]
        us, low_us, high_us = first_screen.predicted_total(soc, results)
        lacking = run.summary.unpredicted_share.get(soc, 0.0)
        more = f"; {share_text(lacking)} not predicted"
        answers.append(answer(f"{soc}, all calls", us, low_us, high_us, sum(recorded), more))
    return tuple(answers)


def _waterfall(results: Sequence[OpResult], recorded: ops.OpColumn, other: ops.OpColumn) -> Waterfall:
    """From the recorded time to another, of the ops that have both."""
    both = [r for r in results if recorded.value(r) is not None and other.value(r) is not None]
    begin, end = times_by_op(both, [recorded, other]).items()
    note = f"all calls of {plural(len(both), 'op')} with both times"
    return waterfall(f"From the {recorded.title} time to {other.title}", begin, end, note)


def _total_text(total: facts.Totals) -> str:
    times = {"recorded": total.recorded_us, "measured": total.measured_us, **total.simulated_us}
    return ", ".join(f"{clock} {time_text(us)}" for clock, us in times.items())


def tables(run: Run) -> list[AnyTable]:
    """What stands below the ops: sums, reasons, NPU kernels, work, collectives; some without rows."""
    results = run.results
    work = Table("Work", [ops.RECORDED_SHARE, ops.NAME, ops.WORK], facts.counted(results), noun="op")
    of_collectives = collectives.table(results, facts.socs_of(results))
    return [totals_table(run), reasons_table(results), npu.results_table(results), work, of_collectives]


_Clock = tuple[str, Callable[[facts.Totals], float | None]]
"""Its title, and what it reads in a sum."""


def totals_table(run: Run) -> Table[_Clock]:
    """All calls together, one row a clock, with ratios to the recorded time."""
    results, device = run.results, run.by_device
    title, timed = ops.recorded_title(device=device), not all(map(facts.is_untimed, results))
    columns = [Column[_Clock]("all calls", lambda clock: clock[0])]
    for total in _totals(run) if results else ():
        columns += _total_columns(total, doubts.mark(results), recorded=title if timed else None)
    clocks: list[_Clock] = [(title, lambda total: total.recorded_us)] if timed else []
    clocks.append((ops.MEASURED.title, lambda total: total.measured_us))
    clocks.extend((soc, lambda total, soc=soc: total.simulated_us.get(soc)) for soc in facts.socs_of(results))
    return Table("All calls", columns, clocks if results else [])


def _total_columns(total: facts.Totals, mark: str, *, recorded: str | None) -> list[Column[_Clock]]:
    """A sum on each clock and, where the recorded clock is named, its ratio to the recorded time."""

    def text(clock: _Clock) -> str:
        us = clock[1](total)
        return time_text(us) + (mark if clock[0] == ops.MEASURED.title and us is not None else "")

    def ratio(clock: _Clock) -> float | None:
        return quotient(clock[1](total), total.recorded_us)

    def ratio_text(clock: _Clock) -> str:
        return "" if clock[0] == recorded else RATIO.text(ratio(clock))

    ratios = [Column[_Clock](ops.RATIO_TITLE, ratio, RATIO, text=ratio_text, style="dim")] if recorded else []
    return [Column[_Clock](total.label, lambda clock: clock[1](total), TIME, text=text), *ratios]


def reasons_table(results: Sequence[OpResult]) -> Table[ReasonTotal]:
    """Why ops are not replayed, one row a reason with unique ops, calls and share of the recorded time."""
    return totals_by_kind("not replayed", reasons_of(results))


def totals_by_kind(title: str, rows: Sequence[ReasonTotal]) -> Table[ReasonTotal]:
    """One row a kind under the given title."""
    column = Column[ReasonTotal]
    columns = [
        column(title, lambda total: total.kind, chars=KIND_CHARS),
        column("ops", lambda total: total.ops, COUNT),
        column("calls", lambda total: total.calls, COUNT),
        column("share", lambda total: total.share, SHARE),
        column("why", facts.detail_text, form="fold", style="dim"),
    ]
    return Table(title.capitalize(), columns, rows)


def no_ops() -> Text:
    """What to print in place of a table without rows."""
    return Text(
        "no op to replay: the trace records none, or the selection leaves none", style="yellow", overflow="fold"
    )


def rest_line(results: Sequence[OpResult], rows: int | None) -> list[RenderableType]:
    """What the ops that are not printed amount to."""
    table = cut(Table("Ops", (), results, noun="op"), rows)
    if not table.left_out:
        return []
    share = share_text(sum(r.recorded_share for r in results[rows:]))
    return [Text(more_line(table, f"{share} of the time; --output FILE holds all"), style="dim")]
