# pyright: strict
"""Device costs, initializers and work counters of the `rope` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import movement
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "rope",
    "latent cache write",
    """
        _C_cache_ops::concat_and_cache_mla_rope_fused role=rope_into_latent
        _C_cache_ops::cp_fused_concat_and_cache_mla role=chosen_tokens
    """,
    cost=shared.latent_write,
    inputs="row_numbers",
)
family(
    "rope", "cache write", "npu::npu_scatter_pa_kv_cache_functional", cost=movement.cache_write, inputs="cache_slots"
)
family(
    "rope",
    "rope",
    """
        aiter::rope_2c_fwd_impl aiter::rope_bwd_impl aiter::rope_cached_2c_fwd_impl aiter::rope_cached_bwd_impl
        aiter::rope_cached_fwd_impl aiter::rope_fwd_impl npu::npu_apply_rotary_pos_emb npu::npu_interleave_rope
        npu::npu_rotary_mul vllm::rope_forward_triton vllm::rotary_embedding npu::_npu_rotary_embedding
        _C::batched_rotary_embedding _C::rotary_embedding _C_ascend::rotary_embedding inputs=positions
        aiter::rope_cached_positions_2c_fwd_impl aiter::rope_cached_positions_fwd_impl inputs=positions
        aiter::rope_cached_positions_offsets_2c_fwd_impl aiter::rope_cached_positions_offsets_fwd_impl inputs=positions
        npu::npu_mrope sgl_kernel::apply_rope_pos_ids_cos_sin_cache sglang::apply_rope_inplace inputs=positions
        sglang::apply_rope_pos_ids_cos_sin_cache_without_kv_cache inputs=positions
        vllm::flashinfer_rotary_embedding inputs=positions
        vllm::npu_rotary_embedding vllm::rocm_aiter_rotary_emb_with_key_forward_hip inputs=positions
        vllm::rocm_aiter_rotary_emb_with_key_forward_triton inputs=positions
        vllm::rocm_aiter_rotary_emb_without_key_forward_hip aiter::rotary_embedding_fwd inputs=positions
        sgl_kernel::rotary_embedding like=_C::rotary_embedding inputs=positions
        vllm::rocm_aiter_triton_rotary_embedding inputs=row_numbers role=offset_positions
        sglang::rotary_embedding_with_key sglang::rotary_embedding_without_key like=_C::rotary_embedding \
            inputs=positions
    """,
    cost=elementwise.rope,
)
family(
    "rope",
    "norm of each",
    "vllm::fused_mla_dual_rms_norm vllm::fused_mla_dual_rms_norm_per_token_quant",
    cost=shared.norm_of_each,
)
family(
    "rope",
    "norm and rope",
    """
        sglang::fused_inplace_qknorm_rope vllm::qkv_rmsnorm_rope vllm::qkv_rmsnorm_rope_simt
        sgl_kernel::fused_qk_norm_rope sglang::fused_qk_norm_rope_out inputs=row_numbers role=positions_in_order
    """,
    cost=shared.norm_and_rope,
    inputs="positions",
)
family(
    "rope",
    "rope and cache",
    """
        sglang::apply_rope_inplace_with_kvcache role=rope_into_cache
        sglang::apply_rope_pos_ids_cos_sin_cache_with_kv_cache role=rope_into_buffer
    """,
    cost=shared.rope_and_cache,
    inputs="row_numbers",
)
family(
    "rope",
    "one kernel over the widest tensor",
    """
        _C_cache_ops::concat_mla_q sgl_kernel::concat_mla_absorb_q sgl_kernel::concat_mla_k kernel=ConcatD
        sgl_kernel::timestep_embedding kernel=Sin
        vllm::flashinfer_concat_mla_k like=sgl_kernel::concat_mla_k k_rope=k_pe kernel=ConcatD
    """,
    kernels=shared.widest,
)
family(
    "rope", "without a cost of their own", "aiter::batched_rotary_embedding aiter::fused_rope_rms", inputs="positions"
)
family(
    "rope",
    "rope with published schemas",
    "npu::npu_dequant_rope_quant_kvcache npu::npu_rope_quant_kvcache _C_ascend::inplace_partial_rotary_mul",
    cost=elementwise.rope,
)
