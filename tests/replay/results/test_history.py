"""The file of a history: what goes in comes out, a run counts once, and other files are refused unread."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from opreplay.replay.results import history as of_history
from opreplay.replay.results.history import append_run, check_history, machine_of, read_history
from opreplay.replay.results.records import Header, OpResult
from opreplay.traces.errors import FormatError, UsageError


def header(night: int, cpu: str = "made up") -> Header:
    environment: dict[str, object] = {"cpu": cpu, "device": "cpu", "threads": 2, "load_1min": night}
    return Header(
        opreplay_version="0",
        started_at=f"2026-01-{night:02d}T00:00:00+00:00",
        trace={},
        environment=environment,
        options={"cache": "cold", "seed": night},
    )


def result(us: float | None, name: str = "aten::mm") -> OpResult:
    return OpResult(id=name[-2:] * 6, name=name, count=1, status="replayed", inputs="f32[2,2]", measured_us=us)


def change(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "a history?.sqlite"
    for night in (2, 1, 3):
        append_run(str(path), header(night), [result(100.0 + night), result(None, "aten::no")], f"commit {night}")
    return path


def test_runs_come_back_in_the_order_of_time(three: Path) -> None:
    (series,) = read_history(str(three))
    assert (series.name, series.inputs, series.machine_name) == ("aten::mm", "f32[2,2]", "made up, 2 threads, cold")
    assert [(p.label, p.measured_us, p.relative) for p in series.points] == [
        ("commit 1", 101.0, None),
        ("commit 2", 102.0, None),
        ("commit 3", 103.0, None),
    ]


def test_a_run_that_is_added_again_counts_once_and_machines_are_apart(three: Path) -> None:
    assert append_run(str(three), header(3), [result(200.0), result(7.0, "aten::no")], "again") == 2
    append_run(str(three), header(4, cpu="another"), [result(50.0)])
    by_key = {(series.machine_name[:7], series.name): series.points for series in read_history(str(three))}
    assert [p.measured_us for p in by_key["made up", "aten::mm"]] == [101.0, 102.0, 200.0]
    assert [p.label for p in by_key["made up", "aten::no"]] == ["again"]
    assert [p.measured_us for p in by_key["another", "aten::mm"]] == [50.0]
    assert machine_of(header(1)) == machine_of(header(2))
    assert machine_of(header(1))[0] != machine_of(header(1, cpu="another"))[0]


def test_nothing_is_written_of_a_run_that_measured_nothing(tmp_path: Path) -> None:
    assert append_run(str(tmp_path / "h.sqlite"), header(1), [result(None)]) == 0
    assert list(tmp_path.iterdir()) == []


def test_only_the_latest_runs_are_read(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_history, "MAX_RUNS", 2)
    assert [point.label for point in read_history(str(three))[0].points] == ["commit 2", "commit 3"]


@pytest.mark.parametrize("content", [b"", b"text", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(4000)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.sqlite"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not an opreplay history"):
        read_history(str(path))
    with pytest.raises(UsageError, match="not an opreplay history"):
        check_history(str(path))
    assert path.read_bytes() == content
    with pytest.raises(FormatError, match="cannot read"):
        read_history(str(tmp_path / "none.sqlite"))
    with pytest.raises(UsageError, match="the folder does not exist"):
        check_history(str(tmp_path / "none" / "h.sqlite"))


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END", "does not have the tables"),
        (
            "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT i FROM n",
            "does not have the tables",
        ),
        ("DROP TABLE ops", "does not have the tables"),
        ("UPDATE ops SET name = printf('%.2000c', 'a')", "damaged"),
        ("UPDATE runs SET label = zeroblob(9000000)", "damaged"),
        ("UPDATE runs SET label = x'00'", "damaged"),
        ("UPDATE times SET measured_us = 'soon'", "damaged"),
        ("UPDATE times SET measured_us = -1.0", "damaged"),
        ("UPDATE times SET relative = 9e999", "damaged"),
    ],
)
def test_what_we_would_not_have_written_is_refused(three: Path, statement: str, wrong: str) -> None:
    change(three, statement)
    with pytest.raises(FormatError, match=wrong):
        read_history(str(three))
    if wrong == "does not have the tables":
        with pytest.raises(UsageError, match=wrong):
            append_run(str(three), header(9), [result(1.0)])


def test_a_file_cut_short_is_an_error_of_the_file(three: Path) -> None:
    three.write_bytes(three.read_bytes()[:5000])
    with pytest.raises(FormatError, match="cannot read"):
        read_history(str(three))


def test_a_large_file_is_not_opened(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_history, "MAX_FILE", 100)
    with pytest.raises(FormatError, match="limit of 100"):
        read_history(str(three))
