"""Call stacks of a step: equal ones together, callers before what they call."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.timeline.all_steps import categories_of_steps
from opreplay.replay.timeline.flames import Frame, compared_frames, frames_of
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import read_trace
from tests.replay.timeline.machine import Machine, training


def test_layers_of_one_class_are_one_stack_as_wide_as_all_their_calls(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for layer in range(3):
        begin = machine.now
        machine.host(500.0)
        machine.op("aten::mm", 40.0, ("gemm", 100.0))
        machine._add("python_function", f"nn.Module: Layer_{layer}", begin, machine.now - begin)
    machine.op("aten::add", 1000.0, ("add", 3.0))
    machine.synchronize()
    machine.end()
    study = timeline(read_trace(machine.write(tmp_path / "t.json"), activity=True))
    frames = frames_of(study.names.trace, study.graph)
    rows = [(frame.name, frame.kind, frame.depth, frame.start_us, frame.us) for frame in frames]
    assert rows == [
        ("Layer", "module", 0, 0.0, pytest.approx(3 * 544.0)),
        ("aten::mm", "op", 1, 0.0, pytest.approx(3 * 44.0)),
        ("aten::add", "op", 0, pytest.approx(3 * 544.0), pytest.approx(1004.0)),
    ]


def test_a_trace_without_frames_has_no_stacks_but_its_steps_are_told(tmp_path: Path) -> None:
    study = timeline(read_trace(training().write(tmp_path / "t.json"), activity=True))
    assert frames_of(study.names.trace, study.graph) == ()
    steps = categories_of_steps(study.names.trace)
    assert [name for name, _ in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert steps[0][1] == study.timeline.categories_us


def test_the_stacks_of_two_steps_are_one_flame_graph() -> None:
    """A frame is as wide as on the side where it takes longer; what one side lacks takes no time there."""
    before = (
        Frame(name="run", kind="frame", depth=0, start_us=0.0, us=100.0),
        Frame(name="load", kind="frame", depth=1, start_us=0.0, us=70.0),
        Frame(name="aten::mm", kind="op", depth=1, start_us=70.0, us=30.0),
    )
    after = (
        Frame(name="run", kind="frame", depth=0, start_us=0.0, us=80.0),
        Frame(name="aten::mm", kind="op", depth=1, start_us=0.0, us=50.0),
        Frame(name="aten::mm", kind="op", depth=2, start_us=0.0, us=10.0),
    )
    found = {(frame.depth, frame.name): frame for frame in compared_frames(before, after)}
    times = {key: (frame.us, frame.before_us, frame.after_us) for key, frame in found.items()}
    assert times == {
        (0, "run"): (120.0, 100.0, 80.0),
        (1, "load"): (70.0, 70.0, 0.0),
        (1, "aten::mm"): (50.0, 30.0, 50.0),
        (2, "aten::mm"): (10.0, 0.0, 10.0),
    }
    assert found[1, "aten::mm"].start_us == 70.0
    same = compared_frames(before, before)
    assert [(frame.us, frame.start_us) for frame in same] == [(frame.us, frame.start_us) for frame in before]
