# pyright: strict
"""Device costs, initializers and work counters of the `experts` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import moe
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.products import weight_only
from opreplay.replay.ops.costs.vendor import products
from opreplay.replay.ops.table import family

family(
    "experts",
    "combining",
    """
        aiter::moe_sum sgl_kernel::moe_sum sgl_kernel::moe_sum_reduce npu::npu_moe_finalize_routing_v2
        sgl_kernel::apply_shuffle_mul_sum inputs=index role=permutation,input,0
        _moe_C::moe_sum inputs=moe_routing role=summed
        _moe_C::moe_unpermute npu::npu_moe_finalize_routing inputs=moe_routing role=returned
        npu::npu_moe_token_permute_grad npu::npu_moe_token_unpermute inputs=moe_routing role=returned
        npu::npu_moe_token_unpermute_grad inputs=moe_routing role=returned
        aiter::_moe_sum like=aiter::moe_sum
        sgl_kernel::ep_moe_post_reorder inputs=row_numbers role=post_reorder
    """,
    cost=moe.finalize_routing,
)
family(
    "experts",
    "fused experts",
    """
        aiter::fmoe aiter::fmoe_fp8_blockscale_g1u1 aiter::fmoe_g1u1 aiter::fmoe_g1u1_a16 role=stage
        aiter::fmoe_g1u1_tkw1 role=stage
        sglang::outplace_fused_experts vllm::fused_experts role=chosen
        vllm::outplace_fused_experts vllm::rocm_aiter_fused_moe role=chosen
        aiter::ck_moe inputs= role=
        aiter::fused_moe_ like=vllm::rocm_aiter_fused_moe activation_method=activation output_dtype=dtype \
            role=chosen
        vllm::inplace_fused_experts like=vllm::outplace_fused_experts into=hidden_states role=chosen
        sglang::inplace_fused_experts like=sglang::outplace_fused_experts into=hidden_states role=chosen
    """,
    cost=moe.fused_experts,
    inputs="moe_routing",
    role="sorted",
)
family(
    "experts",
    "gating",
    """
        _moe_C::grouped_topk _moe_C::topk_sigmoid _moe_C::topk_softmax aiter::grouped_topk aiter::moe_fused_gate
        aiter::topk_gating_fwd aiter::topk_sigmoid aiter::topk_softplus npu::npu_moe_gating_top_k
        npu::npu_moe_gating_top_k_softmax npu::npu_moe_gating_top_k_softmax_v2 sgl_kernel::moe_fused_gate
        sgl_kernel::topk_sigmoid sgl_kernel::topk_softmax vllm::rocm_aiter_biased_grouped_topk
        vllm::rocm_aiter_grouped_topk vllm::rocm_aiter_topk_softmax
        _C_ascend::moe_gating_top_k like=npu::npu_moe_gating_top_k bias=bias_opt
        vllm::rocm_aiter_topk_sigmoid like=aiter::topk_sigmoid
        aiter::topk_softmax aiter::topk_softmax_asm like=vllm::rocm_aiter_topk_softmax renormalize=need_renorm
        aiter::biased_grouped_topk_hip like=vllm::rocm_aiter_biased_grouped_topk
    """,
    cost=moe.gating,
    inputs="moe_routing",
    role="router",
)
family(
    "experts",
    "grouped product",
    """
        _C::cutlass_blockwise_scaled_grouped_mm sgl_kernel::es_fp8_blockwise_scaled_grouped_mm
        sgl_kernel::fp8_blockwise_scaled_grouped_mm
        npu::npu_grouped_matmul inputs=moe_routing role=groups
        _C::cutlass_moe_mm like=_C::cutlass_blockwise_scaled_grouped_mm output=out_tensors a=a_tensors b=b_tensors \
            scales_a=a_scales scales_b=b_scales
    """,
    cost=moe.grouped_product,
    inputs="group_sizes",
)
family(
    "experts",
    "routing",
    """
        _moe_C::shuffle_rows inputs=index role=dst2src_map,input_tensor,0
        _C::get_cutlass_moe_mm_data _C::get_cutlass_moe_mm_problem_sizes inputs=moe_routing role=chosen
        _moe_C::moe_align_block_size _moe_C::moe_lora_align_block_size inputs=moe_routing role=chosen
        _moe_C::moe_permute aiter::moe_align_block_size aiter::moe_sorting_fwd inputs=moe_routing role=chosen
        aiter::moe_sorting_opus_fwd npu::npu_moe_init_routing inputs=moe_routing role=chosen
        npu::npu_moe_init_routing_v2 npu::npu_moe_token_permute inputs=moe_routing role=chosen
        sgl_kernel::get_cutlass_w4a8_moe_mm_data inputs=moe_routing role=chosen
        sgl_kernel::moe_align_block_size inputs=moe_routing role=numbered_from_one
        sgl_kernel::prepare_moe_input inputs=moe_routing role=chosen
        _moe_C::batched_moe_align_block_size npu::npu_moe_compute_expert_tokens inputs=moe_routing role=groups
        _moe_C::moe_permute_with_scratch like=_moe_C::moe_permute inputs=moe_routing role=chosen
        _moe_C::sgl_moe_align_block_size _C::moe_align_block_size like=_moe_C::moe_align_block_size \
            inputs=moe_routing role=chosen
        _C::get_cutlass_batched_moe_mm_data _C::get_cutlass_pplx_moe_mm_data inputs=row_numbers role=full_experts
        _C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets inputs=row_numbers role=equal_experts
        sgl_kernel::ep_moe_pre_reorder inputs=row_numbers role=pre_reorder
        sglang::moe_permute_prepare_out inputs=row_numbers role=permuted_tokens
        sgl_kernel::shuffle_rows like=_moe_C::shuffle_rows input_tensor=input output_tensor=output inputs=index \
            role=dst2src_map,input,0
    """,
    cost=moe.routing,
)
family(
    "experts",
    "routing by rank",
    "npu::npu_moe_re_routing inputs=row_numbers role=rank_tokens",
    cost=moe.re_routing,
)
family(
    "experts",
    "stages",
    "aiter::ck_moe_stage1 aiter::ck_moe_stage2 aiter::moe_stage1_g1u1",
    cost=moe.stages,
    inputs="moe_routing",
    role="stage",
)
family(
    "experts",
    "swiglu",
    """
        _C::persistent_masked_m_silu_mul_quant _C::silu_mul_fp8_quant_deep_gemm_cuda role=full_counts
        sgl_kernel::ep_moe_silu_and_mul role=reordered_experts
    """,
    cost=elementwise.swiglu,
    inputs="row_numbers",
)
family(
    "experts",
    "experts product",
    "_moe_C::moe_wna16_gemm _moe_C::moe_wna16_marlin_gemm sgl_kernel::moe_wna16_marlin_gemm",
    cost=weight_only.experts_product,
    inputs="moe_routing",
    role="sorted",
)
family(
    "experts",
    "marlin layer",
    "sglang::fused_marlin_moe vllm::fused_marlin_moe",
    cost=weight_only.marlin_layer,
    inputs="moe_routing",
    role="chosen",
)
family(
    "experts",
    "ungated experts",
    "aiter::fmoe_int8_g1u0 aiter::fmoe_int8_g1u0_a16",
    cost=products.ungated_experts,
    inputs="moe_routing",
    role="stage",
)
family(
    "experts",
    "combining with published schemas",
    """
        npu::npu_moe_token_permute_grad_v2 npu::npu_moe_token_unpermute_grad_v2 npu::_npu_moe_token_unpermute
        npu::npu_moe_token_unpermute_with_routing_map npu::_npu_moe_token_unpermute_with_routing_map
        npu::npu_moe_token_unpermute_with_routing_map_grad npu::npu_moe_token_permute_with_routing_map_grad
    """,
    cost=moe.finalize_routing,
)
family(
    "experts",
    "gating with published schemas",
    "npu::npu_moe_gating_top_k_backward _C_ascend::moe_gating_top_k_hash",
    cost=moe.gating,
)
family(
    "experts",
    "grouped matrix product with published schemas",
    """
        npu::npu_grouped_matmul_finalize_routing npu::npu_quant_grouped_matmul_dequant npu::npu_add_quant_gmm
        npu::softfp8_w8a16_grouped_matmul _C_ascend::grouped_matmul_swiglu_quant_v2
        _C_ascend::grouped_matmul_swiglu_quant_weight_nz _C_ascend::grouped_matmul_swiglu_quant_weight_nz_tensor_list
    """,
    cost=moe.grouped_product,
)
family(
    "experts",
    "routing with published schemas",
    """
        npu::npu_moe_init_routing_quant npu::npu_moe_token_permute_with_routing_map
        _C_ascend::npu_moe_init_routing_custom
    """,
    cost=moe.routing,
)
family(
    "experts",
    "swiglu with published schemas",
    """
        npu::npu_clipped_swiglu_quant npu::npu_swiglu_group_quant npu::npu_swiglu_mx_quant
        npu::npu_swiglu_mx_quant_with_dual_axis _C_ascend::npu_swiglu_group_quant
    """,
    cost=elementwise.swiglu,
)
family(
    "experts",
    "swiglu backward with published schemas",
    "npu::_npu_swiglu_backward_mx_quant_with_dual_axis npu::npu_swiglu_group_quant_backward",
    cost=elementwise.swiglu_backward,
)
