# pyright: strict
"""Keep results in memory, and read result files."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import msgspec

from opreplay.replay.ir.extremes import extreme
from opreplay.replay.ir.reasons import Reason
from opreplay.replay.results.records import (
    SCHEMA_VERSION,
    Header,
    JobResult,
    OpResult,
    Record,
    Resumed,
    SequenceResult,
    Summary,
    TraceResult,
)
from opreplay.traces.errors import FormatError
from opreplay.traces.folders import open_regular
from opreplay.traces.reading.source import open_pipe

_GZIP = b"\x1f"
"""First byte of a compressed file."""
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
DAMAGED = "The file was changed or is damaged."
MAX_BYTES = 1 << 30
"""Maximum size of a result file, in bytes."""
_HEADER = 'To write a result file, run `opreplay run TRACE --output r.jsonl`. Its first line has "record": "header".'


class ResultSink(Protocol):
    """Receives the records of a run in order: one header, one line per op, a summary."""

    def write(self, record: Record) -> None: ...


class MemorySink:
    """Keeps the records of a run in memory, one result per op. If a resumed run repeats an op, the later one
    is kept.
    """

    def __init__(self) -> None:
        self.header: Header | None = None
        self.results: list[OpResult] = []
        self.summary: Summary | None = None
        self.traces: list[TraceResult] = []
        self.jobs: list[JobResult] = []
        self.sequence: SequenceResult | None = None
        self._places: dict[str, int] | None = None
        """Op id → index of its result; set when the run is resumed."""

    def take(self, file: ResultFile) -> None:
        """Add the results of an earlier part of the run."""
        self.header, self.results, self.summary = file.header, list(file.results), file.summary
        self.traces, self.jobs, self.sequence = list(file.traces), list(file.jobs), file.sequence

    def records(self) -> list[Record]:
        """Return all records except the summary, in file order."""
        head, sequence = ([] if record is None else [record] for record in (self.header, self.sequence))
        return [*head, *self.results, *self.traces, *self.jobs, *sequence]

    def write(self, record: Record) -> None:
        if isinstance(record, OpResult):
            place = None if self._places is None else self._places.get(record.id)
            if place is None:
                self.results.append(record)
            else:
                self.results[place] = record
        elif isinstance(record, Resumed):
            self._places = {result.id: index for index, result in enumerate(self.results)}
            self.summary, self.traces, self.jobs, self.sequence = None, [], [], None
        elif isinstance(record, Header):
            self.header = record
        elif isinstance(record, Summary):
            self.summary = record
        elif isinstance(record, TraceResult):
            self.traces.append(record)
        elif isinstance(record, JobResult):
            self.jobs.append(record)
        else:
            self.sequence = record


REASONS_ARE_VALUES = 4
"""First version in which the reason of an op is a structured value. Before, it was text, "kind: detail"."""
_Later: TypeAlias = OpResult | Resumed | TraceResult | JobResult | SequenceResult | Summary
"""Records of all lines after the first."""


class _Line(msgspec.Struct):
    """The fields that every line has, in every version of the file."""

    record: str = ""
    schema_version: int | None = None


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a result file."""

    header: Header
    results: tuple[OpResult, ...]
    """One result per op; if a resumed run repeated an op, the later result."""
    summary: Summary | None
    """Last line of the file; None if the file was cut short or its run is being resumed."""
    traces: tuple[TraceResult, ...] = ()
    jobs: tuple[JobResult, ...] = ()
    sequence: SequenceResult | None = None
    complete_bytes: int
    """Total length of the complete lines; anything after them is an incomplete line."""


def read_results(path: str | Path) -> tuple[Header, list[OpResult], Summary | None]:
    """Return the header, ops and summary of a result file; see `read_result_file`."""
    file = read_result_file(path)
    return file.header, list(file.results), file.summary


def _opened(path: str | Path) -> BufferedReader:
    return BufferedReader(open_pipe(str(path))) if Path(path).is_fifo() else open_regular(path, MAX_BYTES)


def _complete_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the complete lines of a result file.

    It is read line by line, because the text of a large file takes as much memory as its records. Raises FormatError
    for a file that cannot be read, is too large or compressed, or does not start like a JSON object.
    """
    seen = 0
    try:
        with _opened(path) as stream:
            line = stream.read(1)
            if line == _GZIP:
                raise FormatError(f"{path} is compressed", hint="gunzip it first.")
            if line not in (b"{", b""):
                raise FormatError(f"{path} is not an opreplay result: its first line is not a header", hint=_HEADER)
            while line := line + stream.readline(MAX_BYTES + 1 - seen):
                seen += len(line)
                if seen > MAX_BYTES:
                    raise FormatError(
                        f"{path} has more than {MAX_BYTES:,} bytes", hint="Split the run, and compare the parts."
                    )
                if line.endswith(b"\n"):
                    yield line[:-1]
                line = b""
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None


def read_result_file(path: str | Path) -> ResultFile:
    """Read a result file.

    If a crash cut the last line short, this line is dropped, and there is no summary. Raises FormatError for any other
    fault, and for files of a newer version.
    """
    lines = _complete_lines(path)
    first = next(lines, None)
    if first is None:
        raise FormatError(f"{path} is not an opreplay result: it has no complete line")
    header = _read_header(first, path)
    sink = MemorySink()
    decoder = msgspec.json.Decoder(_Later)
    complete_bytes = len(first) + 1
    for number, line in enumerate(lines, start=2):
        complete_bytes += len(line) + 1
        try:
            record = decoder.decode(line) if header.schema_version >= REASONS_ARE_VALUES else _decoded_older(line)
        except UNDECODABLE as error:
            raise FormatError(f"{path}, line {number}: {error}", hint=DAMAGED) from None
        if where := extreme(line) or _contradiction(record):
            raise FormatError(f"{path}, line {number}: {where} is out of range", hint=DAMAGED)
        if sink.summary is not None and not isinstance(record, Resumed):
            raise FormatError(f"{path}, line {number}: a line follows the summary")
        sink.write(record)
    return ResultFile(
        header=header,
        results=tuple(sink.results),
        summary=sink.summary,
        traces=tuple(sink.traces),
        jobs=tuple(sink.jobs),
        sequence=sink.sequence,
        complete_bytes=complete_bytes,
    )


def _contradiction(record: object) -> str:
    """Return what is impossible in a measurement (negative time, interval ends before it begins); "" if nothing."""
    measurement = record.measurement if isinstance(record, OpResult) else None
    if measurement is None:
        return ""
    low, high = measurement.ci_low_us or 0.0, measurement.ci_high_us
    times = (
        measurement.median_us,
        measurement.iqr_us,
        measurement.min_us,
        measurement.max_us,
        low,
        measurement.relative or 0.0,
    )
    return "a time of the measurement" if min(times) < 0 or (high is not None and high < low) else ""


def _read_header(line: bytes, path: str | Path) -> Header:
    """Read the first line. The version is checked before the fields, so a newer file is reported as newer."""
    try:
        start = msgspec.json.decode(line, type=_Line)
    except UNDECODABLE:
        raise FormatError(f"{path} is not an opreplay result: its first line is not a header", hint=_HEADER) from None
    if start.record != "header" or start.schema_version is None:
        raise FormatError(f"{path} is not an opreplay result: its first line is not a header", hint=_HEADER)
    if start.schema_version > SCHEMA_VERSION:
        raise FormatError(
            f"{path} has result schema {start.schema_version}, but this opreplay reads up to {SCHEMA_VERSION}",
            hint="Update opreplay.",
        )
    if where := extreme(line):
        raise FormatError(f"{path}, line 1: {where} is out of range", hint=DAMAGED)
    try:
        return msgspec.json.decode(line, type=Header)
    except UNDECODABLE as error:
        raise FormatError(f"{path}, line 1: {error}", hint=DAMAGED) from None


def _decoded_older(line: bytes) -> _Later:
    """Decode a record of a version whose reasons are text. Raises the MsgspecError of a decoder."""
    raw: object = msgspec.json.decode(line)
    if isinstance(raw, dict):
        fields = cast("dict[str, object]", raw)
        if isinstance(reason := fields.get("reason"), str):
            fields["reason"] = _reason_of(reason)
    return msgspec.convert(raw, type=_Later)


def _reason_of(text: str) -> Reason:
    """Parse a reason from text; text of an unknown kind becomes the detail of a failure."""
    kind, _, detail = text.partition(": ")
    if text.startswith("budget: time: the run's"):
        kind, detail = "out of time", detail.removeprefix("time: ")
    try:
        return msgspec.convert({"kind": kind, "detail": detail}, type=Reason)
    except msgspec.ValidationError:
        return Reason("failed", text or "no reason given")
