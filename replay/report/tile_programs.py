# pyright: strict
"""Results of tile programs as terminal tables and as JSON: values, times, buffers, lines, timelines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.page.model import Page
from opreplay.replay.report.page.parts import bars_by_name, times_answer
from opreplay.replay.report.table import (
    COUNT,
    SHARE,
    SIGNED_PERCENT,
    TEXT,
    TIME,
    Column,
    Table,
    Unit,
    terminal,
)
from opreplay.replay.report.text import DASH, plural, safe
from opreplay.replay.report.view import View
from opreplay.replay.tile.chip import LineTime, TileTime
from opreplay.replay.tile.measured import Calibration
from opreplay.replay.tile.study import Broken, CaseResult, Study

MOST_SHOWN = 60
"""Maximum number of rows of a sweep shown in a terminal."""
MOST_REFUSED = 8


def view(study: Study, *, lines: bool = False) -> View:
    """Return cases of programs in every output format. `lines` adds the busy time of each source line."""
    return View(
        lines=[headline(study)],
        render=lambda width: render(study, width, lines=lines),
        facts=lambda: facts(study, lines=lines),
        page=lambda command: page(study, command),
    )


def facts(study: Study, *, lines: bool = False) -> dict[str, Any]:
    """Return everything as JSON-safe values; docs/tile.md lists the stable keys."""
    return {
        "cases": [_case_facts(row, lines) for row in study.results],
        "skipped_shapes": study.skipped,
        "tuned": study.tuned,
        "confidence": "uncalibrated" if uncalibrated(study.results) else "calibrated",
        "l2": study.l2,
        "calibrations": [_calibration_facts(calibration) for calibration in study.calibrations],
        "measured_left_out": list(study.unused),
    }


def uncalibrated(looked: Sequence[CaseResult]) -> bool:
    """Check whether the time of any requested case is uncalibrated. Also true if no requested case has a time."""
    times = [row.time for row in looked if row.time is not None and not row.case.checked_only]
    return not times or any(time.confidence != "calibrated" for time in times)


def _calibration_facts(calibration: Calibration) -> dict[str, Any]:
    return {
        "kernel": calibration.program,
        "soc": calibration.soc,
        "cases": calibration.cases,
        "rows": len(calibration.compared),
        "factor": None if calibration.refused else calibration.factor,
        "band": None if calibration.refused else math.exp(calibration.width),
        "refused": calibration.refused,
    }


_TIMES = ("time_us", "low_us", "high_us", "in_l2", "overlapped_us", "serial_us", "launch_us", "hbm_us", "l2_us")
_LIMITS = ("bound", "cores")
_MEASURED = {
    "measured_us": "measured_us",
    "predicted_us": "predicted_us",
    "measured_error": "error",
    "held_out_error": "held_out_error",
    "measured_l2": "l2",
}
"""Key in the JSON output → field of the case's measurement."""


def _case_facts(row: CaseResult, lines: bool) -> dict[str, Any]:
    time = row.time if row.error is None or row.error.limit == "values" else None
    facts: dict[str, Any] = {
        "kernel": row.case.program.name,
        "op": row.case.program.op,
        "case": row.case.text,
        "settings": {**row.case.program.settings, **row.case.settings},
        "soc": row.soc,
        "checked_only": row.case.checked_only,
        **{name: getattr(time, name, None) for name in (*_TIMES, *_LIMITS)},
        "pipes": time.pipes if time else {},
        "values": value_text(row),
        "within_tolerance": row.values.allowed if row.values is not None else None,
        "values_note": row.note,
        **_time_facts(time, row.built_in_us),
        **{key: getattr(row.measured, field, None) for key, field in _MEASURED.items()},
        "error": msgspec.to_builtins(row.error),
    }
    if lines:
        facts["lines"] = msgspec.to_builtins(time.lines if time else ())
    return facts


def _time_facts(time: TileTime | None, built_in_us: float | None) -> dict[str, Any]:
    """Return JSON facts about a case's time: buffers, time of vendor kernels, notes, confidence, extrapolation."""
    buffers = {} if time is None else time.buffers
    return {
        "buffers": {place: {"used": n, "there": size} for place, (n, size) in buffers.items()},
        "built_in_us": built_in_us,
        "notes": [] if time is None else list(time.notes),
        "confidence": "uncalibrated" if time is None else time.confidence,
        "factor": None if time is None else time.factor,
        "extrapolated": None if time is None else bool(time.outside),
        "outside": "" if time is None else time.outside,
    }


def value_text(row: CaseResult) -> str | float | None:
    """Return "same" or the largest absolute difference; None if values were not compared."""
    if row.values is None:
        return None
    return "same" if row.values.same else row.values.error


def headline(study: Study) -> str:
    """Return the number of cases and their results."""
    broken = [row for row in study.results if row.failed]
    checked = [row for row in study.results if row.values is not None]
    tried = [row for row in study.results if row.case.checked_only]
    text = f"{plural(len(study.results) - len(tried), 'case')}, {plural(len(tried), 'default shape')} for values"
    if checked:
        same = sum(1 for row in checked if row.values is not None and row.values.same)
        text += f"; values of {len(checked)} checked, {same} the same"
        text += ", the others within their dtype's tolerance" if same < len(checked) else ""
    if broken:
        text += f"; {plural(len(broken), 'case')} broken"
    return text


def _lines(asked: Sequence[CaseResult]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for row in of_first_case(asked):
        if row.time is not None:
            table = lines_table(row, row.time)
            parts += [Text(), Text(safe(table.title), style="bold"), *terminal(table)[1:]]
    return parts


def render(study: Study, width: int, *, lines: bool = False) -> RenderableType:
    """Render one table of the requested cases and one of exceeded limits.

    With `lines`, also render the source lines of the first case on each device.
    """
    asked = [row for row in study.results if not row.case.checked_only]
    plain = [row for row in asked if row.measured is None]
    measured = [row for row in asked if row.measured is not None]
    more = "for all, use --format json"
    parts = terminal(cases_table(plain), width, limit=MOST_SHOWN, rest=more)
    if measured:
        parts += terminal(measured_table(measured), width, limit=MOST_SHOWN, rest=more)
        parts.append(Text("held out: error with the factor from the other cases", style="dim"))
    parts = parts[1:]
    refused = [row for row in study.results if row.error is not None]
    if refused:
        parts += [Text(), _refused(refused)]
    if lines:
        parts += _lines(asked)
    parts += [Text(), *(Text(safe(note), style="dim") for note in _notes(study, asked, plain, lines=lines))]
    return Group(*parts)


def _notes(study: Study, asked: Sequence[CaseResult], plain: Sequence[CaseResult], *, lines: bool) -> list[str]:
    """Return notes on what the tables do not show. The note on the calibration gives the error of measured cases."""
    notes: list[str] = []
    if lines and len({_named(row) for row in asked}) > 1:
        notes.append("lines are for the first case that fits; for all cases, use --format json")
    said = [note for row in asked if row.time is not None for note in row.time.notes]
    if said:
        notes.append("repeated loop iterations were counted, not simulated (how many: --format json)")
    notes += [f"warning: {note}" for note in dict.fromkeys(said) if "uses positions" in note]
    notes += list(dict.fromkeys(f"values not computed: {row.note}" for row in asked if row.note))
    if study.skipped:
        notes.append(f"{plural(study.skipped, 'default shape')} left out, because the reference does not accept them")
    return [*notes, *filter(None, (band_text(plain), l2_text(study, plain))), *calibration_notes(study)]


def calibration_notes(study: Study) -> list[str]:
    """Return notes on the calibration, on programs without measured times, and on values being computed on the CPU."""
    notes = [_calibration_text(calibration) for calibration in study.calibrations]
    asked = [row for row in study.results if not row.case.checked_only and row.time is not None]
    far = [
        f"extrapolated, uncalibrated: {_name(row)} on {row.soc}: {row.time.outside}"
        for row in asked
        if row.time is not None and row.time.outside
    ]
    notes += far[:MOST_REFUSED]
    if (more := len(far) - MOST_REFUSED) > 0:
        notes.append(f"and {plural(more, 'more extrapolated case')} in --format json")
    notes += [f"measured times left out: {text}" for text in study.unused]
    measured = {(calibration.program, calibration.soc) for calibration in study.calibrations}
    if any((row.case.program.name, row.soc) not in measured for row in asked) or not asked:
        some = "the other" if measured else "these"
        notes.append(f"times are uncalibrated: no measured times of {some} programs (--measured)")
    return [*notes, "values were computed with CPU arithmetic"]


def _calibration_text(calibration: Calibration) -> str:
    name = f"{calibration.program} on {calibration.soc}"
    if calibration.refused:
        return f"{name} is uncalibrated: {calibration.refused}"
    return (
        f"{name} is calibrated: {calibration.cases} measured cases take {calibration.factor:.3g} times the prediction, "
        "so all its times are multiplied by this factor; 80 % of the errors are within a factor of "
        f"{math.exp(calibration.width):.2f} (leave-one-out)"
    )


_CaseColumn = Column[CaseResult]
SETTINGS = _CaseColumn("settings", lambda row: " ".join(f"{name}={value}" for name, value in row.case.settings.items()))
DEVICE = _CaseColumn("device", lambda row: row.soc)
CASE = _CaseColumn("case", lambda row: row.case.program.name, detail=lambda row: row.case.text)


def column_if_varied(column: _CaseColumn, rows: Sequence[CaseResult]) -> list[_CaseColumn]:
    """Return the column if its values differ between rows; otherwise nothing."""
    return [column] if len(set(map(column.value, rows))) > 1 else []


def measured_table(looked: Sequence[CaseResult]) -> Table[CaseResult]:
    """Return measured and predicted times, and the prediction errors with and without a factor calibrated on other
    cases.
    """

    def column(title: str, field: str, unit: Unit = TEXT, drop: float = 0) -> _CaseColumn:
        return _CaseColumn(title, lambda row: getattr(row.measured, field), unit, key=field, drop=drop)

    rows = [row for row in looked if row.measured is not None]
    cores = column("most cores", "cores", Unit(lambda value: "all" if value is None else str(value), "int"), 2)
    columns = [
        *column_if_varied(SETTINGS, rows),
        DEVICE,
        *column_if_varied(cores, rows),
        column("in L2", "l2", drop=3),
        column("measured", "measured_us", TIME),
        column("predicted", "predicted_us", TIME),
        column("error", "error", SIGNED_PERCENT),
        column("held out", "held_out_error", SIGNED_PERCENT),
        CASE,
    ]
    return Table("Measured and predicted times; held out: error with the factor from the other cases", columns, rows)


def _named(row: CaseResult) -> tuple[str, str, str]:
    return row.case.program.name, row.case.text, repr(sorted(row.case.settings.items()))


def of_first_case(looked: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the first case that has a time, once per device. In a sweep, it has its best settings."""
    good = [row for row in looked if row.time is not None and not row.failed]
    first = [row for row in good if _named(row)[:2] == _named(good[0])[:2]]
    return list({row.soc: row for row in reversed(first)}.values())[::-1]


def band_text(looked: Sequence[CaseResult]) -> str:
    """Return the uncertainty of the predicted times as text; "" if there are no times."""
    factors = [row.time.high_us / row.time.time_us for row in looked if row.time is not None and row.time.time_us > 0]
    if not factors:
        return ""
    return f"80 % of these predictions are between 1/{max(factors):.2g} and {max(factors):.2g} times the measured time"


def l2_text(study: Study, looked: Sequence[CaseResult]) -> str:
    """Return how much data is assumed to be in L2 when a kernel starts; "" if there are no times."""
    shares = [100 * row.time.in_l2 for row in looked if row.time is not None]
    if not shares:
        return ""
    low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
    part = low if low == high else f"{low} to {high}"
    state = f"--l2 {study.l2}; sequence: as in a step"
    return f"{part} % of a kernel's data is assumed to be in L2 when it starts ({state})"


def cases_table(rows: Sequence[CaseResult]) -> Table[CaseResult]:
    """Return a table of the cases: values, times, and what bounds them."""

    def column(title: str, value: Callable[[TileTime], Any], unit: Unit, drop: float = 0) -> _CaseColumn:
        return _CaseColumn(title, lambda row: None if (t := _time(row)) is None else value(t), unit, drop=drop)

    columns = [
        *column_if_varied(SETTINGS, rows),
        _CaseColumn("values", shown_values, right=True),
        DEVICE,
        column("time", lambda time: time.time_us, TIME),
        column("overlapped", lambda time: time.overlapped_us, TIME, 4),
        column("serial", lambda time: time.serial_us, TIME, 5),
        _CaseColumn("bound", _bound),
        column("cores", lambda time: time.cores, COUNT, 6),
        column("fullest", _fullest, TEXT, 3),
        _CaseColumn("built-in", lambda row: row.built_in_us, TIME, drop=2),
        CASE,
    ]
    return Table("Cases", columns, rows)


def _time(row: CaseResult) -> TileTime | None:
    """Return the time of a case; None if the case exceeded a limit."""
    return row.time if row.error is None else None


def _bound(row: CaseResult) -> str:
    if row.error is not None:
        return f"broken: {row.error.limit}"
    return DASH if row.time is None else row.time.bound


def _fullest(time: TileTime) -> str:
    """Return the memory with the highest utilization: "UB 61 %"."""
    shares = {place: used / there for place, (used, there) in time.buffers.items()}
    if not shares:
        return DASH
    place = max(shares, key=shares.__getitem__)
    return f"{place} {100 * shares[place]:.0f} %"


def shown_values(row: CaseResult) -> str:
    """Return the result of the value check as a word or a number."""
    if row.error is not None and row.error.limit == "values":
        return "differ"
    values = value_text(row)
    return DASH if values is None else values if isinstance(values, str) else f"± {values:.2g}"


def _refused(looked: Sequence[CaseResult]) -> RenderableType:
    parts: list[Text] = []
    seen: dict[str, int] = {}
    for row in looked:
        assert row.error is not None
        text = f"{row.error.file}:{row.error.line}: {row.error.message}"
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 1 and len(seen) <= MOST_REFUSED:
            parts.append(Text(safe(f"{row.case.program.name} {row.case.text}:"), style="bold"))
            parts.append(Text(safe(f"  {text}"), style="red"))
            if row.error.hint:
                parts.append(Text(safe(f"  {row.error.hint}"), style="dim"))
    if len(seen) > MOST_REFUSED:
        parts.append(Text(f"and {plural(len(seen) - MOST_REFUSED, 'more error')} in --format json", style="dim"))
    return Group(*parts)


def lines_table(row: CaseResult, time: TileTime) -> Table[LineTime]:
    """Return the source lines of a case, busiest first."""
    core = time.time_us - time.launch_us
    column = Column[LineTime]
    columns = [
        column("line", lambda line: line.line, COUNT),
        column("pipe", lambda line: line.pipe),
        column("busy", lambda line: line.busy_us, TIME),
        column("share", lambda line: f"{100 * line.busy_us / core:.0f} %" if core else DASH, right=True),
        column("source", lambda line: _source(line.file, line.line), form="fold"),
    ]
    title = f"{row.case.program.name} {row.case.text} on {row.soc}, busiest core, by line"
    return Table(title, columns, sorted(time.lines, key=lambda line: -line.busy_us))


def _source(file: str, line: int) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def page(study: Study, command: str) -> Page:
    """Return the page of a study."""
    good = [row for row in study.results if row.time is not None and row.error is None]
    asked = [row for row in good if not row.case.checked_only]
    series: dict[str, dict[str, float]] = {}
    for row in asked:
        assert row.time is not None
        series.setdefault(row.soc, {})[_name(row)] = row.time.time_us
    return Page(
        title="opreplay: tile programs",
        headline=headline(study),
        command=command,
        answers=tuple(card for soc, times in series.items() for card in times_answer(soc, list(times.values()))),
        bars=(bars_by_name("Time by case", series, "case"),),
        tables=(
            _cases(good),
            measured_table(asked),
            _pipes(asked),
            *(lines_table(row, row.time) for row in of_first_case(asked) if row.time is not None),
            _broken(study),
        ),
        notes=tuple(calibration_notes(study)),
    )


def _cases(looked: Sequence[CaseResult]) -> Table[CaseResult]:
    """Return the table of cases with the columns of the terminal table, plus all settings and buffers."""
    table = cases_table(looked)
    columns = [column for column in table.columns if column.title not in ("settings", "fullest")]
    return msgspec.structs.replace(table, columns=[*columns, _SETTINGS, _BUFFERS])


_SETTINGS = Column[CaseResult](
    "settings", lambda row: " ".join(f"{k}={v}" for k, v in {**row.case.program.settings, **row.case.settings}.items())
)
_BUFFERS = Column[CaseResult]("buffers", lambda row: _buffers(row.time) if row.time is not None else None)


def _buffers(time: TileTime) -> str:
    return " ".join(f"{place} {100 * used // there} %" for place, (used, there) in time.buffers.items())


def _pipes(looked: Sequence[CaseResult]) -> Table[tuple[CaseResult, str, float]]:
    column = Column[tuple[CaseResult, str, float]]
    columns = [
        column("case", lambda row: _name(row[0])),
        column("device", lambda row: row[0].soc),
        column("pipe", lambda row: row[1]),
        column("busy", lambda row: row[2], SHARE),
    ]
    rows = [(row, pipe, share) for row in looked if row.time for pipe, share in row.time.pipes.items()]
    return Table("Busy shares of pipes", columns, rows)


def _broken(study: Study) -> Table[tuple[CaseResult, Broken]]:
    column = Column[tuple[CaseResult, Broken]]
    columns = [
        column("case", lambda row: _name(row[0])),
        column("limit", lambda row: row[1].limit),
        column("line", lambda row: row[1].line, COUNT),
        column("what", lambda row: row[1].message),
    ]
    return Table("Broken", columns, [(row, row.error) for row in study.results if row.error is not None])


def _name(row: CaseResult) -> str:
    return f"{row.case.program.name} {row.case.text}"


def timeline(row: CaseResult) -> dict[str, Any]:
    """Return the instructions on the pipes of the busiest core as Chrome trace events, in microseconds."""
    assert row.time is not None
    pipes = sorted({span.pipe for span in row.time.spans})
    rows = {pipe: i + 1 for i, pipe in enumerate(pipes)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{row.case.program.name} on {row.soc}, a core"}}
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": pipe}} for pipe, tid in rows.items()
    ]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "pid": 1,
            "tid": rows[span.pipe],
            "ts": span.start_us,
            "dur": span.dur_us,
            "args": {"line": span.line},
        }
        for span in row.time.spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}
