# pyright: strict
"""Guesses for the sliding windows of convolutions and pooling, from the sizes of what goes in and comes out."""

from __future__ import annotations

from typing import Any, cast

from opreplay.replay.resolve.guess.lists import first_tensor_of
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Rule, Shape, tensor, value

MAX_STRIDE = 8
NEXT_READERS = 6
_EVALUATED = "autograd::engine::evaluate_function: "


def _spatial(known: Known, *names: str) -> Shape | None:
    for name in names:
        meta = tensor(known, name)
        if meta is not None and len(meta.shape) > 2:
            return meta.shape[2:]
    return None


def _fitting_window(size: int, out: int | None, kernel: int) -> tuple[int, int]:
    """(stride, padding) that makes `out` of `size` with this kernel; 1 and "same" padding if `out` is unknown.

    Of several the smallest stride, then the padding that leaves fewest elements at the end unused.
    """
    if out is not None:
        for stride in range(1, MAX_STRIDE + 1):
            rests = [
                ((size + 2 * padding - kernel) % stride, abs(padding - kernel // 2), padding)
                for padding in range(kernel)
                if (size + 2 * padding - kernel) // stride + 1 == out
            ]
            if rests:
                return stride, min(rests)[2]
    return 1, kernel // 2


def _convolved(known: Known, context: Context) -> tuple[Shape, str] | None:
    """Sizes of a convolution's result without batch and channels, and what shows them."""
    grad = _spatial(known, "grad_output")
    if grad is not None:
        return grad, "fits the recorded gradient"
    source, weight = tensor(known, "input") or tensor(known, "self"), tensor(known, "weight")
    if source is None or weight is None:
        return None
    front = (*source.shape[: len(source.shape) - len(weight.shape) + 1], weight.shape[0])
    for call in context.relatives().following[:NEXT_READERS]:
        meta = first_tensor_of(call)
        if meta is not None and len(meta.shape) == len(source.shape) and meta.shape[: len(front)] == front:
            sizes, kernels = meta.shape[len(front) :], weight.shape[2:]
            made = zip(source.shape[len(front) :], sizes, kernels, strict=False)
            if all(out <= size + kernel for size, out, kernel in made):
                return sizes, f"{call.name} reads {list(meta.shape)} next"
    return None


def _convolution(which: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        sizes, kernels = _spatial(known, "input", "self"), _spatial(known, "weight")
        if sizes is None or kernels is None or len(sizes) != len(kernels):
            return None
        outs = _convolved(known, context)
        fitted = [
            _fitting_window(size, outs[0][i] if outs is not None and i < len(outs[0]) else None, kernels[i])
            for i, size in enumerate(sizes)
        ]
        why = outs[1] if outs is not None else "stride 1 and padding that keeps the size"
        return Guess(value=tuple(pair[0 if which == "stride" else 1] for pair in fitted), why=why)

    return rule


def _pooled(known: Known, context: Context) -> Shape | None:
    """Sizes of a pooling's result without batch and channels: of its gradient, or of what is read next."""
    outs, own = _spatial(known, "grad_output", "indices"), tensor(known, "self")
    if outs is not None or own is None or len(own.shape) < 3:
        return outs
    for call in context.relatives().following[:NEXT_READERS]:
        meta = first_tensor_of(call)
        if meta is None or meta.shape == own.shape or len(meta.shape) != len(own.shape):
            continue
        if meta.shape[:2] == own.shape[:2] and all(n <= m for n, m in zip(meta.shape, own.shape, strict=True)):
            return meta.shape[2:]
    return None


def _same_rank(fill: int, why: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        rank = len(_spatial(known, "weight", "self", "input") or ())
        return Guess(value=(fill,) * rank, why=why) if rank else None

    return rule


def _groups(known: Known, context: Context) -> Guess | None:
    """Input channels over the channels that one filter sees."""
    source, weight = tensor(known, "input") or tensor(known, "self"), tensor(known, "weight")
    if source is None or weight is None or len(source.shape) < 3 or len(weight.shape) < 2 or not weight.shape[1]:
        return None
    groups, rest = divmod(source.shape[1], weight.shape[1])
    return Guess(value=groups, why="channels of input and weight") if groups and not rest else None


def _pool_kernel(known: Known, context: Context) -> Guess | None:
    sizes, outs = _spatial(known, "self"), _pooled(known, context)
    if sizes is None:
        return None
    ratios = {max(1, round(size / out)) for size, out in zip(sizes, outs, strict=False) if out} if outs else {2}
    kernel = 3 if ratios == {2} else max(ratios)
    # A vector that is pooled as an image has one row, which no larger window fits.
    return Guess(value=tuple(max(1, min(kernel, size)) for size in sizes), why=f"a window of {kernel}")


def _pool(which: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        sizes, outs = _spatial(known, "self"), _pooled(known, context)
        kernel = value(known, "kernel_size")
        if sizes is None or not isinstance(kernel, tuple) or not kernel:
            return None
        pairs: list[tuple[int, int]] = []
        widths = cast("tuple[Any, ...]", kernel)
        for i, size in enumerate(sizes):
            width = int(widths[i] if i < len(widths) else widths[0])
            pairs.append(_pool_window(size, outs[i] if outs is not None and i < len(outs) else None, width))
        return Guess(value=tuple(p[0 if which == "stride" else 1] for p in pairs), why="fits the recorded sizes")

    return rule


def _pool_window(size: int, out: int | None, kernel: int) -> tuple[int, int]:
    """(stride, padding) of a pooling window; its padding may be at most half the kernel."""
    if out is not None:
        for stride in (2, 1, *range(3, MAX_STRIDE + 1)):
            for padding in range(kernel // 2 + 1):
                if (size + 2 * padding - kernel) // stride + 1 == out:
                    return stride, padding
    return (2, 0) if kernel > 1 else (1, 0)


def _accumulated(context: Context) -> tuple[int, bool] | None:
    """(parameters whose gradients follow at once, whether a gradient is passed on); None without autograd's labels."""
    labels = [name for name in context.relatives().labels if name.startswith(_EVALUATED)]
    own = 0
    while own < len(labels) and labels[own].endswith("AccumulateGrad"):
        own += 1
    return (own, own < len(labels)) if own else None


def _bias_sizes(known: Known, context: Context) -> Guess | None:
    weight, found = tensor(known, "weight"), _accumulated(context)
    if found is not None and found[0] == 1:
        return Guess(value=(0,), why="[0]: the gradient of one parameter follows, there is no bias")
    return Guess(value=weight.shape[:1], why="one a filter") if weight is not None else None


def _convolution_mask(known: Known, context: Context) -> Guess | None:
    """Gradients of input, weight and bias, as far as autograd's labels say which were wanted."""
    found, sizes = _accumulated(context), value(known, "bias_sizes")
    biased = sizes not in (None, (0,)) if "bias_sizes" in known else True
    if found is None:
        return Guess(value=(True, True, biased), why="all gradients wanted")
    return Guess(value=(found[1], True, biased and found[0] > 1), why="the gradients that autograd passes on next")


_CONVOLUTIONS = (
    "conv1d",
    "conv2d",
    "conv3d",
    "convolution",
    "_convolution",
    "convolution_backward",
    "convolution_overrideable",
    "cudnn_convolution",
    "miopen_convolution",
    "mkldnn_convolution",
    "thnn_conv2d",
    "_slow_conv2d_forward",
)
_POOLS = tuple(
    f"{kind}{suffix}"
    for kind in ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
    for suffix in ("", "_with_indices", "_with_indices_backward", "_backward")
)

WINDOW_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "stride"): _convolution("stride") for op in _CONVOLUTIONS},
    **{(op, "padding"): _convolution("padding") for op in _CONVOLUTIONS},
    **{(op, "dilation"): _same_rank(1, "no dilation") for op in _CONVOLUTIONS},
    **{(op, "output_padding"): _same_rank(0, "no output padding") for op in _CONVOLUTIONS},
    **{(op, "groups"): _groups for op in _CONVOLUTIONS},
    ("convolution_backward", "bias_sizes"): _bias_sizes,
    ("convolution_backward", "output_mask"): _convolution_mask,
    **{(op, "kernel_size"): _pool_kernel for op in _POOLS},
    **{(op, "stride"): _pool("stride") for op in _POOLS},
    **{(op, "padding"): _pool("padding") for op in _POOLS},
    **{(op, "dilation"): _same_rank(1, "no dilation") for op in _POOLS},
}
"""(op without namespace, argument) → rule."""
