# pyright: strict
"""Calls that were written down, as a table, JSON and CSV: one row a call, with what its numbers rest on beside them."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ir.model import BY_PROGRAM
from opreplay.replay.report import formats
from opreplay.replay.report.doubts import marks, thread_notes
from opreplay.replay.report.table import COUNT, OP, TEXT, TIME, Column, OpCell, Table, Unit, terminal
from opreplay.replay.report.text import plural, safe
from opreplay.replay.results.cases import Case, Cases
from opreplay.replay.results.records import Simulated

SCHEMA_VERSION = 1
"""Of the JSON form. Changes of format: 1 first version."""


def head_line(found: Cases) -> str:
    """How many of the calls have a time here and a prediction.

    "4 calls: 4 measured on cpu, 4 predicted on 910b3"
    """
    cases = found.cases
    parts: list[str] = []
    if found.device is not None:
        parts.append(f"{sum(one.result.measured_us is not None for one in cases)} measured on {found.device}")
    parts += [f"{sum(soc in one.result.simulated for one in cases)} predicted on {soc}" for soc in found.socs]
    failed = sum(one.result.reason is not None for one in cases)
    parts += [f"{failed} failed"] if failed else []
    return f"{plural(len(cases), 'call')}: {', '.join(parts)}"


def notes_of(case: Case) -> list[str]:
    """What to know before trusting the numbers of one call."""
    result = case.result
    notes = [] if result.reason is None else [str(result.reason)]
    if result.reason is not None and result.simulated:
        notes.append("predicted all the same: it failed for want of something here, not for its arguments")
    notes += case.unpredicted
    notes += [f"does not fit into the memory of {soc}" for soc in case.too_large_for if soc in result.simulated]
    notes += [f"{soc} {text}" for soc, one in result.simulated.items() for text in prediction_notes(one)]
    notes += [f"measured: {kind}" for kind in marks(result)]
    programs = [one.what for one in result.assumptions if one.what.startswith(BY_PROGRAM)]
    if result.resolved_by in ("reference", "equivalent", "executor") and result.measured_us is not None:
        kind = "stand-in" if result.resolved_by == "reference" else result.resolved_by
        notes.append(f"measured: {programs[0] if programs else kind}")
    return notes


def prediction_notes(one: Simulated) -> list[str]:
    """What a prediction rests on where that is less than measurements of its own device."""
    notes = {"uncalibrated": ["uncalibrated"], "other SoC": ["calibrated on another SoC"]}.get(one.confidence, [])
    if one.taken_for:
        notes = [f"by your rule {one.source}: {one.taken_for}", *notes]
    if one.no_path:
        return [f"has no known path for products of {one.no_path}: costed as another dtype"]
    if one.extrapolated:
        notes = [*notes, "extrapolated"]
    return (
        [*notes, "by bytes only, which flatters: half of all kernels take 1.5 times that or more"]
        if one.by == "bytes"
        else notes
    )


_OfCase = Column[Case]
SIZE = Unit(lambda value: "" if value is None else str(value), "int")
_NAME = _OfCase("op", lambda one: one.result.name)
_INPUTS = _OfCase("inputs", lambda one: one.result.inputs)
_CALL = _OfCase("call", lambda one: one.call, form="paste")
_MEASURED = _OfCase("measured", lambda one: one.result.measured_us, TIME, key="measured_us")
_NOTES = _OfCase("notes", lambda one: "; ".join(notes_of(one)))


def _sizes(found: Cases) -> list[_OfCase]:
    """The sizes that calls name."""
    names = dict.fromkeys(name for one in found.cases for name in one.sizes)
    return [
        _OfCase(
            name,
            lambda one, name=name: one.sizes.get(name),
            COUNT,
            text=lambda one, name=name: str(one.sizes.get(name, "")),
            style="bold",
        )
        for name in names
    ]


def _predictions(found: Cases, *fields: tuple[str, Unit]) -> list[_OfCase]:
    """Of each device: its time, then the given fields of the prediction, whose keys end with the device."""

    def column(soc: str, field: str, unit: Unit) -> _OfCase:
        key = f"{'simulated_us' if field == 'time_us' else field}_{soc}"
        title = soc if field == "time_us" else field
        return _OfCase(title, lambda one: getattr(one.result.simulated.get(soc), field, None), unit, key=key)

    return [column(soc, field, unit) for soc in found.socs for field, unit in (("time_us", TIME), *fields)]


def page_columns(found: Cases) -> list[_OfCase]:
    """What a page shows of a call."""
    measured = [_MEASURED] if found.device is not None else []
    return [*_sizes(found), *measured, *_predictions(found, ("bound", TEXT)), _NAME, _INPUTS, _CALL, _NOTES]


def csv_text(found: Cases) -> str:
    """One row a call; times in microseconds."""
    columns = [
        _NAME,
        _INPUTS,
        _CALL,
        *_sizes(found),
        _MEASURED,
        *(
            _OfCase(field, lambda one, field=field: getattr(one.result.measurement, field, None))
            for field in ("ci_low_us", "ci_high_us", "samples")
        ),
        *_predictions(
            found, ("low_us", TIME), ("high_us", TIME), ("bound", TEXT), ("confidence", TEXT), ("extrapolated", TEXT)
        ),
        _OfCase("reason", lambda one: one.result.reason and str(one.result.reason)),
        _NOTES,
    ]
    return formats.csv_text(Table("Calls", columns, found.cases))


def render(found: Cases, *, width: int) -> RenderableType:
    """One row a call, fitted to `width` characters; calls that differ in sizes alone begin with these."""
    cases, sizes, marks = found.cases, _sizes(found), _marks(found)
    columns = [
        *sizes,
        *([_MEASURED] if found.device is not None else []),
        *_predictions(found),
        *([_OfCase("bound", lambda one: one.result.bound)] if found.socs else []),
        # Marks, whose meaning stands below the table: the reasons may be long.
        _OfCase("", lambda one: "".join(marks[note] for note in notes_of(one))),
    ]
    columns = [column for column in columns if any(map(column.shown, cases))]
    ops = _OfCase("op", lambda one: OpCell(name=one.result.name, detail=one.result.inputs), OP)
    texts = dict.fromkeys(one.written for one in cases)
    head = [Text(safe(text), style="dim") for text in texts] if sizes else []
    table = terminal(Table("Calls", [*columns, ops], cases), width)[1:]
    return Group(*head, *table, *(Text(f"· {safe(line)}") for line in foot_lines(found)))


def _marks(found: Cases) -> dict[str, str]:
    notes = dict.fromkeys(note for one in found.cases for note in notes_of(one))
    return {note: _letter(number) for number, note in enumerate(notes)}


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number] if number < 26 else f"[{number}]"


def foot_lines(found: Cases) -> list[str]:
    """What the marks mean, and what was assumed."""
    lines = [f"{mark}: {note}" for note, mark in _marks(found).items()]
    assumed = dict.fromkeys(
        f"{note.argument}: {note.what}"
        for one in found.cases
        for note in one.result.assumptions
        if one.result.measured_us
    )
    lines += [f"assumed for what was measured, {text}" for text in list(assumed)[:8]]
    lines += [f"and {len(assumed) - 8} more assumptions"] if len(assumed) > 8 else []
    held = {
        "cold": "nothing of its data",
        "warm": "its own data and code, as in a loop",
        "sequence": "what calls before it leave there",
    }.get(found.l2)
    if found.socs and held is not None:
        lines.append(f"caches ({found.l2}): when an op starts they hold {held}")
    return [*lines, *thread_notes(found.environment)]


def facts(found: Cases) -> dict[str, Any]:
    """Everything as JSON-safe values; times in microseconds a call."""
    return {
        "schema_version": SCHEMA_VERSION,
        "device": found.device,
        "environment": found.environment,
        "socs": found.socs,
        "l2": found.l2,
        "cases": [_case_facts(one) for one in found.cases],
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
        "measurement": msgspec.to_builtins(result.measurement),
        "simulated": msgspec.to_builtins(result.simulated),
        "assumptions": msgspec.to_builtins(result.assumptions),
        "notes": notes_of(case),
    }
