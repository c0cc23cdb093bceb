# pyright: strict
"""Arguments that a reference implementation may ignore, and values of unsupported arguments that it rejects.

A reference implementation supports the arguments that it names. The schema's other texts, numbers, flags and optional
arguments are of two kinds. Some are inert: they do not change values or shapes of results. All others must have the one
value that the reference implementation computes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from opreplay.traces.dtypes import SCALAR_TYPE_CODES

_JUDGED = re.compile(r"str|int|bool|float|number|List\[bool\]|Optional\[.*\]")

INERT: dict[str, str] = {
    "selects a kernel or names the called function": """
        CUBLAS_M_THRESHOLD allow_bf16x3_router_gemm arg2 backend check config cutlass_block_fp8_supported fa_version
        is_experimental is_rocm_aiter kernelName kernel_type layer_id layer_name mfma_type schedule
        skip_indices_sorting_fwd sm_version solution_index use_aiter_and_is_supported use_int64_offset use_upstream_fa
        ver smooth_scale_map_hash consecutive_range_length consecutive_range_start
    """,
    "splits, schedules, orders or waits for the work": """
        BLOCK_SIZE_K BLOCK_SIZE_N CuCount block_size_M blocks_per_sm can_refresh cublas_handle cuda_stream dependency
        deterministic dispatch_policy enable_pdl enable_ps expected_m forced_token_heads_per_warp gen_mask_parallel
        kv_cache_dummy_dep ksplit max_num_partitions max_size moe_sorting_dispatch_policy non_blocking
        npu::npu_prefetch.offset num_parallel_tokens num_sms num_split num_splits pack_gqa partition_size
        reduce_final_map reduce_indptr reduce_partial_map require_contiguous rows_per_block scheduler_metadata sm_count
        sm_margin splitK split_k_iters splitk sync thread_k thread_n thx thy tuning_config use_atomic_add use_kvsplit
        use_non_temporal_load work_indptr work_info_set work_meta_data
    """,
    "sets the precision of inner sums, or the order of equal values": """
        a16 high_precision how_v3_bf16_cvt inner_precise inner_precision_mode is_v3_atomic_fp32
        round_norm_before_rope stable use_fast_accum use_fp32_reduce use_model_sensitive_rmsnorm
    """,
    "rounds activations inside; the reference multiplies them unrounded": """
        _moe_C::moe_wna16_marlin_gemm.a_scales a1_scale a2_scale
    """,
    "is a size, dtype or scheme that also follows from the tensors": """
        N_in aiter::*.dst_type antiquant_group_size batch_size batches block_k block_m block_n block_shape block_size
        block_size_in_bytes block_tables_stride0 dummy_is_scale_transposed dummy_is_tma_aligned enable_gqa
        fc_scale_blkk fc_scale_blkn fp8_min global_num_experts group_shape group_size group_sizes has_zp input_dtype
        input_size_per_partition int8_min inter_dim k max_B max_B_feature_rank max_D max_length max_qlen max_seq_len
        max_seq_length max_seqlen max_seqlen_k max_seqlen_q max_seqlen_qo min_8bit min_seqlen_q n_expert
        num_active_loras num_bits num_heads num_heads_v num_kv_heads numels per_act_token per_channel_quant per_out_ch
        aiter::*.quant_type quant_method rope_dim rot_dim rotary_dim row_bytes shape size_k size_limit size_m src_dtype
        stride0 stride1 token_nums topK topk total_hash_size_bits total_tokens use_fp8_w8a8 use_int8_w8a16
        use_int8_w8a8 v_row_bytes
    """,
    "is workspace, or receives a result that is also returned": """
        c_or_none grads_share_storage inplace intermediate_cache13 intermediate_cache2 out out_ output workspace
        zero_bias_buf aiter::per_group_quant_hip.scale
    """,
    "leaves rows or results unspecified; the reference computes them, too": """
        filter_expert is_ep num_local_tokens num_rows num_rows_factor valid_token_count zero_tensors
        zeroing_output_tensor
    """,
    "seeds random numbers; the reference uses torch's generator": """
        gen generator lambd npu::*attention*.offset philox_offset philox_seed rng_state seed
    """,
    "describes how weights or scales are shuffled; the reference reads plain rows": """
        a_type acl_format b_type bpreshuffle btype customize_dtype g_idx1 g_idx2 g_idx_or_none group_scales_type
        inner_k_tiles isBpreshuffled is_a_8bit is_full_k is_k_full is_shuffled n32k16_reorder perm_or_none
        shuffle_scale sort_indices1 sort_indices2 use_exllama use_shuffle
    """,
    "belongs to the gradient or to the optimizer step after it": """
        fbgemm::*lookup*.eps fbgemm::*lookup*.max_norm fbgemm::*lookup*.stochastic_rounding
        fbgemm::*lookup*.weight_decay fbgemm::*lookup*.weight_decay_mode fb::scale_gradient.scale feature_requires_grad
        gradient_clipping learning_rate max_gradient
    """,
    "matters only with another argument, which is refused": """
        blocksparse_block_size blocksparse_head_sliding_step blocksparse_local_blocks cp_rank expert_capacity
        is_rotary_interleaved rotary_interleaved rotary_sin seqlens_rotary tp_rank
    """,
    "describes a layer whose weights and caches are no arguments; the reference generates them": """
        hidden_dim_unpadded input_ids save_kv_cache shared_experts_input
    """,
    "belongs to an op that is not public; its meaning is assumed": """
        fb::rms_norm.flag
    """,
    "holds values that are recomputed or not needed": """
        _C::get_cutlass_moe_mm_problem_sizes.blockscale_offsets aiter::ck_moe_stage2.activation
        fbgemm::bounds_check_indices.weights gating_output
        npu::npu_moe_init_routing_v2.expert_tokens_num_flag softmax_in
    """,
    "has the same meaning for all shapes that the reference supports": """
        npu::npu_apply_rotary_pos_emb.layout npu::npu_scatter_pa_kv_cache_functional.cache_mode split_item
    """,
}
"""Names of arguments, or `op.argument` with wildcards, by the reason why they do not change results."""

COMPUTED: dict[str, tuple[Any, ...]] = {
    "activate_dim": (-1,),
    "attention_chunk": (0,),
    "dst_dtype": (1,),
    "grad_input_mask": ([True, True, True],),
    "_C_ascend::moe_grouped_matmul.group_type": (0,),
    "ignore_invalid_expert": (False,),
    "is_zp_float": (False,),
    "npu::*.dst_type": (1,),
    "return_dropout_randval": (False,),
    "return_softmax": (False,),
    "npu::npu_dequant_swiglu_quant.round_mode": (0,),
    "sink_size": (0,),
    "sparse_grad": (False,),
    "y_dtype": (1,),
    "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu.stochastic_rounding": (False,),
    "use_deep_gemm_e8m0": (False,),
}
"""Map of unsupported argument to the values for which the reference implementation is right.

The default is right as well. dtypes are given as the codes that schemas use.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@lru_cache(maxsize=4096)
def _entry(op: str, argument: str, listed: frozenset[str]) -> str | None:
    """Return the entry of `listed` for an argument of "ns::op": its name, or a pattern of "op.argument"."""
    return next((e for e in sorted(listed) if e == argument or ("." in e and fnmatchcase(f"{op}.{argument}", e))), None)


def inert_entry(op: str, argument: str) -> str | None:
    """Return the entry of `INERT` that covers an argument of "ns::op", or None if the argument may change a result."""
    return _entry(op, argument, _ALL_INERT)


_ALL_INERT = frozenset(name for names in INERT.values() for name in _names(names))


def untaken_modes(names: Collection[str], schema: Any) -> tuple[str, ...]:
    """Return the schema's arguments that the reference implementation does not support and that may change a result.

    Values of these arguments that are not in `computed` are rejected, because they would give wrong results.
    """
    return tuple(
        argument.name
        for argument in schema.arguments
        if argument.name not in names
        and _JUDGED.fullmatch(str(argument.type))
        and inert_entry(schema.name, argument.name) is None
    )


def computed(schema: Any, mode: str) -> tuple[Any, ...]:
    """Return the values of an unsupported argument that give correct results: the default, None, and those in
    `COMPUTED`.
    """
    argument: Any = next(known for known in schema.arguments if known.name == mode)
    entry = _entry(schema.name, mode, frozenset(COMPUTED))
    values: tuple[Any, ...] = COMPUTED[entry] if entry else ()
    if argument.has_default_value():
        values = (argument.default_value, *values)
    return (None, *values) if str(argument.type).startswith("Optional") else values


def is_computed(value: Any, values: tuple[Any, ...]) -> bool:
    """Check whether a value is in `values`.

    An empty tensor or list counts as None, because libraries use it that way.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() == 0 and None in values
    if isinstance(value, torch.dtype):
        value = SCALAR_TYPE_CODES.index(str(value).removeprefix("torch."))
    return value in values or (value == [] and None in values)
