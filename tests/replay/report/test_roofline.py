"""The roofline of a run's ops, and its figure: the same rows and columns as those of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from opreplay.replay.ops.recorded.roofline import RooflineRow, rated, roofline
from opreplay.replay.ops.recorded.sizes import CallWork
from opreplay.replay.report.page.parts import roofline_of
from opreplay.replay.report.roofline import amount_text, file_table, head_line, of_results, page_table
from opreplay.replay.results.records import OpResult, Product
from opreplay.traces import read_trace
from opreplay.traces.times.kernel_classes import class_of_op
from opreplay.traces.times.peaks import peak_named
from tests.replay.timeline.machine import Machine

N = 4096


def result(id_: str, us: float, product: Product | None) -> OpResult:
    return OpResult(id=id_, name="aten::mm", count=2, status="skipped", recorded_device_us=us, product=product)


RESULTS = (
    result("slow", 250.0, Product(flops=2.0 * N**3, moved_bytes=6 * N**2, dtype="bfloat16")),
    result("fast", 150.0, Product(flops=2.0 * N**3, moved_bytes=6 * N**2, dtype="bfloat16")),
    result("moved", 40.0, Product(flops=0.0, moved_bytes=10**8, dtype="bfloat16")),
    result("cached", 10.0, Product(flops=0.0, moved_bytes=4 * 10**7, dtype="bfloat16")),
    result("unknown", 5.0, Product(flops=None, moved_bytes=None, why="told nowhere")),
    result("none", 1.0, None),
)


def test_a_run_has_the_roofline_of_its_recorded_times() -> None:
    table = of_results(RESULTS, "NVIDIA H100 80GB HBM3", lambda r: r.recorded_device_us)
    rows = {row.id: row for row in table.rows}
    assert [row.id for row in table.rows] == ["slow", "fast", "moved", "unknown", "none", "cached"]
    slow = rows["slow"]
    assert (slow.calls, slow.time_us, slow.flops, slow.bytes) == (2, 500.0, 4.0 * N**3, 12 * N**2)
    assert slow.peak_share == pytest.approx(4 * N**3 / 500e-6 / 989e12)
    assert slow.lost_us == pytest.approx(500 * (1 - slow.peak_share))
    assert (rows["moved"].bound, rows["moved"].peak_share) == ("memory", pytest.approx(1e8 / 40e-6 / 3350e9))
    assert (rows["cached"].lost_us, "cache" in rows["cached"].assumed) == (0.0, True)
    assert (rows["unknown"].lost_us, rows["unknown"].why) == (None, "told nowhere")
    assert rows["none"].why
    assert table.complete_share == pytest.approx(900 / 912)
    assert "aten::mm" in head_line(table)


def test_the_page_has_the_columns_of_the_file_and_a_mark_for_each_row_with_bytes() -> None:
    table = of_results(RESULTS, "NVIDIA H100 80GB HBM3", lambda r: r.recorded_device_us)
    keys = {column.key or column.title for column in file_table(table).columns}
    assert {column.key or column.title for column in page_table(table).columns} - {"op", "note"} <= keys
    figure = roofline_of(table)
    assert figure is not None
    assert [point.key for point in figure.devices[0].points] == ["slow", "fast", "moved", "cached"]
    assert figure.left_out == 2


@pytest.mark.parametrize(
    ("name", "dtype", "flops"), [("aten::mm", "float64", 2.0 * N**3), ("aten::linalg_svd", "float32", None)]
)
def test_arithmetic_of_unknown_speed_leaves_the_share_of_the_peak_unknown(
    name: str, dtype: str, flops: float | None
) -> None:
    row = RooflineRow(name=name, inputs="", calls=1, time_us=3000.0, share=1.0, kind=class_of_op(name))
    work = CallWork(flops=flops, bytes=24.0 * N**2, dtype=dtype, why="" if flops else "its work is unknown")
    found = rated(row, work, peak_named("H100"))
    assert (found.peak_share, found.lost_us, bool(found.why)) == (None, None, True)
    assert found.gb_per_s
    summed = rated(replace(row, name="aten::sum", kind="reduction"), work, peak_named("H100"))
    assert summed.bound == "memory"


def test_more_than_the_peak_is_no_loss_of_nothing() -> None:
    fast = result("impossible", 1.0, Product(flops=2.0 * N**3, moved_bytes=6 * N**2, dtype="bfloat16"))
    table = of_results([fast, RESULTS[0]], "NVIDIA H100 80GB HBM3", lambda r: r.recorded_device_us)
    rows = {row.id: row for row in table.rows}
    assert rows["impossible"].lost_us is None
    assert rows["impossible"].assumed
    assert table.complete_share == pytest.approx(250 / 251)
    assert "lost" not in head_line(of_results([fast], "NVIDIA H100 80GB HBM3", lambda r: r.recorded_device_us))


def test_times_that_are_none_give_no_rates(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    for us in (200.0, 0.0):
        machine.op("aten::mm", 8.0, ("gemm", us))
        machine.events[-1]["args"] |= {"Input Dims": [[N, N], [N, N]], "Input type": ["c10::BFloat16"] * 2}
    machine.synchronize()
    machine.end()
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "H100"}], "traceEvents": machine.events}))
    table = roofline(read_trace(path))
    (row,) = table.rows
    assert table.doubts.zero_durations == 1
    assert (row.flops, row.tflops_per_s, row.peak_share, row.lost_us) == (4.0 * N**3, None, None, None)
    assert "duration 0" in head_line(table)


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.0, "0"), (999.0, "999"), (4.267e13, "42.7 T")])
def test_amounts_have_decimal_prefixes(value: float | None, text: str) -> None:
    assert amount_text(value) == text
