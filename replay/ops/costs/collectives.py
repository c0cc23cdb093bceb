# pyright: strict
"""Lowering of collectives to HCCL operations: operation, number of ranks and message size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

import msgspec

from opreplay.replay.collectives.model import POINT_TO_POINT, Collective
from opreplay.replay.ir.kernel import KernelCall, TensorSpec, itemsize
from opreplay.replay.ops.costs.layers import moe
from opreplay.replay.ops.costs.products import matmul
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.replay.ops.table import costs, costs_like
from opreplay.traces.collectives.names import EXPERTS, operation_of
from opreplay.traces.collectives.tensors import is_turned, sends_operand, with_product
from opreplay.traces.model import MOST_ELEMENTS, TensorMeta

OF_KINDS: dict[str, str] = {
    "all_reduce": "hcom_allReduce_",
    "all_gather": "hcom_allGather_",
    "reduce_scatter": "hcom_reduceScatter_",
    "all_to_all": "hcom_alltoallv_",
    "broadcast": "hcom_broadcast_",
    "reduce": "hcom_reduce_",
    "gather": "hcom_gather_",
    "scatter": "hcom_scatter_",
    "send": "hcom_send_",
    "recv": "hcom_receive_",
    "barrier": "hcom_barrier_",
    "send_recv": "hcom_alltoallv_",
}
"""Map of kind of collective to HCCL operation. `send_recv` kernels mostly belong to an all-to-all."""

LIKE = (
    r"(nccl|gloo|hccl|mpi|ucc|xccl|rccl|lccl|ncclx):",  # annotations of the back-ends, taken for ops
    r"(hcom_|Hccl)",  # an NPU's own names
    r"_?c10d(_functional|_functional_autograd)?::",
    r"(vllm|sglang|sgl_kernel|aiter|npu|fbgemm|symm_mem|flashinfer|_C_ascend|_C_custom_ar)::\w*"
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|one_shot_all|two_shot_all)",
)
"""Regular expressions that match op names of collectives."""


def _message(op: OpView, kind: str, world: int) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return (inputs, outputs) of one rank.

    If only one of them is recorded, the other is derived from the number of ranks.
    """
    tensors = [spec(t.shape, t.dtype) for t in op.tensors]
    name = op.op.name
    if kind not in ("hcom_allGather_", "hcom_reduceScatter_") or not tensors or name.endswith("_base_"):
        return tensors, list(op.outputs(*tensors[:1]))
    if len({prod(t.shape) for t in tensors}) > 1:
        largest = max(tensors, key=lambda t: prod(t.shape))
        return tensors, [largest]
    size, dtype = sum(prod(t.shape) for t in tensors), tensors[0].dtype
    # c10d::reduce_scatter_ names its results first, and what goes in is a list of lists, which is not recorded.
    scattered = kind == "hcom_reduceScatter_" and name != "c10d::reduce_scatter_"
    return tensors, [spec((size if scattered else size * world,), dtype)]


def kernel_of(collective: Collective) -> KernelCall:
    """Return the HCCL operation of a collective, with the participating ranks and how uneven its splits are."""
    attrs: dict[str, int | float | bool | str | tuple[int, ...]] = {}
    if collective.kind in POINT_TO_POINT:
        attrs["world_size"] = 2
        if collective.source is not None and collective.target is not None and collective.source != collective.target:
            attrs["ranks"] = (collective.source, collective.target)
    else:
        if collective.group_size is not None:
            attrs["world_size"] = collective.group_size
        if collective.group_ranks:
            attrs["ranks"] = collective.group_ranks
        both = collective.in_splits, collective.out_splits
        splits = both[0] or both[1]
        if collective.kind == "all_to_all" and len(splits) > 1 and sum(splits):
            attrs["uneven"] = max(max(split) * len(split) / sum(split) for split in both if sum(split))
    return KernelCall(
        type=OF_KINDS[collective.kind],
        inputs=(spec((collective.in_elements,), collective.dtype),),
        outputs=(spec((collective.out_elements,), collective.dtype),),
        attrs=attrs,
    )


def _lowered(op: OpView, kind: str) -> list[KernelCall]:
    world = op.integer("world_size", "group_size", default=0) or op.op.ranks or _by_sizes(op, kind)
    if world <= 0:
        op.note("number of ranks not recorded: 8 assumed (one server)")
    op.note("waiting for other ranks is not part of the prediction")
    inputs, outputs = _message(op, kind, world or 8)
    return [kernel(kind, inputs, outputs, **({"world_size": world} if world > 0 else {}))]


def _by_sizes(op: OpView, kind: str) -> int:
    """Return the number of ranks, or 0 if it is unknown.

    It is the size of the gathered (or not yet scattered) data, divided by the size of one rank's data.
    """
    sizes = [prod(t.shape) for t in op.tensors]
    if kind not in ("hcom_allGather_", "hcom_reduceScatter_") or len(sizes) != 2 or not min(sizes):
        return 0
    return max(sizes) // min(sizes) if max(sizes) % min(sizes) == 0 and max(sizes) > min(sizes) else 0


@costs("c10d::alltoall_")
def all_to_all(op: OpView) -> Iterable[KernelCall]:
    """Return an all-to-all with even splits, for which HCCL has a separate operation."""
    return _lowered(op, "hcom_alltoall_")


@costs_like(*LIKE)
def by_name(op: OpView) -> Iterable[KernelCall]:
    """Return the HCCL operation that the op's name implies."""
    if any(word in op.op.name for word in ("wait", "rank", "work", "coalescing", "pg_", "initialize", "Destroy")):
        return ()
    kind = operation_of(op.op.name)
    if kind is None:
        raise DoesNotFit("the name contains no collective operation")
    if with_product(op.op.name):
        return _with_product(op, OF_KINDS[kind])
    return _lowered(op, OF_KINDS[kind])


def _with_product(op: OpView, kind: str) -> list[KernelCall]:
    """Return the kernels of a matrix product fused with a collective.

    The product is x1 (rows, K) with x2 (K, N) or (N, K), or with the experts' weights. The collective runs before the
    product and moves x1, or after it and moves the result.
    """
    a = op.need("x1", "self", "gmm_x", at=0, rank=2)
    world = op.integer("world_size", "tpRankSize", "ep_world_size", default=0) or op.op.ranks or 0
    if world <= 0:
        op.note("number of ranks not recorded: 8 assumed (one server)")
    op.note("waiting for other ranks is not part of the prediction")
    op.assume("product and collective times are added, because their overlap in CANN was never measured")
    rows, inner, ranks = prod(a.shape[:-1]), a.shape[-1], world if world > 0 else 8
    if rows * inner * ranks > MOST_ELEMENTS:
        raise DoesNotFit(f"{ranks:g} ranks")
    attrs = {"world_size": world} if world > 0 else {}
    if not sends_operand(op.op.name):
        products = _products(op, TensorMeta(shape=(rows, inner), dtype=a.dtype))
        (result,) = filter(None, products[0].outputs)
        return [*products, kernel(kind, *_moved(kind, result, ranks), **attrs), *_normed(op, result)]
    sent, got = _moved(kind, spec((rows, inner), a.dtype), ranks)
    grouped = "gmm" in op.op.name
    size = (max(1, rows // ranks), inner * ranks) if kind == "hcom_alltoallv_" and not grouped else got[0].shape
    return [kernel(kind, sent, got, **attrs), *_products(op, TensorMeta(shape=size, dtype=a.dtype))]


def _products(op: OpView, a: TensorMeta) -> list[KernelCall]:
    """Return one product of `a` (rows, K) with each right-hand operand of the op."""
    if "gmm" in op.op.name:
        shared = [meta for name in ("mm_x", "mm_weight") if name in op.args for meta in op.metas(name)]
        return [*moe.grouped_product(op), *([matmul.product(op, shared[0], shared[1])] if len(shared) == 2 else [])]
    factors = op.metas("Bs") if "Bs" in op.args else [op.need("x2", "mat2", at=1, rank=2)]
    if not factors or any(len(b.shape) < 2 for b in factors):
        raise DoesNotFit("a product needs two matrices")
    eight = [itemsize(a.dtype) == itemsize(b.dtype) == 1 for b in factors]
    return [
        matmul.of_eight_bits(op, a, b) if narrow else matmul.product(op, a, b, weight=is_turned(a.shape[-1], b.shape))
        for narrow, b in zip(eight, factors, strict=True)
    ]


def _moved(kind: str, sent: TensorSpec, ranks: int) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the tensors that a rank sends and the tensors that it receives."""
    rows, columns = prod(sent.shape[:-1]), sent.shape[-1]
    got = {"hcom_allGather_": rows * ranks, "hcom_reduceScatter_": max(1, rows // ranks)}.get(kind, rows)
    return [sent], [spec((got, columns), sent.dtype)]


def _normed(op: OpView, x: TensorSpec) -> list[KernelCall]:
    """Return AddRmsNorm of the result (residual addition and norm) if the op includes it, otherwise no kernel."""
    gamma = op.meta("gamma") if "gamma" in op.args else None
    if gamma is None:
        return []
    norm = [x, spec((*x.shape[:-1], 1), "float32"), x]
    return [kernel("AddRmsNorm", [x, x, spec(gamma.shape, gamma.dtype)], norm)]


@costs("record_param_comms")
def recorded_parameters(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of `record_param_comms`.

    The op's name does not say which collective it is, but the recorded device kernels do.
    """
    if (collective := op.op.collective) is not None:
        if collective.group_size is None and collective.kind not in POINT_TO_POINT:
            op.note("number of ranks not recorded: 8 assumed (one server)")
        op.note("waiting for other ranks is not part of the prediction")
        if EXPERTS in op.op.name:
            kind = "Dispatch" if "dispatch" in op.op.name else "Combine"
            return [msgspec.structs.replace(kernel_of(collective), type=f"MoeDistribute{kind}")]
        return [kernel_of(collective)]
    if not op.tensors:
        return ()
    named = [kind for k in op.op.recorded.kernels if (kind := operation_of(re.sub(r"^nccl\w*?Kernel_?", "", k.name)))]
    if not named:
        op.note("the operation is not recorded: taken as all-reduce")
    return _lowered(op, OF_KINDS[named[0] if named else "all_reduce"])


@costs(
    """
        _c10d_functional::wait_tensor c10d::wait_tensor _c10d_functional_autograd::wait_tensor
        c10d_functional::wait_tensor
    """
)
def wait(op: OpView) -> Iterable[KernelCall]:
    """Return no kernels, because waiting costs no device time."""
    return ()
