"""A step's graph as a Chakra trace: its own dependencies and durations give the step's time, with what overlapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.plan.inputs import plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.replay.timeline.exported import chakra_of_step
from opreplay.replay.timeline.timeline import Study, timeline
from opreplay.traces import read_trace
from opreplay.traces.times.busy import device_busy
from opreplay.traces.times.impossible import impossible_kernels
from tests.replay.export.test_chakra import parsed
from tests.replay.timeline.machine import Machine, training


def exported(path: str | Path, clock: str = "recorded") -> tuple[Study, Any, list[Any]]:
    trace = read_trace(path, activity=True)
    plan = plan_of(trace, Selection(select="owner"), device="cpu", in_order=True)
    study = timeline(trace, devices=[] if clock == "recorded" else [load_device(clock)], planned=PlannedStep(plan))
    return study, *parsed(chakra_of_step(study, plan, clock=clock).data)


def ends(nodes: list[Any], scale: dict[str, float] | None = None) -> dict[int, float]:
    """When each node ends if it starts with the end of the last one that it depends on."""
    done: dict[int, float] = {}
    for node in nodes:
        factor = next((by for name, by in (scale or {}).items() if name in node.name), 1.0)
        done[node.id] = max((done[one] for one in node.data_deps), default=0.0) + factor * node.duration_micros
    return done


def head_of(metadata: Any) -> dict[str, float]:
    return {one.name: one.double_val for one in metadata.attr}


def step_us(metadata: Any, nodes: list[Any], scale: dict[str, float] | None = None) -> float:
    return max(ends(nodes, scale).values()) - head_of(metadata)["beyond_us"]


@pytest.mark.parametrize("clock", ["recorded", "910b3"])
def test_a_replay_of_the_exported_graph_takes_the_steps_time(tmp_path: Path, clock: str) -> None:
    study, metadata, nodes = exported(training().write(tmp_path / "t.json"), clock)
    step = study.timeline.retimed_step_us if clock == "recorded" else study.timeline.socs[clock].step_us
    assert head_of(metadata)["step_us"] == pytest.approx(step)
    assert step_us(metadata, nodes) == pytest.approx(step, abs=2.0)
    assert all(one < node.id for node in nodes for one in node.data_deps), "what is waited for comes first"


def test_collectives_overlap_computing_as_recorded(tmp_path: Path) -> None:
    study, _, nodes = exported(training().write(tmp_path / "t.json"))
    done = ends(nodes)
    reduced = [one for one in nodes if "allreduce" in one.name and len(one.inputs.types)]
    talks = [(done[n.id] - n.duration_micros, done[n.id]) for n in reduced]
    works = [(done[n.id] - n.duration_micros, done[n.id]) for n in nodes if n.name in ("aten::mm", "splitk")]
    hidden = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in talks for b in works)
    assert hidden == pytest.approx(study.timeline.categories_us.communication_overlapped, rel=0.05)
    assert len(talks) == 3


def test_other_times_move_the_step_as_a_what_if_does(tmp_path: Path) -> None:
    path = training().write(tmp_path / "t.json")
    _, metadata, nodes = exported(path)
    (change,) = timeline(read_trace(path, activity=True), what_if=["gemm=2x"]).timeline.what_if
    scaled = step_us(metadata, nodes, {"aten::mm": 2.0})
    assert scaled == pytest.approx(change.step_us, rel=0.02)


def test_kernels_of_a_call_share_its_arguments_and_are_read_back(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(2):
        machine.begin()
        for _ in range(3):
            machine.op("aten::mm", 12.0, ("gemm", 180.0), ("splitk", 20.0))
        machine.synchronize()
        machine.end()
    path, file = machine.write(tmp_path / "t.json"), tmp_path / "step.0.et"
    done = CliRunner().invoke(opreplay, ["export", path, "--format", "chakra", "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert "exported 3 calls and 0 collectives" in done.stdout
    again = read_trace(file)
    assert [again.signatures[int(row)].name for row in again.ops.signature] == ["aten::mm"] * 3
    assert again.kernels.dur_ns.sum() == pytest.approx(3 * 200e3, rel=0.01)
    assert (again.kernels.owner >= 0).all()


def test_a_selection_of_ops_is_a_chain_as_before(tmp_path: Path) -> None:
    path, file = training().write(tmp_path / "t.json"), tmp_path / "step.0.et"
    done = CliRunner().invoke(
        opreplay, ["export", path, "--format", "chakra", "--include", "aten::mm", "-o", str(file)]
    )
    assert "waits for the previous one" in done.stdout
    _, nodes = parsed(file.read_bytes())
    assert [list(node.data_deps) for node in nodes] == [[], *([at] for at in range(1, len(nodes)))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mi300_resnet_ddp_act_checkpoint", "nvidia_nccl_parser", "h100_qwen1.5_0.5b", "npu_timeline_trace_view"]
)
def test_public_steps_replay_in_their_time(name: str, shared_traces: Path) -> None:
    study, metadata, nodes = exported(shared_traces / f"{name}.json.gz")
    assert step_us(metadata, nodes) == pytest.approx(study.timeline.retimed_step_us, abs=2.0)


def test_the_public_reader_reads_it(tmp_path: Path) -> None:
    """mlc-chakra's own feeder: every node is issued once what it depends on is done."""
    protolib = pytest.importorskip("chakra.src.third_party.utils.protolib", reason="mlc-chakra reads what we write")
    from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node

    path, file = training().write(tmp_path / "t.json"), tmp_path / "step.0.et"
    CliRunner().invoke(opreplay, ["export", path, "--format", "chakra", "-o", str(file)])
    _, own = parsed(file.read_bytes())
    with open(file, "rb") as stream:
        metadata, node = GlobalMetadata(), Node()
        assert protolib.decodeMessage(stream, metadata)
        read: list[tuple[int, list[int]]] = []
        while protolib.decodeMessage(stream, node):
            read.append((node.id, list(node.data_deps)))
            node = Node()
    assert read == [(one.id, list(one.data_deps)) for one in own]


def test_devices_and_streams_are_kept(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "traces" / "dialects" / "others" / "two_gpus_chakra_export.json"
    CliRunner().invoke(opreplay, ["export", str(source), "--format", "chakra", "-o", str(tmp_path / "step.0.et")])
    before, after = read_trace(source), read_trace(tmp_path / "step.0.et")
    assert sorted(zip(after.kernels.device.tolist(), after.kernels.stream.tolist(), strict=True)) == sorted(
        zip(before.kernels.device.tolist(), before.kernels.stream.tolist(), strict=True)
    )
    assert [(busy.device, busy.span_us) for busy in device_busy(after)] == [(0, 290.0), (1, 290.0)]
    assert not impossible_kernels(after)
