"""The result of a run: an append-only JSON Lines file with a versioned schema, and its values.

Owns the records and how a file of them is read; how one is written so that no crash damages it is `result_lines`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import msgspec

from opreplay.replay.executors.base import Measurement
from opreplay.replay.fidelity import Fidelity
from opreplay.replay.ir import Assumption, Resolution
from opreplay.replay.reasons import ReasonTotal
from opreplay.replay.sequence.messages import Tensors
from opreplay.replay.work.amounts import Work
from opreplay.traces.errors import FormatError

SCHEMA_VERSION = 3
"""Changes of format: 1 first version; 2 records "resumed", "trace" and "job", ops after an interrupted summary; 3
record "sequence", measurements in a sequence."""

Status = Literal["replayed", "skipped", "failed"]


By = Literal["user estimator", "user properties", "user rule", "rule", "bytes"]
"""What made a prediction, in the order in which they go before each other."""


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
    by: By | None = None
    """What made the prediction; None in files of older versions."""
    source: str = ""
    """Of a user's registration: "function (file.py:line)"."""


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


class NpuKernel(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one CANN type that the recorded calls of one op own."""

    type: str
    count: int
    total_us: float


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
    npu_kernels: tuple[NpuKernel, ...] = ()
    """What the NPU that was recorded ran, all calls, heaviest type first; only where a kernel table says it."""
    initializer: str | None = None
    assumptions: tuple[Assumption, ...] = ()
    meta: MetaCheck | None = None
    """Of a plan that was run on meta tensors."""
    work: Work | None = None
    """What the values of the arguments make the op do; None where that was not asked, or shapes alone decide."""
    fidelity: Fidelity | None = None
    """How kernels, child ops and times compare with those recorded; None where that was not asked."""
    measure_s: float | None = None
    """Wall time of the measuring loop."""
    attempts: int = 1
    """2 where the op went wrong among others and was tried again alone in a fresh process."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="record"):
    """First line of a result file."""

    schema_version: int = SCHEMA_VERSION
    opreplay_version: str
    started_at: str
    """UTC, ISO 8601."""
    trace: dict[str, object]
    environment: dict[str, object]
    options: dict[str, object]
    identity: dict[str, str] = {}
    """What must be the same for the run to be continued: digests of plan and options, versions, device, seed."""


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="record"):
    """From here on lines are of a later process that continued the run."""

    started_at: str
    """UTC, ISO 8601."""
    kept: int
    """Ops whose results were there already."""
    environment: dict[str, object]


class TraceResult(msgspec.Struct, frozen=True, kw_only=True, tag="trace", tag_field="record"):
    """What a run of several traces says of one of them, all calls together; times in microseconds."""

    source: str
    """Name of the file, with as much of its folder as tells it from the others."""
    job: str
    """Name of the job that the trace is a rank of; its own `source` where it stands alone."""
    rank: int | None = None
    world_size: int | None = None
    ops: int
    shared: int
    """Of `ops`, those that other traces have as well."""
    replayed: int
    covered_share: float
    recorded_us: float
    measured_us: float
    simulated_us: dict[str, float] = {}


class JobResult(msgspec.Struct, frozen=True, kw_only=True, tag="job", tag_field="record"):
    """The ranks of one job together."""

    job: str
    ranks: tuple[int, ...]
    world_size: int | None
    """As recorded; None where no rank says."""
    rank_from: str
    """"metadata", "file name", or "" for a trace that stands alone."""
    ops: int
    """Unique ops of all ranks."""
    rank_ops: int
    """Ops of the ranks added up: what would be run without merging them."""
    replayed: int
    covered_share: float
    recorded_us: float
    measured_us: float
    slowest_rank_us: float
    """Most recorded time of one rank."""
    simulated_us: dict[str, float] = {}


class SequenceResult(msgspec.Struct, frozen=True, kw_only=True, tag="sequence", tag_field="record"):
    """A recorded step beside its replay in recorded order; times in microseconds."""

    step: str
    """The annotation that marks it, "" for the whole trace."""
    steps: int
    """Recorded steps that it was chosen from."""
    calls: int
    """Of the step, those inside others left out."""
    calls_replayed: int
    calls_nested: int
    calls_cut: int
    """Calls beyond the limit of a sequence."""
    recorded_step_us: float
    """Wall time of the step."""
    recorded_us: float
    """Of the replayed calls, in the time that shares refer to: the device's where the trace has one."""
    recorded_host_us: float
    left_out_share: float
    """Of the recorded time of the step: what is not in the sequence."""
    passes: int
    sum_us: float | None
    """Of all calls of one pass, the median of the passes; None where no pass was over."""
    sum_low_us: float | None
    sum_high_us: float | None
    """95 % interval of that median."""
    wall_us: float | None
    """Of one pass, with what happens between the calls, such as tensors that are freed."""
    tensors: Tensors
    restarts: int = 0
    """Processes that ended before the sequence was over."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="record"):
    """Last line of a result file; a file without one was cut short. After an interrupted one a run may be continued."""

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


Record = Header | OpResult | Resumed | TraceResult | JobResult | SequenceResult | Summary


class ResultSink(Protocol):
    """Takes the records of a run in order: one header, one line an op, a summary."""

    def write(self, record: Record) -> None: ...


class MemorySink:
    """Keeps the records of a run in memory: one result an op, also where a continued run did it again."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.results: list[OpResult] = []
        self.summary: Summary | None = None
        self.traces: list[TraceResult] = []
        self.jobs: list[JobResult] = []
        self.sequence: SequenceResult | None = None
        self._places: dict[str, int] | None = None
        """Op id → index of its result, from when the run is continued."""

    def take(self, file: ResultFile) -> None:
        """Keep what an earlier part of the run came to."""
        self.header, self.results, self.summary = file.header, list(file.results), file.summary
        self.traces, self.jobs, self.sequence = list(file.traces), list(file.jobs), file.sequence

    def records(self) -> list[Record]:
        """All that is kept but the summary, in the order of a file."""
        head, sequence = ([] if one is None else [one] for one in (self.header, self.sequence))
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
        elif isinstance(record, SequenceResult):
            self.sequence = record


class _Line(msgspec.Struct):
    """What every line has, whatever the version of the file."""

    record: str = ""
    schema_version: int | None = None


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """All that a result file holds."""

    header: Header
    results: tuple[OpResult, ...]
    """One an op: where a continued run did one again, what came of it then."""
    summary: Summary | None
    """None where the file was cut short or is being continued."""
    traces: tuple[TraceResult, ...] = ()
    jobs: tuple[JobResult, ...] = ()
    sequence: SequenceResult | None = None
    complete_bytes: int
    """Length of the lines that are whole; what comes after is one that was cut short."""


def read_results(path: str | Path) -> tuple[Header, list[OpResult], Summary | None]:
    """The header, ops and summary of a result file; see `read_result_file`."""
    file = read_result_file(path)
    return file.header, list(file.results), file.summary


def read_result_file(path: str | Path) -> ResultFile:
    """Read a result file; a last line cut short by a crash is left out, and then there is no summary.

    Raises FormatError for anything else that is not a result file of this version or an older one.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    lines = data.split(b"\n")
    complete = lines[:-1]
    if not complete:
        raise FormatError(f"{path} is no opreplay result: it has no complete line")
    header = _read_header(complete[0], path)
    sink = MemorySink()
    decoder = msgspec.json.Decoder(OpResult | Resumed | TraceResult | JobResult | SequenceResult | Summary)
    for number, line in enumerate(complete[1:], start=2):
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}, line {number}: {error}", hint="The file was changed or is damaged.") from None
        if sink.summary is not None and not isinstance(record, Resumed):
            raise FormatError(f"{path}, line {number}: there is a line after the summary")
        sink.write(record)
    return ResultFile(
        header=header, results=tuple(sink.results), summary=sink.summary, traces=tuple(sink.traces),
        jobs=tuple(sink.jobs), sequence=sink.sequence, complete_bytes=len(data) - len(lines[-1]),
    )  # fmt: skip


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
