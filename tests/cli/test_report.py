"""`opreplay report`: a saved run in every form, also one that was cut short."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.measure import MeasureOptions, summarize
from opreplay.replay.result_lines import JsonLinesSink
from opreplay.replay.results import Header, OpResult, Summary

MEASURED = summarize([1.0 + 0.01 * i for i in range(9)], calls=1, resolution_us=1e-3, options=MeasureOptions())
HEADER = Header(
    opreplay_version="0", started_at="2026-01-01T00:00:00+00:00", trace={"ops": 3, "device_us_total": 100.0},
    environment={}, options={},
)  # fmt: skip
OPS = (
    OpResult(id="a" * 12, name="aten::mm", count=3, status="replayed", measurement=MEASURED, measured_us=1.04,
             recorded_device_us=20.0, recorded_share=0.6, simulated_us={"910b3": 2.0}),
    OpResult(id="b" * 12, name="nccl:all_reduce", count=1, status="skipped", reason="collective: c10d",
             recorded_device_us=40.0, recorded_share=0.4),
)  # fmt: skip
SUMMARY = Summary(
    ops=2, replayed=1, skipped=1, failed=0, reasons={"collective": 1}, covered_share=0.6, recorded_us=100.0,
    measured_us=3.1, simulated_us={"910b3": 6.0}, wall_s=1.0,
)  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        for record in (HEADER, *OPS, SUMMARY):
            sink.write(record)
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["report", *map(str, args)], env={"COLUMNS": "100"})


def test_table(saved: Path) -> None:
    result = run(saved)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "replayed 1 of 2 ops = 60.0 % of device time; 1 skipped: 1 collective"
    assert "aten::mm" in result.stdout


def test_csv_and_json_and_markdown(saved: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(saved, "--format", "csv").stdout)))
    assert [row["status"] for row in rows] == ["replayed", "skipped"]
    whole = json.loads(run(saved, "--format", "json").stdout)
    assert [op["name"] for op in whole["ops"]] == ["aten::mm", "nccl:all_reduce"]
    assert whole["summary"]["replayed"] == 1
    assert whole["header"]["trace"]["ops"] == 3
    assert "| `aten::mm` |" in run(saved, "--format", "markdown").stdout


def test_a_run_that_was_killed_is_shown_as_far_as_it_goes(saved: Path) -> None:
    lines = saved.read_bytes().splitlines(keepends=True)
    saved.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    result = run(saved)
    assert result.exit_code == 0, result.stderr
    first = result.stdout.splitlines()[0]
    assert first.startswith("replayed 1 of 3 ops = 60.0 % of device time; 1 skipped")
    assert first.endswith("interrupted, 1 not reached")
    assert json.loads(run(saved, "--format", "json").stdout)["summary"]["interrupted"] is True


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "json"])
def test_output_goes_to_a_file_that_is_not_overwritten(saved: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    assert run(saved, "--format", form, "--output", out).exit_code == 0
    text = out.read_text()
    assert "aten::mm" in text
    assert "\x1b" not in text
    assert run(saved, "--format", form, "-o", out).exit_code == 2
    assert run(saved, "--format", form, "-o", out, "--force").exit_code == 0
    assert out.read_text() == text


def test_parquet(saved: Path, tmp_path: Path) -> None:
    from opreplay.replay.report import parquet

    rows = parquet.rows(HEADER, OPS, SUMMARY)
    assert rows[0]["measured_us"] == 1.04
    assert rows[0]["count"] == 3
    assert rows[1]["measured_us"] is None
    assert rows[1]["reason"] == "collective: c10d"
    result = run(saved, "--format", "parquet", "--output", tmp_path / "r.parquet")
    if importlib.util.find_spec("pyarrow") is None:
        assert result.exit_code == 4
        assert "opreplay[parquet]" in result.stderr
        assert not (tmp_path / "r.parquet").exists()
        return
    import pandas

    assert list(pandas.read_parquet(tmp_path / "r.parquet")["name"]) == ["aten::mm", "nccl:all_reduce"]
