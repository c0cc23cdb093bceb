# pyright: strict
"""Lowering of sparse attention over the keys that an indexer selects, of the indexer itself, and of MLA projections."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec, itemsize
from opreplay.replay.ops.costs.products.matmul import product
from opreplay.replay.ops.op_view import OpView, kernel, spec
from opreplay.traces.model import TensorMeta

ASSUMED_CHOSEN = 2048
"""Number of keys that a query attends to if no argument gives the number. DeepSeek's indexer selects this many."""
LATENT = 512
"""Width of the MLA latent."""


def _is_heads_second(op: OpView) -> bool:
    return op.value("layout_query", "layout", "inputLayout", "q_input_layout") == "BNSD"


def _rows_and_keys(op: OpView, q: TensorMeta, k: TensorMeta) -> tuple[int, int, int]:
    """Return (query rows of all heads and sequences, number of query heads, maximum keys per sequence)."""
    heads_second = _is_heads_second(op) and len(q.shape) == 4
    heads = q.shape[1] if heads_second else q.shape[-2]
    paged = op.meta("block_table", "ori_block_table")
    per_row = prod(k.shape[:-1]) // max(1, k.shape[1 if heads_second else -2])
    sequences = q.shape[0] if len(q.shape) == 4 and paged is None and len(k.shape) == 4 else 1
    return prod(q.shape[:-1]), max(1, heads), max(1, per_row // sequences)


def chosen_keys(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of attention in which a query sees only selected keys.

    The keys are read row by row. The query's row of indices lists the selected keys, or blocks of keys.
    """
    q = op.need("query", "q", at=0, rank=3)
    k = op.need("key", "ori_kv", at=1, rank=3)
    rows, heads, keys = _rows_and_keys(op, q, k)
    index = op.meta("sparse_indices", "cmp_sparse_indices", "topk_indices", "select_idx", at=3)
    chosen = index.shape[-1] if index is not None and index.shape else ASSUMED_CHOSEN
    block = op.integer("sparse_block_size", "select_block_size", default=1)
    chosen = min(keys, chosen * block if chosen * block <= keys else chosen)
    value = op.meta("value", at=2)
    size = value.shape[-1] if value is not None and value.shape else q.shape[-1]
    row_bytes = (k.shape[-1] + (size if value is not None else 0)) * itemsize(k.dtype)
    moved = rows // heads * chosen * row_bytes + rows * (q.shape[-1] + size) * itemsize(q.dtype)
    operands = [spec(q.shape, q.dtype), spec(k.shape, k.dtype)]
    attrs = {"rows": rows, "head_dim": q.shape[-1], "value_dim": size}
    out = op.output(spec((*q.shape[:-1], size), q.dtype))
    op.assume(
        f"this kernel has few measurements: costed as a read of {chosen} keys per query, row by row, at the speed "
        f"of paged attention"
    )
    call = kernel(
        "FusedInferAttentionScore", operands, [out], pairs=float(rows * chosen), moved_bytes=float(moved), **attrs
    )
    return [*_prepare_operands(op, operands, size), call]


def _prepare_operands(op: OpView, operands: list[TensorSpec], size: int) -> list[KernelCall]:
    """Return the kernels that prepare tensors: Slice separates the rotary part, Transpose makes the token dimension
    first.
    """
    parted = [t for t in operands if _value_in_key(t, size)]
    turned = [t for t in operands if _is_heads_second(op) and len(t.shape) == 4 and min(t.shape[1:3]) > 1]
    slices = [kernel("Slice", [t], [t]) for t in parted if op.meta("query_rope", "key_rope") is None]
    return [*slices, *(kernel("Transpose", [t], [t], run=t.shape[-1]) for t in turned)]


def _value_in_key(tensor: TensorSpec, size: int) -> bool:
    """Check whether a row holds both the latent and its rotary part, e.g. 512 + 64 = 576."""
    return size >= LATENT and tensor.shape[-1] > size


def choice_of_keys(op: OpView) -> Iterable[KernelCall]:
    """Return the indexer's two kernels.

    The first is a product on the cube (the matrix unit) for the heads' weighted scores. The second is TopKV2, which
    selects each query's top-k keys.
    """
    q, k = op.need("query", at=0, rank=3), op.need("key", at=1, rank=3)
    rows, heads, keys = _rows_and_keys(op, q, k)
    queries = rows // heads
    op.assume(
        "this kernel has few measurements: costed as scores at the speed of attention, then TopKV2 of each query's keys"
    )
    pairs = rows * keys * (0.5 if op.integer("sparse_mode", default=3) == 3 and queries > 1 else 1.0)
    operands = [spec(q.shape, q.dtype), spec(k.shape, k.dtype)]
    scores, count = spec((queries, keys), "float32"), op.integer("sparse_count", "topk", default=ASSUMED_CHOSEN)
    best = spec((queries, min(keys, max(1, count))), "int32")
    return [
        kernel(
            "FusedInferAttentionScore", operands, [scores], pairs=pairs, rows=rows, head_dim=q.shape[-1], value_dim=1
        ),
        kernel("TopKV2", [scores], [spec(best.shape, "float32"), best]),
    ]


def latent_projections(op: OpView) -> Iterable[KernelCall]:
    """Return one kernel for the four products that MLA does before attention.

    The products are: token to query latent, query latent to query, query into key space, token to key latent. Each
    weight counts as read once. With so few tokens, reading the weights dominates.
    """
    x = op.need("token_x", at=0, rank=2)
    down, up = op.need("weight_dq", at=1, rank=2), op.need("weight_uq_qr", at=2, rank=2)
    keys, latent = op.need("weight_uk", at=3, rank=3), op.need("weight_dkv_kr", at=4, rank=2)
    rows = prod(x.shape[:-1])
    weights = [spec(meta.shape, meta.dtype) for meta in (down, up, keys, latent)]
    macs = rows * sum(prod(weight.shape) for weight in weights)
    inner = x.shape[-1]
    # As one product of all weights' elements; the columns that make it so are no tensor of the call.
    columns = max(1, macs // max(1, rows * inner))
    token = TensorMeta(shape=(rows, inner), dtype=x.dtype)
    return [product(op, token, TensorMeta(shape=(inner, columns), dtype=down.dtype))]
