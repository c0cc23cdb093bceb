"""One trace under several names is told by what the files hold."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from opreplay.replay.batch.reading import copies_of

TEXT = b'{"traceEvents": [1, 2, 3]}'


def names(folder: Path) -> dict[str, str]:
    paths = sorted(str(path) for path in folder.iterdir())
    return {os.path.basename(a): os.path.basename(b) for a, b in copies_of(paths).items()}


def test_copies_links_and_packed_copies_are_one_trace(tmp_path: Path) -> None:
    (tmp_path / "rank3.json").write_bytes(TEXT)
    (tmp_path / "backup.json").symlink_to(tmp_path / "rank3.json")
    (tmp_path / "z1.json.gz").write_bytes(gzip.compress(TEXT, 1, mtime=0))
    (tmp_path / "z9.json.gz").write_bytes(gzip.compress(TEXT, 9, mtime=9))
    (tmp_path / "other.json").write_bytes(TEXT.replace(b"3", b"4"))
    assert names(tmp_path) == dict.fromkeys(("backup.json", "z1.json.gz", "z9.json.gz"), "rank3.json")


def test_the_older_one_is_the_trace(tmp_path: Path) -> None:
    for name, at in (("a copy.json", 20), ("trace.json", 10)):
        (tmp_path / name).write_bytes(TEXT)
        os.utime(tmp_path / name, (at, at))
    assert names(tmp_path) == {"a copy.json": "trace.json"}


@pytest.mark.parametrize("damage", [slice(0, -6), slice(0, 4), slice(0, 0)])
def test_what_cannot_be_unpacked_is_compared_as_it_is(tmp_path: Path, damage: slice) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    (tmp_path / "a.json.gz").write_bytes(packed)
    (tmp_path / "b.json.gz").write_bytes(packed[damage])
    (tmp_path / "c.json.gz").write_bytes(packed[damage])
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    assert names(tmp_path) == ({"c.json.gz": "b.json.gz"} if packed[damage] else {})


def test_a_file_that_lies_about_its_size_is_not_unpacked_beyond_it(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(10_000_000))
    (tmp_path / "bomb.json.gz").write_bytes(packed[:-4] + len(TEXT).to_bytes(4, "little"))
    (tmp_path / "plain.json").write_bytes(TEXT)
    assert names(tmp_path) == {}
