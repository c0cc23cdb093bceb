"""Who is blamed for processes that ended, and that several are started, given tasks and ended as one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import msgspec
import pytest

from opreplay.replay.execute.messages import Task
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.child import Child
from opreplay.replay.execute.processes.sequence_engine import Blame
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.replay.ir.model import Reason
from tests.factories import fake_op

pytestmark = pytest.mark.slow

SEGFAULT = Death(how="died", cause=Reason("failed", "SIGSEGV"), at=1, signalled=True)
KILLED = Death(how="died", cause=Reason("worker lost", "SIGKILL from outside"), at=1, signalled=True)
STOPPED = Death(how="stopped", cause=Reason("worker lost", "stopped from outside"), at=1, signalled=True)
HUNG = Death(how="hung", cause=Reason("budget", "time"), at=1)
NOWHERE = msgspec.structs.replace(SEGFAULT, at=None)
RAISED = Death(how="said", cause=Reason("failed", "RuntimeError"), at=1, raised={0: Reason("failed", "RuntimeError")})
OVER = Death(how="over", cause=Reason("out of time", "spent"), at=1)


@pytest.mark.parametrize(
    ("deaths", "own", "gone", "goes_on"),
    [
        ([SEGFAULT], {"b"}, set(), True),
        ([SEGFAULT, SEGFAULT], {"b"}, {"b"}, True),
        ([KILLED], set(), set(), True),
        ([STOPPED, KILLED], {"b"}, {"b"}, True),
        ([KILLED, SEGFAULT], {"b"}, set(), True),
        ([HUNG], {"b"}, {"b"}, True),
        ([RAISED], set(), {"a"}, True),
        ([NOWHERE], set(), set(), True),
        ([NOWHERE, NOWHERE], set(), set(), False),
        ([OVER], set(), set(), False),
    ],
)
def test_an_op_is_left_out_once_its_process_ended_twice(
    deaths: list[Death], own: set[str], gone: set[str], goes_on: bool
) -> None:
    blame = Blame()
    answers = [blame.is_worth_another_try(death, ["a", "b"], death.cause) for death in deaths]
    assert (blame.unshared, set(blame.reasons), answers[-1]) == (own, gone, goes_on)


@pytest.fixture
def pair() -> Iterator[Workers]:
    config = WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6)
    workers = Workers(lambda *_: (Child(config) for _ in range(2)), limit_s=20.0)
    yield workers
    workers.close()


def test_one_of_several_that_dies_takes_the_others_along(pair: Workers) -> None:
    assert pair.start() == {"device": "fake"}
    first = pair.pids
    os.kill(first[1], signal.SIGKILL)
    answer = pair.run([Task(op=fake_op("sleep100ms"))] * 2)
    assert isinstance(answer, Death)
    assert (answer.how, answer.ranks, answer.cause.kind, pair.pids) == ("died", (1,), "worker lost", [])
    again = pair.run([Task(op=fake_op("1us"))] * 2)
    assert isinstance(again, list)
    assert [outcome.status for outcome in again] == ["replayed"] * 2
    assert set(pair.pids).isdisjoint(first)
