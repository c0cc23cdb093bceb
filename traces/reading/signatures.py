# pyright: strict
"""Decode the raw texts of distinct ops into `OpSignature`s; merge texts that differ only in spelling."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import msgspec
import numpy as np

from opreplay.traces.arrays import ArrayOf
from opreplay.traces.model import OpSignature
from opreplay.traces.reading.decoding import NOT_JSON

MAX_NESTING = 16
_ASCEND_SEPARATOR = ";"
"""torch_npu writes lists as one text, "4,8;\\r\\n16"; opreplay strips the line ends."""


class _Unreadable(ValueError):
    """A field in a format that no profiler writes."""


def decode_name(raw: bytes) -> tuple[str, bool]:
    """Return a recorded name and whether it had to be repaired; "" if it is not text."""
    if not raw:
        return "", False
    try:
        value = msgspec.json.decode(raw)
        value.encode() if isinstance(value, str) else None
        repaired = False
    except NOT_JSON:
        # Names are not decoded with their events, so broken UTF-8 in one shows only here.
        text = raw.decode("utf-8", "replace")
        try:
            value = msgspec.json.decode(text.encode())
        except NOT_JSON:
            value = text.strip('"')
        repaired = True
    return (value if isinstance(value, str) else str(value)), repaired


def decode_signatures(
    keys: list[bytes], losses: Counter[str], repairs: Counter[str]
) -> tuple[tuple[OpSignature, ...], ArrayOf[np.uint32]]:
    """Return (distinct signatures, index into them for each key).

    A key consists of the five raw texts of an op, joined by NUL bytes. Losses and repairs are counted per distinct
    text, not per call.
    """
    index: dict[OpSignature, int] = {}
    remap = np.empty(len(keys), np.uint32)
    for i, key in enumerate(keys):
        remap[i] = index.setdefault(_decode(key, losses, repairs), len(index))
    return tuple(index), remap


def _decode(key: bytes, losses: Counter[str], repairs: Counter[str]) -> OpSignature:
    name_raw, dims_raw, types_raw, strides_raw, concrete_raw = _parts(key)
    name, repaired = decode_name(name_raw)
    if repaired:
        repairs["invalid UTF-8"] += 1
    try:
        signature = OpSignature(
            name=name,
            dims=_shapes(dims_raw),
            types=_texts(types_raw),
            strides=_shapes(strides_raw),
            concrete=_texts(concrete_raw),
        )
    except (_Unreadable, *NOT_JSON):
        losses["unreadable argument metadata"] += 1
        return OpSignature(name=name)
    if _lengths_differ(signature):
        losses["the argument lists have different lengths"] += 1
        return OpSignature(name=name)
    return signature


def _lengths_differ(signature: OpSignature) -> bool:
    """Check whether the argument lists differ in length. Return False if there are no dims, because torch_npu omits
    them for a single 0-dim tensor.
    """
    if not signature.dims:
        return False
    columns = (signature.types, signature.strides, signature.concrete)
    return any(column is not None and len(column) != len(signature.dims) for column in columns)


def _parts(key: bytes) -> list[bytes]:
    parts = key.split(b"\0")
    if len(parts) != 5:  # a NUL byte inside a text: no JSON, hence nothing to read
        return [parts[0], b"0", b"", b"", b""]
    return parts


def _shapes(raw: bytes) -> Any:
    if not raw or raw == b"null":
        return None
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        value = [[part for part in entry.strip().split(",") if part] for entry in _split(value)]
    if not isinstance(value, list):
        raise _Unreadable
    entries = cast("list[Any]", value)
    return tuple(_dims(entry, 1) for entry in entries)


def _dims(entry: Any, depth: int) -> Any:
    """Return one entry of dims or strides as nested tuples of ints."""
    if isinstance(entry, list):
        if depth > MAX_NESTING:
            raise _Unreadable
        items = cast("list[Any]", entry)
        return tuple(_dims(item, depth + 1) if isinstance(item, list) else _int(item) for item in items)
    if entry is None or entry == "":
        return ()
    return (_int(entry),)


def _int(item: Any) -> int:
    if type(item) is int:
        return item
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, str) and len(item) < 30:
        try:
            return int(item)
        except ValueError:
            raise _Unreadable from None
    raise _Unreadable


def _texts(raw: bytes) -> tuple[str, ...] | None:
    if not raw or raw == b"null":
        return None
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        return tuple(part.strip() for part in _split(value))
    if not isinstance(value, list):
        raise _Unreadable
    items = cast("list[Any]", value)
    return tuple(item if isinstance(item, str) else _text(item) for item in items)


def _text(item: Any) -> str:
    if item is None:
        return ""
    if isinstance(item, bool):
        return str(item)
    return msgspec.json.encode(item).decode()


def _split(value: str) -> list[str]:
    return value.split(_ASCEND_SEPARATOR) if value else []
