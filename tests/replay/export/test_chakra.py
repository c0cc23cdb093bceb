"""Chakra traces: what protobuf's own library reads of them, what ASTRA-sim needs of a node, and our reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from opreplay.replay.capture.capture import capture_made
from opreplay.replay.export.chakra import chakra_trace
from opreplay.replay.ir.captured import CaptureOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.collectives.in_plan import naming_collectives
from opreplay.replay.plan.collectives.recorded import collective_calls
from opreplay.replay.plan.inputs import plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.traces import Limits, read_trace
from opreplay.traces.errors import Malformed, TooLarge, UsageError
from opreplay.traces.reading.protobuf_wire import field, fields, read_varint, varint
from opreplay.traces.samples import sample_path
from tests.scenarios.events import owner

INT, DOUBLE, TEXT, BOOL, UINT = 9, 3, 29, 27, 13


def messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = read_varint(data, at)
        yield data[at : at + length]
        at += length


def plan(source: Any) -> ReplayPlan:
    return plan_of(read_trace(source), Selection(select="owner"), device="cpu", in_order=True)


@pytest.fixture(scope="module")
def sample() -> ReplayPlan:
    return plan(sample_path("transformer_infer"))


@pytest.fixture
def device_trace(tmp_path: Path) -> Path:
    """Two products around an all-reduce, on a device."""
    path = tmp_path / "gpu.json"
    events = [
        *owner("aten::mm", 1, [[64, 32], [32, 16]], 20.5),
        *owner("_c10d_functional::all_reduce", 2, [[64, 16], [], []], 30.0, ["c10::BFloat16", "", ""]),
        *owner("aten::mm", 3, [[64, 32], [32, 16]], 21.5),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def schema() -> tuple[Any, Any]:
    """GlobalMetadata and Node as mlcommons/chakra's et_def.proto has them, for protobuf's own library."""
    protobuf = pytest.importorskip("google.protobuf", reason="protobuf's library reads what we write")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    assert protobuf
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="ChakraProtoMsg", syntax="proto3")
    types = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *columns: tuple[int, str, int, bool, str]) -> None:
        made = file.message_type.add(name=name)
        for number, column, kind, repeated, of in columns:
            label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
            made.field.add(name=column, number=number, type=kind, label=label, type_name=of or None)

    kinds = {"double_val": 3, "int64_val": INT, "uint64_val": UINT, "bool_val": BOOL, "string_val": TEXT}
    codes = (types.TYPE_DOUBLE, types.TYPE_INT64, types.TYPE_UINT64, types.TYPE_BOOL, types.TYPE_STRING)
    values = [(number, name, code, False, "") for (name, number), code in zip(kinds.items(), codes, strict=True)]
    message("AttributeProto", (1, "name", types.TYPE_STRING, False, ""), *values)
    attribute = ".ChakraProtoMsg.AttributeProto"
    texts = [(n, name, types.TYPE_STRING, False, "") for n, name in ((1, "values"), (2, "shapes"), (3, "types"))]
    message("IOInfo", *texts)
    message(
        "GlobalMetadata",
        (1, "version", types.TYPE_STRING, False, ""),
        (2, "attr", types.TYPE_MESSAGE, True, attribute),
    )
    number = types.TYPE_UINT64
    message(
        "Node",
        (1, "id", number, False, ""),
        (2, "name", types.TYPE_STRING, False, ""),
        (3, "type", types.TYPE_INT32, False, ""),
        (4, "ctrl_deps", number, True, ""),
        (5, "data_deps", number, True, ""),
        (6, "start_time_micros", number, False, ""),
        (7, "duration_micros", number, False, ""),
        (8, "inputs", types.TYPE_MESSAGE, False, ".ChakraProtoMsg.IOInfo"),
        (9, "outputs", types.TYPE_MESSAGE, False, ".ChakraProtoMsg.IOInfo"),
        (10, "attr", types.TYPE_MESSAGE, True, attribute),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    metadata, node = (pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in ("GlobalMetadata", "Node"))
    return message_factory.GetMessageClass(metadata), message_factory.GetMessageClass(node)


def parsed(data: bytes) -> tuple[Any, list[Any]]:
    metadata, node = schema()
    first, *rest = messages(data)
    return metadata.FromString(first), [node.FromString(one) for one in rest]


def test_protobufs_own_library_reads_what_is_written(sample: ReplayPlan) -> None:
    unknown_fields = pytest.importorskip("google.protobuf.unknown_fields", reason="of protobuf's library")
    made = chakra_trace(sample)
    head, nodes = parsed(made.data)
    assert head.version == "0.0.4"
    assert sample.sequence is not None
    assert len(nodes) == made.nodes == len(sample.sequence.calls)
    for number, node in enumerate(nodes, start=1):
        assert node.id == number
        assert list(node.data_deps) == ([number - 1] if number > 1 else [])
        assert not node.ctrl_deps, "a parent, in a converted trace"
        assert not list(unknown_fields.UnknownFieldSet(node)), "a field that the schema does not have"
    linear = next(node for node in nodes if node.name == "aten::linear")
    attrs = {one.name: one for one in linear.attr}
    assert linear.type == 4
    assert attrs["num_ops"].int64_val == 2 * 4 * 128 * 512 * 768
    assert attrs["tensor_size"].uint64_val == 2 * (4 * 128 * 512 + 768 * 512 + 4 * 128 * 768)
    assert attrs["is_cpu_op"].bool_val is True, "recorded on a CPU"
    assert linear.duration_micros == round(attrs["dur_us"].double_val)
    assert json.loads(linear.inputs.shapes) == [[4, 128, 512], [768, 512], []]


def test_a_collective_has_what_a_network_simulator_needs(device_trace: Path) -> None:
    made = chakra_trace(plan(device_trace))
    _, nodes = parsed(made.data)
    assert [node.type for node in nodes] == [4, 7, 4]
    attrs = {one.name: one for one in nodes[1].attr}
    assert attrs["comm_type"].int64_val == 0, "all-reduce"
    assert attrs["comm_size"].int64_val == 64 * 16 * 2
    assert attrs["is_cpu_op"].bool_val is False
    assert [node.duration_micros for node in nodes] == [20, 30, 22]
    assert made.collectives == 1
    assert "each call waits for the previous one" in made.notes[-1]


def test_messages_of_a_captured_job_name_group_and_ends(tmp_path: Path) -> None:
    def make() -> Any:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "model"))

        def step(x: torch.Tensor) -> None:
            dist.all_gather([torch.empty(6) for _ in range(4)], x, group=mesh.get_group("model"))
            dist.send(x, 1, group=mesh.get_group("data"))
            dist.recv(x, 1, group=mesh.get_group("data"))
            dist.barrier()

        return step, (torch.ones(6),)

    captured = capture_made(make, source="job", options=CaptureOptions(world_size=8, rank=5))
    made = chakra_trace(captured, {op.id: 3.0 for op in captured.ops}, clock="910b3")
    assert made.collectives == 4
    _, nodes = parsed(made.data)
    by_type = {node.type: {one.name: one for one in node.attr} for node in nodes if node.type > 4}
    gathers = next({one.name: one for one in node.attr} for node in nodes if node.name == "c10d::allgather_")
    assert (gathers["comm_type"].int64_val, gathers["comm_size"].int64_val) == (2, 6 * 4)
    assert gathers["group_size"].int64_val == 4
    assert gathers["pg_name"].string_val
    sent, received = by_type[5], by_type[6]
    assert [sent[name].int64_val for name in ("comm_src", "comm_dst", "comm_size")] == [5, 1, 24]
    assert [received[name].int64_val for name in ("comm_src", "comm_dst", "comm_size")] == [1, 5, 24]

    file = tmp_path / "job.5.et"
    file.write_bytes(made.data)
    again = [call.collective for call in collective_calls(read_trace(file))]
    assert [(one.kind, one.in_elements, one.group_size) for one in again if one is not None] == [
        ("all_gather", 6, 4),
        ("send", 6, 2),
        ("recv", 6, 2),
        ("barrier", 0, 8),
    ]
    assert again[1] is not None
    assert (again[1].source, again[1].target) == (5, 1)


def test_a_recorded_collective_is_told_by_what_lies_in_it(tmp_path: Path) -> None:
    """The op has lists of tensors without types; the parameters that torch records inside have all."""
    path = tmp_path / "t.json"
    told = {
        "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 1024,
        "Group size": 8, "Process Group Name": "3",
    }  # fmt: skip
    outer = {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1, "ts": 10.0, "dur": 90.0}
    inner = {**outer, "name": "record_param_comms", "ts": 20.0, "dur": 50.0}
    kernel = {**outer, "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7, "ts": 40.0, "dur": 30.0}
    events = [
        {**outer, "args": {"External id": 1, "Input Dims": [[], [], []], "Input type": ["TensorList", "", ""]}},
        {**inner, "args": {"External id": 2, "Input Dims": [[]], "Input type": [""], **told}},
        {**kernel, "args": {"External id": 2, "stream": 7}},
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    read = read_trace(path, activity=True)
    made = chakra_trace(naming_collectives(plan_of(read, Selection(select="owner"), device="cpu", in_order=True), read))
    _, (node,) = parsed(made.data)
    attrs = {one.name: one for one in node.attr}
    assert (node.type, attrs["comm_size"].int64_val, attrs["group_size"].int64_val) == (7, 2048, 8)
    assert attrs["pg_name"].string_val == "3"


def test_a_collective_of_unknown_size_is_not_for_free(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": owner("record_param_comms", 1, [[]], 30.0, [""])}))
    made = chakra_trace(plan(path))
    _, (node,) = parsed(made.data)
    assert (node.type, node.duration_micros) == (4, 30)
    assert "1 collectives of unknown size or kind" in made.notes[0]


def looks(one: ReplayPlan) -> list[str]:
    """Name, calls, overload and tensors of what can be replayed."""
    found = []
    for op in one.ops:
        metas = [m and (m.shape, m.dtype, m.strides) for arg in op.args for m in arg.tensors]
        found += [str((op.name, op.count, op.overload, metas))] if op.reason is None else []
    return sorted(found)


def test_our_reader_gives_the_ops_back(sample: ReplayPlan, device_trace: Path, tmp_path: Path) -> None:
    for number, original in enumerate((sample, plan(device_trace))):
        file = tmp_path / f"step.{number}.et"
        file.write_bytes(chakra_trace(original).data)
        trace = read_trace(file)
        assert trace.info.dialect == "execution_trace"
        assert not trace.info.report.losses
        again = plan(file)
        assert again.sequence is not None
        assert original.sequence is not None
        assert len(again.sequence.calls) == len(original.sequence.calls)
        assert again.device_us_total == pytest.approx(original.device_us_total, abs=0.01)

        assert looks(again) == looks(original)


def test_times_of_a_simulated_device(sample: ReplayPlan) -> None:
    first = sample.ops[0]
    made = chakra_trace(sample, {first.id: 7.25}, clock="910b3")
    _, nodes = parsed(made.data)
    timed = [node for node in nodes if node.duration_micros]
    assert {node.name for node in timed} == {first.name}
    assert f"{len(nodes) - len(timed)} calls without 910b3 time" in made.notes[0]


def test_a_captured_plan_has_no_times_of_its_own(sample: ReplayPlan) -> None:
    assert sample.sequence is not None
    none = tuple(0.0 for _ in sample.sequence.host_us)
    untimed = msgspec.structs.replace(sample, sequence=msgspec.structs.replace(sample.sequence, host_us=none))
    with pytest.raises(UsageError, match="contains no times"):
        chakra_trace(untimed)
    assert chakra_trace(untimed, {op.id: 1.0 for op in sample.ops}, clock="910b3").nodes == len(none)


def test_a_plan_without_an_order_is_refused(sample: ReplayPlan) -> None:
    with pytest.raises(UsageError, match="order of its calls"):
        chakra_trace(msgspec.structs.replace(sample, sequence=None))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 1 << 32, (1 << 64) - 1])
def test_numbers(number: int) -> None:
    assert read_varint(varint(number), 0) == (number, len(varint(number)))


def test_negative_numbers_and_texts() -> None:
    data = field(9, -5) + field(29, "é") + field(3, 0.5)
    assert [(number, kind) for number, kind, _ in fields(data)] == [(9, 0), (29, 2), (3, 1)]


@pytest.mark.parametrize("data", [b"\x80", b"\xff" * 11, b"\x0a\x05ab", b"\x0b", b"\x09\x00"])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(fields(data))


def test_damage_costs_what_is_damaged(sample: ReplayPlan, tmp_path: Path) -> None:
    data = chakra_trace(sample).data
    first, *rest = messages(data)
    framed = [varint(len(one)) + one for one in (first, *rest)]
    file = tmp_path / "cut.et"
    file.write_bytes(data[:-5])
    assert read_trace(file).info.report.losses == {"cut short": 1}
    broken = b"\xff" * len(rest[0])
    file.write_bytes(framed[0] + varint(len(broken)) + broken + b"".join(framed[2:]))
    assert read_trace(file).info.report.losses == {"unreadable node": 1}
    file.write_bytes(framed[0] + varint(1 << 40) + b"x" * 100)
    with pytest.raises(TooLarge):
        read_trace(file, limits=Limits(event_bytes=1 << 20))
    file.write_bytes(b"\x07\x0a\x05\xff\xff\xff\xff\xff" + b"x" * 20)
    with pytest.raises(Malformed, match="not JSON"):
        read_trace(file)
