"""Which namespaces have stand-ins, where they are implemented, and which library they belong to; no torch."""

from __future__ import annotations

LIBRARIES: dict[str, str] = {
    "_C": "vllm",
    "_C_cache_ops": "vllm",
    "_moe_C": "vllm",
    "_rocm_C": "vllm",
    "_vllm_fa2_C": "vllm",
    "_vllm_fa3_C": "vllm",
    "vllm": "vllm",
    "flash_attn": "flash_attn",
    "xformers_flash": "xformers",
    "xformers_flash3": "xformers",
    "aiter": "aiter",
    "sgl_kernel": "sgl_kernel",
    "sglang": "sglang",
    "sglang_profiler": "sglang",
    "fbgemm": "fbgemm_gpu",
    "fb": "fb, internal to Meta",
    "npu": "torch_npu",
    "_punica_C": "vllm",
    "_C_ascend": "vllm_ascend",
    "flash_attn_3": "flash_attn_3",
    "xformers": "xformers",
    "torchao": "torchao",
    "te_softmax": "transformer_engine",
}
"""Library that registers the ops of a namespace."""

MODULES: dict[str, tuple[str, ...]] = {
    "_C": (
        "vllm_linear",
        "vllm_activation",
        "vllm_norm",
        "vllm_quant",
        "vllm_rope",
        "vllm_attention",
        "vllm_gemm",
        "marlin",
        "packed_experts",
        "moe_bookkeeping",
        "row_topk",
        "sampling",
        "state_space",
        "serving_quant",
    ),
    "_C_cache_ops": ("vllm_cache", "serving_rope"),
    "_moe_C": ("vllm_moe", "vllm_linear", "packed_experts", "moe_bookkeeping"),
    "_rocm_C": ("vllm_attention", "vllm_gemm"),
    "_vllm_fa2_C": ("flash_attention", "attention_forms"),
    "_vllm_fa3_C": ("flash_attention",),
    "vllm": (
        "vllm_layers",
        "vllm_experts",
        "vllm_aiter",
        "vllm_linear",
        "packed_experts",
        "lora",
        "attention_forms",
        "aiter_fmoe",
        "serving_rope",
        "serving_quant",
    ),
    "flash_attn": ("flash_attention", "flash_attention_backward"),
    "xformers_flash": ("xformers", "attention_gradients"),
    "xformers_flash3": ("xformers", "attention_gradients"),
    "aiter": (
        "aiter_norm",
        "aiter_gemm",
        "aiter_attention",
        "aiter_moe",
        "aiter_pointwise",
        "moe_bookkeeping",
        "row_topk",
        "sampling",
        "attention_gradients",
        "aiter_linear",
        "aiter_elementwise",
        "aiter_fmoe",
    ),
    "sgl_kernel": (
        "sgl_kernel",
        "sgl_moe",
        "marlin",
        "packed_experts",
        "moe_bookkeeping",
        "row_topk",
        "sampling",
        "state_space",
        "serving_rope",
        "serving_quant",
    ),
    "sglang": (
        "sglang",
        "vllm_linear",
        "marlin",
        "packed_experts",
        "moe_bookkeeping",
        "state_space",
        "attention_forms",
        "serving_rope",
        "serving_quant",
    ),
    "sglang_profiler": ("sglang",),
    "fbgemm": ("fbgemm_sparse", "fbgemm_quant", "fbgemm_tables", "fbgemm_jagged", "fbgemm_gradients", "fbgemm_grouped"),
    "fb": ("fb",),
    "npu": (
        "npu_basic",
        "npu_attention",
        "npu_training_attention",
        "npu_moe",
        "lora",
        "sampling",
        "npu_pointwise",
        "npu_movement",
        "npu_norm_quant",
        "npu_attention_training",
        "npu_gemm",
        "npu_moe_routing",
        "serving_rope",
    ),
    "_punica_C": ("lora",),
    "_C_ascend": ("lora", "sampling", "npu_norm_quant", "npu_gemm", "npu_moe_routing", "serving_rope"),
    "flash_attn_3": ("attention_forms", "attention_gradients"),
    "xformers": ("attention_forms",),
    "torchao": ("serving_quant",),
    "te_softmax": ("fused_softmax",),
}
"""Modules of this package that implement a namespace; imported (with torch) by `register_namespace` only."""

ALIASES: dict[str, str] = {"_rocm_C::wvSpltK": "_rocm_C::wvSplitK"}
"""Recorded name → the name under which the op is implemented."""

PROFILER_WRAPPERS: frozenset[str] = frozenset(
    {
        "attention_paged_attention_ragged",
        "forward_batch_info_compute_position",
        "forward_batch_info_compute_position_triton",
        "memory_pool__set_kv_buffer_impl",
        "mha__mha_batch_prefill",
        "rmsnorm_rmsnorm2d_fwd",
        "rmsnorm_rmsnorm2d_fwd_with_add",
        "utils__reshape_for_qk_norm",
        "utils_apply_qk_norm",
    }
)
"""Functions that a profiling patch of SGLang wraps; recorded as `sglang_profiler::<this>_<running number>`."""


def library_of(namespace: str) -> str | None:
    """The library that registers `namespace::*`, by its import name, or None when the namespace is not known here."""
    return LIBRARIES.get(namespace)
