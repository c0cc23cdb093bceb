"""A result file while it is written, and when it is taken up again: no partial line is ever left or accepted."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.records import Header, OpResult, Resumed, Summary
from opreplay.replay.results.writing import JsonLinesSink, write_whole
from opreplay.traces.errors import EnvironmentRefused, FormatError, UsageError

HEADER = Header(opreplay_version="0", started_at="2026-01-01T00:00:00+00:00", trace={}, environment={}, options={})
RESUMED = Resumed(started_at="2026-01-01T00:00:00+00:00", kept=1, environment={})


def op(name: str, status: str = "replayed") -> OpResult:
    return OpResult(id=name.ljust(12, "0"), name=f"aten::{name}", count=1, status=status)  # type: ignore[arg-type]


def summary(*, interrupted: bool) -> Summary:
    return Summary(
        ops=2,
        replayed=2,
        skipped=0,
        failed=0,
        reasons={},
        covered_share=1.0,
        recorded_us=1.0,
        measured_us=1.0,
        simulated_us={},
        wall_s=1.0,
        interrupted=interrupted,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        for record in (HEADER, op("a"), summary(interrupted=True)):
            sink.write(record)
    return path


def test_a_continued_file_has_the_lines_of_both_parts(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b'{"record":"op","id":"b')
    sink, earlier = JsonLinesSink.reopen(path)
    with sink:
        assert [result.name for result in earlier.results] == ["aten::a"]
        for record in (RESUMED, op("b"), summary(interrupted=False)):
            sink.write(record)
    whole = read_result_file(path)
    assert [result.name for result in whole.results] == ["aten::a", "aten::b"]
    assert whole.summary == summary(interrupted=False)
    assert whole.complete_bytes == path.stat().st_size


def test_an_op_done_again_counts_once_with_its_last_result(path: Path) -> None:
    sink, _ = JsonLinesSink.reopen(path)
    with sink:
        for record in (RESUMED, op("a", "failed"), op("b")):
            sink.write(record)
    results = read_result_file(path).results
    assert [(result.name, result.status) for result in results] == [("aten::a", "failed"), ("aten::b", "replayed")]
    assert read_result_file(path).summary is None


def test_a_line_after_the_summary_needs_a_process_that_continued(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b'{"record":"op","id":"b","name":"x","count":1,"status":"replayed"}\n')
    with pytest.raises(FormatError, match="a line follows the summary"):
        read_result_file(path)


def test_one_process_writes_a_file(path: Path) -> None:
    sink, _ = JsonLinesSink.reopen(path)
    with sink:
        before = path.read_bytes()
        with pytest.raises(UsageError, match="another run is writing"):
            JsonLinesSink.reopen(path)
        with pytest.raises(UsageError, match="another run is writing"):
            JsonLinesSink.open(path, force=True)
        assert path.read_bytes() == before


def test_what_is_no_result_file_is_left_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "notes.jsonl"
    other.write_text("my notes\nare not results")
    with pytest.raises(FormatError):
        JsonLinesSink.reopen(other)
    assert other.read_text() == "my notes\nare not results"
    with pytest.raises(UsageError, match="the file does not exist"):
        JsonLinesSink.reopen(tmp_path / "absent.jsonl")


def test_a_line_without_room_is_taken_out_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(write: Callable[[bytes], int], data: bytes) -> None:
        write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    sink, earlier = JsonLinesSink.reopen(path)
    with sink:
        with monkeypatch.context() as patch:
            patch.setattr("opreplay.replay.results.writing.write_whole", half)
            with pytest.raises(EnvironmentRefused, match="No space left on device") as refused:
                sink.write(op("b"))
            with pytest.raises(EnvironmentRefused):
                sink.write(summary(interrupted=True))
        assert "--resume" in refused.value.hint
        assert path.stat().st_size == earlier.complete_bytes
        sink.write(RESUMED)
    assert read_result_file(path).results == earlier.results


def test_lines_are_written_in_as_many_pieces_as_the_system_takes() -> None:
    written = bytearray()

    def write(data: memoryview) -> int:
        written.extend(data[:3])
        return min(3, len(data))

    write_whole(write, b"0123456789")
    assert bytes(written) == b"0123456789"


def test_a_compressed_result_says_that_it_is(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(FormatError, match="compressed"):
        read_result_file(path)
