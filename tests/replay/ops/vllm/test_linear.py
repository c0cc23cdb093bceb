"""Linear layers under vendors' names against plain products in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Call = Callable[..., Any]
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
A, W, BIAS = torch.randn(5, 64), torch.randn(12, 64), torch.randn(12)
PLAIN = A.double() @ W.double().t()


def blocks(scale: Tensor, rows: int, columns: int, block: int = 32) -> Tensor:
    return (
        scale.repeat_interleave(block, -1)[:, :columns]
        if scale.shape[0] == rows
        else (scale.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns])
    )


@pytest.mark.parametrize(
    ("name", "names", "turned"),
    [
        ("_C::fp32_router_gemm", ("output", "mat_a", "mat_b"), False),
        ("_C::bf16_skinny_gemm", ("output", "mat_a", "mat_b"), False),
        ("_moe_C::dsv3_router_gemm", ("output", "mat_a", "mat_b"), False),
        ("_C::dsv3_fused_a_gemm", ("output", "mat_a", "mat_b"), True),
        ("sglang::dsv3_router_gemm", ("output", "hidden_states", "router_weights"), False),
        ("sglang::flashinfer_dsv3_router_gemm", ("logits", "hidden_states", "weight"), False),
    ],
)
def test_products_that_are_written(
    call: Call, close: Call, name: str, names: tuple[str, str, str], turned: bool
) -> None:
    out = torch.empty(5, 12)
    call(name, **dict(zip(names, (out, A, W.t() if turned else W), strict=True)))
    close(out, PLAIN)


@pytest.mark.parametrize(
    ("name", "arguments", "turned"),
    [
        ("vllm::min_latency_fused_qkv_a_proj", ("input_", "weight"), False),
        ("sglang::cutedsl_dsv3_fused_a_gemm", ("mat_a", "mat_b"), True),
        ("sglang::jit_dsv3_fused_a_gemm", ("mat_a", "mat_b"), True),
        ("_moe_C::router_gemm_bf16_fp32", ("input", "weight"), False),
    ],
)
def test_products_that_are_returned(
    call: Call, close: Call, name: str, arguments: tuple[str, str], turned: bool
) -> None:
    close(call(name, **dict(zip(arguments, (A, W.t() if turned else W), strict=True))), PLAIN)


def test_products_with_a_bias(call: Call, close: Call) -> None:
    for name in (
        "vllm::gpt_oss_router_gemm",
        "vllm::unquantized_gemm",
        "sglang::bf16_gemm_dispatch",
        "sglang::cutedsl_tgv_bf16_gemm",
    ):
        close(call(name, x=A, weight=W, bias=BIAS), PLAIN + BIAS)
    out = torch.empty(5, 12)
    call("sglang::cutedsl_tgv_bf16_gemm_out", x=A, weight=W, out=out, bias=None)
    close(out, PLAIN)
    call("_moe_C::gpt_oss_router_gemm", output=out, input=A, weights=W, bias=BIAS)
    close(out, PLAIN + BIAS)
    wide = call("vllm::fp32_router_gemm_dispatch", x=A.to(BF16), weight=W.to(BF16), allow_bf16x3_router_gemm=True)
    assert wide.dtype == torch.float32
    close(wide, A.to(BF16).double() @ W.to(BF16).double().t())


QA, QW = A.to(FP8), W.to(FP8)
SA, SW = torch.rand(5, 2) + 0.5, torch.rand(1, 2) + 0.5
SCALED = (QA.double() * blocks(SA, 5, 64)) @ (QW.double() * blocks(SW, 12, 64)).t()
NAMES = {
    "vllm::w8a8_block_fp8_matmul_deepgemm": ("A", "B", "As", "Bs", "output_dtype"),
    "vllm::rocm_aiter_gemm_a8w8_blockscale_bpreshuffle": ("A", "B", "As", "Bs", "output_dtype"),
    "vllm::w8a8_triton_block_scaled_mm_func": ("qx", "weight", "x_scale", "weight_scale", "output_dtype"),
    "vllm::padded_cutlass": ("qx", "weight", "x_scale", "weight_scale", "output_dtype"),
    "vllm::dynamic_padded_cutlass": ("qx", "weight", "x_scale", "weight_scale", "output_dtype"),
    "sglang::flashinfer_gemm_fp8_nt_groupwise": ("q_input", "weight", "x_scale", "weight_scale", "out_dtype"),
}


@pytest.mark.parametrize("name", NAMES)
def test_block_scales(call: Call, close: Call, name: str) -> None:
    given = dict(zip(NAMES[name], (QA, QW, SA, SW, torch.float32), strict=True))
    if "triton" in name or "deepgemm" in name or "padded" in name:
        given["block_size"] = [32, 32]
    close(call(name, **given), SCALED, 10)


def test_block_scales_that_are_written(call: Call, close: Call) -> None:
    out = torch.empty(5, 12)
    call(
        "vllm::fp8_gemm_nt_op",
        q_input=QA,
        input_scale=SA,
        weight=QW,
        weight_scale=SW,
        output=out,
        use_deep_gemm_e8m0=False,
    )
    close(out, SCALED, 10)
    call("sglang::deep_gemm_fp8_fp8_bf16_nt", A=QA, As=SA, B=QW, Bs=SW, C=out)
    close(out, SCALED, 10)
    call("sglang::fp8_blockwise_scaled_mm", out=out, mat_a=QA, mat_b=QW.t(), scales_a=SA, scales_b=SW.t())
    close(out, SCALED, 10)


def test_inputs_that_are_quantised_on_the_way(call: Call) -> None:
    wide = A.repeat(1, 2)
    weight = torch.randn(12, 128).to(FP8)
    scale = torch.tensor([[0.5]])
    wanted = wide.double() @ (weight.double() * 0.5).t()
    found = [
        call("vllm::apply_w8a8_block_fp8_linear", input=wide, weight=weight, block_size=[128, 128], weight_scale=scale),
        call("vllm::flashinfer_fp8_blockscale_gemm", input=wide, weight=weight, weight_scale=scale),
        call(
            "vllm::dynamic_flashinfer_deepgemm_blockscale_gemm",
            input=wide,
            weight=weight,
            weight_scale=scale,
            group_size=128,
            use_deep_gemm_e8m0=False,
        ),
    ]
    for product in found:
        assert (product.double() - wanted).norm() < 0.05 * wanted.norm()


def test_one_scale_each(call: Call, close: Call) -> None:
    half, two = torch.tensor([0.5]), torch.tensor([2.0])
    wanted = QA.double() @ QW.double().t()
    common = {"A": QA, "B": QW.t(), "out_dtype": torch.float32, "As": half, "Bs": two, "bias": BIAS}
    close(call("vllm::rocm_per_tensor_float_w8a8_scaled_mm_impl", **common), wanted + BIAS, 10)
    close(
        call(
            "vllm::rocm_per_tensor_w8a8_scaled_mm_impl",
            qinput=QA,
            weight=QW.t(),
            out_dtype=torch.float32,
            scale_a=half,
            scale_b=two,
            bias=BIAS,
        ),
        wanted + BIAS,
        10,
    )
    close(
        call(
            "sglang::flashinfer_bmm_fp8",
            q_input=QA,
            weight=QW.t(),
            x_scale=half,
            weight_scale=two,
            out_dtype=torch.float32,
        ),
        wanted,
        10,
    )
    close(call("vllm::rocm_aiter_hipb_mm_fp8", A=QA, B=QW, As=half, Bs=two, output_dtype=torch.float32), wanted, 10)
    close(
        call(
            "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
            A=QA,
            B=QW,
            As=torch.full((5, 1), 0.5),
            Bs=torch.full((12, 1), 2.0),
            output_dtype=torch.float32,
        ),
        wanted,
        10,
    )
    out = torch.empty(5, 12)
    call("_C::cutlass_scaled_mm_dq", out=out, a=QA, b=QW.t(), a_scales=half, b_scales=two)
    close(out, wanted, 10)


def test_batches_of_fp8(call: Call, close: Call) -> None:
    a, b = torch.randn(3, 4, 8).to(FP8), torch.randn(3, 8, 6).to(FP8)
    scales = {"A_scale": torch.tensor(0.5), "B_scale": torch.tensor(4.0)}
    wanted = 2 * (a.double() @ b.double())
    close(call("vllm::bmm_fp8", A=a, B=b, dtype=torch.float32, backend="", **scales), wanted, 10)
    for name in ("sglang::_bmm_fp8_op", "sglang::flashinfer_bmm_fp8_batched"):
        out = torch.empty(3, 4, 6)
        call(name, A=a, B=b, out=out, **scales)
        close(out, wanted, 10)
