# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false, reportUnusedExpression=false, reportOperatorIssue=false
"""Workloads that were compared with their plans only after the rules for `mapped_workloads` were finished.

A rule made after looking at one of these moves that workload to `mapped_workloads`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from recorded_workloads import Step, workloads_of
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def conformer_speech() -> Step:
    """Relative positions, gated convolutions and masked frames, with a CTC loss, a joint network and greedy paths."""
    width, heads = 24, 3
    down = nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 6, 3, (2, 1), (0, 1)), nn.SiLU())
    enter, qkv, places = nn.Linear(6 * 7, width), nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
    content, position = (nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2))
    point, depth = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 5, padding=2, groups=width)
    batch, norm = nn.BatchNorm1d(width), nn.LayerNorm(width)
    head, words, recurrent = nn.Linear(width, 20), nn.Embedding(20, width, padding_idx=0), nn.GRU(width, width)
    joint = nn.Sequential(nn.Tanh(), nn.Linear(width, 20))
    modules = nn.ModuleList([down, enter, qkv, places, point, depth, batch, norm, head, words, recurrent, joint])
    optimizer = torch.optim.NAdam(modules.parameters(), 1e-3)
    sound, targets = torch.randn(2, 50, 16), torch.randint(1, 20, (2, 6))
    lengths, sizes = torch.tensor([11, 9]), torch.tensor([6, 4])

    def positions(n: int) -> Tensor:
        at = torch.arange(n - 1, -n, -1.0)
        angles = at[:, None] * torch.exp(torch.arange(0, width, 2.0) * -(math.log(1e4) / width))
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)

    def attend(x: Tensor, hidden: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = qkv(x).view(b, n, 3, heads, -1).unbind(2)
        where = places(positions(n)).view(2 * n - 1, heads, -1)
        direct = torch.einsum("bihd,bjhd->bhij", q + content, k)
        relative = torch.einsum("bihd,phd->bhip", q + position, where)
        relative = F.pad(relative, (1, 0)).view(b, heads, 2 * n, n)[:, :, 1:].view(b, heads, n, 2 * n - 1)[..., :n]
        scores = (direct + relative) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(hidden[:, None, None], torch.finfo(scores.dtype).min).softmax(-1)
        return F.dropout(weights @ v.transpose(1, 2), 0.1).transpose(1, 2).reshape(b, n, width)

    def step() -> None:
        optimizer.zero_grad()
        masked = sound.clone()
        for begin, end in ((3, 8), (30, 33)):
            masked[:, begin:end] = 0
        masked.index_fill_(2, torch.tensor([2, 9]), 0.0)
        seen = down(masked.unsqueeze(1))
        seen = enter(seen.permute(0, 2, 1, 3).flatten(-2))
        hidden = torch.arange(seen.shape[1]) >= lengths.unsqueeze(-1)
        seen = seen + attend(norm(seen), hidden)
        gated = F.glu(point(seen.mT), dim=1).masked_fill(hidden[:, None], 0)
        seen = seen + F.silu(batch(depth(gated))).mT
        logs = head(seen).log_softmax(-1)
        ctc = F.ctc_loss(logs.transpose(0, 1), targets, lengths, sizes, zero_infinity=True)
        states = recurrent(F.pad(words(targets), (0, 0, 1, 0)).transpose(0, 1))[0].transpose(0, 1)
        lattice = joint(seen.unsqueeze(2) + states.unsqueeze(1)).log_softmax(-1)
        blank, emit = lattice[..., 0], lattice[:, :, :-1].gather(3, targets[:, None, :, None].expand(-1, 11, -1, 1))
        alpha = [blank[:, 0].cumsum(-1)]
        for t in range(1, 4):
            alpha.append(torch.logaddexp(alpha[-1] + blank[:, t], F.pad(emit[:, t, :, 0], (1, 0), value=-9.0)))
        (ctc - torch.stack(alpha, 1)[torch.arange(2), -1, sizes].mean()).backward()
        optimizer.step()
        best = logs.detach().argmax(-1)
        kept = torch.unique_consecutive(best[0])
        kept[kept.ne(0)], F.avg_pool1d(logs.detach().mT, 3, 2, ceil_mode=True)

    return step


def jagged_shop() -> Step:
    """Recommendation with weighted bags, jagged histories, crossed and factorised features; optimizers by lists."""
    bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode=mode) for mode in ("sum", "mean", "max"))
    items, bottom = nn.Embedding(60, 8, max_norm=2.0), nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 8))
    cross = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
    activation, tower = nn.Linear(32, 1), nn.ModuleList(nn.Linear(16 + 10 + 8, 1) for _ in range(2))
    modules = nn.ModuleList([*bags, items, bottom, *cross, activation, *tower])
    optimizer = torch.optim.AdamW(modules.parameters(), 1e-3, foreach=True, amsgrad=True)
    dense, ids, offsets = torch.rand(5, 7), torch.randint(0, 50, (14,)), torch.tensor([0, 3, 3, 8, 11])
    history, bounds = torch.randint(0, 60, (17,)), torch.tensor([0, 2, 6, 7, 13, 17])
    target, labels, weights = torch.randint(0, 60, (5,)), torch.randint(0, 2, (5, 2)).float(), torch.rand(14)
    rows, momentum = torch.randn(60, 8), torch.zeros(60)

    def step() -> None:
        optimizer.zero_grad()
        wide = bottom(dense.log1p())
        pooled = [bags[0](ids, offsets, per_sample_weights=weights), *(bag(ids, offsets) for bag in bags[1:])]
        which = torch.repeat_interleave(torch.arange(5), bounds.diff())
        past, wanted = items(history), items(target)
        against = wanted[which]
        scores = activation(torch.cat([past, against, past - against, past * against], 1)).sigmoid()
        interest = torch.zeros(5, 8).index_add_(0, which, scores * past)
        with torch.no_grad():
            jagged = torch.nested.nested_tensor_from_jagged(past.detach(), bounds)
            (jagged * 2.0).sin().values(), torch.nested.to_padded_tensor(jagged, 0.0, (5, 7, 8)).sum(1)
        stacked = torch.stack([wide, *pooled, interest], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(5, 5, offset=-1)
        first = torch.hstack([wide, interest])
        deep = first
        for layer in cross:
            deep = torch.addcmul(deep, first, layer(deep))
        both = torch.cat([deep, products[:, i, j], 0.5 * (stacked.sum(1) ** 2 - (stacked**2).sum(1))], -1)
        logits = torch.cat([layer(F.dropout(both, 0.1)) for layer in tower], dim=1)
        loss = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.tensor([2.0, 1.0]))
        (loss + F.margin_ranking_loss(logits[:, 0], logits[:, 1], torch.ones(5), margin=0.2)).backward()
        torch.nn.utils.clip_grad_value_(modules.parameters(), 0.5)
        optimizer.step()
        with torch.no_grad():
            touched, back = history.unique(return_inverse=True)
            grad = torch.zeros(len(touched), 8).index_add(0, back, torch.randn(17, 8))
            momentum.index_add_(0, touched, grad.square().mean(1))
            rows.index_copy_(0, touched, rows[touched] - 0.1 * grad / momentum[touched].sqrt().add(1e-8)[:, None])
            order = logits[:, 0].argsort(descending=True, stable=True)
            (labels[:, 0][order].cumsum(0) / torch.arange(1, 6)).mean(), torch.histc(logits, 4, -1, 1)
            parts = torch._foreach_mul([p.detach() for p in tower.parameters()], 0.999)
            torch._foreach_lerp_(parts, [p.detach() for p in tower.parameters()], 0.1)
            torch._foreach_norm(parts, 2), torch.bucketize(dense[:, 0], torch.linspace(0, 1, 5), right=True)

    return step


def meta_learners() -> Step:
    """Inner steps of learning mapped over tasks, ensembles of attention, and scores with learned biases by flex."""
    features = nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 1))
    members = [
        nn.ModuleDict({"qkv": nn.Linear(8, 24), "norm": nn.RMSNorm(8), "out": nn.Linear(8, 2)}) for _ in range(3)
    ]
    tasks = torch.randn(4, 6, 3), torch.randn(4, 6, 1), torch.randn(4, 5, 3), torch.randn(4, 5, 1)
    tokens, slots = torch.randn(2, 10, 8), torch.randint(0, 10, (2, 4))
    q, k, v = (torch.randn(2, 3, 16, 8) for _ in range(3))
    table, kept = torch.randn(3, 8, 8), torch.randint(0, 2, (2, 16)).bool()
    kept[:, 0] = True

    def fit(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(torch.func.functional_call(features, weights, (x,)), y)

    def adapted(weights: dict[str, Tensor], x: Tensor, y: Tensor, later: Tensor, truth: Tensor) -> Tensor:
        for _ in range(2):
            slopes = torch.func.grad(fit)(weights, x, y)
            weights = {name: w - 0.1 * slopes[name] for name, w in weights.items()}
        return fit(weights, later, truth)

    def member(weights: dict[str, Tensor], x: Tensor, slot: Tensor) -> Tensor:
        h = F.rms_norm(x, (8,), weights["norm.weight"])
        a, b, c = F.linear(h, weights["qkv.weight"], weights["qkv.bias"]).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(a, b, c, is_causal=True)
        picked = torch.stack([row[at] for row, at in zip(mixed, slot, strict=True)])
        return F.linear(picked.mean(1), weights["out.weight"], weights["out.bias"])

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        far = (i - j).abs().clamp(max=7)
        return torch.where(far < 7, score + table[h, i % 8, far], score * 0.5)

    def prefix(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return kept[b, j] & ((j < 4) | (i // 4 == j // 4) | (i >= j))

    def step() -> None:
        weights = dict(features.named_parameters())
        torch.vmap(adapted, in_dims=(None, 0, 0, 0, 0))(weights, *tasks).mean().backward()
        stacked = torch.func.stack_module_state(members)[0]
        torch.vmap(member, in_dims=(0, None, None))(stacked, tokens, slots).var(0).sum().backward()
        pull = torch.func.vjp(lambda x: torch.func.functional_call(features, weights, (x,)), tasks[0][0])[1]
        torch.vmap(pull)(torch.eye(6).unsqueeze(-1))
        torch.vmap(lambda n, row: torch.bernoulli(row.sigmoid()).cumsum(0) + n, randomness="different")(
            torch.arange(2), tokens[..., 0]
        )
        blocks = create_block_mask(prefix, 2, None, 16, 16, device="cpu", BLOCK_SIZE=4)
        flex_attention(q, k, v, score_mod=biased, block_mask=blocks).square().sum()
        one = flex_attention(q[:, :, -1:], k, v, score_mod=lambda s, b, h, i, j: s.masked_fill(j % 2 == 1, -1e4))
        torch.func.hessian(lambda w: torch.logsumexp(one.detach() @ w, -1).sum())(torch.randn(8))
        torch.vmap(torch.linalg.solve)(torch.eye(3).expand(2, 3, 3) + 0.1, torch.ones(2, 3))
        torch.vmap(lambda rows: torch.cdist(rows, rows).triu(1).argmin(-1), out_dims=0, chunk_size=1)(tokens)

    return step


def packed_integers() -> Step:
    """Beams over a model with 8- and 4-bit weights: caches by index, blocked repetitions, top-p and grammars."""
    width, beams, words = 32, 3, 29
    embed, gains = torch.randn(words, width).bfloat16(), torch.rand(width)
    wide, scales = torch.randint(-127, 128, (2 * width, width), dtype=torch.int8), torch.rand(2 * width) / 500
    head = torch.randint(-127, 128, (words, width), dtype=torch.int8)
    nibbles = torch.randint(0, 256, (width, width // 2), dtype=torch.uint8)
    zeros = torch.randint(4, 12, (width, 2), dtype=torch.int32)
    allowed = torch.rand(4, words) > 0.3
    allowed[:, 5] = True

    def linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        most = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        small = torch.round(x / most).clamp(-128, 127).to(torch.int8)
        return torch._int_mm(small, weight.t()).float() * most * scale

    def unpacked(weight: Tensor) -> Tensor:
        both = torch.stack((weight & 0xF, weight >> 4), dim=-1).view(width, width).to(torch.int32)
        return ((both.unflatten(1, (2, -1)) - zeros.unsqueeze(-1)).float() * 0.01).flatten(1)

    def step() -> None:
        with torch.no_grad():
            keys, values = (torch.zeros(beams, 2, 8, 16) for _ in range(2))
            tokens, scores = torch.full((beams, 1), 1), torch.tensor([0.0, -1e9, -1e9])
            state = torch.zeros(beams, dtype=torch.long)
            for t in range(4):
                x = F.embedding(tokens[:, -1], embed).float()
                x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gains
                padded = F.pad(x, (0, 0, 0, 32 - beams))
                k, v = linear(padded, wide, scales)[:beams].view(beams, 2, 2, 16).unbind(1)
                keys.index_copy_(2, torch.tensor([t]), k.unsqueeze(2))
                values[:, :, t] = v
                weights = torch.baddbmm(
                    torch.zeros(1), x.view(beams * 2, 1, 16), keys.view(beams * 2, 8, 16).mT, beta=0, alpha=0.25
                )
                weights.view(beams, 2, 1, 8)[..., t + 1 :] = -math.inf
                x = x + (weights.softmax(2) @ values.flatten(0, 1)).reshape(beams, width)
                x = F.linear(F.hardswish(x), unpacked(nibbles))
                logits = linear(F.pad(x, (0, 0, 0, 29)), head, torch.full((words,), 0.002))[:beams]
                seen = logits.gather(1, tokens)
                logits.scatter_(1, tokens, torch.where(seen < 0, seen * 1.2, seen / 1.2))
                logits.masked_fill_(~allowed[state], -1e9)
                ordered, order = (logits / 0.8).sort(dim=-1, descending=True)
                cut = ordered.softmax(-1).cumsum(-1) > 0.95
                cut[:, 1:] = cut[:, :-1].clone()
                cut[:, 0] = False
                logits = logits.masked_fill(cut.scatter(1, order, cut), -1e9).log_softmax(-1)
                scores, flat = (logits + scores.unsqueeze(1)).flatten().topk(beams)
                origin, word = flat // words, flat.remainder(words)
                tokens = torch.cat((tokens[origin], word[:, None]), 1)
                keys, values = keys[origin], values.index_select(0, origin)
                state = (state[origin] * 3 + word) % 4
                ended = word.eq(2)
                scores = scores.masked_fill(ended, -math.inf) if t > 2 else scores
            pairs = tokens.unfold(1, 2, 1)
            (pairs[:, :, None] == pairs[:, None]).all(-1).tril(-1).any(-1)
            whole = torch.quantize_per_channel(
                unpacked(nibbles), torch.full((width,), 0.02), torch.zeros(width), 0, torch.qint8
            )
            whole.dequantize(), whole.int_repr().to(torch.int16).bitwise_left_shift(2)
            low, high = torch.aminmax(gains)
            torch.fake_quantize_per_tensor_affine(gains, float(high - low) / 255, 3, 0, 255)
            (
                torch.multinomial(logits.exp(), 2, replacement=True),
                torch.searchsorted(logits.exp().cumsum(1), torch.rand(3, 1)),
            )

    return step


HELD_OUT = workloads_of(globals())
