# pyright: strict
"""Lowering of Fourier transforms, windows and short-time transforms: one pass over complex data per dimension."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import OpView, kernel, spec
from opreplay.replay.ops.table import costs

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
    op.note("costed as one pass over the data per dimension (never measured)")
    return [kernel("FFT", [data], [data], max(1, passes))]


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
