# pyright: strict
"""Guesses for the sliding windows of convolutions and pooling, from the input and output sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import Context, Guess, Rule, Shape, first_tensor_of, first_tensors, names
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import TensorMeta

T = TypeVar("T")
MAX_STRIDE = 8
NEXT_READERS = 6
_EVALUATED = "autograd::engine::evaluate_function: "


def _spatial(known: Call, *names: str) -> Shape | None:
    shapes = (known.shape(name) for name in names)
    return next((shape[2:] for shape in shapes if shape is not None and len(shape) > 2), None)


def _fitting_window(size: int, out: int | None, kernel: int) -> tuple[int, int, int]:
    """Return (stride, padding, dilation) with which a kernel of this size gives `out` from `size`.

    Among several solutions, the smallest dilation is preferred, then the smallest stride, then the padding that leaves
    the fewest elements at the end unused. Only a window without padding may be dilated. The reason is that either the
    input was padded before, or the output is smaller. If `out` is unknown, the result is stride 1 and "same" padding.
    """
    if out is not None:
        for stride in range(1, MAX_STRIDE + 1):
            rests = [
                ((size + 2 * padding - kernel) % stride, abs(padding - kernel // 2), padding)
                for padding in range(kernel)
                if (size + 2 * padding - kernel) // stride + 1 == out
            ]
            if rests:
                return stride, min(rests)[2], 1
        if kernel > 1 and size > out and not (size - out) % (kernel - 1):
            return 1, 0, (size - out) // (kernel - 1)
    return 1, kernel // 2, 1


def _transposed_window(size: int, out: int | None, kernel: int) -> tuple[int, int, int]:
    """Return (stride, padding, output padding) of a transposed convolution.

    They fulfil `out` = (size - 1) * stride - 2 * padding + kernel + output padding. The smallest output padding is
    preferred, then the smallest stride.
    """
    if out is not None:
        for more in (0, 1):
            for stride in range(1, MAX_STRIDE + 1):
                twice = (size - 1) * stride + kernel + more - out
                if twice >= 0 and not twice % 2 and twice // 2 < kernel and more < stride:
                    return stride, twice // 2, more
    return 1, 0, 0


def _is_transposed(known: Call, context: Context) -> bool:
    """Check whether a convolution is transposed, by the name of a caller or by its filters (see `_goes_to_many`)."""
    around = context.relatives()
    calls = (*around.ancestors, *((around.forward,) if around.forward is not None else ()))
    if any("conv_transpose" in name for name in (around.name, *(call.name for call in calls))):
        return True
    grad, source, weight = (known.shape(name) or () for name in ("grad_output", "input", "weight"))
    return min(map(len, (grad, source, weight))) > 2 and _goes_to_many(grad, source, weight)


def _goes_to_many(grad: Shape, source: Shape, weight: Shape) -> bool:
    """Check whether filters fit a transposed convolution. If they also fit a plain one, the result must be larger than
    the input.
    """
    larger = math.prod(grad[2:]) > math.prod(source[2:])
    plain = grad[1] == weight[0] and source[1] % max(1, weight[1]) == 0
    return source[1] == weight[0] and grad[1] % max(1, weight[1]) == 0 and (larger or not plain)


def _is_transposed_rule(known: Call, context: Context) -> Guess | None:
    turned = _is_transposed(known, context)
    return Guess(value=turned, why="transposed, judging by its sizes or its caller" if turned else "not transposed")


def _convolved(known: Call, context: Context) -> tuple[Shape, str] | None:
    """Return the spatial sizes of a convolution's result, with the evidence."""
    grad = _spatial(known, "grad_output")
    if grad is not None:
        return grad, "fits the recorded gradient"
    source, weight = known.shape("input", "self"), known.shape("weight")
    if source is None or weight is None:
        return None
    transposed = _is_transposed(known, context)
    front = (*source[: len(source) - len(weight) + 1], _channels(known, weight) if transposed else weight[0])
    for meta, reader in first_tensors(context.relatives().following[:NEXT_READERS]):
        if len(meta.shape) == len(source) and meta.shape[: len(front)] == front:
            outs = meta.shape[len(front) :]
            windows = zip(source[len(front) :], outs, weight[2:], strict=False)
            if transposed or all(out <= size + kernel for size, out, kernel in windows):
                return outs, f"{reader} reads sizes {list(meta.shape)} next"
    return None


def _channels(known: Call, weight: Shape) -> int:
    """Return the number of result channels of a transposed convolution.

    It comes from the gradient or the bias. Without these, it is the number of channels of one group.
    """
    grad, bias = (known.shape(name) or () for name in ("grad_output", "bias"))
    if len(grad) > 1:
        return grad[1]
    group_width = weight[1] if len(weight) > 1 else 0
    return bias[0] if len(bias) == 1 and group_width and not bias[0] % group_width else group_width


def _convolution(which: str) -> Rule:
    def rule(known: Call, context: Context) -> Guess | None:
        known = _completed(known, context)
        sizes, kernels = _spatial(known, "input", "self"), _spatial(known, "weight")
        if sizes is None or kernels is None or len(sizes) != len(kernels):
            return None
        if _is_transposed(known, context):
            fitting, names = _transposed_window, ("stride", "padding", "output_padding")
            unknown = "stride 1, without padding"
        else:
            fitting, names = _fitting_window, ("stride", "padding", "dilation")
            unknown = "stride 1 and padding that keeps the size"
        if which not in names:
            return Guess(value=(int(which == "dilation"),) * len(sizes), why=f"no {which.replace('_', ' ')}")
        outs, why = _convolved(known, context) or ((), unknown)
        windows = zip(sizes, _padded(outs, None, sizes), kernels, strict=True)
        return Guess(value=tuple(fitting(*window)[names.index(which)] for window in windows), why=why)

    return rule


def _padded(values: Sequence[T], fill: T, sizes: Shape) -> tuple[T, ...]:
    """Return one value for each of `sizes`: those in `values`, then `fill`."""
    return (*values, *(fill,) * len(sizes))[: len(sizes)]


def _pooled(known: Call, context: Context) -> Shape | None:
    """Return the spatial sizes of a pooling's result, from its gradient or a tensor that is read next."""
    outs, source = _spatial(known, "grad_output", "indices"), known.shape("self")
    if outs is not None or source is None or len(source) < 3:
        return outs
    for meta, _ in first_tensors(context.relatives().following[:NEXT_READERS]):
        if len(meta.shape) != len(source) or meta.shape == source or meta.shape[:2] != source[:2]:
            continue
        if all(n <= m for n, m in zip(meta.shape, source, strict=True)):
            return meta.shape[2:]
    return None


def _same_rank(fill: int, why: str) -> Rule:
    def rule(known: Call, context: Context) -> Guess | None:
        rank = len(_spatial(known, "weight", "self", "input") or ())
        return Guess(value=(fill,) * rank, why=why) if rank else None

    return rule


def _groups(known: Call, context: Context) -> Guess | None:
    """Guess the number of groups: the input channels divided by the channels of one filter."""
    known = _completed(known, context)
    source, weight = known.shape("input", "self"), known.shape("weight")
    if source is None or weight is None or len(source) < 3 or len(weight) < 2 or not weight[1]:
        return None
    if _is_transposed(known, context):
        return Guess(value=max(1, _channels(known, weight) // weight[1]), why="channels of weight and bias")
    groups, rest = divmod(source[1], weight[1])
    return Guess(value=groups, why="channels of input and weight") if groups and not rest else None


def _pool_kernel(known: Call, context: Context) -> Guess | None:
    sizes, outs = _spatial(known, "self"), _pooled(known, context)
    if sizes is None:
        return None
    widths = [3] * len(sizes) if outs is None else _pool_widths(sizes, outs, average="avg" in context.relatives().name)
    # A vector that is pooled as an image has one row, which no larger window fits.
    widths = tuple(max(1, min(width, size)) for width, size in zip(widths, sizes, strict=True))
    return Guess(value=widths, why=f"a window of {' x '.join(map(str, widths))}")


def _pool_widths(sizes: Shape, outs: Shape, *, average: bool) -> list[int]:
    """Return window widths that give `outs` from `sizes`.

    A window that halves a size usually has width 3, so that windows overlap.
    """
    pairs = list(zip(sizes, outs, strict=True))
    widths = [max(1, round(size / out)) for size, out in pairs] if all(outs) else [2] * len(sizes)
    if set(widths) == {1}:  # windows that move by one
        widths = [max(1, size - out + 1) for size, out in pairs]
    exact = all(size == out * width for (size, out), width in zip(pairs, widths, strict=True))
    if set(widths) == {2} and not (average and exact):
        widths = [3] * len(sizes)
    return [_made_to_fit(*pair, width) for pair, width in zip(pairs, widths, strict=True)]


def _pool(which: str) -> Rule:
    def rule(known: Call, context: Context) -> Guess | None:
        sizes, outs = _spatial(known, "self"), _pooled(known, context)
        kernel = known.value("kernel_size")
        if sizes is None or not is_whole_numbers(kernel) or not kernel:
            return None
        windows = zip(sizes, _padded(outs or (), None, sizes), _padded(kernel, kernel[0], sizes), strict=True)
        place = ("stride", "padding").index(which)
        return Guess(value=tuple(_pool_window(*window)[place] for window in windows), why="fits the recorded sizes")

    return rule


def _made_to_fit(size: int, out: int, kernel: int) -> int:
    """Return the smallest window of at least `kernel` that gives `out` from `size` with some stride and padding."""

    def makes(width: int) -> bool:
        stride, padding = _pool_window(size, out, width)
        return (size + 2 * padding - width) // stride + 1 == out

    return next((width for width in range(kernel, kernel + MAX_STRIDE) if makes(width)), kernel)


def _pool_window(size: int, out: int | None, kernel: int) -> tuple[int, int]:
    """Return (stride, padding) of a pooling window. The padding is at most half the kernel."""
    if out is not None:
        for stride in (2, 1, *range(3, MAX_STRIDE + 1)) if size > 1 else (1,):
            for padding in range(kernel // 2 + 1):
                if (size + 2 * padding - kernel) // stride + 1 == out:
                    return stride, padding
    return (2, 0) if kernel > 1 else (1, 0)


def _accumulated(context: Context) -> tuple[int, bool] | None:
    """Return (number of parameters whose gradients autograd accumulates next, whether a gradient is also passed on).

    Returns None if the trace has no autograd labels.
    """
    labels = [name for name in context.relatives().labels if name.startswith(_EVALUATED)]
    count = next((i for i, name in enumerate(labels) if not name.endswith("AccumulateGrad")), len(labels))
    return (count, count < len(labels)) if count else None


def _forward_bias(context: Context) -> bool | None:
    """Return whether the forward convolution had a bias; None if unknown."""
    forward = context.relatives().forward
    args = () if forward is None else recorded_args(forward)
    return None if len(args) < 3 else args[2].tensor is not None


def _slow_mask(known: Call, context: Context) -> Guess | None:
    biased = _forward_bias(context)
    return None if biased is None else Guess(value=(True, True, biased), why="inferred from the forward call")


def _bias_sizes(known: Call, context: Context) -> Guess | None:
    weight, accumulated = known.tensor("weight"), _accumulated(context)
    if _forward_bias(context) is False:
        return Guess(value=(0,), why="[0]: the forward call has no bias")
    if accumulated is not None and accumulated[0] == 1:
        return Guess(value=(0,), why="[0]: only one parameter's gradient follows, so there is no bias")
    if weight is not None and _is_transposed(known, context):
        return Guess(value=(_channels(known, weight.shape),), why="one per channel of the gradient")
    return Guess(value=weight.shape[:1], why="one a filter") if weight is not None else None


def _convolution_mask(known: Call, context: Context) -> Guess | None:
    """Guess which gradients of input, weight and bias are required, as far as autograd's labels show it."""
    accumulated, sizes = _accumulated(context), known.value("bias_sizes")
    allocated = sum(call.name == "aten::resize_" for call in context.relatives().children)
    if accumulated is not None and allocated in (
        accumulated[0],
        accumulated[0] + 1,
    ):  # oneDNN allocates a result for each that is wanted
        accumulated = accumulated[0], allocated > accumulated[0]
    biased = sizes not in (None, (0,)) if "bias_sizes" in known else True
    if accumulated is None:
        return Guess(value=(True, True, biased), why="all gradients wanted")
    return Guess(
        value=(accumulated[1], True, biased and accumulated[0] > 1), why="the gradients that autograd passes on next"
    )


_OF_PARENT = {"self_size": 0, "weight_size": 2}
"""Size arguments of a library's convolution backward (torch up to 1.10) → position of the tensor that has this size in
the arguments of the parent call.
"""


def _size_of(name: str) -> Rule:
    """Return the rule that guesses the size of a tensor from the enclosing call, which computes all gradients.

    Only the enclosing call has this tensor as an argument.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        parent = context.relatives().parent
        meta = first_tensor_of(parent, _OF_PARENT[name]) if parent is not None else None
        return None if meta is None else Guess(value=meta.shape, why="the size in the call that computes all gradients")

    return rule


def _completed(known: Call, context: Context) -> Call:
    """Return the arguments, adding a tensor for each argument of which only the size was passed."""
    completed = Call()
    for name, size in (("input", "self_size"), ("weight", "weight_size")):
        if is_whole_numbers(shape := known.value(size)):
            completed[name] = ReplayArg(name=name, type="Tensor", tensors=(TensorMeta(shape=shape, dtype="float32"),))
    return Call({**completed, **known})


def _wanted(count: int) -> Rule:
    """Return the rule that guesses which gradients are computed. The nested calls show which.
    If there are no nested calls, all gradients are guessed.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        inside = [call.name for call in context.relatives().children]
        kinds = ("_backward_input", "_backward_weight", "_backward_bias")
        wanted = tuple(any(kind in name for name in inside) for kind in kinds)[:count]
        return Guess(
            value=wanted if any(wanted) else (True,) * count, why="the gradients that the calls inside the op compute"
        )

    return rule


def _kernel_of_weight(known: Call, context: Context) -> Guess | None:
    weight = _spatial(known, "weight")
    return None if weight is None else Guess(value=weight, why="the shape of the weight")


_LIBRARIES = ("cudnn", "miopen", "mkldnn")
_PARTS = tuple(
    f"{library}_convolution_backward_{part}" for library in _LIBRARIES for part in ("input", "weight", "weights")
)
_WHOLE = tuple(f"{library}_convolution_backward" for library in _LIBRARIES)
_SLOW = ("_slow_conv2d_forward", "_slow_conv2d_backward", "slow_conv3d_forward", "slow_conv3d", "thnn_conv2d")
_CONVOLUTIONS = (
    *names(
        "conv1d conv2d conv3d convolution _convolution convolution_backward convolution_overrideable "
        "cudnn_convolution miopen_convolution mkldnn_convolution conv_transpose1d conv_transpose2d "
        "conv_transpose3d"
    ),
    *_SLOW,
    *_WHOLE,
    *_PARTS,
)
_POOLS = tuple(
    f"{kind}{suffix}"
    for kind in ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
    for suffix in ("", "_with_indices", "_with_indices_backward", "_backward")
)

WINDOW_RULES: dict[tuple[str, str], Rule] = {
    **{
        (op, name): _convolution(name)
        for op in _CONVOLUTIONS
        for name in ("stride", "padding", "dilation", "output_padding")
    },
    **{(op, "transposed"): _is_transposed_rule for op in _CONVOLUTIONS},
    **{(op, "groups"): _groups for op in _CONVOLUTIONS},
    ("convolution_backward", "bias_sizes"): _bias_sizes,
    ("convolution_backward", "output_mask"): _convolution_mask,
    ("_slow_conv2d_backward", "output_mask"): _slow_mask,
    **{(op, "output_mask"): _wanted(2 if op.startswith("cudnn") else 3) for op in _WHOLE},
    **{(op, name): _size_of(name) for op in _PARTS for name in _OF_PARENT},
    **{(op, "kernel_size"): _kernel_of_weight for op in _SLOW},
    **{(op, "kernel_size"): _pool_kernel for op in _POOLS},
    **{(op, name): _pool(name) for op in _POOLS for name in ("stride", "padding")},
    **{(op, "dilation"): _same_rank(1, "no dilation") for op in _POOLS},
}
"""(op without namespace, argument) → rule that guesses the argument."""
