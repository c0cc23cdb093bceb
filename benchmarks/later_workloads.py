# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false, reportUnusedExpression=false, reportOperatorIssue=false
"""Workloads that were written after the rules that those of `unseen_workloads` led to, and recorded once since.

Owns what is run. A rule that is made after looking at one of these moves that one to `unseen_workloads`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from recorded_workloads import Step, workloads_of
from torch import Tensor, nn


def streaming_separation() -> Step:
    """Sources of a mixture separated by learned filters, chunk after chunk, with a loss over permutations."""
    encode, decode = nn.Conv1d(1, 32, 16, stride=8, bias=False), nn.ConvTranspose1d(32, 1, 16, stride=8, bias=False)
    within, across = (nn.LSTM(32, 16, batch_first=True, bidirectional=True) for _ in range(2))
    norms, masks = nn.ModuleList(nn.GroupNorm(1, 32, eps=1e-8) for _ in range(2)), nn.Conv1d(32, 64, 1)
    mixture, sources = torch.randn(2, 400), torch.randn(2, 2, 400)

    def step() -> None:
        features = F.relu(encode(mixture.unsqueeze(1)))
        b, c, n = features.shape
        rest = (10 - n % 10) % 10
        chunks = F.pad(features, (0, rest)).unfold(-1, 20, 10).permute(0, 1, 3, 2)
        size, count = chunks.shape[2:]
        rows = within(chunks.permute(0, 3, 2, 1).reshape(b * count, size, c))[0]
        h = chunks + norms[0](rows.view(b, count, size, c).permute(0, 3, 2, 1))
        columns = across(h.permute(0, 2, 3, 1).contiguous().view(b * size, count, c))[0]
        h = h + norms[1](columns.view(b, size, count, c).permute(0, 3, 1, 2))
        whole = F.fold(h.reshape(b, c * size, count), (1, n + rest), (1, size), stride=(1, 10))[:, :, 0, :n]
        mask = torch.sigmoid(masks(whole)).view(b, 2, c, n)
        found = decode((mask * features.unsqueeze(1)).flatten(0, 1)).view(b, 2, -1)
        truth = sources[..., : found.shape[-1]]
        truth = truth - truth.mean(-1, keepdim=True)
        pairs = []
        for order in ((0, 1), (1, 0)):
            one = found[:, order]
            along = (one * truth).sum(-1, keepdim=True) * truth / (truth.pow(2).sum(-1, keepdim=True) + 1e-8)
            pairs.append(10 * torch.log10(along.pow(2).sum(-1) / ((one - along).pow(2).sum(-1) + 1e-8)).mean(1))
        (-torch.stack(pairs, dim=1).max(dim=1).values.mean()).backward()

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


def world_model() -> Step:
    """A recurrent state of categories with straight-through samples, imagined ahead; targets over several steps."""
    cell, prior, posterior = nn.GRUCell(20, 24), nn.Linear(24, 32), nn.Linear(24 + 10, 32)
    enter, reward, value = nn.Linear(32 + 3, 20), nn.Linear(56, 1), nn.Linear(56, 21)
    seen, moves = torch.randn(6, 4, 10), torch.randn(6, 4, 3)
    bins = torch.linspace(-5, 5, 21)

    def sample(logits: Tensor) -> tuple[Tensor, Tensor]:
        chance = 0.99 * F.softmax(logits.view(-1, 4, 8), -1) + 0.01 / 8
        hot = torch.distributions.OneHotCategoricalStraightThrough(probs=chance)
        return hot.rsample().flatten(1), chance

    def step() -> None:
        h, z, kl, states = torch.zeros(4, 24), torch.zeros(4, 32), torch.zeros(()), []
        for t in range(6):
            h = cell(F.elu(enter(torch.cat([z, moves[t]], -1))), h)
            z, q = sample(posterior(torch.cat([h, seen[t]], -1)))
            p = 0.99 * F.softmax(prior(h).view(-1, 4, 8), -1) + 0.01 / 8
            kl = kl + torch.clamp((q * (q.log() - p.log())).sum((-2, -1)), min=1.0).mean()
            states.append(torch.cat([h, z], -1))
        s = torch.stack(states)
        rewards, heads = reward(s).squeeze(-1), value(s)
        values = (heads.softmax(-1) * bins).sum(-1)
        goals, after = [], values[-1]
        for t in range(5, -1, -1):
            after = rewards[t] + 0.99 * (0.05 * values[t] + 0.95 * after)
            goals.insert(0, after)
        goal = (torch.sign(torch.stack(goals)) * torch.log1p(torch.stack(goals).abs())).detach().clamp(-5, 5)
        below = torch.searchsorted(bins, goal, right=True).sub(1).clamp(0, 19)
        share = (bins[below + 1] - goal) / (bins[below + 1] - bins[below])
        two = F.one_hot(below, 21) * share[..., None] + F.one_hot(below + 1, 21) * (1 - share)[..., None]
        (kl - (two * heads.log_softmax(-1)).sum(-1).mean() + rewards.pow(2).mean()).backward()

    return step


def neural_fields() -> Step:
    """A hash grid of features, interpolated by eight corners, in a small network in bfloat16."""
    tables = nn.Parameter(torch.rand(3, 64, 2) * 1e-2)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    primes = torch.tensor([1, 2654435761, 805459861])
    corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)])

    def step() -> None:
        points, features = torch.rand(50, 3), []
        for level, side in enumerate((4, 8, 16)):
            scaled = points * side
            low = scaled.floor()
            share = scaled - low
            at = low.long()[:, None] + corners
            mixed = at * primes
            code = torch.bitwise_xor(torch.bitwise_xor(mixed[..., 0], mixed[..., 1]), mixed[..., 2]) % 64
            weights = torch.where(corners.bool(), share[:, None], 1 - share[:, None]).prod(-1, keepdim=True)
            features.append((tables[level][code] * weights).sum(1))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(torch.cat(features, -1))
        colour, dense = out[:, :3].sigmoid(), F.softplus(out[:, 3].float() - 1)
        alpha = 1 - torch.exp(-dense.view(5, 10) * 0.1)
        light = torch.cumprod(torch.cat([torch.ones(5, 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        seen = torch.sum((alpha * light)[..., None] * colour.view(5, 10, 3).float(), -2)
        (F.mse_loss(seen, torch.rand(5, 3)) + 1e-4 * tables.diff(dim=1).abs().sum()).backward()

    return step


def sequence_labels() -> Step:
    """A tagger with words and characters, a conditional random field, and its best path."""
    words, letters = nn.Embedding(80, 20, padding_idx=0), nn.Embedding(30, 8, padding_idx=0)
    narrow, tagger, head = nn.Conv1d(8, 12, 3, padding=1), nn.LSTM(32, 10, bidirectional=True), nn.Linear(20, 6)
    moves, first = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))
    text, spelled = torch.randint(1, 80, (7, 3)), torch.randint(1, 30, (7, 3, 9))
    tags, seen = torch.randint(0, 6, (7, 3)), torch.arange(7)[:, None] < torch.tensor([7, 5, 4])

    def step() -> None:
        characters = narrow(letters(spelled.flatten(0, 1)).transpose(1, 2)).max(dim=-1)[0].view(7, 3, -1)
        x = F.dropout(torch.cat((words(text), characters), dim=2), 0.5)
        scores = head(tagger(x)[0])
        alpha = first + scores[0]
        total = first[tags[0]] + scores[0].gather(1, tags[0].unsqueeze(1)).squeeze(1)
        for t in range(1, 7):
            after = torch.logsumexp(alpha.unsqueeze(2) + moves + scores[t].unsqueeze(1), dim=1)
            alpha = torch.where(seen[t].unsqueeze(1), after, alpha)
            total = total + (moves[tags[t - 1], tags[t]] + scores[t, torch.arange(3), tags[t]]) * seen[t]
        (alpha.logsumexp(1) - total).sum().backward()
        with torch.no_grad():
            best, back = first + scores[0], []
            for t in range(1, 7):
                best, origin = (best[:, :, None] + moves).max(1)
                best = best + scores[t]
                back.append(origin)
            tag = best.argmax(-1)
            path = [tag]
            for origin in reversed(back):
                tag = origin.gather(1, tag[:, None])[:, 0]
                path.append(tag)
            torch.stack(path[::-1]).masked_fill_(~seen, -1).ne(tags).sum()

    return step


def self_distillation() -> Step:
    """Views of images, a teacher that follows, prototypes balanced by turns, redundancy between features."""
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(3, 8, 3, 2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(8, 16),
    )
    student, teacher, prototypes = make(), make(), nn.Linear(16, 10, bias=False)
    teacher.requires_grad_(False)
    centre = torch.zeros(1, 10)
    optimizer = torch.optim.SGD(student.parameters(), 0.1, momentum=0.9, foreach=True)
    images = torch.rand(6, 3, 20, 20)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        flip = torch.rand(6) < 0.5
        one = torch.where(flip[:, None, None, None], images.flip(3), images)
        two = one[:, :, 2:16, 3:17] * torch.empty(6, 1, 1, 1).uniform_(0.6, 1.4)
        grey = (two * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True).expand(-1, 3, -1, -1)
        two = F.interpolate(torch.lerp(two, grey, 0.5), (20, 20), mode="bicubic", align_corners=False).clamp(0, 1)
        with torch.no_grad():
            prototypes.weight.copy_(F.normalize(prototypes.weight, dim=1))
            goal = torch.exp(prototypes(F.normalize(teacher(one), dim=-1)) / 0.05).t()
            goal /= goal.sum()
            for _ in range(3):
                goal /= goal.sum(dim=1, keepdim=True) * 10
                goal /= goal.sum(dim=0, keepdim=True) * 6
            goal = (goal * 6).t()
        z = student(torch.cat([one, two]))
        a, b = z.chunk(2)
        swapped = -(goal * F.log_softmax((prototypes(F.normalize(b, dim=-1)) - centre) / 0.1, dim=1)).sum(1).mean()
        a, b = ((v - v.mean(0)) / (v.std(0) + 1e-5) for v in (a, b))
        c = a.T @ b / 6
        apart = c.flatten()[:-1].view(15, 17)[:, 1:].flatten()
        (swapped + (torch.diagonal(c) - 1).pow(2).sum() * 0.01 + 5e-3 * apart.pow(2).sum()).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.004)
            centre.mul_(0.9).add_(goal.mean(dim=0, keepdim=True), alpha=0.1)

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


LATER = workloads_of(globals())
