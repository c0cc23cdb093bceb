# pyright: strict
"""Cost rules that vendors' ops of several families share: one kernel over the widest tensor, and norms with rope."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.products import matmul
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, spec
from opreplay.replay.ops.table import Cost
from opreplay.traces.model import TensorMeta

LEFT = ("mat_a", "A", "a", "x", "X", "XQ", "input", "input_", "hidden_states", "in_b", "mat1", "arg0", "self")
RIGHT = ("mat_b", "B", "b", "w", "W", "weight", "weights", "WQ", "router_weights", "in_a", "mat2", "arg1")


def named_product(op: OpView) -> Iterable[KernelCall]:
    """Return a product whose operands are found by argument name; the weight may be transposed."""
    a, b = op.meta(*LEFT), op.meta(*RIGHT)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        raise DoesNotFit("a product needs two matrices")
    weight = a.shape[-1] == b.shape[-1] and (b.shape[-2] != b.shape[-1] or "mat2" not in op.args)
    return [matmul.product(op, a, b, weight=weight)]


def _sources(op: OpView, *names: str) -> list[TensorMeta]:
    """Return the tensors of the named arguments, or the widest tensor if there are none."""
    return [meta for name in names if (meta := op.meta(name)) is not None and meta.shape] or [op.widest(rank=1)]


def _each(kind: str, *names: str, inputs: int = 1) -> Cost:
    """Return a cost rule that gives one kernel per named tensor, or one for the widest tensor.

    Each kernel reads `inputs` tensors of that size.
    """

    def rule(op: OpView) -> Iterable[KernelCall]:
        wide = [spec(meta.shape, meta.dtype) for meta in _sources(op, *names)]
        return [kernel(kind, [tensor] * inputs, [tensor]) for tensor in wide]

    rule.__name__ = f"each_{kind}"
    return rule


added_layer_norm = _each("AddLayerNorm", "input", inputs=2)
layer_norm_quantised = _each("LayerNormV3", "input")
norm_of_each = _each("RmsNorm", "x1", "x2", "q", "k", "kv")
merged_attention = _each("Addcmul", inputs=3)
repacked = _each("Transpose")
"""Cost rule for weights that are repacked in another order."""


def norm_and_rope(op: OpView) -> Iterable[KernelCall]:
    """Return RmsNorm of queries and keys, separate or in one tensor, then their rotary embedding."""
    wide = [spec(meta.shape, meta.dtype) for meta in _sources(op, "q", "k", "qkv", "input")]
    tables = [spec((tensor.shape[0], tensor.shape[-1]), tensor.dtype) for tensor in wide]
    turned = [kernel("RotaryPositionEmbedding", [x, t, t], [x]) for x, t in zip(wide, tables, strict=True)]
    return [*(kernel("RmsNorm", [tensor], [tensor]) for tensor in wide), *turned]


def rope_and_cache(op: OpView) -> Iterable[KernelCall]:
    """Return the rotary embedding of queries and keys, and the write of keys and values to the cache."""
    k, v = op.need("k", rank=1), op.need("v", rank=1)
    written = [spec(meta.shape, meta.dtype) for meta in (k, v)]
    tokens = max(1, k.shape[0])
    moved = sum(elements(meta) * itemsize(meta.dtype) for meta in (k, v))
    return [*elementwise.rope(op), kernel("ReshapeAndCache", written, written, indices=tokens, moved_bytes=moved)]


def latent_write(op: OpView) -> Iterable[KernelCall]:
    """Return the write of new latent vectors and rotated keys to cache slots.

    If the call has queries, it rotates these and the keys first.
    """
    latent, keys = op.need("kv_c", at=0, rank=1), op.need("k_pe", at=1, rank=1)
    lists = (op.meta("slot_mapping"), op.meta("cp_local_token_select_indices"))
    tokens = min(tensor.shape[0] for tensor in (latent, *lists) if tensor is not None and tensor.shape)
    queries = op.meta("q_pe")
    turned = [] if queries is None else [spec(tensor.shape, tensor.dtype) for tensor in (queries, keys)]
    tables = [spec((tensor.shape[0], tensor.shape[-1]), tensor.dtype) for tensor in turned]
    rows = [spec((tokens, *tensor.shape[1:]), tensor.dtype) for tensor in (latent, keys)]
    moved = sum(prod(tensor.shape) * itemsize(tensor.dtype) for tensor in rows)
    return [
        *(kernel("RotaryPositionEmbedding", [x, t, t], [x]) for x, t in zip(turned, tables, strict=True)),
        kernel("ReshapeAndCacheNdKernel", rows, rows[:1], indices=tokens, moved_bytes=moved),
    ]


def converted(op: OpView) -> Iterable[KernelCall]:
    """Return Cast of one cache into another one of the same shape."""
    source, out = op.need("src_cache", at=1), op.need("dst_cache", at=0)
    return [kernel("Cast", [spec(source.shape, source.dtype)], [spec(out.shape, out.dtype)])]


def hadamard(op: OpView) -> Iterable[KernelCall]:
    """Return a Hadamard transform as a product of all rows with a square matrix of their width.

    The cube (matrix unit) is the fastest unit for it.
    """
    x = op.need("x", at=0, rank=1)
    width = x.shape[-1]
    rows = TensorMeta(shape=(elements(x) // max(1, width), width), dtype=x.dtype)
    return [matmul.product(op, rows, TensorMeta(shape=(width, width), dtype=x.dtype))]


def anti_quantize(op: OpView) -> Iterable[KernelCall]:
    """Return AscendAntiQuant of the widest tensor. If the result's size is unknown, 4 bits per element are assumed."""
    source = op.widest(rank=1)
    unpacked = (*source.shape[:-1], source.shape[-1] * 2 * itemsize(source.dtype))
    out = op.output(spec(unpacked, "float16"))
    return [kernel("AscendAntiQuantV2", [spec(source.shape, source.dtype)], [out])]


def taken_rows(op: OpView) -> Iterable[KernelCall]:
    """Return GatherV2, which gathers rows of a cache into `dst`."""
    rows = op.need("dst", at=1, rank=1)
    out = spec(rows.shape, rows.dtype)
    moved = elements(rows) * itemsize(rows.dtype)
    return [kernel("GatherV2", [out], [out], indices=max(1, rows.shape[0]), moved_bytes=moved)]


def backward_of_sum(op: OpView) -> Iterable[KernelCall]:
    """Return LayerNormGrad over the sum of two tensors, which is recomputed first."""
    x = op.need("x1", "x", rank=1)
    wide = spec(x.shape, x.dtype)
    return [kernel("Add", [wide, wide], [wide]), kernel("LayerNormGradV3", [wide, wide], [wide])]


def widest(kind: str) -> Cost:
    """Return a cost rule for one kernel of CANN type `kind` that reads and writes as much as the widest tensor."""

    def rule(op: OpView) -> Iterable[KernelCall]:
        source = op.widest()
        full = spec(source.shape, source.dtype)
        return [kernel(kind, [full], [op.output(full)])]

    rule.__name__ = f"widest_{kind}"
    return rule
