"""Call stacks of a step: equal ones together, callers before what they call."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.timeline.all_steps import categories_of_steps
from opreplay.replay.timeline.flames import frames_of
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
