"""Reads and writes .safetensors files: a length, a JSON header, raw bytes; what is read is checked before it is used.

Owns the format, not which op a tensor is for (`values`). Nothing of the file is executed or unpickled.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opreplay.traces.errors import FormatError
from opreplay.traces.folders import open_regular
from opreplay.traces.limits import MAX_RANK

if TYPE_CHECKING:
    import torch

HEADER_BYTES = 16 << 20
"""Largest header read; the format's own limit is 100 MB, for files of hundreds of thousands of tensors."""
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
"""The format's name → torch's name and bytes an element. Types below a byte are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies in a file."""

    dtype: str
    """torch's name, e.g. "int32"."""
    shape: tuple[int, ...]
    begin: int
    """Offset of its first byte in the file."""
    size_bytes: int


class SafetensorsFile:
    """The tensors of a file by name; their bytes are read when asked for."""

    def __init__(self, path: str | Path) -> None:
        """Read and check the header. Raises FormatError for whatever is no sound .safetensors file."""
        self.path = Path(path)
        self.tensors = _read_header(self.path)

    def read(self, name: str) -> bytearray:
        """The bytes of a tensor, in C order. Raises FormatError when the file has changed since it was opened."""
        stored = self.tensors[name]
        data = bytearray(stored.size_bytes)
        try:
            with open_regular(self.path, sys.maxsize) as file:
                file.seek(stored.begin)
                got = file.readinto(data)
        except OSError as error:
            raise FormatError(f"cannot read {self.path}: {error.strerror}") from None
        if got != stored.size_bytes:
            raise FormatError(f"{self.path} ends inside {name!r}", hint="The file changed while it was in use.")
        return data

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own. Raises FormatError as `read` does."""
        import torch

        stored = self.tensors[name]
        dtype: torch.dtype = getattr(torch, stored.dtype)
        if not stored.size_bytes:
            return torch.empty(stored.shape, dtype=dtype)
        raw = torch.frombuffer(self.read(name), dtype=torch.uint8)
        # A byte other than 0 and 1 is no valid bool in memory.
        return (raw != 0 if dtype is torch.bool else raw.view(dtype)).reshape(stored.shape)


def safetensors_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A file with these tensors, in C order. Raises ValueError for a dtype that the format has no name for."""
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
                    f"{path} has a header of {length} bytes, limit {HEADER_BYTES}",
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
        raise _damaged(path, "its header is no object")
    start = _LENGTH_BYTES + length
    stored_tensors = {
        name: _entry(path, name, entry, start, total - start)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    _check_layout(path, stored_tensors, start, total)
    if not stored_tensors:
        raise FormatError(f"{path} holds no tensors")
    return stored_tensors


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are distinct; a second tensor of one name would hide the first."""
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        raise ValueError("a name is used twice")
    return by_key


def _entry(path: Path, name: str, entry: Any, start: int, room: int) -> StoredTensor:
    """One tensor of the header, its offsets, shape and type in agreement with each other and with the file."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"{name!r} has no dtype, shape and data_offsets")
    spelled, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if str(spelled) not in DTYPES:
        raise FormatError(f"{path}: {name!r} has dtype {spelled!r}", hint=f"Read are {', '.join(DTYPES)}.")
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise _damaged(path, f"{name!r} has no valid shape")
    if not _naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise _damaged(path, f"the bytes of {name!r} lie outside the file")
    dtype, itemsize = DTYPES[spelled]
    size = offsets[1] - offsets[0]
    if math.prod(shape) * itemsize != size:
        raise _damaged(path, f"{name!r} has {size} bytes, its shape {shape} and dtype {spelled} another number")
    return StoredTensor(dtype=dtype, shape=tuple(shape), begin=start + offsets[0], size_bytes=size)


def _naturals(value: Any) -> bool:
    """Whether this is a list of whole numbers that are not negative; JSON's true is none."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _check_layout(path: Path, stored_tensors: dict[str, StoredTensor], start: int, total: int) -> None:
    """Tensors follow each other without overlap or gap up to the end, as the format asks."""
    at = start
    for stored in sorted(stored_tensors.values(), key=lambda one: (one.begin, one.size_bytes)):
        if stored.begin != at:
            raise _damaged(path, "its tensors overlap or leave gaps")
        at += stored.size_bytes
    if at != total:
        raise _damaged(path, f"{total - at} bytes belong to no tensor")


def _damaged(path: Path, why: str) -> FormatError:
    return FormatError(f"{path} is no sound .safetensors file: {why}", hint="safetensors.torch.save_file writes one.")
