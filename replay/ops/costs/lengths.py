# pyright: strict
"""Lengths of packed and paged sequences for the cost of attention.

They come from argument values, from the iteration's batch annotation, or from shapes. If none of these gives the
context length, the longest one that the arguments allow is assumed, and a note is added. The initializers assume the
same. This module defines no kernels.
"""

from __future__ import annotations

import re
from math import prod

from opreplay.initializers.draws import argument_names as names
from opreplay.replay.ops.op_view import OpView
from opreplay.replay.ops.register import canonical_name
from opreplay.replay.ops.table import role_of
from opreplay.replay.ops.work.contents import Contents
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.model import TensorMeta

PACKED = ("TND", "NTD")
"""Layouts of torch_npu whose length arguments are the end positions of sequences."""
BAND = 4
"""Value of `sparse_mode` for a mask that is a band.

The band spans `pre_tokens` before and `next_tokens` after the diagonal that ends at the last key.
"""


def page_of(op: OpView) -> tuple[TensorMeta, int] | None:
    """Return (cache, tokens per page), or None if keys are not paged."""
    cache, name = None, ""
    for name in names.CACHES:
        cache = op.meta(name)
        if cache is not None and len(cache.shape) > 1 and cache.shape[0]:
            break
        cache = None
    if cache is None or all(op.meta(listed) is None for listed in names.LISTS):
        return None
    said = op.value("block_size")
    role = role_of(canonical_name(op.op.called))
    return cache, names.page_size(role, name, cache.shape, said, op.value("kv_cache_layout"))


def layout_of(op: OpView) -> str | None:
    """Return the layout (`input_layout`) of a torch_npu attention op, or None if the op has no such argument.

    If the argument is in the call, this is its recorded value, or "" if the value was not recorded. Otherwise it is the
    default of the schema.
    """
    if "input_layout" in op.args:
        return str(op.value("input_layout") or "")
    usual = re.search(r'input_layout="(\w+)"', op.op.schema or "")
    return None if usual is None else usual[1]


def contents_of(op: OpView, rows: int) -> Contents:
    """Return the numbers of tokens and of attended (query, key) pairs of a call, summed over its sequences.

    `rows` is the number of query tokens according to the shapes.
    """
    if op.contents is not None and op.contents.pairs is not None:
        for note in op.contents.notes:
            op.note(note)
        if op.contents.unrecorded:
            op.assume(op.contents.unrecorded)
        return op.contents
    listed = op.integers("actual_seq_lengths_kv", "actual_seq_kvlen")
    sequences, packed = _sequences(op)
    if listed and (layout_of(op) or "")[:3] not in PACKED:
        each = rows / len(listed)
        return _made(rows, sum(listed), sum(max(0.0, each * kv - each * (each - 1) / 2) for kv in listed), len(listed))
    longest = _longest(op, rows)
    if op.op.batch is not None:
        batch_contents = _of_batch(op, op.op.batch, rows, sequences, packed, longest)
        if batch_contents is not None:
            return batch_contents
    dense = _dense(op)
    if dense is not None:
        count, kv = dense
        each = rows / count
        causal = op.meta("atten_mask") is not None or op.integer("sparse_mode", default=0) >= 2
        pairs = rows * (kv - (each - 1) / 2 if causal else kv)
        window = _window(op)
        if window is None or window >= kv:
            return _made(rows, count * kv, pairs, count)
        return _made(rows, count * min(kv, each + window - 1), pairs - count * _beyond(each, kv, window), count)
    if longest is None:
        op.note(f"context lengths are unknown: one causal sequence of {rows} tokens assumed")
        return _made(rows, rows, rows * (rows + 1) / 2, 1)
    count = sequences or 1
    op.note(f"context lengths are not recorded: {longest} tokens assumed for {count} sequences")
    new = rows / count
    context = max(longest, new)
    return _made(rows, context * count, rows * (context - (new - 1) / 2), count)


def _window(op: OpView) -> int | None:
    """Return the maximum number of keys that a query attends to, including the key at its own position.

    Returns None if there is no window, or if the window extends beyond the query's own position.
    """
    before, after = (op.integer(name, default=-1) for name in ("pre_tokens", "next_tokens"))
    return before + 1 if op.integer("sparse_mode", default=0) == BAND and before >= 0 and after == 0 else None


def _beyond(queries: float, keys: int, window: int) -> float:
    """Return how many (query, key) pairs of one sequence the causal mask shows but the sliding window hides."""
    most = max(0.0, float(keys - window))
    least = max(0.0, most - queries)
    return (most * (most + 1) - least * (least + 1)) / 2


def _dense(op: OpView) -> tuple[int, int] | None:
    """Return (sequences, keys per sequence) for queries with a batch dimension and unpaged keys, otherwise None."""
    q, k = op.meta("query", "q"), op.meta("key", "k")
    layout = layout_of(op)
    if q is None or k is None or layout is None or page_of(op) is not None:
        return None
    if layout[:3] in PACKED or not q.shape or not q.shape[0]:
        return None
    if len(k.shape) == 3:
        return (q.shape[1], k.shape[0]) if layout.startswith("SBH") else (q.shape[0], k.shape[1])
    if len(k.shape) != 4:
        return None
    return q.shape[0], k.shape[2 if are_heads_first(op, k, layout) else 1]


def are_heads_first(op: OpView, k: TensorMeta, layout: str) -> bool:
    """Check whether 4-D keys are [batch, heads, tokens, size].

    A four-letter layout decides this. Otherwise the heads are the dimension that equals the head count or, if that is
    unknown, the smaller dimension.
    """
    if len(layout) == 4:
        return layout.startswith("BN")
    heads = op.integer("num_key_value_heads", default=0) or op.integer("num_heads", "head_num", default=0)
    return k.shape[1] == heads != k.shape[2] if heads else k.shape[1] <= k.shape[2]


def _made(query: float, context: float, pairs: float, sequences: int) -> Contents:
    return Contents(
        sequences=sequences, query_tokens=round(query), context_tokens=round(context), pairs=max(0, round(pairs))
    )


def _sequences(op: OpView) -> tuple[int | None, bool]:
    """Return (number of sequences according to the arguments, whether the queries are packed)."""
    for name in (*names.CUMULATIVE_NEW, *names.CUMULATIVE_SEEN, "kv_indptr"):
        meta = op.meta(name)
        if meta is not None and meta.shape and meta.shape[0]:
            return meta.shape[0] - 1, any(op.meta(n) is not None for n in names.CUMULATIVE_NEW)
    for name in (*names.SEEN, *names.TABLES):
        meta = op.meta(name)
        if meta is not None and meta.shape:
            return meta.shape[0], False
    return None, True


def _longest(op: OpView, rows: int) -> int | None:
    """Return the maximum number of tokens per sequence, or None if it is unknown.

    It comes from tables, page lists and the maximum-length argument.
    """
    limits = [length for name in names.LONGEST if (length := op.integer(name, default=0)) > 0]
    paged = page_of(op)
    if paged is not None:
        cache, page = paged
        limits.append(cache.shape[0] * page)
        table = next((t for name in names.TABLES if (t := op.meta(name)) is not None and len(t.shape) == 2), None)
        if table is not None:
            limits.append(table.shape[1] * page)
        pages = op.meta("kv_page_indices")
        if pages is not None:
            sequences, _ = _sequences(op)
            limits.append(prod(pages.shape) * page // max(1, sequences or 1))
    return max(1, min(limits)) if limits else None


def _of_batch(
    op: OpView, batch: BatchContext, rows: int, sequences: int | None, packed: bool, longest: int | None
) -> Contents | None:
    """Return the batch totals for this call's sequences, or None if the numbers of sequences differ."""
    decode, prefill = batch.decode_sequences, batch.prefill_sequences
    if not packed and decode and sequences not in (None, decode + prefill) and (sequences or 0) >= decode:
        prefill = 0
    if not decode + prefill or (sequences is not None and sequences < decode + prefill):
        op.note(f"the batch has {decode + prefill} sequences, but the arguments are for {sequences}")
        return None
    query = context = pairs = 0.0
    if decode:
        new = float(batch.decode_tokens or decode)
        seen = decode * float(longest) if longest else new
        if batch.decode_seen is None:
            op.note(
                f"context lengths of {decode} decoding sequences are not recorded: {seen / decode:.0f} tokens each "
                f"assumed"
            )
        else:
            seen = _within_cache(op, batch.decode_seen, decode, longest)
        causal = _causal_pairs(batch.decode_qk, batch.decode_qq, batch.decode_seen, new, seen, decode)
        query, context, pairs = new, seen, causal
    if prefill:
        new = float(batch.prefill_tokens) if batch.prefill_tokens is not None else max(prefill, rows - query)
        seen = new if batch.prefill_seen is None else _within_cache(op, batch.prefill_seen, prefill, longest)
        causal = _causal_pairs(batch.prefill_qk, batch.prefill_qq, batch.prefill_seen, new, seen, prefill)
        query, context, pairs = query + new, context + seen, pairs + causal
    if query > rows > 0:
        op.note(f"the batch has {query:.0f} new tokens, but the query holds {rows}")
        pairs, query = pairs * rows / query, float(rows)
    return _made(query, context, pairs, decode + prefill)


def _within_cache(op: OpView, total: int, sequences: int, longest: int | None) -> float:
    """Return the context tokens of the batch annotation, limited to what the call's cache can hold for each
    sequence.
    """
    capacity = None if longest is None or page_of(op) is None else sequences * longest
    if capacity is None or total <= capacity:
        return float(total)
    op.note(
        f"the batch has {total} context tokens for {sequences} sequences, but the cache and tables of this call hold "
        f"only {longest} per sequence; costed with {capacity} tokens"
    )
    return float(capacity)


def _causal_pairs(
    products: int | None, squares: int | None, total: int | None, new: float, seen: float, sequences: int
) -> float:
    """Return the number of causal pairs: Σ (n · s − (n² − n) / 2) over sequences of n query and s context tokens.

    `new`, `seen`, `products` and `squares` are Σ n, Σ s, Σ n · s and Σ n². `total` is the number of context tokens in
    the batch annotation; `seen` is limited to what the call can hold. All sequences are assumed to have equal lengths
    if `products` or `squares` is missing, or if `total` exceeds `seen`.
    """
    if products is None or (total is not None and seen < total):
        pairs = new * seen / sequences
    else:
        pairs = float(products)
    return pairs - ((new * new / sequences if squares is None else squares) - new) / 2
