"""Build a `Trace` from PyTorch ExecutionTrace and Chakra files: `et_nodes` splits them, this module interprets the
nodes.

There are three generations. 1.0.x has flat nodes (`input_shapes`, `rf_id`, `parent`). 1.1.x-chakra has
`inputs.{values,shapes,types}` and `attrs`, and since 1.1.1 also strides. A Chakra file that was linked with Kineto adds
`ts`, durations and device nodes. Each node is classified by its fields, not by the schema version in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np

from opreplay.traces.activity.model import ListedCollective
from opreplay.traces.arrays import Array, Bools
from opreplay.traces.dialects.chakra import KERNEL_IDS, NO_PARENT, ChakraStream
from opreplay.traces.dialects.chakra_collectives import listed_collective
from opreplay.traces.dialects.dialect import Want
from opreplay.traces.dialects.et_memories import MemoryColumn
from opreplay.traces.dialects.et_nodes import BLOCK_BYTES, Node, NodeStream
from opreplay.traces.dialects.et_signature import BrokenArguments, results_of, signature_of
from opreplay.traces.errors import UnknownDialect
from opreplay.traces.limits import Limits, too_large
from opreplay.traces.links.parents import without_cycles
from opreplay.traces.losses import unknown_type_losses
from opreplay.traces.model import (
    KERNEL_CATEGORIES,
    Annotation,
    KernelTable,
    LinkStats,
    MetadataLevel,
    OpSignature,
    OpTable,
    ReadReport,
    Trace,
    TraceInfo,
)
from opreplay.traces.reading.source import Source
from opreplay.traces.times.kernel_classes import class_of_op
from opreplay.traces.times.placed import FAR_NS

Column = Array

Nodes = NodeStream | ChakraStream
"""Stream of node lists from a JSON or protobuf file, with its losses."""
_USER_SCOPE = 7
"""c10's RecordScope::USER_SCOPE, an annotation; Kineto treats all other scopes as ops (ATen/record_function.h)."""
_DEVICE_CATEGORIES = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
_ATTRIBUTES = frozenset({"rf_id", "scope", "tid", "op_schema"})
_VENDORS: dict[str, Literal["ascend", "mtia", "intel"]] = {"npu": "ascend", "mtia": "mtia", "xpu": "intel"}
_ROOT = "[pytorch|profiler|execution_"
_PROCESS_GROUPS = "## process_group:init ##"
_NO_START = np.iinfo(np.int64).min
_MAX_ANCESTORS = 10_000
_PHASE = re.compile(r"([^()]{1,500})\((\d{1,4})\)")


def _read(stream: Nodes) -> Trace:
    """Build the trace from the nodes of a file.

    Ops are in file order (children before parents), and `OpTable.parent` gives their parents. Start and duration are 0
    unless the file was linked with times. User scopes become annotations. Raises UnknownDialect for JSON without
    ExecutionTrace nodes, Malformed for a file that is not JSON, and TooLarge if a limit is exceeded.
    """
    builder = _Builder(limits=stream.source.limits, has_phases=isinstance(stream, ChakraStream))
    for nodes in stream:
        for node in nodes:
            builder.add(node)
    if builder.nodes and not builder.ids:
        raise UnknownDialect(
            f"{stream.source.path} has nodes, but none with an id and a name: not an ExecutionTrace",
            hint="torch.profiler.ExecutionTraceObserver writes an ExecutionTrace.",
        )
    return builder.trace(stream)


def read_execution_trace(source: Source, want: Want) -> Trace:
    """Build the trace from a JSON file."""
    return _read(NodeStream(source=source, block_bytes=want.block_bytes or BLOCK_BYTES))


def read_chakra(source: Source) -> Trace:
    """Build the trace from a protobuf file."""
    return _read(ChakraStream(source))


class _Builder(msgspec.Struct, kw_only=True):
    """Collects the ops, kernels and annotations as columns."""

    limits: Limits
    has_phases: bool = False
    """Whether op names may end in a phase number: "aten::add(1)"."""
    nodes: int = 0
    ids: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Node id → (row of the op or -1, id of the parent node)."""
    signatures: dict[OpSignature, int] = msgspec.field(default_factory=dict)
    tracks: dict[str, int] = msgspec.field(default_factory=dict)
    signature: list[int] = msgspec.field(default_factory=list)
    node_id: list[int] = msgspec.field(default_factory=list)
    track: list[int] = msgspec.field(default_factory=list)
    rf_id: list[int] = msgspec.field(default_factory=list)
    memories: MemoryColumn = msgspec.field(default_factory=MemoryColumn)
    start_ns: list[int] = msgspec.field(default_factory=list)
    dur_ns: list[int] = msgspec.field(default_factory=list)
    kernels: list[tuple[int, int, int, int, int, int]] = msgspec.field(default_factory=list)
    """(name, category, start, duration, stream, device) of each kernel."""
    launchers: list[tuple[int, list[int]]] = msgspec.field(default_factory=list)
    """For each kernel: the id of its parent node, and the ids of the nodes whose results it uses."""
    transfers: list[tuple[int, Node]] = msgspec.field(default_factory=list)
    """(row of the kernel, node) for each kernel whose node is of a communication type."""
    on_device: set[int] = msgspec.field(default_factory=set)
    """Rows of the ops that have accelerator tensors among their inputs."""
    added_kernels: int = 0
    """Number of kernels that were added although the file has no node for them."""
    phases: dict[tuple[str, object, object], tuple[int, int]] = msgspec.field(default_factory=dict)
    """(name, thread, call number) of an op that a converter split into phases → (last phase, row of the op)."""
    repairs: Counter[str] = msgspec.field(default_factory=Counter)
    kernel_names: dict[str, int] = msgspec.field(default_factory=dict)
    annotations: list[Annotation] = msgspec.field(default_factory=list)
    devices: set[str] = msgspec.field(default_factory=set)
    process_groups: list[_ProcessGroup] = msgspec.field(default_factory=list)
    collectives: list[ListedCollective] = msgspec.field(default_factory=list)
    losses: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, node: Node) -> None:
        """Add one node, and count its defects as losses."""
        self.nodes += 1
        if self.nodes > self.limits.events:
            raise too_large("events", self.limits.events, self.nodes, "nodes in the ExecutionTrace")
        if type(node.id) is not int or not isinstance(node.name, str):
            self.losses["node without id or name"] += 1
            return
        if len(node.name) > self.limits.name_bytes:
            self.losses["name too long"] += 1
            return
        attrs = _attributes(node)
        parent = next((number for number in (node.parent, node.ctrl_deps) if type(number) is int), 0)
        row = owner = -1
        if isinstance(node.cat, str) and node.cat in _DEVICE_CATEGORIES:
            self._add_kernel(node, _DEVICE_CATEGORIES[node.cat], parent)
        elif attrs["scope"] == _USER_SCOPE:
            self._add_annotation(node, attrs)
        else:
            phase = self._take_phase(node)
            owner = self._continued(node, attrs, phase) if phase is not None else -1
            if owner < 0:
                row = owner = self._add_op(node, attrs)
        if row >= 0 or owner < 0:
            self._add_collective(node, row)
        if node.id in self.ids:
            self.losses["duplicate node id"] += 1
        self.ids[node.id] = (owner, parent)

    def _take_phase(self, node: Node) -> int | None:
        """Return the phase number of a node and remove it from the node's name.

        Chakra's converter splits an op into phases, at the points where the op's kernels start.
        """
        match = _PHASE.fullmatch(node.name) if self.has_phases else None
        if match is None:
            return None
        node.name = match[1]
        return int(match[2])

    def _continued(self, node: Node, attrs: dict[str, Any], phase: int) -> int:
        """Return the row of the op call that a phase continues, and extend the call to the end of this phase.

        Return -1 for the first phase, and for a phase whose previous phase is missing.
        """
        key = node.name, str(attrs["tid"]), str(attrs["rf_id"])
        before, row = self.phases.get(key, (-1, -1))
        if phase == 0 or before != phase - 1:
            self.repairs["op phase without its previous phase, counted as a call"] += phase > 0
            self.phases[key] = phase, len(self.signature)
            return -1
        self.phases[key] = phase, row
        self.repairs["op phase joined with its previous phase"] += 1
        starts, dur_ns = (self.start_ns[row], _start_ns(node)), _nanoseconds(node.duration)
        ahead_ns = self.dur_ns[row] if _NO_START in starts else starts[1] - starts[0]
        self.dur_ns[row] = max(self.dur_ns[row], ahead_ns + dur_ns)
        return row

    def _add_collective(self, node: Node, row: int) -> None:
        """Add the collective that a Chakra node describes; `row` is the op's row, -1 for a kernel."""
        collective = listed_collective(node, row)
        if collective is not None:
            self.collectives.append(collective)
            if len(self.collectives) > self.limits.rows:
                raise too_large("rows", self.limits.rows, len(self.collectives), "collectives in the file")

    def _add_op(self, node: Node, attrs: dict[str, Any]) -> int:
        try:
            signature = signature_of(node, node.name, attrs["op_schema"])
        except BrokenArguments:
            self.losses["broken arguments"] += 1
            signature = OpSignature(name=node.name)
        signature = self._with_results(signature, node)
        row = len(self.signature)
        if self._devices(node):
            self.on_device.add(row)
        if row >= self.limits.rows:
            raise too_large("rows", self.limits.rows, row + 1, "ops in the ExecutionTrace")
        self.signature.append(self.signatures.setdefault(signature, len(self.signatures)))
        if len(self.signatures) > self.limits.signatures:
            raise too_large("signatures", self.limits.signatures, len(self.signatures), "distinct ops")
        self.node_id.append(node.id)
        self.memories.add(node)
        self.track.append(self._track(attrs["tid"]))
        self.rf_id.append(attrs["rf_id"] if type(attrs["rf_id"]) is int and 0 <= attrs["rf_id"] < 2**63 else -1)
        self.start_ns.append(_start_ns(node))
        self.dur_ns.append(_nanoseconds(node.duration))
        return row

    def _with_results(self, signature: OpSignature, node: Node) -> OpSignature:
        if signature in self.signatures:  # the first call speaks for all
            return signature
        try:
            return replace(signature, results=results_of(node))
        except BrokenArguments:
            self.losses["broken results"] += 1
            return signature

    def _add_kernel(self, node: Node, category: int, parent: int) -> None:
        self.kernels.append(
            (
                self.kernel_names.setdefault(node.name, len(self.kernel_names)),
                category,
                _start_ns(node),
                _nanoseconds(node.duration),
                _int32(node.stream),
                _int32(node.device),
            )
        )
        self.added_kernels += node.id >= KERNEL_IDS
        if node.communicates is True:
            self.transfers.append((len(self.kernels) - 1, node))
        after = node.data_deps if isinstance(node.data_deps, list) else []
        self.launchers.append((parent, [number for number in after if type(number) is int]))

    def _add_annotation(self, node: Node, attrs: dict[str, Any]) -> None:
        if node.name == _PROCESS_GROUPS:
            self.process_groups += _process_groups(node)
        if not node.name.startswith(_ROOT):
            start_ns, dur_ns, track = _nanoseconds(node.ts), _nanoseconds(node.duration), self._track(attrs["tid"])
            self.annotations.append(Annotation(name=node.name, start_ns=start_ns, dur_ns=dur_ns, track=track))

    def _track(self, tid: object) -> int:
        return self.tracks.setdefault(str(tid)[:100], len(self.tracks))

    def _devices(self, node: Node) -> bool:
        """Add the device kinds of the node's tensors to `devices`; return whether one of them is an accelerator."""
        accelerated = False
        values = node.inputs.get("values") if isinstance(node.inputs, dict) else node.inputs
        for value in values if isinstance(values, list) else ():
            if isinstance(value, list) and len(value) > 5 and isinstance(value[5], str) and len(self.devices) < 100:
                kind = value[5].partition(":")[0]
                self.devices.add(kind)
                accelerated |= kind not in ("", "cpu", "meta")
        return accelerated

    def trace(self, stream: Nodes) -> Trace:
        """Return the finished trace, built from all added nodes."""
        self._own_transfers()
        self._time_computing()
        rows = {node: self._owner(parent) for node, (_, parent) in self.ids.items()}
        parents, endless = without_cycles(
            np.fromiter((rows[node] for node in self.node_id), np.int64, len(self.node_id))
        )
        if endless:
            self.losses["node whose parent is inside it"] += endless
        ops = OpTable(
            signature=np.array(self.signature, dtype=np.uint32),
            start_ns=np.array(self.start_ns, dtype=np.int64),
            dur_ns=np.array(self.dur_ns, dtype=np.int64),
            track=np.array(self.track, dtype=np.uint32),
            parent=parents,
            record_function_id=np.array(self.rf_id, dtype=np.int64),
            memories=self.memories.table(),
        )
        kernels = self._kernel_table()
        starts_recorded = self._settle_starts(ops, kernels)
        pid = str(stream.header.get("pid", ""))[:100]
        signatures = tuple(self.signatures)
        return Trace(
            info=self._info(stream, signatures, kernels, starts_recorded=starts_recorded),
            signatures=signatures,
            ops=ops,
            tracks=tuple((pid, tid) for tid in self.tracks),
            kernel_names=tuple(self.kernel_names),
            kernels=kernels,
            annotations=tuple(self.annotations),
            collectives=self._collectives(),
        )

    def _settle_starts(self, ops: OpTable, kernels: KernelTable) -> bool:
        """Count nodes without a start as losses, and return whether the file has times.

        If other nodes have a start, a node without a start begins at the end of the previous row.
        """
        starts = ops.start_ns, kernels.start_ns
        missing = [start == _NO_START for start in starts]
        for start, rows in zip(starts, missing, strict=True):
            start[rows] = 0
        if not any(start.any() for start in starts):
            if ops.dur_ns.any() or kernels.dur_ns.any():
                self.losses["start times of nodes"] += len(ops) + len(kernels) - self.added_kernels
            return False
        earliest = min(int(start[~rows].min(initial=FAR_NS + 1)) for start, rows in zip(starts, missing, strict=True))
        if earliest <= FAR_NS and not any(rows[1:].any() for rows in missing):
            return True  # the clock begins at 0, which protobuf does not write
        for table, rows in zip((ops, kernels), missing, strict=True):
            _fill_starts(table.start_ns, table.dur_ns, rows)
            self.losses["start times of nodes"] += int(rows.sum())
        return True

    def _collectives(self) -> tuple[ListedCollective, ...]:
        """Return the collectives, with group sizes from the process groups in the file."""
        sizes = {group.pg_name: group.group_size for group in self.process_groups if group.pg_name}
        return tuple(
            collective
            if (size := sizes.get(collective.record.group or "")) is None
            else msgspec.structs.replace(collective, record=msgspec.structs.replace(collective.record, group_size=size))
            for collective in self.collectives
        )

    def _owner(self, node: int) -> int:
        """Return the row of a node if it is an op, otherwise of the nearest op above it; -1 if there is none."""
        for _ in range(_MAX_ANCESTORS):
            row, parent = self.ids.get(node, (-1, node))
            if row >= 0 or parent == node:
                return row
            node = parent
        return -1

    def _launcher(self, parent: int, takes: list[int]) -> int:
        """Return the row of the op that launched a kernel; -1 if there is none.

        It is the nearest op above the kernel, or else the first op whose result the kernel uses.
        """
        row = self._owner(parent)
        return row if row >= 0 else next((op for number in takes if (op := self.ids.get(number, (-1, 0))[0]) >= 0), -1)

    def _own_transfers(self) -> None:
        """Create an op for each communication node of a device if no communication op launched the node.

        An op that only provides data to the node does not count as its launcher.
        """
        listed = {collective.row for collective in self.collectives if collective.row >= 0}
        kinds = [class_of_op(signature.name) for signature in self.signatures]
        for kernel, node in self.transfers:
            parent, takes = self.launchers[kernel]
            above = self._owner(parent)
            if above >= 0 and (above in listed or kinds[self.signature[above]] in ("communication", "other")):
                continue
            rows = [row for number in takes if (row := self.ids.get(number, (-1, 0))[0]) >= 0]
            launcher = next((r for r in rows if r in listed or kinds[self.signature[r]] == "communication"), -1)
            if launcher >= 0:
                self.launchers[kernel] = self.node_id[launcher], []
                continue
            kinds.append("")  # of the signature that the op may add
            self.ids[node.id] = self._add_op(node, _attributes(node)), NO_PARENT
            self.launchers[kernel] = node.id, []
            self.added_kernels += 1

    def _time_computing(self) -> None:
        """If all device work in a Chakra file is communication, give each op on accelerator tensors a kernel of the
        op's duration.
        """
        if not self.has_phases or not self.transfers or len(self.transfers) < len(self.kernels):
            return
        names = [signature.name for signature in self.signatures]
        callers = {self._owner(self.ids[number][1]) for number in self.node_id}
        owners = {self._launcher(*launcher) for launcher in self.launchers}
        for row in sorted(self.on_device - callers - owners):
            name = names[self.signature[row]]
            if not self.dur_ns[row] or class_of_op(name) == "communication":
                continue
            number = self.kernel_names.setdefault(name, len(self.kernel_names))
            self.kernels.append((number, 0, self.start_ns[row], self.dur_ns[row], 0, 0))
            self.launchers.append((self.node_id[row], []))
            self.added_kernels += 1
            self.repairs["compute node without device work, its duration taken as device time"] += 1

    def _kernel_table(self) -> KernelTable:
        columns = list(zip(*self.kernels, strict=True)) or [()] * 6
        return KernelTable(
            name=np.array(columns[0], dtype=np.uint32),
            category=np.array(columns[1], dtype=np.uint8),
            start_ns=np.array(columns[2], dtype=np.int64),
            dur_ns=np.array(columns[3], dtype=np.int64),
            device=np.array(columns[5], dtype=np.int32),
            stream=np.array(columns[4], dtype=np.int32),
            owner=np.array([self._launcher(*launcher) for launcher in self.launchers], dtype=np.int64),
        )

    def _info(
        self, stream: Nodes, signatures: tuple[OpSignature, ...], kernels: KernelTable, *, starts_recorded: bool
    ) -> TraceInfo:
        unowned = kernels.owner < 0
        counts = {"cpu_op": len(self.signature), "user_annotation": len(self.annotations)}
        for number, name in enumerate(KERNEL_CATEGORIES):
            counts[name] = int(np.count_nonzero(kernels.category == number))
        group = max(self.process_groups, key=lambda group: group.group_size, default=None)
        losses = self.losses + stream.losses + Counter(stream.source.losses)
        losses += unknown_type_losses(signatures, self.signature)
        return TraceInfo(
            path=stream.source.path,
            dialect="execution_trace",
            bytes_read=stream.source.bytes_out,
            events=self.nodes,
            events_by_category={name: count for name, count in counts.items() if count},
            metadata_level=_level(signatures),
            vendor=_vendor(self.devices),
            starts_recorded=starts_recorded,
            world_size=group.group_size if group else None,
            backend=group.backend_config.rpartition(":")[2] or None if group else None,
            report=ReadReport(losses=dict(losses), repairs=dict(stream.repairs + self.repairs)),
            links=LinkStats(
                by_external_id=int(len(kernels) - np.count_nonzero(unowned)),
                unowned=int(np.count_nonzero(unowned)),
                unowned_device_ns=int(kernels.dur_ns[unowned].sum()),
            ),
        )


def _fill_starts(start_ns: Column, dur_ns: Column, missing: Bools) -> None:
    """Set each missing start to the end of the previous row; before the first recorded start, use that start."""
    known = np.flatnonzero(~missing)
    if not len(known):
        return
    start_ns[: known[0]] = start_ns[known[0]]
    for row in np.flatnonzero(missing[known[0] :]).tolist():
        start_ns[known[0] + row] = start_ns[known[0] + row - 1] + dur_ns[known[0] + row - 1]


def _attributes(node: Node) -> dict[str, Any]:
    """Return rf_id, scope, tid and op_schema from `attrs` or from the node itself."""
    attributes: dict[str, Any] = {
        "rf_id": node.rf_id,
        "scope": node.scope,
        "tid": node.tid,
        "op_schema": node.op_schema,
    }
    for attr in node.attrs if isinstance(node.attrs, list) else ():
        name = attr.get("name") if isinstance(attr, dict) else None
        if isinstance(name, str) and name in _ATTRIBUTES:
            attributes[name] = attr.get("value")
    return attributes


def _int32(number: object) -> int:
    """Return a recorded stream or device number; 0 for anything that is not a 32-bit number."""
    return number if type(number) is int and abs(number) < 2**31 else 0


def _nanoseconds(microseconds: object) -> int:
    """Convert recorded microseconds to whole nanoseconds; return 0 if none were recorded."""
    if not isinstance(microseconds, int | float) or not abs(microseconds) < 2**63 / 1000:
        return 0
    return microseconds * 1000 if isinstance(microseconds, int) else round(microseconds * 1000)


def _start_ns(node: Node) -> int:
    return _NO_START if node.ts is None else _nanoseconds(node.ts)


class _ProcessGroup(msgspec.Struct):
    """An entry of the text that torch.distributed attaches to `## process_group:init ##`, with only the fields used
    here.
    """

    group_size: int
    backend_config: str = ""
    pg_name: str = ""


def _process_groups(node: Node) -> list[_ProcessGroup]:
    values = node.inputs.get("values") if isinstance(node.inputs, dict) else node.inputs
    try:
        return msgspec.json.decode(values[0], type=list[_ProcessGroup]) if values else []
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError, KeyError):
        return []  # the world size stays unknown


def _level(signatures: tuple[OpSignature, ...]) -> MetadataLevel:
    if not any(signature.dims for signature in signatures):
        return "none"
    return "full" if any(signature.strides is not None for signature in signatures) else "dims+concrete"


def _vendor(devices: set[str]) -> Literal["ascend", "mtia", "intel", "cpu"] | None:
    """Return the vendor from the devices of recorded tensors; None for "cuda", which may be NVIDIA's or AMD's."""
    for device, vendor in _VENDORS.items():
        if device in devices:
            return vendor
    return "cpu" if devices - {"", "meta"} == {"cpu"} else None
