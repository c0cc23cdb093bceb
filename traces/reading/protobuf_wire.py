# pyright: strict
"""Encode and decode the part of protobuf's wire format that Chakra's messages need.

These are fields whose values are numbers, doubles or bytes. The encoding is described at
https://protobuf.dev/programming-guides/encoding/. docs/decisions/0009 explains why no library is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from opreplay.traces.errors import Malformed

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_MOST_DIGITS = 10
"""Maximum length of a varint in bytes."""
Value = int | float | bytes
Field = tuple[int, int, "int | bytes"]
"""(field number, wire type, value); the value is a whole number for types 0, 1 and 5, and bytes for type 2."""


def varint(number: int) -> bytes:
    """Encode a whole number as a varint, negative numbers in 64-bit two's complement."""
    number &= _MASK
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*digits, number))


def field(number: int, value: bool | int | float | bytes | str) -> bytes:
    """Encode one field: whole numbers as varints, floats as doubles, text as UTF-8, messages as their bytes."""
    if isinstance(value, float):
        return varint(number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    data = value.encode(errors="backslashreplace") if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def packed(number: int, values: Iterable[int]) -> bytes:
    """Encode a repeated field of whole numbers; empty if there are none."""
    data = b"".join(map(varint, values))
    return field(number, data) if data else b""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position (0 to 2^64-1) and the position after it. Raises Malformed."""
    number = 0
    for digit in range(_MOST_DIGITS):
        if at >= len(data):
            raise Malformed("a protobuf message ends in the middle of a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << (7 * digit)
        if byte < 0x80:
            return number & _MASK, at
    raise Malformed(f"a protobuf number has more than {_MOST_DIGITS} bytes")


def fields(data: bytes) -> Iterator[Field]:
    """Yield each field of a message in order. Raises Malformed for invalid bytes."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise Malformed(f"a protobuf field has the unknown wire type {kind}")
        if length > len(data) - at:
            raise Malformed("a protobuf field is longer than its message")
        chunk = data[at : at + length]
        at += length
        yield number, kind, chunk if kind == BYTES else int.from_bytes(chunk, "little")


def signed(number: int) -> int:
    """Interpret a varint as an int32 or int64."""
    return number - (1 << 64) if number >> 63 else number


def double(number: int) -> float:
    """Interpret a fixed64 as a double."""
    return float(struct.unpack("<d", number.to_bytes(8, "little"))[0])


def single(number: int) -> float:
    """Interpret a fixed32 as a float."""
    return float(struct.unpack("<f", number.to_bytes(4, "little"))[0])


def numbers(value: int | bytes) -> list[int]:
    """Decode a repeated number field, packed or single."""
    if isinstance(value, int):
        return [value]
    parsed: list[int] = []
    at = 0
    while at < len(value):
        number, at = read_varint(value, at)
        parsed.append(number)
    return parsed
