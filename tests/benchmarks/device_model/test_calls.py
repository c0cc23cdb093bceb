"""What is learned from measured calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device_model.calls import known_calls, learned_text, left_out
from opreplay.replay.ascend.measured.call_tables import MeasuredCall, read_call_table

ROWS = """source,soc,l2,op,torch_us
a/b:one.csv@123,910b2,cold,"aten::mish(f32[1024,1024])",14
a/b:one.csv@456,950pr,unknown,"aten::mish(f32[2048,1024])",8
c/d#7,910b2,warm,"aten::add(f32[64],f32[64]) ; aten::relu(f32[64])",5.5
"""


@pytest.fixture
def calls(tmp_path: Path) -> tuple[MeasuredCall, ...]:
    path = tmp_path / "calls.csv"
    path.write_text(ROWS)
    return read_call_table(path).calls


def test_what_is_learned_names_no_time_and_its_source(calls: tuple[MeasuredCall, ...]) -> None:
    text = learned_text(calls)
    assert len(text.splitlines()) == 1 + len(known_calls(calls)) == 3
    assert "a/b:one.csv" in text


def test_parts_are_left_out_where_there_are_several(calls: tuple[MeasuredCall, ...]) -> None:
    assert {name: len(pairs) for name, pairs in left_out(known_calls(calls), lambda step: None).items()} == {"folds": 2}
