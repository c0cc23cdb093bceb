# pyright: strict
"""Work of a call from its recorded sizes: floating-point operations of products, bytes of arguments and results.

A product [m, k] x [k, n] is 2 m n k operations. Attention is two products over all pairs of tokens, halved if the call
is causal. The work of packed or paged attention is known only if the number of sequences and the longest length
determine all lengths. An expert layer multiplies each token by the matrices of its experts. A convolution is 2
operations per pair of filter weight and result element, and as many again for each gradient. Ops without products count
`PER_ELEMENT` operations per element.

The bytes include each argument once, and the result once if the arguments determine its size. Of a cache, only the
pages that are read or written count; of a table, only the rows. Module `layers` derives what an op's own arguments do
not determine.
"""

from __future__ import annotations

import re
from math import prod
from typing import TypeGuard, cast

import msgspec

from opreplay.replay.ops.recorded.arguments import Arguments, parameters_of
from opreplay.replay.ops.recorded.results import broadcast_shape, has_result_rule, is_in_place, result_bytes
from opreplay.traces.dtypes import ITEMSIZE_BYTES, SCALAR_TYPE_CODES, torch_dtype_name
from opreplay.traces.literals import Literal, is_whole_numbers, parse_literal
from opreplay.traces.model import MOST_ELEMENTS, OpSignature
from opreplay.traces.times.flops import (
    attention_backward_flops,
    attention_flops,
    bilinear_flops,
    complex_factor,
    convolution_backward_flops,
    convolution_flops,
    product_flops,
    trilinear_flops,
)
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
"""Map of aten attention op to (position of the causal argument, whether heads follow tokens).

Tensors are [batch, heads, tokens, width] unless heads follow tokens.
"""


ATTENTION_BACKWARD: dict[str, int] = {
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
}
"""Map of aten attention backward op to the position of its causal argument.

The first arguments of these ops are gradient, query, key and value.
"""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """Argument positions of attention over sequences of different lengths, [tokens, heads, width] each."""

    starts: int
    """Start of each sequence, and the end of the last one: one entry more than there are sequences."""
    longest_query: int
    longest_keys: int
    causal: int
    window: int | None = None
    """Number of previous tokens in the window; all if it is negative."""
    pages: int | None = None
    """Indices of the cache pages that are read."""
    table: int | None = None
    """Padded list of the pages of each sequence; if present, the keys are in a paged cache."""


PACKED = {
    "_flash_attention_forward": Packed(starts=3, longest_query=5, longest_keys=6, causal=8, window=11),
    "mha_batch_prefill": Packed(starts=3, longest_query=6, longest_keys=7, causal=12, window=13, pages=5),
    "varlen_fwd": Packed(starts=4, longest_query=10, longest_keys=11, causal=15, window=16, table=8),
}
"""Argument positions for the ops of aten, aiter and vLLM's FlashAttention."""
DECODING = {"paged_attention_v1": (1, 9), "paged_attention_v2": (4, 12)}
"""Map of vLLM's decode attention op to the positions of its query and its maximum length.

The key cache and the value cache follow the query.
"""
CACHE_WRITES = frozenset(
    {"reshape_and_cache", "reshape_and_cache_flash", "concat_and_cache_mla", "store_cache", "unified_kv_cache_update"}
)
"""Ops that write their first two arguments to a cache."""
JOINED = frozenset({"cat", "concat", "concatenate", "_cat", "stack"})
ONLY_WRITES = frozenset({"fill_", "zero_", "uniform_", "normal_", "random_", "exponential_", "bernoulli_"})
"""Ops that write their argument and read nothing."""
CONVOLUTIONS: dict[str, tuple[int, int, int | None, int | bool]] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), (3, 4, 5, 6)),
    "cudnn_convolution": (3, 2, 4, False),
    "cudnn_convolution_transpose": (4, 2, 5, True),
    "miopen_convolution_transpose": (5, 3, 6, True),
    "_mps_convolution_transpose": (4, 2, 5, True),
    **dict.fromkeys(
        ("miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution", "_mps_convolution"),
        (4, 3, 5, False),
    ),
    **dict.fromkeys(("cudnn_convolution_relu", "miopen_convolution_relu"), (3, 4, 5, False)),
    **dict.fromkeys(("cudnn_convolution_add_relu", "miopen_convolution_add_relu"), (5, 6, 7, False)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "_convolution_mode"), (3, 4, 5, False)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), (3, 4, 7, True)),
    **dict.fromkeys(("slow_conv_transpose2d", "slow_conv_transpose3d"), (4, 5, 7, True)),
    **dict.fromkeys(("thnn_conv2d", "_slow_conv2d_forward", "slow_conv3d", "slow_conv3d_forward"), (4, 5, None, False)),
    **dict.fromkeys(
        ("_conv_depthwise2d", "conv_depthwise3d", "slow_conv_dilated2d", "slow_conv_dilated3d"), (4, 5, 6, False)
    ),
    "_nnpack_spatial_convolution": (4, 3, None, False),
}
"""Map of aten op to (position of its stride, padding and dilation arguments, whether it is transposed).

A position of None means that the op has no dilation. Whether it is transposed is a bool, or the position of the
argument that says this.
"""
TRANSPOSED: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), (7, 8)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), (5, 6)),
    **dict.fromkeys(("cudnn_convolution_transpose", "_mps_convolution_transpose"), (3, 6)),
    "miopen_convolution_transpose": (4, 7),
    **dict.fromkeys(("slow_conv_transpose2d", "slow_conv_transpose3d"), (6, None)),
}
"""aten op → positions of its output padding and of the number of groups. None means that the op has no groups."""
CONVOLUTIONS_BACKWARD = frozenset({"convolution_backward", "convolution_backward_overrideable"})
PRODUCTS = {
    "mm": (0, 2),
    "_scaled_mm": (0, 2),
    "_int_mm": (0, 2),
    "addmm": (1, 2),
    "addmm_": (1, 2),
    "_addmm_activation": (1, 2),
    "bmm": (0, 3),
    "baddbmm": (1, 3),
    "baddbmm_": (1, 3),
}
"""Map of aten op to (index of the first factor among its tensors, number of dimensions of both factors)."""
PRODUCTS_OF_ANY_RANK = {"matmul": 0, "mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "addmv_": 1, "addbmm": 1, "addbmm_": 1}
"""aten op → index of the first factor among its tensors; vectors are allowed."""
MAX_DIMENSIONS = 64
"""Maximum number of dimensions of a tensor in torch."""
PAIRS = "float4_e2m1fn_x2"
"""dtype that packs two numbers along the summed dimension into one element."""
LINEAR = frozenset({"linear", "_mkldnn_linear"})
LIKE_ITS_INPUT = frozenset({"elementwise", "normalization", "softmax", "copies"})
"""Op classes whose result is as large as their largest argument."""
PER_ELEMENT = {
    "elementwise": 1,
    "normalization": 4,
    "softmax": 4,
    "reduction": 1,
    "copies": 0,
    "indexing and sorting": 0,
}
"""Operations per element of the largest tensor, by the class of an op without products.

The numbers are a convention: a sum or product has one, normalization and softmax have four. They matter little, because
memory bandwidth bounds these ops.
"""
WHOLE_TENSOR = frozenset({"where", "cumsum", "cumprod"})
"""Indexing ops that read all of their arguments; the result is as large as the largest argument."""
TABLES_OF_ANGLES = ("cos_sin_cache", "cos_cache", "sin_cache", "cos", "sin")
ROTATED = ("query", "key", "q", "k", "q_rope", "k_rope")
"""Names of the arguments that rotary embeddings rotate."""
RESULT_BYTES = {"_int_mm": 4}
"""Bytes per element of the result of products whose result has another dtype than their factors."""
OPERANDS: dict[str, int] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "vdot", "_int_mm", "ger", "outer"), 2),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation", "linear"), 3),
}
"""aten op → number of leading arguments that can be tensors. A tensor after them is the buffer for the result."""
DTYPES_OF_PRODUCTS = {"_scaled_mm": 6, "_grouped_mm": 4, "_scaled_grouped_mm": 6}
"""aten op → position of the argument that gives the dtype of the result, if it is not None."""
LOSSES_OF_ROWS = frozenset({"nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"})
_ROTARY = re.compile(r"rotary|rope(?!r)", re.IGNORECASE)
IMPOSSIBLE = "a recorded size is impossible"
COMMUNICATION = "communication: limited by links between devices"
SPARSE = "it is not recorded how many elements a sparse or opaque tensor stores"
_CONTENTS = "index values decide which rows are read or written"


POOLS: dict[str, tuple[int | None, int, int]] = {
    "max_pool2d_with_indices": (4, 5, 8),
    "max_pool3d_with_indices": (4, 5, 8),
    "max_pool2d": (4, 5, 0),
    "max_pool3d": (4, 5, 0),
    "avg_pool2d": (None, 4, 0),
    "avg_pool3d": (None, 4, 0),
}
"""Map of aten pooling op to three numbers.

They are the position of its dilation, the position of the flag that rounds sizes up, and the bytes of each result
element's index. The arguments after the input are the window, its stride (empty means the window's size) and the
padding.
"""
POOLS_BACKWARD = frozenset(f"{name}_backward" for name in POOLS)


Shapes = list[tuple[int, ...]]


class CallWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one call."""

    flops: float | None
    """Floating-point operations, or None if the recorded sizes do not determine them."""
    bytes: float | None
    dtype: str
    """dtype of the first tensor, or the dtype in which a layer multiplies."""
    why: str = ""
    """Reason why operations or bytes are None."""
    assumed: str = ""
    """What was assumed because the recording does not contain it."""


def work_of(signature: OpSignature, element_bytes: int | None = None) -> CallWork:
    """Return the work of one call of a recorded op, if its own arguments determine it.

    `element_bytes` is the size of an element in lists of tensors. A caller that knows the size gives it if the
    signature does not contain it.
    """
    shapes, dtypes = _tensors(signature)
    base = signature.name.rpartition("::")[2].split(".")[0]
    flops: float | None = None
    moved: float | None = None
    if shapes and max(map(prod, shapes)) > MOST_ELEMENTS:
        return CallWork(flops=None, bytes=None, dtype=dtypes[0], why=IMPOSSIBLE)
    if _has_sparse(signature):
        return CallWork(flops=None, bytes=None, dtype=next(iter(dtypes), ""), why=SPARSE)
    if base in JOINED:
        moved = _joined_bytes(signature, element_bytes)
        flops = None if moved is None else 0.0
    elif not shapes:
        pass
    elif base in CACHE_WRITES and len(shapes) > 1:
        flops, moved = 0.0, _cached(shapes, dtypes)
    elif base in PACKED and len(shapes[0]) == 3:
        flops, moved = _packed(signature, PACKED[base])
    elif base in DECODING:
        flops, moved = _decoding(signature, *DECODING[base])
    elif base in ATTENTION_BACKWARD:
        flops, moved = _attention_backward(base, shapes, dtypes, signature)
    elif is_layer(signature):
        flops = _experts(shapes)  # which experts are read, values decide
    elif _ROTARY.search(base) and "::" in signature.name:
        flops, moved = _rotary(signature)
    else:
        flops, moved = _by_sizes(base, shapes, dtypes, signature)
    why = _why_unknown(signature, base, shapes) if flops is None or moved is None else ""
    return CallWork(flops=flops, bytes=moved, dtype=next(iter(dtypes), ""), why=why)


def _has_sparse(signature: OpSignature) -> bool:
    """Check whether a tensor has sizes but no strides, although the trace records strides.

    Such a tensor is sparse. Those of mkldnn are opaque instead: they store all elements, in blocks.
    """
    if not signature.strides or "mkldnn" in signature.name:
        return False
    return any(
        bool(dims) and not steps and _is_shape(dims) and torch_dtype_name(spelled or "") is not None
        for dims, steps, spelled in zip(signature.dims or (), signature.strides, signature.types or (), strict=False)
    )


_KINDS = (
    ("attention", re.compile(r"^(_vllm_fa\d_C|flash_attn\w*|xformers\w*)::\w*(fwd|forward)")),
    ("GEMM", re.compile(r"::\w*(_mm|_gemm|_linear|bmm_fp8)(_\w+)?$")),
)
"""(class, pattern) of library ops that can be classified only by their full name with namespace.

Examples are `_vllm_fa2_C::varlen_fwd` and `sgl_kernel::fp8_scaled_mm`.
"""


def kind_of(name: str) -> str:
    """Return the class of work of an op by name and library."""
    kind = class_of_op(name)
    if kind != "other" or is_layer_of_experts(name):
        return kind
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), kind)


def is_layer(signature: OpSignature) -> bool:
    """Check whether a call is a whole expert layer, not a generated kernel named after one."""
    return "::" in signature.name and is_layer_of_experts(signature.name)


def _why_unknown(signature: OpSignature, base: str, shapes: Shapes) -> str:
    """Return the reason why a call's own arguments do not determine its operations or bytes."""
    kind = kind_of(signature.name)
    if kind == "communication":
        return COMMUNICATION
    if not shapes:
        return (
            "no shapes recorded" if not any(signature.dims or ()) else "dtypes of the listed tensors are not recorded"
        )
    if signature.name.startswith("triton_"):
        return "the trace does not record what a generated kernel computes"
    if is_layer(signature):
        return "no argument gives the sizes of the experts' weights"
    if kind == "attention":
        return "lengths of the sequences are not recorded"
    if signature.name.startswith("aten::") and has_result_rule(base):
        return "arguments that decide the size of its result are not recorded"
    if kind == "indexing and sorting":
        return _CONTENTS
    if kind in ("GEMM", "convolution") and not any(signature.concrete or ()):
        return "scalar arguments, such as strides, are not recorded"
    if kind in ("GEMM", "convolution"):
        return "its tensors match no known layout of a matrix product"
    return "its work is unknown"


def _by_sizes(
    base: str, shapes: Shapes, dtypes: list[str], signature: OpSignature
) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of an op that reads its arguments once and writes its result."""
    kind = kind_of(signature.name)
    flops, result = _products(base, shapes, signature)
    if kind == "GEMM" and flops is None and "::" in signature.name:
        flops, result = _library_product(signature)
    returned = result
    reads_all = kind != "indexing and sorting" or base in WHOLE_TENSOR
    if kind == "indexing and sorting" and not reads_all:
        return _selected_rows(base, signature)
    if kind in ("attention", "communication") and flops is None:
        return None, None  # how much of a cache is read, values decide
    if kind == "other" and flops is None and not signature.name.startswith(("triton_", "aten::")):
        return None, None  # arguments of an op of an unknown kind need not be what it reads
    if max(*map(prod, shapes), result or 0) > MOST_ELEMENTS:
        return None, None  # no call on any machine
    sizes = _sizes(signature)
    if base in ONLY_WRITES:
        return 0.0, sizes[0]
    has_rule = any(base in bases for bases, _ in RULES if bases not in (POOLS, POOLS_BACKWARD))
    if base in LOSSES_OF_ROWS:
        return _loss_of_rows(base, signature)
    if signature.name.startswith("aten::") and (kind == "elementwise" or base == "where"):
        result = _broadcast_elements(base, shapes)
        if result > MOST_ELEMENTS:
            return None, None
    if flops is None and kind in PER_ELEMENT and "::" in signature.name and not has_rule:
        flops = float(PER_ELEMENT[kind] * max(max(map(prod, shapes)), result or 0))
    if signature.name.startswith("triton_") and any("int" in dtype for dtype in dtypes):
        return None, None  # it may read a table by index
    if base in ("copy_", "copy"):
        return 0.0, sum(sizes)
    if base in CONVOLUTIONS_BACKWARD and len(sizes) > 2:
        wanted = _argument(signature, 10)
        if not isinstance(wanted, list):
            return flops, None
        gradients = [*sizes[1:3]]
        if wanted[2:] == [True]:
            biases = _argument(signature, 3)
            if not isinstance(biases, list) or not is_whole_numbers(shape := tuple(biases)):
                return flops, None
            gradients.append(float(prod(shape)) * _item(signature, 0))
        return flops, sum(sizes) + sum(size for size, asked in zip(gradients, wanted, strict=False) if asked)
    if kind == "random":
        elements = max(map(prod, shapes))
        return (float(elements), 2 * sizes[0] + elements) if base == "native_dropout" else (None, None)
    written = _written(signature, base, sizes, kind, returned)
    return flops, None if written is None else sum(sizes) + written


def _broadcast_elements(base: str, shapes: Shapes) -> int:
    """Return the elements of the result of an op on all of its tensors, or of the tensor that it overwrites."""
    if is_in_place(base):
        return prod(shapes[0])
    shape = broadcast_shape(shapes)
    return max(map(prod, shapes)) if shape is None else prod(shape)


def _loss_of_rows(base: str, signature: OpSignature) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of a loss that reads one element a row, or of its gradient, as large as its input."""
    at = 1 if base.endswith("backward") else 0
    scores, targets = _shape(signature, at), _shape(signature, at + 1)
    if not scores:
        return None, None
    rows = float(max(1, prod(targets)))
    moved = rows * (_item(signature, at) + _item(signature, at + 1))
    if at:
        return rows, moved + prod(scores) * _item(signature, at)
    return rows, moved + (rows * _item(signature, at) if _integer(signature, 3) == 0 else 0.0)


def _written(signature: OpSignature, base: str, sizes: list[float], kind: str, result: int | None) -> float | None:
    """Return the bytes that a call moves in addition to one pass over each argument. None if they are unknown.

    `result` is the number of elements that a product or window returns.
    """
    if signature.name.startswith("aten::"):
        return result_bytes(signature) if result is None else _product_bytes(signature, base, result)
    shapes, dtypes = _tensors(signature)
    item = ITEMSIZE_BYTES.get(dtypes[0], 1)
    known = parameters_of(signature.name, len(signature.dims or ()))
    if known is None:
        if result is not None:
            return float(result) * item
        if kind in LIKE_ITS_INPUT:
            return max(
                float(prod(one)) * ITEMSIZE_BYTES.get(dtype, 1) for one, dtype in zip(shapes, dtypes, strict=True)
            )
        # The arguments of a generated kernel include its results.
        return 0.0 if kind in ("reduction", "optimizer") or signature.name.startswith("triton_") else None
    arguments = Arguments(signature)
    written = sum(
        size
        for place, size in zip(arguments.tensors, sizes, strict=False)
        if known.all[place].is_written and not known.all[place].is_result
    )
    if known.returns and result is not None:
        return written + float(result) * max(item, 2)
    if known.returns and kind in LIKE_ITS_INPUT:
        return written + max(sizes) / (2 if "and_mul" in base else 1)
    return written


def _product_bytes(signature: OpSignature, base: str, result: int) -> float | None:
    """Return the bytes of the result of a product or window of aten; 0 if it writes to a buffer that is an argument."""
    at, operands = DTYPES_OF_PRODUCTS.get(base), OPERANDS.get(base)
    tensors = Arguments(signature).tensors
    if operands is not None and any(place >= operands for place in tensors):
        return 0.0
    item = _item(signature, tensors[0])
    if at is not None:
        code = _integer(signature, at) if signature.concrete else -1
        if code is not None and not 0 <= code < len(SCALAR_TYPE_CODES):
            return None
        item = item if code is None else ITEMSIZE_BYTES[SCALAR_TYPE_CODES[code]]
    return float(result) * (RESULT_BYTES.get(base, item) + POOLS.get(base, (None, 0, 0))[2])


def _sizes(signature: OpSignature) -> list[float]:
    """Return the bytes of each tensor. Elements at the same place, as in expanded tensors and windows, count once."""
    out: list[float] = []
    strides = signature.strides or ()
    for at, (dims, spelled) in enumerate(zip(signature.dims or (), signature.types or (), strict=False)):
        dtype = torch_dtype_name(spelled) if spelled else None
        if dtype is None or not _is_shape(dims):
            continue
        steps = strides[at] if at < len(strides) and len(strides[at]) == len(dims) else ()
        elements = _different_elements(dims, steps) if steps and is_whole_numbers(steps) else prod(dims)
        out.append(float(elements) * ITEMSIZE_BYTES.get(dtype, 1))
    return out


def _different_elements(dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements at different places in memory, or an upper bound if windows overlap."""
    if not prod(dims):
        return 0
    count = span = 1
    for step, size in sorted((abs(step), size) for size, step in zip(dims, strides, strict=True)):
        overlaps = step < span
        span += (size - 1) * step
        count = min(count * size, span) if overlaps else count * size
    return count


def _selected_rows(base: str, signature: OpSignature) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of an op that returns elements of a table, which are read at most once each."""
    first, second, third = (_shape(signature, place) for place in (0, 1, 2))
    if base == "embedding" and len(first) == 2 and second:
        chosen, indices = prod(second) * first[1], prod(second) * _item(signature, 1)
    elif base == "gather" and first and third and len(sizes := _sizes(signature)) > 1:
        chosen, indices = prod(third), sizes[1]
    elif base == "index_select" and first and len(third) == 1:
        dim = _integer(signature, 1)
        if dim is None or not -len(first) <= dim < len(first):
            return None, None
        chosen, indices = prod(first) // max(1, first[dim]) * third[0], third[0] * _item(signature, 2)
    else:
        return None, None
    written = float(chosen) * _item(signature, 0)
    return 0.0, min(written, _sizes(signature)[0]) + written + indices


def _rotary(signature: OpSignature) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of rotary embeddings.

    For each token, one row of the angle table is read. Queries and keys are read and written. An element takes two
    multiplications and one addition.
    """
    arguments = Arguments(signature)
    floats = [at for at in arguments.tensors if "float" in arguments.dtype_at(at) and arguments.shape_at(at)]
    if arguments.named:
        positions = arguments.place("positions", "pos_ids", "offsets")
        tables = [at for name in TABLES_OF_ANGLES if (at := arguments.place(name)) is not None]
        rotated = [at for name in ROTATED if (at := arguments.place(name)) is not None]
    else:
        whole = [at for at in arguments.tensors if "int" in arguments.dtype_at(at) and arguments.shape_at(at)]
        positions = whole[0] if whole else None
        tokens = prod(arguments.sizes_at(positions)) if positions is not None else 0
        rotated = [at for at in floats if arguments.sizes_at(at)[0] == tokens]
        tables = [at for at in floats if at not in rotated]
    if not rotated or not tables or not {*rotated, *tables} <= {*floats}:
        return None, None
    tokens = prod(arguments.sizes_at(positions)) if positions is not None else None
    moved = 0.0 if positions is None or tokens is None else float(tokens * _item(signature, positions))
    for at in tables:
        rows, *width = arguments.sizes_at(at)
        moved += float(min(rows, rows if tokens is None else tokens) * prod(width) * _item(signature, at))
    elements = sum(prod(arguments.sizes_at(at)) for at in rotated)
    size, rotary = arguments.integer("head_size"), arguments.sizes_at(tables[0])[-1]
    share = min(1.0, rotary / size) if size and len(tables) == 1 else 1.0
    moved += 2 * sum(prod(arguments.sizes_at(at)) * _item(signature, at) for at in rotated) * share
    return 3.0 * elements * share, moved


def _library_product(signature: OpSignature) -> tuple[float | None, int | None]:
    """Return (operations, elements of the result) of a library's product of rows [..., k] with weights [n, k] or [k,
    n].

    The op's other arguments may be in any order. Both numbers are None for packed weights.
    """
    arguments = Arguments(signature)
    known = parameters_of(signature.name, len(signature.dims or ()))
    places = [
        at
        for at in arguments.tensors
        if len(arguments.sizes_at(at)) >= 2
        and not (known is not None and (known.all[at].is_result or "scale" in known.all[at].name))
    ]
    if len(places) < 2:
        return None, None
    first, second = (arguments.sizes_at(at) for at in places[:2])
    narrow = [arguments.dtype_at(at) in (PAIRS, "uint8") for at in places[:2]]
    if len(second) != 2 or arguments.dtype_at(places[1]) == "int32":
        return None, None
    depth = first[-1] if not narrow[1] or narrow[0] else first[-1] / 2
    if depth not in second:
        return None, None
    width = second[0] if second[1] == depth else second[1]
    rows = prod(first[:-1])
    return 2.0 * rows * width * first[-1] * (2 if narrow[0] else 1), rows * width


def _attention_backward(
    base: str, shapes: Shapes, dtypes: list[str], signature: OpSignature
) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of attention's backward, which computes gradients of query, key and value."""
    if list(map(len, shapes[1:4])) != [4, 4, 4]:
        return None, None
    query, key, value = shapes[1:4]
    flops = float(attention_backward_flops(query, key, value))
    halved = _argument(signature, ATTENTION_BACKWARD[base]) is True and query[2] == key[2]
    sizes = _sizes(signature)
    return flops / (2 if halved else 1), sum(sizes) + sum(sizes[1:4])


def _joined_bytes(signature: OpSignature, element_bytes: int | None) -> float | None:
    """Return the bytes read and written for the tensors of the first list, or None if their dtypes are unknown."""
    dims, spelled = (signature.dims or ((),))[0], (signature.list_types or ((),))[0]
    if not dims or not all(map(_is_shape, dims)):
        return None
    items = [element_bytes] * len(dims)
    if len(spelled) == len(dims):
        items = [ITEMSIZE_BYTES.get(torch_dtype_name(entry) or "") for entry in spelled]
    total = sum(prod(cast("tuple[int, ...]", shape)) * (item or 0) for shape, item in zip(dims, items, strict=True))
    return None if None in items or total > MOST_ELEMENTS else 2.0 * total


def _cached(shapes: Shapes, dtypes: list[str]) -> float:
    """Return the bytes that a cache write reads and writes.

    It reads elements in its input's dtype and writes them in the cache's dtype. Tokens without a slot and slots without
    a token are padding, which does not count.
    """
    slots = [shape[0] for shape, dtype in zip(shapes, dtypes, strict=True) if dtype == "int64" and len(shape) == 1]
    tokens = min((shapes[0] or (0,))[0], *slots) if slots else (shapes[0] or (0,))[0]
    elements = sum(tokens * prod(shape[1:]) for shape in shapes[:2])
    written = dtypes[2] if len(dtypes) > 2 else dtypes[0]
    return float(elements) * (ITEMSIZE_BYTES.get(dtypes[0], 1) + ITEMSIZE_BYTES.get(written, 1))


def _packed(signature: OpSignature, at: Packed) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of attention over packed sequences."""
    query, keys, values, starts = (_shape(signature, place) for place in (0, 1, 2, at.starts))
    if not all((query, keys, values, starts)) or len(keys) not in (3, 4):
        return None, None
    tokens, heads, width = query
    sequences, both_widths = starts[0] - 1, width + values[-1]
    window = _integer(signature, at.window)
    if sequences < 1 or (window is not None and window >= 0):
        return None, None
    longest_query, longest_keys = _integer(signature, at.longest_query), _integer(signature, at.longest_keys)
    # With one sequence, or with none shorter than the longest, the length of each is known.
    alike = longest_query == longest_keys and tokens == sequences * (longest_query or 0)
    known = longest_keys if sequences == 1 or alike else None
    read = _keys_read(signature, at, keys, sequences, known)
    elements = tokens * heads * both_widths
    moved = None
    if read is not None:
        moved = float(elements) * _item(signature, 0) + float(read * keys[-2] * both_widths) * _item(signature, 1)
    causal = _argument(signature, at.causal) is True and longest_query == longest_keys
    return None if known is None else 2.0 * elements * known / (2 if causal else 1), moved


def _keys_read(
    signature: OpSignature, at: Packed, keys: tuple[int, ...], sequences: int, known: int | None
) -> int | None:
    """Return the number of tokens whose keys are read, or None if it is unknown.

    Without a cache, these are all tokens. With a cache, the number comes from the `known` length of the sequences or,
    if that is missing, from the number of pages.
    """
    if at.pages is None and not _shape(signature, at.table):
        return keys[0]
    if known is not None:
        return sequences * known
    pages = _shape(signature, at.pages)
    return pages[0] * (keys[1] if len(keys) == 4 else 1) if pages else None


def _decoding(signature: OpSignature, at: int, longest_at: int) -> tuple[float | None, float | None]:
    """Return (operations, bytes) of attention for a single new token.

    For several tokens, both are None, because the arguments do not contain the lengths.
    """
    query, keys, longest = _shape(signature, at), _shape(signature, at + 1), _integer(signature, longest_at)
    if len(query) != 3 or len(keys) < 2 or query[0] != 1 or longest is None:
        return None, None
    moved = 2.0 * prod(query) * _item(signature, at) + 2.0 * longest * keys[1] * query[2] * _item(signature, at + 1)
    return 4.0 * prod(query) * longest, moved


def _experts(shapes: Shapes) -> float | None:
    """Return the operations of an expert layer whose arguments are tokens, weights, then expert scores."""
    weights = [shape for shape in shapes if len(shape) == 3][:2]
    chosen = next((shape for shape in shapes[1:] if len(shape) == 2 and shape[:1] == shapes[0][:1]), None)
    if len(weights) != 2 or chosen is None or len(shapes[0]) != 2:
        return None
    (experts, _, columns), (others, rows, _) = weights
    if experts != others or not columns == rows == shapes[0][1]:  # packed, or turned
        return None
    return 2.0 * chosen[0] * chosen[1] * sum(prod(matrix[1:]) for matrix in weights)


def _integer(signature: OpSignature, place: int | None) -> int | None:
    """Return the recorded value of an argument if it is an integer, otherwise None."""
    value = None if place is None else _argument(signature, place)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_shape(dims: object) -> TypeGuard[tuple[int, ...]]:
    return is_whole_numbers(dims) and min(dims, default=0) >= 0


def _shape(signature: OpSignature, place: int | None) -> tuple[int, ...]:
    """Return the shape of a tensor argument; () if there is none."""
    dims = signature.dims or ()
    sizes = dims[place] if place is not None and place < len(dims) else ()
    return sizes if _is_shape(sizes) else ()


def _item(signature: OpSignature, place: int) -> int:
    """Return the bytes per element of a tensor argument."""
    types = signature.types or ()
    return ITEMSIZE_BYTES.get(torch_dtype_name(types[place]) or "", 1) if place < len(types) else 1


def _tensors(signature: OpSignature) -> tuple[Shapes, list[str]]:
    """Return the shapes and dtypes of the tensor arguments, without tensors in lists."""
    shapes: Shapes = []
    dtypes: list[str] = []
    for dims, spelled in zip(signature.dims or (), signature.types or (), strict=False):
        dtype = torch_dtype_name(spelled) if spelled else None
        if dtype is not None and _is_shape(dims):
            shapes.append(dims)
            dtypes.append(dtype)
    return shapes, dtypes


def _products(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    """Return (operations, elements of the result) of a product or of attention; (None, None) for other ops."""
    rule = next((rule for bases, rule in RULES if base in bases), None)
    flops, result = (None, None) if rule is None else rule(base, shapes, signature)
    return None if flops is None else flops * complex_factor(_tensors(signature)[1]), result


def _product(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    at, dims = PRODUCTS[base]
    if list(map(len, shapes[at : at + 2])) != [dims, dims]:
        return None, None
    first, second = shapes[at : at + 2]
    if first[-1] != second[-2]:
        return None, None
    per_element = 2 if PAIRS in _tensors(signature)[1] else 1
    return per_element * float(product_flops(first, second)), prod(first[:-1]) * second[-1]


def _product_of_any_rank(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    at = PRODUCTS_OF_ANY_RANK[base]
    if len(shapes) < at + 2 or not shapes[at] or not shapes[at + 1]:
        return None, None
    first, second = shapes[at : at + 2]
    if first[-1] != second[max(0, len(second) - 2)]:
        return None, None
    flops = product_flops(first, second)
    per_element = 2 * first[-1] * (first[0] if base.startswith("addbmm") else 1)
    return float(flops), flops // per_element if per_element else 0


def _grouped_product(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    """Return (operations, elements of the result) of a grouped product.

    Each row, column or summed element belongs to one group. Elements after the end of the last group are counted as
    well.
    """
    if len(shapes) < 2 or not {len(shape) for shape in shapes[:2]} <= {2, 3}:
        return None, None
    first, second = shapes[:2]
    both = len(first) == len(second) == 3
    if first[-1] != second[-2] or (both and first[0] != second[0]):
        return None, None
    groups = first[0] if both else 1
    offsets = _shape(signature, GROUPED[base])
    copies = groups if both or len(first) != len(second) else prod(offsets)
    result = first[-2] * second[-1]
    return 2.0 * groups * result * first[-1], copies * result if copies else None


def _outer(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    """Return (operations, elements of the result) of an outer product: one multiplication per element."""
    if len(shapes) < 2 or list(map(len, shapes[:2])) != [1, 1]:
        return None, None
    result = shapes[0][0] * shapes[1][0]
    return float(result), result


def _bilinear(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    if len(shapes) < 3 or not shapes[0] or not shapes[1] or len(shapes[2]) != 3:
        return None, None
    first, second, weight = shapes[:3]
    return float(bilinear_flops(first, weight, second)), prod(first[:-1]) * weight[0]


def _trilinear(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    found = [_argument(signature, place) for place in (3, 4, 5, 6)]
    dims = [values for value in found if isinstance(value, list) and is_whole_numbers(values := tuple(value))]
    if len(shapes) < 3 or len(dims) != 4 or max(map(len, shapes[:3])) > MAX_DIMENSIONS:
        return None, None
    return float(trilinear_flops(shapes[:3], dims[:3], dims[3])) or None, None


def _linear(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    if len(shapes) < 2 or len(shapes[1]) != 2 or not shapes[0]:
        return None, None
    (n, k), rows = shapes[1], prod(shapes[0][:-1])
    if shapes[0][-1] != k:
        return None, None
    return 2.0 * rows * n * k, rows * n


def _attention(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    if list(map(len, shapes[:3])) != [4, 4, 4]:
        return None, None
    causal_at, heads_last = ATTENTION[base]
    order = (0, 2, 1, 3) if heads_last else (0, 1, 2, 3)
    (b, h, q, d), (_, _, kv, _), (_, _, _, width) = ([shape[at] for at in order] for shape in shapes[:3])
    result = b * h * q * width
    if heads_last and (_shape(signature, 4) or _shape(signature, 5)):
        return None, result  # packed sequences
    causal = _argument(signature, causal_at) in (1, 2)  # True, or a type of mask of _efficient_attention_forward
    flops = float(attention_flops((b, h, q, d), (b, h, kv, d), (b, h, kv, width)))
    return flops / 2 if causal and q == kv else flops, result


def _gradients(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    if len(shapes) < 3 or len(shapes[2]) < 3:
        return None, None
    gradient, data, weight = shapes[:3]
    wanted = _argument(signature, 10)
    if not isinstance(wanted, list):
        return None, None
    asked, transposed = [flag is True for flag in wanted], _argument(signature, 7) is True
    flops = convolution_backward_flops(gradient, data, weight, transposed=transposed, wanted=asked)
    return float(flops) or None, None


def _convolution(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    if len(shapes) < 2 or not len(shapes[0]) == len(shapes[1]) >= 3:
        return None, None
    (data, weight), (stride_at, padding_at, dilation_at, transposed_at) = shapes[:2], CONVOLUTIONS[base]
    transposed = transposed_at if isinstance(transposed_at, bool) else _argument(signature, transposed_at)
    if transposed is not False:
        if transposed is not True or data[1] != weight[0]:
            return None, None
        # Each element of the input meets the whole filter.
        return float(convolution_flops(data, weight, (), transposed=True)), _transposed_result(base, signature)
    if data[1] != weight[1] and (not weight[1] or data[1] % weight[1]):
        return None, None  # channels of no number of groups
    stride, padding = _argument(signature, stride_at), _argument(signature, padding_at)
    dilation: Literal = [1] if dilation_at is None else _argument(signature, dilation_at)
    if padding == "same":
        sizes: list[int] | None = [*data[2:]]
    else:
        none: Literal = [0]
        padding = none if padding == "valid" else padding
        sizes = _window_places(data[2:], [*weight[2:]], stride, padding, dilation)
    if sizes is None:
        return None, None
    result = (data[0], weight[0], *sizes)
    return float(convolution_flops(data, weight, result, transposed=False)), prod(result)


def _transposed_result(base: str, signature: OpSignature) -> int | None:
    """Return the elements of the result of a transposed convolution, or None if arguments are missing."""
    data, weight = _shape(signature, 0), _shape(signature, 1)
    stride_at, padding_at, dilation_at, _ = CONVOLUTIONS[base]
    extra_at, groups_at = TRANSPOSED[base]
    groups = 1 if groups_at is None else _integer(signature, groups_at)
    stride, padding, extra = (_argument(signature, place) for place in (stride_at, padding_at, extra_at))
    dilation: Literal = [1] if dilation_at is None else _argument(signature, dilation_at)
    elements = data[0] * weight[1] * (groups or 0)
    for dim, (size, width) in enumerate(zip(data[2:], weight[2:], strict=True)):
        step, pad, far, more = (_of_dim(values, dim) for values in (stride, padding, dilation, extra))
        if step is None or pad is None or far is None or more is None:
            return None
        elements *= max(0, (size - 1) * step - 2 * pad + far * (width - 1) + more + 1)
    return elements if groups else None


def _resampled(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    """Return (operations, elements of the result) of a resampled image: one operation per element of the result."""
    is_gradient = base.endswith("_backward")
    given = _argument(signature, 2 if is_gradient else 1)
    if not isinstance(given, list) or not is_whole_numbers(sizes := tuple(given)) or len(shapes[0]) < 3:
        return None, None
    elements = prod(sizes if is_gradient else (*shapes[0][:2], *sizes))
    return float(max(elements, prod(shapes[0]))), elements


def _windows(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    """Return (operations, elements of the result) of windows that are copied to columns."""
    data, (width, dilation, padding, stride) = shapes[0], (_argument(signature, place) for place in (1, 2, 3, 4))
    sizes = _window_places(data[-2:], width, stride, padding, dilation) if len(data) in (3, 4) else None
    window = [_of_dim(width, dim) or 0 for dim in (0, 1)]
    return (None, None) if sizes is None else (0.0, prod((*data[:-2], *window, *sizes)))


def _pool_gradient(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    return None, prod(shapes[1]) if len(shapes) > 1 else None  # after the gradient, the input


def _pooled(base: str, shapes: Shapes, signature: OpSignature) -> tuple[float | None, int | None]:
    data = shapes[0]
    dilation_at, round_at, _ = POOLS[base]
    spatial = 3 if "3d" in base else 2
    window, stride, padding = (_argument(signature, place) for place in (1, 2, 3))
    dilation: Literal = [1] if dilation_at is None else _argument(signature, dilation_at)
    if not spatial <= len(data) <= spatial + 2:
        return None, None
    up = _argument(signature, round_at) is True
    sizes = _window_places(data[-spatial:], window, stride or window, padding, dilation, up=up)
    return None, None if sizes is None else prod((*data[:-spatial], *sizes))


RESAMPLED = frozenset(
    f"{name}{backward}"
    for name in (
        *(f"upsample_{way}" for way in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
        *(f"{way}{dims}d" for way in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)),
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    )
    for backward in ("", "_backward")
)
"""aten ops whose second argument (for gradient ops: third argument) is the size of the result."""
GROUPED = {"_grouped_mm": 2, "_scaled_grouped_mm": 4}
"""Grouped product of aten → position of the argument that holds the end of each group."""
RULES = (
    (PRODUCTS, _product),
    (PRODUCTS_OF_ANY_RANK, _product_of_any_rank),
    (GROUPED, _grouped_product),
    (("ger", "outer"), _outer),
    (("bilinear",), _bilinear),
    (("_trilinear",), _trilinear),
    (LINEAR, _linear),
    (ATTENTION, _attention),
    (CONVOLUTIONS, _convolution),
    (CONVOLUTIONS_BACKWARD, _gradients),
    (POOLS, _pooled),
    (POOLS_BACKWARD, _pool_gradient),
    (RESAMPLED, _resampled),
    (("im2col",), _windows),
)
"""(aten ops, function that returns their operations and result elements).

If the recorded arguments do not suffice, the function returns None for both.
"""


def _window_places(
    sizes: tuple[int, ...], widths: Literal, stride: Literal, padding: Literal, dilation: Literal, *, up: bool = False
) -> list[int] | None:
    """Return the number of window positions in each dimension, rounded up with `up`.

    Returns None if arguments are missing.
    """
    counts: list[int] = []
    for dim, size in enumerate(sizes):
        width, step, pad, far = (_of_dim(values, dim) for values in (widths, stride, padding, dilation))
        if width is None or step is None or pad is None or far is None or step < 1:
            return None
        room = size + 2 * pad - far * (width - 1) - 1
        count = (room + (step - 1) * up) // step + 1
        # No window begins in the padding behind.
        counts.append(max(0, count - (up and (count - 1) * step >= size + pad)))
    return counts


def _argument(signature: OpSignature, place: int) -> Literal:
    """Return the recorded value of an argument, or None if there is none."""
    concrete = signature.concrete or ()
    return parse_literal(concrete[place]) if place < len(concrete) else None


def _of_dim(values: Literal, dim: int) -> int | None:
    """Return the entry for a dimension from a list that has one entry per dimension, or one for all."""
    if not isinstance(values, list) or not values:
        return None
    value = values[dim] if dim < len(values) else values[0]
    return value if isinstance(value, int) else None
