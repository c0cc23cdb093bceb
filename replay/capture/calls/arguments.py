"""Converts one Python call to the form of the IR.

Arguments get the names in the schema, and tensors are represented by their metadata. Handles single calls only;
`storages` tracks each tensor's storage across calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from opreplay.replay.arguments.tensors import DTYPES, flattened
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.traces.literals import plain_float
from opreplay.traces.model import TensorMeta

ALIGNED_BYTES = 512
"""Alignment of torch's memory allocators, in bytes. Storage offsets are recorded modulo this number."""
MAX_TEXT = 128
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WRAPPED = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
"""Type of a Python number → dtype of the 0-dim tensor that torch creates from it."""
_ENUMS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors of an argument or a result in order, with lists flattened."""
    return (item for item in flattened(value) if isinstance(item, torch.Tensor))


def is_dense(tensor: torch.Tensor) -> bool:
    """Check whether sizes and strides fully describe a tensor's layout."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def metas_of(tensors: Sequence[torch.Tensor]) -> list[TensorMeta | None]:
    """Return the metadata of the tensors of one call.

    Tensors whose bytes overlap have the same storage number. The entry is None for a tensor that is sparse, nested,
    quantized, or of a dtype that plans do not support.
    """
    spans: list[tuple[int, int, int]] = []
    for tensor in tensors:
        if not is_dense(tensor) or tensor.dtype not in _NAMES:
            spans.append((-1, 0, 0))
            continue
        itemsize = tensor.itemsize
        begin = int(tensor.storage_offset()) * itemsize
        reach = 0
        if tensor.numel():
            reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        spans.append((tensor.untyped_storage()._cdata, begin, begin + int(reach) * itemsize))
    bases, numbers = _shared_numbers(spans)
    return [
        None
        if span[0] == -1
        else TensorMeta(
            shape=tuple(map(int, tensor.shape)),
            dtype=_NAMES[tensor.dtype],
            strides=tuple(map(int, tensor.stride())),
            storage_offset=(span[1] - bases[at]) // tensor.itemsize,
            storage=numbers[at],
        )
        for at, (tensor, span) in enumerate(zip(tensors, spans, strict=True))
    ]


def _shared_numbers(spans: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int | None]]:
    """Return two lists with one entry for each span (storage, begin byte, end byte).

    The first list holds the byte from which the span's offset is counted. The second holds a number that overlapping
    spans share, and None for spans that overlap no other.
    """
    bases = [begin // ALIGNED_BYTES * ALIGNED_BYTES for _, begin, _ in spans]
    numbers: list[int | None] = [None] * len(spans)
    if len({span[0] for span in spans}) == len(spans):
        return bases, numbers
    for number, group in enumerate(_overlapping(spans)):
        for at in group:
            bases[at], numbers[at] = bases[group[0]], number
    return bases, numbers


def _overlapping(spans: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Return groups of two or more spans that overlap in one storage; a group lists indices of spans."""
    groups: list[list[int]] = []
    storage, end = -1, 0
    for at in sorted((at for at, span in enumerate(spans) if span[0] != -1), key=lambda at: spans[at]):
        if spans[at][0] == storage and (spans[at][1] < end or spans[at] == spans[groups[-1][-1]]):
            groups[-1].append(at)
            end = max(end, spans[at][2])
        else:
            groups.append([at])
            storage, end = spans[at][0], spans[at][2]
    return sorted((group for group in groups if len(group) > 1), key=min)


def named_values(spec: OpSpec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[ArgSpec, Any]]:
    """Return (schema argument, value) pairs in the schema's order; arguments left at their default are omitted."""
    positional = [arg for arg in spec.args if not arg.keyword_only]
    values = {**dict(zip((arg.name for arg in positional), args, strict=False)), **kwargs}
    return [(arg, values[arg.name]) for arg in spec.args if arg.name in values]


def key_of_value(value: Any) -> Any:
    """Return a key that distinguishes the values of arguments. All tensors have the same key, because their metadata is
    compared separately.
    """
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, list | tuple):
        return tuple(key_of_value(item) for item in value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | complex):
        return type(value).__name__, repr(value)
    return str(value) if isinstance(value, _ENUMS) else type(value)


def argument(spec: ArgSpec, value: Any, metas: Iterable[TensorMeta | None]) -> ReplayArg | None:
    """Return one argument in the form of the IR; None for a value that a plan cannot hold, such as a process group or a
    script object.

    `metas` yields the metadata of the argument's tensors in order.
    """
    kind, remaining = spec.kind, iter(metas)
    tensors: tuple[TensorMeta | None, ...] = ()
    plain: Any = None
    if isinstance(value, torch.Tensor):
        kind, tensors = "Tensor", (next(remaining),)
    elif kind == "Tensor[]" and isinstance(value, list | tuple):
        items = list(_flat(value))
        if not all(item is None or isinstance(item, torch.Tensor) for item in items):
            return None
        tensors = tuple(None if item is None else next(remaining) for item in items)
        plain = None if tensors else ()
    elif kind == "Tensor" and type(value) in _WRAPPED:
        tensors, plain = (TensorMeta(shape=(), dtype=_WRAPPED[type(value)]),), _plain(value)
    elif value is not None:
        plain = _plain_argument(kind, value)
        kind = f"{kind}[]" if isinstance(value, list | tuple) and not kind.endswith("[]") else kind
    if plain is _UNKNOWN:
        return None
    return ReplayArg(
        name=spec.name, type=kind, tensors=tensors, value=plain, keyword_only=spec.keyword_only, mutated=spec.mutated
    )


def _flat(value: Any) -> Iterable[Any]:
    for item in value:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


_UNKNOWN: Any = object()


def _plain_argument(kind: str, value: Any) -> Any:
    plain = _UNKNOWN if kind in ("opaque", "Generator") else _plain(value)
    if isinstance(plain, str) and len(plain) > MAX_TEXT:
        return _UNKNOWN
    return float(plain) if kind == "float" and type(plain) is int else plain


def _plain(value: Any) -> Any:
    """Return a value in the form of the IR."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return plain_float(value)
    if isinstance(value, complex):
        return str(value).strip("()")
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, list | tuple):
        items = tuple(_plain(item) for item in value)
        return _UNKNOWN if _UNKNOWN in items else items
    return str(value) if isinstance(value, _ENUMS) else _UNKNOWN


def of_numbers(tensor: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap `torch.tensor` so that it reads the tensors in a list one by one.

    A dispatch mode then sees each read. If fake tensors have known values, the mode can return them.
    """

    def called(data: Any, **named: Any) -> torch.Tensor:
        leaves: list[Any] = tree_leaves(data) if isinstance(data, list | tuple) else []
        if leaves and all(isinstance(leaf, torch.Tensor) and not leaf.dim() for leaf in leaves):
            named.setdefault("dtype", reduce(torch.promote_types, (leaf.dtype for leaf in leaves)))
            data = tree_map(torch.Tensor.item, data)
        return tensor(data, **named)

    return called
