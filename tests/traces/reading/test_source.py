"""Where the bytes of a trace come from."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from opreplay.traces import read_trace
from opreplay.traces.reading import source


def test_what_follows_an_empty_gzip_member_is_handed_on_in_small_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member's decompressor copies all that it is handed and does not need: members times the size of a part."""
    members = 50_000
    text = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]}'
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text) + gzip.compress(b"", mtime=0) * members)
    sizes: list[int] = []
    inflater = source._inflater

    class Counted:
        def __init__(self) -> None:
            self.engine = inflater()

        def decompress(self, data: bytes, most: int) -> bytes:
            sizes.append(len(data))
            return self.engine.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

    monkeypatch.setattr(source, "_inflater", Counted)
    trace = read_trace(path)
    assert len(trace.ops) == 1
    assert not trace.info.report.losses
    assert len(sizes) > members
    assert sum(sizes) < 50_000 * len(sizes)
