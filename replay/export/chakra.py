# pyright: strict
"""Writes one step as a Chakra execution trace in protobuf, which ASTRA-sim's feeder reads.

From a plan, each call becomes a node that waits for the previous one (`data_deps`), so recorded overlap is lost. From a
trace with a device, `timeline.exported` creates the nodes. Messages and field numbers are those of
`traces.dialects.chakra`. Arguments have the form of an ExecutionTrace, so that opreplay reads the file like one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.collectives.model import POINT_TO_POINT, Collective
from opreplay.replay.export.whole import whole_arguments
from opreplay.replay.ir.model import PlainValue, RecordedSequence, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.recorded_call import CODES
from opreplay.replay.ir.sizes import tensors_of
from opreplay.traces.collectives.names import is_wait, kind_of
from opreplay.traces.dialects.chakra import SOURCE, VERSION, CollectiveType, NodeType
from opreplay.traces.dtypes import CPP_SPELLINGS, ITEMSIZE_BYTES
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides
from opreplay.traces.names import plural
from opreplay.traces.reading.protobuf_wire import field, packed, varint

_SPELLED = {name: spelled for spelled, name in reversed(CPP_SPELLINGS.items())} | {
    "int8": "signed char",
    "int16": "short int",
    "int64": "long int",
}
"""Dtype → name of the element type in an ExecutionTrace that was written by a gcc build."""
_KINDS: dict[str, CollectiveType] = {kind.name.lower(): kind for kind in CollectiveType}
"""Collective types by their names in `replay.collectives`."""


_COMMUNICATION = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)


class ChakraTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a file, with counts and notes for the user."""

    data: bytes
    nodes: int
    calls: int
    """Number of nodes that are calls with arguments."""
    collectives: int
    notes: tuple[str, ...]


class ChakraNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node before it is written; times in µs. Ids count from 1, and dependencies come before their dependents."""

    name: str
    waits_for: tuple[int, ...] = ()
    parent: int | None = None
    """For the second and later kernels of a call: the node that has the call's arguments."""
    start_us: float
    duration_us: float
    on_host: bool
    device: int | None = None
    """Number of the device on which the work ran, if known."""
    stream: int | None = None
    op: ReplayOp | None = None
    """The op whose arguments the node has, if it is a call."""
    memories: tuple[int, ...] | None = None
    """Memory numbers of the op's arguments, if known."""
    whole_us: int
    """`duration_us` rounded to an integer, as the schema requires."""
    is_work: bool = True
    """Whether the node is work that can be called. False for latencies, and for host time between other nodes."""


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of the whole step in the file header, in µs."""

    step_us: float
    beyond_us: float
    """Time by which the nodes together are longer than the step.

    There are two causes: the nodes begin with work of the previous step, and a thread may continue after the step.
    """


def chakra_trace(plan: ReplayPlan, times: Mapping[str, float] | None = None, *, clock: str = "recorded") -> ChakraTrace:
    """Return a plan's step as a trace in which calls run one after the other.

    `times` (op id → µs per call) replaces the recorded times. Raises UsageError if the plan does not have the order of
    its calls.
    """
    step = plan.sequence
    if step is None:
        raise UsageError(
            f"{plan.source} does not record the order of its calls",
            hint="Export from the trace, or a plan of all calls.",
        )
    if times is None and not any(step.device_us or step.host_us):
        raise UsageError(f"{plan.source} contains no times", hint="Use the times of a simulated device: --clock 910b3.")
    ops = {op.id: op for op in plan.ops}
    called = [ops[op_id] if (op_id := step.ids[i]) in ops else None for i in step.calls]
    nodes: list[ChakraNode] = []
    untimed, start_us = 0, 0.0
    for number, op in enumerate(called):
        if op is None:
            continue
        recorded_us = _recorded_us(step, number) if times is None else times.get(op.id)
        untimed += recorded_us is None
        duration_us = recorded_us or 0.0
        nodes.append(
            ChakraNode(
                name=op.name,
                waits_for=(len(nodes),) if nodes else (),
                start_us=start_us,
                duration_us=duration_us,
                on_host=times is None and not step.device_us,
                op=op,
                memories=step.memories[number][0] if step.memories else None,
                whole_us=max(1, round(duration_us)) if duration_us > 0 else 0,
            )
        )
        start_us += duration_us
    unselected = len(called) - len(nodes)
    notes = [
        f"{plural(untimed, 'call')} without {clock} time: counted as 0 µs" if untimed else "",
        f"not exported: {plural(unselected, 'call')} of unselected ops" if unselected else "",
        "each call waits for the previous one: recorded overlap is lost",
    ]
    return encode_file(nodes, clock, notes)


def encode_file(
    nodes: Sequence[ChakraNode], clock: str, notes: Sequence[str], about: Attributes | None = None
) -> ChakraTrace:
    """Return a file with these nodes; `about` is written to its header."""
    metadata = field(1, VERSION) + _attribute("source", SOURCE, of=2) + _attribute("clock", clock, of=2)
    for name, value in () if about is None else msgspec.structs.asdict(about).items():
        metadata += _attribute(name, value, of=2)
    messages = [_framed(metadata)]
    collectives = unsized = calls = 0
    for number, node in enumerate(nodes, start=1):
        kind, attributes = (NodeType.COMP, {}) if node.op is None else _kind(node.op)
        calls += node.op is not None
        unsized += kind is None
        collectives += kind in _COMMUNICATION
        messages.append(_framed(_node(number, node, kind or NodeType.COMP, attributes)))
    if unsized:
        notes = [
            f"{unsized} collectives of unknown size or kind are exported as compute nodes with their {clock} time",
            *notes,
        ]
    return ChakraTrace(
        data=b"".join(messages),
        nodes=len(nodes),
        calls=calls,
        collectives=collectives,
        notes=tuple(filter(None, notes)),
    )


def _recorded_us(step: RecordedSequence, number: int) -> float:
    return step.device_us[number] if step.device_us else step.host_us[number]


def _framed(message: bytes) -> bytes:
    return varint(len(message)) + message


def _kind(op: ReplayOp) -> tuple[NodeType | None, dict[str, bool | int | str]]:
    """Return a node's type and the attributes that ASTRA-sim needs. The type is None for a collective that ASTRA-sim
    cannot simulate.
    """
    sizes = list(map(_bytes, tensors_of(op)))
    if op.collective is not None:
        return _communication(op.collective)
    if op.reason is not None and is_wait(op.name):
        return NodeType.COMP, {}
    if op.reason is None or op.reason.kind != "collective":
        flops = round(product_flops(op))
        moved = sum(sizes) + sum(map(_bytes, filter(None, op.outputs or ())))
        return NodeType.COMP, {"tensor_size": moved, **({"num_ops": flops} if flops else {})}
    kinds = map(kind_of, (op.name, *(kernel.name for kernel in op.recorded.kernels)))
    return _collective(_KINDS.get(next(filter(None, kinds), "")), next(filter(None, sizes), 0))


def _collective(kind: CollectiveType | None, size: int) -> tuple[NodeType | None, dict[str, bool | int | str]]:
    if kind is None or (size == 0 and kind is not CollectiveType.BARRIER):
        return None, {}
    return NodeType.COMM_COLL, {"comm_type": int(kind), "comm_size": size}


def _communication(collective: Collective) -> tuple[NodeType | None, dict[str, bool | int | str]]:
    """Return the type and attributes of the node for a point-to-point message or a collective. The type is None if
    sender, receiver or size is unknown.
    """
    moves = collective.in_elements * collective.itemsize
    facts = {"pg_name": collective.group, "group_size": collective.group_size}
    group: dict[str, bool | int | str] = {name: value for name, value in facts.items() if value}
    if collective.kind in POINT_TO_POINT:
        if collective.source is None or collective.target is None or not moves:
            return None, {}
        both, members = (collective.source, collective.target), collective.group_ranks
        ends = [members[end] if end < len(members) else end for end in both]
        kind = NodeType.COMM_SEND if collective.kind == "send" else NodeType.COMM_RECV
        return kind, {"comm_size": moves, "comm_src": ends[0], "comm_dst": ends[1], "comm_tag": 0, **group}
    node, facts = _collective(_KINDS.get(collective.kind), moves)
    return node, facts and facts | group


def _bytes(meta: TensorMeta) -> int:
    count = 1
    for size in meta.shape:
        count *= size
    return count * ITEMSIZE_BYTES.get(meta.dtype, 0)


def _node(number: int, node: ChakraNode, kind: NodeType, attributes: Mapping[str, bool | int | str]) -> bytes:
    parts = [
        field(1, number),
        field(2, node.name),
        field(3, int(kind)),
        b"" if node.parent is None else packed(4, [node.parent]),
        packed(5, node.waits_for),
        field(6, round(node.start_us)),
        field(7, node.whole_us),
        b"" if node.op is None else _arguments(node.op, node.memories),
        *(_attribute(name, value) for name, value in attributes.items()),
        _attribute("is_cpu_op", node.on_host),
        b"" if node.device is None else _attribute("device_id", node.device),
        b"" if node.stream is None else _attribute("stream", node.stream),
        _attribute("start_us", node.start_us),
        _attribute("dur_us", node.duration_us),
        b"" if node.is_work else _attribute("is_work", False),
    ]
    return b"".join(parts)


def _arguments(op: ReplayOp, memories: tuple[int, ...] | None) -> bytes:
    """Encode the inputs, outputs and schema of a call."""
    whole = msgspec.structs.replace(op, args=whole_arguments(op))
    numbers = iter(memories or ())
    columns = [_column(arg, numbers) for arg in whole.args]
    outputs = [_tensor(meta, -1) for meta in filter(None, op.outputs or ())]
    strides = [column[3] for column in columns]
    known = all(meta.strides is not None for meta in tensors_of(whole))
    parts = [
        field(8, _io(columns)),
        field(9, _io(outputs)) if outputs else b"",
        _attribute("op_schema", f"{'.'.join(filter(None, (op.called, op.overload)))}({_signature(op)}"),
        _attribute("input_strides", _text(strides)) if known else b"",
    ]
    return b"".join(parts)


def _signature(op: ReplayOp) -> str:
    return (op.schema or ")").partition("(")[2] or ")"


_UINT64 = frozenset({"tensor_size"})


def _attribute(name: str, value: bool | int | float | str, *, of: int = 10) -> bytes:
    """Encode an `AttributeProto` with the type that ASTRA-sim's feeder reads. `of` is its field number: 10 in a node, 2
    in the metadata.
    """
    number = 29 if isinstance(value, str) else 27 if isinstance(value, bool) else 3 if isinstance(value, float) else 9
    if name in _UINT64:
        number = 13
    return field(of, field(1, name) + field(number, value))


def _io(columns: list[tuple[Any, Any, str, Any]]) -> bytes:
    values, shapes, types = ([column[i] for column in columns] for i in range(3))
    return field(1, _text(values)) + field(2, _text(shapes)) + field(3, _text(types))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _column(arg: ReplayArg, memories: Iterator[int]) -> tuple[Any, Any, str, Any]:
    """Return (value, shape, type, strides) of one argument in the form of an ExecutionTrace."""
    if arg.type == "Tensor":
        meta = next(iter(arg.tensors), None)
        return _tensor(meta, _next(memories, meta))
    if arg.type == "Tensor[]":
        tensors = [_tensor(meta, _next(memories, meta)) for meta in arg.tensors]
        values, shapes, types, strides = ([tensor[i] for tensor in tensors] for i in range(4))
        return values, shapes, f"GenericList[{','.join(types)}]", strides
    if isinstance(arg.value, tuple):
        items = [_plain(arg.type, item) for item in arg.value]
        empty: list[list[int]] = [[]] * len(items)
        return [item for item, _ in items], empty, f"GenericList[{','.join(kind for _, kind in items)}]", empty
    value, kind = _plain(arg.type, arg.value)
    return value, [], kind, []


def _next(memories: Iterator[int], meta: TensorMeta | None) -> int:
    return -1 if meta is None else next(memories, -1)


def _tensor(meta: TensorMeta | None, memory: int) -> tuple[Any, Any, str, Any]:
    """Return (value, shape, type, strides) of a tensor in the form of an ExecutionTrace.

    The value is [tensor, storage, offset, elements, bytes per element, device]. Tensor and storage are memory numbers,
    which count from 1; 0 means unknown.
    """
    if meta is None:
        return "<None>", [], "None", []
    storage = memory + 1 if memory >= 0 else 0 if meta.storage is None else meta.storage + 1
    value = [storage, storage, meta.storage_offset, math.prod(meta.shape), ITEMSIZE_BYTES.get(meta.dtype, 0), ""]
    strides = contiguous_strides(meta.shape) if meta.strides is None else meta.strides
    return value, list(meta.shape), f"Tensor({_SPELLED.get(meta.dtype, meta.dtype)})", list(strides)


def _plain(kind: str, value: PlainValue | tuple[PlainValue, ...]) -> tuple[Any, str]:
    """Return (number or text, its type name in an ExecutionTrace)."""
    base = kind.removesuffix("[]")
    if isinstance(value, str) and base in CODES:
        names = CODES[base]
        return (names.index(value), "Int") if value in names else ("<None>", "None")
    if isinstance(value, str):
        kind = _TEXTS.get(base, "String")
        return value, "ComplexDouble" if kind == "Double" and value.endswith("j") else kind
    kind = _PLAIN[type(value)]
    # A list within a list is recorded without its values, as Kineto and PyTorch's observer do.
    return "<None>" if kind in ("None", "Object") else value, kind


_TEXTS = {"float": "Double", "Scalar": "Double", "complex": "Double", "Device": "Device"}
_PLAIN = {bool: "Bool", int: "Int", float: "Double", tuple: "Object", type(None): "None"}
