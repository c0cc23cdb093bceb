"""Operators of torch_ir's kind: both registries, names, attributes, and what would be a silent wrong number."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035

import pytest
import torch

import opreplay
from opreplay.initializers.user_code import load_user_code
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.build import build_plan
from opreplay.torch_ir import NodeInfo, OpNode, get_conversion_fn, get_execution_fn, register_executor, register_op
from opreplay.traces import read_trace
from opreplay.traces.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

PAGE = Path(__file__).parents[4] / "docs" / "extending.md"
X = ([8, 64], "float", [64, 1], "")


def scalar(text: str) -> tuple[Any, str, Any, str]:
    return [], "Scalar", [], text


def event(name: str, *args: tuple[Any, str, Any, str]) -> dict[str, Any]:
    dims, types, strides, concrete = ([arg[i] for arg in args] for i in range(4))
    columns = {"Input Dims": dims, "Input type": types, "Input Strides": strides, "Concrete Inputs": concrete}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 50, "args": columns}


def one(folder: Path, name: str, *args: tuple[Any, str, Any, str]) -> ReplayOp:
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": [event(name, *args)]}))
    (op,) = build_plan(read_trace(path)).ops
    return op


def test_the_function_gets_a_list_of_tensors_and_a_dict(tmp_path: Path) -> None:
    seen = []

    @register_executor("custom.fused_gate")
    def execute_fused_gate(inputs: List[torch.Tensor], attrs: Dict[str, Any]) -> List[torch.Tensor]:  # noqa: UP006
        seen.append((type(inputs), [tuple(t.shape) for t in inputs], attrs))
        return [torch.sigmoid(inputs[0]) * inputs[1]]

    op = opreplay.op_of_event(event("custom::fused_gate", X, X))
    (result,) = op()
    assert seen == [(list, [(8, 64), (8, 64)], {})]
    assert result.shape == (8, 64)
    assert "execute_fused_gate" in str(op.assumptions)


def test_the_same_signature_in_opreplays_own_decorator_is_not_bound_to_rows(tmp_path: Path) -> None:
    """It was bound to the first row of the first tensor, and a time was reported."""

    @opreplay.register_executor("custom::gate")
    def gate(inputs, attrs):
        return [inputs[0] + inputs[1]]

    (result,) = opreplay.op_of_event(event("custom::gate", X, X))()
    assert result.shape == (8, 64)


def test_a_function_that_returns_a_tensor_fails_that_op() -> None:
    @register_executor("custom.gate")
    def gate(inputs, attrs):
        return inputs[0]

    with pytest.raises(Exception, match=r"returned Tensor, but it must return a list"):
        opreplay.op_of_event(event("custom::gate", X))()


def test_values_are_named_by_the_schema() -> None:
    got: dict[str, Any] = {}

    @register_executor("custom.top", schema="(Tensor x, int k, int dim=-1, float? scale=None) -> (Tensor, Tensor)")
    def top(inputs, attrs):
        got.update(attrs)
        return list(inputs[0].topk(attrs.get("k", 1), dim=attrs.get("dim", -1)))

    values, _ = opreplay.op_of_event(event("custom::top", X, scalar("5"), scalar("1")))()
    assert got == {"k": 5, "dim": 1}, "an absent value is missing, so that attrs.get has its default"
    assert values.shape == (8, 5)


def test_values_that_nothing_names_are_not_replaced_by_defaults(tmp_path: Path) -> None:
    @register_executor("custom.top")
    def top(inputs, attrs):
        return list(inputs[0].topk(attrs.get("k", 1)))

    reason = one(tmp_path, "custom::top", X, scalar("5")).reason
    assert reason is not None
    assert reason.kind == "metadata missing"
    assert "names of 5" in reason.detail
    assert "schema=" in reason.detail


def test_ops_of_torch_are_named_by_torch_and_one_overload_is_one_overload(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []

    @register_executor("aten.add.Tensor")
    def add(inputs, attrs):
        got.append(dict(attrs))
        return [inputs[0] + inputs[1] * attrs["alpha"]]

    op = one(tmp_path, "aten::add", X, X, scalar("3"))
    assert op.resolved_by == "executor"
    opreplay.op_of_event(event("aten::add", X, X, scalar("3")))()
    assert got == [{"alpha": 3}]
    other = one(tmp_path, "aten::add", X, scalar("2"), scalar("1"))
    assert other.resolved_by == "jit", "add.Scalar, or add.Tensor with a number, is torch's own"


@pytest.mark.parametrize("recorded", ["my_custom_op", "custom::my_custom_op"])
def test_a_name_without_namespace(recorded: str) -> None:
    @register_executor("my_custom_op")
    def execute(inputs, attrs):
        return [inputs[0] * attrs.get("param", 1.0)]

    assert len(opreplay.op_of_event(event(recorded, X))()) == 1
    assert get_execution_fn("my_custom_op") is execute
    assert get_execution_fn("aten.relu.default") is None, "not for ops of torch"


def test_a_conversion_adds_attributes_for_the_executor() -> None:
    got: dict[str, Any] = {}

    @register_op("custom.gate")
    def convert(node_info: NodeInfo) -> OpNode:
        assert (node_info.op, node_info.target, node_info.output_metas) == ("call_function", "custom::gate", [])
        return OpNode(
            name=node_info.name,
            op_type="custom.gate",
            inputs=node_info.input_metas,
            outputs=node_info.output_metas,
            attrs={**node_info.attrs, "extra_info": "custom_value", "to": torch.float16},
        )

    @register_executor("custom.gate")
    def execute(inputs, attrs):
        got.update(attrs)
        return [inputs[0]]

    op = opreplay.op_of_event(event("custom::gate", X, X))
    op()
    assert got == {"extra_info": "custom_value", "to": torch.float16}
    assert get_conversion_fn("custom.gate") is convert
    assert op.ir.via is None


def test_a_conversion_to_an_op_of_aten_is_run_by_aten(tmp_path: Path) -> None:
    @register_op("custom.norm")
    def norm(node_info: NodeInfo) -> OpNode:
        x, weight = node_info.input_metas
        attrs = {"normalized_shape": [x.shape[-1]], "eps": 1e-6}
        return OpNode(op_type="aten.layer_norm.default", inputs=[x, weight], attrs=attrs)

    @register_op("custom.join")
    def join(node_info: NodeInfo) -> OpNode:
        return OpNode(op_type="aten.cat.default", inputs=node_info.input_metas, attrs={"dim": 1})

    weight = ([64], "float", [1], "")
    op = one(tmp_path, "custom::norm", X, weight)
    assert (op.called, op.resolved_by, op.reason) == ("aten::layer_norm", "jit", None)
    assert {arg.name: arg.value for arg in op.args if not arg.tensors}["normalized_shape"] == (64,)
    assert [arg.name for arg in op.args if arg.tensors] == ["input", "weight"]
    assert opreplay.op_of_event(event("custom::join", X, X, X))().shape == (8, 192)


def test_a_conversion_that_fits_no_overload_fails_that_op(tmp_path: Path) -> None:
    @register_op("custom.norm")
    def norm(node_info: NodeInfo) -> OpNode:
        return OpNode(op_type="aten.relu", inputs=node_info.input_metas, attrs={"slope": 2})

    reason = one(tmp_path, "custom::norm", X).reason
    assert reason is not None
    assert "no overload of aten::relu accepts arguments named slope" in reason.detail


def test_other_signatures_are_sent_to_the_other_decorator() -> None:
    with pytest.raises(UsageError, match="must take the arguments"):
        register_executor("custom.gate")(lambda x, y, z: [x])
    with pytest.raises(UsageError, match="to all overloads"):
        register_op("aten.add.Tensor")(lambda node: node)


def test_a_file_that_imports_torch_ir_is_told_what_to_import(tmp_path: Path) -> None:
    file = tmp_path / "ops.py"
    file.write_text("from torch_ir.ops import register_executor\n")
    with pytest.raises(UsageError) as raised:
        load_user_code(str(file), flag="--plugin")
    assert "opreplay.torch_ir" in raised.value.hint


def test_the_page_runs_from_the_command_line(tmp_path: Path) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "gate.py").write_text(code)
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event("custom::gate", X, X, scalar("2.5"))]}))

    def opreplay_says(*arguments: str) -> Any:
        script = Path(sys.executable).with_name("opreplay")
        done = subprocess.run(
            [str(script), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(opreplay_says("plugins", "--plugin", "gate.py", "--format", "json"))
    assert {(one["kind"], one["name"], *one["ops"]) for one in listed} == {
        ("conversion", "convert_gate", "custom::gate"),
        ("executor", "execute_gate", "custom::gate"),
    }
    opreplay_says("run", "t.json", "--plugin", "gate.py", "--set", "op_time=2ms", "--output", "r.jsonl")
    (result,) = opreplay.read_results(tmp_path / "r.jsonl").ops
    assert result.status == "replayed"
    assert "slope" in str(result.assumptions)


def test_arguments_that_a_plan_names_go_by_name() -> None:
    """A captured program, or TraceLens's IR: nothing is positional there."""
    from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayPlan
    from opreplay.replay.resolve.by_argument_name import resolve_named
    from opreplay.replay.resolve.policy import Policy
    from opreplay.traces.model import TensorMeta

    @register_executor("aten.relu")
    def relu(inputs, attrs):
        return [inputs[0]]

    @register_executor("custom.gate")
    def gate(inputs, attrs):
        return [inputs[0] * attrs["slope"]]

    x = ReplayArg(name="self", type="Tensor", tensors=(TensorMeta(shape=(3,), dtype="float32", strides=(1,)),))
    slope = ReplayArg(name="slope", type="float", value=2.0)
    told = Recorded(host_us_total=0.0, host_us_median=0.0)
    ops = (
        ReplayOp(id="a" * 12, name="aten::relu", count=1, recorded=told, args=(x,)),
        ReplayOp(id="b" * 12, name="custom::gate", count=1, recorded=told, args=(x, slope)),
    )
    plan = ReplayPlan(source="captured", device_us_total=0.0, host_us_total=0.0, ops=ops)
    made = resolve_named(plan, Policy()).ops
    assert [op.resolved_by for op in made] == ["executor", "executor"]
    assert [(arg.name, arg.keyword_only) for arg in made[1].args] == [("self", False), ("slope", True)]
