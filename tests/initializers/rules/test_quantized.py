"""Quantised operands use their codes, and their scales keep results finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.dense import DenseInit
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.quantisation.reference_fbgemm import fp8_rowwise_to_float


def initialize(op: str, args: dict[str, Any], seed: int = 0) -> Any:
    registry = built_in()
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(seed), seed=seed)
    DenseInit().initialize(context)
    rule = registry.find(context)
    assert rule is not None
    assert rule.name == "quantized"
    return registry.apply(rule, context)


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_packed_weights_hold_all_codes() -> None:
    args = {
        "a": empty(4, 256, dtype=torch.float16),
        "b_q_weight": empty(32, 128, dtype=torch.int32),
        "b_gptq_qzeros": empty(2, 16, dtype=torch.int32),
        "b_gptq_scales": empty(2, 128, dtype=torch.float16),
        "b_g_idx": empty(256, dtype=torch.int32),
        "use_exllama": True,
        "bit": 4,
    }
    initialize("_C::gptq_gemm", args)
    nibbles = torch.stack([args["b_q_weight"] >> shift & 15 for shift in range(0, 32, 4)]).flatten()
    assert (torch.bincount(nibbles, minlength=16) > len(nibbles) / 32).all()
    assert args["b_g_idx"].tolist() == [0] * 128 + [1] * 128
    assert 0 < float(args["b_gptq_scales"].min()) <= float(args["b_gptq_scales"].max()) < 0.03


def test_int8_products_stay_within_half_precision() -> None:
    args = {
        "out": empty(64, 64, dtype=torch.float16),
        "a": empty(64, 8192, dtype=torch.int8),
        "b": empty(8192, 64, dtype=torch.int8),
        "a_scales": empty(64, 1, dtype=torch.float32),
        "b_scales": empty(1, 64, dtype=torch.float32),
        "bias": None,
    }
    initialize("_C::cutlass_scaled_mm", args)
    assert (int(args["a"].min()), int(args["a"].max())) == (-127, 127)
    product = args["a"].float() @ args["b"].float() * args["a_scales"] * args["b_scales"]
    assert product.half().isfinite().all()
    assert float(product.std()) > 10


def test_orders_are_orders_and_workspaces_are_zero() -> None:
    args = {
        "a": empty(4, 64, dtype=torch.float16),
        "b_q_weight": empty(4, 128, dtype=torch.int32),
        "b_scales": empty(1, 64, dtype=torch.float16),
        "perm": empty(64, dtype=torch.int32),
        "workspace": empty(9, dtype=torch.int32),
    }
    initialize("_C::gptq_marlin_gemm", args)
    assert sorted(args["perm"].tolist()) == list(range(64))
    assert not args["workspace"].any()


def test_rows_with_their_own_scale() -> None:
    args = {"input": empty(50, 72, dtype=torch.uint8), "forward": True}
    initialize("fbgemm::FP8RowwiseQuantizedToFloat", args)
    values = fp8_rowwise_to_float(args["input"], True)
    assert values.isfinite().all()
    assert len(values.unique()) > 50
    assert len(args["input"][:, :64].unique()) == 240


@pytest.mark.parametrize(
    ("op", "args", "run"),
    [
        (
            "aten::_int_mm",
            {"self": empty(32, 64, dtype=torch.int8), "mat2": empty(64, 32, dtype=torch.int8)},
            torch.ops.aten._int_mm,
        ),
        (
            "aten::_weight_int8pack_mm",
            {
                "self": empty(8, 64, dtype=torch.bfloat16),
                "mat2": empty(32, 64, dtype=torch.int8),
                "scales": empty(32, dtype=torch.bfloat16),
            },
            torch.ops.aten._weight_int8pack_mm,
        ),
        (
            "aten::fake_quantize_per_channel_affine_cachemask",
            {
                "self": empty(8, 64, dtype=torch.float32),
                "scale": empty(8, dtype=torch.float32),
                "zero_point": empty(8, dtype=torch.int32),
                "axis": 0,
                "quant_min": 0,
                "quant_max": 15,
            },
            torch.ops.aten.fake_quantize_per_channel_affine_cachemask,
        ),
        (
            "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
            {
                "self": empty(8, 64, dtype=torch.float32),
                "scale": empty(1, dtype=torch.float32),
                "zero_point": empty(1, dtype=torch.int32),
                "fake_quant_enabled": empty(1, dtype=torch.int64),
                "quant_min": -8,
                "quant_max": 7,
            },
            torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
        ),
    ],
)
def test_torch_takes_them(op: str, args: dict[str, Any], run: Any) -> None:
    initialize(op, args)
    result = run(*args.values())
    out = result[0] if isinstance(result, tuple) else result
    assert out.float().isfinite().all()
    assert len(out.unique()) > 4
    if isinstance(result, tuple):
        assert bool(result[1].any())


def test_bytes_of_8_bit_floats() -> None:
    args = {"input": empty(5000, dtype=torch.uint8), "ebits": 4, "exponent_bias": 15}
    initialize("fbgemm::HFP8QuantizedToFloat", args)
    assert len(args["input"].unique()) == 240, "all codes but those whose exponent is all ones"
    assert not (args["input"] & 0x78 == 0x78).any()
