from __future__ import annotations

import time
from functools import partial

import pytest

from opreplay.replay.execute.executors.clocks import HOLD_MARGIN, HOLD_US_PER_CALL, MAX_HOLD_US, EventClock, HostClock


def test_host_clock_measures_the_calls_and_not_itself() -> None:
    clock = HostClock()
    slept = clock.time_calls(partial(time.sleep, 0.002), 5)
    assert 10_000 <= slept < 100_000
    empty = min(clock.time_calls(partial(id, None), 1000) for _ in range(5)) / 1000
    assert empty <= 0.3, "issue 6: at most 0.3 us a call are left after correction"


def test_host_clock_never_goes_below_zero() -> None:
    clock = HostClock()
    assert all(clock.time_calls(partial(id, None), 1) >= 0 for _ in range(100))


class FakeEvent:
    now_ms = 0.0

    def record(self) -> None:
        FakeEvent.now_ms += 0.001
        self.at_ms = FakeEvent.now_ms

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at_ms - self.at_ms


def test_event_clock_subtracts_its_pair_and_holds_the_device_back_for_batches() -> None:
    held: list[float] = []
    waits: list[None] = []
    clock = EventClock(FakeEvent, lambda: waits.append(None), held.append)

    def call() -> None:
        FakeEvent.now_ms += 0.25

    assert clock.pair_us == pytest.approx(1.0)
    assert clock.time_calls(call, 4) == pytest.approx(1000.0)
    assert held == [4 * HOLD_US_PER_CALL]
    assert clock.time_calls(call, 1) == pytest.approx(250.0)
    assert len(held) == 1, "a single call is not held back"
    assert len(waits) == 2 * (15 + 2), "before and after each batch"


def test_event_clock_times_different_calls_and_the_host_apart() -> None:
    held: list[float] = []
    clock = EventClock(FakeEvent, lambda: None, held.append)

    def short() -> None:
        FakeEvent.now_ms += 0.1

    def long() -> None:
        FakeEvent.now_ms += 0.3

    assert clock.time_each([short, long, long]) == pytest.approx(700.0)
    host_us = clock.launch_us(partial(time.sleep, 0.001), 3)
    assert 1000 <= host_us < 50_000
    clock.time_calls(short, 2)
    expected = min(MAX_HOLD_US, 2 * HOLD_MARGIN * host_us)
    assert held[-1] == pytest.approx(expected), "held back for as long as the launches take"


def test_host_clock_times_different_calls_and_has_no_launches() -> None:
    clock = HostClock()
    calls = [partial(time.sleep, 0.001), partial(time.sleep, 0.003)]
    assert 4000 <= clock.time_each(calls) < 50_000
    assert clock.launch_us(calls[0], 3) is None
