"""Equivalents of device-only ops: each entry exists, and does what the op it stands for does."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

from opreplay.replay.ops.aten import EQUIVALENTS, equivalent_for
from opreplay.replay.ops.calls import arguments_read, takes_call
from opreplay.replay.resolve.names import has_kernel
from opreplay.replay.resolve.schema import specs_of


@pytest.mark.parametrize("name", sorted(EQUIVALENTS))
def test_each_takes_the_arguments_of_the_original(name: str) -> None:
    function = EQUIVALENTS[name].load()
    entry = EQUIVALENTS[name]
    always = bool(entry.one_dtype or entry.needs_accelerator or entry.wants or entry.lacks)
    specs = [s for s in specs_of(name) if (always or not has_kernel(s, "cpu")) and not s.overload.endswith("out")]
    if not specs:
        pytest.skip(f"this torch has a CPU kernel for {name}, or no such op")
    spec = next((s for s in specs if not s.overload), specs[0])
    run = getattr(import_module(f"opreplay.replay.ops.aten.{entry.module}"), entry.function)
    if takes_call(run):
        assert {name for name, needed in arguments_read(run).items() if needed} <= {a.name for a in spec.args}
        return
    positional = [a for a in spec.args if not a.keyword_only]
    inspect.signature(function).bind(*positional, **{a.name: a for a in spec.args if a.keyword_only})


def run(name: str, *args: object, **kwargs: object) -> object:
    made = EQUIVALENTS[name].load()(*args, **kwargs)
    expected = on_meta(name, args, kwargs)
    if expected is not None:
        assert described(made) == described(expected), f"{name}: sizes, types and strides of results"
    return made


ACCELERATORS = frozenset({"aten::max_pool2d_with_indices_backward", "aten::_scaled_grouped_mm"})
"""Their tests give them what only an NPU has, or other types: torch's meta kernels refuse that."""


def on_meta(name: str, args: object, kwargs: object) -> object:
    """What torch's own meta kernel of the op returns; None where there is none."""
    if name in ACCELERATORS:
        return None
    meta_args, meta_kwargs = tree_map_only(torch.Tensor, lambda t: t.detach().to("meta"), (args, kwargs))
    try:
        return getattr(torch.ops.aten, name.partition("::")[2])(*meta_args, **meta_kwargs)
    except (NotImplementedError, RuntimeError, AttributeError) as error:
        lacks = ("no fake impl", "likely triggering this with tensor backend", "has no attribute 'device'")
        if not any(text in str(error) for text in lacks):
            raise
        return None


def described(results: object) -> list[object]:
    """Size, type and strides of each result that is a tensor, and which are none."""
    return [
        (tuple(one.shape), one.dtype, one.stride()) if isinstance(one, torch.Tensor) else None
        for one in (results if isinstance(results, list | tuple) else [results])
    ]


def test_convolutions() -> None:
    x, w, b = torch.randn(2, 4, 8, 8), torch.randn(6, 2, 3, 3), torch.randn(6)
    expected = F.conv2d(x, w, None, 2, 1, 1, 2)
    torch.testing.assert_close(
        run("aten::cudnn_convolution", x, w, [1, 1], [2, 2], [1, 1], 2, False, False, True), expected
    )
    with_bias = run("aten::miopen_convolution", x, w, b, [1, 1], [2, 2], [1, 1], 2, False, False)
    torch.testing.assert_close(with_bias, expected + b.view(1, -1, 1, 1))
    relu = run("aten::cudnn_convolution_relu", x, w, b, [2, 2], [1, 1], [1, 1], 2)
    torch.testing.assert_close(relu, (expected + b.view(1, -1, 1, 1)).relu())
    up = torch.randn(4, 3, 3, 3)
    made = run("aten::cudnn_convolution_transpose", x, up, [1, 1], [1, 1], [2, 2], [1, 1], 1, False, False, True)
    torch.testing.assert_close(made, F.conv_transpose2d(x, up, None, 2, 1, 1))


def test_batch_norm_of_several_ranks_is_that_of_all_rows() -> None:
    x, weight, bias = torch.randn(8, 3, 4, 4), torch.rand(3) + 0.5, torch.randn(3)
    parts = [run("aten::batch_norm_stats", part, 1e-5) for part in x.chunk(2)]
    mean, invstd = (torch.stack([p[i] for p in parts]) for i in (0, 1))  # type: ignore[index]
    all_mean, all_invstd = run("aten::batch_norm_gather_stats", x, mean, invstd, None, None, 0.1, 1e-5, 64)  # type: ignore[misc]
    out = run("aten::batch_norm_elemt", x, weight, bias, all_mean, all_invstd, 1e-5)
    torch.testing.assert_close(out, F.batch_norm(x, None, None, weight, bias, True, eps=1e-5))


def test_synchronised_batch_norm_backward() -> None:
    x = torch.randn(8, 3, 4, 4, requires_grad=True)
    weight = torch.rand(3) + 0.5
    grad = torch.randn_like(x)
    (expected,) = torch.autograd.grad(F.batch_norm(x, None, None, weight, None, True, eps=1e-5), x, grad)
    data = x.detach()
    mean, invstd = run("aten::batch_norm_stats", data, 1e-5)  # type: ignore[misc]
    reduced = run("aten::batch_norm_backward_reduce", grad, data, mean, invstd, weight, True, True, True)
    made = run(
        "aten::batch_norm_backward_elemt",
        grad,
        data,
        mean,
        invstd,
        weight,
        reduced[0],
        reduced[1],  # type: ignore[index]
        torch.tensor([128]),
    )
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_backward_with_mixed_dtypes() -> None:
    x, grad = torch.randn(4, 3, 5), torch.randn(4, 3, 5)
    _, mean, invstd = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    arguments = (torch.ones(3).bfloat16(), torch.zeros(3).bfloat16(), torch.ones(3).bfloat16(), mean, invstd)
    made = run(
        "aten::native_batch_norm_backward", grad.bfloat16(), x.bfloat16(), *arguments, True, 1e-5, [True, True, True]
    )
    expected = torch.ops.aten.native_batch_norm_backward.default(
        grad, x, torch.ones(3), None, None, mean, invstd, True, 1e-5, [True, True, True]
    )
    torch.testing.assert_close(made[0].float(), expected[0], rtol=0.05, atol=0.05)  # type: ignore[index]


def test_rms_norm_backward() -> None:
    x, weight = torch.randn(5, 7, requires_grad=True), torch.rand(7, requires_grad=True)
    out = F.rms_norm(x, (7,), weight, 1e-6)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (x, weight), grad)
    rstd = (x.detach().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    made = run("aten::_fused_rms_norm_backward", grad, x.detach(), [7], rstd, weight.detach(), [True, True])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flash_attention_forward_and_backward(causal: bool, kv_heads: int) -> None:
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, 16, 8, requires_grad=True) for _ in range(2))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != 4)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (q, k, v), grad)
    data = [x.detach() for x in (q, k, v)]
    made = run("aten::_scaled_dot_product_flash_attention", *data, 0.0, causal, False)
    torch.testing.assert_close(made[0], out.detach())  # type: ignore[index]
    flipped = run(
        "aten::_flash_attention_forward", *(x.transpose(1, 2) for x in data), None, None, 16, 16, 0.0, causal, False
    )
    torch.testing.assert_close(flipped[0].transpose(1, 2), out.detach())  # type: ignore[index]
    wide = data[1].repeat_interleave(4 // kv_heads, 1)
    scores = (data[0] @ wide.transpose(-1, -2)) / 8**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(16, 16, dtype=torch.bool).tril(), -torch.inf)
    lse = scores.logsumexp(-1)
    grads = run(
        "aten::_scaled_dot_product_flash_attention_backward",
        grad,
        *data,
        out.detach(),
        lse,
        None,
        None,
        16,
        16,
        0.0,
        causal,
        torch.zeros(()),
        torch.zeros(()),
    )
    torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-5)


def test_packed_sequences_attend_to_themselves_alone() -> None:
    q, k, v = (torch.randn(10, 2, 8) for _ in range(3))
    ends = torch.tensor([0, 4, 10], dtype=torch.int32)
    made = run("aten::_flash_attention_forward", q, k, v, ends, ends, 6, 6, 0.0, True, False)
    for a, b in ((0, 4), (4, 10)):
        one = [x[a:b].transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
        expected = F.scaled_dot_product_attention(one[0], one[1], one[2], is_causal=True)[0].transpose(0, 1)
        torch.testing.assert_close(made[0][a:b], expected)  # type: ignore[index]


def test_efficient_attention_with_a_bias() -> None:
    q, k, v, bias = (torch.randn(1, 2, 6, 8) for _ in range(4))
    bias = bias[..., :6]
    made = run("aten::_scaled_dot_product_efficient_attention", q, k, v, bias, True, 0.0, False)
    torch.testing.assert_close(made[0], F.scaled_dot_product_attention(q, k, v, bias))  # type: ignore[index]


@pytest.mark.parametrize(("mode", "module"), [(2, "LSTM"), (3, "GRU"), (1, "RNN")])
def test_recurrent_networks(mode: int, module: str) -> None:
    net = getattr(torch.nn, module)(5, 7, num_layers=2)
    x, hx, cx = torch.randn(3, 4, 5), torch.zeros(2, 4, 7), torch.zeros(2, 4, 7)
    weights = [w for layer in net.all_weights for w in layer]
    with torch.no_grad():
        made = run(
            "aten::_cudnn_rnn",
            x,
            weights,
            4,
            None,
            hx,
            cx if mode == 2 else None,
            mode,
            7,
            0,
            2,
            False,
            0.0,
            False,
            False,
            [],
            None,
        )
        torch.testing.assert_close(made[0], net(x)[0])  # type: ignore[index]


def test_fused_lstm_cell() -> None:
    cell = torch.nn.LSTMCell(5, 7)
    x, hx, cx = torch.randn(3, 5), torch.randn(3, 7), torch.randn(3, 7)
    with torch.no_grad():
        gates = x @ cell.weight_ih.T, hx @ cell.weight_hh.T
        made = run("aten::_thnn_fused_lstm_cell", *gates, cx, cell.bias_ih, cell.bias_hh)
        torch.testing.assert_close(made[:2], cell(x, (hx, cx)))  # type: ignore[index]


@pytest.mark.parametrize(("size", "stride", "padding"), [((13, 13), [2, 2], [0, 0]), ((9, 7), [], [1, 1])])
def test_pooling_with_an_npus_mask_spreads_all_gradients(
    size: tuple[int, int], stride: list[int], padding: list[int]
) -> None:
    name = "aten::max_pool2d_with_indices_backward"
    x = torch.randn(2, 4, *size)
    out, indices = torch.ops.aten.max_pool2d_with_indices.default(x, [3, 3], stride, padding, [1, 1], False)
    grad = torch.rand_like(out)
    made = run(name, grad, x, [3, 3], stride, padding, [1, 1], False, torch.zeros(2, 4, 9, 8, dtype=torch.int8))
    expected = torch.ops.aten.max_pool2d_with_indices_backward.default(
        grad, x, [3, 3], stride, padding, [1, 1], False, indices
    )
    assert isinstance(made, torch.Tensor)
    assert made.shape == expected.shape
    torch.testing.assert_close(made.sum(), expected.sum())
    for dtype, device, used in (("int8", "cpu", True), ("int64", "cpu", False), ("int8", "npu:0", False)):
        assert (equivalent_for(name, {"indices": dtype}, has_kernel=True, device=device) is not None) == used


@pytest.mark.parametrize("module", ["_cudnn_rnn_backward", "miopen_rnn_backward"])
@pytest.mark.parametrize("mode", [1, 2, 3])
def test_backwards_of_recurrent_networks(mode: int, module: str) -> None:
    kind = {1: torch.nn.RNN, 2: torch.nn.LSTM, 3: torch.nn.GRU}[mode]
    network = kind(5, 7, 2)
    x, hx, grad = torch.randn(4, 3, 5, requires_grad=True), torch.randn(2, 3, 7), torch.randn(4, 3, 7)
    cx = torch.randn(2, 3, 7)
    with torch.enable_grad():
        out = network(x, (hx, cx) if mode == 2 else hx)[0]
        expected = torch.autograd.grad(out, [x, *network.parameters()], grad)
    weights = [p.detach() for p in network.parameters()]
    proj = [0] if module.startswith("_cudnn") else []
    made = run(
        f"aten::{module}",
        x.detach(),
        weights,
        4,
        torch.empty(0),
        hx,
        cx if mode == 2 else None,
        out.detach(),
        grad,
        None,
        None,
        mode,
        7,
        *proj,
        2,
        False,
        0.0,
        True,
        False,
        [],
        None,
        torch.empty(0),
        [True, False, False, True],
    )
    assert isinstance(made, tuple)
    torch.testing.assert_close(made[0], expected[0])
    assert made[1] is None
    torch.testing.assert_close(made[3], list(expected[1:]))


def test_backward_of_a_recurrent_network_without_wanted_gradients_is_nothing() -> None:
    x, hx = torch.randn(4, 3, 5), torch.randn(1, 3, 7)
    weights = [p.detach() for p in torch.nn.GRU(5, 7).parameters()]
    made = run(
        "aten::_cudnn_rnn_backward",
        x,
        weights,
        4,
        hx,
        hx,
        None,
        x,
        None,
        None,
        None,
        3,
        7,
        0,
        1,
        False,
        0.0,
        True,
        False,
        [],
        None,
        hx,
        [False] * 4,
    )
    assert made == (None, None, None, [])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_backwards_of_fused_cells(kind: str) -> None:
    count = 4 if kind == "lstm" else 3
    left, right = torch.randn(3, 6 * count, requires_grad=True), torch.randn(3, 6 * count, requires_grad=True)
    state, grad = torch.randn(3, 6, requires_grad=True), torch.randn(3, 6)
    with torch.enable_grad():
        made = run(f"aten::_thnn_fused_{kind}_cell", left, right, state)
        assert isinstance(made, tuple)
        expected = torch.autograd.grad(made[0], [left, right, state], grad)
    done = [t.detach() for t in made]
    if kind == "lstm":
        found = run("aten::_thnn_fused_lstm_cell_backward_impl", grad, None, state.detach(), done[1], done[2], True)
        assert isinstance(found, tuple)
        torch.testing.assert_close(found[:2], (expected[0], expected[2]))
        torch.testing.assert_close(found[2], expected[0].sum(0))
    else:
        found = run("aten::_thnn_fused_gru_cell_backward", grad, done[1], True)
        assert isinstance(found, tuple)
        torch.testing.assert_close(found[:3], expected)
        torch.testing.assert_close(found[4], expected[1].sum(0))


@pytest.mark.parametrize("name", ["_cudnn_ctc_loss", "miopen_ctc_loss"])
def test_ctc_loss(name: str) -> None:
    scores, targets = torch.randn(9, 2, 5).log_softmax(-1), torch.randint(1, 5, (6,))
    found = run(f"aten::{name}", scores, targets, [9, 9], [4, 2], 0, True, False)
    assert isinstance(found, tuple)
    lengths = torch.tensor([9, 9]), torch.tensor([4, 2])
    torch.testing.assert_close(found[0], F.ctc_loss(scores, targets, *lengths, reduction="none"))


def test_backwards_of_grids() -> None:
    x, grid = torch.randn(1, 2, 5, 5, requires_grad=True), (torch.rand(1, 3, 3, 2) * 2 - 1).requires_grad_()
    grad = torch.randn(1, 2, 3, 3)
    with torch.enable_grad():
        expected = torch.autograd.grad(F.grid_sample(x, grid, align_corners=True), [x, grid], grad)
    torch.testing.assert_close(run("aten::cudnn_grid_sampler_backward", x.detach(), grid.detach(), grad), expected)
    theta = torch.randn(1, 2, 3, requires_grad=True)
    with torch.enable_grad():
        made = F.affine_grid(theta, [1, 2, 4, 4], align_corners=True)
        (wanted,) = torch.autograd.grad(made, [theta], torch.ones_like(made))
    found = run("aten::cudnn_affine_grid_generator_backward", torch.ones_like(made), 1, 2, 4, 4)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("log", [False, True])
def test_softmax_that_changes_the_type_is_replayed_where_the_cpu_has_none(log: bool) -> None:
    """`softmax(x, dim=-1, dtype=torch.float32)` of half x is one kernel on a GPU, in every eager attention."""
    name = "aten::_log_softmax" if log else "aten::_softmax"
    x = torch.randn(3, 5).half()
    expected = (torch.log_softmax if log else torch.softmax)(x, -1, dtype=torch.float32)
    torch.testing.assert_close(run(name, x, -1, True), expected)
    narrow, backward = {"self": "float16"}, f"{name}_backward_data"
    assert equivalent_for(name, narrow, {"half_to_float": True}, has_kernel=True, device="cpu") is not None
    assert equivalent_for(name, narrow, {"half_to_float": False}, has_kernel=True, device="cpu") is None
    assert equivalent_for(name, narrow, {"half_to_float": True}, has_kernel=True, device="cuda") is None
    grads, types = {"grad_output": "float32"}, {"input_dtype": "torch.float16"}
    assert equivalent_for(backward, grads, types, has_kernel=True, device="cpu") is not None
    assert equivalent_for(backward, {"grad_output": "float16"}, types, has_kernel=True, device="cpu") is None
    found = run(backward, torch.ones(3, 5), expected, -1, torch.float16)
    assert isinstance(found, torch.Tensor)
    assert (found.dtype, found.shape) == (torch.float16, (3, 5))


def test_convolutions_that_devices_override() -> None:
    x, weight, grad = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 4, 4)
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    with torch.enable_grad():
        out = F.conv2d(x, weight)
        (expected,) = torch.autograd.grad(out, [x], grad)
    torch.testing.assert_close(run("aten::convolution_overrideable", x, weight, None, *rest), out)
    found = run("aten::convolution_backward_overrideable", grad, x.detach(), weight, *rest, [True, True, True])
    assert isinstance(found, tuple)
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[2], grad.sum((0, 2, 3)))


@pytest.mark.parametrize("form", ["rows", "columns", "summed", "both"])
def test_grouped_products_in_eight_bits(form: str) -> None:
    """Each form of torch._scaled_grouped_mm against one product a group."""
    groups, rows, inner, columns = 2, 32, 32, 16
    cuts = torch.tensor([8, 32], dtype=torch.int32)
    spans = [slice(0, 8), slice(8, 32)]
    x = torch.randn(groups, rows, inner) if form in ("columns", "both") else torch.randn(rows, inner)
    y = torch.randn(groups, inner, columns if form == "both" else 32)
    y = y if form in ("rows", "both") else y[0]
    a, b = torch.rand(groups, rows) + 0.5, torch.rand(groups, y.shape[-1]) + 0.5
    if form == "rows":
        a = a[0]
        parts = [x[s] @ y[g] * a[s, None] * b[g] for g, s in enumerate(spans)]
        expected = torch.cat(parts)
    elif form == "columns":
        b = b[0]
        expected = torch.cat([x[g] @ y[:, s] * a[g][:, None] * b[s] for g, s in enumerate(spans)], 1)
    elif form == "summed":
        expected = torch.stack([x[:, s] @ y[s] * a[g][:, None] * b[g] for g, s in enumerate(spans)])
        a, b = a.reshape(-1), b.reshape(-1)
    else:
        expected = x @ y * a[:, :, None] * b[:, None, :]
    offs = None if form == "both" else cuts
    found = run("aten::_scaled_grouped_mm", x, y, a, b, offs, out_dtype=torch.float32)
    torch.testing.assert_close(found, expected, atol=0.5, rtol=0.05)
