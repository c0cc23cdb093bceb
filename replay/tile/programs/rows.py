"""Kernels along rows: softmax, layer and RMS norm, quantization, transposition, top-k."""

from __future__ import annotations

import torch

from opreplay.replay import tile


@tile.kernel(
    "aten::_softmax",
    reference=lambda x: torch.softmax(x.float(), -1).to(x.dtype),
    cases=("x=f16[4096,1024]",),
    choices={"rows": (1, 2, 4, 8, 16)},
    when=lambda x, dim=-1, half_to_float=False: dim in (-1, x.ndim - 1) and not half_to_float,
    arguments=lambda self, dim=-1, half_to_float=False: {"x": self},
)
def softmax(x, y: tile.Out, *, rows=8):
    """Compute the softmax of each row of the last dimension."""
    source, result = x.view(-1, x.shape[-1]), y.view(-1, x.shape[-1])
    for r in tile.blocks(source.shape[0], rows):
        h = tile.load(source[r]).float()
        e = tile.exp(h - tile.row_max(h))
        tile.store(result[r], (e / tile.row_sum(e)).to(y.dtype))


@tile.kernel(
    "npu::npu_rms_norm",
    reference=lambda x, w, eps=1e-6: (
        x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * w.float()
    ).to(x.dtype),
    cases=("x=bf16[4096,1024] w=bf16[1024]",),
    choices={"rows": (1, 2, 4, 8, 16)},
)
def rms_norm(x, w, y: tile.Out, eps=1e-6, *, rows=8):
    """Divide each row of x by its root mean square, and multiply it by w."""
    source, result = x.view(-1, x.shape[-1]), y.view(-1, x.shape[-1])
    g = tile.load(w).float()
    for r in tile.blocks(source.shape[0], rows):
        h = tile.load(source[r]).float()
        s = tile.rsqrt(tile.row_sum(h * h) / x.shape[1] + eps)
        tile.store(result[r], (h * s * g).to(y.dtype))


@tile.kernel(
    "tile::layer_norm",
    reference=lambda x, w, b, eps=1e-5: torch.nn.functional.layer_norm(
        x.float(), (x.shape[-1],), w.float(), b.float(), eps
    ).to(x.dtype),
    cases=("x=f16[4096,1024] w=f16[1024] b=f16[1024]",),
    choices={"rows": (1, 2, 4, 8)},
)
def layer_norm(x, w, b, y: tile.Out, eps=1e-5, *, rows=8):
    """Compute (x - mean) divided by the standard deviation, times w, plus b, for each row."""
    source, result = x.view(-1, x.shape[-1]), y.view(-1, x.shape[-1])
    g, d = tile.load(w).float(), tile.load(b).float()
    for r in tile.blocks(source.shape[0], rows):
        h = tile.load(source[r]).float()
        h = h - tile.row_sum(h) / x.shape[1]
        s = tile.rsqrt(tile.row_sum(h * h) / x.shape[1] + eps)
        tile.store(result[r], (h * s * g + d).to(y.dtype))


def _norm_backward(x, w, g, eps=1e-6):
    s = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    n, gw = x.float() * s, g.float() * w.float()
    return (s * (gw - n * (gw * n).mean(-1, keepdim=True))).to(x.dtype), (g.float() * n).sum(0)


@tile.kernel(
    "tile::rms_norm_backward",
    reference=_norm_backward,
    cases=("x=bf16[4096,1024] w=bf16[1024] g=bf16[4096,1024]",),
    tolerance={"float32": 1e-4},  # thousands of rows of either sign cancel in a sum
    choices={"rows": (1, 2, 4)},
)
def rms_norm_backward(x, w, g, dx: tile.Out, dw: tile.Sum, eps=1e-6, *, rows=2):
    """Compute the gradients of `rms_norm` for x and w. All cores add up the gradient for w over all rows."""
    weight, columns = tile.load(w).float(), x.shape[1]
    for r in tile.blocks(x.shape[0], rows):
        h, up = tile.load(x[r]).float(), tile.load(g[r]).float()
        s = tile.rsqrt(tile.row_sum(h * h) / columns + eps)
        n, gw = h * s, up * weight
        tile.store(dw, tile.col_sum(up * n), add=True)
        tile.store(dx[r], ((gw - n * (tile.row_sum(gw * n) / columns)) * s).to(dx.dtype))


def _entropies(x, target):
    return torch.nn.functional.cross_entropy(x.float(), target.long(), reduction="none")


@tile.kernel(
    "tile::cross_entropy",
    reference=_entropies,
    cases=("x=bf16[4096,128256] target=i64[4096]",),
    inputs=lambda x, target: {"target": torch.arange(len(target)).mul(37).remainder(x.shape[1]).to(target.dtype)},
    choices={"rows": (1, 2, 4), "columns": (1024, 2048)},
)
def cross_entropy(x, target, loss: tile.Out, *, rows=4, columns=2048):
    """Compute the loss of each row of logits for its target. Each piece of columns updates the maximum and the sum."""
    for r in tile.blocks(x.shape[0], rows):
        wanted = tile.load(target[r]).to("int32").float().view(-1, 1)
        top, total = tile.full((r.size, 1), -1e30), tile.zeros((r.size, 1))
        picked = tile.zeros((r.size, 1))
        for c in tile.steps(x.shape[1], columns):
            h = tile.load(x[r, c]).float()
            here = tile.compare(tile.arange(c.size, "float32", start=c.start), "==", wanted)
            picked = picked + tile.row_sum(tile.where(here, h, 0.0))
            largest = tile.maximum(top, tile.row_max(h))
            total = total * tile.exp(top - largest) + tile.row_sum(tile.exp(h - largest))
            top = largest
        tile.store(loss[r], tile.ln(total) + top - picked)


def _quantised(x):
    scale = x.float().abs().amax(-1, keepdim=True) / 127.0
    scale = torch.clamp_min(scale, 1e-12)
    return (x.float() / scale).round().to(torch.int8), scale.squeeze(-1)


@tile.kernel(
    "tile::quantise_rows",
    reference=_quantised,
    cases=("x=bf16[4096,4096]",),
    choices={"rows": (1, 2, 4)},
)
def quantise_rows(x, y: tile.Out, scale: tile.Out, *, rows=2):
    """Quantize each row to int8; its scale is its largest magnitude divided by 127."""
    for r in tile.blocks(x.shape[0], rows):
        h = tile.load(x[r]).float()
        s = tile.maximum(tile.row_max(tile.abs(h)) / 127.0, 1e-12)
        q = tile.round(h / s)
        tile.store(y[r], q.to("float16").to("int8"))
        tile.store(scale[r], s)


@tile.kernel(
    "tile::transpose",
    reference=lambda x: x.T.contiguous(),
    cases=("x=f16[4096,4096]",),
    choices={"size": (64, 128)},
)
def transpose(x, y: tile.Out, *, size=128):
    """Swap rows and columns of a matrix."""
    for i, j in tile.grid(x.shape, (size, size)):
        tile.store(y[j, i], tile.transpose(tile.load(x[i, j])))


def _largest(x, k=8):
    ordered = torch.sort(x.float(), dim=-1, descending=True, stable=True)
    return ordered.values[:, :k].to(x.dtype), ordered.indices[:, :k].to(torch.int32)


@tile.kernel(
    "tile::topk",
    reference=_largest,
    cases=("x=f32[4800,1024] k=1000",),
    checks=("x=f32[1,1] k=1", "x=f32[47,10] k=3", "x=f32[60,130] k=130", "x=f32[5,1024] k=1000"),
    dtypes=("float32", "float16"),
)
def topk(x, values: tile.Out, indices: tile.Out, k=8):
    """Find the k largest values of each row and their columns, in descending order of the values.

    Runs of 32 elements are sorted, and then merged four at a time.
    """
    columns = x.shape[1]
    numbers = tile.arange(columns)
    for r in tile.blocks(x.shape[0], 1):
        keys, ids = tile.sort32(tile.load(x[r]), numbers)
        run = 32
        while run < columns:
            keys, ids = tile.merge4(keys, ids, run)
            run *= 4
        tile.store(values[r], tile.copy(keys[:, :k]))
        tile.store(indices[r], tile.copy(ids[:, :k]))
