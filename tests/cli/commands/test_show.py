"""`opreplay show`: a saved run in every form, also one that was cut short."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.execute.measure import summarize
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.results.records import Header, JobResult, OpResult, Summary, TraceResult
from opreplay.replay.results.writing import JsonLinesSink

MEASURED = summarize([1.0 + 0.01 * i for i in range(9)], calls=1, resolution_us=1e-3, options=MeasureOptions())
HEADER = Header(
    opreplay_version="0",
    started_at="2026-01-01T00:00:00+00:00",
    trace={"ops": 3, "device_us_total": 100.0},
    environment={},
    options={},
)
OPS = (
    OpResult(
        id="a" * 12,
        name="aten::mm",
        count=3,
        status="replayed",
        measurement=MEASURED,
        measured_us=1.04,
        recorded_device_us=20.0,
        recorded_share=0.6,
        simulated_us={"910b3": 2.0},
    ),
    OpResult(
        id="b" * 12,
        name="nccl:all_reduce",
        count=1,
        status="skipped",
        reason=Reason("collective", "c10d"),
        recorded_device_us=40.0,
        recorded_share=0.4,
    ),
)
SUMMARY = Summary(
    ops=2,
    replayed=1,
    skipped=1,
    failed=0,
    reasons={"collective": 1},
    covered_share=0.6,
    recorded_us=100.0,
    measured_us=3.1,
    simulated_us={"910b3": 6.0},
    wall_s=1.0,
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        for record in (HEADER, *OPS, SUMMARY):
            sink.write(record)
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["show", *map(str, args)], env={"COLUMNS": "100"})


def test_table(saved: Path) -> None:
    result = run(saved)
    assert result.exit_code == 0, result.stderr
    assert "replayed 1 of 2 ops = 60.0 % of device time; 1 skipped: 1 collective" in result.stdout
    assert "aten::mm" in result.stdout


def test_notes_that_change_no_decision_are_counted(saved: Path, tmp_path: Path) -> None:
    assert "with --notes" in run(saved).stdout
    whole = run(saved, "--notes").stdout
    assert "with --notes" not in whole
    assert "0 of 2 ops simulated" in whole
    run(saved, "--output", tmp_path / "r.txt")
    assert "with --notes" not in (tmp_path / "r.txt").read_text(), "a file holds all"


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
    assert "replayed 1 of 3 ops = 60.0 % of device time; 1 skipped" in first
    assert first.endswith("interrupted, 1 not reached")
    summary = json.loads(run(saved, "--format", "json").stdout)["summary"]
    assert (summary["interrupted"], summary["not_reached"], summary["wall_s"]) == (True, 1, None)


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


def test_a_table_in_a_file_holds_all_rows(tmp_path: Path) -> None:
    """It said in the file that --output FILE holds all."""
    ops = [msgspec.structs.replace(OPS[0], id=f"{index:012x}", name=f"aten::op{index}") for index in range(60)]
    many = tmp_path / "many.jsonl"
    sink = JsonLinesSink.open(many)
    for record in (HEADER, *ops, SUMMARY):
        sink.write(record)
    sink.close()
    assert run(many, "-o", tmp_path / "all.txt").exit_code == 0
    assert "aten::op59" in (tmp_path / "all.txt").read_text()
    assert "40 more ops" in run(many).stdout
    refused = run(many, "-o", tmp_path / "again.jsonl")
    assert (refused.exit_code, "no report format for the suffix .jsonl" in refused.stderr) == (2, True)


def test_parquet_keeps_types_and_nulls(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow import parquet

    result = run(saved, "--format", "parquet", "--output", tmp_path / "r.parquet")
    assert result.exit_code == 0, result.stderr
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.column_names == next(csv.reader(io.StringIO(run(saved, "--format", "csv").stdout)))
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["count"] == types["measured_samples"] == "int64"
    floats = {name for name, kind in types.items() if kind == "double"}
    assert floats == {
        "recorded_device_us",
        "recorded_host_us",
        "recorded_share",
        "measured_us",
        "measured_ci_low_us",
        "measured_ci_high_us",
        "simulated_us_910b3",
    }
    assert set(types.values()) == {"int64", "double", "string"}
    first, second = table.to_pylist()
    assert (first["name"], first["count"], first["measured_us"], first["reason"]) == ("aten::mm", 3, 1.04, None)
    assert (second["measured_us"], second["simulated_us_910b3"], second["fidelity"]) == (None, None, None)
    assert (second["reason"], second["reason_kind"]) == ("collective: c10d", "collective")
    about = json.loads(table.schema.metadata[b"opreplay"])
    assert about["summary"]["replayed"] == 1
    assert about["header"]["trace"]["ops"] == 3
    assert run(saved, "--format", "parquet", "-o", tmp_path / "r.parquet").exit_code == 2


def test_parquet_of_runs_with_and_without_ops_can_be_read_as_one() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow import parquet

    from opreplay.replay.report.run.report import parquet as parquet_of
    from opreplay.replay.report.run.tables import Run

    odd = OpResult(
        id="c" * 12,
        name="=evil\x1b\ud800",
        count=2**40,
        status="failed",
        reason=Reason("failed", "-x"),
        recorded_share=0.0,
    )
    tables = [parquet.read_table(io.BytesIO(parquet_of(Run(HEADER, ops, SUMMARY)))) for ops in ((), (odd,), OPS)]
    assert [len(table) for table in tables] == [0, 1, 2]
    assert tables[0].schema.equals(tables[1].schema)
    both = pyarrow.concat_tables(tables, promote_options="default")
    assert both["name"].to_pylist()[0] == "=evil\\x1b\\ud800"
    assert both["count"].to_pylist()[0] == 2**40


def test_parquet_on_a_pipe_and_without_its_extra(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pyarrow") is not None:
        assert run(saved, "--format", "parquet").stdout_bytes.startswith(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(saved, "--format", "parquet", "--output", tmp_path / "r.parquet")
    assert result.exit_code == 4
    assert "opreplay[parquet]" in result.stderr
    assert not (tmp_path / "r.parquet").exists()


def test_a_batch_is_shown_with_its_traces_and_jobs(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    traces = [
        TraceResult(
            source=f"rank{rank}.json",
            job="rank*.json",
            rank=rank,
            world_size=2,
            ops=2,
            shared=2,
            replayed=1,
            covered_share=0.6,
            recorded_us=100.0,
            measured_us=3.1,
            simulated_us={"910b3": 6.0},
        )
        for rank in range(2)
    ]
    job = JobResult(
        job="rank*.json",
        ranks=(0, 1),
        world_size=2,
        rank_from="metadata",
        ops=2,
        rank_ops=4,
        replayed=1,
        covered_share=0.6,
        recorded_us=200.0,
        measured_us=6.2,
        slowest_rank_us=100.0,
        simulated_us={"910b3": 12.0},
    )
    with JsonLinesSink.open(path) as sink:
        for record in (HEADER, *OPS, *traces, job, SUMMARY):
            sink.write(record)
    text = run(path).stdout
    assert "2 traces with 4 ops, 2 of them unique" in text
    assert "rank1" in text
    assert "2 of 2" in text
    assert "| rank1.json | 1 | 2 | 1 |" in run(path, "--format", "markdown").stdout
    whole = json.loads(run(path, "--format", "json").stdout)
    assert [trace["rank"] for trace in whole["traces"]] == [0, 1]
    assert whole["jobs"][0]["world_size"] == 2
