"""Threads on a machine with other work: how many, and what is done where those of an op had to wait."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from opreplay.replay.execute.executors.fake import FakeClock, FakeExecutor
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.options import MeasureOptions, RunOptions, WorkerConfig
from opreplay.replay.execute.threads import fitting_threads, measure_on_idle
from opreplay.replay.execute.visits import BUSY, visits_of
from opreplay.replay.host.idle import is_busy
from opreplay.replay.host.interruptions import threads_waited_us
from opreplay.replay.results.measurement import Measurement, kind_of
from tests.factories import fake_op


class WaitingClock(FakeClock):
    """A clock of a machine on which other threads than the caller's wait for processors for a share of the time."""

    share = 0.0

    def threads_waited_us(self) -> float:
        return self.share * self.elapsed_us


class Threaded(FakeExecutor):
    """An op whose every call takes `us[threads]`: all samples alike, as where each waits for one time slice."""

    def __init__(self, us: dict[int, float], waits: float) -> None:
        super().__init__()
        self.clock: WaitingClock = WaitingClock()
        self.clock.share = waits
        self.threads: int | None = max(us)
        self.us = us
        self.used: list[int] = []

    def use_threads(self, count: int) -> None:
        self.threads = count

    def _behaviour(self, name: str):
        def call() -> None:
            assert self.threads is not None
            self.used.append(self.threads)
            self.clock.elapsed_us += self.us[self.threads]

        return call


def measured(executor: Threaded, limit_s: float = 60.0) -> Measurement:
    return measure_on_idle(executor, executor.prepare(fake_op("fake::add"), seed=0), MeasureOptions(limit_s=limit_s))


def test_samples_that_are_all_alike_are_measured_again_where_threads_waited_for_processors() -> None:
    executor = Threaded({2: 23_700.0, 1: 318.0}, waits=0.9)
    found = measured(executor)
    assert found.median_us == pytest.approx(318.0, rel=0.02)
    assert (found.threads, executor.threads) == (1, 2)
    assert [kind_of(warning) for warning in found.warnings] == ["one thread"]


def test_threads_that_did_not_wait_are_left_alone() -> None:
    executor = Threaded({2: 23_700.0, 1: 318.0}, waits=0.1)
    found = measured(executor)
    assert found.median_us == pytest.approx(23_700.0, rel=0.02)
    assert (set(executor.used), found.warnings) == ({2}, ())


@pytest.mark.parametrize(("alone_us", "limit_s"), [(30_000.0, 60.0), (318.0, 0.2)])
def test_where_one_thread_is_no_faster_or_there_is_no_time_for_it_the_waiting_is_told(
    alone_us: float, limit_s: float
) -> None:
    found = measured(Threaded({2: 23_700.0, 1: alone_us}, waits=0.9), limit_s=limit_s)
    assert found.median_us == pytest.approx(23_700.0, rel=0.02)
    told = [str(warning) for warning in found.warnings if kind_of(warning) == "threads waited"]
    assert len(told) == 1
    assert told[0].startswith("threads waited: 2 threads waited ")


def test_threads_are_halved_until_idle_processors_have_room_for_them() -> None:
    assert [fitting_threads(8, idle) for idle in (None, 8.0, 7.3, 7.1, 3.0, 0.1)] == [8, 8, 8, 4, 2, 1]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux counts what threads wait for processors")
def test_waiting_of_other_threads_than_the_caller_is_counted() -> None:
    stop = threading.Event()
    allowed = os.sched_getaffinity(0)
    block = bytes(1 << 20)
    before_us = threads_waited_us()

    def work() -> None:
        os.sched_setaffinity(0, {min(allowed)})
        while not stop.is_set():
            hashlib.sha256(block).digest()  # without the interpreter's lock

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    time.sleep(0.3)
    waited_us = threads_waited_us() - before_us
    stop.set()
    for worker in workers:
        worker.join()
    assert waited_us > 100_000.0, "three threads, one processor, 0.3 s: about 0.6 s of waiting"


@pytest.mark.parametrize("asked", [1, None])
def test_processors_are_looked_at_whoever_chooses_the_threads(
    monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    monkeypatch.setattr("opreplay.replay.host.idle.idle_cpus", lambda: 0.0)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    options = RunOptions(executor="torch", isolation="none", threads=asked)
    with closing(make_executor(WorkerConfig(options=options, memory_bytes=1 << 20))) as executor:
        facts = executor.facts()
    assert (facts["idle_cpus"], facts["threads_of_torch"], facts["threads_asked"]) == (0.0, 4, asked is not None)
    assert visits_of(None, facts) == BUSY
    assert is_busy(facts)
