"""Times of single calls: the clock's own cost subtracted, and on a device a hold before each chunk."""

from __future__ import annotations

from time import perf_counter_ns

import pytest

from opreplay.replay.execute.executors.timers import CHUNK, EventTimer, HostTimer


def spin(us: float) -> int:
    until = perf_counter_ns() + us * 1e3
    while (now := perf_counter_ns()) < until:
        pass
    return now


def test_the_host_timer_gives_a_time_for_each_call() -> None:
    timer = HostTimer()
    timer.begin()
    assert timer.timed(spin, (200,), {}) > 0
    timer.timed(spin, (), {"us": 1000})
    first, second = timer.end()
    assert first >= 200  # more where another process came between
    assert second >= 1000


def test_an_empty_call_takes_next_to_nothing() -> None:
    timer = HostTimer()
    timer.begin()
    for _ in range(1000):
        timer.timed(id, (None,), {})
    assert sorted(timer.end())[500] < 0.3


def test_what_a_call_raises_passes_through_and_is_no_time() -> None:
    timer = HostTimer()
    timer.begin()
    with pytest.raises(ValueError, match="invalid literal"):
        timer.timed(int, ("x",), {})
    assert timer.end() == []


class Queue:
    """A device whose time passes by 10 us with each call and by 1 us with each event."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.holds: list[float] = []
        self.waits = 0

    def event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        self.waits += 1

    def call(self) -> None:
        self.now_us += 10


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue, self.at_us = queue, 0.0

    def record(self) -> None:
        self.queue.now_us += 1
        self.at_us = self.queue.now_us

    def elapsed_time(self, other: Event) -> float:
        return (other.at_us - self.at_us) * 1e-3


def test_events_around_each_call_without_their_own_time() -> None:
    queue = Queue()
    timer = EventTimer(queue.event, queue.synchronize, queue.holds.append)
    queue.holds.clear()
    for _ in range(2):
        timer.begin()
        for _ in range(CHUNK + 1):
            timer.timed(queue.call, (), {})
        assert timer.end() == pytest.approx([10.0] * (CHUNK + 1))
    assert len(queue.holds) == 4, "one before each chunk"
    assert all(held > 0 for held in queue.holds)


def test_a_device_without_a_hold_waits_only_at_the_ends_of_a_pass() -> None:
    queue = Queue()
    timer = EventTimer(queue.event, queue.synchronize, None)
    waits = queue.waits
    timer.begin()
    for _ in range(3 * CHUNK):
        timer.timed(queue.call, (), {})
    timer.end()
    assert queue.waits - waits == 2


def test_the_host_timer_tells_the_calls_of_a_pass_that_were_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = HostTimer()
    counts = iter([1, 1, 1, 3])
    monkeypatch.setattr("opreplay.replay.execute.executors.timers.switches", lambda: next(counts))
    timer.begin()
    timer.timed(spin, (), {"us": 1})
    timer.timed(spin, (), {"us": 1})
    assert len(timer.end()) == 2
    assert list(timer.interrupted()) == [1]
