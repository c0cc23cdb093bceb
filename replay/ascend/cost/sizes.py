# pyright: strict
"""Element and byte counts of kernel tensors; no costs."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from opreplay.replay.ir.kernel import UNKNOWN_BYTES, KernelCall, TensorSpec
from opreplay.traces.dtypes import ITEMSIZE_BYTES

WIDE = frozenset({"int64", "uint64", "float64", "complex64", "complex128"})


def tensor_bytes(spec: TensorSpec) -> int:
    """Return the bytes of the tensor's elements, including the padding of its format (the shape is the padded one)."""
    return prod(spec.shape) * ITEMSIZE_BYTES.get(spec.dtype, UNKNOWN_BYTES)


def total_bytes(specs: Iterable[TensorSpec | None]) -> int:
    """Return the total bytes of all tensors."""
    return sum(prod(s.shape) * ITEMSIZE_BYTES.get(s.dtype, UNKNOWN_BYTES) for s in specs if s is not None)


class Tally(msgspec.Struct, frozen=True, gc=False):
    """Facts found in one pass over a call's tensors. The cost of most kernels depends on nothing else."""

    read: int
    """Bytes of all inputs."""
    write: int
    """Bytes of all outputs."""
    most: int
    """Elements of the largest tensor."""
    most_bytes: int
    """Bytes of the tensor with the most bytes."""
    main: TensorSpec | None
    """Operand with the most bytes; the first one if several are equally large."""
    widest: TensorSpec | None
    """Operand with the most elements; the first one if several are equally large; None if no operand has elements."""
    elements: int
    """Number of elements of `widest`."""
    dtype: str
    """Dtype of the operand with the most elements; the last one if several are equally large."""


def tally_of(call: KernelCall) -> Tally:
    """Count the tensors of a call."""
    main = widest = None
    elements = read = write = 0
    main_bytes, dtype = -1, ""
    for spec in call.inputs or call.outputs:
        if spec is not None:
            n = prod(spec.shape)
            size = n * ITEMSIZE_BYTES.get(spec.dtype, UNKNOWN_BYTES)
            read += size
            if size > main_bytes:
                main, main_bytes = spec, size
            if n >= elements:
                dtype = spec.dtype
                if n > elements:
                    elements, widest = n, spec
    largest, largest_bytes = elements, main_bytes if main_bytes > 0 else 0
    if not call.inputs:
        return Tally(0, read, largest, largest_bytes, main, widest, elements, dtype)
    for spec in call.outputs:
        if spec is not None:
            n = prod(spec.shape)
            size = n * ITEMSIZE_BYTES.get(spec.dtype, UNKNOWN_BYTES)
            write += size
            largest_bytes, largest = max(largest_bytes, size), max(largest, n)
    return Tally(read, write, largest, largest_bytes, main, widest, elements, dtype)


def first(specs: tuple[TensorSpec | None, ...]) -> TensorSpec | None:
    """Return the first tensor that is not None."""
    for spec in specs:
        if spec is not None:
            return spec
    return None


def last_dim(spec: TensorSpec) -> int:
    """Return the innermost size; 1 for a 0-dim tensor."""
    return spec.shape[-1] if spec.shape else 1


def is_nz(spec: TensorSpec) -> bool:
    """Check whether the tensor is in the cube's fractal layout."""
    return spec.format == "FRACTAL_NZ" and len(spec.shape) >= 4


def logical_matrix(spec: TensorSpec) -> tuple[int, int, int]:
    """Return (batch, rows, columns) of a matrix operand.

    A fractal layout is first converted back. FRACTAL_NZ stores a [R, C] matrix as (..., C/c0, R/r0, r0, c0).
    """
    shape = spec.shape
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if is_nz(spec):
        c1, r1, r0, c0 = shape[-4:]
        return prod(shape[:-4]), r1 * r0, c1 * c0
    if len(shape) == 1:
        return 1, 1, shape[0]
    if not shape:
        return 1, 1, 1
    return prod(shape[:-2]), shape[-2], shape[-1]
