"""FBGEMM's table-batched embedding lookups, forward (fbgemm_gpu/codegen), with all tables in one flat weight tensor.

Cached and unified-memory tables are read from the device weights or, if these are empty, from the unified-memory
weights. Offsets and indices beyond their table are clamped, as by `fbgemm::bounds_check_indices`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.quantisation.reference_fbgemm import OUTPUT_DTYPES

_MODES = {0: "sum", 1: "mean"}
_NO_POOLING = 2


def _fake(
    D_offsets: Tensor, total_D: int, indices: Tensor, offsets: Tensor, pooling_mode: int, output_dtype: int = 0
) -> Tensor:
    dtype = OUTPUT_DTYPES.get(output_dtype, torch.float32)
    tables = D_offsets.shape[0] - 1
    if pooling_mode == _NO_POOLING:
        return D_offsets.new_empty((indices.shape[0], total_D // max(tables, 1)), dtype=dtype)
    return D_offsets.new_empty(((offsets.shape[0] - 1) // max(tables, 1), total_D), dtype=dtype)


@stands_for("fbgemm::split_embedding_codegen_forward_cpu", fake=_fake)
def lookup(c: Call) -> Tensor:
    """Look up T tables for a batch of B.

    Returns [B, total_D], or [indices, D] without pooling. weights are flat. Table t starts at weights_offsets[t]. Its
    width is D_offsets[t + 1] − D_offsets[t], and it has hash_size_cumsum[t + 1] − hash_size_cumsum[t] rows. offsets [T
    · B + 1] are the bounds of the bags in indices.
    """
    weights, indices, offsets, pooling_mode = c.weights, c.indices, c.offsets, c.pooling_mode
    tables = c.D_offsets.numel() - 1
    batch = (offsets.numel() - 1) // max(tables, 1)
    bags = offsets.to(torch.int64).clamp(0, indices.numel()).cummax(0).values
    edges = bags[:: max(batch, 1)].tolist()
    dims, starts, hashes = (x.tolist() for x in (c.D_offsets, c.weights_offsets, c.hash_size_cumsum))
    dtype = OUTPUT_DTYPES.get(getattr(c, "output_dtype", 0), torch.float32)
    pooled = pooling_mode != _NO_POOLING
    width = c.total_D if pooled else max((b - a for a, b in pairwise(dims)), default=0)
    out = torch.zeros((batch if pooled else indices.numel(), width), dtype=dtype, device=weights.device)
    for t in range(tables):
        dim = dims[t + 1] - dims[t]
        rows = min(
            hashes[t + 1] - hashes[t] if t + 1 < len(hashes) else 0, (weights.numel() - starts[t]) // max(dim, 1)
        )
        if dim <= 0 or rows <= 0 or edges[t] == edges[t + 1]:
            continue
        table = weights[starts[t] : starts[t] + rows * dim].view(rows, dim)
        chosen = indices[edges[t] : edges[t + 1]].to(torch.int64).clamp(0, rows - 1)
        if not pooled:
            out[edges[t] : edges[t + 1], :dim] = table[chosen].to(dtype)
            continue
        local = bags[t * batch : (t + 1) * batch] - edges[t]
        scale = None if c.indice_weights is None else c.indice_weights[edges[t] : edges[t + 1]]
        out[:, dims[t] : dims[t + 1]] = _pool(table, chosen, local, pooling_mode, scale).to(dtype)
    return out


def _pool(table: Tensor, chosen: Tensor, bags: Tensor, pooling_mode: int, scale: Tensor | None) -> Tensor:
    if pooling_mode == 1 and scale is not None:
        counts = torch.diff(bags, append=bags.new_tensor([chosen.numel()])).clamp(min=1)
        return _pool(table, chosen, bags, 0, scale) / counts.unsqueeze(1)
    if table.dtype in (torch.float32, torch.float64):
        return F.embedding_bag(chosen, table, bags, mode=_MODES.get(pooling_mode, "sum"), per_sample_weights=scale)
    # 16-bit rows are added up in float32.
    rows = table.index_select(0, chosen).float()
    numbers = torch.arange(chosen.numel(), device=chosen.device)
    return F.embedding_bag(numbers, rows, bags, mode=_MODES.get(pooling_mode, "sum"), per_sample_weights=scale)


@stands_for(
    "fbgemm::split_embedding_codegen_lookup_adagrad_function",
    "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function",
    fake=_fake,
)
def split_lookup(c: Call) -> Tensor:
    """Look up tables owned by a fused optimizer. The forward does not touch the optimizer state."""
    weights = c.dev_weights if c.dev_weights.numel() else c.uvm_weights
    return lookup(with_changes(c, weights=weights.flatten()))
