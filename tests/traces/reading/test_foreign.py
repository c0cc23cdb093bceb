"""Files of other programs are named with what to do, and the decision does not depend on damage."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError
from opreplay.traces.reading.protobuf_wire import field

OTHERS = Path(__file__).parents[1] / "dialects" / "others"


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as info:
        read_trace(path)
    assert info.value.hint
    assert info.value.exit_code == 3
    return f"{info.value} {info.value.hint}"


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trace.tar.gz", "a tar archive"),
        ("nsys_jsonl.json", "JSON lines of Nsight Systems"),
        ("be_without_category.json", "begin and end events without categories"),
        ("torch213_events_export.json", "EventList.export_chrome_trace"),
    ],
)
def test_given_files(name: str, says: str) -> None:
    assert says in refusal(OTHERS / name)


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as packed:
            for rank in range(2):
                packed.writestr(zipfile.ZipInfo(f"rank{rank}.json"), "{}")
    else:
        form = tarfile.GNU_FORMAT if kind == "tar" else tarfile.USTAR_FORMAT
        with tarfile.open(fileobj=out, mode="w", format=form) as packed_tar:
            entry = tarfile.TarInfo("rank0.json")
            entry.size = 2
            packed_tar.addfile(entry, io.BytesIO(b"{}"))
    return out.getvalue()


def gzipped(content: bytes) -> bytes:
    """The same bytes in every process: pytest names its cases by them."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b'{"record":"header","schema_version":4,"opreplay_version":"0.1.0"}\n{"record":"op"}\n',
            "a result of opreplay",
        ),
        (b'{"schema_version": 5, "device_us_total": 0.0, "host_us_total": 1.0, "ops": []}', "a plan of opreplay"),
        (archive("tar"), "a tar archive"),
        (archive("ustar"), "a tar archive"),
        (gzipped(archive("ustar")), "a tar archive"),
        (archive("tar").replace(b"ustar", b"\0\0\0\0\0"), "not JSON"),
        (archive("zip"), "a zip archive"),
        (gzipped(archive("zip")), "a zip archive"),
        (gzipped(gzipped(b'{"traceEvents": []}')), "gzip data inside gzip data"),
        (gzipped(b"\x28\xb5\x2f\xfd...."), "zstd data"),
        (b"\x04\x22\x4d\x18....", "lz4"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"<!DOCTYPE html><html>", "an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON lines"),
        (b'{"a": 1}\n{"a": 2}\n', "jq -s '{traceEvents: .}'"),
        (b"{'traceEvents': [{'ph': 'X'}]}", "json.dump"),
        (b"[{'ph': 'X', 'name': 'aten::mm', 'args': None}, {'ph': 'X'}]", "in single quotes"),
        (b"({'schema': 1, 'nodes': (1, 2)},)", "in single quotes"),
        (b"['a', 'b']", "in single quotes"),
        (b"{u'traceEvents': []}", "in single quotes"),
        (b"OrderedDict({'traceEvents': []})", "in single quotes"),
        (b"[{'ph': 'X', 'name': 'aten::mm'", "in single quotes"),
        (b'[{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2, "args": None}]', "None, True or False"),
        (b'{"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "flag": True }]}', "None, True or False"),
        (b'{"schemaVersion": 1, "with_stack": False, "traceEvents": [{"ph": "X", "x": None}]}', "None, True or False"),
        (b'"Kind","Agent_Id","Kernel_Name","Start_Timestamp"\n', "rocprof"),
        (b'"Name","Calls","TotalDurationNs","AverageNs"\n', "rocprof"),
        (b"Time (%),Total Time (ns),Instances,Avg (ns),Name\n", "Nsight Systems"),
        (b"Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,Task Type\n", "msprof"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "rocprof"),
        (b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}', "speedscope"),
        (b"".join(field(1, field(8, 77) + field(10, 1)) for _ in range(4)), "Perfetto"),
        (b"".join(field(1, field(1, i) + field(2, f"/device:GPU:{i}")) for i in range(3)), "JAX"),
    ],
)
def test_formats_by_their_content(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refusal(written(tmp_path, "trace.json", content))


@pytest.mark.parametrize(
    ("name", "says"),
    [("a.nsys-rep", "Nsight Systems"), ("a.ncu-rep", "Nsight Compute"), ("a.pftrace", "Perfetto"), ("a.rpd", "ROCm")],
)
def test_formats_by_their_name(tmp_path: Path, name: str, says: str) -> None:
    assert says in refusal(written(tmp_path, name, b"\x01\x02\x03\x04" * 100))


def test_words_of_python_in_a_text_are_no_words_of_python(tmp_path: Path) -> None:
    content = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "f(x: None, y)", "ts": 1, "dur": 2}]}'
    assert len(read_trace(written(tmp_path, "trace.json", content)).ops) == 1


def test_the_content_decides_before_the_name(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    assert len(read_trace(written(tmp_path, "a.pftrace", json.dumps([event]))).ops) == 1


def test_a_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute("create table t (a)")
    database.close()
    assert "SQLite" in refusal(tmp_path / "a.sqlite")


def bare(name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 1.5, "dur": 2.0, **more}


FOREIGN_EVENTS: dict[str, list[dict[str, Any]]] = {
    "EventList": [bare("aten::mm", pid="CPU functions", args={}) for _ in range(9)],
    "JAX or XLA": [
        {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "/device:TPU:0"}},
        *(bare("fusion.1", args={"hlo_op": "fusion.1", "hlo_module": "jit_f"}) for _ in range(8)),
    ],
    "ONNX Runtime": [bare("Conv_kernel", cat="Node", args={"op_name": "Conv", "provider": "CPU"}) for _ in range(9)],
    "IBM's AIU": [bare("add_0 Cmpt Exec", ph=phase, attr={"TS1": "1"}) for phase in "BEBEBE"],
    "rocprof": [bare("k", args={"BeginNs": "1", "EndNs": "2"}) for _ in range(9)],
}


@pytest.mark.parametrize("form", ["list", "object"])
@pytest.mark.parametrize("damage", ["", "quote", "cut", "nan", "comma"])
@pytest.mark.parametrize("what", list(FOREIGN_EVENTS))
def test_one_decision_whether_damaged_or_not(tmp_path: Path, what: str, damage: str, form: str) -> None:
    events = FOREIGN_EVENTS[what]
    as_list = what == "EventList" or (form == "list" and what != "rocprof")
    text = json.dumps(events if as_list else {"traceEvents": events})
    middle = text.index(events[4]["name"], text.index(events[4]["name"]) + 200)
    damages = {
        "": text,
        "quote": f'{text[:middle]}"x" {text[middle:]}',
        "cut": text[: middle + 5],
        "nan": text[:middle] + text[middle:].replace("1.5", "nan", 1),
        "comma": text.replace("2.0", "2.0,", 1),
    }
    assert what in refusal(written(tmp_path, "trace.json", damages[damage]))


def test_events_of_unknown_categories_are_no_trace(tmp_path: Path) -> None:
    path = written(tmp_path, "t.json", json.dumps([bare("a", cat="Op"), bare("b", cat="DataFlow")]))
    assert "none of its 2 events has a category of torch.profiler; it has 'Op', 'DataFlow'" in refusal(path)


def test_a_list_of_traces_is_named(tmp_path: Path) -> None:
    """What its entries hold names CUDA, which made two events without categories of them."""
    one = {"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "pid": 1}]}
    for text in (json.dumps([one, one]), json.dumps([one, one], indent=1)):
        assert "several traces" in refusal(written(tmp_path, "traces.json", text))
