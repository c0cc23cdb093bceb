# pyright: strict
"""Keeps a cache of the key and value heads that a model has, where transformers caches a copy for each query head.

Falcon's `new_decoder_architecture` (40B, 180B) repeats keys and values before it writes them to the cache: 16 times as
many bytes as servers store and read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NOTE = "the cache holds each key and value head once, as in servers; transformers stores a copy for each query head"

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def keep_groups(model: Any) -> bool:
    """Make each module that repeats keys and values before caching them attend to groups of query heads instead.

    Returns whether the model has such modules.
    """
    modules = [module for module in model.modules() if _repeats(module)]
    for module in modules:
        module._split_heads = _splitting(module.num_heads, module.num_kv_heads, module.head_dim)
        # The flag makes the module read as many heads from the cache as there are query heads.
        module.new_decoder_architecture = False
        module.forward = _attending(module.forward)
    return bool(modules)


def repeats_heads(config: Any) -> bool:
    """Check whether transformers' model of this config repeats keys and values before caching them."""
    heads = getattr(config, "num_attention_heads", 0)
    return bool(getattr(config, "new_decoder_architecture", False)) and getattr(config, "num_kv_heads", heads) < heads


def _repeats(module: Any) -> bool:
    return (
        hasattr(module, "_split_heads")
        and bool(getattr(module, "new_decoder_architecture", False))
        and module.num_kv_heads < module.num_heads
        and module.config._attn_implementation == "sdpa"
    )


def _splitting(heads: int, key_heads: int, width: int) -> Callable[[torch.Tensor], Heads]:
    """Return a function from a fused projection to queries, keys and values [batch, tokens, heads, width]."""

    def split(fused: torch.Tensor) -> Heads:
        groups = fused.view(*fused.shape[:2], key_heads, heads // key_heads + 2, width)
        return groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]

    return split


def _attending(forward: Callable[..., Any]) -> Callable[..., Any]:
    def grouped(*args: Any, **kwargs: Any) -> Any:
        with _Grouped():
            return forward(*args, **kwargs)

    return grouped


class _Grouped(TorchFunctionMode):
    """Lets attention take fewer heads of keys and values than of queries."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            kwargs = {**kwargs, "enable_gqa": True}
        return func(*args, **kwargs)
