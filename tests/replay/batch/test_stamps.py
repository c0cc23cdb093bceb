"""A file that changed has another stamp, also when its time was set back; the rank is found without reading a trace."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from opreplay.replay.batch.ranks import PEEK_BYTES, rank_at_start
from opreplay.replay.batch.stamps import END_BYTES, stamp_of, stamps_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_bytes(bytes(range(256)) * 1024)
    return path


@pytest.mark.parametrize("at", [0, END_BYTES - 1, END_BYTES * 2, -1, -END_BYTES])
def test_a_change_of_the_content_counts(file: Path, at: int) -> None:
    before, times = stamp_of(str(file)), os.stat(file)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = stamp_of(str(file))
    assert before is not None
    assert after is not None
    assert before.mtime_ns == after.mtime_ns
    assert before != after


def test_size_and_time_count(file: Path) -> None:
    before = stamp_of(str(file))
    assert before == stamp_of(str(file))
    os.utime(file, ns=(1, 1))
    touched = stamp_of(str(file))
    assert before != touched
    file.write_bytes(file.read_bytes()[:1000])
    os.utime(file, ns=(1, 1))
    assert touched != stamp_of(str(file))


def test_what_is_no_file_has_none(tmp_path: Path, file: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert [stamp_of(str(path)) for path in (tmp_path, pipe, tmp_path / "absent", "a\0b")] == [None] * 4
    assert stamps_of([str(file), str(pipe)]) is None
    assert stamps_of([]) == ()


@pytest.mark.parametrize("packed", [False, True])
def test_the_rank_at_the_start(tmp_path: Path, packed: bool) -> None:
    text = b'{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 37, "world_size": 64}, "traceEvents":'
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert rank_at_start(str(path)) == 37


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\x1f\x8b broken",
        b" " * PEEK_BYTES + b'"distributedInfo": {"rank": 1}',
        b'"distributedInfo": {"rank": 99999999999}',
        b'"distributedInfo": {' * 2000,
    ],
)
def test_no_rank_at_the_start(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    assert rank_at_start(str(path)) is None
    assert rank_at_start(str(tmp_path / "absent.json")) is None
