"""Users' rules and conversions through the console script: wrong names, what is not used, calls to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
RULE = """
from opreplay.replay.ascend.lowering import lowers
from opreplay.replay.ops.op_view import kernel

@lowers({op!r}, override=True)
def mine(op):
    x = op.dense({argument!r})
    return [kernel("Mul", [x, x], [x])]
"""


def facts(console: Console, *arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(console(*arguments, "--soc", "910b3", "--format", "json").stdout)
    return answer


def test_a_rule_that_asks_for_no_argument_of_the_op_fails_for_it(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace = trace_of(*owner("aten::mm", 1, [[64, 64]] * 2, 50.0))
    for argument, predicted in (("mat2", True), ("nosuch", False)):
        (tmp_path / f"{argument}.py").write_text(RULE.format(op="aten::mm", argument=argument))
        (op,) = facts(console, "plan", trace, "--plugin", tmp_path / f"{argument}.py")["unique_ops"]
        assert bool(op["simulated_us"]) is predicted
        assert any("no argument nosuch" in text for text in op["suspicions"]) is not predicted


def test_what_rests_on_the_order_of_unnamed_arguments_is_uncalibrated(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace = trace_of(*owner("mylib_unnamed::scale", 1, [[64, 64]], 50.0))
    (tmp_path / "a.py").write_text(RULE.format(op="mylib_unnamed::scale", argument="x"))
    console("run", trace, "--plugin", tmp_path / "a.py", "--soc", "910b3", "-o", tmp_path / "r.jsonl")
    lines = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    (op,) = (line for line in lines if line["record"] == "op")
    assert op["simulated"]["910b3"]["confidence"] == "uncalibrated"


def test_a_rule_that_is_not_used_says_which_of_two_causes_it_has(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace = trace_of(*owner("aten::mm", 1, [[64, 64]] * 2, 50.0), *owner("aten::relu", 2, [[64, 64]], 50.0))
    (tmp_path / "a.py").write_text(
        RULE.format(op="aten::mm", argument="self")
        + "\nfrom opreplay import register_op_estimator\n"
        + "@register_op_estimator('aten::mm', None)\ndef quick(op, device):\n    return 1e-6\n"
    )
    both = " ".join(console("plan", trace, "--plugin", tmp_path / "a.py").stderr.split())
    assert "rule of aten::mm (a.py:5): another registration takes precedence" in both
    left_out = console("plan", trace, "--plugin", tmp_path / "a.py", "--include", "aten::relu").stderr
    assert "another registration" not in left_out
    assert left_out.count("no selected op has that name") == 2


@pytest.mark.parametrize("override", [True, False])
def test_the_call_that_explain_prints_for_a_converted_op_can_be_pasted(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path, override: bool
) -> None:
    (tmp_path / "a.py").write_text(
        "import torch\nfrom opreplay import Conversion, register_conversion, register_executor\n"
        f"@register_conversion('mylib_pasted::op', override={override})\n"
        "def named(call):\n"
        "    return Conversion(op='mylib_pasted::op', args=call.args[:1], kwargs={'param': 3.0}, note='named')\n"
        f"@register_executor('mylib_pasted::op', override={override})\n"
        "def run(x, *, param):\n    return x * param\n"
    )
    trace = trace_of(*owner("mylib_pasted::op", 1, [[64, 64]], 50.0, ["float"]))
    more = ("--plugin", tmp_path / "a.py")
    call = facts(console, "plan", trace, *more, "--explain", "mylib_pasted::op")["call"]
    assert "param=3.0" in call
    shown = console("plan", trace, *more, "--explain", "mylib_pasted::op").stdout.splitlines()
    (line,) = [one for one in shown if one.startswith("opreplay op")]
    assert shlex.split(line)[2] == call
    console("op", call, *more, "--set", "op_time=1ms")
