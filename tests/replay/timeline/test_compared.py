"""What the first line of a comparison may claim: the steps of both sides, and how far they vary."""

from __future__ import annotations

from typing import Literal

import pytest

from opreplay.replay.report.views.comparison import parts_table
from opreplay.replay.timeline.compared import StepChange, StepParts


def steps(*lengths_us: float, device: bool = True) -> tuple[StepParts, ...]:
    return tuple(
        StepParts(
            name="ProfilerStep#1",
            step_us=us,
            host_us=us,
            device_sum_us=us / 2 if device else 0.0,
            busy_us=us / 2,
            communication_us=0.0,
            idle_us={},
        )
        for us in lengths_us
    )


@pytest.mark.parametrize(
    ("paired", "before", "after", "clear"),
    [
        ("number", (100.0, 200.0, 300.0), (100.0, 200.0, 300.0), True),  # all the same
        ("number", (100.0, 200.0, 300.0), (90.0, 180.0, 271.0), True),
        ("number", (100.0, 100.0, 100.0), (50.0, 100.0, 200.0), False),
        ("median", (100.0, 100.0, 150.0), (120.0,), False),  # one step, among those of the other side
        ("median", (100.0, 100.0, 150.0), (160.0,), True),
    ],
)
def test_a_change_is_clear_beyond_the_variation_that_is_known(
    paired: Literal["number", "median"], before: tuple[float, ...], after: tuple[float, ...], clear: bool
) -> None:
    for sides in ((before, after), (after, before)):
        change = StepChange(paired=paired, before=steps(*sides[0]), after=steps(*sides[1]))
        assert change.is_clear == clear


def test_a_step_of_a_device_and_one_of_a_host_have_only_their_lengths_in_common() -> None:
    change = StepChange(paired="number", before=steps(100.0), after=steps(100.0, device=False))
    assert [row[0] for row in parts_table(change).rows] == ["step", "host, the marked range"]
    alike = StepChange(paired="number", before=steps(100.0), after=steps(90.0))
    assert len(parts_table(alike).rows) == 4
