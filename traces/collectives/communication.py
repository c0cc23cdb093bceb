# pyright: strict
"""Recognise by name which kernels and ops exchange data with other devices.

This is the project's only list of such names. They come from the sources of NCCL, RCCL, MSCCL++, oneCCL, NVSHMEM, NIXL,
DeepEP, mori, pplx-kernels, DeepGEMM, TransformerEngine, TensorRT-LLM, FlashInfer, vLLM, SGLang, aiter and PyTorch's
symmetric memory, and from profiles of CANN.
"""

from __future__ import annotations

import re
from functools import lru_cache

_MOST_CHARACTERS = 2000
"""Number of leading characters of a name that are examined; names of template kernels can reach 300 kB."""

_LIBRARIES = re.compile(
    r"(?<![a-z])(?:p?nccl|rccl|hccl|oneccl|xccl|lccl|mscclp*|uccl|bkcl|flagcx|hcom|ctran|nvshmem|nvshmemx|roc_?shmem|ishmem)"
    r"|(?<![a-z0-9_])ccl(?:::|_)|(?<![a-z])ucc_|(?<![a-z0-9])(?:ncclx|mori_shmem|ibgda)|(?<![a-z])nixl(?:_?ucx)?(?![a-z]|_ep)"
)
"""Names of communication libraries: a kernel communicates if its name, including its parameters, contains one
of them.
"""

_WORDS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|multimem|userbuffers|quick_?reduce_?(?:one|two)_?shot"
    r"|cross_?(?:device|gpu|rank)_?(?:reduce|load|store|gather|copy)"
    r"|(?:one|two)_?shot_?(?:all|push|pull)|push_?pull_?reduce"
    r"|(?<![a-z])a2a|moe_?a2a|moe_?comm(?![a-z])|moe_?comm_?kernel"
    r"|send_?recv|(?<![a-z])(?:p2p|ipc|rdma)_?(?:send|recv|put|get|push|pull)|(?<![a-z])(?:put|wait)_signal"
    r"|^barrier_kernel$|(?<![a-z])barrier_(?:all(?![a-z])|on_stream)"
    r"|(?:cross|inter|multi|all|peer|symm?_?mem|nvl|nvlink)_?(?:ranks?|gpus?|devices?|peers?|nodes?)?_?barrier|(?<![a-z])ranks?_barrier"
    r"|moe_?distribute_?(?:dispatch|combine)|moe_?(?:dispatch|combine)_?normal"
    r"|(?:intra|inter)_?node(?:_ll)?_*(?:::)?_*(?:cached_)?(?:dispatch|combine|notify)"
    r"|(?:intra|inter)node(?:_ll)?::\w*(?:dispatch|combine|notify|barrier|clean)"
    r"|low_latency_(?:dispatch|combine)|(?<![a-z])(?:cached_)?notify_?(?:dispatch|combine)"
    r"|(?<![a-z])ep_?(?:dispatch|combine)|(?:deep|nixl)_?ep_?(?:dispatch|combine|notify)|(?<![a-z])lamport"
    r"|aicpu_?kfc|kfc_?server|aicpu_?rpc_?srv"
)
"""Words that mark a kernel as communication if its name, without templates and parameters, contains one of them."""

_NAMESPACES = re.compile(
    r"(?<![a-z0-9_])(?:(?:deep_?ep|nixl_ep|hybrid_ep|ep|uccl|mori|mega_?moe)::(?=.*(?:dispatch|combine|notify|barrier|clean|send|recv|sync))"
    r"|(?:pplx|pplx_kernels|mscclpp|c10d|gloo)::)"
)
"""Namespaces that contain communication kernels."""

_LOCAL = re.compile(
    r"layout|(?<!broad)cast|quant|permut|convert|scan|copy|fill|memset|zero|elementwise|check_?for_?nan|preprocess|histogram"
    r"|norm|softmax|index|top_?k|sort|rope|rotary|silu|gelu|(?<![a-z])(?:add|mul|sum|max)(?![a-z])"
)
"""Words that show that a kernel in a communication namespace works only on its own device."""

_COMPUTES = re.compile(
    r"gemm|gemv|mat_?mul|(?<![a-z])(?:b?mm|addmm|linear)(?![a-z])|grouped_?mm|attention|attn|flash_?(?:fwd|bwd|decod)"
    r"|(?<![a-z])index_?(?:add|copy|fill|func|put|reduce|select)"
    r"|(?:block|warp|cta|thread|wave|group|lane|tile|subgroup|sub_group|cluster|quad|simd|d?smem)_?(?:wide_?)?"
    r"(?:all_?(?:reduce|gather)|reduce_?scatter)|all_?reduce_?(?:dims?|ax[ei]s)(?![a-z])"
    r"|^(?:\w+ )?(?:at|cub|thrust|cutlass|cute|ck|ck_tile|hipcub|rocprim|cudnn|cublaslt|cublas|dnnl|onednn)::"
    r"|^triton_(?:poi|red|per|tem|for|mm|bmm|spl|unk)_"
)
"""Names of kernels that count as computation even if they also contain a word such as "all_reduce".

There are four groups: matrix products that hide the communication fused with them; reductions within a block; kernels
of libraries that stay on one device; and kernels that Inductor names after the ops before and after a collective.
"""

_LAYERS_ACROSS_DEVICES = re.compile(
    r"mega_?moe(?!.*(?:rout|top_?k|gat(?:e|ing)|layout|quant|cast|pre_?dispatch|prepare|init|weight|transform))"
    r"|dispatch_?(?:ffn|gmm|gmm_?swiglu)_?combine"
)
"""Names of kernels that run a whole mixture-of-experts layer and send tokens to other devices and back.

These kernels also multiply. But unlike a matrix product fused with communication, they run only together with all ranks
and wait for the slowest rank.
"""

_NPU_TASKS = re.compile(
    r"notify[ _]?(?:wait|record)|write[ _]?value|s?rdma(?:[ _]?send)?|sdma|reduce[ _]?(?:inline|tbe)|rdma[ _]?\w+"
)
"""Complete names of the tasks into which HCCL splits a collective."""

_MARKS = re.compile(
    r"(?:p?nccl|gloo|hccl|mpi|ucc|xccl|rccl|lccl):(?!:)|hccl|hcom_|mpi_(?:i?all|reduce|bcast|i?send|i?recv|barrier)"
)
"""Prefixes of the annotations with which back-ends mark their collectives."""

_OP_NAMESPACES = re.compile(
    r"c10d|_?c10d_functional(?:_autograd)?|_dtensor|symm_mem|_C_custom_ar|nvshmem|torchcomms|mscclpp|nixl"
)
_OP_NAMESPACES_WITH_LAYOUTS = re.compile(r"deep_ep|nixl_ep|hybrid_ep|mori|pplx|uccl|mega_?moe")
"""Namespaces of communication libraries that also contain local ops, such as layouts and casts."""
_OP_WORDS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|(?<![a-z])a2a(?![a-z])|ncclx|nccl_|send_?recv"
    r"|moe_?distribute_?(?:dispatch|combine)|(?:intra|inter)node_(?:dispatch|combine)|low_latency_(?:dispatch|combine)"
    r"|(?:cross|inter|multi)_?(?:rank|gpu|device|node)_?barrier|(?<![a-z])(?:ibgda|nixl_ep|nvshmem)_"
    r"|(?<![a-z])(?:dispatch|combine)_prefill"
)
_LIBRARY_OPS = frozenset(("aten", "prims", "prim", "torchvision", "torchaudio", "autograd", "torch"))
"""Namespaces of ops that never communicate, whatever their names."""
_MANGLED_PART = re.compile(r"(\d+)")


@lru_cache(maxsize=65536)
def is_communication(kernel: str) -> bool:
    """Check by its name whether a device task exchanges data with other devices, or waits for them.

    The name may be mangled, or demangled with its return type, templates and parameters. A matrix product fused with
    communication ("AllGatherMatmul") counts as computation. A kernel that runs a mixture-of-experts layer across
    devices ("MegaMoe") counts as communication.
    """
    text = kernel[:_MOST_CHARACTERS]
    if _NPU_TASKS.fullmatch(text.strip().lower()) or _MARKS.match(text.lower()):
        return True
    name = kernel_path(text).lower()
    if _LAYERS_ACROSS_DEVICES.search(name.rpartition("::")[2]):
        return True
    if _COMPUTES.search(name):
        return False
    function = name.rpartition("::")[2]
    if _LIBRARIES.search(text.lower()) or _WORDS.search(function):
        return True
    return (_WORDS.search(name) or _NAMESPACES.search(name)) is not None and _LOCAL.search(function) is None


@lru_cache(maxsize=65536)
def is_communication_op(name: str) -> bool:
    """Check whether an op ("c10d::allreduce_", "vllm::all_reduce") or an annotation ("gloo:broadcast") communicates.

    A matrix product fused with communication ("symm_mem::fused_all_gather_matmul") does not count; each of its kernels
    is classified by the kernel's name.
    """
    if name == "record_param_comms" or _MARKS.match(name.lower()):
        return True
    namespace, qualified, op = name.rpartition("::")
    op = op.lower()
    if not qualified or namespace in _LIBRARY_OPS:
        return False
    if _LAYERS_ACROSS_DEVICES.search(op):
        return True
    if _COMPUTES.search(op):
        return False
    if _OP_NAMESPACES_WITH_LAYOUTS.fullmatch(namespace) and not _LOCAL.search(op):
        return True
    return _OP_NAMESPACES.fullmatch(namespace) is not None or _OP_WORDS.search(op) is not None


def computes(kernel: str) -> bool:
    """Check whether a kernel computes on one device, judging only by its name, not by its op or stream."""
    return _COMPUTES.search(kernel_path(kernel[:_MOST_CHARACTERS]).lower()) is not None


def kernel_path(name: str) -> str:
    """Return a kernel's qualified name without templates and parameters: "deep_ep::intranode::dispatch"."""
    if name.startswith(("_ZN", "_Z")):
        return _demangled_path(name)
    out: list[str] = []
    depth = 0
    for part in re.split(r"([<>()\[\]{}])", name.replace("(anonymous namespace)::", "").replace("->", "")):
        if part in ("<", "(", "[", "{"):
            depth += 1
        elif part in (">", ")", "]", "}"):
            depth = max(0, depth - 1)
        elif depth == 0:
            out.append(part)
    return "".join(out).strip().removeprefix("void ").removesuffix(".kd").strip()


def _demangled_path(name: str) -> str:
    """Return the nested name of an Itanium-mangled symbol: "_ZN2ck4gemmIfE" is "ck::gemm"."""
    at = name.find("N", 2) + 1 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while (match := _MANGLED_PART.match(name, at)) is not None:
        at = match.end() + int(match[1][:4])
        parts.append(name[match.end() : at])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N"))
