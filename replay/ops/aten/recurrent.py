# pyright: strict
"""Recurrent networks of cuDNN and MIOpen, and fused recurrent cells.

Forward passes of networks use aten's ops, backward passes autograd. The fused cells are written in plain torch. Each
network's backward first runs its forward again, because devices save values in different forms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes

_LSTM, _GRU = 2, 3


def cudnn_rnn(c: Call) -> Any:
    """Run the network on input [T, B, C].

    Returns the output, the final hidden and cell states, an empty reserve and the flat weights. The input is [B, T, C]
    if batch_first is set, and packed [ΣT, C] if batch_sizes is given.
    """
    ops = torch.ops.aten
    op = {0: ops.rnn_relu, 1: ops.rnn_tanh, _LSTM: ops.lstm, _GRU: ops.gru}[c.mode]
    state: Any = [c.hx, c.cx] if c.mode == _LSTM else c.hx
    settings = (list(c.weight), c.weight_stride0 >= 4, c.num_layers, c.dropout, c.train, c.bidirectional)
    if c.batch_sizes:
        results = op.data(c.input, torch.tensor(list(c.batch_sizes), dtype=torch.int64), state, *settings)
    else:
        results = op.input(c.input, state, *settings, c.batch_first)
    cells = results[2:] or (c.input.new_empty(0),)
    return *results[:2], *cells, c.input.new_empty(0, dtype=torch.uint8), getattr(c, "weight_buf", None)


miopen_rnn = cudnn_rnn


def cudnn_rnn_flatten_weight(c: Call) -> Tensor:
    """Return all weights in one flat tensor."""
    return torch.cat([w.reshape(-1) for w in c.weight_arr])


def thnn_fused_lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute an LSTM cell: gates [B, 4H], cx [B, H] → hy, cy [B, H], workspace [B, 4H]."""
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def thnn_fused_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute a GRU cell: gates [B, 3H], hx [B, H] → hy [B, H], workspace [B, 5H]."""
    from_input = input_gates if input_bias is None else input_gates + input_bias
    from_hidden = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (ir, iz, inn), (hr, hz, hn) = from_input.chunk(3, 1), from_hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (inn + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def cudnn_rnn_backward(c: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    """Return the gradients of input (shaped as in `cudnn_rnn`), hx, cx and each weight.

    A gradient that is not requested is None.
    """
    grads, wanted = (c.grad_output, c.grad_hy, c.grad_cy), c.output_mask
    with torch.enable_grad():
        inputs = [None if t is None else t.detach().requires_grad_() for t in (c.input, c.hx, c.cx)]
        weights = [w.detach().requires_grad_() for w in c.weight]
        results = cudnn_rnn(with_changes(c, input=inputs[0], hx=inputs[1], cx=inputs[2], weight=weights))
        pairs = [(out, grad) for out, grad in zip(results, grads, strict=False) if grad is not None and out.numel()]
        sources = [t for t, want in zip(inputs, wanted, strict=False) if t is not None and want]
        sources += weights if wanted[3] else []
        if not pairs or not sources:
            return None, None, None, []
        leaf_grads = iter(torch.autograd.grad([o for o, _ in pairs], sources, [g for _, g in pairs], allow_unused=True))
    input_grads = [
        next(leaf_grads) if t is not None and want else None for t, want in zip(inputs, wanted, strict=False)
    ]
    return input_grads[0], input_grads[1], input_grads[2], list(leaf_grads)


miopen_rnn_backward = cudnn_rnn_backward


def thnn_fused_lstm_cell_backward_impl(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates [B, 4H], of cx and of the bias.

    The incoming gradients are [B, H]. `workspace` [B, 4H] holds the activated gates.
    """
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
    """Return the gradients of the input gates and hidden gates (both [B, 3H]), of hx, and of both biases [3H].

    grad_hy is [B, H], and workspace is [B, 5H].
    """
    r, z, n, hx, hn = workspace.chunk(5, 1)
    fresh = grad_hy * (1 - z) * (1 - n * n)
    reset, update = fresh * hn * (1 - r) * r, grad_hy * (hx - n) * (1 - z) * z
    to_input, to_hidden = torch.cat([reset, update, fresh], 1), torch.cat([reset, update, fresh * r], 1)
    biases = (to_input.sum(0), to_hidden.sum(0)) if has_bias else (to_input.new_empty(0), to_input.new_empty(0))
    return to_input, to_hidden, grad_hy * z, *biases
