# pyright: strict
"""Operations of calls for which torch's own counter has no formula: of a CPU alone, and of groups."""

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


def _grouped(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    """Each group's product: of x [M, K] or [G, M, K] with a weight [G, K, N]; where the weight has no dimension for
    groups, its columns are dealt out among those of x, or its rows among x's columns."""
    dealt = x.shape[0] if len(x.shape) == 3 and len(weight.shape) == 2 else 1
    return 2 * x.numel() * weight.shape[-1] // dealt


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """By overload packet; arguments as of the op, and `out_val`."""
    aten = torch.ops.aten
    by_op: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        aten._grouped_mm: _grouped,
        aten._scaled_grouped_mm: _grouped,
        aten.mkldnn_rnn_layer: _recurrent,
        aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    }
    for formula in by_op.values():
        formula._get_raw = True  # torch's counter: hand over tensors, not their shapes
    return by_op
