# pyright: strict
"""Operations of calls that torch makes on a CPU alone, for which its own counter has no formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import (
    sdpa_backward_flop_count,  # pyright: ignore[reportUnknownVariableType]
    sdpa_flop_count,  # pyright: ignore[reportUnknownVariableType]
)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """All pairs of queries and keys, masked ones too: as torch counts them on a GPU."""
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


def _recurrent(x: Tensor, weight: Tensor, hidden_weight: Tensor, *_: Any, **__: Any) -> int:
    """Two products a step; x [T, B, I]."""
    return 2 * prod(x.shape[:2]) * (weight.numel() + hidden_weight.numel())


def _recurrent_backward(x: Tensor, weight: Tensor, hidden_weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * _recurrent(x, weight, hidden_weight)


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """By overload packet; arguments as of the op, and `out_val`."""
    aten = torch.ops.aten
    by_op: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        aten.mkldnn_rnn_layer: _recurrent,
        aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    }
    for formula in by_op.values():
        formula._get_raw = True  # torch's counter: hand over tensors, not their shapes
    return by_op
