# pyright: strict
"""Fill tensors of every dtype, stride and overlap with seeded values.

Every function fills the storage that a tensor spans, not its elements one by one. Overlapping and expanded tensors thus
get consistent values. A random block is drawn and repeated, so filling a gigabyte takes no longer than copying it. The
same generator state gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from opreplay.initializers.base import InitializerError

BLOCK = 1_000_003
"""Number of random elements drawn before they repeat. It is a prime, so that rows of common widths differ."""

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COMPLEX_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
PACKED = tuple(d for d in (getattr(torch, "float4_e2m1fn_x2", None),) if d is not None)
POWERS_OF_TWO = tuple(d for d in (getattr(torch, "float8_e8m0fnu", None),) if d is not None)
"""Scale dtypes that can only hold positive powers of two."""
WITHOUT_ARITHMETIC = frozenset(
    dtype
    for name in (
        *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
        *(f"{sign}int{bits}" for bits in range(1, 8) for sign in ("u", "")),
    )
    if (dtype := getattr(torch, name, None)) is not None
)
"""Dtypes whose tensors torch can store and view, but neither fill nor compute with."""

Draw = Callable[[int], torch.Tensor]
"""Function that returns a 1-D block of the given number of random elements on the target's device."""


def span(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 1-D view of all storage between the tensor's first and last element, gaps included."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    reach = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach,), (1,))


def elements(tensor: torch.Tensor) -> list[Any]:
    """Return the values of a 1-D tensor as Python numbers; a typed `tolist`."""
    return cast("list[Any]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def integer_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values as flat int64 on the CPU. Raises InitializerError for complex dtypes."""
    if tensor.is_complex():
        raise InitializerError("found complex numbers where integers are needed")
    return tensor.detach().reshape(-1).to("cpu", torch.int64)


def is_integer(dtype: torch.dtype) -> bool:
    """Return whether a dtype is a plain integer: not bool, not quantized, and supported by torch's arithmetic."""
    if dtype is torch.bool or dtype in WITHOUT_ARITHMETIC:
        return False
    return not (dtype.is_floating_point or dtype.is_complex or _is_quantized(dtype))


def plain(tensor: torch.Tensor, generator: torch.Generator, *, low: int = 0, high: int = 100) -> None:
    """Fill with values that suit most ops: N(0, 1) for floats, [low, high) for integers, fair coins for bool."""
    if tensor.dtype is torch.bool:
        coins(tensor, generator)
    elif tensor.dtype in WITHOUT_ARITHMETIC:
        integers(span(tensor).view(torch.uint8), generator, 0, 256)
    elif is_integer(tensor.dtype):
        integers(tensor, generator, low, high)
    else:
        normal(tensor, generator)


def normal(tensor: torch.Tensor, generator: torch.Generator, mean: float = 0.0, std: float = 1.0) -> None:
    """Fill with N(mean, std²), in both parts of complex dtypes. e8m0 scales get powers of two near 1."""
    _floats(tensor, lambda out: out.normal_(mean, std, generator=generator))


def uniform(tensor: torch.Tensor, generator: torch.Generator, low: float, high: float) -> None:
    """Fill a tensor with uniform random values in [low, high), rounded to the tensor's dtype."""
    _floats(tensor, lambda out: out.uniform_(low, high, generator=generator))


def integers(tensor: torch.Tensor, generator: torch.Generator, low: int, high: int) -> None:
    """Fill with uniform integers in [low, high), also for float dtypes.

    If the range has at least two values and the tensor at least two elements, the values are never all equal.
    """
    largest = _largest(tensor.dtype)
    high = max(low + 1, min(high, largest + 1))

    def draw(count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator, device=tensor.device, dtype=torch.int64)

    _repeat(span(tensor), draw)
    if high - low > 1 and tensor.numel() > 1:
        _set_two_apart(tensor, low, high - 1)


def fill_random_integers(tensor: torch.Tensor, draw: Draw, bound: int) -> None:
    """Fill with integers in [0, bound) from `draw`; never all equal if the bound and the tensor's size exceed 1."""
    _repeat(span(tensor), draw)
    if bound > 1 and tensor.numel() > 1:
        first = int(span(tensor)[0])
        _set_two_apart(tensor, first, (first + 1) % bound)


def coins(tensor: torch.Tensor, generator: torch.Generator, density: float = 0.5) -> None:
    """Fill a tensor with random True and False (or 1 and 0); `density` is the probability of True."""

    def draw(count: int) -> torch.Tensor:
        return torch.rand((count,), generator=generator, device=tensor.device) < density

    _repeat(span(tensor), draw)


def signs(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill with +1 or -1, with which repeated multiplication neither grows nor shrinks values.

    Tensors of unsigned dtype and tensors with one element get only +1. Positive values, such as second moments, then
    stay positive.
    """

    def draw(count: int) -> torch.Tensor:
        flips = torch.randint(0, 2, (count,), generator=generator, device=tensor.device) * 2 - 1
        return flips.abs() if tensor.dtype in (torch.uint8, torch.bool) or tensor.numel() == 1 else flips

    _repeat(span(tensor), draw)


def assign(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values from any device, with broadcast and cast.

    If `values` is 1-D and has as many elements as the tensor, it fills the tensor in order, whatever the tensor's
    shape. If elements of the tensor share storage, the last write remains. Raises InitializerError for values that
    cannot be broadcast to the tensor's shape.
    """
    values = values.to(tensor.device)
    if values.dim() == 1 and values.numel() == tensor.numel():
        values = values.reshape(tensor.shape)
    if not spreads(values.shape, tensor.shape):
        raise InitializerError(
            f"values of shape {list(values.shape)} do not fit a tensor of shape {list(tensor.shape)}"
        )
    values = values.expand(tensor.shape)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    if not _overlaps(tensor):
        tensor.copy_(values)
        return
    flat = span(tensor)
    places = torch.arange(flat.numel(), device=tensor.device).as_strided(tensor.shape, tensor.stride())
    flat[places.reshape(-1)] = values.reshape(-1).to(tensor.dtype)


def broadcastable(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Check whether tensors of two shapes can be combined elementwise."""
    return all(1 in sizes or sizes[0] == sizes[1] for sizes in zip(reversed(shape), reversed(other), strict=False))


def spreads(shape: Sequence[int], over: Sequence[int]) -> bool:
    """Check whether values of shape `shape` can be broadcast to the shape `over`."""
    return len(shape) <= len(over) and all(
        size in (1, wider) for size, wider in zip(reversed(shape), reversed(over), strict=False)
    )


def even_cuts(parts: int, total: int) -> torch.Tensor:
    """Return int64 [parts + 1], ascending from 0 to `total` in even steps."""
    return torch.arange(parts + 1) * total // max(1, parts)


def edges_of(lengths: torch.Tensor) -> torch.Tensor:
    """Return n + 1 offsets of rows with these n lengths, from 0 to the sum of the lengths."""
    return torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))


def assign_rows(tensor: torch.Tensor, rows: torch.Tensor) -> None:
    """Copy rows [n, ...] to the first dimension of a tensor [m, ...], repeating them if m is larger."""
    for begin in range(0, tensor.shape[0], max(1, rows.shape[0])):
        part = tensor[begin : begin + rows.shape[0]]
        assign(part, rows[: part.shape[0]])


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Limit torch to one thread inside the context. Drawing and copying indices is too short to gain from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Check whether two elements may share storage: a stride lies within the span that the smaller strides cover."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _floats(tensor: torch.Tensor, draw_into: Callable[[torch.Tensor], torch.Tensor]) -> None:
    target = span(tensor)
    dtype = tensor.dtype
    if dtype in COMPLEX_PARTS:
        target = target.view(COMPLEX_PARTS[dtype])
    elif dtype in PACKED:
        raw = target.view(torch.uint8)
        _repeat(raw, lambda count: draw_into(torch.empty(count, device=raw.device)).mul(64).to(torch.uint8))
        return

    def draw(count: int) -> torch.Tensor:
        scales = draw_into(torch.empty(count, dtype=torch.float32, device=tensor.device))
        return scales.round().clamp(-1, 1).exp2() if dtype in POWERS_OF_TWO else scales

    _repeat(target, draw)


def _repeat(target: torch.Tensor, draw: Draw) -> None:
    """Fill a 1-D tensor with one random block, repeated by copies of doubling size."""
    count = target.numel()
    if count == 0:
        return
    block = min(BLOCK, count)
    target[:block].copy_(draw(block))
    done = block
    while done < count:
        step = min(done, count - done)
        target[done : done + step].copy_(target[:step])
        done += step


def _set_two_apart(tensor: torch.Tensor, low: int, high: int) -> None:
    """Set the first element to `low` and the last to `high`. This has no effect if they share storage."""
    flat = span(tensor)
    if flat.numel() > 1:
        flat[0], flat[-1] = low, high


def _largest(dtype: torch.dtype) -> int:
    """Return the largest n such that `dtype` represents all integers up to n."""
    if dtype is torch.bool:
        return 1
    if dtype.is_floating_point:
        return math.floor(2 / torch.finfo(dtype).eps)
    if dtype.is_complex:
        return math.floor(2 / torch.finfo(COMPLEX_PARTS[dtype]).eps)
    return min(torch.iinfo(dtype).max, 2**63 - 2)


def _is_quantized(dtype: torch.dtype) -> bool:
    return dtype in (torch.qint8, torch.quint8, torch.qint32)
