"""A change that all ops of two recordings of one device share is told once, and ops are judged relative to it."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from opreplay.replay.report.views.comparison import first_line
from opreplay.replay.results.compare.sides import OpTime, Times, compare_times


def side(factors: list[float], *, on: str = "H100", clock: str = "device", noise: float = 0.01, seed: int = 1) -> Times:
    """Ops of 100 µs times a factor, known to ±2 noise."""
    numbers = random.Random(seed)
    ops: list[OpTime] = []
    for number, factor in enumerate(factors):
        us = 100.0 * factor * math.exp(numbers.gauss(0.0, noise))
        known = {"us": us, "low_us": us * (1 - 2 * noise), "high_us": us * (1 + 2 * noise), "calls": 24}
        ops.append(OpTime(id=str(number), name=f"aten::op{number}", inputs="", count=24, **known))
    return Times(what="recorded", on=on, source="a.json", ops=tuple(ops), clock=clock)  # pyright: ignore[reportArgumentType]


def test_a_change_of_all_ops_is_told_once() -> None:
    found = compare_times(side([1.0] * 40), side([1.08] * 40, seed=2))
    assert found.shared == pytest.approx(1.08, rel=0.01)
    assert {op.verdict for op in found.ops} == {"same"}
    assert "; all ops 1.0" in first_line(found)
    assert found.whole == pytest.approx(1.08, rel=0.01)


def test_ops_that_changed_beside_it_are_found() -> None:
    found = compare_times(side([1.0] * 40), side([1.08 * 1.15] * 4 + [1.08 * 0.85] * 2 + [1.08] * 34, seed=2))
    assert found.shared == pytest.approx(1.08, rel=0.01)
    assert {op.id for op in found.of("slower")} == {"0", "1", "2", "3"}
    assert {op.id for op in found.of("faster")} == {"4", "5"}
    (first,) = [op for op in found.ops if op.id == "0"]
    assert first.ratio == pytest.approx(1.15, rel=0.05)
    assert first.after_us == pytest.approx(100 * 1.08 * 1.15, rel=0.05)


def test_ops_that_change_by_themselves_share_nothing() -> None:
    factors = [1.0 + 0.02 * number for number in range(40)]
    found = compare_times(side([1.0] * 40), side(factors, seed=2))
    assert found.shared is None
    assert len(found.of("slower")) > 30


def test_equal_recordings_share_no_change() -> None:
    found = compare_times(side([1.0] * 40), side([1.0] * 40, seed=2))
    assert "all ops" not in first_line(found)
    assert {op.verdict for op in found.ops} == {"same"}


@pytest.mark.parametrize("change", [{"on": "H200"}, {"clock": "host"}, {"what": "measured"}])
def test_two_devices_share_no_clock(change: dict[str, str]) -> None:
    after = msgspec.structs.replace(side([1.2] * 40, seed=2), **change)
    found = compare_times(side([1.0] * 40), after)
    assert found.shared is None
    assert len(found.of("slower")) == 40


def test_unnamed_devices_may_differ() -> None:
    unnamed = "an unnamed device"
    found = compare_times(side([1.0] * 40, on=unnamed), side([1.2] * 40, seed=2, on=unnamed))
    assert found.shared is None


def test_a_few_ops_tell_nothing_of_a_clock() -> None:
    found = compare_times(side([1.0] * 3), side([1.2] * 3, seed=2))
    assert found.shared is None
    assert len(found.of("slower")) == 3


@pytest.mark.parametrize("ops", [5, 6, 7])
def test_five_ops_of_equal_change_tell_of_a_clock(ops: int) -> None:
    found = compare_times(side([1.0] * ops, noise=0.001), side([1.06] * ops, noise=0.001, seed=2))
    assert found.shared == pytest.approx(1.06, rel=0.002)
    assert {op.verdict for op in found.ops} == {"same"}


def test_one_of_six_ops_changed_beside_a_clock() -> None:
    found = compare_times(side([1.0] * 6, noise=0.001), side([1.06, 1.06, 1.38, 1.06, 1.06, 1.06], noise=0.001, seed=2))
    assert found.shared == pytest.approx(1.06, rel=0.002)
    assert [op.id for op in found.of("slower")] == ["2"]
    assert found.of("slower")[0].ratio == pytest.approx(1.38 / 1.06, rel=0.005)


def test_two_of_six_ops_that_differ_leave_too_few_that_agree() -> None:
    found = compare_times(side([1.0] * 6, noise=0.001), side([1.06] * 4 + [1.2, 0.9], noise=0.001, seed=2))
    assert found.shared is None
    assert len(found.of("slower")) == 5


def test_few_ops_of_two_changes_share_none() -> None:
    found = compare_times(side([1.0] * 6, noise=0.001), side([1.0] * 3 + [1.1] * 3, noise=0.001, seed=2))
    assert found.shared is None
    assert len(found.of("slower")) == 3
