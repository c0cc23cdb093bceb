# pyright: strict
"""Work that the recorded sizes of a call tell: floating-point operations of products, bytes of arguments and results.

Formulas: a product [m, k] x [k, n] is 2 m n k operations; attention is two products over all pairs of tokens, halved
where the call says that it is causal; of packed or paged sequences it is told where their number and the longest of
them tell the length of each. A layer of experts multiplies each token with the matrices of its experts. A convolution
is 2 operations for each weight of a filter and element of the result, and as many again for each gradient. Bytes
count each argument once and the result where its size follows; of a cache, the pages that are read or written. An op
that finds weights or caches elsewhere than in its arguments tells neither.
"""

from __future__ import annotations

from math import prod

import msgspec

from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.literals import Literal, is_whole_numbers, parse_literal
from opreplay.traces.model import MOST_ELEMENTS, Dims, OpSignature
from opreplay.traces.times.kernel_classes import class_of_op, is_layer_of_experts

ATTENTION: dict[str, tuple[int, bool]] = {
    "scaled_dot_product_attention": (5, False),
    "_scaled_dot_product_attention_math": (5, False),
    "_scaled_dot_product_flash_attention": (4, False),
    "_scaled_dot_product_flash_attention_for_cpu": (4, False),
    "_scaled_dot_product_efficient_attention": (6, False),
    "_scaled_dot_product_cudnn_attention": (6, False),
    "_scaled_dot_product_fused_attention_overrideable": (5, False),
    "_cudnn_attention_forward": (9, False),
    "_flash_attention_forward": (8, True),
    "_efficient_attention_forward": (9, True),
}
"""Op of aten on [batch, heads, tokens, width] → which argument says that it is causal; whether heads follow tokens."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """Places of the arguments of attention over sequences of several lengths, [tokens, heads, width] each."""

    query: int = 0
    starts: int
    """Where each sequence starts, and the end: one more than there are."""
    longest_query: int
    longest_keys: int
    causal: int
    window: int | None = None
    """Tokens that are looked back at; all where it is negative."""
    pages: int | None = None
    """Which pages of the cache are read."""
    table: int | None = None
    """The pages of each sequence, padded; keys are a cache where it is there."""


PACKED = {
    "_flash_attention_forward": Packed(starts=3, longest_query=5, longest_keys=6, causal=8, window=11),
    "mha_batch_prefill": Packed(starts=3, longest_query=6, longest_keys=7, causal=12, window=13, pages=5),
    "varlen_fwd": Packed(starts=4, longest_query=10, longest_keys=11, causal=15, window=16, table=8),
}
"""Of aten, aiter and vLLM's FlashAttention."""
DECODING = {"paged_attention_v1": (1, 9), "paged_attention_v2": (4, 12)}
"""vLLM's attention of one token a sequence → the place of its query, before key and value cache, and of the longest."""
CACHE_WRITES = frozenset(
    {"reshape_and_cache", "reshape_and_cache_flash", "concat_and_cache_mla", "store_cache", "unified_kv_cache_update"}
)
"""Ops that write their first two arguments to a cache."""
JOINED = frozenset({"cat", "concat", "concatenate", "_cat", "stack"})
ONLY_WRITES = frozenset({"fill_", "zero_", "uniform_", "normal_", "random_", "exponential_"})
"""Ops that write what they are given, and read nothing."""
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


def work_of(signature: OpSignature, element_bytes: int | None = None) -> CallWork:
    """What one call of a recorded op does, as far as its sizes tell.

    `element_bytes` are those of the elements of lists of tensors, where a caller knows and the signature does not.
    """
    shapes, dtypes = _tensors(signature)
    dtype = dtypes[0] if dtypes else ""
    base = signature.name.rpartition("::")[2].split(".")[0]
    if base in JOINED:
        joined = _list_bytes(signature, element_bytes)
        return CallWork(flops=None, bytes=None if joined is None else 2.0 * joined, dtype=dtype)
    if not shapes:
        return CallWork(flops=None, bytes=None, dtype=dtype)
    if base in CACHE_WRITES and len(shapes) > 1:
        return CallWork(flops=None, bytes=_cached(shapes, dtypes), dtype=dtype)
    if (packed := PACKED.get(base)) is not None and len(shapes[0]) == 3:
        flops, moved = _packed(signature, packed)
        return CallWork(flops=flops, bytes=moved, dtype=dtype)
    if base in DECODING:
        flops, moved = _decoding(signature, *DECODING[base])
        return CallWork(flops=flops, bytes=moved, dtype=dtype)
    if is_layer_of_experts(signature.name):
        return CallWork(flops=_experts(shapes), bytes=None, dtype=dtype)  # which experts are read, values decide
    kind = class_of_op(signature.name)
    flops, result = _products(base, shapes, signature)
    if kind == "indexing and sorting" or (kind == "attention" and flops is None):
        return CallWork(flops=None, bytes=None, dtype=dtype)  # how much of a table or cache is read, values decide
    if max(prod(shape) for shape in shapes) > MOST_ELEMENTS or (result or 0) > MOST_ELEMENTS:
        return CallWork(flops=None, bytes=None, dtype=dtype)  # no call on any machine
    sizes = [float(prod(shape)) * ITEMSIZE_BYTES.get(name, 1) for shape, name in zip(shapes, dtypes, strict=True)]
    if base in ONLY_WRITES:
        return CallWork(flops=None, bytes=sizes[0], dtype=dtype)
    if base in POOLS:
        result = _pooled(shapes[0], base, signature)
    elif base in POOLS_BACKWARD and len(shapes) > 1:
        result = prod(shapes[1])  # after the gradient, the input
    if result is not None:
        written = float(result) * (ITEMSIZE_BYTES.get(dtype, 1) + (POOLS[base][2] if base in POOLS else 0))
    else:
        written = max(sizes) if kind in LIKE_ITS_INPUT else 0.0
    return CallWork(flops=flops, bytes=sum(sizes) + written, dtype=dtype)


def _list_bytes(signature: OpSignature, element_bytes: int | None) -> float | None:
    """Of the tensors of the first list; None where their types are not known."""
    dims = next(iter(signature.dims or ()), ())
    shapes = [entry for entry in dims if is_whole_numbers(entry) and all(n >= 0 for n in entry)]
    if not shapes or len(shapes) != len(dims):
        return None
    spelled = next(iter(signature.list_types or ()), ())
    if len(spelled) == len(shapes):
        items = [ITEMSIZE_BYTES.get(torch_dtype_name(entry) or "") for entry in spelled]
    else:
        items = [element_bytes] * len(shapes)
    total = sum(prod(shape) * item for shape, item in zip(shapes, items, strict=True) if item is not None)
    return None if None in items or total > MOST_ELEMENTS else float(total)


def _cached(shapes: list[tuple[int, ...]], dtypes: list[str]) -> float:
    """Bytes of what is read and written to a cache, in the cache's type; slots beyond the tokens are padding."""
    slots = [shape[0] for shape, dtype in zip(shapes, dtypes, strict=True) if dtype == "int64" and len(shape) == 1]
    tokens = min((shapes[0] or (0,))[0], *slots) if slots else (shapes[0] or (0,))[0]
    elements = sum(tokens * prod(shape[1:]) for shape in shapes[:2])
    written = dtypes[2] if len(dtypes) > 2 else dtypes[0]
    return float(elements) * (ITEMSIZE_BYTES.get(dtypes[0], 1) + ITEMSIZE_BYTES.get(written, 1))


def _packed(signature: OpSignature, at: Packed) -> tuple[float | None, float | None]:
    """(operations, bytes) of attention over packed sequences."""
    dims, types = signature.dims or (), signature.types or ()
    places = (at.query, at.query + 1, at.query + 2)
    query, keys, values = (_shape(dims, place) for place in places)
    starts = _shape(dims, at.starts)
    if not (query and keys and values and starts) or len(query) != 3 or not 3 <= len(keys) <= 4:
        return None, None
    tokens, heads, width = query
    sequences = starts[0] - 1
    window = None if at.window is None else _integer(signature, at.window)
    if sequences < 1 or (window is not None and window >= 0):
        return None, None
    longest_query, longest_keys = _integer(signature, at.longest_query), _integer(signature, at.longest_keys)
    pairs, read = None, None
    # With one sequence, or with none shorter than the longest, the length of each is known.
    alike = tokens == sequences * (longest_query or 0) and longest_query == longest_keys
    if longest_keys is not None and (sequences == 1 or alike):
        pairs, read = tokens * longest_keys, sequences * longest_keys
    if read is None and at.pages is not None and (pages := _shape(dims, at.pages)):
        read = pages[0] * (keys[1] if len(keys) == 4 else 1)
    elif at.pages is None and (at.table is None or not _shape(dims, at.table)):
        read = keys[0]
    item, cached = (ITEMSIZE_BYTES.get(torch_dtype_name(types[place]) or "", 1) for place in places[:2])
    moved = None
    if read is not None:
        moved = float(tokens * heads * (width + values[-1])) * item
        moved += float(read * keys[-2] * (width + values[-1])) * cached
    if pairs is None:
        return None, moved
    flops = 2.0 * heads * pairs * (width + values[-1])
    causal = _argument(signature, at.causal) is True and longest_query == longest_keys
    return flops / 2 if causal else flops, moved


def _decoding(signature: OpSignature, at: int, longest_at: int) -> tuple[float | None, float | None]:
    """(operations, bytes) of attention of one token; of several the lengths are in no argument."""
    dims, types = signature.dims or (), signature.types or ()
    query, keys, longest = _shape(dims, at), _shape(dims, at + 1), _integer(signature, longest_at)
    if len(query) != 3 or len(keys) < 2 or query[0] != 1 or longest is None:
        return None, None
    item, cached = (ITEMSIZE_BYTES.get(torch_dtype_name(types[place]) or "", 1) for place in (at, at + 1))
    moved = 2.0 * prod(query) * item + 2.0 * longest * keys[1] * query[2] * cached
    return 4.0 * prod(query) * longest, moved


def _experts(shapes: list[tuple[int, ...]]) -> float | None:
    """Operations of a layer of experts whose matrices are arguments: tokens first, then the weights, then scores of the
    experts that each token goes to."""
    weights = [shape for shape in shapes if len(shape) == 3][:2]
    chosen = next((shape for shape in shapes[1:] if len(shape) == 2 and shape[0] == shapes[0][0]), None)
    if len(weights) != 2 or chosen is None or len(shapes[0]) != 2:
        return None
    (experts, _, columns), (others, rows, _) = weights
    if experts != others or not columns == rows == shapes[0][1]:  # packed, or turned
        return None
    return 2.0 * chosen[0] * chosen[1] * sum(prod(matrix[1:]) for matrix in weights)


def _integer(signature: OpSignature, place: int) -> int | None:
    """The recorded value of an argument, where it is a whole number."""
    value = _argument(signature, place)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shape(dims: tuple[Dims, ...], place: int) -> tuple[int, ...]:
    """Of a tensor argument; () where there is none."""
    sizes = dims[place] if place < len(dims) else ()
    return sizes if is_whole_numbers(sizes) and all(n >= 0 for n in sizes) else ()


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
        causal_at, heads_last = ATTENTION[base]
        (b, h, q, d), (_, _, kv, _), (_, _, _, width) = (
            (n, heads, tokens, size) if not heads_last else (n, tokens, heads, size)
            for n, heads, tokens, size in shapes[:3]
        )
        if heads_last and any(_shape(signature.dims or (), place) for place in (4, 5)):
            return None, b * h * q * width  # packed sequences
        causal = _argument(signature, causal_at) in ((1, 2) if base.startswith("_efficient") else (True,))
        flops = 2.0 * b * h * q * kv * (d + width)
        return flops / 2 if causal and q == kv else flops, b * h * q * width
    if base in CONVOLUTIONS and len(shapes) >= 2 and len(shapes[0]) == len(shapes[1]) >= 3:
        return _convolution(shapes[0], shapes[1], CONVOLUTIONS[base], signature)
    if base in ("convolution_backward", "convolution_backward_overrideable") and len(shapes) >= 3:
        gradient, data, weight = shapes[:3]
        wanted = _argument(signature, 10)
        passes = sum(flag is True for flag in wanted[:2]) if isinstance(wanted, list) else 0
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
