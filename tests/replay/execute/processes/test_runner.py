"""Children that crash, hang, leave and eat memory; each costs its own op and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import ChildProcess, InProcess
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.traces.errors import EnvironmentRefused, UsageError
from opreplay.traces.model import TensorMeta
from tests.factories import fake_op

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's process limits")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.fixture
def runner(forked_children: None) -> Iterator[ChildProcess]:
    child = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=20.0)
    child.start()
    yield child
    child.close()


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("abort", "failed", "failed: SIGABRT"),
        ("segfault", "failed", "failed: SIGSEGV"),
        ("exit", "failed", "failed: the process ended with status 0"),
        ("raise", "failed", "failed: RuntimeError: the fake op raised"),
    ],
)
def test_crash_costs_only_its_op(runner: ChildProcess, name: str, status: str, reason: str) -> None:
    outcome = runner.measure(fake_op(name))
    assert (outcome.status, str(outcome.reason)) == (status, reason)
    assert runner.measure(fake_op("3us")).status == "replayed"


@linux
def test_op_that_eats_memory_is_stopped_and_the_child_lives(runner: ChildProcess) -> None:
    pid = runner.pid
    outcome = runner.measure(fake_op("allocate"))
    assert outcome.status == "skipped"
    assert str(outcome.reason).startswith("budget: memory")
    assert runner.measure(fake_op("3us")).status == "replayed"
    assert runner.pid == pid


def test_hang_ends_at_the_limit(forked_children: None) -> None:
    runner = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=0.5)
    try:
        runner.start()
        pid = runner.pid
        outcome = runner.measure(fake_op("hang"))
        assert (outcome.status, str(outcome.reason)) == (
            "skipped",
            "budget: time: no result after 0.5 s (--set op_limit)",
        )
        assert pid is not None
        assert not is_alive(pid)
    finally:
        runner.close()


def test_the_end_of_the_runs_time_ends_the_op_in_flight(forked_children: None) -> None:
    config = WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6)
    runner = ChildProcess(config, limit_s=60.0, until=monotonic() + 6.0)
    try:
        runner.start()
        assert runner.measure(fake_op("3us")).status == "replayed"
        outcome = runner.measure(fake_op("hang"))
        assert str(outcome.reason) == "out of time: the run's time was over while it ran (--set total_time)"
        assert 0.0 < (outcome.measure_s or 0.0) < 7.0
        assert runner.pid is None
    finally:
        runner.close()


def test_crash_after_other_ops_is_tried_again_in_a_fresh_child(runner: ChildProcess) -> None:
    assert runner.measure(fake_op("1us")).status == "replayed"
    before = runner.pid
    assert runner.measure(fake_op("abort")).status == "failed"
    assert runner.pid is None, "the second child died as well"
    assert runner.measure(fake_op("1us")).status == "replayed"
    assert runner.pid != before


def test_close_leaves_no_process(runner: ChildProcess) -> None:
    pid = runner.pid
    runner.close()
    assert pid is not None
    assert not is_alive(pid)
    assert runner.pid is None


def test_missing_device_is_refused_and_no_child_stays() -> None:
    config = WorkerConfig(options=RunOptions(executor="torch", device="xpu:7"), memory_bytes=10**6)
    with pytest.raises(EnvironmentRefused, match="xpu:7"):
        ChildProcess(config, limit_s=5).start()
    with pytest.raises(UsageError, match="is not a device"):
        ChildProcess(WorkerConfig(options=RunOptions(device="toaster"), memory_bytes=10**6), limit_s=5).start()


def test_torch_runs_in_the_child() -> None:
    meta = TensorMeta(shape=(8, 8), dtype="float32")
    args = tuple(ReplayArg(name=name, type="Tensor", tensors=(meta,)) for name in ("self", "mat2"))
    recorded = Recorded(host_us_total=1, host_us_median=1)
    product = ReplayOp(
        id="d" * 12, name="aten::mm", count=1, overload="", resolved_by="jit", recorded=recorded, args=args
    )
    runner = ChildProcess(WorkerConfig(memory_bytes=10**8), limit_s=60)
    try:
        facts = runner.start()
        outcome = runner.measure(product)
    finally:
        runner.close()
    assert facts["device"] == "cpu"
    assert "torch" in facts
    assert outcome.status == "replayed", outcome.reason
    assert outcome.initializer == "dense"


@linux
def test_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\n"
        "from opreplay.replay.execute.processes.runner import ChildProcess\n"
        "from opreplay.replay.execute.options import RunOptions, WorkerConfig\n"
        "child = ChildProcess(WorkerConfig(options=RunOptions(executor='fake'), memory_bytes=1), limit_s=5)\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_child_takes_no_module_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('taken from the current folder')")
    monkeypatch.chdir(tmp_path)
    runner = ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=1), limit_s=5)
    assert runner.start() == {"device": "fake"}
    runner.close()


def test_in_process_runs_the_given_executor() -> None:
    executor = FakeExecutor()
    runner = InProcess(executor, WorkerConfig(options=RunOptions(seed=7), memory_bytes=1 << 30))
    assert runner.start() == {"device": "fake"}
    assert runner.measure(fake_op("2us")).status == "replayed"
    assert executor.prepared == [("0" * 12, 7)]
    runner.close()
