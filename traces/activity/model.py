# pyright: strict
"""Frozen data types, without logic, for the timing of a profile, except for its ops and device work."""

from __future__ import annotations

from typing import TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from opreplay.traces.arrays import ArrayOf, Bools, Integers, Ints

CALL_KINDS: tuple[str, ...] = ("runtime", "frame", "queue", "python")
"""Kinds of host calls.

"runtime" is a call into a device's runtime or driver. "frame" is a Python frame that names a module. "queue" is a call
that adds work to an NPU task queue (on the op's thread) or takes work out of it (on the launching thread). "python" is
any other Python frame of at least `LONG_FRAME_US`. Shorter frames are dropped: they explain no idle time, and there may
be millions of them.
"""

LONG_FRAME_US = 100
Table = TypeVar("Table")

ARROW_KINDS: tuple[str, ...] = ("forward to backward", "queue", "host to device")


def no_rows(table: type[Table]) -> Table:
    """Return an empty instance of a column dataclass; each column has its annotated element type.

    Optional columns are None.
    """
    hints = {name: column for name, column in get_type_hints(table).items() if type(None) not in get_args(column)}
    kinds = {name: get_args(get_args(column)[1])[0] for name, column in hints.items()}
    return table(**{name: np.empty(0, np.int64 if kind is np.integer else kind) for name, kind in kinds.items()})


class Collective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded facts about one collective on the device; a fact that was not recorded is None."""

    name: str = ""
    """Name as recorded, in lower case: "allreduce", "_allgather_base", ..., "hcom_allReduce_"; "" if none was
    recorded.
    """
    elements: int | None = None
    """Elements of the message that one rank contributes."""
    out_elements: int | None = None
    """Elements of the message that one rank receives."""
    in_split: tuple[int, ...] | None = None
    """Number of rows of the first dimension sent to each rank; None if the split is even or not recorded."""
    out_split: tuple[int, ...] | None = None
    dtype: str | None = None
    """Data type as recorded: "BFloat16", "FP32", ..."""
    group: str | None = None
    group_size: int | None = None
    ranks: str | None = None
    """Members of the group, as recorded: "[0, 1, 2, 3]"; torch cuts long lists short."""
    source: int | None = None
    """Sending rank of a point-to-point message."""
    target: int | None = None
    sequence: int | None = None
    """Sequence number of the collective within its group, equal on all members."""
    rank: int | None = None
    """Rank of the root or, for a point-to-point message, of the peer. For any other collective, this process's own
    rank.
    """
    asynchronous: bool | None = None


class ListedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that a file lists by type and size, without tensors. Chakra's nodes and PARAM's entries do this."""

    record: Collective
    name: str
    """Name of the node or entry."""
    row: int = -1
    """Row in `Trace.ops` if the collective is an op, otherwise -1."""
    on_device: bool = False
    of_bytes: bool = False
    """Whether the file gives the size only in bytes. The dtype is then a guess."""
    dur_us: float = 0.0


class CollectiveNote(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation of a communication back-end (`nccl:all_reduce`, `gloo:broadcast`) with its tensors."""

    name: str
    start_ns: int
    dur_ns: int
    track: int
    dims: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]


class CallTable(msgspec.Struct, frozen=True, kw_only=True):
    """Calls on host threads, except ops. The table has one row per call, in file order within each kind."""

    name: ArrayOf[np.uint32]
    """Index into `Activity.names`."""
    kind: ArrayOf[np.uint8]
    """Index into `CALL_KINDS`."""
    start_ns: Ints
    dur_ns: Integers
    track: Integers
    """Index into `Trace.tracks`."""
    correlation: Ints
    """Correlation id shared with the device work that the call starts; -1 if unknown."""

    def __len__(self) -> int:
        return len(self.name)


class WaitTable(msgspec.Struct, frozen=True, kw_only=True):
    """Waits recorded by the device's runtime (CUPTI's synchronisation records, an NPU's event tasks)."""

    correlation: Ints
    """Correlation id of the call that requested the wait."""
    stream: Ints
    """Stream that waits; a negative or huge number means the whole device."""
    waits_for_stream: Ints
    """Stream waited for; -1 if the wait is not between two streams, or if the stream was not recorded."""
    record_correlation: Ints
    """Correlation id of the call that recorded the event; -1 if unknown."""

    def __len__(self) -> int:
        return len(self.correlation)


class ArrowTable(msgspec.Struct, frozen=True, kw_only=True):
    """Start and end points of flow arrows between host threads, in file order."""

    kind: ArrayOf[np.uint8]
    """Index into `ARROW_KINDS`."""
    id: Ints
    is_end: Bools
    track: Integers
    start_ns: Ints

    def __len__(self) -> int:
        return len(self.id)


class MemoryTable(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded allocations (positive) and releases (negative), in file order."""

    time_ns: Ints
    bytes: Ints
    address: Ints
    allocated_bytes: Ints
    """Bytes in use after this event according to the allocator; -1 if it does not report them."""
    on_device: Bools
    device: Ints
    track: Integers

    def __len__(self) -> int:
        return len(self.time_ns)


class CollectiveSpans(msgspec.Struct, frozen=True, kw_only=True):
    """Whole collectives of an NPU, each from its first to its last task; the tasks are also listed as device work."""

    name: ArrayOf[np.uint32]
    """Index into `Trace.kernel_names`."""
    start_ns: Ints
    dur_ns: Integers
    correlation: Ints
    """Correlation id shared with the tasks of the collective."""
    collective: Ints
    """Index into `Activity.collectives`."""
    thread: Ints
    """Index into `Trace.tracks` of the thread that ran the collective on the host; -1 if it ran on a device."""

    def __len__(self) -> int:
        return len(self.name)


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of one profile; device work is indexed by rows of `Trace.kernels`."""

    names: tuple[str, ...]
    calls: CallTable
    correlation: Ints
    """Correlation id of each row of `Trace.kernels`; -1 if unknown."""
    collective: Ints
    """Index into `collectives` for each row of `Trace.kernels`, or -1."""
    op_collective: Ints
    """Index into `collectives` for each row of `Trace.ops`; -1 if torch recorded no collective's parameters for it."""
    collectives: tuple[Collective, ...]
    spans: CollectiveSpans
    waits: WaitTable
    arrows: ArrowTable
    memory: MemoryTable
    notes: tuple[CollectiveNote, ...]
    """Annotations of torch.distributed back-ends, in file order."""
    processes: dict[str, str]
    """Process id as text → process name, if the trace gives one ("CANN", "Ascend Hardware", "HCCL", ...)."""

    @classmethod
    def none(cls, *, ops: int, kernels: int) -> Activity:
        """Return the Activity of a profile that records no more than the times of its ops and device work."""
        return cls(
            names=(),
            calls=no_rows(CallTable),
            correlation=np.full(kernels, -1, np.int64),
            collective=np.full(kernels, -1, np.int64),
            op_collective=np.full(ops, -1, np.int64),
            collectives=(),
            spans=no_rows(CollectiveSpans),
            waits=no_rows(WaitTable),
            arrows=no_rows(ArrowTable),
            memory=no_rows(MemoryTable),
            notes=(),
            processes={},
        )
