# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false
"""Small workloads of many kinds, to be recorded: each builds what it needs and returns the step that is recorded.

Owns what is run. Recording and comparing are `replayed_as_recorded`'s.
"""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from tempfile import mkdtemp
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]


def workloads_of(names: dict[str, Any]) -> tuple[Callable[[], Step], ...]:
    """The workloads of a module: its functions without arguments that make a step, as they are written."""
    return tuple(
        make
        for make in names.values()
        if isinstance(make, FunctionType)
        and (make.__module__, make.__annotations__) == (names["__name__"], {"return": "Step"})
    )


def _train(model: nn.Module, make_loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        make_loss().backward()
        optimizer.step()

    return step


class Bottleneck(nn.Module):
    """A residual block whose 1x1 convolutions carry the stride, as those of old models do."""

    def __init__(self, wide: int, narrow: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(wide, narrow, 1, stride=stride, bias=False)
        self.second = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.third = nn.Conv2d(narrow, out, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (narrow, narrow, out))
        self.short = nn.Conv2d(wide, out, 1, stride=stride, bias=False) if wide != out or stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norms[0](self.first(x)), inplace=True)
        out = F.relu(self.norms[1](self.second(out)), inplace=True)
        return F.relu(self.norms[2](self.third(out)) + self.short(x))


class Residual(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Bottleneck(16, 8, 32, 1), Bottleneck(32, 16, 64, 2), Bottleneck(64, 16, 64, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.blocks(x), 1), 1))


class Alexnet(nn.Module):
    """The layers of AlexNet, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(16, 24, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 24, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.AdaptiveAvgPool2d((6, 6)),
        )
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(24 * 36, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class Attention(nn.Module):
    """Attention written out, with a causal mask."""

    def __init__(self, width: int, heads: int, *, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mask = torch.tril(torch.ones(64, 64, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
            scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))  # pyright: ignore[reportIndexIssue]
            mixed = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Decoder(nn.Module):
    """A small GPT."""

    def __init__(self, *, fused: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(101, 48), nn.Embedding(64, 48)
        self.attention = nn.ModuleList(Attention(48, 4, fused=fused) for _ in range(2))
        self.up, self.down = nn.Linear(48, 192), nn.Linear(192, 48)
        self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(3))
        self.head = nn.Linear(48, 101, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.attention:
            x = x + layer(self.norms[0](x))
            x = x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        return self.head(self.norms[2](x))


def perceptron_sgd() -> Step:
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    return _train(model, lambda: F.cross_entropy(model(x), y), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def resnet_training() -> Step:
    model = Residual()
    x, y = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    return _train(model, lambda: F.cross_entropy(model(x), y), torch.optim.SGD(model.parameters(), 0.1))


def resnet_inference() -> Step:
    model, x = Residual().eval(), torch.randn(2, 3, 96, 64)

    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def alexnet_inference() -> Step:
    model, x = Alexnet().eval(), torch.randn(2, 3, 224, 224)

    def step() -> None:
        with torch.inference_mode():
            model(x).argmax(1)

    return step


def alexnet_training() -> Step:
    model, x, y = Alexnet(), torch.randn(2, 3, 224, 224), torch.randint(0, 10, (2,))
    return _train(model, lambda: F.cross_entropy(model(x), y), torch.optim.Adam(model.parameters(), foreach=False))


def gpt_training_fused_adamw() -> Step:
    model, ids = Decoder(), torch.randint(0, 101, (3, 33))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    return _train(model, lambda: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()), optimizer)


def deep_training_fused_adamw() -> Step:
    layers = [layer for i in range(20) for layer in (nn.Linear(24 + i, 25 + i), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(16, 24)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    step = _train(model, lambda: model(x).square().mean(), optimizer)

    def twice() -> None:
        step()
        step()

    return twice


def deep_training_foreach_adam() -> Step:
    layers = [layer for i in range(18) for layer in (nn.Linear(24 + i, 25 + i), nn.SiLU())]
    model, x = nn.Sequential(*layers), torch.randn(16, 24)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=True)
    step = _train(model, lambda: model(x).square().mean(), optimizer)

    def clipped() -> None:
        step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step()

    return clipped


def gpt_decoding() -> Step:
    model = Decoder(fused=True).eval()

    def step() -> None:
        ids = torch.randint(0, 101, (2, 9))
        with torch.no_grad():
            for _ in range(3):
                logits = model(ids)[:, -1] / 0.8
                kept, _ = logits.topk(20)
                logits = logits.masked_fill(logits < kept[:, -1:], float("-inf"))
                sorted_logits, order = torch.sort(logits, descending=True)
                past = sorted_logits.softmax(-1).cumsum(-1) > 0.9
                past[..., 1:] = past[..., :-1].clone()
                past[..., 0] = False
                logits = logits.masked_fill(past.scatter(1, order, past), float("-inf"))
                ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)

    return step


def llama_with_cache() -> Step:
    width, heads, groups, length = 64, 8, 2, 40
    q_proj, kv_proj = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * groups * 8, bias=False)
    gate, up, down = (nn.Linear(a, b, bias=False) for a, b in ((width, 160), (width, 160), (160, width)))
    weight = torch.ones(width)
    cache = torch.zeros(2, 3, groups, length, 8)
    frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = torch.cat((-x[..., 4:], x[..., :4]), dim=-1)
        return x * cos + half * sin

    def step() -> None:
        with torch.inference_mode():
            for start, count in ((0, 12), (12, 1), (13, 1)):
                x = torch.randn(3, count, width)
                normed = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
                places = torch.arange(start, start + count)
                angles = torch.outer(places.float(), frequencies)
                both = torch.cat((angles, angles), dim=-1)
                cos, sin = both.cos()[None, None], both.sin()[None, None]
                q = rotated(q_proj(normed).view(3, count, heads, 8).transpose(1, 2), cos, sin)
                k, v = kv_proj(normed).view(3, count, 2, groups, 8).permute(2, 0, 3, 1, 4)
                cache[0].index_copy_(2, places, rotated(k, cos, sin))
                cache[1][:, :, places] = v
                seen = cache[:, :, :, : start + count]
                k, v = (c[:, :, None].expand(3, groups, 4, -1, 8).reshape(3, heads, -1, 8) for c in seen)
                bias = torch.full((count, start + count), float("-inf")).triu(start + 1)
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
                x = x + out.transpose(1, 2).contiguous().view(3, count, width)
                down(F.silu(gate(x)) * up(x))

    return step


def encoder_training() -> Step:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, padding = torch.randn(3, 10, 32), torch.zeros(3, 10, dtype=torch.bool)
    padding[1, 7:] = True
    y = torch.randn(3, 10, 32)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    return _train(model, lambda: F.smooth_l1_loss(model(x, src_key_padding_mask=padding), y), optimizer)


def encoder_inference() -> Step:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 10, 32)

    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def bert_masked() -> Step:
    words, kinds, norm = nn.Embedding(200, 32, padding_idx=0), nn.Embedding(2, 32), nn.LayerNorm(32)
    dense, decoder = nn.Linear(32, 32), nn.Linear(32, 200)
    ids, mask = torch.randint(1, 200, (4, 16)), torch.ones(4, 16, dtype=torch.long)
    labels = torch.where(torch.rand(4, 16) < 0.2, ids, torch.tensor(-100))

    def step() -> None:
        x = norm(words(ids) + kinds(torch.zeros_like(ids)))
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        scores = x @ x.transpose(-1, -2) / 5.0 + extended[:, 0]
        x = dense(scores.softmax(dim=-1) @ x)
        chosen = labels != -100
        logits = decoder(F.gelu(x[chosen]))
        loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.1)
        pooled = torch.tanh(x[:, 0]).sum() + x[torch.arange(4), mask.sum(1) - 1].sum()
        (loss + pooled).backward()

    return step


def windowed_vision() -> Step:
    embed, norm, mix = nn.Conv2d(3, 24, 4, stride=4), nn.LayerNorm(24), nn.Linear(24, 24)
    table = nn.Parameter(torch.randn(49, 2))
    index = torch.randint(0, 49, (16, 16))
    merge = nn.Linear(96, 48, bias=False)

    def step() -> None:
        x = norm(embed(torch.randn(2, 3, 32, 32)).flatten(2).transpose(1, 2)).view(2, 8, 8, 24)
        x = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
        windows = x.view(2, 2, 4, 2, 4, 24).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, 24)
        bias = table[index.view(-1)].view(16, 16, 2).permute(2, 0, 1).contiguous()
        q = mix(windows).reshape(-1, 16, 2, 12).transpose(1, 2)
        mixed = ((q @ q.transpose(-2, -1)) + bias.unsqueeze(0)).softmax(-1) @ q
        x = mixed.transpose(1, 2).reshape(2, 2, 2, 4, 4, 24).permute(0, 1, 3, 2, 4, 5).reshape(2, 8, 8, 24)
        x = torch.roll(x, shifts=(2, 2), dims=(1, 2))
        joined = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        merge(joined).mean(dim=(1, 2)).amax(dim=-1).sum().backward()

    return step


def unet_denoising() -> Step:
    down = nn.Conv2d(4, 16, 3, stride=2, padding=1)
    norm, mid = nn.GroupNorm(8, 16), nn.Conv2d(16, 16, 3, padding=1)
    up, out = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(12, 4, 1)
    time = nn.Linear(32, 16)
    x = torch.randn(2, 4, 16, 24)
    scale = math.log(10000) / 15

    def step() -> None:
        t = torch.randint(0, 1000, (2,))
        angles = t[:, None].float() * torch.exp(torch.arange(16) * -scale)[None]
        embedded = time(torch.cat([angles.sin(), angles.cos()], dim=1))
        h = F.silu(norm(down(x) + embedded[:, :, None, None]))
        h = mid(h)
        h = up(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        h = out(torch.cat([h, x], dim=1))
        noise = torch.randn_like(h)
        F.mse_loss(h, noise).backward()
        F.interpolate(x, size=(20, 30), mode="bilinear", align_corners=True)
        F.avg_pool2d(x, 2)

    return step


def generator_and_critic() -> Step:
    make = nn.Sequential(
        nn.ConvTranspose2d(16, 12, 4, 1, 0, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    judge = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, 1, 0), nn.Sigmoid()
    )
    optimizer = torch.optim.Adam([*make.parameters(), *judge.parameters()], 2e-4, betas=(0.5, 0.999))
    z = torch.randn(4, 16, 1, 1)
    return _train(make, lambda: F.binary_cross_entropy(judge(make(z)).flatten(), torch.ones(4)), optimizer)


def mobile_depthwise() -> Step:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.Hardswish(),
        nn.Conv2d(16, 16, 5, stride=2, padding=2, groups=16, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
        nn.Conv2d(16, 24, 1),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(24, 6, 1),
        nn.Hardsigmoid(),
    )
    x = torch.randn(2, 3, 48, 48).to(memory_format=torch.channels_last)
    return lambda: model(x).sum().backward()


def volumes() -> Step:
    first, second = nn.Conv3d(1, 4, 3, stride=(1, 2, 2), padding=1), nn.Conv3d(4, 8, 3)
    x = torch.randn(1, 1, 6, 16, 16)
    return lambda: F.avg_pool3d(F.max_pool3d(second(first(x)), (1, 2, 2)), 2).sum().backward()


def speech_recurrent() -> Step:
    front, net = nn.Conv1d(13, 20, 5, stride=2), nn.LSTM(20, 24, 2, batch_first=True, bidirectional=True)
    gate, head = nn.GRU(48, 16), nn.Linear(16, 12)
    x, targets = torch.randn(3, 13, 41), torch.randint(1, 12, (3, 5))

    def step() -> None:
        h, _ = net(F.relu(front(F.pad(x, (2, 2), mode="replicate"))).transpose(1, 2))
        h, _ = gate(h.transpose(0, 1))
        scores = head(h).log_softmax(2)
        lengths = torch.full((3,), scores.shape[0], dtype=torch.long)
        F.ctc_loss(scores, targets, lengths, torch.full((3,), 5, dtype=torch.long)).backward()

    return step


def recommendation() -> Step:
    tables = nn.ModuleList(nn.EmbeddingBag(n, 16, mode=mode) for n, mode in ((100, "sum"), (50, "mean"), (30, "max")))
    bottom, top = nn.Linear(13, 16), nn.Linear(16 + 6, 1)
    dense = torch.randn(8, 13)
    ids, offsets = torch.randint(0, 30, (24,)), torch.arange(0, 24, 3)
    rows, columns = torch.tril_indices(4, 4, offset=-1)

    def step() -> None:
        parts = torch.stack([F.relu(bottom(dense)), *(table(ids, offsets) for table in tables)], dim=1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))[:, rows, columns]
        out = top(torch.cat([parts[:, 0], pairs], dim=1)).squeeze(1)
        F.binary_cross_entropy_with_logits(out, torch.ones(8), pos_weight=torch.tensor(2.0)).backward()

    return step


def graph_convolution() -> Step:
    mix, relation = nn.Linear(12, 16), nn.Linear(16, 4)
    x, edges = torch.randn(30, 12), torch.randint(0, 30, (2, 90))
    graph = torch.randint(0, 5, (30,)).sort().values

    def step() -> None:
        h = mix(x)
        degree = torch.zeros(30).scatter_add_(0, edges[1], torch.ones(90)).clamp(min=1).pow(-0.5)
        messages = h[edges[0]] * (degree[edges[0]] * degree[edges[1]])[:, None]
        h = torch.zeros_like(h).index_add_(0, edges[1], messages)
        score = F.leaky_relu(relation(h).sum(-1)[edges[0]], 0.2)
        top = torch.zeros(30).scatter_reduce(0, edges[1], score, reduce="amax", include_self=False)
        weight = (score - top[edges[1]]).exp()
        total = torch.zeros(30).scatter_add(0, edges[1], weight)
        out = h.index_select(0, edges[0]) * (weight / total[edges[1]])[:, None]
        pooled = torch.zeros(5, 16).scatter_reduce_(0, graph[:, None].expand(-1, 16), h, reduce="mean")
        (out.sum() + pooled.sum() + torch.bincount(graph).sum()).backward()

    return step


def detection() -> Step:
    scores, boxes = torch.rand(2, 300), torch.rand(2, 300, 4)

    def step() -> None:
        best, order = scores.topk(50, dim=1)
        chosen = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        batch = torch.arange(2)[:, None]
        same = boxes[batch, order]
        kept = chosen[0][best[0] > 0.5]
        area = (kept[:, 2] - kept[:, 0]).abs() * (kept[:, 3] - kept[:, 1]).abs()
        top_left = torch.max(kept[:, None, :2], kept[None, :, :2])
        bottom_right = torch.min(kept[:, None, 2:], kept[None, :, 2:])
        inner = (bottom_right - top_left).clamp(min=0).prod(-1)
        overlap = inner / (area[:, None] + area[None, :] - inner)
        matched, which = overlap.max(dim=1)
        which[matched < 0.3] = -1
        labels = torch.zeros(kept.shape[0], dtype=torch.long)
        labels[which >= 0] = 1
        same[..., 0].clamp_(0, 1)
        boxes[:, ::2, 1:3].flip(-1).sum()
        torch.nonzero(overlap > 0.9)
        boxes[0, torch.tensor([3, 1, 2])] = 0.5
        grid = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(5), indexing="ij"), -1)
        grid.view(-1, 2).float().add_(0.5).mul_(8)
        torch.randint(0, 5, (20,)).unique(return_counts=True)

    return step


def experts() -> Step:
    router, up, down = nn.Linear(16, 6), torch.randn(6, 16, 32), torch.randn(6, 32, 16)

    def step() -> None:
        x = torch.randn(40, 16)
        with torch.no_grad():
            weights, chosen = torch.topk(router(x).softmax(dim=1, dtype=torch.float), 2, dim=-1)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            out = torch.zeros_like(x)
            masks = F.one_hot(chosen, num_classes=6).permute(2, 1, 0)
            for expert in range(6):
                slot, token = torch.where(masks[expert])
                hidden = F.silu(x[token] @ up[expert]) @ down[expert]
                out.index_add_(0, token, hidden * weights[token, slot, None])

    return step


def state_space() -> Step:
    conv, project = nn.Conv1d(16, 16, 4, groups=16, padding=3), nn.Linear(16, 20)
    rates = nn.Parameter(torch.randn(16, 4))

    def step() -> None:
        x = torch.randn(2, 10, 16)
        h = F.silu(conv(x.transpose(1, 2))[..., :10]).transpose(1, 2)
        delta, b, c = project(h).split([12, 4, 4], dim=-1)
        delta = F.softplus(delta.mean(-1, keepdim=True))
        decay = torch.exp(torch.einsum("bld,dn->bldn", delta.expand(-1, -1, 16), -rates.exp()))
        state, outs = torch.zeros(2, 16, 4), []
        for i in range(10):
            state = decay[:, i] * state + torch.einsum("bd,bn->bdn", h[:, i], b[:, i])
            outs.append(torch.einsum("bdn,bn->bd", state, c[:, i]))
        torch.stack(outs, dim=1).logsumexp(dim=-1).sum().backward()

    return step


def spectrograms() -> Step:
    window, mel = torch.hann_window(64), torch.rand(10, 33)
    signal = torch.randn(2, 400)

    def step() -> None:
        spectrum = torch.stft(signal, 64, hop_length=16, window=window, return_complex=True)
        power = spectrum.abs().pow(2)
        torch.log10(torch.clamp(mel @ power, min=1e-10)).amax(dim=(-2, -1), keepdim=True)
        torch.istft(spectrum, 64, hop_length=16, window=window)
        filtered = torch.fft.rfft(signal, n=512, norm="ortho") * torch.fft.rfft(torch.randn(1, 32), n=512)
        torch.fft.irfft(filtered, n=512, norm="forward")
        torch.fft.fft2(torch.randn(3, 16, 16), norm="ortho")
        torch.view_as_real(spectrum).sum()
        torch.polar(torch.ones(5), torch.randn(5)) * torch.complex(torch.randn(5), torch.randn(5))

    return step


def rays() -> Step:
    net = nn.Linear(39, 4)

    def step() -> None:
        origins, directions = torch.randn(20, 3), F.normalize(torch.randn(20, 3), dim=-1)
        depths = torch.linspace(2.0, 6.0, 16).expand(20, 16)
        points = origins[:, None] + directions[:, None] * depths[..., None]
        waves = [f(points * 2.0**i) for i in range(6) for f in (torch.sin, torch.cos)]
        raw = net(torch.cat([points, *waves], dim=-1))
        gaps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full((20, 1), 1e10)], dim=-1)
        alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * gaps)
        clear = torch.cumprod(torch.cat([torch.ones(20, 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * clear
        cdf = torch.cumsum(weights.detach() / weights.detach().sum(-1, keepdim=True), -1)
        u = torch.rand(20, 8)
        found = torch.searchsorted(cdf, u, right=True).clamp(max=15)
        torch.gather(depths, 1, found)
        (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(dim=-2).mean().backward()

    return step


def linear_algebra() -> Step:
    def step() -> None:
        a = torch.randn(3, 6, 6)
        spd = a @ a.mT + 6 * torch.eye(6)
        torch.linalg.cholesky(spd)
        torch.linalg.solve(spd, torch.randn(3, 6, 2))
        torch.linalg.qr(torch.randn(6, 4), mode="complete")
        torch.linalg.svd(torch.randn(4, 6, 5), full_matrices=False)
        torch.linalg.eigh(spd)
        torch.linalg.norm(a, ord="nuc", dim=(-2, -1))
        torch.linalg.norm(a, dim=-1)
        torch.linalg.matrix_norm(a, ord="fro")
        torch.linalg.vector_norm(a, ord=1, dim=(0, 2))
        torch.linalg.inv(spd), torch.linalg.det(a), torch.linalg.matrix_power(a, 3)
        torch.triangular_solve(torch.randn(3, 6, 2), torch.triu(a))
        torch.cdist(torch.randn(2, 9, 3), torch.randn(2, 7, 3))
        torch.cdist(torch.randn(2, 30, 3), torch.randn(2, 40, 3), p=1.0)
        torch.einsum("bij,bkj->bik", a, a)
        torch.einsum("bij->b", a)
        torch.kron(torch.randn(2, 3), torch.randn(4, 2))
        torch.diagonal(a, dim1=-2, dim2=-1).sum(-1)
        torch.linalg.lstsq(torch.randn(8, 4), torch.randn(8, 2))

    return step


def policy_gradient() -> Step:
    body, act, value = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 1)
    body, act, value = (layer.double() for layer in (body, act, value))

    def step() -> None:
        h = torch.tanh(body(torch.randn(16, 8, dtype=torch.double)))
        distribution = torch.distributions.Categorical(logits=act(h), validate_args=False)
        action = distribution.sample()
        log_prob, entropy = distribution.log_prob(action), distribution.entropy()
        advantage = torch.randn(16, dtype=torch.double)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_prob - log_prob.detach()).exp()
        policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        error = F.huber_loss(value(h).squeeze(-1), advantage, delta=0.5)
        (policy + 0.5 * error - 0.01 * entropy.mean()).backward()
        nn.utils.clip_grad_norm_(body.parameters(), 0.5)
        torch.distributions.Normal(torch.zeros(3), torch.ones(3), validate_args=False).rsample()

    return step


def losses() -> Step:
    def step() -> None:
        x = torch.randn(6, 5, requires_grad=True)
        y = torch.randint(0, 5, (6,))
        total = F.nll_loss(x.log_softmax(1), y, reduction="sum", ignore_index=2)
        total = total + F.cross_entropy(x, y, weight=torch.rand(5), reduction="none").sum()
        total = total + F.kl_div(x.log_softmax(1), torch.rand(6, 5).softmax(1), reduction="batchmean")
        total = total + F.l1_loss(x, torch.rand(6, 5)) + F.soft_margin_loss(x, torch.ones(6, 5))
        total = total + F.multi_margin_loss(x, y) + F.poisson_nll_loss(x, torch.rand(6, 5))
        total = total + F.cosine_embedding_loss(x, torch.randn(6, 5), torch.ones(6))
        total = total + F.triplet_margin_loss(x, torch.randn(6, 5), torch.randn(6, 5))
        total = total + F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones(6))
        total = total + F.hinge_embedding_loss(x, torch.ones(6, 5)) + F.gaussian_nll_loss(x, x, torch.ones(6, 5))
        total.backward()

    return step


def reductions() -> Step:
    def step() -> None:
        x = torch.randn(4, 6, 8, requires_grad=True)
        parts = [
            x.sum((0, 2)),
            x.mean(1, keepdim=True),
            x.mean((0, 1, 2)),
            x.amax(2),
            x.amin((0, 1), keepdim=True),
            x.std(2),
            x.var((0, 1), unbiased=False),
            x.norm(dim=2),
            x.norm(p=1, dim=0, keepdim=True),
            x.prod(1),
            x.logsumexp((1, 2)),
            x.max(1).values,
            x.min(2, keepdim=True).values,
            x.median(1).values,
            x.cumsum(1),
            x.sum(-1, dtype=torch.double),
            torch.nansum(x, 0),
            x.softmax(1),
            x.log_softmax(0),
            x.cummax(1).values,
            x.kthvalue(3, 1).values,
            x.mode(1).values,
            x.quantile(0.3, dim=1),
        ]
        torch.stack([part.sum() for part in parts]).sum().backward()
        plain = x.detach()
        plain.argmax(1), plain.argmin(2, keepdim=True), plain.argmax(), plain.sort(1), plain.argsort(0, descending=True)
        plain.topk(3, 1), plain.topk(2, largest=False), (plain > 0).all(1), (plain > 0).any(), (plain > 0).sum(2)
        torch.count_nonzero(plain, 1), plain.diff(dim=1), torch.histc(plain, 10), plain.unique()
        torch.var_mean(plain, 1), torch.std_mean(plain, (0, 2)), torch.aminmax(plain, dim=1), plain.renorm(2, 0, 1.0)

    return step


def views() -> Step:
    def step() -> None:
        x = torch.randn(4, 6, 8)
        y = x.permute(2, 0, 1) * 2
        y = x.transpose(0, 2).contiguous() + x.movedim(0, -1).sum()
        y = torch.cat(x.chunk(3, 1), 0) + torch.cat(x.split([1, 2, 3], 1)[2:], 1).mean()
        a, b = x.unbind(1)[:2]
        y = torch.stack([a, b], 1) + a[:, None]
        y = x.unfold(1, 3, 2).sum() + x.reshape(24, 8).narrow(0, 2, 5).sum() + x.select(1, 3).sum()
        y = x.expand(3, 4, 6, 8).sum(0) + x.repeat(2, 1, 1)[:4] + x.tile(1, 2, 1)[:, :6]
        y = x.repeat_interleave(2, dim=1) * 2
        y = x.as_strided((4, 3), (48, 16)) + x.diagonal(0, 1, 2)[:, :3].sum(1, keepdim=True)
        y = x.squeeze().unsqueeze(-1).flatten(1, 2) + x.unflatten(1, (2, 3)).sum()
        y = x.flip((0, 2)).rot90(1, (0, 1)).roll(2, 1) + 1
        y = x[:, 1:5:2, -1] + x[..., None, 0].sum() + x[1:, :, :3].mean()
        y[0], y[:, 0] = 1.0, 2.0
        x.masked_select(x > 0), x.tril(1), x.triu(-1), torch.where(x > 0, x, 0.0), x.take(torch.tensor([0, 5]))
        torch.take_along_dim(x, x.argsort(1), 1), torch.broadcast_to(x[0], (3, 6, 8)), F.unfold(x[None], 3, padding=1)
        F.fold(torch.randn(1, 36, 16), (4, 4), 3, padding=1), torch.cartesian_prod(x[0, 0], x[0, 1])
        x.view(torch.int32), x.half().float(), x.to(torch.float64), x.clone(memory_format=torch.contiguous_format)

    return step


def indexing() -> Step:
    def step() -> None:
        x = torch.randn(12, 10, 16, requires_grad=True)
        i, j = torch.randint(0, 12, (20,)), torch.randint(0, 10, (20,))
        mask, rows = torch.rand(12, 10) > 0.5, torch.rand(12) > 0.5
        total = (x[i] * 2).sum() + (x[:, j] * 2).sum() + (x[i, j] * 2).sum() + (x[..., torch.tensor([0, 3])] + 1).sum()
        total = total + x[mask].tanh().sum() + x[rows].exp().sum() + x[i, :, torch.randint(0, 16, (20,))].abs().sum()
        total = total + (x[torch.randint(0, 12, (3, 4))] + 1).sum() + x[rows, 2].mean() + (x[i[:, None], j] * 3).sum()
        total.backward()
        y = torch.zeros(12, 10)
        y[i] = 1.0
        y[i, j] = torch.rand(20)
        y[mask] = 0.0
        y[:, j] = torch.rand(12, 20)
        y[torch.rand(12) > 0.5] = torch.rand(10)
        y.index_put_((i, j), torch.ones(20), accumulate=True)
        y.index_fill_(1, torch.tensor([1, 2]), 5.0)
        y.masked_scatter_(mask, torch.rand(120))
        y.scatter_(1, torch.randint(0, 10, (12, 3)), 1.0)

    return step


def texts() -> Step:
    def step() -> None:
        image, line = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 9)
        for mode in ("reflect", "replicate", "circular", "constant"):
            F.pad(image, (1, 2, 2, 1), mode=mode) + 1
        F.gelu(image), F.gelu(image, approximate="tanh")
        torch.div(image, 2, rounding_mode="floor"), torch.div(image, 2, rounding_mode="trunc"), torch.div(image, 3)
        index, values = torch.randint(0, 3, (2, 3, 9)), torch.randn(2, 3, 9)
        for reduce in ("sum", "prod", "mean", "amax", "amin"):
            line.scatter_reduce(2, index, values, reduce=reduce)
        torch.zeros(3).index_reduce_(0, torch.tensor([0, 1, 1]), torch.rand(3), "amax")
        line.scatter(1, index, 2.0, reduce="multiply")
        for norm in ("forward", "backward", "ortho", None):
            torch.fft.fft(line, norm=norm)
        F.conv1d(line, torch.randn(4, 3, 3), padding="same"), F.conv1d(line, torch.randn(4, 3, 3), padding="valid")
        torch.searchsorted(torch.arange(5.0), torch.rand(4), side="right")
        torch.bucketize(torch.rand(4), torch.arange(5.0))
        torch.linalg.norm(image, ord="fro", dim=(2, 3)), torch.linalg.matrix_norm(image, ord="nuc")
        torch.meshgrid(torch.arange(3), torch.arange(4), indexing="xy")

    return step


def resampling() -> Step:
    def step() -> None:
        image = torch.randn(2, 3, 12, 10, requires_grad=True)
        grid = F.affine_grid(torch.eye(2, 3)[None].expand(2, -1, -1), [2, 3, 6, 6], align_corners=False)
        out = F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False)
        out = out.sum() + F.interpolate(image, (24, 20), mode="bicubic").sum()
        out = (
            out
            + F.interpolate(image, scale_factor=0.5, mode="area").sum()
            + F.pixel_shuffle(torch.randn(1, 12, 4, 4), 2).sum()
        )
        out = out + F.adaptive_max_pool2d(image, (3, 2)).sum() + F.lp_pool2d(image, 2, 2).sum()
        pooled, where = F.max_pool2d(image, 2, return_indices=True)
        (out + F.max_unpool2d(pooled, where, [2, 2]).sum() + F.avg_pool2d(image, 3, 2, 1).sum()).backward()
        (image - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.2, 0.2])[:, None, None]

    return step


def sparse() -> Step:
    matrix = torch.randn(20, 20).relu().to_sparse()
    table = nn.Embedding(40, 8, sparse=True)

    def step() -> None:
        x = torch.randn(20, 6)
        torch.sparse.mm(matrix, x) + 1
        (matrix * 2).to_dense(), matrix.t().coalesce(), torch.sparse.sum(matrix, 0), matrix + matrix
        table(torch.randint(0, 40, (5,))).sum().backward()

    return step


def quantised() -> Step:
    quantized = torch.ops.quantized
    x = torch.quantize_per_tensor(torch.randn(8, 16), 0.05, 64, torch.quint8)
    weight = torch.quantize_per_tensor(torch.randn(4, 16), 0.02, 0, torch.qint8)
    packed = quantized.linear_prepack(weight, torch.zeros(4))

    def step() -> None:
        out = quantized.linear(x, packed, 0.1, 10)
        out.dequantize() * 2
        torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 0, torch.qint8).int_repr()
        torch.fake_quantize_per_tensor_affine(torch.randn(5, 5), 0.1, 0, -128, 127)
        F.linear(torch.randn(3, 16), weight.dequantize())
        torch.ops.aten._int_mm(*(torch.randint(-9, 9, size, dtype=torch.int8) for size in ((32, 16), (16, 8))))

    return step


def autocast_training() -> Step:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 10))
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()

    return step


def checkpointed() -> Step:
    from torch.utils.checkpoint import checkpoint

    first, second = nn.Linear(16, 64), nn.Linear(64, 16)
    x = torch.randn(4, 8, 16, requires_grad=True)
    return lambda: checkpoint(lambda v: second(F.mish(first(v))), x, use_reentrant=False).sum().backward()


def functional_transforms() -> Step:
    from torch.func import functional_call, grad, vmap

    model = nn.Linear(6, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, p, (x[None],)), y[None])

    return lambda: vmap(grad(loss), in_dims=(None, 0, 0))(parameters, torch.randn(5, 6), torch.randint(0, 3, (5,)))


def data_parallel() -> Step:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{mkdtemp()}/store", rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.2), nn.Linear(64, 8)))
    optimizer = torch.optim.Adagrad(model.parameters())
    return _train(model, lambda: model(torch.randn(8, 32)).logsumexp(1).mean(), optimizer)


def neighbours() -> Step:
    def step() -> None:
        x = torch.randn(2, 60, 3)
        distances = torch.cdist(x, x)
        _, nearest = distances.topk(8, dim=-1, largest=False)
        around = torch.gather(x[:, None].expand(-1, 60, -1, -1), 2, nearest[..., None].expand(-1, -1, -1, 3))
        (around - x[:, :, None]).amax(dim=2).mean(dim=1)
        square = -2 * x @ x.transpose(1, 2) + x.pow(2).sum(-1)[:, None] + x.pow(2).sum(-1, keepdim=True)
        square.topk(4, dim=1)[1].float().mean((1, 2))

    return step


WORKLOADS = workloads_of(globals())


def warm(make: Callable[[], Step]) -> Step:
    """A workload's step, called once: what torch does on a first call is not recorded."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = make()
        step()
    return step
