"""The formats that files are written in: JSON Lines, CSV, Markdown."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.report import formats
from opreplay.replay.report.run import report
from opreplay.replay.report.run.tables import Run
from opreplay.replay.results.reading import read_results
from opreplay.replay.results.writing import JsonLinesSink


def test_json_lines_read_back_as_they_were(made: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        for record in (made.header, *made.results, made.summary):
            sink.write(record)
    assert read_results(path) == (made.header, made.results, made.summary)


def test_csv_has_one_row_an_op_and_exact_numbers(made: SimpleNamespace) -> None:
    rows = list(csv.DictReader(io.StringIO(report.view(Run(made.header, made.results, made.summary)).text("csv"))))
    assert len(rows) == 6
    assert rows[0]["name"] == "aten::addmm"
    assert float(rows[0]["measured_us"]) == 41.52
    assert float(rows[0]["simulated_us_910b3"]) == 9.87
    assert rows[1]["confidence_910b3"] == "uncalibrated"
    assert rows[3]["measured_us"] == ""
    assert (rows[3]["reason"], rows[3]["reason_kind"]) == ("collective: c10d", "collective")
    assert rows[0]["reason_kind"] == ""


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_formulas_are_escaped_in_csv(text: str) -> None:
    assert formats.csv_cell(text).startswith("'")


@given(st.text(max_size=40))
def test_no_text_becomes_a_formula_or_breaks_a_row(text: str) -> None:
    cell = formats.csv_cell(text)
    assert not cell.startswith(formats.FORMULA_STARTS)
    assert cell.isprintable()


def test_markdown_starts_with_coverage_and_has_all_ops(made: SimpleNamespace) -> None:
    page = report.markdown(Run(made.header, made.results, made.summary))
    assert "replayed 3 of 6 ops = 79.1 % of device time" in page
    assert "| `aten::addmm` |" in page
    assert all(f"`{result.name}`" in page for result in made.results)
    assert "via aten::convolution" in page
    assert "| policy | 1 | 3 | 10.0 % | namespace os is not allowed (1) |" in page


@given(st.text(max_size=30))
def test_every_markdown_row_has_the_same_number_of_cells(text: str) -> None:
    row = f"| {formats.code(text)} | {formats.escaped(text)} |"
    assert "\n" not in row
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3
    assert "<" not in formats.escaped(text)


@pytest.mark.parametrize(("text", "fence"), [("a", "`"), ("a`b", "``"), ("``a", "```"), ("", "")])
def test_code_spans_cannot_be_left(text: str, fence: str) -> None:
    span = formats.code(text)
    assert span.startswith(fence)
    assert span.endswith(fence)
