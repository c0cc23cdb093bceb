# pyright: strict
"""The data of a run's report, and the tables below its ops: sums, reasons, NPU kernels, work, collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from opreplay.replay.ir.reasons import ReasonTotal
from opreplay.replay.ir.step import StepReport
from opreplay.replay.report import collectives, doubts, first_screen, suspects
from opreplay.replay.report.run import facts, npu, ops
from opreplay.replay.report.step.verdict import verdict
from opreplay.replay.report.table import (
    COUNT,
    RATIO,
    SHARE,
    TEXT,
    TIME,
    AnyTable,
    Column,
    Table,
    Unit,
    of_fields,
)
from opreplay.replay.report.text import plural, quotient, ratio_text, safe, time_text
from opreplay.replay.results.reading import MemorySink, ResultFile
from opreplay.replay.results.records import Header, JobResult, OpResult, SequenceResult, Summary, TraceResult
from opreplay.replay.results.summary import reasons_of
from opreplay.traces.names import trace_name

LEAST_SLOWEST = 0.01
"""Minimum share of the time for which an op can be reported as the slowest."""
SLOWEST_CHARS = 40
TOTALS = "All calls"
KIND_CHARS = 20
"""Maximum length of a kind of reason, in characters; only a damaged file has longer ones."""


class Run(msgspec.Struct, frozen=True):
    """All data for a report on a run."""

    header: Header
    results: Sequence[OpResult]
    summary: Summary
    traces: Sequence[TraceResult] = ()
    jobs: Sequence[JobResult] = ()
    sequence: SequenceResult | None = None

    @property
    def by_device(self) -> bool:
        """Whether recorded times and shares refer to the device."""
        return facts.has_device_time(self.header, self.results)

    @property
    def first_line(self) -> str:
        where = first_screen.where_in(self.header.trace)
        processes = 1 if where is None else where.processes
        return facts.coverage_line(self.header, self.results, self.summary, processes=processes)

    @property
    def step(self) -> StepReport | None:
        """Recorded step to which the run belongs, if the trace marks it."""
        step = self.header.step
        return step if step is not None and step.marked else None

    @property
    def name(self) -> str:
        """Name of the trace, or the number of traces, for headlines."""
        if len(self.traces) > 1:
            return plural(len(self.traces), "trace")
        return trace_name(str(self.header.trace.get("source") or "")) or "this run"

    @property
    def first_lines(self) -> list[str]:
        """First lines: the ops that matter and the slowest op, total times, coverage, and the step's verdict."""
        where = first_screen.where_in(self.header.trace)
        parts = [first_screen.heavy_text(where, self.results), self._slowest]
        head = "" if self.summary.interrupted else "; ".join(filter(None, parts))
        head = head or self.first_line
        lines = [f"{safe(self.name)}: {head}", suspects.not_comparable(self.header), self._all_calls]
        lines += [first_screen.predicted_line(soc, self.results, self._recorded_us) for soc in self._socs]
        lines += [self.first_line] if head != self.first_line else []
        return list(filter(None, [*lines, "" if self.step is None else verdict(self.step)]))

    @property
    def _socs(self) -> tuple[str, ...]:
        return facts.socs_of(self.results)[: first_screen.SOCS_SHOWN]

    @property
    def _recorded_us(self) -> float | None:
        """Recorded time of all calls; None if any is unknown."""
        us = [facts.recorded_us(r, device=self.by_device) for r in self.results]
        known = [one * r.count for one, r in zip(us, self.results, strict=True) if one is not None]
        return sum(known) if len(known) == len(us) else None

    @property
    def _slowest(self) -> str:
        """Op with the largest ratio of measured to recorded time, if the two are comparable."""
        if suspects.not_comparable(self.header) is not None:
            return ""
        ratios = [
            (ratio, r)
            for r in self.results
            if r.recorded_share >= LEAST_SLOWEST
            and (ratio := quotient(r.measured_us, facts.recorded_us(r, device=self.by_device))) is not None
        ]
        if not ratios:
            return ""
        ratio, slowest = max(ratios, key=lambda pair: pair[0])
        if ratio <= 1.0:
            return ""
        what = ops.op_line(ops.op_column(self.results), slowest, SLOWEST_CHARS).plain
        return f"slowest against the recording: {what} {ratio:.2g}×"

    @property
    def _all_calls(self) -> str:
        """Recorded and measured total time of all calls."""
        total = next(iter(self.totals), None)
        if total is None or total.measured_us is None:
            return ""
        measured = f"{time_text(total.measured_us)}{doubts.mark(self.results)}"
        if total.recorded_us is None:
            return f"{total.label}: measured {measured} for all calls"
        title = ops.recorded_title(device=self.by_device)
        text = f"{total.label}: {title} {time_text(total.recorded_us)}, measured {measured}"
        if suspects.not_comparable(self.header) is not None:
            return text
        return f"{text}, {ratio_text(total.measured_us, total.recorded_us)}"

    @property
    def totals(self) -> list[facts.Totals]:
        """Totals over all calls of the run."""
        return facts.totals(self.results, device=self.by_device, header=self.header, sequence=self.sequence)

    @property
    def notes(self) -> list[str]:
        return [*facts.work_notes(self.results), *facts.notes(self.header, self.results, self.summary)]


def run_of(records: MemorySink | ResultFile, summary: Summary | None = None) -> Run | None:
    """Return the run from a sink or a file; None if the header or the summary is missing."""
    summary = summary or records.summary
    if records.header is None or summary is None:
        return None
    return Run(records.header, records.results, summary, records.traces, records.jobs, records.sequence)


def tables(run: Run) -> list[AnyTable]:
    """Return the tables below the ops: sums, reasons, NPU kernels, work, collectives. Some may have no rows."""
    results = run.results
    work = Table("Work", [ops.RECORDED_SHARE, ops.NAME, ops.WORK], facts.with_counted_work(results), noun="op")
    of_collectives = collectives.table(results, facts.socs_of(results))
    return [totals_table(run), reasons_table(results), npu.results_table(results), work, of_collectives]


_Clock = tuple[str, Callable[[facts.Totals], float | None]]
"""Row of the totals table: (title such as "measured" or a SoC, function that returns the row's time from totals)."""


def file_tables(run: Run) -> dict[str, Callable[[], AnyTable]]:
    """Return table name → table with plain values, for all tables of a run except the table of ops."""
    times = ("recorded_us", "total_us", "measured_us")
    traces = {"source": TEXT, "job": TEXT, "rank": COUNT, "ops": COUNT, "shared": COUNT, "replayed": COUNT}
    jobs = {"job": TEXT, "world_size": COUNT, "ops": COUNT, "rank_ops": COUNT, "replayed": COUNT}
    return {
        "reasons": lambda: reasons_file_table(run.summary),
        "traces": lambda: _with_socs("Traces", run.traces, {**traces, **dict.fromkeys(times, TIME)}, run),
        "jobs": lambda: _with_socs(
            "Jobs", run.jobs, {**jobs, **dict.fromkeys(("recorded_us", "measured_us", "slowest_rank_us"), TIME)}, run
        ),
    }


def _with_socs(
    title: str, rows: Sequence[TraceResult] | Sequence[JobResult], fields: dict[str, Unit], run: Run
) -> AnyTable:
    table = of_fields(title, rows, {**fields, "covered_share": SHARE})
    socs = [
        Column[Any](f"simulated_us_{soc}", lambda row, soc=soc: row.simulated_us.get(soc), TIME)
        for soc in facts.socs_of(run.results)
    ]
    return msgspec.structs.replace(table, columns=[*table.columns, *socs])


def reasons_file_table(summary: Summary) -> AnyTable:
    """Return a table of the kinds of reasons why ops are not replayed, with plain values."""
    return of_fields("Reasons", summary.not_replayed, {"kind": TEXT, "ops": COUNT, "calls": COUNT, "share": SHARE})


def totals_table(run: Run) -> Table[_Clock]:
    """Return the totals of all calls, one row per kind of time or SoC, with ratios to the recorded time."""
    results, device = run.results, run.by_device
    title, timed = ops.recorded_title(device=device), not all(map(facts.is_untimed, results))
    columns = [Column[_Clock]("all calls", lambda clock: clock[0])]
    for total in run.totals if results else ():
        columns += _total_columns(total, doubts.mark(results), recorded=title if timed else None)
    clocks: list[_Clock] = [(title, lambda total: total.recorded_us)] if timed else []
    clocks.append((ops.MEASURED.title, lambda total: total.measured_us))
    clocks.extend((soc, lambda total, soc=soc: total.simulated_us.get(soc)) for soc in facts.socs_of(results))
    return Table(TOTALS, columns, clocks if results else [])


def _total_columns(total: facts.Totals, mark: str, *, recorded: str | None) -> list[Column[_Clock]]:
    """Return a column of times with `mark` after the measured time and, if `recorded` is set, a column of ratios."""

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
    """Return why ops are not replayed, one row per reason with unique ops, calls, and share of the recorded time."""
    return totals_by_kind("not replayed", reasons_of(results))


def totals_by_kind(title: str, rows: Sequence[ReasonTotal]) -> Table[ReasonTotal]:
    """Return a table with one row per kind of reason; `title` is the title of the first column."""
    column = Column[ReasonTotal]
    columns = [
        column(title, lambda total: total.kind, chars=KIND_CHARS),
        column("ops", lambda total: total.ops, COUNT),
        column("calls", lambda total: total.calls, COUNT),
        column("share", lambda total: total.share, SHARE),
        column("why", facts.detail_text, form="fold", style="dim"),
    ]
    return Table(title.capitalize(), columns, rows)
