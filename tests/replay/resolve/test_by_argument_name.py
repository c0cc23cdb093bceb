"""Overloads for calls whose arguments are known by name, as in TraceLens's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.tracelens import read_tracelens_ir, write_tracelens_ir
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.policy import Policy
from opreplay.traces.model import contiguous_strides

TENSOR = {"shape": [4, 8], "dtype": "float", "strides": [8, 1], "init": "normal"}


def call(name: str, /, **arguments: tuple[str, Any]) -> dict[str, Any]:
    args = [{"arg_name": key, "arg_type": declared, "value": value} for key, (declared, value) in arguments.items()]
    return {"op_name": name, "replay_ir": {"list_pos_args": args, "list_kwargs": []}}


@pytest.fixture
def resolved(tmp_path: Path) -> Any:
    def resolve(entry: dict[str, Any]) -> ReplayOp:
        path = tmp_path / "ir.json"
        path.write_text(json.dumps([entry]))
        plan = resolve_named(read_tracelens_ir(path), Policy())
        write_tracelens_ir(plan, tmp_path / "out.json", force=True)
        assert json.loads((tmp_path / "out.json").read_text()) == [entry]
        return plan.ops[0]

    return resolve


T = ("Tensor", TENSOR)


@pytest.mark.parametrize(
    ("entry", "overload"),
    [
        (call("aten::relu", self=T), ""),
        (call("aten::add", self=T, other=T, alpha=("Scalar", 1)), "Tensor"),
        (call("aten::add", self=T, other=("Scalar", 2), alpha=("Scalar", 1)), "Scalar"),
        (call("aten::add.Tensor", self=T, other=T), "Tensor"),
        (call("aten::transpose", self=T, dim0=("int", 0), dim1=("int", 1)), "int"),
        (
            call("aten::sum", self=T, dim=("int[1]?", [0]), keepdim=("bool", False), dtype=("ScalarType?", None)),
            "dim_IntList",
        ),
        (call("aten::cat", tensors=("Tensor[]", [TENSOR, TENSOR]), dim=("int", 0)), ""),
        (call("aten::index", self=T, indices=("Tensor?[]", [None, {**TENSOR, "dtype": "long"}])), "Tensor"),
        (call("aten::gelu", self=T, approximate=("str", "tanh")), ""),
    ],
)
def test_the_overload_with_these_names_and_types(resolved: Any, entry: dict[str, Any], overload: str) -> None:
    op = resolved(entry)
    assert (op.reason, op.resolved_by, op.overload) == (None, "jit", overload)


def test_arguments_take_the_schemas_form(resolved: Any) -> None:
    op = resolved(call("aten::add_", other=T, self=T, alpha=("int", 1)))
    assert [(arg.name, arg.type, arg.keyword_only, arg.mutated) for arg in op.args] == [
        ("self", "Tensor", False, True),
        ("other", "Tensor", False, False),
        ("alpha", "Scalar", True, False),
    ]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (call("os::system", command=("str", "true")), "policy: namespace os is on no allow-list"),
        (call("detach"), "label, not an op"),
        (call("aten::relu", input=T), "metadata missing: no overload accepts arguments of these names and types"),
        (call("aten::relu"), "metadata missing: no overload accepts arguments of these names and types"),
        (call("aten::from_file", filename=("str", "/etc/passwd")), "policy: "),
        (call("prim::Print"), "policy: namespace prim"),
    ],
)
def test_each_refusal_has_a_reason(resolved: Any, entry: dict[str, Any], reason: str) -> None:
    op = resolved(entry)
    assert str(op.reason).startswith(reason)
    assert op.resolved_by is None


def test_a_call_without_a_kernel_here_is_replayed_through_its_equivalent(resolved: Any) -> None:
    shapes = ([1, 3, 8, 8], [4, 3, 2, 2])
    image, weight = ({**TENSOR, "shape": s, "strides": list(contiguous_strides(tuple(s)))} for s in shapes)
    pairs = (("padding", [0, 0]), ("stride", [2, 2]), ("dilation", [1, 1]))
    ints = {name: ("SymInt[]", value) for name, value in pairs}
    flags = dict.fromkeys(("benchmark", "deterministic", "allow_tf32"), ("bool", False))
    entry = call(
        "aten::cudnn_convolution",
        self=("Tensor", image),
        weight=("Tensor", weight),
        **ints,
        groups=("SymInt", 1),
        **flags,
    )
    op = resolved(entry)
    assert (op.reason, op.resolved_by, op.via) == (None, "equivalent", "aten::convolution")
