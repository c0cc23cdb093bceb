# pyright: strict
"""Mathematics of gated activations; no ops are declared here."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu_tanh(x: Tensor) -> Tensor:
    """Return GELU by the tanh approximation."""
    return F.gelu(x, approximate="tanh")


def gelu_quick(x: Tensor) -> Tensor:
    """Return x · sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def gated(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return activation(first half) · second half: [.., 2d] → [.., d]."""
    gate, up = x.chunk(2, dim=-1)
    return activation(gate) * up


def swiglu_oai(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """Return (up + 1) · gate · sigmoid(alpha · gate), the gated activation of gpt-oss, as [.., d].

    In x [.., 2d], the elements of gate and up alternate. Both are clamped.
    """
    gate = x[..., ::2].clamp(max=limit)
    up = x[..., 1::2].clamp(min=-limit, max=limit)
    return (up + 1) * gate * torch.sigmoid(gate * alpha)


def gate_by_name(name: str) -> Callable[[Tensor], Tensor]:
    """Return vLLM's gated activation `name`; "" (not recorded) means "silu". Raises ValueError for an unknown name."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": lambda x: gated(x, F.silu),
        "gelu": lambda x: gated(x, F.gelu),
        "gelu_tanh": lambda x: gated(x, gelu_tanh),
        "swigluoai": swiglu_oai,
    }
    plain = name.lower().removesuffix("_and_mul") or "silu"
    if plain not in functions:
        raise ValueError(f"unknown gated activation {name!r}; known: {', '.join(functions)}")
    return functions[plain]
