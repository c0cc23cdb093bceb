# pyright: strict
"""Data types by torch name ("bfloat16"): sizes, and the type names that profilers record. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

ITEMSIZE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
    "quint4x2": 1,
    "quint2x4": 1,
    "bits1x8": 1,
    "bits2x4": 1,
    "bits4x2": 1,
    "bits8": 1,
    "bits16": 2,
    **dict.fromkeys((f"{sign}int{bits}" for bits in range(1, 8) for sign in ("u", "")), 1),
}
"""torch dtype name → bytes of one element; torch stores each integer of 1 to 7 bits in one byte."""

CPP_SPELLINGS: dict[str, str] = {
    "bool": "bool",
    "unsigned char": "uint8", "uint8_t": "uint8", "signed char": "int8", "char": "int8", "int8_t": "int8",
    "short": "int16", "short int": "int16", "unsigned short": "uint16", "short unsigned int": "uint16",
    "int": "int32", "unsigned int": "uint32", "unsigned": "uint32",
    "long": "int64", "long int": "int64", "long long": "int64", "long long int": "int64", "int64_t": "int64",
    "unsigned long": "uint64", "long unsigned int": "uint64", "unsigned long long": "uint64",
    "long long unsigned int": "uint64",
    "__int64": "int64", "unsigned __int64": "uint64", "__int32": "int32", "unsigned __int32": "uint32",
    "__int16": "int16", "unsigned __int16": "uint16", "__int8": "int8", "unsigned __int8": "uint8",
    "int16_t": "int16", "int32_t": "int32", "uint16_t": "uint16", "uint32_t": "uint32", "uint64_t": "uint64",
    "c10::Half": "float16", "half": "float16", "c10::BFloat16": "bfloat16", "float": "float32", "double": "float64",
    "c10::complex<c10::Half>": "complex32", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2": "float8_e5m2", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu", "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "c10::qint8": "qint8", "c10::quint8": "quint8", "c10::qint32": "qint32",
    "c10::quint4x2": "quint4x2", "c10::quint2x4": "quint2x4",
    **{f"c10::{name}": name for name in ("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16")},
    **{f"c10::dummy_{sign}int1_7_t<{bits}>": f"{sign}int{bits}" for bits in range(1, 8) for sign in ("u", "")},
}  # fmt: skip
"""C++ type name that builds of torch record under "Input type" → torch dtype name. `__int64` is MSVC's name.

`torch_dtype_name` accepts these names with any namespace and with MSVC's `struct`, `class` and `enum`.
"""

ABSENT_TYPES = frozenset({"", "None", "nullptr (uninitialized)", "Undefined", "undefined"})
"""Type names of absent arguments."""
SCALAR_TYPES = frozenset({"Scalar", "Int", "Double", "Bool", "Long", "Number", "ComplexDouble"})
SCALAR_LIST_TYPES = frozenset({"ScalarList", "IntList", "DoubleList", "BoolList"})
TENSOR_LIST_TYPES = frozenset({"TensorList", "Tensor[]", "OptionalTensorList"})
_OTHER_TYPES = frozenset((
    "Await", "Blob", "Capsule", "Device", "Dict", "Enum", "Future", "GenericDict", "GenericList", "Generator", "Layout",
    "MemoryFormat", "Object", "PyObject", "QScheme", "Quantizer", "RRef", "ScalarType", "Storage", "Stream", "String",
    "SymBool", "SymFloat", "SymInt", "Tuple", "Uninitialized",
))  # fmt: skip
"""Names of torch's other IValue types (ATen/core/ivalue.h, TORCH_FORALL_TAGS); their values are not recorded."""

MASKS = ("bool", "uint8")
"""dtypes of index tensors that are masks rather than lists of indices."""

SCALAR_TYPE_CODES: tuple[str, ...] = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "bool",
    "qint8",
    "quint8",
    "qint32",
    "bfloat16",
    "quint4x2",
    "quint2x4",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bits16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
    "uint16",
    "uint32",
    "uint64",
    *(f"uint{bits}" for bits in range(1, 8)),
    *(f"int{bits}" for bits in range(1, 8)),
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
"""torch dtype names, indexed by the number that a trace records for a c10::ScalarType (c10/core/ScalarType.h of torch
2.13).
"""

INTEGERS = frozenset(name for name in ITEMSIZE_BYTES if name.startswith(("int", "uint")))
QUANTIZED = frozenset(name for name in ITEMSIZE_BYTES if name.startswith(("qint", "quint")))
"""Element types with a scale and a zero point, neither of which any profiler records."""


def torch_dtype_name(recorded: str) -> str | None:
    """Return the torch dtype name for a recorded type name; None if it is not a tensor element type."""
    return CPP_SPELLINGS.get(recorded) or _normalised_dtype_name(recorded)


@lru_cache(maxsize=4096)
def _normalised_dtype_name(recorded: str) -> str | None:
    bare = _strip(recorded)
    return _BY_BARE_NAME.get(bare, bare if bare in ITEMSIZE_BYTES else None)


def _strip(recorded: str) -> str:
    """Remove namespaces, MSVC's `struct` and similar keywords, and superfluous spaces from a C++ type name."""
    if len(recorded) > _LONGEST_NAME:
        return recorded
    return " ".join(_DECORATION.sub("", recorded).replace("<", " < ").replace(">", " > ").split())


_LONGEST_NAME = 200
_DECORATION = re.compile(r"\b(?:struct|class|enum|signed(?=\s+__int)|const|torch\.)\s*(?=[\s_:\w])|\b\w+::|^\s*::")
_BY_BARE_NAME = {_strip(spelling): name for spelling, name in CPP_SPELLINGS.items()}


def common_spelling(recorded: str) -> str:
    """Return the name that GCC and Clang use for a type that MSVC spells differently.

    Examples are "c10::Half" for "struct c10::Half" and "long int" for "__int64". Other names are returned unchanged.
    """
    if not _OF_MSVC.search(recorded):
        return recorded
    dtype = torch_dtype_name(recorded)
    return recorded if dtype is None else _COMMON_NAMES.get(dtype, recorded)


_OF_MSVC = re.compile(r"\b(?:struct|class|enum)\s|\b__int\d")
_COMMON_NAMES = {
    **{dtype: name for name, dtype in reversed(CPP_SPELLINGS.items()) if not _OF_MSVC.search(name)},
    "int64": "long int",
}


_KNOWN_KINDS = ABSENT_TYPES | SCALAR_TYPES | SCALAR_LIST_TYPES | TENSOR_LIST_TYPES


def unknown_types(types: Iterable[str]) -> list[str]:
    """Return the recorded type names that are neither tensor element types nor other known argument types."""
    return [name for name in types if not _is_known(name)]


@lru_cache(maxsize=4096)
def _is_known(name: str) -> bool:
    kind = re.split(r"[\[(<]", name, maxsplit=1)[0]
    return name in _KNOWN_KINDS or kind in _OTHER_TYPES or torch_dtype_name(name) is not None
