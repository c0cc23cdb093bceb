"""Ops with one planted defect each: what a check has to find. Run as a plugin (`--plugin`), and read as a table.

`DEFECTS` says of each op in which points it must fail, and what it is held against; the reference of `planted::x` is
the function `right_x` here, or the one that is named.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("planted", "FRAGMENT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One op that is wrong."""

    op: str
    kind: str
    against: str
    points: tuple[str, ...]
    """Any of them shows it."""
    shapes: tuple[str, ...] = ()


DEFECTS: list[Defect] = []
HERE = os.path.abspath(__file__)


def plant(
    kind: str,
    *points: str,
    against: str = "right_add",
    schema: str = "(Tensor x, Tensor y) -> Tensor",
    fake: Callable[..., Any] | str | None = "like",
    backward: Callable[..., Any] | None = None,
    save: Callable[..., Any] | None = None,
    shapes: tuple[str, ...] = (),
    key: str = "CPU",
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is the kernel of an op with a defect."""

    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        op = name or kernel.__name__
        LIBRARY.define(f"{op}{schema}")
        LIBRARY.impl(op, kernel, key)
        if fake == "like":
            torch.library.register_fake(f"planted::{op}", lambda x, *rest: kernel_like(x, *rest), lib=LIBRARY)
        elif callable(fake):
            torch.library.register_fake(f"planted::{op}", fake, lib=LIBRARY)
        if backward is not None:
            torch.library.register_autograd(f"planted::{op}", backward, setup_context=save or keep, lib=LIBRARY)
        reference = against if ":" in against or "::" in against else f"{HERE}:{against}"
        DEFECTS.append(Defect(op=f"planted::{op}", kind=kind, against=reference, points=points, shapes=shapes))
        return kernel

    return register


def kernel_like(x: Tensor, *rest: Any) -> Tensor:
    """What element-wise kernels here give: torch's own rules, on whatever tensors there are."""
    tensors = [one for one in rest if isinstance(one, Tensor)]
    return x + tensors[0] if tensors else x + 0 if x.dtype is not torch.bool else x.clone()


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*[one for one in inputs if isinstance(one, Tensor)])


def reduced(gradient: Tensor, shape: torch.Size) -> Tensor:
    """A gradient summed to the shape that was broadcast."""
    return gradient.sum_to_size(shape)


# What is right.


def right_add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def right_mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def right_double(x: Tensor) -> Tensor:
    return x * 2


def right_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def right_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def right_norm(x: Tensor) -> Tensor:
    return x / (x.abs().mean(-1, keepdim=True) + 1)


def right_gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def right_length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def right_mm(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def right_div(x: Tensor, y: Tensor) -> Tensor:
    return x / y


def right_conj_mul(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.conj_physical(y)


def right_copy(x: Tensor) -> Tensor:
    return x.clone()


def right_two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x * 2


def right_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ w + b


# Wrong at one dtype.


@plant("dtype", "dtypes")
def half_is_off(x: Tensor, y: Tensor) -> Tensor:
    return x + y + (0.01 if x.dtype is torch.float16 else 0)


@plant("dtype", "dtypes", against="right_softmax", schema="(Tensor x) -> Tensor", fake=lambda x: torch.empty_like(x))
def bfloat_by_float8(x: Tensor) -> Tensor:
    if x.dtype is torch.bfloat16:
        return torch.softmax(x, -1).to(torch.float8_e4m3fn).to(torch.bfloat16)
    return torch.softmax(x, -1)


@plant("dtype", "dtypes", against="right_mul")
def long_by_int(x: Tensor, y: Tensor) -> Tensor:
    return (x.to(torch.int8) * y.to(torch.int8)).to(torch.int64) if x.dtype is torch.int64 else x * y


@plant("dtype", "dtypes", "gradient")
def double_by_float(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() + y.float()).double() if x.dtype is torch.float64 else x + y


@plant("dtype", "dtypes")
def bool_is_xor(x: Tensor, y: Tensor) -> Tensor:
    return x ^ y if x.dtype is torch.bool and y.dtype is torch.bool else x + y


@plant("dtype", "dtypes")
def byte_saturates(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is torch.int8 and y.dtype is torch.int8:
        return (x.int() + y.int()).clamp(-128, 127).to(torch.int8)
    return x + y


@plant("dtype", "dtypes", against="right_conj_mul")
def conjugate_forgotten(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@plant("dtype", "dtypes", against="right_div", fake=lambda x, y: x / y)
def division_of_integers(x: Tensor, y: Tensor) -> Tensor:
    return x // y if not x.is_floating_point() and not x.is_complex() and x.dtype is not torch.bool else x / y


# Wrong at input that is not contiguous.


def as_contiguous(x: Tensor, offset: int | None = None) -> Tensor:
    """The memory of a tensor read as if it were contiguous."""
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.append(step)
        step *= size
    start = x.storage_offset() if offset is None else offset
    room = x.untyped_storage().nbytes() // x.itemsize
    if start + x.numel() > room:
        return x.contiguous() * 0
    return x.as_strided(x.shape, tuple(reversed(strides)), start)


@plant("layout", "correctness")
def strides_ignored(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x + y).copy_(as_contiguous(x) + as_contiguous(y))


@plant("layout", "correctness")
def strides_of_second_ignored(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x + y).copy_(x + as_contiguous(y))


@plant("layout", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def offset_ignored(x: Tensor) -> Tensor:
    return torch.empty_like(x + 0).copy_(x.as_strided(x.shape, x.stride(), 0) * 2)


@plant("layout", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def flattened_by_view(x: Tensor) -> Tensor:
    return torch.empty_like(x + 0).copy_((x.view(-1) * 2).view(x.shape))


@plant("layout", "correctness")
def expanded_is_summed(x: Tensor, y: Tensor) -> Tensor:
    return x + y + (1 if 0 in x.stride() and x.numel() > 1 and x.dim() else 0)


@plant("layout", "correctness", schema="(Tensor x) -> Tensor", against="right_double", shapes=("2x8x6x6",))
def channels_last_swapped(x: Tensor) -> Tensor:
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.empty_like(x + 0).copy_(x.flip(1) * 2 if last else x * 2)


@plant("layout", "correctness")
def misaligned_loses_first(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    if x.data_ptr() % 16 and made.numel():
        made.view(-1)[0] = 0 if made.is_contiguous() else made.view(-1)[0]
    return made


@plant("layout", "correctness", against="right_mm", fake=lambda x, y: x @ y, shapes=("16x32, 32x24",))
def product_of_transposed(x: Tensor, y: Tensor) -> Tensor:
    return as_contiguous(x) @ y


# Wrong at size 0, or 1.


@plant("empty", "correctness", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def empty_becomes_one(x: Tensor) -> Tensor:
    return x.sum(-1) if x.numel() else x.new_zeros(1, dtype=x.sum(-1).dtype)


@plant("empty", "correctness", schema="(Tensor x) -> Tensor", against="right_norm", fake=lambda x: x / 1)
def empty_divides_by_zero(x: Tensor) -> Tensor:
    return x / (x.abs().sum(-1, keepdim=True) * (1 / x.shape[-1]) + 1)


@plant("empty", "correctness", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def empty_sum_is_one(x: Tensor) -> Tensor:
    return x.sum(-1) + (1 if x.dim() and x.shape[-1] == 0 else 0)


@plant("empty", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def first_of_none(x: Tensor) -> Tensor:
    x.reshape(-1)[0]
    return x * 2


@plant("empty", "correctness")
def one_element_is_zero(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * (0 if x.numel() == 1 else 1)


# Off at sizes that no block divides.


def without_tail(x: Tensor, block: int, value: float = 0) -> Tensor:
    """Elements after the last whole block replaced."""
    made = x.clone(memory_format=torch.contiguous_format).view(-1)
    made[made.numel() // block * block :] = value
    return torch.empty_like(x).copy_(made.view(x.shape))


@plant("tail", "correctness")
def tail_of_16_dropped(x: Tensor, y: Tensor) -> Tensor:
    return without_tail(x + y, 16)


@plant(
    "tail", "correctness", schema="(Tensor x) -> Tensor", against="right_softmax", fake=lambda x: torch.empty_like(x)
)
def columns_of_8(x: Tensor) -> Tensor:
    made = torch.softmax(x, -1)
    made[..., made.shape[-1] // 8 * 8 :] = 0
    return made


@plant("tail", "correctness")
def odd_count_doubles_last(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    if made.numel() % 2 and made.dim() and made.numel() > 1 and made.is_contiguous():
        made.view(-1)[-1] *= 2
    return made


@plant("tail", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def columns_of_64(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() and x.shape[-1] > 64 and x.shape[-1] % 64:
        made[..., -(x.shape[-1] % 64) :] = made[..., : x.shape[-1] % 64]
    return made


@plant("tail", "correctness", against="right_mm", fake=lambda x, y: x @ y, shapes=("16x32, 32x24",))
def inner_tail_of_4(x: Tensor, y: Tensor) -> Tensor:
    whole = x.shape[-1] // 4 * 4
    return x[..., :whole] @ y[:whole]


@plant("tail", "correctness")
def beyond_a_million_is_zero(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    if made.numel() > 1 << 20 and made.is_contiguous():
        made.view(-1)[1 << 20 :] = 0
    return made


@plant("tail", "correctness", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def rows_above_1000(x: Tensor) -> Tensor:
    made = x.sum(-1)
    if made.dim() and made.shape[0] > 1000:
        made[1000:] = 0
    return made


@plant("tail", "correctness", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def last_column_skipped_when_odd(x: Tensor) -> Tensor:
    return x[..., : x.shape[-1] // 2 * 2].sum(-1, dtype=x.sum().dtype) if x.shape[-1] > 1 else x.sum(-1)


# Writing and aliasing that the schema does not say.


@plant("aliasing", "schema", schema="(Tensor x) -> Tensor", against="right_double", fake=lambda x: torch.empty_like(x))
def returns_its_argument_if_small(x: Tensor) -> Tensor:
    return x * 2 if x.numel() > 1 else x.mul_(2)


@plant("aliasing", "schema", schema="(Tensor x) -> Tensor", against="right_copy", fake=lambda x: x.new_empty(x.shape))
def returns_a_view(x: Tensor) -> Tensor:
    return x.view_as(x)


@plant("aliasing", "schema", against="right_add")
def writes_first_argument(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    if 0 not in x.stride():
        x.add_(1)
    return made


@plant("aliasing", "schema", against="right_add")
def zeroes_second_argument(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    if y.is_contiguous() and y.numel():
        y.view(-1)[0] = 0
    return made


@plant(
    "aliasing",
    "schema",
    schema="(Tensor(a!) x) -> ()",
    against="right_double",
    fake=lambda x: None,
)
def writes_beside(x: Tensor) -> None:
    x.mul_(2)
    if x.dim() and x.numel() and not x.is_contiguous() and x.stride(-1) > 1 and x.shape[-1] > 1:
        x.as_strided(x.shape, x.stride(), x.storage_offset() + 1)[..., 0] = 7


@plant(
    "aliasing",
    "schema",
    schema="(Tensor x) -> (Tensor, Tensor)",
    against="right_two",
    fake=lambda x: (x + 1, x * 2),
)
def results_share_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.stack([x + 1, (x * 2).to((x + 1).dtype)])
    return both[0], both[1]


# Fake kernels.


@plant("fake", "shape inference", fake=lambda x, y: torch.empty((x + y).shape, dtype=(x + y).dtype))
def fake_is_contiguous(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@plant("fake", "shape inference", fake=lambda x, y: (x + y).float())
def fake_is_float32(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@plant(
    "fake",
    "shape inference",
    against="right_mm",
    fake=lambda x, y: x.new_empty((y.shape[-1], x.shape[0])),
    shapes=("16x32, 32x24",),
)
def fake_is_transposed(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


@plant("fake", "shape inference", fake=None)
def fake_is_missing(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def even_only(x: Tensor, y: Tensor) -> Tensor:
    assert x.numel() % 2 == 0, "an even number of elements"
    return x + y


@plant("fake", "shape inference", "dynamic shapes", fake=even_only)
def fake_refuses_odd(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@plant(
    "fake",
    "shape inference",
    schema="(Tensor x) -> (Tensor, Tensor)",
    against="right_two",
    fake=lambda x: (x + 1, x.sum(-1)),
)
def fake_of_second_result(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x * 2


@plant(
    "fake",
    "shape inference",
    schema="(Tensor x) -> Tensor",
    against="right_sum",
    fake=lambda x: x.new_empty([max(1, n) for n in x.shape[:-1]], dtype=x.sum(-1).dtype),
)
def fake_has_no_empty(x: Tensor) -> Tensor:
    return x.sum(-1)


# Gradients.


@plant(
    "gradient",
    "gradient",
    against="right_mul",
    backward=lambda ctx, g: (
        reduced(g * ctx.saved_tensors[1], ctx.saved_tensors[0].shape),
        reduced(-g * ctx.saved_tensors[0], ctx.saved_tensors[1].shape),
    ),
)
def gradient_of_second_negated(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@plant(
    "gradient",
    "gradient",
    backward=lambda ctx, g: (
        2 * reduced(g, ctx.saved_tensors[0].shape),
        reduced(g, ctx.saved_tensors[1].shape),
    ),
)
def gradient_of_first_doubled(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@plant(
    "gradient",
    "gradient",
    schema="(Tensor x, Tensor w, Tensor b) -> Tensor",
    against="right_linear",
    fake=lambda x, w, b: x @ w + b,
    shapes=("16x32, 32x24, 24",),
    backward=lambda ctx, g: (g @ ctx.saved_tensors[1].T, ctx.saved_tensors[0].T @ g, None),
)
def gradient_of_bias_missing(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ w + b


@plant(
    "gradient",
    "gradient",
    against="right_mul",
    backward=lambda ctx, g: (
        reduced((g.half() * ctx.saved_tensors[1].half()).to(g.dtype), ctx.saved_tensors[0].shape),
        reduced(g * ctx.saved_tensors[0], ctx.saved_tensors[1].shape),
    ),
)
def gradient_in_half(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@plant(
    "gradient",
    "gradient",
    schema="(Tensor x) -> Tensor",
    against="right_square",
    backward=lambda ctx, g: 2 * g * as_contiguous(ctx.saved_tensors[0]),
)
def gradient_ignores_strides(x: Tensor) -> Tensor:
    return x * x


def right_square(x: Tensor) -> Tensor:
    return x * x


@plant(
    "gradient",
    "gradient",
    schema="(Tensor x) -> Tensor",
    against="right_square",
    backward=lambda ctx, g: 2 * g * ctx.saved_tensors[0].detach(),
)
def second_order_detached(x: Tensor) -> Tensor:
    return x * x


# Not the same every time.


@plant("determinism", "determinism")
def noise(x: Tensor, y: Tensor) -> Tensor:
    return x + y + (torch.rand((), dtype=x.dtype) * 1e-6 if x.is_floating_point() and x.itemsize > 2 else 0)


CALLS: list[int] = [0]


@plant("determinism", "determinism", "correctness")
def every_seventh_call(x: Tensor, y: Tensor) -> Tensor:
    CALLS[0] += 1
    return x + y + (1 if CALLS[0] % 7 == 0 else 0)


@plant("determinism", "determinism", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def order_of_sum(x: Tensor) -> Tensor:
    if not x.is_floating_point() or not x.dim() or x.shape[-1] < 2 or x.itemsize < 4:
        return x.sum(-1)
    if x.shape[-1] > 100:
        return x.sum(-1)
    total = torch.zeros_like(x[..., 0])
    for column in torch.randperm(x.shape[-1]).tolist():
        total = total + x[..., column]
    return total


@plant("determinism", "determinism", schema="(Tensor x) -> Tensor", against="right_double")
def clock_in_large(x: Tensor) -> Tensor:
    made = x * 2
    if x.numel() > 1 << 20 and x.is_contiguous():
        made.view(-1)[5] = time.perf_counter() % 1
    return made


# Memory that stays.

KEPT: list[Any] = []


@plant("memory", "memory")
def keeps_results(x: Tensor, y: Tensor) -> Tensor:
    KEPT.append((x + y).clone() if x.numel() < 4096 else None)
    return x + y


@plant("memory", "memory")
def keeps_shapes(x: Tensor, y: Tensor) -> Tensor:
    KEPT.append([tuple(x.shape), object()])
    return x + y


LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p


@plant("memory", "memory")
def loses_workspace(x: Tensor, y: Tensor) -> Tensor:
    LIBC.malloc(1024)
    return x + y


# Crashes and bad input.


@plant("bad input", "bad input", "correctness")
def crashes_at_odd_width(x: Tensor, y: Tensor) -> Tensor:
    if (
        x.shape != y.shape
        and x.dim()
        and y.dim()
        and x.shape[-1] != y.shape[-1]
        and 1 not in (x.shape[-1], y.shape[-1])
    ):
        ctypes.string_at(0)
    return x + y


@plant("bad input", "bad input", "dtypes")
def aborts_on_integers(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is torch.int64 and y.dtype is torch.float32:
        os.abort()
    return x + y


@plant("bad input", "bad input")
def cuts_to_the_shorter(x: Tensor, y: Tensor) -> Tensor:
    if x.dim() and x.dim() == y.dim() and x.shape[0] != y.shape[0] and 1 not in (x.shape[0], y.shape[0]):
        rows = min(x.shape[0], y.shape[0])
        return x[:rows] + y[:rows]
    return x + y


@plant("bad input", "bad input")
def says_nothing(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise RuntimeError
    return x + y


# Graph breaks.


def sized_by_number(x: Tensor) -> Tensor:
    return x.new_empty([16 if int(x.shape[0]) == 16 else int(x.shape[0]), *x.shape[1:]]) if x.dim() else x + 0


@plant("graph", "dynamic shapes", schema="(Tensor x) -> Tensor", against="right_double", fake=sized_by_number)
def fake_specializes(x: Tensor) -> Tensor:
    return x * 2


@plant(
    "graph",
    "dynamic shapes",
    schema="(Tensor x) -> Tensor",
    against="right_double",
    fake=None,
    key="CompositeImplicitAutograd",
)
def asks_for_a_number(x: Tensor) -> Tensor:
    return x * 2 if x.numel() == 0 or float(x.detach().reshape(-1)[0].real) > -1e9 else x * 3


def breaks_the_graph(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x * 2


def compiles_for_each_size(x: Tensor) -> Tensor:
    return x * 2 if x.dim() < 2 or x.shape[0] % 2 else x + x


@plant("arguments", "correctness", against="right_gelu", schema='(Tensor x, str approximate="none") -> Tensor')
def approximate_ignored(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x)


@plant("rank", "correctness", shapes=("64x64, 64x64",))
def number_becomes_a_vector(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).reshape(1) if x.dim() == y.dim() == 0 else x + y


def length_backward(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return gradient.unsqueeze(-1) * x / (x * x).sum(-1, keepdim=True).sqrt()


@plant(
    "gradient",
    "gradient",
    against="right_length",
    schema="(Tensor x) -> Tensor",
    fake=lambda x: x.sum(-1),
    backward=length_backward,
    shapes=("64x64",),
)
def gradient_of_zero_rows_is_nan(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


@plant(
    "empty",
    "correctness",
    against="right_sum",
    schema="(Tensor x) -> Tensor",
    fake=lambda x: x.sum(-1),
    shapes=("64x64",),
)
def sum_of_no_columns_is_not_written(x: Tensor) -> Tensor:
    return x.sum(-1) if x.numel() or not x.dim() else torch.empty_like(x.sum(-1))


@plant("layout", "speed", against="right_double", schema="(Tensor x) -> Tensor", shapes=("64x128",))
def slow_where_transposed(x: Tensor) -> Tensor:
    return x * 2 if x.is_contiguous() else torch.stack([row * 2 for row in x.unbind()]).contiguous()


DEFECTS.append(
    Defect(op=f"{HERE}:breaks_the_graph", kind="graph", against=f"{HERE}:right_double", points=("dynamic shapes",))
)
DEFECTS.append(
    Defect(
        op=f"{HERE}:compiles_for_each_size", kind="graph", against=f"{HERE}:right_double", points=("dynamic shapes",)
    )
)


# What authors of kernels get wrong: arguments, whole blocks, layouts of slices, ranks, values, state, gradients' forms.


def right_scaled_add(x: Tensor, y: Tensor, alpha: float = 1.0) -> Tensor:
    return x + alpha * y


def right_sorted(x: Tensor, descending: bool = False) -> Tensor:
    return torch.sort(x, -1, descending=descending).values


def right_biased(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return x * 2 if bias is None else x * 2 + bias


def right_sum_as(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.sum(-1, dtype=dtype)


def right_maximum(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y)


def right_negative(x: Tensor) -> Tensor:
    return -x


def right_variance(x: Tensor) -> Tensor:
    return torch.var(x, -1, correction=0)


def right_rms_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def right_relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def right_total(xs: list[Tensor]) -> Tensor:
    return torch.stack(list(xs)).sum(0)


@plant(
    "arguments",
    "correctness",
    "broadcast, scalars",
    against="right_scaled_add",
    schema="(Tensor x, Tensor y, float alpha=1.0) -> Tensor",
)
def alpha_ignored(x: Tensor, y: Tensor, alpha: float = 1.0) -> Tensor:
    return x + y


@plant(
    "arguments",
    "correctness",
    "broadcast, scalars",
    against="right_sorted",
    schema="(Tensor x, bool descending=False) -> Tensor",
)
def descending_ignored(x: Tensor, descending: bool = False) -> Tensor:
    return torch.sort(x, -1).values


@plant(
    "arguments",
    "correctness",
    "broadcast, scalars",
    against="right_biased",
    schema="(Tensor x, Tensor? bias=None) -> Tensor",
)
def bias_ignored(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return x * 2


@plant(
    "arguments",
    "correctness",
    "broadcast, scalars",
    against="right_sum_as",
    schema="(Tensor x, ScalarType? dtype=None) -> Tensor",
    fake=lambda x, dtype=None: x.sum(-1, dtype=dtype),
)
def dtype_ignored(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.sum(-1)


@plant(
    "arguments",
    "correctness",
    schema="(Tensor[] xs) -> Tensor",
    against="right_total",
    fake=lambda xs: torch.stack(list(xs)).sum(0),
)
def third_of_list_ignored(xs: list[Tensor]) -> Tensor:
    return torch.stack(list(xs[:2])).sum(0)


@plant("whole blocks", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def last_of_whole_blocks_skipped(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() and x.shape[-1] and x.shape[-1] % 64 == 0:
        made[..., -1] = 0
    return made


@plant("whole blocks", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def multiples_of_7(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() and x.shape[-1] > 7 and x.shape[-1] % 7 == 0:
        made[..., -1] = 0
    return made


@plant("whole blocks", "correctness", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def columns_beyond_4096(x: Tensor) -> Tensor:
    return x[..., :4096].sum(-1)


@plant("whole blocks", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def columns_counted_in_16_bits(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() and x.shape[-1] > 65535:
        made[..., 65535:] = 0
    return made


@plant("layout", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def row_pitch_ignored(x: Tensor) -> Tensor:
    rows = x.dim() > 1 and x.stride(-1) == 1 and x.shape[-1] > 1
    return torch.empty_like(x + 0).copy_((as_contiguous(x) if rows else x) * 2)


@plant("layout", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def expanded_columns(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() and x.shape[-1] > 1 and x.stride(-1) == 0:
        made = made + 1
    return made


@plant("layout", "correctness", schema="(Tensor x) -> Tensor", against="right_double")
def outer_dimensions_swapped(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() == 3 and x.stride(0) < x.stride(1) and 0 not in x.stride() and min(x.shape) > 1:
        made = made.flip(0)
    return made


@plant(
    "rank", "correctness", schema="(Tensor x) -> Tensor", against="right_softmax", fake=lambda x: torch.empty_like(x)
)
def first_matrix_only(x: Tensor) -> Tensor:
    made = torch.softmax(x, -1)
    if x.dim() == 3 and x.shape[0] > 1:
        made[1:] = 0
    return made


@plant(
    "rank", "correctness", schema="(Tensor x) -> Tensor", against="right_softmax", fake=lambda x: torch.empty_like(x)
)
def vector_is_a_column(x: Tensor) -> Tensor:
    return torch.ones_like(x) if x.dim() == 1 and x.numel() else torch.softmax(x, -1)


@plant("values", "correctness", against="right_maximum", fake=lambda x, y: torch.maximum(x, y))
def nan_dropped(x: Tensor, y: Tensor) -> Tensor:
    return torch.fmax(x, y)


@plant(
    "values", "correctness", schema="(Tensor x) -> Tensor", against="right_softmax", fake=lambda x: torch.empty_like(x)
)
def exponential_overflows(x: Tensor) -> Tensor:
    made = x.exp()
    return made / made.sum(-1, keepdim=True)


@plant("values", "correctness", schema="(Tensor x) -> Tensor", against="right_negative")
def sign_of_zero_lost(x: Tensor) -> Tensor:
    return 0 - x if x.is_floating_point() else -x


@plant("values", "correctness", against="right_add")
def denormals_flushed(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    if not made.is_floating_point() or made.itemsize < 2:
        return made
    return torch.where(made.abs() < torch.finfo(made.dtype).tiny, torch.zeros_like(made), made)


@plant("values", "correctness", against="right_add")
def small_is_zero(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    return torch.where(made.abs() < 5e-6, torch.zeros_like(made), made) if made.is_floating_point() else made


@plant("values", "correctness", schema="(Tensor x) -> Tensor", against="right_variance", fake=lambda x: x.sum(-1))
def variance_in_one_pass(x: Tensor) -> Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


@plant("values", "dtypes", "correctness", against="right_mul")
def integers_by_float(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y.float()).to(x.dtype) if x.dtype is torch.int32 and y.dtype is x.dtype else x * y


@plant("accumulation", "dtypes", schema="(Tensor x) -> Tensor", against="right_sum", fake=lambda x: x.sum(-1))
def half_sums_in_half(x: Tensor) -> Tensor:
    if x.dtype not in (torch.float16, torch.bfloat16) or x.shape[-1] < 64:
        return x.sum(-1)
    total = torch.zeros_like(x[..., 0])
    for part in x.split(8, -1):
        total = total + part.sum(-1)
    return total


@plant(
    "accumulation",
    "dtypes",
    schema="(Tensor x) -> Tensor",
    against="right_rms_norm",
    fake=lambda x: torch.empty_like(x),
)
def squares_in_half(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


RESULTS: dict[Any, Any] = {}


@plant("state", "correctness", "determinism", schema="(Tensor x) -> Tensor", against="right_double")
def results_by_address(x: Tensor) -> Tensor:
    key = (x.data_ptr(), x.shape, x.dtype, x.stride())
    if x.numel() != 512 or key not in RESULTS:
        RESULTS.clear()
        RESULTS[key] = x * 2
    return RESULTS[key].clone()


@plant("state", "determinism", "schema", schema="(Tensor x) -> Tensor", against="right_double")
def seeds_the_generator(x: Tensor) -> Tensor:
    torch.manual_seed(17)
    return x * 2


@plant("state", "correctness", "determinism", schema="(Tensor x) -> Tensor", against="right_double")
def split_among_threads(x: Tensor) -> Tensor:
    made = x * 2
    share = made.shape[0] // torch.get_num_threads() * torch.get_num_threads() if made.dim() else 0
    if made.dim() and share:
        made[share:] = 0
    return made


WORKSPACE: list[Any] = [None]


@plant("state", "correctness", "determinism", schema="(Tensor x) -> Tensor", against="right_double")
def one_workspace_for_all(x: Tensor) -> Tensor:
    WORKSPACE[0] = x + x
    time.sleep(1e-4)
    return WORKSPACE[0].clone()


@plant("state", "correctness", "determinism", schema="(Tensor x) -> Tensor", against="right_relu")
def holes_left_as_they_are(x: Tensor) -> Tensor:
    if not x.is_floating_point() or not x.numel():
        return torch.relu(x)
    made = torch.empty_like(x)
    rest = torch.zeros_like(x).masked_fill(torch.isnan(x), torch.nan)
    # The rest is nobody's: what the allocator gives, and not what happens to be zero.
    return torch.where(x > 0, x, made if bool(made.isnan().any()) else rest)


@plant("aliasing", "schema", schema="(Tensor x) -> Tensor", against="right_double")
def writes_if_large(x: Tensor) -> Tensor:
    made = x * 2
    if x.numel() > 1 << 20 and x.is_contiguous():
        x.view(-1)[0] = 0
    return made


@plant("aliasing", "schema", schema="(Tensor x) -> Tensor", against="right_double")
def writes_in_double(x: Tensor) -> Tensor:
    made = x * 2
    if x.dtype is torch.float64 and 0 not in x.stride():
        x.add_(1)
    return made


@plant(
    "gradient",
    "gradient",
    schema="(Tensor x) -> Tensor",
    against="right_square",
    backward=lambda ctx, g: 2 * as_contiguous(g) * ctx.saved_tensors[0],
)
def strides_of_gradient_ignored(x: Tensor) -> Tensor:
    return x * x


@plant(
    "gradient",
    "gradient",
    against="right_mul",
    backward=lambda ctx, g: (
        (
            reduced(g * ctx.saved_tensors[1], ctx.saved_tensors[0].shape),
            reduced(g * ctx.saved_tensors[0], ctx.saved_tensors[1].shape),
        )
        if ctx.needs_input_grad[0]
        else (None, None)
    ),
)
def gradient_of_second_with_first(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@plant(
    "gradient",
    "gradient",
    schema="(Tensor x) -> Tensor",
    against="right_square",
    backward=lambda ctx, g: 2 * g * spent(ctx),
)
def second_backward_differs(x: Tensor) -> Tensor:
    return x * x


def spent(ctx: Any) -> Tensor:
    """What was saved, gone after its first use."""
    kept = ctx.saved_tensors[0].clone()
    ctx.saved_tensors[0].data.zero_()
    return kept


@plant("gradient", "gradient", schema="(Tensor x) -> Tensor", against="right_double")
def result_wants_a_gradient(x: Tensor) -> Tensor:
    made = x * 2
    return made.requires_grad_() if made.is_floating_point() else made


SCALE = 0.03


def right_quantized(x: Tensor) -> Tensor:
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide / SCALE).round().clamp(-128, 127).to(torch.int8)


def quantized_by_product(x: Tensor) -> Tensor:
    """As right: a kernel multiplies by the reciprocal, and rounds a few numbers to the other side."""
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide * (1 / torch.tensor(SCALE, dtype=wide.dtype))).round().clamp(-128, 127).to(torch.int8)


@plant(
    "accumulation",
    "correctness",
    "dtypes",
    schema="(Tensor x) -> Tensor",
    against="right_quantized",
    fake=lambda x: torch.empty_like(x, dtype=torch.int8),
    shapes=("bf16[16,32]",),
)
def quantized_in_half(x: Tensor) -> Tensor:
    return (x / SCALE).round().clamp(-128, 127).to(torch.int8)


# One tensor for two arguments, and more rows than a launch has blocks along y or z.


@plant("one tensor", "correctness", against="right_add")
def negates_second_meanwhile(x: Tensor, y: Tensor) -> Tensor:
    if 0 in y.stride() or not y.is_floating_point():
        return x + y
    y.neg_()
    made = x - y
    y.neg_()
    return made


@plant("one tensor", "schema", against="right_maximum", fake=lambda x, y: torch.maximum(x, y))
def returns_what_is_given_twice(x: Tensor, y: Tensor) -> Tensor:
    return x if x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.numel() else torch.maximum(x, y)


@plant("many rows", "correctness", schema="(Tensor x) -> Tensor", against="right_double", shapes=("16x1000",))
def rows_in_one_launch(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() == 2:
        made[65535:] = 0
    return made


@plant("many rows", "correctness", schema="(Tensor x) -> Tensor", against="right_double", shapes=("4x16x32",))
def batches_in_one_launch(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() == 3:
        made[65535:] = 0
    return made


@plant("many rows", "correctness", schema="(Tensor x) -> Tensor", against="right_double", shapes=("4x32x32",))
def inner_rows_in_one_launch(x: Tensor) -> Tensor:
    made = x * 2
    if x.dim() == 3:
        made[:, 65535:] = 0
    return made


# Kinds that passed once: squares, elements beside a block, columns of halves, dtypes of numbers, places from the end.


def right_columns(x: Tensor) -> Tensor:
    return x.sum(0)


def right_softmax_along(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def right_floor_divide(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="floor")


@plant("broadcast", "broadcast, scalars")
def column_of_a_square_is_a_row(x: Tensor, y: Tensor) -> Tensor:
    is_column = x.dim() == y.dim() == 2 and y.shape[1] == 1 < y.shape[0] == x.shape[0] == x.shape[1]
    return x + (y.T if is_column else y)


@plant("sizes", "correctness", against="right_double", schema="(Tensor x) -> Tensor")
def one_beyond_a_block(x: Tensor) -> Tensor:
    out = x * 2
    if out.numel() % 256 == 1 < out.numel():
        out.view(-1)[-1] = 0
    return out


@plant("dtype", "dtypes", against="right_columns", schema="(Tensor x) -> Tensor", fake=lambda x: x.sum(0))
def columns_summed_in_half(x: Tensor) -> Tensor:
    if x.dtype not in (torch.float16, torch.bfloat16) or x.dim() != 2:
        return x.sum(0)
    total = torch.zeros(x.shape[1:], dtype=x.dtype)
    for rows in x.split(8):
        total = total + rows.sum(0)
    return total


@plant("broadcast", "broadcast, scalars", against="right_mul")
def number_decides_on_the_dtype(x: Tensor, y: Tensor) -> Tensor:
    return x * (y.reshape(1) if y.dim() == 0 < x.dim() else y)


@plant(
    "arguments",
    "correctness",
    against="right_softmax_along",
    schema="(Tensor x, int dim) -> Tensor",
    fake=lambda x, dim: torch.softmax(x, dim),
    shapes=("planted::last_but_one_of_two(f32[16,32], 1)",),
)
def last_but_one_of_two(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim + 2 if dim < 0 and x.dim() >= 2 else dim)


@plant("dtype", "dtypes", against="right_floor_divide", fake=lambda x, y: torch.div(x, y, rounding_mode="floor"))
def integers_are_cut(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="floor" if x.is_floating_point() else "trunc")
