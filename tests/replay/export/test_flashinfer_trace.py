"""FlashInfer-Trace: axes, references that compute the op, stored indices, what is left out."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch

from opreplay.initializers.supplied.safetensors import SafetensorsFile
from opreplay.replay.export.flashinfer_trace import Exported, flashinfer_trace, write_flashinfer_trace
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import parse_call
from opreplay.replay.ir.verify import verify
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.call import op_of_written
from opreplay.traces.errors import FormatError, UsageError


def plan_of(*calls: str) -> ReplayPlan:
    ops: list[ReplayOp] = [op_of_written(parse_call(call), Policy()) for call in calls]
    return with_outputs(
        ReplayPlan(source="calls", selection="all", device_us_total=0.0, host_us_total=0.0, ops=tuple(ops))
    )


def exported(*calls: str) -> Exported:
    return flashinfer_trace(plan_of(*calls), built_in(), memory_bytes=1 << 28)


def decoded(exported: Exported, start: str) -> list[Any]:
    return [
        msgspec.json.decode(line)
        for name, data in exported.files.items()
        if name.startswith(start)
        for line in (data.splitlines() if name.endswith("l") else [data])
    ]


MATRICES = ("aten::mm(f32[4,8], f32[8,16])", "aten::mm(f32[2,8], f32[8,16])")


def test_equal_sizes_are_one_axis_and_constant_where_no_call_differs() -> None:
    one = exported(*MATRICES)
    (definition,) = decoded(one, "definitions/")
    assert definition["axes"] == {
        "self_0": {"type": "var"},
        "self_1": {"type": "const", "value": 8},
        "mat2_1": {"type": "const", "value": 16},
    }
    assert definition["inputs"] == {
        "self": {"shape": ["self_0", "self_1"], "dtype": "float32"},
        "mat2": {"shape": ["self_1", "mat2_1"], "dtype": "float32"},
    }
    assert definition["outputs"] == {"output": {"shape": ["self_0", "mat2_1"], "dtype": "float32"}}
    assert [line["workload"]["axes"] for line in decoded(one, "workloads/")] == [{"self_0": 4}, {"self_0": 2}]


def ran(reference: str, *inputs: Any) -> Any:
    space: dict[str, Any] = {}
    exec(reference, space)  # noqa: S102 - written by the export under test
    return space["run"](*inputs)


def test_references_compute_the_op() -> None:
    (definition,) = decoded(exported("aten::add.Tensor(f32[4], f32[4], alpha=2)"), "definitions/")
    x, y = torch.rand(4), torch.rand(4)
    assert torch.equal(ran(definition["reference"], x, y, 2), x + 2 * y)
    one = exported("_C::rms_norm(f32[2,8], f32[2,8], f32[8], 1e-6)")
    (definition,), (line,) = decoded(one, "definitions/"), decoded(one, "workloads/")
    assert "opreplay" not in definition["reference"]
    assert line["workload"]["inputs"]["epsilon"] == {"type": "scalar", "value": 1e-6}
    x, weight = torch.randn(2, 8), torch.rand(8)
    result = ran(definition["reference"], torch.empty(2, 8), x, weight, 1e-6)
    torch.testing.assert_close(result, torch.nn.functional.rms_norm(x, (8,), weight, 1e-6))
    assert list(definition["outputs"]) == ["result_out"]


def test_indices_are_stored_as_initializers_draw_them(tmp_path: Path) -> None:
    one = exported("aten::embedding(f32[50,8], i64[3,5])")
    (line,) = decoded(one, "workloads/")
    stored = line["workload"]["inputs"]["indices"]
    assert stored["type"] == "safetensors"
    write_flashinfer_trace(one, tmp_path)
    tensor = SafetensorsFile(tmp_path / stored["path"]).tensor(stored["tensor_key"])
    assert tensor.shape == (3, 5)
    assert int(tensor.min()) >= 0
    assert int(tensor.max()) < 50
    assert line["workload"]["inputs"]["weight"] == {"type": "random"}


def test_a_list_is_an_input_for_each_tensor_and_what_has_no_dtype_is_left_out() -> None:
    one = exported("aten::cat([f32[2,3], f32[4,3]], 0)", "aten::neg(f64[4])")
    (definition,) = decoded(one, "definitions/")
    assert list(definition["inputs"]) == ["tensors_0", "tensors_1", "dim"]
    x, y = torch.rand(2, 3), torch.rand(4, 3)
    assert torch.equal(ran(definition["reference"], x, y, 0), torch.cat([x, y]))
    assert [(op.name, op.reason) for op in one.left_out] == [("aten::neg", "the format has no dtype float64")]


def flashinfer_models(monkeypatch: pytest.MonkeyPatch) -> Any:
    """flashinfer-bench's own models, without the rest of the package, which needs a GPU's libraries."""
    import importlib.util

    spec = importlib.util.find_spec("flashinfer_bench")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("flashinfer-bench is not installed")
    pytest.importorskip("pydantic")
    bare = ModuleType("flashinfer_bench")
    bare.__path__ = list(spec.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "flashinfer_bench", bare)
    data = ModuleType("flashinfer_bench.data")
    data.__path__ = [f"{bare.__path__[0]}/data"]
    monkeypatch.setitem(sys.modules, "flashinfer_bench.data", data)
    return importlib.import_module("flashinfer_bench.data.definition"), importlib.import_module(
        "flashinfer_bench.data.trace"
    )


def test_flashinfer_bench_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of_definitions, of_traces = flashinfer_models(monkeypatch)
    one = exported(*MATRICES, "aten::embedding(f32[50,8], i64[3,5])", "_C::rms_norm(f32[2,8], f32[2,8], f32[8], 1e-6)")
    definitions = {text["name"]: of_definitions.Definition(**text) for text in decoded(one, "definitions/")}
    lines = [of_traces.Trace(**text) for text in decoded(one, "workloads/")]
    assert len(lines) == 4
    shapes = [definitions[line.definition].get_input_shapes(line.workload.axes) for line in lines]
    assert shapes[:2] == [[[4, 8], [8, 16]], [[2, 8], [8, 16]]] or shapes[:2] == [[(4, 8), (8, 16)], [(2, 8), (8, 16)]]


def test_an_op_whose_reference_needs_opreplay_has_a_text_that_says_so() -> None:
    one = exported("_C::silu_and_mul(f32[2,4], f32[2,8])")
    (definition,) = decoded(one, "definitions/")
    assert one.without_reference == ("_C::silu_and_mul",)
    with pytest.raises(NotImplementedError, match="_C::silu_and_mul"):
        ran(definition["reference"], torch.empty(2, 4), torch.rand(2, 8))


def test_files_of_another_export_are_not_mixed_with_it(tmp_path: Path) -> None:
    write_flashinfer_trace(exported("aten::add(f32[8], f32[8])"), tmp_path)
    write_flashinfer_trace(exported("aten::add(f32[8], f32[8])"), tmp_path)
    with pytest.raises(UsageError, match="contains other definitions"):
        write_flashinfer_trace(exported("aten::mm(f32[8,8], f32[8,8])"), tmp_path)


@pytest.mark.parametrize(
    "overload",
    [
        "default(input) or __import__('os').system('touch pwned') or torch.ops.aten.linear.default",
        "default\nPWNED()\n",
        "../../up",
        "a b",
        "x" * 1000,
    ],
)
def test_an_overload_that_is_no_word_becomes_neither_code_nor_a_file_name(overload: str) -> None:
    """Of a plan that no reader checked; those that were read are refused there."""
    plan = plan_of("aten::linear(f32[4,8], f32[16,8])")
    (op,) = plan.ops
    hostile = msgspec.structs.replace(plan, ops=(msgspec.structs.replace(op, overload=overload),))
    with pytest.raises(FormatError, match="overload"):
        verify(hostile)
    written = flashinfer_trace(hostile, built_in(), memory_bytes=1 << 28)
    for name, data in written.files.items():
        assert re.fullmatch(r"[\w./]{1,200}", name, re.ASCII), name
        assert ".." not in name
        if name.startswith("definitions/"):
            tree = ast.parse(msgspec.json.decode(data)["reference"])
            assert {type(node) for node in tree.body} <= {ast.FunctionDef, ast.Import, ast.ImportFrom}
            assert "raise NotImplementedError" in ast.unparse(tree)


def test_what_an_op_is_called_by_is_a_qualified_name() -> None:
    plan = plan_of("aten::linear(f32[4,8], f32[16,8])")
    hostile = msgspec.structs.replace(plan.ops[0], via="aten::linear(x)\nimport os")
    with pytest.raises(FormatError, match="namespace::op"):
        verify(msgspec.structs.replace(plan, ops=(hostile,)))
