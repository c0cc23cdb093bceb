"""Elementwise kernels (add, cast, GELU, SwiGLU, rope) for any rank, as one row or as rows of the last dimension."""

from __future__ import annotations

import torch

from opreplay.replay import tile


def _flat(*refs):
    """Return a one-dimensional view of each tensor."""
    return tuple(ref.view(-1) for ref in refs)


@tile.kernel(
    "aten::add",
    reference=lambda x, y: x + y,
    cases=("x=f16[8192,8192] y=f16[8192,8192]",),
    choices={"n": (2048, 4096, 8192, 16384)},
    when=lambda x, y, alpha=1: torch.is_tensor(y) and x.shape == y.shape and x.dtype == y.dtype and alpha == 1,
)
def add(x, y, out: tile.Out, *, n=4096, buffers=2):
    """Compute out = x + y."""
    first, second, result = _flat(x, y, out)
    for b in tile.blocks(result.shape[0], n):
        s, t = tile.load(first[b], buffers=buffers), tile.load(second[b], buffers=buffers)
        if x.dtype == "bfloat16":
            s, t = s.float(), t.float()
        tile.store(result[b], (s + t).to(out.dtype))


@tile.kernel(
    "tile::cast",
    reference=lambda x, dtype="float16": x.to(getattr(torch, dtype)),
    cases=("x=f32[4096,4096]",),
    choices={"n": (2048, 4096, 8192)},
)
def cast(x, out: tile.Out, dtype="float16", *, n=8192):
    """Convert x to another dtype."""
    source, result = _flat(x, out)
    for b in tile.blocks(source.shape[0], n):
        t = tile.load(source[b])
        if {x.dtype, out.dtype} == {"bfloat16", "float16"}:
            t = t.float()
        tile.store(result[b], t.to(out.dtype))


@tile.kernel(
    "tile::gelu_tanh",
    reference=lambda x: torch.nn.functional.gelu(x.float(), approximate="tanh").to(x.dtype),
    cases=("x=bf16[4096,4096]",),
    choices={"n": (2048, 4096)},
)
def gelu(x, out: tile.Out, *, n=4096):
    """Compute GELU with the tanh approximation."""
    source, result = _flat(x, out)
    for b in tile.blocks(source.shape[0], n):
        t = tile.load(source[b]).float()
        inner = (t * t * t * 0.044715 + t) * (2 / torch.pi) ** 0.5
        tile.store(result[b], ((tile.tanh(inner) + 1.0) * t * 0.5).to(out.dtype))


def _swiglu(x):
    gate, up = x.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(x.dtype)


@tile.kernel(
    "npu::npu_swiglu",
    reference=_swiglu,
    cases=("x=bf16[4096,8192]",),
    checks=("x=f32[1,2]", "x=f32[47,20]", "x=f32[3,5,4200]"),
    choices={"rows": (1, 2, 4, 8), "columns": (1024, 2048, 4096)},
)
def swiglu(x, y: tile.Out, *, rows=2, columns=2048):
    """Compute silu(first half) * second half of each row."""
    half = x.shape[-1] // 2
    both, result = x.view(-1, 2 * half), y.view(-1, half)
    for r, c in tile.grid(result.shape, (rows, columns)):
        gate = tile.load(both[:, :half][r, c]).float()
        up = tile.load(both[:, half:][r, c]).float()
        tile.store(result[r, c], (tile.silu(gate) * up).to(y.dtype))


def _rope(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x.float() * cos.float() + turned.float() * sin.float()).to(x.dtype)


@tile.kernel(
    "tile::rope",
    reference=_rope,
    cases=("x=bf16[4096,1024] cos=bf16[4096,1024] sin=bf16[4096,1024]",),
    checks=(
        "x=f32[1,2] cos=f32[1,2] sin=f32[1,2]",
        "x=f32[47,20] cos=f32[47,20] sin=f32[47,20]",
        "x=f32[128,128] cos=f32[128,128] sin=f32[128,128]",
    ),
    choices={"rows": (2, 4, 8, 16)},
)
def rope(x, cos, sin, y: tile.Out, *, rows=4):
    """Compute the rotary embedding of each row, rotating its halves: x * cos + (-second half, first half) * sin."""
    half = x.shape[-1] // 2
    for r in tile.blocks(x.shape[0], rows):
        for first in (True, False):
            here = slice(0, half) if first else slice(half, 2 * half)
            there = slice(half, 2 * half) if first else slice(0, half)
            a, b = tile.load(x[r, here]).float(), tile.load(x[r, there]).float()
            c, s = tile.load(cos[r, here]).float(), tile.load(sin[r, here]).float()
            turned = a * c - b * s if first else a * c + b * s
            tile.store(y[r, here], turned.to(y.dtype))
