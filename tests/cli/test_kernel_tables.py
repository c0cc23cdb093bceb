"""--kernel-details, and the table that lies beside a torch_npu trace: what each command makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay

pytestmark = pytest.mark.usefixtures("forked_children")

HEADER = (
    "Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Input Shapes,Input Data Types,Input Formats"
)
MM = {"Input Dims": "32,64;\r\n64,16", "Input type": "float;\r\nfloat"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One aten::mm that owns a MatMulV2 and a MemSet, as torch_npu records it."""
    where = {"ph": "X", "pid": 7, "tid": 7, "ts": "1000.000"}
    events: list[dict[str, Any]] = [
        {**where, "cat": "cpu_op", "name": "aten::mm", "dur": 50.0, "args": MM},
        {**where, "cat": "cpu_op", "name": "aclnnMm", "dur": 40.0, "args": {}},
    ]
    for i, name in enumerate(("mm_memset", "mm_matmul")):
        begin, end = f"{1010 + i}.000", f"{1100 + 20 * i}.500"
        events += [
            {"ph": "s", "cat": "async_npu", "name": "async_npu", "pid": 7, "tid": 7, "ts": begin, "id": f"{i}"},
            {"ph": "f", "cat": "async_npu", "name": "async_npu", "pid": 9, "tid": 2, "ts": end, "id": f"{i}"},
            {
                "ph": "X",
                "name": name,
                "pid": 9,
                "tid": 2,
                "ts": end,
                "dur": 10.0,
                "args": {"Task Type": "AI_CORE", "connection_id": i},
            },
        ]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    return path


def table(path: Path, *, shift: float = 0.0) -> Path:
    rows = [
        f"mm_memset,MemSet,AI_VECTOR_CORE,{1100.5 + shift},1.25,0,N/A,N/A,N/A",
        f'mm_matmul,MatMulV2,AI_CORE,{1120.5 + 7 * shift},12.5,3.5,"""32,64;64,16""",FLOAT;FLOAT,ND;ND',
    ]
    path.write_text("\n".join((HEADER, *rows)) + "\n")
    return path


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [str(arg) for arg in args])


def test_inspect_lists_the_kernels_of_each_op(trace: Path, tmp_path: Path) -> None:
    assert json.loads(invoke("inspect", trace, "--format", "json").stdout)["npu_ops"] == []
    table(tmp_path / "kernel_details.csv")
    got = invoke("inspect", trace, "--format", "json")
    assert "kernel_details.csv next to the trace: 2 of 2 kernels found (2 by start)" in got.stderr
    facts = json.loads(got.stdout)
    (op,) = facts["npu_ops"]
    assert (op["op"], op["calls"], op["device_us"]) == ("aten::mm", 1, 13.75)
    assert [(k["type"], k["core"], k["total_us"], k["wait_us"]) for k in op["kernels"]] == [
        ("MatMulV2", "AI_CORE", 12.5, 3.5),
        ("MemSet", "AI_VECTOR_CORE", 1.25, 0.0),
    ]
    assert facts["device_time_us"] == 13.75
    assert facts["kernel_details"]["discovered"]
    shown = invoke("inspect", trace).stdout
    assert "NPU kernels by op" in shown
    assert "MatMulV2" in shown


@pytest.mark.parametrize("command", ["inspect", "plan", "simulate", "run"])
def test_a_table_is_named(trace: Path, tmp_path: Path, command: str) -> None:
    named = table(tmp_path / "elsewhere.csv")
    more = ["--dry-run"] if command == "run" else []
    got = invoke(command, trace, "--set", f"kernel_details={named}", *more)
    assert got.exit_code == 0, got.output
    assert "elsewhere.csv as named: 2 of 2 kernels found (2 by start)" in got.stderr
    missing = invoke(command, trace, "--kernel-details", tmp_path / "none.csv", *more)
    assert missing.exit_code == 3
    assert "cannot read" in missing.stderr
    assert invoke(command, trace, "--set", f"kernel_details={trace}", *more).exit_code == 3


def test_a_table_of_another_run_is_refused_when_named_and_told_when_found(trace: Path, tmp_path: Path) -> None:
    other = table(tmp_path / "other.csv", shift=1e6)
    assert invoke("plan", trace, "--set", f"kernel_details={other}").exit_code == 3
    table(tmp_path / "op_summary_3.csv", shift=1e6)
    got = invoke("plan", trace)
    assert got.exit_code == 0
    assert "op_summary_3.csv next to the trace was not used" in got.stderr


def test_plans_keep_the_types_and_take_no_table(trace: Path, tmp_path: Path) -> None:
    named = table(tmp_path / "k.csv")
    plan = tmp_path / "plan.json"
    assert invoke("plan", trace, "--set", f"kernel_details={named}", "--output", plan).exit_code == 0
    (op,) = json.loads(plan.read_text())["ops"]
    assert [(k["name"], k["type"], k["total_us"]) for k in op["recorded"]["kernels"]] == [
        ("mm_matmul", "MatMulV2", 12.5),
        ("mm_memset", "MemSet", 1.25),
    ]
    assert invoke("plan", plan).exit_code == 0
    refused = invoke("plan", plan, "--set", f"kernel_details={named}")
    assert refused.exit_code == 2
    assert "a plan already contains its kernels" in refused.stderr
    explained = invoke("plan", plan, "--explain", "aten::mm")
    assert "MatMulV2" in explained.stdout


@pytest.mark.slow
def test_run_shows_recorded_beside_simulated_kernels(trace: Path, tmp_path: Path) -> None:
    named = table(tmp_path / "k.csv")
    lines, sheet = tmp_path / "r.jsonl", tmp_path / "r.csv"
    got = invoke("run", trace, "--set", f"kernel_details={named}", "--set", "op_time=5ms", "-o", lines, "-o", sheet)
    assert got.exit_code == 0, got.output
    assert "NPU kernels of" in got.stdout
    header, op, _ = map(json.loads, lines.read_text().splitlines())
    assert header["trace"]["kernel_details"]["by_start"] == 2
    assert op["npu_kernels"] == [
        {"type": "MatMulV2", "count": 1, "total_us": 12.5},
        {"type": "MemSet", "count": 1, "total_us": 1.25},
    ]
    assert "MatMulV2 x1 12.5 us; MemSet x1 1.25 us" in sheet.read_text()
    assert "NPU kernels of" not in invoke("run", trace, "--set", "op_time=5ms").stdout


def test_simulate_compares_its_lowering(trace: Path, tmp_path: Path) -> None:
    assert json.loads(invoke("simulate", trace, "--format", "json").stdout)["lowering"] is None
    named = table(tmp_path / "k.csv")
    got = invoke("simulate", trace, "--set", f"kernel_details={named}")
    said = " ".join(got.stdout.split())
    assert "lowering against 1 op with recorded kernel types: 1 (100.0 % of the time) the same except for" in said
    lowering = json.loads(invoke("simulate", trace, "--set", f"kernel_details={named}", "--format", "json").stdout)[
        "lowering"
    ]
    assert lowering["ops"] == {"same": 0, "close": 1, "differs": 0}
    assert lowering["compared"][0]["recorded"] == {"MatMulV2": 1.0, "MemSet": 1.0}
    named.write_text(named.read_text().replace("MatMulV2", "Relu"))
    assert "lowered to other kernels" in invoke("simulate", trace, "--set", f"kernel_details={named}").stdout


def test_a_batch_takes_the_table_beside_each_trace(trace: Path, tmp_path: Path) -> None:
    table(tmp_path / "kernel_details.csv")
    got = invoke("batch", trace, "--dry-run")
    assert got.exit_code == 0, got.stderr
    assert f"{trace}: kernel_details.csv next to the trace: 2 of 2 kernels found (2 by start)" in got.stderr
    assert "would replay 1 of 1 op" in got.stdout
