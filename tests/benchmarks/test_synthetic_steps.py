"""What-ifs of steps whose truth is known, class by class; the benchmark has more programs of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.synthetic_steps import CLASSES, OUTSIDE_OPS, answers, levels_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", list(CLASSES))
def test_what_a_change_makes_of_the_pace(name: str, tmp_path: Path) -> None:
    for seed in (11, 12):
        step_error, changes = answers(CLASSES[name], seed, tmp_path)
        assert abs(step_error) < 0.01
        assert changes
        wrong = [(one.change, one.truth_us, one.predicted_us) for one in changes if not one.right]
        assert not wrong


@pytest.mark.parametrize("name", [name for name, one in CLASSES.items() if one.machine.get("records_waits", True)])
def test_profiles_of_one_run_at_several_levels_tell_the_same(name: str, tmp_path: Path) -> None:
    for seed in (11, 12, 13):
        for level, answer in levels_of(CLASSES[name], seed, tmp_path):
            if level == "no waits" or name not in OUTSIDE_OPS:
                assert answer.right, (level, answer.change)
