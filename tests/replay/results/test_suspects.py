"""Causes that are named for rows whose times contradict each other."""

from __future__ import annotations

import msgspec
import pytest

from opreplay.replay.ir.model import Assumption, Recorded, ReplayOp, ReplayPlan
from opreplay.replay.plan.passes import merge_same_ids
from opreplay.replay.resolve.user.table import OpFunction, not_needed_text
from opreplay.replay.results.outcome import NOT_FINITE
from opreplay.replay.results.records import Simulated
from opreplay.replay.results.suspects import suspicions

SIMULATED = Simulated(
    time_us=20.0,
    bound="hbm",
    terms_us={},
    kernels=("Mul",),
    confidence="calibrated",
    low_us=10.0,
    high_us=40.0,
)


def told(count: int, total_us: float, median_us: float, measured_us: float) -> tuple[str, ...]:
    recorded = Recorded(host_us_total=total_us, host_us_median=median_us)
    op = ReplayOp(id="0" * 12, name="aten::mm", count=count, recorded=recorded)
    return suspicions(op, share=0.5, recorded_us=total_us / count, measured_us=measured_us)


def test_a_call_that_was_interrupted_is_named_before_other_causes() -> None:
    (line,) = told(3, 61_400.0, 700.0, 680.0)
    assert "make the recorded mean 29 times the recorded median" in line
    assert "0.97 times the median" in line
    assert "values, sizes or libraries differ" not in line


def test_calls_that_are_alike_name_another_cause() -> None:
    (line,) = told(3, 61_400.0, 20_000.0, 680.0)
    assert "values, sizes or libraries differ" in line
    (line,) = told(1, 20_000.0, 20_000.0, 680.0)
    assert "values, sizes or libraries differ" in line


def test_values_that_were_refilled_are_the_likeliest_cause() -> None:
    op = ReplayOp(id="0" * 12, name="aten::sqrt", count=1, recorded=Recorded(host_us_total=45.0, host_us_median=45.0))
    (line,) = suspicions(op, share=0.5, recorded_us=45.0, measured_us=3719.0, refilled=(NOT_FINITE,))
    assert "opreplay's own values" in line
    assert NOT_FINITE in line
    assert "libraries" not in line


def test_recorded_communication_holds_the_wait_for_other_ranks_on_hosts_as_well() -> None:
    """gloo records no group, so one is assumed; that explains no short time."""
    assumed = Assumption(argument="group", what="all ranks")
    recorded = Recorded(host_us_total=60_000.0, host_us_median=20_000.0)
    op = ReplayOp(id="0" * 12, name="c10d::allreduce_", count=3, recorded=recorded, assumptions=(assumed,))
    (line,) = suspicions(op, share=0.5, recorded_us=20_000.0, measured_us=500.0)
    assert "includes the wait for other ranks" in line
    (line,) = suspicions(op, share=0.5, recorded_us=20_000.0, measured_us=2e6)
    assert "a value missing in the trace was assumed" in line


def test_few_calls_are_said_to_be_too_few_for_a_median() -> None:
    for count in (1, 2):
        (line,) = told(count, count * 20_000.0, 20_000.0, 309.0)
        assert "too few for a median" in line
    (line,) = told(9, 9 * 20_000.0, 20_000.0, 309.0)
    assert "too few for a median" not in line


def test_the_first_of_calls_that_are_merged_one_by_one_is_not_their_median() -> None:
    """Calls of nine signatures, which differ in what is no part of an op, the first of them interrupted."""
    times = (108_884.0, 608.0, 655.0, 677.0, 640.0, 655.0, 660.0, 650.0, 670.0)
    parts = tuple(
        ReplayOp(
            id="0" * 12,
            name="aten::sqrt",
            count=1,
            resolved_by="jit",
            recorded=Recorded(host_us_total=us, host_us_median=us, device_us_total=us, device_us_median=us),
        )
        for us in times
    )
    (op,) = merge_same_ids(ReplayPlan(source="t.json", ops=parts, host_us_total=sum(times), device_us_total=0.0)).ops
    assert (op.count, op.recorded.host_us_median, op.recorded.device_us_median) == (9, 655.0, 655.0)
    (line,) = suspicions(op, share=0.5, recorded_us=sum(times) / 9, measured_us=482.0)
    assert "a few long calls make the recorded mean" in line


@pytest.mark.parametrize("us", [23.0, 2e6])
def test_a_registered_function_that_did_not_run_explains_no_time(us: float) -> None:
    unused = Assumption(argument="*", what=not_needed_text(OpFunction(ops=("my::op",), function=told)))
    assumed = Assumption(argument="bias", what="not recorded, taken as None")
    recorded = Recorded(host_us_total=180_000.0, host_us_median=20_000.0)
    op = ReplayOp(id="0" * 12, name="my::op", count=9, recorded=recorded, assumptions=(unused,))
    simulated = [("910b3", SIMULATED)]
    for line in suspicions(op, share=0.5, recorded_us=20_000.0, measured_us=us, simulated=simulated):
        assert "assumed" not in line
        assert "not used" not in line
    both = msgspec.structs.replace(op, assumptions=(unused, assumed))
    lines = suspicions(both, share=0.5, recorded_us=20_000.0, measured_us=us, simulated=simulated)
    assert len(lines) == 2
    assert all("(bias: not recorded, taken as None)" in line for line in lines)
