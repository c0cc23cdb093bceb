"""Which op owns which kernel: the evidence used, eras whose External id is the correlation id, repeated ids, flows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opreplay.traces import Trace, read_trace
from tests.traces.events import DIMS, document, flow, kernel, launch, op, write


def read(folder: Path, *events: dict[str, Any]) -> Trace:
    return read_trace(write(folder, document(list(events))))


def test_external_id_that_is_the_correlation_id_is_ignored(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        op("aten::linear", 0, 100, 1, **DIMS),
        op("aten::mm", 10, 20, 2, **DIMS),
        op("aten::add", 200, 20, 7, **DIMS),
        launch(15, 7),
        launch(50, 2),
        launch(250, 3),
        kernel("gemm", 60, 5, **{"External id": 7, "correlation": 7}),
        kernel("bias", 70, 5, **{"External id": 2, "correlation": 2}),
        kernel("lost", 300, 5.5, **{"External id": 3, "correlation": 3}),
    )
    assert trace.kernels.owner.tolist() == [1, 0, -1]
    links = trace.info.links
    assert links.external_id_is_correlation
    assert (links.by_external_id, links.by_containment, links.unowned, links.unowned_device_ns) == (0, 2, 1, 5500)


def test_a_kernel_whose_external_id_is_unknown_is_linked_by_its_launch(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        op("aten::mm", 10, 20, 2, **DIMS),
        launch(15, 7, cat="hip_runtime"),
        kernel("a", 60, 5, correlation=7),
        kernel("b", 70, 5, **{"External id": 2, "correlation": 8}),
        kernel("c", 80, 5, **{"External id": 55, "correlation": 7}),
    )
    assert trace.kernels.owner.tolist() == [0, 0, 0]
    assert (trace.info.links.by_external_id, trace.info.links.by_containment) == (1, 2)


def test_launch_is_looked_for_on_its_own_thread_only(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        op("aten::mm", 0, 100, 1, tid=1, **DIMS),
        op("aten::add", 0, 100, 2, tid=2, **DIMS),
        launch(50, 7, tid=2),
        launch(50, 8, tid=3),
        kernel("a", 60, 5, correlation=7),
        kernel("b", 60, 5, correlation=8),
    )
    assert trace.kernels.owner.tolist() == [1, -1]


def test_repeated_ids_mean_the_nearest_op_before(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        *(op(f"aten::op{i}", 1000 * i, 100, 5, **DIMS) for i in range(3)),
        *(launch(1000 * i + 10, 7) for i in range(3)),
        *(kernel("k", 1000 * i + 500, 5, **{"External id": 5, "correlation": 7}) for i in (2, 0, 1)),
    )
    assert trace.kernels.owner.tolist() == [2, 0, 1]


def test_flows_replace_a_missing_correlation(tmp_path: Path) -> None:
    ident = 2**63 + 5
    trace = read(
        tmp_path,
        op("aten::mm", 10, 20, 1, **DIMS),
        flow("s", ident, 15),
        flow("f", ident, 60, pid=0, tid=20),
        flow("s", "x1", 16),
        kernel("a", 60, 5),
        kernel("b", 61, 5),
    )
    assert trace.kernels.owner.tolist() == [0, -1]
    assert trace.info.links.by_flow == 1


def test_npu_rows(tmp_path: Path) -> None:
    """torch_npu: a list, times and dims as text, device rows without category, arrows from op to row."""
    events = [
        {
            "ph": "X",
            "name": "aten::mm",
            "pid": 5,
            "tid": 5,
            "ts": "1704161511420306.491",
            "dur": 13.08,
            "cat": "cpu_op",
            "args": {"Input Dims": "2,3;\r\n3,4;\r\n", "Input type": "float;\r\nfloat;\r\nScalar"},
        },
        {
            "name": "MatMul",
            "pid": 800,
            "tid": 3,
            "ts": "1704161511422904.204",
            "dur": 1.35,
            "ph": "X",
            "args": {"Task Type": "AI_CORE", "Stream Id": 3, "connection_id": 8},
        },
        {
            "name": "wait",
            "pid": 800,
            "tid": 3,
            "ts": "1704161511422906.204",
            "dur": 1.35,
            "ph": "X",
            "args": {"Task Type": "EVENT_WAIT", "Stream Id": 3},
        },
        {
            "ph": "s",
            "bp": "e",
            "name": "torch_to_npu",
            "id": 1704161511422904204,
            "pid": 5,
            "tid": 5,
            "ts": "1704161511420310.116",
            "cat": "async_npu",
        },
        {
            "ph": "f",
            "bp": "e",
            "name": "torch_to_npu",
            "id": 1704161511422904204,
            "pid": 800,
            "tid": 3,
            "ts": "1704161511422904.204",
            "cat": "async_npu",
        },
    ]
    trace = read_trace(write(tmp_path, events))
    assert trace.info.dialect == "ascend"
    assert trace.signatures[0].dims == ((2, 3), (3, 4), ())
    assert trace.signatures[0].types == ("float", "float", "Scalar")
    assert trace.ops.start_ns.tolist() == [1704161511420306491]
    assert trace.kernels.category.tolist() == [3]
    assert trace.kernels.owner.tolist() == [0]


def test_what_was_launched_before_the_recording_is_told_from_what_has_no_op(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        op("aten::mm", 100, 20, 2, **DIMS),
        launch(105, 7),
        launch(180, 8),
        kernel("before", 10, 30, correlation=3),
        kernel("mine", 110, 5, correlation=7),
        kernel("no op around its launch", 190, 4, correlation=8),
        kernel("launch lost", 200, 3, correlation=9),
    )
    links = trace.info.links
    assert (links.unowned, links.unowned_device_ns) == (3, 37_000)
    assert (links.launched_before, links.launched_before_device_ns) == (1, 30_000)
