# pyright: strict
"""The HTML page of a run."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.report import first_screen
from opreplay.replay.report.coverage import ELSEWHERE, LEAST
from opreplay.replay.report.page.model import Answer, Page, Waterfall
from opreplay.replay.report.page.parts import (
    answer,
    bars_by_name,
    module_trees,
    opened_ops,
    opened_roofline,
    roofline,
    roofs_of,
    step_bars,
    times_by_class,
    times_by_op,
    waterfall,
)
from opreplay.replay.report.roofline import of_results
from opreplay.replay.report.run import batch, facts, ops, sequence
from opreplay.replay.report.run.tables import Run, tables
from opreplay.replay.report.step.verdict import page_facts, verdict
from opreplay.replay.report.table import heaviest
from opreplay.replay.report.text import plural, share_text, time_text
from opreplay.replay.results.records import Header, OpResult


def page(run: Run, command: str) -> Page:
    """Build the HTML page of a run."""
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
            *((total.label, _total_text(total)) for total in run.totals),
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
            opened_ops(
                heaviest("Ops", _page_columns(results, device), results, lambda r: r.recorded_share),
                "" if len(run.traces) > 1 else source,
                header.options,
            ),
            opened_roofline(of_results(results, _device(header), times[0].value)),
            *tables(run),
            *batch.tables(run.traces, run.jobs),
            *([sequence.table(run.sequence)] if run.sequence is not None else []),
        ),
        notes=(*run.notes, *batch.notes(run.traces, run.jobs)),
    )


def _page_columns(results: Sequence[OpResult], device: bool) -> list[ops.OpColumn]:
    """Return the columns of the table of ops on an HTML page."""
    columns = [ops.NAME, ops.INPUTS, ops.RECORDED_SHARE, ops.CALLS, ops.recorded(device=device), ops.MEASURED]
    columns += [column for soc in facts.socs_of(results) for column in (ops.simulated(soc), ops.bound_of(soc))]
    columns.append(ops.ratio(ops.MEASURED, device=device))
    return [*columns, ops.REASON] if any(r.reason for r in results) else columns


def _device(header: Header) -> str | None:
    name = header.trace.get("device")
    return str(name) if name else None


def _answers(run: Run) -> tuple[Answer, ...]:
    """Return the time measured here and the time on each simulated device, as ratios to the recorded time."""
    results, device = run.results, run.by_device
    answers: list[Answer] = []
    for total in run.totals[:1]:
        if total.recorded_us and total.measured_us is not None:
            what = f"measured here, {total.label}"
            answers.append(answer(what, total.measured_us, None, None, total.recorded_us))
    for soc in facts.socs_of(results):
        recorded = [(facts.recorded_us(r, device=device) or 0.0) * r.count for r in results if soc in r.simulated_us]
        us, low_us, high_us = first_screen.predicted_total(soc, results)
        lacking = run.summary.unpredicted_share.get(soc, 0.0)
        outside = facts.elsewhere(results)
        more = f"; {share_text(lacking - outside)} not predicted"
        more += f", {share_text(outside)} {ELSEWHERE}" if outside >= LEAST else ""
        answers.append(answer(f"{soc}, all calls", us, low_us, high_us, sum(recorded), more))
    return tuple(answers)


def _waterfall(results: Sequence[OpResult], recorded: ops.OpColumn, other: ops.OpColumn) -> Waterfall:
    """Return a waterfall from the recorded time to another time, over the ops that have both."""
    both = [r for r in results if recorded.value(r) is not None and other.value(r) is not None]
    begin, end = times_by_op(both, [recorded, other]).items()
    note = f"all calls of {plural(len(both), 'op')} with both times"
    return waterfall(f"From the {recorded.title} time to {other.title}", begin, end, note)


def _total_text(total: facts.Totals) -> str:
    times = {"recorded": total.recorded_us, "measured": total.measured_us, **total.simulated_us}
    return ", ".join(f"{clock} {time_text(us)}" for clock, us in times.items())
