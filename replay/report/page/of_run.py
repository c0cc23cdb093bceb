# pyright: strict
"""The page of a run or a batch: recorded, measured and simulated times of every op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from opreplay.replay.report.page.model import Page, Roofline
from opreplay.replay.report.page.parts import bars_by_name, point_of
from opreplay.replay.report.page.render import render as render_page
from opreplay.replay.report.run import batch, sequence
from opreplay.replay.report.run.facts import socs_of, totals
from opreplay.replay.report.run.ops import (
    CALL,
    CALLS,
    INPUTS,
    MEASURED,
    NAME,
    REASON,
    RECORDED_SHARE,
    OpColumn,
    bound_of,
    ratio,
    recorded,
    simulated,
)
from opreplay.replay.report.run.report import Run, tables
from opreplay.replay.report.table import heaviest
from opreplay.replay.report.text import time_text
from opreplay.replay.results.records import OpResult


def render(run: Run, command: str) -> str:
    """The HTML of a run."""
    return render_page(page(run, command))


def page(run: Run, command: str) -> Page:
    """Everything of a run that a page shows."""
    header, results, device = run.header, run.results, run.by_device
    socs = socs_of(results)
    source = str(header.trace.get("source") or header.trace.get("path") or "a trace")
    measured = [MEASURED] if any(r.measured_us is not None for r in results) else []
    times = [recorded(device=device), *measured, *map(simulated, socs)]
    columns = [NAME, INPUTS, RECORDED_SHARE, CALLS, recorded(device=device), MEASURED]
    columns += [column for soc in socs for column in (simulated(soc), bound_of(soc))]
    columns += [ratio(MEASURED, device=device), *([REASON] if any(r.reason for r in results) else []), CALL]
    return Page(
        title=f"opreplay: {source}",
        headline=run.first_line,
        command=command,
        facts=(
            ("started", header.started_at),
            ("opreplay", header.opreplay_version),
            ("machine", str(header.environment.get("cpu") or header.environment.get("device") or "–")),
            *(
                (one.label, _total_text(one.recorded_us, one.measured_us, one.simulated_us))
                for one in totals(results, device=device, header=header)
            ),
        ),
        bars=(bars_by_name("Time by op, all calls", {column.title: sums(results, column) for column in times}),),
        rooflines=tuple(roofline(soc, results) for soc in socs),
        tables=(
            heaviest("Ops", columns, results, lambda r: r.recorded_share),
            *tables(run),
            *batch.tables(run.traces, run.jobs),
            *([sequence.table(run.sequence)] if run.sequence is not None else []),
        ),
        notes=(*run.notes, *batch.notes(run.traces, run.jobs)),
    )


def sums(results: Sequence[OpResult], column: OpColumn) -> dict[str, float]:
    """Name of an op → what a column of times comes to, all calls."""
    out: defaultdict[str, float] = defaultdict(float)
    for result in results:
        us = column.value(result)
        if us is not None:
            out[result.name] += us * result.count
    return dict(out)


def _total_text(recorded: float | None, measured: float | None, simulated: dict[str, float]) -> str:
    parts = [f"recorded {time_text(recorded)}", f"measured {time_text(measured)}"]
    return ", ".join([*parts, *(f"{soc} {time_text(us)}" for soc, us in simulated.items())])


def roofline(soc: str, results: Sequence[OpResult]) -> Roofline:
    """All ops that are predicted on a device."""
    total = sum(r.simulated_us.get(soc, 0.0) * r.count for r in results) or 1.0
    return Roofline(
        device=soc,
        points=tuple(
            point_of(r.name, r.inputs, r.simulated[soc], r.simulated[soc].time_us * r.count / total)
            for r in results
            if soc in r.simulated
        ),
    )
