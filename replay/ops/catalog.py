# pyright: strict
"""Table of op namespaces with reference implementations: their modules and libraries.

This module does not import torch.
"""

from __future__ import annotations

from opreplay.replay.host.libraries import LIBRARY_OF

LIBRARIES: dict[str, str] = {
    namespace: LIBRARY_OF[namespace]
    for namespace in (
        "_C",
        "_C_cache_ops",
        "_moe_C",
        "_rocm_C",
        "_vllm_fa2_C",
        "_vllm_fa3_C",
        "vllm",
        "flash_attn",
        "xformers_flash",
        "xformers_flash3",
        "aiter",
        "sgl_kernel",
        "sglang",
        "sglang_profiler",
        "fbgemm",
        "fb",
        "npu",
        "_punica_C",
        "_C_ascend",
        "flash_attn_3",
        "xformers",
        "torchao",
        "te_softmax",
    )
}
"""Namespaces with reference implementations → library that registers their ops."""

ALIASES: dict[str, str] = {"_rocm_C::wvSpltK": "_rocm_C::wvSplitK"}
"""Recorded name → name under which the op is implemented."""

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
"""Functions that SGLang's profiling patch wraps. They are recorded as `sglang_profiler::<name>_<running number>`."""


def library_of(namespace: str) -> str | None:
    """Return the import name of the library that registers `namespace::*`, or None for an unknown namespace."""
    return LIBRARIES.get(namespace)


UNDER_ATEN: dict[str, str] = {f"aten::{name}": f"npu::{name}" for name in ("npu_dtype_cast", "npu_format_cast")}
"""Name of an NPU op in the `aten` namespace → its name in `npu`."""
