from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import pytest

from opreplay.replay.results.reading import read_result_file, read_results
from opreplay.replay.results.records import SCHEMA_VERSION, Header, OpResult, Record, Summary
from opreplay.replay.results.resume import is_out_of_time
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.errors import FormatError, UsageError

HEADER = Header(opreplay_version="0", started_at="2026-01-01T00:00:00+00:00", trace={}, environment={}, options={})
RESULT = OpResult(
    id="0" * 12, name="aten::mm", count=3, status="replayed", measured_us=1.5, simulated_us={"910B3": 2.0}
)
SUMMARY = Summary(
    ops=1,
    replayed=1,
    skipped=0,
    failed=0,
    reasons={},
    covered_share=1.0,
    recorded_us=1.0,
    measured_us=4.5,
    simulated_us={"910B3": 6.0},
    wall_s=0.1,
)


def write(path: Path, *records: Record) -> Path:
    with JsonLinesSink.open(path) as sink:
        for record in records:
            sink.write(record)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, RESULT, SUMMARY)
    assert read_results(path) == (HEADER, [RESULT], SUMMARY)


def test_lines_are_plain_json_with_a_record_and_a_version(tmp_path: Path) -> None:
    lines = [
        json.loads(line) for line in write(tmp_path / "r.jsonl", HEADER, RESULT, SUMMARY).read_bytes().splitlines()
    ]
    assert [line["record"] for line in lines] == ["header", "op", "summary"]
    assert lines[0]["schema_version"] == SCHEMA_VERSION
    assert {"name", "count", "status", "reason", "resolved_by", "measured_us", "simulated_us", "bound"} <= set(lines[1])


def test_every_cut_of_the_file_loses_the_last_line_only(tmp_path: Path) -> None:
    whole = write(tmp_path / "r.jsonl", HEADER, RESULT, RESULT, SUMMARY).read_bytes()
    first, second = whole.index(b"\n") + 1, len(whole) - whole[::-1].index(b"\n", 1)
    cut = tmp_path / "cut.jsonl"
    for size in range(first, len(whole)):
        cut.write_bytes(whole[:size])
        header, results, summary = read_results(cut)
        assert header == HEADER
        assert summary is None
        assert len(results) == (2 if size >= second else whole[first:size].count(b"\n"))


def test_the_text_of_a_file_is_not_held(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, RESULT, SUMMARY)
    header, result, summary = path.read_bytes().splitlines()
    padded = result[:-1] + b" " * 20_000 + b"}"
    path.write_bytes(b"\n".join([header, *[padded] * 200, summary, b""]))
    tracemalloc.start()
    file = read_result_file(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(file.results), file.complete_bytes) == (200, path.stat().st_size)
    assert peak < file.complete_bytes / 4


def test_each_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    sink = JsonLinesSink.open(path)
    sink.write(HEADER)
    sink.write(RESULT)
    assert read_results(path)[1] == [RESULT]
    sink.close()
    sink.close()


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER)
    with pytest.raises(UsageError, match="exists") as caught:
        JsonLinesSink.open(path)
    assert "--force" in caught.value.hint
    with JsonLinesSink.open(path, force=True) as sink:
        sink.write(HEADER)
    with pytest.raises(UsageError, match="cannot write"):
        JsonLinesSink.open(tmp_path / "no" / "folder.jsonl")


def test_a_stream_of_the_caller_stays_open() -> None:
    stream = io.BytesIO()
    with JsonLinesSink(stream) as sink:
        sink.write(SUMMARY)
    assert json.loads(stream.getvalue())["record"] == "summary"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no complete line"),
        (b'{"traceEvents": []}\n', "not a header"),
        (b"\x89PNG\r\n", "not a header"),
        (b'{"record": "header", "schema_version": 99}\n', "schema 99"),
        (b'{"record": "header", "schema_version": 1}\n', "line 1"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=message):
        read_results(path)


def test_damage_inside_is_no_partial_last_line(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, RESULT, SUMMARY)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:20] + b"\n" + lines[2])
    with pytest.raises(FormatError, match="line 2"):
        read_results(path)
    path.write_bytes(lines[0] + lines[2] + lines[1])
    with pytest.raises(FormatError, match="a line follows the summary"):
        read_results(path)
    with pytest.raises(FormatError, match="cannot read"):
        read_results(tmp_path / "absent.jsonl")


def test_reasons_of_older_files_are_text(tmp_path: Path) -> None:
    texts = ["collective: c10d", "budget: time: the run's 3 s are spent (--total-time)", "budget: memory: 4 GB", "odd"]
    lines = [
        {
            "record": "header",
            "schema_version": 3,
            "opreplay_version": "0",
            "started_at": "",
            "trace": {},
            "environment": {},
            "options": {},
        }
    ]
    lines += [
        {"record": "op", "id": f"{n:012x}", "name": "a::b", "count": 1, "status": "skipped", "reason": text}
        for n, text in enumerate(texts)
    ]
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_result_file(path).results
    assert [(one.why_not().kind, one.why_not().detail) for one in read] == [
        ("collective", "c10d"),
        ("out of time", "the run's 3 s are spent (--total-time)"),
        ("budget", "memory: 4 GB"),
        ("failed", "odd"),
    ]
    assert list(map(is_out_of_time, read)) == [False, True, False, False]
