"""Some thirty small models in plain torch, one of each kind that people train and serve; no step of their own, no data.

Each function gives (module, inputs). They are for `capture_models.py` and for tests; run as a script they are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

Made = tuple[nn.Module, tuple[Any, ...]]
MODELS: dict[str, Callable[[], Made]] = {}


def model(make: Callable[[], Made]) -> Callable[[], Made]:
    """List a model by the name of its function."""
    MODELS[make.__name__] = make
    return make


class Residual(nn.Module):
    """A part of a model, added to its input."""

    def __init__(self, part: nn.Module, short: nn.Module | None = None) -> None:
        super().__init__()
        self.part, self.short = part, short or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.part(x)


def conv_bn(i: int, o: int, k: int = 3, s: int = 1, g: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), act())


def head(width: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@model
def resnet_basic() -> Made:
    def block(i: int, o: int, s: int) -> nn.Module:
        short = None if i == o else nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o))
        part = nn.Sequential(conv_bn(i, o, 3, s), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
        return nn.Sequential(Residual(part, short), nn.ReLU(inplace=True))

    stem = nn.Sequential(conv_bn(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, block(8, 8, 1), block(8, 16, 2), head(16)), (torch.randn(2, 3, 32, 32),)


class SqueezeExcite(nn.Module):
    """Channels weighed by what they hold on average."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


@model
def mobilenet() -> Made:
    def block(i: int, e: int) -> nn.Module:
        last = nn.Sequential(nn.Conv2d(e, i, 1, bias=False), nn.BatchNorm2d(i))
        act = nn.Hardswish
        return Residual(nn.Sequential(conv_bn(i, e, 1, act=act), conv_bn(e, e, 3, 1, e, act), SqueezeExcite(e), last))

    stem = conv_bn(3, 8, 3, 2, act=nn.ReLU6)
    return nn.Sequential(stem, block(8, 16), block(8, 24), head(8)), (torch.randn(2, 3, 32, 32),)


class StochasticDepth(nn.Module):
    """Leaves rows out at random while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(0.8)
        return x * mask.div_(0.8)


@model
def efficientnet() -> Made:
    part = nn.Sequential(conv_bn(8, 32, 1, act=nn.SiLU), conv_bn(32, 32, 5, 1, 32, nn.SiLU), SqueezeExcite(32))
    out = nn.Sequential(nn.Conv2d(32, 8, 1, bias=False), nn.BatchNorm2d(8), StochasticDepth())
    return nn.Sequential(conv_bn(3, 8, 3, 2, act=nn.SiLU), Residual(nn.Sequential(part, out)), head(8)), (
        torch.randn(2, 3, 32, 32),
    )


class ConvNextBlock(nn.Module):
    """Depthwise convolution, then a perceptron with channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)


@model
def convnext() -> Made:
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), ConvNextBlock(8), ConvNextBlock(8), head(8))
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net, (torch.randn(2, 3, 32, 32),)


class UNet(nn.Module):
    """Down, up, and what was on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv_bn(3, 8), conv_bn(8, 16), conv_bn(24, 8)
        self.up, self.last = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.up(self.b(F.max_pool2d(a, 2)))
        y = self.last(self.c(torch.cat([a, b], 1)))
        return F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)


@model
def unet() -> Made:
    return UNet(), (torch.randn(2, 3, 16, 16),)


class DiffusionBlock(nn.Module):
    """Convolutions that know the time, and attention over places."""

    def __init__(self, i: int, o: int, times: int) -> None:
        super().__init__()
        self.n1, self.c1, self.n2, self.c2 = (
            nn.GroupNorm(4, i),
            nn.Conv2d(i, o, 3, 1, 1),
            nn.GroupNorm(4, o),
            nn.Conv2d(o, o, 3, 1, 1),
        )
        self.time, self.short = nn.Linear(times, o), nn.Conv2d(i, o, 1)
        self.norm, self.qkv, self.out = nn.GroupNorm(4, o), nn.Conv2d(o, 3 * o, 1), nn.Conv2d(o, o, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.c1(F.silu(self.n1(x))) + self.time(F.silu(t))[:, :, None, None]
        h = self.c2(F.dropout(F.silu(self.n2(h)), 0.1, self.training)) + self.short(x)
        b, c, height, width = h.shape
        q, k, v = self.qkv(self.norm(h)).reshape(b, 3, c, height * width).transpose(-1, -2).unbind(1)
        seen = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        return h + self.out(seen[:, 0].transpose(-1, -2).reshape(b, c, height, width))


class DiffusionUNet(nn.Module):
    """Noise of an image and a time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first, self.last = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 3, 3, 1, 1)
        self.down, self.mid, self.up = DiffusionBlock(8, 8, 32), DiffusionBlock(8, 16, 32), DiffusionBlock(24, 8, 32)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(8, device=x.device) * (-math.log(10000) / 8))
        angles = t[:, None].float() * rates[None]
        e = self.embed(torch.cat([angles.sin(), angles.cos()], -1))
        a = self.down(self.first(x), e)
        b = F.interpolate(self.mid(F.avg_pool2d(a, 2), e), scale_factor=2, mode="nearest")
        return self.last(self.up(torch.cat([a, b], 1), e))


@model
def diffusion_unet() -> Made:
    return DiffusionUNet(), (torch.randn(2, 3, 8, 8), torch.randint(0, 1000, (2,)))


class VAE(nn.Module):
    """An image by way of a drawn code."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(64, 32), nn.Sequential(nn.Linear(16, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        mean, log_var = self.inside(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum()
        return F.binary_cross_entropy(self.out(code), x.sigmoid(), reduction="sum") + kl


@model
def vae() -> Made:
    return VAE(), (torch.randn(4, 64),)


class Attention(nn.Module):
    """Attention with grouped keys and rotary places."""

    def __init__(self, width: int, heads: int, groups: int, rotary: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.rotary, self.causal = heads, groups, width // heads, rotary, causal
        self.q, self.kv, self.o = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * groups * self.size),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        if self.rotary:
            angles = torch.outer(
                torch.arange(n, device=x.device).float(),
                1e4 ** -(torch.arange(0, self.size, 2, device=x.device) / self.size),
            )
            turn = torch.polar(torch.ones_like(angles), angles)
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.float().reshape(*t.shape[:-1], -1, 2)) * turn).flatten(3)
                for t in (q, k)
            )
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


class RMSNorm(nn.Module):
    """Scaled by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class SwiGLU(nn.Module):
    """A gated perceptron."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, inner), (width, inner), (inner, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """A language model: tied embeddings, rotary places, grouped keys."""

    def __init__(self, mlp: Callable[[], nn.Module], rotary: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.ModuleList([RMSNorm(32), Attention(32, 4, 2, rotary, True), RMSNorm(32), mlp()]) for _ in range(2)
        )
        self.norm, self.head = RMSNorm(32), nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for n1, attention, n2, mlp in (cast(Any, layer) for layer in self.layers):
            x = x + attention(n1(x))
            x = x + mlp(n2(x))
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].reshape(-1, 64), ids[:, 1:].reshape(-1))


@model
def llama() -> Made:
    return Decoder(lambda: SwiGLU(32, 48)), (torch.randint(0, 64, (2, 12)),)


class CachedDecoder(nn.Module):
    """One more token of each sequence, its key and value written into a cache."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(64, 32), nn.Linear(32, 96), nn.Linear(32, 64)
        self.register_buffer("keys", torch.randn(2, 4, 16, 8))
        self.register_buffer("values", torch.randn(2, 4, 16, 8))

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(x).view(2, 1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, at, k.detach())
        self.values[:, :, at] = v.detach()
        mask = torch.arange(16, device=x.device)[None, :] <= at[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(2, 1, 32))


@model
def decode_with_cache() -> Made:
    return CachedDecoder(), (torch.randint(0, 64, (2, 1)), torch.tensor([7]))


class MoE(nn.Module):
    """Two experts a token, up to a capacity; tokens are sorted by expert, so that no size depends on values."""

    def __init__(self, width: int = 32, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.randn(experts, width, 48) / 6),
            nn.Parameter(torch.randn(experts, 48, width) / 7),
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat).softmax(-1).topk(2, -1)
        experts, capacity = self.up.shape[0], flat.shape[0]
        slot = F.one_hot(chosen.flatten(), experts).cumsum(0).gather(1, chosen.flatten()[:, None])[:, 0] - 1
        place = chosen.flatten() * capacity + slot.clamp(max=capacity - 1)
        rows = flat.repeat_interleave(2, 0)
        packed = torch.zeros(experts * capacity, x.shape[-1], dtype=x.dtype).index_add(0, place, rows)
        out = torch.bmm(F.gelu(torch.bmm(packed.view(experts, capacity, -1), self.up), approximate="tanh"), self.down)
        picked = out.view(experts * capacity, -1)[place] * weights.reshape(-1, 1)
        return picked.view(-1, 2, x.shape[-1]).sum(1).view_as(x)


@model
def mixture_of_experts() -> Made:
    return Decoder(MoE), (torch.randint(0, 64, (2, 8)),)


class Bert(nn.Module):
    """An encoder with padding, segments and a pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (
            nn.Embedding(64, 32, padding_idx=0),
            nn.Embedding(16, 32),
            nn.Embedding(2, 32),
        )
        self.norm = nn.LayerNorm(32, eps=1e-12)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    Attention(32, 4, 4, False, False),
                    nn.LayerNorm(32),
                    nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.1)),
                    nn.LayerNorm(32),
                ]
            )
            for _ in range(2)
        )
        self.pool = nn.Linear(32, 3)

    def forward(self, ids: Tensor, kinds: Tensor, there: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]] + self.kinds(kinds))
        mask = torch.zeros(ids.shape, dtype=x.dtype).masked_fill(~there, float("-inf"))[:, None, None, :]
        for attention, n1, mlp, n2 in (cast(Any, layer) for layer in self.layers):
            x = n1(x + attention(x, mask))
            x = n2(x + mlp(x))
        return self.pool(torch.tanh(x[:, 0]))


@model
def bert() -> Made:
    there = torch.ones(2, 10, dtype=torch.bool)
    there[1, 6:] = False
    return Bert(), (torch.randint(1, 64, (2, 10)), torch.zeros(2, 10, dtype=torch.long), there)


@model
def torch_encoder() -> Made:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 9, 32),)


class Seq2Seq(nn.Module):
    """torch's own transformer of encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(7))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.of(source, target, tgt_mask=self.mask, tgt_is_causal=True)


@model
def torch_transformer() -> Made:
    return Seq2Seq(), (torch.randn(2, 9, 32), torch.randn(2, 7, 32))


class Windows(nn.Module):
    """Attention within windows that are moved by half, with a bias for each pair of places."""

    index: Tensor

    def __init__(self, width: int = 16, window: int = 4) -> None:
        super().__init__()
        self.window, self.norm, self.attention = window, nn.LayerNorm(width), Attention(width, 2, 2, False, False)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, 2))
        grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (grid[:, :, None] - grid[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", apart[..., 0] * (2 * window - 1) + apart[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.window
        y = torch.roll(self.norm(x), (-n // 2, -n // 2), (1, 2))
        y = y.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
        bias = self.table[self.index.view(-1)].view(n * n, n * n, 2).permute(2, 0, 1).unsqueeze(0)
        y = self.attention(y, bias).view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + torch.roll(y, (n // 2, n // 2), (1, 2))


@model
def swin() -> Made:
    return nn.Sequential(Windows(), Windows(), nn.Flatten(), nn.Linear(16 * 64, 5)), (torch.randn(2, 8, 8, 16),)


class Fourier(nn.Module):
    """Mixes by a Fourier transform, and filters in the frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.out = nn.Parameter(torch.randn(9, 16, 2) / 4), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.fft.fft2(x).real
        return self.out(
            mixed + torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(self.filter), n=16, dim=1)
        )


@model
def fourier_mixer() -> Made:
    return Fourier(), (torch.randn(2, 16, 16),)


class Lstm(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = (
            nn.Embedding(50, 16),
            nn.LSTM(16, 24, 2, batch_first=True, dropout=0.1),
            nn.Linear(24, 50),
        )

    def forward(self, ids: Tensor) -> Tensor:
        seen, _ = self.rnn(self.embed(ids))
        return F.nll_loss(F.log_softmax(self.out(seen), -1).flatten(0, 1), ids.flatten())


@model
def lstm() -> Made:
    return Lstm(), (torch.randint(0, 50, (3, 7)),)


class Gru(nn.Module):
    """Both directions, pooled by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.score = nn.GRU(8, 12, bidirectional=True, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen, last = self.rnn(x)
        return (self.score(seen).softmax(1) * seen).sum(1) + last.transpose(0, 1).flatten(1)


@model
def gru() -> Made:
    return Gru(), (torch.randn(2, 6, 8),)


class Gcn(nn.Module):
    """Sums over neighbours, by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(x.shape[0]).scatter_add_(0, target, torch.ones(target.shape[0])).clamp(min=1)
        weight = (degree[source] * degree[target]).rsqrt()[:, None]
        for layer in (self.a, self.b):
            y = layer(x)
            x = torch.zeros_like(y).index_add_(0, target, y[source] * weight).relu()
        return x


@model
def graph_convolution() -> Made:
    return Gcn(), (torch.randn(10, 8), torch.randint(0, 10, (2, 30)))


class Gat(nn.Module):
    """Attention over neighbours: a softmax by scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.score = nn.Linear(8, 16, bias=False), nn.Linear(32, 1, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        y = self.lift(x)
        score = F.leaky_relu(self.score(torch.cat([y[source], y[target]], -1)), 0.2)[:, 0]
        largest = torch.full((x.shape[0],), float("-inf")).scatter_reduce(0, target, score.detach(), "amax")
        weight = (score - largest[target]).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, target, weight)
        weight = (weight / total[target].clamp(min=1e-9))[:, None]
        return F.elu(torch.zeros_like(y).scatter_add(0, target[:, None].expand(-1, 16), y[source] * weight))


@model
def graph_attention() -> Made:
    return Gat(), (torch.randn(10, 8), torch.randint(0, 10, (2, 30)))


class Dlrm(nn.Module):
    """Bags of embeddings, and each pair of features multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, 8, mode="sum") for _ in range(3))
        self.bottom, self.top = (
            nn.Sequential(nn.Linear(13, 8), nn.ReLU()),
            nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1)),
        )

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(table(row, offsets) for table, row in zip(self.tables, ids, strict=True))], 1)
        pairs = torch.bmm(features, features.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, offset=-1)
        return self.top(torch.cat([x, pairs[:, i, j]], 1)).sigmoid()


@model
def dlrm() -> Made:
    return Dlrm(), (torch.randn(4, 13), torch.randint(0, 100, (3, 12)), torch.tensor([0, 3, 5, 9]))


class Towers(nn.Module):
    """Users and items, near each other or not."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.deep = nn.Embedding(50, 8), nn.Embedding(50, 8, max_norm=None), nn.Linear(16, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        u, i = self.users(users), self.items(items)
        logits = F.normalize(u, dim=-1) @ F.normalize(i, dim=-1).T / 0.07
        return (
            F.cross_entropy(logits, torch.arange(users.shape[0])) + F.softplus(self.deep(torch.cat([u, i], -1))).mean()
        )


@model
def two_towers() -> Made:
    return Towers(), (torch.randint(0, 50, (6,)), torch.randint(0, 50, (6,)))


class WaveNet(nn.Module):
    """Gated causal convolutions with holes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 16, 2, dilation=2**i)) for i in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            a, b = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.last(F.relu(x))


@model
def wavenet() -> Made:
    return WaveNet(), (torch.randn(2, 1, 20),)


@model
def video() -> Made:
    net = nn.Sequential(
        nn.Conv3d(3, 8, 3, 1, 1), nn.InstanceNorm3d(8, affine=True), nn.PReLU(), nn.MaxPool3d(2),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return net, (torch.randn(1, 3, 4, 8, 8),)


class Speech(nn.Module):
    """Convolution, recurrence, and a loss over alignments."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn, self.out = nn.Conv1d(8, 16, 3, 2, 1), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 6)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        seen, _ = self.rnn(F.relu(self.conv(x)).transpose(1, 2))
        steps = self.out(seen).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(steps, labels, (steps.shape[0],) * x.shape[0], (labels.shape[1],) * x.shape[0])  # type: ignore[arg-type]


@model
def speech() -> Made:
    return Speech(), (torch.randn(2, 8, 24), torch.randint(1, 6, (2, 4)))


class Siamese(nn.Module):
    """Near what is alike, far from the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 4))

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a, b, c = map(self.net, (a, b, c))
        return F.triplet_margin_loss(a, b, c) + torch.cdist(a, b).mean() + F.cosine_similarity(a, c).var()


@model
def siamese() -> Made:
    return Siamese(), tuple(torch.randn(5, 8) for _ in range(3))


@model
def checkpointed() -> Made:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Sequential(nn.Linear(16, 32), nn.GELU()), nn.Linear(32, 16)

        def forward(self, x: Tensor) -> Tensor:
            from torch.utils.checkpoint import checkpoint

            return self.b(checkpoint(self.a, x, use_reentrant=False))

    return Recomputed(), (torch.randn(4, 16),)


class Depths(nn.Module):
    """A mixture of depths: a block sees the tokens that a router chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.block = nn.Linear(16, 1), nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).squeeze(-1)
        chosen = scores.topk(4, 1).indices.sort(1).values
        places = chosen[..., None].expand(-1, -1, 16)
        deep = self.block(x.gather(1, places)) * scores.gather(1, chosen)[..., None].sigmoid()
        return x.scatter_add(1, places, deep)


@model
def mixture_of_depths() -> Made:
    return Depths(), (torch.randn(2, 8, 16),)


class Quantizer(nn.Module):
    """Codes of a book in place of what an encoder gives, and gradients past them."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.book = nn.Conv1d(2, 8, 4, 2, 1), nn.Embedding(16, 8)
        self.decode = nn.ConvTranspose1d(8, 2, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x).transpose(1, 2)
        near = self.book(torch.cdist(z, self.book.weight.expand(z.shape[0], -1, -1)).argmin(-1))
        loss = F.mse_loss(near, z.detach()) + 0.25 * F.mse_loss(z, near.detach())
        return F.mse_loss(self.decode((z + (near - z).detach()).transpose(1, 2)), x) + loss


@model
def vector_quantized() -> Made:
    return Quantizer(), (torch.randn(2, 2, 16),)


class Deformable(nn.Module):
    """Attention at places that the query chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.weights = nn.Linear(16, 8), nn.Linear(16, 4)
        self.values, self.out = nn.Conv2d(16, 16, 1), nn.Linear(16, 16)

    def forward(self, query: Tensor, image: Tensor, places: Tensor) -> Tensor:
        moved = places[:, :, None] + 0.1 * self.offsets(query).view(*query.shape[:2], 4, 2).tanh()
        seen = F.grid_sample(self.values(image), 2 * moved - 1, align_corners=False)
        return self.out((seen * self.weights(query).softmax(-1)[:, None]).sum(-1).transpose(1, 2))


@model
def deformable_attention() -> Made:
    return Deformable(), (torch.randn(2, 5, 16), torch.randn(2, 16, 8, 8), torch.rand(2, 5, 2))


class Translator(nn.Module):
    """Recurrent, with attention: one word after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(20, 8), nn.LSTM(8, 16, batch_first=True)
        self.write, self.key, self.out = nn.LSTMCell(24, 16), nn.Linear(16, 16), nn.Linear(32, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (state, cell) = self.read(self.words(source))
        h, c, context, said = state[0], cell[0], torch.zeros(source.shape[0], 16), []
        for t in range(target.shape[1]):
            h, c = self.write(torch.cat([self.words(target[:, t]), context], -1), (h, c))
            context = (torch.bmm(memory, self.key(h)[..., None]).softmax(1) * memory).sum(1)
            said.append(self.out(torch.cat([h, context], -1)))
        return torch.stack(said, 1)


@model
def sequence_to_sequence() -> Made:
    return Translator(), (torch.randint(0, 20, (2, 6)), torch.randint(0, 20, (2, 4)))


class OverlappingPatches(nn.Module):
    """Patches to tokens and back, of one image: dimensions of one element have strides of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.reduce = nn.Conv2d(3, 16, 7, 4, 3), nn.Conv2d(16, 16, 2, 2)
        self.norm, self.key, self.out = nn.LayerNorm(16), nn.Linear(16, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        image = self.embed(x)
        tokens = self.norm(image.flatten(2).transpose(1, 2))
        fewer = self.reduce(tokens.transpose(1, 2).reshape(image.shape)).reshape(1, 16, -1).transpose(1, 2)
        weights = (tokens @ self.key(self.norm(fewer)).mT).softmax(-1)
        return self.out((weights @ fewer).transpose(1, 2).reshape(image.shape))


@model
def patches_of_one_image() -> Made:
    return OverlappingPatches(), (torch.randn(1, 3, 32, 32),)


class StepByStep(nn.Module):
    """A recurrence that writes its results to a part of a tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.mix = nn.Parameter(torch.rand(8)), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.mix(x).chunk(2, -1)
        result, state = torch.zeros_like(x), torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            state = self.decay * state + key[:, t].exp() * value[:, t]
            result[:, t] = state
        return result


@model
def written_in_place() -> Made:
    return StepByStep(), (torch.randn(2, 6, 8),)


def loss_of(output: Any) -> Tensor:
    """Something to train on for any model: the output itself where it is a loss, else its mean square."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    first = next((tensor for tensor in tensors if tensor.requires_grad), tensors[0])
    return first if first.dim() == 0 else first.float().square().mean()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
}
MODES = ("eval", *OPTIMIZERS)


def step_of_model(name: str, mode: str) -> Callable[[], tuple[Any, ...]]:
    """`make()` of a model: its forward without gradients ("eval"), or a training step with an optimizer."""
    return step_from(MODELS[name], mode)


def step_from(build: Callable[[], tuple[nn.Module, tuple[Any, ...]]], mode: str) -> Callable[[], tuple[Any, ...]]:
    """`make()` of what `made` gives, module and inputs. A training step is the second one: there is a state by then."""

    def make() -> tuple[Any, ...]:
        net, inputs = build()
        if mode == "eval":
            net.eval()

            def forward(*inputs_given: Any) -> Any:
                with torch.no_grad():
                    return net(*inputs_given)

            return forward, inputs
        net.train()
        optimizer = OPTIMIZERS[mode](net.parameters())
        loss_of(net(*inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return net, inputs, {"optimizer": optimizer, "loss": loss_of}

    return make


def main() -> None:
    """Print the models with their sizes."""
    for name, make in MODELS.items():
        net, _ = make()
        print(f"{name:24} {sum(p.numel() for p in net.parameters()):8,} parameters")


if __name__ == "__main__":
    main()
