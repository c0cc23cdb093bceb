"""`opreplay op` through the console script and in process: rows, formats, what is told, and exit codes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.job.job import Job
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

MM = "aten::mm(bf16[64,32], bf16[32,n])"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(opreplay, ["op", *arguments], env={"COLUMNS": "140"})


def test_the_console_script_measures_and_predicts_over_sizes(tmp_path: Path) -> None:
    page, data, rows = (tmp_path / name for name in ("o.html", "o.json", "o.csv"))
    script = Path(sys.executable).with_name("opreplay")
    arguments = [
        MM,
        "--vary",
        "n=1,47,128",
        "--measure",
        "--set",
        "op_time=2ms",
        "--soc",
        "910b3",
        "--soc",
        "910c",
        "--format",
        "json",
    ]
    files = [word for path in (page, data, rows) for word in ("--output", str(path))]
    done = subprocess.run(
        [str(script), "op", *arguments, *files], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads(data.read_text()) == found
    assert [case["sizes"] for case in found["cases"]] == [{"n": 1}, {"n": 47}, {"n": 128}]
    for case in found["cases"]:
        assert case["op"] == "aten::mm"
        assert case["inputs"] == f"bf16[64,32] · bf16[32,{case['sizes']['n']}]"
        assert case["measured_us"] > 0
        times = case["measurement"]
        assert times["min_us"] <= case["measured_us"] <= times["max_us"]
        assert (times["ci_low_us"] is not None) == (times["samples"] >= 6)
        assert set(case["simulated_us"]) == {"910b3", "910c"}
        assert case["bound"] == case["simulated"]["910b3"]["bound"]
        assert case["reason"] is None
    text = page.read_text()
    assert text.count('"name":"GlyphRenderer"') == 6 + 3 + 4, "lines with points; marks and roofs"
    assert "Time over n" in text
    table = list(csv.DictReader(rows.read_text().splitlines()))
    assert [float(row["simulated_us_910b3"]) for row in table] == [c["simulated_us"]["910b3"] for c in found["cases"]]
    again = invoke(*[case["call"] for case in found["cases"]], "--no-measure", "--format", "json")
    assert [case["simulated_us"]["910b3"] for case in json.loads(again.stdout)["cases"]] == [
        case["simulated_us"]["910b3"] for case in found["cases"]
    ], "what is printed can be pasted"


def test_nothing_runs_without_measuring_and_the_second_time_is_the_same() -> None:
    first = invoke(MM, "--vary", "n=2^3..2^6", "--no-measure", "--format", "json")
    assert first.exit_code == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["device"] is None
    assert {case["measured_us"] for case in found["cases"]} == {None}
    assert invoke(MM, "--vary", "n=2^3..2^6", "--no-measure", "--format", "json").stdout == first.stdout
    assert (
        invoke(MM, "--vary", "n=2^3..2^6", "--no-measure", "--set", "no_cache=true", "--format", "json").stdout
        == first.stdout
    )


def test_sizes_may_follow_each_other_as_in_capture() -> None:
    call = ("aten::mm(f32[n,k], f32[k,8])", "--no-measure", "--format", "json")
    repeated = invoke(*call, "--vary", "n=1,4", "--vary", "k=1,8")
    assert len(json.loads(repeated.stdout)["cases"]) == 4
    for sizes in (("n=1,4", "k=1,8"), ("n=1,4 k=1,8",)):
        assert invoke(*call, "--vary", *sizes).stdout == repeated.stdout


def test_rows_say_what_their_numbers_rest_on() -> None:
    shown = invoke("aten::cosh(bf16[64,n])", "--vary", "n=64", "--no-measure", "--soc", "910b3", "--l2", "warm").stdout
    assert shown.startswith("1 call: 910b3 would take ")
    assert "a: 910b3 " in shown
    assert "caches (warm)" in shown


def test_calls_of_a_file_and_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "ops.txt"
    file.write_text("# two\naten::relu(f32[n])\naten::softmax(f32[4,n]{1,4}, -1, dtype=torch.float32)\n")
    done = invoke("aten::neg(f32[8])", "--file", str(file), "--vary", "n=16", "--no-measure", "--format", "csv")
    assert done.exit_code == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["op"] for row in rows] == ["aten::neg", "aten::relu", "aten::softmax"]
    assert rows[2]["inputs"] == "f32[4,16]*"
    assert [row["n"] for row in rows] == ["", "16", "16"]


def test_an_op_trace_is_a_file_of_calls(tmp_path: Path) -> None:
    file = tmp_path / "ops"
    file.write_text(
        "Operator: aten.relu.default\ncnt: 3, ((T([4, 8], bf16),), {})\nOperator: aten.no_op\ncnt: 1, ((), {})\n"
    )
    done = invoke("--from", str(file), "--no-measure", "--format", "csv")
    assert done.exit_code == 1
    assert "1 × aten::no_op" in done.stderr
    assert [row["op"] for row in csv.DictReader(done.stdout.splitlines())] == ["aten::relu"]


@pytest.mark.parametrize(
    ("flags", "seconds"), [((), 0.2), (("--quick",), 0.02), (("--quick", "--set", "op_time=1s"), 1.0)]
)
def test_a_first_look_takes_less_time(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], seconds: float) -> None:
    def cases_of(job: Job, *given: object, **others: object) -> None:
        raise UsageError(f"{job.settings.op_time_s} s each")

    monkeypatch.setattr("opreplay.replay.job.cases.cases_of", cases_of)
    assert f"{seconds} s each" in invoke("aten::neg(f32[8])", *flags).stderr


def test_shapes_that_do_not_fit_have_a_reason_and_no_time() -> None:
    done = invoke("aten::mm(f32[4,8], f32[n,3])", "--vary", "n=8,9", "--format", "json", "--set", "op_time=1ms")
    assert done.exit_code == 1
    good, bad = json.loads(done.stdout)["cases"]
    assert good["measured_us"] > 0
    assert (bad["measured_us"], bad["simulated_us"], bad["bound"]) == (None, {}, None)
    assert "8] X [9" in bad["reason"]


def test_a_call_that_fails_where_it_ran_keeps_its_prediction_and_says_why() -> None:
    calls = ("aten::linear(i64[4,8], f32[8,8])", "aten::max(c64[8])")
    done = invoke(*calls, "--format", "json", "--set", "op_time=1ms")
    assert done.exit_code == 1
    refused, lacking = json.loads(done.stdout)["cases"]
    assert "same dtype" in refused["reason"]
    assert any("another device may also refuse the call" in note for note in refused["notes"])
    assert "not implemented for" in lacking["reason"]
    assert any("does not run here" in note for note in lacking["notes"])
    alone = json.loads(invoke(*calls, "--no-measure", "--format", "json").stdout)["cases"]
    for case, unmeasured in zip((refused, lacking), alone, strict=True):
        assert case["simulated_us"] == unmeasured["simulated_us"]
        assert case["simulated_us"]["910b3"] > 0


def test_a_call_of_a_library_that_is_not_here_is_predicted_and_says_so() -> None:
    call = "npu::npu_apply_adam_w(f32[8,64], f32[8,64], f32[8,64], f32[8,64])"
    done = invoke(call, "--format", "json", "--set", "op_time=1ms")
    assert done.exit_code == 1, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    assert (case["measured_us"], case["reason"]) == (None, "library missing: torch_npu")
    assert case["notes"][0].startswith("does not run here: library missing: torch_npu")
    done = invoke(call, "--no-measure", "--format", "json")
    assert done.exit_code == 0, done.stderr
    (alone,) = json.loads(done.stdout)["cases"]
    assert alone["simulated_us"] == case["simulated_us"]
    assert invoke(call, "--no-measure").stdout.startswith("1 call: 910b3 would take ")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "no call is given"),
        (("aten::mm(f32[2,2]",), "expected "),
        (("ops.py:rope(f32[2,2])",), "@register_executor('mylib::rope')"),
        (("rope(f32[2,2])",), "opreplay check FILE.py:FUNCTION"),
        (("aten::mm(f32[2,2], f32[2,n])",), "--vary n="),
        (("aten::relu(f32[2])", "--vary", "n=1"), "no call has a size"),
        (("aten::relu(f32[2])", "--soc", "911"), "911"),
        (("aten::relu(f32[2])", "--output", "o.txt"), ".csv"),
        (("aten::relu(f32[2])", "--file", "none.txt"), "none.txt"),
    ],
)
def test_what_makes_no_sense_is_exit_2_with_a_hint(arguments: tuple[str, ...], why: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert "hint:" in done.stderr


def test_ops_of_plugins(tmp_path: Path) -> None:
    plugin = tmp_path / "ops.py"
    plugin.write_text(
        "from opreplay import register_executor\n\n\n"
        "@register_executor('op_cmd_test::gate')\ndef gate(inputs, attrs):\n    return [inputs[0] * attrs['slope']]\n"
    )
    done = invoke(
        "op_cmd_test::gate(f32[8], slope=2.0)", "--plugin", str(plugin), "--set", "op_time=1ms", "--format", "json"
    )
    assert done.exit_code == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    assert case["resolved_by"] == "executor"
    assert any("run by the user's executor gate" in one["what"] for one in case["assumptions"])


def test_a_prediction_without_a_measurement_shows_what_it_assumes(tmp_path: Path) -> None:
    """What the resolution and the cost rule assume."""
    plugin = tmp_path / "ops.py"
    plugin.write_text(
        "from opreplay import register_executor\n\n\n"
        "@register_executor('op_cmd_test::scaled')\ndef scaled(inputs, attrs):\n    return [inputs[0] * 2.0]\n"
    )
    calls = ("op_cmd_test::scaled(f32[8])", "aten::masked_select(f32[4,4], bool[4,4])")
    done = invoke(*calls, "--plugin", str(plugin), "--no-measure")
    assert done.exit_code == 0, done.stderr
    assert "run by the user's executor scaled" in done.stdout
    assert "not recorded: half of the elements assumed" in done.stdout
    cases = json.loads(invoke(*calls, "--plugin", str(plugin), "--no-measure", "--format", "json").stdout)["cases"]
    assert any("half of the elements assumed" in note for note in cases[1]["notes"])


def test_a_call_that_no_memory_holds_says_so() -> None:
    done = invoke(
        "aten::mm(bf16[n,400000], bf16[400000,8])", "--vary", "n=8,400000", "--no-measure", "--format", "json"
    )
    small, large = json.loads(done.stdout)["cases"]
    assert not [note for note in small["notes"] if "does not fit" in note]
    assert "does not fit into the memory of 910b3" in large["notes"]


def test_reports_hold_the_call_to_paste(tmp_path: Path) -> None:
    """From a plan's JSON to `op`, with the same prediction."""
    trace = str(sample_path("transformer_infer"))
    done = CliRunner().invoke(opreplay, ["plan", trace, "--top", "4", "--format", "json"])
    calls = {one["call"]: one["name"] for one in json.loads(done.stdout)["unique_ops"]}
    again = json.loads(invoke(*calls, "--no-measure", "--format", "json").stdout)["cases"]
    assert [case["op"] for case in again] == list(calls.values())
    assert [case["call"] for case in again] == list(calls)


def test_a_size_that_a_tile_program_does_not_fit_is_a_row_with_its_reason(tmp_path: Path) -> None:
    plugin = tmp_path / "tiles.py"
    plugin.write_text(
        "from opreplay import tile\n"
        "@tile.kernel('tile_test::double', reference=lambda x: x * 2)\n"
        "def double(x, y: tile.Out):\n"
        "    for r in tile.blocks(x.shape[0], 8):\n"
        "        tile.store(y[r], tile.load(x[r]) * 2.0)\n"
    )
    common = ("--plugin", str(plugin), "--format", "json", "--soc", "910b3")
    done = invoke("tile_test::double(f32[8,n])", "--vary", "n=64,65536", *common)
    assert done.exit_code == 1, done.stderr
    fits, too_wide = json.loads(done.stdout)["cases"]
    assert fits["simulated"]
    assert not too_wide["simulated"]
    assert any("UB:" in note and "no prediction" in note for note in too_wide["notes"])
    measured = invoke("tile_test::double(f32[8,64])", "--set", "op_time=1ms", "--measure", *common)
    (case,) = json.loads(measured.stdout)["cases"]
    assert any("on the CPU by the tile program double" in note for note in case["notes"])


def test_a_tile_program_that_leaves_rows_unwritten_makes_no_prediction(tmp_path: Path) -> None:
    plugin = tmp_path / "half.py"
    plugin.write_text(
        "from opreplay import tile\n"
        "@tile.kernel('aten::neg')\n"
        "def neg(x, y: tile.Out):\n"
        "    for r in tile.blocks(x.shape[0] // 2 + 1, 8):\n"
        "        tile.store(y[r], tile.load(x[r]) * -1.0)\n"
    )
    done = invoke("aten::neg(f32[n,64])", "--vary", "n=1,64", "--no-measure", "--soc", "910b3", "--plugin", str(plugin))
    assert done.exit_code == 1
    text = " ".join(done.stdout.split())
    assert "half.py:5: y: 1,984 of 4,096 elements are never written (limit unwritten)" in text
    assert "910b3 would take" in text


RULE = """
from opreplay.replay.ascend.lowering import lowers
from opreplay.replay.ops.op_view import kernel

@lowers("aten::neg", override=True)
def negated(op):
    x = op.dense("self", at=0)
    return [kernel("Axpy", [x, x], [x]), kernel("NobodysKernel", [x], [x])]
"""


def test_kernels_of_a_users_rule_are_said_to_be_his_and_what_they_are_taken_for(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULE)
    args = ("aten::neg(f32[64,64])", "--no-measure", "--soc", "910b3", "--l2", "sequence", "--plugin", tmp_path)
    done = invoke(*map(str, args))
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "by your rule negated (rules.py:5): Axpy costed as a kernel of family " in text
    assert "NobodysKernel costed by its bytes, because that kernel name is unknown" in text
    assert "caches (sequence)" in text


NAMED = """
import torch
from opreplay import register_executor

@torch.library.custom_op("near_test::scale", mutates_args=())
def scale(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * eps

@register_executor("near_test::gate")
def gate(inputs, attrs):
    return [inputs[0]]
"""


def test_a_name_that_is_nearly_one_of_a_plugin_or_of_torch_is_answered_with_it(tmp_path: Path) -> None:
    plugin = tmp_path / "near.py"
    plugin.write_text(NAMED)
    for call, near in (
        ("near_test::scal(f32[4])", "near_test::scale"),
        ("near_test::gates(f32[4])", "near_test::gate"),
        ("aten::lineer(f32[4])", "aten::linear"),
    ):
        done = invoke(call, "--plugin", str(plugin), "--no-measure")
        assert done.exit_code == 2
        assert f"hint: Did you mean {near}" in done.stderr
        assert "on no allow-list" not in done.stderr
    checked = CliRunner().invoke(opreplay, ["check", "near_test::scal", "--plugin", str(plugin)])
    assert "hint: Did you mean near_test::scale" in checked.stderr
    assert "is on no allow-list" in " ".join(invoke("nobodys::scale(f32[4])", "--no-measure").stdout.split())


@pytest.mark.parametrize("call", ["aten::layer_norm(f32[4,8])", "aten::native_layer_norm(f32[4], [4])"])
def test_defaults_in_schemas_have_the_digits_that_somebody_wrote(call: str) -> None:
    (case,) = json.loads(invoke(call, "--no-measure", "--format", "json").stdout)["cases"]
    assert "accepts these arguments; its schema: aten::" in case["reason"]
    assert "00001e-05" not in case["reason"]
    assert ("eps=1e-05" in case["reason"]) == ("native" not in call)


def test_lines_of_a_file_that_are_no_calls_are_left_out(tmp_path: Path) -> None:
    calls = tmp_path / "calls.txt"
    calls.write_text("aten::mm(f32[64,32], f32[32,8])\naten::no_such_op(f32[3])\naten::relu(f32[3\n")
    done = invoke("--from", str(calls), "--no-measure", "--soc", "910b3", "--format", "json")
    assert done.exit_code == 1
    assert [case["call"] for case in json.loads(done.stdout)["cases"]] == ["aten::mm(f32[64,32], f32[32,8])"]
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "aten::no_such_op(f32[3])",
        "aten::relu(f32[3",
    ]
    calls.write_text("aten::no_such_op(f32[3])\n")
    assert invoke("--from", str(calls), "--no-measure").exit_code == 2
