"""References of norms read their weights as they lie, and products take empty rows."""

from __future__ import annotations

import pytest
import torch

from opreplay.replay.ops.register import register_namespace


@pytest.fixture(autouse=True)
def npu() -> None:
    register_namespace("npu")
    register_namespace("fbgemm")


def test_a_group_norm_with_a_strided_weight() -> None:
    x, weight, bias = torch.randn(2, 8, 4, 4), torch.randn(16)[::2], torch.randn(8)
    y = torch.ops.npu.npu_group_norm_silu(x, weight, bias, 2)[0]
    torch.testing.assert_close(
        y, torch.nn.functional.silu(torch.nn.functional.group_norm(x, 2, weight.contiguous(), bias))
    )


def test_the_gradient_of_a_layer_norm_with_a_strided_mean() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    grad, weight, bias = torch.randn(8, 16), torch.randn(16), torch.randn(16)
    torch.nn.functional.layer_norm(x, [16], weight, bias, 0.0).backward(grad)
    mean, rstd = torch.zeros(16, 1)[::2], torch.zeros(16, 1)[::2]
    mean.copy_(x.detach().mean(-1, keepdim=True))
    rstd.copy_(x.detach().var(-1, unbiased=False, keepdim=True).rsqrt())
    dx = torch.ops.npu.npu_layernorm_grad(grad, x.detach(), [16], mean, rstd, weight, bias)[0]
    torch.testing.assert_close(dx, x.grad)


def test_a_mask_of_windows_goes_before_heads() -> None:
    x, mask, bias = torch.randn(2, 3, 4, 8, 8), torch.randn(3, 8, 8), torch.randn(4, 8, 8)
    y = torch.ops.npu.npu_masked_softmax_with_rel_pos_bias(x, mask, bias)
    torch.testing.assert_close(y, (x + mask[:, None] + bias).softmax(-1))


def test_products_of_nothing() -> None:
    (y,) = torch.ops.fbgemm.bf16bf16bf16_grouped([torch.empty(0, 0)], [torch.empty(0, 0)])
    assert y.shape == (0, 0)
    dx, dw = torch.ops.npu.npu_linear_backward(torch.empty(0, 0), torch.empty(0, 0), torch.empty(0, 0))
    assert dx.shape == dw.shape == (0, 0)
