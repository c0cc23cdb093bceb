# pyright: strict
"""Guesses string arguments, which no profile records, from nested calls and kernel names.

Without evidence, a string gets the schema's default, and an assumption says so. `einsum` guesses equations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import RecordedArg, recorded_args
from opreplay.replay.resolve.guess.einsum import equation
from opreplay.replay.resolve.guess.values import Context, Guess, Relatives, Rule, first_tensors, names, recorded_numbers
from opreplay.traces.model import OpSignature, TensorMeta

UNTOLD = "strings are not recorded"
_BY_GRADIENT = "inferred from its backward pass"
_PADDINGS = {
    "reflection_pad": "reflect",
    "replication_pad": "replicate",
    "_pad_circular": "circular",
    "constant_pad_nd": "constant",
}
"""First part of the name of the op that aten::pad calls → the `mode` of aten::pad."""
_GELU = re.compile(r"Gelu(?:Backward)?CUDAKernelImpl\(.*?\)::\{lambda\(\)#([12])\}")
"""Matches the kernel name of gelu and finds the number of a lambda in it. Number 1, the first lambda in the kernel's
source, is the approximation (ATen/native/cuda/ActivationGeluKernel.cu).
"""
_DIVISION = re.compile(r"div_(true|trunc|floor)_kernel")
_REDUCTION = re.compile(r"(?:Reduce|reduce_)(Add|Multiply|Mean|Maximum|Minimum|add|multiply|mean|maximum|minimum)\b")
_ROUNDINGS = {"true": None, "trunc": "trunc", "floor": "floor"}
_FFTS = ("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c")
_SCALED_BY_ROOT, _UNSCALED = 1, 0
"""Codes of `fft_norm_mode` (ATen/native/SpectralOpsUtils.h). The third code, 2, divides by the number of elements."""


_TIMES_US: dict[tuple[str, str], dict[str | None, int]] = {
    ("gelu", "approximate"): {"none": 249, "tanh": 892},
    ("gelu_backward", "approximate"): {"none": 432, "tanh": 986},
    ("div", "rounding_mode"): {"floor": 1050, "trunc": 67, None: 66},
    ("segment_reduce", "reduce"): {"sum": 202, "mean": 292, "max": 260, "min": 317, "prod": 201},
    ("index_reduce", "reduce"): {"amax": 247, "amin": 244, "mean": 396, "prod": 244},
    ("scatter_reduce", "reduce"): {"sum": 436, "mean": 992, "amax": 944, "amin": 1364, "prod": 437},
    ("linalg_lstsq", "driver"): {None: 123, "gels": 101, "gelsd": 446, "gelss": 709},
    ("linalg_qr", "mode"): {"reduced": 96, "complete": 162, "r": 61},
}
"""(op, argument) → string → microseconds of one call on one CPU thread (`benchmarks/untold_texts.py`)."""
_EQUAL_TIMES = 1.15
"""Maximum ratio of two times that are treated as equal."""


def what_others_take(op: str, argument: str, text: object) -> str:
    """Return a note on how long a call would take with another string.

    The other string is the one whose time differs most from that of `text`. Returns "" if all strings take the same
    time, or if no times were measured.
    """
    times = _TIMES_US.get((op.rstrip("_"), argument), {})
    if not isinstance(text, str | None) or text not in times:
        return ""
    ratios = {other: us / times[text] for other, us in times.items() if other != text}
    other, ratio = max(ratios.items(), key=lambda item: max(item[1], 1 / item[1]))
    return f"; {other!r} takes {ratio:.1f} x as long on a CPU" if max(ratio, 1 / ratio) > _EQUAL_TIMES else ""


def _by_calls(text: str | None) -> Guess | None:
    return None if text is None else Guess(value=text, why=f"{text!r}: inferred from the calls inside the op")


def _named_in_kernel(context: Context, pattern: re.Pattern[str], texts: Mapping[str, str | None]) -> Guess | None:
    """Guess a string from the name of a recorded kernel. `pattern` finds a word in the name, and `texts` gives the
    string for the word.
    """
    matches = (pattern.search(kernel) for kernel in context.kernels)
    word = next((match[1].lower() for match in matches if match and match[1].lower() in texts), None)
    return (
        None if word is None else Guess(value=texts[word], why=f"{texts[word]!r}: from the name of the recorded kernel")
    )


def _padding_mode(known: Call, context: Context) -> Guess | None:
    for call in context.relatives().inside:
        op = call.name.partition("::")[2]
        for begin, mode in _PADDINGS.items():
            if op.startswith(begin):
                return Guess(value=mode, why=f"{mode!r}: {call.name} inside the op")
    return None


def _spectrum_padding(known: Call, context: Context) -> Guess | None:
    if known.value("center") is False:
        return Guess(value="constant", why="'constant': unused, because nothing is padded")
    return _padding_mode(known, context)


def _gelu(known: Call, context: Context) -> Guess | None:
    return _named_in_kernel(context, _GELU, {"1": "tanh", "2": "none"})


def _rounding_mode(known: Call, context: Context) -> Guess | None:
    """Guess the rounding mode from the kernel's name; if the name does not show it, as in `_rounded`."""
    around, dividend = context.relatives(), known.tensor("self")
    named = _named_in_kernel(context, _DIVISION, _ROUNDINGS)
    return named if named is not None or dividend is None else _rounded(dividend, known, around)


def _rounded(dividend: TensorMeta, known: Call, around: Relatives) -> Guess:
    """Guess the rounding mode of a quotient from its gradient, its dtypes and the calls that read it."""
    if any(call.name == "aten::div" for call in around.backward):
        return Guess(value=None, why=f"None: {_BY_GRADIENT}")
    if around.backward:  # a step has no gradient
        return Guess(value="floor", why=f"'floor': {_BY_GRADIENT}; {UNTOLD}", evident=False)
    operands = (dividend, known.tensor("other"))
    whole = all(meta is None or meta.dtype.startswith(("int", "uint")) for meta in operands)
    if not whole or isinstance(known.value("other"), float):
        return Guess(value="floor", why=f"'floor': the recorded overload takes a mode; {UNTOLD}", evident=False)
    reader = next((meta for meta, _ in first_tensors(around.following[:2])), None)
    if reader is not None and reader.shape == dividend.shape and reader.dtype.startswith(("float", "bfloat")):
        return Guess(value=None, why="None: the quotient is next read as a floating-point number")
    return Guess(value="floor", why="'floor': integers cannot hold a fractional quotient")


def _scattered_back(calls: Sequence[OpSignature]) -> str | None:
    """Return the reduction of `scatter_reduce` or `index_reduce`, from the calls of its backward.

    Only "prod" calls the op again. "mean" counts elements by adding ones. "amax" and "amin" search for equal elements
    and count them. "mean", "amax" and "amin" add up counts with `scatter_add` or `index_add`. "sum" only gathers.
    Source: torch/csrc/autograd/FunctionsManual.cpp.
    """
    names = {call.name for call in calls}
    if names & {"aten::scatter_reduce", "aten::index_reduce"}:
        return "prod"
    if names & {"aten::scatter_add", "aten::index_add"}:
        return "amax" if "aten::ones_like" not in names else "mean"
    return "sum" if names == {"aten::gather"} else None


def _reduction(names: Mapping[str, str], otherwise: str) -> Rule:
    """Return the rule that guesses how an op combines values at the same position.

    `names` maps words in kernel names to the op's strings. `otherwise` is the usual string, which is used without
    evidence.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        around, named = context.relatives(), _named_in_kernel(context, _REDUCTION, names)
        usual = Guess(value=otherwise, why=f"{otherwise!r}: {UNTOLD}", evident=False)
        if named is not None or "mean" not in names:
            return named or usual
        if (text := _scattered_back(around.backward)) is not None:
            return Guess(value=text, why=f"{text!r}: {_BY_GRADIENT}")
        # A mean is a sum, divided by counts that are made of ones.
        if any(call.name in ("aten::div_", "aten::div") for call in around.inside):
            return Guess(value="mean", why="'mean': a call inside the op divides")
        if known.value("include_self") is False:  # a sum would begin with zeros
            return Guess(value="amax", why=f"'amax': previous values are not included; {UNTOLD}", evident=False)
        return usual

    return rule


def _named_norm(known: Call, context: Context) -> Guess | None:
    """Guess the norm from the nested calls: "nuc" computes singular values, "fro" a norm over all elements."""
    names = {call.name for call in context.relatives().inside}
    if names & {"aten::linalg_svdvals", "aten::_linalg_svd", "aten::linalg_svd", "aten::svd"}:
        return _by_calls("nuc")
    return _by_calls("fro" if names & {"aten::linalg_vector_norm", "aten::linalg_norm"} else None)


_TEXT_OVERLOADS = {
    "aten::linalg_norm": ("ord_str", frozenset({"aten::linalg_matrix_norm"})),
    "aten::linalg_cond": ("p_str", frozenset({"aten::linalg_inv_ex", "aten::reciprocal"})),
}
"""Overloads that take a string where others take a number.

An entry is op → (overload, nested calls that only this overload makes).
"""


def named_overload(name: str, recorded: Sequence[RecordedArg], context: Context) -> str | None:
    """Return the overload that takes a string where another one takes a number; None without evidence."""
    if not tells_overload(name, context) or len(recorded) < 2 or recorded[1].kind != "absent":
        return None
    overload, calls = _TEXT_OVERLOADS[name]
    return overload if any(call.name in calls for call in context.relatives().children) else None


def tells_overload(name: str, context: Context) -> bool:
    """Check whether the nested calls can show that an unrecorded argument was a string."""
    return name in _TEXT_OVERLOADS and bool(context.relatives().children)


def _fft_norm(*, inverse: bool) -> Rule:
    def rule(known: Call, context: Context) -> Guess | None:
        for call in context.relatives().inside:
            modes = [arg.value for arg in recorded_args(call)[2:3]] if call.name in _FFTS else []
            if modes and isinstance(modes[0], int):
                divided = "forward" if (modes[0] == _UNSCALED) == inverse else None
                text = "ortho" if modes[0] == _SCALED_BY_ROOT else divided
                return Guess(value=text, why=f"{text!r}: the mode of {call.name} inside the op")
        return None

    return rule


def _meshgrid_order(known: Call, context: Context) -> Guess | None:
    """Guess the indexing order of a meshgrid; "xy" swaps the first two vectors before they are viewed."""
    shapes = known.shapes("tensors")
    view = next((meta.shape for meta, _ in first_tensors(context.relatives().children, ("aten::view",))), None)
    if len(shapes) < 2 or view is None or shapes[0] == shapes[1]:
        return None
    text = "xy" if view == shapes[1] else "ij"
    return Guess(value=text, why=f"{text!r}: the order of the views inside the op")


def _qr_mode(known: Call, context: Context) -> Guess | None:
    """Guess the mode of a QR decomposition from the nested calls.

    For a tall matrix, only "complete" calls `triu_` on its R, and only "r" first makes the matrix itself triangular.
    For other matrices, only "r" does not slice; "reduced" and "complete" are the same.
    """
    shape, names = known.shape("A") or (), {call.name for call in context.relatives().children}
    if len(shape) < 2 or not names & {"aten::triu", "aten::triu_"}:
        return None
    if shape[-2] <= shape[-1]:
        return _by_calls("reduced" if "aten::slice" in names else "r")
    return _by_calls("complete" if "aten::triu_" in names else "r" if "aten::mT" in names else "reduced")


def _least_squares_driver(known: Call, context: Context) -> Guess | None:
    """Guess the LAPACK routine from the memory allocated for it (ATen/native/BatchLinearAlgebra.cpp).

    All routines but "gels" allocate memory for a rank. Two of them also allocate memory for singular values. Of these
    two, only "gelsd" needs integers in addition to its workspace.
    """
    calls, matrix = context.relatives().inside, known.tensor("self")
    names = [call.name for call in calls]
    if "aten::empty_strided" not in names:
        return None
    copied = names.index("aten::empty_strided")
    counted = names.index("aten::arange", copied) if "aten::arange" in names[copied:] else len(names)
    spaces = names[copied:counted].count("aten::empty")
    parts = 2 if matrix is not None and matrix.dtype.startswith("complex") else 1
    drivers = {1: "gels", 2: None, 3: "gelsd" if spaces > parts else "gelss"}
    results = sum(meta.shape == (0,) for meta, _ in first_tensors(calls[:copied], ("aten::resize_",)))
    if results not in drivers:
        return None
    text = drivers[results]
    return Guess(
        value=text,
        why=f"{text!r}: inferred from the allocations inside the op" + (", which gelsy needs" if text is None else ""),
    )


def _interpolation(known: Call, context: Context) -> Guess | None:
    """Guess how a quantile between two elements is computed (ATen/native/Sorting.cpp, quantile_compute).

    The quantile is either a weighted mean of both elements, or one of them. In the second case, a rounded rank selects
    the element.
    """
    names = {call.name for call in context.relatives().inside}
    if "aten::lerp_" in names:
        return _by_calls("midpoint" if "aten::full_like" in names else "linear")
    return _by_calls(next((text for name, text in _RANKS.items() if name in names), None))


_RANKS = {"aten::floor_": "lower", "aten::ceil_": "higher", "aten::round_": "nearest"}


def _side(known: Call, context: Context) -> Guess | None:
    """Guess None for the string `side` of a search, because the flag `right` has the same meaning."""
    return Guess(value=None, why=f"None: `right` selects the side unless `side` is given; {UNTOLD}", evident=False)


def _convolution_padding(known: Call, context: Context) -> Guess | None:
    """Guess "same" if a nested convolution or its input is padded, otherwise "valid"."""
    for call in context.relatives().inside:
        if call.name == "aten::constant_pad_nd":
            return Guess(value="same", why=f"'same': padded by {call.name} inside the op")
        sides = recorded_numbers(call, 4) if call.name == "aten::convolution" else None
        if sides is not None:
            text = "same" if any(sides) else "valid"
            return Guess(value=text, why=f"{text!r}: padding {list(sides)} of {call.name} inside the op")
    return None


_SCATTERED = {"add": "sum", "multiply": "prod", "mean": "mean", "maximum": "amax", "minimum": "amin"}
_INDEXED = {word: text for word, text in _SCATTERED.items() if word != "add"}
_FORWARD = names("fft_fft fft_fft2 fft_fftn fft_rfft fft_rfft2 fft_rfftn fft_hfft fft_hfft2 fft_hfftn")

TEXTS: dict[tuple[str, str], Rule] = {
    ("einsum", "equation"): equation,
    ("pad", "mode"): _padding_mode, ("stft", "pad_mode"): _spectrum_padding,
    **{(op, "approximate"): _gelu for op in ("gelu", "gelu_", "gelu_backward")},
    **{(op, "rounding_mode"): _rounding_mode for op in ("div", "div_", "divide", "divide_")},
    **{(op, "reduce"): _reduction(_SCATTERED, "sum") for op in ("scatter_reduce", "scatter_reduce_")},
    **{(op, "reduce"): _reduction(_INDEXED, "amax") for op in ("index_reduce", "index_reduce_")},
    **{(op, "reduce"): _reduction({"add": "add", "multiply": "multiply"}, "add") for op in ("scatter", "scatter_")},
    **{(op, "ord"): _named_norm for op in ("linalg_norm", "linalg_matrix_norm")}, ("linalg_cond", "p"): _named_norm,
    **{(op, "norm"): _fft_norm(inverse=False) for op in _FORWARD},
    **{(op.replace("fft_", "fft_i", 1), "norm"): _fft_norm(inverse=True) for op in _FORWARD},
    ("meshgrid", "indexing"): _meshgrid_order,
    **{(op, "interpolation"): _interpolation for op in ("quantile", "nanquantile")},
    ("linalg_qr", "mode"): _qr_mode,
    ("linalg_lstsq", "driver"): _least_squares_driver,
    ("searchsorted", "side"): _side,
    **{(op, "padding"): _convolution_padding for op in ("conv1d", "conv2d", "conv3d", "_convolution_mode")},
}  # fmt: skip
"""Rules that guess strings, by (op without namespace, argument). The argument may be a number in another overload."""
