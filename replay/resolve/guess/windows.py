"""Guesses for the sliding windows of convolutions and pooling, from the sizes of what goes in and comes out."""

from __future__ import annotations

from opreplay.replay.resolve.guess.values import Context, Guess, Known, Rule, Shape, tensor, value

MAX_STRIDE = 8


def _spatial(known: Known, *names: str) -> Shape | None:
    for name in names:
        meta = tensor(known, name)
        if meta is not None and len(meta.shape) > 2:
            return meta.shape[2:]
    return None


def _fitting_window(size: int, out: int | None, kernel: int) -> tuple[int, int]:
    """(stride, padding) that makes `out` of `size` with this kernel; 1 and "same" padding if `out` is unknown."""
    if out is not None:
        for stride in range(1, MAX_STRIDE + 1):
            for padding in sorted(range(kernel), key=lambda p: abs(p - kernel // 2)):
                if (size + 2 * padding - kernel) // stride + 1 == out:
                    return stride, padding
    return 1, kernel // 2


def _convolution(which: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        sizes, kernels = _spatial(known, "input", "self"), _spatial(known, "weight")
        if sizes is None or kernels is None or len(sizes) != len(kernels):
            return None
        outs = _spatial(known, "grad_output")
        fitted = [
            _fitting_window(size, outs[i] if outs is not None and i < len(outs) else None, kernels[i])
            for i, size in enumerate(sizes)
        ]
        why = "fits the recorded gradient" if outs is not None else "stride 1 and padding that keeps the size"
        return Guess(value=tuple(pair[0 if which == "stride" else 1] for pair in fitted), why=why)

    return rule


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
    sizes, outs = _spatial(known, "self"), _spatial(known, "grad_output", "indices")
    if sizes is None:
        return None
    ratios = {max(1, round(size / out)) for size, out in zip(sizes, outs, strict=False) if out} if outs else {2}
    kernel = 3 if ratios == {2} else max(ratios)
    # A vector that is pooled as an image has one row, which no larger window fits.
    return Guess(value=tuple(max(1, min(kernel, size)) for size in sizes), why=f"a window of {kernel}")


def _pool(which: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        sizes, outs = _spatial(known, "self"), _spatial(known, "grad_output", "indices")
        kernel = value(known, "kernel_size")
        if sizes is None or not isinstance(kernel, tuple) or not kernel:
            return None
        pairs: list[tuple[int, int]] = []
        for i, size in enumerate(sizes):
            width = int(kernel[i] if i < len(kernel) else kernel[0])
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


def _bias_sizes(known: Known, context: Context) -> Guess | None:
    weight = tensor(known, "weight")
    return Guess(value=weight.shape[:1], why="one a filter") if weight is not None else None


_CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "convolution_backward", "convolution_overrideable",
    "cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "thnn_conv2d", "_slow_conv2d_forward",
)  # fmt: skip
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
    **{(op, "kernel_size"): _pool_kernel for op in _POOLS},
    **{(op, "stride"): _pool("stride") for op in _POOLS},
    **{(op, "padding"): _pool("padding") for op in _POOLS},
    **{(op, "dilation"): _same_rank(1, "no dilation") for op in _POOLS},
}
"""(op without namespace, argument) → rule."""
