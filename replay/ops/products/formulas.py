# pyright: strict
"""Products of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, formula


@formula(
    "vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl vllm::unquantized_gemm",
    "(f32[8,16], f32[24,16], f32[24])",
)
def linear(values: Values) -> Tensor:
    return values["x"] @ values["weight"].mT + values["bias"]


@formula("vllm::gpt_oss_router_gemm", "f32[8,16], f32[24,16], f32[24]")
def router(values: Values) -> Tensor:
    return values["x"] @ values["weight"].mT + values["bias"]


@formula("_rocm_C::wvSplitK _rocm_C::LLMM1", "f32[24,16], f32[4,16]")
def wv_split_k(values: Values) -> Tensor:
    covers(values.get("in_bias") is None, "no bias")
    return values["in_b"] @ values["in_a"].mT


@formula(
    "_C::bf16_skinny_gemm _C::fp32_router_gemm _moe_C::dsv3_router_gemm",
    "f32[8,24], f32[8,16], f32[24,16]",
)
def router_gemm(values: Values) -> Tensor:
    return (values["mat_a"] @ values["mat_b"].mT).to(values["output"].dtype)


@formula("_C::dsv3_fused_a_gemm sgl_kernel::dsv3_fused_a_gemm", "f32[8,24], f32[8,16], f32[16,24]{1,16}")
def fused_a_gemm(values: Values) -> Tensor:
    # vLLM and SGLang give it the weight transposed: column by column in memory.
    return (values["mat_a"] @ values["mat_b"]).to(values["output"].dtype)


@formula("aiter::gemm_a16w16", "(f32[8,16], f32[24,16], f32[24])")
def gemm_a16w16(values: Values) -> Tensor:
    covers(all(values.get(name) is None for name in ("otype", "scale_a", "scale_b", "scale_c")), "the plain form")
    product = values["A"] @ values["B"].mT
    return product if values.get("bias") is None else product + values["bias"]


@formula("aiter::gemm_a16w16_asm", "(f32[8,16], f32[24,16], f32[8,24], i32[1])")
def gemm_into(values: Values) -> Tensor:
    return values["out"].copy_(values["A"] @ values["B"].mT)


@formula("npu::npu_linear", "f32[8,16], f32[24,16], f32[24]")
def npu_linear(values: Values) -> Tensor:
    return values["input"] @ values["weight"].mT + values["bias"]


@formula("npu::npu_bmmV2", "(f32[2,8,16], f32[2,16,24], [])")
def npu_bmm(values: Values) -> Tensor:
    return torch.einsum("bij,bjk->bik", values["self"], values["mat2"])


@formula("_C::permute_cols", "(bf16[8,16], i32[16])")
def permute_cols(values: Values) -> Tensor:
    return values["A"][:, values["perm"].long()]
