# pyright: strict
"""Device costs, initializers and work counters of the `sampling` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "sampling",
    "one kernel over the widest tensor",
    """
        aiter::greedy_sample kernel=ArgMaxV2
        _C::apply_repetition_penalties_ kernel=Select
        aiter::_mixed_sample aiter::_random_sample aiter::mixed_sample kernel=SoftmaxV2
        aiter::mixed_sample_outer_exponential aiter::random_sample kernel=SoftmaxV2
        aiter::random_sample_outer_exponential kernel=SoftmaxV2
        _C_ascend::npu_apply_top_k_top_p aiter::_topk_plain aiter::topk_plain kernel=Sort
        npu::npu_top_k_top_p sgl_kernel::top_k_mask_logits kernel=Sort
        aiter::top_k_renorm_probs kernel=Sort inputs=row_numbers role=probabilities
        sgl_kernel::top_p_renorm_probs kernel=Sort inputs=row_numbers role=probabilities
        _C::cooperative_topk _C::persistent_topk _C::top_k_per_row kernel=Sort inputs=row_limits
        _C::top_k_per_row_decode _C::top_k_per_row_prefill aiter::_top_k_per_row_prefill kernel=Sort inputs=row_limits
        aiter::top_k_per_row_prefill aiter::top_k_per_row_prefill_fast aiter::topk_per_row kernel=Sort inputs=row_limits
        sgl_kernel::fast_topk sgl_kernel::fast_topk_transform_fused kernel=Sort inputs=row_limits
        sgl_kernel::fast_topk_transform_ragged_fused kernel=Sort inputs=row_limits
        aiter::topk_per_row_decode aiter::top_k_per_row_decode aiter::top_k_per_row_decode_fast \
            aiter::_top_k_per_row_decode like=_C::top_k_per_row_decode seq_lens=seqLens kernel=Sort \
            inputs=row_limits
        _C::large_context_topk like=sgl_kernel::fast_topk row_starts=row_starts_opt kernel=Sort inputs=row_limits
        aiter::top_k_top_p_sampling_from_probs kernel=Sort inputs=row_numbers role=probability_rows
        aiter::top_p_sampling_from_probs kernel=Sort inputs=row_numbers role=probability_rows
        sgl_kernel::min_p_sampling_from_probs kernel=Sort inputs=row_numbers role=maybe_probability_rows
        npu::apply_token_bitmask kernel=MaskedFill inputs=row_numbers role=logit_rows
        sgl_kernel::apply_token_bitmask_inplace_cuda kernel=MaskedFill inputs=row_numbers role=logit_rows
        sgl_kernel::top_k_renorm_probs sgl_kernel::top_k_renorm_probs_wrapper like=aiter::top_k_renorm_probs \
            into=renorm_probs kernel=Sort inputs=row_numbers role=probabilities
        sgl_kernel::top_k_top_p_sampling_from_probs sgl_kernel::top_p_sampling_from_probs \
            like=aiter::top_k_top_p_sampling_from_probs indices=maybe_indices into=output kernel=Sort \
            inputs=row_numbers role=maybe_probability_rows
    """,
    kernels=shared.widest,
)
