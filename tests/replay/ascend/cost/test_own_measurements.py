"""What a user's measurements make of other predictions, and which calls they are worth most for."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from random import Random
from typing import Any

import pytest

from opreplay.replay.ascend.cost.own_measurements import Estimate, Measured, choose, own_measurements
from opreplay.replay.ascend.profile import OwnMeasurement


def estimate(call: str, op: str = "MatMulV3", family: str = "MatMul", time_us: float = 100.0, **more: Any) -> Estimate:
    return Estimate(call=call, op=op, family=family, time_us=time_us, **{"band": 2.0, "state": "cold", **more})


def measured(*calls: tuple[Estimate, float], spread: float = 0.0) -> Measured:
    """Calls and measured over predicted of each."""
    return Measured([c for c, _ in calls], [log(ratio) for _, ratio in calls], [spread] * len(calls))


BIG = estimate("big")


def test_the_measured_call_is_predicted_as_measured_with_a_narrow_band() -> None:
    known = measured((BIG, 1.5)).ask(BIG)
    assert known.factor == pytest.approx(1.5, rel=0.01)
    assert known.band < 1.1
    assert known.nearest == "call"


def test_in_another_state_of_the_caches_the_factor_is_damped() -> None:
    in_network = measured((BIG, 1.5)).ask(estimate("big", state="sequence"))
    assert 1.3 < in_network.factor < 1.45
    both = measured((BIG, 1.5), (estimate("big", state="warm"), 1.5)).ask(estimate("big", state="sequence"))
    assert in_network.factor < both.factor < 1.5
    assert both.band < in_network.band


def test_the_nearer_a_call_the_more_of_the_factor_it_gets() -> None:
    known = measured((BIG, 2.0))
    same_op = known.ask(estimate("other"))
    small = known.ask(estimate("small", time_us=1.0))
    family = known.ask(estimate("add", op="BatchMatMul"))
    unrelated = known.ask(estimate("add", op="Add", family="Add"))
    assert 2.0 > same_op.factor > family.factor > unrelated.factor > 1.0
    assert same_op.factor > small.factor
    assert [a.nearest for a in (same_op, family, unrelated)] == ["op", "family", ""]
    assert same_op.band < family.band < unrelated.band < 2.2


def test_more_calls_of_an_op_are_believed_more() -> None:
    few = measured((estimate("a"), 2.0)).ask(estimate("x")).factor
    many = measured(*((estimate(name), 2.0) for name in "abcd")).ask(estimate("x")).factor
    assert few < many < 2.0


def test_unsteady_measurements_pull_less() -> None:
    assert measured((BIG, 2.0), spread=1.0).ask(BIG).factor < 1.3


def test_a_prediction_with_a_narrow_band_moves_less_than_one_with_a_wide_band() -> None:
    known = measured((estimate("a", band=3.0), 3.0))
    assert known.ask(estimate("sure", band=1.1)).factor < 1.1
    assert known.ask(estimate("unsure", band=3.0)).factor > 1.5


def test_bands_of_the_rest_widen_where_measurements_are_outside_theirs() -> None:
    calls = [estimate(name, op=name, family=name) for name in "abcdef"]
    alike, wild = (measured(*zip(calls, ratios, strict=True)) for ratios in ([1.02] * 6, [8.0, 0.1] * 3))
    assert alike.ask(estimate("x")).band < 2.0 < wild.ask(estimate("x")).band


def test_one_absurd_measurement_does_not_spread() -> None:
    assert measured((BIG, 1e6)).ask(estimate("add", op="Add", family="Add")).factor < 2.0


def test_a_wrong_row_moves_its_own_call_alone() -> None:
    calls = [(estimate(name), 1.1) for name in "abcdef"]
    right, wrong = measured(*calls, (BIG, 1.1)), measured(*calls, (BIG, 11.0))
    assert (right.contradicted, wrong.contradicted) == ([], [len(calls)])
    for other in (estimate("x"), estimate("y", op="BatchMatMul"), estimate("a")):
        assert wrong.ask(other).factor == pytest.approx(right.ask(other).factor, rel=0.05)
    assert wrong.ask(BIG).factor == pytest.approx(11.0, rel=0.02)  # it may be the op's time after all
    assert wrong.leave_one_out()[-1] == pytest.approx(log(1.1), abs=0.05)


@pytest.mark.parametrize(("families", "least"), [(["MatMul"], 4.5), ("abcdef", 2.4)])
def test_calls_that_agree_are_believed_however_far_from_the_prediction(families: Sequence[str], least: float) -> None:
    calls = [estimate(f"{name}{at}", op=name, family=name) for name in families for at in range(6 // len(families))]
    known = measured(*((call, 6.0) for call in calls))
    assert not known.contradicted
    assert known.ask(estimate("x", op=families[0], family=families[0])).factor > least


def test_rows_that_scatter_are_seldom_contradicted() -> None:
    rows = ((estimate(f"{at}"), exp(Random(at).gauss(0.0, 0.5))) for at in range(60))
    assert len(measured(*rows).contradicted) <= 1


def test_one_row_alone_is_contradicted_by_none() -> None:
    known = measured((BIG, 6.0))
    assert not known.contradicted
    assert known.ask(estimate("x")).factor > 2.0


def test_of_two_states_of_a_call_the_wrong_one_is_named() -> None:
    calls = [(estimate(name), 1.1) for name in "abcdef"]
    known = measured(*calls, (BIG, 1.1), (estimate("big", state="warm"), 11.0))
    assert known.contradicted == [7]
    assert known.ask(BIG).factor == pytest.approx(1.1, rel=0.02)


def test_no_call_is_adjusted_by_more_than_the_largest_measured_factor() -> None:
    known = measured((estimate("sure", band=1.05), 3.0))
    assert known.ask(estimate("unsure", band=3.0)).factor == pytest.approx(3.0)


def test_a_call_that_is_left_out_is_predicted_by_other_calls_alone() -> None:
    known = measured((BIG, 3.0), (estimate("big", state="warm"), 3.0), (estimate("other"), 1.0))
    big_cold, big_warm, other = known.leave_one_out()
    assert big_cold == pytest.approx(log(measured((estimate("other"), 1.0)).ask(BIG).factor), abs=1e-9)
    assert big_warm == pytest.approx(0.0, abs=1e-9)
    assert other > 0.2


def test_rows_of_a_file_are_errors_of_calls_alone_or_in_a_network() -> None:
    row = OwnMeasurement(
        call="big", op="MatMulV3", family="MatMul", l2="cold", measured_us=150, predicted_us=100, network_us=300, band=2
    )
    assert own_measurements((row,), in_network=False).ask(BIG).factor == pytest.approx(1.5, rel=0.01)
    network = own_measurements((row,), in_network=True).ask(estimate("big", state="sequence", time_us=300.0))
    assert 0.5 < network.factor < 0.65


def test_the_call_with_most_of_the_variance_is_chosen_first() -> None:
    calls = [
        estimate("a", "A", "A"),
        estimate("b", "B", "B", time_us=50.0, band=8.0),
        estimate("c", "C", "C", band=1.1),
    ]
    first, second, third = choose(calls, [1, 1, 1])
    assert [first.index, second.index, third.index] == [1, 0, 2]
    assert first.share > second.share > third.share > 0
    assert sum(choice.share for choice in (first, second, third)) == pytest.approx(1.0, abs=0.05)


def test_counts_weigh_and_a_call_like_a_chosen_one_is_worth_less_than_another_family() -> None:
    calls = [estimate("a"), estimate("b"), estimate("c", op="Add", family="Add", time_us=80.0)]
    assert [choice.index for choice in choose(calls, [10, 9, 9])][:2] == [0, 2]


def test_what_cannot_be_measured_or_paid_is_passed_over() -> None:
    calls = [estimate(name, name, name) for name in "abc"]
    assert {choice.index for choice in choose(calls, [3, 2, 1], measurable=[False, True, True])} == {1, 2}
    within = choose(calls, [3, 2, 1], costs=[5.0, 1.0, 1.0], budget=2.0)
    assert [choice.index for choice in within] == [1, 2]
    assert len(choose(calls, [3, 2, 1], most=1)) == 1
    assert choose([], []) == []
