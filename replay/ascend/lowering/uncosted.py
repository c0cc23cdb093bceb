# pyright: strict
"""Ops that have a reference and no cost, each with the reason: they are left out of totals and named."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.op_view import OpView
from opreplay.replay.ascend.lowering.registry import Rule, lowers

_OWN_LOOKUP = "runs on the host's processor: its tables lie there"
_HARDWARE_FLAG = "reads or clears a flag of the device, not a tensor"
_AHEAD = "loads ahead beside other kernels: its time is theirs"

UNCOSTED: dict[str, str] = {
    "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu": _OWN_LOOKUP,
    "fbgemm::split_embedding_codegen_forward_cpu": _OWN_LOOKUP,
    "fbgemm::split_embedding_codegen_grad_indice_weights_cpu": _OWN_LOOKUP,
    "npu::npu_alloc_float_status": _HARDWARE_FLAG,
    "npu::npu_clear_float_status": _HARDWARE_FLAG,
    "npu::npu_get_float_status": _HARDWARE_FLAG,
    "npu::npu_prefetch": _AHEAD,
    "sglang_profiler::utils__reshape_for_qk_norm": "a wrapper in Python: the ops inside are recorded apart",
    "sglang_profiler::utils_apply_qk_norm": "a wrapper in Python: the ops inside are recorded apart",
}
"""Name → why nothing is predicted."""


def _left_out(reason: str) -> Rule:
    def rule(op: OpView) -> Iterable[KernelCall]:
        op.unbounded = reason
        op.note(f"not predicted: {reason}")
        return []

    rule.__name__ = "left_out"
    return rule


for _name, _reason in UNCOSTED.items():
    lowers(_name)(_left_out(_reason))
