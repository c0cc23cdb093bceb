# pyright: strict
"""The page of `tile`: cases with their times and bounds, busy shares of pipes, buffers, and what broke."""

from __future__ import annotations

from opreplay.replay.report.page.model import Cell, Column, Page, Table
from opreplay.replay.report.page.parts import bars_by_name, count_cell, numbers, share_cell, time_cell
from opreplay.replay.report.tile_programs import calibration_notes, error_text, headline, of_first_case, shown_values
from opreplay.replay.tile.study import Looked, Study


def of_study(found: Study, command: str) -> Page:
    """Everything of a study that a page shows."""
    good = [one for one in found.looked if one.time is not None and one.error is None]
    asked = [one for one in good if not one.case.checked_only]
    series: dict[str, dict[str, float]] = {}
    for one in asked:
        assert one.time is not None
        series.setdefault(one.soc, {})[_name(one)] = one.time.time_us
    lines = [(one, line) for one in of_first_case(asked) if one.time is not None for line in one.time.lines]
    return Page(
        title="opreplay: tile programs",
        headline=headline(found),
        command=command,
        bars=(bars_by_name("Time by case", series),),
        tables=(
            _cases(found),
            Table(
                title="Measured beside predicted by the program alone, and by the factor of the other cases",
                columns=(
                    Column(title="case"),
                    Column(title="device"),
                    *numbers("measured", "predicted", "error", "held out"),
                ),
                rows=tuple(
                    (
                        Cell(text=_name(one)),
                        Cell(text=one.soc),
                        time_cell(one.measured.measured_us),
                        time_cell(one.measured.predicted_us),
                        Cell(text=error_text(one.measured.error)),
                        Cell(text=error_text(one.measured.held_out_error)),
                    )
                    for one in asked
                    if one.measured is not None
                ),
            ),
            Table(
                title="Busy shares of pipes",
                columns=(Column(title="case"), Column(title="device"), Column(title="pipe"), *numbers("busy")),
                rows=tuple(
                    (Cell(text=_name(one)), Cell(text=one.soc), Cell(text=pipe), share_cell(share))
                    for one in asked
                    if one.time is not None
                    for pipe, share in one.time.pipes.items()
                ),
            ),
            Table(
                title="Lines of the first case, busiest core",
                columns=(Column(title="device"), *numbers("line"), Column(title="pipe"), *numbers("busy")),
                rows=tuple(
                    (Cell(text=one.soc), count_cell(line.line), Cell(text=line.pipe), time_cell(line.busy_us))
                    for one, line in lines
                ),
            ),
            Table(
                title="Broken",
                columns=(Column(title="case"), Column(title="limit"), *numbers("line"), Column(title="what")),
                rows=tuple(
                    (
                        Cell(text=_name(one)),
                        Cell(text=one.error.limit),
                        count_cell(one.error.line),
                        Cell(text=one.error.message),
                    )
                    for one in found.looked
                    if one.error is not None
                ),
            ),
        ),
        notes=tuple(calibration_notes(found)),
    )


def _cases(found: Study) -> Table:
    return Table(
        title="Cases",
        columns=(
            Column(title="case"),
            Column(title="settings"),
            Column(title="values"),
            Column(title="device"),
            *numbers("time", "overlapped", "serial", "built-in"),
            Column(title="bound"),
            *numbers("cores"),
            Column(title="buffers"),
        ),
        rows=tuple(_row(one) for one in found.looked if one.time is not None and one.error is None),
    )


def _row(one: Looked) -> tuple[Cell, ...]:
    assert one.time is not None
    settings = {**one.case.program.settings, **one.case.settings}
    buffers = " ".join(f"{place} {100 * used // there} %" for place, (used, there) in one.time.buffers.items())
    return (
        Cell(text=_name(one)),
        Cell(text=" ".join(f"{name}={value}" for name, value in settings.items())),
        Cell(text=shown_values(one)),
        Cell(text=one.soc),
        time_cell(one.time.time_us),
        time_cell(one.time.overlapped_us),
        time_cell(one.time.serial_us),
        time_cell(one.built_in_us),
        Cell(text=one.time.bound),
        count_cell(one.time.cores),
        Cell(text=buffers),
    )


def _name(one: Looked) -> str:
    return f"{one.case.program.name} {one.case.text}"
