# pyright: strict
"""Further vendors' names for kernels that other families know: products, norms, gates, quantisation, routing, moves.

Owns no kernel: each name gets a rule of another module, or one elementwise kernel over its widest tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ascend.cost.sizes import itemsize
from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.layers import attention, moe, paged
from opreplay.replay.ascend.lowering.moves import indexing, movement
from opreplay.replay.ascend.lowering.op_view import DoesNotFit, OpView, elements, kernel, spec
from opreplay.replay.ascend.lowering.pointwise import elementwise
from opreplay.replay.ascend.lowering.products import convolution, matmul
from opreplay.replay.ascend.lowering.registry import Rule, lowers
from opreplay.replay.ascend.lowering.rows import norms
from opreplay.replay.ascend.lowering.vendor import fbgemm
from opreplay.traces.model import TensorMeta

LEFT = ("mat_a", "A", "a", "x", "X", "XQ", "input", "input_", "hidden_states", "in_b", "mat1", "arg0", "self")
RIGHT = ("mat_b", "B", "b", "w", "W", "weight", "weights", "WQ", "router_weights", "in_a", "mat2", "arg1")


def named_product(op: OpView) -> Iterable[KernelCall]:
    """A product whose operands are known by name, the weight lying either way."""
    a, b = op.meta(*LEFT), op.meta(*RIGHT)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        raise DoesNotFit("a product needs two matrices")
    weight = a.shape[-1] == b.shape[-1] and (b.shape[-2] != b.shape[-1] or "mat2" not in op.args)
    return [matmul.product(op, a, b, weight=weight)]


def _sources(op: OpView, *names: str) -> list[TensorMeta]:
    """The tensors under these names, else the widest."""
    return [meta for name in names if (meta := op.meta(name)) is not None and meta.shape] or [op.widest(rank=1)]


def _each(kind: str, *names: str, inputs: int = 1) -> Rule:
    """A rule for one kernel over each tensor of these names, else over the widest, of which it reads so many."""

    def rule(op: OpView) -> Iterable[KernelCall]:
        wide = [spec(meta.shape, meta.dtype) for meta in _sources(op, *names)]
        return [kernel(kind, [one] * inputs, [one]) for one in wide]

    rule.__name__ = f"each_{kind}"
    return rule


added_layer_norm = _each("AddLayerNorm", "input", inputs=2)
layer_norm_quantised = _each("LayerNormV3", "input")
norm_of_each = _each("RmsNorm", "x1", "x2", "q", "k", "kv")
merged_attention = _each("Addcmul", inputs=3)
repacked = _each("Transpose")
"""Weights packed in another order."""


def norm_and_rope(op: OpView) -> Iterable[KernelCall]:
    """RmsNorm of queries and keys, which may lie in one tensor, then their rotary embedding."""
    wide = [spec(meta.shape, meta.dtype) for meta in _sources(op, "q", "k", "qkv", "input")]
    tables = [spec((one.shape[0], one.shape[-1]), one.dtype) for one in wide]
    turned = [kernel("RotaryPositionEmbedding", [x, t, t], [x]) for x, t in zip(wide, tables, strict=True)]
    return [*(kernel("RmsNorm", [one], [one]) for one in wide), *turned]


def rope_and_cache(op: OpView) -> Iterable[KernelCall]:
    """The rotary embedding of queries and keys, and keys and values written to the cache."""
    k, v = op.need("k", rank=1), op.need("v", rank=1)
    written = [spec(meta.shape, meta.dtype) for meta in (k, v)]
    tokens = max(1, k.shape[0])
    moved = sum(elements(meta) * itemsize(meta.dtype) for meta in (k, v))
    return [*elementwise.rope(op), kernel("ReshapeAndCache", written, written, indices=tokens, moved_bytes=moved)]


def hadamard(op: OpView) -> Iterable[KernelCall]:
    """As a product of all rows with the matrix of their width, which the cube does fastest."""
    x = op.need("x", at=0, rank=1)
    width = x.shape[-1]
    rows = TensorMeta(shape=(elements(x) // max(1, width), width), dtype=x.dtype)
    return [matmul.product(op, rows, TensorMeta(shape=(width, width), dtype=x.dtype))]


def widened(op: OpView) -> Iterable[KernelCall]:
    """AscendAntiQuant of the widest tensor; of four bits an element where the result's size is not known."""
    source = op.widest(rank=1)
    unpacked = (*source.shape[:-1], source.shape[-1] * 2 * itemsize(source.dtype))
    out = op.output(spec(unpacked, "float16"))
    return [kernel("AscendAntiQuantV2", [spec(source.shape, source.dtype)], [out])]


def taken_rows(op: OpView) -> Iterable[KernelCall]:
    """Rows of a cache gathered into `dst`."""
    rows = op.need("dst", at=1, rank=1)
    out = spec(rows.shape, rows.dtype)
    moved = elements(rows) * itemsize(rows.dtype)
    return [kernel("GatherV2", [out], [out], indices=max(1, rows.shape[0]), moved_bytes=moved)]


def backward_of_sum(op: OpView) -> Iterable[KernelCall]:
    """LayerNormGrad over the sum of two tensors, which is added again first."""
    x = op.need("x1", "x", rank=1)
    wide = spec(x.shape, x.dtype)
    return [kernel("Add", [wide, wide], [wide]), kernel("LayerNormGradV3", [wide, wide], [wide])]


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
        "fbgemm::f8f8bf16_rowwise_batched", "aiter::batched_gemm_bf16", "aiter::deepgemm_ck",
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
    (norms.layer_norm, (
        "aiter::layernorm2d_fwd",
    )),
    (added_layer_norm, (
        "aiter::layernorm2d_fwd_with_add", "aiter::layernorm2d_fwd_with_add_smoothquant",
        "aiter::layernorm2d_with_add_asm", "aiter::layernorm2d_with_add_smoothquant_asm",
    )),
    (layer_norm_quantised, (
        "aiter::layernorm2d_fwd_with_smoothquant",
    )),
    (norm_of_each, (
        "vllm::fused_mla_dual_rms_norm", "vllm::fused_mla_dual_rms_norm_per_token_quant",
        "aiter::_fused_qk_rmsnorm_kernel",
    )),
    (norm_and_rope, (
        "_C::fused_qk_norm_rope", "vllm::qkv_rmsnorm_rope", "vllm::qkv_rmsnorm_rope_simt",
        "sgl_kernel::fused_qk_norm_rope", "sglang::fused_inplace_qknorm_rope", "sglang::fused_qk_norm_rope_out",
    )),
    (rope_and_cache, (
        "sglang::apply_rope_inplace_with_kvcache", "sglang::apply_rope_pos_ids_cos_sin_cache_with_kv_cache",
    )),
    (paged.paged, (
        "vllm::flash_attn_with_kvcache",
    )),
    (merged_attention, (
        "_C::merge_attn_states", "sgl_kernel::merge_state", "sgl_kernel::merge_state_v2", "flash_attn_3::fwd_combine",
        "npu::npu_attention_update", "npu::npu_ring_attention_update",
    )),
    (moe.stages, (
        "aiter::moe_stage1_g1u1",
    )),
    (moe.routing, (
        "_C::get_cutlass_batched_moe_mm_data", "_C::get_cutlass_moe_mm_problem_sizes",
        "_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets", "_C::get_cutlass_pplx_moe_mm_data",
        "sglang::moe_permute_prepare_out",
    )),
    (hadamard, (
        "_C::hadacore_transform", "sgl_kernel::fast_hadamard_transform", "sglang::hadamard_transform",
        "torchao::hadamard_transform",
    )),
    (repacked, (
        "_C::awq_marlin_repack", "_C::gptq_marlin_repack", "_C::gptq_shuffle", "_C::machete_prepack_B",
        "sgl_kernel::awq_marlin_repack", "sgl_kernel::gptq_marlin_repack", "sgl_kernel::gptq_shuffle",
        "npu::npu_convert_weight_to_int4pack",
    )),
    (widened, (
        "_C::awq_dequantize", "sgl_kernel::awq_dequantize", "npu::npu_dequant_bias",
    )),
    (movement.cache_write, (
        "sglang_profiler::memory_pool__set_kv_buffer_impl",
    )),
    (taken_rows, (
        "_C_cache_ops::cp_gather_cache", "_C_cache_ops::gather_and_maybe_dequant_cache", "_C_cache_ops::gather_cache",
    )),
    (indexing.rows_of_table, (
        "fb::fast_gather",
    )),
    (indexing.scatter, (
        "npu::_npu_index_add", "npu::_npu_index_add_", "fbgemm::scatter_add_along_first_dim", "npu::npu_scatter_list",
        "npu::npu_scatter_list_",
    )),
    (indexing.gather_backward, (
        "npu::npu_gather_backward", "npu::npu_gather_sparse_index_backward",
    )),
    (indexing.one_hot, (
        "npu::npu_one_hot",
    )),
    (movement.pad, (
        "npu::npu_pad",
    )),
    (fbgemm.permuted, (
        "fbgemm::permute_multi_embedding", "fbgemm::permute_multi_embedding_function", "fbgemm::permute_sparse_data",
        "fbgemm::block_bucketize_sparse_features", "fbgemm::group_index_select_dim0",
    )),
    (norms.layer_norm_backward, (
        "npu::npu_layernorm_grad",
    )),
    (backward_of_sum, (
        "npu::npu_add_layer_norm_backward", "npu::npu_deep_norm_backward",
    )),
    (convolution.backward, (
        "npu::npu_conv_transpose2d_backward", "npu::npu_conv_transpose3d_backward",
        "npu::npu_convolution_transpose_backward",
    )),
    (convolution.forward, (
        "npu::npu_convolution_transpose",
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
    "_C::cooperative_topk": "Sort", "_C::large_context_topk": "Sort", "aiter::_top_k_per_row_decode": "Sort",
    "aiter::_top_k_per_row_prefill": "Sort", "aiter::_topk_plain": "Sort", "aiter::top_k_per_row_decode_fast": "Sort",
    "aiter::top_k_per_row_prefill_fast": "Sort", "aiter::top_k_renorm_probs": "Sort",
    "aiter::top_k_top_p_sampling_from_probs": "Sort", "aiter::top_p_sampling_from_probs": "Sort",
    "aiter::topk_per_row": "Sort", "aiter::topk_per_row_decode": "Sort",
    "sgl_kernel::fast_topk_transform_fused": "Sort", "sgl_kernel::fast_topk_transform_ragged_fused": "Sort",
    "sgl_kernel::top_k_mask_logits": "Sort", "sgl_kernel::top_k_renorm_probs_wrapper": "Sort",
    "aiter::_mixed_sample": "SoftmaxV2", "aiter::_random_sample": "SoftmaxV2",
    "aiter::mixed_sample_outer_exponential": "SoftmaxV2", "aiter::random_sample_outer_exponential": "SoftmaxV2",
    "fbgemm::jagged_softmax": "SoftmaxV2", "fbgemm::jagged_softmax_forward": "SoftmaxV2",
    "npu::npu_softmax_cross_entropy_with_logits": "SoftmaxV2", "fbgemm::jagged_softmax_backward": "SoftmaxGrad",
    "npu::npu_attn_softmax_backward_": "SoftmaxGrad", "npu::npu_dropout_with_add_softmax_backward": "SoftmaxGrad",
    "npu::npu_softmax_cross_entropy_with_logits_backward": "SoftmaxGrad", "_C_cache_ops::convert_fp8": "Cast",
    "npu::_npu_format_cast": "Cast", "npu::npu_trans_quant_param": "Cast", "_C::permute_cols": "GatherV2",
    "fbgemm::invert_permute": "GatherV2", "fbgemm::jagged_to_padded_dense_backward": "GatherV2",
    "fbgemm::pack_segments_backward": "GatherV2", "_C::poly_norm": "RmsNorm",
    "sglang::per_tensor_absmax_fp8": "ReduceMax", "sgl_kernel::timestep_embedding": "Sin",
    "sglang::_run_unary_activation_inplace": "Gelu", "sglang_profiler::forward_batch_info_compute_position": "Cumsum",
    "sglang_profiler::forward_batch_info_compute_position_triton": "Cumsum", "fbgemm::offsets_range": "Range",
    "fb::offsets_range": "Range", "fb::lengths_range_w_truncation_size": "Range",
    "fbgemm::jagged_1d_to_dense": "PadV3", "fbgemm::pack_segments": "PadV3",
    "fbgemm::batched_dense_vec_jagged_2d_mul": "Mul", "fbgemm::batched_dense_vec_jagged_2d_mul_forward": "Mul",
    "fbgemm::jagged_dense_elementwise_mul_backward": "Mul", "fbgemm::jagged_dense_elementwise_mul_forward": "Mul",
    "fb::convex_sum": "Mul", "fb::scale_gradient": "Mul",
    "fbgemm::jagged_dense_dense_elementwise_add_jagged_output": "Add",
    "fbgemm::jagged_dense_dense_elementwise_add_jagged_output_forward": "Add",
    "fbgemm::jagged_dense_elementwise_add_jagged_output": "Add", "fb::sparse_label_to_bool": "ScatterElements",
    "fb::sparse_label_to_dense": "ScatterElements", "fb::to_dense_representation": "ScatterElements",
    "npu::_amp_foreach_non_finite_check": "IsFinite", "npu::dropout_with_byte_mask": "DropOutDoMask",
    "npu::npu_broadcast": "BroadcastTo", "npu::npu_group_norm_swish_grad": "GroupNormGrad",
    "npu::npu_max": "ArgMaxWithValue", "npu::npu_min": "ArgMinWithValue", "npu::npu_slice": "Slice",
    "npu::npu_stride_copy": "AsStrided", "npu::one_": "Fill",
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
