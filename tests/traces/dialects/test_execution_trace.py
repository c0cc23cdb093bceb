"""ExecutionTraces: both generations, what they know beyond Kineto, damage, limits."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opreplay.replay.plan.select import selected_rows
from opreplay.traces import read_trace
from opreplay.traces.dialects import EXECUTION_TRACE
from opreplay.traces.dialects.dialect import Want
from opreplay.traces.errors import Malformed, TooLarge, TraceError, UnknownDialect
from opreplay.traces.limits import Limits
from opreplay.traces.model import OpSignature, Trace
from opreplay.traces.reading.source import Source
from opreplay.traces.summary import summarize

A = [[11, 5, 64, 32, 4, "cuda:0"], [4, 8], "Tensor(float)", [8, 1]]
B = [[12, 6, 1000, 32, 4, "cuda:0"], [8, 4], "Tensor(float)", [1, 8]]
B_VIEW = [[13, 6, 1008, 8, 4, "cuda:0"], [8], "Tensor(float)", [1]]


def chakra(
    id_: int,
    name: str,
    parent: int,
    *args: list[Any],
    scope: int = 0,
    rf_id: int | None = None,
    schema: str = "",
    tid: int = 1,
    strides: bool = True,
    **more: Any,
) -> dict[str, Any]:
    inputs = {key: [arg[index] for arg in args] for index, key in enumerate(("values", "shapes", "types", "strides"))}
    if not strides:
        del inputs["strides"]
    attrs = {
        "rf_id": rf_id if rf_id is not None else id_,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": scope,
        "tid": tid,
        "fw_tid": 0,
        "op_schema": schema,
    }
    return {
        "id": id_,
        "name": name,
        "ctrl_deps": parent,
        "inputs": inputs,
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "uint64", "value": value} for key, value in attrs.items()],
    } | more


def flat(id_: int, name: str, parent: int, *args: list[Any], scope: int = 0, schema: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "id": id_,
        "rf_id": id_,
        "parent": parent,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": scope,
        "tid": 1,
        "fw_tid": 0,
        "op_schema": schema,
        "inputs": [arg[0] for arg in args],
        "input_shapes": [arg[1] for arg in args],
        "input_types": [arg[2] for arg in args],
        "outputs": [],
        "output_shapes": [],
        "output_types": [],
    }


def document(*nodes: dict[str, Any], schema: str = "1.1.1-chakra.0.0.4", **header: Any) -> dict[str, Any]:
    head = {"schema": schema, "pid": 77, "time": "2026-01-01 00:00:00", "start_ts": 1}
    return {**head, "nodes": list(nodes), "finish_ts": 2} | header


def tree() -> list[dict[str, Any]]:
    """A linear in a user annotation, children before parents, as torch writes it."""
    return [
        chakra(2, "[pytorch|profiler|execution_trace|thread]", 1, scope=7),
        chakra(6, "aten::t", 5, B, schema="aten::t(Tensor(a) self) -> Tensor(a)"),
        chakra(7, "aten::add.x", 5, A, [1, [], "Int", []]),
        chakra(5, "aten::linear", 4, A, B, ["<None>", [], "None", []], schema="aten::linear(Tensor input) -> Tensor"),
        chakra(4, "my region", 2, scope=7),
    ]


def nodes_of(path: Path, limits: Limits, block_bytes: int) -> Trace:
    """The file as an ExecutionTrace, whatever it is."""
    with Source(path, limits) as source:
        return EXECUTION_TRACE.read(source, Want(block_bytes=block_bytes))


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    def reader(value: Any, *, block_bytes: int = 1 << 20, limits: Limits | None = None) -> Trace:
        path = tmp_path / "et.json"
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return nodes_of(path, limits or Limits(), block_bytes)

    return reader


def names(trace: Trace) -> list[str]:
    return [trace.signatures[index].name for index in trace.ops.signature.tolist()]


def only(trace: Trace) -> OpSignature:
    (signature,) = trace.signatures
    return signature


def test_steps_of_a_file_without_times_count_by_their_numbers(read: Callable[..., Trace]) -> None:
    """They are marks without a length."""
    marks = [chakra(10 + n, f"ProfilerStep#{number}", 2, scope=7) for n, number in enumerate((3, 3, 4))]
    assert summarize(read(document(*tree(), *marks))).iterations == 2


def test_ops_parents_annotations_and_tracks(read: Callable[..., Trace]) -> None:
    trace = read(document(*tree()))
    assert names(trace) == ["aten::t", "aten::add.x", "aten::linear"]
    assert trace.ops.parent is not None
    assert trace.ops.parent.tolist() == [2, 2, -1]
    assert trace.ops.record_function_id is not None
    assert trace.ops.record_function_id.tolist() == [6, 7, 5]
    assert [note.name for note in trace.annotations] == ["my region"]
    assert trace.tracks == (("77", "1"),)
    assert (trace.info.dialect, trace.info.metadata_level, trace.info.events) == ("execution_trace", "full", 5)
    assert not trace.info.report.losses


@pytest.mark.parametrize("parents", [{2: 2}, {2: 3, 3: 2}, {2: 3, 3: 4, 4: 2}])
def test_ops_inside_each_other_have_no_parent(read: Callable[..., Trace], parents: dict[int, int]) -> None:
    ids = [*parents, 8, 9]
    trace = read(document(*(chakra(id_, "aten::t", {**parents, 8: 2, 9: 0}[id_], B) for id_ in ids)))
    assert trace.ops.parent is not None
    assert trace.ops.parent.tolist() == [-1] * len(ids)
    assert trace.info.report.losses["node whose parent is inside it"] == len(parents) + 1
    assert selected_rows(trace, "owner").tolist() == list(range(len(ids)))


def test_arguments_in_kinetos_words(read: Callable[..., Trace]) -> None:
    args = [
        A,
        ["<None>", [], "None", []],
        [3, [], "Int", []],
        [0.25, [], "Double", []],
        ["-inf", [], "Double", []],
        [True, [], "Bool", []],
        [[1, 2], [[], []], "GenericList[Int,Int]", [[], []]],
        [[], [], "GenericList[]", []],
        ["tanh", [], "String", []],
        ["cuda:0", [], "Device", []],
        [[507, 0, 0, 0, 0, ""], [], "Tensor(nullptr (uninitialized))", []],
        ["<Object>", [], "Object", []],
    ]
    signature = only(read(document(chakra(3, "aten::x", 2, *args, schema="aten::x.out(Tensor a) -> Tensor"))))
    assert signature.types == (
        "float",
        "",
        "Scalar",
        "Scalar",
        "Scalar",
        "Scalar",
        "ScalarList",
        "ScalarList",
        "",
        "",
        "",
        "",
    )
    assert signature.concrete == ("", "", "3", "0.25", "-inf", "True", "[1, 2]", "[]", "tanh", "", "", "")
    assert signature.dims == ((4, 8), *[()] * 11)
    assert signature.strides == ((8, 1), *[()] * 11)
    assert (signature.overload, signature.list_types) == ("out", None)


def test_lists_of_tensors_have_types_and_absent_elements(read: Callable[..., Trace]) -> None:
    index = [[[1, 9, 0, 2, 8, "cpu"], "<None>"], [[2], []], "GenericList[Tensor(long int),None]", [[1], []]]
    signature = only(read(document(chakra(3, "aten::index", 2, A, index))))
    assert signature.types == ("float", "TensorList")
    assert signature.dims == ((4, 8), ((2,), ()))
    assert signature.list_types == ((), ("long int", ""))
    assert signature.storage == (((0, 64),), ((1, 0), (-1, 0)))


def test_arguments_that_share_storage_keep_doing_so(read: Callable[..., Trace]) -> None:
    signature = only(read(document(chakra(3, "aten::x", 2, B, A, B_VIEW, A))))
    # 4000 bytes into the storage: 416 past a 512-byte boundary, 104 elements; the view starts 8 elements later
    assert signature.storage == (((0, 104),), ((1, 64),), ((0, 112),), ((1, 64),))


def test_views_that_lie_apart_need_no_memory_between_them(read: Callable[..., Trace]) -> None:
    far = [[14, 6, 10**9, 8, 4, "cuda:0"], [8], "Tensor(float)", [1]]
    empty = [[15, 6, 0, 0, 4, "cuda:0"], [0], "Tensor(float)", [1]]
    signature = only(read(document(chakra(3, "aten::x", 2, B, far, empty))))
    assert signature.storage == (((0, 104),), ((1, 0),), ((2, 0),))


def test_flat_generation(read: Callable[..., Trace]) -> None:
    nodes = [
        flat(12, "aten::t", 11, B, schema="aten::t(Tensor(a) self) -> Tensor(a)"),
        flat(11, "aten::linear", 2, A, B, schema="aten::linear(Tensor input) -> Tensor"),
        flat(2, "[pytorch|profiler|execution_graph|thread]", 1, scope=7),
    ]
    trace = read(document(*nodes, schema="1.0.1"))
    assert names(trace) == ["aten::t", "aten::linear"]
    assert trace.info.metadata_level == "dims+concrete"
    assert trace.ops.parent is not None
    assert trace.ops.parent.tolist() == [1, -1]
    assert trace.signatures[1].strides is None
    assert trace.signatures[1].dims == ((4, 8), (8, 4))


def results(*recorded: list[Any]) -> dict[str, Any]:
    return {key: [one[index] for one in recorded] for index, key in enumerate(("values", "shapes", "types"))}


def test_results_of_both_generations(read: Callable[..., Trace]) -> None:
    listed = [[A[0], B[0]], [A[1], B[1]], "GenericList[Tensor(float),Tensor(c10::Half)]"]
    nodes = (
        chakra(5, "aten::x", 1, A, outputs=results(A, [None, [], "None"], [3, [], "Int"], listed)),
        {**flat(6, "aten::y", 1, A), "outputs": [B[0]], "output_shapes": [B[1]], "output_types": [B[2]]},
        {key: value for key, value in flat(7, "aten::z", 1, A).items() if not key.startswith("output")},
    )
    trace = read(document(*nodes))
    by_name = {signature.name: signature.results for signature in trace.signatures}
    assert by_name["aten::x"] == (("float", (4, 8)), None, None, ("float", (4, 8)), ("c10::Half", (8, 4)))
    assert by_name["aten::y"] == (("float", (8, 4)),)
    assert by_name["aten::z"] is None


def test_results_do_not_make_calls_different_ops(read: Callable[..., Trace]) -> None:
    nodes = (chakra(i, "aten::unique", 1, A, outputs=results([A[0], [i], "Tensor(long)"])) for i in (5, 6))
    trace = read(document(*nodes))
    (signature,) = trace.signatures
    assert signature.results == (("long", (5,)),)
    assert len(trace.ops) == 2


@pytest.mark.parametrize(
    "broken",
    [
        results(A) | {"types": []},
        results([A[0], [-1], "Tensor(float)"]),
        results([A[0], A[1], 7]),
        results(A) | {"shapes": 3},
    ],
)
def test_broken_results_cost_nothing_else(read: Callable[..., Trace], broken: dict[str, Any]) -> None:
    trace = read(document(chakra(5, "aten::x", 1, A, outputs=broken)))
    (signature,) = trace.signatures
    assert signature.dims == ((4, 8),)
    assert signature.results is None
    assert trace.info.report.losses == {"broken results": 1}


def test_linked_chakra_files_have_times_and_kernels(read: Callable[..., Trace]) -> None:
    nodes = [
        chakra(3, "aten::mm", 2, A, B, ts=10.5, inclusive_dur=7),
        chakra(4, "gemm", 3, cat="kernel", ts=12, dur=3.25, stream=7),
        chakra(5, "copy", 99, cat="gpu_memcpy", ts=20, dur=1),
    ]
    trace = read(document(*nodes))
    assert (trace.ops.start_ns.tolist(), trace.ops.dur_ns.tolist()) == ([10_500], [7_000])
    assert trace.kernel_names == ("gemm", "copy")
    assert trace.kernels.owner.tolist() == [0, -1]
    assert trace.kernels.dur_ns.tolist() == [3_250, 1_000]
    assert trace.info.links.unowned_device_ns == 1_000


def test_process_groups_tell_the_world_size(read: Callable[..., Trace]) -> None:
    text = '[{"pg_name": "0", "backend_config": "cuda:nccl", "ranks": [], "group_size": 8, "group_count": 1}]'
    trace = read(document(chakra(3, "## process_group:init ##", 2, [text, [], "String", []], scope=7), *tree()))
    assert (trace.info.world_size, trace.info.backend) == (8, "nccl")


LAYOUTS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda value: json.dumps(value, indent=4),
    lambda value: json.dumps(value, separators=(",", ":")),
    lambda value: json.dumps(value, indent=1, sort_keys=True),
    lambda value: json.dumps({"nodes": value["nodes"], **value}, indent=2),
    lambda value: json.dumps({**value, "nodes": [dict(reversed(node.items())) for node in value["nodes"]]}),
    lambda value: json.dumps({**value, "nodes": [{"name": node["name"], **node} for node in value["nodes"]]}),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_bytes", [64, 700, 1 << 20])
def test_every_layout_and_block_size_reads_the_same(
    read: Callable[..., Trace], layout: Callable[[Any], str], block_bytes: int
) -> None:
    nodes = [node | {"id": node["id"] + 10 * copy} for copy in range(5) for node in tree()]
    trace = read(layout(document(*nodes)).encode(), block_bytes=block_bytes)
    assert names(trace) == ["aten::t", "aten::add.x", "aten::linear"] * 5
    assert (trace.info.report.losses, trace.info.report.repairs) == ({}, {})


def test_gzip_bom_and_read_trace(tmp_path: Path) -> None:
    path = tmp_path / "et.json.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(document(*tree())).encode()))
    assert names(read_trace(path)) == ["aten::t", "aten::add.x", "aten::linear"]
    assert read_trace(path).info.dialect == "execution_trace"


def test_unescaped_quotes_and_missing_commas_are_repaired(read: Callable[..., Trace]) -> None:
    nodes = [node | {"id": node["id"] + 10 * copy} for copy in range(3) for node in tree()]
    text = json.dumps(document(*nodes), indent=2)
    text = text.replace('"my region"', r'"say "hi", \ there"')
    text = text.replace("    },\n    {", "    }\n    {", 4).replace('"aten::t",', '"aten::t"', 1)
    for block_bytes in (64, 1 << 20):
        trace = read(text.encode(), block_bytes=block_bytes)
        assert len(trace.ops) == 9
        assert [note.name for note in trace.annotations] == ['say "hi", \\ there'] * 3
        assert trace.info.report.repairs == {"missing comma": 5, "unescaped quote": 3, "unescaped backslash": 3}
        assert not trace.info.report.losses


def test_truncation_keeps_what_precedes_the_cut(read: Callable[..., Trace]) -> None:
    nodes = [chakra(3 + index, "aten::relu", 2, A) for index in range(20)]
    text = json.dumps(document(*nodes), indent=2).encode()
    begin = text.index(b'"nodes"') + 20
    for cut in random.Random(0).sample(range(begin, len(text) - 30), 40):
        trace = read(text[:cut])
        whole = text[:cut].count(b"\n    },\n")
        assert len(trace.ops) in (whole, whole + 1)
        assert trace.info.report.losses == {"truncated file": 1}, cut
    assert read(text[: text.rindex(b"]") + 1]).info.report.losses == {"damaged end of the file": 1}


def test_broken_arguments_cost_the_shapes_of_that_op_only(read: Callable[..., Trace]) -> None:
    bad = chakra(4, "aten::bad", 2, A, A)
    bad["inputs"]["shapes"].pop()
    odd = chakra(5, "aten::odd", 2, [A[0], "x", "Tensor(float)", [1]])
    trace = read(document(bad, odd, {"id": "x"}, {"name": "aten::lost"}, chakra(6, "aten::ok", 2, A)))
    assert names(trace) == ["aten::bad", "aten::odd", "aten::ok"]
    assert [signature.dims for signature in trace.signatures] == [None, None, ((4, 8),)]
    assert trace.info.report.losses == {"broken arguments": 2, "node without id or name": 2}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", Malformed),
        (b"\x89PNG\r\n", Malformed),
        (b'{"schema": "1", ', Malformed),
        (b'{"schema": "1"}', UnknownDialect),
        (b'{"nodes": [{"x": 1}, {"x": 2}]}', UnknownDialect),
        (b"[1, 2]", Malformed),
    ],
)
def test_what_is_no_execution_trace_is_refused(read: Callable[..., Trace], text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(text)


def test_an_empty_list_of_nodes_is_fine(read: Callable[..., Trace]) -> None:
    trace = read(document())
    assert (len(trace.ops), trace.info.metadata_level, trace.info.report.losses) == (0, "none", {})


def test_limits(read: Callable[..., Trace]) -> None:
    nodes = [chakra(3 + index, "aten::relu", 2, A) for index in range(20)]
    with pytest.raises(TooLarge, match="events"):
        read(document(*nodes), limits=Limits(events=10))
    with pytest.raises(TooLarge, match="rows"):
        read(document(*nodes), limits=Limits(rows=10))
    with pytest.raises(TooLarge, match="event_bytes"):
        read(
            b'{"schema": "1", "nodes": [{"id": 1, "name": "' + b"x" * 5000,
            block_bytes=64,
            limits=Limits(event_bytes=999),
        )
    with pytest.raises(TooLarge, match="metadata_bytes"):
        read(b'{"schema": "' + b"x" * 5000, block_bytes=64, limits=Limits(metadata_bytes=999))
    assert read(
        document(chakra(1, "n" * 50, 0), chakra(3, "a::b", 2)), limits=Limits(name_bytes=10)
    ).info.report.losses == {"name too long": 1}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_mutation_gives_a_trace_or_a_trace_error(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(json.dumps(document(*tree()), indent=data.draw(st.sampled_from([None, 2]))).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 20))
        text[at : at + length] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b'"', b"{", b"}", b"]", b"[[", b",{"])
        )
    path = tmp_path / "mutated.json"
    path.write_bytes(bytes(text))
    try:
        trace = nodes_of(path, Limits(), 256)
    except TraceError:
        return
    assert trace.ops.parent is not None
    assert len(trace.ops.parent) == len(trace.ops)


@pytest.mark.slow
def test_public_samples(shared_traces: Path) -> None:
    linear = read_trace(shared_traces / "param_linear_et.json.gz")
    assert (len(linear.ops), len(linear.signatures), linear.tracks) == (926, 61, (("24248", "1"), ("24248", "2")))
    resnet = read_trace(shared_traces / "param_resnet_et.json.gz")
    assert (len(resnet.ops), resnet.info.world_size, resnet.info.backend) == (14346, 1, "nccl")
    for trace in (linear, resnet):
        assert not trace.info.report.losses
        assert not trace.info.report.repairs
