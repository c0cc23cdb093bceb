"""Many plans as one: shared ops once, sums for each trace and job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.batch.merge import Batch, TracePlan, call_key
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.results.reading import MemorySink
from opreplay.replay.results.records import JobResult, OpResult, TraceResult
from opreplay.replay.results.summary import summary_so_far
from tests.running import run_plan

OPTIONS = RunOptions(executor="fake", isolation="none", max_op_bytes=10**6)


def op(index: int, *, count: int = 1, device_us: float = 10.0, **more: Any) -> ReplayOp:
    recorded = Recorded(host_us_total=2.0 * count, host_us_median=2.0, device_us_total=device_us)
    return ReplayOp(id=f"{index:012x}", name=f"fake::{index}us", count=count, recorded=recorded, **more)


def trace(path: str, *ops: ReplayOp, rank: int | None = None, world_size: int | None = None) -> TracePlan:
    total = sum(one.recorded.device_us_total for one in ops)
    plan = ReplayPlan(source=path, device_us_total=total, host_us_total=1.0, ops=ops)
    return TracePlan(path=path, plan=plan, rank=rank, world_size=world_size)


def ran(batch: Batch) -> MemorySink:
    sink = MemorySink()
    run_plan(batch.plan(), OPTIONS, sink=sink, sums=batch.close, trace=batch.facts())
    return sink


def test_ops_that_traces_share_run_once_and_count_for_each() -> None:
    batch = Batch.of(
        [
            trace("rank0.json", op(1, count=2, device_us=30), op(2, device_us=70), rank=0, world_size=2),
            trace("rank1.json", op(1, count=3, device_us=40), op(3, device_us=60), rank=1, world_size=2),
        ]
    )
    sink = ran(batch)
    assert sorted((r.name, r.count) for r in sink.results) == [("fake::1us", 5), ("fake::2us", 1), ("fake::3us", 1)]
    assert sink.results[0].recorded_share == pytest.approx(0.35)
    first, second = sink.traces
    assert (first.source, first.rank, first.ops, first.shared, first.replayed) == ("rank0.json", 0, 2, 1, 2)
    assert first.measured_us == pytest.approx(2 * 1 + 2, rel=0.02)
    assert second.measured_us == pytest.approx(3 * 1 + 3, rel=0.02)
    assert (first.recorded_us, first.covered_share) == (100.0, 1.0)
    (job,) = sink.jobs
    assert (job.job, job.ranks, job.world_size, job.rank_from) == ("rank*.json", (0, 1), 2, "metadata")
    assert (job.ops, job.rank_ops, job.replayed, job.recorded_us, job.slowest_rank_us) == (3, 4, 3, 200.0, 100.0)
    assert sink.header is not None
    assert sink.header.trace["ops_of_traces"] == 4
    assert sink.summary is not None
    assert first.measured_us is not None
    assert second.measured_us is not None
    assert sink.summary.measured_us == pytest.approx(first.measured_us + second.measured_us)


def test_a_pattern_is_unmatched_only_if_no_trace_has_such_an_op() -> None:
    options = (("--include a", "--include b"), ("--include b", "--include c"))
    plans = [
        msgspec.structs.replace(one, plan=msgspec.structs.replace(one.plan, unmatched=missed))
        for one, missed in zip((trace("0", op(1)), trace("1", op(2))), options, strict=True)
    ]
    assert Batch.of(plans).plan().unmatched == ("--include b",)


def test_twenty_ranks_of_one_job_cost_what_one_does() -> None:
    ops = [op(index) for index in range(1, 8)]
    traces = [trace(f"rank{rank}.json", *ops, rank=rank, world_size=20) for rank in range(20)]
    batch = Batch.of(traces)
    assert len(batch.plan().ops) == 7
    assert batch.rank_ops == 140
    assert [result.count for result in ran(batch).results] == [20] * 7


def test_one_signature_called_in_two_ways_is_two_ops() -> None:
    def with_mask(value: bool) -> ReplayOp:
        return op(1, args=(ReplayArg(name="causal", type="bool", value=value),))

    batch = Batch.of([trace("a.json", with_mask(True)), trace("b.json", with_mask(False)), trace("c.json", op(1))])
    plan = batch.plan()
    assert len({one.id for one in plan.ops}) == 3
    assert plan.ops[0].id != plan.ops[1].id
    assert [one.ops for one in ran(batch).traces] == [1, 1, 1]


def test_what_was_recorded_does_not_make_another_op() -> None:
    assert call_key(op(1, count=7, device_us=1.0), "device") == call_key(op(1), "device")
    assert call_key(op(1, reason=Reason("collective")), None) != call_key(op(1), None)


def test_traces_without_device_time_count_host_time() -> None:
    cpu = trace("cpu.json", op(1, count=3, device_us=0.0))
    sink = ran(Batch.of([cpu, trace("gpu.json", op(1))]))
    assert [one.recorded_us for one in sink.traces] == [6.0, 10.0]


def test_interrupted_batches_sum_what_is_there() -> None:
    batch = Batch.of([trace("a.json", op(1), op(2)), trace("b.json", op(2))])
    results = [OpResult(id=batch.plan().ops[0].id, name="x", count=2, status="replayed", measured_us=2.0)]
    closed = batch.close(results)
    traces = [one for one in closed if isinstance(one, TraceResult)]
    assert sum(one.replayed for one in traces) in (1, 2)
    assert len([one for one in closed if isinstance(one, JobResult)]) == 2


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), max_size=6, unique_by=lambda p: p[0]), max_size=6
    )
)
def test_merging_keeps_all_calls_and_times(shape: list[list[tuple[int, int]]]) -> None:
    traces = [
        trace(f"t{i}.json", *(op(index, count=count, device_us=float(count)) for index, count in ops))
        for i, ops in enumerate(shape)
    ]
    plan = Batch.of(traces).plan()
    assert sum(one.count for one in plan.ops) == sum(count for ops in shape for _, count in ops)
    assert plan.device_us_total == pytest.approx(sum(count for ops in shape for _, count in ops))
    assert len(plan.ops) == len({index for ops in shape for index, _ in ops})
    assert msgspec.json.decode(msgspec.json.encode(plan), type=ReplayPlan) == plan


def test_time_without_an_op_is_that_of_all_traces() -> None:
    """It was 0 in every batch. Of traces on the device's clock, if there is one: those alone are in the total."""

    def without(path: str, unowned_us: float, *, total_us: float) -> TracePlan:
        plan = ReplayPlan(
            source=path, device_us_total=total_us, host_us_total=5.0, unowned_device_us=unowned_us, ops=()
        )
        return TracePlan(path=path, plan=plan)

    owned = [without("a.json", 30.0, total_us=100.0), without("b.json", 20.0, total_us=20.0)]
    host = without("c.json", 7.0, total_us=0.0)
    assert Batch.of(owned).plan().unowned_device_us == 50.0
    assert Batch.of([*owned, host]).plan().unowned_device_us == 50.0
    assert Batch.of([host]).plan().unowned_device_us == 7.0


def test_all_of_a_trace_is_a_share_of_1() -> None:
    """Thirds add up to 0.9999999999999999, and to more than 1 in another order."""
    parts = [op(index, device_us=us) for index, us in enumerate((0.1, 0.2, 0.3, 1 / 3, 0.7, 1e-3, 1e6 / 7), start=1)]
    sink = ran(Batch.of([trace("a.json", *parts), trace("b.json", *reversed(parts))]))
    assert [one.covered_share for one in sink.traces] == [1.0, 1.0]
    assert sink.summary is not None
    assert sink.summary.covered_share == 1.0


def test_a_killed_run_says_what_it_does_not_know() -> None:
    made = summary_so_far([], ops=52, recorded_us=9.0, wall_s=None, interrupted=True)
    assert (made.wall_s, made.measured_us, made.not_reached) == (None, None, 52)
