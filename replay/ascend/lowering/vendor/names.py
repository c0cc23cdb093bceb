# pyright: strict
"""Further vendors' names for kernels that other families know: products, norms, gates, quantisation, routing, moves.

Owns no kernel: each name gets a rule of another module, or one elementwise kernel over its widest tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.layers import attention, moe, paged
from opreplay.replay.ascend.lowering.moves import indexing, movement
from opreplay.replay.ascend.lowering.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.replay.ascend.lowering.pointwise import elementwise
from opreplay.replay.ascend.lowering.products import matmul
from opreplay.replay.ascend.lowering.registry import Rule, lowers
from opreplay.replay.ascend.lowering.rows import norms

LEFT = ("mat_a", "A", "a", "x", "X", "XQ", "input", "input_", "hidden_states", "in_b", "mat1", "arg0")
RIGHT = ("mat_b", "B", "b", "w", "W", "weight", "weights", "WQ", "router_weights", "in_a", "mat2", "arg1")


def named_product(op: OpView) -> Iterable[KernelCall]:
    """A product whose operands are known by name, the weight lying either way."""
    a, b = op.meta(*LEFT), op.meta(*RIGHT)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        raise DoesNotFit("a product needs two matrices")
    weight = a.shape[-1] == b.shape[-1] and (b.shape[-2] != b.shape[-1] or "mat2" not in op.args)
    return [matmul.product(op, a, b, weight=weight)]


SAME: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (named_product, (
        "_C::bf16_skinny_gemm", "_C::fp32_router_gemm", "_C::dsv3_fused_a_gemm", "_moe_C::dsv3_router_gemm",
        "_moe_C::gpt_oss_router_gemm", "_moe_C::router_gemm_bf16_fp32", "vllm::gpt_oss_router_gemm",
        "vllm::fp32_router_gemm_dispatch", "vllm::min_latency_fused_qkv_a_proj", "sglang::bf16_gemm_dispatch",
        "sglang::cutedsl_tgv_bf16_gemm", "sglang::cutedsl_tgv_bf16_gemm_out", "sglang::cutedsl_dsv3_fused_a_gemm",
        "sglang::jit_dsv3_fused_a_gemm", "sglang::dsv3_router_gemm", "sglang::flashinfer_dsv3_router_gemm",
        "sgl_kernel::dsv3_fused_a_gemm", "sgl_kernel::dsv3_router_gemm", "aiter::gemm_a16w16_asm",
        "aiter::gemm_a16w16_atomic_", "aiter::hipb_mm", "aiter::rocb_mm", "aiter::LLMM1", "aiter::wvSpltK",
        "aiter::wv_splitk_small_fp16_bf16", "_rocm_C::wvSplitKrc", "npu::npu_bmmV2",
        "fbgemm::bf16bf16bf16_grouped_dynamic", "fbgemm::f8f8bf16_rowwise_grouped_dynamic",
        "fbgemm::f8f8bf16_rowwise_batched",
    )),
    (matmul.quantized, (
        "_C::cutlass_scaled_mm_azp", "_C::cutlass_scaled_mm_dq", "vllm::w8a8_block_fp8_matmul_deepgemm",
        "vllm::rocm_aiter_hipb_mm_fp8", "vllm::rocm_aiter_gemm_a8w8_blockscale_bpreshuffle",
        "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm", "vllm::w8a8_triton_block_scaled_mm_func",
        "vllm::padded_cutlass", "vllm::dynamic_padded_cutlass", "vllm::fp8_gemm_nt_op", "vllm::bmm_fp8",
        "vllm::rocm_aiter_gemm_a8w8", "vllm::rocm_aiter_gemm_a8w8_blockscale", "vllm::rocm_aiter_gemm_w8a8",
        "vllm::rocm_aiter_gemm_w8a8_blockscale", "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
        "vllm::rocm_aiter_w8a8_gemm", "vllm::rocm_per_tensor_w8a8_scaled_mm_impl", "_rocm_C::wvSplitKQ",
        "aiter::wvSplitKQ", "aiter::gemm_a8w8_asm", "aiter::_gemm_a8w8_asm", "aiter::gemm_a8w8_ck",
        "aiter::gemm_a8w8_bpreshuffle_ck", "aiter::gemm_a8w8_bpreshuffle_cktile",
        "aiter::gemm_a8w8_blockscale_bpreshuffle", "aiter::gemm_a8w8_blockscale_bpreshuffle_asm",
        "aiter::_gemm_a8w8_blockscale_bpreshuffle_asm", "aiter::gemm_a8w8_blockscale_bpreshuffle_ck",
        "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile", "aiter::gemm_a8w8_blockscale_cktile",
        "aiter::flatmm_a8w8_blockscale_asm", "aiter::_flatmm_a8w8_blockscale_asm", "aiter::gfx950_a8w8_blockscale_asm",
        "aiter::_gfx950_a8w8_blockscale_asm", "aiter::mi350_a8w8_blockscale_asm", "aiter::batched_gemm_a8w8",
        "sgl_kernel::fp8_blockwise_scaled_mm", "sgl_kernel::bmm_fp8", "sglang::deep_gemm_fp8_fp8_bf16_nt",
        "sglang::flashinfer_gemm_fp8_nt_groupwise", "sglang::fp8_blockwise_scaled_mm", "sglang::flashinfer_bmm_fp8",
        "sglang::_bmm_fp8_op", "sglang::flashinfer_bmm_fp8_batched", "fbgemm::f8f8bf16", "fbgemm::f8f8bf16_rowwise",
        "fbgemm::f8f8bf16_blockwise", "fbgemm::f8f8bf16_v2", "fbgemm::f8f8bf16_tensorwise",
    )),
    (norms.vendor_rms_norm, (
        "aiter::_fused_rmsnorm", "_C_ascend::npu_gemma_rms_norm", "npu::npu_rms_norm_quant",
        "_C_ascend::npu_rms_norm_dynamic_quant", "vllm::rocm_aiter_rmsnorm_fused_dynamic_quant",
        "vllm::rocm_aiter_rmsnorm_fp8_group_quant", "aiter::rmsnorm2d_fwd_with_smoothquant",
        "aiter::rmsnorm2d_fwd_with_dynamicquant", "aiter::rmsnorm2d_fwd_with_dynamicquant_ck", "aiter::rmsnorm_quant",
        "_C::rms_norm_dynamic_per_token_quant", "_C::rms_norm_per_block_quant",
        "sglang_profiler::rmsnorm_rmsnorm2d_fwd",
    )),
    (norms.add_rms_norm, (
        "aiter::_fused_rmsnorm_add", "aiter::add_rmsnorm_quant", "aiter::rmsnorm2d_fwd_with_add_smoothquant",
        "aiter::rmsnorm2d_fwd_with_add_dynamicquant", "aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck",
        "npu::npu_add_rms_norm_cast", "npu::npu_add_rms_norm_quant", "npu::npu_add_rms_norm_dynamic_quant",
        "npu::npu_add_rms_norm_v2", "npu::npu_add_rms_norm_v2_functional", "_C_ascend::npu_add_rms_norm_bias",
        "vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant", "vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant",
        "vllm::rocm_aiter_triton_add_rmsnorm_pad", "sglang_profiler::rmsnorm_rmsnorm2d_fwd_with_add",
    )),
    (norms.layer_norm, (
        "npu::npu_layer_norm_eval", "npu::npu_add_layer_norm", "npu::npu_deep_norm", "aiter::layer_norm",
        "sglang::layernorm",
    )),
    (norms.group_norm, ("npu::npu_group_norm_silu", "npu::npu_group_norm_swish")),
    (elementwise.swiglu, (
        "npu::npu_clipped_swiglu", "aiter::swiglu_and_mul", "_C::swigluoai_and_mul", "_C::silu_and_mul_with_clamp",
        "_C::silu_and_mul_quant", "_C::silu_and_mul_per_block_quant", "aiter::silu_and_mul_quant",
        "sglang::_run_activation_inplace", "sglang::_run_activation_with_rounding_inplace",
        "sglang::_run_activation_filtered_inplace", "_C::persistent_masked_m_silu_mul_quant",
        "_C::silu_mul_fp8_quant_deep_gemm_cuda", "vllm::rocm_aiter_act_mul_and_fp8_group_quant",
        "npu::npu_dequant_swiglu_quant", "_C_ascend::npu_dequant_swiglu_quant", "sgl_kernel::ep_moe_silu_and_mul",
    )),
    (elementwise.geglu, ("npu::npu_gelu_mul",)),
    (elementwise.rope, (
        "_C_ascend::rotary_embedding", "vllm::npu_rotary_embedding", "vllm::flashinfer_rotary_embedding",
        "vllm::rope_forward_triton", "vllm::rocm_aiter_triton_rotary_embedding",
        "vllm::rocm_aiter_rotary_emb_with_key_forward_hip", "vllm::rocm_aiter_rotary_emb_with_key_forward_triton",
        "vllm::rocm_aiter_rotary_emb_without_key_forward_hip", "sglang::apply_rope_inplace",
        "sglang::rotary_embedding_with_key", "sglang::rotary_embedding_without_key",
        "sglang::apply_rope_pos_ids_cos_sin_cache_without_kv_cache", "npu::npu_mrope", "aiter::rope_2c_fwd_impl",
        "aiter::rope_cached_2c_fwd_impl", "aiter::rope_bwd_impl", "aiter::rope_cached_bwd_impl",
        "aiter::rope_cached_positions_fwd_impl", "aiter::rope_cached_positions_offsets_fwd_impl",
        "aiter::rope_cached_positions_offsets_2c_fwd_impl",
    )),
    (elementwise.dynamic_quantize, (
        "sglang::per_token_quant_fp8", "sglang::per_tensor_quant_fp8", "sglang::per_token_group_quant",
        "sglang::per_token_group_quant_8bit", "sglang::per_token_group_quant_8bit_v2",
        "sgl_kernel::sgl_per_token_group_quant_8bit_v2", "sgl_kernel::sgl_per_token_group_quant_int8",
        "vllm::triton_per_token_group_quant_fp8", "vllm::rocm_aiter_group_fp8_quant",
        "vllm::rocm_aiter_per_tensor_quant", "vllm::rocm_aiter_per_token_quant", "aiter::smoothquant_fwd",
        "aiter::smooth_per_token_scaled_quant", "aiter::dynamic_per_group_scaled_quant", "aiter::moe_smoothquant_fwd",
        "aiter::per_group_quant_hip", "aiter::per_token_quant_hip", "_C::per_token_group_quant_int8",
        "npu::npu_dynamic_quant_asymmetric", "fbgemm::quantize_fp8_per_row", "fbgemm::quantize_fp8_per_col",
        "fbgemm::quantize_fp8_per_tensor",
    )),
    (elementwise.quantize, ("vllm::quantize",)),
    (moe.gating, (
        "_moe_C::topk_sigmoid", "sgl_kernel::topk_sigmoid", "sgl_kernel::kimi_k2_moe_fused_gate",
        "sglang::moe_topk_softmax_out", "sglang::moe_topk_sigmoid_out", "sglang::fused_topk_deepseek",
        "vllm::rocm_aiter_topk_softmax", "vllm::rocm_aiter_topk_sigmoid", "vllm::rocm_aiter_grouped_topk",
        "vllm::rocm_aiter_biased_grouped_topk", "vllm::rocm_aiter_fused_topk", "aiter::topk_sigmoid",
        "aiter::topk_softmax_asm", "aiter::topk_softplus", "aiter::topk_gating_fwd",
        "npu::npu_moe_gating_top_k_softmax_v2", "_C_ascend::moe_gating_top_k",
    )),
    (moe.routing, (
        "_moe_C::sgl_moe_align_block_size", "_C::moe_align_block_size", "aiter::moe_align_block_size",
        "_moe_C::moe_permute_with_scratch", "_moe_C::batched_moe_align_block_size",
        "_moe_C::moe_lora_align_block_size", "aiter::moe_sorting_opus_fwd", "_C::get_cutlass_moe_mm_data",
        "sgl_kernel::prepare_moe_input", "sgl_kernel::get_cutlass_w4a8_moe_mm_data", "_moe_C::shuffle_rows",
        "sgl_kernel::shuffle_rows", "sgl_kernel::ep_moe_pre_reorder",
    )),
    (moe.combining, (
        "sgl_kernel::moe_sum_reduce", "aiter::_moe_sum", "sgl_kernel::apply_shuffle_mul_sum",
        "sgl_kernel::ep_moe_post_reorder", "npu::npu_moe_token_permute_grad", "npu::npu_moe_token_unpermute_grad",
    )),
    (moe.fused_experts, (
        "vllm::rocm_aiter_ck_moe", "vllm::rocm_aiter_ck_moe_2stages", "vllm::rocm_aiter_asm_moe",
        "sglang::rocm_aiter_asm_moe_tkw1", "aiter::fmoe_g1u1_tkw1", "aiter::fmoe_g1u1_a16",
        "aiter::fmoe_fp8_blockscale_g1u1",
    )),
    (moe.grouped_product, (
        "_C::cutlass_moe_mm", "_C::cutlass_blockwise_scaled_grouped_mm", "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
        "sgl_kernel::es_fp8_blockwise_scaled_grouped_mm", "npu::npu_grouped_matmul_swiglu_quant",
        "npu::npu_grouped_matmul_swiglu_quant_v2", "_C_ascend::grouped_matmul_swiglu_quant",
        "_C_ascend::moe_grouped_matmul", "fbgemm::bf16bf16bf16_grouped_stacked",
        "fbgemm::f8f8bf16_rowwise_grouped_stacked",
    )),
    (attention.heads_third, (
        "xformers::efficient_attention_forward_cutlass", "xformers_flash3::flash_fwd",
        "vllm::flash_attn_maxseqlen_wrapper", "vllm::torch_sdpa_wrapper", "vllm::triton_attn_wrapper",
        "vllm::xformers_attn_seqlens_wrapper", "sglang::flash_attn_varlen_func_op",
    )),
    (attention.heads_third_backward, ("flash_attn_3::_flash_attn_backward", "xformers_flash3::flash_bwd")),
    (attention.npu_training, ("npu::npu_flash_attention",)),
    (attention.npu_training_backward, ("npu::npu_flash_attention_grad",)),
    (paged.paged, ("vllm::flash_attn_varlen_func", "vllm::rocm_aiter_mla_decode_fwd")),
    (movement.cache_write, ("npu::npu_scatter_pa_kv_cache_functional", "npu::scatter_update", "npu::npu_scatter")),
    (movement.cache_copy, (
        "aiter::copy_blocks", "aiter::swap_blocks", "aiter::concat_and_cache_mla", "_C_cache_ops::copy_blocks_mla",
        "_C_cache_ops::cp_fused_concat_and_cache_mla", "_C_cache_ops::concat_and_cache_mla_rope_fused",
    )),
    (indexing.rows_of_table, (
        "fbgemm::index_select_dim0", "fbgemm::gather_along_first_dim", "npu::npu_gather_sparse_index",
    )),
)  # fmt: skip
"""Rule → names that become the same kernels."""

WIDEST: dict[str, str] = {
    "npu::npu_gelu": "Gelu", "npu::npu_gelu_backward": "GeluGrad", "npu::npu_fast_gelu_backward": "GeluGrad",
    "npu::npu_silu_backward": "SwishGrad", "npu::npu_mish": "Mish", "npu::npu_mish_backward": "MishGrad",
    "te_softmax::scaled_softmax_fwd": "SoftmaxV2", "te_softmax::scaled_masked_softmax_fwd": "SoftmaxV2",
    "te_softmax::scaled_upper_triang_masked_softmax_fwd": "SoftmaxV2",
    "te_softmax::scaled_aligned_causal_masked_softmax_fwd": "SoftmaxV2",
    "te_softmax::scaled_softmax_bwd": "SoftmaxGrad", "te_softmax::scaled_masked_softmax_bwd": "SoftmaxGrad",
    "te_softmax::scaled_upper_triang_masked_softmax_bwd": "SoftmaxGrad",
    "te_softmax::scaled_aligned_causal_masked_softmax_bwd": "SoftmaxGrad",
    "npu::npu_scaled_masked_softmax_backward": "SoftmaxGrad", "npu::npu_attn_softmax_": "SoftmaxV2",
    "npu::npu_masked_softmax_with_rel_pos_bias": "SoftmaxV2", "npu::npu_dropout_do_mask": "DropOutDoMask",
    "npu::_dropout_with_byte_mask": "DropOutDoMask", "npu::_dropout_with_byte_mask_backward": "DropOutDoMask",
    "npu::_npu_dtype_cast_backward": "Cast",
    "npu::npu_confusion_transpose": "Transpose", "npu::npu_confusion_transpose_backward": "Transpose",
    "npu::npu_transpose": "Transpose", "npu::npu_reshape": "TensorMove", "npu::npu_view_copy": "ViewCopy",
    "npu::copy_memory_": "TensorMove", "npu::npu_top_k_top_p": "Sort", "_C_ascend::npu_apply_top_k_top_p": "Sort",
    "aiter::gelu_fast": "Gelu", "aiter::sigmoid": "Sigmoid", "aiter::tanh": "Tanh", "_C::relu_squared": "Relu",
    "aiter::add": "Add", "aiter::sub": "Sub", "aiter::mul": "Mul", "aiter::div": "RealDiv",
    "vllm::muls_add": "Add", "_C::apply_repetition_penalties_": "Select", "sgl_kernel::gelu_quick": "Gelu",
    "sgl_kernel::apply_token_bitmask_inplace_cuda": "MaskedFill", "npu::apply_token_bitmask": "MaskedFill",
    "_C::top_k_per_row": "Sort", "_C::top_k_per_row_prefill": "Sort", "_C::top_k_per_row_decode": "Sort",
    "_C::persistent_topk": "Sort", "sgl_kernel::fast_topk": "Sort", "aiter::top_k_per_row_prefill": "Sort",
    "aiter::top_k_per_row_decode": "Sort", "aiter::topk_plain": "Sort", "aiter::greedy_sample": "ArgMaxV2",
    "sgl_kernel::top_k_renorm_probs": "Sort", "sgl_kernel::top_p_renorm_probs": "Sort",
    "sgl_kernel::top_k_top_p_sampling_from_probs": "Sort", "sgl_kernel::top_p_sampling_from_probs": "Sort",
    "sgl_kernel::min_p_sampling_from_probs": "Sort", "aiter::random_sample": "SoftmaxV2",
    "aiter::mixed_sample": "SoftmaxV2", "fbgemm::silu_mul": "SwiGlu", "_C_cache_ops::concat_mla_q": "ConcatD",
    "sgl_kernel::concat_mla_k": "ConcatD", "sgl_kernel::concat_mla_absorb_q": "ConcatD",
    "vllm::flashinfer_concat_mla_k": "ConcatD", "fbgemm::jagged_dense_elementwise_add": "Add",
    "fbgemm::jagged_dense_elementwise_mul": "Mul", "fbgemm::jagged_to_padded_dense": "PadV3",
    "fbgemm::jagged_to_padded_dense_forward": "PadV3", "fbgemm::jagged_2d_to_dense": "PadV3",
    "fbgemm::dense_to_jagged": "GatherV2", "fbgemm::dense_to_jagged_forward": "GatherV2",
}  # fmt: skip
"""Name → CANN type of one kernel that reads and writes as much as the widest tensor holds."""


def _widest(kind: str) -> Rule:
    def rule(op: OpView) -> Iterable[KernelCall]:
        source = op.widest()
        full = spec(source.shape, source.dtype)
        return [kernel(kind, [full], [op.output(full)])]

    rule.__name__ = f"widest_{kind}"
    return rule


for _rule, _names in SAME:
    lowers(*_names)(_rule)
for _name, _kind in WIDEST.items():
    lowers(_name)(_widest(_kind))
