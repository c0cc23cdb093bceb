# pyright: strict
"""The result of checking an op in every output format: terminal table, Markdown, JSON facts, HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.check.model import CheckResult, Finding, PointResult, Verdict, counts
from opreplay.replay.ir.describe import time_text
from opreplay.replay.report import formats
from opreplay.replay.report.page.model import Answer, Opened, Page
from opreplay.replay.report.table import COUNT, NUMBER, Column, Table, terminal
from opreplay.replay.report.text import end, plural, safe
from opreplay.replay.report.view import View

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
DETAIL_CHARS = 300
CASES_SHOWN = 3
"""Maximum number of failing cases that tables list for each checked property, e.g. "schema"."""


def facts(check: CheckResult) -> dict[str, Any]:
    """Return the whole check for JSON; docs/check.md lists the stable keys."""
    body: dict[str, Any] = msgspec.to_builtins(check)
    for name, speed in (("speed", check.speed), ("speed_large", check.speed_large)):
        if speed is not None:
            body[name]["verdict"] = speed.verdict
    return body


def view(check: CheckResult, failed: Sequence[PointResult]) -> View:
    """Return a check in every output format. `failed` holds the checked properties that make the check fail."""
    return View(
        lines=[first_line(check, failed)],
        render=lambda width: render(check, width=width),
        facts=lambda: facts(check),
        markdown=lambda: markdown(check, failed),
        page=lambda command: page(check, failed, command),
    )


def first_line(check: CheckResult, failed: Sequence[PointResult]) -> str:
    """Return the result of the check as one line."""
    by_verdict = counts(check)
    tally = ", ".join(f"{count} {verdict}" for verdict, count in by_verdict.items() if count)
    ended = f"fails by {', '.join(point.point for point in failed)}" if failed else "passes all required points"
    ended = f"interrupted, {ended}" if check.interrupted and failed else "interrupted" if check.interrupted else ended
    return f"{check.op} on {check.device}: {ended} ({tally}); compared with {check.against}"


_OfPoint = Column[PointResult]
_POINT = _OfPoint("point", lambda point: point.point)
_VERDICT = _OfPoint("verdict", lambda point: point.verdict, style=lambda point: STYLES[point.verdict])
_CASES = _OfPoint("cases", lambda point: len(point.cases), COUNT)
_DETAIL = _OfPoint("detail", lambda point: point.detail, form="fold")
_OfCase = Column[tuple[PointResult, Finding]]


def _cases_table(check: CheckResult, title: str, limit: int | None = None) -> Table[tuple[PointResult, Finding]]:
    """Return a table of all cases, or of the first `limit` failing cases of each checked property."""
    rows = [
        (point, case) for point in check.points for case in (point.cases if limit is None else point.of("fail")[:limit])
    ]
    columns = [
        _OfCase(title, lambda row: row[0].point),
        *([_OfCase("verdict", lambda row: row[1].verdict)] if limit is None else []),
        _OfCase("case", lambda row: row[1].case, form="code"),
        *([_OfCase("ulp", lambda row: row[1].ulp, NUMBER)] if limit is None else []),
        _OfCase("detail", lambda row: row[1].detail if limit is None else end(row[1].detail, DETAIL_CHARS)),
    ]
    return Table("Cases", columns, rows)


def render(check: CheckResult, *, width: int) -> RenderableType:
    """Render a row for each checked property, with rows for its failing cases below it."""
    from rich.console import Group
    from rich.text import Text

    rows: list[tuple[PointResult | None, str]] = []
    for point in check.points:
        failing = point.of("fail")
        rows += [(point, point.detail), *((None, f"{case.case}: {case.detail}") for case in failing[1:CASES_SHOWN])]
        if len(failing) > CASES_SHOWN:
            rows.append((None, f"and {plural(len(failing) - CASES_SHOWN, 'more case')} (--format json)"))
    column = Column[tuple["PointResult | None", str]]
    columns = [
        column("point", lambda row: row[0] and row[0].point),
        column(
            "verdict", lambda row: row[0] and row[0].verdict, style=lambda row: STYLES[row[0].verdict] if row[0] else ""
        ),
        column("cases", lambda row: str(len(row[0].cases)) if row[0] else "", right=True),
        column("detail", lambda row: row[1], form="fold", style=lambda row: "" if row[0] else "dim"),
    ]
    table = terminal(Table("Points", columns, rows), width)[1:]
    return Group(*table, *(Text(safe(line)) for line in notes(check)))


def notes(check: CheckResult) -> list[str]:
    """Return notes on measured and simulated times, assumptions, and caveats."""
    lines: list[str] = []
    for speed in (check.speed, check.speed_large):
        if speed is None:
            continue
        lines.append(
            f"time: {time_text(speed.op_us)} per call, reference {time_text(speed.reference_us)} (medians); ratio "
            f"over {speed.pairs} pairs: {speed.ratio:.3f}, {speed.low:.3f} to {speed.high:.3f} ({speed.verdict}; "
            f"{speed.case})"
        )
    for soc in sorted({*check.simulated, *check.simulated_reference}):
        mine, other = check.simulated.get(soc), check.simulated_reference.get(soc)
        what = "the op" if "::" in check.op else "the torch ops that it calls"
        op = "no kernels of the op are known" if mine is None else f"{time_text(mine.time_us)} for {what}"
        reference = "" if other is None else f", {time_text(other.time_us)} for the ops that the reference calls"
        caches = ", ".join(sorted({prediction.l2 for prediction in (mine, other) if prediction is not None}))
        lines.append(f"simulated {soc}: {op}{reference} (L2 {caches})")
    lines += [f"assumed: {note.argument}: {note.what}" for note in check.assumptions]
    return [*lines, *check.notes]


def markdown(check: CheckResult, failed: Sequence[PointResult]) -> str:
    """Return the check as Markdown, short enough for a comment on a pull request."""
    marked = _VERDICT.with_text(lambda point: f"{MARKS[point.verdict]} {point.verdict}")
    detail = _OfPoint("", lambda point: end(point.detail, DETAIL_CHARS))
    lines = [f"### opreplay check: {formats.escaped(first_line(check, failed))}"]
    lines += formats.markdown(Table("Points", [_POINT, marked, _CASES, detail], check.points))
    lines += formats.markdown(_cases_table(check, "fails", CASES_SHOWN))
    return "\n".join([*lines, *formats.bullets(notes(check))]) + "\n"


def page(check: CheckResult, failed: Sequence[PointResult], command: str) -> Page:
    """Return a page with every checked property and every case."""
    return Page(
        title=f"opreplay: {check.op} checked",
        headline=first_line(check, failed),
        command=command,
        answers=(_answer(check),),
        facts=tuple((name, str(value)) for name, value in check.environment.items()),
        tables=(
            Opened(
                table=Table("Points", [_POINT, _VERDICT, _CASES, _DETAIL], check.points),
                key=lambda point: point.point,
                details=lambda point: [("fails", f"{case.case}: {case.detail}") for case in point.of("fail")],
            ),
            _cases_table(check, "point"),
        ),
        notes=tuple(notes(check)),
    )


def _answer(check: CheckResult) -> Answer:
    tally = {verdict: count for verdict, count in counts(check).items() if count}
    others = ", ".join(f"{count} {verdict}" for verdict, count in tally.items() if verdict != "pass")
    return Answer(name="points that pass", ratio=f"{tally.get('pass', 0)} of {len(check.points)}", detail=others)


def fidelity_view(fidelity: Fidelity) -> View:
    """Return the check of reference implementations in every output format, with one line per failing op."""
    from rich.console import Group

    lines = [f"{row.op} against {row.against}: {row.detail}" for row in fidelity.failed]
    return View(
        lines=[fidelity_line(fidelity), *lines],
        render=lambda width: Group(),
        facts=lambda: fidelity_facts(fidelity),
        markdown=lambda: fidelity_markdown(fidelity),
    )


def fidelity_facts(fidelity: Fidelity) -> dict[str, Any]:
    """Return the result of checking the reference implementations, as values for JSON."""
    return {
        "device": fidelity.device,
        "summary": fidelity_line(fidelity),
        "ops": [{**msgspec.to_builtins(row), "failed": row.failed} for row in fidelity.rows],
    }


def fidelity_line(fidelity: Fidelity) -> str:
    """Return a line on how many ops were compared with each reference, and how many of these ops fail."""
    groups: dict[str, list[StandIn]] = {}
    for row in fidelity.rows:
        groups.setdefault(row.against, []).append(row)
    parts = [
        f"{len(rows)} against {against}, {sum(row.failed for row in rows)} of them fail"
        for against, rows in groups.items()
        if against
    ]
    if "" in groups:
        parts.append(f"{len(groups[''])} not tried, because no call could be generated")
    return f"{len(fidelity.rows)} stand-ins on {fidelity.device}: {'; '.join(parts)}"


def fidelity_markdown(fidelity: Fidelity) -> str:
    """Return the result of checking the reference implementations, as Markdown."""
    lines = [f"### opreplay check: {formats.escaped(fidelity_line(fidelity))}", ""]
    lines += [f"- {formats.code(row.op)}: {formats.escaped(end(row.detail, DETAIL_CHARS))}" for row in fidelity.failed]
    return "\n".join(lines) + "\n"
