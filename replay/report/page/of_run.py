"""The page of a run or a batch: recorded, measured and simulated times of every op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from opreplay.replay.report.page.model import Cell, Column, Page, Roofline, Table
from opreplay.replay.report.page.parts import (
    bars_by_name,
    count_cell,
    heaviest,
    numbers,
    point_of,
    ratio_cell,
    share_cell,
    time_cell,
)
from opreplay.replay.report.page.render import render as render_page
from opreplay.replay.report.run.facts import coverage_line, has_device_time, notes, recorded_us, socs_of, totals
from opreplay.replay.report.text import time_text
from opreplay.replay.results.records import Header, OpResult, Summary


def render(header: Header, results: Sequence[OpResult], summary: Summary, command: str) -> str:
    """The HTML of a run."""
    return render_page(page(header, results, summary, command))


def page(header: Header, results: Sequence[OpResult], summary: Summary, command: str) -> Page:
    """Everything of a run that a page shows."""
    device = has_device_time(header, results)
    clock = "recorded" if device else "recorded (host)"
    socs = socs_of(results)
    source = str(header.trace.get("source") or header.trace.get("path") or "a trace")
    series: dict[str, dict[str, float]] = {clock: _sums(results, lambda r: recorded_us(r, device=device))}
    if any(r.measured_us is not None for r in results):
        series["measured"] = _sums(results, lambda r: r.measured_us)
    for soc in socs:
        series[soc] = _sums(results, lambda r, soc=soc: r.simulated_us.get(soc))
    order = heaviest([r.recorded_share for r in results])
    reasons = any(r.reason for r in results)
    return Page(
        title=f"opreplay: {source}",
        headline=coverage_line(header, results, summary),
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
        bars=(bars_by_name("Time by op, all calls", series),),
        rooflines=tuple(_roofline(soc, results) for soc in socs),
        tables=(
            Table(
                title="Ops",
                left_out=len(results) - len(order),
                columns=(
                    Column(title="op"),
                    Column(title="inputs"),
                    *numbers("share", "calls", clock, "measured"),
                    *(c for soc in socs for c in (*numbers(soc), Column(title=f"{soc} bound"))),
                    *numbers("measured ÷ recorded"),
                    *([Column(title="not replayed because")] if reasons else []),
                    Column(title="for opreplay op", pasted=True),
                ),
                rows=tuple(_row(results[i], socs, device=device, reasons=reasons) for i in order),
            ),
        ),
        notes=tuple(notes(header, results, summary)),
    )


def _sums(results: Sequence[OpResult], of: Callable[[OpResult], float | None]) -> dict[str, float]:
    out: defaultdict[str, float] = defaultdict(float)
    for result in results:
        us = of(result)
        if us is not None:
            out[result.name] += us * result.count
    return dict(out)


def _total_text(recorded: float | None, measured: float | None, simulated: dict[str, float]) -> str:
    parts = [f"recorded {time_text(recorded)}", f"measured {time_text(measured)}"]
    return ", ".join([*parts, *(f"{soc} {time_text(us)}" for soc, us in simulated.items())])


def _roofline(soc: str, results: Sequence[OpResult]) -> Roofline:
    total = sum(r.simulated_us.get(soc, 0.0) * r.count for r in results) or 1.0
    return Roofline(
        device=soc,
        points=tuple(
            point_of(r.name, r.inputs, r.simulated[soc], r.simulated[soc].time_us * r.count / total)
            for r in results
            if soc in r.simulated
        ),
    )


def _row(r: OpResult, socs: Sequence[str], *, device: bool, reasons: bool) -> tuple[Cell, ...]:
    recorded = recorded_us(r, device=device)
    cells = [Cell(text=r.name), Cell(text=r.inputs), share_cell(r.recorded_share), count_cell(r.count)]
    cells += [time_cell(recorded), time_cell(r.measured_us)]
    for soc in socs:
        cells += [time_cell(r.simulated_us.get(soc))]
        cells += [Cell(text=r.simulated[soc].bound if soc in r.simulated else "")]
    ratio = r.measured_us / recorded if recorded and r.measured_us is not None else None
    why = [Cell(text=str(r.reason or ""))] if reasons else []
    return (*cells, ratio_cell(ratio), *why, Cell(text=r.call))
