# pyright: strict
"""cuDNN's and MIOpen's recurrent networks through aten's, and the fused cells in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_LSTM, _GRU = 2, 3


def cudnn_rnn(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
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
) -> Any:
    """x [T, B, C] ([B, T, C] if batch_first; packed [ΣT, C] with batch_sizes) → output and last states."""
    del weight_buf, hidden_size, proj_size, dropout_state
    return run_network(
        x, weight, weight_stride0, hx, cx, mode, num_layers, batch_first, dropout, train, bidirectional, batch_sizes
    )


def miopen_rnn(
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
) -> Any:
    """As cudnn_rnn."""
    del hidden_size, dropout_state
    return run_network(
        x, weight, weight_stride0, hx, cx, mode, num_layers, batch_first, dropout, train, bidirectional, batch_sizes
    )


def run_network(
    x: Tensor,
    weight: Sequence[Tensor],
    stride: int,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
) -> Any:
    """The forward of either library: output and last states; the mode counts as cuDNN's does."""
    ops = torch.ops.aten
    op = {0: ops.rnn_relu, 1: ops.rnn_tanh, _LSTM: ops.lstm, _GRU: ops.gru}[mode]
    state: Any = [hx, cx] if mode == _LSTM else hx
    biases = stride >= 4
    if batch_sizes:
        sizes = torch.tensor(list(batch_sizes), dtype=torch.int64)
        return op.data(x, sizes, state, list(weight), biases, layers, dropout, train, bidirectional)
    return op.input(x, state, list(weight), biases, layers, dropout, train, bidirectional, batch_first)


def cudnn_rnn_flatten_weight(weights: Sequence[Tensor], *_: Any) -> Tensor:
    """All weights in one flat tensor."""
    return torch.cat([w.reshape(-1) for w in weights])


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
