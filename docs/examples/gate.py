"""gate::silu_mul put into PyTorch: the kernel of gate.cpp, its fake kernel and gradient, what it is held against."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

# Built once: other runs find the library as long as gate.cpp stays the same.
cpp_extension.load(
    name="gate",
    sources=[str(Path(__file__).with_name("gate.cpp"))],
    extra_cflags=["-O3"],
    build_directory=os.environ.get("GATE_BUILD"),
    is_python_module=False,
)


@torch.library.register_fake("gate::silu_mul")
def _(x: Tensor, y: Tensor) -> Tensor:
    torch._check(x.shape == y.shape, lambda: f"silu_mul: x is {x.shape} and y is {y.shape}")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    gate = torch.sigmoid(x)
    return gradient * y * gate * (1 + x * (1 - gate)), gradient * x * gate


def save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


torch.library.register_autograd("gate::silu_mul", backward, setup_context=save)


def reference(x: Tensor, y: Tensor) -> Tensor:
    """The same of torch's own ops."""
    return torch.nn.functional.silu(x) * y
