# pyright: strict
"""What became of tile programs, as tables for terminals and as JSON: values, times, buffers, lines, timelines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.table import COUNT, OP, SIGNED_PERCENT, TEXT, TIME, Column, OpCell, Table, Unit, terminal
from opreplay.replay.report.text import DASH, plural, safe
from opreplay.replay.tile.chip import LineTime, TileTime
from opreplay.replay.tile.measured import Calibration
from opreplay.replay.tile.study import Looked, Study

MOST_SHOWN = 60
"""Rows of a sweep that a terminal gets."""
MOST_REFUSED = 8


def facts(found: Study, *, lines: bool = False) -> dict[str, Any]:
    """Everything, JSON-safe: stable keys are those of docs/tile.md."""
    return {
        "cases": [_case_facts(one, lines) for one in found.looked],
        "skipped_shapes": found.skipped,
        "tuned": found.tuned,
        "confidence": "uncalibrated" if uncalibrated(found.looked) else "calibrated",
        "l2": found.l2,
        "calibrations": [_calibration_facts(one) for one in found.calibrations],
        "measured_left_out": list(found.unused),
    }


def uncalibrated(looked: Sequence[Looked]) -> bool:
    """Whether the time of any case asked for, or of none, is uncalibrated."""
    times = [one.time for one in looked if one.time is not None and not one.case.checked_only]
    return not times or any(time.confidence != "calibrated" for time in times)


def _calibration_facts(one: Calibration) -> dict[str, Any]:
    return {
        "kernel": one.program,
        "soc": one.soc,
        "cases": one.cases,
        "rows": len(one.compared),
        "factor": None if one.refused else one.factor,
        "band": None if one.refused else math.exp(one.width),
        "refused": one.refused,
    }


_TIMES = (
    "time_us",
    "low_us",
    "high_us",
    "in_l2",
    "overlapped_us",
    "serial_us",
    "launch_us",
    "hbm_us",
    "l2_us",
    "bound",
    "cores",
)


def _case_facts(one: Looked, lines: bool) -> dict[str, Any]:
    time = one.time if one.error is None or one.error.limit == "values" else None
    facts: dict[str, Any] = {
        "kernel": one.case.program.name,
        "op": one.case.program.op,
        "case": one.case.text,
        "settings": {**one.case.program.settings, **one.case.settings},
        "soc": one.soc,
        "checked_only": one.case.checked_only,
        **{name: getattr(time, name, None) for name in _TIMES},
        "pipes": time.pipes if time else {},
        "values": value_text(one),
        "within_tolerance": one.values.allowed if one.values is not None else None,
        "values_note": one.note,
        "buffers": _buffer_facts(time),
        "built_in_us": one.built_in_us,
        "notes": list(time.notes) if time else [],
        "confidence": time.confidence if time else "uncalibrated",
        "factor": time.factor if time else None,
        "extrapolated": bool(time.outside) if time else None,
        "outside": time.outside if time else "",
        "measured_us": getattr(one.measured, "measured_us", None),
        "predicted_us": getattr(one.measured, "predicted_us", None),
        "measured_error": getattr(one.measured, "error", None),
        "held_out_error": getattr(one.measured, "held_out_error", None),
        "measured_l2": getattr(one.measured, "l2", None),
        "error": msgspec.to_builtins(one.error),
    }
    if lines:
        facts["lines"] = msgspec.to_builtins(time.lines if time else ())
    return facts


def _buffer_facts(time: TileTime | None) -> dict[str, dict[str, int]]:
    buffers = time.buffers if time else {}
    return {place: {"used": used, "there": there} for place, (used, there) in buffers.items()}


def value_text(one: Looked) -> str | float | None:
    """ "same", the largest absolute difference, or None where values were not compared."""
    if one.values is None:
        return None
    return "same" if one.values.same else one.values.error


def headline(found: Study) -> str:
    """How many cases there were and what became of them."""
    broken = [one for one in found.looked if one.failed]
    checked = [one for one in found.looked if one.values is not None]
    tried = [one for one in found.looked if one.case.checked_only]
    text = f"{plural(len(found.looked) - len(tried), 'case')}, {plural(len(tried), 'default shape')} for values"
    if checked:
        same = sum(1 for one in checked if one.values is not None and one.values.same)
        text += f"; values of {len(checked)} checked, {same} the same, the others within their dtype's tolerance"
    if broken:
        text += f"; {plural(len(broken), 'case')} broken"
    return text


def render(found: Study, width: int, *, lines: bool = False) -> RenderableType:
    """Tables: the cases asked for, what broke, and on request the lines of the first one on each device."""
    asked = [one for one in found.looked if not one.case.checked_only]
    plain = [one for one in asked if one.measured is None]
    measured = [one for one in asked if one.measured is not None]
    more = "--format json holds all"
    parts = terminal(cases_table(plain), width, most=MOST_SHOWN, rest=more)
    if measured:
        parts += terminal(measured_table(measured), width, most=MOST_SHOWN, rest=more)
        parts.append(Text("held out: by the factor that the other cases alone give", style="dim"))
    parts = parts[1:]
    refused = [one for one in found.looked if one.error is not None]
    if refused:
        parts += [Text(), _refused(refused)]
    if lines:
        for one in of_first_case(asked):
            if one.time is not None:
                table = lines_table(one, one.time)
                parts += [Text(), Text(safe(table.title), style="bold"), *terminal(table)[1:]]
    parts += [Text(), *(Text(safe(note), style="dim") for note in _notes(found, asked, plain, lines=lines))]
    return Group(*parts)


def _notes(found: Study, asked: Sequence[Looked], plain: Sequence[Looked], *, lines: bool) -> list[str]:
    """What the tables do not say. Of measured cases the calibration says how far off they are."""
    notes: list[str] = []
    if lines and len({_named(one) for one in asked}) > 1:
        notes.append("lines are those of the first case that fits; --format json has them all")
    said = [note for one in asked if one.time is not None for note in one.time.notes]
    if said:
        notes.append("iterations of loops that repeat others were counted, not run (how many: --format json)")
    notes += [f"warning: {note}" for note in dict.fromkeys(said) if "looks at positions" in note]
    notes += list(dict.fromkeys(f"values not run: {one.note}" for one in asked if one.note))
    if found.skipped:
        notes.append(f"{plural(found.skipped, 'default shape')} left out: the reference refuses them")
    return [*notes, *filter(None, (band_text(plain), l2_text(found, plain))), *calibration_notes(found)]


def calibration_notes(found: Study) -> list[str]:
    """What measured times say of the programs, where they do not, and that values are the CPU's."""
    notes = [_calibration_text(one) for one in found.calibrations]
    asked = [one for one in found.looked if not one.case.checked_only and one.time is not None]
    for one in asked:
        if one.time is not None and one.time.outside:
            notes.append(
                f"extrapolated, uncalibrated: {one.case.program.name} {one.case.text} on {one.soc}: {one.time.outside}"
            )
    if len(notes) > len(found.calibrations) + MOST_REFUSED:
        more = len(notes) - len(found.calibrations) - MOST_REFUSED
        notes = [*notes[:-more], f"and {plural(more, 'more extrapolated case')} in --format json"]
    notes += [f"measured times left out: {text}" for text in found.unused]
    own = {(one.program, one.soc) for one in found.calibrations}
    if any((one.case.program.name, one.soc) not in own for one in asked) or not asked:
        some = "the other" if own else "these"
        notes.append(f"times are uncalibrated: nothing of {some} programs was measured (--measured)")
    return [*notes, "values are of the CPU's arithmetic"]


def _calibration_text(one: Calibration) -> str:
    name = f"{one.program} on {one.soc}"
    if one.refused:
        return f"{name} is uncalibrated: {one.refused}"
    return (
        f"{name} is calibrated: {one.cases} cases are measured to take {one.factor:.3g} times the predicted, by "
        "which all its times are multiplied; 80 % lie within a factor of "
        f"{math.exp(one.width):.2f}, as found by leaving out one case at a time"
    )


_OfLooked = Column[Looked]
SETTINGS = _OfLooked("settings", lambda one: " ".join(f"{name}={value}" for name, value in one.case.settings.items()))
DEVICE = _OfLooked("device", lambda one: one.soc)
CASE = _OfLooked("case", lambda one: OpCell(name=one.case.program.name, detail=one.case.text), OP)


def varied(column: _OfLooked, rows: Sequence[Looked]) -> list[_OfLooked]:
    """The column where it tells rows apart."""
    return [column] if len(set(map(column.value, rows))) > 1 else []


def measured_table(looked: Sequence[Looked]) -> Table[Looked]:
    """Measured beside predicted: by the program alone, and by the factor of the other cases."""

    def column(title: str, field: str, unit: Unit = TEXT, drop: float = 0) -> _OfLooked:
        return _OfLooked(title, lambda one: getattr(one.measured, field), unit, key=field, drop=drop)

    rows = [one for one in looked if one.measured is not None]
    cores = column("most cores", "cores", Unit(lambda value: "all" if value is None else str(value), "int"), 2)
    columns = [
        *varied(SETTINGS, rows),
        DEVICE,
        *varied(cores, rows),
        column("in L2", "l2", drop=3),
        column("measured", "measured_us", TIME),
        column("predicted", "predicted_us", TIME),
        column("error", "error", SIGNED_PERCENT),
        column("held out", "held_out_error", SIGNED_PERCENT),
        CASE,
    ]
    return Table("Measured beside predicted by the program alone, and by the factor of the other cases", columns, rows)


def _named(one: Looked) -> tuple[str, str, str]:
    return one.case.program.name, one.case.text, repr(sorted(one.case.settings.items()))


def of_first_case(looked: Sequence[Looked]) -> list[Looked]:
    """The first case with a time, on each device that it fits: in a sweep with the settings that are best there."""
    good = [one for one in looked if one.time is not None and not one.failed]
    first = [one for one in good if _named(one)[:2] == _named(good[0])[:2]]
    return list({one.soc: one for one in reversed(first)}.values())[::-1]


def band_text(looked: Sequence[Looked]) -> str:
    """How far times may be off; "" without any."""
    factors = [one.time.high_us / one.time.time_us for one in looked if one.time is not None and one.time.time_us > 0]
    if not factors:
        return ""
    return f"80 % of such predictions lie between 1/{max(factors):.2g} and {max(factors):.2g} times the measured time"


def l2_text(found: Study, looked: Sequence[Looked]) -> str:
    """What L2 holds when the kernels start; "" without any times."""
    shares = [100 * one.time.in_l2 for one in looked if one.time is not None]
    if not shares:
        return ""
    least, most = f"{min(shares):.0f}", f"{max(shares):.0f}"
    part = least if least == most else f"{least} to {most}"
    return f"{part} % of what a kernel touches is taken to be in L2 when it starts (--l2 {found.l2}; cold: none)"


def cases_table(rows: Sequence[Looked]) -> Table[Looked]:
    """Values and times of cases, and what bounds them."""

    def column(title: str, value: Callable[[TileTime], Any], unit: Unit, drop: float = 0) -> _OfLooked:
        return _OfLooked(title, lambda one: None if (t := _time(one)) is None else value(t), unit, drop=drop)

    columns = [
        *varied(SETTINGS, rows),
        _OfLooked("values", shown_values, right=True),
        DEVICE,
        column("time", lambda time: time.time_us, TIME),
        column("overlapped", lambda time: time.overlapped_us, TIME, 4),
        column("serial", lambda time: time.serial_us, TIME, 5),
        _OfLooked("bound", _bound),
        column("cores", lambda time: time.cores, COUNT, 6),
        column("fullest", _fullest, TEXT, 3),
        _OfLooked("built-in", lambda one: one.built_in_us, TIME, drop=2),
        CASE,
    ]
    return Table("Cases", columns, rows)


def _time(one: Looked) -> TileTime | None:
    """None of a case that broke."""
    return one.time if one.error is None else None


def _bound(one: Looked) -> str:
    if one.error is not None:
        return f"broken: {one.error.limit}"
    return DASH if one.time is None else one.time.bound


def _fullest(time: TileTime) -> str:
    """The memory of which most is used: "UB 61 %"."""
    shares = {place: used / there for place, (used, there) in time.buffers.items()}
    if not shares:
        return DASH
    place = max(shares, key=shares.__getitem__)
    return f"{place} {100 * shares[place]:.0f} %"


def shown_values(one: Looked) -> str:
    """Values as a word or a number."""
    if one.error is not None and one.error.limit == "values":
        return "differ"
    found = value_text(one)
    return DASH if found is None else found if isinstance(found, str) else f"± {found:.2g}"


def _refused(looked: Sequence[Looked]) -> RenderableType:
    parts: list[Text] = []
    seen: dict[str, int] = {}
    for one in looked:
        assert one.error is not None
        text = f"{one.error.file}:{one.error.line}: {one.error.message}"
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 1 and len(seen) <= MOST_REFUSED:
            parts.append(Text(safe(f"{one.case.program.name} {one.case.text}:"), style="bold"))
            parts.append(Text(safe(f"  {text}"), style="red"))
            if one.error.hint:
                parts.append(Text(safe(f"  {one.error.hint}"), style="dim"))
    if len(seen) > MOST_REFUSED:
        parts.append(Text(f"and {len(seen) - MOST_REFUSED} other errors in --format json", style="dim"))
    return Group(*parts)


def lines_table(one: Looked, time: TileTime) -> Table[LineTime]:
    """The lines of a case, busiest first."""
    core = time.time_us - time.launch_us
    column = Column[LineTime]
    columns = [
        column("line", lambda line: line.line, COUNT),
        column("pipe", lambda line: line.pipe),
        column("busy", lambda line: line.busy_us, TIME),
        column("share", lambda line: f"{100 * line.busy_us / core:.0f} %" if core else DASH, right=True),
        column("source", lambda line: _source(line.file, line.line), form="fold"),
    ]
    title = f"{one.case.program.name} {one.case.text} on {one.soc}, busiest core, by line"
    return Table(title, columns, sorted(time.lines, key=lambda line: -line.busy_us))


def _source(file: str, line: int) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def timeline(one: Looked) -> dict[str, Any]:
    """The pipes of the busiest core as Chrome's trace events, in microseconds."""
    assert one.time is not None
    pipes = sorted({span.pipe for span in one.time.spans})
    rows = {pipe: i + 1 for i, pipe in enumerate(pipes)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{one.case.program.name} on {one.soc}, a core"}}
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
        for span in one.time.spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}
