"""The reader of .safetensors files: right bytes from sound ones, a clear refusal of all others."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.initializers.supplied import safetensors
from opreplay.initializers.supplied.safetensors import SafetensorsFile
from opreplay.traces.errors import FormatError


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_and_their_bytes(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("I32", [2], 2, 10),
        "a": entry("BF16", [1, 1], 0, 2),
        "none": entry("F32", [0, 4], 10, 10),
    }
    file = SafetensorsFile(write(tmp_path / "v.safetensors", header, b"\x80\x3f" + b"\x07\0\0\0\x08\0\0\0"))
    assert {name: (t.dtype, t.shape) for name, t in file.tensors.items()} == {
        "b": ("int32", (2,)),
        "a": ("bfloat16", (1, 1)),
        "none": ("float32", (0, 4)),
    }
    assert file.read("a") == b"\x80\x3f"
    assert file.read("b") == b"\x07\0\0\0\x08\0\0\0"
    assert file.read("none") == b""


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ([], b"", "not a JSON object"),
        (b"{", b"", "its header"),
        (b"\xff\xfe", b"", "its header"),
        (b'{"a": 1, "a": 2}', b"", "used twice"),
        (b"[" * 100_000, b"", "its header"),
        ({"a": 1}, b"", "no dtype, shape"),
        ({"a": entry("F4", [2], 0, 1)}, b"x", "dtype 'F4'"),
        ({"a": entry("U8", [-1], 0, 1)}, b"x", "no valid shape"),
        ({"a": entry("U8", [True], 0, 1)}, b"x", "no valid shape"),
        ({"a": entry("U8", [1] * 65, 0, 1)}, b"x", "no valid shape"),
        ({"a": entry("U8", [2], 0, 2)}, b"x", "outside the file"),
        ({"a": entry("U8", [1], 1, 0)}, b"x", "outside the file"),
        ({"a": entry("I64", [1], 0, 1)}, b"x", "does not match its shape"),
        ({"a": entry("U8", [1 << 40, 1 << 40], 0, 1)}, b"x", "does not match its shape"),
        ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 0, 1)}, b"x", "overlap"),
        ({"a": entry("U8", [1], 1, 2)}, b"xy", "gaps"),
        ({"a": entry("U8", [1], 0, 1)}, b"xy", "belong to no tensor"),
    ],
)
def test_unsound_files_are_refused(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        SafetensorsFile(write(tmp_path / "v.safetensors", header, data))


def test_lengths_are_checked_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="a header of 18446744073709551615 bytes"):
        SafetensorsFile(write(tmp_path / "a.safetensors", {}, length=2**64 - 1))
    monkeypatch.setattr(safetensors, "HEADER_BYTES", 1)
    with pytest.raises(FormatError, match="2 bytes, over the limit of 1"):
        SafetensorsFile(write(tmp_path / "b.safetensors", {}))
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(FormatError, match="in a file of 3"):
        SafetensorsFile(tmp_path / "short")
    with pytest.raises(FormatError, match="No such file"):
        SafetensorsFile(tmp_path / "missing")


def test_pipes_folders_and_files_without_tensors_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "Is a directory"),
        (write(tmp_path / "none.safetensors", {"__metadata__": {}}), "contains no tensors"),
    ):
        with pytest.raises(FormatError, match=said):
            SafetensorsFile(path)


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "v.safetensors", {"a": entry("U8", [4], 0, 4)}, b"abcd")
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="ends within tensor 'a'"):
        file.read("a")


@given(st.binary(max_size=200), st.integers(0, 300))
def test_no_bytes_do_more_than_raise(tmp_path_factory: pytest.TempPathFactory, body: bytes, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + body)
    with suppress(FormatError):
        SafetensorsFile(path)
