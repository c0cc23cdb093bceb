# pyright: strict
"""Ops of the family `mixed`: cost on a device, initializer and counter of work of each."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import moe, paged
from opreplay.replay.ops.costs.moves import movement
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.products import matmul
from opreplay.replay.ops.costs.rows import norms
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "mixed",
    "fused experts",
    """
        sglang::inplace_fused_experts sglang::outplace_fused_experts vllm::rocm_aiter_fused_moe
    """,
    cost=moe.fused_experts,
    inputs="moe_routing",
    role="chosen",
)
family(
    "mixed",
    "gating",
    """
        vllm::rocm_aiter_biased_grouped_topk vllm::rocm_aiter_grouped_topk vllm::rocm_aiter_topk_sigmoid
        vllm::rocm_aiter_topk_softmax
    """,
    cost=moe.gating,
    inputs="moe_routing",
    role="router",
)
family(
    "mixed",
    "paged",
    """
        sgl_kernel::fwd sglang::unified_attention_with_output sglang_profiler::attention_paged_attention_ragged
        sglang_profiler::mha__mha_batch_prefill
    """,
    cost=paged.paged,
    inputs="paged_attention",
)
family(
    "mixed",
    "cache copy",
    """
        aiter::copy_blocks aiter::swap_blocks
        aiter::concat_and_cache_mla inputs=cache_slots
    """,
    cost=movement.cache_copy,
    inputs="row_numbers",
)
family(
    "mixed",
    "cache write",
    """
        sglang::store_cache sglang_profiler::memory_pool__set_kv_buffer_impl
    """,
    cost=movement.cache_write,
    inputs="cache_slots",
)
family(
    "mixed",
    "dynamic quantize",
    """
        aiter::smoothquant_fwd sgl_kernel::sgl_per_token_group_quant_8bit sgl_kernel::sgl_per_token_group_quant_fp8
        sgl_kernel::sgl_per_token_group_quant_int8 sgl_kernel::sgl_per_token_quant_fp8
        vllm::rocm_aiter_group_fp8_quant vllm::rocm_aiter_per_tensor_quant vllm::rocm_aiter_per_token_quant
        aiter::dynamic_per_group_scaled_quant aiter::moe_smoothquant_fwd inputs=row_numbers
        aiter::smooth_per_token_scaled_quant inputs=row_numbers
    """,
    cost=elementwise.dynamic_quantize,
)
family(
    "mixed",
    "geglu",
    """
        sgl_kernel::gelu_and_mul sgl_kernel::gelu_tanh_and_mul
    """,
    cost=elementwise.geglu,
)
family(
    "mixed",
    "quantize",
    """
        sgl_kernel::sgl_per_tensor_quant_fp8
    """,
    cost=elementwise.quantize,
)
family(
    "mixed",
    "rope",
    """
        sgl_kernel::apply_rope_pos_ids_cos_sin_cache sgl_kernel::rotary_embedding sglang::apply_rope_inplace
        vllm::flashinfer_rotary_embedding
        vllm::rocm_aiter_triton_rotary_embedding inputs=row_numbers
    """,
    cost=elementwise.rope,
    inputs="positions",
)
family(
    "mixed",
    "swiglu",
    """
        aiter::silu_and_mul_quant aiter::swiglu_and_mul sgl_kernel::silu_and_mul
        vllm::rocm_aiter_act_mul_and_fp8_group_quant
    """,
    cost=elementwise.swiglu,
)
family(
    "mixed",
    "quantized",
    """
        sgl_kernel::bmm_fp8 vllm::rocm_aiter_triton_gemm_a8w8_blockscale vllm::rocm_aiter_w8a8_gemm
        sgl_kernel::fp8_blockwise_scaled_mm sgl_kernel::fp8_scaled_mm sgl_kernel::int8_scaled_mm inputs=quantized
        vllm::rocm_aiter_gemm_a8w8 vllm::rocm_aiter_gemm_a8w8_blockscale vllm::rocm_aiter_gemm_w8a8 inputs=quantized
        vllm::rocm_aiter_gemm_w8a8_blockscale inputs=quantized
    """,
    cost=matmul.quantized,
)
family(
    "mixed",
    "add rms norm",
    """
        aiter::_fused_rmsnorm_add aiter::add_rmsnorm_quant aiter::fused_add_rms_norm_cu
        aiter::rmsnorm2d_fwd_with_add_smoothquant sgl_kernel::fused_add_rmsnorm sgl_kernel::gemma_fused_add_rmsnorm
        sglang_profiler::rmsnorm_rmsnorm2d_fwd_with_add vllm::rocm_aiter_rmsnorm2d_fwd_with_add
        vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant
        vllm::rocm_aiter_triton_add_rmsnorm_pad
    """,
    cost=norms.add_rms_norm,
)
family(
    "mixed",
    "layer norm",
    """
        aiter::layer_norm
    """,
    cost=norms.layer_norm,
)
family(
    "mixed",
    "vendor rms norm",
    """
        aiter::_fused_rmsnorm aiter::rmsnorm2d_fwd_with_smoothquant sgl_kernel::gemma_rmsnorm sgl_kernel::rmsnorm
        sglang_profiler::rmsnorm_rmsnorm2d_fwd vllm::rocm_aiter_rms_norm vllm::rocm_aiter_rmsnorm_fp8_group_quant
        vllm::rocm_aiter_rmsnorm_fused_dynamic_quant
    """,
    cost=norms.vendor_rms_norm,
)
family(
    "mixed",
    "not predicted",
    """
        sglang_profiler::utils__reshape_for_qk_norm sglang_profiler::utils_apply_qk_norm
    """,
    uncosted="a wrapper in Python: the ops inside are recorded apart",
)
family(
    "mixed",
    "added layer norm",
    """
        aiter::layernorm2d_fwd_with_add_smoothquant aiter::layernorm2d_with_add_asm
        aiter::layernorm2d_with_add_smoothquant_asm
    """,
    cost=shared.added_layer_norm,
)
family(
    "mixed",
    "merged attention",
    """
        sgl_kernel::merge_state sgl_kernel::merge_state_v2
    """,
    cost=shared.merged_attention,
)
family(
    "mixed",
    "layer norm quantised",
    """
        aiter::layernorm2d_fwd_with_smoothquant
    """,
    cost=shared.layer_norm_quantised,
)
family(
    "mixed",
    "norm of each",
    """
        aiter::_fused_qk_rmsnorm_kernel
    """,
    cost=shared.norm_of_each,
)
family(
    "mixed",
    "named product",
    """
        sgl_kernel::dsv3_fused_a_gemm sgl_kernel::dsv3_router_gemm
    """,
    cost=shared.named_product,
)
family(
    "mixed",
    "one kernel over the widest tensor",
    """
        aiter::add kernel=Add
        aiter::gelu_fast sgl_kernel::gelu_quick kernel=Gelu
        aiter::mul kernel=Mul
        aiter::div kernel=RealDiv
        aiter::sigmoid kernel=Sigmoid
        aiter::sub kernel=Sub
        aiter::tanh kernel=Tanh
        sglang_profiler::forward_batch_info_compute_position kernel=Cumsum inputs=new_tokens
        sglang_profiler::forward_batch_info_compute_position_triton kernel=Cumsum inputs=new_tokens
    """,
    kernels=shared.widest,
)
family(
    "mixed",
    "without a cost of their own",
    """
        aiter::add_ aiter::div_ aiter::mul_ aiter::sub_
        aiter::batched_rotary_embedding aiter::fused_rope_rms aiter::rotary_embedding_fwd inputs=positions
    """,
)
