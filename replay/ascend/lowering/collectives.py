"""Lowering of collectives to HCCL operations."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.registry import Rule, lowers
from opreplay.replay.ascend.lowering.view import OpView, kernel, spec

COLLECTIVES: dict[str, str] = {
    "c10d::allreduce_": "hcom_allReduce_", "c10d::allreduce_coalesced_": "hcom_allReduce_",
    "c10d::allgather_": "hcom_allGather_", "c10d::_allgather_base_": "hcom_allGather_",
    "c10d::allgather_into_tensor_coalesced_": "hcom_allGather_", "c10d::reduce_scatter_": "hcom_reduceScatter_",
    "c10d::_reduce_scatter_base_": "hcom_reduceScatter_",
    "c10d::reduce_scatter_tensor_coalesced_": "hcom_reduceScatter_", "c10d::alltoall_": "hcom_alltoall_",
    "c10d::alltoall_base_": "hcom_alltoallv_", "c10d::broadcast_": "hcom_broadcast_", "c10d::reduce_": "hcom_reduce_",
    "c10d::gather_": "hcom_gather_", "c10d::scatter_": "hcom_scatter_", "c10d::send": "hcom_send_",
    "c10d::recv_": "hcom_receive_", "c10d::recv_any_source_": "hcom_receive_", "c10d::barrier": "hcom_barrier_",
    "c10d::monitored_barrier_": "hcom_barrier_", "_c10d_functional::all_reduce": "hcom_allReduce_",
    "_c10d_functional::all_reduce_": "hcom_allReduce_", "_c10d_functional::all_gather_into_tensor": "hcom_allGather_",
    "_c10d_functional::reduce_scatter_tensor": "hcom_reduceScatter_",
    "_c10d_functional::all_to_all_single": "hcom_alltoallv_", "_c10d_functional::broadcast": "hcom_broadcast_",
    "vllm::all_reduce": "hcom_allReduce_", "vllm::all_gather": "hcom_allGather_",
    "vllm::reduce_scatter": "hcom_reduceScatter_", "_C_custom_ar::all_reduce": "hcom_allReduce_",
    "sglang::inplace_all_reduce": "hcom_allReduce_", "sglang::outplace_all_reduce": "hcom_allReduce_",
    "sglang::reg_all_gather_into_tensor": "hcom_allGather_",
}  # fmt: skip
"""torch.distributed and serving frameworks' ops → HCCL operation."""


def _rule(kind: str) -> Rule:
    def rule(op: OpView) -> Iterable[KernelCall]:
        tensors = [spec(t.shape, t.dtype) for t in op.tensors]
        world = op.integer("world_size", "group_size", default=0)
        if world <= 0:
            op.note("number of ranks not recorded: one server of 8 assumed")
        op.note("waiting for other ranks is not part of the prediction")
        return [kernel(kind, tensors, op.outputs(*tensors[:1]), **({"world_size": world} if world > 0 else {}))]

    rule.__name__ = f"collective_{kind}"
    return rule


for _name, _kind in COLLECTIVES.items():
    lowers(_name)(_rule(_kind))


@lowers("_c10d_functional::wait_tensor", "c10d::wait_tensor", "_c10d_functional_autograd::wait_tensor")
def wait(op: OpView) -> Iterable[KernelCall]:
    """Waiting costs the device nothing."""
    return ()
