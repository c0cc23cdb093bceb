"""Calls that only real kernels refuse: each named op is one, no other is, and nothing is refused that runs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.meta.check import check_op
from opreplay.replay.resolve.meta.misfits import DIM_UNCHECKED
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls

KNOWN = DIM_UNCHECKED | {
    "aten::_mkldnn_transpose_",  # no kernel for plain tensors
    "aten::_weight_norm_interface_backward",  # refused for other reasons, as are these
    "aten::diagonal_backward",
    "aten::diagonal_scatter",
    "aten::select_backward",
    "aten::slice_backward",
}
DIMS = ("dim", "dims", "dim0", "dim1", "dim2")


def value(arg: Any, device: str) -> Any:
    """An argument of a call with a dimension that is not there; ValueError for a type that is not made here."""
    kind = str(arg.type)
    if arg.name in ("dim", "dims", "dim0"):
        return [5] if "List" in kind else 5
    if arg.name == "index" and kind == "Tensor":
        return torch.zeros(8, 8, dtype=torch.long, device=device)
    made: dict[str, Any] = {
        "Tensor": torch.ones(8, 8, device=device),
        "int": 0 if arg.name == "dim1" else 1,
        "bool": False,
        "float": 1.0,
        "number": 1.0,
        "List[int]": [1],
        "List[Tensor]": [torch.ones(8, 8, device=device)],
    }
    if kind not in made and not kind.startswith("Optional"):
        raise ValueError(kind)
    return made.get(kind)


def accepts(schema: Any, device: str) -> bool:
    try:
        function = getattr(getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default")
        given = {a.name: value(a, device) for a in schema.arguments if a.name in DIMS or not a.has_default_value()}
        function(**given)
    except Exception:
        return False
    return True


def test_the_ops_that_take_any_dimension_on_meta_tensors_are_those() -> None:
    found: set[str] = set()
    for schema in torch._C._jit_get_all_schemas():
        first = schema.arguments[0] if schema.arguments else None
        if not schema.name.startswith("aten::") or first is None or str(first.type) != "Tensor":
            continue
        odd = any(word in schema.name for word in ("sparse", "nested", "mps", "cudnn"))
        if "out" in schema.overload_name or "Dimname" in str(schema) or odd:
            continue
        if any(a.name in DIMS for a in schema.arguments):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if accepts(schema, "meta") and not accepts(schema, "cpu"):
                    found.add(schema.name)
    assert found <= KNOWN


def op_of(text: str) -> ReplayOp:
    plan, (id_,) = plan_of_calls(over_sizes([text], []))
    return next(op for op in plan.ops if op.id == id_)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("aten::softmax(f32[8,8], 5)", False),
        ("aten::softmax(f32[8,8], -2)", True),
        ("aten::_softmax(f32[], 0, False)", True),
        ("aten::sort(f32[8,8], 4)", False),
        ("aten::argsort(f32[8,8], -3)", False),
        ("aten::masked_select(f32[8,8], bool[8,9])", False),
        ("aten::masked_select(f32[8,1], bool[3,1,9])", True),
        ("aten::_masked_softmax(f32[8,8], bool[8,9], 1)", False),
        ("aten::_masked_softmax(f32[2,4,8,8], bool[2,8], 3, 1)", True),
        ("aten::index(f32[8,8], [bool[8,9]])", False),
        ("aten::index(f32[8,8], [None, bool[8]])", True),
        ("aten::index(f32[8,8,4], [bool[8,8]])", True),
        ("aten::index_put(f32[8,8], [bool[9]], f32[1])", False),
    ],
)
def test_a_call_that_no_kernel_takes_is_refused(text: str, runs: bool) -> None:
    op = op_of(text)
    assert (op.reason is None) == runs, op.reason
    assert check_op(op, Policy()).status in (("ok", "data-dependent", "no meta kernel") if runs else ("failed",))
