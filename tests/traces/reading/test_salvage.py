"""Damage: what is kept, what is repaired and how it is counted; and that no bytes at all give a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces import Trace, read_trace
from opreplay.traces.errors import TraceError
from opreplay.traces.reading.repair import repairs
from tests.traces.events import document, op, small_events, write

TEXT = json.dumps(document(), indent=2).encode()
NAME = b'"aten::mm"'


def read(folder: Path, text: bytes, block: int = 1 << 18) -> Trace:
    return read_trace(write(folder, text), _block_bytes=block)


@pytest.mark.parametrize("block", [64, 1 << 18])
@pytest.mark.parametrize(
    ("new", "reason", "name"),
    [
        (b'"aten::\xff"', "invalid UTF-8", "aten::\ufffd"),
        (b'"aten::\x01m\nm"', "control character in a string", "aten:: m m"),
        (b'"say "hi" there"', "unescaped quote", 'say "hi" there'),
        (b'"f("a", "b")"', "unescaped quote", 'f("a", "b")'),
        (rb'"C:\Users\x.py"', "unescaped backslash", r"C:\Users\x.py"),
    ],
)
def test_repaired_names(tmp_path: Path, block: int, new: bytes, reason: str, name: str) -> None:
    trace = read(tmp_path, TEXT.replace(NAME, new), block)
    assert len(trace.ops) == 3
    assert name in {s.name for s in trace.signatures}
    assert trace.info.report.repairs == {reason: 1}
    assert trace.info.report.losses == {}
    assert trace.info.events == len(small_events())


def test_bare_nan_and_infinity(tmp_path: Path) -> None:
    trace = read(tmp_path, TEXT.replace(b'"dur": 10.0', b'"dur": NaN').replace(b'"ts": 140,', b'"ts": -inf,'))
    assert trace.info.report.repairs == {"NaN or infinity": 2}
    assert trace.info.report.losses == {
        "unreadable duration (ops)": 1,
        "event without a readable time (ops)": 1,
    }
    assert len(trace.ops) == 2


def test_events_that_cannot_be_repaired_are_dropped_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, TEXT.replace(b'"cat": "cpu_op",', b'"cat" "cpu_op"', 1))
    assert trace.info.report.losses == {"broken event": 1}
    assert trace.info.events == len(small_events()) - 1
    assert trace.kernels.owner.tolist() == [0, 1, -1]


@pytest.mark.parametrize("block", [64, 1 << 18])
def test_truncated_file_yields_what_precedes_the_cut(tmp_path: Path, block: int) -> None:
    cut = TEXT.index(b'"Memcpy DtoD"')
    trace = read(tmp_path, TEXT[:cut], block)
    assert trace.info.events == 10
    assert len(trace.ops) == 3
    assert trace.kernels.owner.tolist() == [1]
    assert trace.info.report.losses == {"truncated file": 1}


def test_truncated_and_damaged_gzip(tmp_path: Path) -> None:
    text = json.dumps(document([op(f"aten::op{i}", i, 1, i) for i in range(2000)])).encode()
    packed = gzip.compress(text)
    cut = read_trace(write(tmp_path, packed[: len(packed) // 2], "x.json.gz"))
    assert 500 < cut.info.events < 1500
    assert cut.info.report.losses == {"truncated file": 1, "truncated gzip data": 1}
    broken = read_trace(write(tmp_path, packed[:9000] + bytes(40) + packed[9040:], "x.json.gz"))
    assert broken.info.events > 300
    assert broken.info.report.losses["damaged gzip data"] == 1
    tail = read_trace(write(tmp_path, packed + b"more", "x.json.gz"))
    assert tail.info.report.losses == {"data after the end of the gzip stream": 1}


@pytest.mark.parametrize(
    ("text", "losses"),
    [
        (TEXT + b"garbage", {"data after the end of the trace": 1}),
        (TEXT + TEXT, {"data after the end of the trace": 1}),
        (TEXT.rstrip()[:-1], {"truncated file": 1}),
        (TEXT.rstrip()[:-1] + b', "traceEvents": [{"ph": "X"}]}', {"duplicate key traceEvents": 1}),
        (b'{"traceEvents": [], ' + TEXT[1:], {"duplicate key traceEvents": 1}),
        (TEXT.replace(b'"rank": 3', b'"rank": 3, "rank": 3'), {"duplicate key rank": 1}),
        (TEXT.replace(b'"ph": "X", ', b'"ph": "X", "ph": "X", '), {}),
        (TEXT.replace(b'"dur": 10.0', b'"dur": 1, "dur": 10.0'), {"duplicate key dur": 1}),
    ],
)
def test_losses_around_and_inside_the_array(tmp_path: Path, text: bytes, losses: dict[str, int]) -> None:
    trace = read(tmp_path, text)
    assert trace.info.report.losses == losses
    assert len(trace.ops) == 3
    assert trace.info.rank == 3


def test_separators_in_strings_and_trailing_comma(tmp_path: Path) -> None:
    odd = TEXT.replace(NAME, b'"}, {\\"ph\\": 1}, {"')
    for block in (16, 100, 1 << 18):
        trace = read(tmp_path, odd, block)
        assert (len(trace.ops), trace.info.report.losses) == (3, {})
    end = TEXT.rindex(b"]")
    trace = read(tmp_path, TEXT[:end].rstrip() + b",\n" + TEXT[end:])
    assert trace.info.report.repairs == {"trailing comma": 1}
    assert trace.info.events == len(small_events())


def test_entries_that_are_no_events(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document([1, op("aten::mm", 1, 1, 1), None, [], {"cat": ["x"], "ph": "X"}])))
    assert trace.info.events == 2
    assert trace.info.report.losses == {"unreadable entry": 3}


def test_repairs_build_on_each_other() -> None:
    event = b'{"name": "a\\q\xff "b"", "ph": "X", "dur": nan}'
    *_, (text, reasons) = [r for r in repairs(event) if _is_json(r[0])]
    assert json.loads(text)["dur"] == "nan"
    assert set(reasons) >= {"invalid UTF-8", "unescaped backslash", "unescaped quote", "NaN or infinity"}


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def survives(folder: Path, text: bytes, block: int) -> None:
    """Any bytes give a Trace or a TraceError, nothing else."""
    try:
        trace = read(folder, text, block)
    except TraceError:
        pass
    else:
        assert len(trace.ops) == len(trace.ops.start_ns) == len(trace.ops.track)
        assert (trace.kernels.owner < len(trace.ops)).all()


@settings(max_examples=80, deadline=None)
@given(text=st.binary(max_size=200), start=st.sampled_from([b"", b"[", b"{", b'{"traceEvents":[', b"\x1f\x8b\x08"]))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, text: bytes, start: bytes) -> None:
    survives(tmp_path_factory.getbasetemp(), start + text, 64)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_mutated_traces(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = bytearray(TEXT)
    tokens = [
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\\",
        b"\xff",
        b"\x00",
        b"null",
        b"NaN",
        b"1e999",
        b"-",
        b'"ts"',
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        match data.draw(st.sampled_from(["insert", "delete", "replace", "double"])):
            case "insert":
                text[at:at] = data.draw(st.sampled_from(tokens))
            case "delete":
                del text[at : at + data.draw(st.integers(1, 60))]
            case "replace":
                token = data.draw(st.sampled_from(tokens))
                text[at : at + len(token)] = token
            case _:
                text[at:at] = text[at : at + data.draw(st.integers(1, 400))]
    survives(tmp_path_factory.getbasetemp(), bytes(text), data.draw(st.sampled_from([50, 400, 1 << 18])))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args"]),
            st.one_of(
                st.sampled_from(["X", "s", "f", "cpu_op", "kernel", "ac2g", "cuda_runtime", "user_annotation", 1, 2.5]),
                st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
                st.dictionaries(
                    st.sampled_from(["External id", "correlation", "Input Dims", "Input type", "Task Type", "stream"]),
                    st.recursive(st.none() | st.integers() | st.text(max_size=4), st.lists, max_leaves=6),
                ),
            ),
        ),
        max_size=8,
    )
)
def test_events_with_odd_values(tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]]) -> None:
    survives(tmp_path_factory.getbasetemp(), json.dumps({"traceEvents": events}).encode(), 100)
