"""The graph of a step against a machine whose rules are known: recorded times, and times after a change."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from opreplay.replay.ascend.simulate.devices import load_socs, simulate_plan
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.plan.build import signature_id
from opreplay.replay.plan.inputs import plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.report.step.text import band_text, memory_text
from opreplay.replay.timeline.changes import TWICE, Edited, Unmatched, apply_change
from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.graph.schedule import critical_path, paced, retimed, slack_us
from opreplay.replay.timeline.measured import MeasuredOps
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.simulated import OF_GRAPHS
from opreplay.replay.timeline.timeline import Study, timeline
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError
from opreplay.traces.links.steps import chosen_step, steps_of
from opreplay.traces.samples import sample_path
from tests.replay.timeline.machine import Machine, training
from tests.traces.events import DIMS, document, kernel, launch, op, write


def study(machine: Machine, path: Path, **how: object) -> Study:
    return timeline(read_trace(machine.write(path / "t.json"), activity=True), **how)  # type: ignore[arg-type]


def recorded_us(machine: Machine, path: Path) -> float:
    return study(machine, path).timeline.recorded_step_us


def test_recorded_durations_give_the_recorded_step(tmp_path: Path) -> None:
    found = study(training(), tmp_path).timeline
    assert found.step.steps == 2
    assert abs(found.structure_error) < 0.002
    assert abs(found.structure_error_typical) < 0.01
    assert found.dropped_edges == 0
    assert found.unexplained_waits == 0


@pytest.mark.parametrize(
    "scale",
    [
        {"gemm": 0.5},
        {"gemm": 0.5, "splitk": 0.5, "foreach": 0.5},
        {"gemm": 2.0},
        {"gemm": 0.05},
        {"ncclDevKernel_AllReduce": 0.25},
        {"ncclDevKernel_AllReduce": 8.0},
        {"add_kernel": 30.0},
    ],
    ids=str,
)
def test_changed_kernels_give_the_step_that_the_machine_would_take(tmp_path: Path, scale: dict[str, float]) -> None:
    change = ",".join(f"{kernel}={factor}x" for kernel, factor in scale.items())
    foreseen = study(training(), tmp_path, what_if=[change]).timeline.what_if[0]
    assert foreseen.step_us == pytest.approx(recorded_us(training(**scale), tmp_path), rel=0.02)


def joined_branches(**scale: float) -> Machine:
    """Steps of two branches, of which the shorter one is joined long after it is done."""
    machine = Machine(scale)
    for _ in range(3):
        machine.begin()
        machine.wait_for(20, 7)
        machine.op("aten::side", 10.0, ("side_kernel", 60.0), stream=20)
        for _ in range(6):
            machine.op("aten::mm", 10.0, ("gemm", 100.0))
        machine.wait_for(7, 20)
        machine.op("aten::add", 10.0, ("add_kernel", 80.0))
        machine.end()
    return machine


def test_a_join_that_no_call_records_and_nothing_waited_for_is_in_the_range(tmp_path: Path) -> None:
    truth_us = study(joined_branches(side_kernel=20.0), tmp_path).timeline.recorded_step_us
    sparse = joined_branches()
    sparse.events = [event for event in sparse.events if not event["name"].startswith(("cudaEvent", "cudaStream"))]
    (change,) = study(sparse, tmp_path, what_if=["side*=20x"]).timeline.what_if
    assert change.low_us <= change.step_us < 0.95 * truth_us < truth_us < change.high_us
    (small,) = study(sparse, tmp_path, what_if=["add_kernel=0.5x"]).timeline.what_if
    assert small.high_us == pytest.approx(small.low_us, rel=0.005)


def test_a_change_of_an_op_is_one_of_its_kernels(tmp_path: Path) -> None:
    ops = study(training(), tmp_path, what_if=["aten::mm=0.5x"]).timeline.what_if[0]
    kernels = study(training(), tmp_path, what_if=["gemm=0.5x,splitk=0.5x"]).timeline.what_if[0]
    assert ops.step_us == pytest.approx(kernels.step_us)
    assert ops.work_gain_us == pytest.approx(12 * 100.0)


def test_several_changes_are_shown_alone_and_together(tmp_path: Path) -> None:
    found = study(training(), tmp_path, what_if=["gemm=0", "nccl*=0"]).timeline
    assert [one.change for one in found.what_if] == ["gemm=0", "nccl*=0"]
    assert found.what_if_together is not None
    assert found.what_if_together.step_us <= min(one.step_us for one in found.what_if)


def test_a_captured_graph_leaves_the_device_alone(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for _ in range(50):
        machine.op("aten::add", 30.0, ("add", 5.0))
    machine.synchronize()
    machine.end()
    found = study(machine, tmp_path, what_if=["cudagraph"]).timeline
    assert found.recorded_step_us > 50 * 30
    assert 50 * 5 < found.what_if[0].step_us < 50 * 8
    assert found.what_if[0].assumptions


def test_collectives_that_overlap_leave_computing(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for _ in range(4):
        machine.op("aten::mm", 10.0, ("gemm", 200.0))
        machine.wait_for(20, 7)
        machine.op("c10d::allreduce_", 10.0, ("nccl_AllReduce", 150.0), stream=20)
        machine.wait_for(7, 20)
    machine.synchronize()
    machine.end()
    found = study(machine, tmp_path, what_if=["overlap comm"]).timeline
    assert found.categories_us.communication_overlapped == pytest.approx(0.0, abs=1.0)
    assert found.what_if[0].step_us == pytest.approx(4 * 200 + 150 + 30, rel=0.05)


def test_fused_kernels_take_as_long_as_the_longest(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 10.0, ("gemm", 500.0))
    machine.op("aten::add", 10.0, ("add", 100.0))
    machine.op("aten::mul", 10.0, ("mul", 80.0))
    machine.synchronize()
    machine.end()
    found = study(machine, tmp_path, what_if=["fuse aten::add,aten::mul"]).timeline
    assert found.what_if[0].gain_us == pytest.approx(81.0, abs=1.0)


def test_work_that_waits_for_a_part_waits_for_the_fused_kernel(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 10.0, ("gemm", 500.0))
    machine.wait_for(20, 7)
    machine.op("c10d::allreduce_", 10.0, ("ncclDevKernel_AllReduce", 300.0), stream=20)
    machine.op("aten::add", 10.0, ("add", 100.0))
    machine.wait_for(7, 20)
    machine.synchronize()
    machine.end()
    found = study(machine, tmp_path, what_if=["fuse aten::mm,aten::add"]).timeline
    assert found.what_if[0].gain_us == pytest.approx(0.0, abs=6.0)


def test_kernels_stay_apart_if_the_host_waits_between_them(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 10.0, ("gemm", 500.0))
    machine.synchronize()
    machine.op("aten::add", 10.0, ("add", 100.0))
    machine.op("aten::mul", 10.0, ("mul", 80.0))
    machine.synchronize()
    machine.end()
    found = study(machine, tmp_path, what_if=["fuse aten::mm,aten::add,aten::mul", "fuse aten::mm,aten::add"]).timeline
    assert [change.matched for change in found.what_if] == [1, 0]
    assert found.what_if[0].gain_us == pytest.approx(67.0, abs=4.0)  # the last part is launched 14 µs later
    assert "stay apart" in found.what_if[1].assumptions[0]


def test_categories_and_path_add_up_to_the_step(tmp_path: Path) -> None:
    found = study(training(), tmp_path).timeline
    made = found.categories_us
    total = made.computing + made.communication_not_overlapped + made.copies + made.idle
    assert total == pytest.approx(found.recorded_step_us)
    causes = (
        made.idle_before_first_task
        + made.idle_waiting_for_host
        + made.idle_launch_latency
        + made.idle_gaps_between_tasks
        + made.idle_after_last_task
    )
    assert causes == pytest.approx(made.idle)
    assert sum(part.us for part in found.critical_path) == pytest.approx(found.retimed_step_us)
    assert made.communication == pytest.approx(900.0)
    assert made.idle_waiting_for_host > 500.0  # the first half


def test_what_has_slack_can_grow_by_it(tmp_path: Path) -> None:
    trace = read_trace(training().write(tmp_path / "t.json"), activity=True)
    graph = step_graph(trace, chosen_step(trace))
    schedule = retimed(graph)
    slack = slack_us(graph, schedule)
    free = int(np.argmax(slack * (graph.nodes.kind > 0)))
    longer = graph.nodes.dur_us.copy()
    longer[free] += slack[free]
    assert retimed(graph, longer).step_us == pytest.approx(schedule.step_us)
    longer[free] += 10.0
    assert retimed(graph, longer).step_us == pytest.approx(schedule.step_us + 10.0)
    assert slack[critical_path(graph, schedule)[0]].max() == pytest.approx(0.0, abs=1e-6)


def test_slack_is_shorter_than_the_step_where_the_host_runs_steps_ahead(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(4):
        machine.begin()
        machine.op("aten::add", 5.0, ("add", 20.0), stream=20)
        for _ in range(10):
            machine.op("aten::mm", 5.0, ("gemm", 100.0))
        machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    graph = step_graph(trace, chosen_step(trace, 2))
    schedule = paced(graph)
    (add,) = [node for node in range(len(graph.nodes)) if graph.nodes.kind[node] > 0 and graph.nodes.dur_us[node] == 20]
    slack = float(slack_us(graph, schedule)[add])
    assert slack == pytest.approx(schedule.step_us - 20.0)
    longer = graph.nodes.dur_us.copy()
    longer[add] += slack
    assert paced(graph, longer).step_us == pytest.approx(schedule.step_us, rel=2e-3)


def test_backward_on_another_thread_is_waited_for(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for _ in range(5):
        machine.op("aten::mm", 100.0)
    forward_end = machine.now
    machine.tid = 2
    machine.now += 50.0
    for _ in range(5):
        machine.op("MmBackward0", 200.0)
    machine.tid = 1
    machine.now += 30.0
    machine.op("Optimizer.step", 100.0)
    machine.end()
    assert forward_end < machine.now
    found = study(machine, tmp_path, what_if=["MmBackward0=0.5x", "aten::mm=0"]).timeline
    assert found.retimed_step_us == pytest.approx(found.recorded_step_us)
    assert found.edges["thread waits for thread"].inferred == 2
    assert found.what_if[0].gain_us == pytest.approx(500.0)
    assert found.what_if[1].gain_us == pytest.approx(500.0)


def test_work_of_the_step_before_is_not_counted(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(4):  # the host runs ahead
        machine.begin()
        for _ in range(10):
            machine.op("aten::mm", 5.0, ("gemm", 100.0))
        machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    for number in (1, 2, 3):
        found = timeline(trace, step=number, what_if=["gemm=0.5x"]).timeline
        assert found.recorded_step_us == pytest.approx(10 * 101.0, rel=0.01)
        assert found.retimed_step_us == pytest.approx(found.recorded_step_us)
        assert found.what_if[0].step_us == pytest.approx(10 * 51.0, rel=0.02)
    # further than the step is long
    (told,) = [note for note in found.notes if "still running the previous step" in note]
    assert f"the step's {found.recorded_step_us / 1e3:,.2f} ms are the time from then" in told


def test_a_wait_for_the_step_before_is_no_need_of_the_host(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(3):
        machine.begin()
        machine.synchronize()
        for _ in range(10):
            machine.op("aten::mm", 5.0, ("gemm", 100.0))
        machine.end()
    whole = machine.write(tmp_path / "t.json")
    begin, end = machine.began, machine.free[7]
    machine.events = [event for event in machine.events if event["ts"] >= begin]  # the step before is not recorded
    for path in (whole, machine.write(tmp_path / "last.json")):
        trace = read_trace(path, activity=True)
        graph = step_graph(trace, chosen_step(trace, 2))
        found = timeline(trace, step=2, what_if=["gemm=0.5x"]).timeline
        assert graph.begin_us + found.recorded_step_us <= end - begin + 0.01, "nothing ends after the recording"
        assert found.recorded_step_us == pytest.approx(10 * 101.0, rel=0.05)
        assert found.retimed_step_us == pytest.approx(found.recorded_step_us)
        assert found.categories_us.idle < 0.06 * found.recorded_step_us
        assert found.what_if[0].step_us == pytest.approx(10 * 51.0, rel=0.1)


def test_the_window_of_a_loop_that_synchronizes_each_step(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100_qwen1.5_0.5b.json.gz", activity=True)
    graph = step_graph(trace, chosen_step(trace))
    found = timeline(trace).timeline
    assert graph.begin_us == pytest.approx(14_200.0, rel=0.005)
    assert found.recorded_step_us == pytest.approx(35_200.0, rel=0.005)
    assert 0.08 < found.categories_us.idle / found.recorded_step_us < 0.10
    last_ns = (trace.kernels.start_ns + trace.kernels.dur_ns).max()
    assert graph.step.start_ns + 1e3 * (graph.begin_us + found.recorded_step_us) <= last_ns + 1e3


def test_a_step_is_chosen_by_number_and_else_by_length(tmp_path: Path) -> None:
    machine = Machine()
    for us in (900.0, 100.0, 500.0):
        machine.begin()
        machine.op("aten::mm", us)
        machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    assert [step.number for step in steps_of(trace)] == [0, 1, 2]
    assert chosen_step(trace).number == 2
    assert chosen_step(trace, 1).number == 1
    with pytest.raises(TraceError, match="no step 7") as error:
        chosen_step(trace, 7)
    assert "0, 1, 2" in error.value.hint


def test_a_trace_without_steps_is_taken_whole(tmp_path: Path) -> None:
    machine = Machine()
    machine.op("aten::mm", 100.0, ("gemm", 50.0))
    machine.synchronize()
    found = study(machine, tmp_path).timeline
    assert not found.step.marked
    assert any("marks no steps" in note for note in found.notes)


def test_a_host_that_ends_before_the_device_is_not_on_the_path(tmp_path: Path) -> None:
    machine = Machine()
    machine.op("aten::mm", 10.0, ("gemm", 500.0))
    found = study(machine, tmp_path, what_if=["aten::mm=0.5x"]).timeline
    assert found.critical_path[0].where == "device"
    assert found.what_if[0].gain_us == pytest.approx(250.0, abs=6.0)


@pytest.mark.parametrize("text", ["", "nonsense", "mm=fast", "=0.5x", "mm=3", "dtype int77", "fuse aten::mm"])
def test_text_that_is_no_change_says_what_one_is(tmp_path: Path, text: str) -> None:
    trace = read_trace(training().write(tmp_path / "t.json"), activity=True)
    graph = step_graph(trace, chosen_step(trace))
    with pytest.raises(TraceError) as error:
        apply_change(Names(trace, graph), graph, text)
    assert error.value.hint


@pytest.mark.parametrize("changes", [["aten::mm=0.5x,gemm=0.1x"], ["aten::mm=0.5x", "gemm=0.1x"]])
def test_changes_of_the_same_work_say_that_they_multiply(tmp_path: Path, changes: list[str]) -> None:
    machine = Machine()
    machine.op("aten::mm", 10.0, ("gemm", 500.0))
    found = study(machine, tmp_path, what_if=changes).timeline
    told = found.what_if_together or found.what_if[0]
    assert TWICE in told.assumptions
    assert told.gain_us == pytest.approx(475.0, abs=6.0)


def test_one_change_of_a_simulated_step_multiplies_nothing(tmp_path: Path) -> None:
    """Predicted times differ from the recorded ones before any change."""
    trace = read_trace(training().write(tmp_path / "t.json"), activity=True)
    graph = step_graph(trace, chosen_step(trace))
    names, predicted = Names(trace, graph), Edited.unchanged(graph, graph.nodes.dur_us * 2.0)
    once = apply_change(names, graph, "aten::mm=0.5x", predicted)
    assert TWICE not in once.notes
    assert TWICE in apply_change(names, graph, "gemm=0.5x", once).notes


def test_a_change_of_nothing_is_an_error(tmp_path: Path) -> None:
    made = study(training(), tmp_path, what_if=["aten::conv2d=0.5x", "aten::mm=0.5x"]).timeline
    nothing, halved = made.what_if
    assert (nothing.matched, nothing.gain_us, nothing.step_us) == (0, 0.0, made.retimed_step_us)
    assert "matches nothing" in nothing.assumptions[0]
    assert halved.matched > 0, "the others are shown all the same"
    assert made.what_if_together is not None
    assert made.what_if_together.step_us == pytest.approx(halved.step_us)


def cold(id_: str) -> MeasuredOps:
    return MeasuredOps(us={id_: 40.0}, caches={"cold": 1})


def test_the_profilers_own_time_is_added_for_each_op_inside_a_measured_one(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    start = machine.now
    machine.op("aten::t", 10.0)
    machine.op("aten::addmm", 90.0)
    machine._add("cpu_op", "aten::linear", start, machine.now - start)
    machine.op("aten::relu", 20.0)
    machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    ids = {one.name: signature_id(one) for one in trace.signatures}
    times = {ids["aten::linear"]: 60.0, ids["aten::addmm"]: 1.0, ids["aten::relu"]: 5.0}
    found = timeline(trace, measured=MeasuredOps(us=times, caches={"step": 3}, profiler_event_us=2.0)).timeline
    assert found.measured_profiler_us == pytest.approx(2 * 2.0)
    assert found.measured_step_us == pytest.approx(found.recorded_step_us - 100 - 20 + 60 + 4 + 5, abs=1.0)
    assert not any("caches" in note for note in found.notes)


def test_measured_times_replace_those_of_ops(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 100.0)
    machine.host(30.0)
    machine.op("aten::add", 50.0)
    machine.op("aten::mm", 200.0)
    machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    ids = {one.name: signature_id(one) for one in trace.signatures}
    found = timeline(trace, measured=MeasuredOps(us={ids["aten::mm"]: 40.0})).timeline
    assert found.measured_step_us == pytest.approx(40 + 30 + 50 + 40)
    assert found.measured_ops == 2
    assert any("cold caches" in note for note in timeline(trace, measured=cold(ids["aten::mm"])).timeline.notes)
    with pytest.raises(Unmatched, match="none of the ops"):
        timeline(trace, measured=MeasuredOps(us={"0": 1.0}))
    with pytest.raises(TraceError, match="host"):
        study(training(), tmp_path, measured=MeasuredOps(us={ids["aten::mm"]: 40.0}))


def test_the_device_work_of_another_accelerator_has_its_categories(shared_traces: Path) -> None:
    """MTIA: what its device computes and what its DMA engines move; waits for events are no work."""
    found = timeline(read_trace(shared_traces / "mtia_inference_rank0.json.gz", activity=True)).timeline
    parts = found.categories_us
    assert parts.computing > 0.5 * found.recorded_step_us
    assert 0.0 < parts.copies < 0.1 * found.recorded_step_us
    assert parts.communication == 0.0
    total = parts.computing + parts.communication_not_overlapped + parts.copies + parts.idle
    assert total == pytest.approx(found.recorded_step_us, rel=1e-6)


def test_a_change_of_nothing_names_what_there_is(tmp_path: Path) -> None:
    change = study(training(), tmp_path, what_if=["nothing*=0"]).timeline.what_if[0]
    assert "'gemm'" in change.assumptions[0] or "'aten::mm'" in change.assumptions[0]


def test_a_gain_that_the_host_eats_says_so(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for _ in range(20):
        machine.op("aten::mm", 100.0, ("gemm", 20.0))
    machine.synchronize()
    machine.end()
    change = study(machine, tmp_path, what_if=["aten::mm=0.5x"]).timeline.what_if[0]
    assert change.gain_us < 0.1 * change.work_gain_us
    assert any("after the change the device waits for the host" in line for line in change.assumptions)
    busy = study(training(), tmp_path, what_if=["aten::mm=0.9x"]).timeline.what_if[0]
    assert busy.gain_us < 0.5 * busy.work_gain_us or not any("waits for the host" in line for line in busy.assumptions)


def test_a_pattern_that_device_work_matches_leaves_labels_and_views_alone(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    start = machine.now
    machine.op("vllm::unified_attention", 50.0, ("attention_kernel", 400.0))
    machine.host(300.0)
    machine._add("cpu_op", "## attention ##", start, machine.now - start)
    machine.op("aten::attention_view", 200.0)
    machine.synchronize()
    machine.end()
    change = study(machine, tmp_path, what_if=["*attention*=0"]).timeline.what_if[0]
    assert change.matched == 1
    assert change.work_gain_us == pytest.approx(400.0)
    view = study(machine, tmp_path, what_if=["*attention_view=0"]).timeline.what_if[0]
    assert view.work_gain_us == pytest.approx(200.0)
    assert any("its host time" in line for line in view.assumptions)


def test_a_change_names_what_it_may_have_meant(tmp_path: Path) -> None:
    change = study(training(), tmp_path, what_if=["aten::nm=0.5x"]).timeline.what_if[0]
    assert "the closest names in this step: 'aten::mm'" in change.assumptions[0]


def test_a_step_of_which_nothing_is_predicted_has_no_band_and_no_verdict_on_memory(tmp_path: Path) -> None:
    trace = read_trace(training().write(tmp_path / "t.json"), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    found = timeline(trace, planned=PlannedStep(plan), devices=list(load_socs(("910b3",)).values())).timeline
    one = found.socs["910b3"]
    assert (one.computing_predicted_share, one.low_us, one.high_us) == (0.0, None, None)
    assert band_text(one) == "as recorded, without a prediction"
    assert any("have no prediction: their time is as recorded" in line for line in one.notes)
    assert found.memory is not None
    assert found.memory.fits == {"910b3": None}
    assert memory_text(found.memory).startswith("not known; 910b3: unknown")


@pytest.mark.parametrize("waits", [False, True])
def test_launch_latency_counts_where_the_host_waits_for_the_device(tmp_path: Path, waits: bool) -> None:
    """Launches that follow each other delay all tasks alike: a host of half the time would halve such a step."""
    machine = Machine()
    machine.begin()
    for _ in range(50):
        machine.op("aten::add", 10.0, ("add", 5.0))
        if waits:
            machine.synchronize()
    machine.synchronize()
    machine.end()
    made = study(machine, tmp_path).timeline.categories_us
    assert made.idle_launch_latency == pytest.approx(49 * 6.0 if waits else 0.0, abs=1.0)
    assert made.idle_waiting_for_host > 49 * 4.0


@pytest.mark.parametrize(("recorded_us", "doubted"), [(100.0, True), (1e6, False)])
def test_an_op_whose_prediction_contradicts_what_was_recorded_is_named(
    tmp_path: Path, recorded_us: float, doubted: bool
) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::gcd", 20.0, ("gcd_kernel", recorded_us))
    kind = ["long int"] * 2
    machine.events[-1]["args"] |= {"Input Dims": [[4096, 4096]] * 2, "Input type": kind, "Concrete Inputs": ["", ""]}
    machine.synchronize()
    machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    found = timeline(trace, planned=PlannedStep(plan), devices=list(load_socs(("910b3",)).values())).timeline
    one = found.socs["910b3"]
    assert any(note.startswith("aten::gcd takes 100.0 % of the predicted time") for note in one.notes) is doubted
    # The step is the op, and known no better than it: with the band of its family the two contradicted each other.
    (alone,) = simulate_plan(PlannedStep(plan, expected_contents()), list(load_socs(("910b3",)).values()))
    assert one.high_us is not None
    assert one.high_us / one.step_us > 0.9 * alone.high_us / alone.total_us > 1.8


VOID = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float*)"


@pytest.mark.parametrize(
    "pattern",
    [
        "at::native::vectorized*",
        "void at::native::vectorized*",
        "at::native::vectorized_elementwise_kernel",
        "*CUDAFunctor_add<float>*",
    ],
)
def test_kernels_match_with_and_without_their_return_type_and_templates(tmp_path: Path, pattern: str) -> None:
    machine = Machine()
    machine.begin()
    machine.op("aten::add", 5.0, (VOID, 200.0), ("void gemm<float>(int)", 300.0))
    machine.synchronize()
    machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    (change,) = timeline(trace, what_if=[f"{pattern}=0.5x"]).timeline.what_if
    assert (change.matched, change.gain_us) == (1, pytest.approx(100.0))
    (other,) = timeline(trace, what_if=["vectorized_elementwise_kernel=0.5x"]).timeline.what_if
    assert other.matched == 0, "a pattern holds the whole name, or its namespaces at least"


def nested_on_the_host() -> Machine:
    """Two steps without a device of five calls each: 240 µs of aten::outer around 100 µs of aten::inner in floats."""
    machine = Machine()
    for _ in range(2):
        machine.begin()
        for _ in range(5):
            machine.host(10.0)
            begin = machine.now
            machine.host(140.0)
            machine.op("aten::inner", 100.0)
            machine.events[-1]["args"] |= {"Input Dims": [[4]], "Input type": ["float"]}
            machine._add("cpu_op", "aten::outer", begin, machine.now - begin)
        machine.end()
    return machine


def test_the_path_counts_calls_and_not_the_parts_of_a_call(tmp_path: Path) -> None:
    parts = study(nested_on_the_host(), tmp_path).timeline.critical_path
    assert {part.name: part.times for part in parts if part.name.startswith("aten::")} == {
        "aten::outer": 5,
        "aten::inner": 5,
    }


@pytest.mark.parametrize(
    ("changes", "gain_us"),
    [
        (["aten::inner=0.5x", "aten::in*=0.5x", "aten::i*=0.5x"], 500 * 0.875),
        (["aten::inner=0.5x,aten::in*=0.5x", "aten::inner=1x"], 500 * 0.75),
        (["aten::outer=0.5x", "aten::inner=0.5x"], 700 * 0.5 + 500 * 0.75),
        (["aten::inner=0.5x", "aten::inner=2x"], 0.0),
        (["aten::inner=20us", "aten::outer=0.5x"], 400 + (700 + 100) * 0.5),
        (["dtype bf16", "aten::outer=0.5x"], 700 * 0.5 + 500 * 0.75),
        (["dtype bf16", "dtype fp16"], 250.0),
        (["dtype bf16", "dtype fp8"], 375.0),
        (["aten::outer=0", "aten::inner=0", "dtype bf16"], 1200.0),
    ],
    ids=str,
)
def test_changes_of_one_call_on_the_host_multiply(tmp_path: Path, changes: list[str], gain_us: float) -> None:
    found = study(nested_on_the_host(), tmp_path, what_if=changes).timeline
    together = found.what_if_together
    assert together is not None
    assert together.work_gain_us == pytest.approx(gain_us)
    assert together.gain_us == pytest.approx(gain_us)
    assert together.step_us == pytest.approx(found.retimed_step_us - gain_us)


def test_a_call_that_is_left_out_twice_takes_its_launch_from_python_along_once(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for _ in range(20):
        machine.host(10.0)
        machine.op("aten::sqrt", 50.0)
    machine.end()
    found = study(machine, tmp_path, what_if=["aten::sqrt=0", "aten::sq*=0", "aten::sqrt=0,aten::*=0"]).timeline
    assert found.what_if_together is not None
    assert found.what_if[0].gain_us > 1000.0
    for one in (*found.what_if, found.what_if_together):
        assert one.gain_us == pytest.approx(found.what_if[0].gain_us)


def test_what_a_captured_graph_takes_off_the_host_is_gone_for_other_changes(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for _ in range(4):
        machine.op("aten::add", 20.0, ("add_kernel", 3.0))
        machine.op("aten::view", 30.0)
    machine.op("aten::add", 20.0, ("add_kernel", 3.0))
    machine.end()
    found = study(machine, tmp_path, what_if=["cudagraph", "aten::view=3x"]).timeline
    assert found.what_if_together is not None
    assert found.what_if[1].gain_us < 0.0
    assert found.what_if_together.step_us == pytest.approx(found.what_if[0].step_us)


def test_a_label_is_refused_with_the_kinds_of_names_that_are_accepted(tmp_path: Path) -> None:
    machine = nested_on_the_host()
    machine._add("user_annotation", "dataloader", 1000.0, 30.0)
    (change,) = study(machine, tmp_path, what_if=["dataloader=0.5x"]).timeline.what_if
    assert change.matched == 0
    assert "they do not match labels (record_function), modules or Python functions" in change.assumptions[0]


def test_a_class_of_work_is_a_pattern() -> None:
    """Classes are named in any case; an op or kernel of the trace with just that name comes first."""
    sample = read_trace(sample_path("transformer_infer"), activity=True)
    found = timeline(sample, what_if=["GEMM=0", "gemm=0.5x,normalization=0.5x"]).timeline.what_if
    assert all(change.matched for change in found)
    assert 0.0 < found[1].gain_us < found[0].gain_us


@pytest.mark.parametrize("change", ["cudagraph,aten::mm=0.5x", "dtype bf16,aten::mm=0.5x"])
def test_a_change_of_the_whole_step_stands_alone(tmp_path: Path, change: str) -> None:
    with pytest.raises(TraceError, match="cannot be combined"):
        study(training(), tmp_path, what_if=[change])


def test_the_graph_of_many_threads_is_built_quickly(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for tid in range(3_000):
        machine.tid = tid + 1
        machine.op("aten::add", 5.0)
    machine.tid = 1
    machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    began = time.process_time()
    graph = step_graph(trace, chosen_step(trace))
    assert len({int(lane) for lane in graph.nodes.lane}) == 3_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cudaLaunchKernel"])
def test_how_late_a_graph_starts_on_an_npu_is_said_not_to_be_known(tmp_path: Path, call: str) -> None:
    launching = {**launch(105, 5), "name": call}
    kernels = [kernel("k", 120 + 10 * i, 8, correlation=5) for i in range(3)]
    written = write(tmp_path, document([op("aten::mm", 100, 60, 1, **DIMS), launching, *kernels]))
    trace = read_trace(written, activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    found = timeline(trace, planned=PlannedStep(plan), devices=list(load_socs(("910b3",)).values())).timeline
    assert (OF_GRAPHS in found.socs["910b3"].notes) == (call == "cudaGraphLaunch")
