# pyright: strict
"""The execution graph of one step as arrays: nodes, and dependencies that were recorded or inferred."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from opreplay.traces.arrays import ArrayOf, Bools, Floats, Ints
from opreplay.traces.links.steps import Step

EDGE_KINDS: tuple[str, ...] = (
    "thread order",
    "launch",
    "stream order",
    "synchronisation",
    "stream waits for stream",
    "thread waits for thread",
    "thread woken",
    "queue full",
    "earlier step",
    "device shared",
    "collective members",
)
(THREAD, LAUNCH, STREAM, SYNC, CROSS_STREAM, CROSS_THREAD, WOKEN, QUEUE_FULL, EARLIER, SHARED, MEMBERS) = range(11)

NODE_KINDS: tuple[str, ...] = ("host", "kernel", "memcpy", "memset", "collective")
HOST, KERNEL, COPY, SET, COLLECTIVE = range(5)

NEVER = -1e15
"""Lag of an edge that is switched off."""
NO_OP = -1
"""Marks host time outside all recorded ops and calls: Python between ops."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """One row per device task and per interval of a host thread.

    Intervals end at launches, at waits, and at points that other threads wait for.

    Rows are sorted so that the target of each edge comes after its source. Times are in µs after the step's start.
    """

    kind: ArrayOf[np.uint8]
    """Index into `NODE_KINDS`."""
    lane: Ints
    """Index into `StepGraph.lanes`."""
    start_us: Floats
    dur_us: Floats
    name: Ints
    """Index into `Trace.kernel_names` for a device task; -1 for the host."""
    owner: Ints
    """Row in `Trace.ops` of the op that launched a device task, or -1."""
    row: Ints
    """Row in `Trace.kernels` for a device task. It is -1 for host nodes and for a node that is a whole collective of an
    NPU.
    """
    collective: Ints
    """Index into `Activity.collectives`, or -1."""
    first_slice: Ints
    """Index of a host node's first slice. Node `i` has slices `first_slice[i]` up to `first_slice[i] + slices[i]` of
    `StepGraph.slices`.
    """
    slices: Ints

    def __len__(self) -> int:
        return len(self.kind)


class Edges(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies, sorted by target. Row `target` cannot start before `lag_us` after the end of row `source`."""

    source: Ints
    target: Ints
    lag_us: Floats
    """Lag in µs; negative if a task started before the previous task on its stream had ended."""
    kind: ArrayOf[np.uint8]
    """Index into `EDGE_KINDS`."""
    recorded: Bools
    """Whether the trace records the dependency; otherwise it was inferred from times."""
    unknown_us: Floats
    """Part of `lag_us` that no record explains. Schedules keep it, although no dependency is known for it."""
    possible_us: Floats
    """Lag of a dependency that is possible but delayed nothing in the recording (its `lag_us` is `NEVER`). NaN for
    other edges.
    """

    def __len__(self) -> int:
        return len(self.source)


class EdgeList(msgspec.Struct):
    """Columns of `Edges` before sorting."""

    source: list[int] = msgspec.field(default_factory=list[int])
    target: list[int] = msgspec.field(default_factory=list[int])
    lag_us: list[float] = msgspec.field(default_factory=list[float])
    kind: list[int] = msgspec.field(default_factory=list[int])
    recorded: list[bool] = msgspec.field(default_factory=list[bool])
    unknown_us: list[float] = msgspec.field(default_factory=list[float])
    possible_us: list[float] = msgspec.field(default_factory=list[float])

    def add(
        self, source: int, target: int, lag_us: float, kind: int, *, recorded: bool, possible: bool = False
    ) -> None:
        """Add an edge; a `possible` edge has no effect unless a what-if enables it."""
        self.extend([source], [target], [NEVER if possible else lag_us], kind, recorded=recorded)
        self.possible_us[-1] = lag_us if possible else np.nan

    def extend(
        self,
        source: Sequence[int],
        target: Sequence[int],
        lag_us: Sequence[float],
        kind: int,
        *,
        recorded: bool = True,
        unknown_us: Sequence[float] | None = None,
    ) -> None:
        """Add edges of one kind."""
        self.source += source
        self.target += target
        self.lag_us += lag_us
        self.kind += [kind] * len(source)
        self.recorded += [recorded] * len(source)
        self.unknown_us += [0.0] * len(source) if unknown_us is None else unknown_us
        self.possible_us += [np.nan] * len(source)

    def join(self, other: EdgeList, offset: int) -> None:
        """Append the edges of another list, with its node numbers increased by `offset`."""
        self.source += [row + offset for row in other.source]
        self.target += [row + offset for row in other.target]
        self.lag_us += other.lag_us
        self.kind += other.kind
        self.recorded += other.recorded
        self.unknown_us += other.unknown_us
        self.possible_us += other.possible_us

    def in_order(self, source: Ints, target: Ints, chosen: Ints) -> Edges:
        """Return the edges `chosen`, in this order, with the new node numbers in `source` and `target`."""
        return Edges(
            source=source[chosen],
            target=target[chosen],
            lag_us=np.array(self.lag_us, np.float64)[chosen],
            kind=np.array(self.kind, np.uint8)[chosen],
            recorded=np.array(self.recorded, bool)[chosen],
            unknown_us=np.array(self.unknown_us, np.float64)[chosen],
            possible_us=np.array(self.possible_us, np.float64)[chosen],
        )


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """Host time split by the innermost running event; slices are in the order of the threads."""

    dur_us: Floats
    op: Ints
    """Row in `Trace.ops` of the innermost op, also while the op is in a runtime call. `NO_OP` outside ops."""
    call: Ints
    """Row in `Activity.calls` of the running runtime call, or -1."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A host thread or a stream of a device."""

    device: bool
    name: str
    """"thread 1234" or "stream 7"; includes the device if there are several."""
    track: int = -1
    """Index into `Trace.tracks` for a thread."""


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """Links to the previous step. `node[i]` stands for node `source[i]` of the previous step, and ends when that node
    ended.
    """

    node: Ints
    source: Ints


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded waiting time that no dependency explains; rescheduling keeps it unchanged."""

    waits: int = 0
    us: float = 0.0


class StepGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The complete graph of one step."""

    step: Step
    nodes: Nodes
    edges: Edges
    slices: Slices
    lanes: tuple[Lane, ...]
    main_lane: int
    """Lane of the thread that marks the step."""
    release_us: Floats
    """Earliest start of each node; 0 except for work that continues from before the step."""
    begin_us: float
    """Completion time of the previous step, in µs, if it is after this step's start on the host. Otherwise 0."""
    recorded_us: float
    """Recorded length of the step, as `schedule.step_length` defines it."""
    host_us: float
    """Duration of the marked range on the host."""
    launch_latency_us: float
    """Median time from launch to start of tasks launched on an idle stream; 0 without device work."""
    stream_gap_us: float
    """Median gap between two tasks of a stream, if the second one had already been launched."""
    carried: Carried
    """Dependencies on the previous step; empty if the trace marks no steps."""
    kernels_take_turns: bool = False
    """Whether kernels of different streams run one at a time. They then run in the order in which they become ready."""
    lost_during_collectives: float = 0.0
    """Share of a kernel's speed that it loses while a collective runs. It is estimated from several steps; 0 if
    unknown.
    """
    lost_bounds: tuple[float, float] = (0.0, 0.0)
    """Bounds of the 90 % interval of `lost_during_collectives`; equal if no kernel overlapped with a collective."""
    unexplained: Unexplained = msgspec.field(default_factory=Unexplained)
    blocked_us: float = 0.0
    """Host time in calls that always wait for the device. Only calls count for which the awaited work is unknown."""
    dropped_edges: int = 0
    """Number of dependencies dropped because they contradict the recorded times."""

    @property
    def on_device(self) -> bool:
        """Whether a device ran work; collectives that the host runs do not count."""
        return bool((self.nodes.row >= 0).any())

    def edge_counts(self) -> dict[str, tuple[int, int]]:
        """Map each kind of edge to the numbers of its (recorded edges, inferred edges)."""
        out: dict[str, tuple[int, int]] = {}
        for index, kind in enumerate(EDGE_KINDS):
            rows = self.edges.kind == index
            if rows.any():
                recorded = int(self.edges.recorded[rows].sum())
                out[kind] = (recorded, int(rows.sum()) - recorded)
        return out
