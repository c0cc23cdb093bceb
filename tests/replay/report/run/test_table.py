"""The tables of a run in terminals of several widths."""

from __future__ import annotations

import io
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from opreplay.replay.report.run import report
from opreplay.replay.report.run.tables import Run


def shown(renderable: object, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, emoji=False, highlight=False).print(renderable)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160, 240])
@pytest.mark.parametrize("socs", [1, 3, 5])
def test_no_line_is_wider_than_the_terminal(made: SimpleNamespace, width: int, socs: int) -> None:
    names = ["910b3", "910b2", "910c", "910b1", "910b4"][:socs]
    results = [
        msgspec.structs.replace(
            r, simulated_us=dict.fromkeys(names, 9.87), simulated=dict.fromkeys(names, made.simulated(9.87))
        )
        for r in made.results
    ]
    text = shown(report.render(Run(made.header, results, made.summary), width), width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 60:
        assert "aten::addmm" in text
        assert "measured" in text
        assert all(name in text for name in names), "each SoC is in the totals at least"


def test_what_had_no_room_is_named(made: SimpleNamespace) -> None:
    assert "hidden at a width of 60 columns: id, count, bound" in shown(
        report.render(Run(made.header, made.results, made.summary), 60), 60
    )


def test_wide_terminals_get_ratios_and_arguments_on_the_line_of_the_op(made: SimpleNamespace) -> None:
    text = shown(report.render(Run(made.header, made.results, made.summary), 160), 160)
    (row,) = (line for line in text.splitlines() if "aten::addmm" in line)
    assert row.split()[:9] == ["012345", "74.1", "%", "24", "12.3", "µs", "41.5", "µs", "3.36×"]
    assert "f32[768] · f32[128,768] · f32[768,768]" in row


def test_markup_and_control_characters_stay_text(made: SimpleNamespace) -> None:
    text = shown(report.render(Run(made.header, made.results, made.summary), 160), 160)
    assert "expected\\x1b[31m [red]markup[/red]" in text
    assert "\x1b" not in text


def test_rows_beyond_the_limit_are_summed_up(made: SimpleNamespace) -> None:
    results = [made.replayed(f"aten::op{i}", recorded_share=0.01) for i in range(25)]
    run = Run(made.header, results, made.summary)
    assert "… 5 more ops, 20.0 %; --all" in shown(report.render(run, 80, all_rows=False), 80)
    assert "more ops" not in shown(report.render(run, 80), 80)


def test_host_times_are_called_so(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={"device_us_total": 0.0})
    text = shown(report.render(Run(header, made.results, made.summary), 80), 80)
    assert text.count("host time") == 2, "one title in both tables"


def test_a_run_without_ops_says_so(made: SimpleNamespace) -> None:
    header = msgspec.structs.replace(made.header, trace={})
    assert shown(report.render(Run(header, [], made.summary), 80), 80).startswith("no op to replay")
