"""Kernels that collectives beside them slow down: how much the steps of a trace tell, and what a change makes of it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.graph.slowed import CollectiveIntervals, with_losses
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import Trace, read_trace
from opreplay.traces.links.steps import chosen_step
from tests.replay.timeline.machine import Machine

KERNEL_US, KERNELS = 100.0, 8


def overlapping(path: Path, lost: float, *, steps: int = 6, reduce: bool = True, vary: bool = True) -> Trace:
    """Steps in which a collective runs beside kernels that lose a share of their speed to it; its length and the work
    of the kernels `vary` between steps."""
    machine, rng = Machine(), random.Random(1)
    for _ in range(steps):
        machine.begin()
        machine.op("aten::add", 5.0, ("add", 20.0))
        begin = machine.free[7] + 7.0
        length = (rng.uniform(150.0, 450.0) if vary else 400.0) if reduce else 0.0
        beside = CollectiveIntervals(np.array([begin]), np.array([begin + length]))
        if reduce:
            machine.wait_for(20, 7)
            machine.free[20] = begin - 1.0
            machine.op("c10d::allreduce_", 2.0, ("ncclDevKernel_AllReduce", length), stream=20)
        for _ in range(KERNELS):
            work = KERNEL_US * (1.0 + 0.01 * rng.uniform(-1.0, 1.0) * vary)
            start = max(machine.now + 7.5, machine.free[7] + 1.0)
            machine.op("aten::mm", 3.0, ("gemm", beside.slowed_duration(start, work, lost)))
        machine.synchronize()
        machine.end()
    return read_trace(machine.write(path / "t.json"), activity=True)


def test_how_long_collectives_ran_before_a_time() -> None:
    beside = CollectiveIntervals(np.array([10.0, 15.0, 50.0]), np.array([30.0, 20.0, 60.0]))
    times = np.array([0.0, 10.0, 20.0, 40.0, 55.0, 99.0])
    assert beside.time_before(times).tolist() == [0.0, 0.0, 10.0, 20.0, 25.0, 30.0]
    assert CollectiveIntervals(np.empty(0), np.empty(0)).time_before(times).tolist() == [0.0] * 6


def test_work_takes_longer_beside_collectives() -> None:
    beside = CollectiveIntervals(np.array([10.0, 50.0]), np.array([30.0, 60.0]))
    assert beside.slowed_duration(0.0, 5.0, 0.5) == 5.0
    assert beside.slowed_duration(10.0, 5.0, 0.5) == 10.0, "all of it at half the speed"
    assert beside.slowed_duration(0.0, 40.0, 0.5) == 50.0, "10 alone, 10 in 20 beside, 20 alone"
    assert beside.slowed_duration(70.0, 5.0, 0.5) == 5.0


@pytest.mark.parametrize("lost", [0.0, 0.2, 0.4])
def test_the_steps_tell_what_kernels_lose(tmp_path: Path, lost: float) -> None:
    trace = overlapping(tmp_path, lost)
    told = with_losses(trace, step_graph(trace, chosen_step(trace))).lost_during_collectives
    assert told == pytest.approx(lost, abs=0.02)


def test_one_step_tells_nothing(tmp_path: Path) -> None:
    trace = overlapping(tmp_path, 0.3, steps=1)
    assert with_losses(trace, step_graph(trace, chosen_step(trace))).lost_during_collectives == 0.0


def test_without_collectives_kernels_are_as_quick_as_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    trace = overlapping(tmp_path / "a", 0.3)
    changes = timeline(trace, what_if=["nccl*=0", "overlap comm", "gemm=0.5x"]).timeline.what_if
    alone = timeline(overlapping(tmp_path / "b", 0.3, reduce=False)).timeline.recorded_step_us
    assert changes[0].step_us == pytest.approx(alone, rel=0.02)
    assert changes[1].step_us == pytest.approx(alone, rel=0.02)
    assert any("of their speed" in note for note in changes[0].assumptions)
    assert changes[2].step_us < changes[0].step_us


@pytest.mark.parametrize("steps", [1, 6])
def test_the_range_holds_what_equal_steps_do_not_tell(tmp_path: Path, steps: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    trace = overlapping(tmp_path / "a", 0.2, steps=steps, vary=False)
    (change,) = timeline(trace, what_if=["nccl*=0"]).timeline.what_if
    alone = timeline(overlapping(tmp_path / "b", 0.2, steps=steps, vary=False, reduce=False)).timeline.recorded_step_us
    assert change.step_us > alone * 1.05
    assert change.low_us <= alone <= change.high_us


def test_the_range_is_narrow_where_steps_tell(tmp_path: Path) -> None:
    (change,) = timeline(overlapping(tmp_path, 0.3), what_if=["nccl*=0"]).timeline.what_if
    assert change.high_us - change.low_us < 0.02 * change.step_us


def test_kernels_that_run_beside_no_collective_have_no_range(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(3):
        machine.begin()
        machine.op("aten::mm", 5.0, ("gemm", 100.0))
        machine.wait_for(20, 7)
        machine.op("c10d::allreduce_", 2.0, ("ncclDevKernel_AllReduce", 50.0), stream=20)
        machine.synchronize()
        machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    assert with_losses(trace, step_graph(trace, chosen_step(trace))).lost_bounds == (0.0, 0.0)


@pytest.mark.slow
def test_overlap_makes_no_step_longer_where_the_host_runs_ahead(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "mi300_resnet_ddp_act_checkpoint.json.gz", activity=True)
    study = timeline(trace, what_if=["overlap comm"]).timeline
    assert study.what_if[0].step_us <= study.recorded_step_us * 1.01


def test_an_op_left_out_takes_its_call_from_python_along(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(2):
        machine.begin()
        for _ in range(20):
            machine.host(1.0)
            machine.op("aten::mul", 5.0)
            machine.host(1.5)
            machine.op("aten::add", 3.0)
        machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    left_out, halved = timeline(trace, what_if=["aten::add=0", "aten::add=0.5x"]).timeline.what_if
    assert left_out.gain_us == pytest.approx(20 * (3.0 + 1.0)), "1 µs is the least there is before an op"
    assert halved.gain_us == pytest.approx(20 * 1.5)
