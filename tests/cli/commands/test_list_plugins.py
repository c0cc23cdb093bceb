"""`opreplay list plugins`, and --plugin on the commands that make or run plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay

pytestmark = pytest.mark.usefixtures("forked_children")

CODE = """
from opreplay.initializers.base import CustomInit
from opreplay.initializers.extensions import register_initializer
from opreplay.replay import Conversion, register_conversion, register_executor
from opreplay.replay.ascend.custom import register_op_estimator

@register_conversion("mylib::act")
def act(call):
    return Conversion(op="aten::relu", args=call.args, note="same")

@register_executor("mylib::run", override=True)
def run(x):
    return x + 1

@register_initializer
class Mine(CustomInit):
    name = "mine"
    op_patterns = ("mylib::run",)
    priority = 3

@register_op_estimator("mylib::run", "910b3")
def estimate(op_invoke_info, device):
    return 1e-6
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my_ops.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    args = {"Input Dims": [[4, 4]], "Input type": ["float"], "Input Strides": [[4, 1]], "Concrete Inputs": [""]}
    event = {"ph": "X", "cat": "cpu_op", "name": "mylib::act", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": args}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    return path


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [str(arg) for arg in args], env={"COLUMNS": "160"})


def test_everything_registered_is_listed_with_its_origin(plugin: Path) -> None:
    result = invoke("list", "plugins", "--plugin", plugin, "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = {(one["kind"], one["name"]): one for one in json.loads(result.stdout)}
    assert set(found) == {
        ("conversion", "act"),
        ("executor", "run"),
        ("initializer", "mine"),
        ("estimator", "estimate"),
    }
    assert {one["source"] for one in found.values()} == {f"--plugin {plugin}"}
    assert found["conversion", "act"]["place"].endswith("my_ops.py:7")
    line = 1 + CODE.splitlines().index("@register_initializer")
    assert found["initializer", "mine"]["place"] == f"{plugin}:{line}"
    assert [found[key]["note"] for key in sorted(found)] == [
        "",
        found["estimator", "estimate"]["note"],
        "override",
        "priority 3",
    ]
    text = invoke("list", "plugins", "--plugin", plugin).stdout
    assert "run (override)" in text
    assert "mylib::act" in text


def test_without_plugins_the_list_says_how_to_load_one() -> None:
    assert "--plugin FILE" in invoke("list", "plugins").stdout
    assert json.loads(invoke("list", "plugins", "--format", "json").stdout) == []


def test_a_plugin_that_fails_is_a_usage_error_with_file_and_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\n1 / 0\n")
    result = invoke("list", "plugins", "--plugin", broken)
    assert result.exit_code == 2
    assert f"--plugin {broken} failed: {broken}:2: ZeroDivisionError" in result.stderr
    assert "Give a .py file" not in result.stderr
    assert "Give an existing .py file" in invoke("list", "plugins", "--plugin", tmp_path / "none.py").stderr
    broken.write_text("import nosuchthing.inner\n")
    assert "Install nosuchthing: Python cannot find it" in invoke("list", "plugins", "--plugin", broken).stderr
    assert invoke("list", "plugins", "--plugin", "no.such.module").exit_code == 2
    broken.write_text("import sys\nsys.exit(3)\n")
    result = invoke("list", "plugins", "--plugin", broken)
    assert result.exit_code == 2
    assert f"--plugin {broken} failed: {broken}:2: SystemExit: 3" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "simulate", "run"])
def test_commands_use_plugins_and_say_so(command: str, plugin: Path, trace: Path, tmp_path: Path) -> None:
    more = {"run": ["--set", "op_time=1ms"], "plan": ["--output", tmp_path / "plan.json"]}.get(command, [])
    result = invoke(command, trace, "--plugin", plugin, *more)
    assert result.exit_code == 0, result.stderr
    assert f"--plugin {plugin}: 1 conversion, 1 executor, 1 initializer, 1 estimator" in result.stderr
    if command == "run":
        assert "replayed 1 of 1 op " in result.stdout
    if command == "plan":
        (op,) = json.loads((tmp_path / "plan.json").read_text())["ops"]
        assert (op["name"], op["via"]) == ("mylib::act", "aten::relu")


def test_a_module_beside_a_plugin_is_found_as_the_hint_says(tmp_path: Path) -> None:
    (tmp_path / "beside_ops.py").write_text("VALUE = 1\n")
    plugin = tmp_path / "mine.py"
    plugin.write_text("import beside_ops\n")
    done = CliRunner().invoke(opreplay, ["list", "plugins", "--plugin", str(plugin)])
    assert done.exit_code == 2
    assert f"beside_ops is next to mine.py, but not on Python's path: set PYTHONPATH={tmp_path}" in done.stderr
    plugin.write_text("import nobodys_ops\n")
    done = CliRunner().invoke(opreplay, ["list", "plugins", "--plugin", str(plugin)])
    assert "PYTHONPATH" not in done.stderr


def test_built_in_lists_what_is_known_of_each_op() -> None:
    ops = {op["op"]: op for op in json.loads(invoke("list", "ops", "--format", "json").stdout)}
    paged, prefetch = ops["_C::paged_attention_v1"], ops["npu::npu_prefetch"]
    assert (paged["folder"], paged["initializer"], paged["cost"], paged["uncosted"]) == (
        "attention",
        "paged_attention",
        True,
        None,
    )
    assert not prefetch["cost"]
    assert prefetch["uncosted"]
    assert all(op["cost"] or op["uncosted"] for op in ops.values())
    totals = [line.split()[-2:] for line in invoke("list", "ops").stdout.splitlines()]
    numbers = [[int(word) for word in words] for words in totals if len(words) == 2 and all(map(str.isdigit, words))]
    assert sum(ops_of_family for ops_of_family, _ in numbers) == len(ops)


INITIALIZER = """
from opreplay.initializers.base import CustomInit
from opreplay.initializers.extensions import register_initializer

@register_initializer
class Mine(CustomInit):
    name = {name!r}
    op_patterns = ({op!r},)
    priority = {priority}
"""
ESTIMATOR = """
from opreplay.replay.ascend.custom import register_op_estimator

@register_op_estimator("mylib::run", "920x9")
def estimate(op_invoke_info, device):
    return 1e-6
"""


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (INITIALIZER.format(name="domain", op="mylib::run", priority=0), 5),
        (INITIALIZER.format(name="moe_routing", op="mylib::run", priority=7), 5),
        (ESTIMATOR, 4),
    ],
    ids=["name that is built in", "with a priority", "unknown device"],
)
def test_what_plan_refuses_is_refused_by_list_as_well(code: str, line: int, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(code)
    listed, planned = invoke("list", "plugins", "--plugin", path), invoke("plan", trace, "--plugin", path)
    assert listed.exit_code == planned.exit_code == 2
    for result in (listed, planned):
        assert f"wrong.py:{line}" in result.stderr.replace("\n", "")


def test_a_device_of_the_users_own_is_known_by_its_file(tmp_path: Path) -> None:
    device = tmp_path / "mine.toml"
    device.write_text(invoke("list", "devices", "910b3", "--format", "toml").stdout.replace('"910b3"', '"920x9"'))
    plugin = tmp_path / "for_mine.py"
    plugin.write_text(ESTIMATOR)
    assert invoke("list", "plugins", "--plugin", plugin, "--soc", device).exit_code == 0
    assert invoke("list", "initializers", "--soc", device).exit_code == 2


CONVERSIONS = """
from opreplay.replay import Conversion, register_conversion, register_executor

@register_conversion("aten::relu")
def needless(call):
    return Conversion(op="aten::neg", args=call.args, note="another")

@register_executor("aten::absent*")
def absent(x):
    return x

@register_conversion("aten::neg", override=True)
def taken(call):
    return Conversion(op="aten::abs", args=call.args, note="another")
"""


@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"]], ids=" ".join)
def test_functions_that_were_not_used_are_told(tmp_path: Path, command: list[str]) -> None:
    args = {"Input Dims": [[4, 4]], "Input type": ["float"], "Input Strides": [[4, 1]], "Concrete Inputs": [""]}
    one = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 2, "args": args}
    trace, plugin = tmp_path / "t.json", tmp_path / "functions.py"
    trace.write_text(json.dumps({"traceEvents": [{**one, "name": f"aten::{op}", "ts": at} for at, op in
                                                 ((1, "relu"), (9, "neg"))]}))  # fmt: skip
    plugin.write_text(CONVERSIONS)
    told = [line for line in invoke(*command, trace, "--plugin", plugin).stderr.splitlines() if "not used" in line]
    assert [line.partition(")")[0] for line in told] == [
        "not used: conversion of aten::relu (functions.py:4",
        "not used: executor of aten::absent* (functions.py:8",
    ]
    assert "override=True" in told[0]
