"""Where collectives of a step lie among its calls, and what becomes of that when calls are left out."""

from __future__ import annotations

import numpy as np

from opreplay.replay.ir.model import CollectiveCall, RecordedSequence
from opreplay.replay.plan.step.beside import (
    NEVER,
    RequestedCollective,
    place_collectives,
    with_collectives_beside,
    without_calls,
)


def asked(at: int, ended: int | None = None, **told: object) -> RequestedCollective:
    kept = {"id": "c", "on_device": False, "blocking": False, "waited_ns": None, "us": 5.0, "op_us": 1.0, **told}
    return RequestedCollective(asked_ns=at, ended_ns=ended, **kept)  # type: ignore[arg-type]


STARTS = np.array([10, 20, 30, 40], np.int64)


def places(one: RequestedCollective, begins: np.ndarray | None = None) -> tuple[int, int, str]:
    (found,) = place_collectives([one], 0, 100, STARTS, STARTS if begins is None else begins)
    return found.at, found.wait, found.how


def test_a_wait_of_its_own_and_a_blocking_call_are_recorded() -> None:
    assert places(asked(15, 33, waited_ns=38)) == (1, 3, "recorded")
    assert places(asked(15, 33, blocking=True)) == (1, 1, "recorded")


def test_the_first_call_after_its_end_may_have_waited() -> None:
    assert places(asked(15, 25)) == (1, 2, "order")
    assert places(asked(15, 16)) == (1, 1, "order")
    assert places(asked(15, 41)) == (1, 4, "order")


def test_on_a_device_the_first_work_after_its_end() -> None:
    """The host runs ahead; what gives the device nothing to do waits for nothing."""
    begins = np.array([100, NEVER, 200, 300], np.int64)
    assert places(asked(5, 150, on_device=True), begins) == (0, 2, "order")
    assert places(asked(5, 400, on_device=True), begins) == (0, 4, "order")


def test_where_nothing_tells_it_is_waited_for_at_once() -> None:
    assert places(asked(25)) == (2, 2, "unknown")


def test_other_steps_have_their_own() -> None:
    assert place_collectives([asked(5), asked(120)], 10, 100, STARTS, STARTS) == ()


def sequence(**more: object) -> RecordedSequence:
    kept = {"ids": ("a", "b", "c"), "calls": (0, 1, 0, 1), "host_us": (1.0, 2.0, 3.0, 4.0), **more}
    return RecordedSequence(step="", steps=0, dur_us=10.0, **kept)  # type: ignore[arg-type]


def test_places_move_with_calls_that_are_left_out() -> None:
    one = CollectiveCall(id="c", at=2, wait=4, how="order", us=1.0)
    found = without_calls(sequence(collectives=(one,)), {"b", "c"})
    assert (found.calls, found.host_us) == ((0, 0), (2.0, 4.0))
    assert [(each.at, each.wait) for each in found.collectives] == [(1, 2)]
    assert without_calls(sequence(collectives=(one,)), {"a", "b"}).collectives == ()


def test_a_captured_step_has_them_among_its_calls() -> None:
    """What they leave is read by the call that takes a memory of theirs, else they are waited for at once."""
    memories = (((0,), (1,)), ((1,), (2,)), ((5,), (6,)), ((2,), (3,)))
    found = with_collectives_beside(sequence(calls=(0, 2, 0, 1), memories=memories), {"c"})
    assert found.calls == (0, 0, 1)
    assert found.ids == ("a", "b")
    (one,) = found.collectives
    assert (one.at, one.wait, one.how, one.us) == (1, 2, "recorded", 2.0)
    (one,) = with_collectives_beside(sequence(calls=(0, 2, 0, 1)), {"c"}).collectives
    assert (one.at, one.wait, one.how) == (1, 1, "unknown")
