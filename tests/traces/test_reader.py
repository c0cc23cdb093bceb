"""`read_trace`: layouts, times, what is refused and why, equality over block sizes and processes."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces import Limits, Trace, expand_paths, read_trace, summarize
from opreplay.traces.dialects import trace_events
from opreplay.traces.errors import Malformed, TooLarge, TraceError, UnknownDialect
from opreplay.traces.model import TensorMemories
from opreplay.traces.reading import collect, parallel
from opreplay.traces.reading.fields import Column
from tests.traces.events import DIMS, KEYS, document, flow, kernel, launch, op, small_events, write


def same(a: Trace, b: Trace, *, path: bool = False) -> None:
    """Assert that two traces are equal, columns and types included."""
    for name in ("ops", "kernels"):
        for column in getattr(a, name).__struct_fields__:
            x, y = getattr(getattr(a, name), column), getattr(getattr(b, name), column)
            if x is None:
                assert y is None
                continue
            columns = ((x.ids, y.ids), (x.bounds, y.bounds)) if isinstance(x, TensorMemories) else ((x, y),)
            for one, other in columns:
                assert one.dtype == other.dtype, (name, column)
                np.testing.assert_array_equal(one, other, err_msg=f"{name}.{column}")
    assert a.signatures == b.signatures
    assert a.tracks == b.tracks
    assert a.kernel_names == b.kernel_names
    assert a.annotations == b.annotations
    assert msgspec.structs.replace(a.info, path="", bytes_read=0) == msgspec.structs.replace(
        b.info, path="", bytes_read=0
    )
    if path:
        assert a.info == b.info


def test_small_trace(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document()))
    assert [trace.signatures[i].name for i in trace.ops.signature] == ["aten::linear", "aten::mm", "aten::copy_"]
    assert trace.ops.start_ns.tolist() == [101_250, 103_125, 140_000]
    assert trace.ops.dur_ns.tolist() == [20_500, 10_000, 3_000]
    assert [trace.tracks[i] for i in trace.ops.track] == [("7", "1"), ("7", "1"), ("7", "2")]
    assert trace.signatures[1].dims == ((2, 3), (3, 4))
    assert trace.signatures[1].strides == ((3, 1), (4, 1))
    assert trace.signatures[2].strides is None
    assert trace.kernels.owner.tolist() == [1, 2, -1]
    assert trace.kernels.category.tolist() == [0, 1, 0]
    assert [trace.kernel_names[i] for i in trace.kernels.name] == ["gemm", "Memcpy DtoD", "gemm"]
    assert trace.kernels.start_ns[0] == 120_001
    assert trace.info.device_names == ("NVIDIA H100",)
    assert (trace.info.rank, trace.info.world_size, trace.info.backend) == (3, 8, "nccl")
    assert (trace.info.vendor, trace.info.era, trace.info.metadata_level) == ("nvidia", "F", "full")
    assert trace.annotations[0].name == "ProfilerStep#3"
    assert trace.info.report.losses == {}
    assert trace.info.report.repairs == {}


def layouts() -> dict[str, bytes]:
    whole = document()
    events = whole.pop("traceEvents")
    return {
        "one line": json.dumps({"traceEvents": events, **whole}).encode(),
        "compact": json.dumps({**whole, "traceEvents": events}, separators=(",", ":")).encode(),
        "indent 2": json.dumps({**KEYS, "traceEvents": events, "traceName": "x"}, indent=2).encode(),
        "indent 4": b"\n" + json.dumps({**whole, "traceEvents": events}, indent=4).encode() + b"\n\n",
        "spaced": json.dumps({**whole, "traceEvents": events}, separators=(" ,\r\n ", "\t: ")).encode(),
        "byte order mark": b"\xef\xbb\xbf" + json.dumps({**whole, "traceEvents": events}).encode(),
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("block", [16, 100, 1 << 18])
def test_layouts_and_blocks_make_no_difference(tmp_path: Path, name: str, block: int) -> None:
    reference = read_trace(write(tmp_path, document()))
    same(reference, read_trace(write(tmp_path, layouts()[name], "other.json"), _block_bytes=block))


def test_top_level_list(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, small_events()))
    assert summarize(trace).events == len(small_events())
    assert trace.info.device_names == ()


@settings(max_examples=40, deadline=None)
@given(block=st.integers(8, 3000), indent=st.sampled_from([None, 1, 3]))
def test_any_block_size_gives_the_same_table(tmp_path_factory: pytest.TempPathFactory, block: int, indent: int) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    path = write(folder, json.dumps(document(), indent=indent).encode())
    same(read_trace(path), read_trace(path, _block_bytes=block), path=True)


def test_gzip_members_stdin_and_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(document()).encode()
    reference = read_trace(write(tmp_path, text))
    members = gzip.compress(text[:700]) + gzip.compress(text[700:])
    calls: list[tuple[int, int | None]] = []
    same(reference, read_trace(write(tmp_path, members, "x"), progress=lambda done, total: calls.append((done, total))))
    assert calls[-1] == (len(members), len(members))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(text))))
    from_pipe = read_trace("-")
    same(reference, from_pipe)
    assert from_pipe.info.path == "-"


@pytest.mark.parametrize(
    ("times", "nanoseconds"),
    [
        ((1736405443863674.413, 1.001), (1736405443863674413, 1001)),
        (("1736405443863674.413", "1.0014"), (1736405443863674413, 1001)),
        ((1661203462598738, 3), (1661203462598738000, 3000)),
        ((6869181217913.045, 0.5), (6869181217913045, 500)),
        ((1.5, 5_000_000), (1500, 5_000_000_000)),
    ],
)
def test_times_are_exact(tmp_path: Path, times: tuple[Any, Any], nanoseconds: tuple[int, int]) -> None:
    text = json.dumps(document([op("aten::mm", "TS", times[1], 1)]))
    text = text.replace('"TS"', times[0] if False else json.dumps(times[0]))
    if isinstance(times[0], float):  # not as Python would print it: as the profiler did
        text = text.replace(json.dumps(times[0]), f"{nanoseconds[0] // 1000}.{nanoseconds[0] % 1000:03d}")
    ops = read_trace(write(tmp_path, text.encode())).ops
    assert (int(ops.start_ns[0]), int(ops.dur_ns[0])) == nanoseconds


def test_ids_and_threads_as_text(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 1, 9, "5", tid="worker", **DIMS),
        kernel("k", 3, 1, **{"External id": "5", "stream": "0x7"}),
    ]
    trace = read_trace(write(tmp_path, document(events)))
    assert trace.kernels.owner.tolist() == [0]
    assert trace.kernels.stream.tolist() == [7]
    assert trace.tracks[trace.ops.track[0]] == ("7", "worker")


def test_equal_signatures_that_are_written_differently_are_one(tmp_path: Path) -> None:
    a, b = json.dumps(op("aten::mm", 1, 1, 1, **DIMS)), json.dumps(op("aten::mm", 1, 1, 1, **DIMS), indent=3)
    trace = read_trace(write(tmp_path, f'{{"traceEvents": [{a}, {b}]}}'.encode()))
    assert len(trace.signatures) == 1
    assert trace.ops.signature.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", Malformed, "empty"),
        (b" \n", Malformed, "empty"),
        (b"\x89PNG\r\n\x1a\n....", Malformed, "PNG"),
        (b"PK\x03\x04....", Malformed, "zip"),
        (b"\x80\x04\x95...", Malformed, "pickle"),
        ("{}".encode("utf-16"), Malformed, "UTF-16"),
        (b"hello", Malformed, "not JSON"),
        (b"null", Malformed, "not JSON"),
        (b"{}", UnknownDialect, "without traceEvents"),
        (b'{"a": 1, "b": []}', UnknownDialect, "'a', 'b'"),
        (b"[1, 2]", Malformed, "not of events"),
        (b'[{"a": 1}]', Malformed, "none of its 1 entries"),
        (b'{"traceEvents": null}', Malformed, "not an array"),
        (b'{"traceEvents": {"a": []}}', Malformed, "not an array"),
        (b'{"traceEvents": [1, 2]}', Malformed, "no event can be read"),
        (b'{"schemaVersion": 1, "deviceProp', Malformed, "cut off"),
        (b"[" * 100_000, Malformed, "array"),
        (b'{"a":' * 100_000, Malformed, "damaged"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: bytes, error: type[TraceError], says: str) -> None:
    with pytest.raises(error, match=says) as info:
        read_trace(write(tmp_path, content))
    assert info.value.hint
    assert info.value.exit_code == 3


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nothing.json")
    with pytest.raises(TraceError, match="directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="regular"):
        read_trace("/dev/null")


def test_no_events_and_device_only_are_fine(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, {"traceEvents": []})).info.events == 0
    assert read_trace(write(tmp_path, b'{"traceEvents" : [ \n ] , "a": 1}'), _block_bytes=16).info.events == 0
    trace = read_trace(write(tmp_path, document([kernel("k", 1, 2, correlation=4)])))
    assert trace.info.links.unowned == 1
    assert summarize(trace).device_time_us == 2


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(decompressed_bytes=1000), "decompressed_bytes"),
        (Limits(events=5), "events"),
        (Limits(signatures=1), "signatures"),
        (Limits(names=1), "names"),
        (Limits(tracks=1), "tracks"),
        (Limits(rows=2), "rows"),
        (Limits(metadata_bytes=50), "metadata_bytes"),
        (Limits(event_bytes=60), "event_bytes"),
    ],
)
def test_limits(tmp_path: Path, limits: Limits, field: str) -> None:
    with pytest.raises(TooLarge, match=field) as info:
        read_trace(write(tmp_path, document()), limits=limits, _block_bytes=64)
    assert field in info.value.hint


def test_bombs_are_refused_early(tmp_path: Path) -> None:
    spaces = gzip.compress(b"[" + b" " * (64 << 20), 1)
    with pytest.raises(TooLarge, match="metadata_bytes"):
        read_trace(write(tmp_path, spaces), limits=Limits(metadata_bytes=2 << 20))
    events = gzip.compress(b'{"traceEvents": [' + b'{"ph":"X","cat":"python_function"},' * 300_000, 1)
    with pytest.raises(TooLarge, match="ratio"):
        read_trace(write(tmp_path, events), limits=Limits(ratio=50, ratio_free_bytes=4 << 20))
    junk = gzip.compress(b"[" + b'{"a":1},' * 1_000_000, 1)
    with pytest.raises(Malformed, match="none of its"):
        read_trace(write(tmp_path, junk))


def test_expand_paths(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()
    assert expand_paths([f"{tmp_path}/*.json", "-", f"{tmp_path}/a.json"]) == [
        f"{tmp_path}/a.json",
        f"{tmp_path}/b.json",
        "-",
    ]
    assert expand_paths(["missing.json"]) == ["missing.json"]
    with pytest.raises(TraceError, match="no file matches"):
        expand_paths([f"{tmp_path}/*.gz"])


def test_a_call_in_place_of_a_file_is_told_where_it_goes() -> None:
    with pytest.raises(TraceError) as caught:
        expand_paths(["aten::mm(f16[8,8],f16[8,8])"])
    assert "opreplay op" in (caught.value.hint or "")


def big_events() -> list[dict[str, Any]]:
    out = small_events()
    for i in range(400):
        t = 1000.0 * i
        out += [op(f"aten::op{i % 7}", t, 500, 10 * i, tid=i % 3, **DIMS), op("aten::mm", t + 1, 9, 10 * i + 1, **DIMS)]
        out += [
            kernel(
                f"k{i % 5}",
                t + 20,
                4,
                cat=("kernel", "gpu_memset")[i % 2],
                **{"External id": 10 * i + 1, "correlation": i},
            )
        ]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("layout", ["object", "list"])
def test_two_processes_give_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, numbered: bool
) -> None:
    monkeypatch.setattr(parallel, "MIN_PART_BYTES", 20_000)
    path = write(tmp_path, document(big_events()) if layout == "object" else big_events())
    columns: frozenset[Column] = frozenset(["numbers"] if numbered else [])
    scanned = parallel.scan_parallel(str(path), Limits(), 2, block_bytes=1 << 14, progress=None, columns=columns)
    assert scanned is not None, "the split was given up"
    more = {"record_function_ids": numbered, "gradients": numbered}
    one, two = read_trace(path, **more), read_trace(path, processes=2, **more)
    same(one, two, path=True)
    assert (one.ops.record_function_id is None) is not numbered
    if numbered:
        assert np.array_equal(one.ops.record_function_id, two.ops.record_function_id)


def test_a_wrong_cut_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MIN_PART_BYTES", 20_000)
    # every candidate for a cut lies in a string that looks like events
    lure = '}, {"ph": "X", "cat": "cpu_op", "name": "no"}, {"ph": "X"}, {'
    events = [op("aten::mm", i, 1, i, note=lure * 40) for i in range(60)]
    text = json.dumps(document(events)).replace('\\"', "'").encode()
    path = write(tmp_path, text)
    same(read_trace(path), read_trace(path, processes=2), path=True)
    assert summarize(read_trace(path, processes=2)).cpu_ops == 60


def test_reading_needs_no_torch_nor_pandas(tmp_path: Path) -> None:
    path = write(tmp_path, document())
    code = (
        f"import sys; from opreplay.traces import read_trace, summarize; summarize(read_trace({str(path)!r}));"
        "print(sorted({'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_trace_is_no_address_on_the_network() -> None:
    with pytest.raises(TraceError, match=r"cannot read 'https://example\.com/trace\.json'") as info:
        read_trace("https://example.com/trace.json")
    assert "download it first" in (info.value.hint or "")


def test_device_rows_of_mtia_are_device_work(tmp_path: Path) -> None:
    rows = [("pe_exe", 700), ("dma_request", 20), ("event_wait", 9000), ("event_record", 1), ("remote", 80)]
    events: list[dict[str, object]] = [
        {
            "ph": "X",
            "cat": "mtia_ccp_events",
            "name": name,
            "pid": 17,
            "tid": 3,
            "ts": 10_000 * i,
            "dur": dur,
            "args": {"stream": 5, "column": "0"},
        }
        for i, (name, dur) in enumerate(rows)
    ]
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 9, "args": {}})
    path = tmp_path / "mtia.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    assert [trace.kernel_names[i] for i in trace.kernels.name] == ["pe_exe", "dma_request", "remote"]
    assert trace.kernels.category.tolist() == [0, 1, 0]
    assert trace.kernels.dur_ns.sum() == 800_000


def events_with_arrows(correlated: list[bool]) -> list[dict[str, Any]]:
    """One op, launch, kernel and arrow after the other; the arrow also says it where there is no correlation id."""
    events: list[dict[str, Any]] = []
    for i, known in enumerate(correlated):
        t = 100.0 * i
        ids: dict[str, Any] = {"correlation": i} if known else {}
        events += [op("aten::mm", t, 50, i, **DIMS), launch(t + 5, i), flow("s", i, t + 5)]
        events += [kernel("gemm", t + 20, 9, **ids), flow("f", i, t + 20, pid=0, tid=20)]
    return [*events, flow("s", 99, 3.0, pid="only an arrow", tid=5)]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that one process reads a file, whether all arrows are kept."""
    asked: list[bool] = []
    scan = trace_events.scan

    def watched(*args: Any, arrows: bool, **kwargs: Any) -> Any:
        asked.append(arrows)
        return scan(*args, arrows=arrows, **kwargs)

    monkeypatch.setattr(trace_events, "scan", watched)
    return asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uncorrelated", "enough", "reads"),
    [
        ([2], {}, [False]),  # found while the arrows are still kept
        ([150], {}, [False]),
        ([150], {"CORRELATED_KERNELS": 20}, [False, True]),
        ([150], {"UNDECIDED_ARROWS": 20}, [False, True]),
        ([2, 150], {"CORRELATED_KERNELS": 20, "UNDECIDED_ARROWS": 20}, [False]),
        ([], {"CORRELATED_KERNELS": 20}, [False]),
        ([], {}, [False]),
    ],
)
def test_arrows_are_kept_until_kernels_say_that_they_are_superfluous(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scans: list[bool],
    uncorrelated: list[int],
    enough: dict[str, int],
    reads: list[bool],
) -> None:
    path = write(tmp_path, document(events_with_arrows([i not in uncorrelated for i in range(200)])))
    for name, rows in enough.items():
        monkeypatch.setattr(collect, name, rows)
    trace = read_trace(path, _block_bytes=1 << 10)
    assert scans == reads
    assert trace.kernels.owner.tolist() == list(range(200)), "each kernel is its op's, by id or by arrow"
    assert trace.info.links.by_flow == len(uncorrelated)
    assert ("only an arrow", "5") in trace.tracks if uncorrelated else ("only an arrow", "5") not in trace.tracks
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    same(trace, read_trace("-", _block_bytes=1 << 10))
    monkeypatch.setattr(parallel, "MIN_PART_BYTES", 20_000)
    del scans[:]
    same(trace, read_trace(path, processes=2, _block_bytes=1 << 10))
    assert not scans, "the split was given up"
