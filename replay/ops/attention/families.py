# pyright: strict
"""Device costs, initializers and work counters of the `attention` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import attention, moe, paged, sparse
from opreplay.replay.ops.costs.moves import movement, views
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "attention",
    "heads third",
    """
        aiter::_flash_attn_forward aiter::fmha_v3_fwd flash_attn::_flash_attn_forward _vllm_fa2_C::fwd
        xformers::efficient_attention_forward_ck aiter::_flash_attn_varlen_forward
        aiter::fmha_v3_varlen_fwd aiter::mha_varlen_fwd flash_attn::_flash_attn_varlen_forward inputs=paged_attention
        flash_attn_3::fwd sglang::flash_attn_varlen_func_op inputs=paged_attention
        xformers::efficient_attention_forward_cutlass xformers_flash3::flash_fwd inputs=paged_attention
        xformers_flash::flash_fwd inputs=paged_attention
        flash_attn_3::_flash_attn_forward like=flash_attn_3::fwd q_v=qv is_causal=causal inputs=paged_attention
        aiter::mha_fwd inputs=row_numbers role=dense_sequences
        vllm::flash_attn_maxseqlen_wrapper vllm::triton_attn_wrapper inputs=row_numbers role=packed_images
        vllm::torch_sdpa_wrapper inputs=row_numbers role=image_cuts
        vllm::xformers_attn_seqlens_wrapper inputs=row_numbers role=image_lengths
    """,
    cost=attention.heads_third,
)
family(
    "attention",
    "heads third backward",
    """
        aiter::_flash_attn_backward aiter::fmha_v3_bwd aiter::mha_bwd flash_attn::_flash_attn_backward flash_attn_3::bwd
        aiter::_flash_attn_varlen_backward
        aiter::fmha_v3_varlen_bwd aiter::mha_varlen_bwd flash_attn::_flash_attn_varlen_backward inputs=paged_attention
        xformers_flash3::flash_bwd xformers_flash::flash_bwd inputs=paged_attention
        flash_attn_3::_flash_attn_backward like=flash_attn::_flash_attn_varlen_backward causal=is_causal \
            dropout_p=0.0 inputs=paged_attention
    """,
    cost=attention.heads_third_backward,
)
family(
    "attention",
    "npu training",
    "npu::npu_flash_attention npu::npu_fusion_attention npu::npu_fusion_attention_v2 npu::npu_fusion_attention_v3",
    cost=attention.npu_training,
)
family(
    "attention",
    "npu training backward",
    "npu::npu_flash_attention_grad npu::npu_fusion_attention_grad npu::npu_fusion_attention_grad_v2",
    cost=attention.npu_training_backward,
)
family(
    "attention",
    "opaque layer",
    "vllm::moe_forward vllm::moe_forward_shared",
    cost=moe.opaque_layer,
    inputs="moe_routing",
    role="router",
)
family(
    "attention",
    "paged",
    """
        _vllm_fa2_C::fwd_kvcache _vllm_fa2_C::varlen_fwd _vllm_fa3_C::fwd aiter::mha_batch_prefill
        aiter::paged_attention_ragged npu::_npu_paged_attention npu::npu_prompt_flash_attention
        sgl_kernel::cutlass_mla_decode sglang::unified_attention_with_output
        sglang_profiler::attention_paged_attention_ragged sglang_profiler::mha__mha_batch_prefill
        vllm::flash_attn_varlen_func vllm::flash_attn_with_kvcache vllm::unified_attention
        vllm::unified_attention_with_output vllm::unified_mla_attention vllm::unified_mla_attention_with_output
        _C::paged_attention_v1 _C::paged_attention_v2 _rocm_C::paged_attention aiter::pa_fwd_asm role=packed_cache
        aiter::paged_attention_rocm aiter::paged_attention_v1 role=packed_cache
        npu::npu_fused_infer_attention_score npu::npu_incre_flash_attention role=heads_first_cache
        npu::npu_fused_infer_attention_score_v2 inputs= role=heads_first_cache
        sgl_kernel::fwd like=_vllm_fa3_C::fwd s_aux=sinks
        vllm::rocm_aiter_mla_decode_fwd inputs=row_numbers role=paged_latent
        vllm::unified_ascend_attention_with_output aiter::unified_attention aiter::mla_decode_fwd inputs=
        sgl_kernel::flash_mla_with_kvcache npu::_npu_flash_attention inputs=
    """,
    cost=paged.paged,
    inputs="paged_attention",
)
family("attention", "cache write", "vllm::unified_kv_cache_update", cost=movement.cache_write)
family(
    "attention",
    "merged attention",
    """
        _C::merge_attn_states flash_attn_3::fwd_combine npu::npu_attention_update npu::npu_ring_attention_update
        sgl_kernel::merge_state sgl_kernel::merge_state_v2
    """,
    cost=shared.merged_attention,
)
family(
    "attention",
    "one kernel over the widest tensor",
    """
        sglang_profiler::forward_batch_info_compute_position kernel=Cumsum
        sglang_profiler::forward_batch_info_compute_position_triton kernel=Cumsum
    """,
    kernels=shared.widest,
    inputs="new_tokens",
)
family(
    "attention",
    "attention with published schemas",
    """
        npu::_npu_attention_pioneer npu::npu_fused_infer_attention_v2 npu::npu_nsa_compress_attention
        npu::npu_nsa_compress_attention_infer
    """,
    cost=paged.paged,
)
family(
    "attention",
    "attention to chosen keys",
    """
        npu::npu_sparse_flash_attention npu::npu_kv_quant_sparse_flash_attention npu::npu_sparse_attention_score
        npu::_npu_kv_quant_sparse_flash_attention_pioneer npu::npu_nsa_select_attention npu::npu_block_sparse_attention
        npu::npu_nsa_select_attention_infer npu::sparse_attn_sharedkv
        _C_ascend::npu_sparse_flash_attention _C_ascend::npu_kv_quant_sparse_flash_attention
        _C_ascend::npu_sparse_attention_score _C_ascend::npu_sparse_attn_sharedkv
        _C_ascend::npu_kv_quant_sparse_attn_sharedkv
    """,
    cost=sparse.chosen_keys,
)
family(
    "attention",
    "choice of keys",
    """
        npu::npu_lightning_indexer npu::npu_quant_lightning_indexer npu::lightning_indexer
        _C_ascend::npu_lightning_indexer _C_ascend::npu_lightning_indexer_quant _C_ascend::npu_quant_lightning_indexer
        _C_ascend::npu_vllm_quant_lightning_indexer
    """,
    cost=sparse.choice_of_keys,
)
family(
    "attention",
    "latent projections",
    "npu::npu_mla_prolog npu::npu_mla_prolog_v2 npu::npu_mla_prolog_v3 npu::npu_mla_prolog_v3_functional",
    cost=sparse.latent_projections,
)
family(
    "attention",
    "backward with published schemas",
    "npu::npu_fusion_attention_grad_v3 npu::npu_quant_fusion_attention_grad npu::npu_quant_fusion_attention_backward",
    cost=attention.npu_training_backward,
)
family(
    "attention",
    "sizes and plans for the host",
    """
        npu::_npu_attention_pioneer_get_max_workspace npu::_npu_attention_pioneer_infer_output
        npu::_npu_fused_infer_attention_score_get_max_workspace npu::_npu_fused_infer_attention_score_infer_output
        npu::_npu_fused_infer_attention_score_v2_get_max_workspace
        npu::_npu_fused_infer_attention_score_v2_infer_output npu::_npu_fused_infer_attention_v2_get_max_workspace
        npu::_npu_fusion_attention_grad_v3_get_max_workspace npu::_npu_fusion_attention_grad_v3_infer_output
        npu::_npu_fusion_attention_v3_get_max_workspace npu::_npu_fusion_attention_v3_infer_output
        npu::get_npu_format npu::empty_with_format npu::unsafe_empty_with_format
        npu::sgl_kernel_npu_print_version npu::sgl_kernel_npu_version
        _C_ascend::get_npu_storage_shape _C_ascend::device_print _C_ascend::device_print_tensor
        _C_ascend::weak_ref_tensor
    """,
    cost=views.view,
)
