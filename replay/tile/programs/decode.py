"""Kernels for serving: attention of one query to pages of keys (also latent keys), and combining expert outputs."""

from __future__ import annotations

import torch

from opreplay.replay import tile


def _begun(rows, widths):
    """Return the initial state of each half of the rows: maxima, sums of weights, weighted sums by column piece."""
    states = {}
    for half in tile.vectors(rows):
        states[half.index] = {
            "top": tile.full((half.size, 1), -1e30),
            "weight": tile.zeros((half.size, 1)),
            "sums": [tile.zeros((half.size, width)) for width in widths],
        }
    return states


def _page_step(queries, keys, values, states, scale):
    """Process a page of keys, all in L1, and the values of the page in pieces of columns."""
    rows, count = queries.shape[0], keys.shape[0]
    scores = tile.scratch((rows, count))
    tile.store(scores, tile.matmul(queries, keys.T))
    weights = tile.scratch((rows, count), queries.dtype)
    shrinks = {}
    for half in tile.vectors(rows):
        state = states[half.index]
        s = tile.load(scores[half]) * scale
        top = tile.maximum(state["top"], tile.row_max(s))
        e = tile.exp(s - top)
        shrink = tile.exp(state["top"] - top)
        state["weight"] = state["weight"] * shrink + tile.row_sum(e)
        state["top"] = top
        shrinks[half.index] = shrink
        tile.store(weights[half], e.to(weights.dtype))
    factor = tile.load(weights, to=tile.L1)
    for at, piece in enumerate(values):
        part = tile.scratch((rows, piece.shape[1]))
        tile.store(part, tile.matmul(factor, piece))
        for half in tile.vectors(rows):
            sums = states[half.index]["sums"]
            sums[at] = sums[at] * shrinks[half.index] + tile.load(part[half])


def _paged(q, k, v, table, lengths):
    out = torch.empty_like(q)
    for b, count in enumerate(lengths.tolist()):
        keys, values = (x[table[b].long()].flatten(0, 1)[:count].float().movedim(1, 0) for x in (k, v))
        queries = q[b].float().unflatten(0, (len(keys), -1)) * q.shape[2] ** -0.5
        out[b] = ((queries @ keys.mT).softmax(-1) @ values).flatten(0, 1)
    return out


def _in_pages(pages, table, lengths, size):
    """Return page numbers in shuffled order, and sequence lengths that end in the middle of pages."""
    order = torch.arange(table.numel()).mul(7).add(3).remainder(pages)
    ends = torch.arange(1, len(lengths) + 1).mul(37).remainder(table.shape[1] * size).add(1)
    return {"table": order.reshape(table.shape).to(table.dtype), "lengths": ends.to(lengths.dtype)}


@tile.kernel(
    "tile::paged_decode",
    reference=_paged,
    results=lambda q, k, v, table, lengths: torch.empty_like(q),
    cases=("q=f16[32,32,128] k=f16[2048,128,8,128] v=f16[2048,128,8,128] table=i32[32,64] lengths=i32[32]",),
    checks=(
        "q=f16[1,1,16] k=f16[1,1,1,16] v=f16[1,1,1,16] table=i32[1,1] lengths=i32[1]",
        "q=f16[3,8,64] k=f16[11,16,2,64] v=f16[11,16,2,64] table=i32[3,5] lengths=i32[3]",
        "q=f16[2,6,40] k=f16[4,48,6,40] v=f16[4,48,6,40] table=i64[2,3] lengths=i64[2]",
    ),
    inputs=lambda q, k, v, table, lengths: _in_pages(len(k), table, lengths, k.shape[1]),
    dtypes=("float16", "bfloat16"),
)
def paged_decode(q, k, v, table, lengths, out: tile.Out):
    """Compute attention of one query per sequence to keys and values in pages [pages, places, heads, channels].

    Several query heads share a key head. table[b] lists the pages of sequence b, which uses the first lengths[b] places
    in them.
    """
    size, heads = k.shape[1], k.shape[2]
    queries, results = (x.view(x.shape[0], heads, -1, x.shape[2]) for x in (q, out))
    for b, h in tile.grid((q.shape[0], heads), (tile.EACH, tile.EACH)):
        group = tile.load(queries[b, h], to=tile.L1)
        states = _begun(group.shape[0], (q.shape[2],))
        count = tile.scalar(lengths[b], most=table.shape[1] * size)
        for t in tile.steps(count, size):
            page = tile.scalar(table[b, t.index], most=k.shape[0] - 1)
            keys = tile.load(k[page, : t.size, h], to=tile.L1)
            values = tile.load(v[page, : t.size, h], to=tile.L1)
            _page_step(group, keys, (values,), states, q.shape[2] ** -0.5)
        for half in tile.vectors(group.shape[0]):
            state = states[half.index]
            tile.store(results[b, h][half], (state["sums"][0] / state["weight"]).to(out.dtype))


def _latent(q, cache, table, lengths, rank=512, scale=192**-0.5):
    out = q.new_empty(*q.shape[:2], rank)
    for b, count in enumerate(lengths.tolist()):
        keys = cache[table[b].long()].flatten(0, 1)[:count].float()
        out[b] = (q[b].float() @ keys.T * scale).softmax(-1) @ keys[:, :rank]
    return out


@tile.kernel(
    "tile::mla_decode",
    reference=_latent,
    results=lambda q, cache, table, lengths, rank=512, scale=1.0: q.new_empty(*q.shape[:2], rank),
    cases=("q=bf16[32,128,576] cache=bf16[2048,128,576] table=i32[32,32] lengths=i32[32]",),
    checks=(
        "q=f16[1,1,24] cache=f16[1,1,24] table=i32[1,1] lengths=i32[1] rank=16",
        "q=f16[2,20,96] cache=f16[7,16,96] table=i32[2,3] lengths=i32[2] rank=64",
        "q=f16[2,70,200] cache=f16[5,48,200] table=i32[2,2] lengths=i32[2] rank=160",
    ),
    inputs=lambda q, cache, table, lengths, *_: _in_pages(len(cache), table, lengths, cache.shape[1]),
    choices={"heads": (16, 32)},
    dtypes=("float16", "bfloat16"),
)
def mla_decode(q, cache, table, lengths, out: tile.Out, rank=512, scale=192**-0.5, *, heads=32, columns=128):
    """Compute attention of one query per sequence to latent keys in pages.

    The first `rank` channels of the keys are also the values. Queries have shape [sequences, heads, channels]. Their
    channels are already in the latent space, followed by the rotary channels.
    """
    size = cache.shape[1]
    widths = [min(columns, rank - first) for first in range(0, rank, columns)]
    for b, h in tile.grid(q.shape[:2], (tile.EACH, heads)):
        queries = tile.load(q[b, h], to=tile.L1)
        states = _begun(h.size, widths)
        count = tile.scalar(lengths[b], most=table.shape[1] * size)
        for t in tile.steps(count, size):
            page = tile.scalar(table[b, t.index], most=cache.shape[0] - 1)
            keys = tile.load(cache[page, : t.size], to=tile.L1)
            values = [keys[:, at * columns : at * columns + width] for at, width in enumerate(widths)]
            _page_step(queries, keys, values, states, scale)
        for half in tile.vectors(h.size):
            state = states[half.index]
            for at, width in enumerate(widths):
                first = at * columns
                part = out[b, h, first : first + width]
                tile.store(part[half], (state["sums"][at] / state["weight"]).to(out.dtype))


def _combined(y, slots, weights):
    return (y[slots.long()].float() * weights.float()[..., None]).sum(1).to(y.dtype)


@tile.kernel(
    "tile::moe_combine",
    reference=_combined,
    cases=("y=bf16[32768,4096] slots=i32[4096,8] weights=f32[4096,8]",),
    checks=(
        "y=f32[1,1] slots=i32[1,1] weights=f32[1,1]",
        "y=f32[94,40] slots=i32[47,2] weights=f32[47,2]",
        "y=f32[130,300] slots=i64[21,6] weights=f32[21,6]",
    ),
    inputs=lambda y, slots, weights: {
        "slots": torch.arange(slots.numel()).mul(7).remainder(len(y)).reshape(slots.shape).to(slots.dtype)
    },
    choices={"rows": (2, 4, 8), "columns": (512, 1024, 2048)},
)
def moe_combine(y, slots, weights, out: tile.Out, *, rows=4, columns=2048):
    """Compute the weighted sum of each token's expert outputs, which are stored by expert: row slots[token, j] of y."""
    for r, c in tile.grid(out.shape, (rows, columns)):
        total = tile.zeros((r.size, c.size))
        for j in tile.steps(slots.shape[1], 1):
            at = tile.load(slots[r, j])
            total = total + tile.load(y[:, c], rows=at).float() * tile.load(weights[r, j]).float()
        tile.store(out[r, c], total.to(out.dtype))
