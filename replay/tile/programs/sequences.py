"""Kernels along a dimension or over all elements: prefix sums, causal convolution, histogram."""

from __future__ import annotations

import torch

from opreplay.replay import tile


@tile.kernel(
    "tile::prefix_sum",
    reference=lambda x: x.float().cumsum(-1).to(x.dtype),
    cases=("x=f16[4096,4096]",),
    choices={"rows": (4, 8, 16), "columns": (512, 1024)},
)
def prefix_sum(x, y: tile.Out, *, rows=8, columns=512):
    """Compute the cumulative sum of each row, carried from block to block."""
    for r in tile.blocks(x.shape[0], rows):
        before = tile.zeros((r.size, 1))
        for c in tile.steps(x.shape[1], columns):
            h = tile.load(x[r, c]).float()
            tile.store(y[r, c], (tile.row_cumsum(h) + before).to(y.dtype))
            before = before + tile.row_sum(h)


def _convolved(x, w):
    padded = torch.nn.functional.pad(x.float(), (0, 0, len(w) - 1, 0))
    parts = [padded[k : k + len(x)] * w[k].float() for k in range(len(w))]
    return torch.stack(parts).sum(0).to(x.dtype)


@tile.kernel(
    "tile::causal_conv1d",
    reference=_convolved,
    cases=("x=bf16[4096,2048] w=bf16[4,2048]",),
    checks=(
        "x=f32[1,1] w=f32[1,1]",
        "x=f32[47,10] w=f32[4,10]",
        "x=f32[2,40] w=f32[4,40]",
        "x=f32[70,300] w=f32[3,300]",
    ),
    choices={"rows": (8, 16, 32), "columns": (128, 256)},
)
def causal_conv1d(x, w, y: tile.Out, *, rows=16, columns=256):
    """Compute, for each channel, the weighted sum of each position and earlier ones. Positions before the first are
    zero.
    """
    window = w.shape[0]
    for r, c in tile.grid(x.shape, (rows, columns)):
        total = tile.zeros((r.size, c.size))
        for back in range(min(window, r.stop)):
            first, last = max(0, r.start - back), r.stop - back
            part = tile.load(x[first:last, c]).float() * tile.load(w[window - 1 - back, c]).float()
            if last - first < r.size:
                padded = tile.zeros((r.size, c.size))
                tile.insert(padded, part, row=r.size - (last - first))
                part = padded
            total = total + part
        tile.store(y[r, c], total.to(y.dtype))


def _counted(x, bins=16):
    at = ((x.float() + 4.0) * (bins / 8)).floor().clamp(0, bins - 1)
    return torch.stack([(at == b).sum() for b in range(bins)]).float()


@tile.kernel("tile::histogram", reference=_counted, cases=("x=f32[2048,4096]",), choices={"n": (2048, 4096, 8192)})
def histogram(x, counts: tile.Sum, bins=16, *, n=4096):
    """Count the elements in equal bins from -4 to 4. Elements outside are counted in the outermost bins."""
    flat = x.view(-1)
    for b in tile.blocks(flat.shape[0], n):
        at = tile.floor((tile.load(flat[b]).float() + 4.0) * (bins / 8))
        at = tile.minimum(tile.maximum(at, 0.0), bins - 1.0)
        for i in range(bins):
            inside = tile.where(tile.compare(at, "==", float(i)), tile.full((1,), 1.0), 0.0)
            tile.store(counts[i : i + 1], tile.row_sum(inside), add=True)
