"""A job from a plan to results: the order of its events, what ends it early, and one answer for every caller."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.lanes import OneByOne
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.ir.model import Reason, ReplayOp, ReplayPlan
from opreplay.replay.job.consumers import deliver, records_of, write_to
from opreplay.replay.job.events import Ended, Event, Failed, Measured, Planned, Predicted, Progress, Skipped, Started
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.ops.op_view import OpView
from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.replay.session.sweeping import sweep
from opreplay.traces.errors import InternalError, UsageError
from tests.factories import RECORDED

FAKE = Settings(executor="fake", isolation="none", max_op_bytes=10**6, visits=1)


class Closing(InProcess):
    """A runner that notes that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def fake(name: str, reason: Reason | None = None) -> ReplayOp:
    return ReplayOp(id=name.ljust(12, "0"), name=f"fake::{name}", count=1, recorded=RECORDED, reason=reason)


def job_of(*ops: ReplayOp, settings: Settings = FAKE) -> Job:
    plan = ReplayPlan(source="t.json", device_us_total=0.0, host_us_total=float(len(ops)), ops=ops)
    job = Job(plan, settings=settings)
    job.plan = plan  # its ops are no calls that could be resolved
    return job


def test_events_come_in_the_order_of_the_work() -> None:
    job = job_of(fake("1us"), fake("raise"), fake("group", Reason("collective")))
    events = list(job.run())
    assert [type(event) for event in events] == [
        Planned,
        Started,
        *(Progress, Predicted, Measured),
        *(Progress, Predicted, Failed),
        *(Progress, Predicted, Skipped),
        Progress,
        Ended,
    ]
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert (ended.summary.replayed, ended.summary.failed, ended.summary.skipped) == (1, 1, 1)
    assert job.results.summary == ended.summary
    assert [result.status for result in job.results.results] == ["replayed", "failed", "skipped"]
    assert any("1 of 3 ops" in line for line in job.report(job.results).lines)


def test_the_results_of_a_job_are_those_of_its_file(tmp_path: Path) -> None:
    job, path = job_of(fake("1us"), fake("2us")), tmp_path / "r.jsonl"
    with JsonLinesSink.open(path) as sink:
        deliver(job.run(), write_to(sink))
    read = msgspec.structs.replace(read_result_file(str(path)), complete_bytes=0)
    assert msgspec.json.encode(read) == msgspec.json.encode(job.results)


def test_there_are_no_results_before_the_run() -> None:
    with pytest.raises(UsageError, match="nothing was measured"):
        _ = job_of(fake("1us")).results


def test_an_error_in_one_consumer_is_told_to_all_and_raised() -> None:
    seen: list[Event] = []

    def stop(event: Event) -> None:
        if isinstance(event, Measured):
            raise KeyboardInterrupt

    runner = Closing(FakeExecutor(), WorkerConfig(memory_bytes=10**6))
    with pytest.raises(KeyboardInterrupt):
        deliver(job_of(fake("1us"), fake("2us")).run(OneByOne(runner)), seen.append, stop)
    ended = seen[-1]
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, KeyboardInterrupt)
    assert ended.summary.interrupted
    assert ended.summary.replayed == 1
    assert records_of(ended) == (ended.summary,)
    assert runner.closed


def test_an_abandoned_run_closes_its_engine() -> None:
    runner = Closing(FakeExecutor(), WorkerConfig(memory_bytes=10**6))
    events = job_of(fake("1us")).run(OneByOne(runner))
    assert isinstance(next(events), Planned)
    assert isinstance(next(events), Started)
    events.close()
    assert runner.closed


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (Settings(), "cold"),
        (Settings(cache="warm"), "warm"),
        (Settings(cache="step"), "sequence"),
        (Settings(mode="sequence"), "sequence"),
        (Settings(l2="loop", cache="warm"), "loop"),
    ],
)
def test_caches_are_those_asked_for_else_those_of_the_measurement(settings: Settings, state: str) -> None:
    """`opreplay.run` took no notice of `l2` and of the mode, `opreplay run` did: the latter is right."""
    assert settings.cache_state() == state
    assert settings.run_options().l2 == state


def test_every_state_of_caches_survives_the_way_to_a_worker() -> None:
    config = WorkerConfig(options=Settings(l2="loop").run_options(), memory_bytes=1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=WorkerConfig) == config


def test_settings_hold_the_options_that_they_are_made_of() -> None:
    options = RunOptions(op_time_s=0.5, plugins=("mine.py",), allow_imports={"a": "b"})
    settings = Settings.of(options, cluster="1x2x910b3")
    assert msgspec.structs.replace(settings.run_options(), l2=None) == options
    assert settings.with_collectives


def test_part_of_a_step_has_no_caches_of_the_step() -> None:
    from opreplay.replay.plan.selection import Selection

    plan = ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=())
    with pytest.raises(UsageError, match="--cache step"):
        _ = Job(plan, Selection(top=3), Settings(cache="step")).plan


def test_a_sweep_ends_with_the_fault_of_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """`opreplay.sweep` left the prediction out, `opreplay op` ended with the error: the latter is right."""

    def fails(*_: object, **__: object) -> None:
        raise AttributeError("a slip")

    monkeypatch.setattr(OpView, "need", fails)
    with pytest.raises(InternalError, match="aten::mm"):
        sweep("aten::mm(f32[4,8], f32[8,2])")
