# pyright: strict
"""Backwards of cuDNN's and MIOpen's recurrent networks through autograd, and those of the fused cells in plain torch.

A recurrent network's backward here starts with its forward, whose saved values have another form on each device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.aten.recurrent import cudnn_rnn
from opreplay.replay.ops.calls import Call, but


def cudnn_rnn_backward(c: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    """input [T, B, C] as in the forward → gradients of it, hx, cx and of each weight; None where not wanted."""
    grads, wanted = (c.grad_output, c.grad_hy, c.grad_cy), c.output_mask
    with torch.enable_grad():
        inputs = [None if t is None else t.detach().requires_grad_() for t in (c.input, c.hx, c.cx)]
        weights = [w.detach().requires_grad_() for w in c.weight]
        results = cudnn_rnn(but(c, input=inputs[0], hx=inputs[1], cx=inputs[2], weight=weights))
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
