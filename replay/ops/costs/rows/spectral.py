# pyright: strict
"""Lowering of Fourier transforms, windows and short-time transforms: one pass over complex data per dimension, with the
arithmetic of a fast transform.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log2, prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.op_view import OpView, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

TRANSFORMS = (
    "_fft_c2c",
    "_fft_c2r",
    "_fft_r2c",
    *(f"fft_{kind}{rank}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for rank in ("", "2", "n")),
    "stft",
    "istft",
)
COMPLEX = {"float64": "complex128", "complex128": "complex128"}


@costs(*(f"aten::{name}" for name in TRANSFORMS))
def transform(op: OpView) -> Iterable[KernelCall]:
    """Return an FFT kernel that makes one pass over all data per transformed dimension."""
    source = op.need("self", "input", at=0)
    dims = op.integers("dim")
    name = op.op.name.split(".")[0]
    passes = len(dims) or (2 if name.endswith("2") else max(1, len(source.shape)) if name.endswith("n") else 1)
    result = op.output(spec(source.shape, COMPLEX.get(source.dtype, "complex64")))
    # Two words a number, whatever dtype the trace has for them.
    largest = max(prod(source.shape), prod(result.shape))
    data = spec((largest, 2), "float32" if "128" not in result.dtype else "float64")
    passes = max(1, passes)
    op.note("costed as one pass over the data per dimension (never measured)")
    return [kernel("FFT", [data], [data], passes, operations=_operations(op, source, result, passes) / passes)]


BUTTERFLY = 5.0
"""Operations per complex number and doubling of the length: a multiplication and two additions for half of them."""


def _operations(op: OpView, source: TensorMeta, result: TensorSpec, passes: int) -> float:
    """Return the operations of all transforms: 5 N log2 N for N complex numbers, and half of it if one side is real.

    Lengths that are not a power of two need more.
    """
    from_real = not source.dtype.startswith("complex")
    if (window := op.integer("n_fft", default=0)) > 0:
        is_inverse = op.op.name.split(".")[0].endswith("istft")
        spectra = source if is_inverse else result
        # A real tensor of spectra has a last dimension for real and imaginary parts.
        shape = spectra.shape if spectra.dtype.startswith("complex") else spectra.shape[:-1]
        transforms = prod(shape) / max(1, shape[-2]) if len(shape) > 1 else 1
        is_half = not op.flag("return_complex") if is_inverse else from_real
        return (0.5 if is_half else 1.0) * BUTTERFLY * transforms * window * log2(window)
    rank = min(len(source.shape), len(result.shape))
    dims = [dim for dim in op.integers("dim") if -rank <= dim < rank] or list(range(-min(passes, rank), 0))
    lengths = list(result.shape)
    if from_real and dims:  # The result has about half as many numbers in the last dimension.
        asked = op.integer("n", default=0) or next(iter(op.integers("s")[-1:]), 0)
        lengths[dims[-1]] = asked if asked > 0 else source.shape[dims[-1]]
    share = 0.5 if from_real or not result.dtype.startswith("complex") else 1.0
    return share * BUTTERFLY * prod(lengths) * log2(max(1, prod(lengths[dim] for dim in dims)))


@costs("aten::fft_fftshift aten::fft_ifftshift")
def shifted(op: OpView) -> Iterable[KernelCall]:
    """Return the Roll kernel."""
    source = op.dense("self", at=0)
    return [] if source is None else [kernel("Roll", [source], [source])]


WINDOWS = ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")


@costs("aten::fft_fftfreq aten::fft_rfftfreq", *(f"aten::{name}" for name in WINDOWS))
def window(op: OpView) -> Iterable[KernelCall]:
    """Return kernels for a range and for the window function applied to it."""
    out = op.output(spec((max(1, op.integer("window_length", "n", default=1)),), "float32"))
    return [kernel("Range", [], [out]), kernel("Cos", [out], [out])]
