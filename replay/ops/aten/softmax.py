# pyright: strict
"""Softmaxes of 16-bit inputs with float32 results, and their backwards, which return 16 bits. Only accelerators fuse
these casts.
"""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_to_float(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Return the float32 softmax of a float16 or bfloat16 input."""
    del half_to_float
    return torch.ops.aten._softmax.default(x.float(), dim, False)


def log_softmax_to_float(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Return the float32 log-softmax of a float16 or bfloat16 input."""
    del half_to_float
    return torch.ops.aten._log_softmax.default(x.float(), dim, False)


def softmax_backward_to_half(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """Return the gradient in the 16-bit dtype of the input, from a float32 gradient and output."""
    grad = torch.ops.aten._softmax_backward_data.default(grad_output, output, dim, grad_output.dtype)
    return grad.to(input_dtype)


def log_softmax_backward_to_half(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """Return the gradient in the 16-bit dtype of the input, from a float32 gradient and output."""
    grad = torch.ops.aten._log_softmax_backward_data.default(grad_output, output, dim, grad_output.dtype)
    return grad.to(input_dtype)
