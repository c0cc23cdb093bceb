"""A step that the CPU ran, on a simulated device: which ops leave the host, what it does meanwhile, what waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opreplay.replay.ascend.simulate.devices import load_socs
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.plan.inputs import open_trace, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.report.page import of_timeline
from opreplay.replay.report.step.tracks import events, processes
from opreplay.replay.timeline.graph.model import SYNC
from opreplay.replay.timeline.offload import DISPATCH_US, offloaded
from opreplay.replay.timeline.timeline import Study, timeline
from opreplay.traces import Trace
from opreplay.traces.samples import sample_path


def study(name: str, **how: object) -> tuple[Trace, Study]:
    trace = open_trace(str(sample_path(name)), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    devices = list(load_socs(("910b3",)).values())
    return trace, timeline(trace, planned=PlannedStep(plan, expected_contents()), devices=devices, **how)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_training_step_leaves_the_host() -> None:
    _, found = study("cnn_train", what_if=["aten::convolution_backward=0"])
    one = found.timeline.socs["910b3"]
    assert one.predicted_share > 0.99
    assert 0.0 < one.low_us < one.step_us < one.high_us
    assert one.step_us < found.timeline.recorded_step_us
    assert any("16 µs for each op moved to the device" in note for note in one.notes)
    kinds = one.categories_us
    assert kinds.computing + kinds.communication_not_overlapped + kinds.copies + kinds.idle == pytest.approx(
        one.step_us
    )
    # The change acts on the device's tasks there, whose host still launches them, and on the host's time here.
    (change,) = found.timeline.what_if
    assert change.socs_us["910b3"] <= one.step_us
    assert change.step_us < found.timeline.retimed_step_us
    # Views draw each step with its own graph: here it has other nodes than the recorded one.
    drawn = of_timeline.page(found, "opreplay timeline")
    assert [strip.title for strip in drawn.strips] == ["recorded", "simulated 910b3"]
    assert [one.title for one in processes(found)] == ["recorded", "simulated 910b3"]
    assert sum(1 for _ in events(processes(found))) > 2 * len(found.graph.nodes) / 3


def test_the_host_dispatches_what_left_it_and_keeps_the_rest() -> None:
    trace, _ = study("moe_block")
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    made, host_us = offloaded(trace, {op.id: op for op in plan.ops})
    names = [trace.signatures[i].name for i in trace.ops.signature]
    left = {names[row] for row in np.flatnonzero(~np.isnan(host_us))}
    assert {"aten::linear", "aten::silu", "aten::index_add_"} <= left
    assert not left & {"aten::chunk", "aten::slice", "aten::view", "aten::unsqueeze"}
    assert set(host_us[~np.isnan(host_us)]) == {DISPATCH_US}
    assert [made.kernel_names[i] for i in made.kernels.name] == [names[row] for row in made.kernels.owner]
    assert len(trace.kernels) == 0


def test_the_host_waits_where_it_needs_a_result() -> None:
    _, found = study("moe_block")
    on = found.simulated["910b3"]
    waits = on.graph.edges.kind == SYNC
    assert waits.any()
    target, source = on.graph.edges.target[waits][-1], on.graph.edges.source[waits][-1]
    assert on.schedule.start_us[target] >= on.schedule.end_us[source]


def test_collectives_of_the_host_follow_the_link_model() -> None:
    _, found = study("ddp_step_rank1")
    one, recorded = found.timeline.socs["910b3"].categories_us, found.timeline.categories_us
    assert 0.0 < one.communication < 0.1 * recorded.communication


def test_a_change_scales_what_is_left_of_an_op_on_the_device() -> None:
    """Never the recorded host time of ops that left the host."""
    changes = ["aten::linear=2x", "aten::matmul=2x", "aten::view=2x", "aten::silu=1x", "aten::matmul=5us"]
    _, found = study("moe_block", what_if=changes)
    on = found.timeline.socs["910b3"]
    outer, inner, view, same, timed = found.timeline.what_if
    device_us = sum(on.by_family_us.values())
    assert on.step_us <= inner.socs_us["910b3"] <= outer.socs_us["910b3"] <= on.step_us + device_us
    assert outer.work_gain_us < -2 * device_us  # what the host took would not fit in there
    assert any("runs inside aten::linear" in line for line in inner.assumptions)
    assert view.socs_us["910b3"] <= on.step_us - view.work_gain_us + 1.0
    assert same.matched > 0
    assert same.socs_us["910b3"] == pytest.approx(on.step_us)
    assert timed.socs_us == {}
    assert any("give a factor instead" in line for line in timed.assumptions)


def test_changes_of_an_op_inside_one_on_the_device_multiply() -> None:
    _, found = study("moe_block", what_if=["aten::matmul=20x,aten::mat*=3x", "aten::matmul=60x"])
    twice, once = (change.socs_us["910b3"] for change in found.timeline.what_if)
    assert twice == pytest.approx(once)
    assert twice > found.timeline.socs["910b3"].step_us + 1.0


def test_a_change_without_pattern_acts_on_the_simulated_step_or_says_why_not() -> None:
    _, found = study("moe_block", what_if=["cudagraph", "overlap comm"])
    captured, overlapped = found.timeline.what_if
    assert captured.matched > 0
    assert captured.step_us == found.timeline.retimed_step_us
    assert captured.socs_us["910b3"] < found.timeline.socs["910b3"].step_us
    assert "no launch" in captured.assumptions[0].lower()
    assert overlapped.matched == 0
    assert overlapped.assumptions == ("changes nothing in this step. The step has no collectives.",)


def test_sizes_of_collectives_come_from_the_ops_around_them(shared_traces: Path) -> None:
    trace = open_trace(str(shared_traces / "param_dlrm_worker0_kineto.json.gz"), activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    one = timeline(trace, planned=PlannedStep(plan), devices=list(load_socs(("910b3",)).values())).timeline.socs[
        "910b3"
    ]
    assert any("3 collectives of unknown size" in note for note in one.notes)  # all-reduces that record no tensor
    assert 0.0 < one.by_family_us["Collective"] < 1000.0  # recorded 4 ms, for the most part waiting
