"""Answers of the server that are cut: the most rows that fit, at least one of each list, and what was left out."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from opreplay.cli.assistant.answers import (
    LEAST_BYTES,
    Answer,
    ChangeRow,
    Changes,
    Compared,
    ComparedRow,
    FileRow,
    Files,
    LossRow,
    OpRow,
    Prediction,
    SweepRow,
    Swept,
    TimeRow,
    TopOps,
    Why,
    fitted,
)

TEXT = "name_" * 12


def size(answer: Answer) -> int:
    return len(json.dumps(asdict(answer), indent=2, ensure_ascii=False).encode())


def top_ops(count: int, name: str = TEXT) -> TopOps:
    rows = [
        OpRow(id=f"{i:016x}", name=name, inputs="f32[8]", count=1, recorded_us=1.5, share=0.1) for i in range(count)
    ]
    return TopOps(clock="device", total_us=1.0, ops=rows)


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [2048, 4096, 16_384, 65_536])
@pytest.mark.parametrize("count", [1, 20, 300, 3000])
def test_the_most_rows_that_fit_are_kept(count: int, max_bytes: int) -> None:
    whole = top_ops(count)
    cut = fitted(whole, max_bytes)
    kept = len(cut.ops)
    assert size(cut) <= max_bytes
    assert cut.ops == whole.ops[:kept]
    assert kept >= 1
    if kept == count:
        assert cut.cut == ""
        return
    assert f"ops: {kept} of {count}" in cut.cut
    row = size(top_ops(2)) - size(top_ops(1))
    assert size(cut) + row > max_bytes - 100, "one more row would fit"


CUT: dict[str, Answer] = {
    "files": Files(folders=["/a"], files=[FileRow(name=TEXT, size_bytes=1) for _ in range(999)]),
    "why": Why(
        verdict="v",
        bound="b",
        step="s",
        steps=1,
        step_us=1.0,
        busy_us=1.0,
        communication_us=0.0,
        idle_us={f"cause {i}": 1.0 for i in range(99)},
        causes=[TimeRow(name=TEXT, time_us=1.0, share=0.1) for _ in range(999)],
        unknown_wait_us=0.0,
    ),
    "changes": Changes(
        step_us=1.0,
        structure_error=0.0,
        changes=[
            ChangeRow(change=TEXT, step_us=1, low_us=1, high_us=1, gain_us=1, matched=1, assumptions=[TEXT] * 500)
            for _ in range(3)
        ],
    ),
    "prediction": Prediction(
        ops=9,
        covered_share=1.0,
        recorded_us=1.0,
        socs=[],
        losing=[LossRow(soc="s", id="i", name=TEXT, lost_us=1.0) for _ in range(500)],
        problems=[TEXT] * 500,
    ),
    "compared": Compared(
        verdict="v",
        ratio=1.0,
        low=None,
        high=None,
        counts={f"verdict {i}": i for i in range(200)},
        ops=[
            ComparedRow(
                id=TEXT * 50,
                name=TEXT * 50,
                inputs=TEXT * 50,
                verdict=TEXT * 50,
                count=1,
                before_us=1.0,
                after_us=1.0,
                ratio=1.0,
                note=TEXT * 50,
            )
            for _ in range(50)
        ],
    ),
    "swept": Swept(
        socs=["a", "b"],
        cases=[
            SweepRow(
                call=TEXT,
                sizes={f"n{i}": i for i in range(50)},
                simulated_us={"a": 1.0, "b": 1.0},
                bound=None,
                reason="",
            )
            for _ in range(2999)
        ],
    ),
    "long texts": top_ops(300, TEXT * 1000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("max_bytes", [LEAST_BYTES, 4096, 30_000])
def test_every_answer_that_is_cut_keeps_rows_of_each_list(name: str, max_bytes: int) -> None:
    whole = CUT[name]
    cut = fitted(whole, max_bytes)
    assert size(cut) <= max_bytes
    assert cut.cut
    for field, value in asdict(whole).items():
        if isinstance(value, (list, dict)) and value:
            kept = len(getattr(cut, field))
            assert kept >= 1
            assert kept == len(value) or f"{field}: {kept} of {len(value)}" in cut.cut
