# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false, reportUnusedExpression=false, reportOperatorIssue=false
"""Workloads of kinds that `recorded_workloads` and `unseen_workloads` lack; rules were made after looking at them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from recorded_workloads import Step, workloads_of
from torch import Tensor, nn


def matrix_tools() -> Step:
    """Condition numbers, norms, factorisations and least squares by every driver."""
    square, tall = torch.randn(6, 6) + 6 * torch.eye(6), torch.randn(2, 9, 4)
    symmetric = square @ square.T

    def step() -> None:
        for order in ("fro", "nuc", None, 2, 1, math.inf):
            torch.linalg.cond(square, p=order)
        for driver in ("gels", "gelsy", "gelsd", "gelss"):
            torch.linalg.lstsq(tall, torch.randn(2, 9, 3), driver=driver)
        q, r = torch.linalg.qr(tall, mode="complete")
        (q @ r).sum(), torch.linalg.qr(tall[0], mode="r").R.diagonal().abs().prod()
        torch.linalg.eigh(symmetric, UPLO="U"), torch.linalg.eigvalsh(symmetric), torch.linalg.svdvals(tall)
        torch.linalg.norm(square, "nuc"), torch.linalg.norm(square, -2), torch.linalg.norm(tall, dim=-1)
        torch.linalg.vector_norm(tall, 1, dim=(0, 2), keepdim=True), torch.linalg.matrix_norm(tall, -math.inf)
        torch.linalg.matrix_power(square, 5), torch.linalg.multi_dot([tall[0].T, tall[0], square[:4, :4]])
        (
            torch.linalg.tensorsolve(torch.eye(12).reshape(3, 4, 12), torch.randn(3, 4)),
            torch.linalg.tensorinv(torch.eye(8).reshape(2, 4, 8), ind=2),
        )
        factor, pivots = torch.linalg.ldl_factor(symmetric)
        torch.linalg.ldl_solve(factor, pivots, torch.randn(6, 2)), torch.linalg.vander(torch.randn(5), N=4)
        p, lower, upper = torch.linalg.lu(tall[0])
        (p @ lower @ upper).sum(), torch.cholesky_inverse(torch.linalg.cholesky(symmetric)), torch.block_diag(square, p)
        torch.kron(square[:2], tall[0, :2]), torch.linalg.cross(tall[..., :3], tall[..., 1:], dim=-1)
        torch.trapezoid(tall, dim=1), torch.cartesian_prod(torch.arange(3), torch.arange(4)), torch.cov(tall[0].T)
        torch.corrcoef(tall[1].T), torch.tril_indices(4, 4), torch.combinations(torch.arange(5.0), 2)

    return step


def segments() -> Step:
    """Rows reduced by segments, by indices and by scattering, with gradients."""
    rows = torch.randn(24, 6, requires_grad=True)
    lengths, group = torch.tensor([5, 0, 9, 10]), torch.randint(0, 4, (24,))

    def step() -> None:
        total = torch.zeros(())
        for reduction in ("max", "mean", "min", "sum"):
            total = total + torch.segment_reduce(rows, reduction, lengths=lengths, initial=0).sum()
        places = group[:, None].expand(24, 6)
        for reduction in ("sum", "mean", "amax", "prod"):
            total = total + torch.ones(4, 6).scatter_reduce(0, places, rows, reduction, include_self=True).sum()
        for reduction in ("mean", "amin"):
            total = total + torch.zeros(4, 6).index_reduce(0, group, rows, reduction, include_self=False).sum()
        total.backward()
        with torch.no_grad():
            counts = torch.bincount(group, minlength=4)
            torch.ones(4, 6).scatter_(0, places, rows, reduce="multiply")
            _, inverse, amount = torch.unique(group, return_inverse=True, return_counts=True)
            means = torch.zeros(4, 6).index_add_(0, inverse, rows) / amount.clamp(min=1)[:, None]
            order = torch.argsort(group, stable=True)
            starts = F.pad(counts.cumsum(0), (1, 0))
            torch.cumsum(rows[order], 0)[starts[1:] - 1].diff(dim=0) - means[1:]

    return step


def padded_encoder() -> Step:
    """An encoder's fast path over a padded batch, and nested tensors of unequal images."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    batch, lengths = torch.randn(4, 12, 32), torch.tensor([12, 7, 9, 3])
    hidden = torch.arange(12)[None] >= lengths[:, None]
    rows, wide = [torch.randn(n, 32) for n in (3, 8, 5)], nn.Linear(32, 16)

    def step() -> None:
        with torch.no_grad():
            encoder(batch, src_key_padding_mask=hidden)
            nested = torch.nested.nested_tensor(rows)
            found = F.relu(wide(nested)) * 2
            padded = torch.nested.to_padded_tensor(found, 0.0, (3, 10, 16))
            weight = torch.softmax(padded.mean(-1), -1)
            (padded * weight[..., None]).sum(1), [part.sum() for part in found.unbind()]

    return step


def spectra() -> Step:
    """Spectrograms on a mel scale, phases rebuilt by iterations, filters in two dimensions."""
    wave, window = torch.randn(2, 1600), torch.hann_window(256)
    mel, image = torch.rand(129, 20), torch.randn(2, 3, 16, 20)
    gain = torch.randn(16, 11, dtype=torch.complex64, requires_grad=True)

    def step() -> None:
        spectrum = torch.stft(wave, 256, 64, window=window, center=True, pad_mode="constant", return_complex=True)
        power = torch.log10((spectrum.abs().square().transpose(1, 2) @ mel).clamp(min=1e-10))
        power = torch.maximum(power, power.amax(dim=(1, 2), keepdim=True) - 8.0)
        (power - power.mean(1, keepdim=True)) / power.std(1, keepdim=True)
        angle = torch.exp(2j * math.pi * torch.rand_like(spectrum.real))
        for _ in range(2):
            signal = torch.istft(spectrum.abs() * angle, 256, 64, window=window, length=1600)
            again = torch.stft(signal, 256, 64, window=window, return_complex=True)
            angle = again / (again.abs() + 1e-8)
        filtered = torch.fft.irfft2(torch.fft.rfft2(image, norm="ortho") * gain, s=(16, 20), norm="ortho")
        shifted = torch.fft.fftshift(torch.fft.fft2(image), dim=(-2, -1)).abs().log1p().mean()
        envelope = torch.fft.ifft(torch.fft.fft(wave) * torch.fft.fftfreq(1600).gt(0)).abs().mean()
        (filtered.square().mean() + shifted + envelope + torch.fft.hfft(gain[0]).mean()).backward()
        F.conv1d(wave[:, None], window.flip(0)[None, None], padding="same"), torch.angle(spectrum).diff(dim=-1)

    return step


def mapped_functions() -> Step:
    """Functions over batches: indexing, derivatives of two orders, gradients for each sample."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 2))
    x, labels, chosen = torch.randn(6, 5), torch.randint(0, 2, (6,)), torch.randint(0, 5, (6,))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(given: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, given, (row[None],)), label[None])

    def step() -> None:
        torch.vmap(lambda row, at: row[at])(x, chosen), torch.vmap(torch.dot)(x, x), torch.vmap(torch.diag)(x)
        each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, labels)
        sum(g.flatten(1).norm(dim=1) for g in each.values())
        torch.vmap(torch.func.jacrev(lambda row: torch.func.functional_call(model, weights, (row,))))(x)
        torch.func.hessian(lambda row: torch.func.functional_call(model, weights, (row,)).logsumexp(-1))(x[0])
        torch.func.jvp(lambda rows: rows.sin().cumsum(1), (x,), (torch.ones_like(x),))
        torch.vmap(lambda row, label: F.one_hot(label, 2).float() * row.sum(), randomness="different")(x, labels)

    return step


def box_heads() -> Step:
    """A pyramid of features, centre-ness and boxes at each place, crops by bilinear sampling, and suppression."""
    stages = nn.ModuleList(nn.Conv2d(n, m, 3, 2, 1) for n, m in ((3, 8), (8, 16), (16, 16)))
    sides, tower = nn.ModuleList(nn.Conv2d(n, 16, 1) for n in (8, 16, 16)), nn.Conv2d(16, 16, 3, padding=1)
    classes, boxes, centre = (nn.Conv2d(16, n, 3, padding=1) for n in (4, 4, 1))
    image, truth = torch.rand(1, 3, 64, 64), torch.tensor([[8.0, 8, 40, 36], [20, 30, 60, 62]])

    def step() -> None:
        levels, x = [], image
        for stage in stages:
            levels.append(x := F.hardswish(stage(x)))
        maps = [side(level) for side, level in zip(sides, levels, strict=True)]
        for at in (1, 0):
            maps[at] = maps[at] + F.interpolate(maps[at + 1], size=maps[at].shape[-2:], mode="nearest")
        scores, offsets, places = [], [], []
        for at, level in enumerate(maps):
            h, stride = F.relu(F.group_norm(tower(level), 4)), 2 ** (at + 1)
            scores.append((classes(h).sigmoid() * centre(h).sigmoid()).flatten(2).squeeze(0).T)
            offsets.append(F.softplus(boxes(h)).mul(stride).flatten(2).squeeze(0).T)
            y, x = torch.meshgrid(*(torch.arange(n) for n in level.shape[-2:]), indexing="ij")
            places.append(torch.stack((x, y), -1).reshape(-1, 2) * stride + stride // 2)
        score, offset, place = torch.cat(scores), torch.cat(offsets), torch.cat(places)
        corners = torch.cat((place - offset[:, :2], place + offset[:, 2:]), 1)
        low, high = torch.max(corners[:, None, :2], truth[:, :2]), torch.min(corners[:, None, 2:], truth[:, 2:])
        shared = (high - low).clamp(min=0).prod(2)
        area = (corners[:, 2:] - corners[:, :2]).prod(1)
        overlap = shared / (area[:, None] + (truth[:, 2:] - truth[:, :2]).prod(1) - shared)
        best, which = overlap.max(1)
        target = torch.zeros_like(score)
        target[best > 0.3, which[best > 0.3]] = best[best > 0.3].detach()
        weight = torch.where(target > 0, target, 0.75 * score.detach().pow(2))
        (F.binary_cross_entropy(score, target, weight=weight, reduction="sum") + (1 - best).mean()).backward()
        with torch.no_grad():
            top, at = score.amax(1).topk(20)
            picked, alive = corners[at], torch.ones(20, dtype=torch.bool)
            cross = (
                torch.min(picked[:, None, 2:], picked[:, 2:]) - torch.max(picked[:, None, :2], picked[:, :2])
            ).clamp(0)
            inside = cross.prod(-1) / area[at].clamp(min=1e-6)
            for i in range(4):
                alive &= (inside[i] < 0.6) | (torch.arange(20) <= i)
            kept = torch.nonzero(alive).squeeze(1)
            steps = torch.linspace(0, 1, 5)
            grid = (
                picked[kept, None, None, :2]
                + steps[None, :, None, None] * (picked[kept, 2:] - picked[kept, :2])[:, None, None]
            )
            F.grid_sample(maps[0].expand(len(kept), -1, -1, -1), grid / 32 - 1, align_corners=True), top[kept]

    return step


def pixel_denoiser() -> Step:
    """A UNet that predicts noise: residual blocks, attention at the bottom, skips, and an average of its weights."""

    class Block(nn.Module):
        def __init__(self, wide: int, out: int) -> None:
            super().__init__()
            self.norm, self.first = nn.GroupNorm(4, wide), nn.Conv2d(wide, out, 3, padding=1)
            self.time, self.second = nn.Linear(16, out), nn.Conv2d(out, out, 3, padding=1)
            self.short = nn.Conv2d(wide, out, 1) if wide != out else nn.Identity()

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            h = self.first(F.silu(self.norm(x))) + self.time(t)[..., None, None]
            return self.second(F.dropout2d(F.mish(h), 0.1)) + self.short(x)

    enter, down, deep, up = nn.Conv2d(3, 8, 3, padding=1), Block(8, 16), Block(16, 16), Block(32, 8)
    shrink, grow, attend = nn.AvgPool2d(2), nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.MultiheadAttention(16, 2)
    leave, norm = nn.Conv2d(16, 3, 3, padding=1), nn.LayerNorm(16)
    parts = nn.ModuleList((enter, down, deep, up, grow, attend, leave, norm))
    average = [p.detach().clone() for p in parts.parameters()]
    optimizer = torch.optim.AdamW(parts.parameters(), 1e-3, amsgrad=True)
    noise_left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    image = torch.rand(2, 3, 16, 16)

    def predict(x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None].float() * torch.exp(torch.arange(8) * (-math.log(10000) / 8))
        time = torch.cat((angle.sin(), angle.cos()), -1)
        first = enter(x)
        h = deep(second := down(shrink(first), time), time)
        flat = norm(h.flatten(2).permute(2, 0, 1))
        h = h + attend(flat, flat, flat, need_weights=False)[0].permute(1, 2, 0).view_as(h)
        return leave(torch.cat((up(torch.cat((grow(h), grow(second)), 1), time), first), 1))

    def step() -> None:
        optimizer.zero_grad()
        t, noise = torch.randint(0, 50, (2,)), torch.randn_like(image)
        left = noise_left[t].view(-1, 1, 1, 1)
        found = predict(left.sqrt() * image + (1 - left).sqrt() * noise, t)
        weight = torch.minimum(left / (1 - left), torch.tensor(5.0))
        (F.mse_loss(found, noise, reduction="none").mean((1, 2, 3), keepdim=True) * weight).mean().backward()
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in parts.parameters()], 0.01)
        with torch.no_grad():
            x = torch.randn(1, 3, 16, 16)
            for n in (49, 25):
                eps = predict(x, torch.tensor([n]))
                clean = ((x - (1 - noise_left[n]).sqrt() * eps) / noise_left[n].sqrt()).clamp(-1, 1)
                x = noise_left[n // 2].sqrt() * clean + (1 - noise_left[n // 2]).sqrt() * eps

    return step


def selective_scan() -> Step:
    """A state space whose steps depend on the input: by a loop, by chunks with sums of logarithms, and step by step."""
    enter, short = nn.Linear(24, 96, bias=False), nn.Conv1d(48, 48, 4, groups=48, padding=3)
    select, rate, leave = nn.Linear(48, 2 * 8 + 3), nn.Linear(3, 48), nn.Linear(48, 24)
    decay, skip = nn.Parameter(torch.log(torch.arange(1.0, 9).repeat(48, 1))), nn.Parameter(torch.ones(48))
    x = torch.randn(2, 16, 24)

    def step() -> None:
        u, gate = enter(x).chunk(2, -1)
        u = F.silu(short(u.mT)[..., :16]).mT
        low, b, c = select(u).split([3, 8, 8], -1)
        delta = F.softplus(rate(low))
        keep = torch.exp(delta[..., None] * -decay.exp())
        put = delta[..., None] * b[:, :, None] * u[..., None]
        state, out = torch.zeros(2, 48, 8), []
        for t in range(16):
            state = keep[:, t] * state + put[:, t]
            out.append((state @ c[:, t, :, None]).squeeze(-1))
        y = torch.stack(out, 1) + u * skip
        loss = leave(y * F.silu(gate)).square().mean()
        # Scalar decays, in chunks of four: within by a triangle, across by carried states.
        amount = -delta.mean(-1).view(2, 4, 4)
        along = amount.cumsum(-1)
        gaps = (
            (along[..., :, None] - along[..., None, :]).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf).exp()
        )
        bc, cc, uc = (part.unflatten(1, (4, 4)) for part in (b, c, u))
        within = torch.einsum("bcls,bcsn,bcld,bcsp->bclp", gaps, bc, cc[..., :1], uc)
        states = torch.einsum("bcsn,bcs,bcsp->bcpn", bc, (along[..., -1:] - along).exp(), uc)
        carried = torch.einsum("bzc,bcpn->bzpn", F.pad(along[..., -1], (1, 0)).cumsum(1)[:, None, :4].exp(), states)
        (loss + within.mean() + carried.mean() + torch.logcumsumexp(amount, -1).mean()).backward()

    return step


def forecast_losses() -> Step:
    """Quantiles, scores of ensembles and likelihoods of counts, of a temporal network."""
    layers = nn.ModuleList(nn.Conv1d(n, 12, 3, dilation=d, padding=d) for n, d in ((4, 1), (12, 2), (12, 4)))
    heads = nn.Linear(12, 5)
    series, levels = torch.randn(6, 4, 24), torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9])
    series[0, 0, :3] = math.nan

    def step() -> None:
        x = torch.nan_to_num(series)
        for layer in layers:
            x = F.softsign(F.layer_norm(layer(x).mT, (12,)).mT) + (x if x.shape[1] == 12 else 0)
        found, truth = heads(x.mT), series[:, 0].nan_to_num().unsqueeze(-1)
        gap = truth - found
        pinball = torch.maximum(levels * gap, (levels - 1) * gap).mean()
        sorted_, _ = found.sort(dim=-1)
        crps = gap.abs().mean() - (sorted_ * (2 * torch.arange(1, 6) - 6)).sum(-1).mean() / 25
        nll = F.gaussian_nll_loss(found[..., 0], truth[..., 0], F.softplus(found[..., 1])) + F.poisson_nll_loss(
            found[..., 2], truth[..., 0].abs().round()
        )
        nll = nll + F.huber_loss(found[..., 3:4], truth, delta=0.5) + F.smooth_l1_loss(found[..., 4:], truth, beta=0.3)
        nll = nll - torch.distributions.StudentT(4.0, found[..., 0], 1.0).log_prob(truth[..., 0]).mean()
        (pinball + crps + nll).backward()
        with torch.no_grad():
            torch.quantile(found, levels, dim=1), torch.nanquantile(series, 0.5, dim=-1, keepdim=True)
            (
                torch.quantile(found.flatten(), 0.3, interpolation="nearest"),
                torch.nanmean(series, -1),
                torch.nansum(series),
            )
            torch.distributions.NegativeBinomial(3.0, logits=found[..., 0]).log_prob(truth[..., 0].abs().round())
            found.median(1).values, torch.nanmedian(series), torch.mode(found.round(), 1)

    return step


def listed_optimizers() -> Step:
    """Optimizers in lists of tensors, written out with them, and gradients scaled, clipped and averaged."""
    model = nn.Sequential(
        nn.Linear(8, 16), nn.PReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.CELU(), nn.Linear(16, 3)
    )
    x, weights = torch.randn(10, 8), [*model.parameters()]
    kinds = [
        torch.optim.Adam(weights, 1e-3, weight_decay=0.1, foreach=True, amsgrad=True),
        torch.optim.RAdam(weights, 1e-3, foreach=True), torch.optim.ASGD(weights, 1e-3, foreach=True),
        torch.optim.Rprop(weights, 1e-3, foreach=True), torch.optim.Adafactor(weights, 1e-3, foreach=True),
        torch.optim.SGD(weights, 1e-3, momentum=0.9, nesterov=True, foreach=True),
        torch.optim.Adagrad(weights, fused=True),
    ]  # fmt: skip
    moments = [torch.zeros_like(w) for w in weights]

    def step() -> None:
        for optimizer in kinds:
            optimizer.zero_grad()
            model(x).logsumexp(1).mean().backward()
            optimizer.step()
        grads = [w.grad for w in weights]
        norms = torch._foreach_norm(grads)
        scale = (1.0 / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(grads, scale)
        signs = torch._foreach_sign(torch._foreach_add(torch._foreach_mul(moments, 0.9), grads, alpha=0.1))
        with torch.no_grad():
            torch._foreach_mul_(weights, 0.999), torch._foreach_add_(weights, signs, alpha=-1e-4)
        (
            torch._foreach_lerp_(moments, grads, 0.01),
            torch._foreach_addcdiv_(moments, grads, torch._foreach_abs(weights), 0.1),
        )
        (
            torch._foreach_clamp_min_(moments, -1.0),
            torch._foreach_maximum(moments, grads),
            torch._foreach_sqrt(torch._foreach_abs(grads)),
        )
        total = nn.utils.get_total_norm(grads, norm_type=math.inf)
        nn.utils.clip_grads_with_norm_(weights, 1.0, total), nn.utils.parameters_to_vector(weights).norm()

    return step


def sound_codec() -> Step:
    """A codec: strided convolutions with periodic activations, residual codebooks, and a judge of periods."""
    down, up = nn.Conv1d(1, 8, 8, 4, 2), nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 1, 8, 4, 2))
    rate, books = nn.Parameter(torch.ones(8, 1)), torch.randn(3, 16, 8)
    judge, wave = (
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 6, (5, 1), (3, 1), (2, 0))),
        torch.randn(2, 1, 160),
    )

    def step() -> None:
        h = down(wave)
        h = h + (rate * h).sin().square() / (rate + 1e-9)
        left, summed, loss = h.mT, torch.zeros(2, 40, 8), torch.zeros(())
        for book in books:
            far = left.pow(2).sum(-1, keepdim=True) - 2 * left @ book.T + book.pow(2).sum(-1)
            code = far.argmin(-1)
            chosen = F.embedding(code, book)
            loss = loss + F.mse_loss(left, chosen)
            summed, left = summed + chosen, left - chosen
            F.one_hot(code, 16).float().flatten(0, 1).mean(0).clamp(min=1e-10).log()
        again = torch.tanh(up((h.mT + (summed - h.mT).detach()).mT))
        for period in (3, 5):
            padded = F.pad(again, (0, (period - 160 % period) % period), "reflect")
            loss = loss + F.relu(1 - F.leaky_relu(judge(padded.view(2, 1, -1, period)), 0.1)).mean()
        (loss + F.l1_loss(again, wave) + F.cosine_embedding_loss(again[:, 0], wave[:, 0], torch.ones(2))).backward()

    return step


def cells() -> Step:
    """Recurrent cells one step at a time, an attention over memory, and a stack whose layers remember."""
    first, second, plain = nn.LSTMCell(6, 10), nn.GRUCell(10, 10), nn.RNNCell(10, 8, nonlinearity="relu")
    memory, tanh_net = torch.randn(4, 7, 10), nn.RNN(8, 5, nonlinearity="tanh", batch_first=True)
    projected = nn.LSTM(5, 12, proj_size=6, batch_first=True)
    x = torch.randn(9, 4, 6)

    def step() -> None:
        state, h, last = (torch.zeros(4, 10), torch.zeros(4, 10)), torch.zeros(4, 10), torch.zeros(4, 8)
        rows = []
        for part in x.unbind(0):
            state = first(part, state)
            h = second(state[0], h)
            weight = torch.bmm(memory, h.unsqueeze(2)).squeeze(2).softmax(1)
            seen = torch.bmm(weight.unsqueeze(1), memory).squeeze(1)
            last = plain(h + seen, last)
            rows.append(last)
        out, _ = tanh_net(torch.stack(rows, 1))
        out, (carried, _) = projected(out)
        (out.square().mean() + carried.mean() + F.threshold(out, 0.1, 0.0).sum()).backward()

    return step


def masked_words() -> Step:
    """Words hidden and guessed at their places alone, sentences compared, and adapters in bfloat16."""
    words, kinds = nn.Embedding(60, 24, padding_idx=0), nn.Embedding(2, 24)
    block = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, norm_first=True, activation="gelu", dropout=0.1)
    low, high, bias = nn.Linear(24, 4, bias=False), nn.Linear(4, 24, bias=False), nn.Parameter(torch.zeros(60))
    text = torch.randint(1, 60, (4, 14))
    text[:, 11:] = 0

    def step() -> None:
        hidden = torch.bernoulli(torch.full(text.shape, 0.3)).bool() & (text != 0)
        hidden[:, 0] = True
        given = torch.where(hidden, 59, text)
        x = words(given) + kinds((torch.arange(14) > 6).long())
        x = block(x, src_key_padding_mask=text == 0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x + high(F.relu6(low(x)))
        places = hidden.flatten().nonzero().squeeze(1)
        logits = F.linear(x.float().flatten(0, 1).index_select(0, places), words.weight, bias)
        loss = F.cross_entropy(logits, text.flatten()[places]) + F.kl_div(
            logits.log_softmax(-1), torch.full_like(logits, 1 / 60), reduction="batchmean"
        )
        sentence = (x * (text != 0).unsqueeze(-1)).sum(1) / (text != 0).sum(1, keepdim=True)
        alike = F.cosine_similarity(sentence[:, None], sentence[None], dim=-1) / 0.05
        triplet = F.triplet_margin_loss(sentence[:1], sentence[1:2], sentence[2:3])
        (loss + F.cross_entropy(alike.float(), torch.arange(4)) + triplet).backward()
        (
            F.embedding_bag(text, words.weight, mode="mean", padding_idx=0),
            (logits.argmax(1) == text.flatten()[places]).sum(),
        )

    return step


def transport() -> Step:
    """Optimal transport by Sinkhorn's iterations, distances of several norms, and kernels."""
    x, y = torch.randn(12, 3, requires_grad=True), torch.randn(15, 3)

    def step() -> None:
        cost = torch.cdist(x, y, p=1.0) + torch.cdist(x, y).square()
        f, g = torch.zeros(12), torch.zeros(15)
        for _ in range(3):
            f = -0.1 * ((g[None] - cost) / 0.1 - math.log(15)).logsumexp(1)
            g = -0.1 * ((f[:, None] - cost) / 0.1 - math.log(12)).logsumexp(0)
        plan = ((f[:, None] + g[None] - cost) / 0.1).exp() / 180
        kernel = torch.exp(-torch.cdist(torch.cat((x, y)), torch.cat((x, y))).square() / 2)
        mmd = kernel[:12, :12].mean() + kernel[12:, 12:].mean() - 2 * kernel[:12, 12:].mean()
        chamfer = cost.min(1).values.mean() + cost.min(0)[0].mean()
        projected = (x @ F.normalize(torch.randn(3, 8), dim=0)).sort(dim=0).values
        sliced = (projected - (y[:12] @ torch.eye(3, 8)).sort(dim=0).values).abs().mean()
        ((plan * cost).sum() + mmd + chamfer + sliced + F.pdist(x).mean() + torch.dist(x, y[:12], 3)).backward()

    return step


def image_filters() -> Step:
    """Images blurred, sharpened, equalised, warped and resized in every mode, and compared by structure."""
    image = torch.rand(2, 3, 24, 28, requires_grad=True)
    row = torch.exp(-torch.linspace(-1, 1, 5).square())
    turn = torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.1]]]).repeat(2, 1, 1)

    def blur(x: Tensor) -> Tensor:
        kernel = torch.outer(row, row / row.sum()).expand(3, 1, 5, 5)
        return F.conv2d(F.pad(x, (2, 2, 2, 2), mode="replicate"), kernel, groups=3)

    def step() -> None:
        soft = blur(image)
        sharp = (image + 0.5 * (image - soft)).clamp(0, 1)
        windows = F.unfold(sharp, 3, padding=1).view(2, 3, 9, 24, 28)
        middle = windows.median(dim=2).values
        grid = F.affine_grid(turn, [2, 3, 20, 20], align_corners=False)
        warped = F.grid_sample(middle, grid, mode="bicubic", padding_mode="border", align_corners=False)
        sizes = [
            F.interpolate(warped, scale_factor=2, mode="bicubic", align_corners=False).mean(),
            F.interpolate(warped, size=(7, 9), mode="area").mean(),
            F.interpolate(warped, size=15, mode="nearest-exact").mean(),
            F.interpolate(warped, scale_factor=0.5, mode="bilinear", antialias=True).mean(),
        ]  # fmt: skip
        a, b = F.avg_pool2d(image, 5, 1), F.avg_pool2d(soft, 5, 1)
        both = F.avg_pool2d(image * soft, 5, 1) - a * b
        alike = ((2 * a * b + 1e-4) * (2 * both + 9e-4)) / ((a * a + b * b + 1e-4) * (both.abs() + 9e-4))
        variation = image.diff(dim=-1).abs().mean() + image.diff(dim=-2).abs().mean()
        (torch.stack(sizes).sum() + alike.mean() + variation + F.pixel_unshuffle(image, 2).amax(1).mean()).backward()
        with torch.no_grad():
            levels = (image * 255).to(torch.uint8)
            counts = torch.stack([torch.bincount(part.flatten().int(), minlength=256) for part in levels.flatten(0, 1)])
            table = (counts.cumsum(1) * 255 // (24 * 28)).clamp(0, 255)
            table.gather(1, levels.flatten(0, 1).flatten(1).long()).view_as(levels).to(torch.uint8)
            (
                torch.rot90(image, 1, (2, 3)),
                image.flip(-1),
                torch.where(image > 0.5, 1 - image, image),
                image.roll((1, 2), (2, 3)),
            )
            (
                F.max_pool2d(-F.max_pool2d(-image, 3, 1, 1), 3, 1, 1),
                F.lp_pool2d(image, 2, 2),
                F.fractional_max_pool2d(image, 2, output_size=(8, 9)),
            )

    return step


def state_filters() -> Step:
    """Kalman filters of a batch, particles resampled, and dynamics by matrix exponentials."""
    move, see = torch.eye(4).repeat(3, 1, 1) + 0.1 * torch.randn(3, 4, 4), torch.randn(2, 4, requires_grad=True)
    noise, marks = torch.eye(4) * 0.1, torch.randn(8, 3, 2)

    def step() -> None:
        mean, spread, loss = torch.zeros(3, 4), torch.eye(4).expand(3, 4, 4), torch.zeros(())
        for mark in marks:
            mean = torch.matmul(move, mean.unsqueeze(-1)).squeeze(-1)
            spread = move @ spread @ move.mT + noise
            inside = see @ spread @ see.T + torch.eye(2) * 0.2
            gain = torch.linalg.solve(inside, see @ spread).mT
            gap = mark - mean @ see.T
            mean = mean + torch.einsum("bij,bj->bi", gain, gap)
            spread = (torch.eye(4) - gain @ see) @ spread
            lower = torch.linalg.cholesky(inside)
            loss = loss + torch.cholesky_solve(gap.unsqueeze(-1), lower).squeeze(-1).mul(gap).sum()
            loss = loss + 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum()
        loss.backward()
        with torch.no_grad():
            particles = torch.distributions.MultivariateNormal(mean, spread + 0.01 * torch.eye(4)).sample((20,))
            weight = (-(particles @ see.T - marks[-1]).square().sum(-1)).softmax(0)
            along = weight.cumsum(0).T.contiguous()
            at = torch.searchsorted(along, ((torch.arange(20) + torch.rand(3, 1)) / 20).contiguous()).clamp(max=19)
            particles.transpose(0, 1).gather(1, at.unsqueeze(-1).expand(-1, -1, 4)).mean(1)
            torch.matrix_exp(move * 0.1), torch.addr(noise, mean[0], mean[1]), torch.addbmm(noise, move, spread)
            torch.linalg.inv_ex(spread), torch.addmv(mean[0], noise, mean[1])

    return step


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


def object_queries() -> Step:
    """A detector with learned queries, boxes refined layer by layer and matched to the truth."""
    backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 32, 3, 2, 1))
    encoder = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, activation="gelu")
    decoder = nn.TransformerDecoderLayer(32, 4, 48, dropout=0.1)
    queries, classes, boxes = nn.Embedding(12, 32), nn.Linear(32, 5), nn.Linear(32, 4)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *decoder.parameters(), *boxes.parameters()], 1e-4)
    images, hidden = torch.rand(2, 3, 32, 40), torch.zeros(2, 8, 10, dtype=torch.bool)
    hidden[1, :, 7:] = True

    def places() -> Tensor:
        y, x = (~hidden).cumsum(1, dtype=torch.float32), (~hidden).cumsum(2, dtype=torch.float32)
        x = x / (x[:, :, -1:] + 1e-6) * 2 * math.pi
        y = y / (y[:, -1:, :] + 1e-6) * 2 * math.pi
        t = 10000 ** (2 * torch.div(torch.arange(16), 2, rounding_mode="floor") / 16)
        x, y = x[..., None] / t, y[..., None] / t
        x = torch.stack((x[..., 0::2].sin(), x[..., 1::2].cos()), dim=4).flatten(3)
        y = torch.stack((y[..., 0::2].sin(), y[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((y, x), dim=3).permute(0, 3, 1, 2)

    def step() -> None:
        optimizer.zero_grad()
        source = (backbone(images) + places()).flatten(2).permute(2, 0, 1)
        memory = encoder(source, src_key_padding_mask=hidden.flatten(1))
        target = queries.weight.unsqueeze(1).repeat(1, 2, 1)
        out = decoder(target, memory, memory_key_padding_mask=hidden.flatten(1)).transpose(0, 1)
        logits, found = classes(out), boxes(out).sigmoid()
        truth, labels = torch.rand(5, 4), torch.randint(0, 4, (5,))
        with torch.no_grad():
            cost = torch.cdist(found.flatten(0, 1), truth, p=1) - logits.flatten(0, 1).softmax(-1)[:, labels]
            cost = cost.view(2, 12, -1)
            rows = torch.stack([c[0].topk(3, dim=0, largest=False).indices[0] for c in cost.split(1)])
        goal = torch.full((2, 12), 4, dtype=torch.int64)
        goal.scatter_(1, rows, labels.expand(2, -1))
        weight = torch.ones(5)
        weight[-1] = 0.1
        loss = F.cross_entropy(logits.transpose(1, 2), goal, weight)
        (loss + F.l1_loss(torch.stack([found[i, rows[i]] for i in range(2)]), truth.expand(2, -1, -1))).backward()
        optimizer.step()

    return step


def lattice_physics() -> Step:
    """A lattice Boltzmann step, a multigrid cycle, spectra of a turbulent field and a fit by least squares."""
    speeds = torch.tensor([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]])
    weights = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
    flow, wall = torch.rand(9, 24, 16) + 0.1, torch.zeros(24, 16, dtype=torch.bool)
    wall[8:12, 6:9] = True
    spread = torch.tensor([[[[0.0, 1, 0], [1, 4, 1], [0, 1, 0]]]]) / 8

    @torch.no_grad()
    def step() -> None:
        f = flow
        for _ in range(2):
            f = torch.stack([torch.roll(f[i], tuple(speeds[i].tolist()), dims=(0, 1)) for i in range(9)])
            bounced = f[[0, 3, 4, 1, 2, 7, 8, 5, 6]][:, wall]
            rho = f.sum(0)
            u = torch.einsum("id,ixy->dxy", speeds.float(), f) / rho
            cu = torch.tensordot(speeds.float(), u, dims=1)
            rest = rho * weights[:, None, None] * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0))
            f = torch.lerp(f, rest, 0.6)
            f[:, wall] = bounced
        curl = torch.gradient(u[1], dim=0)[0] - torch.gradient(u[0], dim=1)[0]
        power = torch.fft.rfft2(curl, norm="forward").abs().square()
        k = (torch.fft.fftfreq(24)[:, None] ** 2 + torch.fft.rfftfreq(16) ** 2).sqrt().mul(24).long()
        shells = torch.zeros(20).index_add_(0, k.flatten(), power.flatten())
        x, b = torch.zeros(1, 1, 16, 16), torch.rand(1, 1, 16, 16)
        x = x + 0.6 * (b - F.conv2d(x, spread, padding=1))
        coarse = F.avg_pool2d(b - F.conv2d(x, spread, padding=1), 2)
        x = x + F.interpolate(coarse * 0.5, scale_factor=2, mode="nearest")
        basis = torch.stack([torch.ones(20), torch.arange(20.0), torch.arange(20.0).square()], 1)
        torch.linalg.lstsq(basis, shells.log1p().unsqueeze(1)).solution.squeeze()
        torch.linalg.eigvalsh(torch.cov(u.flatten(1))), torch.histc(curl, 12), curl.view(6, 4, 4, 4).amax((1, 3))

    return step


def mixture_of_depths() -> Step:
    """Tokens chosen for a block by a router, sliding windows in attention, tied heads, several tokens ahead."""
    words, router, norm = nn.Embedding(70, 32), nn.Linear(32, 1), nn.LayerNorm(32, bias=False)
    qkv, out, heads = nn.Linear(32, 64), nn.Linear(32, 32), nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
    mlp = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
    parameters = [p for m in (words, router, norm, qkv, out, heads, mlp) for p in m.parameters()]
    optimizer = torch.optim.Adamax(parameters, 2e-3)
    text = torch.randint(0, 70, (3, 20))
    slopes = torch.pow(2.0, -torch.arange(1, 5).float() * 2)

    def step() -> None:
        optimizer.zero_grad()
        x = words(text) * math.sqrt(32)
        weights = router(x).squeeze(-1)
        top, chosen = torch.topk(weights, 8, dim=1, sorted=False)
        chosen, order = chosen.sort(dim=1)
        top = top.gather(1, order)
        index = chosen.unsqueeze(-1).expand(-1, -1, 32)
        h = norm(torch.gather(x, 1, index))
        q, k, v = torch.split(qkv(h), [32, 16, 16], dim=-1)
        q = q.view(3, 8, 4, 8).transpose(1, 2)
        k, v = (t.view(3, 8, 2, 8).transpose(1, 2).repeat_interleave(2, dim=1) for t in (k, v))
        far = chosen[:, :, None] - chosen[:, None, :]
        bias = -far.abs()[:, None] * slopes[:, None, None]
        bias = bias.masked_fill(((far < 0) | (far > 6))[:, None], torch.finfo(torch.float32).min)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        h = out(mixed)
        h = (h + mlp(h)) * torch.sigmoid(top).unsqueeze(-1)
        x = x.scatter_add(1, index, h)
        losses = []
        for ahead, head in enumerate(heads, start=1):
            logits = F.linear(F.rms_norm(head(x[:, :-ahead]), (32,)), words.weight)
            losses.append(F.cross_entropy(logits.permute(0, 2, 1), text[:, ahead:], reduction="none").mean(1))
        mask = torch.zeros(3, 20).scatter_(1, chosen, 1.0)
        balance = F.binary_cross_entropy_with_logits(weights, mask)
        (
            torch.stack(losses, dim=1).sum(dim=1).mean() + 0.01 * balance + 1e-4 * weights.logsumexp(-1).square().mean()
        ).backward()
        optimizer.step()

    return step


FURTHER = workloads_of(globals())
