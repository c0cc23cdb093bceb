"""No row of any table contradicts its own difference."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.cli.terminal.console import plain_text
from opreplay.replay.plan.recorded.comparing import compare_operands
from opreplay.replay.report.views import comparison as views
from opreplay.replay.results.compare.by_name import by_name
from opreplay.replay.results.compare.judge import Comparison, is_within
from opreplay.replay.results.compare.replaced import StepCall
from opreplay.replay.results.compare.sides import OpTime, Times, compare_times
from opreplay.replay.results.stats import median_interval
from opreplay.replay.timeline.compared import StepParts, step_change
from opreplay.traces.reader import read_trace

SIGNS = {"slower": 1, "gained": 1, "only after": 1, "faster": -1, "lost": -1, "only before": -1}
NAMES = ("aten::mm", "aten::add", "aten::copy_")


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def check(comparison: Comparison) -> None:
    """The sign of each verdict, ratio and difference agree; times differ by the difference."""
    for row in itertools.chain(by_name(comparison), (group for group in views.rows(comparison, everything=True))):
        op = row.op
        assert op.step_change_us is not None
        assert op.step_change_us == pytest.approx((op.after_step_us or 0.0) - (op.before_step_us or 0.0))
        if op.verdict in SIGNS:
            assert SIGNS[op.verdict] == sign(op.step_change_us), op
        if op.ratio is not None and op.verdict in ("slower", "faster"):
            assert sign(op.ratio - 1.0) == SIGNS[op.verdict], op
            assert not is_within(op.ratio, comparison.applied), op
            assert op.low is None or op.high is None or not op.low <= 1.0 <= op.high, op


def side(name: str, clock: Any, paired: Any, steps: Iterable[Iterable[tuple[str, int, float]]]) -> Times:
    """Steps of calls: op, shape and time of each."""
    calls = [[StepCall(id=f"{op}{shape}", name=op, us=us) for op, shape, us in step] for step in steps]
    by_id: dict[str, list[StepCall]] = {}
    for call in itertools.chain.from_iterable(calls):
        by_id.setdefault(call.id, []).append(call)
    ops: list[OpTime] = []
    for id_, of_id in by_id.items():
        times = sorted(call.us for call in of_id if call.us > 0)
        low, high = median_interval(times) or (None, None)
        ops.append(
            OpTime(
                id=id_,
                name=of_id[0].name,
                inputs=id_,
                count=len(of_id),
                us=times[len(times) // 2] if times else None,
                low_us=low,
                high_us=high,
                calls=len(times),
                total_us=sum(times),
            )
        )
    in_steps = tuple(map(tuple, calls))
    return Times(
        what="recorded", on="one GPU", clock=clock, source=name, ops=tuple(ops), paired=paired, in_steps=in_steps
    )


CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from([0.0, 1.0, 1.04, 1.2, 5.0, 90.0])), max_size=14
)
STEPS = st.lists(CALLS, min_size=3, max_size=3)


@given(STEPS, STEPS, st.sampled_from(["device", "host"]), st.sampled_from(["number", "median", "whole"]))
def test_random_pairs(before: Any, after: Any, clock: str, paired: str) -> None:
    check(compare_times(side("a", clock, paired, before), side("b", clock, paired, after)))


def test_ops_that_run_once_in_the_same_step_of_both_are_compared_with_each_other() -> None:
    """An op of one step of each recording was "slower 1.682×, Δ −5.6 ms": other steps were compared."""
    plain, once = [("aten::mm", 0, 100.0)], [("aten::mm", 0, 100.0), ("aten::copy_", 0, 5600.0)]
    slow = [("aten::mm", 0, 100.0), ("aten::copy_", 0, 9400.0)]
    found = compare_times(
        side("a", "device", "number", [plain, once, plain]), side("b", "device", "number", [plain, slow, plain])
    )
    first = found.ops[0]
    assert (first.name, first.verdict, first.step_change_us) == ("aten::copy_", "slower", pytest.approx(3800 / 3))
    assert first.ratio == pytest.approx(9400 / 5600)


def test_shapes_that_differ_between_the_files_are_one_row() -> None:
    steps = [
        [[("aten::mm", shape, 10.0) for shape in range(10 * at, 10 * at + 5)] + [("aten::add", 0, 7.0)]]
        for at in range(2)
    ]
    found = compare_times(side("a", "device", "number", steps[0]), side("b", "device", "number", steps[1]))
    assert (len(found.ops), len(by_name(found))) == (11, 2)
    mm = next(row for row in by_name(found) if row.op.name == "aten::mm")
    assert (mm.op.verdict, mm.op.inputs, len(mm.shapes)) == ("same", "5 → 5 shapes", 10)
    assert len(views.rows(found, everything=True)) == 12


@pytest.mark.slow
def test_public_pairs(shared_traces: Path) -> None:
    names = (
        "nvidia_sampled_rank0",
        "nvidia_sampled_rank1",
        "h100_qwen1.5_0.5b",
        "h100_bert_small",
        "mi300_normalization",
    )
    traces = [read_trace(shared_traces / f"{name}.json.gz", activity=True) for name in names]
    for before, after in itertools.pairwise([*traces, traces[0]]):
        comparison = compare_operands([before], [after])
        check(comparison)
        steps = step_change(before, after)
        assert plain_text(views.view(comparison, steps), 80).count("\n") <= 40
        assert steps.is_known == (comparison.paired != "whole")
        if steps.is_known:
            ratio = steps.step_us[1] / steps.step_us[0]
            line = views.headline(comparison, steps)
            assert ("slower" in line, "faster" in line) == (ratio > 1.005, ratio < 1 / 1.005)
            assert all(isinstance(step, StepParts) for step in steps.before)
