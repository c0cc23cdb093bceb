# pyright: strict
"""Which namespaces have stand-ins, where they are implemented, and which library they belong to; no torch."""

from __future__ import annotations

from opreplay.replay.host.libraries import LIBRARY_OF

MODULES: dict[str, tuple[str, ...]] = {
    "_C": (
        "vllm.linear",
        "vllm.activation",
        "vllm.norm",
        "vllm.quant",
        "vllm.rope",
        "vllm.attention",
        "vllm.linear",
        "shared.marlin",
        "shared.packed_experts",
        "shared.moe_bookkeeping",
        "shared.row_topk",
        "shared.sampling",
        "shared.state_space",
        "shared.quant",
    ),
    "_C_cache_ops": ("vllm.cache", "shared.rope"),
    "_moe_C": ("vllm.moe", "vllm.linear", "shared.packed_experts", "shared.moe_bookkeeping"),
    "_rocm_C": ("vllm.attention", "vllm.linear"),
    "_vllm_fa2_C": ("flash_attention.forward", "flash_attention.other_forms"),
    "_vllm_fa3_C": ("flash_attention.forward",),
    "vllm": (
        "vllm.layers",
        "vllm.experts",
        "vllm.aiter_wrappers",
        "vllm.linear",
        "shared.packed_experts",
        "shared.lora",
        "flash_attention.other_forms",
        "aiter.sorted_experts",
        "shared.rope",
        "shared.quant",
    ),
    "flash_attn": ("flash_attention.forward", "flash_attention.backward"),
    "xformers_flash": ("flash_attention.xformers", "flash_attention.other_gradients"),
    "xformers_flash3": ("flash_attention.xformers", "flash_attention.other_gradients"),
    "aiter": (
        "aiter.norm",
        "aiter.gemm",
        "aiter.attention",
        "aiter.moe",
        "aiter.rope_and_cache",
        "shared.moe_bookkeeping",
        "shared.row_topk",
        "shared.sampling",
        "flash_attention.other_gradients",
        "aiter.linear",
        "aiter.elementwise",
        "aiter.sorted_experts",
    ),
    "sgl_kernel": (
        "sglang.kernel",
        "sglang.moe",
        "shared.marlin",
        "shared.packed_experts",
        "shared.moe_bookkeeping",
        "shared.row_topk",
        "shared.sampling",
        "shared.state_space",
        "shared.rope",
        "shared.quant",
    ),
    "sglang": (
        "sglang.python_ops",
        "vllm.linear",
        "shared.marlin",
        "shared.packed_experts",
        "shared.moe_bookkeeping",
        "shared.state_space",
        "flash_attention.other_forms",
        "shared.rope",
        "shared.quant",
    ),
    "sglang_profiler": ("sglang.python_ops",),
    "fbgemm": ("fbgemm.sparse", "fbgemm.quant", "fbgemm.tables", "fbgemm.jagged", "fbgemm.gradients", "fbgemm.grouped"),
    "fb": ("fbgemm.internal",),
    "npu": (
        "npu.norms_and_casts",
        "npu.attention",
        "npu.fusion_attention",
        "npu.moe",
        "shared.lora",
        "shared.sampling",
        "npu.activations",
        "npu.movement",
        "npu.norms_with_quantisation",
        "npu.training",
        "npu.quantised_products",
        "npu.moe_routing",
        "shared.rope",
    ),
    "_punica_C": ("shared.lora",),
    "_C_ascend": (
        "shared.lora",
        "shared.sampling",
        "npu.norms_with_quantisation",
        "npu.quantised_products",
        "npu.moe_routing",
        "shared.rope",
    ),
    "flash_attn_3": ("flash_attention.other_forms", "flash_attention.other_gradients"),
    "xformers": ("flash_attention.other_forms",),
    "torchao": ("shared.quant",),
    "te_softmax": ("shared.fused_softmax",),
}
"""Modules of this package that implement a namespace; imported (with torch) by `register_namespace` only."""

LIBRARIES: dict[str, str] = {namespace: LIBRARY_OF[namespace] for namespace in MODULES}
"""Library that registers the ops of a namespace with stand-ins."""

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
