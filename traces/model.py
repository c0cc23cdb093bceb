# pyright: strict
"""The contents of a profile as frozen values and columns, independent of torch and of replaying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import msgspec
import numpy as np

from opreplay.traces.activity.model import Activity, ListedCollective, no_rows
from opreplay.traces.arrays import ArrayOf, Bools, Integers, Ints

Dims = tuple["int | Dims", ...]
"""The shape or the strides of an argument; for a TensorList, a tuple with the shape or the strides of each tensor."""

MetadataLevel = Literal["none", "dims", "dims+concrete", "full"]
"""What a trace records about an op's arguments: nothing; dims and types; also concrete inputs; also strides."""


class TensorMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of one tensor: everything except its contents."""

    shape: tuple[int, ...]
    dtype: str
    """torch dtype name, e.g. "bfloat16"."""
    strides: tuple[int, ...] | None = None
    """Strides in elements; None means contiguous (or not recorded: the plan then states an assumption)."""
    storage_offset: int = 0
    """Offset in elements."""
    storage: int | None = None
    """Number of the memory that holds the tensor; tensors of one op with the same number share memory. None means that
    the memory is separate or not recorded.
    """


MOST_ELEMENTS = 1 << 47
"""Maximum number of elements of one tensor: 140 TB at one byte per element, more than any machine holds."""


def beyond_memory(meta: TensorMeta) -> bool:
    """Check whether a tensor has more elements than any memory holds; elements repeated by stride 0 count once."""
    strides = meta.strides if meta.strides is not None and len(meta.strides) == len(meta.shape) else meta.shape
    return prod(n for n, stride in zip(meta.shape, strides, strict=True) if stride != 0 and n > 0) > MOST_ELEMENTS


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements. As in torch, a dimension of size 0 is treated like size 1."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSignature:
    """An op: recorded calls with the same name and argument metadata are the same op.

    `dims`, `types`, `strides` and `concrete` have one entry per argument; None for what the trace does not record.
    """

    name: str
    dims: tuple[Dims, ...] | None = None
    """"Input Dims": `()` for a 0-dim tensor, scalar or absent argument; a tuple of tuples for a TensorList."""
    types: tuple[str, ...] | None = None
    """"Input type" as spelled in the trace: "float", "c10::BFloat16", "Scalar", "TensorList", "ScalarList", ""."""
    strides: tuple[Dims, ...] | None = None
    """"Input Strides" in elements, nested like `dims`."""
    concrete: tuple[str, ...] | None = None
    """The recorded "Concrete Inputs", as text that `opreplay.traces.literals.parse_literal` can parse."""
    overload: str | None = None
    """Name of the overload, such as "int", or "" for the default overload; only an ExecutionTrace records it."""
    list_types: tuple[tuple[str, ...], ...] | None = None
    """Element types of each TensorList, spelled as in `types`, "" for an absent element; `()` for other arguments."""
    storage: tuple[tuple[tuple[int, int], ...], ...] | None = None
    """(storage, offset) of each tensor of each argument: one pair for a tensor, n pairs for a TensorList, else none.

    Storages are numbered by first use within the op. Arguments whose memory overlaps have the same number; views of one
    storage that do not overlap have different numbers. -1 is an absent element. Offsets are in elements. They count
    from the last 512-byte boundary at or before the first byte that the op uses in the storage. This keeps the
    alignment and needs no memory for parts that the op never touches.
    """
    results: tuple[tuple[str, tuple[int, ...]] | None, ...] | None = field(default=None, compare=False)
    """(type, dims) of each result of one call with this signature; lists are flattened, and non-tensors are None.

    Only an ExecutionTrace records results. They follow from the arguments, so they are ignored when ops are compared.
    """


class TensorMemories(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the memories that hold the tensors of each call; -1 for an unknown memory.

    Tensors that begin at different offsets of one storage have different numbers.
    """

    ids: Ints
    """Memory numbers of all calls in order: the arguments of each call, then its results, with lists flattened."""
    bounds: Ints
    """Boundaries of the parts of `ids`, two parts for each row. Row r has the arguments `ids[bounds[2r]:bounds[2r +
    1]]` and the results `ids[bounds[2r + 1]:bounds[2r + 2]]`.
    """

    def of_row(self, row: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the memories of a call's arguments and results, without undefined and absent tensors."""
        begin, middle, end = self.bounds[2 * row : 2 * row + 3].tolist()
        return tuple(self.ids[begin:middle].tolist()), tuple(self.ids[middle:end].tolist())

    def of_calls(self, rows: Ints) -> TensorMemories:
        """Return a new table that has one row for each entry of `rows`.

        An entry is the row of a call in the present table, or -1 for an unknown call.
        """
        parts = np.stack([2 * rows, 2 * rows + 1], axis=1).reshape(-1)
        known = parts >= 0
        lengths = np.where(known, self.bounds[parts + 1] - self.bounds[parts], 0)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.repeat(self.bounds[parts] - bounds[:-1], lengths) + np.arange(int(bounds[-1]))
        return TensorMemories(ids=self.ids[places], bounds=bounds)


class OpTable(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded CPU-side ops, one row per call, in file order."""

    signature: ArrayOf[np.uint32]
    """Index into `Trace.signatures`."""
    start_ns: Ints
    dur_ns: Integers
    track: Integers
    """Index into `Trace.tracks` (process, thread)."""
    parent: Ints | None = None
    """Row of the innermost op that encloses each op, or -1. None if the file does not record it; it is then derived
    from the ops' intervals.
    """
    record_function_id: Ints | None = None
    """torch's id of the call, equal in a Kineto trace and an ExecutionTrace of one run; -1 if unknown."""
    sequence: Ints | None = None
    """Autograd sequence number of the node that each call recorded or belongs to; -1 if there is none. The number is
    equal in the forward and the backward pass.
    """
    gradients: Bools | None = None
    """Whether autograd recorded the call: gradients were on, and an input required them. None if not requested."""
    gradients_assumed: Bools | None = None
    """Whether it is unknown if autograd recorded the call; `gradients` is then False. None if not requested."""
    memories: TensorMemories | None = None
    """Memories of the tensors; recorded only by an ExecutionTrace."""

    def __len__(self) -> int:
        return len(self.signature)


class KernelTable(msgspec.Struct, frozen=True, kw_only=True):
    """Work on the device (kernels, memory copies and sets), one row per launch, in file order."""

    name: ArrayOf[np.uint32]
    """Index into `Trace.kernel_names`."""
    category: ArrayOf[np.uint8]
    """Index into `KERNEL_CATEGORIES`."""
    start_ns: Ints
    dur_ns: Integers
    device: ArrayOf[np.int32]
    stream: ArrayOf[np.int32]
    owner: Ints
    """Row in `Trace.ops` of the op that owns this device time, or -1."""
    grid: Ints | None = None
    """Launch grid packed by `reading.grids`; -1 if the file does not give it. None if not requested."""

    @classmethod
    def none(cls) -> KernelTable:
        """Return the table of a trace without device work."""
        return no_rows(cls)

    def __len__(self) -> int:
        return len(self.name)


KERNEL_CATEGORIES: tuple[str, ...] = ("kernel", "memcpy", "memset", "task")
"""Categories of device work; "task" is an NPU's device row, which its profiler does not categorise further."""


class GraphLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of captured CUDA or HIP graphs, sorted by time.

    Each launch runs several kernels whose ops are not in the file.
    """

    start_ns: Ints
    """Start of the call that launched each graph."""
    track: Integers
    """Index into `Trace.tracks`."""
    kernels: Ints
    """Rows of the kernels of all launches, launch after launch; those of one launch are sorted by start."""
    bounds: Ints
    """Launch i ran `kernels[bounds[i]:bounds[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.start_ns)


class RuntimeCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Named calls into the runtime or driver, in file order; they are read only on request."""

    names: tuple[str, ...]
    name: Ints
    """Index into `names`."""
    kernel: Ints
    """Index into `Trace.kernel_names` of the kernel that the call launches; -1 if not recorded (CUDA)."""
    grid: Ints
    """Launch grid of the kernel, packed by `reading.grids`; -1 if the call does not record it."""
    start_ns: Ints
    track: Integers


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A named interval marked by the user or a framework (ProfilerStep#3, execute_..., nccl:all_reduce)."""

    name: str
    start_ns: int
    dur_ns: int
    track: int


class LinkStats(msgspec.Struct, frozen=True, kw_only=True):
    """How device time was assigned to ops: number of kernels by the evidence used."""

    by_external_id: int = 0
    by_containment: int = 0
    by_flow: int = 0
    by_capture: int = 0
    """Kernels of captured graphs, assigned through a recording of the graph's capture."""
    unowned: int = 0
    unowned_device_ns: int = 0
    repeated_ids: int = 0
    """Unowned kernels whose id was used by several processes with the same process id and thread id."""
    repeated_ids_device_ns: int = 0
    repeated_examples: tuple[int, ...] = ()
    """Examples of ids that several processes used."""
    repeated_tracks: tuple[int, ...] = ()
    """Indexes into `Trace.tracks` of the threads on which several processes used the same ids."""
    displaced: int = 0
    """Number of unowned kernels that start milliseconds before the launch with their id, although most kernels start
    after it.

    Either their times are wrong or the launch belongs to another process.
    """
    displaced_device_ns: int = 0
    displaced_by_ns: int = 0
    """Maximum time from the start of a displaced kernel to its later launch."""
    launched_before: int = 0
    """Number of kernels without an owner because they were launched before the recording began.

    Such a kernel starts before everything that the host recorded. Or it starts before the first kernel K of its stream
    whose launch was recorded, and its id is lower than those of all launches by the thread that launched K.
    """
    launched_before_device_ns: int = 0
    launched: int = 0
    """Device events whose launch is recorded."""
    before_launch: int = 0
    """Launched device events that start more than 1 us before their launch, which is impossible: host and device clocks
    differ.
    """
    before_launch_ns: int = 0
    """Maximum time from the start of a device event to its later launch."""
    clocks_apart_ns: int = 0
    """Median time from a launch to its device event; 0 unless this time is minutes long."""
    launches: int = 0
    """Number of calls that launch kernels or graphs; counted only if ids connect device events with launches."""
    launches_without_work: int = 0
    """Launches without a recorded device event."""
    shared_ids: int = 0
    """Number of device events whose correlation id identifies no launch, because too many other events share it. Such
    an id counts as absent.
    """
    external_id_is_correlation: bool = False
    """Whether the External id repeats the correlation id, as in torch >=1.11,<2.2 (eras B and C). It then does not
    identify an op, and owners are found only by which op contains the launch.
    """


class ShapeJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How many ops of a trace got argument metadata from an ExecutionTrace (the donor), by evidence."""

    donor: str
    """Path of the ExecutionTrace."""
    same_process: bool
    """Whether the process ids agree; if not, the two files are probably not from the same run."""
    by_record_function_id: int = 0
    by_sequence: int = 0
    """Number of ops in those sequences of ops that have the same names in both files."""
    by_context: int = 0
    """Ops whose name and neighbouring names always occur with the same arguments in the donor."""
    already_recorded: int = 0
    """Ops for which the trace itself has shapes; the donor may have added strides, values or the overload."""
    disagreeing: int = 0
    """Number of ops with different shapes in trace and donor. For these, the donor was not used."""
    no_arguments: int = 0
    """Number of matched ops without arguments even in the donor: labels, autograd nodes."""
    unmatched: int = 0


class CapturedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One graph in a capture recording."""

    source: str
    """Path of the recording."""
    kernels: int
    """Number of captured launches, which equals the number of kernels, copies and fills that a replay of the graph
    runs.
    """


_WRITTEN = {"matched_launches": "told_launches", "matched_kernels": "told_kernels", "matched_us": "told_us"}
"""Fields of `GraphJoin` with different names in result files: name in Python → name in files."""


class GraphJoin(msgspec.Struct, frozen=True, kw_only=True, rename=_WRITTEN):
    """Work that ran in captured graphs, and how much of it was assigned to ops by recordings of graph captures."""

    sources: tuple[str, ...] = ()
    """Paths of the recordings that were used; empty if none was."""
    launches: int = 0
    kernels: int = 0
    device_us: float = 0.0
    """Device time of all kernels that graphs ran."""
    matched_launches: int = 0
    matched_kernels: int = 0
    matched_us: float = 0.0
    """Device time of the kernels that got an owner from a capture recording."""
    by_name: int = 0
    """Launches matched to a capture by kernel names. The others match only by number and kinds of work."""
    ambiguous: int = 0
    """Launches that match several captures with different ops. None of these captures was used."""
    read_captures: tuple[CapturedGraph, ...] = ()
    """A few of the recorded captures if a launch matches none of them; the closest number of kernels comes first."""
    unmatched_kernels: int = 0
    """Number of kernels in the first launch that matches no capture."""


class Collided(msgspec.Struct, frozen=True, kw_only=True):
    """Device work with an uncertain owner, because several processes used the same ids."""

    events: int = 0
    device_us: float = 0.0
    ids: tuple[int, ...] = ()
    """The first few of the colliding correlation ids, or External ids if device work has no correlation ids."""
    of: tuple[str, ...] = ()
    """The processes that used the colliding ids, or the threads if the processes have the same process id."""
    same_thread: bool = False
    """Whether the processes have the same process id and thread id. Their launches then cannot be distinguished."""


class MergedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process in a file merged from the profiles of several processes."""

    name: str
    """The recorded process id, followed by thread ids if several processes have the same process id."""
    ops: int
    device_events: int
    device_us: float
    devices: tuple[int, ...] = ()
    """Device numbers in `KernelTable.device`, which differ between processes."""


class MergedProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a merged file, whose ids are unique only within each process."""

    processes: tuple[MergedProcess, ...]
    uncertain_events: int = 0
    """Number of device events that several processes may have launched. No op owns these events."""
    uncertain_us: float = 0.0
    uncertain_ids: tuple[int, ...] = ()
    """The first few ids of device events that more than one process may have launched."""
    uncertain_of: tuple[str, ...] = ()
    """Names of the processes that have launches with the ids in `uncertain_ids`."""
    of_track: tuple[int, ...] = ()
    """Index into `processes` for each entry of `Trace.tracks`; -1 for a track that several processes share."""
    of_device: dict[int, int] = {}
    """Index into `processes`, by device number; -1 for a device with work of an uncertain process."""


HOLE = "an unknown number of events where bytes are missing or overwritten"
"""Reason for a loss that is counted once per gap in the file, because the number of events in a gap is unknown."""


class ReadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Losses and repairs while reading, by reason; empty for an intact file."""

    losses: dict[str, int] = {}
    """Reason ("truncated file", "broken event", "duplicate key traceEvents", ...) → number of events or keys."""
    repairs: dict[str, int] = {}
    """Reason ("invalid UTF-8", "NaN", "unescaped quote", ...) → number of repaired events."""


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the whole run; None if the file does not record them."""

    path: str
    dialect: str
    """"kineto", "ascend", "execution_trace", ..."""
    bytes_read: int
    """Number of bytes of the file after decompression."""
    events: int
    """Number of entries of traceEvents."""
    events_by_category: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    metadata_level: MetadataLevel = "none"
    era: str | None = None
    """Letter of the trace format (see the trace-format documentation), inferred from features."""
    torch_version: str | None = None
    """Version as recorded, or a range such as ">=2.4" inferred from features."""
    device_names: tuple[str, ...] = ()
    vendor: Literal["nvidia", "amd", "ascend", "mtia", "intel", "cpu"] | None = None
    world_size: int | None = None
    rank: int | None = None
    backend: str | None = None
    """torch.distributed back-end: "nccl", "gloo", "hccl"."""
    process_groups: int = 0
    """Number of torch.distributed groups with distinct members; 0 if the file lists none."""
    starts_recorded: bool = True
    """Whether the file has start times. Chakra's converter writes only durations, so overlaps are unknown."""
    base_ns: int = 0
    """Time in ns since 1970 from which the file's times count. 0 if it is not recorded; the times themselves then count
    from 1970.
    """
    report: ReadReport = ReadReport()
    links: LinkStats = LinkStats()
    joined: ShapeJoin | None = None
    """Set when shapes were taken from an ExecutionTrace of the same run."""
    kernel_details: DetailsJoin | None = None
    """Set if a kernel table was joined, or if joining the one found next to the trace failed."""
    graphs: GraphJoin | None = None
    """Set if captured graphs ran."""
    collided: Collided = Collided()
    """Colliding ids in the whole file, even if this trace contains only one of its processes."""
    merged: MergedProcesses | None = None
    """Set if the file contains several processes."""
    process: str | None = None
    """Name of the process if the trace contains only one process of a merged file."""
    processes: int = 1
    """Number of processes in the file from which `process` was taken."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One profile, read and linked; the input of all analyses."""

    info: TraceInfo
    signatures: tuple[OpSignature, ...]
    ops: OpTable
    tracks: tuple[tuple[str, str], ...]
    """(pid, tid) as text for each track."""
    kernel_names: tuple[str, ...]
    kernels: KernelTable
    annotations: Sequence[Annotation]
    """Annotations in file order: a tuple, or a table that creates them from columns (`annotations.AnnotationTable`)."""
    details: KernelDetails | None = None
    """Details of `kernels` from the kernel table of an Ascend profile."""
    graphs: GraphLaunches | None = None
    """Graph launches; None if no captured graph ran."""
    calls: RuntimeCalls | None = None
    """Runtime calls; None unless requested."""
    activity: Activity | None = None
    """Timing of calls, waits, flow events and memory; None unless requested."""
    collectives: tuple[ListedCollective, ...] = ()
    """Collectives listed in a Chakra file."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor as a CANN kernel processes it."""

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
    """"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "AI_CPU", ... as spelled in the table; "" if not recorded."""
    inputs: tuple[TensorSpec | None, ...] = ()
    outputs: tuple[TensorSpec | None, ...] = ()


class KernelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a kernel table, assigned to the rows of `Trace.kernels` that they describe."""

    kinds: tuple[KernelKind, ...]
    kind: ArrayOf[np.int32]
    """Index into `kinds` for each row of `Trace.kernels`; -1 if the table has no row for it."""
    wait_ns: Ints
    """Time in ns that the task waited for the preceding task; -1 if unknown."""


class DetailsJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel table was joined to a trace."""

    file: str
    """Name of the table, without its folder."""
    discovered: bool
    """Whether the table was found next to the trace; if not, the user named it."""
    problem: str | None = None
    """Reason why a discovered table was not used; all counts are then 0."""
    rows: int = 0
    by_start: int = 0
    """Rows matched by equal name and start."""
    by_order: int = 0
    """Rows matched by order, for names that occur equally often in table and trace."""
    communication_rows: int = 0
    """Unmatched rows that are collectives, which the trace records as several tasks."""
    unmatched_rows: int = 0
    """Unmatched rows that are not collectives."""
    unmatched_tasks: int = 0
    """NPU tasks of the trace without a row in the table; copies, events and waits have no row."""
    other_durations: int = 0
    """Matched rows whose duration differs by more than 1 % from the trace's; the table's duration is used."""
    dropped: dict[str, int] = {}
    """Reason → number of unreadable rows."""


def tensor_text(spec: TensorSpec | None) -> str:
    """Format a tensor: "bfloat16[4096,1024] ND"; "-" for an absent one."""
    return "-" if spec is None else f"{spec.dtype}[{','.join(map(str, spec.shape))}] {spec.format}"
