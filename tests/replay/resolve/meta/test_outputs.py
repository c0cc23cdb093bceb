"""Outputs come from meta tensors; what cannot be known stays None, and floods of results are stopped."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import MAX_PIECES, refuse_floods
from opreplay.replay.plan.passes import merge_same_ids
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces.model import TensorMeta
from tests.factories import tensor as any_tensor

tensor = partial(any_tensor, dtype="bfloat16")


def plan(name: str, *args: ReplayArg, **fields: Any) -> ReplayPlan:
    op = ReplayOp(
        **{
            "id": "0" * 12,
            "name": name,
            "count": 1,
            "recorded": Recorded(host_us_total=1.0, host_us_median=1.0),
            "resolved_by": "jit",
            "overload": "",
            "args": args,
            **fields,
        }
    )
    return ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=(op,))


def outputs(one: ReplayPlan) -> list[tuple[tuple[int, ...], str] | None] | None:
    found = with_outputs(one).ops[0].outputs
    return None if found is None else [None if m is None else (m.shape, m.dtype) for m in found]


def test_shapes_and_dtypes() -> None:
    assert outputs(plan("aten::mm", tensor("self", 2, 3), tensor("mat2", 3, 4))) == [((2, 4), "bfloat16")]
    dim = ReplayArg(name="dim", type="int", value=1)
    assert outputs(plan("aten::max", tensor("self", 2, 3), dim, overload="dim")) == [
        ((2,), "bfloat16"),
        ((2,), "int64"),
    ]


def test_huge_tensors_cost_nothing() -> None:
    big = TensorMeta(shape=(2**40,), dtype="float32", strides=(0,))
    made = plan("aten::relu", ReplayArg(name="self", type="Tensor", tensors=(big,)))
    assert outputs(made) == [((2**40,), "float32")]


def test_factories_allocate_nothing() -> None:
    size = ReplayArg(name="size", type="int[]", value=(2**40,))
    assert outputs(plan("aten::zeros", size)) == [((2**40,), "float32")]


def test_an_equivalent_has_the_outputs_of_the_recorded_op() -> None:
    ints = [
        ReplayArg(name=n, type="int[]", value=v)
        for n, v in (("padding", (0, 0)), ("stride", (2, 2)), ("dilation", (1, 1)))
    ]
    rest = [ReplayArg(name="groups", type="int", value=1)]
    rest += [ReplayArg(name=n, type="bool", value=False) for n in ("benchmark", "deterministic", "allow_tf32")]
    made = plan(
        "aten::cudnn_convolution",
        tensor("self", 1, 3, 8, 8),
        tensor("weight", 4, 3, 2, 2),
        *ints,
        *rest,
        resolved_by="equivalent",
        via="aten::convolution",
    )
    assert outputs(made) == [((1, 4, 4, 4), "bfloat16")]


@pytest.mark.parametrize(
    "made",
    [
        plan("aten::nonzero", tensor("self", 4)),
        plan("aten::mm", tensor("self", 2, 3), tensor("mat2", 9, 4)),
        plan("aten::from_file", tensor("self", 2)),
        plan("aten::relu", tensor("self", 2, dtype="no_such_dtype")),
    ],
)
def test_what_is_not_known_stays_none(made: ReplayPlan) -> None:
    assert outputs(made) is None


def test_floods_are_stopped() -> None:
    split = ReplayArg(name="split_size", type="int", value=1)
    made = refuse_floods(plan("aten::split", tensor("self", 2**40), split, overload="Tensor"))
    assert str(made.ops[0].reason) == f"budget: would return {2**40} tensors, limit {MAX_PIECES}"
    assert with_outputs(plan("aten::split", tensor("self", 2**40), split, overload="Tensor")).ops[0].reason is not None
    few = refuse_floods(plan("aten::split", tensor("self", 64), split, overload="Tensor"))
    assert few.ops[0].reason is None


def test_ops_of_one_id_are_added() -> None:
    one = plan("aten::mm")
    two = ReplayPlan(source="t", device_us_total=0.0, host_us_total=1.0, ops=one.ops * 2)
    (merged,) = merge_same_ids(two).ops
    assert (merged.count, merged.recorded.host_us_total) == (2, 2.0)
