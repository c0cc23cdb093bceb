# pyright: strict
"""Lowering of mixture-of-experts ops: gating, routing, grouped products, whole fused layers; also low-rank adapters."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.products.matmul import product
from opreplay.replay.ops.invented import NAMED_BY, NARROW_BITS, expert_sizes
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, length, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

ASSUMED_TOP_K = 8
"""Assumed number of experts per token if the trace does not record this number."""
INT4_IN_INT32 = 8
SPLIT_ALONG_K = 2
"""Value of `group_type` in `npu_grouped_matmul` for the gradients of weights.

The groups then split the summed dimension.
"""
ADAPTER_WEIGHTS = ("lora_a_weights", "lora_b_weights", "weight", "w")


def gating(op: OpView) -> Iterable[KernelCall]:
    """Return MoeGatingTopK over the router logits, which are the widest two-dimensional float tensor."""
    metas = [t for t in op.tensors if len(t.shape) == 2 and t.dtype not in ("int32", "int64")]
    metas = metas or [t for t in op.tensors if t.shape]
    if not metas:
        raise DoesNotFit("gates need router logits")
    logits = max(metas, key=lambda t: t.shape[-1])
    source = spec(logits.shape, logits.dtype)
    k = max(1, min(op.integer("topk", "k", "num_experts_per_tok", default=ASSUMED_TOP_K), logits.shape[-1]))
    chosen = (*logits.shape[:-1], k)
    return [kernel("MoeGatingTopK", [source], [spec(chosen, logits.dtype), spec(chosen, "int32")])]


def routing(op: OpView) -> Iterable[KernelCall]:
    """Return MoeInitRouting: sort tokens by expert and, if hidden states are given, copy them in that order."""
    index = [t for t in op.tensors if t.dtype in ("int32", "int64")]
    hidden = next((t for t in op.tensors if len(t.shape) == 2 and t.dtype in ("bfloat16", "float16", "float32")), None)
    n = elements(index[0]) if index else (hidden.shape[0] if hidden is not None else 1)
    width = hidden.shape[-1] if hidden is not None else 1
    dtype = hidden.dtype if hidden is not None else "int32"
    return [routing_call(n, width, dtype)]


def re_routing(op: OpView) -> Iterable[KernelCall]:
    """Return MoeReRouting, which moves tokens (T, H) from rank order to expert order.

    The tokens of each (rank, expert) pair are one block of rows.
    """
    tokens = op.need("tokens", at=0, rank=2)
    out, counts = spec(tokens.shape, tokens.dtype), op.need("expert_token_num_per_rank", at=1)
    size = elements(tokens) * itemsize(tokens.dtype)
    blocks = max(1, elements(counts))
    return [kernel("MoeReRouting", [out], [out], indices=blocks, moved_bytes=size, walked=blocks)]


def finalize_routing(op: OpView) -> Iterable[KernelCall]:
    """Return MoeFinalizeRouting, the weighted sum of the experts' outputs per token."""
    source = op.widest()
    width = source.shape[-1] if source.shape else 1
    return [combining_call(elements(source) // max(1, width), width, source.dtype)]


def routing_call(rows: int, width: int, dtype: str) -> KernelCall:
    """Return the MoeInitRouting kernel for `rows` rows."""
    return _moved("MoeInitRouting", rows, width, dtype)


def combining_call(rows: int, width: int, dtype: str) -> KernelCall:
    """Return the MoeFinalizeRouting kernel for `rows` rows."""
    return _moved("MoeFinalizeRouting", rows, width, dtype)


def _moved(kind: str, rows: int, width: int, dtype: str) -> KernelCall:
    out = spec((rows, width), dtype)
    return kernel(kind, [out], [out], indices=max(1, rows), moved_bytes=rows * width * itemsize(dtype))


def grouped(
    op: OpView,
    rows: int,
    weight: TensorMeta,
    k: int,
    n: int,
    *,
    loads: tuple[int, ...] | None = None,
    fixed: bool = False,
    weight_bits: int = 0,
) -> KernelCall:
    """Return GroupedMatmul with `rows` spread evenly over the experts.

    If the experts' row counts are known, its attribute `busiest` is the largest of them. The counts are `loads` if
    given, otherwise those of the call's contents. With `fixed`, the counts only say how rows are distributed, and are
    scaled to a sum of `rows`. If the weights are packed, `weight_bits` is the number of bits of a weight element in
    memory.
    """
    if loads is None and op.contents is not None:
        loads = op.contents.expert_rows
    if loads is not None and fixed and sum(loads):
        loads = tuple(-(-load * rows // sum(loads)) for load in loads)
    elif loads is not None:
        rows = sum(loads)
    else:
        op.note(f"routing is unknown: {rows} rows assumed to be spread evenly over the experts")
    experts = max(1, weight.shape[0]) if len(weight.shape) == 3 else 1
    share = -(-rows // experts)
    used = min(experts, max(1, rows))
    a, b = spec((used, share, k), weight.dtype), spec((used, k, n), weight.dtype)
    return kernel(
        "GroupedMatmul",
        [a, b],
        [spec((used, share, n), weight.dtype)],
        transpose_a=False,
        transpose_b=False,
        rows=rows,
        busiest=max(loads, default=share) if loads is not None else share,
        **({"weight_bits": weight_bits} if weight_bits else {}),
    )


def fused_experts(op: OpView) -> Iterable[KernelCall]:
    """Return MoeInitRouting, GroupedMatmul, SwiGlu, GroupedMatmul and MoeFinalizeRouting.

    Weights are w1 (E, 2I, H) and w2 (E, H, I).
    """
    weights = [t for t in op.tensors if len(t.shape) == 3][:2]
    hidden = op.meta("hidden_states", "hidden", "input", at=0)
    if len(weights) < 2 or hidden is None or not hidden.shape:
        raise DoesNotFit("a fused MoE needs hidden states and two weights")
    chosen = [t for t in op.tensors if len(t.shape) == 2 and t.dtype in ("int32", "int64")]
    top_k = chosen[0].shape[1] if chosen else ASSUMED_TOP_K
    width = hidden.shape[-1]
    rows = elements(hidden) // max(1, width) * top_k
    w1, w2 = weights
    inner = w1.shape[1]
    up, down = grouped(op, rows, w1, width, inner), grouped(op, rows, w2, inner // 2, width)
    return routed(rows, width, hidden.dtype, up, swiglu(rows, inner // 2, hidden.dtype, gate=inner), down)


def routed(rows: int, width: int, dtype: str, *products: KernelCall, out_dtype: str = "") -> list[KernelCall]:
    """Return `products` between the kernels MoeInitRouting and MoeFinalizeRouting for `rows` rows."""
    return [routing_call(rows, width, dtype), *products, combining_call(rows, width, out_dtype or dtype)]


def swiglu(rows: int, inner: int, dtype: str, gate: int = 0) -> KernelCall:
    """Return the SwiGlu kernel from (rows, `gate`) to (rows, `inner`); `gate` defaults to 2 · `inner`."""
    return kernel("SwiGlu", [spec((rows, gate or 2 * inner), dtype)], [spec((rows, inner), dtype)])


def opaque_layer(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of an MoE layer whose weights are not arguments.

    The arguments are hidden states (T, H) and router logits (T, E). The experts' sizes come from the user. If the user
    gives none, they are the largest that the recorded time allows (`expert_sizes`). If no time is recorded either,
    nothing is predicted.
    """
    hidden, logits = op.meta("hidden_states", at=0), op.meta("router_logits", at=1)
    if hidden is None or logits is None or len(hidden.shape) < 2 or not logits.shape:
        raise DoesNotFit("a layer needs hidden states and router logits")
    width, dtype = hidden.shape[-1], hidden.dtype
    sizes = expert_sizes(hidden, logits, op.op, op.contents.layer if op.contents is not None else None)
    if sizes.by == "nothing":
        op.unbounded = f"{sizes.text}; {NAMED_BY}"
        op.note(op.unbounded)
        return []
    (op.note if sizes.by == "user" else op.invent)(sizes.text)
    if sizes.bits < NARROW_BITS:
        op.note(f"weights of {sizes.bits} bits costed as 8-bit integers")
    weights = "int8" if sizes.bits <= NARROW_BITS else dtype
    experts, inner, top_k = sizes.experts, sizes.intermediate, sizes.top_k
    tokens = elements(hidden) // max(1, width)
    rows = tokens * top_k
    chosen = spec((tokens, top_k), logits.dtype)
    gates = spec((tokens, logits.shape[-1]), logits.dtype)
    w1, w2 = (TensorMeta(shape=(experts, *s), dtype=weights) for s in ((2 * inner, width), (width, inner)))
    up = grouped(op, rows, w1, width, 2 * inner, fixed=True)
    down = grouped(op, rows, w2, inner, width, fixed=True)
    return [
        kernel("MoeGatingTopK", [gates], [chosen, spec((tokens, top_k), "int32")]),
        *routed(rows, width, dtype, up, swiglu(rows, inner, dtype), down),
        *(_shared_expert(tokens, width, inner, dtype, weights) if op.op.name.endswith("_shared") else ()),
    ]


def _shared_expert(tokens: int, width: int, inner: int, dtype: str, weights: str) -> Iterable[KernelCall]:
    x, both, half = (spec((tokens, n), weights) for n in (width, 2 * inner, inner))
    up, down = spec((2 * inner, width), weights), spec((width, inner), weights)
    yield kernel("MatMulV3", [x, up], [both], transpose_a=False, transpose_b=True)
    yield swiglu(tokens, inner, dtype)
    yield kernel("MatMulV3", [half, down], [x], transpose_a=False, transpose_b=True)


@costs("aten::_grouped_mm aten::_scaled_grouped_mm aten::_scaled_grouped_mm_v2")
def grouped_product(op: OpView) -> Iterable[KernelCall]:
    """Return GroupedMatmul of rows (T, K) with weights (E, K, N), or with a list of weights (K, N)."""
    if "weight" in op.args and len(op.args["weight"].tensors) > 1 and op.value("group_type") != SPLIT_ALONG_K:
        return _product_of_lists(op)
    weights = [t for t in op.tensors if len(t.shape) == 3]
    flat = [t for t in op.tensors if len(t.shape) == 2]
    if len(weights) > 1 and not flat:
        return [product(op, weights[0], weights[1])]
    if not weights and len(flat) > 1:
        return _gradients_of_weights(op, flat[0], flat[1])
    if not weights or not flat:
        raise DoesNotFit("rows and the experts' weights are needed")
    return [_rows_by_expert(op, flat[0], weights[0])]


def _rows_by_expert(
    op: OpView, rows: TensorMeta, weight: TensorMeta, loads: tuple[int, ...] | None = None
) -> KernelCall:
    """Return GroupedMatmul of rows (T, K) with weights (E, K, N) or (E, N, K).

    `loads` are the numbers of rows of the experts.
    """
    k = rows.shape[1]
    n = weight.shape[2] if weight.shape[1] == k else weight.shape[1]
    bits = 0
    if weight.dtype in ("int32", "int8") and rows.dtype != "int8":  # packed or not: unpacked beside the product
        n, bits = (n * INT4_IN_INT32, 4) if weight.dtype == "int32" else (n, 8)
        weight = TensorMeta(shape=(weight.shape[0], k, n), dtype=rows.dtype)
    return grouped(op, rows.shape[0], weight, k, n, loads=loads, weight_bits=bits)


def _product_of_lists(op: OpView) -> list[KernelCall]:
    """Return GroupedMatmul of rows with a list of weights (K, N).

    There is one tensor of rows, or one per weight. Weights of different shapes get one GroupedMatmul each.
    """
    rows, weights = op.metas("x"), op.metas("weight")
    if any(len(t.shape) != 2 for t in (*rows, *weights)) or len(rows) not in (1, len(weights)):
        raise DoesNotFit("rows (T, K), as one tensor or as one per weight, and weights (K, N) are needed")
    same = len({(weight.shape, weight.dtype) for weight in weights}) == 1
    if len(rows) == 1 and not same:
        raise DoesNotFit("one tensor of rows needs weights of one shape")
    counts = tuple(t.shape[0] for t in rows)
    if not same:
        pairs = zip(rows, weights, strict=True)
        return [_rows_by_expert(op, a, _stacked(weight, 1), loads=a.shape[:1]) for a, weight in pairs]
    together = TensorMeta(shape=(sum(counts), rows[0].shape[1]), dtype=rows[0].dtype)
    return [_rows_by_expert(op, together, _stacked(weights[0], len(weights)), counts if len(rows) > 1 else None)]


def _stacked(weight: TensorMeta, number: int) -> TensorMeta:
    return TensorMeta(shape=(number, *weight.shape), dtype=weight.dtype)


def adapters(op: OpView) -> Iterable[KernelCall]:
    """Return GroupedMatmul of the rows with each low-rank adapter's weight (adapters, ..., out, in).

    The product is written to a tensor, or added to it.
    """
    x, target = op.need("inputs", "x", rank=2), op.meta("output_tensor", "y") if _adds(op) else None
    name = next((name for name in ADAPTER_WEIGHTS if name in op.args), None)
    if name is None:
        raise DoesNotFit("the adapters' weights are needed")
    return [_adapter_product(op, x, weight, target) for weight in op.metas(name) if len(weight.shape) >= 2]


def _adds(op: OpView) -> bool:
    """Check whether the product is added to what its target holds.

    vLLM's ops have a flag for this, which is set by default only in `bgmv_expand`. The kernels of Punica and
    vllm-ascend always add.
    """
    namespace, _, name = op.op.name.partition("::")
    return op.flag("add_inputs", default=namespace != "vllm" or name.startswith("bgmv_expand"))


def _adapter_product(op: OpView, x: TensorMeta, weight: TensorMeta, target: TensorMeta | None) -> KernelCall:
    k = x.shape[-1]
    n = weight.shape[-2] if weight.shape[-1] == k else weight.shape[-1]
    count = weight.shape[0] if len(weight.shape) > 2 else 1
    call = grouped(op, x.shape[-2], TensorMeta(shape=(count, k, n), dtype=weight.dtype), k, n)
    if target is None:
        return call
    added = spec(call.outputs[0].shape if call.outputs[0] is not None else (), target.dtype)
    return msgspec.structs.replace(
        call, inputs=(*call.inputs, added), outputs=(added,), attrs={**call.attrs, "adds": True}
    )


def _gradients_of_weights(op: OpView, a: TensorMeta, b: TensorMeta) -> list[KernelCall]:
    """Return the products (M, T) @ (T, N) that give the weight gradients, one product per group.

    The number of groups is the number of offsets.
    """
    offsets = next((t for t in op.tensors if len(t.shape) == 1 and t.dtype in ("int32", "int64")), None)
    groups = max(1, offsets.shape[0] if offsets is not None else 1)
    op.note(f"routing is unknown: {a.shape[1]} rows assumed to be spread evenly over {groups} groups")
    share = -(-a.shape[1] // groups)
    a_spec, b_spec = spec((groups, a.shape[0], share), a.dtype), spec((groups, share, b.shape[1]), b.dtype)
    out = spec((groups, a.shape[0], b.shape[1]), a.dtype)
    return [kernel("GroupedMatmul", [a_spec, b_spec], [out], transpose_a=False, transpose_b=False)]


@costs(
    """
        npu::npu_moe_distribute_dispatch npu::npu_moe_distribute_dispatch_v2
        npu::npu_moe_distribute_combine npu::npu_moe_distribute_combine_v2
    """
)
def dispatch_or_combine(op: OpView) -> Iterable[KernelCall]:
    """Return MoeDistributeDispatch or MoeDistributeCombine.

    Dispatch sends each token to the ranks of its top-k experts. Combine sends the results back.
    """
    dispatch = "dispatch" in op.op.name
    hidden = op.meta("x", "expand_x", at=0)
    if hidden is None or len(hidden.shape) < 2:
        raise DoesNotFit("needs tokens")
    chosen = op.meta("expert_ids")
    top_k = chosen.shape[-1] if chosen is not None and len(chosen.shape) == 2 else ASSUMED_TOP_K
    tokens = length(chosen, hidden.shape[0])
    world = op.integer("ep_world_size", "group_size", default=0) or op.op.ranks or 0
    if world <= 0:
        op.note("number of ranks not recorded: 8 assumed (one server)")
    dtype = "int8" if dispatch and op.integer("quant_mode", default=0) else hidden.dtype
    sent = spec((tokens * top_k, hidden.shape[-1]), dtype)
    kind = "MoeDistributeDispatch" if dispatch else "MoeDistributeCombine"
    return [kernel(kind, [sent], [sent], **({"world_size": world} if world > 0 else {}))]


def stages(op: OpView) -> Iterable[KernelCall]:
    """Return GroupedMatmul with one row for each token and chosen expert.

    Stage 1 multiplies (T, H) by w1 (E, 2I, H) and applies SwiGlu; stage 2 multiplies (T, k, I) by w2.
    """
    first = "stage1" in op.op.name
    hidden = op.meta("hidden_states" if first else "inter_states", at=0)
    weight = op.meta("w1" if first else "w2", at=1 if first else 2)
    if hidden is None or weight is None or len(weight.shape) != 3 or len(hidden.shape) < 2:
        raise DoesNotFit("a stage needs rows and the experts' weights")
    top_k = op.integer("topk", default=ASSUMED_TOP_K)
    rows = hidden.shape[0] * (top_k if len(hidden.shape) == 2 else hidden.shape[1])
    product = grouped(op, rows, weight, weight.shape[2], weight.shape[1])
    width = weight.shape[1]
    if not first:
        return [product, combining_call(rows, width, hidden.dtype)]
    return [product, swiglu(rows, width // 2, hidden.dtype, gate=width)]
