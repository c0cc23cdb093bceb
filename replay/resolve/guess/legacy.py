# pyright: strict
"""Guesses for ops that torch 1.8 to 1.13 had: sizes and windows of gradients of convolutions, from calls around them.

Traces of these versions hold no values of scalars and lists. What a library's `convolution_backward` was called with
tells what its parts were: each call for one gradient lies below one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Rule, Shape, tensor, value
from opreplay.replay.resolve.guess.windows import WINDOW_RULES
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import TensorMeta

_SOURCE, _GRADIENT, _WEIGHT = 0, 1, 2
"""Places of the tensors in the arguments of a library's backward of a convolution."""

_INPUT_OPS = (
    "cudnn_convolution_backward_input",
    "miopen_convolution_backward_input",
    "miopen_depthwise_convolution_backward_input",
    "mkldnn_convolution_backward_input",
)
_WEIGHT_OPS = (
    "cudnn_convolution_backward_weight",
    "miopen_convolution_backward_weight",
    "miopen_depthwise_convolution_backward_weight",
    "mkldnn_convolution_backward_weights",
)
_WHOLE_OPS = (
    "cudnn_convolution_backward",
    "miopen_convolution_backward",
    "miopen_depthwise_convolution_backward",
    "mkldnn_convolution_backward",
    "_nnpack_spatial_convolution_backward",
)
_NNPACK_OPS = ("_nnpack_spatial_convolution_backward_input", "_nnpack_spatial_convolution_backward_weight")
_SLOW_OPS = (
    "thnn_conv2d_backward",
    "slow_conv3d_backward",
    "_slow_conv2d_backward",
    "slow_conv_dilated2d_backward",
    "slow_conv_dilated3d_backward",
    "_conv_depthwise2d_backward",
    "thnn_conv_depthwise2d_backward",
    "conv_depthwise3d_backward",
)
_FORWARD_OPS = (
    "thnn_conv_depthwise2d",
    "thnn_conv_depthwise2d_forward",
    "_conv_depthwise2d",
    "conv_depthwise3d",
    "slow_conv3d_forward",
    "_slow_conv2d_forward",
    "thnn_conv2d",
    "slow_conv3d",
    "slow_conv_dilated2d",
    "slow_conv_dilated3d",
    "_convolution_nogroup",
    "miopen_depthwise_convolution",
    "cudnn_convolution_relu",
    "cudnn_convolution_add_relu",
    "miopen_convolution_relu",
    "miopen_convolution_add_relu",
)
_TRANSPOSED_OPS = (
    *(
        f"{library}_convolution_transpose_backward{part}"
        for library in ("cudnn", "miopen")
        for part in ("", "_input", "_weight")
    ),
    "slow_conv_transpose2d_backward",
    "slow_conv_transpose3d_backward",
)
_PARENTS = frozenset(f"aten::{op}" for op in (*_WHOLE_OPS, *_TRANSPOSED_OPS))


def _of_parent(place: int, context: Context) -> Shape | None:
    """The size of one tensor that the call for all gradients was made with."""
    parent = context.relatives().parent
    if parent is None or parent.name not in _PARENTS or parent.dims is None or len(parent.dims) <= place:
        return None
    sizes = tuple(size for size in parent.dims[place] if isinstance(size, int))
    return sizes if len(sizes) > 2 else None


def _size_of(place: int) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        size = _of_parent(place, context)
        return None if size is None else Guess(value=size, why="the size in the call for all gradients")

    return rule


def _sized(known: Known, context: Context, names: Sequence[str], sizes: Sequence[str], place: int) -> TensorMeta | None:
    """The tensor under one of `names`; else one of the size under one of `sizes`, or of that in the call around."""
    found = next((meta for name in names if (meta := tensor(known, name)) is not None), None)
    if found is not None:
        return found
    told = (value(known, name) for name in sizes)
    size = next((one for one in told if is_whole_numbers(one)), _of_parent(place, context))
    return None if size is None else TensorMeta(shape=tuple(size), dtype="float32")


def _as_convolution(known: Known, context: Context, *, transposed: bool) -> Known:
    """The arguments as `convolution_backward` names them: a transposed one runs from its gradient to its input."""
    parts = {
        "input": _sized(known, context, ("self", "input"), ("self_size",), _SOURCE),
        "weight": _sized(known, context, ("weight",), ("weight_size", "weightsize"), _WEIGHT),
        "grad_output": tensor(known, "grad_output"),
    }
    if transposed:
        parts["input"], parts["grad_output"] = parts["grad_output"], parts["input"]
    told = {
        name: ReplayArg(name=name, type="Tensor", tensors=(meta,)) for name, meta in parts.items() if meta is not None
    }
    return {**{name: arg for name, arg in known.items() if name not in ("self", *parts)}, **told}


def _window(argument: str, *, transposed: bool = False) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        as_now = WINDOW_RULES["convolution_backward", argument]
        return as_now(_as_convolution(known, context, transposed=transposed), context)

    return rule


def _output_padding(known: Known, context: Context) -> Guess | None:
    """What is missing to the gradient's size when the window is applied to the input's."""
    made = _as_convolution(known, context, transposed=True)
    grad, source, weight = (tensor(made, name) for name in ("input", "grad_output", "weight"))
    stride, padding = (WINDOW_RULES["convolution_backward", name](made, context) for name in ("stride", "padding"))
    if grad is None or source is None or weight is None or stride is None or padding is None:
        return None
    rows = zip(grad.shape[2:], source.shape[2:], weight.shape[2:], stride.value, padding.value, strict=False)
    rest = tuple(max(0, out - ((size - 1) * s - 2 * p + k)) for out, size, k, s, p in rows)
    return Guess(value=rest, why="fits the recorded sizes")


def _mask(length: int) -> Rule:
    """Which gradients the calls inside are for; all where there are none inside."""

    def rule(known: Known, context: Context) -> Guess | None:
        inside = [call.name for call in context.relatives().children]
        kinds = ("_backward_input", "_backward_weight", "_backward_bias")
        found = tuple(any(kind in name for name in inside) for kind in kinds)[:length]
        if any(found):
            return Guess(value=found, why="gradients that the calls inside are for")
        return Guess(value=(True,) * length, why="all gradients")

    return rule


def _kernel_size(known: Known, context: Context) -> Guess | None:
    weight = tensor(known, "weight")
    return None if weight is None else Guess(value=weight.shape[2:], why="that of the weight")


def _spatial_of(name: str) -> Rule:
    def rule(known: Known, context: Context) -> Guess | None:
        meta = tensor(known, name)
        return None if meta is None else Guess(value=meta.shape[2:], why=f"that of {name}")

    return rule


def _linear_input(known: Known, context: Context) -> Guess | None:
    grad, weight = tensor(known, "grad_output"), tensor(known, "weight")
    if grad is None or weight is None:
        return None
    return Guess(value=(*grad.shape[:-1], weight.shape[-1]), why="rows of the gradient, columns of the weight")


def _says(text: str, why: str) -> Rule:
    return lambda known, context: Guess(value=text, why=why)


def _number(number: float, why: str) -> Rule:
    return lambda known, context: Guess(value=number, why=why)


def _in_training(known: Known, context: Context) -> Guess | None:
    if any("bn_fw_inf" in name or "InferencePerAct" in name or "InferSpatial" in name for name in context.kernels):
        return Guess(value=False, why="False: the recorded kernel is that of inference")
    return Guess(value=True, why="True (a common value)")


_ORDINARY = (*_INPUT_OPS, *_WEIGHT_OPS, *_WHOLE_OPS, *_NNPACK_OPS, *_SLOW_OPS)
_WINDOWS = ("stride", "padding", "dilation", "groups")
_TWO_GRADIENTS = ("cudnn_convolution_backward", "cudnn_convolution_transpose_backward")
_KINDS: tuple[tuple[Sequence[str], Callable[[str], Rule]], ...] = (
    ((*_ORDINARY, *_FORWARD_OPS), lambda argument: _window(argument)),
    (_TRANSPOSED_OPS, lambda argument: _window(argument, transposed=True)),
)

LEGACY_RULES: dict[tuple[str, str], Rule] = {
    **{(op, argument): rule(argument) for ops, rule in _KINDS for op in ops for argument in _WINDOWS},
    **{(op, "self_size"): _size_of(_SOURCE) for op in _INPUT_OPS},
    **{(op, "weight_size"): _size_of(_WEIGHT) for op in (*_WEIGHT_OPS, *_TRANSPOSED_OPS)},
    ("_nnpack_spatial_convolution_backward_weight", "weightsize"): _size_of(_WEIGHT),
    **{(op, "output_mask"): _mask(2 if op in _TWO_GRADIENTS else 3) for op in (*_WHOLE_OPS, *_TRANSPOSED_OPS)},
    **{(op, "output_mask"): _mask(2 if op.endswith("depthwise2d_backward") else 3) for op in _SLOW_OPS},
    **{(op, "output_padding"): _output_padding for op in _TRANSPOSED_OPS},
    **{(op, "kernel_size"): _kernel_size for op in (*_SLOW_OPS, *_FORWARD_OPS, *_TRANSPOSED_OPS)},
    **{(f"max_unpool{rank}d_backward", "output_size"): _spatial_of("grad_output") for rank in (2, 3)},
    ("_mps_linear_backward_input", "input_size"): _linear_input,
    **{(op, "exponential_average_factor"): _number(0.1, "0.1 (the momentum of most models)")
       for op in ("cudnn_batch_norm", "miopen_batch_norm")},
    **{(op, "epsilon"): _number(1e-5, "1e-05 (that of most models)") for op in (
        "cudnn_batch_norm", "miopen_batch_norm", "cudnn_batch_norm_backward", "miopen_batch_norm_backward")},
    **{(op, "training"): _in_training for op in ("cudnn_batch_norm", "miopen_batch_norm")},
}  # fmt: skip
"""(op without namespace, argument) → rule."""

LEGACY_TEXTS: dict[tuple[str, str], Rule] = {
    ("_linalg_qr_helper", "mode"): _says("reduced", "'reduced' (strings are not recorded)"),
    ("_syevd_helper", "uplo"): _says("L", "'L' (strings are not recorded)"),
}
