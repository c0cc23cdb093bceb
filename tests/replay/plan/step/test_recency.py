"""How far away a step leaves its tensors: against a list that is walked, and by hand for a few calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ir.model import RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.plan.step.recency import Recency, Recent, recency
from tests.replay.plan.step.test_linking import LINEAR, RELU, RELU_, X, meta, op

BYTES = 4 * 8 * 4
WEIGHTS = 8 * 8 * 4 + 8 * 4


def of_step(*calls: ReplayOp) -> dict[str, Recency]:
    ops = tuple(dict.fromkeys(calls))
    sequence = RecordedSequence(
        step="",
        steps=1,
        dur_us=1.0,
        ids=tuple(one.id for one in ops),
        calls=tuple(ops.index(one) for one in calls),
        host_us=(1.0,) * len(calls),
    )
    return recency(ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=ops, sequence=sequence))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), max_size=40))
def test_distances_are_those_of_a_list_in_the_order_of_touches(touches: list[tuple[int, int]]) -> None:
    recent = Recent(len(touches))
    order: list[tuple[int, int]] = []
    for memory, size in touches:
        place = next((at for at, (other, _) in enumerate(order) if other == memory), None)
        expected = None if place is None else sum(bytes_ for _, bytes_ in order[place + 1 :])
        assert recent.distance(memory) == expected
        if place is not None:
            del order[place]
        order.append((memory, size))
        recent.touch(memory, size)
        assert recent.total == sum(bytes_ for _, bytes_ in order)


def test_a_result_is_near_and_a_parameter_a_step_away() -> None:
    found = of_step(LINEAR, RELU)
    # linear writes y into memory of its own, relu z; then the step begins again with x, weight and bias.
    assert found[RELU.id].arguments == (0,)
    x, weight, bias = found[LINEAR.id].arguments
    step = 3 * BYTES + WEIGHTS
    assert (x, weight, bias) == (step - BYTES, step - BYTES - 256, step - BYTES - 256 - 32)


def test_the_code_of_an_op_is_as_far_as_what_was_touched_since_one_of_its_name() -> None:
    found = of_step(LINEAR, RELU, RELU)
    step = 3 * BYTES + WEIGHTS
    assert found[LINEAR.id].code == step, "it comes once in a step"
    assert found[RELU.id].code in (2 * BYTES, step), "of two calls the farther is the median"
    assert of_step(RELU, RELU, RELU)[RELU.id].code <= 3 * BYTES


def test_freed_memory_of_the_same_size_is_used_again() -> None:
    found = of_step(LINEAR, RELU, RELU, RELU)
    # The third result gets the memory of the first, which is not needed any more and was read just before.
    assert found[RELU.id].results[0][0] == BYTES
    assert found[RELU.id].results[0][1] <= 2 * BYTES


def test_what_is_written_in_place_and_views_get_no_memory() -> None:
    view = op("aten::view", {"self": X}, meta(8, 4))
    found = of_step(LINEAR, view, RELU_)
    assert found[view.id].results == ()
    assert found[RELU_.id].results == ()
    assert found[RELU_.id].arguments == (0,), "a view touches nothing"


def test_a_plan_without_an_order_tells_nothing() -> None:
    assert recency(ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=(RELU,))) == {}
