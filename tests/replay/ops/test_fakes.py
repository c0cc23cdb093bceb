"""Fake kernels promise what the real ones deliver; schemas tell the truth about writes; all run on meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.ops import register as reference

Op = Callable[[str], Any]
F32, BF16, I32, FP8 = torch.float32, torch.bfloat16, torch.int32, torch.float8_e4m3fn


def x(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape).to(dtype)


def n(*values: int) -> Tensor:
    return torch.tensor(values, dtype=I32)


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=I32)


ATTEND = (0.0, 0.4, True, -1, -1)
PREFILL = (5, 9, 0.0, 0.4, 0.0, False, True, -1, -1, 0, True, False)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "_C::rms_norm": ((x(4, 8), x(4, 8), x(8), 1e-6), {}),
    "_C::fused_add_rms_norm": ((x(4, 8), x(4, 8), x(8), 1e-6), {}),
    "_C::silu_and_mul": ((x(4, 8), x(4, 16)), {}),
    "_C::rotary_embedding": ((torch.arange(4), x(4, 16), x(4, 8), 8, x(9, 8), True), {}),
    "_C::dynamic_scaled_int8_quant": ((ids(4, 8).to(torch.int8), x(4, 8), x(4, 1), ids(4, 1)), {}),
    "_C::weak_ref_tensor": ((x(4, 8),), {}),
    "_C::cutlass_scaled_mm": ((x(4, 6), x(4, 8), x(8, 6), x(4, 1), x(1, 6), None), {}),
    "_C::awq_dequantize": ((ids(16, 2), x(2, 16), ids(2, 2), 0, 0, 0), {}),
    "_C_cache_ops::reshape_and_cache_flash": (
        (x(3, 2, 8), x(3, 2, 8), x(2, 4, 2, 8), x(2, 4, 2, 8), torch.arange(3), "auto", x(1), x(1)),
        {},
    ),
    "_moe_C::topk_softmax": ((x(4, 2), ids(4, 2), ids(4, 2), x(4, 8), True, None, None), {}),
    "_moe_C::grouped_topk": ((x(4, 8), 2, 1, 2, True, 1.0, x(8), 0), {}),
    "_moe_C::moe_align_block_size": ((ids(4, 2), 3, 4, ids(17), ids(5), ids(1), None), {}),
    "_rocm_C::wvSplitK": ((x(6, 8), x(2, 8), None, 80), {}),
    "vllm::rocm_aiter_rms_norm": ((x(4, 8), x(8), 1e-6), {}),
    "vllm::rocm_aiter_rmsnorm2d_fwd_with_add": ((x(4, 8), x(4, 8), x(8), 1e-6), {}),
    "vllm::rocm_unquantized_gemm": ((x(2, 4, 8), x(6, 8), x(6)), {}),
    "vllm::unified_attention_with_output": ((x(4, 2, 8), x(4, 2, 8), x(4, 2, 8), x(4, 2, 8), ""), {}),
    "vllm::unified_attention": ((x(4, 2, 8), x(4, 2, 8), x(4, 2, 8), ""), {}),
    "vllm::unified_kv_cache_update": ((x(4, 2, 8), x(4, 2, 8), ""), {}),
    "vllm::unified_mla_attention": ((x(4, 2, 12), x(4, 8), x(4, 4), "", None), {}),
    "vllm::moe_forward": ((x(4, 8), x(4, 4), None, None, "", 8), {}),
    "vllm::moe_forward_shared": ((x(4, 8), x(4, 4), None, None, "", 8), {}),
    "vllm::outplace_fused_experts": ((x(4, 8), x(3, 12, 8), x(3, 8, 6), x(4, 2), ids(4, 2)), {}),
    "vllm::rocm_aiter_group_fp8_quant": ((x(4, 256), 128), {}),
    "vllm::rocm_aiter_gemm_a8w8": ((x(4, 8), x(6, 8), x(4, 1), x(6, 1)), {}),
    "_vllm_fa2_C::varlen_fwd": (
        (
            x(4, 2, 8),
            x(4, 2, 8),
            x(4, 2, 8),
            None,
            n(0, 4),
            n(0, 4),
            None,
            None,
            None,
            None,
            4,
            4,
            0.0,
            0.4,
            False,
            True,
            -1,
            -1,
            0.0,
            False,
            0,
            None,
        ),
        {},
    ),
    "flash_attn::_flash_attn_forward": ((x(2, 4, 2, 8), x(2, 5, 2, 8), x(2, 5, 2, 8), *ATTEND, 0.0, None, False), {}),
    "flash_attn::_flash_attn_varlen_forward": (
        (x(4, 2, 8), x(4, 2, 8), x(4, 2, 8), n(0, 4), n(0, 4), 4, 4, 0.0, 0.4, True),
        {},
    ),
    "xformers_flash::flash_fwd": (
        (x(2, 4, 2, 8), x(2, 5, 2, 8), x(2, 5, 2, 8), None, None, None, 4, 5, 0.0, 0.4, True, -1, -1, False, None),
        {},
    ),
    "xformers_flash3::flash_fwd": (
        (x(4, 2, 8), x(4, 2, 8), x(4, 2, 8), n(0, 4), n(0, 4), None, None, 4, 4, 0.0, 0.4, True),
        {},
    ),
    "flash_attn::_flash_attn_backward": (
        (*(x(2, 4, 2, 8) for _ in range(5)), x(2, 2, 4), *(x(2, 4, 2, 8) for _ in range(3)), *ATTEND, 0.0, None, False),
        {},
    ),
    "aiter::rms_norm": ((x(4, 8), x(8), 1e-6), {}),
    "aiter::add_rmsnorm": ((x(4, 8), x(4, 8), x(4, 8), x(4, 8), x(8), 1e-6), {}),
    "aiter::gemm_a16w16": ((x(4, 8), x(6, 8), None, BF16), {}),
    "aiter::fmha_v3_fwd": ((x(2, 4, 2, 8), x(2, 4, 2, 8), x(2, 4, 2, 8), *ATTEND, True, False, 1), {}),
    "aiter::mha_batch_prefill": (
        (x(4, 2, 8), x(9, 2, 8), x(9, 2, 8), n(0, 4), n(0, 5), torch.arange(5, dtype=I32), *PREFILL),
        {},
    ),
    "aiter::per_group_quant_hip": ((x(4, 256), None, FP8, 128, True), {}),
    "aiter::fused_moe_": ((x(4, 8), x(3, 12, 8), x(3, 8, 6), x(4, 2), ids(4, 2)), {"dtype": BF16}),
    "sgl_kernel::silu_and_mul": ((x(4, 8), x(4, 16)), {}),
    "sgl_kernel::moe_fused_gate": ((x(4, 8), x(8), 2, 1, 2, 0, 1.0, False), {}),
    "sglang::store_cache": (
        (x(3, 8), x(3, 8), x(6, 8), x(6, 8), torch.tensor([1, 2, 3])),
        {"row_bytes": 32, "reserved_skip_index": 0},
    ),
    "fbgemm::asynchronous_complete_cumsum": ((n(1, 2, 3),), {}),
    "fbgemm::offsets_range": ((n(0, 2), 4), {}),
    "fbgemm::permute_2D_sparse_data": ((n(1, 0), n(2, 1).reshape(2, 1), x(3), x(3), 3), {}),
    "fbgemm::permute_pooled_embs_auto_grad": ((x(2, 3), n(0, 1, 3), n(1, 0), n(0, 2, 3), n(1, 0)), {}),
    "fbgemm::block_bucketize_sparse_features": ((n(2, 1), n(0, 5, 3), True, True, n(4), 2, x(3)), {}),
    "fbgemm::dense_embedding_codegen_lookup_function": (
        (x(20), torch.tensor([0]), n(0, 4), 4, 4, torch.tensor([0, 5]), 3, n(0, 4), n(0, 1, 2), 0, None, None),
        {},
    ),
    "fbgemm::FloatToFP8RowwiseQuantized": ((x(4, 10), True), {}),
    "fbgemm::FloatToHFP8Quantized": ((x(4, 10).clamp(-0.9, 0.9), 4, 15, 0.9375), {}),
    "fb::to_dense_representation": ((x(4), n(1, 1, 1, 1), n(0, 2, 1, 0), 3, 0), {}),
    "npu::npu_rms_norm": ((x(4, 8), x(8)), {}),
    "npu::npu_swiglu": ((x(4, 8),), {}),
    "npu::npu_dtype_cast": ((x(4, 8), torch.float16), {}),
    "npu::npu_scatter_nd_update_": ((x(4, 8), ids(1, 1), x(1, 8)), {}),
    "npu::npu_quant_matmul": ((ids(4, 8).to(torch.int8), ids(8, 6).to(torch.int8), x(6)), {"output_dtype": BF16}),
    "npu::npu_fusion_attention": ((x(2, 2, 4, 8), x(2, 2, 4, 8), x(2, 2, 4, 8), 2, "BNSD"), {}),
    "npu::npu_fused_infer_attention_score": (
        (x(2, 4, 16), x(2, 4, 16), x(2, 4, 16)),
        {"num_heads": 2, "scale": 0.4, "softmax_lse_flag": True},
    ),
    "npu::npu_moe_init_routing_v2": ((x(4, 8), ids(4, 2)), {"expert_num": 3, "active_expert_range": [0, 3]}),
    "npu::npu_moe_gating_top_k": ((x(4, 8), 2), {"out_flag": True}),
    "npu::npu_grouped_matmul": (
        ([x(4, 8)], [x(2, 8, 6)]),
        {"group_list": torch.tensor([1, 4]), "split_item": 3, "group_type": 0},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.*is deprecated.*:DeprecationWarning")
def test_schema_and_fake_tell_the_truth(op: Op, name: str) -> None:
    args, kwargs = CALLS[name]
    overload = op(name).default
    torch.library.opcheck(overload, args, kwargs, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", [name for name in CALLS if "grouped_matmul" not in name])
def test_meta_tensors_give_the_shapes_of_a_real_run(op: Op, name: str) -> None:
    args, kwargs = CALLS[name]

    def meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, Tensor) else value

    real = op(name)(*args, **kwargs)
    found = op(name)(*map(meta, args), **{key: meta(value) for key, value in kwargs.items()})
    for one, other in zip(_tensors(real), _tensors(found), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert other.is_meta


def _tensors(value: Any) -> list[Tensor]:
    return [item for item in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(item, Tensor)]


def test_ops_that_only_write_run_on_meta_tensors() -> None:
    reference.register_namespace("sgl_kernel")
    out = torch.empty(4, 8, device="meta")
    assert torch.ops.sgl_kernel.silu_and_mul(out, torch.empty(4, 16, device="meta")) is None


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives(op: Op, subtests: pytest.Subtests) -> None:
    """One test with a part for each op, so that a machine without a GPU skips one test and not sixty."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        return value.to("cuda") if isinstance(value, Tensor) else value

    for name, (args, kwargs) in CALLS.items():
        with subtests.test(name):
            here = [value.clone() if isinstance(value, Tensor) else value for value in args]
            there = [moved(value) for value in here]
            real = _tensors(op(name)(*here, **kwargs))
            found = _tensors(op(name)(*there, **{key: moved(value) for key, value in kwargs.items()}))
            for one, other in zip([*real, *_tensors(here)], [*found, *_tensors(there)], strict=True):
                torch.testing.assert_close(other.cpu().double(), one.double(), rtol=1e-2, atol=1e-2)
