# pyright: strict
"""Work that the recorded sizes of a call tell: floating-point operations of products, bytes of arguments and results.

Formulas: a product [m, k] x [k, n] is 2 m n k operations; attention is two products over all pairs of tokens, halved
where the call says that it is causal; a convolution is 2 operations for each weight of a filter and element of the
result, and as many again for each gradient; bytes count each argument once and the result where its size follows.
"""

from __future__ import annotations

from math import prod

import msgspec

from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.literals import Literal, is_whole_numbers, parse_literal
from opreplay.traces.model import MOST_ELEMENTS, OpSignature
from opreplay.traces.times.kernel_classes import class_of

ATTENTION = frozenset(
    {
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "scaled_dot_product_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    }
)
CONVOLUTIONS: dict[str, tuple[int, int, int, int | None]] = {
    "convolution": (3, 4, 5, 6),
    "_convolution": (3, 4, 5, 6),
    "convolution_overrideable": (3, 4, 5, 6),
    "cudnn_convolution": (3, 2, 4, None),
    "miopen_convolution": (4, 3, 5, None),
    "miopen_depthwise_convolution": (4, 3, 5, None),
    "mkldnn_convolution": (4, 3, 5, None),
}
"""Op of aten → which argument is its stride, padding, dilation, and whether it is transposed."""
LIKE_ITS_INPUT = frozenset({"elementwise", "normalization", "softmax", "copies"})
"""Classes of ops whose result is as large as their largest argument."""


POOLS: dict[str, tuple[int | None, int, int]] = {
    "max_pool2d_with_indices": (4, 5, 8),
    "max_pool3d_with_indices": (4, 5, 8),
    "avg_pool2d": (None, 4, 0),
    "avg_pool3d": (None, 4, 0),
}
"""Op of aten → which argument is its dilation and whether sizes are rounded up, and bytes of an index with each element
of the result; after its input come the window, its stride (empty: the window) and the padding."""
POOLS_BACKWARD = frozenset(f"{name}_backward" for name in POOLS)


class CallWork(msgspec.Struct, frozen=True, kw_only=True):
    """Of one call."""

    flops: float | None
    """None where the recorded sizes do not tell."""
    bytes: float | None
    dtype: str
    """Of the first tensor."""


def work_of(signature: OpSignature) -> CallWork:
    """What one call of a recorded op does, as far as its sizes tell."""
    shapes, dtypes = _tensors(signature)
    dtype = dtypes[0] if dtypes else ""
    if not shapes:
        return CallWork(flops=None, bytes=None, dtype=dtype)
    base = signature.name.rpartition("::")[2].split(".")[0]
    flops, result = _products(base, shapes, signature)
    if class_of(signature.name) == "indexing and sorting":
        return CallWork(flops=None, bytes=None, dtype=dtype)  # how much of a table is read, values decide
    if max(prod(shape) for shape in shapes) > MOST_ELEMENTS or (result or 0) > MOST_ELEMENTS:
        return CallWork(flops=None, bytes=None, dtype=dtype)  # no call on any machine
    sizes = [float(prod(shape)) * ITEMSIZE_BYTES.get(one, 1) for shape, one in zip(shapes, dtypes, strict=True)]
    if base in POOLS:
        result = _pooled(shapes[0], base, signature)
    elif base in POOLS_BACKWARD and len(shapes) > 1:
        result = prod(shapes[1])  # after the gradient, the input
    if result is not None:
        written = float(result) * (ITEMSIZE_BYTES.get(dtype, 1) + (POOLS[base][2] if base in POOLS else 0))
    else:
        written = max(sizes) if class_of(signature.name) in LIKE_ITS_INPUT else 0.0
    return CallWork(flops=flops, bytes=sum(sizes) + written, dtype=dtype)


def _tensors(signature: OpSignature) -> tuple[list[tuple[int, ...]], list[str]]:
    """Shapes and dtypes of the tensors, without those of lists."""
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    for dims, spelled in zip(signature.dims or (), signature.types or (), strict=False):
        dtype = torch_dtype_name(spelled) if spelled else None
        if dtype is not None and is_whole_numbers(dims) and all(n >= 0 for n in dims):
            shapes.append(dims)
            dtypes.append(dtype)
    return shapes, dtypes


def _products(base: str, shapes: list[tuple[int, ...]], signature: OpSignature) -> tuple[float | None, int | None]:
    """(operations, elements of the result) of a product or of attention; None where it is neither."""
    if base in ("mm", "_scaled_mm", "_int_mm") and len(shapes) >= 2 and len(shapes[0]) == len(shapes[1]) == 2:
        (m, k), n = shapes[0], shapes[1][1]
        return 2.0 * m * n * k, m * n
    if base in ("addmm", "addmm_", "_addmm_activation") and len(shapes) >= 3 and len(shapes[1]) == len(shapes[2]) == 2:
        (m, k), n = shapes[1], shapes[2][1]
        return 2.0 * m * n * k, m * n
    if base in ("bmm", "baddbmm", "baddbmm_"):
        pair = shapes[:2] if base == "bmm" else shapes[1:3]
        if len(pair) == 2 and len(pair[0]) == len(pair[1]) == 3:
            (b, m, k), n = pair[0], pair[1][2]
            return 2.0 * b * m * n * k, b * m * n
    if base in ("linear", "_mkldnn_linear") and len(shapes) >= 2 and len(shapes[1]) == 2 and shapes[0]:
        rows = prod(shapes[0][:-1])
        n, k = shapes[1]
        return 2.0 * rows * n * k, rows * n
    if base in ATTENTION and len(shapes) >= 3 and all(len(shape) == 4 for shape in shapes[:3]):
        query, keys, values = shapes[:3]
        (b, h, q, d), kv, width = query, keys[2], values[3]
        causal = any(text == "True" for text in (signature.concrete or ())[3:7])
        flops = 2.0 * b * h * q * kv * (d + width)
        return flops / 2 if causal and q == kv else flops, b * h * q * width
    if base in CONVOLUTIONS and len(shapes) >= 2 and len(shapes[0]) == len(shapes[1]) >= 3:
        return _convolution(shapes[0], shapes[1], CONVOLUTIONS[base], signature)
    if base in ("convolution_backward", "convolution_backward_overrideable") and len(shapes) >= 3:
        gradient, data, weight = shapes[:3]
        wanted = _argument(signature, 10)
        passes = sum(one is True for one in wanted[:2]) if isinstance(wanted, list) else 0
        if passes and len(weight) >= 3:
            over = data if _argument(signature, 7) is True else gradient
            return 2.0 * prod(over) * prod(weight[1:]) * passes, None
    return None, None


def _convolution(
    data: tuple[int, ...], weight: tuple[int, ...], at: tuple[int, int, int, int | None], signature: OpSignature
) -> tuple[float | None, int | None]:
    stride, padding, dilation = (_argument(signature, place) for place in at[:3])
    if at[3] is not None and _argument(signature, at[3]) is not False:
        # Each element of the input meets the whole filter; how large the result is follows from more than these.
        return (2.0 * prod(data) * prod(weight[1:]) if _argument(signature, at[3]) is True else None), None
    sizes = [data[0], weight[0]]
    for dim, (size, width) in enumerate(zip(data[2:], weight[2:], strict=True)):
        step, pad, far = (_of_dim(values, dim) for values in (stride, padding, dilation))
        if step is None or pad is None or far is None or step < 1:
            return None, None
        sizes.append(max(0, (size + 2 * pad - far * (width - 1) - 1) // step + 1))
    return 2.0 * prod(sizes) * prod(weight[1:]), prod(sizes)


def _pooled(data: tuple[int, ...], base: str, signature: OpSignature) -> int | None:
    """Elements of a pool's result; None where the recorded arguments do not tell."""
    dilation_at, round_at, _ = POOLS[base]
    spatial = 3 if "3d" in base else 2
    window = _argument(signature, 1)
    stride = _argument(signature, 2) or window
    padding = _argument(signature, 3)
    dilation: Literal = [1] if dilation_at is None else _argument(signature, dilation_at)
    up = _argument(signature, round_at) is True
    if not spatial <= len(data) <= spatial + 2:
        return None
    sizes = list(data[:-spatial])
    for dim, size in enumerate(data[-spatial:]):
        width, step, pad, far = (_of_dim(values, dim) for values in (window, stride, padding, dilation))
        if width is None or step is None or pad is None or far is None or step < 1:
            return None
        room = size + 2 * pad - far * (width - 1) - 1
        count = (room + (step - 1 if up else 0)) // step + 1
        if up and (count - 1) * step >= size + pad:  # no window begins in the padding behind
            count -= 1
        sizes.append(max(0, count))
    return prod(sizes)


def _argument(signature: OpSignature, place: int) -> Literal:
    """The recorded value of an argument; None where there is none."""
    concrete = signature.concrete or ()
    return parse_literal(concrete[place]) if place < len(concrete) else None


def _of_dim(values: Literal, dim: int) -> int | None:
    """Of a list with one entry a dimension, or one for all."""
    if not isinstance(values, list) or not values:
        return None
    value = values[dim] if dim < len(values) else values[0]
    return value if isinstance(value, int) else None
