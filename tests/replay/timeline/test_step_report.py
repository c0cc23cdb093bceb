"""One step has the same figures in every command; what is not known of it stays as it was and makes a range."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ir.step import ModuleTime
from opreplay.replay.report.step.text import head_facts, large_modules
from opreplay.replay.report.step.verdict import step_rows, verdict
from opreplay.replay.report.text import coarse_text, time_text
from opreplay.replay.timeline.timeline import Timeline, timeline, with_other_steps
from opreplay.traces import read_trace
from tests.replay.timeline.machine import Machine, training

KEYS = ("window", "device_sum_us", "busy_us", "idle_us", "copied_host_share", "unknown_wait_us", "verdict", "bound")


def facts(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(opreplay, [*map(str, arguments), "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def told(machine: Machine, path: Path, **how: object) -> Timeline:
    trace = read_trace(machine.write(path / "t.json"), activity=True)
    return timeline(trace, **how).timeline  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_step_is_the_same_in_every_command(tmp_path: Path) -> None:
    path = training().write(tmp_path / "t.json")
    step = facts("timeline", path)["step"]
    assert {key: facts("inspect", path)["step"][key] for key in KEYS} == {key: step[key] for key in KEYS}
    assert facts("compare", path, path)["step"] == {"before": step, "after": step}
    assert facts("timeline", path).keys() >= {"verdict", "window", "idle_us", "copied_host_share", "unknown_wait_us"}
    simulated = facts("simulate", path, "--soc", "910b3")["step"]
    assert simulated == facts("timeline", path, "--soc", "910b3")["step"]
    assert facts("simulate", path, "--soc", "910b3", "--top", 1)["step"] is None, "a part of the ops is no step"


@pytest.mark.slow
def test_the_step_of_a_public_trace_is_the_same_in_every_command(shared_traces: Path) -> None:
    path = shared_traces / "h100_qwen1.5_0.5b.json.gz"
    step = facts("timeline", path, "--soc", "910b3")["step"]
    assert step == facts("simulate", path, "--soc", "910b3")["step"]
    assert step["window"]["step_us"] == facts("inspect", path)["step"]["window"]["step_us"]
    assert step["bound"] == "device"


def test_parts_of_a_step_add_up(tmp_path: Path) -> None:
    step = told(training(), tmp_path).step
    assert step.busy_us + sum(step.idle_us.values()) == pytest.approx(step.window.step_us)
    assert step.window.device_us <= step.window.step_us
    assert step.device_sum_us >= step.busy_us - 1.0


def test_whole_collectives_of_an_npu_are_work_of_its_device(shared_traces: Path) -> None:
    """63 % of the step was busy beside tasks of 2 %, and 2 % of the file."""
    path = shared_traces / "npu_alexnet_trace_view.json.gz"
    step = facts("timeline", path)["step"]
    assert step["device_sum_us"] >= step["busy_us"]
    assert step["coarse_unit_us"] == 10.0
    (busy,) = facts("inspect", path)["busy"]
    assert busy["busy_us"] == pytest.approx(step["busy_us"], rel=0.01)


def test_a_band_without_an_error_of_the_host_says_so_in_its_line(shared_traces: Path) -> None:
    """1 % of a step of launches was taken for what the prediction may be off."""
    step = facts("timeline", shared_traces / "h100_bert_small.json.gz", "--soc", "910b3")["step"]
    on_device = step["socs"]["910b3"]
    assert on_device["host_bound"]
    assert "the band excludes errors of host time" in step["verdict"]


def test_durations_that_are_no_timings_are_told_in_the_head_of_a_timeline(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "npu_alexnet_trace_view.json.gz", activity=True)
    assert coarse_text(10.0) in [text for _, text, _ in head_facts(timeline(trace).timeline)]


def test_the_line_of_the_path_shortens_names_of_kernels(shared_traces: Path) -> None:
    shown = CliRunner().invoke(opreplay, ["timeline", str(shared_traces / "mi210_gpu_only.json.gz")]).stdout
    (path,) = [line for line in shown.splitlines() if line.startswith("critical path: ")]
    assert len(path) < 250


@pytest.mark.parametrize("by", ["op", "kernel", "step"])
def test_tables_of_times_begin_with_it(shared_traces: Path, by: str) -> None:
    path = str(shared_traces / "npu_alexnet_trace_view.json.gz")
    shown = CliRunner(env={"COLUMNS": "300"}).invoke(opreplay, ["inspect", path, "--by", by]).stdout
    assert coarse_text(10.0) in "\n".join(shown.splitlines()[:2])


def test_what_is_left_of_a_cut_trace_is_not_a_step_on_the_host_alone(shared_traces: Path, tmp_path: Path) -> None:
    with gzip.open(shared_traces / "h100_bert_small.json.gz") as stream:
        (tmp_path / "cut.json").write_bytes(stream.read(500_000))
    step = facts("timeline", tmp_path / "cut.json")["step"]
    assert step["losses"] == {"truncated file": 1}
    assert step["bound"] == "host alone"
    assert not step["verdict"].startswith("On the host alone")
    assert "truncated file (1)" in step["verdict"]


def test_a_range_longer_than_its_step_began_beside_work_from_before(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "mi300_sglang_prefilldecode.json.gz", activity=True)
    step = timeline(trace).timeline.step
    assert step.window.host_us > step.window.step_us
    rows = {name: text for name, text, _ in step_rows(step)}
    assert time_text(step.begin_us) in rows["step"]


def host_bound() -> Machine:
    machine = Machine()
    machine.begin()
    for _ in range(20):
        machine.host(50.0)
        machine.op("aten::add", 100.0, ("add", 5.0))
    machine.synchronize()
    machine.end()
    return machine


def communication_bound() -> Machine:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 10.0, ("gemm", 400.0))
    machine.wait_for(20, 7)
    machine.op("c10d::allreduce_", 10.0, ("ncclDevKernel_AllReduce", 900.0), stream=20)
    machine.synchronize()
    machine.end()
    return machine


def host_alone() -> Machine:
    machine = Machine()
    machine.begin()
    machine.op("aten::mm", 300.0)
    machine.host(100.0)
    machine.end()
    return machine


@pytest.mark.parametrize(
    ("machine", "bound"),
    [
        (host_bound(), "host"),
        (communication_bound(), "communication"),
        (training(), "device"),
        (host_alone(), "host alone"),
    ],
)
def test_what_bounds_a_step(machine: Machine, bound: str, tmp_path: Path) -> None:
    step = told(machine, tmp_path).step
    assert step.bound == bound
    assert verdict(step)


def waiting(extra_us: float) -> Machine:
    """A kernel that starts long after it could, for nothing that is recorded."""
    machine = Machine()
    for _ in range(3):
        machine.begin()
        machine.op("aten::mm", 10.0, ("gemm", 200.0))
        machine.free[7] += extra_us
        machine.op("aten::add", 10.0, ("add", 100.0))
        machine.synchronize()
        machine.end()
    return machine


def test_waiting_that_nothing_explains_is_kept_and_makes_a_range(tmp_path: Path) -> None:
    found = told(waiting(500.0), tmp_path, what_if=["gemm=0"])
    assert found.retimed_step_us == pytest.approx(found.recorded_step_us, rel=0.01)
    assert found.unexplained_us == pytest.approx(500.0, abs=20.0)
    assert found.step.unknown_wait_us == pytest.approx(500.0, abs=20.0)
    (change,) = found.what_if
    assert change.low_us <= change.step_us <= change.high_us
    none = told(waiting(0.0), tmp_path, what_if=["gemm=0"]).what_if[0]
    assert none.low_us == none.high_us == none.step_us


def test_a_long_blocking_op_waits_for_the_last_task_inside_it(tmp_path: Path) -> None:
    """Of a trace that records no calls of the runtime but launches."""
    machine = Machine()
    for _ in range(3):
        machine.begin()
        machine.op("aten::mm", 10.0, ("gemm", 5000.0))
        start = machine.now
        machine.now = machine.free[7] + 700.0
        machine._add("cpu_op", "aten::_local_scalar_dense", start, machine.now - start)
        machine.end()
    launches = {e["args"]["correlation"]: e for e in machine.events if e["cat"] == "cuda_runtime"}
    arrows: list[dict[str, Any]] = []
    for event in machine.events:
        if event["cat"] == "kernel":
            number, common = event["args"]["correlation"], {"cat": "ac2g", "name": "ac2g"}
            start = {key: launches[number][key] for key in ("pid", "tid", "ts")}
            arrows += [{**common, **start, "ph": "s", "id": number}]
            arrows += [{**common, "ph": "f", "id": number, **{key: event[key] for key in ("pid", "tid", "ts")}}]
    machine.events = [event for event in machine.events if event["cat"] != "cuda_runtime"] + arrows
    found = told(machine, tmp_path, what_if=["gemm=0"])
    assert found.what_if[0].gain_us > 4000.0


def test_the_graph_is_tested_on_other_steps(tmp_path: Path) -> None:
    machine = Machine()
    for us in (100.0, 150.0, 60.0):
        machine.begin()
        for _ in range(5):
            machine.op("aten::mm", 10.0, ("gemm", us))
        machine.synchronize()
        machine.end()
    trace = read_trace(machine.write(tmp_path / "t.json"), activity=True)
    other = with_other_steps(trace, timeline(trace)).timeline.other_steps
    assert other is not None
    assert (other.steps, other.worst_error < 0.02) == (2, True)
    trace = read_trace(host_bound().write(tmp_path / "t.json"), activity=True)
    assert with_other_steps(trace, timeline(trace)).timeline.other_steps is None


def test_layers_of_one_kind_are_one_row_of_the_tree(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    model = machine.now
    for layer in range(3):
        outer = machine.now
        machine.op("aten::add", 10.0, ("add", 20.0))
        inner = machine.now
        machine.op("aten::mm", 10.0, ("gemm", 100.0))
        machine._add("python_function", f"nn.Module: Linear_{layer}", inner, machine.now - inner)
        machine._add("python_function", f"nn.Module: Layer_{layer}", outer, machine.now - outer)
    machine._add("python_function", "nn.Module: Model_0", model, machine.now - model)
    machine.synchronize()
    machine.end()
    tree = told(machine, tmp_path).step.modules
    rows = [(one.name, one.count, one.depth, one.device_us) for one in tree]
    assert rows == [("Model", 1, 0, 360.0), ("Layer", 3, 1, 360.0), ("Linear", 3, 2, 300.0)]
    assert tree[0].path_us >= tree[1].path_us >= tree[2].path_us > 0.0


def test_a_module_that_calls_others_has_a_row_for_what_it_takes_itself() -> None:
    def module(name: str, depth: int, us: float) -> ModuleTime:
        return ModuleTime(name=name, count=1, depth=depth, device_us=us, path_us=us / 2)

    modules = [module("model", 0, 100.0), module("mlp", 1, 60.0), module("down", 2, 20.0), module("attention", 1, 40.0)]
    rows = [(row.name, row.depth, row.device_us, row.path_us) for row in large_modules(modules, 100.0, 100.0)]
    assert rows == [
        ("model", 0, 100.0, 50.0),
        ("mlp", 1, 60.0, 30.0),
        ("(itself)", 2, 40.0, 20.0),
        ("down", 2, 20.0, 10.0),
        ("attention", 1, 40.0, 20.0),
    ]
