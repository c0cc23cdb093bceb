"""How far a result may be off: integers by as much as a rounding of the arguments moves them, no further."""

from __future__ import annotations

import torch

from opreplay.replay.check.calling.closeness import compare


def test_integers_may_move_as_roundings_of_the_arguments_move_them() -> None:
    exact = torch.tensor([3, 7, -2], dtype=torch.int8)
    shaken = [torch.tensor([3, 8, -2], dtype=torch.int8)]
    assert compare(torch.tensor([3, 8, -2], dtype=torch.int8), exact, shaken=shaken).fits
    off = compare(torch.tensor([3, 8, -1], dtype=torch.int8), exact, shaken=shaken)
    assert not off.fits
    assert off.where == "1 of 3 differ, at (2,) it is -1, not -2"
    assert not compare(torch.tensor([3, 8, -2], dtype=torch.int8), exact).fits


def test_truth_values_must_be_equal() -> None:
    exact = torch.tensor([True, False])
    assert not compare(torch.tensor([True, True]), exact, shaken=[torch.tensor([False, True])]).fits
