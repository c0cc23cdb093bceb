"""Attention ops of torch 1.13 with the names and results that they had in that version."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from opreplay.replay.ops.aten.attention import flash_attention_forward
from opreplay.replay.ops.calls import Call, with_changes

Maybe = Tensor | None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    need_attn_weights: bool = False,
    is_causal: bool = False,
) -> tuple[Tensor, Maybe]:
    """Return the attention [*, L, Ev] of query [*, L, E], key [*, S, E] and value [*, S, Ev].

    The second result is the weights [*, L, S] if requested, otherwise None.
    """
    if need_attn_weights:
        return torch.ops.aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal
        )
    return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal), None


def flash_attention(c: Call) -> Tensor:
    """Return the attention of packed sequences [tokens, heads, E] with cumulative lengths [n + 1]."""
    return flash_attention_forward(with_changes(c, scale=None))[0]
