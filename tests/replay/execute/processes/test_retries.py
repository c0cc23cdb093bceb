"""Which ops get a second try in a fresh process, and what the outcome says of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from time import monotonic

import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import RAISES_RETRIED, ChildProcess
from opreplay.replay.execute.processes.worker import _checked
from opreplay.replay.results.outcome import Outcome
from opreplay.traces.errors import EnvironmentRefused
from tests.factories import fake_op


@pytest.fixture
def runner() -> Iterator[ChildProcess]:
    child = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=1.0)
    child.start()
    yield child
    child.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("abort", "failed: SIGABRT"), ("raise", "failed: RuntimeError: the fake op raised")],
)
def test_an_op_that_goes_wrong_among_others_is_tried_once_more_alone(
    runner: ChildProcess, name: str, reason: str
) -> None:
    assert runner.measure(fake_op("1us")).attempts == 1
    before = runner.pid
    outcome = runner.measure(fake_op(name))
    assert (str(outcome.reason), outcome.attempts) == (reason, 2)
    assert runner.pid != before
    assert runner.measure(fake_op("1us")).status == "replayed"


def test_an_op_that_does_not_come_back_costs_its_time_limit_once(runner: ChildProcess) -> None:
    runner.measure(fake_op("1us"))
    started = monotonic()
    outcome = runner.measure(fake_op("hang"))
    assert (str(outcome.reason), outcome.attempts) == ("budget: time: no result after 1 s (--op-limit)", 1)
    assert monotonic() - started < 1.9
    assert runner.measure(fake_op("1us")).status == "replayed"


def test_an_op_that_does_not_come_back_after_another_raised_is_tried_alone(runner: ChildProcess) -> None:
    assert runner.measure(fake_op("raise")).attempts == 1
    assert runner.measure(fake_op("hang")).attempts == 2


def test_an_op_that_was_alone_is_not_tried_again(runner: ChildProcess) -> None:
    assert runner.measure(fake_op("raise")).attempts == 1


def test_raises_are_believed_after_a_few_were_confirmed(runner: ChildProcess) -> None:
    runner.measure(fake_op("1us"))
    tries = [runner.measure(fake_op("raise")).attempts for _ in range(RAISES_RETRIED + 3)]
    assert tries == [2] * RAISES_RETRIED + [1] * 3


def test_an_op_refused_by_its_executor_is_not_tried_again(runner: ChildProcess) -> None:
    runner.measure(fake_op("1us"))
    assert runner.measure(fake_op("budget")).attempts == 1


def test_a_child_killed_between_two_ops_costs_none(runner: ChildProcess) -> None:
    runner.measure(fake_op("1us"))
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    outcome = runner.measure(fake_op("2us"))
    assert (outcome.status, outcome.attempts) == ("replayed", 2)


def test_a_child_killed_while_it_starts_is_started_again_but_not_for_ever() -> None:
    child = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=1.0)
    try:
        child.open()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert child.start()
    finally:
        child.close()
    doomed = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=1.0)
    doomed.open()

    def kill_each() -> None:
        while doomed.pid is not None:
            os.kill(doomed.pid, signal.SIGKILL)
            doomed.step()

    with pytest.raises(EnvironmentRefused, match="did not start"):
        kill_each()
    assert doomed.pid is None


def test_an_error_after_which_the_device_is_lost_marks_the_outcome() -> None:
    class Lost(FakeExecutor):
        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    raised = Outcome(status="failed", suspect=True)
    assert _checked(Lost(), raised).poisoned
    assert not _checked(FakeExecutor(), raised).poisoned
