"""One table in every format, and what a terminal shows of it where room is short."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from opreplay.replay.report import formats
from opreplay.replay.report.table import (
    COUNT,
    SHARE,
    TIME,
    Column,
    Table,
    cut,
    heaviest,
    rows_that_matter,
    terminal,
)

EVIL = "=a|b`c\x1b[31m"
Row = tuple[str, int, float | None]
ROWS: list[Row] = [(EVIL, 2000, 12.34), ("", 1, None)]
COLUMNS = [
    Column[Row]("name", lambda row: row[0], form="code"),
    Column[Row]("count", lambda row: row[1], COUNT, drop=2),
    Column[Row]("time", lambda row: row[2], TIME, key="time_us", drop=1),
    Column[Row]("share", lambda row: row[2] and row[2] / 100, SHARE, key="recorded_share"),
]
TABLE = Table("Rows", COLUMNS, ROWS)


def shown(table: Table[Row], width: int, **options: object) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    for part in terminal(table, width, **options):  # type: ignore[arg-type]
        console.print(part)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_terminal_escapes_text_and_aligns_numbers() -> None:
    assert shown(TABLE, 60) == [
        "",
        "name            count     time   share",
        "─" * 38,
        "=a|b`c\\x1b[31m  2,000  12.3 µs  12.3 %",
        "                    1        –       –",
    ]


def test_columns_give_way_in_order_and_are_named() -> None:
    assert shown(TABLE, 34)[1].split() == ["name", "time", "share"]
    assert " ".join(shown(TABLE, 34)[-2:]) == "hidden at a width of 34 columns: count"
    assert shown(TABLE, 20)[1].split() == ["name", "share"]
    assert " ".join(shown(TABLE, 24)[-2:]) == "hidden at a width of 24 columns: count, time"


@pytest.mark.parametrize("width", range(30, 70, 5))
def test_a_column_of_ops_takes_what_is_left(width: int) -> None:
    op = Column[Row]("op", lambda row: "aten::mm", detail=lambda row: "bf16[4096,4096]", short=lambda row: "[4096]")
    lines = shown(Table("Ops", [*COLUMNS[1:], op], ROWS), width, one_line=True)
    assert max(map(len, lines)) <= width
    assert sum("aten::mm" in line for line in lines) == 2


def test_rows_that_are_left_out_are_counted() -> None:
    assert shown(TABLE, 60, limit=1)[-1] == "… 1 more row; --all shows them"
    assert cut(TABLE, None).left_out == 0
    first = heaviest("Rows", COLUMNS, ROWS[::-1], lambda row: row[1], limit=1)
    assert (list(first.rows), first.left_out) == ([ROWS[0]], 1)
    assert shown(Table("Rows", COLUMNS, []), 60) == []


def test_files_have_keys_and_values_as_they_are() -> None:
    first, second = csv.DictReader(io.StringIO(formats.csv_text(TABLE)))
    assert first == {"name": "'=a|b`c\\x1b[31m", "count": "2000", "time_us": "12.34", "recorded_share": "0.1234"}
    assert second == {"name": "", "count": "1", "time_us": "", "recorded_share": ""}


def test_markdown_has_the_cells_of_the_terminal() -> None:
    assert formats.markdown(TABLE)[1:] == [
        "| name | count | time | share |",
        "| --- | ---: | ---: | ---: |",
        "| `` =a\\|b`c\\x1b[31m `` | 2,000 | 12.3 µs | 12.3 % |",
        "|  | 1 | – | – |",
    ]
    assert formats.markdown(Table("Rows", COLUMNS, [])) == []


def test_a_run_has_one_title_a_quantity_in_every_format(made: SimpleNamespace) -> None:
    """What is called "measured" in a terminal is that in Markdown and on the page, and files hold it by one key."""
    from opreplay.replay.report.page.model import Opened
    from opreplay.replay.report.run import report
    from opreplay.replay.report.run.page import page
    from opreplay.replay.report.run.tables import Run

    run = Run(made.header, made.results, made.summary)
    titles: dict[str, set[str]] = {}
    opened = page(run, "opreplay").tables[0]
    assert isinstance(opened, Opened)
    ops = opened.table
    for column in (*ops.columns, *report.file_table(run.results).columns):
        titles.setdefault(column.key or column.title, set()).add(column.title)
    assert {key: names for key, names in titles.items() if len(names) > 1} == {}
    head = next(line for line in report.markdown(run).splitlines() if line.startswith("| op"))
    assert {"count", "share", "recorded", "measured", "910b3"} <= set(head.strip("| ").split(" | "))
    assert {column.title for column in ops.columns} >= {"count", "share", "recorded", "measured", "910b3"}


def test_no_number_is_cut() -> None:
    """Of seven devices at 80 columns 6.62 ms and 9.46 µs read 6.62… and 9.46…: columns give way instead."""
    devices = [Column[Row](f"device {n}", lambda row: row[2], TIME) for n in range(9)]
    op = Column[Row]("op", lambda row: "aten::cumsum", detail=lambda row: "f32[64]")
    lines = shown(Table("Rows", [*devices, op], ROWS), 80)
    assert lines[1].count("device") == lines[3].count("12.3 µs") > 4
    assert lines[-1].startswith("hidden at a width of 80 columns: device ")


@pytest.mark.parametrize("width", [80, 60, 44])
def test_sizes_that_were_asked_for_stay_where_room_is_short(width: int) -> None:
    from opreplay.replay.report.step import served, sized, sizes
    from opreplay.replay.timeline.served import ServedStep
    from opreplay.replay.timeline.sized import SizedStep

    one = ServedStep(
        batch=8, context=2048, soc="910b3", token_ms=21.7, low_ms=16, high_ms=41, graph_token_ms=22, graph_low_ms=16,
        graph_high_ms=41, server_ms=0, tokens_per_s=368.2, graph_tokens_per_s=364, memory_bytes=6 << 30, fits=True,
        unpredicted_calls=0, fused=True, unfused=("attention",),
    )  # fmt: skip
    other = SizedStep(
        sizes={"rows": 12_345, "columns": 67_890}, soc="910b3", step_us=1234.5, low_us=1000, high_us=2000, graph_us=999,
        bound="cube", memory_bytes=6 << 30, fits=True, unpredicted_calls=0,
    )  # fmt: skip
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(sizes.render(served.table([one]), [], width))
    console.print(sizes.render(sized.table([other]), [], width))
    text = console.export_text()
    assert "2,048" in text
    assert "12,345" in text
    assert "67,890" in text


def test_rows_that_hold_95_percent_of_the_weight_are_shown() -> None:
    assert rows_that_matter([60.0, 30.0, 6.0, 2.0, 1.0, 1.0]) == 3
    assert rows_that_matter([90.0, 6.0, 4.0]) == 3, "one more row costs no more than the line that replaces it"
    assert rows_that_matter([1.0] * 100) == 20
    assert rows_that_matter([0.0] * 3) == 3
    assert rows_that_matter([]) == 0
