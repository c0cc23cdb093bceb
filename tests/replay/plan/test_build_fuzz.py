"""No recorded metadata, however odd, makes planning raise or yields a plan that is malformed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.replay.ir.plan_file import dump_plan, parse_plan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces.model import KernelTable, OpSignature, OpTable, Trace, TraceInfo

NAMES = [
    "aten::add",
    "aten::cat",
    "aten::index",
    "aten::convolution",
    "aten::max_pool2d",
    "aten::split",
    "aten::to",
    "aten::empty",
    "aten::as_strided",
    "aten::_index_put_impl_",
    "aten::sum",
    "aten::clamp",
    "aten::einsum",
    "aten::scatter_add_",
    "aten::layer_norm",
    "aten::segment_reduce",
    "_C::silu_and_mul",
    "os::system",
    "aten::from_file",
    "aten::embedding",
    "aten::_foreach_add_",
    "c10d::allreduce_",
    "triton_x",
    "record_param_comms",
    "",
    "a::b::c",
    "::",
]
size = st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**62, 2**63, 2**70]))
shape = st.lists(size, max_size=3).map(tuple)
dims = st.one_of(shape, st.lists(shape, min_size=1, max_size=3).map(tuple))
spelled = st.one_of(
    st.sampled_from(["float", "long int", "c10::BFloat16", "Scalar", "ScalarList", "TensorList", "", "double", "bool"]),
    st.text(max_size=5),
)
texts = st.one_of(
    st.sampled_from(
        ["", "1", "-1", "True", "0.", "inf", "[1, 2]", "[]", "[True]", "6", "9" * 40, "[[1]]", "1+2j", "None"]
    ),
    st.text(max_size=8),
)


@st.composite
def signatures(draw: st.DrawFn) -> OpSignature:
    n = draw(st.integers(0, 5))
    optional = st.sampled_from([True, True, False])
    return OpSignature(
        name=draw(st.one_of(st.sampled_from(NAMES), st.text(max_size=12))),
        dims=tuple(draw(dims) for _ in range(n)) if draw(optional) else None,
        types=tuple(draw(spelled) for _ in range(n)) if draw(optional) else None,
        strides=tuple(draw(dims) for _ in range(n)) if draw(optional) else None,
        concrete=tuple(draw(texts) for _ in range(draw(st.integers(0, n)))) if draw(optional) else None,
    )


def one_op_each(found: list[OpSignature]) -> Trace:
    n = len(found)
    return Trace(
        info=TraceInfo(path="t.json", dialect="kineto", bytes_read=0, events=n),
        signatures=tuple(found),
        ops=OpTable(
            signature=np.arange(n, dtype=np.uint32),
            start_ns=np.arange(n, dtype=np.int64) * 100,
            dur_ns=np.full(n, 50, dtype=np.int64),
            track=np.zeros(n, dtype=np.int64),
        ),
        tracks=(("1", "1"),),
        kernel_names=(),
        annotations=(),
        kernels=KernelTable.none(),
    )


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(signatures(), min_size=1, max_size=6))
def test_any_metadata_gives_a_plan(found: list[OpSignature]) -> None:
    plan = build_plan(one_op_each(found), select="all")
    assert all(op.reason is not None or op.resolved_by is not None for op in plan.ops)
    if all(op.name for op in plan.ops):
        assert parse_plan(dump_plan(plan)) == plan
    with_outputs(plan)
