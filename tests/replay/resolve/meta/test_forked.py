"""An op that hangs or crashes on meta tensors costs itself alone, and a file full of them costs a bounded time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch._dynamo  # noqa: F401 - meta kernels in Python load it; here each child would take its time to do so

from opreplay.replay.ir.model import Reason, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.resolve.meta import forked
from opreplay.replay.resolve.meta.check import check_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.traces.model import TensorMeta
from tests.factories import jit_op as made
from tests.factories import tensor

MM = made("aten::mm", tensor("self", 2, 3), tensor("mat2", 3, 4), id_="1" * 12)


def endless(id_: str = "0" * 12) -> ReplayOp:
    """aten::diff takes the difference n times over, in a loop of its own."""
    counts = (ReplayArg(name="n", type="int", value=2**40), ReplayArg(name="dim", type="int", value=-1))
    return made("aten::diff", tensor("self", 2**40), *counts, id_=id_)


def plan(*ops: ReplayOp) -> ReplayPlan:
    return ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=ops)


@pytest.fixture(autouse=True)
def own_child(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(forked, "_lost", {})
    yield
    if forked._Copy.running is not None:
        forked._Copy.running.end()


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "FUNCTIONS", dict(forked.FUNCTIONS))


@pytest.mark.slow
def test_an_op_that_hangs_costs_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "CPU_S", 1.0)
    whole = plan(endless(), MM)
    before = time.monotonic()
    with_outputs(whole)
    first = time.monotonic() - before
    checks = check_plan(whole)
    assert time.monotonic() - before - first < min(first, 1.0)
    assert str(checks["0" * 12]) == "failed: budget: time: no result on meta tensors after 1 s"
    assert checks["1" * 12].status == "ok"


@pytest.mark.slow
def test_an_op_that_loops_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "CPU_S", 1.0)
    checks = check_plan(plan(endless(), MM))
    assert str(checks["0" * 12]) == "failed: budget: time: no result on meta tensors after 1 s"
    assert checks["1" * 12].status == "ok"
    first, second = with_outputs(plan(endless(), MM)).ops
    assert first.outputs is None
    assert second.outputs == (TensorMeta(shape=(2, 4), dtype="float32", strides=(4, 1)),)


@pytest.mark.slow
def test_many_that_hang_cost_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "CPU_S", 0.2)
    checks = check_plan(plan(*(endless(f"{i:012x}") for i in range(40)), MM))
    assert len(checks) == 41
    assert checks["1" * 12].detail == "budget: time: not called on meta tensors, because 6 ops hung or crashed on them"


def by_count(op: ReplayOp, policy: Policy) -> bytes:
    """Dies of the signal that stands in `count`, ends with 7 for 0, and else answers the parent's process id."""
    if op.count == 0:
        os._exit(7)
    if op.count < 32:  # every time
        os.kill(os.getpid(), op.count)
        time.sleep(60)
    return msgspec.json.encode([op.id, os.getppid(), policy.collectives])


def test_a_crash_costs_one_op(functions: None) -> None:
    forked.function(by_count)
    counts = [100, int(signal.SIGSEGV), 100, 0, 100]
    ops = [made("x", id_=str(i), count=count) for i, count in enumerate(counts)]
    pid = os.getpid()
    assert forked.each(by_count, ops, Policy(collectives=True)) == [
        msgspec.json.encode(["0", pid, True]),
        Reason("failed", "SIGSEGV on meta tensors"),
        msgspec.json.encode(["2", pid, True]),
        Reason("failed", "the process ended with status 7 on meta tensors"),
        msgspec.json.encode(["4", pid, True]),
    ]


def is_first_call(op: ReplayOp) -> bool:
    """Whether no process has called a function with this op, whose name is a path of a file to leave."""
    first = Path(op.name)
    if first.exists():
        return False
    first.touch()
    return True


def dies_once(op: ReplayOp, policy: Policy) -> bytes:
    """Ends its process as somebody else would, at its first call."""
    if is_first_call(op):
        os.kill(os.getpid(), signal.SIGKILL)
    return b"alive"


def test_a_child_that_somebody_ends_costs_no_op(functions: None, tmp_path: Path) -> None:
    forked.function(dies_once)
    forked.function(by_count)
    ops = [made(str(tmp_path / name), id_=name) for name in ("a", "b", "c")]
    assert forked.each(dies_once, ops, Policy()) == [b"alive"] * 3
    assert forked.each(by_count, [made("x", count=int(signal.SIGKILL))], Policy()) == [
        Reason("worker lost", "SIGKILL on meta tensors")
    ]


def test_answers_keep_their_order_over_many_ops(functions: None) -> None:
    forked.function(by_count)
    ops = [made("x", id_=str(i), count=100) for i in range(3 * forked.TOGETHER + 1)]
    found = forked.each(by_count, ops, Policy())
    assert [msgspec.json.decode(one)[0] for one in found if isinstance(one, bytes)] == [op.id for op in ops]


def test_a_wait_without_computing_ends_too(functions: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "WALL_S", 0.2)
    forked.function(by_count)
    stopped = made("x", count=int(signal.SIGSTOP))
    assert forked.each(by_count, [stopped], Policy()) == [
        Reason("budget", "time: no result on meta tensors after 0.2 s")
    ]


def test_the_child_is_kept_replaced_when_it_is_gone_and_left_by_nobody(functions: None) -> None:
    forked.function(by_count)
    alive = made("x", count=100)
    forked.each(by_count, [alive], Policy())
    first = forked._Copy.running
    assert first is not None
    forked.each(by_count, [alive], Policy())
    assert forked._Copy.running is first
    os.kill(first._pid, signal.SIGKILL)
    time.sleep(0.1)
    assert isinstance(forked.each(by_count, [alive], Policy())[0], bytes)
    assert forked._Copy.running is not first
    pid = forked._Copy.running._pid if forked._Copy.running is not None else 0
    forked._end()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_two_functions_of_one_name_are_refused(functions: None) -> None:
    forked.function(by_count)
    with pytest.raises(ValueError, match="two functions have the name by_count"):
        forked.function(by_count)


def dies_at_first(op: ReplayOp, policy: Policy) -> bytes:
    """Ends its process at its first call by the signal that the op's count names, with its default handler or not."""
    if is_first_call(op):
        os.kill(os.getpid(), op.count)
    return b"alive"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGSEGV", "SIGABRT", "SIGUSR1"])
def test_one_death_by_any_signal_costs_no_op(functions: None, tmp_path: Path, name: str) -> None:
    """Also where this process has handlers that raise, which a fork inherits."""
    number = getattr(signal, name)
    before = {kind: signal.signal(kind, raising) for kind in (signal.SIGTERM, signal.SIGHUP)}
    try:
        forked.function(dies_at_first)
        ops = [made(str(tmp_path / text), id_=text, count=int(number)) for text in ("a", "b", "c")]
        assert forked.each(dies_at_first, ops, Policy()) == [b"alive"] * 3
        assert not forked.any_lost()
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def raising(number: int, frame: object) -> None:
    raise KeyboardInterrupt
