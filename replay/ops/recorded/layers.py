# pyright: strict
"""Work of layers whose arguments do not determine it: attention over the sequences of a server's batch, and experts.

The lengths of the sequences come from the annotation of the iteration. The sizes of experts come from the launch grids
of the matrix products. Example: a product in tiles of 128 x 128 that is launched on 46 x 287 tiles has 5,888 columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import msgspec

from opreplay.initializers.draws import argument_names as names
from opreplay.replay.ops.recorded.arguments import Arguments
from opreplay.replay.ops.recorded.sizes import IMPOSSIBLE, CallWork, is_layer, kind_of, work_of
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.model import OpSignature

Grid = tuple[int, int, int]
SPREAD = 1.5
"""Largest ratio of the device times of layers with one shape that counts as normal.

Above it, the layers are assumed to differ in something that is not recorded.
"""
MOST_TOP_K = 64
ALL_READ = 0.001
"""If less than this share of the experts is chosen by no token, all experts count as read."""
_WINDOWS = ("window_size_left", "window_size", "sliding_window", "window_left")
_BACKWARD = re.compile(r"backward|bwd|_grad")
_VALUES = ("value", "v", "value_cache", "v_cache", "V")
_LATENT = ("kv_c_and_k_pe_cache", "kv_c_normed", "q_nope", "src_cache")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Information about some calls of one op that is not contained in the calls' arguments."""

    batch: BatchContext | None = None
    """Batch of the iteration that contains the calls."""
    kernels: tuple[tuple[str, Grid | None], ...] = ()
    """Name and launch grid of each kernel of one call, in order."""
    top_k: int | None = None
    """Experts per token, from the routing op of a layer with the same numbers of tokens and experts."""
    shortest_us: float = 0.0
    longest_us: float = 0.0
    """Longest device time of any of the calls."""


def work_of_call(signature: OpSignature, evidence: Evidence, element_bytes: int | None = None) -> CallWork:
    """Return the work of one call.

    It follows from the call's arguments or, if they do not determine it, from `evidence`.
    """
    work = work_of(signature, element_bytes)
    if (work.flops is not None and work.bytes is not None) or work.why == IMPOSSIBLE:
        return work
    if is_layer(signature):
        return _experts(Arguments(signature), work, evidence)
    if kind_of(signature.name) == "attention":
        return _attention(Arguments(signature), work, evidence)
    return work


# Attention ------------------------------------------------------------------------------------------------------------


class _Sequences(msgspec.Struct, frozen=True):
    query: float
    seen: float
    pairs: float


def _attention(call: Arguments, work: CallWork, evidence: Evidence) -> CallWork:
    """Return the work of attention. It is two products over all pairs of a new token and a token that it attends to."""
    ranked = [at for at in call.tensors if "float" in call.dtype_at(at) and len(call.sizes_at(at)) in (3, 4)]
    query = call.place(*names.QUERY[:3]) if call.named else next(iter(ranked), None)
    keys = call.place(*names.CACHES) if call.named else next(iter(ranked[1:]), None)
    if _BACKWARD.search(call.signature.name):
        return _unknown(work, "gradients of packed attention are not counted")
    if any(call.place(name) is not None for name in _LATENT) or "mla" in call.signature.name:
        return _unknown(work, "work of latent attention is not counted: no argument gives its up-projection")
    if query is None or keys is None:
        return _unknown(work, "its arguments have no query and keys")
    q, k = call.sizes_at(query), call.sizes_at(keys)
    values = call.place(*_VALUES) if call.named else next(iter(ranked[2:]), None)
    v = (call.shape_at(values) if values is not None else None) or k
    if len(q) not in (3, 4) or len(k) < 3:
        return _unknown(work, "its arguments have no query and keys")
    windows = [call.value(name) for name in _WINDOWS]
    if any(
        isinstance(size, int) and size >= 0 for one in windows for size in (one if isinstance(one, list) else [one])
    ):
        return _unknown(work, "the attention has a sliding window, and the lengths of the sequences are unknown")
    found = _sequences(call, q, k, evidence)
    if isinstance(found, str):
        return _unknown(work, found)
    heads, width = q[-2], q[-1]
    cache = call.dtype_at(keys)
    kv_heads = _heads_of_keys(call, k, q)
    if kv_heads is None:
        return _unknown(work, "the layout of the cache is unknown")
    both = width + (v[-1] if len(v) == len(q) else width)
    moved = found.query * heads * both * ITEMSIZE_BYTES.get(call.dtype_at(query), 1)
    moved += found.seen * kv_heads * both * ITEMSIZE_BYTES.get(cache, 1)
    assumed = "" if call.named and _tells_window(call) else "no sliding window: no argument gives one"
    flops = 2.0 * found.pairs * heads * both
    return CallWork(flops=flops, bytes=moved, dtype=call.dtype_at(query), assumed=assumed)


def _tells_window(call: Arguments) -> bool:
    return any(call.value(name) is not None for name in _WINDOWS)


def _heads_of_keys(call: Arguments, k: tuple[int, ...], q: tuple[int, ...]) -> int | None:
    """Return the number of heads of keys [tokens, heads, width] or of a cache [blocks, page, heads, width].

    Returns None if it is not clear which of the cache's two middle sizes is the number of heads.
    """
    said = call.integer("num_kv_heads")
    if said:
        return said
    if len(k) == 5:  # vLLM's packed keys [blocks, heads, width / x, page, x]
        return k[1]
    if len(k) == 4 and len(q) == 3 and not call.named:
        fitting = [size for size in k[1:3] if size and not q[-2] % size]
        return fitting[0] if len(fitting) == 1 else None
    if len(k) == 4 and call.value("kv_cache_layout") == "HND":
        return k[1]
    return k[-2] if k[-1] == q[-1] else max(1, k[-1] // max(1, q[-1]))


def _sequences(call: Arguments, q: tuple[int, ...], k: tuple[int, ...], evidence: Evidence) -> _Sequences | str:
    """Return the sums of query tokens, context tokens and pairs, or the reason why they are unknown."""
    packed = call.shape(*names.CUMULATIVE_NEW, *names.CUMULATIVE_SEEN, "kv_indptr")
    seen = call.shape(*names.SEEN, *names.TABLES)
    causal = call.value("is_causal", "causal") is not False
    if len(q) == 4 and len(k) == 4 and packed is None and seen is None and q[0] == k[0]:
        batch, new, old = q[0], q[1], k[1]
        halved = call.value("is_causal", "causal") is True and new == old
        return _Sequences(batch * new, batch * old, batch * new * old / (2 if halved else 1))
    count = packed[0] - 1 if packed else seen[0] if seen else None
    tokens = prod(q[:-2])
    batch = evidence.batch
    if batch is None:
        return "no argument gives the lengths of the sequences, and no server annotation describes the batch"
    if evidence.longest_us > SPREAD * evidence.shortest_us > 0:
        return (
            f"layers of the same shape take {evidence.shortest_us:,.0f} to {evidence.longest_us:,.0f} µs: "
            "some use a sliding window that no argument gives"
        )
    sequences = batch.prefill_sequences + batch.decode_sequences
    whole = count is None or count >= sequences  # more are padding
    if not whole and count not in (batch.decode_sequences, batch.prefill_sequences):
        return f"the server's batch has {sequences} sequences, but the arguments are for {count}"
    prefill, decode = whole or count != batch.decode_sequences, whole or count == batch.decode_sequences
    found = _of_batch(batch, prefill=prefill, decode=decode, causal=causal)
    if found is None:
        return "the server's annotation lacks the sums over the sequences' lengths"
    if found.query > tokens:
        return f"the server's batch has {found.query:,.0f} new tokens, but the query holds {tokens:,}"
    return found


def _of_batch(batch: BatchContext, *, prefill: bool, decode: bool, causal: bool) -> _Sequences | None:
    """Return the sums over a batch's prefill sequences, decode sequences, or both, or None if a number is missing."""
    parts = [
        (batch.prefill_sequences, batch.prefill_tokens, batch.prefill_k, batch.prefill_qq, batch.prefill_qk)
    ] * prefill
    parts += [(batch.decode_sequences, batch.decode_tokens, batch.decode_k, batch.decode_qq, batch.decode_qk)] * decode
    query = seen = pairs = 0.0
    for sequences, new, old, squares, products in parts:
        if not sequences:
            continue
        if new == sequences and old is not None:  # one new token each: what it sees are the pairs
            squares, products = new, old
        if new is None or old is None or squares is None or products is None:
            return None
        query, seen = query + new, seen + old
        pairs += products - ((squares - new) / 2 if causal else 0)
    return _Sequences(query, seen, pairs)


def _unknown(work: CallWork, why: str) -> CallWork:
    return msgspec.structs.replace(work, why=why)


# Experts --------------------------------------------------------------------------------------------------------------


class _Matrices(msgspec.Struct, frozen=True):
    """Sizes of an expert's two matrices.

    They are the columns of the first, [hidden -> columns], and the rows of the second, [inner -> hidden].
    """

    columns: int
    inner: int
    experts: int
    bits: float
    assumed: str = ""


def _experts(call: Arguments, work: CallWork, evidence: Evidence) -> CallWork:
    """Return the work of an expert layer: each token is multiplied by the matrices of its experts."""
    hidden = next((at for at in call.tensors if len(call.sizes_at(at)) == 2), None)
    if hidden is None:
        return _unknown(work, "its arguments have no hidden states")
    tokens, width = call.sizes_at(hidden)[:2]
    others = [call.sizes_at(at) for at in call.tensors if at != hidden]
    chosen = [s for s in others if len(s) == 2 and s[0] == tokens]
    weights = [at for at in call.tensors if len(call.sizes_at(at)) == 3]
    if len(weights) >= 2:
        ids = call.shape("topk_ids", "topk_indices") or min(chosen, key=lambda shape: shape[1], default=None)
        top_k = ids[1] if ids is not None and len(ids) == 2 else None
        matrices = _by_arguments(call, weights[:2], width)
    else:
        experts = max((s[1] for s in chosen if s[1] != width), default=0)
        if not experts:
            return _unknown(work, "no argument gives the number of experts")
        found = _by_grids(evidence, tokens, width, experts)
        matrices, top_k = (found, None) if isinstance(found, str) else found
    if isinstance(matrices, str):
        return _unknown(work, matrices)
    if top_k is None or not 0 < top_k <= MOST_TOP_K:
        return _unknown(work, "no argument gives the number of experts per token")
    rows = tokens * top_k
    per_expert = width * matrices.columns + matrices.inner * width
    untouched = (1 - min(1.0, top_k / matrices.experts)) ** tokens
    read = matrices.experts * (1.0 if untouched < ALL_READ else 1 - untouched)
    notes = [matrices.assumed]
    if untouched >= ALL_READ:
        notes.append(f"{read:,.0f} of {matrices.experts} experts are read if routing is even")
    item = ITEMSIZE_BYTES.get(call.dtype_at(hidden), 1)
    return CallWork(
        flops=2.0 * rows * per_expert,
        bytes=2.0 * tokens * width * item + read * per_expert * matrices.bits / 8,
        dtype=_multiplied_in(call.dtype_at(hidden), evidence),
        assumed="; ".join(filter(None, notes)),
    )


def _by_arguments(call: Arguments, weights: Sequence[int], width: int) -> _Matrices | str:
    """Return the matrix sizes in the arguments: [experts, columns, hidden], [experts, hidden, inner], or transposed."""
    first, second = (call.sizes_at(at) for at in weights)
    item = ITEMSIZE_BYTES.get(call.dtype_at(weights[0]), 1)
    for turned in (False, True):
        e, columns, k = (first[0], *first[:0:-1]) if turned else first[:3]
        _, n, inner = (second[0], *second[:0:-1]) if turned else second[:3]
        packing = width // k if k and not width % k else 0
        bits = item * 8 / packing if packing else 0
        if packing in (1, 2, 8) and n == width and columns in (inner * packing, 2 * inner * packing):
            return _Matrices(columns, inner * packing, e, bits)
    return "its weights are packed in an unknown layout"


_TILES = re.compile(r"(?:^|_)t?(\d{1,4})x(\d{1,4})x(\d{1,4})(?:x\d+)?(?=_|u\d|$)")
_GATED = re.compile(r"swiglu|silu|geglu|swi_?glu|act_and_mul", re.IGNORECASE)
_PRODUCTS = re.compile(r"gemm|bmm|matmul|fused_moe", re.IGNORECASE)
_BITS = (
    (re.compile(r"mxfp4|mxe2m1", re.IGNORECASE), 4.25),  # one 8-bit scale for 32 numbers
    (re.compile(r"nvfp4|e2m1|fp4", re.IGNORECASE), 4.5),  # one for 16
    (re.compile(r"int4|u4|w4a", re.IGNORECASE), 4.0),
    (re.compile(r"e4m3|fp8|int8|w8a", re.IGNORECASE), 8.0),
    (re.compile(r"bf16|bfloat16|fp16|half", re.IGNORECASE), 16.0),
)


def _by_grids(evidence: Evidence, tokens: int, width: int, experts: int) -> tuple[_Matrices, int] | str:
    """Return the matrices and the number of experts per token, or the reason if they cannot be derived.

    They are derived from the two products that a layer launches. To verify that the grids are read correctly, the
    second product must have as many columns as the hidden states.
    """
    products = [(name, grid) for name, grid in evidence.kernels if _PRODUCTS.search(name) and _TILES.search(name)]
    if len(products) != 2:
        return "no argument gives the sizes of the experts' weights"
    if any(grid is None for _, grid in products):
        return "no argument gives the sizes of the experts' weights, and launch grids are not recorded"
    known = (evidence.top_k,) if evidence.top_k is not None else range(1, min(experts, MOST_TOP_K) + 1)
    found: set[tuple[int, int, int]] = set()
    for top_k in known:
        for turned in (False, True):
            (up, up_tile), (down, down_tile) = (
                _tiles_of(name, grid, tokens * top_k, experts, turned=turned) for name, grid in products
            )
            if up and up != down and (down - 1) * down_tile < width <= down * down_tile:
                found.add((up * up_tile, up_tile, top_k))
    if len(found) != 1:
        return f"launch grids fit {len(found) or 'no'} sizes of the experts' weights"
    columns, tile, top_k = found.pop()
    gated = any(_GATED.search(name) for name, _ in evidence.kernels)
    bits = next((bits for pattern, bits in _BITS if pattern.search(products[0][0])), None)
    if bits is None or not gated:
        return "kernel names do not show the dtype of the weights or the activation"
    assumed = (
        f"expert width {columns // 2:,}, inferred from launch grids, at most {100 * tile / columns:.1f} % too large"
    )
    if evidence.top_k is None:
        assumed += f"; {top_k} experts per token, also from launch grids"
    return _Matrices(columns, columns // 2, experts, bits, assumed), top_k


def _tiles_of(name: str, grid: Grid | None, rows: int, experts: int, *, turned: bool) -> tuple[int, int]:
    """Return (tiles along the columns, columns of a tile) of a product of `rows` rows sorted by expert.

    Returns (0, 0) if the grid does not match the kernel's tiles. Each expert's rows are padded to whole tiles, and the
    launch has the largest number of tiles that any routing needs. `turned` says that the first tile size in the name
    counts columns.
    """
    match = _TILES.search(name)
    if match is None or grid is None:
        return 0, 0
    of_rows, of_columns = (int(match[2]), int(match[1])) if turned else (int(match[1]), int(match[2]))
    filled = min(rows, experts)
    high = filled + (rows - filled) // max(1, of_rows)
    if grid[1] == grid[2] == 1 and high and not grid[0] % high:
        return grid[0] // high, of_columns
    if grid[2] == 1 and high in grid[:2]:
        return grid[0] if grid[1] == high else grid[1], of_columns
    return 0, 0


_EIGHT = re.compile(r"e4m3|fp8", re.IGNORECASE)


def _multiplied_in(hidden: str, evidence: Evidence) -> str:
    """Return the dtype in which the products are computed. Kernels with 4-bit weights and 8-bit rows use 8 bits."""
    wide = any(_PRODUCTS.search(name) and _EIGHT.search(name) for name, _ in evidence.kernels)
    return "float8_e4m3fn" if wide else hidden
