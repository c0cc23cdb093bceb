"""Bytes that are missing or overwritten in the middle of a file: no two events become one, and no verdict is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.traces import Trace, read_trace
from opreplay.traces.model import HOLE
from opreplay.traces.reading.repair import is_hole
from opreplay.traces.times.doubts import doubts_of
from tests.traces.events import DIMS, document, kernel, launch, op, write

CALLS = 40


def text() -> bytes:
    """A trace of calls, launches and kernels, each event with a name of its own."""
    events: list[dict[str, Any]] = []
    for call in range(1, CALLS):
        ids = {"External id": call, "correlation": call}
        events += [op(f"aten::op{call}", 100 * call, 30, call, **DIMS), launch(100 * call + 5, call)]
        events.append(kernel(f"kernel{call}", 100 * call + 8, 20, **ids))
    return json.dumps(document(events)).encode()


def read(folder: Path, damaged: bytes) -> Trace:
    return read_trace(write(folder, damaged), activity=True)


def names(trace: Trace) -> set[str]:
    return {trace.signatures[i].name for i in trace.ops.signature} | {trace.kernel_names[i] for i in trace.kernels.name}


KNOWN = {f"aten::op{call}" for call in range(1, CALLS)} | {f"kernel{call}" for call in range(1, CALLS)}


@pytest.mark.slow
@pytest.mark.parametrize("fill", [b"", b"\0" * 1500, b" " * 1500, b"\n" * 1500, b"x" * 1500])
@pytest.mark.parametrize("key", [b'"name": "', b'"pid": ', b'"ts": ', b'"cat": ', b'"args": {'])
def test_no_repair_joins_two_events(tmp_path: Path, key: bytes, fill: bytes) -> None:
    """Each hole begins within a key or its value, and ends within the name or the arguments of a later event."""
    whole = text()
    start = whole.index(key, len(whole) // 3) + len(key) - 2
    for end in (b"kernel25", b'"External id": 25'):
        stop = whole.index(end) + 3
        trace = read(tmp_path, whole[:start] + fill + whole[stop:])
        assert names(trace) <= KNOWN
        assert doubts_of(trace).holes == 1, trace.info.report


def test_an_event_with_two_process_ids_is_of_two_events(tmp_path: Path) -> None:
    whole = text()
    start = whole.index(b'"tid"', len(whole) // 3)
    trace = read(tmp_path, whole[:start] + whole[whole.index(b'"pid"', whole.index(b"kernel25")) :])
    assert doubts_of(trace).untimed


@pytest.mark.parametrize(
    ("fragment", "hole"),
    [
        (b'{"name": "a", "cat" "cpu_op", "ts": 1}', False),
        (b'{"name": "a", "ts": 1, "ph": "X", "ts": 2}', True),
        (b'{"name": "a", "ts": \0\0\0\0}', True),
        (b'{"name": "a", "args": {"Input Dims": [[4, "grid": [1]}}', True),
        (b'{"name": "a", "ts": 1}, t": "ac2g"}', True),
    ],
)
def test_what_shows_a_hole(fragment: bytes, hole: bool) -> None:
    assert is_hole(fragment) is hole


def test_a_sound_file_has_no_hole(tmp_path: Path) -> None:
    trace = read(tmp_path, text())
    assert names(trace) == KNOWN
    assert HOLE not in trace.info.report.losses
    assert not doubts_of(trace).untimed
