# pyright: strict
"""Small device-only ops: fused dropout, grid sampling, int4 weights, NPU pooling, and matrix products with another
output dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

Number = int | float


def fused_dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Apply dropout with keep probability `p`; for native_dropout, p is the drop probability."""
    del generator
    return torch.native_dropout(x, 1.0 - p, True)


def pin_memory(x: Tensor, device: torch.device | None = None) -> Tensor:
    """Return a copy in ordinary (not pinned) memory."""
    del device
    return x.clone()


def masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return x * mask.to(x.dtype) * scale


def cudnn_grid_sampler(x: Tensor, grid: Tensor) -> Tensor:
    """Sample bilinearly with zero padding and aligned corners, the only mode that cuDNN has."""
    return torch.grid_sampler(x, grid, 0, 0, True)


def cudnn_grid_sampler_backward(x: Tensor, grid: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the image and of the grid."""
    return torch.ops.aten.grid_sampler_2d_backward.default(grad_output, x, grid, 0, 0, True, [True, True])


def cudnn_affine_grid_generator_backward(grad: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return torch.ops.aten.affine_grid_generator_backward.default(grad, [n, c, h, w], True)


def cudnn_affine_grid_generator(theta: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return torch.affine_grid_generator(theta, [n, c, h, w], True)


def weight_int4pack_mm(x: Tensor, weight: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """Multiply x bfloat16 [M, K] by an int4 weight.

    The weight is int32 [N / 8, K / (16 t), 32, t / 2], where t is the number of inner K tiles. Its bytes are read as if
    they were [N, K / 2], which permutes the values.
    """
    n = scales_and_zeros.shape[1]
    packed = weight.contiguous().view(torch.uint8).reshape(n, -1)
    return torch.ops.aten._weight_int4pack_mm_for_cpu.default(x, packed, group, scales_and_zeros)


def max_pool2d_backward(
    grad_output: Tensor,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Scatter each gradient to the upper left corner of its window.

    The place of the maximum is unknown, because an NPU's `indices` are a bit mask in a private layout.
    """
    del indices
    height, width = x.shape[-2:]
    steps, pads = stride or kernel_size, padding
    rows, columns = (
        (torch.arange(grad_output.shape[axis], device=x.device) * steps[axis] - pads[axis]).clamp_(0, size - 1)
        for axis, size in ((-2, height), (-1, width))
    )
    corners = (rows[:, None] * width + columns).expand(grad_output.shape).contiguous()
    return torch.ops.aten.max_pool2d_with_indices_backward.default(
        grad_output, x, kernel_size, stride, padding, dilation, ceil_mode, corners
    )


def mm_to_dtype(x: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.mm(x, mat2).to(out_dtype)


def bmm_to_dtype(x: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.bmm(x, mat2).to(out_dtype)


def addmm_to_dtype(
    x: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    return torch.mm(mat1, mat2).to(out_dtype).mul_(alpha).add_(x, alpha=beta)


def baddbmm_to_dtype(
    x: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: torch.dtype, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    return torch.bmm(batch1, batch2).to(out_dtype).mul_(alpha).add_(x, alpha=beta)
