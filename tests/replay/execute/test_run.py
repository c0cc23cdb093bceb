from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.ir.model import Assumption, Reason, Recorded, RecordedKernel, ReplayOp, ReplayPlan
from opreplay.replay.job import measuring
from opreplay.replay.job.events import Progress
from opreplay.replay.results.outcome import Outcome
from opreplay.replay.results.reading import MemorySink, read_results
from opreplay.replay.results.records import Record, Simulated
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.errors import UsageError
from tests.running import run_plan

pytestmark = pytest.mark.usefixtures("forked_children")

OPTIONS = RunOptions(executor="fake", isolation="none", max_op_bytes=10**6)


def fake_op(name: str, *, device_us: float = 10.0, count: int = 2, reason: Reason | None = None) -> ReplayOp:
    kernels = (RecordedKernel(name="k", count=count, total_us=device_us),) if device_us else ()
    recorded = Recorded(host_us_total=40, host_us_median=20, device_us_total=device_us, kernels=kernels)
    return ReplayOp(id=name[:12].ljust(12, "0"), name=f"fake::{name}", count=count, recorded=recorded, reason=reason)


def plan_of(*ops: ReplayOp, device_us_total: float = 100.0) -> ReplayPlan:
    return ReplayPlan(source="t.json", device_us_total=device_us_total, host_us_total=200.0, ops=ops)


def predict(op: ReplayOp) -> dict[str, Simulated]:
    one = Simulated(
        time_us=3.0, bound="hbm", terms_us={}, kernels=("Add",), confidence="calibrated", low_us=2.0, high_us=4.0
    )
    return {"910B3": one}


def test_lines_come_in_order_with_both_times_and_a_summary() -> None:
    sink = MemorySink()
    collective = fake_op("all_reduce", device_us=70, reason=Reason("collective", "needs 8 ranks"))
    summary = run_plan(plan_of(collective, fake_op("10us", device_us=30)), OPTIONS, sink=sink, simulate=predict)
    skipped, replayed = sink.results
    assert (skipped.status, str(skipped.reason), skipped.measured_us) == ("skipped", "collective: needs 8 ranks", None)
    assert skipped.simulated_us == {"910B3": 3.0}, "what cannot be replayed is predicted all the same"
    assert replayed.measured_us == pytest.approx(10, rel=0.02)
    assert (replayed.bound, replayed.recorded_device_us, replayed.recorded_share) == ("hbm", 15.0, 0.3)
    assert (replayed.recorded_host_us, replayed.initializer) == (20.0, "fake")
    assert (summary.ops, summary.replayed, summary.skipped, summary.failed) == (2, 1, 1, 0)
    assert summary.reasons == {"collective": 1}
    assert summary.covered_share == pytest.approx(0.3)
    assert summary.recorded_us == 100
    assert summary.measured_us == pytest.approx(20, rel=0.02)
    assert summary.simulated_us == {"910B3": 12.0}
    assert sink.summary == summary
    assert sink.header is not None
    assert sink.header.trace["source"] == "t.json"
    assert sink.header.environment["device"] == "fake"


def test_trace_without_a_device_counts_host_time() -> None:
    sink = MemorySink()
    op = fake_op("10us", device_us=0)
    summary = run_plan(plan_of(op, device_us_total=0), OPTIONS, sink=sink)
    assert sink.results[0].recorded_device_us is None
    assert sink.results[0].recorded_share == pytest.approx(0.2)
    assert summary.recorded_us == 40


def test_progress_names_each_op_and_ends_with_none() -> None:
    seen: list[Progress] = []
    run_plan(plan_of(fake_op("1us"), fake_op("2us")), OPTIONS, sink=MemorySink(), on_progress=seen.append)
    assert [(step.done, step.current) for step in seen] == [(0, "fake::1us"), (1, "fake::2us"), (2, None)]
    assert seen[0].remaining_s is None
    assert seen[-1].remaining_s == 0
    assert all(step.total == 2 for step in seen)


def test_ops_beyond_the_time_of_the_run_are_skipped_with_that_reason() -> None:
    sink = MemorySink()
    run_plan(plan_of(fake_op("1us")), RunOptions(executor="fake", isolation="none", total_time_s=0.0), sink=sink)
    assert str(sink.results[0].reason) == "out of time: the run's 0 s were used up (--set total_time)"


def test_no_more_time_is_left_than_the_run_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "1187 min left" was told of a run of 90 s."""
    now = [0.0]
    monkeypatch.setattr(measuring, "monotonic", lambda: now[0])
    seen: list[Progress] = []

    def tell(step: Progress) -> None:
        seen.append(step)
        now[0] += 40.0

    ops = [fake_op(f"{i}us") for i in range(1, 9)]
    options = RunOptions(executor="fake", isolation="none", total_time_s=90.0)
    run_plan(plan_of(*ops), options, sink=MemorySink(), on_progress=tell)
    assert [(step.remaining_s, step.cut) for step in seen[:4]] == [
        (None, False),
        (50.0, True),
        (10.0, True),
        (0.0, True),
    ]


class Interrupting(InProcess):
    """Ctrl-C while the second op is measured."""

    closed = False

    def measure(self, op: ReplayOp) -> Outcome:
        if op.name == "fake::2us":
            raise KeyboardInterrupt
        return super().measure(op)

    def close(self) -> None:
        self.closed = True


def test_interrupt_keeps_what_is_done_and_says_so(tmp_path: Path) -> None:
    runner = Interrupting(FakeExecutor(), WorkerConfig(memory_bytes=10**6))
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink, pytest.raises(KeyboardInterrupt):
        run_plan(plan_of(fake_op("1us"), fake_op("2us")), OPTIONS, sink=sink, runner=runner)
    _, results, summary = read_results(path)
    assert [result.name for result in results] == ["fake::1us"]
    assert summary is not None
    assert summary.interrupted
    assert (summary.ops, summary.replayed) == (2, 1)
    assert runner.closed


def test_a_run_that_stops_at_the_first_failure_goes_on_behind_it(tmp_path: Path) -> None:
    plan = plan_of(*(fake_op(name) for name in ("1us", "raise", "2us", "3us")))
    path = tmp_path / "r.jsonl"
    stopping = msgspec.structs.replace(OPTIONS, stop_on_error=True)
    with JsonLinesSink.open(path) as sink:
        summary = run_plan(plan, stopping, sink=sink)
    assert (summary.interrupted, summary.ops, summary.replayed, summary.failed) == (True, 4, 1, 1)
    assert [result.status for result in read_results(path)[1]] == ["replayed", "failed"]
    sink, earlier = JsonLinesSink.reopen(path)
    with sink:
        summary = run_plan(plan, OPTIONS, sink=sink, earlier=earlier)
    assert (summary.interrupted, summary.replayed, summary.failed) == (False, 3, 1)
    assert [result.name for result in read_results(path)[1]] == [op.name for op in plan.ops]


def test_a_run_that_stops_at_failures_tries_again_what_failed(tmp_path: Path) -> None:
    plan = plan_of(*(fake_op(name) for name in ("1us", "raise", "2us")))
    path = tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        run_plan(plan, OPTIONS, sink=sink)
    sink, earlier = JsonLinesSink.reopen(path)
    with sink:
        summary = run_plan(plan, msgspec.structs.replace(OPTIONS, stop_on_error=True), sink=sink, earlier=earlier)
    assert (summary.interrupted, summary.replayed, summary.failed) == (False, 2, 1)
    assert path.read_text().count('"fake::raise"') == 2


def test_a_run_does_not_go_on_with_other_code_of_the_users(tmp_path: Path) -> None:
    path, plugin = tmp_path / "r.jsonl", tmp_path / "mine.py"
    options = msgspec.structs.replace(OPTIONS, plugins=(str(plugin),))
    plugin.write_text("A = 1")
    with JsonLinesSink.open(path) as sink:
        run_plan(plan_of(fake_op("1us")), options, sink=sink)
    plugin.write_text("A = 2")
    sink, earlier = JsonLinesSink.reopen(path)
    with sink, pytest.raises(UsageError, match="--plugin files differ"):
        run_plan(plan_of(fake_op("1us")), options, sink=sink, earlier=earlier)


def test_a_failure_of_the_last_op_interrupts_nothing() -> None:
    stopping = msgspec.structs.replace(OPTIONS, stop_on_error=True)
    assert not run_plan(plan_of(fake_op("1us"), fake_op("raise")), stopping, sink=MemorySink()).interrupted


def test_a_sequence_cannot_stop_at_a_failure() -> None:
    stopping = msgspec.structs.replace(OPTIONS, stop_on_error=True, mode="sequence")
    with pytest.raises(UsageError, match="--stop-on-error"):
        run_plan(plan_of(fake_op("1us")), stopping, sink=MemorySink())


def test_full_disk_passes_through_and_closes_the_runner() -> None:
    class FullDisk:
        def write(self, record: Record) -> None:
            raise OSError(28, "No space left on device")

    runner = Interrupting(FakeExecutor(), WorkerConfig(memory_bytes=10**6))
    with pytest.raises(OSError, match="No space left"):
        run_plan(plan_of(fake_op("1us")), OPTIONS, sink=FullDisk(), runner=runner)
    assert runner.closed


@pytest.mark.slow
def test_faults_in_the_child_cost_their_ops_only() -> None:
    sink = MemorySink()
    plan = plan_of(fake_op("1us"), fake_op("abort"), fake_op("2us"))
    summary = run_plan(plan, RunOptions(executor="fake", max_op_bytes=10**6), sink=sink)
    assert [result.status for result in sink.results] == ["replayed", "failed", "replayed"]
    assert summary.failed == 1


def test_memory_default_is_written_to_the_header() -> None:
    sink = MemorySink()
    run_plan(plan_of(), RunOptions(executor="fake", isolation="none"), sink=sink)
    assert sink.header is not None
    assert sink.header.options["max_op_bytes"]


def test_hard_limit_follows_the_time_of_an_op() -> None:
    assert RunOptions().hard_limit_s() == 60
    assert RunOptions(op_time_s=4.0).hard_limit_s() == 120
    assert RunOptions(limit_s=5.0).hard_limit_s() == 5


def test_assumptions_of_plan_and_run_are_both_kept() -> None:
    class Assuming(InProcess):
        def measure(self, op: ReplayOp) -> Outcome:
            return Outcome(status="replayed", assumptions=(Assumption(argument="indices", what="uniform"),))

    op = ReplayOp(
        id="0" * 12,
        name="fake::x",
        count=1,
        recorded=Recorded(host_us_total=1, host_us_median=1),
        assumptions=(Assumption(argument="self", what="contiguous strides"),),
    )
    sink = MemorySink()
    run_plan(plan_of(op), OPTIONS, sink=sink, runner=Assuming(FakeExecutor(), WorkerConfig(memory_bytes=10**6)))
    assert [assumption.argument for assumption in sink.results[0].assumptions] == ["self", "indices"]
