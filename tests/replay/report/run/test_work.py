"""The work of ops in the reports: table, Markdown, CSV, and warnings of ops that do none."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from opreplay.initializers.amounts import Amount, Work, work
from opreplay.replay.report.run import report
from opreplay.replay.report.run.facts import with_counted_work, work_cell, work_notes
from opreplay.replay.report.run.tables import Run
from opreplay.replay.results.records import OpResult


@pytest.fixture
def results(made: SimpleNamespace) -> list[OpResult]:
    tokens = work(Amount(what="context tokens", done=8192, most=65536))
    idle = work(Amount(what="rows", done=0, most=7), warnings=("offsets | descend",))
    replaced = [
        msgspec.structs.replace(result, work=found)
        for result, found in zip(made.results, (tokens, idle, None), strict=False)
    ]
    return [*replaced, *made.results[3:]]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_table(made: SimpleNamespace, results: list[OpResult], width: int) -> None:
    stream = io.StringIO()
    run = Run(made.header, results, made.summary)
    Console(file=stream, width=width, markup=False, highlight=False).print(report.render(run, width))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert "no work: 0 of 7" in flat or width == 40
    assert ("8,192 of 65,536 context tokens (12.5 %)" in flat) or width == 40


def test_without_counts_there_is_nothing(made: SimpleNamespace) -> None:
    assert with_counted_work(made.results) == []
    assert work_notes(made.results) == []
    assert work_cell(msgspec.structs.replace(made.results[0], work=Work(amounts=()))) == ""


def test_idle_ops_and_odd_values_are_warned_of(results: list[OpResult]) -> None:
    first, second = work_notes(results)
    assert first == "warning: no work done by 1 op: aten::cudnn_convolution"
    assert second == "warning: 1 op with unusual values: aten::cudnn_convolution: offsets | descend"


def test_files(made: SimpleNamespace, results: list[OpResult]) -> None:
    page = report.markdown(Run(made.header, results, made.summary))
    assert "| 74.1 % | `aten::addmm` | 8,192 of 65,536 context tokens (12.5 %) |" in page
    assert "- warning: no work done by 1 op" in page
    rows = list(csv.DictReader(io.StringIO(report.view(Run(made.header, results, made.summary)).text("csv"))))
    assert [row["work"] for row in rows[:3]] == ["8,192 of 65,536 context tokens (12.5 %)", "no work: 0 of 7 rows", ""]
