"""What is read with a trace counts among its files: a plan is not found again once one of them is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.batch.reading import HowToRead
from opreplay.replay.batch.stamps import stamps_of
from opreplay.replay.plan.selection import Selection
from opreplay.traces.joins.graph_capture import MAX_CANDIDATES


@pytest.fixture
def how() -> HowToRead:
    selection = Selection(select="owner", include=(), exclude=(), top=None, min_share=None, allow_imports={})
    return HowToRead(selection=selection, device="cpu")


def test_tables_and_captures_beside_a_trace_are_among_its_files(how: HowToRead, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{}")
    assert how.files(str(path)) == [str(path)]
    beside = [tmp_path / "kernel_details.csv", tmp_path / "run_capture.json"]
    for file in beside:
        file.write_text("")
    beside_known: dict[str, tuple[str, ...]] = {}
    how.files(str(tmp_path / "absent.json"), beside_known)
    for _ in range(2):
        assert how.files(str(path), beside_known) == [str(path), *map(str, beside)]
    assert how.files(str(beside[1]), beside_known) == [str(beside[1]), str(beside[0])], "no capture of its own"
    assert how.files(str(tmp_path / "absent.json")) == [str(tmp_path / "absent.json")]


def test_a_trace_beside_more_captures_than_are_read_is_not_stored(how: HowToRead, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{}")
    for number in range(MAX_CANDIDATES + 1):
        (tmp_path / f"capture_{number}.json").write_text("{}")
    assert stamps_of(how.files(str(path))) is None
