# pyright: strict
"""Bytes that one call of an aten op writes, from its recorded arguments. Ops that are not in a table are unknown.

To add an op, add its name to `RULES`, or to `REDUCTIONS` for each number of arguments that it can have. A test calls
all overloads of the listed ops on meta tensors and compares the sizes of their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from opreplay.traces.dtypes import ITEMSIZE_BYTES, SCALAR_TYPE_CODES, torch_dtype_name
from opreplay.traces.literals import Literal as Value
from opreplay.traces.literals import is_whole_numbers, parse_literal
from opreplay.traces.model import OpSignature

Dtype = Literal["promoted", "same", "first", "float", "real", "real float", "bool", "int64", "float32", "sum"]
"""How the dtype of a result follows from the operands. "promoted": torch promotes those of all operands. "same": all
operands have the result's dtype; if they differ or are truth values, it is unknown. "first": the first operand has it.
"float", "real", "real float" and "sum" change the promoted dtype: "float" makes integers float32, "real" makes complex
numbers real, "real float" does both, and "sum" makes integers int64.
"""


class Rule(NamedTuple):
    """The result of an op whose operands are broadcast."""

    operands: int = 1
    """Number of leading arguments that can be operands. A tensor after them is a buffer for the result."""
    dtype: Dtype = "promoted"
    first: int = 0
    """Position of the first operand whose dtype counts."""
    dtype_at: int | None = None
    """Position of an argument that gives the dtype of the result, if it is not None."""
    widens_at: int | None = None
    """Position of a flag with which the result is float32."""
    reduction_at: int | None = None
    """Position of the reduction of a loss: 0 for a result of each element, otherwise the result is one element."""
    like: int | None = None
    """Position of the operand that has the shape of the result; None if all operands are broadcast."""


class Reduction(NamedTuple):
    """The results of a reduction of the first argument."""

    dims_at: int | None = None
    """Position of the reduced dimensions; None if all are reduced."""
    keep_at: int | None = None
    dtype: tuple[Dtype, ...] = ("promoted",)
    """Dtype of each result."""
    dtype_at: int | None = None


class Gradients(NamedTuple):
    """The gradients of a backward op: each has the shape and dtype of an argument."""

    like: tuple[int, ...]
    mask_at: int | None = None
    """Position of the flags that say which gradients are computed; None if all are."""


class Normalization(NamedTuple):
    """The results of a normalization: one as large as the input, and statistics of each group of elements.

    Statistics have at least 32 bits, as on accelerators.
    """

    statistics: int
    """Number of statistics of each group."""
    shape_at: int | None = None
    """Position of the sizes of the normalized dimensions, which are the last ones."""
    groups_at: tuple[int, int] | None = None
    """Positions of the batch size and the number of groups of channels."""
    training_at: int | None = None
    """Position of the flag of batch normalization. Only with it, there are statistics of each channel, and the running
    statistics (arguments 3 and 4) are overwritten.
    """


def _rows(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Rule] = {
    **_rows(
        "neg negative relu relu6 hardswish hardsigmoid hardtanh leaky_relu silu gelu mish elu celu selu softplus "
        "hardshrink softshrink threshold ceil floor round trunc fix frac sign sgn bitwise_not "
        "nan_to_num tril triu clone flip roll renorm alias_copy",
        Rule(),
    ),
    **_rows(
        "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
        "arcsin arccos arctan arcsinh arccosh arctanh sigmoid reciprocal erf erfc erfinv lgamma digamma sinc i0 logit "
        "deg2rad rad2deg mvlgamma",
        Rule(dtype="float"),
    ),
    **_rows("polygamma", Rule(2, "float", first=1)),
    **_rows("abs absolute", Rule(dtype="real")),
    **_rows("angle", Rule(dtype="real float")),
    **_rows("isnan isinf isfinite isposinf isneginf signbit logical_not", Rule(dtype="bool")),
    **_rows(
        "add sub subtract rsub mul multiply maximum minimum fmax fmin fmod remainder pow floor_divide gcd lcm hypot "
        "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ clamp_max clamp_min heaviside nextafter "
        "logaddexp logaddexp2 prelu _prelu_kernel",
        Rule(2),
    ),
    **_rows("bitwise_left_shift bitwise_right_shift __lshift__ __rshift__", Rule(2)),
    **_rows("div divide true_divide atan2 arctan2 xlogy copysign igamma igammac", Rule(2, "float")),
    **_rows(
        "eq ne lt gt le ge less less_equal greater greater_equal not_equal logical_and logical_or logical_xor",
        Rule(2, "bool"),
    ),
    **_rows("lerp addcmul addcdiv clamp clip", Rule(3)),
    **_rows("where", Rule(3, first=1)),
    **_rows("masked_fill", Rule(3, "first")),
    **_rows(
        "sigmoid_backward tanh_backward silu_backward mish_backward gelu_backward threshold_backward "
        "leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward "
        "softshrink_backward hardshrink_backward logit_backward",
        Rule(2),
    ),
    **_rows("mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward", Rule(3, "same")),
    **_rows("square", Rule(dtype="same")),
    **_rows("binary_cross_entropy_backward", Rule(4, "same")),
    **_rows("elu_backward", Rule(6, "same")),
    **_rows("mse_loss smooth_l1_loss huber_loss soft_margin_loss", Rule(2, reduction_at=2)),
    **_rows("binary_cross_entropy", Rule(3, "same", reduction_at=3)),
    **_rows("binary_cross_entropy_with_logits", Rule(4, "same", reduction_at=4)),
    **_rows("_softmax_backward_data _log_softmax_backward_data", Rule(2, dtype_at=3, like=0)),
    **_rows("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", Rule(2, "first", first=1, like=1)),
    **_rows("adaptive_max_pool2d_backward adaptive_max_pool3d_backward", Rule(3, "first", first=1, like=1)),
    **_rows("_to_copy", Rule(dtype_at=1)),
    **_rows("cumsum cumprod", Rule(dtype="sum", dtype_at=2)),
    **_rows("quantize_per_tensor", Rule(3, like=0, dtype_at=3)),
    **_rows("quantize_per_channel", Rule(3, like=0, dtype_at=4)),
    **_rows("dequantize", Rule(dtype="float32")),
    **_rows("layer_norm group_norm instance_norm batch_norm rms_norm", Rule(9, "first", like=0)),
    **_rows("softmax log_softmax", Rule(dtype_at=2)),
    **_rows("_softmax _log_softmax", Rule(widens_at=2)),
}
"""aten op → its result. An in-place variant is found under the name without "_"."""

_SUM: tuple[Dtype, ...] = ("sum",)
_TO_ONE, _WITH_INDEX = Reduction(), Reduction(1, 2, ("promoted", "int64"))
REDUCTIONS: dict[tuple[str, int], Reduction] = {
    **{(name, 2): Reduction(None, None, _SUM, 1) for name in ("sum", "nansum", "prod")},
    **{(name, 4): Reduction(1, 2, _SUM, 3) for name in ("sum", "nansum", "prod")},
    ("mean", 2): Reduction(None, None, ("promoted",), 1),
    ("mean", 4): Reduction(1, 2, ("promoted",), 3),
    **{(name, 1): _TO_ONE for name in ("max", "min", "median", "nanmedian")},
    **{(name, 3): _WITH_INDEX for name in ("max", "min", "median", "nanmedian", "mode")},
    **{(name, 3): Reduction(1, 2) for name in ("amax", "amin")},
    ("aminmax", 3): Reduction(1, 2, ("promoted", "promoted")),
    ("logsumexp", 3): Reduction(1, 2, ("float",)),
    **{(name, 3): Reduction(1, 2, ("int64",)) for name in ("argmax", "argmin")},
    **{(name, 1): Reduction(None, None, ("bool",)) for name in ("all", "any")},
    **{(name, 3): Reduction(1, 2, ("bool",)) for name in ("all", "any")},
    **{(name, 2): Reduction(None, None, ("real",)) for name in ("std", "var")},
    **{(name, 4): Reduction(1, 3, ("real",)) for name in ("std", "var")},
    **{(name, 2): Reduction(None, None, ("real", "promoted")) for name in ("std_mean", "var_mean")},
    **{(name, 4): Reduction(1, 3, ("real", "promoted")) for name in ("std_mean", "var_mean")},
    ("linalg_vector_norm", 5): Reduction(2, 3, ("real",), 4),
    ("norm", 2): Reduction(None, None, ("real",)),
    ("norm", 3): Reduction(None, None, ("real",), 2),
    ("norm", 4): Reduction(2, 3, ("real",)),
    ("norm", 5): Reduction(2, 3, ("real",), 4),
}
"""(aten op, number of its arguments) → its results."""
REDUCING = frozenset(name for name, _ in REDUCTIONS)
GRADIENTS = {
    "native_layer_norm_backward": Gradients((1, 5, 6), 7),
    "native_group_norm_backward": Gradients((1, 4, 4), 9),
    "native_batch_norm_backward": Gradients((1, 2, 2), 9),
    "_fused_rms_norm_backward": Gradients((1, 4), 5),
    **dict.fromkeys(("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), Gradients((0, 2, 2))),
}
"""aten op → its gradients."""
NORMALIZATIONS = {
    "native_layer_norm": Normalization(2, shape_at=1),
    "_fused_rms_norm": Normalization(1, shape_at=1),
    "native_group_norm": Normalization(2, groups_at=(3, 6)),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), Normalization(2, training_at=5)),
}
"""aten op → its results. cuDNN's reserve space, of unknown size, is left out."""
DTYPES_OF_CASTS = {5: 1, 6: 2, 8: 1}
"""Number of arguments of aten::to → position of the dtype."""
HALVED = {"glu": 1}
"""aten op → position of the dimension of which the result has half."""
ADAPTIVE_POOLS = {
    **{f"{start}adaptive_avg_pool{dims}d": (dims, 0) for dims in (1, 2, 3) for start in ("", "_")},
    **{f"adaptive_max_pool{dims}d": (dims, 8) for dims in (1, 2, 3)},
}
"""aten op → (number of pooled dimensions, bytes of each result element's index)."""

_WHOLE = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
_FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_KNOWN = {"bool", *_WHOLE, *_FLOATS, *_COMPLEX}
_OF_PARTS = {"float16": "complex32", "bfloat16": "complex64", "float32": "complex64", "float64": "complex128"}


class _Unknown(Exception):
    """Raised if the recorded arguments do not determine a result."""


def result_bytes(signature: OpSignature) -> float | None:
    """Return the bytes that a call of an aten op writes to new tensors, or to the tensor that it overwrites.

    It is 0 if the call writes to a buffer that is one of its arguments. None if the result is unknown.
    """
    call = _Call(signature)
    try:
        return call.result_bytes()
    except _Unknown:
        return None


def is_in_place(base: str) -> bool:
    """Check whether an op overwrites its first argument, by its name without namespace and overload ("add_")."""
    return base.endswith("_") and not base.endswith("__")


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape to which torch broadcasts shapes; None if it refuses them, or for no shapes."""
    if not shapes:
        return None
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{size for size in column if size != 1} or {1} for column in zip(*padded, strict=True)]
    if any(len(column) > 1 for column in sizes):
        return None
    return tuple(next(iter(column)) for column in sizes)


def has_result_rule(base: str) -> bool:
    """Check whether a table has an aten op (`base` is its name without namespace and overload)."""
    name = base[:-1] if is_in_place(base) else base
    tables = (RULES, REDUCING, GRADIENTS, NORMALIZATIONS, HALVED, ADAPTIVE_POOLS)
    return name == "to" or any(name in table for table in tables)


class _Call:
    """One recorded call of an aten op."""

    def __init__(self, signature: OpSignature) -> None:
        base = signature.name.rpartition("::")[2].split(".")[0]
        self._in_place = is_in_place(base)
        self._base = base[:-1] if self._in_place else base
        self._signature = signature
        self._dims: tuple[Any, ...] = signature.dims or ()
        dtypes = [torch_dtype_name(spelled) if spelled else None for spelled in signature.types or ()]
        self._dtypes = [
            dtype if is_whole_numbers(dims) else None for dims, dtype in zip(self._dims, dtypes, strict=False)
        ]

    def result_bytes(self) -> float | None:
        base, count = self._base, len(self._dtypes)
        if count != len(self._dims) or not count:
            raise _Unknown
        if self._in_place:
            return self._overwritten(RULES[base]) if base in RULES else None
        if base in ("max", "min") and count == 2:
            if self._dtypes[1] is None or not self._shape(1):
                raise _Unknown  # the second argument can be the result
            return self._by_rule(Rule(2))
        if base in REDUCING:
            return 0.0 if self._has_buffer(1) else self._reduced(REDUCTIONS.get((base, count)))
        if base in GRADIENTS:
            return self._gradients(GRADIENTS[base])
        if base == "to":
            dtype = self._named_dtype(DTYPES_OF_CASTS[count]) if count in DTYPES_OF_CASTS else None
            if dtype in (None, self._dtype(0)):
                raise _Unknown  # it may return its argument
            return self._bytes(self._shape(0), dtype)
        if base in HALVED:
            return 0.0 if self._has_buffer(1) else self._bytes(self._shape(0), self._dtype(0)) / 2
        if base in ADAPTIVE_POOLS:
            dims, index = ADAPTIVE_POOLS[base]
            if self._has_buffer(1):
                return 0.0
            shape, sizes = self._shape(0), self._integers(1)
            if len(sizes) != dims or len(shape) <= dims:
                raise _Unknown
            return float(prod((*shape[:-dims], *sizes))) * (ITEMSIZE_BYTES[self._dtype(0)] + index)
        if base in NORMALIZATIONS:
            return self._normalized(NORMALIZATIONS[base])
        return self._by_rule(RULES[base]) if base in RULES else None

    def _has_buffer(self, operands: int) -> bool:
        """Check whether the result is written to a tensor after this number of operands."""
        if not any(self._dtypes[:operands]):
            raise _Unknown  # old profilers recorded some arguments in another order
        buffers = [dims for dims, dtype in zip(self._dims[operands:], self._dtypes[operands:], strict=True) if dtype]
        if any(prod(dims) == 0 for dims in buffers):
            raise _Unknown  # the call gives an empty buffer the size of the result
        return bool(buffers)

    def _overwritten(self, rule: Rule) -> float:
        shapes = [self._shape(place) for place, dtype in enumerate(self._dtypes[: rule.operands]) if dtype is not None]
        if rule.like is None and broadcast_shape(shapes) != self._shape(0):
            raise _Unknown
        return self._bytes(self._shape(0), self._dtype(0))

    def _by_rule(self, rule: Rule) -> float:
        if self._has_buffer(rule.operands):
            return 0.0
        operands = range(min(rule.operands, len(self._dtypes)))
        shapes = [self._shape(place) for place in operands if self._dtypes[place] is not None]
        shape = broadcast_shape(shapes) if rule.like is None else self._shape(rule.like)
        if shape is None:
            raise _Unknown
        if rule.reduction_at is not None:
            reduction = self._value(rule.reduction_at)
            if not isinstance(reduction, int):
                raise _Unknown
            shape = () if reduction else shape
        named = None if rule.dtype_at is None else self._named_dtype(rule.dtype_at)
        if named is not None:
            return self._bytes(shape, named)
        if rule.widens_at is not None and self._value(rule.widens_at) is True:
            return self._bytes(shape, "float32")
        if rule.dtype == "first":
            return self._bytes(shape, self._dtype(rule.first))
        if rule.dtype == "same":
            dtypes = {self._dtypes[place] for place in operands} - {None}
            if len(dtypes) > 1 or "bool" in dtypes:
                raise _Unknown
            return self._bytes(shape, dtypes.pop() or "")
        if rule.dtype == "bool":
            return self._bytes(shape, "bool")
        dtype = self._promoted(place for place in operands if place >= rule.first)
        if rule.dtype == "float" and self._base in ("div", "divide") and len(self._dtypes) > 2 and not _is_float(dtype):
            if not self._text(2):
                raise _Unknown  # no rounding, or rounding that is not recorded
            return self._bytes(shape, dtype)
        return self._bytes(shape, _changed(dtype, rule.dtype))

    def _reduced(self, rule: Reduction | None) -> float:
        if rule is None:
            raise _Unknown
        shape = self._shape(0)
        if rule.dims_at is not None and rule.keep_at is not None:
            keeps = self._value(rule.keep_at)
            if not isinstance(keeps, bool):
                raise _Unknown
            dims = {dim % max(1, len(shape)) for dim in self._reduced_dims(rule.dims_at)} or {*range(len(shape))}
            shape = tuple(1 if dim in dims else size for dim, size in enumerate(shape) if keeps or dim not in dims)
        else:
            shape = ()
        named = None if rule.dtype_at is None else self._named_dtype(rule.dtype_at)
        own = self._dtype(0)
        return sum(self._bytes(shape, named or _changed(own, dtype)) for dtype in rule.dtype)

    def _reduced_dims(self, place: int) -> Sequence[int]:
        """Return the reduced dimensions; () for all."""
        value = self._value(place)
        if value is None:
            return ()
        if value == [] and self._base in ("all", "any"):
            raise _Unknown
        return [value] if isinstance(value, int) and not isinstance(value, bool) else self._integers(place)

    def _normalized(self, rule: Normalization) -> float:
        shape, dtype = self._shape(0), self._dtype(0)
        if dtype not in _FLOATS:
            raise _Unknown
        written, groups = self._bytes(shape, dtype), 0
        if rule.shape_at is not None:
            weight = self._dtypes[2] if len(self._dtypes) > 2 else None
            normalized = self._integers(rule.shape_at) if weight is None else self._shape(2)
            groups = prod(shape[: len(shape) - len(normalized)])
        elif rule.groups_at is not None:
            batch, channels = (self._value(place) for place in rule.groups_at)
            if not isinstance(batch, int) or not isinstance(channels, int):
                raise _Unknown
            groups = batch * channels
        elif rule.training_at is not None:
            trains = self._value(rule.training_at)
            if not isinstance(trains, bool) or len(shape) < 2:
                raise _Unknown
            groups = shape[1] if trains else 0
            written += sum(
                self._bytes(self._shape(at), self._dtype(at)) for at in (3, 4) if trains and self._dtypes[at]
            )
        return written + float(rule.statistics * groups) * max(4, ITEMSIZE_BYTES[dtype])

    def _gradients(self, rule: Gradients) -> float:
        if rule.mask_at is None:
            return sum(self._bytes(self._shape(place), self._dtype(place)) for place in rule.like)
        mask = self._value(rule.mask_at)
        if not isinstance(mask, list) or len(mask) != len(rule.like):
            raise _Unknown
        places = [place for place, asked in zip(rule.like, mask, strict=True) if asked is True]
        return sum(self._bytes(self._shape(place), self._dtype(place)) for place in places)

    def _promoted(self, places: Iterable[int]) -> str:
        """Return the dtype to which torch promotes operands: tensors with dimensions, tensors without, and numbers.

        The later ones change the dtype only if they are of a more general kind.
        """
        with_dims, without_dims, numbers = "", "", ""
        places = list(places)
        for place in places:
            dtype = self._dtypes[place]
            if dtype is not None and self._dims[place]:
                with_dims = _wider(with_dims, dtype)
            elif dtype is not None:
                without_dims = _wider(without_dims, dtype)
        of_tensors = _combined(with_dims, without_dims)
        if _is_float(with_dims) or (not with_dims and _is_float(without_dims)):
            return of_tensors  # numbers are real: profiles do not record complex ones
        for place in places:
            if self._dtypes[place] is None:
                numbers = _wider(numbers, self._number(place))
        return _combined(with_dims, _combined(without_dims, numbers))

    def _number(self, place: int) -> str:
        """Return the dtype of a Python number; "" for an argument that is None."""
        if not (self._signature.types or ())[place]:
            return ""
        value = self._value(place)
        if isinstance(value, bool):
            return "bool"
        if isinstance(value, int):
            return "int64"
        if isinstance(value, float):
            return "float32"
        raise _Unknown

    def _shape(self, place: int) -> tuple[int, ...]:
        if place >= len(self._dtypes) or self._dtypes[place] is None or min(self._dims[place], default=0) < 0:
            raise _Unknown
        return self._dims[place]

    def _dtype(self, place: int) -> str:
        dtype = self._dtypes[place] if place < len(self._dtypes) else None
        if dtype is None:
            raise _Unknown
        return dtype

    def _text(self, place: int) -> str:
        concrete = self._signature.concrete
        if concrete is None or place >= len(concrete):
            raise _Unknown
        return concrete[place]

    def _value(self, place: int) -> Value:
        """Return the recorded value of an argument, or None for an argument that is None."""
        text = self._text(place)
        if not text and (self._signature.types or ())[place]:
            raise _Unknown
        return parse_literal(text) if text else None

    def _integers(self, place: int) -> tuple[int, ...]:
        value = self._value(place)
        if not isinstance(value, list) or not is_whole_numbers(values := tuple(value)):
            raise _Unknown
        return values

    def _named_dtype(self, place: int) -> str | None:
        code = self._value(place)
        if code is None:
            return None
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < len(SCALAR_TYPE_CODES):
            raise _Unknown
        return SCALAR_TYPE_CODES[code]

    def _bytes(self, shape: Sequence[int], dtype: str) -> float:
        if dtype not in ITEMSIZE_BYTES:
            raise _Unknown
        return float(prod(shape)) * ITEMSIZE_BYTES[dtype]


def _is_float(dtype: str) -> bool:
    return dtype in _FLOATS or dtype in _COMPLEX


def _changed(dtype: str, how: Dtype) -> str:
    """Return the dtype of a result for the promoted dtype of its operands."""
    if how in ("bool", "int64", "float32"):
        return how
    if how == "float":
        return dtype if _is_float(dtype) else "float32"
    if how == "real float" and not _is_float(dtype):
        return "float32"
    if how in ("real", "real float"):
        return _COMPLEX.get(dtype, dtype)
    return dtype if how != "sum" or _is_float(dtype) else "int64"


def _wider(first: str, second: str) -> str:
    """Return the dtype to which torch promotes two dtypes; "" is none."""
    if not first or not second or first == second:
        return first or second
    if not {first, second} <= _KNOWN:
        raise _Unknown
    if first in _COMPLEX or second in _COMPLEX:
        return _OF_PARTS[_wider(_COMPLEX.get(first, first), _COMPLEX.get(second, second))]
    for sizes in (_FLOATS, _WHOLE):
        known = [dtype for dtype in (first, second) if dtype in sizes]
        if len(known) == 1:
            return known[0]
        if len(known) == 2:
            if sizes[first] != sizes[second] and not (sizes is _WHOLE and "uint8" in known):
                return max(known, key=sizes.__getitem__)
            if sizes is _FLOATS:
                return "float32"
            return "int16" if {*known} == {"int8", "uint8"} else max(known, key=sizes.__getitem__)
    return first


def _combined(higher: str, lower: str) -> str:
    """Return the dtype of operands of two ranks. The lower rank counts if it is of a more general kind."""
    if not higher or not lower:
        return higher or lower
    if higher in _COMPLEX:
        return higher
    if higher in _FLOATS:
        return _OF_PARTS[higher] if lower in _COMPLEX else higher
    return _wider(higher, lower) if higher == "bool" or _is_float(lower) else higher
