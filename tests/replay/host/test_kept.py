"""Values kept between runs: whole or absent, bounded, and in nobody else's folder."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opreplay.replay.host import kept


def files() -> list[Path]:
    folder = kept.folder()
    assert folder is not None
    return sorted(folder.glob("*")) if folder.is_dir() else []


def test_what_was_stored_is_loaded_and_nothing_else() -> None:
    assert kept.load("a") is None
    kept.store("a", b"one")
    kept.store("b", b"")
    kept.store("a", b"two")
    assert (kept.load("a"), kept.load("b"), kept.load("c")) == (b"two", b"", None)
    assert all(path.stat().st_mode & 0o077 == 0 for path in files())


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_file_counts_as_absent(damage: bytes | None) -> None:
    kept.store("a", b"value" * 1000)
    (path,) = files()
    path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    assert kept.load("a") is None
    kept.store("a", b"again")
    assert kept.load("a") == b"again"


def test_those_not_used_for_longest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_BYTES", 4000)
    for number, key in enumerate("abcd"):
        kept.store(key, os.urandom(900))
        for path in files():
            os.utime(path, ns=(number, number)) if path.stat().st_mtime_ns > 10**9 else None
    assert kept.load("a") is not None  # used now
    kept.store("e", os.urandom(900))
    assert [key for key in "abcde" if kept.load(key) is not None] == ["a", "c", "d", "e"]
    kept.store("f", os.urandom(3000))  # more than a quarter of all
    assert kept.load("f") is None


def test_a_folder_that_others_may_write_in_is_not_used() -> None:
    kept.store("a", b"value")
    folder = kept.folder()
    assert folder is not None
    folder.chmod(0o777)
    assert kept.load("a") is None
    kept.store("b", b"value")
    assert len(files()) == 1


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    kept.store("a", b"value")
    assert kept.load("a") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept.folder() == tmp_path / ".cache" / "opreplay"


def test_writers_and_readers_at_once_see_whole_values() -> None:
    values = [bytes([n]) * 5000 for n in range(8)]

    def work(n: int) -> bool:
        kept.store("one", values[n % 8])
        return kept.load("one") in values

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    assert len(files()) == 1
