"""What the test over all families does not reach of torch_npu: dropout, losses, zero points, floating-point status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[..., Any]


def gradients(function: Callable[..., Tensor], upstream: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The gradients of a plain function in float64."""
    leaves = [x.double().requires_grad_() for x in inputs]
    function(*leaves).backward(upstream.double())
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


X, DY = torch.randn(4, 10), torch.randn(4, 10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="another device draws other numbers")
def test_dropout(call: Call, close: Call) -> None:
    x = torch.ones(1000)
    out, mask = call("npu::_dropout_with_byte_mask", self=x, p=0.25)
    assert 0.2 < float((out == 0).float().mean()) < 0.3
    close(out, mask.double() / 0.75)
    close(call("npu::_dropout_with_byte_mask_backward", grad_output=x, mask=mask, p=0.25), out.double())
    assert torch.equal(call("npu::dropout_with_byte_mask", self=x, p=0.5, train=False), x)
    packed = torch.tensor([0b101, 0, 255, 1], dtype=torch.uint8)
    out, same = call("npu::npu_dropout_do_mask", self=torch.ones(18), mask=packed, p=0.5)
    assert out.nonzero().flatten().tolist() == [0, 2, 16, 17]
    assert torch.equal(same, packed)
    scores, more, dy = torch.randn(3, 6), torch.randn(3, 6), torch.randn(3, 6)
    mask, softmax, out = call("npu::npu_dropout_with_add_softmax", self=scores, x1=more, alpha=0.5, prob=0.5, dim=-1)
    close(softmax, (scores.double() / 2 + more.double()).softmax(-1))
    close(out, softmax.double() * mask.double() * 2)
    found = call(
        "npu::npu_dropout_with_add_softmax_backward",
        grad=dy,
        mask=mask,
        softmax_out=softmax,
        alpha=0.5,
        prob=0.5,
        dim=-1,
    )
    wanted = gradients(lambda a, b: (a / 2 + b).softmax(-1) * mask.double() * 2, dy, scores, more)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


def test_casts_and_status(call: Call) -> None:
    half = torch.zeros(4, 10, dtype=torch.float16)
    assert torch.equal(call("npu::npu_dtype_cast_", self=half, src=X), X.half())
    for name in ("npu::npu_dtype_cast_backward", "npu::_npu_dtype_cast_backward"):
        assert call(name, grad=X, dtype=torch.float16).dtype == torch.float16
    assert torch.equal(call("npu::npu_format_cast_", self=torch.zeros(4, 10), src=X), X)
    assert call("npu::npu_alloc_float_status", self=X).tolist() == [0] * 8
    for name in ("npu::npu_get_float_status", "npu::npu_clear_float_status"):
        assert call(name, self=torch.zeros(8)).tolist() == [0] * 8
    assert call("npu::_amp_foreach_non_finite_check", scaled_grads=[X, torch.tensor([1.0, torch.inf])])
    assert not call("npu::_amp_foreach_non_finite_check", scaled_grads=[X])
    assert call("npu::npu_prefetch", self=X, dependency=None, max_size=10) is None
    assert call("npu::one_", self=torch.zeros(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(call: Call, close: Call, reduction: str) -> None:
    target = torch.tensor([1, 9, -100, 3])

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction=reduction, label_smoothing=0.1)

    found, log_prob, _, _ = call(
        "npu::npu_cross_entropy_loss", input=X, target=target, reduction=reduction, label_smoothing=0.1
    )
    close(found, loss(X.double()))
    close(log_prob, X.double().log_softmax(-1))
    upstream = torch.rand(4) if reduction == "none" else torch.tensor(2.0)
    grad = call(
        "npu::npu_cross_entropy_loss_backward",
        grad_loss=upstream,
        log_prob=log_prob,
        target=target,
        reduction=reduction,
        label_smoothing=0.1,
    )
    close(grad, gradients(loss, upstream, X)[0])


def test_soft_labels_and_quantisation(call: Call, close: Call) -> None:
    labels, upstream = torch.rand(4, 10).softmax(-1), torch.rand(4)

    def loss(x: Tensor) -> Tensor:
        return -(labels.double() * x.log_softmax(-1)).sum(-1)

    close(call("npu::npu_softmax_cross_entropy_with_logits", self=X, labels=labels), loss(X.double()))
    found = call("npu::npu_softmax_cross_entropy_with_logits_backward", grad=upstream, self=X, labels=labels)
    close(found, gradients(loss, upstream, X)[0])
    data, scale, offset = call("npu::npu_dynamic_quant_asymmetric", input=X)
    assert ((data.double() - offset.double().unsqueeze(1)) * scale.double().unsqueeze(1) - X).abs().max() < 0.02
    packed = call("npu::npu_trans_quant_param", scale=torch.tensor([0.5, 2.0]), offset=torch.tensor([3.0, -1.0]))
    assert (packed & 0xFFFFFFFF).to(torch.int32).view(torch.float32).tolist() == [0.5, 2.0]
    assert ((packed >> 37) & 0x1FF).tolist() == [3, 511]
