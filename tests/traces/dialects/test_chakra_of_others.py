"""Chakra files of other writers: those of the package mlc-chakra, and nodes made field by field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.replay.plan.build import build_plan
from opreplay.traces import read_trace
from opreplay.traces.dialects.chakra import is_chakra
from opreplay.traces.model import Trace
from opreplay.traces.reading.protobuf_wire import field, packed, varint
from opreplay.traces.summary import summarize

OTHERS = Path(__file__).parent / "others"
IO = field(1, "[[1, 2, 0, 16, 4, 'cuda:0']]") + field(2, "[[4, 4]]") + field(3, "['Tensor(float)']")


def attribute(name: str, number: int, value: Any) -> bytes:
    return field(1, name) + field(number, value)


def metadata(**texts: str) -> bytes:
    return b"".join(field(2, attribute(name, 29, text)) for name, text in texts.items())


def node(
    number: int,
    name: str,
    *,
    on_host: bool | None,
    deps: tuple[int, ...] = (),
    takes: tuple[int, ...] = (),
    **more: int,
) -> bytes:
    """A node as Chakra's converter writes it: device nodes repeat the arguments of their op."""
    attrs = {"tid": 1, "rf_id": 0} | more
    return b"".join(
        (
            field(1, number),
            field(2, name),
            field(3, 4),
            packed(4, deps),
            packed(5, takes),
            field(7, 10),
            field(8, IO),
            *(field(10, attribute(key, 9, value)) for key, value in attrs.items()),
            b"" if on_host is None else field(10, attribute("is_cpu_op", 27, on_host)),
            field(10, attribute("op_schema", 29, "aten::relu(Tensor self) -> Tensor")),
        )
    )


def read(tmp_path: Path, *messages: bytes) -> Trace:
    path = tmp_path / "other.0.et"
    path.write_bytes(b"".join(varint(len(message)) + message for message in messages))
    return read_trace(path)


def owned_by(trace: Trace) -> list[str]:
    return [trace.signatures[trace.ops.signature[row]].name if row >= 0 else "" for row in trace.kernels.owner]


@pytest.mark.parametrize("name", ["chakra_noversion.0.et", "chakra_gpu_node_with_args.0.et"])
def test_nodes_of_a_device_that_repeat_arguments_are_kernels(name: str) -> None:
    trace = read_trace(OTHERS / name)
    summary = summarize(trace)
    assert (summary.cpu_ops, summary.kernels, summary.device_time_us) == (2, 2, 42.0)
    (top,) = summary.top_ops
    assert (top.name, top.calls, top.device_us) == ("aten::mm", 2, 42.0)
    assert summary.losses == {"start times of nodes": 4}
    assert (summary.busy, summary.span_us) == ((), 0.0)


def test_a_kernel_belongs_to_the_op_that_it_depends_on(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        metadata(schema="1.1.1-chakra.0.0.4"),
        node(1, "aten::relu", on_host=True),
        node(2, "k0", on_host=False, deps=(1,)),
        node(3, "aten::gelu", on_host=True),
        node(4, "k1", on_host=False, takes=(2, 3)),
        node(5, "Memcpy DtoD (Device -> Device)", on_host=False, takes=(4,), stream=9),
        node(6, "aten::no_kernel", on_host=None),
    )
    assert owned_by(trace) == ["aten::relu", "aten::gelu", ""]
    assert trace.kernels.category.tolist() == [0, 0, 1]
    assert trace.kernels.stream.tolist() == [0, 0, 9]
    assert len(trace.ops) == 3


def test_phases_of_an_op_are_one_op(tmp_path: Path) -> None:
    names = ["aten::relu(0)", "k0", "aten::relu(1)", "k1", "aten::relu(2)", "aten::relu(0)", "k2"]
    deps = [(), (1,), (), (3,), (), (), (6,)]
    nodes = [
        node(number, name, on_host=not name.startswith("k"), deps=dep, rf_id=5 if number < 6 else 9)
        for number, (name, dep) in enumerate(zip(names, deps, strict=True), start=1)
    ]
    trace = read(tmp_path, metadata(schema="x"), *nodes)
    assert {signature.name for signature in trace.signatures} == {"aten::relu"}
    assert trace.kernels.owner.tolist() == [0, 0, 1]
    assert summarize(trace).top_ops[0].calls == len(trace.ops) == 2
    assert trace.ops.dur_ns.tolist() == [30_000, 10_000]
    assert trace.info.report.repairs == {"op phase joined with its previous phase": 2}
    assert [(op.name, op.count) for op in build_plan(trace, select="all").ops] == [("aten::relu", 2)]


def test_an_op_lasts_from_its_first_phase_to_the_end_of_its_last(tmp_path: Path) -> None:
    parts = [(1, "aten::relu(0)", 1000), (2, "aten::relu(1)", 1050), (3, "aten::relu(4)", 2000)]
    nodes = [node(number, name, on_host=True) + field(6, ts) for number, name, ts in parts]
    trace = read(tmp_path, metadata(schema="x"), *nodes)
    assert trace.ops.start_ns.tolist() == [1_000_000, 2_000_000]
    assert trace.ops.dur_ns.tolist() == [60_000, 10_000]
    assert trace.info.report.repairs["op phase without its previous phase, counted as a call"] == 1


@pytest.mark.parametrize("begin", [100, 1_700_000_000_000_000])
def test_nodes_without_a_start_among_others_are_lost_times_and_stretch_no_span(tmp_path: Path, begin: int) -> None:
    times = [begin, 0, 0, begin + 100]
    nodes = [node(i, "aten::relu", on_host=True) + (field(6, ts) if ts else b"") for i, ts in enumerate(times, start=1)]
    trace = read(tmp_path, metadata(schema="x"), *nodes)
    assert (trace.ops.start_ns - trace.ops.start_ns[0]).tolist() == [0, 10_000, 20_000, 100_000]
    assert trace.info.report.losses == {"start times of nodes": 2}
    assert summarize(trace).span_us == 110.0


def test_the_first_node_of_a_file_may_start_at_0(tmp_path: Path) -> None:
    nodes = [node(i, "aten::relu", on_host=True) + (field(6, ts) if ts else b"") for i, ts in ((1, 0), (2, 50))]
    trace = read(tmp_path, metadata(schema="x"), *nodes)
    assert trace.ops.start_ns.tolist() == [0, 50_000]
    assert not trace.info.report.losses


def test_a_call_on_a_device_without_an_op_of_its_own_is_an_op_too(tmp_path: Path) -> None:
    trace = read(tmp_path, metadata(schema="x"), node(1, "aten::relu", on_host=False))
    assert owned_by(trace) == ["aten::relu"]


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (metadata(schema="1.0"), True),
        (field(1, "0.0.4"), True),
        (metadata(schema="1.0", input_file="x" * 3000), True),
        (field(1, "not a version {"), False),
        (field(3, "0.0.4"), False),
        (field(2, "no attribute"), False),
        (b"", False),
    ],
)
def test_a_chakra_file_is_known_by_its_metadata(head: bytes, is_one: bool) -> None:
    assert is_chakra((varint(len(head)) + head)[:2000]) is is_one


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b"[{}]", b"\n\n{}", b"\n\x04 [ ]", b"PK\x03\x04", b"text"])
def test_text_is_no_chakra_file(text: bytes) -> None:
    assert not is_chakra(text * 50)


def plus_trace(calls: int) -> dict[str, Any]:
    """What Chakra's linker writes of a host trace and a device trace: each op with two kernels."""
    nothing: dict[str, Any] = {"values": [], "shapes": [], "types": []}
    tensor = {"values": [[1, 2, 0, 16, 4, "cuda:0"]], "shapes": [[4, 4]], "types": ["Tensor(float)"]}

    def attrs(number: int, schema: str) -> list[dict[str, Any]]:
        numbers = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0 if schema else 7, "tid": 1, "fw_tid": 0}
        listed = [{"name": name, "type": "uint64", "value": value} for name, value in numbers.items()]
        return [*listed, {"name": "op_schema", "type": "string", "value": schema}]

    nodes: list[dict[str, Any]] = [
        {"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "ctrl_deps": 1, "attrs": attrs(2, "")}
        | {"inputs": nothing, "outputs": nothing}
    ]
    for call in range(calls):
        number, args = 10 * call + 10, {"inputs": tensor, "outputs": nothing}
        shared = args | {"attrs": attrs(number, "aten::relu(Tensor self) -> Tensor")}
        times = {"inclusive_dur": 30, "exclusive_dur": 30, "ts": 1000 + 100 * call}
        nodes.append({"id": number, "name": "aten::relu", "ctrl_deps": 2, **shared, **times})
        for kernel in range(2):
            times = {"inclusive_dur": 7 + kernel, "exclusive_dur": 7 + kernel, "ts": 1020 + 100 * call + 10 * kernel}
            more = {"cat": "kernel", "ph": "X", "stream": 7 + kernel}
            nodes.append(
                {"id": number + 1 + kernel, "name": f"k{kernel}", "ctrl_deps": number, **shared, **times, **more}
            )
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "t", "start_ts": 1, "finish_ts": 2, "nodes": nodes}


def test_counts_of_a_file_of_chakras_converter_are_exact(tmp_path: Path) -> None:
    converter = pytest.importorskip("chakra.src.converter.pytorch_converter", reason="mlc-chakra writes what we read")
    (tmp_path / "plus.json").write_text(json.dumps(plus_trace(5)))
    converter.PyTorchConverter().convert(str(tmp_path / "plus.json"), str(tmp_path / "plus.0.et"), False)
    for name in ("plus.json", "plus.0.et"):
        trace = read_trace(tmp_path / name)
        assert (len(trace.ops), len(trace.kernels)) == (5, 10), name
        assert set(owned_by(trace)) == {"aten::relu"}
        assert trace.kernels.owner.tolist() == np.repeat(np.arange(5), 2).tolist()
        assert sorted(set(trace.kernels.stream.tolist())) == [7, 8]
        assert summarize(trace).device_time_us == 75.0


def test_files_of_chakras_text_converter_are_read(tmp_path: Path) -> None:
    converter = pytest.importorskip("chakra.src.converter.text_converter", reason="mlc-chakra writes what we read")
    layers = "\n".join(f"l{i} -1 5 NONE 0 5 NONE 0 5 ALLREDUCE {1024 << i} 5" for i in range(2))
    for kind, ops, collectives in (("MICRO", 6, 6), ("DATA", 21, 6)):
        source = tmp_path / f"{kind}.txt"
        source.write_text(f"{kind}\n2\n{layers}\n")
        converter.TextConverter(str(source), str(tmp_path / kind), 2, 3).convert()
        summary = summarize(read_trace(tmp_path / f"{kind}.1.et"))
        assert (summary.cpu_ops, summary.collectives) == (ops, collectives), kind


@pytest.mark.parametrize(
    ("write", "file", "kernels", "collectives"),
    [
        (lambda made: made.one_comm_coll_node_allreduce(2, 4096), "ALL_REDUCE.1.et", 1, 1),
        (lambda made: made.one_comm_send_node(2, 1024), "one_comm_send_node.0.et", 1, 1),
        (lambda made: made.two_comp_nodes_dependent(1, 5), "two_comp_nodes_dependent.0.et", 2, 0),
    ],
)
def test_files_of_chakras_generator_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Any], None],
    file: str,
    kernels: int,
    collectives: int,
) -> None:
    generator = pytest.importorskip("chakra.src.generator.generator", reason="mlc-chakra writes what we read")
    monkeypatch.chdir(tmp_path)
    write(generator)
    summary = summarize(read_trace(tmp_path / file))
    # A collective, a send or a receive is an op that owns itself; a compute node of the generator is a kernel alone.
    assert (summary.cpu_ops, summary.kernels, summary.collectives) == (collectives, kernels, collectives)


def computing(number: int, name: str, *, dur: int, on_host: bool | None = True, takes: tuple[int, ...] = ()) -> bytes:
    parts = field(1, number), field(2, name), field(3, 4), packed(5, takes), field(7, dur), field(8, IO)
    schema = field(10, attribute("op_schema", 29, f"{name}(Tensor self) -> Tensor"))
    told = b"" if on_host is None else field(10, attribute("is_cpu_op", 27, on_host))
    return b"".join((*parts, schema, told))


def transfer(
    number: int, name: str, kind: int, *, deps: tuple[int, ...] = (), takes: tuple[int, ...] = (), on_host: bool = False
) -> bytes:
    """A node of communication of 40 µs and 64 bytes; `kind` is the number of its type: 5 send, 6 receive, 7 all."""
    parts = field(1, number), field(2, name), field(3, kind), packed(4, deps), packed(5, takes), field(7, 40)
    sizes = field(10, attribute("comm_type", 9, 2)) + field(10, attribute("comm_size", 9, 64))
    return b"".join((*parts, sizes, field(10, attribute("is_cpu_op", 27, on_host))))


@pytest.mark.parametrize("kind", [5, 6, 7])
@pytest.mark.parametrize("on_host", [True, None, False])
def test_a_transfer_owns_itself_beside_the_op_whose_result_it_takes(
    tmp_path: Path, kind: int, on_host: bool | None
) -> None:
    nodes = [computing(1, "aten::relu", dur=70, on_host=on_host), transfer(2, "ring step", kind, takes=(1,))]
    trace = read(tmp_path, metadata(schema="x"), *nodes)
    top = {op.name: op.device_us for op in summarize(trace).top_ops}
    assert top == {"aten::relu": 70.0, "ring step": 40.0}
    assert trace.info.report.losses == {"start times of nodes": 2}
    assumed = "compute node without device work, its duration taken as device time"
    assert trace.info.report.repairs == ({} if on_host is False else {assumed: 1})
    assert summarize(trace).collectives == 1


@pytest.mark.parametrize("how", ["deps", "takes"])
def test_an_op_of_communication_owns_the_transfer_that_it_launched(tmp_path: Path, how: str) -> None:
    launch = computing(1, "c10d::allgather_", dur=9), transfer(2, "ncclDevKernel_AllGather", 7, **{how: (1,)})
    assert owned_by(read(tmp_path, metadata(schema="x"), *launch)) == ["c10d::allgather_"]


def test_a_compute_op_above_a_transfer_does_not_own_it(tmp_path: Path) -> None:
    nodes = [computing(1, "aten::mm", dur=9, on_host=False), transfer(2, "ncclDevKernel_AllGather", 7, deps=(1,))]
    assert owned_by(read(tmp_path, metadata(schema="x"), *nodes)) == ["aten::mm", "ncclDevKernel_AllGather"]


def test_times_of_ops_stay_on_the_host_where_the_device_has_nodes_of_computing(tmp_path: Path) -> None:
    kernel = node(2, "k0", on_host=False, deps=(1,))
    nodes = [computing(1, "aten::relu", dur=70), kernel, computing(3, "aten::gelu", dur=50), transfer(4, "ring", 7)]
    trace = read(tmp_path, metadata(schema="x"), *nodes)
    assert owned_by(trace) == ["aten::relu", "ring"]
    assert not trace.info.report.repairs


def test_transfers_among_ops_on_the_host_are_communication(tmp_path: Path) -> None:
    nodes = [computing(1, "aten::mm", dur=60), transfer(2, "ring step", 7, takes=(1,), on_host=True)]
    work = {row.name: row.share for row in summarize(read(tmp_path, metadata(schema="x"), *nodes)).work}
    assert work == {"GEMM": 0.6, "communication": 0.4}
