"""Advice on steps with a planted bottleneck of known size; the benchmark has more of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.advice import KINDS, outcome


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_planted_bottleneck_is_the_first_advice(kind: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        found = outcome(kind, seed, tmp_path)
        assert found.is_on_top, found.first
        assert found.is_close, (found.truth_us, found.right)
