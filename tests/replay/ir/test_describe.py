from __future__ import annotations

import pytest

from opreplay.replay.ir.describe import describe_inputs, describe_tensor
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        (TensorMeta(shape=(512, 64), dtype="bfloat16"), "bf16[512,64]"),
        (TensorMeta(shape=(), dtype="float32", strides=()), "f32[]"),
        (TensorMeta(shape=(2, 3), dtype="int64", strides=(3, 1)), "i64[2,3]"),
        (TensorMeta(shape=(2, 3), dtype="int64", strides=(1, 2)), "i64[2,3]*"),
        (TensorMeta(shape=(1, 3), dtype="bool", strides=(99, 1)), "bool[1,3]"),
    ],
)
def test_tensor(meta: TensorMeta, text: str) -> None:
    assert describe_tensor(meta) == text


def test_inputs_leave_scalars_out_and_shorten_lists() -> None:
    meta = TensorMeta(shape=(4,), dtype="float32")
    args = (
        ReplayArg(name="tensors", type="Tensor[]", tensors=(meta, None, meta, meta, meta)),
        ReplayArg(name="dim", type="int", value=0),
        ReplayArg(name="out", type="Tensor", tensors=(None,)),
        ReplayArg(name="self", type="Tensor", tensors=(meta,)),
    )
    recorded = Recorded(host_us_total=1, host_us_median=1)
    op = ReplayOp(id="0" * 12, name="aten::cat", count=1, recorded=recorded, args=args)
    assert describe_inputs(op) == "(f32[4], None, f32[4], … 5 in all) · f32[4]"
