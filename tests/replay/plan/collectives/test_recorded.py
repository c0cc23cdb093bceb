"""The collectives that traces of each era and kind tell, from whichever record says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ascend.lowering import lower
from opreplay.replay.collectives.mapping import map_collective
from opreplay.replay.plan.collectives.in_plan import collective_ops, plan_of_comms
from opreplay.replay.plan.collectives.recorded import Call, calls_of_comms, collective_calls
from opreplay.replay.plan.collectives.records import of_record
from opreplay.replay.plan.inputs import open_input, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.traces import read_trace
from opreplay.traces.dialects.chakra_collectives import listed_collective
from opreplay.traces.dialects.et_nodes import Node
from opreplay.traces.dialects.param_comms import read_comms_trace
from opreplay.traces.errors import Malformed
from opreplay.traces.reading.protobuf_wire import field, varint
from tests.collectives import collective_event, every_collective

KNOWN = {
    "cpu_only_rank34": 10,
    "mi300_resnet_ddp_act_checkpoint": 12,
    "npu_alexnet_trace_view": 4,
    "nvidia_nccl_parser": 21,
    "nvidia_rank_non_gpu": 6,
    "nvidia_sampled_rank0": 10,
    "nvidia_sampled_rank1": 10,
    "nvidia_trace_diff_control": 60,
    "param_dlrm_worker0_kineto": 8,
    "param_resnet_et": 21,
    "h100_bert_small": 0,
}
"""Public trace → calls that move data, each told with operation, size and dtype."""


def calls_in(path: Path, events: list[dict[str, Any]], **header: Any) -> list[Call]:
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return collective_calls(read_trace(path, activity=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_public_traces(shared_traces: Path, name: str) -> None:
    calls = collective_calls(read_trace(shared_traces / f"{name}.json.gz", activity=True))
    assert len(calls) == KNOWN[name]
    assert all(call.collective is not None for call in calls)


def test_records_inside_each_other_are_one_call(tmp_path: Path) -> None:
    calls = calls_in(tmp_path / "t.json", every_collective())
    assert len(calls) == 15
    uneven = next(call.collective for call in calls if call.collective and call.collective.in_splits)
    assert (uneven.in_splits, uneven.out_splits) == ((20, 10), (20, 20))
    broadcast = next(call.collective for call in calls if call.name == "c10d::broadcast_")
    assert broadcast is not None
    assert broadcast.root == 1


def test_an_op_without_metadata_and_its_annotation(tmp_path: Path) -> None:
    """torch 1.13: arguments of the c10d op, and of the annotation where the op takes a list."""
    base = {"ph": "X", "pid": 1, "tid": 1}
    gather = {"Input Dims": [[64], [16], []], "Input type": ["float", "float", ""]}
    reduce = {"Input Dims": [[], [], []], "Input type": ["TensorList", "", ""]}
    inner = {"Input Dims": [[48]], "Input type": ["c10::Half"]}
    calls = calls_in(
        tmp_path / "t.json",
        [
            {**base, "cat": "cpu_op", "name": "c10d::_allgather_base_", "ts": 1, "dur": 5, "args": gather},
            {**base, "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 10, "dur": 9, "args": reduce},
            {**base, "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 12, "dur": 3, "args": inner},
        ],
        distributedInfo={"backend": "nccl", "rank": 0, "world_size": 32},
    )
    first, second = (call.collective for call in calls)
    assert first is not None
    assert second is not None
    assert (first.in_elements, first.out_elements, first.group_size) == (16, 64, 4)
    assert (second.dtype, second.in_elements, second.group_size) == ("float16", 48, 32)
    assert any("group" in text for text in calls[1].assumed)


def test_an_annotation_on_another_thread_is_of_the_op_that_waits_for_one(tmp_path: Path) -> None:
    """gloo works on threads of its own, in order; a reduce-scatter is an all-reduce there. One collective, one call."""
    op, note = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op"}, {"ph": "X", "pid": 1, "cat": "user_annotation"}
    reduce = "c10d::allreduce_"
    scatter = {"Input Dims": [[[5]], [[10]], []], "Input type": ["TensorList", "TensorList", ""]}

    def listed(*sizes: int) -> dict[str, Any]:
        return {"Input Dims": [[[n] for n in sizes], []], "Input type": ["TensorList", ""]}

    def told(*sizes: int) -> dict[str, Any]:
        return {"Input Dims": [[n] for n in sizes], "Input type": ["float"] * len(sizes)}

    calls = calls_in(
        tmp_path / "t.json",
        [
            {**op, "name": reduce, "ts": 1, "dur": 2, "args": listed(10)},
            {**op, "name": reduce, "ts": 4, "dur": 2, "args": listed(20)},
            {**op, "name": "c10d::reduce_scatter_tensor_coalesced_", "ts": 7, "dur": 2, "args": scatter},
            {**op, "name": "c10d::allreduce_coalesced_", "ts": 10, "dur": 2, "args": listed(3, 4)},
            {**note, "tid": 2, "name": "gloo:all_reduce", "ts": 5, "dur": 50, "args": told(20)},
            {**note, "tid": 3, "name": "gloo:all_reduce", "ts": 6, "dur": 70, "args": told(10)},
            {**note, "tid": 3, "name": "gloo:all_reduce", "ts": 80, "dur": 8, "args": told(10)},
            {**note, "tid": 3, "name": "gloo:all_reduce", "ts": 90, "dur": 9, "args": told(3, 4)},
            {**note, "tid": 3, "name": "gloo:all_reduce", "ts": 95, "dur": 1, "args": told(99)},
        ],
    )
    assert [(call.name, call.host_us) for call in calls] == [
        (reduce, 70),
        (reduce, 50),
        ("c10d::reduce_scatter_tensor_coalesced_", 8),
        ("c10d::allreduce_coalesced_", 9),
        ("gloo:all_reduce", 1),  # nothing calls for it
    ]
    found = [call.collective for call in calls if call.collective is not None]
    assert [(one.kind, one.dtype, one.in_elements) for one in found] == [
        ("all_reduce", "float32", 10),
        ("all_reduce", "float32", 20),
        ("reduce_scatter", "float32", 10),
        ("all_reduce", "float32", 7),
        ("all_reduce", "float32", 99),
    ]
    assert found[3].parts == (3, 4)


@pytest.mark.parametrize("which", ["dispatch", "combine_v2"])
def test_tokens_to_experts_and_back_are_an_all_to_all(tmp_path: Path, which: str) -> None:
    """Each of 32 tokens of width 64 has 4 experts, on 8 ranks; what combine takes is a buffer for the worst case."""
    rows = 32 if which == "dispatch" else 1024
    args = {
        "Input Dims": [[rows, 64], [32, 4], [], [], [], []],
        "Input type": ["c10::BFloat16", "int", "", "Scalar", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "ep", "8", "0", "256"],
    }
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 9, "args": args}
    (call,) = calls_in(tmp_path / "t.json", [{**event, "name": f"npu::npu_moe_distribute_{which}"}])
    one = call.collective
    assert one is not None
    assert (one.kind, one.dtype, one.group_size) == ("all_to_all", "bfloat16", 8)
    assert (one.in_elements, one.out_elements) == (32 * 4 * 64, 32 * 4 * 64)
    assert any("routing is not recorded" in text for text in call.assumed)
    (op,) = collective_ops([call])
    share = map_collective(one, 2)
    assert share.elements == one.in_elements
    (kernel,) = lower(op).kernels
    assert kernel.type == f"MoeDistribute{which.partition('_')[0].title()}"


def test_what_a_functional_all_to_all_gets_follows_from_its_splits_and_a_wait_is_no_collective(tmp_path: Path) -> None:
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5}
    args = {
        "Input Dims": [[30, 2], [], [], []],
        "Input type": ["float", "ScalarList", "ScalarList", ""],
        "Concrete Inputs": ["", "[12, 12]", "[12, 18]", ""],
    }
    wait = {"Input Dims": [[24, 2]], "Input type": ["float"], "Concrete Inputs": [""]}
    path = tmp_path / "t.json"
    events = [
        {**op, "ts": 1, "name": "_c10d_functional::all_to_all_single", "args": args},
        {**op, "ts": 9, "name": "_c10d_functional::wait_tensor", "args": wait},
    ]
    (call,) = calls_in(path, events)
    one = call.collective
    assert one is not None
    assert (one.in_elements, one.out_elements, one.in_splits, one.out_splits) == (60, 48, (24, 36), (24, 24))
    plan = plan_of(open_input(str(path), activity=True), Selection(select="owner"), device="cpu", collectives=True)
    reasons = {op.name: op.reason for op in plan.ops}
    assert str(reasons["_c10d_functional::wait_tensor"]).startswith("label, not an op: only waits for a collective")


@pytest.mark.parametrize(
    ("name", "kind", "elements"),
    [
        ("npu::npu_mm_all_reduce_base", "all_reduce", (32 * 16, 32 * 16)),
        ("npu::npu_all_gather_base_mm", "all_gather", (32 * 64, 4 * 32 * 64)),
        ("npu::npu_mm_reduce_scatter_base", "reduce_scatter", (32 * 16, 8 * 16)),
        ("npu::npu_all_to_all_matmul", "all_to_all", (32 * 64, 32 * 64)),
        ("npu::npu_matmul_all_to_all", "all_to_all", (32 * 16, 32 * 16)),
    ],
)
def test_of_an_op_that_multiplies_as_well_the_collective_runs(
    tmp_path: Path, name: str, kind: str, elements: tuple[int, int]
) -> None:
    args = {"Input Dims": [[32, 64], [64, 16], []], "Input type": ["c10::Half", "c10::Half", ""]}
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 9, "name": name, "args": args}
    (call,) = calls_in(tmp_path / "t.json", [event], distributedInfo={"rank": 0, "world_size": 4})
    one = call.collective
    assert one is not None
    assert (one.kind, one.in_elements, one.out_elements) == (kind, *elements)
    assert "product: left out, only the collective runs" in call.assumed


@pytest.mark.parametrize(("recorded", "factor"), [("ComplexFloat", 1), ("ComplexDouble", 2)])
def test_complex_numbers_keep_their_bytes(tmp_path: Path, recorded: str, factor: int) -> None:
    (call,) = calls_in(
        tmp_path / "t.json",
        collective_event("c10d::allreduce_", 0, collective="allreduce", elements=50, dtype=recorded),
    )
    one = call.collective
    assert one is not None
    assert (one.dtype, one.in_elements, one.size_bytes) == ("complex64", 50 * factor, 400 * factor)


def test_an_op_that_holds_several_is_several_calls(tmp_path: Path) -> None:
    outer = {
        "ph": "X",
        "cat": "cpu_op",
        "pid": 1,
        "tid": 1,
        "name": "c10d::reduce_scatter_coalesced",
        "ts": 0,
        "dur": 99,
    }
    inner = [
        *collective_event("c10d::allreduce_", 10, collective="allreduce", elements=5),
        *collective_event("c10d::broadcast_", 30, collective="broadcast", elements=6),
    ]
    kinds = [call.collective.kind for call in calls_in(tmp_path / "t.json", [outer, *inner]) if call.collective]
    assert kinds == ["all_reduce", "broadcast"]


def test_waits_and_set_up_are_no_collectives(tmp_path: Path) -> None:
    events = collective_event("c10d::barrier", 0, collective="wait", elements=0)[1:]
    events += collective_event("c10d::barrier", 50, collective="init", elements=0)[1:]
    assert calls_in(tmp_path / "t.json", events) == []


def test_filters_see_every_name_of_a_call(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": every_collective()}))
    read = open_input(str(path), activity=True)
    for names, count in ((("c10d::allreduce_",), 3), (("record_param_comms",), 15), (("_c10d_functional*",), 1)):
        plan = plan_of(read, Selection(select="owner", include=names), device="cpu", collectives=True)
        assert len(plan.ops) == count
    top = plan_of(read, Selection(select="owner", top=4), device="cpu", collectives=True)
    assert len(top.ops) == 4


COMMS = [
    {"comms": "init", "pg_id": 3, "global_ranks": [0, 2, 4, 6], "world_size": 8},
    {"comms": "all_to_allv", "in_msg_size": 64, "out_msg_size": 80, "dtype": "Int", "world_size": 8, "pg_id": 3}
    | {"in_split": [16] * 4, "out_split": [20] * 4},
    {"comms": "all_reduce", "in_msg_size": 1000, "out_msg_size": 1000, "dtype": "Float", "world_size": 8},
    {"comms": "wait", "req": 1},
    {"comms": "reduce_scatter", "in_msg_size": 400, "dtype": "no such", "world_size": 8},
    {"compute": "gemm", "mm_dim": 128},
]


def test_a_list_of_param(tmp_path: Path) -> None:
    path = tmp_path / "comms.json"
    path.write_text(json.dumps(COMMS))
    exchanged, reduced, unknown = calls_of_comms(read_comms_trace(path))
    assert exchanged.collective is not None
    assert (exchanged.collective.group_ranks, exchanged.collective.in_splits) == ((0, 2, 4, 6), (16,) * 4)
    assert reduced.collective is not None
    assert reduced.collective.group_size == 8
    assert unknown.lacks
    plan = open_input(str(path))
    assert [op.name for op in plan.ops if op.collective is not None] != []
    assert plan == plan_of_comms(read_comms_trace(path))


@pytest.mark.parametrize("text", ["{}", "[1]", "[", '{"comms": "all_reduce"}'])
def test_what_is_no_such_list_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "comms.json"
    path.write_text(text)
    with pytest.raises(Malformed):
        read_comms_trace(path)


NUMBERS = st.integers(-5, 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.none() | NUMBERS | st.text(max_size=5) | st.lists(st.integers(-1, 9), max_size=4)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.sampled_from([*COMMS[0], *COMMS[1], "src_rank", "root"]), VALUES), max_size=5))
def test_any_list_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("comms") / "comms.json"
    path.write_text(json.dumps(entries))
    for call in calls_of_comms(read_comms_trace(path)):
        assert call.collective is not None or call.lacks


def attribute(name: str, number: int, value: int | str) -> bytes:
    return field(10, field(1, name) + field(number, value))


def test_nodes_of_a_chakra_file_that_tell_type_and_bytes(tmp_path: Path) -> None:
    nodes = [
        field(1, 1) + field(2, "grads") + field(3, 7) + attribute("comm_type", 9, 0) + attribute("comm_size", 9, 4096),
        field(1, 2) + field(2, "act") + field(3, 5) + attribute("comm_size", 9, 77) + attribute("comm_dst", 7, 3),
        field(1, 3) + field(2, "bad") + field(3, 7) + attribute("comm_type", 9, 99) + attribute("comm_size", 9, 8),
    ]
    path = tmp_path / "rank.0.et"
    messages = [field(1, "0.0.4"), *nodes]
    path.write_bytes(b"".join(varint(len(message)) + message for message in messages))
    reduced, sent = collective_calls(read_trace(path))
    assert reduced.collective is not None
    assert (reduced.collective.kind, reduced.collective.dtype, reduced.collective.size_bytes) == (
        "all_reduce",
        "float32",
        4096,
    )
    assert sent.collective is not None
    assert (sent.collective.kind, sent.collective.size_bytes, sent.collective.target) == ("send", 77, 3)


def test_two_dialects_that_list_a_collective_say_the_same(tmp_path: Path) -> None:
    entry = {"comms": "all_reduce", "in_msg_size": 256, "out_msg_size": 256, "dtype": "float32", "world_size": 4}
    path = tmp_path / "comms.json"
    path.write_text(json.dumps([entry]))
    (of_param,) = read_comms_trace(path).entries
    attrs = {"comm_type": 0, "comm_size": 1024, "group_size": 4}
    node = Node(id=1, name="x", attrs=[{"name": name, "value": value} for name, value in attrs.items()])
    of_chakra = listed_collective(node, -1)
    assert of_chakra is not None
    works = [of_record(one.record, None) for one in (of_param, of_chakra)]
    assert works[0] == works[1]
    assert works[0] is not None
    assert (works[0].kind, works[0].in_elements, works[0].dtype, works[0].group_size) == (
        "all_reduce",
        256,
        "float32",
        4,
    )
    assert (of_param.on_device, of_chakra.on_device, of_chakra.of_bytes) == (False, True, True)
