"""Recorded kernel types against the lowering: what counts as the same, as close, as another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opreplay.replay.ascend.simulate.agreement import compare_all, compare_kernels
from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayArg, ReplayOp
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace
from opreplay.traces.joins.kernel_details import with_table_in_folder
from opreplay.traces.model import TensorMeta


def mm(*types: str | None, count: int = 2) -> ReplayOp:
    """A product, each of whose calls ran one kernel of each type."""
    args = tuple(
        ReplayArg(name=name, type="Tensor", tensors=(TensorMeta(shape=shape, dtype="float16"),))
        for name, shape in (("self", (64, 32)), ("mat2", (32, 16)))
    )
    kernels = tuple(RecordedKernel(name=f"k{i}", count=count, total_us=3.0, type=t) for i, t in enumerate(types))
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0, device_us_total=3.0 * len(types), kernels=kernels)
    return ReplayOp(id="a" * 12, name="aten::mm", count=count, recorded=recorded, args=args, resolved_by="jit")


@pytest.mark.parametrize(
    ("types", "verdict"),
    [
        (("MatMulV3",), "same"),
        (("MatMulV3", None), "same"),
        (("MatMulV2",), "close"),
        (("MatMulV2", "MemSet", "TransData"), "close"),
        (("MatMulV3", "MatMulV3"), "close"),
        (("BatchMatMulV2",), "differs"),
        (("MatMulV3", "Add"), "differs"),
        (("MemSet",), "differs"),
    ],
)
def test_verdicts(types: tuple[str | None, ...], verdict: str) -> None:
    found = compare_kernels(mm(*types))
    assert found is not None
    assert found.verdict == verdict
    assert found.lowered == {"MatMulV3": 1}
    assert found.recorded_us == 3.0 * sum(t is not None for t in types)


def test_without_types_there_is_nothing_to_compare() -> None:
    assert compare_kernels(mm(None)) is None
    assert compare_all([mm(None), mm()]) == ()


def test_the_public_pair(shared_traces: Path, shared_ascend: Path, tmp_path: Path) -> None:
    shutil.copyfile(shared_traces / "npu_alexnet_trace_view.json.gz", tmp_path / "trace_view.json.gz")
    shutil.copyfile(shared_ascend / "910b2_alexnet_train_level1.csv", tmp_path / "kernel_details.csv")
    trace = with_table_in_folder(read_trace(tmp_path / "trace_view.json.gz"))
    compared = compare_all(with_outputs(build_plan(trace)).ops)
    assert len(compared) == 83
    total_us = sum(one.recorded_us for one in compared)
    assert sum(one.recorded_us for one in compared if one.verdict == "same") > 0.6 * total_us
    assert sum(one.recorded_us for one in compared if one.verdict == "differs") < 0.05 * total_us
