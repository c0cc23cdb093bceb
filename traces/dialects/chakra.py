# pyright: strict
"""Read Chakra execution traces in protobuf (`NAME.0.et`) as nodes of an ExecutionTrace.

Field numbers and names come from the public schema (mlcommons/chakra, schema/protobuf/et_def.proto, 0.0.4). A file is a
`GlobalMetadata` followed by `Node` messages, each preceded by its length as a varint. `execution_trace`, which also
reads the JSON form, interprets the nodes; `replay.export.chakra` writes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from opreplay.traces.dialects.et_nodes import Node
from opreplay.traces.errors import Malformed
from opreplay.traces.limits import too_large
from opreplay.traces.literals import parse_literal
from opreplay.traces.reading.protobuf_wire import double, fields, numbers, read_varint, signed, single
from opreplay.traces.reading.source import Source

VERSION = "0.0.4"
BLOCK_BYTES = 1 << 20
NODES_TOGETHER = 1000
NO_PARENT = -1
KERNEL_IDS = 1 << 64
"""First node id that no file uses; kernels that this module creates from nodes get ids from here on."""
_VERSION_TEXT = re.compile(rb"[\w.+-]{1,40}")
SOURCE = "opreplay"
"""Value of the metadata key `source` in files that `replay.export.chakra` wrote."""
_CALL = re.compile(r"[A-Za-z_]\w*::\w+")
_MEMORY_WORK = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
"""Prefix, in lower case, of the name of a device copy or memset → its Kineto category."""


class NodeType(IntEnum):
    """The schema's `NodeType`."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """The schema's `CollectiveCommType`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


_COLUMNS = {1: "values", 2: "shapes", 3: "types"}
"""Field number of `IOInfo` → column name."""
_VALUES: dict[int, tuple[type, Callable[[Any], Any]]] = {
    3: (int, double), 5: (int, single), 7: (int, signed), 9: (int, signed), 11: (int, int), 13: (int, int),
    27: (int, bool), 29: (bytes, lambda text: text.decode(errors="replace")),
}  # fmt: skip
"""Wire type and decoder of a value in `AttributeProto`, by its field number. The types, in order of the fields, are
double, float, int32, int64, uint32, uint64, bool and string.
"""


def is_chakra(head: bytes) -> bool:
    """Check whether a file begins with a length-prefixed `GlobalMetadata`; JSON and other text never does.

    The metadata may consist of a version alone (as Chakra's test generator writes it) or of attributes alone (as
    Chakra's converters write it).
    """
    try:
        length, at = read_varint(head[:10], 0)
    except Malformed:
        return False
    message = head[at : at + length]
    if not 3 <= length <= _LONGEST_METADATA or not message:
        return False
    seen = 0
    try:
        for number, _, value in fields(message):
            if not isinstance(value, bytes) or not _PLAUSIBLE.get(number, _never)(value):
                return False
            seen += 1
    except Malformed:  # the attributes may be longer than what is at hand
        return seen > 0 and len(message) < length
    return seen > 0


def _never(value: bytes) -> bool:
    return False


def _is_version(value: bytes) -> bool:
    return _VERSION_TEXT.fullmatch(value) is not None


def _is_attribute(value: bytes) -> bool:
    """Check whether bytes begin with the name of an `AttributeProto`."""
    if len(value) < 3 or value[0] != 0x0A:
        return False
    name = value[2 : 2 + value[1]]
    return len(name) == value[1] and _VERSION_TEXT.fullmatch(name) is not None


_PLAUSIBLE: dict[int, Callable[[bytes], bool]] = {1: _is_version, 2: _is_attribute}
"""Field number of `GlobalMetadata` → function that checks whether the field's bytes are plausible."""
_LONGEST_METADATA = 32 << 20
"""Maximum size of the metadata in bytes; Chakra's text converter writes its whole input file as an attribute."""


class ChakraStream:
    """Iterate over lists of nodes in bounded memory; `header` and `losses` are complete after the iteration."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.header: dict[str, Any] = {}
        self.losses: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self._held = b""

    def __iter__(self) -> Iterator[list[Node]]:
        """Yield lists of nodes; a node that cannot be read is skipped and counted as lost. Raises TooLarge."""
        nodes: list[Node] = []
        for number, message in enumerate(self._messages()):
            try:
                if number == 0:
                    self._metadata(message)
                    continue
                nodes += _nodes(message, ours=self.header.get("source") == SOURCE)
            except Malformed:
                self.losses["unreadable node"] += 1
            if len(nodes) >= NODES_TOGETHER:
                yield nodes
                nodes = []
        yield nodes

    def _messages(self) -> Iterator[bytes]:
        max_bytes = self.source.limits.event_bytes
        while self._fill(10) or self._held:
            try:
                length, begin = read_varint(self._held[:10], 0)
            except Malformed:
                self.losses["cut short"] += 1
                return
            if length > max_bytes:
                raise too_large("event_bytes", max_bytes, length, "bytes in one node")
            if not self._fill(begin + length):
                self.losses["cut short"] += 1
                return
            yield self._held[begin : begin + length]
            self._held = self._held[begin + length :]

    def _fill(self, wanted: int) -> bool:
        """Read until `wanted` bytes are buffered; return whether the file had that many."""
        parts, have = [self._held], len(self._held)
        while have < wanted:
            block = bytearray(max(BLOCK_BYTES, wanted - have))
            with memoryview(block) as view:
                got = self.source.readinto(view)
            if not got:
                break
            parts.append(bytes(block[:got]))
            have += got
        self._held = b"".join(parts)
        return have >= wanted

    def _metadata(self, message: bytes) -> None:
        for number, _, value in fields(message):
            if number == 1 and isinstance(value, bytes):
                self.header["schema"] = value.decode(errors="replace")
            elif number == 2 and isinstance(value, bytes):
                name, value = _attribute(value)
                self.header[name] = value


def _decoded(message: bytes) -> tuple[Node, dict[str, Any]]:
    """Decode a `Node` message and its attributes. Raises Malformed."""
    node = Node(id=0, dur=0, ctrl_deps=NO_PARENT)
    attrs: dict[str, Any] = {}
    for number, _, value in fields(message):
        if number == 10 and isinstance(value, bytes):
            name, attribute = _attribute(value)
            attrs[name] = attribute
        elif number == 4 and node.ctrl_deps == NO_PARENT:
            node.ctrl_deps = next(iter(numbers(value)), NO_PARENT)
        elif number == 5:
            node.data_deps = [*node.data_deps, *numbers(value)]
        elif number == 3 and value in _COMMUNICATION:
            node.communicates = True
            if value in _POINT_TO_POINT:
                attrs["comm_type_name"] = _POINT_TO_POINT[value]
        elif isinstance(value, _NODE.get(number, ("", ()))[1]):
            setattr(node, _NODE[number][0], _NODE[number][2](value))
    return node, attrs


def _nodes(message: bytes, *, ours: bool) -> list[Node]:
    """Return the nodes that one message describes. Raises Malformed.

    A message for a call that ran on a device gives two nodes: the op and its kernel. `ours` means that opreplay wrote
    the file. Chakra's converter instead writes one message for the op and one for each of its kernels; the kernel nodes
    repeat the op's arguments.
    """
    node, attrs = _decoded(message)
    inputs: dict[str, Any] = dict(node.inputs or ())
    if attrs.get("is_work") is False:
        return []  # of a step's graph: host time and latencies
    node.ts = attrs.get("start_us", node.ts)
    node.dur = attrs.get("dur_us", node.dur)
    if inputs and isinstance(strides := attrs.get("input_strides"), str):
        inputs["strides"] = parse_literal(strides)
    node.inputs = inputs or ()
    node.attrs = [{"name": name, "value": attribute} for name, attribute in attrs.items()]
    if attrs.get("is_cpu_op") is not False:
        return [node]
    device = {"stream": attrs.get("stream"), "device": attrs.get("device_id")}
    category = next((cat for text, cat in _MEMORY_WORK.items() if node.name.lower().startswith(text)), "kernel")
    if not _is_call(node, attrs, inputs, ours=ours):
        node.cat, node.stream, node.device = category, device["stream"], device["device"]
        return [node]
    kernel = Node(
        id=KERNEL_IDS + node.id, name=node.name, cat="kernel", ts=node.ts, dur=node.dur, ctrl_deps=node.id, **device
    )
    return [node, kernel]


def _is_call(node: Node, attrs: dict[str, Any], inputs: dict[str, Any], *, ours: bool) -> bool:
    """Check whether a device node represents an op together with its kernel.

    If it represents only a kernel, the op has another node.
    """
    schema = attrs.get("op_schema")
    if ours:
        return bool(inputs.get("types")) or schema is not None
    if isinstance(schema, str) and schema:
        return schema.partition("(")[0].partition(".")[0] == node.name
    return bool(inputs.get("types")) and _CALL.fullmatch(node.name) is not None


def _columns(message: bytes) -> dict[str, Any]:
    """Decode an `IOInfo`, whose fields are lists written as text."""
    columns: dict[str, Any] = {name: [] for name in _COLUMNS.values()}
    for number, _, value in fields(message):
        if number in _COLUMNS and isinstance(value, bytes):
            columns[_COLUMNS[number]] = _list_of(value.decode(errors="replace"))
    return columns


_NODE: dict[int, tuple[str, type, Callable[[Any], Any]]] = {
    1: ("id", int, int), 2: ("name", bytes, lambda text: text.decode(errors="replace")), 6: ("ts", int, int),
    7: ("dur", int, int), 8: ("inputs", bytes, _columns), 9: ("outputs", bytes, _columns),
}  # fmt: skip
"""Field number of the schema's `Node` → (attribute name in Python, type on the wire, decoder)."""
_COMMUNICATION = frozenset({NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL})
_POINT_TO_POINT: dict[object, str] = {NodeType.COMM_SEND: "send", NodeType.COMM_RECV: "recv"}


def _list_of(text: str) -> Any:
    """Parse a list in Python or JSON notation; return [] for an empty text."""
    import msgspec

    if not text:
        return []
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return _unquoted(parse_literal(text))


def _unquoted(value: Any) -> Any:
    """Remove the quotes that Python's repr puts around strings."""
    if isinstance(value, list):
        return [_unquoted(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _attribute(message: bytes) -> tuple[str, Any]:
    """Return the name and value of an `AttributeProto`; a value that is neither a number nor a string becomes None."""
    name, attribute = "", None
    for number, _, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode(errors="replace")
        elif number in _VALUES and isinstance(value, _VALUES[number][0]):
            attribute = _VALUES[number][1](value)
    return name, attribute
