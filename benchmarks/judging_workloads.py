# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false, reportUnusedExpression=false
"""Workloads that no rule was made on, of other kinds than those of `recorded_workloads`: they judge the rules.

Owns what is run. A rule that is made after looking at one of these moves that one to `recorded_workloads`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from recorded_workloads import Step, workloads_of
from torch import Tensor, nn


def speech_to_text() -> Step:
    """An encoder of spectrograms and a decoder that attends to it, as of Whisper; fused Adam."""

    class Block(nn.Module):
        def __init__(self, *, crossed: bool) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(40, 40) for _ in range(4))
            self.cross = nn.MultiheadAttention(40, 5, batch_first=True) if crossed else None
            self.norms = nn.ModuleList(nn.LayerNorm(40) for _ in range(3))
            self.mlp = nn.Sequential(nn.Linear(40, 160), nn.GELU(), nn.Linear(160, 40))

        def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
            b, n, _ = x.shape
            h = self.norms[0](x)
            q, k, v = (m(h).view(b, n, 5, 8).transpose(1, 2) for m in (self.query, self.key, self.value))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=seen is not None)
            x = x + self.out(mixed.permute(0, 2, 1, 3).flatten(2))
            if self.cross is not None:
                x = x + self.cross(self.norms[1](x), seen, seen, need_weights=False)[0]
            return x + self.mlp(self.norms[2](x))

    stem = nn.Sequential(nn.Conv1d(20, 40, 3, padding=1), nn.GELU(), nn.Conv1d(40, 40, 3, stride=2, padding=1))
    encoder, decoder, words = Block(crossed=False), Block(crossed=True), nn.Embedding(57, 40)
    places = torch.randn(30, 40)
    parameters = [p for m in (stem, encoder, decoder, words) for p in m.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3, fused=True)
    sound, text = torch.randn(3, 20, 60), torch.randint(0, 57, (3, 14))

    def step() -> None:
        seen = encoder(F.gelu(stem(sound)).permute(0, 2, 1) + places)
        logits = decoder(words(text[:, :-1]), seen) @ words.weight.T
        loss = F.cross_entropy(logits.reshape(-1, 57), text[:, 1:].reshape(-1), ignore_index=0, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def point_cloud() -> Step:
    """Neighbours of points, grouped features and their maximum, as of PointNet++."""
    first, second = nn.Conv2d(9, 24, 1), nn.Conv1d(24, 32, 1)
    norm, head = nn.BatchNorm2d(24), nn.Linear(32, 7)
    points, features = torch.randn(2, 128, 3), torch.randn(2, 128, 6)

    def step() -> None:
        centres = points[:, ::4]
        near = torch.cdist(centres, points).topk(8, dim=-1, largest=False).indices
        rows = torch.arange(2).view(2, 1, 1).expand_as(near)
        grouped = torch.cat([points[rows, near] - centres.unsqueeze(2), features[rows, near]], dim=-1)
        h = F.relu(norm(first(grouped.permute(0, 3, 2, 1))))
        pooled = second(torch.max(h, 2)[0]).max(dim=2, keepdim=True)[0].view(-1, 32)
        F.nll_loss(F.log_softmax(head(F.dropout(pooled, 0.4)), dim=1), torch.tensor([1, 4])).backward()

    return step


def dilated_audio() -> Step:
    """Causal convolutions with growing dilation and gates, as of WaveNet; upsampled conditions."""
    dilations = (1, 2, 4, 8)
    enter, leave = nn.Conv1d(1, 12, 1), nn.Conv1d(12, 64, 1)
    layers = nn.ModuleList(nn.Conv1d(12, 24, 2, dilation=d) for d in dilations)
    skips = nn.ModuleList(nn.Conv1d(12, 24, 1) for _ in dilations)
    upsample = nn.ConvTranspose1d(10, 24, 8, stride=4, padding=2)
    sound, mel = torch.rand(2, 1, 200) * 2 - 1, torch.randn(2, 10, 50)
    optimizer = torch.optim.RMSprop([*layers.parameters(), *skips.parameters()], 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        x, condition, total = enter(sound), upsample(mel), 0
        for layer, skip, dilation in zip(layers, skips, dilations, strict=True):
            gates = layer(F.pad(x, (dilation, 0))) + condition
            signal, gate = gates.chunk(2, dim=1)
            more, out = skip(torch.tanh(signal) * torch.sigmoid(gate)).split(12, dim=1)
            x, total = x + more, total + out
        classes = torch.sign(sound) * torch.log1p(63 * sound.abs()) / math.log(64)
        target = ((classes + 1) / 2 * 63 + 0.5).long().squeeze(1)
        F.cross_entropy(leave(F.relu(total))[:, :, :-1], target[:, 1:]).backward()
        optimizer.step()

    return step


def vector_quantisation() -> Step:
    """An autoencoder with a codebook that follows its means."""
    encoder = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 4, 2, 1))
    decoder = nn.Sequential(nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1))
    book, sizes, sums = torch.randn(20, 8), torch.ones(20), torch.randn(20, 8)
    images = torch.rand(4, 3, 24, 24)

    def step() -> None:
        z = encoder(images).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, 8)
        far = flat.pow(2).sum(1, keepdim=True) + book.pow(2).sum(1) - 2 * flat @ book.t()
        codes = far.argmin(1)
        hot = F.one_hot(codes, 20).type_as(flat)
        with torch.no_grad():
            sizes.mul_(0.99).add_(hot.sum(0), alpha=0.01)
            sums.mul_(0.99).add_(hot.t() @ flat.detach(), alpha=0.01)
            book.copy_(sums / sizes.clamp_min(1e-5).unsqueeze(-1))
        chosen = F.embedding(codes, book).view_as(z)
        straight = z + (chosen - z).detach()
        out = decoder(straight.permute(0, 3, 1, 2))
        (F.mse_loss(out, images) + 0.25 * F.mse_loss(z, chosen)).backward()
        torch.exp(-torch.sum(hot.mean(0) * torch.log(hot.mean(0) + 1e-10)))

    return step


def coupling_flow() -> Step:
    """Masked couplings and invertible mixtures, with their log-determinants, as of Glow."""
    nets = nn.ModuleList(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 12)) for _ in range(3))
    lower = nn.ParameterList(nn.Parameter(torch.eye(12) + 0.1 * torch.randn(12, 12)) for _ in range(3))
    x = torch.randn(50, 12)

    def step() -> None:
        z, volume = x, torch.zeros(50)
        for net, mixture in zip(nets, lower, strict=True):
            z = F.linear(z, mixture)
            volume = volume + torch.linalg.slogdet(mixture)[1]
            kept, moved = z[:, :6], z[:, 6:]
            scale, shift = net(kept).chunk(2, -1)
            scale = torch.sigmoid(scale + 2)
            z = torch.cat((kept, moved * scale + shift), 1)
            volume += scale.log().sum(dim=1)
        prior = torch.distributions.MultivariateNormal(torch.zeros(12), covariance_matrix=torch.eye(12))
        (-(prior.log_prob(z) + volume).mean()).backward()
        with torch.no_grad():
            torch.linalg.solve_triangular(lower[0].tril(), z.T, upper=False)
            torch.inverse(lower[1]) @ z.t()

    return step


def contrastive_towers() -> Step:
    """Two towers and a symmetric loss over all pairs, as of CLIP, in bfloat16."""
    patches, words = nn.Conv2d(3, 32, 8, stride=8, bias=False), nn.Embedding(40, 32)
    classes, places = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(17, 32))
    layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True) for _ in range(2))
    project, warmth = nn.Parameter(torch.randn(32, 24)), nn.Parameter(torch.tensor(2.6))
    parameters = [classes, places, project, warmth, *patches.parameters(), *layers.parameters(), *words.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3, weight_decay=0.2)
    images, texts = torch.randn(5, 3, 32, 32), torch.randint(1, 40, (5, 9))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen = patches(images).reshape(5, 32, -1).permute(0, 2, 1)
            seen = torch.cat([classes.to(seen.dtype) + torch.zeros(5, 1, 32, dtype=seen.dtype), seen], dim=1)
            seen = layers[0](seen + places.to(seen.dtype))[:, 0, :] @ project
            read = layers[1](words(texts).permute(1, 0, 2).permute(1, 0, 2))
            read = read[torch.arange(5), texts.argmax(dim=-1)] @ project
            seen, read = (t / t.norm(dim=1, keepdim=True) for t in (seen, read))
            logits = warmth.exp() * seen @ read.t()
        same = torch.arange(5)
        loss = (F.cross_entropy(logits.float(), same) + F.cross_entropy(logits.float().t(), same)) / 2
        loss.backward()
        optimizer.step()

    return step


def physics_informed() -> Step:
    """Second derivatives of a network by its inputs: a heat equation; L-BFGS's vectors."""
    net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    inside, edge = torch.rand(60, 2), torch.rand(15, 2)

    def step() -> None:
        at = inside.clone().requires_grad_(True)
        u = net(at)
        (first,) = torch.autograd.grad(u, at, torch.ones_like(u), create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0:1].sum(), at, create_graph=True)
        residual = first[:, 1:2] - 0.1 * second[:, 0:1]
        loss = residual.square().mean() + (net(edge) - torch.sin(math.pi * edge[:, :1])).abs().mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        flat = torch.cat([g.reshape(-1) for g in gradients])
        flat.dot(flat) / flat.norm()
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(net.parameters()).detach() - 0.01 * flat, net.parameters()
        )

    return step


def beam_search() -> Step:
    """Decoding with several hypotheses, whose caches are put in order again at each step."""
    width, beams, words = 24, 4, 31
    embed, query, both, head = (
        nn.Embedding(words, width),
        nn.Linear(width, width),
        nn.Linear(width, 2 * width),
        nn.Linear(width, words),
    )

    def step() -> None:
        with torch.inference_mode():
            tokens = torch.full((2 * beams, 1), 2)
            scores = torch.tensor([0.0] + [-1e9] * (beams - 1)).repeat(2)
            keys = values = torch.empty(2 * beams, 3, 0, 8)
            for _ in range(5):
                x = embed(tokens[:, -1])
                k, v = both(x).view(2 * beams, 1, 2, 3, 8).unbind(2)
                keys = torch.cat([keys, k.transpose(1, 2)], dim=2)
                values = torch.cat([values, v.transpose(1, 2)], dim=-2)
                weights = torch.matmul(query(x).view(-1, 3, 1, 8), keys.transpose(-1, -2)) / math.sqrt(8)
                mixed = (weights.softmax(-1) @ values).transpose(1, 2).reshape(-1, width)
                logits = F.log_softmax(head(x + mixed).float(), dim=-1)
                logits[:, 3] = -math.inf
                whole = (scores[:, None] + logits).view(2, beams * words)
                scores, flat = torch.topk(whole, beams, dim=1)
                origin = torch.div(flat, words, rounding_mode="floor") + torch.arange(2).unsqueeze(1) * beams
                tokens = torch.cat([tokens.index_select(0, origin.view(-1)), (flat % words).view(-1, 1)], dim=-1)
                keys, values = keys.index_select(0, origin.flatten()), values[origin.flatten()]
                scores = scores.flatten()
            (tokens == 1).cumsum(dim=1).eq(0).sum(dim=1)

    return step


def packed_translation() -> Step:
    """Sentences of several lengths through an LSTM, and attention over them; Adagrad."""
    words, encoder, cell = (
        nn.Embedding(45, 16, padding_idx=0),
        nn.LSTM(16, 12, 2, bidirectional=True, batch_first=True),
        nn.GRUCell(16, 24),
    )
    mix, head = nn.Linear(48, 24), nn.Linear(24, 45)
    parameters = [p for m in (words, encoder, cell, mix, head) for p in m.parameters()]
    optimizer = torch.optim.Adagrad(parameters, 0.01)
    lengths = torch.tensor([9, 7, 4])
    source, target = torch.randint(1, 45, (3, 9)), torch.randint(1, 45, (3, 5))

    def step() -> None:
        optimizer.zero_grad()
        packed = nn.utils.rnn.pack_padded_sequence(words(source), lengths, batch_first=True)
        seen, _ = nn.utils.rnn.pad_packed_sequence(encoder(packed)[0], batch_first=True)
        hidden_from = torch.arange(9)[None] >= lengths[:, None]
        state, outs = seen.mean(1), []
        for i in range(4):
            state = cell(words(target[:, i]), state)
            score = torch.bmm(seen, state.unsqueeze(2)).squeeze(2).masked_fill(hidden_from, -1e4)
            context = torch.bmm(F.softmax(score, dim=1).unsqueeze(1), seen)[:, 0]
            outs.append(head(torch.tanh(mix(torch.cat([state, context], -1)))))
        logits = torch.stack(outs, 1)
        picked = logits.log_softmax(-1).gather(2, target[:, 1:, None]).squeeze(-1)
        (-(picked * (target[:, 1:] != 0)).sum() / 3).backward()
        optimizer.step()

    return step


def chunked_retention() -> Step:
    """Linear attention by chunks, turned by complex numbers, as of RetNet and RWKV."""
    qkv, gate, out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    norm = nn.GroupNorm(4, 32)
    angles = torch.polar(torch.ones(24, 4), torch.outer(torch.arange(24.0), 0.1 ** torch.linspace(0, 1, 4)))
    decay = torch.log(1 - 2.0 ** (-5 - torch.arange(4.0)))
    x = torch.randn(2, 24, 32)

    def turn(t: Tensor) -> Tensor:
        pairs = torch.view_as_complex(t.float().reshape(*t.shape[:-1], 4, 2))
        return torch.view_as_real(pairs * angles[:, None]).flatten(3).type_as(t)

    def step() -> None:
        q, k, v = (t.unflatten(-1, (4, 8)) for t in qkv(x).tensor_split(3, dim=-1))
        q, k = turn(q), turn(k)
        q, k, v = (t.movedim(1, 2).unflatten(2, (3, 8)) for t in (q, k, v))
        steps = torch.arange(8)
        far = (steps[:, None] - steps).tril()
        inner = torch.exp(decay[:, None, None] * far).tril()
        within = torch.einsum("bhcid,bhcjd,hij->bhcij", q, k, inner) @ v
        states = torch.einsum("bhcjd,bhcje->bhcde", k, v)
        before = F.pad(states.cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
        mixed = (within + q @ before).reshape(2, 4, 24, 8).swapaxes(1, 2).reshape(48, 32)
        (out(norm(mixed).view(2, 24, 32) * F.silu(gate(x)))).square().mean().backward()

    return step


def segmentation() -> Step:
    """Dilated convolutions at several rates, resampled and shuffled, channels last, a Dice loss."""
    stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
    rates = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=r, dilation=r, bias=False) for r in (1, 2, 4))
    norm, squeeze = nn.GroupNorm(4, 24), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 24, 1), nn.Hardsigmoid())
    head = nn.Conv2d(24, 20, 1)
    model = nn.ModuleList([stem, *rates, norm, squeeze, head]).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    images = torch.rand(2, 3, 40, 40).contiguous(memory_format=torch.channels_last)
    truth = torch.randint(0, 5, (2, 40, 40))

    def step() -> None:
        optimizer.zero_grad()
        x = F.relu6(stem(images))
        x = F.leaky_relu(norm(torch.cat([rate(x) for rate in rates], 1)), 0.1)
        x = x * squeeze(x)
        pooled = F.avg_pool2d(x, 2, ceil_mode=True)
        x = x + F.interpolate(pooled, size=x.shape[-2:], mode="bilinear", align_corners=False)
        logits = F.pixel_shuffle(head(x), 2)
        chance = logits.softmax(dim=1)
        hot = F.one_hot(truth, 5).movedim(-1, 1).float()
        dice = 2 * (chance * hot).sum((0, 2, 3)) / (chance + hot).sum((0, 2, 3)).clamp(min=1)
        (1 - dice.mean() + F.cross_entropy(logits, truth)).backward()
        optimizer.step()
        logits.detach().argmax(1).eq(truth).float().mean()

    return step


def sparse_gradients() -> Step:
    """Embeddings with sparse gradients and an optimizer for them; products with a sparse matrix."""
    words, context = nn.Embedding(60, 10, sparse=True), nn.Embedding(60, 10, sparse=True)
    optimizer = torch.optim.SparseAdam([*words.parameters(), *context.parameters()], 0.01)
    near = torch.sparse_coo_tensor(torch.randint(0, 60, (2, 200)), torch.rand(200), (60, 60)).coalesce()
    centre, around, others = (torch.randint(0, 60, size) for size in ((16,), (16,), (16, 5)))

    def step() -> None:
        optimizer.zero_grad()
        at = words(centre)
        good = F.logsigmoid((at * context(around)).sum(1))
        bad = F.logsigmoid(-torch.bmm(context(others), at.unsqueeze(-1)).squeeze()).sum(1)
        (-(good + bad).mean()).backward()
        optimizer.step()
        with torch.no_grad():
            torch.sparse.mm(near, words.weight)

    return step


def rounded_training() -> Step:
    """Training with simulated quantisation, and linear layers quantised while they run."""
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 6))
    with torch.no_grad():
        dynamic = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(12, 20)

    def step() -> None:
        weight = model[0].weight
        scale = weight.detach().abs().amax(dim=1) / 127
        rounded = torch.fake_quantize_per_channel_affine(
            weight, scale, torch.zeros(30, dtype=torch.int32), 0, -128, 127
        )
        hidden = torch.fake_quantize_per_tensor_affine(F.relu(F.linear(x, rounded, model[0].bias)), 0.05, 0, 0, 255)
        F.smooth_l1_loss(model[2](hidden), torch.zeros(12, 6), beta=0.5).backward()
        dynamic(x)

    return step


JUDGING = workloads_of(globals())
