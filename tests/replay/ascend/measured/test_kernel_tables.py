"""Kernel tables: spellings, missing columns, broken rows; and residency from their sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.ascend import KernelCall, TensorSpec, load_device, predict_kernel, read_kernel_table
from opreplay.replay.ascend.cost.residency import resident_of, reuse_distances
from opreplay.replay.ascend.measured.accuracy import (
    Compared,
    compare_group,
    errors_by_type,
    errors_of,
    grouped,
    launches,
    percentile,
)
from opreplay.traces.dialects.kernel_table import dtype_of, tensors_of
from opreplay.traces.errors import Malformed, TooLarge, TraceError

DETAILS = (
    "Step Id,Name,Type,Accelerator Core,Duration(us),Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats"
    '''
1,a,Add,AI_VECTOR_CORE,2.5,"""32,4;""",FLOAT;DT_BF16,FORMAT_ND;FORMAT_ND,"""32,4""",FLOAT,ND
1,b,Add,AI_VECTOR_CORE,,"""32,4;""",FLOAT;DT_BF16,ND;ND,"""32,4""",FLOAT,ND
1,c,hcom_allReduce_,COMMUNICATION,900.0,N/A,N/A,N/A,N/A,N/A,N/A
1,d,TransData,AI_VECTOR_CORE,4.0,"""2,3,8,8""",FLOAT,NCHW,"""2,1,8,8,16""",FLOAT,NC1HWC0:1
1,e,Add,AI_VECTOR_CORE,1.0,"""32,minus""",FLOAT,ND,,,
'''
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kernel_details.csv"
    path.write_text(text)
    return path


def test_reads_rows_in_order(tmp_path: Path) -> None:
    table = read_kernel_table(write(tmp_path, DETAILS))
    assert [row.call.type for row in table.rows] == ["Add", "Add", "hcom_allReduce_", "TransData"]
    assert table.dropped == {"broken row": 1}
    assert table.is_sequence
    add, blank, reduce, trans = table.rows
    assert add.call.inputs == (TensorSpec(shape=(32, 4), dtype="float32"), TensorSpec(shape=(), dtype="bfloat16"))
    assert (add.duration_us, blank.duration_us) == (2.5, None)
    assert reduce.communication
    assert not reduce.has_shapes
    assert trans.call.outputs[0] == TensorSpec(shape=(2, 1, 8, 8, 16), dtype="float32", format="NC1HWC0")


def test_means_have_counts_no_outputs_and_held_out_marks(tmp_path: Path) -> None:
    text = 'Type,Input Shapes,Input Data Types,Duration(us),Count,HeldOut\nSwiGlu,"""8,64""",DT_BF16,3.0,7,1\n'
    table = read_kernel_table(write(tmp_path, text))
    (row,) = table.rows
    assert (row.count, row.held_out, table.is_sequence) == (7, True, False)
    assert row.call.outputs == (TensorSpec(shape=(8, 32), dtype="bfloat16"),)


def test_op_summary_columns(tmp_path: Path) -> None:
    header = "Op Name,OP Type,Task Duration(us),Task Type,Input Shapes,Input Data Types"
    text = f'{header}\nx,Relu,1.5,AI_VECTOR_CORE,"""8""",FLOAT16\n'
    (row,) = read_kernel_table(write(tmp_path, text)).rows
    assert (row.call.type, row.duration_us) == ("Relu", 1.5)


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3\n", "\x00\x01"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Malformed, match=r"kernel table|CSV"):
        read_kernel_table(write(tmp_path, text))


def test_missing_file_and_limit(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        read_kernel_table(tmp_path / "none.csv")
    with pytest.raises(TooLarge, match="max_rows"):
        read_kernel_table(write(tmp_path, DETAILS), max_rows=2)


@given(st.text(max_size=30), st.text(max_size=30), st.none() | st.text(max_size=10))
def test_any_text_gives_tensors_or_value_error(shapes: str, types: str, formats: str | None) -> None:
    try:
        tensors = tensors_of(shapes, types, formats)
    except ValueError:
        return
    assert all(spec is None or all(size >= 0 for size in spec.shape) for spec in tensors)


def test_dtype_spellings() -> None:
    assert [dtype_of(t) for t in ("DT_BF16", "FLOAT", "INT8", "DT_UNDEFINED", "HIF8")] == [
        "bfloat16",
        "float32",
        "int8",
        None,
        "hif8",
    ]


def test_reuse_distance_counts_what_lies_between() -> None:
    a, b = TensorSpec(shape=(1000,), dtype="float32"), TensorSpec(shape=(500,), dtype="float32")
    make = KernelCall(type="ZerosLike", inputs=(), outputs=(a,))
    other = KernelCall(type="ZerosLike", inputs=(), outputs=(b,))
    use = KernelCall(type="Relu", inputs=(a,), outputs=(a,))
    first, second, third = reuse_distances([make, other, use])
    assert first == ((4000.0, None),)
    assert second == ((2000.0, None),)
    # 2000 bytes in between and 8000 of its own; only one tensor of that size was touched before.
    assert third == ((4000.0, 10000.0), (4000.0, None))


def test_near_data_is_resident_and_far_data_is_not() -> None:
    device = load_device("910b4")
    assert resident_of(((1e6, 2e6),), device) == pytest.approx(1.0, abs=0.01)
    assert resident_of(((1e6, 1e10),), device) == pytest.approx(0.0, abs=0.01)
    assert resident_of((), device) is None


def compared_kernels(path: Path, soc: str) -> list[Compared]:
    """Return the unique kernels of a table as measured and predicted, without collectives."""
    measured = [launch for launch in launches(read_kernel_table(path)) if not launch.row.communication]
    return [compare_group(group, load_device(soc)) for group in grouped(measured)]


def test_errors_by_hand(tmp_path: Path) -> None:
    compared = compared_kernels(write(tmp_path, DETAILS), "910b4")
    assert [c.call.type for c in compared] == ["Add", "TransData"]
    errors = errors_of(compared)
    expected = [abs(c.predicted_us - m) / m for c, m in zip(compared, (2.5, 4.0), strict=True)]
    assert errors.n == 2
    assert errors.mape == pytest.approx(sum(expected) / 2)
    assert errors.wape == pytest.approx((expected[0] * 2.5 + expected[1] * 4.0) / 6.5)
    assert set(errors_by_type(compared)) == {"Add", "TransData"}
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_public_tables_are_read_whole(shared_ascend: Path) -> None:
    for path in sorted(shared_ascend.glob("910*.csv")):
        table = read_kernel_table(path)
        assert not table.dropped, path.name
        assert launches(table)


def test_shipped_calibration_holds_on_what_it_was_fitted_to(shared_ascend: Path) -> None:
    """A guard against a model change without recalibration, not a measure of accuracy: see the benchmark for that."""
    compared = []
    for path in sorted(shared_ascend.glob("910*.csv")):
        compared += compared_kernels(path, path.name.split("_")[0])
    errors = errors_of(compared)
    assert errors.n > 300
    assert errors.median_ape < 0.12
    assert errors.wape < 0.20


def test_what_runs_on_the_control_processors_takes_their_time(tmp_path: Path) -> None:
    header = "Type,Accelerator Core,Duration(us),Input Shapes,Input Data Types"
    rows = [f'Index,{core},90,"""8""",INT64' for core in ("AI_CPU", "AI_VECTOR_CORE")]
    slow, quick = read_kernel_table(write(tmp_path, "\n".join((header, *rows)))).rows
    device = load_device("910b3")
    assert predict_kernel(slow.call, device).time_us > 5 * predict_kernel(quick.call, device).time_us
