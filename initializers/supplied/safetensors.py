"""Read and write .safetensors files, which consist of a length, a JSON header and raw bytes.

Everything read is validated before use, and nothing in the file is executed or unpickled. This module handles the
format; `values` decides which op a tensor is for. Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.traces.errors import FormatError
from opreplay.traces.folders import open_regular
from opreplay.traces.limits import MAX_RANK

if TYPE_CHECKING:
    import torch

HEADER_BYTES = 16 << 20
"""Maximum header size in bytes. The format allows 100 MB, which only files of hundreds of thousands of tensors need."""
_LENGTH_BYTES = 8

DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
"""Dtype name in the format → name in torch and bytes per element. Dtypes smaller than a byte are not supported."""


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Position, shape and dtype of one tensor in a file."""

    dtype: str
    """Dtype name in torch, e.g. "int32"."""
    shape: tuple[int, ...]
    begin: int
    """Offset of the tensor's first byte in the file."""
    size_bytes: int


class SafetensorsFile:
    """The tensors of a file by name; their bytes are read on demand."""

    def __init__(self, path: str | Path) -> None:
        """Read and check the header. Raises FormatError if the file is not a valid .safetensors file."""
        self.path = Path(path)
        self.tensors = _read_header(self.path)

    def read(self, name: str) -> bytearray:
        """Return the bytes of a tensor, in C order. Raises FormatError if the file has changed since it was opened."""
        stored = self.tensors[name]
        data = bytearray(stored.size_bytes)
        try:
            with open_regular(self.path, sys.maxsize) as file:
                file.seek(stored.begin)
                got = file.readinto(data)
        except OSError as error:
            raise FormatError(f"cannot read {self.path}: {error.strerror}") from None
        if got != stored.size_bytes:
            raise FormatError(f"{self.path} ends within tensor {name!r}", hint="The file changed while it was in use.")
        return data

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor with its own memory. Raises FormatError if the file has changed since it was opened."""
        import torch

        stored = self.tensors[name]
        dtype: torch.dtype = getattr(torch, stored.dtype)
        if not stored.size_bytes:
            return torch.empty(stored.shape, dtype=dtype)
        raw = torch.frombuffer(self.read(name), dtype=torch.uint8)
        # A byte other than 0 and 1 is no valid bool in memory.
        return (raw != 0 if dtype is torch.bool else raw.view(dtype)).reshape(stored.shape)


def safetensors_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the contents of a .safetensors file with these tensors, in C order.

    Raises ValueError for a dtype that the format does not support.
    """
    import torch

    spelled = {dtype: name for name, (dtype, _) in DTYPES.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in spelled:
            raise ValueError(f"{name} is {dtype}")
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        parts.append(flat.view(torch.uint8).numpy().tobytes())
        header[name] = {
            "dtype": spelled[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(parts[-1])],
        }
        at += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + b"".join(parts)


def _read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        with open_regular(path, sys.maxsize) as file:  # only its header is read whole
            total = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > total - _LENGTH_BYTES:
                raise _damaged(path, f"a header of {length} bytes in a file of {total}")
            if length > HEADER_BYTES:
                raise FormatError(
                    f"{path} has a header of {length} bytes, over the limit of {HEADER_BYTES}",
                    hint="Keep only the tensors that the replayed ops need.",
                )
            text = file.read(length)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    try:
        header = json.loads(text.decode(), object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header: {error}") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    start = _LENGTH_BYTES + length
    stored_tensors = {
        name: _entry(path, name, entry, start, total - start)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    _check_layout(path, stored_tensors, start, total)
    if not stored_tensors:
        raise FormatError(f"{path} contains no tensors")
    return stored_tensors


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raises ValueError for a repeated key, because its last value would hide the
    others.
    """
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        raise ValueError("a name is used twice")
    return by_key


def _entry(path: Path, name: str, entry: Any, start: int, room: int) -> StoredTensor:
    """Return one tensor of the header. Raises FormatError if offsets, shape, dtype and file size do not match."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"{name!r} has no dtype, shape and data_offsets")
    spelled, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if str(spelled) not in DTYPES:
        raise FormatError(f"{path}: {name!r} has dtype {spelled!r}", hint=f"Supported dtypes: {', '.join(DTYPES)}.")
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise _damaged(path, f"{name!r} has no valid shape")
    if not _naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise _damaged(path, f"the bytes of {name!r} lie outside the file")
    dtype, itemsize = DTYPES[spelled]
    size = offsets[1] - offsets[0]
    if math.prod(shape) * itemsize != size:
        raise _damaged(path, f"{name!r} has {size} bytes, which does not match its shape {shape} and dtype {spelled}")
    return StoredTensor(dtype=dtype, shape=tuple(shape), begin=start + offsets[0], size_bytes=size)


def _naturals(value: Any) -> bool:
    """Return whether a value is a list of integers from 0 to 2**63 - 1; JSON's true does not count as an integer."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _check_layout(path: Path, stored_tensors: dict[str, StoredTensor], start: int, total: int) -> None:
    """Raise FormatError unless the tensors fill the file without overlap or gap, as the format requires."""
    at = start
    for stored in sorted(stored_tensors.values(), key=lambda one: (one.begin, one.size_bytes)):
        if stored.begin != at:
            raise _damaged(path, "its tensors overlap or leave gaps")
        at += stored.size_bytes
    if at != total:
        raise _damaged(path, f"{total - at} bytes belong to no tensor")


def _damaged(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path} is not a valid .safetensors file: {why}", hint="safetensors.torch.save_file writes valid ones."
    )
