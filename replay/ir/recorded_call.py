"""One recorded call as typed values. They are read from the four columns of argument metadata that a trace has.

This module parses spellings, texts and gaps. `schema` handles schemas, `inference` missing values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from opreplay.traces.dtypes import (
    ABSENT_TYPES,
    SCALAR_LIST_TYPES,
    SCALAR_TYPE_CODES,
    SCALAR_TYPES,
    TENSOR_LIST_TYPES,
    torch_dtype_name,
    unknown_types,
)
from opreplay.traces.literals import parse_literal, plain_float
from opreplay.traces.model import OpSignature, TensorMeta

Kind = Literal["tensor", "tensors", "scalar", "scalars", "absent", "unknown"]
"""Kind of an argument according to the trace.

"absent": the entry is empty. The argument is None, a string, a device, or a list that is too long to record. "unknown":
no types were recorded.
"""

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""Value of a scalar or list whose text was not recorded."""

_UNTOLD = re.compile(r"<\w+>")
"""Placeholder in an ExecutionTrace for a value that the format cannot express: "<ComplexDouble>"."""
CODES: dict[str, tuple[str, ...]] = {
    "ScalarType": tuple(f"torch.{name}" for name in SCALAR_TYPE_CODES),
    "Layout": (
        "torch.strided",
        "torch.sparse_coo",
        "torch.sparse_csr",
        "torch._mkldnn",
        "torch.sparse_csc",
        "torch.sparse_bsr",
        "torch.sparse_bsc",
        "torch.jagged",
    ),
    "MemoryFormat": (
        "torch.contiguous_format",
        "torch.preserve_format",
        "torch.channels_last",
        "torch.channels_last_3d",
    ),
}
"""Values of enumerations, indexed by the recorded integer (c10/core/{ScalarType,Layout,MemoryFormat}.h)."""
Memory = tuple[int, int | None]
"""(offset in elements, number of the memory if other tensors share it, otherwise None)."""
_OWN_MEMORY: Memory = (0, None)


class RecordedArg(msgspec.Struct, frozen=True, kw_only=True):
    """One argument as recorded."""

    kind: Kind
    tensor: TensorMeta | None = None
    tensors: tuple[TensorMeta | None, ...] | None = None
    """Tensors of a list; None if not even their number was recorded."""
    value: Any = None
    """Plain scalar (complex as text) or tuple of scalars; MISSING if not recorded."""
    strides_recorded: bool = True
    unlike_strided: bool = False
    """Whether strides were recorded for the call, but not for this tensor. The tensor is then sparse, or has another
    layout without strides.
    """

    @property
    def metas(self) -> tuple[TensorMeta | None, ...]:
        """The argument's tensor, or the tensors of its list; () for other arguments and lists of unknown length."""
        return (self.tensor,) if self.kind == "tensor" else self.tensors or ()


ABSENT = RecordedArg(kind="absent")


@lru_cache(maxsize=512)  # guesses look at the calls around each op again and again
def recorded_args(signature: OpSignature) -> tuple[RecordedArg, ...]:
    """Return the arguments of a recorded call, one for each entry of "Input Dims". () if none are recorded."""
    if signature.dims is None:
        return ()
    shared = _shared_memories(signature)
    # A profile of torch_npu writes the dimensions of a single 0-dim tensor as nothing at all.
    count = len(signature.dims) or len(signature.types or ())
    return tuple(_argument(signature, i, shared) for i in range(count))


def recorded_results(signature: OpSignature) -> tuple[TensorMeta | None, ...] | None:
    """Return the results of a recorded call; None if they were not recorded. An entry is None if the result is not a
    tensor of known dtype.
    """
    if signature.results is None:
        return None
    metas = []
    for result in signature.results:
        dtype = torch_dtype_name(result[0]) if result is not None else None
        metas.append(TensorMeta(shape=result[1], dtype=dtype) if result is not None and dtype is not None else None)
    return tuple(metas)


def _shared_memories(signature: OpSignature) -> frozenset[int]:
    """Return the numbers of the memories that contain more than one tensor of the call."""
    counts = Counter(number for places in signature.storage or () for number, _ in places if number >= 0)
    return frozenset(number for number, count in counts.items() if count > 1)


def _argument(signature: OpSignature, i: int, shared: frozenset[int]) -> RecordedArg:
    dims: Any = signature.dims[i] if signature.dims else ()  # nothing at all: a 0-dim tensor, or no tensor
    spelled, text, strides = (_at(each, i) for each in (signature.types, signature.concrete, signature.strides))
    if spelled is None:
        return _untyped(dims)
    if spelled in ABSENT_TYPES:
        return _absent(text)
    if spelled in SCALAR_TYPES:
        return RecordedArg(kind="scalar", value=_value_of(text))
    if spelled in SCALAR_LIST_TYPES:
        value = _value_of(text)
        return RecordedArg(kind="scalars", value=value if isinstance(value, tuple) else MISSING)
    places = _at(signature.storage, i) or ()
    memory = [(offset, number if number in shared else None) for number, offset in places]
    if spelled in TENSOR_LIST_TYPES or _is_nested(dims):
        return _tensor_list(dims, strides, _at(signature.list_types, i), memory)
    if not dims and not text and unknown_types((spelled,)):
        return RecordedArg(kind="unknown", value=MISSING)
    return _tensor(dims, torch_dtype_name(spelled), strides, memory, text)


def _at(column: Sequence[Any] | None, i: int) -> Any:
    """Return the entry of a column for an argument; None if the column is not recorded or too short."""
    return column[i] if column is not None and i < len(column) else None


def _absent(text: str | None) -> RecordedArg:
    return RecordedArg(kind="scalar", value=_plain(parse_literal(text))) if text else ABSENT


def _is_nested(dims: Any) -> bool:
    return bool(dims) and isinstance(dims[0], tuple)


def _tensor(dims: Any, dtype: str | None, strides: Any, memory: Sequence[Memory], text: str | None) -> RecordedArg:
    """Return a tensor argument. If the dtype of a tensor with dimensions is unknown, it becomes "", to be inferred
    later.
    """
    if not _are_integers(dims):
        return _absent(text) if dtype is None else RecordedArg(kind="unknown", value=MISSING)
    if dtype is None and not dims:
        return _absent(text)
    meta = _meta(dims, dtype or "", strides, _at(memory, 0))
    unlike_strided = bool(dims) and strides == ()
    return RecordedArg(
        kind="tensor", tensor=meta, strides_recorded=meta.strides is not None, unlike_strided=unlike_strided
    )


def _untyped(dims: Any) -> RecordedArg:
    """Return an argument without a type. If it has dimensions, it is a tensor; otherwise its kind is unknown."""
    if _is_nested(dims):
        return _tensor_list(dims, None, None, ())
    if dims and _are_integers(dims):
        return RecordedArg(kind="tensor", tensor=TensorMeta(shape=tuple(dims), dtype=""), strides_recorded=False)
    return RecordedArg(kind="unknown", value=MISSING)


def _tensor_list(dims: Any, strides: Any, dtypes: Sequence[str] | None, memory: Sequence[Memory]) -> RecordedArg:
    """Return a list of tensors. If element types were not recorded, their dtype is "". An absent element is None."""
    if not dims or not all(map(_are_integers, dims)):
        return RecordedArg(kind="tensors", tensors=None, strides_recorded=False)
    nested = isinstance(strides, tuple) and len(strides) == len(dims)
    steps = strides if nested else [None] * len(dims)
    metas: list[TensorMeta | None] = []
    for j, (shape, step) in enumerate(zip(dims, steps, strict=True)):
        spelled = _at(dtypes, j)
        dtype = torch_dtype_name(spelled or "") or ""
        metas.append(None if spelled == "" else _meta(shape, dtype, step, _at(memory, j)))
    return RecordedArg(
        kind="tensors",
        tensors=tuple(metas),
        strides_recorded=nested,
        unlike_strided=nested and any(shape and not step for shape, step in zip(dims, steps, strict=True)),
    )


def _meta(dims: Any, dtype: str, strides: Any, memory: Memory | None) -> TensorMeta:
    """Return a tensor's metadata. Strides of the wrong rank, as of sparse and nested tensors, count as not recorded."""
    shape = tuple(dims)
    if not _are_integers(strides) or len(strides) != len(shape):
        strides = () if not shape else None
    offset, number = memory or _OWN_MEMORY
    return TensorMeta(shape=shape, dtype=dtype, strides=strides, storage_offset=max(offset, 0), storage=number)


def _are_integers(numbers: Any) -> bool:
    return isinstance(numbers, tuple) and all(isinstance(n, int) for n in numbers)


def _value_of(text: str | None) -> Any:
    if text is None or text == "" or _UNTOLD.fullmatch(text):
        return MISSING
    return _plain(parse_literal(text))


def _plain(value: Any) -> Any:
    """Return the JSON-safe form of a parsed literal; lists become tuples."""
    return tuple(_plain(item) for item in value) if isinstance(value, list) else plain_number(value)


def plain_number(value: Any) -> Any:
    """Return a number in a form that JSON supports. Complex and non-finite numbers become text; other values stay
    unchanged.
    """
    if isinstance(value, complex):
        return str(value).strip("()")
    if isinstance(value, float):
        return plain_float(value)
    return value
