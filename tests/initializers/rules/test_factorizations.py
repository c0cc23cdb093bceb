from __future__ import annotations

import pytest
import torch

from tests.initializers.filled import initialized


@pytest.mark.parametrize("op", ["linalg_lu_solve", "lu_unpack", "linalg_ldl_solve"])
def test_pivots_are_rows_counted_from_one_that_are_not_above(op: str) -> None:
    factors = "LD" if "ldl" in op else "LU_data" if "unpack" in op else "LU"
    pivots = torch.full((3, 6), -5, dtype=torch.int32)
    args = {factors: torch.zeros(3, 6, 6), "LU_pivots" if "unpack" in op else "pivots": pivots}
    initialized(f"aten::{op}", **args)
    assert bool((pivots >= torch.arange(6) + 1).all())
    assert int(pivots.max()) <= 6


def test_solving_with_initialized_factors_stays_finite() -> None:
    found = initialized(
        "aten::linalg_lu_solve",
        LU=torch.randn(2, 5, 5),
        pivots=torch.zeros(2, 5, dtype=torch.int32),
        B=torch.randn(2, 5, 1),
    )
    solved = torch.linalg.lu_solve(found.need("LU"), found.need("pivots"), found.need("B"))
    assert bool(solved.isfinite().all())


def test_error_codes_are_none_and_assertions_hold() -> None:
    assert int(initialized("aten::_linalg_check_errors", info=torch.full((4,), 3)).need("info").abs().sum()) == 0
    assert bool(initialized("aten::_assert_async", self=torch.tensor(False)).need("self"))
