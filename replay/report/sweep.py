# pyright: strict
"""Results of calls that the user wrote as text, as table, JSON and CSV: one row per call, with notes on its numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import median
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ir.model import BY_PROGRAM
from opreplay.replay.ir.reasons import refuses_arguments
from opreplay.replay.report.coverage import HELD, is_rough, predicted_text
from opreplay.replay.report.doubts import marks, thread_notes
from opreplay.replay.report.run import ops
from opreplay.replay.report.run.facts import STAND_INS
from opreplay.replay.report.suspects import MARK
from opreplay.replay.report.table import (
    COUNT,
    FLAG,
    PAGE_ROWS,
    TEXT,
    TIME,
    Column,
    Table,
    Unit,
    cut,
    terminal,
)
from opreplay.replay.report.text import plural, ratio_text, safe, time_text
from opreplay.replay.report.view import View
from opreplay.replay.resolve.written.sweep import RESULTS_UNKNOWN
from opreplay.replay.results.cases import Case, Cases
from opreplay.replay.results.records import OpResult, Simulated

if TYPE_CHECKING:
    from opreplay.replay.report.page.model import Answer, Curve, Page

SCHEMA_VERSION = 1
"""Version of the JSON format. History: 1 is the first version."""
MOST_LINES = 10
"""Maximum number of lines of a curve."""


def head_line(sweep: Cases) -> str:
    """Return the first line of a sweep: the predicted times of its calls on each device, and the times measured here.

    Times are given as the shortest and longest of all calls. Predicted times have a band: "1 call: 910b3 would take
    24.8 µs (15.5 µs to 39.7 µs); measured 23.6 ms on cpu"
    """
    cases = sweep.cases
    parts = [_predicted_part(soc, [case.result.simulated.get(soc) for case in cases]) for soc in sweep.socs]
    if sweep.device is not None:
        measured = [case.result.measured_us for case in cases if case.result.measured_us is not None]
        some = "" if len(measured) == len(cases) else f"{len(measured)} "
        parts.append(f"{some}measured {f'{_range_text(measured)} ' if measured else ''}on {sweep.device}")
    failed = sum(map(sweep.failed, cases))
    parts += [f"{failed} failed"] if failed else []
    return f"{plural(len(cases), 'call')}: {'; '.join(parts)}"


def _predicted_part(soc: str, predictions: Sequence[Simulated | None]) -> str:
    known = [prediction for prediction in predictions if prediction is not None]
    if not known:
        return f"not predicted on {soc}"
    times = _range_text([one.time_us for one in known])
    if len(predictions) == 1:
        return f"{soc} would take {times} ({time_text(known[0].low_us)} to {time_text(known[0].high_us)})"
    factors = [max(one.time_us / one.low_us, one.high_us / one.time_us) for one in known if one.low_us > 0]
    least, most = (f"{end(factors, default=1.0):.2g}" for end in (min, max))
    some = "" if len(known) == len(predictions) else f" for {len(known)} of them"
    return f"{soc} would take {times} each{some} (×÷ {least}{f' to {most}' if most != least else ''})"


def _range_text(times_us: Sequence[float]) -> str:
    low, high = time_text(min(times_us)), time_text(max(times_us))
    return low if low == high else f"{low} to {high}"


def notes_of(case: Case) -> list[str]:
    """Return notes on what to know before trusting the numbers of one call."""
    result = case.result
    notes = [*_reason_notes(result), *case.unpredicted]
    notes += [note.what for note in result.assumptions if note.what.startswith(RESULTS_UNKNOWN)]
    notes += [f"does not fit into the memory of {soc}" for soc in case.too_large_for if soc in result.simulated]
    notes += [f"{soc} {text}" for soc, prediction in result.simulated.items() for text in prediction_notes(prediction)]
    return [*notes, *case.assumed, *_measured_notes(result)]


def _reason_notes(result: OpResult) -> list[str]:
    """Return why nothing was measured, and what the prediction is based on in this case."""
    if result.reason is None:
        return []
    if not result.simulated:
        return [str(result.reason)]
    if result.resolved_by is not None and refuses_arguments(result.reason):
        return [f"{result.reason}; predicted anyway, but another device may also refuse the call"]
    return [f"does not run here: {result.reason}; predicted anyway, from sizes and types"]


def _measured_notes(result: OpResult) -> list[str]:
    """Return notes on a measured time: warnings, arguments filled at random, and what ran in place of the op."""
    notes = [f"measured: {kind}" for kind in marks(result)]
    if result.status == "replayed" and result.filling is not None and result.filling.at_random:
        names = ", ".join(result.filling.at_random)
        notes.append(f"{MARK} filled at random: {names}; write an initializer (docs/initializers.md)")
    if result.resolved_by in STAND_INS and result.measured_us is not None:
        kind = "stand-in" if result.resolved_by == "reference" else str(result.resolved_by)
        programs = (assumption.what for assumption in result.assumptions if assumption.what.startswith(BY_PROGRAM))
        notes.append(f"measured: {next(programs, kind)}")
    return notes


MEASURED_OF = {"call": "this call", "op": "other calls of the op", "family": "its kernel family"}


def prediction_notes(prediction: Simulated) -> list[str]:
    """Return what a prediction is based on, unless it is based on measurements of the device itself."""
    notes = {"uncalibrated": ["uncalibrated"], "other SoC": ["calibrated on another SoC"]}.get(
        prediction.confidence, []
    )
    if prediction.taken_for:
        mine = f"by your {str(prediction.by).removeprefix('user ')} {prediction.source}: {prediction.taken_for}"
        notes = [mine if prediction.source else f"costed as {prediction.taken_for}, which has a similar name", *notes]
    if prediction.no_path:
        return [f"has no unit that multiplies {prediction.no_path}: predicted as another dtype"]
    if is_rough(prediction):
        notes = [f"only an order of magnitude, ×÷ {prediction.high_us / prediction.time_us:.0f}: never measured"]
    if prediction.extrapolated:
        notes = [*notes, "extrapolated"]
    if prediction.measured:
        notes = [*notes, f"adjusted by your measurements of {MEASURED_OF[prediction.measured]}"]
    if prediction.by == "bytes" and prediction.measured != "call":
        notes = [*notes, "by bytes only, an underestimate: half of all kernels take at least 1.5 times as long"]
    return notes


_OfCase = Column[Case]
SIZE = Unit(lambda value: "" if value is None else str(value), "int")
_NAME = _OfCase("op", lambda case: case.result.name)
_INPUTS = _OfCase("inputs", lambda case: case.result.inputs)
_CALL = _OfCase("call", lambda case: case.call, form="paste")
_MEASURED = _OfCase("measured", lambda case: case.result.measured_us, TIME, key="measured_us")
_NOTES = _OfCase("notes", lambda case: "; ".join(notes_of(case)))


def _sizes(sweep: Cases) -> list[_OfCase]:
    """Return one column for each size that is named in the calls."""
    names = dict.fromkeys(name for case in sweep.cases for name in case.sizes)
    return [
        _OfCase(
            name,
            lambda case, name=name: case.sizes.get(name),
            COUNT,
            text=lambda case, name=name: str(case.sizes.get(name, "")),
            style="bold",
        )
        for name in names
    ]


def _predictions(sweep: Cases, *fields: tuple[str, Unit]) -> list[_OfCase]:
    """Return columns for each device: its predicted time, then the given fields of the prediction.

    Column keys end with the name of the device.
    """

    def column(soc: str, field: str, unit: Unit) -> _OfCase:
        key = f"{'simulated_us' if field == 'time_us' else field}_{soc}"
        if field == "time_us":
            return _OfCase(
                soc,
                lambda case: case.result.simulated_us.get(soc),
                unit,
                key=key,
                text=lambda case: predicted_text(case.result.simulated.get(soc)),
            )
        title = field
        return _OfCase(title, lambda case: getattr(case.result.simulated.get(soc), field, None), unit, key=key)

    return [column(soc, field, unit) for soc in sweep.socs for field, unit in (("time_us", TIME), *fields)]


def page_columns(sweep: Cases) -> list[_OfCase]:
    """Return the columns of the table of calls on an HTML page."""
    measured = [_MEASURED] if sweep.device is not None else []
    return [_NAME, *_sizes(sweep), *measured, *_predictions(sweep, ("bound", TEXT)), _INPUTS]


def view(sweep: Cases) -> View:
    """Return the calls in every output format."""
    return View(
        lines=[head_line(sweep)],
        render=lambda width: render(sweep, width=width),
        facts=lambda: facts(sweep),
        table=lambda: file_table(sweep),
        tables={"cases": lambda: file_table(sweep)},
        page=lambda command: page(sweep, command),
    )


def file_table(sweep: Cases) -> Table[Case]:
    """Return one row per call, with all columns of CSV and data frames. Times are in microseconds."""
    columns = [
        _NAME,
        _INPUTS,
        _CALL,
        *_sizes(sweep),
        _MEASURED,
        *(
            _OfCase(field, lambda case, field=field: getattr(case.result.measurement, field, None), unit)
            for field, unit in (("ci_low_us", TIME), ("ci_high_us", TIME), ("samples", COUNT))
        ),
        *_predictions(
            sweep, ("low_us", TIME), ("high_us", TIME), ("bound", TEXT), ("confidence", TEXT), ("extrapolated", FLAG)
        ),
        _OfCase("reason", lambda case: case.result.reason and str(case.result.reason)),
        _NOTES,
    ]
    return Table("Calls", columns, sweep.cases)


def render(sweep: Cases, *, width: int) -> RenderableType:
    """Render one row per call in `width` characters. Rows of calls that differ only in sizes start with the sizes."""
    cases, sizes, marks = sweep.cases, _sizes(sweep), _marks(sweep)
    columns = [
        *sizes,
        *([_MEASURED] if sweep.device is not None else []),
        *_predictions(sweep),
        *([_OfCase("bound", lambda case: case.result.bound)] if sweep.socs else []),
        # Marks, whose meaning stands below the table: the reasons may be long.
        _OfCase("", lambda case: "".join(marks[note] for note in notes_of(case))),
    ]
    columns = [column for column in columns if any(map(column.shown, cases))]
    ops = _OfCase("op", lambda case: case.result.name, detail=lambda case: case.result.inputs)
    texts = dict.fromkeys(case.written for case in cases)
    head = [Text(safe(text), style="dim") for text in texts] if sizes else []
    table = terminal(Table("Calls", [*columns, ops], cases), width)[1:]
    return Group(*head, *table, *(Text(f"· {safe(line)}") for line in foot_lines(sweep)))


def _marks(sweep: Cases) -> dict[str, str]:
    notes = dict.fromkeys(note for case in sweep.cases for note in notes_of(case))
    return {note: ascii_lowercase[number] if number < 26 else f"[{number}]" for number, note in enumerate(notes)}


def foot_lines(sweep: Cases) -> list[str]:
    """Return the lines below the table: the meanings of the marks, and the assumptions."""
    lines = [f"{mark}: {note}" for note, mark in _marks(sweep).items()]
    assumed = dict.fromkeys(
        f"{note.argument}: {note.what}"
        for case in sweep.cases
        for note in case.result.assumptions
        if not note.what.startswith(RESULTS_UNKNOWN)
    )
    lines += [f"assumed: {text}" for text in list(assumed)[:8]]
    lines += [f"and {plural(len(assumed) - 8, 'more assumption')}"] if len(assumed) > 8 else []
    if sweep.socs and sweep.l2 in HELD:
        lines.append(f"caches ({sweep.l2}): when an op starts, they contain {HELD[sweep.l2]}")
    return [*lines, *thread_notes(sweep.environment)]


def page(sweep: Cases, command: str) -> Page:
    """Return the page of the calls."""
    from opreplay.replay.report.page.model import Opened, Page
    from opreplay.replay.report.page.parts import roofline, roofs_of

    texts = list(dict.fromkeys(case.written for case in sweep.cases))
    return Page(
        title=texts[0] if len(texts) == 1 else plural(len(texts), "call"),
        headline=head_line(sweep),
        command=command,
        answers=_answers(sweep),
        facts=tuple((soc, version) for soc, version in sweep.socs.items()),
        curves=tuple(_curves(sweep)),
        roofline=roofline(
            [case.result for case in sweep.cases],
            ops.MEASURED,
            sweep.device,
            roofs_of(sweep.socs, [f"{soc} {version}" for soc, version in sweep.socs.items()]),
        ),
        tables=(
            Opened(
                table=cut(Table("One call", page_columns(sweep), sweep.cases), PAGE_ROWS),
                key=lambda case: case.result.id,
                name=lambda case: case.result.name,
                details=_details,
            ),
        ),
        notes=tuple(foot_lines(sweep)),
    )


def _details(case: Case) -> list[tuple[str, str]]:
    from opreplay.replay.report.page.parts import op_details

    notes = [("note", note) for note in notes_of(case)]
    return [*op_details(case.result, f"opreplay op {shlex.quote(case.call)}"), *notes]


def _answers(sweep: Cases) -> tuple[Answer, ...]:
    """Return the measured times of the calls, their times on each device, and the ratios."""
    from opreplay.replay.report.page.parts import times_answer

    results = [case.result for case in sweep.cases]
    measured = [result.measured_us for result in results if result.measured_us is not None]
    answers = list(times_answer(f"measured on {sweep.device}", measured))
    for soc in sweep.socs:
        predicted = [result.simulated[soc] for result in results if soc in result.simulated]
        band = ""
        if len(predicted) == 1:
            band = f"{time_text(predicted[0].low_us)} to {time_text(predicted[0].high_us)} (80 %)"
        ratios = [r.simulated_us[soc] / r.measured_us for r in results if soc in r.simulated_us and r.measured_us]
        detail = f"{ratio_text(median(ratios), 1.0)} of the measured time (median)" if ratios else ""
        answers += times_answer(soc, [prediction.time_us for prediction in predicted], band, detail)
    return tuple(answers)


def _points_by_line(cases: Sequence[Case], across: str, fixed: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Return the points (size, µs) of each line.

    Measured times and each device have a line for each combination of the other sizes.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        others = "".join(f", {name}={case.sizes[name]}" for name in fixed)
        for what, us in {"measured": case.result.measured_us, **case.result.simulated_us}.items():
            if us is not None and us > 0:
                lines.setdefault(what + others, []).append((float(case.sizes[across]), us))
    return lines


def _curves(sweep: Cases) -> Iterator[Curve]:
    """Yield one curve per call, over the first size with several values. Each combination of other sizes has a line."""
    from opreplay.replay.report.page.model import Curve, Line

    for text in dict.fromkeys(case.written for case in sweep.cases):
        of_text = [case for case in sweep.cases if case.written == text]
        varied = [name for name in of_text[0].sizes if len({case.sizes[name] for case in of_text}) > 1]
        if not varied:
            continue
        across = varied[0]
        lines = _points_by_line(of_text, across, varied[1:])
        drawn = list(lines.items())[:MOST_LINES]
        yield Curve(
            title=f"Time over {across}: {text}",
            across=across,
            lines=tuple(Line(name=name, points=tuple(sorted(points))) for name, points in drawn),
            left_out=len(lines) - len(drawn),
        )


def facts(sweep: Cases) -> dict[str, Any]:
    """Return all results as JSON-safe values; times are in microseconds per call."""
    return {
        "schema_version": SCHEMA_VERSION,
        "device": sweep.device,
        "environment": sweep.environment,
        "socs": sweep.socs,
        "l2": sweep.l2,
        "cases": [_case_facts(case) for case in sweep.cases],
    }


def _case_facts(case: Case) -> dict[str, Any]:
    result = case.result
    return {
        "op": result.name,
        "inputs": result.inputs,
        "call": case.call,
        "written": case.written,
        "sizes": case.sizes,
        "measured_us": result.measured_us,
        "simulated_us": result.simulated_us,
        "bound": result.bound,
        "reason": result.reason and str(result.reason),
        "resolved_by": result.resolved_by,
        **{name: msgspec.to_builtins(getattr(result, name)) for name in ("measurement", "simulated", "assumptions")},
        "notes": notes_of(case),
    }
