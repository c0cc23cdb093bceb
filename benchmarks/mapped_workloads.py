# pyright: basic, reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false, reportUnusedExpression=false, reportOperatorIssue=false
"""Workloads heavy in vmap, flex attention, sparse matrices and complex numbers, which rules were made on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from recorded_workloads import Step, workloads_of
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention


def private_gradients() -> Step:
    """Clipped and noised gradients of each sample, and batched forms of indexing, sorting and padding."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )
    table = nn.Embedding(30, 6)
    images, labels, words = torch.rand(7, 1, 8, 8), torch.randint(0, 5, (7,)), torch.randint(0, 30, (7, 4))
    rows, places = torch.randn(7, 9), torch.randint(0, 9, (7, 3))
    spots = torch.randint(0, 4, (7, 5))

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        out = torch.func.functional_call(model, weights, (image.unsqueeze(0),))
        return F.cross_entropy(out, label.unsqueeze(0), label_smoothing=0.1)

    def lookup(weight: Tensor, ids: Tensor) -> Tensor:
        return F.layer_norm(F.embedding(ids, weight), (6,)).tanh().mean()

    def move(row: Tensor, at: Tensor, spot: Tensor) -> Tensor:
        kept = torch.zeros(4, 9).index_put((spot,), row.expand(5, 9), accumulate=True)
        picked = row.index_fill(0, at, 0.0) + row.scatter(0, at, row[at]) + row.roll(2).flip(0)
        first = torch.sort(picked, descending=True).values.narrow(0, 1, 4)
        top = torch.topk(kept.sum(0), 3).indices
        wide = F.pad(row.view(3, 3), (1, 0, 0, 2), value=0.5).cumsum(-1).diagonal()
        return first.sum() + row.take_along_dim(top, 0).sum() + wide.sum() + row.index_select(0, at).prod()

    def step() -> None:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
        norms = torch.stack([g.reshape(7, -1).norm(2, dim=-1) for g in each.values()], dim=1).norm(2, dim=1)
        factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, grad in each.items():
            total = torch.einsum("n,n...->...", factors, grad) + torch.normal(0.0, 0.1, weights[name].shape)
            weights[name] = weights[name] - 0.05 * total / 7
        torch.vmap(torch.func.grad(lookup), in_dims=(None, 0))(table.weight.detach(), words)
        torch.vmap(move)(rows, places, spots)
        torch.vmap(torch.func.grad(move), in_dims=(0, 0, None))(rows, places, spots[0])
        torch.vmap(lambda row: torch.where(row > row.median(), row, row.mean()).unfold(0, 3, 2).amax(-1))(rows)
        torch.vmap(torch.vmap(lambda a, b: (a - b).abs().pow(3).sum(), in_dims=(0, None)), in_dims=(None, 0))(
            rows, rows
        )
        torch.func.jvp(lambda w: lookup(w, words[0]), (table.weight.detach(),), (torch.ones(30, 6),))
        torch.func.jacfwd(lambda row: F.softmax(row, 0).log())(rows[0])

    return step


def masked_scores() -> Step:
    """Flex attention with biases, soft caps, documents and windows; shared keys."""
    q = torch.randn(2, 4, 24, 8)
    k, v = (torch.randn(2, 2, 24, 8) for _ in range(2))
    documents, slopes = torch.arange(24).div(10, rounding_mode="floor"), 2.0 ** -torch.arange(1.0, 5.0)
    bias = torch.randn(4, 47)
    lengths = torch.tensor([24, 17])

    def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + slopes[h] * (j - i)

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return 20.0 * torch.tanh((score + bias[h, i - j + 23]) / 20.0)

    def one_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (documents[i] == documents[j]) & (i >= j)

    def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ((i - j).abs() <= 5) & (j < lengths[b])

    def step() -> None:
        shared = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        flex_attention(q, *shared, score_mod=alibi).sum()
        flex_attention(q, k, v, score_mod=capped, enable_gqa=True).square().mean()
        whole = create_block_mask(one_document, None, None, 24, 24, device="cpu", BLOCK_SIZE=8)
        out, lse = flex_attention(q, *shared, block_mask=whole, return_lse=True)
        (out.mean() + lse.logsumexp(-1).sum())
        local = create_block_mask(window, 2, 1, 24, 24, device="cpu", BLOCK_SIZE=(8, 12))
        flex_attention(q, k, v, block_mask=local, scale=0.2, enable_gqa=True).amax(-1).sum()
        seen = create_mask(one_document, 1, 1, 24, 24, device="cpu")
        F.scaled_dot_product_attention(q, *shared, attn_mask=seen)

    return step


def sparse_graphs() -> Step:
    """Attention over edges kept in sparse matrices, pooled by scattering; normalised Laplacians."""
    nodes, edges = 18, 70
    at = torch.stack([torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,))])
    x, graph = torch.randn(nodes, 10), torch.arange(nodes) // 6
    project, score, out = nn.Linear(10, 16, bias=False), nn.Parameter(torch.randn(2, 16)), nn.Linear(32, 3)

    def step() -> None:
        adjacency = torch.sparse_coo_tensor(at, torch.ones(edges), (nodes, nodes)).coalesce()
        source, target = adjacency.indices()
        degree = torch.sparse.sum(adjacency, dim=1).to_dense().clamp(min=1)
        scaled = adjacency.values() * degree[source].rsqrt() * degree[target].rsqrt()
        laplacian = torch.sparse_coo_tensor(adjacency.indices(), scaled, adjacency.shape)
        h = project(x)
        hop = torch.sparse.mm(laplacian, torch.sparse.mm(laplacian, h))
        logits = F.leaky_relu((h @ score[0])[source] + (h @ score[1])[target], 0.2)
        top = torch.full((nodes,), -1e9).scatter_reduce(0, target, logits, "amax")
        weights = (logits - top[target]).exp()
        total = torch.zeros(nodes).index_add(0, target, weights)
        weights = weights / total.index_select(0, target).clamp_min(1e-9)
        mixed = torch.zeros(nodes, 16).scatter_add(0, target[:, None].expand(-1, 16), weights[:, None] * h[source])
        both = F.elu(torch.cat([mixed, hop], dim=-1))
        pooled = torch.zeros(3, 32).index_reduce(0, graph, both, "mean", include_self=False)
        sizes = torch.bincount(graph, minlength=3)
        F.cross_entropy(out(pooled) / sizes[:, None].sqrt(), torch.tensor([0, 2, 1])).backward()
        with torch.no_grad():
            torch.sparse.softmax(laplacian.detach(), 1), (laplacian.detach() * 2.0).transpose(0, 1).coalesce()
            bounds = torch.searchsorted(source.contiguous(), torch.arange(nodes + 1))
            bounds.diff(), torch.addmm(torch.zeros(nodes, 10), adjacency, x, beta=0.5)
            adjacency.to_dense().nonzero(as_tuple=True)
            keys, back, count = torch.unique(source * nodes + target, return_inverse=True, return_counts=True)
            torch.isin(keys, back), torch.unique_consecutive(graph), torch.searchsorted(keys, keys[::2], side="right")
            (adjacency + adjacency.t()).coalesce(), torch.sparse.log_softmax(laplacian.detach(), dim=0), count.argsort()

    return step


def fourier_layers() -> Step:
    """Layers that weigh the lowest frequencies of fields, with complex parameters; analytic signals and windows."""
    lift, lower = nn.Conv2d(3, 8, 1), nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 1, 1))
    modes = nn.ParameterList(nn.Parameter(0.1 * torch.randn(2, 8, 8, 4, 4, dtype=torch.cfloat)) for _ in range(2))
    skips = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))
    optimizer = torch.optim.Adam([*modes.parameters(), *skips.parameters(), *lift.parameters()], 1e-3)
    field, truth, wave = torch.randn(3, 1, 16, 16), torch.randn(3, 1, 16, 16), torch.randn(2, 160)
    axis = torch.linspace(0, 1, 16)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).expand(3, 2, 16, 16)

    def spectral(x: Tensor, weights: Tensor) -> Tensor:
        coefficients = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros(3, 8, 16, 9, dtype=torch.cfloat)
        out[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", coefficients[:, :, :4, :4], weights[0])
        out[:, :, -4:, :4] = torch.einsum("bixy,ioxy->boxy", coefficients[:, :, -4:, :4], weights[1])
        return torch.fft.irfft2(out, s=(16, 16), norm="ortho")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        h = lift(torch.cat((field, grid), 1))
        for weights, skip in zip(modes, skips, strict=True):
            h = F.gelu(spectral(h, weights) + skip(h))
        out = lower(h)
        gap = (torch.fft.fftn(out, dim=(-2, -1)) - torch.fft.fftn(truth, dim=(-2, -1))).abs().mean()
        (F.mse_loss(out, truth) / truth.var() + 0.01 * gap).backward()
        nn.utils.clip_grad_norm_(skips.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            spectrum = torch.fft.fft(wave)
            spectrum[:, 81:] = 0
            spectrum[:, 1:80] *= 2
            analytic = torch.fft.ifft(spectrum)
            torch.diff(analytic.angle(), dim=-1).cos(), torch.view_as_real(analytic).norm(dim=-1).log1p()
            frames = torch.stft(wave, 32, 8, window=torch.hann_window(32), return_complex=True)
            turned = frames * torch.polar(torch.ones(17, 1), torch.linspace(0, 3, 17)[:, None])
            torch.istft(turned, 32, 8, window=torch.hann_window(32), length=160)
            torch.fft.fftshift(torch.fft.hfft(analytic[:, :9]), dim=-1), torch.fft.rfftfreq(32, 0.5).square().conj()
            torch.complex(wave, -wave).reciprocal().real.sgn(), torch.linalg.eigvals(frames[0, :9, :9]).imag.sort()

    return step


MAPPED = workloads_of(globals())
