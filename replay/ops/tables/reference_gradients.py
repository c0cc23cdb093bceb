"""FBGEMM's CPU backward passes of table lookups, which include the optimizer step, and its fp8 products and casts."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import as_rows
from opreplay.replay.ops.maths.quantize import row_scale, scaled_linear, tensor_scale, to_quantized

_FP8 = torch.float8_e4m3fn


def _bags(offsets: Tensor, indices: Tensor, tables: int) -> tuple[Tensor, list[int], int]:
    """Return (bag of each index, position in `indices` where each table starts, bags per table)."""
    bounds = offsets.to(torch.int64).clamp(0, indices.numel()).cummax(0).values
    batch = (offsets.numel() - 1) // max(tables, 1)
    owner = torch.searchsorted(bounds, torch.arange(indices.numel(), device=indices.device), right=True) - 1
    return owner.clamp(0, max(offsets.numel() - 2, 0)), bounds[:: max(batch, 1)].tolist(), batch


def _check_sizes(grad_output: Tensor, weights: Tensor, D_offsets: Tensor, offsets: Tensor) -> None:
    """Raise ValueError for inconsistent sizes.

    They are inconsistent if the bags do not match the gradient's rows, or if a table has less than one row of weights.
    """
    tables = D_offsets.shape[0] - 1
    if tables < 1 or grad_output.dim() != 2:
        raise ValueError(
            f"got {tables} tables and a gradient of {grad_output.dim()} dimensions, but needs at least one table and "
            "a matrix"
        )
    if offsets.shape[0] - 1 != tables * grad_output.shape[0]:
        raise ValueError(f"{offsets.shape[0] - 1} bags do not fit {tables} tables and {grad_output.shape[0]} gradients")
    if weights.numel() < grad_output.shape[1]:
        raise ValueError(f"{weights.numel()} weights are fewer than the {grad_output.shape[1]} columns of a row")


def _fake_backward(c: Call) -> None:
    """Raise ValueError for arguments that `rowwise_adagrad_backward` does not support."""
    if c.pooling_mode not in (0, 1):
        raise ValueError("lookups without pooling are not implemented in the reference of the backward pass")
    _check_sizes(c.grad_output, c.host_weights, c.D_offsets, c.offsets)
    tables = c.D_offsets.shape[0] - 1
    if c.momentum1_offsets.shape[0] < tables or c.momentum1_host.numel() < tables:
        raise ValueError(
            f"{c.momentum1_host.numel()} rows of state, {c.momentum1_offsets.shape[0]} offsets are too few for "
            f"{tables} tables"
        )


def _fake_indice_weights(c: Call) -> Tensor:
    _check_sizes(c.grad_output, c.weights, c.D_offsets, c.offsets)
    return c.grad_output.new_empty(c.indices.shape, dtype=torch.float32)


@stands_for(
    "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu",
    writes=("host_weights", "momentum1_host"),
    fake=_fake_backward,
)
def rowwise_adagrad_backward(c: Call) -> None:
    """Update the looked-up rows with row-wise Adagrad, from grad_output [B, ΣD].

    The momentum of a row grows by the mean square of its gradient. Weight decay and norms are ignored. Raises
    ValueError for lookups without pooling.
    """
    if c.pooling_mode not in (0, 1):
        raise ValueError("lookups without pooling are not implemented in the reference of the backward pass")
    dims, starts, firsts = (x.tolist() for x in (c.D_offsets, c.weights_offsets, c.momentum1_offsets))
    hashes = c.hash_size_cumsum.tolist()
    owner, edges, batch = _bags(c.offsets, c.indices, len(dims) - 1)
    rate = float(c.learning_rate_tensor)
    for t, (low, high) in enumerate(pairwise(dims)):
        part, dim = slice(edges[t], edges[t + 1]), high - low
        rows = min(hashes[t + 1] - hashes[t], (c.host_weights.numel() - starts[t]) // max(dim, 1))
        if part.start == part.stop or dim <= 0 or rows <= 0:
            continue
        bag = owner[part] - t * batch
        grad = c.grad_output[bag, low:high].float()
        if c.pooling_mode == 1:
            size = torch.bincount(bag, minlength=batch).clamp(min=1)
            grad = grad / size[bag].unsqueeze(1)
        if c.indice_weights is not None and c.indice_weights.numel():
            grad = grad * c.indice_weights[part].float().unsqueeze(1)
        which, place = c.indices[part].to(torch.int64).clamp(0, rows - 1).unique(return_inverse=True)
        total = torch.zeros((which.numel(), dim), device=grad.device).index_add_(0, place, grad)
        momentum = c.momentum1_host[firsts[t] : firsts[t] + rows]
        updated = momentum[which].float() + total.square().mean(1)
        momentum[which] = updated.to(momentum.dtype)
        table = c.host_weights[starts[t] : starts[t] + rows * dim].view(rows, dim)
        step = rate / (updated.sqrt() + c.eps)
        table[which] = (table[which].float() - step.unsqueeze(1) * total).to(table.dtype)


@stands_for("fbgemm::split_embedding_codegen_grad_indice_weights_cpu", fake=_fake_indice_weights)
def grad_indice_weights(c: Call) -> Tensor:
    """Return float32 [indices], the dot product of each looked-up row with the gradient of its bag."""
    dims, starts = c.D_offsets.tolist(), c.weights_offsets.tolist()
    owner, edges, batch = _bags(c.offsets, c.indices, len(dims) - 1)
    out = torch.zeros(c.indices.shape, dtype=torch.float32, device=c.weights.device)
    for t, (low, high) in enumerate(pairwise(dims)):
        part, dim = slice(edges[t], edges[t + 1]), high - low
        end = min([start for start in starts if start > starts[t]], default=c.weights.numel())
        rows = (end - starts[t]) // max(dim, 1)
        if part.start == part.stop or dim <= 0 or rows <= 0:
            continue
        table = c.weights[starts[t] : starts[t] + rows * dim].view(rows, dim)
        chosen = table[c.indices[part].to(torch.int64).clamp(0, rows - 1)].float()
        out[part] = (chosen * c.grad_output[owner[part] - t * batch, low:high].float()).sum(1)
    return out


@stands_for("fbgemm::f8f8bf16_rowwise")
def f8f8bf16_rowwise(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None) -> Tensor:
    """Return XQ [.., K] @ WQ [N, K]ᵀ + bias as bfloat16. There is one scale per row of XQ and one per row of WQ."""
    rows = as_rows(XQ)
    product = scaled_linear(rows, WQ, x_scale.reshape(-1, 1), w_scale.reshape(-1, 1), bias, torch.bfloat16)
    return product.reshape(*XQ.shape[:-1], WQ.shape[0])


@stands_for("fbgemm::f8f8bf16_blockwise")
def f8f8bf16_blockwise(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor) -> Tensor:
    """Return XQ [M, K] @ WQ [N, K]ᵀ with block scales, in bfloat16."""
    return scaled_linear(XQ, WQ, x_scale, w_scale, None, torch.bfloat16)


@stands_for("fbgemm::f8f8bf16", "fbgemm::f8f8bf16_v2", "fbgemm::f8f8bf16_tensorwise")
def f8f8bf16(XQ: Tensor, WQ: Tensor, scale: Tensor | float) -> Tensor:
    """Return XQ [M, K] @ WQ [N, K]ᵀ · scale, in bfloat16."""
    return (XQ.float() @ WQ.float().t() * scale).to(torch.bfloat16)


@stands_for("fbgemm::quantize_fp8_per_row")
def quantize_fp8_per_row(input: Tensor, scale_ub: Tensor | None) -> list[Tensor]:
    """Return [fp8, scale of each row]."""
    scale = row_scale(input, _FP8, scale_ub)
    return [to_quantized(input, scale, _FP8), scale.squeeze(-1)]


@stands_for("fbgemm::quantize_fp8_per_col")
def quantize_fp8_per_col(input: Tensor, scale_ub: Tensor | None) -> list[Tensor]:
    """Return [`input` quantised to fp8, scale of each column]."""
    scale = row_scale(input.t(), _FP8, scale_ub).t()
    return [to_quantized(input, scale, _FP8), scale.flatten()]


@stands_for("fbgemm::quantize_fp8_per_tensor")
def quantize_fp8_per_tensor(input: Tensor) -> list[Tensor]:
    """Return [fp8, scale]."""
    scale = tensor_scale(input, _FP8).clamp(min=1e-12)
    return [to_quantized(input, scale, _FP8), scale]
