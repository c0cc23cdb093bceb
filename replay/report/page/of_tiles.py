# pyright: strict
"""The page of `tile`: cases with their times and bounds, busy shares of pipes, buffers, and what broke."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.report.page.model import Page
from opreplay.replay.report.page.parts import bars_by_name
from opreplay.replay.report.table import COUNT, SHARE, Column, Table
from opreplay.replay.report.tile_programs import (
    calibration_notes,
    cases_table,
    headline,
    lines_table,
    measured_table,
    of_first_case,
)
from opreplay.replay.tile.chip import TileTime
from opreplay.replay.tile.study import Broken, Looked, Study


def of_study(found: Study, command: str) -> Page:
    """Everything of a study that a page shows."""
    good = [one for one in found.looked if one.time is not None and one.error is None]
    asked = [one for one in good if not one.case.checked_only]
    series: dict[str, dict[str, float]] = {}
    for one in asked:
        assert one.time is not None
        series.setdefault(one.soc, {})[_name(one)] = one.time.time_us
    return Page(
        title="opreplay: tile programs",
        headline=headline(found),
        command=command,
        bars=(bars_by_name("Time by case", series),),
        tables=(
            _cases(good),
            measured_table(asked),
            _pipes(asked),
            *(lines_table(one, one.time) for one in of_first_case(asked) if one.time is not None),
            _broken(found),
        ),
        notes=tuple(calibration_notes(found)),
    )


def _cases(looked: Sequence[Looked]) -> Table[Looked]:
    """Those of the terminal, with all settings and buffers."""
    table = cases_table(looked)
    columns = [column for column in table.columns if column.title not in ("settings", "fullest")]
    return msgspec.structs.replace(table, columns=[*columns, _SETTINGS, _BUFFERS])


_SETTINGS = Column[Looked](
    "settings", lambda one: " ".join(f"{k}={v}" for k, v in {**one.case.program.settings, **one.case.settings}.items())
)
_BUFFERS = Column[Looked]("buffers", lambda one: _buffers(one.time) if one.time is not None else None)


def _buffers(time: TileTime) -> str:
    return " ".join(f"{place} {100 * used // there} %" for place, (used, there) in time.buffers.items())


def _pipes(looked: Sequence[Looked]) -> Table[tuple[Looked, str, float]]:
    column = Column[tuple[Looked, str, float]]
    columns = [
        column("case", lambda row: _name(row[0])),
        column("device", lambda row: row[0].soc),
        column("pipe", lambda row: row[1]),
        column("busy", lambda row: row[2], SHARE),
    ]
    rows = [(one, pipe, share) for one in looked if one.time for pipe, share in one.time.pipes.items()]
    return Table("Busy shares of pipes", columns, rows)


def _broken(found: Study) -> Table[tuple[Looked, Broken]]:
    column = Column[tuple[Looked, Broken]]
    columns = [
        column("case", lambda row: _name(row[0])),
        column("limit", lambda row: row[1].limit),
        column("line", lambda row: row[1].line, COUNT),
        column("what", lambda row: row[1].message),
    ]
    return Table("Broken", columns, [(one, one.error) for one in found.looked if one.error is not None])


def _name(one: Looked) -> str:
    return f"{one.case.program.name} {one.case.text}"
