"""Lanes: every op once, a fault in one lane costs its op only, nothing is left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from time import monotonic

import pytest

from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.lanes import Lanes, lane_devices, split_cpus
from opreplay.replay.execute.processes.runner import ChildProcess
from opreplay.replay.ir.model import Reason, Recorded, ReplayOp, ReplayPlan
from opreplay.replay.results.outcome import Outcome, unable
from opreplay.replay.results.reading import MemorySink
from opreplay.traces.errors import UsageError
from tests.running import outcomes_of, run_plan

pytestmark = pytest.mark.slow


def fake_op(index: int, name: str) -> ReplayOp:
    recorded = Recorded(host_us_total=1, host_us_median=1)
    return ReplayOp(id=f"{index:012x}", name=f"fake::{name}", count=1, recorded=recorded)


@pytest.fixture
def children() -> Iterator[list[ChildProcess]]:
    made = [
        ChildProcess(WorkerConfig(options=RunOptions(executor="fake"), memory_bytes=10**6), limit_s=1.0)
        for _ in range(2)
    ]
    yield made
    for child in made:
        child.close()


def test_every_op_has_one_outcome_whatever_happens_in_a_lane(children: list[ChildProcess]) -> None:
    lanes = Lanes(children)
    assert lanes.start() == {"device": "fake", "lanes": 2}
    names = ["1us", "hang", "2us", "abort", "3us", "late", "4us", "5us"]
    refused = unable(Reason("budget", "no time"))

    def decide(op: ReplayOp) -> Outcome | None:
        return refused if op.name == "fake::late" else None

    started = monotonic()
    found = outcomes_of(lanes, [fake_op(i, name) for i, name in enumerate(names)], decide)
    assert sorted(op.name for op, _ in found) == sorted(f"fake::{name}" for name in names)
    status = {op.name.removeprefix("fake::"): outcome.status for op, outcome in found}
    assert status.pop("hang") == "skipped"
    assert status.pop("abort") == "failed"
    assert status.pop("late") == "skipped"
    assert set(status.values()) == {"replayed"}
    assert monotonic() - started < 30
    pids = [child.pid for child in children]
    lanes.close()
    for pid in pids:
        if pid is not None:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_plan_runs_in_lanes_to_the_same_results() -> None:
    plan = ReplayPlan(
        source="t.json", device_us_total=0.0, host_us_total=9.0, ops=tuple(fake_op(i, f"{i + 1}us") for i in range(9))
    )
    sink = MemorySink()
    summary = run_plan(plan, RunOptions(executor="fake", max_op_bytes=10**6, lanes=2), sink=sink)
    assert summary.replayed == 9
    assert {result.id for result in sink.results} == {op.id for op in plan.ops}
    assert sink.header is not None
    assert sink.header.environment["lanes"] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="needs processor affinity")
def test_processors_are_split_evenly_and_only_where_they_suffice() -> None:
    own = sorted(os.sched_getaffinity(0))
    for lanes in (1, 2, 3):
        parts = split_cpus(lanes)
        if lanes <= len(own):
            assert sorted(cpu for part in parts for cpu in part) == own
            assert all(parts)
        else:
            assert parts == [()] * lanes


def test_each_lane_has_a_device_of_its_own_unless_they_share() -> None:
    assert lane_devices("cpu", 3, shared=False) == ["cpu"] * 3
    assert lane_devices("cuda", 2, shared=False) == ["cuda:0", "cuda:1"]
    assert lane_devices("cuda:1", 1, shared=False) == ["cuda:1"]
    assert lane_devices("cuda:1", 2, shared=True) == ["cuda:1", "cuda:1"]
    with pytest.raises(UsageError, match="2 workers would measure on npu:0"):
        lane_devices("npu:0", 2, shared=False)
