# pyright: strict
"""Reconstructs the calls of a chain of aten ops from problem tables that list only op names and input shapes.

Such a list does not say which result each op uses. Assumption: an op with one operand uses the last result; an op with
two uses the inputs if nothing was computed yet, otherwise the first input and the last result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ir.kernel import KernelCall, broadcast
from opreplay.replay.ir.model import NOT_RECORDED, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

Tensor = tuple[tuple[int, ...], str]
"""(shape, dtype)."""

NEW_GELU = (
    "mul.Tensor",
    "pow.Tensor_Scalar",
    "mul.Tensor",
    "add.Tensor",
    "mul.Tensor",
    "tanh.default",
    "add.Tensor",
    "mul.Tensor",
)
"""x/2 * (1 + tanh(c * (x + a * x^3))), op by op."""

TWO_OPERANDS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "xlogy",
        "pow",
        "lerp",
        "smooth_l1_loss",
        "huber_loss",
        "mse_loss",
        "l1_loss",
        "kl_div",
        "where",
    }
)
PRODUCTS = frozenset({"mm", "bmm", "matmul", "addmm", "linear", "mv"})
OVER_A_DIM = frozenset(
    {
        "sum",
        "mean",
        "max",
        "min",
        "argmax",
        "argmin",
        "prod",
        "cumsum",
        "cumprod",
        "flip",
        "amax",
        "amin",
        "any",
        "all",
        "logcumsumexp",
        "cummax",
        "cummin",
        "linalg_vector_norm",
        "norm",
        "var",
        "std",
    }
)
ALWAYS_OVER_A_DIM = frozenset({"argmax", "argmin", "cumsum", "cumprod", "flip", "linalg_vector_norm"})
"""Of these even the overload "default" goes over a dimension; that of the others over all."""
VIEWS = frozenset({"scalar_tensor", "view", "t", "permute", "unsqueeze", "squeeze", "expand"})
NORMS = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "instance_norm"})
SOFTMAXES = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax"})


def _tensor(name: str, tensor: Tensor, strides: tuple[int, ...] | None = None) -> ReplayArg:
    meta = TensorMeta(shape=tensor[0], dtype=tensor[1], strides=strides)
    return ReplayArg(name=name, type="Tensor", tensors=(meta,))


def _value(name: str, value: int | bool | tuple[int, ...]) -> ReplayArg:
    kind = "bool" if isinstance(value, bool) else "int[]" if isinstance(value, tuple) else "int"
    return ReplayArg(name=name, type=kind, value=value)


def _flat(value: object) -> tuple[int, ...]:
    if isinstance(value, bool) or value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(x for item in cast("Sequence[object]", value) for x in _flat(item))
    return ()


def _matrix(shape: tuple[int, ...], *, first: bool) -> tuple[int, int]:
    """Return (rows, columns) of an operand; a vector is a row on the left and a column on the right."""
    if len(shape) < 2:
        n = shape[0] if shape else 1
        return (1, n) if first else (n, 1)
    return shape[len(shape) - 2], shape[len(shape) - 1]


def _read_transposed(name: str, tensor: Tensor) -> ReplayArg:
    shape, dtype = tensor
    steps = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return _tensor(name, ((*shape[:-2], shape[-1], shape[-2]), dtype), (*steps[:-2], steps[-1], steps[-2]))


def _product_arguments(a: Tensor, b: Tensor) -> list[ReplayArg]:
    rows, depth = _matrix(a[0], first=True)
    depth_too, columns = _matrix(b[0], first=False)
    # Matrices are listed as stored: what makes them fit is which of them is read transposed.
    turned_b = depth != depth_too and depth == columns
    turned_a = depth != depth_too and not turned_b and rows in (depth_too, columns)
    turned_b = turned_b or (turned_a and rows != depth_too)
    return [
        (_read_transposed if turned and len(tensor[0]) > 1 else _tensor)(name, tensor)
        for name, tensor, turned in (("self", a, turned_a), ("mat2", b, turned_b))
    ]


def _norm_arguments(name: str, main: Tensor, numbers: tuple[int, ...]) -> list[ReplayArg]:
    shape, dtype = main
    if name == "native_layer_norm":
        over = numbers or shape[-1:]
        weights: Tensor = over, dtype
        settings = [_value("normalized_shape", over)]
    else:
        weights, settings = (shape[1:2] or shape, dtype), []
    args = [_tensor("input", main), *settings, _tensor("weight", weights), _tensor("bias", weights)]
    return [*args, _value("group", numbers[-1] if numbers else 8)] if name == "native_group_norm" else args


def _settings(name: str, overload: str, rank: int, numbers: tuple[int, ...]) -> list[ReplayArg]:
    """Return the other arguments of an op on one tensor."""
    first = numbers[0] if numbers else -1
    over_all = overload in ("full", "default") and not (overload == "default" and name in ALWAYS_OVER_A_DIM)
    if name in OVER_A_DIM and not over_all:
        dim = first % max(1, rank)
        return [_value("dims", (dim,)) if name == "flip" else _value("dim", dim)]
    if name in SOFTMAXES:
        return [_value("dim", first if 0 <= first < rank else rank - 1)]
    return _windows(name, rank, numbers) if "pool" in name else []


def _windows(name: str, rank: int, numbers: tuple[int, ...]) -> list[ReplayArg]:
    space = max(1, min(next((n for n in (1, 2, 3) if f"{n}d" in name), 2), rank - 2))
    names = ("kernel_size", "stride", "padding")
    return [_value(key, (value,) * space) for key, value in zip(names, numbers, strict=False)]


def _arguments(
    name: str, overload: str, inputs: Sequence[Tensor], last: Tensor | None, numbers: tuple[int, ...]
) -> list[ReplayArg]:
    main = last or inputs[0]
    if name in PRODUCTS:
        return _product_arguments(main, inputs[min(1, len(inputs) - 1)] if last is None else inputs[-1])
    if name in TWO_OPERANDS and overload in ("Tensor", "default", "self"):
        second = inputs[min(1, len(inputs) - 1)] if last is None else last
        return [_tensor("self", inputs[0]), _tensor("other", second)]
    if name in NORMS:
        return _norm_arguments(name, main, numbers)
    return [_tensor("self", main), *_settings(name, overload, len(main[0]), numbers)]


def _pooled(main: TensorMeta, name: str, output: tuple[int, ...] | None) -> tuple[TensorMeta, TensorMeta | None]:
    """Return the input and result of a pooling; one-dimensional windows have height 1."""

    def seen(shape: tuple[int, ...]) -> TensorMeta:
        flat = len(main.shape) == 3 and "2d" in name
        return TensorMeta(shape=(*shape[:-1], 1, shape[-1]) if flat else shape, dtype=main.dtype)

    return seen(main.shape), None if output is None else seen(output)


def _op(name: str, args: Sequence[ReplayArg], result: TensorMeta | None) -> ReplayOp:
    return ReplayOp(
        id="0" * 12,
        name=f"aten::{name}",
        count=1,
        recorded=NOT_RECORDED,
        args=tuple(args),
        outputs=None if result is None else (result,),
    )


def _result(name: str, args: Sequence[ReplayArg], kernels: Sequence[KernelCall]) -> Tensor | None:
    """Return the result of an op, if it is known."""
    tensors = [meta for arg in args for meta in arg.tensors if meta is not None]
    if name in ("mul", "add", "sub", "div", "xlogy") and len(args) == 2:
        return broadcast([meta.shape for meta in tensors]), tensors[0].dtype
    result = kernels[-1].outputs[0] if kernels and kernels[-1].outputs else None
    return None if result is None else (result.shape, result.dtype)


def chain(
    ops: Sequence[str], inputs: Sequence[Tensor], init_args: Sequence[object], output: tuple[int, ...] | None
) -> tuple[ReplayOp, ...]:
    """Return the calls of `ops` ("aten.mul.Tensor" or "mul.Tensor") on inputs of these shapes, in order.

    `init_args` are the module's arguments (a dimension, a window, a normalised shape); `output` is the shape of the
    result if known. Raises ValueError if there is no input.
    """
    if not inputs:
        raise ValueError("no inputs")
    calls: list[ReplayOp] = []
    last: Tensor | None = None
    for number, text in enumerate(ops):
        name, overload = [*text.removeprefix("aten.").split("."), "default"][:2]
        if name in VIEWS:
            continue
        args = _arguments(name, overload, inputs, last, _flat(init_args))
        main = args[0].tensors[0]
        assert main is not None
        known: TensorMeta | None = None
        if "pool" in name:
            main, known = _pooled(main, name, output if number == len(ops) - 1 else None)
            args[0] = ReplayArg(name="self", type="Tensor", tensors=(main,))
        elif name == "diag_embed":
            known = TensorMeta(shape=(*main.shape, main.shape[-1]), dtype=main.dtype)
        calls.append(_op(name, args, known))
        last = (known.shape, known.dtype) if known else _result(name, args, lower(calls[-1]).kernels) or last
    return tuple(calls)
