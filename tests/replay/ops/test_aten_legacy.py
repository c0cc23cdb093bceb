"""What torch 1.8 to 1.13 had and torch has no more: every op is accounted for, and each equivalent does its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from opreplay.replay.ops.aten import RENAMED, legacy_form
from opreplay.replay.ops.aten.legacy.forms import LEGACY
from opreplay.replay.resolve.names import candidates
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import compile_schema, specs_of

GOLDEN = Path(__file__).parents[2] / "golden" / "aten_ops_removed_since_1_8.txt"
WITHOUT = {
    **dict.fromkeys(
        ("_nested_tensor_layer_norm", "_nested_tensor_offsets"), "a trace does not record nested tensors"),
    **dict.fromkeys(("_sparse_mask_helper", "_sparse_matrix_mask_helper", "_sparse_csr_tensor"),
                    "a trace does not record the layout of sparse tensors"),
    **dict.fromkeys(("align_as", "align_tensors"), "a trace does not record names of dimensions"),
    **dict.fromkeys(("_native_multi_head_self_attention", "_native_decoder_only_multi_head_attention",
                     "_transformer_decoder_only_layer_fwd"), "in one release only, as a prototype"),
    "_linalg_inv_out_helper": "generated together with its in-place form in one release, but never called",
    **dict.fromkeys(
        ("_cholesky_helper", "_det_lu_based_helper", "_det_lu_based_helper_backward_helper",
         "_inverse_helper", "_linalg_inv_out_helper_", "_linalg_qr_helper", "_linalg_solve_out_helper_",
         "_lu_solve_helper", "_solve_helper", "_svd_helper", "_syevd_helper", "_symeig_helper", "eig",
         "lstsq", "matrix_rank", "solve", "symeig"),
        "a factorisation or its helper, which networks rarely call"),
    **dict.fromkeys(
        ("_Bfloat16QuantizedToFloat", "_FloatToBfloat16Quantized", "_addmv_impl_"),
        "in one release only, or an internal helper"),
    **dict.fromkeys(("_torch_cuda_cu_linker_symbol_op", "empty_meta"), "does no work"),
}  # fmt: skip
"""Op without an equivalent → reason why it has none."""
REMOVED = [line.split("\t")[0] for line in GOLDEN.read_text().splitlines()]


def run(name: str, *args: object, overload: str = "", **kwargs: object) -> object:
    row = legacy_form(f"aten::{name}", overload)
    assert row is not None, name
    return row.load()(*args, **kwargs)


@pytest.mark.parametrize("name", REMOVED)
def test_each_removed_op_has_an_equivalent_or_a_reason(name: str) -> None:
    found = candidates(f"aten::{name}", Policy())
    if name in WITHOUT:
        assert found.reason is not None
        assert not found.specs
    else:
        assert found.specs, f"{name}: {found.reason}"


def test_renamed_ops_exist_and_old_ones_do_not() -> None:
    for old, new in RENAMED.items():
        assert specs_of(new), new
        assert not specs_of(old), f"torch has {old}"


@pytest.mark.parametrize("row", LEGACY, ids=lambda row: f"{row.name}.{row.overload}")
def test_each_row_is_a_call(row: object) -> None:
    spec = compile_schema(torch._C.parse_schema(f"aten::{row.schema}"))  # type: ignore[attr-defined]
    assert callable(row.load())  # type: ignore[attr-defined]
    via = row.via  # type: ignore[attr-defined]
    assert via == "plain torch" or specs_of(via), via
    assert (row.overload or "") not in {now.overload for now in specs_of(spec.name)}  # type: ignore[attr-defined]


def test_no_row_is_named_twice() -> None:
    keys = [(row.name, row.overload) for row in LEGACY]
    assert len(keys) == len(set(keys))


def _conv(**kwargs: object) -> tuple[torch.Tensor, ...]:
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    w = torch.randn(6, 4 // int(kwargs.get("groups", 1)), 3, 3, requires_grad=True)  # type: ignore[call-overload]
    out = F.conv2d(x, w, None, **kwargs)  # type: ignore[arg-type]
    grad = torch.randn_like(out)
    gx, gw = torch.autograd.grad(out, (x, w), grad)
    return x.detach(), w.detach(), grad, gx, gw


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1)])
def test_gradients_of_a_convolution(stride: int, padding: int, dilation: int, groups: int) -> None:
    x, w, grad, gx, gw = _conv(stride=stride, padding=padding, dilation=dilation, groups=groups)
    rest = ([padding] * 2, [stride] * 2, [dilation] * 2, groups)
    flags = (False, False, True)
    check: Callable[..., None] = torch.testing.assert_close
    check(run("cudnn_convolution_backward_input", list(x.shape), grad, w, *rest, *flags), gx)
    check(run("cudnn_convolution_backward_weight", list(w.shape), grad, x, *rest, *flags), gw)
    check(run("cudnn_convolution_backward", x, grad, w, *rest, *flags, [True, True]), (gx, gw))
    only = run("cudnn_convolution_backward", x, grad, w, *rest, *flags, [False, True])
    assert only[0] is None  # type: ignore[index]
    check(only[1], gw)  # type: ignore[index]
    bias = grad.sum((0, 2, 3))
    check(run("miopen_convolution_backward_bias", grad), bias)
    for kind in ("miopen_convolution", "miopen_depthwise_convolution"):
        check(run(f"{kind}_backward", x, grad, w, *rest, False, False, [True] * 3), (gx, gw, bias))
        check(run(f"{kind}_backward_input", list(x.shape), grad, w, *rest, False, False), gx)
        check(run(f"{kind}_backward_weight", list(w.shape), grad, x, *rest, False, False), gw)
    check(run("mkldnn_convolution_backward", x, grad, w, *rest, [True] * 3), (gx, gw, bias))
    check(run("mkldnn_convolution_backward_input", list(x.shape), grad, w, *rest, True), gx)
    check(run("mkldnn_convolution_backward_weights", list(w.shape), grad, x, *rest, True), (gw, bias))
    if groups == 1:
        made = run("slow_conv_dilated2d_backward", grad, x, w, [3, 3], *(rest[1], rest[0], rest[2]), [True] * 3)
        check(made, (gx, gw, bias))


def test_gradients_of_convolutions_with_scratch() -> None:
    x, w, grad, gx, gw = _conv(stride=2, padding=1)
    bias, empty = grad.sum((0, 2, 3)), torch.empty(0)
    window = ([3, 3], [2, 2], [1, 1])
    made = run("thnn_conv2d_backward", grad, x, w, *window, empty, empty, [True] * 3, overload="output_mask")
    torch.testing.assert_close(made, (gx, gw, bias))
    made = run("_slow_conv2d_backward", grad, x, w, *window, empty, [True] * 3, overload="until_1_10")
    torch.testing.assert_close(made, (gx, gw, bias))
    x, w, grad, gx, gw = _conv(padding=1)
    torch.testing.assert_close(
        run("_nnpack_spatial_convolution_backward", x, grad, w, [1, 1], [True, True, False])[:2],
        (gx, gw),  # type: ignore[index]
    )
    torch.testing.assert_close(run("_nnpack_spatial_convolution_backward_input", x, grad, w, [1, 1]), gx)
    torch.testing.assert_close(run("_nnpack_spatial_convolution_backward_weight", x, list(w.shape), grad, [1, 1]), gw)


def test_gradients_of_transposed_and_depthwise_convolutions() -> None:
    x, w = torch.randn(2, 4, 5, 5, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    out = F.conv_transpose2d(x, w, None, 2, 1, 1)
    grad = torch.randn_like(out)
    gx, gw = torch.autograd.grad(out, (x, w), grad)
    data = (x.detach(), grad, w.detach())
    rest = ([1, 1], [2, 2], [1, 1], 1, False, False)
    whole = ([1, 1], [1, 1], [2, 2], [1, 1], 1, False, False)
    check: Callable[..., None] = torch.testing.assert_close
    check(run("cudnn_convolution_transpose_backward", *data, *whole, True, [True, True]), (gx, gw))
    check(run("miopen_convolution_transpose_backward", *data, *whole, [True, True, False])[:2], (gx, gw))  # type: ignore[index]
    for library, flags in (("cudnn", (True,)), ("miopen", ())):
        check(run(f"{library}_convolution_transpose_backward_input", grad, data[2], *rest, *flags), gx)
        made = run(f"{library}_convolution_transpose_backward_weight", list(w.shape), grad, data[0], *rest, *flags)
        check(made, gw)
    scratch = torch.empty(0)
    window = ([3, 3], [2, 2], [1, 1], [1, 1], [1, 1])
    made = run(
        "slow_conv_transpose2d_backward",
        grad,
        data[0],
        data[2],
        *window,
        scratch,
        scratch,
        [True] * 3,
        overload="output_mask",
    )
    check(made, (gx, gw, grad.sum((0, 2, 3))))
    x, w = torch.randn(2, 4, 9, 9, requires_grad=True), torch.randn(4, 1, 3, 3, requires_grad=True)
    out = F.conv2d(x, w, None, 1, 1, 1, 4)
    check(run("thnn_conv_depthwise2d_forward", x, w, [3, 3], None, [1, 1], [1, 1], [1, 1]), out)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (x, w), grad)
    window = ([3, 3], [1, 1], [1, 1], [1, 1])
    for name in ("thnn_conv_depthwise2d_backward", "_conv_depthwise2d_backward"):
        made = run(name, grad, x.detach(), w.detach(), *window, [True, True], overload="output_mask")
        check(made, expected)


def _gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, tuple]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    grad = torch.randn_like(out)
    return grad, torch.autograd.grad(out, leaves, grad)


def test_old_softmax_gradients() -> None:
    x = torch.randn(3, 7)
    for name, function in (("_softmax", F.softmax), ("_log_softmax", F.log_softmax)):
        grad, (expected,) = _gradients(lambda x, f=function: f(x, -1), x)
        out = function(x, -1)
        made = run(f"{name}_backward_data", grad, out, -1, x, overload="until_1_10")
        torch.testing.assert_close(made, expected)
        narrow = run(f"{name}_backward_data", grad, out, -1, x.half(), overload="until_1_10")
        assert narrow.dtype == torch.float16  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses(reduction: str) -> None:
    x, target = torch.randn(5, 3), torch.rand(5, 3)
    weight, positive = torch.rand(3), torch.rand(3) + 0.5
    number = 1 if reduction == "mean" else 2
    for kwargs in ({}, {"weight": weight}, {"weight": weight, "pos_weight": positive}):
        grad, (expected,) = _gradients(
            lambda x, k=kwargs: F.binary_cross_entropy_with_logits(x, target, reduction=reduction, **k), x
        )
        made = run(
            "binary_cross_entropy_with_logits_backward",
            grad,
            x,
            target,
            kwargs.get("weight"),
            kwargs.get("pos_weight"),
            number,
        )
        torch.testing.assert_close(made, expected)
    for log_target in (False, True):
        there = target.log() if log_target else target
        grad, (expected,) = _gradients(
            lambda x, t=there, log=log_target: F.kl_div(x, t, reduction=reduction, log_target=log), x
        )
        torch.testing.assert_close(run("kl_div_backward", grad, x, there, number, log_target=log_target), expected)
    grad, (expected,) = _gradients(lambda x: F.l1_loss(x, target, reduction=reduction), x)
    torch.testing.assert_close(run("l1_loss_backward", grad, x, target, number), expected)


def test_pointwise_and_moving_gradients() -> None:
    check: Callable[..., None] = torch.testing.assert_close
    x, weight = torch.randn(2, 3, 4, 4), torch.rand(3)
    grad, expected = _gradients(F.prelu, x, weight)
    check(run("prelu_backward", grad, x, weight), expected)
    grad, (expected_one,) = _gradients(lambda x: F.unfold(x, 3, 1, 1, 2), x)
    check(run("im2col_backward", grad, [4, 4], [3, 3], [1, 1], [1, 1], [2, 2]), expected_one)
    columns = torch.randn(2, 3 * 9, 4)
    grad, (expected_one,) = _gradients(lambda c: F.fold(c, (4, 4), 3, 1, 1, 2), columns)
    check(run("col2im_backward", grad, [3, 3], [1, 1], [1, 1], [2, 2]), expected_one)
    for size in ((5,), (4, 6)):
        m = torch.randn(size)
        grad, (expected_one,) = _gradients(lambda m: m.diag(1), m)
        check(run("diag_backward", grad, list(size), 1), expected_one)
    index = torch.tensor([0, 3, 3, 5])
    grad, (expected_one,) = _gradients(lambda x: x.take(index), x)
    check(run("take_backward", grad, x, index), expected_one)
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    grad, (expected_one,) = _gradients(lambda p: F.max_unpool2d(p, places, 2), pooled)
    check(run("max_unpool2d_backward", grad, pooled, places, [4, 4]), expected_one)
    grad, (expected_one,) = _gradients(lambda x: F.max_pool2d(x, 2), x)
    check(run("mps_max_pool2d_backward", grad, x, [2, 2]), expected_one)
    y = torch.rand(3, 5) + 0.5
    grad, (expected_one,) = _gradients(lambda y: y.cumprod(1), y)
    check(run("cumprod_backward", grad, y, 1, overload="until_1_8"), expected_one)
    grad, (expected_one,) = _gradients(lambda x: F.adaptive_avg_pool3d(x, 2), x)
    check(run("adaptive_avg_pool3d_backward", grad, x), expected_one)


def test_resampling_by_scales() -> None:
    x = torch.randn(2, 3, 4, 4)
    grad, (expected,) = _gradients(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)
    made = run("upsample_bilinear2d_backward", grad, None, [2, 3, 4, 4], False, [2.0, 2.0], overload="vec")
    torch.testing.assert_close(made, expected)
    grad, (expected,) = _gradients(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), x)
    made = run("upsample_nearest2d_backward", grad, None, [2, 3, 4, 4], [2.0, 2.0], overload="vec")
    torch.testing.assert_close(made, expected)
    grid = torch.rand(2, 5, 5, 2) * 2 - 1
    grad, expected = _gradients(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid)  # type: ignore[assignment]
    made = run("grid_sampler_2d_backward", grad, x, grid, 0, 0, False, overload="until_1_11")
    torch.testing.assert_close(made, expected)


def test_synchronised_batch_norm_of_1_8() -> None:
    x, weight = torch.randn(8, 3, 4, 4), torch.rand(3) + 0.5
    grad, (expected,) = _gradients(lambda x: F.batch_norm(x, None, None, weight, None, True, eps=1e-5), x)
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    centred = x - mean.view(1, -1, 1, 1)
    means = (grad.mean((0, 2, 3)), (grad * centred).mean((0, 2, 3)))
    invstd = (variance + 1e-5).rsqrt()
    made = run("batch_norm_backward_elemt", grad, x, mean, invstd, weight, *means, overload="until_1_8")
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


def test_linear_gradients() -> None:
    x, weight, bias = torch.randn(2, 5, 4), torch.randn(3, 4), torch.randn(3)
    grad, expected = _gradients(F.linear, x, weight, bias)
    torch.testing.assert_close(run("mps_linear_backward", x, grad, weight, [True] * 3), expected)
    torch.testing.assert_close(run("_mps_linear_backward_input", [2, 5, 4], grad, weight), expected[0])
    torch.testing.assert_close(run("_mps_linear_backward_weights", grad, x, weight, True), expected[1:])


def test_single_ops() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(run("_bmm", a, b, deterministic=True), a @ b)
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    torch.testing.assert_close(
        run("_convolution_nogroup", x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0]), F.conv2d(x, w, padding=1)
    )
    q, k, v = (torch.randn(2, 3, 4, 8) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    made = run("_scaled_dot_product_attention", q, k, v, None, 0.0, False, True)
    torch.testing.assert_close(made[0], expected)  # type: ignore[index]
    tokens = torch.randn(7, 2, 8)
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)
    made = run("_flash_scaled_dot_product_attention", tokens, tokens, tokens, starts, starts, 4, 4, 0.0, False)
    first = tokens[:3].transpose(0, 1)
    torch.testing.assert_close(made[:3].transpose(0, 1), F.scaled_dot_product_attention(first, first, first))  # type: ignore[index]
