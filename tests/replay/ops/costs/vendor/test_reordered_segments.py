"""Predictions of ops that reorder jagged segments say that they rest on plain copies."""

from __future__ import annotations

from opreplay.replay.ascend import lower
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls


def test_reordered_segments_note_that_they_were_never_measured() -> None:
    call = "fbgemm::permute_2D_sparse_data(i32[26],i32[26,4096],i64[1000000],f32[1000000])"
    (op,) = plan_of_calls(over_sizes([call], []), allow_imports={}, device="cpu")[0].ops
    lowering = lower(op)
    assert {kernel.type for kernel in lowering.kernels} == {"ConcatD"}
    assert any("never measured" in note for note in lowering.notes)
