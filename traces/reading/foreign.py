# pyright: strict
"""Recognise files of other programs by their first bytes, and give advice to the user; no file is read here.

This is used for a file that is not a trace. The error then names the kind of the file instead of the first wrong byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from opreplay.traces.errors import Malformed
from opreplay.traces.reading.protobuf_wire import fields, read_varint

HINT = "Use a file written by torch.profiler's export_chrome_trace (JSON or gzip), or another format in docs/inputs.md."
HEAD_BYTES = 1 << 16
"""Maximum number of bytes of a file that are examined."""
_RECORD = "Record the run with torch.profiler and prof.export_chrome_trace: only these traces name torch's ops."
_UNPACK = "Unpack it, and use a trace from it."
_TABLES = "For Ascend, opreplay reads kernel_details.csv and op_summary_*.csv next to a trace_view.json."


class Foreign(NamedTuple):
    """Description of a kind of file, beginning with "a" or "an", and advice for the user."""

    what: str
    hint: str


_PICKLE = Foreign("a pickle, which opreplay never opens", HINT)
_MAGIC: tuple[tuple[bytes, Foreign], ...] = (
    (b"\x28\xb5\x2f\xfd", Foreign("zstd data", "Decompress it: zstd -d FILE.")),
    (b"\xfd7zXZ\x00", Foreign("xz data", "Decompress it: xz -d FILE.")),
    (b"BZh", Foreign("bzip2 data", "Decompress it: bzip2 -d FILE.")),
    (b"\x04\x22\x4d\x18", Foreign("lz4 data", "Decompress it: lz4 -d FILE.")),
    (b"PK\x03\x04", Foreign("a zip archive", f"{_UNPACK} unzip -l FILE lists them.")),
    (
        b"PK\x05\x06",
        Foreign("an empty zip archive", "Record it again: the profiler may have ended before it wrote the file."),
    ),
    (b"7z\xbc\xaf\x27\x1c", Foreign("a 7z archive", _UNPACK)),
    (b"Rar!", Foreign("a rar archive", _UNPACK)),
    (b"\x89PNG", Foreign("a PNG image", HINT)),
    (b"%PDF", Foreign("a PDF", HINT)),
    (b"\x7fELF", Foreign("a program", HINT)),
    (b"\x89HDF", Foreign("an HDF5 file", HINT)),
    (b"PAR1", Foreign("a Parquet file", f"Nsight Systems writes such files. {_RECORD}")),
    (b"ARROW1", Foreign("an Arrow file", f"Nsight Systems writes such files. {_RECORD}")),
    (b"NVR\x00", Foreign("a report of Nsight Compute (.ncu-rep)", _RECORD)),
    (
        b"SQLite format 3",
        Foreign("an SQLite database (of Nsight Systems, rocprofv3 or msprof?)", f"{_RECORD} {_TABLES}"),
    ),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in (2, 3, 4, 5)),
    (b"\xff\xfe", Foreign("UTF-16 text (PowerShell's > writes it)", "Convert it to UTF-8.")),
    (b"\xfe\xff", Foreign("UTF-16 text", "Convert it to UTF-8.")),
)
_GZIP = b"\x1f\x8b"
_TAR = Foreign("a tar archive", "Unpack it (tar -xf FILE), and use a trace from it.")
_TWICE = Foreign("gzip data inside gzip data", "Decompress it once: gunzip FILE.")


def foreign_bytes(head: bytes) -> Foreign | None:
    """Return the kind of a binary file from its first bytes; None if it is unknown."""
    return next((what for magic, what in _MAGIC if head.startswith(magic)), None)


def foreign_content(head: bytes, path: str, *, inflated: bool) -> Foreign | None:
    """Return the kind of a file that is no JSON trace, or None. Its name and first (decompressed) bytes decide."""
    if inflated and head.startswith(_GZIP):
        return _TWICE
    if _is_tar(head):
        return _TAR
    found = foreign_bytes(head) or _by_suffix(head, path) or _protobuf(head)
    if found is not None:
        return found
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    return next((what for is_one, what in _TEXTS if is_one(text)), None)


def python_text(head: bytes) -> Foreign | None:
    """Return the kind of a text that Python printed and that is not JSON; None for any other text."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if _is_repr(text):
        return _REPR
    return _PYTHON_WORDS if text[:1] in ("{", "[") and re.search(_PYTHON_WORD, text) else None


def _is_tar(head: bytes) -> bool:
    """Check whether the first 512 bytes are a tar header, by its magic number, otherwise by its checksum."""
    block = head[:512]
    if len(block) < 512 or not block[0]:
        return False
    if block[257:262] == b"ustar":
        return True
    try:
        told = int(block[148:156].strip(b" \0").decode("ascii") or "x", 8)
    except (ValueError, UnicodeDecodeError):
        return False
    return told == sum(block) - sum(block[148:156]) + 8 * 32


_SUFFIXES: dict[str, Foreign] = {
    ".nsys-rep": Foreign("a report of Nsight Systems", _RECORD),
    ".qdrep": Foreign("a report of Nsight Systems", _RECORD),
    ".ncu-rep": Foreign("a report of Nsight Compute", _RECORD),
    ".pftrace": Foreign("a trace of Perfetto in protobuf", _RECORD),
    ".perfetto-trace": Foreign("a trace of Perfetto in protobuf", _RECORD),
    ".xplane.pb": Foreign("a profile of JAX, XLA or TensorFlow (XPlane)", _RECORD),
    ".rpd": Foreign("a database of ROCm's rocpd", _RECORD),
}


def _by_suffix(head: bytes, path: str) -> Foreign | None:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return None
    name = path.lower().removesuffix(".gz")
    return next((what for suffix, what in _SUFFIXES.items() if name.endswith(suffix)), None)


def _protobuf(head: bytes) -> Foreign | None:
    """Recognise a sequence of protobuf messages in field 1: Perfetto packets or XLA planes."""
    at, packets = 0, 0
    if not head.startswith(b"\x0a"):
        return None
    planes = False
    try:
        while at < len(head) and packets < 3:
            if head[at] != 0x0A:
                return None
            length, at = read_varint(head, at + 1)
            message = head[at : at + length]
            at += length
            if len(message) == length:
                for _ in fields(message):
                    pass
            elif not packets and length < 64:
                return None
            planes |= b"/host:" in message[:200] or b"/device:" in message[:200]
            packets += 1
    except Malformed:
        return None
    if not packets or (packets == 1 and at < len(head)):
        return None
    return _SUFFIXES[".xplane.pb"] if planes else _SUFFIXES[".pftrace"]


_NSYS_LINES = Foreign("JSON lines of Nsight Systems (nsys export --type jsonlines)", _RECORD)
_LINES = Foreign(
    "JSON lines: one object per line",
    "If the lines are a trace's events, put them into one array: jq -s '{traceEvents: .}' FILE > trace.json.",
)
_CONVERT = (
    "Write it with json.dump, or convert it: python -c 'import ast, json, sys; "
    "json.dump(ast.literal_eval(sys.stdin.read()), sys.stdout)' < FILE > trace.json."
)
_REPR = Foreign("a printed Python dict or list, not JSON: its strings are in single quotes", _CONVERT)
_REPR_START = r"(?:\w{1,40}\([^{\[]{0,60})?[\[{(]\s{0,99}(?:[\[{(]\s{0,99})?[bu]?'(?:[^'\\\n]|\\.){0,200}'\s{0,9}[:,\]]"
_PYTHON_WORDS = Foreign("a printed Python dict or list, not JSON: it contains None, True or False", _CONVERT)
_PYTHON_WORD = r"[:,\[]\s{0,9}(?:None|True|False)\s{0,9}[,}\]]"
_FIRST_LINE = r'\{[^\n]{1,60000}\}[ \t]*\r?\n[ \t]*\{\s{0,9}"'
_NSYS_KEY = r'"(?:CudaEvent|NvtxEvent|TraceProcessEvent|ThreadInfo|EventId|domain)"|\{"Type":\s?\d'


def _is_nsys_lines(text: str) -> bool:
    return _is_lines(text) and re.search(_NSYS_KEY, text[:4000]) is not None


def _is_list_of_traces(text: str) -> bool:
    return text.startswith("[") and '"traceEvents"' in text


def _is_lines(text: str) -> bool:
    return text.startswith("{") and re.match(_FIRST_LINE, text) is not None


def _is_repr(text: str) -> bool:
    return re.match(_REPR_START, text) is not None


def _starts(*beginnings: str) -> Callable[[str], bool]:
    return lambda text: text[:200].lower().startswith(beginnings)


def _has(*words: str) -> Callable[[str], bool]:
    """Return a function that checks whether the examined JSON text contains all of these words."""
    return lambda text: text[:1] in ("{", "[") and all(word in text for word in words)


def _columns(*names: str) -> Callable[[str], bool]:
    """Return a function that checks whether the first line of a table has these columns."""
    return lambda text: all(name in text.partition("\n")[0].lower() for name in names)


_ROCPROF = Foreign("output of ROCm's rocprof", _RECORD)
_NSYS_TABLE = Foreign("a table of Nsight Systems (nsys stats)", _RECORD)
_MSPROF_TABLE = Foreign("a table of msprof", f"Use the trace_view.json next to it. {_TABLES}")
_JAX = Foreign(
    "a profile of JAX or XLA", "opreplay replays torch's ops, and this profile does not contain their names."
)
_EVENT_LIST = Foreign(
    "output of EventList.export_chrome_trace (prof.events().export_chrome_trace), without categories and shapes",
    "Use prof.export_chrome_trace of the same run, recorded with record_shapes=True.",
)
_AIU = Foreign(
    "device events of another profiler: begin and end events without categories, as IBM's AIU writes them",
    "opreplay needs the host trace with torch's ops: use the output of prof.export_chrome_trace.",
)
_TRACES = Foreign(
    "a list of several traces, each with its own traceEvents",
    "Write each to a file: jq -c '.[]' FILE | split -l 1 - trace_; `timeline --ranks` and `batch` take several.",
)
_HALVES = Foreign("begin and end events of another profiler, without categories", _RECORD)
_RESULTS = Foreign(
    "a result of opreplay, not a trace",
    "`opreplay show` and `opreplay compare` take results; `compare` reads them only from files, not from pipes.",
)
_PLAN = Foreign(
    "a plan of opreplay, not a trace",
    "`opreplay plan`, `run`, `simulate` and `compare` take plans, and read them only from files, not from pipes.",
)
_TEXTS: tuple[tuple[Callable[[str], bool], Foreign], ...] = (
    (_has('"record":"header"', '"opreplay_version"'), _RESULTS),
    (_has('"schema_version"', '"device_us_total"', '"host_us_total"'), _PLAN),
    (_is_nsys_lines, _NSYS_LINES),
    (_is_list_of_traces, _TRACES),
    (_has('"rocprofiler-sdk-tool"'), _ROCPROF),
    (_has('"traceEvents"', '"BeginNs"'), _ROCPROF),
    (_has('"CPU functions"'), _EVENT_LIST),
    (_has('"CUDA functions"'), _EVENT_LIST),
    (_has('"hlo_'), _JAX),
    (_has('"/device:TPU:'), _JAX),
    (_has('"/host:CPU"'), _JAX),
    (_has(" Cmpt "), _AIU),
    (_has('"viztracer_metadata"'), Foreign("a trace of VizTracer", _RECORD)),
    (_has("speedscope.app"), Foreign("a profile for speedscope", _RECORD)),
    (_has('"provider"', '"op_name"'), Foreign("a profile of ONNX Runtime", _RECORD)),
    (_has('"timeMs"'), Foreign("a profile of TensorRT (trtexec)", _RECORD)),
    (_has('"averageMs"'), Foreign("a profile of TensorRT (trtexec)", _RECORD)),
    (_has('"device_traces"', '"segments"'), Foreign("a snapshot of PyTorch's memory", _RECORD)),
    (_has('"ph": "B"'), _HALVES),
    (_has('"ph":"B"'), _HALVES),
    (_is_lines, _LINES),
    (_is_repr, _REPR),
    (
        _starts("<!doctype", "<html", "<?xml"),
        Foreign("an HTML or XML page, not a trace (perhaps a failed download)", HINT),
    ),
    (_starts("version https://git-lfs"), Foreign("a pointer of Git LFS", "Fetch the file itself: git lfs pull.")),
    (_columns("kernel_name", "start_timestamp"), _ROCPROF),
    (_columns("kernelname", "beginns"), _ROCPROF),
    (_columns("totaldurationns", "calls"), _ROCPROF),
    (_columns("total time (ns)", "instances"), _NSYS_TABLE),
    (_columns("start (ns)", "duration (ns)"), _NSYS_TABLE),
    (_columns("op name", "task"), _MSPROF_TABLE),
    (_columns("accelerator core", "duration"), _MSPROF_TABLE),
)
"""Pairs of (check, file kind), in the order in which they are tried; more specific checks come first."""
