# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false, reportUnusedExpression=false, reportOperatorIssue=false
"""Workloads of other kinds than those of `recorded_workloads`, all written before one of them was recorded.

Rules were made after looking at them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from tempfile import mkdtemp

import torch
import torch.nn.functional as F
from recorded_workloads import Step, workloads_of
from torch import Tensor, nn


def guided_diffusion() -> Step:
    """A denoiser with time embeddings and attention over pixels, sampled with guidance, as of latent diffusion."""

    class Block(nn.Module):
        def __init__(self, wide: int, out: int) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(wide, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
            self.norms = nn.ModuleList([nn.GroupNorm(8, wide, eps=1e-6), nn.GroupNorm(8, out, eps=1e-6)])
            self.time = nn.Linear(64, 2 * out)
            self.skip = nn.Conv2d(wide, out, 1) if wide != out else nn.Identity()

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            h = self.first(F.silu(self.norms[0](x)))
            scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
            h = self.norms[1](h) * (1 + scale) + shift
            return self.skip(x) + self.second(F.silu(h))

    class Attention(nn.Module):
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = (
                nn.GroupNorm(4, wide),
                nn.Conv1d(wide, 3 * wide, 1),
                nn.Conv1d(wide, wide, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            b, c, *space = x.shape
            flat = x.reshape(b, c, -1)
            q, k, v = self.qkv(self.norm(flat)).reshape(b * 4, 3 * c // 4, -1).split(c // 4, dim=1)
            scale = 1 / math.sqrt(math.sqrt(c // 4))
            weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)
            mixed = torch.einsum("bts,bcs->bct", torch.softmax(weight.float(), dim=-1), v).reshape(
                b, -1, flat.shape[-1]
            )
            return (flat + self.out(mixed)).reshape(b, c, *space)

    enter, down, low, up, leave = (
        nn.Conv2d(4, 16, 3, padding=1),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        Block(32, 32),
        Block(48, 16),
        nn.Conv2d(16, 4, 3, padding=1),
    )
    attention, embed = Attention(32), nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
    alphas = torch.cumprod(1 - torch.linspace(1e-4**0.5, 0.02**0.5, 100) ** 2, dim=0)

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(10000) * torch.arange(0, 16, dtype=torch.float32) / 16)
        args = t[:, None].float() * freqs[None]
        emb = embed(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))
        top = enter(x)
        h = attention(low(down(top), emb))
        h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        return leave(F.silu(up(torch.cat([h, top], dim=1), emb)))

    @torch.no_grad()
    def step() -> None:
        x = torch.randn(2, 4, 16, 16)
        for i in (99, 49):
            t = torch.full((4,), i, dtype=torch.long)
            without, given = denoise(torch.cat([x] * 2), t).chunk(2)
            noise = without + 7.5 * (given - without)
            now, after = alphas[i], alphas[max(i - 50, 0)]
            clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
            low_, high = torch.quantile(clean.abs().flatten(1), 0.995, dim=1), torch.ones(2)
            bound = torch.maximum(low_, high).view(-1, 1, 1, 1)
            clean = clean.clamp(-bound, bound) / bound
            x = after.sqrt() * clean + (1 - after).sqrt() * noise
        ((x / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()

    return step


def packed_speech() -> Step:
    """Packed sequences through recurrent networks and a CTC loss; centred RMSprop."""
    front = nn.Sequential(nn.Conv2d(1, 8, (3, 5), stride=(1, 2), padding=(1, 2)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20))
    rnn = nn.GRU(8 * 20, 24, num_layers=2, bidirectional=True, dropout=0.1)
    head = nn.Linear(48, 12)
    parameters = [*front.parameters(), *rnn.parameters(), *head.parameters()]
    optimizer = torch.optim.RMSprop(parameters, 1e-3, centered=True, weight_decay=1e-5)
    sound, words = torch.randn(4, 1, 40, 60), torch.randint(1, 12, (4, 8))
    lengths, spelled = torch.tensor([30, 28, 21, 15]), torch.tensor([8, 6, 5, 3])

    def step() -> None:
        optimizer.zero_grad()
        x = front(sound)
        b, c, f, n = x.size()
        x = x[:, :, ::2].contiguous().view(b, c * f // 2, n).transpose(1, 2).transpose(0, 1).contiguous()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        seen, sizes = nn.utils.rnn.pad_packed_sequence(rnn(packed)[0])
        scores = head(seen.view(-1, 48)).view(seen.size(0), 4, -1).log_softmax(2)
        loss = F.ctc_loss(scores, words, sizes, spelled, blank=0, zero_infinity=True)
        loss.backward()
        nn.utils.clip_grad_value_(parameters, 0.4)
        optimizer.step()
        best = scores.detach().argmax(-1).t()
        [torch.unique_consecutive(row)[:5] for row in best]

    return step


def phase_vocoder() -> Step:
    """Short-time spectra, their phases and back; filters in the frequency domain; a spectral loss."""
    window, sound = torch.hann_window(64), torch.randn(2, 1000)
    mask = nn.Sequential(nn.Linear(33, 48), nn.PReLU(), nn.Linear(48, 33), nn.Sigmoid())
    bank = torch.rand(33, 10)

    def step() -> None:
        spec = torch.stft(sound, 64, hop_length=16, window=window, center=True, pad_mode="reflect", return_complex=True)
        size, phase = spec.abs(), torch.angle(spec)
        kept = size * mask(size.transpose(1, 2)).transpose(1, 2)
        back = torch.istft(torch.polar(kept, phase), 64, hop_length=16, window=window, length=1000)
        mel = torch.log10(torch.clamp(torch.matmul(kept.pow(2).transpose(-1, -2), bank), min=1e-10))
        cepstra = torch.matmul(mel - mel.mean(dim=(1, 2), keepdim=True), torch.rand(10, 6))
        error = torch.norm(kept - size, p="fro") / torch.norm(size, p="fro")
        ratio = 10 * torch.log10((sound**2).sum(-1) / ((back - sound) ** 2).sum(-1))
        (error - ratio.mean() + cepstra.abs().amax()).backward()
        with torch.no_grad():
            advance = torch.linspace(0, math.pi * 16, 33)[..., None]
            turned = torch.diff(phase, dim=-1, prepend=phase[..., :1]) - advance
            turned = turned - 2 * math.pi * torch.round(turned / (2 * math.pi))
            grown = torch.cumsum(turned + advance, -1)
            torch.view_as_real(torch.complex(size * grown.cos(), size * grown.sin())).sum()
            n = 2048
            long = torch.fft.irfft(torch.fft.rfft(sound, n) * torch.fft.rfft(torch.randn(1, 300), n), n)
            torch.fft.fftshift(torch.fft.fft2(long.view(2, 32, 64)), dim=(-2, -1)).real.mean()
            cube = torch.fft.fftn(torch.randn(2, 6, 6, 6), dim=(1, 2, 3))
            torch.fft.ifftn(cube, dim=(1, 2, 3), norm="ortho").imag.sum()
            spec.conj() * spec, spec.mH @ spec

    return step


def convolution_zoo() -> Step:
    """Convolutions and poolings: transposed, grouped, dilated, in three dimensions, with padding modes."""
    solid = nn.Sequential(
        nn.Conv3d(2, 6, (3, 3, 3), stride=(1, 2, 2), padding=(1, 1, 1)),
        nn.InstanceNorm3d(6, affine=True),
        nn.ELU(inplace=True),
        nn.Conv3d(6, 6, 3, padding=2, dilation=2, groups=3, bias=False),
        nn.BatchNorm3d(6),
        nn.Softplus(),
        nn.MaxPool3d((1, 2, 2)),
        nn.ConvTranspose3d(6, 4, (1, 2, 2), stride=(1, 2, 2)),
        nn.AvgPool3d(3, stride=2, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool3d((2, 2, 2)),
    )
    flat = nn.Sequential(
        nn.Conv2d(3, 12, (5, 3), stride=(2, 1), padding=(2, 1), padding_mode="circular"),
        nn.LocalResponseNorm(4),
        nn.Conv2d(12, 12, 3, padding="same", dilation=3, groups=12),
        nn.CELU(),
        nn.Conv2d(12, 8, 1, groups=4),
        nn.Hardswish(),
        nn.ReflectionPad2d((1, 2, 0, 1)),
        nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, output_padding=1, groups=2, dilation=1),
        nn.SELU(),
        nn.LPPool2d(2, 3, stride=2),
        nn.AdaptiveMaxPool2d((5, 7)),
    )
    line = nn.Sequential(
        nn.ReplicationPad1d(3), nn.Conv1d(4, 10, 7, stride=3), nn.GLU(dim=1), nn.AvgPool1d(4, 2), nn.Softshrink(0.1)
    )
    x3, x2, x1 = torch.randn(2, 2, 6, 12, 12), torch.randn(2, 3, 20, 18), torch.randn(3, 4, 50)

    def step() -> None:
        (solid(x3).square().sum() + flat(x2).mean() + line(x1).abs().sum()).backward()
        with torch.no_grad():
            pooled, where = F.max_pool2d(x2, 3, stride=2, padding=1, dilation=1, return_indices=True)
            F.max_unpool2d(pooled, where, 3, stride=2, padding=1, output_size=x2.shape)
            F.fractional_max_pool2d(x2, 2, output_size=(7, 6))
            F.conv2d(x2.transpose(0, 1), torch.randn(3, 2, 4, 4), stride=3)
            F.adaptive_avg_pool1d(x1, 9), F.max_pool1d(x1, 5, ceil_mode=True)

    return step


def spatial_transformer() -> Step:
    """Images warped by predicted maps and offsets, a deformable convolution written out with gathers."""
    locate = nn.Sequential(
        nn.Conv2d(1, 8, 7), nn.MaxPool2d(2, 2), nn.ReLU(True), nn.Flatten(), nn.Linear(8 * 11 * 11, 6)
    )
    offsets, weight = nn.Conv2d(4, 18, 3, padding=1), nn.Parameter(torch.randn(6, 4, 9))
    images, features = torch.rand(3, 1, 28, 28), torch.randn(2, 4, 9, 11)

    def step() -> None:
        theta = locate(images).view(-1, 2, 3)
        grid = F.affine_grid(theta, [3, 1, 20, 20], align_corners=False)
        warped = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
        flow = torch.randn(3, 20, 20, 2) * 0.05
        again = F.grid_sample(
            warped, grid.detach() + flow, mode="bicubic", padding_mode="reflection", align_corners=True
        )
        nearest = F.grid_sample(images, grid, mode="nearest", padding_mode="zeros", align_corners=False)
        b, c, h, w = features.shape
        moved = offsets(features).view(b, 9, 2, h, w)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        dy, dx = torch.meshgrid(torch.arange(-1, 2), torch.arange(-1, 2), indexing="ij")
        y = (ys[None] + dy.reshape(-1, 1, 1) + moved[:, :, 0]).clamp(0, h - 1)
        x = (xs[None] + dx.reshape(-1, 1, 1) + moved[:, :, 1]).clamp(0, w - 1)
        y0, x0 = y.floor().long(), x.floor().long()
        y1, x1 = (y0 + 1).clamp(max=h - 1), (x0 + 1).clamp(max=w - 1)

        def pick(row: Tensor, column: Tensor) -> Tensor:
            flat = (row * w + column).view(b, 1, -1).expand(-1, c, -1)
            return features.flatten(2).gather(2, flat).view(b, c, 9, h, w)

        fy, fx = (y - y0).unsqueeze(1), (x - x0).unsqueeze(1)
        top = pick(y0, x0) * (1 - fx) + pick(y0, x1) * fx
        bottom = pick(y1, x0) * (1 - fx) + pick(y1, x1) * fx
        out = torch.einsum("bckhw,ock->bohw", torch.lerp(top, bottom, fy.expand_as(top)), weight)
        volume = F.grid_sample(torch.randn(1, 2, 4, 5, 6), torch.rand(1, 3, 3, 3, 3), align_corners=True)
        (warped.mean() + again.mean() + nearest.mean() + out.square().mean() + volume.sum()).backward()

    return step


def proximal_policy() -> Step:
    """Advantages over an episode and a clipped objective for discrete and continuous actions, as of PPO."""
    trunk, actor, critic = nn.Linear(6, 32), nn.Linear(32, 5), nn.Linear(32, 1)
    mean, spread = nn.Linear(32, 2), nn.Parameter(torch.zeros(1, 2))
    parameters = [*trunk.parameters(), *actor.parameters(), *critic.parameters(), *mean.parameters(), spread]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5, foreach=False)
    seen = torch.randn(16, 4, 6)
    rewards, done = torch.randn(16, 4), (torch.rand(16, 4) < 0.1).float()

    def act(x: Tensor) -> tuple[torch.distributions.Distribution, torch.distributions.Distribution, Tensor]:
        h = torch.tanh(trunk(x))
        discrete = torch.distributions.Categorical(logits=actor(h))
        at = mean(h)
        return discrete, torch.distributions.Normal(at, spread.expand_as(at).exp()), critic(h)

    def step() -> None:
        with torch.no_grad():
            discrete, continuous, values = act(seen)
            action, moved = discrete.sample(), continuous.sample()
            before = discrete.log_prob(action) + continuous.log_prob(moved).sum(-1)
            values = values.squeeze(-1)
            advantages, last = torch.zeros_like(rewards), 0
            for t in reversed(range(16)):
                alive = 1.0 - done[t]
                after = values[t + 1] if t < 15 else torch.zeros(4)
                last = rewards[t] + 0.99 * after * alive - values[t] + 0.99 * 0.95 * alive * last
                advantages[t] = last
            returns = advantages + values
        flat = [v.reshape((-1, *v.shape[2:])) for v in (seen, action, moved, before, advantages, returns)]
        rows = torch.randperm(64)[:32]
        x, a, m, old, gain, goal = (v[rows] for v in flat)
        discrete, continuous, value = act(x)
        new = discrete.log_prob(a) + continuous.log_prob(m).sum(1)
        ratio = (new - old).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2)).mean()
        loss = policy + 0.5 * F.huber_loss(value.view(-1), goal) - 0.01 * discrete.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        torch.distributions.kl_divergence(discrete, torch.distributions.Categorical(logits=torch.zeros(32, 5))).mean()
        torch.multinomial(torch.rand(8, 12), 3, replacement=True), torch.bernoulli(torch.rand(8))
        1 - (goal - value.detach().view(-1)).var() / goal.var(unbiased=False)

    return step


def margins() -> Step:
    """Losses of retrieval, ranking and regression."""
    net = nn.Sequential(nn.Linear(10, 16), nn.Tanhshrink(), nn.Linear(16, 6))
    a, b, c = torch.randn(3, 12, 10)
    labels, signs = torch.randint(0, 6, (12,)), torch.randint(0, 2, (12,)).float() * 2 - 1

    def step() -> None:
        x, y, z = F.normalize(net(a), dim=-1), F.normalize(net(b), p=2, dim=1), net(c)
        total = F.triplet_margin_loss(x, y, z, margin=0.3, p=2, swap=True)
        total = total + F.cosine_embedding_loss(x, y, signs, margin=0.1)
        total = total + F.hinge_embedding_loss((x - z).norm(dim=1), signs, margin=0.5)
        total = total + F.margin_ranking_loss(x.sum(1), y.sum(1), signs, margin=0.2)
        total = total + F.multi_margin_loss(z, labels, p=1, margin=0.7)
        total = total + F.multilabel_margin_loss(z, torch.cat([labels[:, None], torch.full((12, 5), -1)], 1))
        total = total + F.multilabel_soft_margin_loss(z, (y > 0).float(), weight=torch.rand(6))
        total = total + F.soft_margin_loss(z[:, 0], signs)
        total = total + F.poisson_nll_loss(z, (y * 5).relu().round(), full=True)
        total = total + F.gaussian_nll_loss(x, y.detach(), F.softplus(z) + 1e-3)
        total = total + F.binary_cross_entropy(z.sigmoid(), (x > 0).float(), weight=torch.rand(12, 1).expand(12, 6))
        total = total + F.binary_cross_entropy_with_logits(z, (x > 0).float(), pos_weight=torch.rand(6))
        total = total + F.cross_entropy(z, labels, weight=torch.rand(6), ignore_index=3)
        total = total + F.cross_entropy(z, torch.softmax(y, 1), label_smoothing=0.05)
        total = total + F.kl_div(z.log_softmax(1), y.log_softmax(1), reduction="batchmean", log_target=True)
        total = total + F.l1_loss(x, y, reduction="none").mean(0).max() + F.pairwise_distance(x, z, p=1).mean()
        total = total + torch.pdist(x).min() + torch.log1p(torch.expm1(-(x - y).pow(2).sum(1)).abs()).sum()
        likeness = x @ torch.cat([x, y]).t() / 0.07
        likeness = likeness.masked_fill(torch.eye(12, 24, dtype=torch.bool), float("-inf"))
        total = total + (torch.logsumexp(likeness, 1) - likeness.diagonal(offset=12)).mean()
        total.backward()

    return step


def bags() -> Step:
    """Bags of embeddings: sums, weighted sums, means and maxima, with sparse gradients; crossed features."""
    many = nn.EmbeddingBag(100, 8, mode="sum", sparse=True, include_last_offset=True)
    mean, largest = nn.EmbeddingBag(50, 8, mode="mean", padding_idx=0), nn.EmbeddingBag(50, 8, mode="max")
    wide, deep = nn.Embedding(100, 1, sparse=True), nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    dense = nn.Linear(5, 8)
    ids, ends = torch.randint(0, 100, (37,)), torch.tensor([0, 3, 9, 9, 20, 26, 37])
    fixed, starts = torch.randint(0, 50, (6, 4)), torch.arange(0, 24, 4)
    slow = torch.optim.SGD([*deep.parameters(), *dense.parameters(), *mean.parameters(), *largest.parameters()], 0.1)
    rare = torch.optim.SparseAdam([*many.parameters(), *wide.parameters()], 0.01)

    def step() -> None:
        slow.zero_grad(), rare.zero_grad()
        parts = [
            many(ids, ends, per_sample_weights=torch.rand(37)),
            mean(fixed),
            largest(fixed.view(-1), starts),
            dense(torch.randn(6, 5)),
        ]
        both = torch.stack(parts, dim=1)
        crossed = torch.bmm(both, both.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        pairs = crossed[:, rows, columns]
        order2 = 0.5 * (both.sum(1).square() - both.square().sum(1)).sum(1, keepdim=True)
        linear = torch.zeros(6, 1).index_add(0, torch.bucketize(torch.arange(37), ends[1:], right=True), wide(ids))
        score = deep(both.flatten(1)) + pairs.sum(1, keepdim=True) + order2 + linear
        F.binary_cross_entropy_with_logits(score.squeeze(1), torch.randint(0, 2, (6,)).float()).backward()
        slow.step(), rare.step()

    return step


def optimizer_zoo() -> Step:
    """Optimizers of all kinds, foreach, fused and one by one, on one small model each."""
    from torch import optim as torch_optim
    from torch.optim import Optimizer

    def make(build: Callable[[list[nn.Parameter]], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 2))
        return model, build(list(model.parameters()))

    pairs = [
        make(lambda p: torch_optim.LBFGS(p, lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe")),
        make(lambda p: torch_optim.Adagrad(p, 0.01, foreach=True)),
        make(lambda p: torch_optim.Adagrad(p, 0.01, fused=True)),
        make(lambda p: torch_optim.SGD(p, 0.01, momentum=0.9, fused=True)),
        make(lambda p: torch_optim.RMSprop(p, 0.01, foreach=True)),
        make(lambda p: torch_optim.Adadelta(p)),
        make(lambda p: torch_optim.Adamax(p, weight_decay=0.01)),
        make(lambda p: torch_optim.NAdam(p, foreach=True)),
        make(lambda p: torch_optim.RAdam(p, foreach=True)),
        make(lambda p: torch_optim.ASGD(p)),
        make(lambda p: torch_optim.Rprop(p)),
        make(lambda p: torch_optim.AdamW(p, amsgrad=True, foreach=True)),
        make(lambda p: torch_optim.Adam(p, amsgrad=True, fused=True, maximize=True)),
    ]
    x, y = torch.randn(11, 7), torch.randn(11, 2)

    def step() -> None:
        for model, optimizer in pairs:

            def closure(model: nn.Module = model, optimizer: Optimizer = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)

    return step


def tensor_algebra() -> Step:
    """Contractions and products of tensors in many spellings, with gradients."""
    a, b, c = (torch.randn(*size, requires_grad=True) for size in ((3, 4, 5), (5, 4, 6), (3, 6)))
    square = torch.randn(6, 6, requires_grad=True)

    def step() -> None:
        first = torch.tensordot(a, b, dims=([2, 1], [0, 1]))
        total = (first * c).sum() + torch.einsum("ijk,kjl,il->", a, b, c)
        total = (
            total + torch.einsum("...ij,jk->...ik", a, torch.rand(5, 2)).amax() + torch.einsum("ii->i", square).sum()
        )
        total = total + torch.kron(square[:2, :3], torch.eye(2)).sum() + torch.outer(c[0], c[1]).trace()
        total = total + torch.addmm(square, c.t(), c, beta=0.5, alpha=2).mean() + torch.addmv(c[0], square, c[1]).sum()
        total = (
            total + torch.baddbmm(torch.zeros(3, 4, 4), a, a.mT, alpha=0.1).sum() + torch.addr(square, c[0], c[2]).sum()
        )
        total = (
            total
            + torch.linalg.multi_dot([c, square, square.T, c.T]).sum()
            + torch.cross(a[..., :3], a[..., 2:], dim=-1).sum()
        )
        total = total + F.bilinear(c, c, torch.randn(2, 6, 6)).sum() + torch.inner(c, c).sum() + torch.vdot(c[0], c[1])
        total = total + torch.addcmul(c, c, c, value=0.3).sum() + torch.addcdiv(c, c, c.abs() + 1, value=2).sum()
        total = total + torch.addbmm(torch.zeros(4, 4), a, a.transpose(1, 2)).sum() + torch.mv(square, c[0]).dot(c[1])
        total = (
            total
            + torch.block_diag(square, c).sum()
            + torch.diag_embed(c, offset=1).sum()
            + torch.diag(square, -1).sum()
        )
        total = total + (c @ square @ c.mT).sum()
        total = (
            total
            + torch.cdist(a, a + 1, p=1.0).sum()
            + torch.linalg.vecdot(a, a, dim=1).sum()
            + torch.triu(square, 1).sum()
        )
        total.backward()
        torch.combinations(torch.arange(5), 2), torch.cartesian_prod(torch.arange(3), torch.arange(4))
        torch.vander(torch.arange(4.0), 3), torch.matrix_power(square.detach(), 3), torch.atleast_2d(c[0].detach())
        torch.broadcast_tensors(c.detach()[:, None], c.detach()[:, :, None]), torch.einsum("bij->b", a.detach())

    return step


def gaussian_process() -> Step:
    """A marginal likelihood by Cholesky factors, and decompositions of other kinds, with gradients."""
    x, y = torch.rand(20, 2), torch.randn(20, 1)
    length, noise = torch.tensor(0.3, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    tall = torch.randn(2, 8, 5, requires_grad=True)

    def step() -> None:
        k = torch.exp(-0.5 * torch.cdist(x / length, x / length).pow(2)) + noise.square() * torch.eye(20)
        lower = torch.linalg.cholesky(k)
        weights = torch.cholesky_solve(y, lower)
        loss = 0.5 * (y.T @ weights).squeeze() + lower.diagonal().log().sum() + 10 * math.log(2 * math.pi)
        q, r = torch.linalg.qr(tall)
        u, s, vh = torch.linalg.svd(tall, full_matrices=False)
        gram = tall.mT @ tall + torch.eye(5)
        values, vectors = torch.linalg.eigh(gram)
        loss = loss + r.abs().sum() + s.log().sum() + values.sum() + (q @ r - (u * s.unsqueeze(-2)) @ vh).norm()
        loss = (
            loss
            + torch.linalg.solve(gram, torch.ones(5, 2)).sum()
            + torch.linalg.inv(gram).diagonal(dim1=-2, dim2=-1).sum()
        )
        loss = (
            loss
            + torch.logdet(gram).sum()
            + torch.linalg.det(gram).log().sum()
            + torch.matrix_exp(0.1 * gram[0]).trace()
        )
        loss = (
            loss
            + torch.linalg.solve_triangular(lower, y, upper=False).square().sum()
            + torch.linalg.pinv(tall[0]).sum()
        )
        loss = (
            loss
            + torch.linalg.matrix_norm(gram, ord="nuc").sum()
            + torch.linalg.vector_norm(tall, ord=3, dim=(1, 2)).sum()
        )
        loss.backward()
        with torch.no_grad():
            torch.linalg.lstsq(tall, torch.randn(2, 8, 3))
            (
                torch.linalg.lu(gram),
                torch.linalg.eigvals(gram),
                torch.linalg.matrix_rank(tall),
                torch.linalg.slogdet(gram),
            )
            torch.linalg.lu_solve(*torch.linalg.lu_factor(gram), torch.ones(2, 5, 1)), torch.linalg.cond(gram)
            mean = k[:5] @ weights
            (
                mean + torch.randn(5, 1) * vectors.amax(),
                torch.linalg.householder_product(torch.randn(4, 3), torch.rand(3)),
            )

    return step


def statistics() -> Step:
    """Order statistics, histograms, cumulative operations and tables of counts."""

    def step() -> None:
        x, y = torch.randn(8, 40), torch.randint(0, 9, (200,))
        torch.quantile(x, torch.tensor([0.1, 0.5, 0.9]), dim=1, keepdim=True, interpolation="lower")
        (
            torch.nanquantile(x, 0.25),
            torch.median(x),
            torch.median(x, dim=1),
            torch.nanmedian(x, 0),
            torch.mode(y.view(20, 10), 1),
        )
        (
            torch.histc(x, bins=16, min=-3, max=3),
            torch.histogram(x.flatten(), bins=8),
            torch.histogramdd(x[:, :2], bins=[3, 4]),
        )
        edges = torch.linspace(-2, 2, 11)
        torch.bucketize(x, edges, right=True), torch.searchsorted(edges.repeat(8, 1), x, side="left")
        (
            torch.kthvalue(x, 5, dim=-1),
            torch.topk(x, 3, dim=0, sorted=False),
            torch.sort(x, dim=0, descending=True, stable=True),
        )
        torch.argsort(x, dim=1), torch.msort(x), torch.aminmax(x, dim=1), torch.cummax(x, 1), torch.cummin(x, 0)
        torch.cumprod(x, 1), torch.logcumsumexp(x, -1), torch.cumsum(y, 0, dtype=torch.int32), torch.diff(x, n=2, dim=1)
        (
            torch.unique(y, return_inverse=True, return_counts=True),
            torch.unique(x.round(), dim=0),
            torch.bincount(y, minlength=12),
        )
        (
            torch.bincount(y, weights=torch.rand(200)),
            torch.std_mean(x, dim=(0, 1)),
            torch.var_mean(x, 1, correction=0, keepdim=True),
        )
        (
            torch.cov(x),
            torch.corrcoef(x[:3]),
            torch.trapezoid(x, dx=0.1),
            torch.cumulative_trapezoid(x, dim=1),
            torch.renorm(x, 2, 0, 1.5),
        )
        (
            torch.nansum(x, 1),
            torch.count_nonzero(x > 0, dim=0),
            torch.all(x > 0, dim=1),
            torch.any(x > 2),
            torch.prod(x, 1),
        )
        (
            torch.logaddexp(x, x),
            torch.heaviside(x, torch.tensor(0.5)),
            torch.clip(x, -1, 1),
            torch.isin(y, torch.tensor([1, 3])),
        )
        (
            torch.nan_to_num(x / 0, 0.0, 1.0, -1.0),
            torch.frac(x),
            torch.fmod(x, 0.7),
            torch.remainder(y, 4),
            torch.floor_divide(y, 3),
        )
        (
            torch.bitwise_and(y, 3) | (y << 2) ^ torch.bitwise_not(y >> 1),
            torch.gcd(y, y + 2),
            torch.logical_xor(x > 0, x > 1),
        )
        (
            torch.argmax(x),
            torch.argmin(x, dim=0, keepdim=True),
            torch.max(x, dim=1, keepdim=True),
            torch.dist(x, x + 1, p=1),
        )
        (
            torch.special.erfcx(x),
            torch.lgamma(x.abs()),
            torch.digamma(x.abs() + 1),
            torch.polygamma(1, x.abs() + 1),
            torch.i0(x),
        )
        (
            torch.nextafter(x, x + 1),
            torch.hypot(x, x),
            torch.atan2(x, x + 1),
            torch.copysign(x, -x),
            torch.sinc(x),
            torch.xlogy(x.abs(), x.abs()),
        )

    return step


def masks_and_scatters() -> Step:
    """Writes by masks, indices and slices, with and without gradients."""
    source = torch.randn(6, 10, requires_grad=True)

    def step() -> None:
        x = source * 2
        mask = torch.rand(6, 10) > 0.4
        total = x.masked_select(mask).sum() + x[mask].square().sum() + x.masked_scatter(mask, torch.rand(60)).sum()
        rows = torch.randint(0, 6, (15,))
        total = total + x.index_put((rows,), torch.rand(15, 10), accumulate=True).sum()
        total = (
            total
            + torch.take_along_dim(x, x.argsort(1)[:, :4], dim=1).sum()
            + torch.take(x, torch.tensor([1, 7, 50])).sum()
        )
        total = (
            total
            + x.index_copy(1, torch.tensor([2, 5]), torch.rand(6, 2)).sum()
            + x.index_fill(0, torch.tensor([1]), -1).mean()
        )
        total = total + torch.scatter(x, 1, torch.randint(0, 10, (6, 3)), torch.rand(6, 3)).sum()
        total = (
            total
            + torch.select_scatter(x, torch.ones(10), 0, 2).sum()
            + torch.slice_scatter(x, torch.ones(2, 10), 0, 1, 5, 2).sum()
        )
        total = (
            total
            + torch.diagonal_scatter(x, torch.zeros(6), 1).sum()
            + x.where(mask, -1.0).sum()
            + x.masked_fill(~mask, 0.0).sum()
        )
        total = (
            total
            + x[:, None, [1, 3, 5]].sum()
            + x[rows[:4], rows[4:8]].sum()
            + x[2:5, rows[:3]].sum()
            + x[..., -1].sum()
        )
        total.backward()
        with torch.no_grad():
            y = torch.zeros(6, 10)
            y[mask] = 1.5
            y[:, 2] = torch.arange(6.0)
            y[rows[:3]] += 1
            y[1:3, ::2] = 4
            y[y > 3] *= 0.5
            y.scatter_(1, torch.randint(0, 10, (6, 1)), 7.0).scatter_add_(
                0, rows[:6].view(1, -1).expand(2, 6), torch.ones(2, 6)
            )
            y.scatter_(0, torch.zeros(1, 10, dtype=torch.long), 2.0, reduce="multiply")
            y.index_add_(1, torch.tensor([0, 3]), torch.ones(6, 2), alpha=-1).put_(torch.tensor([3, 9]), torch.ones(2))
            y.fill_diagonal_(0).tril_(2), torch.index_reduce(y, 0, rows, torch.rand(15, 10), "prod")
            (
                y.view(-1)[torch.randperm(60)[:7]],
                torch.nonzero(y, as_tuple=True),
                torch.argwhere(y > 0),
                y.flatten()[5:9].tolist(),
            )
            (
                torch.where(y > 0),
                torch.masked.sum(y, 1, mask=mask),
                y.index_put_((mask,), torch.tensor(3.0)),
                y[None, :, [0]].expand(2, -1, -1),
            )

    return step


def patches_and_pads() -> Step:
    """Windows cut and put together, pixels shuffled, images flipped, rolled, padded and resampled."""
    images = torch.rand(2, 6, 16, 20, requires_grad=True)

    def step() -> None:
        cut = F.unfold(images, (4, 4), stride=(4, 2), padding=(0, 1), dilation=1)
        total = F.fold(cut, (16, 20), (4, 4), stride=(4, 2), padding=(0, 1)).square().sum()
        small = F.pixel_unshuffle(images, 2)
        total = total + small.sum() + F.pixel_shuffle(images[:, :4], 2).mean() + F.channel_shuffle(images, 3).sum()
        total = total + images.unfold(2, 5, 3).unfold(3, 4, 4).mean() + torch.roll(images, (3, -2), dims=(2, 3)).amax()
        total = (
            total
            + torch.roll(images, 7).sum()
            + images.flip(-1).sum()
            + torch.rot90(images, 1, (2, 3)).sum()
            + images.fliplr().sum()
        )
        for mode in ("reflect", "replicate", "circular"):
            total = total + F.pad(images, (2, 3, 1, 4), mode=mode).mean()
        total = total + F.pad(images, (1, 1, -2, 0, 2, 0), value=0.5).sum()
        for mode in ("nearest-exact", "bilinear", "bicubic", "area"):
            total = total + F.interpolate(images, size=(11, 13), mode=mode).mean()
        total = total + F.interpolate(images, scale_factor=0.5, mode="bilinear", antialias=True).sum()
        total = total + F.interpolate(images.flatten(2), 77, mode="linear", align_corners=True).sum()
        total = total + F.interpolate(images[:, :, None], scale_factor=(2, 1, 1), mode="trilinear").sum()
        windows = images.view(2, 6, 4, 4, 5, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, 6)
        total = total + windows.softmax(1).sum() + sum(part.sum() for part in images.tensor_split((3, 9), dim=3))
        total = (
            total
            + torch.cat(images.hsplit(2), 0).sum()
            + torch.dstack([images[0], images[1]]).sum()
            + images.narrow(2, 3, 5).sum()
        )
        total = (
            total
            + images.repeat_interleave(2, dim=1).sum()
            + images.repeat(1, 1, 2, 1).sum()
            + torch.tile(images, (2, 1)).sum()
        )
        left, right = images.detach().amin((2, 3), keepdim=True), images.std(dim=(2, 3), keepdim=True)
        ((images - left) / right).mean().add(total).backward()
        (
            torch.repeat_interleave(torch.arange(4), torch.tensor([1, 0, 3, 2])),
            images.detach().swapdims(1, 3).unflatten(1, (4, 5)),
        )

    return step


def adversarial_norms() -> Step:
    """Weights and spectra normalised, a gradient penalty, and an average of the weights."""
    critic = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Flatten(),
        nn.utils.parametrizations.weight_norm(nn.Linear(8 * 64, 1)),
    )
    maker = nn.Sequential(
        nn.Unflatten(1, (16, 1, 1)),
        nn.ConvTranspose2d(16, 8, 4, 4),
        nn.InstanceNorm2d(8),
        nn.ReLU(),
        nn.Upsample(scale_factor=4, mode="bilinear", align_corners=False),
        nn.utils.parametrizations.orthogonal(nn.Conv2d(8, 3, 1)),
        nn.Tanh(),
    )
    smooth = torch.optim.swa_utils.AveragedModel(maker[1], multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    real = torch.rand(4, 3, 16, 16) * 2 - 1

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        fake = maker(torch.randn(4, 16)).detach()
        share = torch.rand(4, 1, 1, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        score = critic(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
        penalty = ((slope.view(4, -1).norm(2, dim=1) - 1) ** 2).mean()
        (F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean() + 10 * penalty).backward()
        optimizer.step()
        (-critic(maker(torch.randn(4, 16))).mean()).backward()
        smooth.update_parameters(maker[1])

    return step


def quantised_models() -> Step:
    """Recurrent and linear layers quantised while they run, and a convolution that was calibrated before."""
    import torch.ao.quantization as quantization

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(10, 12, batch_first=True), nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    dynamic = quantization.quantize_dynamic(Reader(), {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    half = quantization.quantize_dynamic(nn.Sequential(nn.Linear(12, 5)), {nn.Linear}, dtype=torch.float16)
    still = nn.Sequential(
        quantization.QuantStub(),
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1),
        quantization.DeQuantStub(),
    )
    still.eval().qconfig = quantization.get_default_qconfig("fbgemm")
    quantization.prepare(quantization.fuse_modules(still, [["1", "2"]]), inplace=True)(torch.rand(2, 3, 8, 8))
    static = quantization.convert(still)
    a = torch.quantize_per_tensor(torch.rand(4, 6), 0.02, 3, torch.quint8)
    rows = torch.quantize_per_channel(torch.randn(4, 6), torch.rand(4) + 0.01, torch.zeros(4), 0, torch.qint8)

    def step() -> None:
        with torch.inference_mode():
            dynamic(torch.randn(3, 7, 10)), half(torch.randn(4, 12)), static(torch.rand(2, 3, 8, 8))
            (
                torch.ops.quantized.add(a, a, 0.05, 2).dequantize(),
                F.max_pool1d(a, 2),
                a.reshape(3, 8).permute(1, 0),
                rows.dequantize(),
            )
            torch.cat([a, a]).int_repr(), torch.relu(a), a[1:3].q_scale()
            weight = torch.randint(-127, 127, (16, 32), dtype=torch.int8)
            scale = torch.rand(16)
            F.linear(torch.randn(2, 32), weight.to(torch.float32)) * scale

    return step


def collectives_over_gloo() -> Step:
    """Collectives, accumulated gradients in a parallel model, and a sharded optimizer."""
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{mkdtemp()}/store", rank=0, world_size=1)
    inner = nn.Sequential(nn.Embedding(30, 12), nn.Flatten(), nn.Linear(48, 20), nn.ReLU(), nn.Linear(20, 4))
    model = nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True, find_unused_parameters=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    ids, labels = torch.randint(0, 30, (6, 4)), torch.randint(0, 4, (6,))

    def step() -> None:
        optimizer.zero_grad()
        with model.no_sync():
            F.cross_entropy(model(ids), labels).div(2).backward()
        F.cross_entropy(model(ids), labels).div(2).backward()
        optimizer.step()
        x = torch.randn(8, 3)
        dist.all_reduce(x), dist.broadcast(x, 0), dist.all_gather([torch.empty(8, 3)], x), dist.barrier()
        dist.all_gather_into_tensor(torch.empty(8, 3), x), dist.reduce_scatter_tensor(torch.empty(8, 3), x)
        dist.all_to_all_single(torch.empty(8, 3), x), dist.gather(x, [torch.empty(8, 3)])

    return step


def own_ops() -> Step:
    """Operators that a library adds, with and without gradients, and autograd functions written in Python."""

    @torch.library.custom_op("unseen::scaled_gate", mutates_args=())
    def scaled_gate(x: Tensor, gate: Tensor, scale: float, flags: list[int]) -> Tensor:
        return x * gate.sigmoid() * scale + flags[0]

    scaled_gate.register_fake(lambda x, gate, scale, flags: torch.empty_like(x))
    scaled_gate.register_autograd(
        lambda ctx, grad: (grad * ctx.saved_tensors[0].sigmoid() * ctx.scale, None, None, None),
        setup_context=lambda ctx, inputs, output: (ctx.save_for_backward(inputs[1]), setattr(ctx, "scale", inputs[2])),
    )

    @torch.library.custom_op("unseen::bump_", mutates_args={"x"})
    def bump(x: Tensor, by: int, where: Tensor | None = None) -> None:
        x.add_(by if where is None else where * by)

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            return x.sign()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
            return grads[0].clamp(-1, 1)

    layer = nn.Linear(6, 12)

    def step() -> None:
        x, gate = layer(torch.randn(5, 6)).chunk(2, dim=-1)
        out = torch.ops.unseen.scaled_gate(Straight.apply(x), gate, 0.5, [1, 2])
        out.sum().backward()
        torch.ops.unseen.bump_(torch.zeros(4), 3), torch.ops.unseen.bump_(torch.zeros(4), 2, torch.ones(4))

    return step


def jagged() -> Step:
    """Sequences of different lengths in one nested tensor, and as a padded batch."""
    rows = [torch.randn(n, 16) for n in (5, 9, 3)]
    layer, norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def step() -> None:
        nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        q, k, v = layer(norm(nested)).chunk(3, dim=-1)
        (q * k.sigmoid() + v).values().sum().backward()
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0)
        lengths = torch.tensor([5, 9, 3])
        seen = torch.arange(9)[None, :] < lengths[:, None]
        flat = padded[seen]
        starts = F.pad(lengths.cumsum(0), (1, 0))
        torch.nested.nested_tensor_from_jagged(flat, starts).to_padded_tensor(0.0).sum()
        torch.stack([part.mean(0) for part in flat.split(lengths.tolist())])

    return step


def forces() -> Step:
    """Atoms within a radius, directions and radial functions, energies summed and forces by a gradient."""
    kinds, place = nn.Embedding(5, 16), torch.rand(24, 3) * 4
    radial, mix = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 48)), nn.Linear(16, 48)
    out = nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 1))
    atoms, molecule = torch.randint(0, 5, (24,)), torch.arange(24) // 8
    parameters = [p for m in (kinds, radial, mix, out) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3, amsgrad=True)

    def step() -> None:
        optimizer.zero_grad()
        position = place.clone().requires_grad_(True)
        with torch.no_grad():
            far = torch.cdist(position, position)
            near = (far < 2.0) & (molecule[:, None] == molecule[None]) & ~torch.eye(24, dtype=torch.bool)
            i, j = near.nonzero().t()
        edge = position[j] - position[i]
        length = edge.norm(dim=-1).clamp_min(1e-6)
        unit = edge / length.unsqueeze(-1)
        basis = torch.sin(length.unsqueeze(-1) * torch.arange(1, 9) * math.pi / 2) / length[:, None]
        cut = 0.5 * (torch.cos(length * math.pi / 2) + 1) * (length < 2).float()
        filters = radial(basis) * cut[..., None]
        s, v = kinds(atoms), torch.zeros(24, 3, 16)
        a, b, c = torch.split(filters * mix(s)[j], 16, dim=-1)
        s = s + torch.zeros_like(s).index_add(0, i, a)
        moved = b.unsqueeze(1) * unit.unsqueeze(-1) + c.unsqueeze(1) * v[j]
        v = v.index_add(0, i, moved)
        s = s + torch.linalg.vector_norm(v, dim=1).square()
        energy = torch.zeros(3).index_add_(0, molecule, out(s).squeeze(-1))
        force = -torch.autograd.grad(energy.sum(), position, create_graph=True)[0]
        (F.mse_loss(energy, torch.randn(3)) + 10 * (force - torch.randn(24, 3)).norm(p=2, dim=1).mean()).backward()
        optimizer.step()

    return step


def forecasting() -> Step:
    """Series decomposed by moving averages, correlated by Fourier transforms, normalised and cut into patches."""
    value, out, patches = (
        nn.Conv1d(4, 16, 3, padding=1, padding_mode="circular", bias=False),
        nn.Linear(16, 4),
        nn.Linear(8, 16),
    )
    query, key, gain = nn.Linear(16, 16), nn.Linear(16, 16), nn.Parameter(torch.ones(4))
    flow = nn.LSTM(16, 16, num_layers=1, batch_first=True, proj_size=8)
    series = torch.randn(3, 48, 4)
    optimizer = torch.optim.NAdam([*value.parameters(), *out.parameters(), *query.parameters(), gain], 1e-3)

    def average(x: Tensor) -> Tensor:
        ends = x[:, :1].repeat(1, 6, 1), x[:, -1:].repeat(1, 6, 1)
        return F.avg_pool1d(torch.cat([ends[0], x, ends[1]], dim=1).permute(0, 2, 1), 13, stride=1).permute(0, 2, 1)

    def step() -> None:
        optimizer.zero_grad()
        mean = series.mean(1, keepdim=True).detach()
        spread = torch.sqrt(series.var(dim=1, keepdim=True, unbiased=False) + 1e-5)
        x = (series - mean) / spread * gain
        h = value(x.permute(0, 2, 1)).transpose(1, 2)
        q, k, v = (m(h).view(3, 48, 4, 4).permute(0, 2, 3, 1).contiguous() for m in (query, key, nn.Identity()))
        spectrum = torch.fft.rfft(q, dim=-1) * torch.conj(torch.fft.rfft(k, dim=-1))
        likeness = torch.fft.irfft(spectrum, n=48, dim=-1)
        weights, delays = torch.topk(likeness.mean(dim=1).mean(dim=1), 3, dim=-1)
        chance = torch.softmax(weights, dim=-1)
        start = torch.arange(48).view(1, 1, 1, -1).repeat(3, 4, 4, 1)
        doubled, mixed = v.repeat(1, 1, 1, 2), torch.zeros_like(v)
        for i in range(3):
            at = start + delays[:, i].view(-1, 1, 1, 1).repeat(1, 4, 4, 48)
            mixed = mixed + torch.gather(doubled, dim=-1, index=at) * chance[:, i].view(-1, 1, 1, 1)
        h = h + mixed.permute(0, 3, 1, 2).flatten(2)
        trend = average(h)
        rolled = flow(h - trend)[0]
        ahead = out((h - trend)[:, -12:]) / gain * spread + mean
        pieces = patches(F.pad(x.transpose(1, 2), (0, 4), mode="replicate").unfold(-1, 8, 4))
        (F.l1_loss(ahead, torch.zeros(3, 12, 4)) + rolled.std() + pieces.abs().mean()).backward()
        optimizer.step()

    return step


def tabular() -> Step:
    """Mixed-up rows, sparse attention over features, ghost norms and oblivious trees."""
    numbers, cats = torch.randn(32, 6), torch.stack([torch.randint(0, n, (32,)) for n in (3, 7, 5)], 1)
    tables = nn.ModuleList(nn.Embedding(n, 4) for n in (3, 7, 5))
    norm, choose, shared = nn.BatchNorm1d(18, momentum=0.02), nn.Linear(18, 18, bias=False), nn.Linear(18, 32)
    splits, leaves = nn.Parameter(torch.rand(3, 4)), nn.Parameter(torch.randn(4, 8))
    labels = torch.randint(0, 2, (32,))

    def sparsemax(x: Tensor) -> Tensor:
        ordered, _ = torch.sort(x - x.max(dim=-1, keepdim=True)[0], descending=True, dim=-1)
        rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        sums = ordered.cumsum(-1) - 1
        support = (rank * ordered > sums).sum(dim=-1, keepdim=True)
        return (x - x.max(-1, keepdim=True)[0] - sums.gather(-1, support - 1) / support.to(x.dtype)).clamp(min=0)

    def step() -> None:
        share, order = torch.distributions.Beta(0.4, 0.4).sample().clamp(0.1, 0.9), torch.randperm(32)
        x = torch.cat([numbers, *(table(cats[:, i]) for i, table in enumerate(tables))], dim=1)
        x = norm(share * x + (1 - share) * x[order])
        prior, total = torch.ones_like(x), torch.zeros(32, 16)
        for _ in range(2):
            mask = sparsemax(choose(x) * prior)
            prior = torch.mul(1.3 - mask, prior)
            parts = [F.glu(shared(chunk), dim=-1) for chunk in (mask * x).chunk(4, 0)]
            total = total + torch.cat(parts, 0) * math.sqrt(0.5)
            entropy = torch.mean(torch.sum(torch.mul(mask, torch.log(mask + 1e-15)), dim=1))
        chosen = torch.sigmoid((total[:, :12].reshape(32, 3, 4) - splits) / 0.5).clamp(0, 1)
        both = torch.stack([chosen, 1 - chosen], dim=-1)
        paths = torch.einsum("bti,btj,btk->btijk", *(both[:, :, i] for i in range(3))).flatten(2)
        logit = torch.einsum("btl,cl->bc", paths, leaves).logsumexp(-1)
        soft = share * labels + (1 - share) * labels[order]
        (F.binary_cross_entropy_with_logits(logit, soft) - 1e-3 * entropy).backward()

    return step


def solvers() -> Step:
    """Differential equations by Runge and Kutta, fixed points with broadcast states, and lattices rolled."""
    net = nn.Sequential(nn.Linear(3, 24), nn.Softplus(), nn.Linear(24, 2))
    x, grid = torch.randn(16, 2), torch.zeros(40, 40)
    spectral = nn.Parameter(torch.randn(2, 2, 5, 5, dtype=torch.cfloat))
    cells = nn.LSTMCell(2, 6)

    def slope(t: float, v: Tensor) -> Tensor:
        return net(torch.cat([v, torch.full_like(v[:, :1], t)], 1))

    def step() -> None:
        v, h = x, 0.25
        for i in range(2):
            k1 = slope(i * h, v)
            k2 = slope(i * h + h / 2, v + k1 * (h / 2))
            k3 = slope(i * h + h / 2, torch.add(v, k2, alpha=h / 2))
            v = v + (k1 + 2 * k2 + 3 * k3) * h / 6
        state = None
        for row in v.split(4):
            state = cells(row, state)
        field = torch.randn(2, 2, 12, 12)
        modes = torch.fft.rfft2(field)
        kept = torch.zeros(2, 2, 12, 7, dtype=torch.cfloat)
        kept[:, :, :5, :5] = torch.einsum("bixy,ioxy->boxy", modes[:, :, :5, :5], spectral)
        smooth = torch.fft.irfft2(kept, s=(12, 12))
        (v.square().mean() + state[0].sum() + torch.trapz(smooth, dx=0.1).mean()).backward()
        with torch.no_grad():
            grid.add_(torch.randn_like(grid) * 0.1)
            around = sum(torch.roll(grid, s, d) for s in (1, -1) for d in (0, 1))
            grid.lerp_(around / 4, 0.5).mul_(0.99)
            stencil = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
            F.conv2d(F.pad(grid[None, None], (1, 1, 1, 1), mode="circular"), stencil).squeeze().abs_().max().item()
            torch.where(torch.rand(40, 40) < torch.exp(-2 * grid * around), -grid, grid).sum()
            torch.gradient(grid, spacing=0.5, dim=0), torch.linspace(0, 1, 5).view(-1, 1).expand(5, 3).contiguous()

    return step


def splatting() -> Step:
    """Gaussians in space projected, sorted and blended from front to back; densities pruned by masks."""
    mean, turn = torch.randn(40, 3, requires_grad=True), torch.randn(40, 4, requires_grad=True)
    scale, colour, dense = (torch.randn(40, n, requires_grad=True) for n in (3, 3, 1))
    view = torch.eye(4)
    view[2, 3] = 5.0

    def step() -> None:
        w, x, y, z = F.normalize(turn, dim=-1).unbind(-1)
        rows = (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z))
        rest = (
            1 - 2 * (x * x + z * z),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x * x + y * y),
        )
        rotation = torch.stack(rows + rest, dim=-1).reshape(-1, 3, 3)
        m = rotation @ torch.diag_embed(scale.exp())
        spread = m @ m.transpose(1, 2)
        seen = (view @ F.pad(mean, (0, 1), value=1.0).unsqueeze(-1)).squeeze(-1)[:, :3]
        depth = seen[:, 2].clamp(min=0.1)
        zero = torch.zeros_like(depth)
        jacobian = torch.stack(
            [1 / depth, zero, -seen[:, 0] / depth**2, zero, 1 / depth, -seen[:, 1] / depth**2], -1
        ).view(-1, 2, 3)
        flat = jacobian @ spread @ jacobian.mT + 0.01 * torch.eye(2)
        order = depth.argsort()
        centre, inverse = (seen[:, :2] / depth[:, None])[order], torch.inverse(flat)[order]
        pixels = torch.stack(
            torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="xy"), -1
        ).view(-1, 2)
        away = pixels[:, None] - centre[None]
        power = -0.5 * torch.einsum("pgi,gij,pgj->pg", away, inverse, away)
        alpha = (torch.sigmoid(dense)[order].T * power.exp()).clamp(max=0.99)
        through = torch.cumprod(torch.cat([torch.ones(64, 1), 1 - alpha[:, :-1]], dim=1), dim=1)
        image = ((alpha * through)[..., None] * torch.sigmoid(colour)[order]).sum(1).view(8, 8, 3).permute(2, 0, 1)
        window = torch.ones(3, 1, 3, 3) / 9
        a, b = (F.conv2d(v[None], window, padding=1, groups=3) for v in (image, torch.rand(3, 8, 8)))
        likeness = ((2 * a * b + 1e-4) / (a.pow(2) + b.pow(2) + 1e-4)).mean()
        (F.l1_loss(image, torch.rand(3, 8, 8)) + 0.2 * (1 - likeness)).backward()
        with torch.no_grad():
            gone = (torch.sigmoid(dense) < 0.3).squeeze()
            (
                mean[~gone],
                torch.logical_or(gone, scale.max(dim=1).values > 1.5).sum(),
                mean.grad[gone].norm(dim=-1, keepdim=True),
            )
            torch.where((mean.grad.norm(dim=-1) > 1e-3), True, False), mean[gone].repeat(2, 1)

    return step


def low_rank_adapters() -> Step:
    """A frozen model in bfloat16 with trained low-rank parts, group-wise weights, and keys shared by heads."""
    wide, groups = 64, 2
    q, k, v, o = (nn.Linear(wide, n, bias=False, dtype=torch.bfloat16) for n in (64, 32, 32, 64))
    low, high = nn.Parameter(torch.randn(4, wide) * 0.02), nn.Parameter(torch.zeros(64, 4))
    packed = torch.randint(0, 255, (128, 32), dtype=torch.uint8)
    zeros, scales = torch.randint(0, 15, (128, 4, 1)).to(torch.bfloat16), torch.rand(128, 4, 1).to(torch.bfloat16)
    norm, down, words = (
        nn.RMSNorm(wide, eps=1e-5, dtype=torch.bfloat16),
        nn.Linear(128, wide, dtype=torch.bfloat16),
        nn.Embedding(90, wide),
    )
    for module in (q, k, v, o, norm, down, words):
        module.requires_grad_(False)
    inverse = 1.0 / (10000 ** (torch.arange(0, 16, 2, dtype=torch.int64).float() / 16))
    optimizer = torch.optim.AdamW([low, high], 1e-4, fused=True)
    text = torch.randint(0, 90, (2, 12))

    def rotate(x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(12).float(), inverse)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos()[None, None].to(x.dtype), angles.sin()[None, None].to(x.dtype)
        first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def step() -> None:
        x = words(text).to(torch.bfloat16)
        h = norm(x)
        added = F.linear(F.linear(F.dropout(h.float(), 0.05), low), high) * 2
        queries = (q(h) + added.to(h.dtype)).view(2, 12, 4, 16).transpose(1, 2)
        keys, values = (m(h).view(2, 12, groups, 16).transpose(1, 2) for m in (k, v))
        queries, keys = rotate(queries), rotate(keys)
        keys, values = (t[:, :, None].expand(2, groups, 2, 12, 16).reshape(2, 4, 12, 16) for t in (keys, values))
        causal = torch.triu(torch.full((12, 12), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16), diagonal=1)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal[None, None].expand(2, 1, 12, 12))
        x = x + o(mixed.transpose(1, 2).reshape(2, 12, wide))
        low_bits, high_bits = packed & 0xF, packed >> 4
        weight = torch.stack((low_bits, high_bits), dim=-1).view(128, 4, 16).to(torch.bfloat16)
        weight = ((weight - zeros) * scales).reshape(128, wide)
        x = x + down(F.silu(x @ weight.t()))
        logits = F.linear(x.float(), words.weight)
        shifted, goal = logits[..., :-1, :].contiguous(), text[..., 1:].contiguous()
        F.cross_entropy(shifted.view(-1, 90), goal.view(-1), reduction="sum").div(goal.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


UNSEEN = workloads_of(globals())
