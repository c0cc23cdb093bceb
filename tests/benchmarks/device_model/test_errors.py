"""Errors over all tables of a folder, with the devices that ship and with fits that did not see the rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device_model.__main__ import main
from benchmarks.device_model.tables import measured_on
from opreplay.replay.ascend.calibrate.validate import validate
from opreplay.replay.ascend.devices.fitted import rows_of, sections_of
from opreplay.replay.ascend.profile import Rates

PROBLEMS = (
    "problem,soc,input_shapes,input_dtypes,output_shape,torch_npu_us,aten_ops,init_args\n"
    '19_ReLU,910B4,"16,16384",float32,"16,16384",6.5,aten.relu.default,[]\n'
    '21_Sigmoid,910B4,"16,16384",float32,"16,16384",6.6,aten.sigmoid.default,[]\n'
)
KERNELS = "Type,Duration(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types\n"


def kernels(path: Path, *rows: tuple[str, int, float]) -> Path:
    """Write a kernel table: (type, elements, microseconds) per row."""
    lines = (f'{kind},{us},"""{n}""",FLOAT,"""{n}""",FLOAT\n' for kind, n, us in rows)
    path.write_text(KERNELS + "".join(lines))
    return path


def facts(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "problems_910b4.csv").write_text(PROBLEMS)
    kernels(tmp_path / "910b2_kernels.csv", ("Relu", 4096, 3), ("Exp", 4096, 4))
    (tmp_path / "other.csv").write_text("a,b\n")
    return tmp_path


def test_a_table_of_ops_is_compared_like_one_of_kernels(folder: Path) -> None:
    figures = validate(measured_on([folder / "problems_910b4.csv"], "910b4")).figures
    assert set(figures.families) == {"ReLU", "Sigmoid"}
    assert 0 <= figures.overall.within_10 <= figures.overall.within_25 <= 1


def test_all_tables_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = facts(capsys, "errors", folder)
    rows = {row["table"]: row for row in table["sections"]["shipped"]["rows"]}
    assert {"problems_910b4", "910b2_kernels", "all"} <= set(rows)
    assert (rows["problems_910b4"]["state"], rows["910b2_kernels"]["state"]) == ("cold", "network")
    assert rows["all"]["n"] == 4
    assert list(table["left_out"]) == ["other.csv"]
    assert main(["errors", str(folder)]) == 0
    assert "median over tables" in capsys.readouterr().out


def test_all_tables_by_fits_that_did_not_see_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = facts(capsys, "errors", folder, "--cross-validate")
    assert set(table["sections"]) == {"folds", "unseen_table", "unseen_soc"}
    assert table["sections"]["folds"]["rows"][-1]["n"] == 4


def test_a_fit_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels(tmp_path / "k_910b4.csv", *(("Relu", 1 << k, 3.0 + k / 10) for k in range(8, 14)))
    calls = "source,soc,l2,op,torch_us\n" + "".join(f'a,910b2,cold,"aten::mish(f32[{n}])",{n}\n' for n in (8, 9))
    (tmp_path / "calls.csv").write_text(calls)
    out = tmp_path / "out"
    out.mkdir()
    figures = facts(capsys, "fit", tmp_path, "--version", "2026.1", "--output", out)
    assert figures["folds"]["overall"]["n"] == 6
    rows, units = rows_of((out / "fitted.csv").read_text()), dict.fromkeys(Rates.__struct_fields__, "us")
    measured, other = (sections_of(("910b", soc), rows, units) for soc in ("910b4", "910b1"))
    assert measured["version"] == other["version"] == "2026.1"
    assert measured["families"]["Activation"]["samples"] == 6
    assert other["families"]["Activation"]["samples_elsewhere"] == 6
    assert other["families"]["Activation"]["source"] == "fitted to other SoCs"
    with (out / "measured_calls.csv").open() as file:
        assert [row["source"] for row in csv.DictReader(file)] == ["a", "a"]
