"""Kernels of the cube core: matmul, grouped matmul, convolution by im2col, and flash attention with the vector
cores."""

from __future__ import annotations

import torch

from opreplay.replay import tile


@tile.kernel(
    "aten::mm",
    cases=("a=f16[2048,2048] b=f16[2048,2048]",),
    choices={"bm": (64, 128, 256), "bn": (128, 256), "bk": (64, 128, 256, 512)},
    reference=lambda a, b: (a.float() @ b.float()).to(a.dtype),
)
def matmul(a, b, c: tile.Out, *, bm=128, bn=256, bk=256, buffers=2):
    """Compute c = a @ b. Either factor may be stored transposed.

    `bk` is the block size along k for 2-byte dtypes, and half of it is used for float32. With `buffers=1`, each product
    waits for its loads.
    """
    bk = bk // 2 if a.dtype == "float32" else bk
    for m, n in tile.grid(c.shape, (bm, bn)):
        acc = None
        for k in tile.steps(a.shape[1], bk):
            left = tile.load(a[m, k], to=tile.L1, buffers=buffers)
            acc = tile.matmul(left, tile.load(b[k, n], to=tile.L1, buffers=buffers), acc)
        tile.store(c[m, n], acc)


def _grouped(x, w, counts=None):
    rows = counts or [x.shape[0] // w.shape[0]] * w.shape[0]
    parts = [p.float() @ w[g].float() for g, p in enumerate(torch.split(x, list(rows)))]
    return torch.cat(parts).to(x.dtype)


@tile.kernel(
    "tile::grouped_matmul",
    reference=_grouped,
    cases=("x=f16[1024,1024] w=f16[8,1024,512]",),
    checks=(
        "x=f32[1,1] w=f32[1,1,1]",
        "x=f32[96,40] w=f32[3,40,70]",
        "x=f32[96,40] w=f32[3,40,70] counts=[90,0,6]",
        "x=f32[300,300] w=f32[2,300,260] counts=[171,129]",
    ),
    choices={"bm": (64, 128), "bn": (128, 256), "bk": (128, 256)},
)
def grouped_matmul(x, w, y: tile.Out, counts=None, *, bm=128, bn=256, bk=256):
    """Multiply groups of rows of x by one matrix each.

    Group g consists of the next counts[g] rows and is multiplied by w[g]. Without counts, all groups have the same
    size.
    """
    bk = bk // 2 if x.dtype == "float32" else bk
    counts = counts or [x.shape[0] // w.shape[0]] * w.shape[0]
    blocks, row = [], 0
    for g, rows in enumerate(counts):
        blocks += [(g, at, min(row + rows, at + bm)) for at in range(row, row + rows, bm)]
        row += rows
    for i, n in tile.grid((len(blocks), y.shape[1]), (tile.EACH, bn)):
        g, first, last = blocks[i.start]
        acc = None
        for k in tile.steps(x.shape[1], bk):
            part = tile.load(x[first:last, k], to=tile.L1)
            acc = tile.matmul(part, tile.load(w[g, k, n], to=tile.L1), acc)
        tile.store(y[first:last, n], acc)


def _times_int4(a, w):
    low, high = (w.short() << 12) >> 12, w.short() >> 4
    return (a.float() @ torch.cat((low, high)).float()).to(a.dtype)


@tile.kernel(
    "tile::matmul_int4",
    reference=_times_int4,
    results=lambda a, w: a.new_empty(a.shape[0], w.shape[1]),
    cases=("a=f16[256,4096] w=i8[2048,4096]",),
    checks=("a=f16[1,2] w=i8[1,1]", "a=f16[47,20] w=i8[10,70]", "a=f16[130,300] w=i8[150,260]"),
    inputs=lambda a, w: {"w": torch.arange(w.numel()).mul(37).reshape(w.shape).to(torch.int8)},
    choices={"bn": (64, 128), "bk": (32, 64)},
    dtypes=("float16",),
)
def matmul_int4(a, w, c: tile.Out, *, bm=128, bn=128, bk=64):
    """Multiply a by a matrix of 4-bit integers that is packed into w.

    The low nibbles of w's bytes are the upper rows of the matrix, and the high nibbles are its lower rows. Vector cores
    unpack them, and the cube core multiplies.
    """
    lower = w.shape[0]
    for m, n in tile.grid(c.shape, (bm, bn)):
        acc = None
        for k in tile.steps(lower, bk):
            low = tile.scratch((k.size, n.size), a.dtype)
            high = tile.scratch((k.size, n.size), a.dtype)
            for half in tile.vectors(k.size):
                both = tile.load(w[k, n][half]).half().to("int16")
                tile.store(low[half], ((both << 12) >> 12).half())
                tile.store(high[half], (both >> 4).half())
            acc = tile.matmul(tile.load(a[m, k], to=tile.L1), tile.load(low, to=tile.L1), acc)
            acc = tile.matmul(tile.load(a[:, lower:][m, k], to=tile.L1), tile.load(high, to=tile.L1), acc)
        tile.store(c[m, n], acc)


def _convolved(x, w):
    images = torch.nn.functional.conv2d(x.float().permute(0, 3, 1, 2), w.float().permute(3, 2, 0, 1))
    return images.permute(0, 2, 3, 1).contiguous().to(x.dtype)


@tile.kernel(
    "tile::conv2d_nhwc",
    reference=_convolved,
    cases=("x=f16[4,14,98,384] w=f16[3,3,384,4608]",),
    checks=(
        "x=f16[1,1,1,1] w=f16[1,1,1,1]",
        "x=f16[2,7,10,40] w=f16[3,3,40,70]",
        "x=f16[1,12,140,70] w=f16[3,2,70,260]",
    ),
    choices={"bn": (128, 256), "bc": (16, 32, 48, 64, 128)},
    dtypes=("float16", "bfloat16"),
)
def conv2d(x, w, y: tile.Out, *, bm=128, bn=256, bc=128):
    """Compute a convolution with stride 1 of an already padded input (images, rows, columns, channels).

    A block of rows is loaded to L1 only once. Each window position reads it at another offset as an operand of a
    product; this is im2col.
    """
    images, height, width, _ = y.shape
    window, across = w.shape[:2]
    rows, columns = _patch(height, width, bm)
    for i, r, j, n in tile.grid((images, height, width, w.shape[3]), (tile.EACH, rows, columns, bn)):
        acc = None
        for c in tile.steps(x.shape[3], bc):
            patch = tile.load(x[i, r.start : r.stop + window - 1, j.start : j.stop + across - 1, c], to=tile.L1)
            for ky in range(window):
                for kx in range(across):
                    shifted = patch[ky : ky + r.size, kx : kx + j.size].view(r.size * j.size, c.size)
                    acc = tile.matmul(shifted, tile.load(w[ky, kx, c, n], to=tile.L1), acc)
        tile.store(y[i, r, j, n], acc)


def _patch(height, width, limit):
    """Return the numbers of rows and columns of an image that a block of up to `limit` positions covers.

    They give the fewest blocks and, among equal numbers of blocks, the shape closest to a square.
    """
    shapes = [(rows, min(width, limit // rows)) for rows in range(1, min(height, limit) + 1)]
    return min(shapes, key=lambda s: (-(-height // s[0]) * -(-width // s[1]), (s[0] + 2) * (s[1] + 2)))


def _attention(q, k, v, scale=0.0, causal=False):
    output = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), scale=scale or None, is_causal=causal
    )
    return output.to(q.dtype)


@tile.kernel(
    "tile::flash_attention",
    reference=_attention,
    cases=("q=f16[1,4096,128] k=f16[1,4096,128] v=f16[1,4096,128]",),
    checks=(
        "q=f16[1,1,16] k=f16[1,1,16] v=f16[1,1,16]",
        "q=f16[2,47,64] k=f16[2,130,64] v=f16[2,130,64]",
        "q=f16[1,300,128] k=f16[1,1100,128] v=f16[1,1100,128]",
        "q=f16[1,300,64] k=f16[1,300,64] v=f16[1,300,64] causal=true",
    ),
    choices={"bq": (64, 128), "bkv": (128, 256, 512)},
    dtypes=("float16", "bfloat16"),
)
def flash_attention(q, k, v, out: tile.Out, scale=0.0, causal=False, *, bq=128, bkv=512, chunk=128, ahead=2):
    """Compute attention over (heads, queries, channels) without storing all weights.

    The softmax is updated with each block of keys. The cube core multiplies the weights by the values `ahead` key
    blocks later. Thus, it works in parallel with the vector cores.
    """
    scale = scale or q.shape[2] ** -0.5
    for h, m in tile.grid(q.shape[:2], (tile.EACH, bq)):
        queries = tile.load(q[h, m], to=tile.L1)
        halves, waiting = {}, []
        for n in tile.steps(min(k.shape[1], m.stop) if causal else k.shape[1], bkv):
            weights = _softmax_step(queries, k[h, n], halves, scale, chunk, ahead, (m, n) if causal else None)
            waiting.append((weights, v[h, n]))
            if len(waiting) > ahead:
                first, values = waiting.pop(0)
                _weighted_step(first, values, halves, chunk)
        for last, values in waiting:
            _weighted_step(last, values, halves, chunk, buffers=1)
        _divided(out[h, m], halves)


def _rows(half, size=16):
    """Return pieces of a half's rows that fit into UB together with all keys of a block."""
    first, last = half.span()
    return [slice(at, min(last, at + size)) for at in range(first, last, size)]


def _softmax_step(queries, keys, halves, scale, chunk, ahead, causal):
    """Compute the unnormalized weights of a block of keys, and the factor that rescales earlier results."""
    rows, columns = queries.shape[0], keys.shape[0]
    scores = tile.scratch((rows, columns), buffers=2 * ahead)
    for c in tile.steps(columns, chunk):
        tile.store(scores[:, c], tile.matmul(queries, tile.load(keys[c], to=tile.L1).T))
    weights = tile.scratch((rows, columns), queries.dtype, buffers=2 * ahead)
    for half in tile.vectors(rows):
        states = halves.setdefault(half.index, {})
        for i, r in enumerate(_rows(half)):
            s = tile.load(scores[r]) * scale
            if causal is not None and causal[1].stop - 1 > causal[0].start + r.start:
                s = _masked(s, causal[0].start + r.start, causal[1].start)
            state = states.setdefault(i, {})
            top = tile.row_max(s)
            if "top" in state:
                top = tile.maximum(top, state["top"])
                state["shrink"] = tile.exp(state["top"] - top)
            s = s - top
            s = tile.exp(s)
            total = tile.row_sum(s)
            state["weight"] = state["weight"] * state["shrink"] + total if "top" in state else total
            state["top"] = top
            state.setdefault("shrinks", []).append(state.pop("shrink", None))
            tile.store(weights[r], s.to(weights.dtype))
    return weights


def _masked(s, row, column):
    """Return the scores, with the scores of later keys set far below all others."""
    keys = tile.arange(s.shape[1], "float32", start=column)
    for i in range(s.shape[0]):
        later = tile.compare(keys, ">", row + i)
        tile.insert(s, tile.where(later, tile.full((1, s.shape[1]), -1e30), s[i : i + 1]), row=i)
    return s


def _divided(out, halves):
    """Store the results: the weighted sums of values divided by the sums of weights."""
    for half in tile.vectors(out.shape[0]):
        for i, r in enumerate(_rows(half)):
            state = halves[half.index][i]
            tile.store(out[r], (state["sum"] / state["weight"]).to(out.dtype))


def _weighted_step(weights, values, halves, chunk, buffers=2):
    """Add a weighted block of values to the result so far."""
    rows, channels = weights.shape[0], values.shape[1]
    acc = None
    for c in tile.steps(weights.shape[1], chunk):
        acc = tile.matmul(tile.load(weights[:, c], to=tile.L1), tile.load(values[c], to=tile.L1), acc)
    part = tile.scratch((rows, channels))
    tile.store(part, acc)
    for half in tile.vectors(rows):
        for i, r in enumerate(_rows(half)):
            state = halves[half.index][i]
            shrink = state["shrinks"].pop(0)
            t = tile.load(part[r], buffers=buffers)
            state["sum"] = tile.copy(t) if shrink is None else state["sum"] * shrink + t
