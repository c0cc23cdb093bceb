"""`opreplay check` through the console script: verdicts, formats, exit codes, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
SHIFT = ("scale::shift", "--plugin", str(EXAMPLES / "scale.py"), "--against", f"{EXAMPLES / 'scale.py'}:reference")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]
VERDICTS = {"pass", "fail", "missing", "refused", "not applicable"}


def invoke(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(opreplay, ["check", *arguments], env={"COLUMNS": "140"})
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done


def by_point(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["point"]: row for row in found["points"]}


def test_the_console_script_goes_through_every_point(tmp_path: Path) -> None:
    page = tmp_path / "check.html"
    script = Path(sys.executable).with_name("opreplay")
    arguments = ["check", *SHIFT, "--shapes", "96x64", "--format", "json", "-o", str(page), "--set", "speed_time=2"]
    arguments += [
        "--soc",
        "910b3",
        "--set",
        "threads=1",
        "--set",
        "seed=3",
        "--device",
        "cpu",
        "--set",
        "case_limit=40s",
        "--force",
    ]
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["op"] == "scale::shift"
    points = by_point(found)
    assert len(points) == 17
    assert {row["verdict"] for row in points.values()} <= VERDICTS
    for name in ("schema", "shape inference", "correctness", "gradient", "determinism", "memory", "bad input", "vmap"):
        assert points[name]["verdict"] == "pass", points[name]
    assert len(points["correctness"]["cases"]) > 15
    assert all(case["case"] and case["verdict"] in VERDICTS for row in points.values() for case in row["cases"])
    assert points["ONNX export"]["verdict"] == "missing"
    assert points["asynchrony"]["verdict"] == "not applicable"
    speed = found["speed"]
    assert 0 < speed["low"] <= speed["ratio"] <= speed["high"]
    large = found["speed_large"]
    assert large["case"].startswith("huge: ")
    assert large["op_us"] > speed["op_us"]
    assert found["simulated_reference"]["910b3"]["time_us"] > 0
    assert "scale::shift" in page.read_text()


def test_a_required_point_decides_on_the_exit_code(tmp_path: Path) -> None:
    few = ("--set", "points=schema, autocast", "--shapes", "8x6")
    assert "missing" in invoke(*SHIFT, *few).stdout
    done = invoke(*SHIFT, *few, "--require", "autocast", code=1)
    assert "autocast: missing" in done.stderr
    assert invoke(*SHIFT, *few, "--require", "none", "--format", "markdown").stdout.startswith("### opreplay check")


def test_recorded_calls_are_tried(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::silu",
        "pid": 1,
        "tid": 1,
        "ts": 1.0,
        "dur": 5.0,
        "args": {"Input Dims": [[6, 10]], "Input type": ["float"], "Input Strides": [[1, 6]], "Concrete Inputs": [""]},
    }
    trace.write_text(json.dumps({"traceEvents": [event], "schemaVersion": 1}))
    done = invoke(
        "aten::silu",
        "--trace",
        str(trace),
        "--set",
        "points=correctness",
        "--format",
        "json",
        "--reference",
        "torch.nn.functional.silu",
    )
    found = json.loads(done.stdout)
    assert found["cases"] == ["recorded: aten::silu(f32[6,10]{1,6})"]
    assert by_point(found)["correctness"]["verdict"] == "pass"


def test_recorded_calls_of_an_op_of_a_plugin_are_tried_from_a_trace_and_from_a_plan(tmp_path: Path) -> None:
    plugin = tmp_path / "ops.py"
    plugin.write_text(
        "import torch\n"
        "library = torch.library.Library('recorded_here', 'DEF')\n"
        "library.define('twice(Tensor x) -> Tensor')\n"
        "library.impl('twice', lambda x: x * 2, 'CompositeExplicitAutograd')\n"
    )
    args = {"Input Dims": [[6, 10]], "Input type": ["float"], "Input Strides": [[10, 1]], "Concrete Inputs": [""]}
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0, "args": args}
    trace, plan = tmp_path / "t.json", tmp_path / "p.plan.json"
    trace.write_text(json.dumps({"traceEvents": [event | {"name": "recorded_here::twice"}], "schemaVersion": 1}))
    made = CliRunner().invoke(opreplay, ["plan", str(trace), "--plugin", str(plugin), "--output", str(plan)])
    assert made.exit_code == 0, made.stderr
    few = ("--plugin", str(plugin), "--set", "points=schema", "--format", "json")
    for source in (trace, plan):
        found = json.loads(invoke("recorded_here::twice", "--trace", str(source), *few).stdout)
        assert found["cases"] == ["recorded: recorded_here::twice(f32[6,10])"]
    assert "it contains the ops selected by owner" in invoke("aten::mm", "--trace", str(plan), code=2).stderr


def test_a_backward_op_is_held_against_the_gradients_of_its_forward(tmp_path: Path) -> None:
    few = ("--set", "points=correctness", "--format", "json")
    arguments = ("aten::silu_backward", "--shapes", "f32[6,10], f32[6,10]", *few)
    found = json.loads(invoke(*arguments, "--against", "gradient:aten::silu").stdout)
    assert by_point(found)["correctness"]["verdict"] == "pass"
    assert "autograd" in found["against"]
    wrong = json.loads(invoke(*arguments, "--against", "gradient:aten::gelu", code=1).stdout)
    assert by_point(wrong)["correctness"]["cases"][0]["verdict"] == "fail"


def test_initializers_of_the_user_make_the_values(tmp_path: Path) -> None:
    ours = tmp_path / "ours.py"
    ours.write_text(
        "from opreplay import CustomInit, register_initializer\n"
        "@register_initializer\n"
        "class Zeros(CustomInit):\n"
        "    name = 'zeros_for_log'\n"
        "    op_patterns = ('aten::log',)\n"
        "    priority = 9\n"
        "    def initialize(self, context):\n"
        "        context.need('self').zero_()\n"
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import torch\ndef log(x):\n    return torch.full_like(x, -float('inf'))\n")
    arguments = ("aten::log", "--against", f"{wrong}:log", "--shapes", "f32[4,6]", "--set", "points=correctness")

    def given(*more: str) -> str:
        (point,) = json.loads(invoke(*arguments, "--format", "json", *more, code=1).stdout)["points"]
        return next(case["verdict"] for case in point["cases"] if case["case"].startswith("given: "))

    assert given() == "fail"
    assert given("--plugin", str(ours)) == "pass"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere::op",), "no loaded library or plugin registers it"),
        (("no op",), "is not the name of an op"),
        (("aten::mm", "--set", "points=beauty"), "is not a point of a check"),
        (("aten::mm", "--shapes", "f32[4,5], f32[5,6], f32[7], f32[8]"), "no overload of aten::mm accepts"),
        (("aten::mm", "--against", "everything"), "is not a reference"),
        (("aten::mm", "--against", "torch.no_such"), "torch has no"),
        (("aten::mm", "--against", "missing.py:f"), "does not exist"),
        (("aten::mm", "--against", "stand-in"), "has no reference implementation"),
        (("missing.py:f",), "does not exist"),
    ],
)
def test_what_cannot_be_checked_is_said(arguments: tuple[str, ...], said: str) -> None:
    done = invoke(*arguments, code=2)
    assert said in done.stderr


def test_indices_without_an_initializer_are_said_to_be_random(tmp_path: Path) -> None:
    plugin = tmp_path / "picked.py"
    plugin.write_text(
        "import torch\n"
        "lib = torch.library.Library('check_cmd_test', 'FRAGMENT')\n"
        "lib.define('pick(Tensor x, Tensor block_table) -> Tensor')\n"
        "lib.impl('pick', lambda x, block_table: x[block_table % x.shape[0]], 'CompositeExplicitAutograd')\n"
    )
    common = ("--plugin", str(plugin), "--set", "points=determinism", "--format", "json")
    found = json.loads(invoke("check_cmd_test::pick", "--shapes", "f32[16,8], i32[4]", *common).stdout)
    assert [note["argument"] for note in found["assumptions"]] == ["block_table"]
    found = json.loads(invoke("aten::gelu", "--shapes", "f32[16,8]", *common).stdout)
    assert not found["assumptions"]


def test_stand_ins_are_compared_with_themselves_in_float64() -> None:
    found = json.loads(invoke("_C::gelu_quick", "--stand-ins", "--format", "json").stdout)
    (row,) = found["ops"]
    assert row["against"] == "itself in float64 and on contiguous copies"
    assert not row["failed"]
    assert row["cases"] > 30
    assert "1 against itself in float64 and on contiguous copies, 0 of them fail" in found["summary"]


def test_a_library_has_to_be_there() -> None:
    assert "--set library needs --stand-ins" in invoke("_C::gelu_quick", "--set", "library=vllm", code=2).stderr
    assert "vllm is not installed" in invoke("_C::gelu_quick", "--stand-ins", "--set", "library=vllm", code=4).stderr
    assert "no reference implementation matches" in invoke("nothing*", "--stand-ins", code=2).stderr
    assert "no op is given" in invoke(code=2).stderr


def test_a_point_that_was_asked_for_and_fails_decides(tmp_path: Path) -> None:
    plugin = tmp_path / "halved.py"
    plugin.write_text(
        "import torch\n\n\n"
        "@torch.library.custom_op('halved::double', mutates_args=())\n"
        "def double(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n\n\n"
        "double.register_fake(torch.empty_like)\n"
        "double.register_autograd(lambda ctx, grad: grad)\n\n\n"
        "def reference(x):\n    return x * 2\n"
    )
    own = ("halved::double", "--plugin", str(plugin), "--against", f"{plugin}:reference", "--shapes", "4x6")
    invoke(*own, "--set", "points=gradient", code=1)
    invoke(*own, "--set", "points=gradient", "--require", "none")


GATED = """
import torch
from torch import Tensor


@torch.library.custom_op("given::gate", mutates_args=())
def gate(x: Tensor, y: Tensor) -> Tensor:
    if x.shape[-1] == 6:
        raise ValueError("six columns are not taken")
    return x * torch.sigmoid(y.reshape(x.shape))


gate.register_fake(lambda x, y: torch.empty_like(x))


def reference(x, y):
    return x * torch.sigmoid(y)
"""


def test_a_given_call_that_is_refused_is_never_a_pass(tmp_path: Path) -> None:
    plugin = tmp_path / "gate.py"
    plugin.write_text(GATED)
    own = ("given::gate", "--plugin", str(plugin), "--against", f"{plugin}:reference", "--shapes")
    both = invoke(*own, "4x8, 4x9", "--set", "points=correctness", code=2)
    assert "rejects the given call given::gate(f32[4,8], f32[4,9]), and so does the reference" in both.stderr
    assert "--shapes" in both.stderr
    theirs = invoke(*own, "4x8, 8x4", "--set", "points=correctness", code=2)
    assert "gate.py:reference rejects the given call" in theirs.stderr
    for points in ("correctness", "CPU fallback"):
        mine = invoke(*own, "4x6", "--set", f"points={points}", "--format", "json", code=1)
        (point,) = json.loads(mine.stdout)["points"]
        assert point["verdict"] == "fail"
        assert "refuses the given call: ValueError: six columns" in point["cases"][0]["detail"]


ENDING = """
import ctypes, pathlib, time, torch
from torch import Tensor


@torch.library.custom_op("ending::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    if x.shape == (4, 8):
        ctypes.string_at(0)
    if x.shape == (5, 7):
        while True:
            time.sleep(1)
    return x.clone()


op.register_fake(torch.empty_like)
"""


def test_a_given_call_that_ends_the_process_is_a_failed_case(tmp_path: Path) -> None:
    plugin = tmp_path / "ending.py"
    plugin.write_text(ENDING)
    own = (
        "ending::op",
        "--plugin",
        str(plugin),
        "--set",
        "points=CPU fallback",
        "--format",
        "json",
        "--set",
        "case_limit=3",
    )
    found = json.loads(invoke(*own, "--shapes", "4x8", "--shapes", "5x7", "--shapes", "3x3", code=1).stdout)
    (point,) = found["points"]
    verdicts = {case["case"]: (case["verdict"], case["detail"]) for case in point["cases"]}
    assert point["verdict"] == "fail"
    assert verdicts["given: ending::op(f32[4,8])"][0] == "fail"
    assert verdicts["given: ending::op(f32[4,8])"][1].startswith("crashes: SIGSEGV")
    assert verdicts["given: ending::op(f32[5,7])"] == ("fail", "hangs: no result after 18 s")
    assert found["cases"] == ["given: ending::op(f32[3,3])"]
    none_left = json.loads(invoke(*own, "--set", "points=schema, CPU fallback", "--shapes", "4x8", code=1).stdout)
    assert [one["verdict"] for one in none_left["points"]] == ["fail", "not reached"]


def test_an_interrupted_check_tells_what_was_done(tmp_path: Path) -> None:
    plugin = tmp_path / "waiting.py"
    plugin.write_text(ENDING.replace("if x.shape == (5, 7):", "if x.dtype == torch.int64:\n        HERE.touch()"))
    here = tmp_path / "waits"
    plugin.write_text(plugin.read_text().replace("HERE", f"pathlib.Path({str(here)!r})"))
    script = Path(sys.executable).with_name("opreplay")
    arguments = [
        "check",
        "ending::op",
        "--plugin",
        plugin,
        "--shapes",
        "3x3",
        "--set",
        "points=CPU fallback, dtypes, vmap",
    ]
    command = [script, *arguments, "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        deadline = time.monotonic() + 120
        while not here.exists() and started.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        started.terminate()
        out, errors = started.communicate(timeout=60)
    assert started.returncode == 130, errors
    found = json.loads(out)
    assert found["interrupted"] is True
    points = by_point(found)
    assert points["dtypes"]["verdict"] == "not reached"
    assert {case["verdict"] for case in points["dtypes"]["cases"]} >= {"pass", "not reached"}
    assert points["vmap"]["verdict"] == "not reached"


def test_an_op_that_computes_in_float32_is_told_why_gradcheck_fails(tmp_path: Path) -> None:
    plugin = tmp_path / "narrow.py"
    plugin.write_text(
        "import torch\n\n\n"
        "@torch.library.custom_op('narrow::sin', mutates_args=())\n"
        "def sin(x: torch.Tensor) -> torch.Tensor:\n    return x.float().sin().to(x.dtype)\n\n\n"
        "sin.register_fake(torch.empty_like)\n"
        "sin.register_autograd(\n"
        "    lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),\n"
        "    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),\n"
        ")\n"
    )
    own = ("narrow::sin", "--plugin", str(plugin), "--shapes", "3x4", "--set", "points=gradient", "--format", "json")
    (point,) = json.loads(invoke(*own, "--require", "none").stdout)["points"]
    (case,) = [one for one in point["cases"] if one["case"].startswith("gradcheck")]
    assert case["verdict"] == "fail"
    assert "likely cause: the op computes in float32" in case["detail"]
