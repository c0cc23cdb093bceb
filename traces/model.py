# pyright: strict
"""The contents of a profile as frozen values and columns; independent of torch and of replaying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.traces.activity.model import Activity, ListedCollective, no_rows

Dims = tuple["int | Dims", ...]
"""A shape or strides; one level deeper for a TensorList entry."""

MetadataLevel = Literal["none", "dims", "dims+concrete", "full"]
"""What a trace records of an op's arguments: nothing; dims and types; also concrete inputs; also strides."""


class TensorMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of one tensor: everything except its contents."""

    shape: tuple[int, ...]
    dtype: str
    """torch dtype name, e.g. "bfloat16"."""
    strides: tuple[int, ...] | None = None
    """In elements; None means contiguous (or not recorded: the plan then holds an assumption)."""
    storage_offset: int = 0
    """In elements."""
    storage: int | None = None
    """Number of a memory within one op: tensors of one number share it. None: memory of its own, or not recorded."""


MOST_ELEMENTS = 1 << 47
"""Of one tensor: 140 TB of bytes, more than any one machine holds."""


def beyond_memory(meta: TensorMeta) -> bool:
    """Check whether a tensor has more elements than any memory holds; elements repeated by stride 0 count once."""
    strides = meta.strides if meta.strides is not None and len(meta.strides) == len(meta.shape) else meta.shape
    return prod(n for n, stride in zip(meta.shape, strides, strict=True) if stride != 0 and n > 0) > MOST_ELEMENTS


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements; a dimension of size 0 counts as 1, as in torch."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSignature:
    """The properties by which two recorded calls are the same op: name and recorded argument metadata, nothing else.

    Each of the four argument fields is None if the trace does not record it, else has one entry per argument.
    """

    name: str
    dims: tuple[Dims, ...] | None = None
    """"Input Dims": `()` for a 0-dim tensor, scalar or absent argument; a tuple of tuples for a TensorList."""
    types: tuple[str, ...] | None = None
    """"Input type" as spelled in the trace: "float", "c10::BFloat16", "Scalar", "TensorList", "ScalarList", ""."""
    strides: tuple[Dims, ...] | None = None
    """"Input Strides", in elements, nested like `dims`."""
    concrete: tuple[str, ...] | None = None
    """"Concrete Inputs" as recorded text; parse with `opreplay.traces.literals.parse_literal`."""
    overload: str | None = None
    """Overload name ("int", "" for the default one); only an ExecutionTrace records it."""
    list_types: tuple[tuple[str, ...], ...] | None = None
    """Element types of each TensorList, spelled as in `types`, "" for an absent element; `()` for other arguments."""
    storage: tuple[tuple[tuple[int, int], ...], ...] | None = None
    """(storage, offset) of each tensor of an argument: one pair for a tensor, n for a TensorList, none else.

    Numbered by first use within the op, so arguments whose memory overlaps have the same number; views of one storage
    that lie apart count as two. -1 is an absent element. Offsets are in elements from the 512-byte boundary at or below
    the first byte that the op uses there, so alignment is kept and no memory is needed for what the op never touches.
    """
    results: tuple[tuple[str, tuple[int, ...]] | None, ...] | None = field(default=None, compare=False)
    """(type, dims) of each result of one such call, lists flattened, None for what is no tensor; only an ExecutionTrace
    records them. They follow from the arguments, so they do not make two calls different ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMemories:
    """Numbers of the memories that hold each tensor of each call; -1 if unknown.

    Tensors that begin at different offsets of one storage have different numbers.
    """

    ids: npt.NDArray[np.int64]
    """Of all calls one after the other, the arguments of each before its results, lists flattened."""
    bounds: npt.NDArray[np.int64]
    """Ends of these parts: the arguments of row r are `ids[bounds[2r]:bounds[2r + 1]]`, its results what follows up to
    `bounds[2r + 2]`."""

    def of_row(self, row: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the memories of a call's arguments and results, without undefined and absent tensors."""
        begin, middle, end = self.bounds[2 * row : 2 * row + 3].tolist()
        return tuple(self.ids[begin:middle].tolist()), tuple(self.ids[middle:end].tolist())

    def of_calls(self, rows: npt.NDArray[np.int64]) -> TensorMemories:
        """Return the table for other calls; `rows` gives each one's row in this table, or -1 for an unknown call."""
        parts = np.stack([2 * rows, 2 * rows + 1], axis=1).reshape(-1)
        known = parts >= 0
        lengths = np.where(known, self.bounds[parts + 1] - self.bounds[parts], 0)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.repeat(self.bounds[parts] - bounds[:-1], lengths) + np.arange(int(bounds[-1]))
        return TensorMemories(ids=self.ids[places], bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Recorded CPU-side ops, one row per call, in file order."""

    signature: npt.NDArray[np.uint32]
    """Index into `Trace.signatures`."""
    start_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.integer]
    track: npt.NDArray[np.integer]
    """Index into `Trace.tracks` (process, thread)."""
    parent: npt.NDArray[np.int64] | None = None
    """Row of the innermost enclosing op, or -1, where the file says so; None where only the intervals tell."""
    record_function_id: npt.NDArray[np.int64] | None = None
    """torch's number of the call, the same in a Kineto trace and an ExecutionTrace of one run; -1 unknown."""
    sequence: npt.NDArray[np.int64] | None = None
    """Autograd's number of the node that a call recorded or belongs to, the same forward and backward; -1 for none."""
    gradients: npt.NDArray[np.bool_] | None = None
    """Whether autograd recorded the call: gradients were on, and an input required them; None where nobody asked."""
    gradients_assumed: npt.NDArray[np.bool_] | None = None
    """Whether nothing tells that of a call, which counts as not recorded; as `gradients`."""
    memories: TensorMemories | None = None
    """Only an ExecutionTrace tells them."""

    def __len__(self) -> int:
        return len(self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Work on the device (kernels, memory copies and sets), one row per launch, in file order."""

    name: npt.NDArray[np.uint32]
    """Index into `Trace.kernel_names`."""
    category: npt.NDArray[np.uint8]
    """Index into `KERNEL_CATEGORIES`."""
    start_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.integer]
    device: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    owner: npt.NDArray[np.int64]
    """Row in `Trace.ops` of the op that owns this device time, or -1."""
    grid: npt.NDArray[np.int64] | None = None
    """Launch grid (`reading.grids`), -1 where the file does not give it; None where nobody asked."""

    @classmethod
    def none(cls) -> KernelTable:
        """Return the table of a trace without device work."""
        return no_rows(cls)

    def __len__(self) -> int:
        return len(self.name)


KERNEL_CATEGORIES: tuple[str, ...] = ("kernel", "memcpy", "memset", "task")
""""task" is an NPU's device row, which its profiler does not categorise further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLaunches:
    """Launches of captured CUDA or HIP graphs by time; each runs several kernels whose ops the file does not give."""

    start_ns: npt.NDArray[np.int64]
    """Of the call that launched each graph."""
    track: npt.NDArray[np.integer]
    """Index into `Trace.tracks`."""
    kernels: npt.NDArray[np.int64]
    """Rows of the kernels of all launches one after the other, each launch's by start."""
    bounds: npt.NDArray[np.int64]
    """Launch i ran `kernels[bounds[i]:bounds[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCalls:
    """Calls into the runtime or driver with their names, in file order; read on request only."""

    names: tuple[str, ...]
    name: npt.NDArray[np.int64]
    """Index into `names`."""
    kernel: npt.NDArray[np.int64]
    """Index into `Trace.kernel_names` of the kernel that the call launches, -1 where it does not say (CUDA)."""
    grid: npt.NDArray[np.int64]
    """Of that kernel, -1 where the call does not say."""
    start_ns: npt.NDArray[np.int64]
    track: npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A named interval marked by the user or a framework (ProfilerStep#3, execute_..., nccl:all_reduce)."""

    name: str
    start_ns: int
    dur_ns: int
    track: int


class LinkStats(msgspec.Struct, frozen=True, kw_only=True):
    """How device time was assigned to ops: number of kernels by kind of evidence."""

    by_external_id: int = 0
    by_containment: int = 0
    by_flow: int = 0
    by_capture: int = 0
    """Kernels of captured graphs, by the recording of the capture."""
    unowned: int = 0
    unowned_device_ns: int = 0
    repeated_ids: int = 0
    """Of the unowned: several processes with one process and thread id gave out their id."""
    repeated_ids_device_ns: int = 0
    repeated_examples: tuple[int, ...] = ()
    """The first few of these ids."""
    repeated_tracks: tuple[int, ...] = ()
    """Indexes into `Trace.tracks`: the threads that gave them out."""
    displaced: int = 0
    """Of the unowned: start milliseconds before the launch of their id, while most start after theirs: their times are
    wrong, or the launch is of another process."""
    displaced_device_ns: int = 0
    displaced_by_ns: int = 0
    """By how much at most."""
    launched_before: int = 0
    """Of the unowned: they start before all that the host recorded, or before the first launch on their stream and with
    a lower id than every launch. So they were launched before the recording began, and no op of the file owns them."""
    launched_before_device_ns: int = 0
    launched: int = 0
    """Device events whose launch is recorded."""
    before_launch: int = 0
    """Of those: start over 1 us before their launch does, as no device can: the clocks of host and device differ."""
    before_launch_ns: int = 0
    """By how much at most."""
    clocks_apart_ns: int = 0
    """Median time from a launch to its device event, where that is minutes; else 0."""
    launches: int = 0
    """Calls that launch kernels or graphs, where device events have the ids to tell which they launched."""
    launches_without_work: int = 0
    """Of those: no device event is recorded."""
    shared_ids: int = 0
    """Device events whose correlation id is that of many others and so tells no launch; it counts as absent."""
    external_id_is_correlation: bool = False
    """Eras B and C of torch write the correlation id there; then containment is used for all."""


class ShapeJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How many ops of a trace got argument metadata from another one, by evidence."""

    donor: str
    """Path of the ExecutionTrace."""
    same_process: bool
    """The process ids agree; if not, the two files are hardly of the same run."""
    by_record_function_id: int = 0
    by_sequence: int = 0
    """The op stands in a run of ops of the same names in both."""
    by_context: int = 0
    """All ops of this name between such neighbours have the same arguments in the donor."""
    already_recorded: int = 0
    """The trace itself has shapes; the donor may have added strides, values or the overload."""
    disagreeing: int = 0
    """Of those: the donor says other shapes, which were not taken."""
    no_arguments: int = 0
    """Matched, but the donor records no arguments either: labels, autograd nodes."""
    unmatched: int = 0


class CapturedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One graph in a recording of captures."""

    source: str
    """Path of the recording."""
    kernels: int
    """Launches that were captured: as many kernels, copies and fills run when the graph is replayed."""


class GraphJoin(msgspec.Struct, frozen=True, kw_only=True):
    """Work that ran in captured graphs, and how much of it was assigned to ops by the recording of their capture."""

    sources: tuple[str, ...] = ()
    """Paths of the recordings that were used; empty where none was."""
    launches: int = 0
    kernels: int = 0
    device_us: float = 0.0
    """Of the kernels that graphs ran."""
    told_launches: int = 0
    told_kernels: int = 0
    told_us: float = 0.0
    """Of the kernels that have an owner through the recording of the capture."""
    by_name: int = 0
    """Launches whose kernels are those of one capture, name by name; for the others only number and kinds agree."""
    ambiguous: int = 0
    """Launches that fit captures of different ops, of which none was taken."""
    read_captures: tuple[CapturedGraph, ...] = ()
    """What the recordings of captures held, where a launch fits none of it: a few, those of the nearest size first."""
    unmatched_kernels: int = 0
    """Kernels of the first launch that fits no capture."""


class Collided(msgspec.Struct, frozen=True, kw_only=True):
    """Device work without a certain owner, since several processes gave out its ids."""

    events: int = 0
    device_us: float = 0.0
    ids: tuple[int, ...] = ()
    """The first few correlation ids, or External ids where device work has no others."""
    of: tuple[str, ...] = ()
    """The processes that gave them out, or the threads where processes have one id."""
    same_thread: bool = False
    """The processes have one process and one thread id, so that nothing tells their launches apart."""


class MergedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a file that several processes' profiles were merged into."""

    name: str
    """Its process id as the file has it; with its threads where processes share one id."""
    ops: int
    device_events: int
    device_us: float
    devices: tuple[int, ...] = ()
    """Numbers in `KernelTable.device`, which differ between processes."""


class MergedProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a merged file, whose ids are unique only within each process."""

    processes: tuple[MergedProcess, ...]
    uncertain_events: int = 0
    """Device events that more than one process may have launched: no op owns them."""
    uncertain_us: float = 0.0
    uncertain_ids: tuple[int, ...] = ()
    """The first few ids of device events that more than one process may have launched."""
    uncertain_of: tuple[str, ...] = ()
    """Names of the processes that launched work with these ids."""
    of_track: tuple[int, ...] = ()
    """Index into `processes` by index into `Trace.tracks`; -1 where several processes share a track."""
    of_device: dict[int, int] = {}
    """Number of a device → index into `processes`; -1 for device work whose process is not certain."""


HOLE = "an unknown number of events where bytes are missing or overwritten"
"""Loss counted by place: how many events a hole in the file took cannot be told."""


class ReadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Losses and repairs while reading, by reason; empty for a sound file."""

    losses: dict[str, int] = {}
    """Reason ("truncated file", "broken event", "duplicate key traceEvents", ...) → number of events or keys."""
    repairs: dict[str, int] = {}
    """Reason ("invalid UTF-8", "NaN", "unescaped quote", ...) → number of events that were repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """Facts about the run as a whole; None if the file does not say."""

    path: str
    dialect: str
    """"kineto", "ascend", "execution_trace", ..."""
    bytes_read: int
    """Decompressed bytes."""
    events: int
    """Entries of traceEvents."""
    events_by_category: dict[str, int] = field(default_factory=dict[str, int])
    metadata_level: MetadataLevel = "none"
    era: str | None = None
    """Letter of the torch era (trace-format documentation), inferred from features."""
    torch_version: str | None = None
    """As recorded, or a range such as ">=2.4" inferred from features."""
    device_names: tuple[str, ...] = ()
    vendor: Literal["nvidia", "amd", "ascend", "mtia", "intel", "cpu"] | None = None
    world_size: int | None = None
    rank: int | None = None
    backend: str | None = None
    """Of torch.distributed: "nccl", "gloo", "hccl"."""
    process_groups: int = 0
    """Groups of torch.distributed that differ in their members; 0 where the file lists none."""
    starts_recorded: bool = True
    """False where the file has durations and no start times (Chakra's converter): nothing is known of overlaps."""
    base_ns: int = 0
    """What the file's times count from, ns since 1970; 0 where it does not say: then they are such times themselves."""
    report: ReadReport = ReadReport()
    links: LinkStats = LinkStats()
    joined: ShapeJoin | None = None
    """Set when shapes were taken from an ExecutionTrace of the same run."""
    kernel_details: DetailsJoin | None = None
    """Set when a kernel table was joined, or lay beside the trace and could not be."""
    graphs: GraphJoin | None = None
    """Set when captured graphs ran."""
    collided: Collided = Collided()
    """Of the whole file, also when the trace is one process of it."""
    merged: MergedProcesses | None = None
    """Set when the file holds several processes."""
    process: str | None = None
    """Set when the trace is one process of a merged file."""
    processes: int = 1
    """In the file that `process` was taken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One profile, read and linked: the input of everything else."""

    info: TraceInfo
    signatures: tuple[OpSignature, ...]
    ops: OpTable
    tracks: tuple[tuple[str, str], ...]
    """(pid, tid) as text, by track index."""
    kernel_names: tuple[str, ...]
    kernels: KernelTable
    annotations: Sequence[Annotation]
    """In file order; a tuple, or a table that makes them from columns (`annotations.AnnotationTable`)."""
    details: KernelDetails | None = None
    """Of `kernels`, from the kernel table of an Ascend profile."""
    graphs: GraphLaunches | None = None
    """None where no captured graph ran."""
    calls: RuntimeCalls | None = None
    """None unless asked for."""
    activity: Activity | None = None
    """What else the file says of when things ran; only where it was asked for."""
    collectives: tuple[ListedCollective, ...] = ()
    """Of a Chakra file."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor in the view of a CANN kernel."""

    shape: tuple[int, ...]
    dtype: str
    """torch dtype name."""
    format: str = "ND"
    """"ND", "NCHW", "FRACTAL_NZ", "NC1HWC0", "FRACTAL_Z", ..."""


class KernelKind(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that all launches of one kernel share."""

    type: str
    """CANN operator type: "MatMulV3", "Add", "TransData", ..."""
    core: str
    """"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "AI_CPU", ... as spelled in the table; "" where it does not say."""
    inputs: tuple[TensorSpec | None, ...] = ()
    outputs: tuple[TensorSpec | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDetails:
    """Rows of a kernel table by the row of `Trace.kernels` that they describe."""

    kinds: tuple[KernelKind, ...]
    kind: npt.NDArray[np.int32]
    """Index into `kinds`, or -1 where the table has no row; one entry a row of `Trace.kernels`."""
    wait_ns: npt.NDArray[np.int64]
    """How long the task had waited for the one before it; -1 where unknown."""


class DetailsJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel table was joined to a trace."""

    file: str
    """Name of the table, without its folder."""
    discovered: bool
    """Found beside the trace; else named by the user."""
    problem: str | None = None
    """Why a discovered table was not used; then all counts are 0."""
    rows: int = 0
    by_start: int = 0
    """Same name, same start."""
    by_order: int = 0
    """Same name, which table and trace have equally often."""
    communication_rows: int = 0
    """Rows of collectives among those not found: a trace has them as parts."""
    unmatched_rows: int = 0
    """All other rows that are no task of the trace."""
    unmatched_tasks: int = 0
    """NPU tasks of the trace without a row: copies, events and waits have none."""
    other_durations: int = 0
    """Matched rows whose duration differs from the trace's by more than 1 %; the table's is used."""
    dropped: dict[str, int] = {}
    """Reason → number of rows that could not be read."""


def tensor_text(spec: TensorSpec | None) -> str:
    """Format a tensor: "bfloat16[4096,1024] ND"; "-" for an absent one."""
    return "-" if spec is None else f"{spec.dtype}[{','.join(map(str, spec.shape))}] {spec.format}"
