"""The result of a run: an append-only JSON Lines file with a versioned schema, and its values."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Protocol

import msgspec

from opreplay.replay.executors.base import Measurement
from opreplay.replay.ir import Assumption, Resolution
from opreplay.replay.reasons import ReasonTotal
from opreplay.replay.work.amounts import Work
from opreplay.traces.errors import FormatError, UsageError

SCHEMA_VERSION = 1
"""Changes of format: 1 first version."""

Status = Literal["replayed", "skipped", "failed"]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction of one op on one simulated device."""

    time_us: float
    bound: str
    """"cube", "vector", "hbm", "l2", "launch", "link", "custom" for a user's own estimate, or "none" for a view."""
    terms_us: dict[str, float]
    kernels: tuple[str, ...]
    """CANN kernel types the op was lowered to."""
    confidence: Literal["calibrated", "other SoC", "uncalibrated"]
    low_us: float
    high_us: float
    """80 % band."""


MetaStatus = Literal["ok", "differs", "no meta kernel", "data-dependent", "failed"]
META_WRONG: frozenset[MetaStatus] = frozenset({"differs", "failed"})
"""Verdicts that speak against an op; the others say that it fits, or that meta tensors cannot tell."""


class MetaCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a call on meta tensors said of one op: it computes nothing, and finds out whether and with what sizes."""

    status: MetaStatus
    """"ok": accepted, and no result differs from a recorded one; "data-dependent": sizes depend on contents."""
    detail: str = ""
    results_compared: int = 0
    """Results whose size and dtype the trace holds; 0 where it does not."""

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}" if self.detail else self.status


class OpResult(msgspec.Struct, frozen=True, kw_only=True, tag="op", tag_field="record"):
    """One op of a run. Times are microseconds a call; multiply by `count` for a total."""

    id: str
    name: str
    count: int
    status: Status
    reason: str | None = None
    resolved_by: Resolution | None = None
    via: str | None = None
    inputs: str = ""
    """Short text of the arguments, for people: "bf16[512,512] · bf16[512,2048]"."""
    recorded_device_us: float | None = None
    recorded_host_us: float | None = None
    recorded_share: float = 0.0
    """Of the trace's device time (host time where the trace has no device), all `count` calls together."""
    measured_us: float | None = None
    measurement: Measurement | None = None
    simulated_us: dict[str, float] = {}
    """By SoC, in the order asked for."""
    bound: str | None = None
    """On the first SoC asked for."""
    simulated: dict[str, Simulated] = {}
    initializer: str | None = None
    assumptions: tuple[Assumption, ...] = ()
    meta: MetaCheck | None = None
    """Of a plan that was run on meta tensors."""
    work: Work | None = None
    """What the values of the arguments make the op do; None where that was not asked, or shapes alone decide."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="record"):
    """First line of a result file."""

    schema_version: int = SCHEMA_VERSION
    opreplay_version: str
    started_at: str
    """UTC, ISO 8601."""
    trace: dict[str, object]
    environment: dict[str, object]
    options: dict[str, object]


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="record"):
    """Last line of a result file; a file without one was interrupted."""

    ops: int
    replayed: int
    skipped: int
    failed: int
    reasons: dict[str, int]
    """Reason kind → number of ops."""
    not_replayed: tuple[ReasonTotal, ...] = ()
    """What each reason accounts for: unique ops, calls, share of recorded time."""
    covered_share: float
    """Share of recorded time that the replayed ops own."""
    recorded_us: float
    """Of all ops in the plan, all calls, in the time that `recorded_share` refers to."""
    measured_us: float
    """Of the replayed ops, median times count."""
    simulated_us: dict[str, float]
    wall_s: float
    interrupted: bool = False


Record = Header | OpResult | Summary


class ResultSink(Protocol):
    """Takes the records of a run in order: one header, one line an op, a summary."""

    def write(self, record: Record) -> None: ...


class MemorySink:
    """Keeps the records of a run in memory."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.results: list[OpResult] = []
        self.summary: Summary | None = None

    def write(self, record: Record) -> None:
        if isinstance(record, OpResult):
            self.results.append(record)
        elif isinstance(record, Header):
            self.header = record
        else:
            self.summary = record


class JsonLinesSink:
    """Writes each record as one line and flushes it, so that a crash loses the op in flight and nothing else."""

    def __init__(self, stream: BinaryIO, *, close: bool = False) -> None:
        self._stream = stream
        self._close = close
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def open(cls, path: str | Path, *, force: bool = False) -> JsonLinesSink:
        """Open a new result file, before anything is measured. Raises UsageError when it exists and `force` is off."""
        try:
            stream = Path(path).open("wb" if force else "xb")  # noqa: SIM115 - the sink closes it
        except FileExistsError:
            raise UsageError(f"{path} exists", hint="Name another file, or overwrite it with --force.") from None
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}", hint="Check the folder and its rights."
            ) from None
        return cls(stream, close=True)

    def write(self, record: Record) -> None:
        self._stream.write(self._encoder.encode(record) + b"\n")
        self._stream.flush()

    def close(self) -> None:
        """Force the lines to the disk and close the file, unless the stream was the caller's."""
        if not self._close or self._stream.closed:
            return
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def __enter__(self) -> JsonLinesSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Line(msgspec.Struct):
    """What every line has, whatever the version of the file."""

    record: str = ""
    schema_version: int | None = None


def read_results(path: str | Path) -> tuple[Header, list[OpResult], Summary | None]:
    """Read a result file; a last line cut short by a crash is left out, and then there is no summary.

    Raises FormatError for anything else that is not a result file of this version or an older one.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    complete = lines[:-1]
    if not complete:
        raise FormatError(f"{path} is no opreplay result: it has no complete line")
    header = _read_header(complete[0], path)
    results: list[OpResult] = []
    summary: Summary | None = None
    decoder = msgspec.json.Decoder(OpResult | Summary)
    for number, line in enumerate(complete[1:], start=2):
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}, line {number}: {error}", hint="The file was changed or is damaged.") from None
        if summary is not None:
            raise FormatError(f"{path}, line {number}: there is a line after the summary")
        if isinstance(record, Summary):
            summary = record
        else:
            results.append(record)
    return header, results, summary


def _read_header(line: bytes, path: str | Path) -> Header:
    """The first line, its version checked before its fields, so that a newer file is named as such."""
    hint = 'A result file starts with a line whose record is "header"; `opreplay run --output r.jsonl` writes one.'
    try:
        start = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise FormatError(f"{path} is no opreplay result: its first line is not a header", hint=hint) from None
    if start.record != "header" or start.schema_version is None:
        raise FormatError(f"{path} is no opreplay result: its first line is not a header", hint=hint)
    if start.schema_version > SCHEMA_VERSION:
        raise FormatError(
            f"{path} has result schema {start.schema_version}; this opreplay reads up to {SCHEMA_VERSION}",
            hint="Update opreplay.",
        )
    try:
        return msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}, line 1: {error}") from None
