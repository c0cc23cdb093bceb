# pyright: strict
"""Libraries that register ops: their namespaces, and the modules that may be imported for them.

This module contains only data. `ops.catalog` lists the namespaces that have reference implementations. `resolve.policy`
holds what the user allows.
"""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):
    """A library that registers ops."""

    name: str
    """Import name, if the library has one; shown when the library is missing."""
    namespaces: dict[str, str | None]
    """Op namespace → module that registers its ops; None if nothing may be imported for it."""
    common: bool = False
    """Whether `opreplay doctor` checks for the library."""


LIBRARIES: tuple[Library, ...] = (
    Library("torchvision", {"torchvision": "torchvision"}, common=True),
    Library("torch_npu", {"npu": "torch_npu"}, common=True),
    Library(
        "vllm",
        {
            "_C": "vllm._C", "_C_cache_ops": "vllm._C", "_C_custom_ar": "vllm._C", "_moe_C": "vllm._moe_C",
            "_rocm_C": "vllm._rocm_C", "_vllm_fa2_C": "vllm.vllm_flash_attn", "_vllm_fa3_C": "vllm.vllm_flash_attn",
            "vllm": "vllm", "_punica_C": None,
        },
        common=True,
    ),
    Library("flash_attn", {"flash_attn": "flash_attn"}, common=True),
    Library("aiter", {"aiter": "aiter"}, common=True),
    Library("sgl_kernel", {"sgl_kernel": "sgl_kernel"}, common=True),
    Library(
        "xformers",
        {"xformers": "xformers.ops", "xformers_flash": "xformers.ops", "xformers_flash3": "xformers.ops"},
        common=True,
    ),
    Library("fbgemm_gpu", {"fbgemm": "fbgemm_gpu"}, common=True),
    Library("triton", {}, common=True),
    Library(
        "torch",
        {
            "fsdp": "torch.distributed.fsdp",
            "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
            "torch_attn": "torch.nn.attention.varlen",
        },
    ),
    Library("torchaudio", {"torchaudio": "torchaudio"}),
    Library("torchao", {"torchao": "torchao"}),
    Library("flash_attn_3", {"flash_attn_3": "flash_attn_interface"}),
    Library("sglang", {"sglang": "sglang", "sglang_profiler": None}),
    Library("vllm_ascend", {"_C_ascend": "vllm_ascend"}),
    Library("flashinfer", {"flashinfer": "flashinfer"}),
    Library("bitsandbytes", {"bitsandbytes": "bitsandbytes"}),
    Library("intel_extension_for_pytorch", {"torch_ipex": "intel_extension_for_pytorch"}),
    Library("torch_scatter", {"torch_scatter": "torch_scatter"}),
    Library("torch_sparse", {"torch_sparse": "torch_sparse"}),
    Library("torchsparse", {"torchsparse": "torchsparse"}),
    Library("mslk", {"mslk": "mslk"}),
    Library("transformer_engine", {"te_softmax": None}),
    Library("fb, internal to Meta", {"fb": None}),
)  # fmt: skip
"""Every library whose ops opreplay knows. A trace may select a namespace of this table, never a module."""

LIBRARY_OF: dict[str, str] = {namespace: library.name for library in LIBRARIES for namespace in library.namespaces}
"""Namespace → name of the library that registers its ops."""

MODULE_OF: dict[str, str] = {
    namespace: module for library in LIBRARIES for namespace, module in library.namespaces.items() if module is not None
}
"""Map of namespace to the module that registers its ops on import.

Namespaces without an importable module are left out.
"""
