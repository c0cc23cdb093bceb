# pyright: strict
"""Lowering of attention over a paged cache to FusedInferAttentionScore: ops of vLLM, SGLang, aiter and torch_npu."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.initializers.draws.argument_names import QUERY
from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.lengths import are_heads_first, contents_of, layout_of, page_of
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.traces.model import TensorMeta

LATENT = ("kv_cache", "src_cache", "kv_c_and_k_pe_cache")
"""Names of caches that hold a token's key and value in one row."""


def paged(op: OpView) -> Iterable[KernelCall]:
    """Return attention over a paged cache.

    The number of context tokens comes from the batch annotation or from the arguments.
    """
    q = op.meta(*QUERY) or next((t for t in op.tensors if len(t.shape) >= 3), None)
    if q is None or not q.shape:
        raise DoesNotFit("attention needs a query")
    heads, dim, rows = _query(op, q)
    contents = contents_of(op, rows)
    query, context = max(0, contents.query_tokens or 0), max(0, contents.context_tokens or 0)
    query_spec = spec((rows, heads, dim), q.dtype)
    moved = context * _bytes_of_token(op, q) + 2 * query * heads * dim * itemsize(q.dtype)
    call = kernel(
        "FusedInferAttentionScore",
        [query_spec],
        [query_spec],
        pairs=float(max(0, contents.pairs or 0) * heads),
        rows=query * heads,
        head_dim=dim,
        moved_bytes=float(moved),
        context_tokens=context,
    )
    return [call]


def _query(op: OpView, q: TensorMeta) -> tuple[int, int, int]:
    """Return (number of heads, head size, number of query tokens)."""
    said, layout, k = op.integer("num_heads", "num_query_heads", default=0), layout_of(op), op.meta("key")
    if len(q.shape) == 4:
        heads_first = said == q.shape[1] != q.shape[2]
        if not said and layout is not None and k is not None and len(k.shape) == 4:
            heads_first = are_heads_first(op, k, layout)
        heads = q.shape[1 if heads_first else 2]
        return max(1, heads), q.shape[3], q.shape[0] * q.shape[1] * q.shape[2] // max(1, heads)
    if len(q.shape) == 3 and (
        layout is None or (0 < said == q.shape[1] and q.shape[2] % said) or layout.startswith("TND")
    ):
        return max(1, q.shape[1]), q.shape[2], q.shape[0]
    heads = max(1, said or op.integer("num_kv_heads", default=32))
    return heads, max(1, q.shape[-1] // heads), max(1, prod(q.shape[:-1]))


def _bytes_of_token(op: OpView, q: TensorMeta) -> float:
    """Return the bytes of one context token's key and value."""
    paged_cache = page_of(op)
    if paged_cache is not None:
        cache, page = paged_cache
        row = prod(cache.shape[1:]) / page * itemsize(cache.dtype)
        return row if any(op.meta(name) is not None for name in LATENT) else 2 * row
    k = op.meta("key", "k", "K")
    if k is None or len(k.shape) < 2:
        return 2.0 * prod(q.shape[1:]) * itemsize(q.dtype)
    # Keys of four dimensions are [batch, tokens, heads, size] in whichever order; others have tokens first.
    width = prod(k.shape[1:]) if len(k.shape) == 3 and layout_of(op) is None else k.shape[-1]
    if len(k.shape) == 4:
        width = k.shape[-1] * min(k.shape[1:3])
    return 2.0 * width * itemsize(k.dtype)
