# pyright: strict
"""Backwards of cuDNN's and MIOpen's recurrent networks through autograd, and those of the fused cells in plain torch.

A recurrent network's backward here starts with its forward, whose saved values have another form on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opreplay.replay.ops.aten.recurrent import run_network


def cudnn_rnn_backward(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
    reserve: Tensor,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    """x [T, B, C] as in the forward → gradients of x, hx, cx and of each weight; None where not wanted."""
    del weight_buf, output, hidden_size, proj_size, dropout_state, reserve
    return _backward(
        (x, hx, cx),
        weight,
        (grad_output, grad_hy, grad_cy),
        output_mask,
        (weight_stride0, mode, num_layers, batch_first, dropout, train, bidirectional, batch_sizes),
    )


def miopen_rnn_backward(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
    reserve: Tensor,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    """As cudnn_rnn_backward."""
    del weight_buf, output, hidden_size, dropout_state, reserve
    return _backward(
        (x, hx, cx),
        weight,
        (grad_output, grad_hy, grad_cy),
        output_mask,
        (weight_stride0, mode, num_layers, batch_first, dropout, train, bidirectional, batch_sizes),
    )


def _backward(
    inputs: tuple[Tensor, Tensor, Tensor | None],
    weight: Sequence[Tensor],
    grads: tuple[Tensor | None, ...],
    wanted: Sequence[bool],
    settings: tuple[Any, ...],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    stride, mode, *rest = settings
    with torch.enable_grad():
        x, hx, cx = (None if t is None else t.detach().requires_grad_() for t in inputs)
        weights = [w.detach().requires_grad_() for w in weight]
        assert x is not None
        assert hx is not None
        results = run_network(x, weights, stride, hx, cx, mode, *rest)
        pairs = [(out, grad) for out, grad in zip(results, grads, strict=False) if grad is not None and out.numel()]
        sources = [t for t, want in zip((x, hx, cx), wanted, strict=False) if t is not None and want]
        sources += weights if wanted[3] else []
        if not pairs or not sources:
            return None, None, None, []
        leaf_grads = iter(torch.autograd.grad([o for o, _ in pairs], sources, [g for _, g in pairs], allow_unused=True))
    input_grads = [
        next(leaf_grads) if t is not None and want else None for t, want in zip((x, hx, cx), wanted, strict=False)
    ]
    return input_grads[0], input_grads[1], input_grads[2], list(leaf_grads)


def thnn_fused_lstm_cell_backward_impl(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients [B, H], workspace [B, 4H] of activated gates → gradients of the gates [B, 4H], of cx, of the bias."""
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    above = torch.zeros_like(cy) if grad_hy is None else grad_hy
    cell = above * o * (1 - tanh * tanh)
    cell = cell if grad_cy is None else cell + grad_cy
    gates = torch.cat(
        [cell * g * i * (1 - i), cell * cx * f * (1 - f), cell * i * (1 - g * g), above * tanh * o * (1 - o)], 1
    )
    return gates, cell * f, gates.sum(0) if has_bias else gates.new_empty(0)


def thnn_fused_gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """grad_hy [B, H], workspace [B, 5H] → gradients of the gates [B, 3H] twice, of hx, and of both biases [3H]."""
    r, z, n, hx, hn = workspace.chunk(5, 1)
    fresh = grad_hy * (1 - z) * (1 - n * n)
    reset, update = fresh * hn * (1 - r) * r, grad_hy * (hx - n) * (1 - z) * z
    to_input, to_hidden = torch.cat([reset, update, fresh], 1), torch.cat([reset, update, fresh * r], 1)
    biases = (to_input.sum(0), to_hidden.sum(0)) if has_bias else (to_input.new_empty(0), to_input.new_empty(0))
    return to_input, to_hidden, grad_hy * z, *biases
