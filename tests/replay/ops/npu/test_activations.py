"""torch_npu's activations, softmaxes, norms, losses and movement against plain torch and its gradients."""

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


def quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize(
    ("name", "argument", "function"),
    [("npu::fast_gelu", "self", quick), ("npu::npu_silu", "self", F.silu), ("npu::npu_mish", "self", F.mish)],
)
def test_activations(call: Call, close: Call, name: str, argument: str, function: Callable[..., Tensor]) -> None:
    close(call(name, **{argument: X}), function(X.double()))


def test_activations_in_place_and_fused(call: Call, close: Call) -> None:
    x = X.clone()
    assert call("npu::npu_silu_", self=x) is x
    close(x, F.silu(X.double()))
    first, second = X.double().chunk(2, -1)
    close(call("npu::npu_gelu_mul", input=X, approximate="tanh"), F.gelu(first, approximate="tanh") * second)
    out, gelu = call("npu::npu_geglu", self=X, approximate=0)
    close(gelu, F.gelu(second))
    close(out, first * F.gelu(second))
    gate, up = X.double()[:, ::2].clamp(max=1.0), X.double()[:, 1::2].clamp(-1.0, 1.0)
    wanted = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    close(call("npu::npu_clipped_swiglu", x=X, limit=1.0), wanted)
    left = call("npu::npu_clipped_swiglu", x=X, limit=1.0, group_index=torch.tensor([1, 2]))
    close(left, wanted * torch.tensor([1, 1, 1, 0]).unsqueeze(1))
    gate, up = X.double().chunk(2, -1)
    close(
        call("npu::npu_clipped_swiglu", x=X, limit=9.0, bias=0.0, interleaved=False),
        up * gate * torch.sigmoid(1.702 * gate),
    )


@pytest.mark.parametrize(
    ("name", "given", "function"),
    [
        ("npu::npu_fast_gelu_backward", {"grad": DY, "self": X}, quick),
        ("npu::npu_gelu_backward", {"grad_output": DY, "self": X}, F.gelu),
        ("npu::npu_silu_backward", {"grad_output": DY, "x0": X, "x1": F.silu(X)}, F.silu),
        ("npu::npu_mish_backward", {"grad": DY, "input": X}, F.mish),
    ],
)
def test_gradients_of_activations(
    call: Call, close: Call, name: str, given: dict[str, Tensor], function: Callable[..., Tensor]
) -> None:
    close(call(name, **given), gradients(function, DY, X)[0])


@pytest.mark.parametrize("left", [True, False])
def test_gradient_of_geglu(call: Call, close: Call, left: bool) -> None:
    def geglu(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return F.gelu(a) * b if left else a * F.gelu(b)

    _, gelu = call("npu::npu_geglu", self=X, approximate=0, activate_left=left)
    found = call("npu::npu_geglu_grad", grad_output=DY[:, :5], self=X, gelu=gelu, approximate=0, activate_left=left)
    close(found, gradients(geglu, DY[:, :5], X)[0])


@pytest.mark.parametrize("triangle", [True, False])
def test_masked_softmax(call: Call, close: Call, triangle: bool) -> None:
    x, mask, dy = torch.randn(2, 3, 5, 5), torch.rand(2, 1, 5, 5) > 0.7, torch.randn(2, 3, 5, 5)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) if triangle else mask

    def softmax(x: Tensor) -> Tensor:
        return (x * 0.5).masked_fill(hidden, -10000.0).softmax(-1)

    y = call("npu::npu_scaled_masked_softmax", x=x, mask=mask, scale=0.5, fixed_triu_mask=triangle)
    close(y, softmax(x.double()))
    found = call(
        "npu::npu_scaled_masked_softmax_backward", y_grad=dy, y=y, mask=mask, scale=0.5, fixed_triu_mask=triangle
    )
    close(found, gradients(softmax, dy, x)[0])


def test_other_softmaxes(call: Call, close: Call) -> None:
    scores, values, dout = torch.randn(2, 4, 5), torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    wanted = gradients(lambda s: s.softmax(-1) @ values.double(), dout, scores)[0]
    weights = scores.clone()
    call("npu::npu_attn_softmax_", self=weights)
    close(weights, scores.double().softmax(-1))
    call("npu::npu_attn_softmax_backward_", self=weights, grad_output=dout, values=values)
    close(weights, wanted)
    x, bias = torch.randn(2, 3, 4, 5, 5), torch.randn(1, 1, 4, 5, 5)
    mask = torch.randn(3, 5, 5)
    found = call(
        "npu::npu_masked_softmax_with_rel_pos_bias",
        x=x,
        atten_mask=mask.reshape(1, 3, 1, 5, 5),
        relative_pos_bias=bias,
        scale_value=0.5,
    )
    close(found, (x.double() * 0.5 + mask.double().reshape(1, 3, 1, 5, 5) + bias.double()).softmax(-1))


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


def norm(x: Tensor, gamma: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gamma


GAMMA, BETA, Y = torch.rand(10), torch.randn(10), torch.randn(4, 10)


def test_rms_norms(call: Call, close: Call) -> None:
    total = X.double() + Y.double()
    rstd = (total.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    close(call("npu::npu_gemma_rms_norm", self=X, gamma=GAMMA)[0], norm(X.double(), GAMMA.double() + 1))
    close(call("_C_ascend::npu_gemma_rms_norm", x=X, gamma=GAMMA)[0], norm(X.double(), GAMMA.double() + 1))
    wide, narrow, inverse, sums = call("npu::npu_add_rms_norm_cast", x1=X, x2=Y, gamma=GAMMA)
    for found, wanted in (
        (wide, norm(total, GAMMA.double())),
        (narrow, norm(total, GAMMA.double())),
        (inverse, rstd),
        (sums, total),
    ):
        close(found, wanted)
    found = call("_C_ascend::npu_add_rms_norm_bias", x1=X, x2=Y, gamma=GAMMA, beta=BETA)
    close(found[0], norm(total, GAMMA.double()) + BETA)
    found = call("npu::npu_add_rms_norm_v2_functional", x1=X, x2=Y, gamma=GAMMA)
    close(found[0], norm(total, GAMMA.double()))
    one, two = X.clone(), Y.clone()
    close(call("npu::npu_add_rms_norm_v2", x1=one, x2=two, gamma=GAMMA), rstd)
    close(one, norm(total, GAMMA.double()))
    close(two, total)


def test_rms_norms_with_quantisation(call: Call, close: Call) -> None:
    total = X.double() + Y.double()
    normed = norm(total, GAMMA.double())
    scale, zero = torch.rand(10) + 0.5, torch.randint(-3, 3, (10,))
    first, second, sums = call(
        "npu::npu_add_rms_norm_quant", x1=X, x2=Y, gamma=GAMMA, scales1=scale / 50, zero_points1=zero, scales2=None
    )
    wanted = (normed / (scale.double() / 50) + zero).round().clamp(-128, 127)
    assert (first.double() - wanted).abs().max() <= 1
    assert torch.equal(first, second)
    close(sums, total)
    found = call(
        "npu::npu_add_rms_norm_dynamic_quant", x1=X, x2=Y, gamma=GAMMA, smooth_scale1=scale, smooth_scale2=None
    )
    for data, sizes, smooth in ((found[0], found[3], scale.double()), (found[1], found[4], torch.ones(10))):
        assert (data.double() * sizes.double().unsqueeze(1) - normed * smooth).abs().max() < 0.02
    found = call(
        "npu::npu_rms_norm_quant", x=X, gamma=GAMMA, beta=BETA, scale=torch.tensor([0.02]), offset=torch.tensor([1])
    )
    wanted = ((norm(X.double(), GAMMA.double()) + BETA) / 0.02 + 1).round().clamp(-128, 127)
    assert (found.double() - wanted).abs().max() <= 1
    data, sizes = call("_C_ascend::npu_rms_norm_dynamic_quant", x=X, gamma=GAMMA)
    assert (data.double() * sizes.double().unsqueeze(1) - norm(X.double(), GAMMA.double())).abs().max() < 0.02


def test_gradients_of_layer_norms(call: Call, close: Call) -> None:
    mean, rstd = X.mean(-1, keepdim=True), (X.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    wanted = gradients(lambda x, g, b: F.layer_norm(x, (10,), g, b), DY, X, GAMMA, BETA)
    found = call(
        "npu::npu_layernorm_grad",
        grad_out=DY,
        input=X,
        normalized_shape=[10],
        mean=mean,
        rstd=rstd,
        weight=GAMMA,
        bias=BETA,
    )
    for one, other in zip(found, wanted, strict=True):
        close(one, other, 10)
    total = X + Y
    mean, rstd = total.mean(-1, keepdim=True), (total.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    wanted = gradients(lambda x, y, g, b: F.layer_norm(x + y, (10,), g, b), DY, X, Y, GAMMA, BETA)
    found = call(
        "npu::npu_add_layer_norm_backward", dy_opt=DY, x1=X, x2=Y, rstd=rstd, mean=mean, gamma=GAMMA, dsum_opt=None
    )
    for one, other in zip(found, wanted, strict=True):
        close(one, other, 10)

    def deep(x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
        return F.layer_norm(0.3 * x + gx, (10,), gamma, beta, 1e-6)

    mean, rstd, out = call("npu::npu_deep_norm", x=X, gx=Y, beta=BETA, gamma=GAMMA)
    close(out, deep(X.double(), Y.double(), BETA.double(), GAMMA.double()))
    found = call("npu::npu_deep_norm_backward", dy=DY, x=X, gx=Y, gamma=GAMMA, mean=mean, rstd=rstd)
    for one, other in zip(found, gradients(deep, DY, X, Y, BETA, GAMMA), strict=True):
        close(one, other, 10)


def test_group_norm_with_swish(call: Call, close: Call) -> None:
    x, dy, weight, bias = torch.randn(2, 6, 3, 3), torch.randn(2, 6, 3, 3), torch.rand(6), torch.randn(6)

    def swish(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = F.group_norm(x, 2, weight, bias)
        return y * torch.sigmoid(2 * y)

    out, mean, rstd = call(
        "npu::npu_group_norm_swish", input=x, num_groups=2, weight=weight, bias=bias, swish_scale=2.0
    )
    close(out, swish(x.double(), weight.double(), bias.double()))
    found = call(
        "npu::npu_group_norm_swish_grad",
        grad=dy,
        input=x,
        num_groups=2,
        weight=weight,
        bias=bias,
        mean=mean,
        rstd=rstd,
        grad_input_mask=[True] * 3,
        swish_scale=2.0,
    )
    for one, other in zip(found, gradients(swish, dy, x, weight, bias), strict=True):
        close(one, other, 20)
    out, _, _ = call("npu::npu_group_norm_silu", input=x, weight=weight, bias=bias, group=3)
    close(out, F.silu(F.group_norm(x.double(), 3, weight.double(), bias.double())))


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
