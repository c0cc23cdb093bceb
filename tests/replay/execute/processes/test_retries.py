"""Which ops get a second try in a fresh process, and what the outcome says of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from time import monotonic

import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes import child as child_module
from opreplay.replay.execute.processes.lanes import OneByOne
from opreplay.replay.execute.processes.runner import RAISES_RETRIED, ChildProcess, InProcess
from opreplay.replay.execute.processes.worker import _checked
from opreplay.replay.execute.visits import WHOLE, Visit
from opreplay.replay.host import environment
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.traces.errors import EnvironmentRefused
from tests.factories import fake_op
from tests.running import outcomes_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]


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
    assert (str(outcome.reason), outcome.attempts) == ("budget: time: no result after 1 s (--set op_limit)", 1)
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


def killed(runner: ChildProcess, op: ReplayOp, numbers: Sequence[int]) -> Outcome:
    """What becomes of an op whose first processes are each sent a signal while they run it."""
    runner.begin(op)
    for number in numbers:
        assert runner.pid is not None
        while not has_begun(runner):
            spoken(runner)
        pid = runner.pid
        os.kill(pid, number)
        while runner.pid == pid:
            if (outcome := spoken(runner)) is not None:
                return outcome
    while (outcome := spoken(runner)) is None:
        pass
    return outcome


def spoken(runner: ChildProcess) -> Outcome | None:
    return runner.step(waits=True)


def has_begun(runner: ChildProcess) -> bool:
    return runner.is_ready


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT])
def test_one_signal_during_the_first_op_of_a_process_costs_nothing(runner: ChildProcess, number: int) -> None:
    outcome = killed(runner, fake_op("sleep100ms"), [number])
    assert (outcome.status, outcome.attempts) == ("replayed", 2)


def test_an_op_that_was_stopped_once_is_tried_again(runner: ChildProcess) -> None:
    outcome = killed(runner, fake_op("sleep100ms"), [signal.SIGSTOP])
    assert (outcome.status, outcome.attempts) == ("replayed", 2)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([signal.SIGKILL, signal.SIGKILL], "worker lost"),
        ([signal.SIGSEGV, signal.SIGKILL], "worker lost"),
        ([signal.SIGSTOP, signal.SIGSTOP], "worker lost"),
        ([signal.SIGSEGV, signal.SIGSEGV], "failed"),
    ],
)
def test_an_op_is_never_blamed_for_what_it_cannot_have_raised(
    runner: ChildProcess, numbers: list[int], kind: str
) -> None:
    outcome = killed(runner, fake_op("sleep100ms"), numbers)
    assert outcome.reason is not None
    assert (outcome.reason.kind, outcome.status, outcome.attempts) == (kind, outcome.reason.status, 2)
    assert runner.measure(fake_op("1us")).status == "replayed"


@pytest.mark.parametrize(("rises", "kind"), [(1, "budget"), (0, "worker lost")])
def test_memory_is_blamed_where_the_kernel_says_so(
    runner: ChildProcess, monkeypatch: pytest.MonkeyPatch, rises: int, kind: str
) -> None:
    count = iter(range(0, 100 * rises, rises)) if rises else iter([0] * 100)
    runner.end()
    monkeypatch.setattr(environment, "kills_for_memory", lambda: next(count))
    outcome = killed(runner, fake_op("sleep100ms"), [signal.SIGKILL, signal.SIGKILL])
    assert outcome.reason is not None
    assert (outcome.reason.kind, outcome.attempts) == (kind, 2)


def test_a_later_visit_whose_processes_are_lost_leaves_the_first() -> None:
    class Losing(InProcess):
        def measure(self, op: ReplayOp, visit: Visit = WHOLE) -> Outcome:
            lost = unable(Reason("worker lost", "SIGKILL from outside"))
            return lost if visit.number else super().measure(op, visit)

    runner = Losing(FakeExecutor(), WorkerConfig(options=RunOptions(op_time_s=0.1), memory_bytes=10**6))
    engine = OneByOne(runner, visits=3, op_time_s=10.0)
    engine.start()
    ((_, outcome),) = outcomes_of(engine, [fake_op("10us")])
    assert outcome.status == "replayed"


def test_a_process_stopped_before_it_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "LOOK_S", 0.05)
    child = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=1.0)
    try:
        child.open()
        stopped = child.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert child.start()
        assert child.pid != stopped
    finally:
        child.close()


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
