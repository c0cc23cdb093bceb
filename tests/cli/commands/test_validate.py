"""`opreplay validate`."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import KernelCall, TensorSpec, load_device
from opreplay.replay.ascend.cost.predict import predict_time_us

HEADER = "Type,Accelerator Core,Duration(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types"


def row(kind: str, n: int, us: float | str, core: str = "AI_VECTOR_CORE", tail: str = "") -> str:
    return f'{kind},{core},{us},"""{n}""",FLOAT,"""{n}""",FLOAT{tail}'


def table(tmp_path: Path, *rows: str, extra: str = "", name: str = "kernel_details.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join((HEADER + extra, *rows)) + "\n")
    return path


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["validate", *map(str, args)], env={"COLUMNS": "100"})


def facts(*args: object) -> dict[str, Any]:
    result = invoke(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def predicted(kind: str, n: int) -> float:
    spec = TensorSpec(shape=(n,), dtype="float32")
    return predict_time_us(KernelCall(type=kind, inputs=(spec,), outputs=(spec,)), load_device("910b3"))


def test_figures_are_those_of_unique_kernels_and_of_all_rows(tmp_path: Path) -> None:
    # Means have no order, hence no state of the cache, and predictions are the same for each row.
    times = {("Relu", 1 << 20): (20.0, 30.0, 70.0), ("Exp", 1 << 12): (4.0,)}
    rows = [row(kind, n, us, tail=",2") for (kind, n), all_us in times.items() for us in all_us]
    found = facts(table(tmp_path, *rows, row("Relu", 64, "", tail=",2"), extra=",Count"), "--soc", "910b3")
    apes = [abs(predicted(*key) - median(us)) / median(us) for key, us in times.items()]
    overall = found["overall"]
    assert overall["n"] == 2
    assert overall["mape"] == pytest.approx(sum(apes) / 2)
    assert overall["median_ape"] == pytest.approx(sum(apes) / 2)
    pairs = [(predicted(*key), us) for key, all_us in times.items() for us in all_us]
    total = sum(us for _, us in pairs)
    assert overall["wape"] == pytest.approx(sum(abs(p - us) for p, us in pairs) / total)
    assert overall["total_error"] == pytest.approx(sum(p - us for p, us in pairs) / total)
    assert found["families"]["Relu"]["n"] == 1
    assert set(found["families"]) == {"Relu", "Exp"}
    assert {"n", "mape", "median_ape", "p90_ape", "wape", "total_error"} <= set(found["families"]["Exp"])
    assert found["rows"] == {"read": 5, "measured": 4, "dropped": {}}


def test_only_held_out_rows_and_no_communication(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        row("Relu", 4096, 3, tail=",1"),
        row("Exp", 4096, 4, tail=",0"),
        row("hcom_allReduce_", 4096, 500, core="COMMUNICATION", tail=",1"),
        extra=",HeldOut",
    )
    assert set(facts(path, "--soc", "910b3")["families"]) == {"Relu", "Exp", "hcom_allReduce_"}
    assert set(facts(path, "--soc", "910b3", "--only-held-out")["families"]) == {"Relu", "hcom_allReduce_"}
    found = facts(path, "--soc", "910b3", "--only-held-out", "--exclude-communication")
    assert set(found["families"]) == {"Relu"}
    assert found["overall"]["n"] == 1


def test_op_summary_with_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "op_summary.csv"
    path.write_text(
        "\ufeffModel ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),Block Num,"
        "Input Shapes,Input Data Types,Input Formats,cube_utilization(%)\n"
        '1,a,Relu,dynamic,AI_VECTOR_CORE,"17,5",3.0\t,8,"""64,64""",FLOAT16,ND,0\n'
    )
    assert facts(path, "--soc", "Ascend910B3")["overall"]["n"] == 1


def test_worst_kernels_are_listed(tmp_path: Path) -> None:
    path = table(tmp_path, row("Relu", 1 << 20, 5000), row("Exp", 4096, 4))
    assert [one["type"] for one in facts(path, "--soc", "910b3", "--worst", 1)["worst"]] == ["Relu"]
    text = invoke(path, "--soc", "910b3", "--worst", "1").stdout
    assert "2 unique kernels in 2 measured of 2 rows" in text
    assert "5.00 ms" in text
    assert "worst kernels" not in invoke(path, "--soc", "910b3", "--worst", "0").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "it has no column 'Type'"),
        ("Type,Duration(us)\nRelu,3\n", "'Input Shapes'"),
        (f"{HEADER}\n", "none of the 0 rows"),
        (f"{HEADER}\n{row('Relu', 8, '')}\n", "none of the 1 rows has a duration"),
        ("\x00\x01\x02", "kernel table"),
        ('{"traceEvents": []}', "kernel table"),
    ],
)
def test_what_is_no_kernel_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    result = invoke(path, "--soc", "910b3")
    assert result.exit_code == 3, result.stderr
    assert message in result.stderr


def test_usage_errors(tmp_path: Path) -> None:
    path = table(tmp_path, row("Relu", 8, 3))
    assert "HeldOut" in invoke(path, "--soc", "910b3", "--only-held-out").stderr
    assert "the number of --soc options (2)" in invoke(path, "--soc", "910b3", "--soc", "910b4").stderr
    assert invoke(path).exit_code == 2


@pytest.mark.slow
def test_needs_neither_torch_nor_pandas(tmp_path: Path) -> None:
    path = table(tmp_path, row("Relu", 8, 3))
    code = (
        "import sys; from opreplay.cli.main import opreplay; "
        f"opreplay(['validate', {str(path)!r}, '--soc', '910b3'], standalone_mode=False); "
        "assert not {'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_public_measurements(shared_ascend: Path) -> None:
    found = facts(shared_ascend / "910b4_qwen_train_rank0.csv", "--soc", "910b4", "--exclude-communication")
    assert found["overall"]["median_ape"] < 0.12
    assert found["overall"]["wape"] < 0.15


def test_kernels_that_the_device_was_fitted_to_are_counted(tmp_path: Path) -> None:
    from opreplay.replay.ascend.cost.nearby import sizes_at

    family = load_device("910b4").families["Cast"]
    known = family.nearby["float32 ND"][0]
    rows, length, _ = sizes_at(known[:3], family.form)
    seen = f'Cast,AI_VECTOR_CORE,9,"""{rows},{length}""",FLOAT,"""{rows},{length}""",DT_BF16'
    other = f'Cast,AI_VECTOR_CORE,9,"""{rows + 3},{length}""",FLOAT,"""{rows + 3},{length}""",DT_BF16'
    path = table(tmp_path, seen, other)
    assert facts(path, "--soc", "910b4")["fitted_to"] == 1
    assert "fitted to 1 of these kernels" in " ".join(invoke(path, "--soc", "910b4").stdout.split())
    assert facts(path, "--soc", "910b3")["fitted_to"] == 1, "of its generation"
    assert facts(path, "--soc", "950pr")["fitted_to"] == 0
    assert "fitted to" not in invoke(path, "--soc", "950pr").stdout


def test_a_compressed_table_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv.gz"
    path.write_bytes(gzip.compress(HEADER.encode()))
    result = invoke(path, "--soc", "910b3")
    assert result.exit_code == 3
    assert "is compressed" in result.stderr
    assert "gunzip" in result.stderr


def test_the_state_of_l2_of_a_kernel_table_is_what_the_order_tells_or_what_is_asked_for(tmp_path: Path) -> None:
    n, state = 4 << 20, TensorSpec(shape=(4 << 20,), dtype="float32")
    kernel, device = KernelCall(type="Relu", inputs=(state,), outputs=(state,)), load_device("910b2")
    path = table(tmp_path, row("Relu", n, 30.0), row("Relu", n, 30.0))

    def times(*options: str) -> float:
        (found,) = facts(path, "--soc", "910b2", *options)["worst"]
        return found["predicted_us"]

    cold, warm = times("--l2", "cold"), times("--l2", "warm")
    assert warm < cold
    assert times() == times("--l2", "sequence") not in (cold, warm)
    assert warm == pytest.approx(predict_time_us(kernel, device, state="warm"))
    # What a kernel writes stays in L2 also where nothing that it reads is there, as of a call by itself.
    assert (
        predict_time_us(kernel, device, 0.0, state="cold") > cold > predict_time_us(kernel, device, 1.0, state="cold")
    )
