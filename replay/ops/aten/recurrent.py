# pyright: strict
"""cuDNN's and MIOpen's recurrent networks through aten's, and the fused cells in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call

_LSTM, _GRU = 2, 3


def cudnn_rnn(c: Call) -> Any:
    """input [T, B, C] ([B, T, C] if batch_first; packed [ΣT, C] with batch_sizes) → output, last states of both kinds,
    a reserve, which is empty, and the weights in one."""
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
    """All weights in one flat tensor."""
    return torch.cat([w.reshape(-1) for w in c.weight_arr])


def thnn_fused_lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates [B, 4H], cx [B, H] → hy, cy [B, H], workspace [B, 4H]."""
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
    """Gates [B, 3H], hx [B, H] → hy [B, H], workspace [B, 5H]."""
    from_input = input_gates if input_bias is None else input_gates + input_bias
    from_hidden = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (ir, iz, inn), (hr, hz, hn) = from_input.chunk(3, 1), from_hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (inn + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)
