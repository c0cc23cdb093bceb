"""The table of errors in a narrow terminal."""

from __future__ import annotations

import io

from rich.console import Console

from opreplay.replay.ascend.measured.accuracy import Errors
from opreplay.replay.report.table import terminal
from opreplay.replay.report.views.validation import errors_table


def test_names_give_way_before_figures_are_cut_off() -> None:
    errors = Errors(
        n=141,
        mape=2.437,
        median_ape=1.193,
        p90_ape=14.92,
        wape=2.437,
        total_error=2.437,
        in_band=1.0,
        within_10=1.0,
        within_25=1.0,
    )
    console = Console(width=80, record=True, file=io.StringIO())
    (table,) = terminal(errors_table("type", [("MoeFinalizeRoutingV2WithALongName", errors)]), 80)[1:]
    console.print(table)
    row = console.export_text().splitlines()[-1].split()
    assert row[1:] == ["141", "243.7", "119.3", "1492.0", "243.7", "+243.7", "100", "100", "100"]
