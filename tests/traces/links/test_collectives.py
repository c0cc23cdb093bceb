"""Which collectives a rank ran: from kernels' own arguments, torch's records, ops, HCCL's spans and gloo's marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.traces import read_trace
from opreplay.traces.collectives.names import operation_of
from opreplay.traces.links.collectives import collectives_of, with_host_collectives
from opreplay.traces.samples import sample_path

TOLD = {
    "Collective name": "alltoallv",
    "In msg nelems": 8,
    "Out msg nelems": 10,
    "Group size": 2,
    "dtype": "Float",
    "In split size": "[3, 5]",
    "Out split size": "[3, 7]",
    "Process Group Name": "4",
    "Process Group Ranks": "[0, 1]",
    "Seq": 12,
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d::_allgather_base_", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("hcom_allReduce__868_0_1", "all_reduce"),
        ("_c10d_functional::all_to_all_single", "all_to_all"),
        ("gloo:broadcast", "broadcast"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_kinds_from_names(name: str, kind: str | None) -> None:
    assert operation_of(name) == kind


def written(path: Path, on_kernel: dict[str, Any], on_record: dict[str, Any]) -> str:
    def event(cat: str, name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
        tid = 7 if cat == "kernel" else 1
        return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}

    dims = {"Input Dims": [[10], [8], [], [], [], []], "Input type": ["float", "float", "", "", "", ""]}
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 1000),
        event("cpu_op", "c10d::alltoall_base_", 10, 40, **{"External id": 1}, **dims),
        event("cpu_op", "record_param_comms", 12, 30, **{"External id": 2}, **on_record),
        event("cuda_runtime", "cudaLaunchKernel", 15, 5, correlation=5),
        event(
            "kernel",
            "ncclDevKernel_SendRecv(x)",
            50,
            20,
            device=0,
            stream=7,
            correlation=5,
            **{"External id": 2},
            **on_kernel,
        ),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


@pytest.mark.parametrize(("on_kernel", "on_record"), [(TOLD, {}), ({}, TOLD), ({"Collective name": "alltoallv"}, TOLD)])
def test_a_kernel_is_described_by_itself_or_by_its_record(
    tmp_path: Path, on_kernel: dict[str, Any], on_record: dict[str, Any]
) -> None:
    (found,) = collectives_of(read_trace(written(tmp_path / "t.json", on_kernel, on_record), activity=True))
    assert (found.kind, found.elements, found.out_elements, found.dtype) == ("all_to_all", 8, 10, "Float")
    assert (found.in_split, found.out_split) == ((3, 5), (3, 7))
    assert (found.group, found.ranks, found.group_size, found.sequence) == ("4", "[0, 1]", 2, 12)
    assert (found.start_ns, found.end_ns, found.stream, found.step) == (50_000, 70_000, 7, 3)


def test_an_old_trace_has_the_op_alone(tmp_path: Path) -> None:
    (found,) = collectives_of(read_trace(written(tmp_path / "t.json", {}, {}), activity=True))
    assert (found.kind, found.elements, found.out_elements, found.dtype) == ("all_to_all", 8, 10, "float32")
    assert found.group is None
    assert found.sequence is None


def test_splits_that_are_no_lists_are_not_known(tmp_path: Path) -> None:
    odd = TOLD | {"In split size": "[3, ..., 5]", "Out split size": {"a": 1}, "Seq": "12", "Group size": "two"}
    (found,) = collectives_of(read_trace(written(tmp_path / "t.json", odd, {}), activity=True))
    assert found.in_split is None
    assert found.out_split is None
    assert (found.sequence, found.group_size) == (12, None)


def test_collectives_of_the_host_become_spans_that_its_ops_launch() -> None:
    trace = read_trace(sample_path("ddp_step_rank1"), activity=True)
    found = collectives_of(trace)
    assert [(one.kind, one.elements, one.op) for one in found] == [
        ("all_reduce", 524_800, 101),
        ("all_reduce", 527_360, 173),
    ]
    made = with_host_collectives(trace)
    assert made.activity is not None
    assert len(made.activity.spans) == 2
    assert [made.kernel_names[i] for i in made.activity.spans.name] == ["gloo:all_reduce"] * 2
    launched = np.isin(made.activity.calls.correlation, made.activity.spans.correlation)
    assert launched.sum() == 2
    assert np.array_equal(made.activity.calls.start_ns[launched], trace.ops.start_ns[[101, 173]])


def on_the_host(path: Path, marks: list[tuple[int, int, int]]) -> str:
    """Two all-reduces of 10 and 20 elements, one asked for by a functional op; `marks` are (thread, µs, elements)."""

    def event(cat: str, name: str, ts: int, tid: int, dims: Any, kind: str) -> dict[str, Any]:
        args = {"Input Dims": dims, "Input type": [kind]}
        return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": 6, "args": args}

    events = [
        event("cpu_op", "c10d::allreduce_", 10, 1, [[[10]]], "TensorList"),
        event("cpu_op", "_c10d_functional::all_reduce", 20, 1, [[20]], "float"),
        event("cpu_op", "c10d::allreduce_", 21, 1, [[[20]]], "TensorList") | {"dur": 3},
        *(event("user_annotation", "gloo:all_reduce", ts, tid, [[n]], "float") for tid, ts, n in marks),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def test_marks_of_the_host_belong_to_ops_by_size_where_threads_begin_the_other_way_round(tmp_path: Path) -> None:
    path = on_the_host(tmp_path / "t.json", [(2, 30, 20), (3, 31, 10)])
    found = collectives_of(read_trace(path, activity=True))
    assert [(one.elements, one.op, one.issued_ns) for one in found] == [(20, 2, 21_000), (10, 0, 10_000)]


def test_a_mark_without_an_op_leaves_all_of_its_kind_without(tmp_path: Path) -> None:
    path = on_the_host(tmp_path / "t.json", [(2, 15, 10), (3, 31, 10), (3, 40, 20)])
    found = collectives_of(read_trace(path, activity=True))
    assert [(one.elements, one.op, one.issued_ns) for one in found] == [(10, -1, None), (10, -1, None), (20, -1, None)]


def test_hccl_names_its_group_and_number(shared_traces: Path) -> None:
    found = collectives_of(read_trace(shared_traces / "npu_alexnet_trace_view.json.gz", activity=True))
    assert [(one.kind, one.group, one.sequence) for one in found] == [("all_reduce", "868", n) for n in range(4)]


def test_a_trace_of_another_kind_has_none(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100_bert_small.json.gz", activity=True)
    assert collectives_of(trace) == ()
    assert with_host_collectives(trace) is trace
