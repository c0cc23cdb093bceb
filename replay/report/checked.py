# pyright: strict
"""The check of an op in every form: a table, Markdown, facts for JSON, a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.check.model import CheckResult, Finding, PointResult, Verdict, counts
from opreplay.replay.ir.describe import time_text
from opreplay.replay.report.page.model import Cell, Column, Page, Table
from opreplay.replay.report.run.markdown import code, escaped
from opreplay.replay.report.text import end, safe

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opreplay.replay.check.fidelity import Fidelity, StandIn

STYLES: dict[Verdict, str] = {
    "pass": "green",
    "fail": "bold red",
    "missing": "yellow",
    "not reached": "yellow",
    "refused": "yellow",
    "not applicable": "dim",
}
MARKS: dict[Verdict, str] = {
    "pass": "🟢",
    "fail": "🔴",
    "missing": "🟡",
    "not reached": "🟡",
    "refused": "🟡",
    "not applicable": "⚪",
}
CASES_SHOWN = 3
"""Failing cases of a point that tables list."""


def facts(found: CheckResult) -> dict[str, Any]:
    """Everything, for JSON; docs/check.md says which keys stay."""
    made: dict[str, Any] = msgspec.to_builtins(found)
    for name, speed in (("speed", found.speed), ("speed_large", found.speed_large)):
        if speed is not None:
            made[name]["verdict"] = speed.verdict
    return made


def first_line(found: CheckResult, failed: Sequence[PointResult]) -> str:
    """How the check ended, in one line."""
    by_verdict = counts(found)
    tally = ", ".join(f"{count} {verdict}" for verdict, count in by_verdict.items() if count)
    ended = f"fails by {', '.join(one.point for one in failed)}" if failed else "passes what is required"
    ended = f"interrupted, {ended}" if found.interrupted and failed else "interrupted" if found.interrupted else ended
    return f"{found.op} on {found.device}: {ended} ({tally}); held against {found.against}"


def render(found: CheckResult, *, width: int) -> RenderableType:
    """One row a point, below it the cases that it fails by."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width)
    table.add_column("point", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("", overflow="fold", ratio=1)
    for one in found.points:
        style = STYLES[one.verdict]
        table.add_row(one.point, Text(one.verdict, style=style), str(len(one.cases)), Text(safe(one.detail)))
        for case in one.of("fail")[1:CASES_SHOWN]:
            table.add_row("", "", "", Text(safe(_case_line(case)), style="dim"))
        if len(one.of("fail")) > CASES_SHOWN:
            table.add_row("", "", "", Text(f"and {len(one.of('fail')) - CASES_SHOWN} more cases (--format json)"))
    return Group(table, *(Text(safe(line)) for line in notes(found)))


def _case_line(case: Finding) -> str:
    return f"{case.case}: {case.detail}"


def notes(found: CheckResult) -> list[str]:
    """Times here and on simulated devices, what was assumed, what is to be known."""
    lines: list[str] = []
    for speed in (found.speed, found.speed_large):
        if speed is None:
            continue
        lines.append(
            f"time: {time_text(speed.op_us)} a call, the reference {time_text(speed.reference_us)}: {speed.ratio:.3f} "
            f"times as long, {speed.low:.3f} to {speed.high:.3f} ({speed.verdict}; {speed.pairs} pairs; {speed.case})"
        )
    for soc in sorted({*found.simulated, *found.simulated_reference}):
        mine, other = found.simulated.get(soc), found.simulated_reference.get(soc)
        what = "the op" if "::" in found.op else "the ops of torch that it calls"
        op = "no kernels of the op are known" if mine is None else f"{time_text(mine.time_us)} for {what}"
        reference = "" if other is None else f", {time_text(other.time_us)} for what the reference calls"
        caches = ", ".join(sorted({one.l2 for one in (mine, other) if one is not None}))
        lines.append(f"simulated {soc}: {op}{reference} (L2 {caches})")
    lines += [f"assumed: {note.argument}: {note.what}" for note in found.assumptions]
    return [*lines, *found.notes]


def markdown(found: CheckResult, failed: Sequence[PointResult]) -> str:
    """The same, short enough for a comment on a pull request."""
    lines = [f"### opreplay check: {escaped(first_line(found, failed))}", ""]
    lines += ["| point | verdict | cases | |", "|---|---|---:|---|"]
    for one in found.points:
        cells = (one.point, f"{MARKS[one.verdict]} {one.verdict}", str(len(one.cases)), escaped(end(one.detail, 300)))
        lines.append(f"| {' | '.join(cells)} |")
    failing = [(one.point, case) for one in found.points for case in one.of("fail")[:CASES_SHOWN]]
    if failing:
        lines += ["", "| fails | case | |", "|---|---|---|"]
        lines += [f"| {point} | {code(case.case)} | {escaped(end(case.detail, 300))} |" for point, case in failing]
    lines += ["", *(f"- {escaped(line)}" for line in notes(found))]
    return "\n".join(lines) + "\n"


def page(found: CheckResult, failed: Sequence[PointResult], command: str) -> Page:
    """Every point and every case."""
    return Page(
        title=f"opreplay: {found.op} checked",
        headline=first_line(found, failed),
        command=command,
        facts=tuple((name, str(value)) for name, value in found.environment.items()),
        tables=(
            Table(
                title="Points",
                columns=(
                    Column(title="point"),
                    Column(title="verdict"),
                    Column(title="cases", number=True),
                    Column(title="detail"),
                ),
                rows=tuple(
                    (
                        Cell(text=one.point),
                        Cell(text=one.verdict),
                        Cell(text=str(len(one.cases)), value=float(len(one.cases))),
                        Cell(text=one.detail),
                    )
                    for one in found.points
                ),
            ),
            Table(
                title="Cases",
                columns=(
                    Column(title="point"),
                    Column(title="verdict"),
                    Column(title="case"),
                    Column(title="ulp", number=True),
                    Column(title="detail"),
                ),
                rows=tuple(
                    (
                        Cell(text=one.point),
                        Cell(text=case.verdict),
                        Cell(text=case.case),
                        Cell(text="" if case.ulp is None else f"{case.ulp:.3g}", value=case.ulp),
                        Cell(text=case.detail),
                    )
                    for one in found.points
                    for case in one.cases
                ),
            ),
        ),
        notes=tuple(notes(found)),
    )


def fidelity_facts(found: Fidelity) -> dict[str, Any]:
    """The check of stand-ins, for JSON."""
    return {
        "device": found.device,
        "summary": fidelity_line(found),
        "ops": [{**msgspec.to_builtins(row), "failed": row.failed} for row in found.rows],
    }


def fidelity_line(found: Fidelity) -> str:
    """How many were held against what, and how many are wrong."""
    groups: dict[str, list[StandIn]] = {}
    for row in found.rows:
        groups.setdefault(row.against, []).append(row)
    parts = [
        f"{len(rows)} against {against}, {sum(row.failed for row in rows)} of them fail"
        for against, rows in groups.items()
        if against
    ]
    if "" in groups:
        parts.append(f"{len(groups[''])} not tried: no call could be made up")
    return f"{len(found.rows)} stand-ins on {found.device}: {'; '.join(parts)}"


def fidelity_lines(found: Fidelity) -> list[str]:
    """Those that fail, each with its case."""
    return [f"{row.op} against {row.against}: {row.detail}" for row in found.failed]


def fidelity_markdown(found: Fidelity) -> str:
    """The same for a page."""
    lines = [f"### opreplay check: {escaped(fidelity_line(found))}", ""]
    lines += [f"- {code(row.op)}: {escaped(end(row.detail, 300))}" for row in found.failed]
    return "\n".join(lines) + "\n"
