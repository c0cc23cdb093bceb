"""Assumptions of a captured step, as readable text."""

from __future__ import annotations

import pytest

from opreplay.replay.ir.captured import UNFUSED, Capture, step_notes


def capture(**fields: object) -> Capture:
    return Capture(via="dispatch", torch_version="2.11.0", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fused", [False, True])
def test_a_plan_file_that_has_the_note_on_unfused_calls_as_text_says_it_once_and_only_while_it_holds(
    fused: bool,
) -> None:
    old = capture(notes=(UNFUSED, "random routing"), fused=fused, kernels={"npu::npu_swiglu": 2} if fused else {})
    notes = step_notes((old,))
    assert notes.count(UNFUSED) == (not fused)
    assert "random routing" in notes
    assert any("2 npu::npu_swiglu" in note for note in notes) == fused


def test_notes_of_all_stages_are_said_once_with_their_sums() -> None:
    stages = [
        capture(stages=2, fused=True, kernels={"npu::npu_swiglu": n}, quantized={"w8a8": 7}, notes=("a", str(n)))
        for n in (1, 2)
    ]
    one, both = step_notes(stages[:1]), step_notes(stages)
    assert [len(one), len(both)] == [5, 6]
    assert "one of 2 stages" in one[0]
    assert "all pipeline stages" in both[0]
    assert both[1:4] == ("a", "1", "2")
    assert "3 npu::npu_swiglu" in both[4]
    assert both[5].startswith("14 matrix products have w8a8 weights")
