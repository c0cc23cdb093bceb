"""Operations by definition: what each op that counts them multiplies and adds, counted by running it on ones.

A sum over the result of a product of ones is its number of multiplications. Each formula of ours is compared with
that: of recorded calls (`work_of`), of planned ones (`product_flops`) and of captured ones (`formulas`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import opreplay
from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ops.recorded.sizes import work_of
from opreplay.traces.model import OpSignature
from tests import factories

ones = torch.ones


def captured_flops(step: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> int:
    plan = opreplay.capture(step, *inputs, **options)
    assert plan.capture is not None
    return sum(plan.capture.flops.values())


def operations(counted: torch.Tensor) -> int:
    return 2 * int(counted.double().sum())


PRODUCTS: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = [
    (torch.mm, (ones(3, 5), ones(5, 7))),
    (torch.bmm, (ones(2, 3, 5), ones(2, 5, 7))),
    (torch.mv, (ones(3, 5), ones(5))),
    (torch.dot, (ones(9), ones(9))),
    (torch.matmul, (ones(4, 1, 3, 5), ones(2, 5, 7))),
    (torch.matmul, (ones(5), ones(4, 5, 7))),
    (F.linear, (ones(2, 3, 5), ones(7, 5))),
    (lambda a, b: torch.einsum("bik,bjk->bij", a, b), (ones(2, 3, 5), ones(2, 4, 5))),
    (lambda a, b: torch.einsum("ijk,kl->ijl", a, b), (ones(2, 3, 5), ones(5, 4))),
    (lambda a, b: torch.addmm(a.new_zeros(7), a, b), (ones(3, 5), ones(5, 7))),
    (lambda a, b: torch.baddbmm(a.new_zeros(3, 7), a, b), (ones(2, 3, 5), ones(2, 5, 7))),
    (lambda a, b: torch.addbmm(a.new_zeros(3, 7), a, b), (ones(2, 3, 5), ones(2, 5, 7))),
    (lambda a, b: torch.addmv(a.new_zeros(3), a, b), (ones(3, 5), ones(5))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "inputs"), PRODUCTS)
def test_products(step: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> None:
    assert captured_flops(step, *inputs) == operations(step(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "inputs"), [*PRODUCTS, (torch.vdot, (ones(9), ones(9)))])
def test_products_of_complex_numbers_are_four_real_ones(
    step: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> None:
    """(a + bi)(c + di): four products of the real and imaginary parts, added up."""
    assert captured_flops(step, *(tensor.to(torch.complex64) for tensor in inputs)) == 4 * operations(step(*inputs))


def bilinear_operations(rows: int, outputs: int, width: int, other: int) -> int:
    """Each row with each matrix, and each result with the row of the second input."""
    with_first = ones(rows, width) @ ones(width, outputs * other)
    with_second = torch.einsum("boj,bj->bo", ones(rows, outputs, other), ones(rows, other))
    return operations(with_first) + operations(with_second)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_bilinear_layers(leading: tuple[int, ...], dtype: torch.dtype) -> None:
    first, second = torch.randn(*leading, 5, dtype=dtype), torch.randn(*leading, 3, dtype=dtype)
    weight = torch.randn(7, 5, 3, dtype=dtype)
    rows = first.numel() // 5
    expected = bilinear_operations(rows, 7, 5, 3) * (4 if dtype.is_complex else 1)
    assert captured_flops(F.bilinear, first, second, weight) == expected
    spelled = "c10::complex<float>" if dtype.is_complex else "float"
    shapes = [tuple(tensor.shape) for tensor in (first, second, weight)]
    assert work_of(recorded("aten::bilinear", [*shapes, ()], spelled)).flops == expected
    named = dict(zip(("input1", "input2", "weight"), shapes, strict=True))
    assert product_flops(planned("aten::bilinear", named, (*leading, 7), str(dtype)[6:])) == expected
    flat = [(rows, 5), (7, 5, 3), (rows, 3), "[1, 3]", "[0]", "[1, 2]", "[2, 3]", "1"]
    assert work_of(recorded("aten::_trilinear", flat, spelled)).flops == expected


def test_the_gradients_of_a_bilinear_layer() -> None:
    """Three sums of products of three, each with one of the inputs as its result."""
    net = torch.nn.Bilinear(5, 3, 7, bias=False)
    inputs = torch.randn(4, 5, requires_grad=True), torch.randn(4, 3, requires_grad=True)

    def step(first: torch.Tensor, second: torch.Tensor) -> None:
        net(first, second).sum().backward()

    pairs = 2 * 4 * 7 * 5 * 3
    # Sums of products of three factors, each of 4 x 7 x 5 x 3 in its first or second product.
    assert pairs * 4 <= captured_flops(step, *inputs) <= pairs * 4 * 2


@pytest.mark.parametrize("numbers", ["[1, 3, 3]", "[99]", "[]", "[1, 2, 3, 4]", "[-1]", "1", str([0] * 999)])
def test_sizes_that_do_not_fit_a_sum_of_three_products_tell_nothing(numbers: str) -> None:
    call = recorded("aten::_trilinear", [(4, 5), (7, 5, 3), (4, 3), numbers, "[0]", "[1, 2]", "[2, 3]", "1"])
    assert work_of(call).flops is None


Convolution = tuple[int, bool, int, int, int, int, int]
"""Dimensions, transposed, groups, stride, padding, dilation, output padding."""
CONVOLUTIONS: list[Convolution] = [
    (dims, transposed, groups, stride, padding, dilation, int(transposed and stride > 1))
    for dims, transposed in product((1, 2, 3), (False, True))
    for groups, stride, padding, dilation in ((1, 1, 0, 1), (2, 2, 1, 1), (4, 1, 2, 2), (2, 2, 0, 2))
]


def module(convolution: Convolution) -> torch.nn.Module:
    dims, transposed, groups, stride, padding, dilation, more = convolution
    name = f"Conv{'Transpose' * transposed}{dims}d"
    options = {"output_padding": more} if transposed else {}
    kind: Callable[..., torch.nn.Module] = getattr(torch.nn, name)
    return kind(4, 8, 3, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=False, **options)


def multiplications(convolution: Convolution, data: torch.Tensor) -> int:
    """By running it on ones; with the padding as ones too, for a kernel multiplies that as well."""
    dims, transposed, groups, stride, padding, dilation, _ = convolution
    if transposed:
        weight = ones(4, 8 // groups, *[3] * dims)
        run: Callable[..., torch.Tensor] = getattr(F, f"conv_transpose{dims}d")
        return operations(run(ones(data.shape), weight, stride=stride, dilation=dilation, groups=groups))
    padded = ones(*data.shape[:2], *(size + 2 * padding for size in data.shape[2:]))
    weight = ones(8, 4 // groups, *[3] * dims)
    run = getattr(F, f"conv{dims}d")
    return operations(run(padded, weight, stride=stride, dilation=dilation, groups=groups))


@pytest.mark.slow
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_convolutions_and_the_gradients_that_are_asked_for(convolution: Convolution) -> None:
    data = torch.randn(3, 4, *[7] * convolution[0])
    once = multiplications(convolution, data)
    for of_data, of_weight in ((True, True), (False, True), (True, False)):
        net = module(convolution).requires_grad_(of_weight)

        def step(x: torch.Tensor, net: torch.nn.Module = net) -> None:
            net(x).sum().backward()

        found = captured_flops(step, data.clone().requires_grad_(of_data))
        assert found == once * (1 + of_data + of_weight)


def recorded(name: str, shapes: Sequence[tuple[int, ...] | str], dtype: str = "float") -> OpSignature:
    return OpSignature(
        name=name,
        dims=tuple(() if isinstance(shape, str) else shape for shape in shapes),
        types=tuple("Scalar" if isinstance(shape, str) else dtype for shape in shapes),
        strides=None,
        concrete=tuple(shape if isinstance(shape, str) else "" for shape in shapes),
    )


def planned(name: str, arguments: dict[str, Any], result: tuple[int, ...], dtype: str = "float32") -> ReplayOp:
    args: list[ReplayArg] = []
    for key, value in arguments.items():
        if isinstance(value, tuple) and not isinstance(value[0], bool):
            args.append(factories.tensor(key, *value, dtype=dtype))
        else:
            args.append(factories.value(key, "bool[]" if isinstance(value, tuple) else "bool", value))
    return factories.op(name, *args, outputs=(factories.meta(*result),))


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_recorded_and_planned_convolutions(convolution: Convolution) -> None:
    dims, transposed, groups, stride, padding, dilation, more = convolution
    net, data = module(convolution), torch.randn(3, 4, *[7] * dims)
    once = multiplications(convolution, data)
    x, weight, result = tuple(data.shape), tuple(net.weight.shape), tuple(net(data).shape)  # type: ignore[arg-type]
    plain = [str([n] * dims) for n in (stride, padding, dilation)]
    window = [*plain, str(transposed), str([more] * dims), str(groups)]
    call = recorded("aten::convolution", [x, weight, (), *window])
    assert work_of(call).flops == once
    named = {"input": x, "weight": weight, "transposed": transposed}
    assert product_flops(planned("aten::convolution", named, result)) == once
    for mask in ((True, True, False), (False, True, True), (True, False, False), (False, False, True)):
        call = recorded("aten::convolution_backward", [result, x, weight, "[0]", *window, str([*mask])])
        assert (work_of(call).flops or 0) == once * sum(mask[:2])
        asked = {"grad_output": result, **named, "output_mask": mask}
        assert product_flops(planned("aten::convolution_backward", asked, x)) == once * sum(mask[:2])


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_libraries_convolutions_do_as_much_as_plain_ones(convolution: Convolution) -> None:
    dims, transposed, groups, *window, more = convolution
    data = torch.randn(3, 4, *[7] * dims)
    once = multiplications(convolution, data)
    x, weight = tuple(data.shape), (4, 8 // groups, *[3] * dims) if transposed else (8, 4 // groups, *[3] * dims)
    stride, padding, dilation, output = (str([n] * dims) for n in (*window, more))
    calls = {
        f"conv{dims}d": [(), stride, padding, dilation, str(groups)],
        "cudnn_convolution": [padding, stride, dilation, str(groups)],
        "miopen_convolution": [(), padding, stride, dilation, str(groups)],
        "cudnn_convolution_relu": [(), stride, padding, dilation, str(groups)],
        "miopen_convolution_add_relu": [x, "1", (), stride, padding, dilation, str(groups)],
    }
    if transposed:
        calls = {
            f"conv_transpose{dims}d": [(), stride, padding, output, str(groups), dilation],
            "cudnn_convolution_transpose": [padding, output, stride, dilation, str(groups)],
            "miopen_convolution_transpose": [(), padding, output, stride, dilation, str(groups)],
        }
    for name, rest in calls.items():
        assert work_of(recorded(f"aten::{name}", [x, weight, *rest])).flops == once, name


def test_padding_by_name() -> None:
    shapes = [(2, 4, 9, 9), (6, 4, 3, 3), (), "[1, 1]"]
    for padding, places in (("same", 81), ("valid", 49)):
        call = recorded("aten::conv2d", [*shapes, padding, "[1, 1]", "1"])
        assert work_of(call).flops == 2 * 2 * 6 * places * 4 * 9


def test_outer_products_multiply_once_an_element() -> None:
    for name in ("aten::ger", "aten::outer"):
        assert work_of(recorded(name, [(5,), (7,)])).flops == 35


@pytest.mark.parametrize(
    ("first", "second", "flops"),
    [
        ((10, 6), (3, 6, 8), 2 * 10 * 6 * 8),
        ((3, 10, 6), (3, 6, 8), 2 * 3 * 10 * 6 * 8),
        ((3, 10, 6), (6, 8), 2 * 10 * 6 * 8),
        ((10, 6), (6, 8), 2 * 10 * 6 * 8),
        ((10, 6), (3, 7, 8), None),
        ((2, 10, 6), (3, 6, 8), None),
    ],
)
def test_recorded_products_of_groups(first: tuple[int, ...], second: tuple[int, ...], flops: int | None) -> None:
    assert work_of(recorded("aten::_grouped_mm", [first, second, (3,)])).flops == flops


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::mm", [(4, 5), (6, 7)]),
        ("aten::bmm", [(2, 4, 5), (2, 6, 7)]),
        ("aten::matmul", [(3, 4, 5), (6, 7)]),
        ("aten::linear", [(4, 5), (7, 6)]),
        ("aten::mv", [(4, 5), (6,)]),
        ("aten::conv2d", [(2, 5, 9, 9), (6, 4, 3, 3), (), "[1, 1]", "[0, 0]", "[1, 1]", "1"]),
        ("aten::conv_transpose2d", [(2, 5, 9, 9), (4, 6, 3, 3), (), "[1, 1]", "[0, 0]", "[0, 0]", "1", "[1, 1]"]),
    ],
)
def test_factors_that_do_not_go_together_have_no_operations(name: str, shapes: list[tuple[int, ...] | str]) -> None:
    assert work_of(recorded(name, shapes)).flops is None


def attention_operations(heads: int, shared: int, queries: int, keys: int, width: int, other: int) -> int:
    """Scores and their product with the values, one head after the other."""
    total = 0
    for head in range(heads):
        assert head // (heads // shared) < shared
        scores = ones(queries, width) @ ones(width, keys)
        total += operations(scores) + operations(ones(queries, keys) @ ones(keys, other))
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(heads: int, shared: int, causal: bool) -> None:
    query, key, value = torch.randn(2, heads, 5, 8), torch.randn(2, shared, 5, 8), torch.randn(2, shared, 5, 8)
    once = 2 * attention_operations(heads, shared, 5, 5, 8, 8)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != shared)

    assert captured_flops(step, query, key, value) == once, "all pairs, masked or not"
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    call = recorded("aten::_scaled_dot_product_flash_attention", [*shapes, "0.", str(causal)])
    assert work_of(call).flops == once / (2 if causal else 1)
    named: dict[str, Any] = dict(zip(("query", "key", "value"), shapes, strict=True))
    assert product_flops(planned("aten::_scaled_dot_product_flash_attention", named, shapes[0])) == once


def test_attention_with_values_of_another_width() -> None:
    shapes = [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3)]
    once = 2 * attention_operations(4, 4, 5, 7, 8, 3)
    assert captured_flops(F.scaled_dot_product_attention, *(torch.randn(shape) for shape in shapes)) == once
    call = recorded("aten::_scaled_dot_product_efficient_attention", [*shapes, (), "False", "0.", "False"])
    assert work_of(call).flops == once
    named: dict[str, Any] = dict(zip(("query", "key", "value"), shapes, strict=True))
    assert product_flops(planned("aten::scaled_dot_product_attention", named, (2, 4, 5, 3))) == once


def test_the_backward_pass_of_attention_is_five_products() -> None:
    inputs = [torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3)]

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    one_product = operations(ones(2, 4, 5, 8) @ ones(2, 4, 8, 5))
    assert captured_flops(step, *inputs) == (2 + 5) * one_product


@pytest.mark.parametrize(
    ("x", "weight"),
    [((9, 4), (3, 4, 5)), ((3, 9, 4), (3, 4, 5)), ((3, 9, 4), (4, 6)), ((4, 9), (9, 5))],
    ids=["rows dealt out", "batches", "columns dealt out", "summed dealt out"],
)
def test_products_of_groups(x: tuple[int, ...], weight: tuple[int, ...]) -> None:
    is_dealt = len(x) == 2 or len(weight) == 2
    ends = torch.tensor([2, 5, weight[-1] if len(x) == 3 else x[-1] if len(weight) == 2 else x[0]], dtype=torch.int32)
    expected = 0
    starts = [0, 2, 5]
    for group, (begin, end) in enumerate(zip(starts, ends.tolist(), strict=True)):
        if len(x) == 2 and len(weight) == 3:
            expected += operations(ones(end - begin, x[1]) @ ones(weight[1:]))
        elif len(x) == 3 and len(weight) == 2:
            expected += operations(ones(x[1:]) @ ones(weight[0], end - begin))
        elif len(x) == 2:
            expected += operations(ones(x[0], end - begin) @ ones(end - begin, weight[1]))
        else:
            expected += operations(ones(x[1:]) @ ones(weight[1:])) if group < x[0] else 0

    from opreplay.replay.arguments.operations import formulas

    formula = formulas()[torch.ops.aten._grouped_mm]
    assert formula(ones(x), ones(weight), ends if is_dealt else None, out_val=None) == expected


def test_numbers_that_are_packed_in_pairs_count_twice() -> None:
    shapes = [(16, 8), (8, 4)]
    assert work_of(recorded("aten::_scaled_mm", shapes, "c10::Float8_e4m3fn")).flops == operations(
        ones(16, 8) @ ones(8, 4)
    )
    assert work_of(recorded("aten::_scaled_mm", shapes, "c10::Float4_e2m1fn_x2")).flops == operations(
        ones(16, 16) @ ones(16, 4)
    )


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::mm", [(3, 5), (5, 7)]),
        ("aten::_int_mm", [(3, 5), (5, 7)]),
        ("aten::addmm", [(7,), (3, 5), (5, 7)]),
        ("aten::_addmm_activation", [(7,), (3, 5), (5, 7)]),
        ("aten::bmm", [(2, 3, 5), (2, 5, 7)]),
        ("aten::baddbmm", [(2, 3, 7), (2, 3, 5), (2, 5, 7)]),
        ("aten::linear", [(4, 3, 5), (7, 5), (7,)]),
        ("aten::matmul", [(4, 1, 3, 5), (2, 5, 7)]),
        ("aten::mv", [(3, 5), (5,)]),
        ("aten::dot", [(9,), (9,)]),
        ("aten::vdot", [(9,), (9,)]),
        ("aten::addmv", [(3,), (3, 5), (5,)]),
        ("aten::addbmm", [(3, 7), (2, 3, 5), (2, 5, 7)]),
    ],
)
def test_recorded_and_planned_products(name: str, shapes: list[tuple[int, ...]]) -> None:
    at = 1 if "add" in name else 0
    first, second = shapes[at : at + 2]
    factors = ones(first), ones(second).T if "linear" in name else ones(second)
    expected = operations(factors[0] @ factors[1])
    assert work_of(recorded(name, [*shapes])).flops == expected
    assert work_of(recorded(name, [*shapes], "c10::complex<double>")).flops == 4 * expected
    names = [arg.name for arg in getattr(torch.ops.aten, name[6:]).default._schema.arguments][: len(shapes)]
    named: dict[str, Any] = dict(zip(names, shapes, strict=True))
    if name != "aten::_int_mm":
        assert product_flops(planned(name, named, (1,))) == expected
        assert product_flops(planned(name, named, (1,), "complex128")) == 4 * expected


def test_layers_of_experts_multiply_each_token_with_its_experts() -> None:
    tokens, experts, chosen, hidden, inner = 6, 4, 2, 8, 5
    call = recorded(
        "vllm::fused_experts",
        [(tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner), (tokens, chosen), (tokens, chosen)],
    )
    expected = 0
    for _token, _expert in product(range(tokens), range(chosen)):
        up = ones(1, hidden) @ ones(hidden, 2 * inner)
        expected += operations(up) + operations(ones(1, inner) @ ones(inner, hidden))
    assert work_of(call).flops == expected
