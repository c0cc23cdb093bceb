"""The compiled half of the reader: the same tables and reports as the Python reader, on sound and on damaged text."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opreplay.traces import Limits, read_trace
from opreplay.traces.errors import TooLarge
from opreplay.traces.reading import scan
from opreplay.traces.reading.native import blocks as compiled
from opreplay.traces.samples import SAMPLES, sample_path
from tests.traces.events import document, flow, kernel, launch, note, op, small_events, write
from tests.traces.reading.native.differential import CORPUS, assert_same, damaged_file, pools_of, reader

EXAMPLES = 20 if "OPREPLAY_SANITIZED_EVENTS" in os.environ else 60
"""Sanitizers make each example five times slower; `.ci/sanitize` and `.ci/run` read damaged traces as well."""


def task(kind: Any, *, ph: str = "X", pid: Any = 1, dur: Any = "1.5", **args: Any) -> dict[str, Any]:
    """A row of torch_npu's device."""
    args = {"Model Id": 4294967295, "Task Type": kind, **args}
    return {"name": "MatMul", "pid": pid, "tid": 3, "ts": "1736405443893564.042", "dur": dur, "args": args, "ph": ph}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiled.compiled_scanner() is None, reason="built without a C compiler"),
]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("numbered", [False, True])
def test_samples(name: str, numbered: bool) -> None:
    taken = assert_same(sample_path(name), block=1 << 14, numbered=numbered)
    assert taken.count(True) > 0.9 * len(taken)


def test_shared_traces(shared_traces: Path) -> None:
    shares = {}
    for path in sorted(shared_traces.glob("*.json.gz")):
        taken = assert_same(path, block=1 << 16)
        shares[path.name] = sum(taken) / len(taken) if len(taken) > 3 else 1.0
    assert not {name for name, share in shares.items() if share < 0.9 and not name.endswith("_et.json.gz")}


VALUES: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(0, 10**13, places=4).map(float),
    st.text(max_size=6),
    st.just([]),
    st.just({}),
    st.just([[1, 2], []]),
    st.sampled_from(
        ["X", "s", "f", "cpu_op", "kernel", "1736405443893564.042", "0x1f", "a\\b", 'q"', "}, {", "\u00e9"]
    ),
)
KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "bp", "Cat"])
ARGUMENTS = st.sampled_from(
    [
        "External id",
        "external id",
        "correlation",
        "device",
        "stream",
        "Input Dims",
        "Input type",
        "Input Strides",
        "Concrete Inputs",
        "Record function id",
        "Task Type",
        "Ev Idx",
    ]
)
CHANGES = st.lists(st.tuples(st.integers(0, 50), st.booleans(), KEYS, ARGUMENTS, VALUES | st.just(...)), max_size=3)


def changed(changes: list[tuple[int, bool, str, str, Any]]) -> list[dict[str, Any]]:
    """The small trace with some fields set to odd values, or (...) removed."""
    events: list[dict[str, Any]] = json.loads(json.dumps(small_events()))
    for at, inside, key, argument, value in changes:
        event = events[at % len(events)]
        target = event.get("args") if inside else event
        name = argument if inside else key
        if isinstance(target, dict):
            target.pop(name, None)
            if value is not ...:
                target[name] = copy.deepcopy(value)
    return events


@given(changes=CHANGES, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
@example(changes=[(0, False, "ts", "", 2**43)], indent=None, ascii_only=True)  # an exact time that looked inexact
@example(changes=[(2, False, "ts", "", 2.0**43 + 0.5)], indent=None, ascii_only=True)
@settings(max_examples=EXAMPLES, deadline=None)
def test_odd_values_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, changes: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps({"traceEvents": changed(changes)}, indent=indent, ensure_ascii=ascii_only)
    path = tmp_path_factory.mktemp("odd") / "trace.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert_same(path, block=1 << 10)


DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.sampled_from(
            [
                b"",
                b'"',
                b"}",
                b"{",
                b"]",
                b"[",
                b",",
                b":",
                b"\\",
                b"\x00",
                b"\xff",
                b"\n",
                b"\\u0041",
                b"\\ud800",
                b"0",
                b"-",
                b".",
                b"e9",
                b"null",
                b"NaN",
                b'"cat":"cpu_op",',
            ]
        ),
    ),
    min_size=1,
    max_size=3,
)


@given(damage=DAMAGE, cut=st.integers(0, 3), block=st.sampled_from([64, 512, 1 << 18]))
@example(damage=[(0, b"")], cut=0, block=64)
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_text_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]], cut: int, block: int
) -> None:
    text = json.dumps(document(), indent=1).encode()
    for at, put in damage:
        at %= len(text)
        text = text[:at] + put + text[at + cut :]
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(text)
    assert_same(path, block=block)


@pytest.mark.parametrize(
    ("event", "taken"),
    [
        (op("aten::mm", 1.5, 2, 1), True),
        (op("aten::mm", 1736405443893564.25, 2, 1), True),
        (op("aten::mm", 1.23456, 2.34567, 2**64 - 1), False),
        (op("aten::mm", 1.23456, 2.34567, 2**63 - 1), True),
        (op("aten::mm", "1.5", "2", "1"), True),
        (op("aten::mm", "1736405443893564.042", "-0.5", 1), True),
        (op("aten::mm", "1736405443893564.0425", 2, 1), False),
        (op("aten::mm", "12.3456", "0007.25", 1), True),
        (op("aten::mm", " 1.5", 2, 1), False),
        (op("aten::mm", "", 2, ""), False),
        (op("aten::mm", "1e3", 2, 1), False),
        (op("aten::mm", "1_0", 2, 1), False),
        (op("aten::mm", 1, 2, "0x1f"), False),
        (op("aten::mm", 1, 2, "-12"), True),
        (op("aten::\\mm", 1, 2, 1), True),
        (op("aten::mm\x07", 1, 2, 1), False),
        (launch(1, None), False),
        (launch(1, 5, cat="hip_runtime"), True),
        (flow("s", 7, 1), True),
        (kernel("k", 1, 1), True),
        (note("step", 1, -0.5), True),
        ({"ph": "M", "name": "process_name", "pid": "x", "args": {"name": "y"}}, True),
        (task("AI_CORE"), True),
        (task("Event_Wait"), True),
        (task("NOTIFY"), True),
        (task("PLACE_HOLDER_SQE", ph="M"), True),
        (task("AI_CORE", correlation=5, device=6, stream=7, **{"External id": 8}), True),
        (task("AI_CORE", dur=None), False),
        (task("AI_CORE", pid="worker"), False),
        (task("AI_\u00d6"), False),
        (task(None), False),
        (task(5), False),
        ({**task("AI_CORE"), "args": {"note": "Task Type"}}, False),
        ({**task("AI_CORE"), "args": {"more": {"Task Type": "AI_CORE"}}}, False),
        ({**task("AI_CORE"), "args": {"Task type": "AI_CORE", "Task": "Type"}}, True),
        ({**task("AI_CORE"), "args": {}}, True),
        ({"ph": "X", "cat": "never seen", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1}, True),
    ],
)
def test_what_the_compiled_half_takes(tmp_path: Path, event: dict[str, Any], taken: bool) -> None:
    path = write(tmp_path, {"traceEvents": [event] * 40})
    assert assert_same(path, block=1 << 20)[:1] == []  # a single block ends the array: the Python reader's
    # Python meets a new category, or decimals too large for float64, first; the compiled half has it from there.
    assert all(assert_same(path, block=1 << 10)[1:]) is taken


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_once_read_differently(path: Path) -> None:
    for block in (256, 1 << 10, 1 << 12, 1 << 18):  # events to a block, and what stands beside them, mattered
        for numbered in (False, True):
            assert_same(path, block=block, numbered=numbered)


def test_damaged_blocks_of_the_samples_read_the_same(tmp_path: Path) -> None:
    """A few of what `make fuzz` reads for a minute, always the same ones."""
    rng, pools, path, taken = random.Random(11), pools_of(None), tmp_path / "trace.json", []
    for _ in range(50):
        path.write_bytes(damaged_file(pools, rng)[0])
        taken += assert_same(path, block=rng.choice((256, 1 << 12)))
    assert 0.3 < sum(taken) / len(taken) < 0.95  # neither half is left out


def test_limits_hold_in_the_compiled_half(tmp_path: Path) -> None:
    events = [op(f"aten::op{i}", i, 1, i) for i in range(400)]
    path = write(tmp_path, {"traceEvents": events})
    for limits in (Limits(events=50), Limits(signatures=20), Limits(rows=30)):
        with reader(python=False) as taken, pytest.raises(TooLarge):
            read_trace(path, limits=limits, _block_bytes=1 << 11)
        assert taken[0]


def test_a_file_that_it_never_takes_is_soon_left_to_the_python_reader(tmp_path: Path) -> None:
    path = write(tmp_path, {"traceEvents": [op("aten::mm", "1", "2", 1)] * 4000})
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled.CompiledBlocks, "_ready", lambda self: asked.append(self._make) if self._make else None)
        patch.setattr(scan, "SNIFF_BYTES", 0)
        read_trace(path, _block_bytes=1 << 12)
    assert len(asked) > 2 * compiled.MAX_REFUSED  # so many blocks there are
    with pytest.MonkeyPatch.context() as patch:
        scanner = _Refusing()
        patch.setattr(compiled, "compiled_scanner", lambda: lambda **_: scanner)
        patch.setattr(scan, "SNIFF_BYTES", 0)
        read_trace(path, _block_bytes=1 << 12)
    assert scanner.asked == compiled.MAX_REFUSED


class _Refusing:
    """Stands for the compiled half; takes no block."""

    asked = 0
    pending_rows = 0

    def scan(self, *_: Any) -> None:
        self.asked += 1

    def take(self) -> tuple[list[int], list[bytes], bool]:
        return [0] * (len(compiled.fields.KIND_BASES) + 2), [b""] * len(compiled._COLUMNS), False


def test_nothing_outlives_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    flush = compiled.CompiledBlocks.flush

    def watched(self: compiled.CompiledBlocks) -> None:
        made.append(weakref.ref(self))
        flush(self)

    monkeypatch.setattr(compiled.CompiledBlocks, "flush", watched)
    monkeypatch.setattr(scan, "SNIFF_BYTES", 0)
    read_trace(write(tmp_path, {"traceEvents": small_events() * 20}), _block_bytes=1 << 10)
    gc.collect()
    assert made
    assert [ref() for ref in made] == [None] * len(made)


def test_misuse_is_refused() -> None:
    make = compiled.compiled_scanner()
    assert make is not None
    ask: Any = {}.__getitem__
    good = dict.fromkeys(("signatures", "kernel_names", "note_names", "tracks", "arrow_tracks"), ask)
    good |= {"waits": (b"EVENT_",), "task_category": 3, "seed": 1}
    with pytest.raises(ValueError, match="99 is no kind"):
        make(categories=((b"cpu_op", 99, 0),), **good)
    with pytest.raises(ValueError, match="at most 256"):
        make(categories=tuple((b"c", 0, 0) for _ in range(300)), **good)
    scanner = make(categories=((b"cpu_op", 1, 0),), **good)
    with pytest.raises(ValueError, match="no range"):
        scanner.scan(b"{}", 0, 3, False)
    with pytest.raises(ValueError, match="no range"):
        scanner.scan(b"{}", 2, 1, False)
    with pytest.raises(ValueError, match="once"):
        scanner.__init__(categories=(), **good)  # type: ignore[misc]
    with pytest.raises(KeyError):  # an index that cannot be had stops the read
        scanner.scan(json.dumps(op("aten::mm", 1, 1, 1)).encode(), 0, len(json.dumps(op("aten::mm", 1, 1, 1))), False)
    assert scanner.scan(b"", 0, 0, False) is None
