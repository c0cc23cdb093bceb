# pyright: strict
"""Recognizes recorded names that are not ops: labels of frameworks and autograd, collectives, and generated kernels.

Does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from opreplay.replay.ir.model import Reason
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES, split_name
from opreplay.traces.collectives.communication import is_communication, is_communication_op
from opreplay.traces.model import OpSignature

_GENERATED = re.compile(r"triton_|cpp_fused_|graph_\d+_cpp_fused_|graph_\d+_kernel|ProxyExecutor|inductor_")
_COLLECTIVE_LABEL = re.compile(r"(nccl|gloo|hccl|mpi|ucc|xccl|rccl):|Hccl|hcom_|c10d::")
_COLLECTIVE_WORD = re.compile(
    "all_reduce|allreduce|all_gather|allgather|reduce_scatter|all_to_all|alltoall|broadcast_|send_recv|ncclx"
    "|moe_distribute_dispatch|moe_distribute_combine"
)
_BOOKKEEPING = {
    "aten::record_stream": "only tells the allocator that a stream uses the tensor; computes nothing",
    "aten::_make_dual": "pairs a tensor with its tangent; the level of forward-mode differentiation has ended",
}
_VENDORS_WITH_COLLECTIVES = frozenset(
    {"vllm", "sglang", "sgl_kernel", "aiter", "_C_custom_ar", "npu", "fbgemm", "symm_mem", "flashinfer", "_C_ascend"}
    | {"deep_ep", "nixl_ep", "hybrid_ep", "mori", "pplx", "uccl", "nvshmem", "nixl", "mscclpp"}
    | {"torchcomms", "trtllm", "tensorrt_llm", "deep_gemm", "mega_moe"}
)


_BY_NAMESPACE: dict[str, Reason] = {
    **dict.fromkeys(("autograd", "torch"), Reason("label, not an op")),
    **dict.fromkeys(COLLECTIVE_NAMESPACES, Reason("collective")),
    "triton": Reason("triton kernel"),
}


def work_of_label(kernels: Sequence[str]) -> Reason | None:
    """Return the kind of work that a label with device time does: generated code or communication.

    None unless all kernels of the label are of one of these kinds. Labels have device time if inductor launches kernels
    inside a compiled function: its name, or autograd's label for it, is then the innermost name around the kernels.
    """
    if kernels and all(kernel.startswith("triton_") for kernel in kernels):
        return Reason("triton kernel")
    return Reason("collective") if kernels and all(map(is_communication, kernels)) else None


def not_an_op(signature: OpSignature, *, on_device: bool = False) -> Reason | None:
    """Return the reason why a recorded name cannot be called as an op; None if it looks like an op.

    `on_device` says that calls of this name have device time. Such a name is not taken for a label, even if it has no
    arguments.
    """
    name = signature.name
    if _GENERATED.match(name):
        return Reason("triton kernel")
    if _COLLECTIVE_LABEL.match(name):
        return Reason("collective")
    if name in _BOOKKEEPING:
        return Reason("label, not an op", _BOOKKEEPING[name])
    if name == "record_param_comms":
        return Reason("collective") if signature.dims or on_device else Reason("label, not an op")
    parts = split_name(name)
    if parts is None:
        return Reason("label, not an op")
    namespace, op, _ = parts
    if namespace in _VENDORS_WITH_COLLECTIVES and (is_communication_op(name) or _COLLECTIVE_WORD.search(op)):
        return Reason("collective")
    return _BY_NAMESPACE.get(namespace)


def is_label(signature: OpSignature) -> bool:
    """Check whether a recorded name is a label that a framework or autograd puts around ops."""
    reason = not_an_op(signature)
    return reason is not None and "label" in reason.kind


def is_collective(signature: OpSignature) -> bool:
    """Check whether a recorded name is communication between processes."""
    reason = not_an_op(signature, on_device=True)
    return reason is not None and reason.kind == "collective"
