"""A new kind of profile is one file, such as the upper half of this one, and one row in `DIALECTS`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.traces import KernelTable, Limits, OpSignature, OpTable, Trace, TraceInfo, dialects, read_trace
from opreplay.traces.activity import Activity
from opreplay.traces.dialects.dialect import Dialect, Want
from opreplay.traces.dialects.kineto import metadata_level
from opreplay.traces.reading.opening import Opening
from opreplay.traces.reading.source import Source


def read_toy(source: Source, want: Want) -> Trace:
    """Lines of a name, a shape and microseconds."""
    block = bytearray(1 << 16)
    lines = [line.split(",") for line in block[: source.readinto(memoryview(block))].decode().splitlines()[1:]]
    durations_ns = np.array([int(us) * 1000 for _, _, us in lines], np.int64)
    signatures = tuple(
        OpSignature(name=name, types=("float",), dims=(tuple(map(int, shape.split("x"))),)) for name, shape, _ in lines
    )
    return Trace(
        info=TraceInfo(
            path=source.path,
            dialect="toy",
            bytes_read=source.bytes_out,
            events=len(lines),
            metadata_level=metadata_level(signatures),
        ),
        signatures=signatures,
        ops=OpTable(
            signature=np.arange(len(lines), dtype=np.uint32),
            start_ns=np.cumsum(durations_ns) - durations_ns,
            dur_ns=durations_ns,
            track=np.zeros(len(lines), np.uint16),
        ),
        tracks=(("1", "1"),),
        kernel_names=(),
        kernels=KernelTable.none(),
        annotations=(),
        activity=Activity.none(ops=len(lines), kernels=0),
    )


TOY = Dialect("toy", sniff=lambda opening: opening.data.startswith(b"toy log\n"), read=read_toy)

LOG = b"toy log\naten::relu,8x4,30\naten::abs,16,12\n"


@pytest.fixture
def toy_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "DIALECTS", (TOY, *dialects.DIALECTS))


@pytest.mark.usefixtures("toy_is_known")
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_new_dialect_is_inspected_and_planned(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "some.log"
    path.write_bytes(pack(LOG))
    shown = CliRunner().invoke(opreplay, ["inspect", str(path), "--format", "json"])
    assert shown.exit_code == 0, shown.output
    summary = json.loads(shown.stdout)
    assert (summary["dialect"], summary["events"], summary["metadata_level"]) == ("toy", 2, "dims")
    planned = CliRunner().invoke(opreplay, ["plan", str(path), "--output", "-"])
    assert planned.exit_code == 0, planned.output
    times = {op["name"]: op["recorded"]["host_us_total"] for op in json.loads(planned.stdout)["ops"]}
    assert times == {"aten::relu": 30, "aten::abs": 12}


@pytest.mark.usefixtures("toy_is_known")
def test_a_new_dialect_is_simulated_and_its_step_explained(tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    path.write_bytes(LOG)
    simulated = CliRunner().invoke(opreplay, ["simulate", str(path), "--soc", "910b3"])
    assert simulated.exit_code == 0, simulated.output
    explained = CliRunner().invoke(opreplay, ["timeline", str(path), "--soc", "910b3", "--format", "json"])
    assert explained.exit_code == 0, explained.output
    report = json.loads(explained.stdout)
    assert report["window"]["step_us"] == 42
    assert {part["name"]: part["us"] for part in report["critical_path"]} == {"aten::relu": 30, "aten::abs": 12}


@pytest.mark.usefixtures("toy_is_known")
def test_files_of_other_dialects_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}')
    trace = read_trace(path)
    assert (trace.info.dialect, trace.signatures[0].name) == ("kineto", "aten::mm")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"schema": "1", "nodes": [', "execution_trace"),
        (b'\xef\xbb\xbf {"pid": {"schema": 2}, "schema": "1", "nodes" : [{"id"', "execution_trace"),
        (b'{"schema": "1", "traceEvents": [], "nodes": []}', "kineto"),
        (b'{"a": {"schema": 1, "nodes": []}, "nodes": []}', "kineto"),
        (b'{"schema": "1", "nodes": 3}', "kineto"),
        (b'[{"schema": "1", "nodes": []}]', "kineto"),
        (b"\x07\n\x050.0.4", "chakra"),
        (b"\x07\n\x090.0.4", "kineto"),
        (b"", "kineto"),
    ],
)
def test_the_first_bytes_tell_the_dialect(data: bytes, name: str) -> None:
    assert next(one for one in dialects.DIALECTS if one.sniff(Opening(data))).name == name


def test_what_was_looked_at_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(200)))
    with Source(path, Limits()) as source:
        assert source.peek(50) == bytes(range(50))
        assert source.bytes_out == 0
        block = bytearray(300)
        n = 0
        while got := source.readinto(memoryview(block)[n : n + 70]):
            n += got
        assert (block[:n], source.bytes_out) == (bytes(range(200)), 200)
