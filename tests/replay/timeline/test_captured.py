"""A captured step on a simulated device: the host dispatches, the device runs, the slower one sets the pace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.capture.capture import capture_made
from opreplay.replay.capture.serving.form import as_served
from opreplay.replay.ir.captured import CaptureOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.plan_file import dump_plan
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.timeline.captured import OUTSIDE, PYTHON_US, VIEW_US, CapturedTimeline, captured_timeline, limit_of
from opreplay.replay.timeline.changes import AS_LONG_AS_LONGEST
from opreplay.replay.timeline.measured import MeasuredHost
from opreplay.replay.timeline.offload import DISPATCH_BAND, DISPATCH_US
from opreplay.replay.timeline.simulated import TASK_GAP_US
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.samples import sample_path

pytestmark = pytest.mark.slow

DEVICE = load_device("910b3")


def plan_of(layers: int, width: int, tokens: int, *, reads: bool = False) -> ReplayPlan:
    def make() -> tuple[Any, ...]:
        model = nn.Sequential(*[nn.Linear(width, width, dtype=torch.float16) for _ in range(layers)])
        x = torch.randn(tokens, width, dtype=torch.float16)

        def step(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = model(x)
                torch.ops.aten.nonzero(y) if reads else None
            return y

        return step, (x,)

    return capture_made(make, source="here", options=CaptureOptions(real=reads))


def told(plan: ReplayPlan, **how: Any) -> CapturedTimeline:
    return captured_timeline(plan, simulate_plan(PlannedStep(plan, expected_contents()), [DEVICE]), **how)


def test_small_kernels_are_bound_by_the_host() -> None:
    found = told(plan_of(20, 64, 8), what_if=["cudagraph"])
    times = found.socs["910b3"]
    assert times.bound == "host"
    assert times.step_us == pytest.approx(times.host_us, rel=0.02)
    assert times.host_us >= 20 * DISPATCH_US
    assert times.low_us < times.step_us < times.high_us
    assert found.what_if[0].socs_us["910b3"] < 0.7 * times.step_us


def test_large_kernels_are_bound_by_the_device() -> None:
    plan = plan_of(4, 8192, 4096)
    found = told(plan, what_if=["aten::addmm=0.5x", "cudagraph"])
    times = found.socs["910b3"]
    assert times.bound == "device"
    assert times.step_us == pytest.approx(times.computing_us, rel=0.02)
    assert times.idle_us == pytest.approx(4 * TASK_GAP_US)  # from each kernel to the next
    halved, graph = (change.socs_us["910b3"] for change in found.what_if)
    assert halved == pytest.approx(times.step_us / 2, rel=0.05)
    assert graph == pytest.approx(times.step_us, rel=0.02)
    assert told(plan, host_scale=1000.0).socs["910b3"].bound == "host"


def test_a_step_limited_by_memory_names_the_part_that_takes_longest() -> None:
    plan = plan_of(2, 8192, 8)
    (step,) = simulate_plan(PlannedStep(plan, expected_contents()), [DEVICE])
    times = captured_timeline(plan, [step], host_scale=0.0).socs["910b3"]
    mixed = {"cube": 5.0, "hbm": 2.0, "core load": 3.0, "l2": 1.0}
    assert limit_of(times, msgspec.structs.replace(step, by_bound=mixed)) == "core load"
    assert limit_of(times, msgspec.structs.replace(step, by_bound={**mixed, "cube": 7.0})) == "compute"


def test_a_host_that_takes_the_whole_step_bounds_it_though_the_device_works_too() -> None:
    plan = plan_of(40, 1024, 256)
    device_us = told(plan).socs["910b3"].computing_us
    scale = 1.4 * device_us / told(plan).socs["910b3"].host_us
    times = told(plan, host_scale=scale).socs["910b3"]
    assert times.computing_us > 0.6 * times.step_us
    assert times.bound == "host"
    assert told(plan, host_scale=scale, what_if=["aten::*=0.1x"]).what_if[0].socs_us["910b3"] > 0.9 * times.step_us


def test_counters_that_stay_on_the_host_make_it_wait_for_nothing() -> None:
    def make() -> tuple[Any, ...]:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)

        def step(x: torch.Tensor) -> None:
            model(x).sum().backward()
            optimizer.step()

        return step, (torch.zeros(4, 8),)

    plan = capture_made(make, source="here")
    counters = [op for op in plan.ops if op.name == "aten::_local_scalar_dense"]
    assert counters
    assert all(op.on_host for op in counters)
    reads = msgspec.structs.replace(plan, ops=tuple(msgspec.structs.replace(op, on_host=False) for op in plan.ops))
    graph_us, waiting_us = (told(one, what_if=["cudagraph"]).what_if[0].socs_us["910b3"] for one in (plan, reads))
    assert graph_us < waiting_us - 40.0, "a launch latency for each value that is read"


def test_a_plan_that_was_cut_short_is_refused() -> None:
    plan = plan_of(2, 64, 8)
    assert plan.sequence is not None
    short = msgspec.structs.replace(plan, sequence=msgspec.structs.replace(plan.sequence, cut=7))
    with pytest.raises(UsageError, match="lacks 7"):
        told(short)


def test_what_the_host_needs_makes_it_wait() -> None:
    """Without the wait the host would dispatch the next step while the device is busy."""
    apart, waiting = told(plan_of(2, 4096, 2048)), told(plan_of(2, 4096, 2048, reads=True))
    assert waiting.socs["910b3"].step_us > apart.socs["910b3"].step_us + 40.0


def test_a_measured_host_narrows_the_band() -> None:
    """Calls that were measured have no band; the others take what is assumed of any host, scaled by these."""
    plan = plan_of(20, 64, 8)
    launches = {op.id: 2 * DISPATCH_US for op in plan.ops if op.name == "aten::addmm"}
    assumed = told(plan)
    measured = told(plan, host=MeasuredHost(launch_us=launches, call_us={}))
    before, after = assumed.socs["910b3"], measured.socs["910b3"]
    assert after.host_us == pytest.approx(2 * before.host_us)
    assert measured.host_measured_calls == 20
    python_us = 20 * PYTHON_US  # between the calls that start kernels
    assert before.high_us - before.step_us == pytest.approx((DISPATCH_BAND - 1) * before.host_us + python_us)
    assert after.high_us - after.step_us == pytest.approx((DISPATCH_BAND - 1) * 20 * 2 * VIEW_US), "of the views alone"
    views = {op.id: 4.0 for op in plan.ops if op.name != "aten::addmm"}
    slower = told(plan, host=MeasuredHost(launch_us={}, call_us={**launches, **views}))
    assert slower.socs["910b3"].host_us == pytest.approx(2 * before.host_us), "a whole call is no launch"
    with pytest.raises(UsageError, match="no host times"):
        told(plan, host=MeasuredHost(launch_us={"other": 1.0}, call_us={}))


def test_modules_are_folded_by_their_list() -> None:
    (linear,) = told(plan_of(3, 64, 8)).modules or (None,)
    assert linear is None, "a Sequential's own layers have numbers alone"

    def make() -> tuple[Any, ...]:
        model = nn.Module()
        model.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3))

        def forward(x: torch.Tensor) -> torch.Tensor:
            for layer in model.layers:
                x = layer(x)
            return x

        model.forward = forward
        return model, (torch.randn(4, 64),)

    layers, *_ = told(capture_made(make, source="here")).modules
    assert (layers.name, layers.count, layers.depth) == ("layers", 3, 0)


def test_calls_of_no_module_below_the_model_have_a_row() -> None:
    """A third of a millisecond of seven was in no row."""

    def make() -> tuple[Any, ...]:
        model = nn.Module()
        model.inner = nn.Linear(64, 64)
        model.forward = lambda x: model.inner(x) + x
        return model, (torch.randn(4, 64),)

    result = told(capture_made(make, source="here"))
    rows = {module.name: module.device_us for module in result.modules if not module.depth}
    assert rows.keys() == {"inner", OUTSIDE}
    assert rows[OUTSIDE] > 0.0
    assert sum(rows.values()) == pytest.approx(result.socs["910b3"].computing_us, rel=0.05)


def test_only_a_captured_step_is_told() -> None:
    plan = plan_of(1, 64, 8)
    with pytest.raises(UsageError, match="no recorded times"):
        captured_timeline(plan, [])
    with pytest.raises(UsageError, match="every call"):
        told(msgspec.structs.replace(plan, sequence=None))
    with pytest.raises(TraceError, match="is not a change"):
        told(plan, what_if=["nonsense"])


def rounded_norms(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = (x + y).float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def norm_plan() -> ReplayPlan:
    many = torch.zeros(4096, 4096, dtype=torch.bfloat16)
    return capture_made(lambda: (rounded_norms, (many, many, many[0])), source="here")


def test_calls_that_follow_each_other_become_as_long_as_the_longest() -> None:
    plan = norm_plan()
    step = simulate_plan(PlannedStep(plan, expected_contents()), [DEVICE])[0]
    took_us = {op.id: op.simulated.time_us for op in step.ops}
    assert plan.sequence is not None
    first, second = (plan.sequence.ids[call] for call in plan.sequence.calls[:2])
    result = told(plan, what_if=["fuse aten::add,aten::_to_copy"])
    change = result.what_if[0]
    assert change.matched == 1, "the sum and its cast; the cast back has products around it"
    saved_us = result.socs["910b3"].step_us - change.socs_us["910b3"]
    assert saved_us == pytest.approx(min(took_us[first], took_us[second]), rel=0.1)
    assert AS_LONG_AS_LONGEST in result.notes
    with pytest.raises(TraceError, match="two ops"):
        told(plan, what_if=["fuse aten::add"])


@pytest.mark.parametrize("command", [["simulate"], ["timeline", "--soc", "910b3"]])
def test_a_plan_is_fused_on_the_way(tmp_path: Path, command: list[str]) -> None:
    plan, path = norm_plan(), tmp_path / "m.plan.json"

    def facts(plan: ReplayPlan, *options: str) -> Any:
        path.write_bytes(dump_plan(plan))
        done = CliRunner().invoke(opreplay, [*command, str(path), *options, "--format", "json"])
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    before, after = facts(plan), facts(plan, "--fused", "ascend")
    assert after == facts(as_served(plan, "ascend"))
    assert after != before
    trace = str(sample_path("moe_block"))
    refused = CliRunner().invoke(opreplay, [*command, trace, "--fused", "ascend"])
    assert refused.exit_code == 2
    assert "captured plan" in refused.stderr


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "m.plan.json"
    path.write_bytes(dump_plan(plan_of(3, 64, 8)))

    def run(*arguments: str) -> Any:
        return CliRunner(env={"COLUMNS": "80"}).invoke(opreplay, ["timeline", str(path), *arguments])

    done = run("--soc", "910b3", "--format", "json")
    assert done.exit_code == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["captured"] is True
    assert facts["socs"]["910b3"]["step_us"] > 0
    shown = run("--soc", "910b3", "--what-if", "aten::addmm=0")
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines()[2:])) <= 80
    assert run("--soc", "910b3", "--what-if", "aten::conv2d=0").exit_code == 2
    assert run().exit_code == 2
    results = str(tmp_path / "host.jsonl")
    assert CliRunner().invoke(opreplay, ["run", str(path), "--set", "op_time=1ms", "-o", results]).exit_code == 0
    measured = json.loads(run("--soc", "910b3", "--host", results, "--format", "json").stdout)
    assert measured["host_measured_calls"] == 3, "the views of the weights"
    assert measured["socs"]["910b3"]["high_us"] != facts["socs"]["910b3"]["high_us"]
    trace = str(sample_path("moe_block"))
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--host", results]).exit_code == 2
    assert "was captured" in run("--soc", "910b3", "--step", "1").stderr
