"""Vendors' names that share another family's rule: a sample becomes the kernels that the work calls for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from opreplay.replay.ascend import lower
from opreplay.replay.ascend.cost.cube import gemm_of
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta
from tests.factories import meta as any_meta

RECORDED = Recorded(host_us_total=1.0, host_us_median=1.0)


meta = partial(any_meta, dtype="bfloat16")


def op(name: str, **args: Any) -> ReplayOp:
    made = tuple(
        ReplayArg(name=key, type="Tensor", tensors=(value,))
        if isinstance(value, TensorMeta)
        else ReplayArg(name=key, type="Scalar", value=value)
        for key, value in args.items()
    )
    return ReplayOp(id="0" * 12, name=name, count=1, recorded=RECORDED, args=made)


@pytest.mark.parametrize(
    ("called", "types"),
    [
        (op("_C::fp32_router_gemm", out=meta(64, 8), mat_a=meta(64, 512), mat_b=meta(8, 512)), ["MatMulV3"]),
        (op("aiter::hipb_mm", mat1=meta(64, 512), mat2=meta(512, 256), solution_index=0), ["MatMulV3"]),
        (op("sglang::fused_topk_deepseek", gating_output=meta(64, 256), bias=meta(256), topk=8), None),
        (op("npu::npu_mish", input=meta(64, 512)), ["Mish"]),
        (op("aiter::sub", input=meta(64, 512), other=meta(1, 512)), ["Sub"]),
        (op("fbgemm::jagged_to_padded_dense", values=meta(600, 64), offsets=[], max_lengths=[]), ["PadV3"]),
    ],
    ids=lambda value: value.name if isinstance(value, ReplayOp) else "",
)
def test_sample_names(called: ReplayOp, types: list[str] | None) -> None:
    lowering = lower(called)
    assert lowering.known
    assert lowering.kernels
    if types:
        assert [one.type for one in lowering.kernels] == types


def test_products_find_the_inner_dimension_either_way() -> None:
    for weight in (meta(256, 512), meta(512, 256)):
        (one,) = lower(op("sglang::bf16_gemm_dispatch", x=meta(64, 512), weight=weight)).kernels
        gemm = gemm_of(one)
        assert gemm is not None
        assert (gemm.m, gemm.n, gemm.k) == (64, 256, 512)


def test_groups_of_rows_are_one_product_each() -> None:
    dynamic = op(
        "fbgemm::f8f8bf16_rowwise_grouped_dynamic",
        XQ=meta(4, 32, 512),
        WQ=meta(4, 256, 512),
        x_scale=meta(4, 32, dtype="float32"),
        w_scale=meta(4, 256, dtype="float32"),
    )
    gemm = gemm_of(lower(dynamic).kernels[0])
    assert gemm is not None
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == (4, 32, 256, 512)
    stacked = op(
        "fbgemm::f8f8bf16_rowwise_grouped_stacked",
        XQ=meta(128, 512),
        WQ=meta(4, 256, 512),
        x_scale=meta(128, dtype="float32"),
        w_scale=meta(4, 256, dtype="float32"),
    )
    assert [one.type for one in lower(stacked).kernels] == ["GroupedMatmul"]
