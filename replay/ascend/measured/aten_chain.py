# pyright: strict
"""A chain of aten ops as tables of problems list them (names and input shapes only), lowered to kernels one by one.

Such a list does not say which op takes which result. What it takes: an op of one operand the last result, an op of two
the inputs when nothing was computed yet, else the inputs' first and the last result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ir.kernel import KernelCall, broadcast
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
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
    """(rows, columns) of an operand; a vector is a row on the left and a column on the right."""
    if len(shape) < 2:
        n = shape[0] if shape else 1
        return (1, n) if first else (n, 1)
    return shape[len(shape) - 2], shape[len(shape) - 1]


def _product_arguments(name: str, inputs: Sequence[Tensor]) -> list[ReplayArg]:
    (a, a_type), (b, b_type) = inputs[:2]
    out: list[ReplayArg] = []
    rows, depth = _matrix(a, first=True)
    depth_too, columns = _matrix(b, first=False)
    # Matrices are listed as stored: what makes them fit is which of them is read transposed.
    turned_b = depth != depth_too and depth == columns
    turned_a = depth != depth_too and not turned_b and rows in (depth_too, columns)
    turned_b = turned_b or (turned_a and rows != depth_too)
    for key, shape, dtype, turned in (("self", a, a_type, turned_a), ("mat2", b, b_type, turned_b)):
        if turned and len(shape) > 1:
            lying = (*shape[:-2], shape[-1], shape[-2])
            steps = [1] * len(shape)
            for i in reversed(range(len(shape) - 1)):
                steps[i] = steps[i + 1] * shape[i + 1]
            out.append(_tensor(key, (lying, dtype), (*steps[:-2], steps[-1], steps[-2])))
        else:
            out.append(_tensor(key, (shape, dtype)))
    return out


def _arguments(
    name: str, overload: str, inputs: Sequence[Tensor], last: Tensor | None, init_args: Sequence[object]
) -> list[ReplayArg]:
    numbers = _flat(init_args)
    main = last or inputs[0]
    if name in PRODUCTS:
        pair = [inputs[0], *inputs[1:]] if last is None else [last, inputs[-1]]
        return _product_arguments(name, pair if len(pair) > 1 else [pair[0], pair[0]])
    if name in TWO_OPERANDS and overload in ("Tensor", "default", "self"):
        first, second = (inputs[0], main) if last is not None else (inputs[0], inputs[min(1, len(inputs) - 1)])
        return [_tensor("self", first), _tensor("other", second)]
    if name == "native_layer_norm":
        over = numbers or main[0][-1:]
        return [
            _tensor("input", main),
            _value("normalized_shape", over),
            _tensor("weight", (over, main[1])),
            _tensor("bias", (over, main[1])),
        ]
    if name in ("native_group_norm", "native_batch_norm", "instance_norm"):
        channels: Tensor = (main[0][1:2] or main[0], main[1])
        args = [_tensor("input", main), _tensor("weight", channels), _tensor("bias", channels)]
        if name == "native_group_norm":
            args.append(_value("group", numbers[-1] if numbers else 8))
        return args
    args = [_tensor("self", main)]
    if name in OVER_A_DIM and overload != "full" and (overload != "default" or name in ALWAYS_OVER_A_DIM):
        dim = (numbers[0] if numbers else -1) % max(1, len(main[0]))
        args.append(_value("dims", (dim,)) if name == "flip" else _value("dim", dim))
    elif name in SOFTMAXES:
        args.append(_value("dim", numbers[0] if numbers and 0 <= numbers[0] < len(main[0]) else len(main[0]) - 1))
    elif "pool" in name:
        space = next((n for n in (1, 2, 3) if f"{n}d" in name), 2)
        for key, value in zip(("kernel_size", "stride", "padding"), numbers, strict=False):
            args.append(_value(key, (value,) * max(1, min(space, len(main[0]) - 2))))
    return args


def chain(
    ops: Sequence[str], inputs: Sequence[Tensor], init_args: Sequence[object], output: tuple[int, ...] | None
) -> tuple[KernelCall, ...]:
    """Kernels of `ops` ("aten.mul.Tensor" or "mul.Tensor") on inputs of these shapes, in order.

    `init_args` are the module's arguments (a dimension, a window, a normalised shape); `output` is the shape of the
    result where known. Raises ValueError when there is no input.
    """
    if not inputs:
        raise ValueError("no inputs")
    kernels: list[KernelCall] = []
    last: Tensor | None = None
    for number, text in enumerate(ops):
        parts = text.removeprefix("aten.").split(".")
        name, overload = parts[0], parts[1] if len(parts) > 1 else "default"
        if name in ("scalar_tensor", "view", "t", "permute", "unsqueeze", "squeeze", "expand"):
            continue
        args = _arguments(name, overload, inputs, last, init_args)
        main = args[0].tensors[0]
        assert main is not None
        known: tuple[TensorMeta, ...] | None = None
        if "pool" in name:
            # One dimension of windows is a height of 1.
            space = 2 if len(main.shape) == 3 and "2d" in name else 0
            shape = output if output is not None and number == len(ops) - 1 else None
            if shape is not None:
                known = (TensorMeta(shape=(*shape[:-1], 1, shape[-1]) if space else shape, dtype=main.dtype),)
            if space:
                main = TensorMeta(shape=(*main.shape[:-1], 1, main.shape[-1]), dtype=main.dtype)
                args = [ReplayArg(name="self", type="Tensor", tensors=(main,)), *args[1:]]
        elif name == "diag_embed":
            known = (TensorMeta(shape=(*main.shape, main.shape[-1]), dtype=main.dtype),)
        op = ReplayOp(
            id="0" * 12,
            name=f"aten::{name}",
            count=1,
            recorded=Recorded(host_us_total=0.0, host_us_median=0.0),
            args=tuple(args),
            outputs=known,
        )
        lowered = lower(op).kernels
        kernels += lowered
        result = lowered[-1].outputs[0] if lowered and lowered[-1].outputs else None
        if known is not None:
            last = known[0].shape, known[0].dtype
        elif name in ("mul", "add", "sub", "div", "xlogy") and len(args) == 2:
            shapes = [t.shape for arg in args for t in arg.tensors if t is not None]
            last = broadcast(shapes), main.dtype
        elif result is not None:
            last = result.shape, result.dtype
    return tuple(kernels)
