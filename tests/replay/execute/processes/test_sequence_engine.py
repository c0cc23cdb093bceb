"""Sequences of fake ops: what goes wrong costs the op that did it, and what is stored reads back."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.messages import SequenceTask
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.sequence_engine import SequenceEngine
from opreplay.replay.execute.processes.worker import run_sequence
from opreplay.replay.execute.sequence.passes import BEAT
from opreplay.replay.ir.model import Reason, Recorded, RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.job.events import Progress
from opreplay.replay.report.run import report, sequence
from opreplay.replay.report.run.tables import Run, run_of, totals_table
from opreplay.replay.results.compare.compatibility import differences
from opreplay.replay.results.reading import MemorySink, read_result_file
from opreplay.replay.results.records import OpResult, Resumed
from opreplay.replay.results.resume import is_out_of_time
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.traces.errors import UsageError
from tests.factories import meta
from tests.running import outcomes_of, run_plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

HERE = RunOptions(executor="fake", isolation="none", mode="sequence", op_time_s=0.01)
CHILD = msgspec.structs.replace(HERE, isolation="process")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's process limits")


def plan_of(*calls: str, reason: Reason | None = None) -> ReplayPlan:
    """Fake ops called in this order, 5 us each; the last one has the reason."""
    names = list(dict.fromkeys(calls))
    ops = tuple(
        ReplayOp(
            id=f"{at:012x}",
            name=f"fake::{name}",
            count=calls.count(name),
            resolved_by="jit",
            recorded=Recorded(host_us_total=5.0 * calls.count(name), host_us_median=5.0),
            reason=reason if name == calls[-1] else None,
        )
        for at, name in enumerate(names)
    )
    order = RecordedSequence(
        step="ProfilerStep#3",
        steps=5,
        dur_us=100.0,
        ids=tuple(op.id for op in ops),
        calls=tuple(names.index(name) for name in calls),
        host_us=(5.0,) * len(calls),
        host_us_total=5.0 * len(calls),
    )
    return ReplayPlan(source="t.json", device_us_total=0.0, host_us_total=1000.0, ops=ops, sequence=order)


def run(plan: ReplayPlan, options: RunOptions = HERE) -> MemorySink:
    sink = MemorySink()
    run_plan(plan, options, sink=sink)
    return sink


def statuses(sink: MemorySink) -> dict[str, tuple[str, str | None]]:
    return {
        result.name: (result.status, None if result.reason is None else str(result.reason)) for result in sink.results
    }


def test_each_op_has_the_median_of_its_calls_and_the_step_their_sum() -> None:
    sink = run(plan_of("10us", "20us", "10us"))
    assert {result.name: result.measured_us for result in sink.results} == pytest.approx(
        {"fake::10us": 10.0, "fake::20us": 20.0}
    )
    assert all(r.measurement is not None and r.measurement.cache == "sequence" for r in sink.results)
    found = sink.sequence
    assert found is not None
    assert (found.step, found.steps, found.calls, found.calls_replayed) == ("ProfilerStep#3", 5, 3, 3)
    assert (found.sum_us, found.recorded_us, found.recorded_step_us) == (pytest.approx(40.0), 15.0, 100.0)
    assert found.left_out_share == 0.0
    assert sink.summary is not None
    assert sink.summary.recorded_us == 15.0


def test_ops_that_cannot_be_replayed_are_left_out_with_their_share() -> None:
    sink = run(plan_of("10us", "all_reduce", reason=Reason("collective")))
    assert statuses(sink)["fake::all_reduce"] == ("skipped", "collective")
    assert sink.sequence is not None
    assert (sink.sequence.calls, sink.sequence.calls_replayed, sink.sequence.left_out_share) == (2, 1, 0.5)


def test_an_op_over_its_budget_and_one_that_raises_cost_themselves() -> None:
    sink = run(plan_of("10us", "raise", "budget", "20us"))
    assert statuses(sink) == {
        "fake::10us": ("replayed", None),
        "fake::20us": ("replayed", None),
        "fake::raise": ("failed", "failed: RuntimeError: the fake op raised"),
        "fake::budget": ("skipped", "budget: needs 3.2 GB, limit 1.0 GB (--set max_op_memory)"),
    }
    assert sink.sequence is not None
    assert sink.sequence.calls_replayed == 2


@LINUX
@pytest.mark.parametrize(("name", "word"), [("segfault", "SIGSEGV"), ("exit", "status 0")])
def test_an_op_that_ends_the_process_is_left_out_of_another_one(name: str, word: str) -> None:
    sink = run(plan_of("10us", name, "20us"), CHILD)
    status, reason = statuses(sink)[f"fake::{name}"]
    assert status == "failed"
    assert word in (reason or "")
    assert statuses(sink)["fake::20us"] == ("replayed", None)
    assert sink.sequence is not None
    assert sink.sequence.restarts == 2, "tried once more with arguments of its own"


@LINUX
def test_the_op_that_ended_the_process_is_told_from_those_that_were_left_out_before_it() -> None:
    sink = run(plan_of("raise", "10us", "segfault", "20us"), CHILD)
    found = statuses(sink)
    assert found["fake::raise"] == ("failed", "failed: RuntimeError: the fake op raised")
    assert "SIGSEGV" in (found["fake::segfault"][1] or "")
    assert found["fake::10us"] == found["fake::20us"] == ("replayed", None)
    assert sink.sequence is not None
    assert sink.sequence.restarts == 2


def test_a_run_that_is_out_of_time_stops_between_two_calls() -> None:
    plan = plan_of("10us", "20us")
    engine = SequenceEngine(
        plan,
        WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=1),
        budget_bytes=None,
        op_time_s=1.0,
        limit_s=60.0,
        total_time_s=0.0,
        executor=FakeExecutor(),
    )
    found = [outcome.reason for _, outcome in outcomes_of(engine, plan.ops)]
    assert list(map(str, found)) == ["out of time: no pass finished within 0 s (--set total_time)"] * 2
    (record,) = engine.records([])
    assert (record.passes, record.calls_replayed, record.sum_us) == (0, 0, None)


def test_what_there_was_no_time_for_has_another_chance() -> None:
    """The reason that a sequence gives is known to those who continue a run."""
    reason = Reason("out of time", "no pass finished within 3 s (--set total_time)")
    assert is_out_of_time(OpResult(id="0" * 12, name="a::b", count=1, status="skipped", reason=reason))


@LINUX
def test_an_op_that_does_not_return_is_left_out() -> None:
    sink = run(plan_of("10us", "hang"), msgspec.structs.replace(CHILD, limit_s=1.5))
    assert statuses(sink)["fake::hang"] == ("skipped", "budget: time: no result after 1.5 s (--set op_limit)")
    assert statuses(sink)["fake::10us"] == ("replayed", None)


def test_a_process_may_take_what_all_tensors_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A limit for single ops is none for all tensors of a step together."""
    limits: list[int] = []
    monkeypatch.setattr("opreplay.replay.execute.processes.worker.limit_memory", limits.append)
    beat = tmp_path / "beat"
    beat.write_bytes(BEAT.pack(-1, 0))
    for budget in (None, 5 << 30):
        task = SequenceTask(ops=(), calls=(), time_s=0.01, heartbeat=str(beat), budget_bytes=budget)
        run_sequence(
            FakeExecutor(), WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=1), task, lambda _: None
        )
    assert limits[0] > 1 << 20, "half of what is free"
    assert limits[1] == 5 << 30


def test_progress_tells_of_passes() -> None:
    seen: list[Progress] = []
    run_plan(plan_of("10us"), HERE, sink=MemorySink(), on_progress=seen.append)
    assert {"first pass", "pass 1"} <= {step.current for step in seen}
    assert seen[-1].current is None


def test_a_plan_without_an_order_is_refused_before_anything_is_written() -> None:
    sink = MemorySink()
    with pytest.raises(UsageError, match="order"):
        run_plan(msgspec.structs.replace(plan_of("10us"), sequence=None), HERE, sink=sink)
    assert sink.header is None


def test_a_file_reads_back_and_a_whole_one_has_nothing_left_to_do(tmp_path: Path) -> None:
    plan, path = plan_of("10us", "20us"), tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        run_plan(plan, HERE, sink=sink)
    before = path.read_bytes()
    file = read_result_file(path)
    assert file.sequence is not None
    assert file.sequence.calls_replayed == 2
    sink, earlier = JsonLinesSink.reopen(path)
    with sink:
        run_plan(plan, HERE, sink=sink, earlier=earlier)
    assert path.read_bytes() == before


def test_an_interrupted_one_is_begun_again(tmp_path: Path) -> None:
    plan, path = plan_of("10us", "20us"), tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        run_plan(plan, HERE, sink=sink)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    sink, earlier = JsonLinesSink.reopen(path)
    seen = MemorySink()
    seen.take(earlier)
    with sink:
        run_plan(plan, HERE, sink=Both(sink, seen), earlier=earlier)
    file = read_result_file(path)
    assert (len(file.results), file.sequence is not None, file.summary is not None) == (2, True, True)
    assert len(seen.results) == 2


class Both:
    def __init__(self, *sinks: JsonLinesSink | MemorySink) -> None:
        self.sinks = sinks

    def write(self, record: object) -> None:
        assert not isinstance(record, Resumed) or record.kept == 0
        for sink in self.sinks:
            sink.write(record)  # type: ignore[arg-type]


def test_sequences_are_not_compared_with_single_ops() -> None:
    one, other = run(plan_of("10us")).header, MemorySink()
    run_plan(plan_of("10us"), msgspec.structs.replace(HERE, mode="unique"), sink=other)
    assert one is not None
    assert other.header is not None
    old = msgspec.structs.replace(other.header, options={k: v for k, v in other.header.options.items() if k != "mode"})
    for header in (other.header, old):
        assert [d.name for d in differences(header, one) if d.blocking] == ["mode"]
    assert not [d for d in differences(old, other.header) if d.blocking]


def whole_time(run: Run) -> list[float | None]:
    """Measured time of all calls: as the last table has it, and as the summary does."""
    total = totals_table(run).columns[1]
    (measured,) = [clock for clock in totals_table(run).rows if clock[0] == "measured"]
    value = total.value(measured)
    return [value if isinstance(value, float) else None, run.summary.measured_us]


@pytest.mark.parametrize(("size", "pages"), [(16, 0), (40_000, 80)])
def test_results_that_a_program_takes_fresh_memory_for_are_counted(size: int, pages: int) -> None:
    """Two results of 160 kB a pass: 80 pages, which cost 104 to 144 us."""
    plan = plan_of("10us", "10us", "20us")
    ops = tuple(
        msgspec.structs.replace(op, outputs=(meta(size),) if op.name == "fake::10us" else ()) for op in plan.ops
    )
    sink = run(msgspec.structs.replace(plan, ops=ops))
    assert sink.sequence is not None
    assert sink.sequence.fresh_bytes == pages * 4000
    told = [note for note in sequence.notes(sink.sequence) if note.startswith("fresh memory: ")]
    assert len(told) == bool(pages)
    assert not pages or "102 µs to 141 µs per step" in told[0]


def test_the_sum_of_the_passes_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what calls add up to, each at the median of its op."""
    record_of = SequenceEngine.record_of
    monkeypatch.setattr(
        SequenceEngine, "record_of", lambda *args: msgspec.structs.replace(record_of(*args), sum_us=99.0)
    )
    sink = run(plan_of("10us", "20us", "10us"))
    assert sink.summary is not None
    assert sink.summary.measured_us == 99.0


def test_reports_begin_with_the_step() -> None:
    sink = run(plan_of("10us", "20us", "all_reduce", reason=Reason("collective")))
    made = run_of(sink)
    assert made is not None
    assert made.sequence is not None
    text = report.markdown(made)
    assert "sequence of ProfilerStep#3, the median of 5 recorded steps: 2 of 3 calls" in text.replace("\\", "")
    assert "| replayed, sum of the calls | 30.0 µs | 3.00× |" in text
    assert not any("the sum differs" in note for note in sequence.notes(made.sequence)), "sums that agree need no note"
    assert whole_time(made) == [30.0, 30.0]
    slow = msgspec.structs.replace(made, sequence=msgspec.structs.replace(made.sequence, sum_us=60.0))
    assert whole_time(slow)[0] == 60.0, "the last table says what the sequence says"
    notes = [note for note in sequence.notes(slow.sequence) if "30.0 µs; the sum differs by +100 %" in note]
    assert len(notes) == 1
    assert "not in the sequence: 33.3 % of the recorded time" in text
    assert sequence.rendered(None) == []
    whole = msgspec.json.decode(report.view(made).text("json"))
    assert whole["sequence"]["step"] == "ProfilerStep#3"
