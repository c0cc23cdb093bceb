"""What the first line of a comparison may claim: the steps of both sides, and how far they vary."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.report.views.comparison import parts_table
from opreplay.replay.timeline.compared import StepChange, StepParts
from tests.replay.timeline.machine import Machine


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


def test_a_longer_step_can_fail_a_build(tmp_path: Path) -> None:
    """A step with a gap of 20 ms had no slower op and no larger total, so that no condition failed."""
    plain, gap, ops = (Machine() for _ in range(3))
    for machine, us in ((plain, 0.0), (gap, 5000.0)):
        for _ in range(4):
            machine.begin()
            machine.host(us)
            for _ in range(10):
                machine.op("aten::mm", 12.0, ("gemm", 500.0))
            machine.synchronize()
            machine.end()
    ops.op("aten::mm", 12.0, ("gemm", 500.0))
    before, after, unmarked = (
        machine.write(tmp_path / f"{name}.json") for name, machine in (("a", plain), ("b", gap), ("c", ops))
    )

    def code(*args: str) -> int:
        return CliRunner().invoke(opreplay, ["compare", *args]).exit_code

    assert code(before, after, "--fail-if", "slower>5%", "--fail-if", "total>3%") == 0
    assert code(before, after, "--fail-if", "step>3%") == 5
    assert code(before, after, "--fail-if", "step>200%") == 0
    assert code(after, before, "--fail-if", "step>3%") == 0
    assert code(before, unmarked, "--fail-if", "step>3%") == 6
    scattered = StepChange(paired="number", before=steps(100.0, 100.0, 100.0), after=steps(50.0, 100.0, 200.0))
    assert scattered.ratio is not None
    assert (scattered.ratio.ratio, scattered.ratio.is_clear) == (pytest.approx(350 / 300), False)
    assert StepChange().ratio is None


def test_a_step_of_a_device_and_one_of_a_host_have_only_their_lengths_in_common() -> None:
    change = StepChange(paired="number", before=steps(100.0), after=steps(100.0, device=False))
    assert [row[0] for row in parts_table(change).rows] == ["step", "host, the marked range"]
    alike = StepChange(paired="number", before=steps(100.0), after=steps(90.0))
    assert len(parts_table(alike).rows) == 4
