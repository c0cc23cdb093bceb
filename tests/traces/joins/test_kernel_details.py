"""Kernel tables joined to NPU tasks: by start, by order, not at all; what is discovered, and what ops then own."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opreplay.traces import Trace, read_trace
from opreplay.traces.errors import TooLarge, TraceError, UsageError
from opreplay.traces.joins.kernel_details import join_kernel_details, table_in_folder, with_table_in_folder
from opreplay.traces.links.npu_kernels import kernels_by_op

T0 = 1736405443881000
MM = {"Input Dims": "32,64;\r\n64,16", "Input type": "float;\r\nfloat"}
COLUMNS = (
    "Name",
    "Type",
    "Accelerator Core",
    "Start Time(us)",
    "Duration(us)",
    "Wait Time(us)",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
)
SHAPES = ('"32,64;64,16"', "FLOAT;FLOAT", "ND;ND", '"32,16"', "FLOAT", "ND")


def events(*tasks: tuple[str, float, float]) -> list[dict[str, Any]]:
    """Calls of aten::mm, each with one task (name, start after T0 in µs, duration in µs)."""
    made: list[dict[str, Any]] = []
    for i, (name, start, dur) in enumerate(tasks):
        at = f"{T0 - 500 + 10 * i}.000"
        made += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": at, "dur": 8.0, "args": MM},
            {"ph": "X", "cat": "cpu_op", "name": "aclnnMm", "pid": 7, "tid": 7, "ts": at, "dur": 5.0, "args": {}},
            {"ph": "s", "cat": "async_npu", "name": "async_npu", "pid": 7, "tid": 7, "ts": at, "id": f"{i}"},
            {
                "ph": "f",
                "bp": "e",
                "cat": "async_npu",
                "name": "async_npu",
                "pid": 9,
                "tid": 2,
                "ts": f"{T0 + start:.3f}",
                "id": f"{i}",
            },
            {
                "ph": "X",
                "name": name,
                "pid": 9,
                "tid": 2,
                "ts": f"{T0 + start:.3f}",
                "dur": dur,
                "args": {"Task Type": "AI_CORE", "Task Id": i, "connection_id": i},
            },
        ]
    return made


def row(name: str, type_: str, start: float | None, duration: Any = 5.0, **more: str) -> dict[str, str]:
    text = "" if start is None else f"{T0 + start:.3f}\t"
    cells = (name, type_, "AI_CORE", text, str(duration), "1.5", *SHAPES)
    return dict(zip(COLUMNS, cells, strict=True)) | more


def table(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue())
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events(("mm_a", 0, 4.0), ("mm_a", 20, 4.0), ("mm_b", 40, 7.0))))
    return read_trace(path)


def types_of(trace: Trace) -> list[str | None]:
    assert trace.details is not None
    return [None if kind < 0 else trace.details.kinds[kind].type for kind in trace.details.kind.tolist()]


def test_rows_are_tasks_that_start_when_they_do(trace: Trace, tmp_path: Path) -> None:
    rows = (
        row("mm_b", "MatMulV3", 40),
        row("mm_a", "MatMulV2", 20.0004, 6.0),
        row("mm_a", "MemSet", 0, 4.0),
        row("hcom_x", "hcom_allReduce_", 60),
        row("other", "Add", 70),
    )
    joined = join_kernel_details(trace, str(table(tmp_path / "any.csv", *rows)))
    found = joined.info.kernel_details
    assert found is not None
    assert types_of(joined) == ["MemSet", "MatMulV2", "MatMulV3"]
    assert (found.rows, found.by_start, found.by_order) == (5, 3, 0)
    assert (found.communication_rows, found.unmatched_rows) == (1, 1)
    assert joined.kernels.dur_ns.tolist() == [4000, 6000, 5000]
    assert found.other_durations == 2
    assert joined.details is not None
    assert joined.details.wait_ns.tolist() == [1500] * 3
    assert trace.details is None


def test_without_starts_the_order_tells_where_numbers_agree(trace: Trace, tmp_path: Path) -> None:
    bare = tuple(name for name in COLUMNS if not name.startswith("Start"))
    rows = (row("mm_a", "First", 0, "N/A"), row("mm_a", "Second", 20), row("mm_b", "B", 40), row("mm_b", "B", 50))
    joined = join_kernel_details(trace, str(table(tmp_path / "any.csv", *rows, columns=bare)))
    assert types_of(joined) == ["First", "Second", None]
    assert joined.kernels.dur_ns.tolist() == [4000, 5000, 7000]
    assert joined.info.kernel_details is not None
    assert (joined.info.kernel_details.by_order, joined.info.kernel_details.unmatched_rows) == (2, 2)
    assert joined.info.kernel_details.unmatched_tasks == 1


def test_another_clock_is_taken_and_another_run_is_not(trace: Trace, tmp_path: Path) -> None:
    rows = [("mm_a", 0), ("mm_a", 20), ("mm_b", 40)]
    shifted = table(tmp_path / "shifted.csv", *(row(name, "T", at + 5e6) for name, at in rows))
    joined = join_kernel_details(trace, str(shifted))
    assert joined.info.kernel_details is not None
    assert joined.info.kernel_details.by_order == 3
    other = table(tmp_path / "other.csv", *(row(name, "T", 5e6 + 1e4 * at) for name, at in rows))
    with pytest.raises(TraceError, match="none of its 3 kernels"):
        join_kernel_details(trace, str(other))


def test_what_ops_own(trace: Trace, tmp_path: Path) -> None:
    rows = (row("mm_a", "MatMulV2", 0, 4.0), row("mm_a", "MatMulV2", 20, 4.0), row("mm_b", "MemSet", 40, 7.0))
    (op,) = kernels_by_op(join_kernel_details(trace, str(table(tmp_path / "any.csv", *rows))))
    assert (op.op, op.calls, op.device_us) == ("aten::mm", 3, 15.0)
    assert [(k.type, k.count, k.total_us, k.wait_us) for k in op.kernels] == [
        ("MatMulV2", 2, 8.0, 3.0),
        ("MemSet", 1, 7.0, 1.5),
    ]
    assert op.kernels[0].tensors == "float32[32,64] ND, float32[64,16] ND → float32[32,16] ND"
    assert kernels_by_op(trace) == ()


def test_kernels_without_an_op_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([event for event in events(("mm_a", 0, 4.0)) if "Task Type" in event.get("args", {})]))
    joined = join_kernel_details(read_trace(path), str(table(tmp_path / "k.csv", row("mm_a", "MatMulV2", 0))))
    assert [(op.op, op.calls) for op in kernels_by_op(joined)] == [(None, 0)]


def test_only_fixed_names_beside_the_trace_are_found(trace: Trace, tmp_path: Path) -> None:
    path = trace.info.path
    table(tmp_path / "kernel_details_old.csv", row("mm_a", "T", 0))
    assert table_in_folder(path) is None
    assert with_table_in_folder(trace) is trace
    table(tmp_path / "op_summary_0.csv", row("mm_a", "FromSummary", 0))
    assert (
        with_table_in_folder(trace).info.kernel_details
        == join_kernel_details(trace, str(tmp_path / "op_summary_0.csv"), discovered=True).info.kernel_details
    )
    table(tmp_path / "op_summary_1.csv", row("mm_a", "T", 0))
    with pytest.raises(UsageError, match="2 tables"):
        table_in_folder(path)
    unused = with_table_in_folder(trace)
    assert unused.details is None
    assert unused.info.kernel_details is not None
    assert "2 tables" in (unused.info.kernel_details.problem or "")
    table(tmp_path / "kernel_details.csv", row("mm_a", "T", 0))
    assert table_in_folder(path) == str(tmp_path / "kernel_details.csv")
    assert table_in_folder("-") is None
    assert table_in_folder(str(tmp_path / "gone.json")) is None


def test_a_pipe_or_folder_of_that_name_is_never_opened(trace: Trace, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kernel_details.csv")
    (tmp_path / "op_summary_0.csv").mkdir()
    assert with_table_in_folder(trace) is trace


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00", "Type,Duration(us),Input Shapes\n"])
def test_a_table_that_cannot_be_used_is_said_or_refused(trace: Trace, tmp_path: Path, text: str) -> None:
    (tmp_path / "kernel_details.csv").write_text(text)
    left = with_table_in_folder(trace)
    assert left.info.kernel_details is not None
    assert left.info.kernel_details.problem
    assert left.kernels is trace.kernels
    with pytest.raises(TraceError):
        join_kernel_details(trace, str(tmp_path / "kernel_details.csv"))


def test_limits(trace: Trace, tmp_path: Path) -> None:
    path = table(tmp_path / "k.csv", row("mm_a", "T", 0), row("mm_a", "T", 20))
    with pytest.raises(TooLarge, match="max_rows"):
        join_kernel_details(trace, str(path), max_rows=1)
    long = ",".join(COLUMNS) + "\n" + "x" * (3 << 20)
    path.write_text(long)
    with pytest.raises(TraceError):
        join_kernel_details(trace, str(path))
    with pytest.raises(TraceError, match="cannot read"):
        join_kernel_details(trace, str(tmp_path))


def test_other_traces_have_no_kernel_table(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps(
            {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a::b", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}
        )
    )
    table(tmp_path / "kernel_details.csv", row("mm_a", "T", 0))
    plain = read_trace(path)
    assert with_table_in_folder(plain) is plain
    with pytest.raises(UsageError, match="torch_npu"):
        join_kernel_details(plain, str(tmp_path / "kernel_details.csv"))


CELLS = st.sampled_from(
    ["mm_a", "mm_b", "", "N/A", "-1", "1e400", "1e300", "nan", "5", f"{T0}.000", '"1,2;3"', '"-4"', "ü" * 70]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(CELLS, min_size=1, max_size=len(COLUMNS)), max_size=6))
def test_any_cells_are_a_join_or_a_trace_error(trace: Trace, tmp_path: Path, cells: list[list[str]]) -> None:
    rows: list[dict[str, str]] = [dict(zip(map(str, COLUMNS), line, strict=False)) for line in cells]
    path = table(tmp_path / "k.csv", *rows)
    try:
        joined = join_kernel_details(trace, str(path))
    except TraceError:
        return
    found = joined.info.kernel_details
    assert found is not None
    assert found.by_start + found.by_order + found.communication_rows + found.unmatched_rows == found.rows
    assert found.rows + sum(found.dropped.values()) == len(rows)
    assert (joined.kernels.dur_ns >= 0).all()


def test_the_public_pair(shared_traces: Path, shared_ascend: Path, tmp_path: Path) -> None:
    shutil.copyfile(shared_traces / "npu_alexnet_trace_view.json.gz", tmp_path / "trace_view.json.gz")
    shutil.copyfile(shared_ascend / "910b2_alexnet_train_level1.csv", tmp_path / "kernel_details.csv")
    joined = with_table_in_folder(read_trace(tmp_path / "trace_view.json.gz"))
    found = joined.info.kernel_details
    assert found is not None
    assert (found.rows, found.by_order, found.communication_rows, found.unmatched_rows) == (191, 187, 4, 0)
    owned = {op.op: {kernel.type for kernel in op.kernels} for op in kernels_by_op(joined)}
    assert owned["aten::mm"] == {"MatMulV2", "MatMulV3", "MemSet"}
    assert owned["aten::_convolution"] == {"Conv2D", "TransData"}
    assert owned["aten::relu_"] == {"Relu"}
    assert None not in owned
    timeline = read_trace(shared_traces / "npu_timeline_trace_view.json.gz")
    with pytest.raises(TraceError, match="none of its"):
        join_kernel_details(timeline, str(shared_ascend / "910c_vllm_infer_means.csv"))
