"""What is said of a step on ranks: what a pass is made of, and which of its figures are none."""

from __future__ import annotations

import msgspec
import pytest

from opreplay.replay.report.run.sequence import notes, rows
from opreplay.replay.results.records import SequenceResult, SharedStepResult, Tensors

SHARED = SharedStepResult(
    ranks=2,
    backend="gloo",
    collectives=3,
    collectives_replayed=3,
    recorded_us=100.0,
    waits_recorded=3,
    waits_inferred=0,
    waits_unknown=0,
    in_flight_us=400.0,
    waited_us=150.0,
    hidden_us=240.0,
    hidden_share_low=0.55,
    hidden_share_high=0.65,
    calls_alone_us=480.0,
    wall_alone_us=600.0,
    collectives_alone_us=300.0,
)
WHOLE = SequenceResult(
    step="s",
    steps=1,
    calls=10,
    calls_replayed=10,
    calls_nested=0,
    calls_cut=0,
    recorded_step_us=900.0,
    recorded_us=500.0,
    recorded_host_us=500.0,
    left_out_share=0.0,
    passes=3,
    sum_us=500.0,
    sum_low_us=None,
    sum_high_us=None,
    wall_us=800.0,
    tensors=Tensors(),
    shared=SHARED,
)


def said(**changes: float) -> str:
    return " ".join(notes(msgspec.structs.replace(WHOLE, shared=msgspec.structs.replace(SHARED, **changes))))


def test_a_whole_pass_says_what_it_is_made_of() -> None:
    assert "a whole pass is 500 µs in calls, 150 µs waiting and 150 µs between calls" in said()
    assert "no time between calls" in said(waited_us=400.0)
    assert "*" not in said()


@pytest.mark.parametrize(("high", "marked"), [(0.65, False), (0.9, True)])
def test_a_hidden_share_that_varies_is_marked(high: float, marked: bool) -> None:
    one = msgspec.structs.replace(WHOLE, shared=msgspec.structs.replace(SHARED, hidden_share_high=high))
    (text,) = [told for title, _, _, told in rows(one) if title == "collectives in flight"]
    assert text.startswith("60 % of this time hidden behind the calls")
    assert ("calls*, 55 to 90 % between passes" in text) == marked
    assert ("the hidden share varies" in said(hidden_share_high=high)) == marked


def test_passes_without_collectives_that_took_longer_say_nothing_of_them() -> None:
    assert "calls were measured faster with concurrent collectives than without" in said(calls_alone_us=5000.0)
    assert "measured faster" not in said()


def test_few_passes_have_no_interval() -> None:
    (text,) = [told for title, _, _, told in rows(WHOLE) if title == "replayed, sum of the calls"]
    assert text == "median of few passes: no interval"
