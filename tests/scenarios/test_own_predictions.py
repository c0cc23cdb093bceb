"""Predictions for ops of a user's own, whose library is not here: every command has them, and says what made them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

pytestmark = pytest.mark.slow

Console = Callable[..., Result]

SHAPE = [4096, 1024]
ESTIMATE = """
import torch
from opreplay.replay.ascend.custom import OpInvokeInfo, PerformanceModel, register_op_estimator

@register_op_estimator("mylib::fused", None, True)
def estimate(info, device):
    x, nothing, alpha, y = info.args
    assert nothing is None and y.shape == x.shape
    return PerformanceModel.Result(alpha * 1e-3)
"""
SOC = ("--soc", "910b3")


def fused(ts: float = 1.0) -> dict[str, Any]:
    args = {
        "Input Dims": [SHAPE, [], [], SHAPE],
        "Input type": ["c10::BFloat16", "", "Double", "c10::BFloat16"],
        "Concrete Inputs": ["", "", "2.5", ""],
        "External id": 1,
    }
    return {"ph": "X", "cat": "cpu_op", "name": "mylib::fused", "pid": 1, "tid": 1, "ts": ts, "dur": 20.0, "args": args}


def add(name: str = "my_ops::scaled_add", ts: float = 50.0) -> dict[str, Any]:
    args = {
        "Input Dims": [SHAPE, SHAPE],
        "Input type": ["c10::BFloat16"] * 2,
        "Concrete Inputs": ["", ""],
    }
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 20.0, "args": args}


def simulated(done: Result, name: str) -> dict[str, Any]:
    ops = json.loads(done.stdout)["unique_ops"]
    return next(op for op in ops if op["name"] == name)["simulated"]["910b3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "custom"
    made.mkdir()
    return made


def test_every_command_has_a_users_estimate(
    console: Console, trace_of: Callable[..., Path], folder: Path, tmp_path: Path
) -> None:
    (folder / "mine.py").write_text(ESTIMATE)
    trace, own = trace_of(fused()), ("--plugin", folder, *SOC, "--select", "all")
    found = simulated(console("simulate", trace, *own, "--format", "json"), "mylib::fused")
    assert (found["time_us"], found["by"], found["source"]) == (2500.0, "user estimator", "estimate (mine.py:5)")
    plan = json.loads(console("plan", trace, *own, "--format", "json").stdout)
    assert plan["unique_ops"][0]["simulated_us"] == {"910b3": 2500.0}
    assert plan["unique_ops"][0]["by"] == {"910b3": "user estimator"}
    for command, name in (("run", "r.jsonl"), ("batch", "b.jsonl")):
        out = tmp_path / name
        console(command, trace, *own, "--set", "op_time=1ms", "-o", out)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        (op,) = [line for line in lines if line["record"] == "op"]
        assert op["simulated_us"] == {"910b3": 2500.0}
        assert op["simulated"]["910b3"]["by"] == "user estimator"
    assert "910b3: predicted by user estimator estimate (mine.py:5) (1)" in console("plan", trace, *own).stdout


def test_the_order_is_estimator_properties_rule_bytes(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    trace, args = (
        trace_of(fused(), add("aten::add")),
        ("--plugin", folder, *SOC, "--select", "all", "--format", "json"),
    )
    assert simulated(console("simulate", trace, *args), "mylib::fused")["by"] == "bytes"
    assert simulated(console("simulate", trace, *args), "aten::add")["by"] == "rule"
    (folder / "a.py").write_text(
        "from opreplay.replay.ascend.custom import OpInvokeInfo\n"
        "@OpInvokeInfo.register_op_properties('aten::add')\n"
        "@OpInvokeInfo.register_op_properties('mylib::fused')\n"
        "def properties(info):\n"
        "    return OpInvokeInfo.PerformanceProperties(memory_read_bytes=1e9)\n"
    )
    for name in ("mylib::fused", "aten::add"):
        found = simulated(console("simulate", trace, *args), name)
        assert (found["by"], found["time_us"] > 500) == ("user properties", True)
    (folder / "b.py").write_text(ESTIMATE)
    assert simulated(console("simulate", trace, *args), "mylib::fused")["by"] == "user estimator"


RULE = """
from opreplay.replay.ascend.lowering import lowers
from opreplay.replay.ops.op_view import kernel

@lowers({name!r}{more})
def scaled_add(op):
    x = op.dense("x"{first})
    return [kernel("Axpy", [x, op.dense("y"{second})], [x])]
"""


@pytest.mark.parametrize(("first", "second"), [("", ""), (", at=0", ", at=1")])
def test_a_rule_sees_the_arguments_of_an_op_whose_library_is_not_here(
    console: Console, trace_of: Callable[..., Path], folder: Path, first: str, second: str
) -> None:
    (folder / "rules.py").write_text(RULE.format(name="my_ops::scaled_add", more="", first=first, second=second))
    trace, args = trace_of(add()), ("--plugin", folder, *SOC, "--select", "all")
    found = simulated(console("simulate", trace, *args, "--format", "json"), "my_ops::scaled_add")
    assert (found["by"], found["source"]) == ("user rule", "scaled_add (rules.py:5)")
    # three tensors of 8 MiB each: far more than a launch
    assert 10 < found["time_us"] < 40
    explained = console("plan", trace, *args, "--explain", "my_ops::scaled_add").stdout
    assert ("unnamed argument 0 is assumed to be x" in " ".join(explained.split())) == (first == "")
    assert found["taken_for"].startswith("Axpy costed as a kernel of family ")
    assert f"kernels from your rule scaled_add (rules.py:5): {found['taken_for']}" in " ".join(explained.split())
    beside = "argument names not checked, because the library is not installed: x = argument 0, y = argument 1"
    assert (beside in found["taken_for"]) == (first == "")


def test_a_rule_of_yours_replaces_a_built_in_one_only_with_override(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    trace, args = trace_of(add("aten::add")), ("--plugin", folder, *SOC, "--select", "all", "--format", "json")
    (folder / "rules.py").write_text(RULE.format(name="aten::add", more="", first=", at=0", second=", at=1"))
    assert "override=True replaces it" in console("simulate", trace, *args, code=2).stderr
    (folder / "rules.py").write_text(
        RULE.format(name="aten::add", more=", override=True", first=", at=0", second=", at=1")
    )
    found = simulated(console("simulate", trace, *args), "aten::add")
    assert (found["by"], found["kernels"]) == ("user rule", ["Axpy"])
    listed = json.loads(console("list", "plugins", "--plugin", folder, "--format", "json").stdout)
    assert [(one["kind"], one["ops"]) for one in listed] == [("rule", ["aten::add"])]


def test_registrations_that_made_no_prediction_are_told(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    (folder / "mine.py").write_text(ESTIMATE.replace("mylib::fused", "mylib::fusde"))
    done = console("simulate", trace_of(fused()), "--plugin", folder, *SOC, "--select", "all")
    assert "not used: estimator of mylib::fusde (mine.py:5): no selected op has that name" in done.stderr
    (folder / "mine.py").write_text(ESTIMATE.replace("None, True", "'910b4', True"))
    done = console("simulate", trace_of(fused()), "--plugin", folder, *SOC, "--select", "all")
    assert "mine.py:5): registered for 910b4, but the simulated device is 910b3" in done.stderr


def test_what_a_registration_gets_wrong_is_refused_with_what_to_write(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    args = ("simulate", trace_of(fused()), "--plugin", folder, *SOC, "--select", "all")
    (folder / "mine.py").write_text(ESTIMATE.replace("None, True", "'910b33', True"))
    done = console(*args, code=2)
    assert "no simulated device '910b33'" in done.stderr
    assert "mine.py:5" in done.stderr
    (folder / "mine.py").write_text(ESTIMATE.replace('"mylib::fused"', "torch.ops.aten.fused"))
    assert 'Write "aten::fused" in place of torch.ops.aten.fused' in console(*args, code=2).stderr


def test_an_op_of_an_absent_library_is_registered_for_as_torch_names_it(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    (folder / "mine.py").write_text(ESTIMATE.replace('"mylib::fused"', "torch.ops.lib_of_nobody.fused.default"))
    trace = trace_of(fused())  # other tests of this process may define ops of mylib
    trace.write_text(trace.read_text().replace("mylib::fused", "lib_of_nobody::fused"))
    args = ("simulate", trace, "--plugin", folder, *SOC, "--select", "all")
    assert simulated(console(*args, "--format", "json"), "lib_of_nobody::fused")["by"] == "user estimator"


def test_a_file_of_the_rfc_needs_another_import_and_is_told_which(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    """The template as it is written there, on an op whose library is not here."""
    theirs = (
        "import torch\n"
        "from tensor_cast.performance_model.op_estimator_registry import register_op_estimator\n"
        "from tensor_cast.performance_model.model import PerformanceModel\n"
    )
    body = (
        "@register_op_estimator('my_ops::scaled_add', None, True)\n"
        "def _estimate_your_op(op_invoke_info, device_profile) -> object:\n"
        "    total_elements = sum(tensor.numel() for tensor in op_invoke_info.args)\n"
        "    return PerformanceModel.Result(0.001 + total_elements * 1e-9)\n"
    )
    args = ("simulate", trace_of(add()), "--plugin", folder, *SOC, "--select", "all", "--format", "json")
    (folder / "rfc.py").write_text(theirs + body)
    hint = "Import OpInvokeInfo, PerformanceModel and register_op_estimator from opreplay.replay.ascend.custom"
    assert hint in console(*args, code=2).stderr
    ours = "from opreplay.replay.ascend.custom import OpInvokeInfo, PerformanceModel, register_op_estimator\n"
    (folder / "rfc.py").write_text(ours + body)
    assert simulated(console(*args), "my_ops::scaled_add")["time_us"] == pytest.approx(1e3 + 2 * 4096 * 1024 * 1e-3)


def test_memory_of_an_op_without_a_fake_kernel_counts_its_result(
    console: Console, trace_of: Callable[..., Path], folder: Path
) -> None:
    (folder / "mine.py").write_text(
        "from opreplay.replay.ascend.custom import OpInvokeInfo\n"
        "@OpInvokeInfo.register_op_properties('my_ops::scaled_add')\n"
        "def properties(info):\n"
        "    made = info.get_memory_access_properties()\n"
        "    assert (made.memory_read_bytes, made.memory_write_bytes) == (2 * 4096 * 1024 * 2, 4096 * 1024 * 2), made\n"
        "    return made\n"
    )
    args = (trace_of(add()), "--plugin", folder, *SOC, "--select", "all", "--format", "json")
    assert simulated(console("simulate", *args), "my_ops::scaled_add")["by"] == "user properties"


def test_the_process_that_runs_ops_loads_the_custom_op_folder(
    console: Console, trace_of: Callable[..., Path], folder: Path, tmp_path: Path
) -> None:
    (folder / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from opreplay.replay import register_executor\n"
        "@dataclass\n"
        "class Settings:\n"
        "    scale: float = 2.0\n"
        "@register_executor('my_ops::scaled_add')\n"
        "def run(x, y):\n"
        "    return x + Settings().scale * y\n"
    )
    out = tmp_path / "r.jsonl"
    console("run", trace_of(add()), "--plugin", folder, "--select", "all", "--set", "op_time=1ms", "-o", out)
    (op,) = [json.loads(line) for line in out.read_text().splitlines() if '"record":"op"' in line]
    assert (op["status"], op["resolved_by"]) == ("replayed", "executor")
