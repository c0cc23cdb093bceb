# pyright: strict
"""Stream the nodes of an ExecutionTrace in bounded memory: split, decode and repair them, without interpreting them.

The text is cut between nodes. If a piece decodes, its cuts were right; otherwise the piece is processed node by node
and repaired if possible. Losses and repairs are counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec

from opreplay.traces.errors import Malformed, UnknownDialect
from opreplay.traces.limits import Limits, too_large
from opreplay.traces.reading.repair import Form, repairs
from opreplay.traces.reading.source import Source

BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NODES = re.compile(rb'"nodes"\s{0,64}:\s{0,64}\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"(\w{1,64})"\s*:')
_SECOND_KEY = re.compile(rb'\s*(?:"(?:[^"\\]|\\.){0,4096}"|[^",{}\[\]]{1,40})\s*,\s*"(\w{1,64})"\s*:')
_ARRAY_END = re.compile(rb"[}\[]\s*,?\s*\](?=\s*[,}])")
_MOST_JOINED = 64
"""Maximum number of pieces that are joined again if a node was cut into pieces."""


class Node(msgspec.Struct, kw_only=True):
    """One recorded node with the fields of both schema generations.

    Types are not checked, because a wrong type in one node must not make its neighbours unreadable.
    """

    id: Any = None
    name: Any = ""
    ctrl_deps: Any = None
    data_deps: Any = ()
    """Ids of the nodes whose results this node uses; Chakra files only."""
    communicates: Any = False
    """Whether the node type is a communication type; Chakra protobuf files only."""
    parent: Any = None
    inputs: Any = ()
    input_shapes: Any = ()
    input_types: Any = ()
    input_strides: Any = None
    outputs: Any = None
    output_shapes: Any = None
    output_types: Any = None
    attrs: Any = ()
    rf_id: Any = None
    scope: Any = None
    tid: Any = None
    op_schema: Any = None
    cat: Any = None
    ts: Any = None
    dur: Any = None
    inclusive_dur: Any = None
    stream: Any = None
    device: Any = None

    @property
    def duration(self) -> Any:
        """Return the recorded duration; if there are two, the one that includes callees."""
        return self.dur if self.inclusive_dur is None else self.inclusive_dur


_KEYS = frozenset((*Node.__struct_fields__, "exclusive_dur", "fw_parent", "fw_tid", "seq_id", "op", "ph", "pg_name"))
_FORM = Form(
    keys=_KEYS | {"inter_thread_dep", "sync_dep", "kernel_backend", "kernel_file", "rf_id"},
    stops=re.compile(r'"(?:attrs|ctrl_deps|inputs|outputs|input_shapes|input_types|op_schema|parent|rf_id)"\s*:'),
    needs="inputs",
)
_DECODE_ALL = msgspec.json.Decoder(list[Node])
_DECODE_ONE = msgspec.json.Decoder(Node)
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class NodeStream(msgspec.Struct, kw_only=True):
    """Iterator over lists of nodes. After the iteration, `header`, `losses` and `repairs` are complete."""

    source: Source
    header: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Top-level keys except "nodes": schema, pid, time, start_ts, finish_ts."""
    losses: Counter[str] = msgspec.field(default_factory=Counter[str])
    repairs: Counter[str] = msgspec.field(default_factory=Counter[str])
    block_bytes: int = BLOCK_BYTES

    def __iter__(self) -> Iterator[list[Node]]:
        """Yield lists of nodes.

        Raises UnknownDialect or Malformed if there is no array of nodes, TooLarge if a limit is exceeded.
        """
        rest = self._head(self.source.limits)
        separator: re.Pattern[bytes] | None = None
        max_bytes = self.source.limits.event_bytes
        while (block := self._read()) or rest:
            rest += block
            if not block:
                break
            separator = separator or _separator(rest)
            cuts = deque(separator.finditer(rest) if separator else (), maxlen=1)
            if not cuts:
                if len(rest) > max_bytes:
                    raise too_large("event_bytes", max_bytes, len(rest), "bytes in one node")
                continue
            cut = cuts[0]
            self._count_comma(cut)
            yield self._decode(rest[: cut.start() + 1], separator)
            rest = rest[cut.end() :]
        yield self._tail(rest, separator or _separator(rest) or _separator_for(b"id"))

    def _read(self) -> bytes:
        block = bytearray(self.block_bytes)
        with memoryview(block) as view:
            return bytes(view[: self.source.readinto(view)])

    def _head(self, limits: Limits) -> bytes:
        """Read up to the array of nodes, and return those bytes already read that follow its "["."""
        text, searched, tries = b"", 0, 0
        while tries < _MOST_JOINED:
            for match in _NODES.finditer(text, searched):
                before = text[: match.start()]
                tries += 1
                texts = (before + b'"":0}', *(text for text, _ in repairs(before + b'"":0}', None)))
                header = next((found for text in texts if (found := _header(text)) is not None), None)
                if header is not None:
                    self.header.update(header)
                    return text[match.end() :]
            searched = max(0, len(text) - 200)
            block = self._read()
            if not block:
                break
            text = (text + block).removeprefix(_BOM)
            if len(text) > limits.metadata_bytes:
                raise too_large("metadata_bytes", limits.metadata_bytes, len(text), "bytes before the nodes")
        if _header(text) is None:
            raise Malformed(f"{self.source.path} is not an ExecutionTrace: it is not a JSON object with nodes")
        raise UnknownDialect(
            f"{self.source.path} is JSON without nodes",
            hint="torch.profiler.ExecutionTraceObserver writes an ExecutionTrace.",
        )

    def _count_comma(self, separator: re.Match[bytes]) -> None:
        if not separator[1]:
            self.repairs["missing comma"] += 1

    def _decode(self, body: bytes, separator: re.Pattern[bytes] | None, *, last: bool = False) -> list[Node]:
        """Return the nodes of a piece of the array, decoding them one by one if the whole piece does not decode."""
        with suppress(*_UNDECODABLE):
            return _DECODE_ALL.decode(b"[" + body + b"]")
        cuts = list(separator.finditer(body)) if separator else []
        starts = [0, *(cut.end() for cut in cuts)]
        stops = [*(cut.start() + 1 for cut in cuts), len(body)]
        nodes: list[Node] = []
        at = 0
        while at < len(starts):
            if at:
                self._count_comma(cuts[at - 1])
            used, node = self._salvage(body, starts, stops, at)
            if node is not None:
                nodes.append(node)
            elif last and at + used == len(starts):
                self.losses["truncated file"] += 1
                nodes += _whole_before_cut(body[starts[at] :])
            elif body[starts[at] : stops[at]].strip():
                self.losses["broken node"] += 1
                nodes += _whole_before_cut(body[starts[at] : stops[at]])
            at += used
        return nodes

    def _salvage(self, body: bytes, starts: list[int], stops: list[int], at: int) -> tuple[int, Node | None]:
        """Return (number of pieces used, node) for piece `at`. It is used unchanged, joined with the next pieces, or
        repaired.
        """
        for used in range(1, min(_MOST_JOINED, len(starts) - at) + 1):
            node = _one(body[starts[at] : stops[at + used - 1]])
            if node is not None:
                return used, node
            if used == 1 and body[starts[at] : stops[at]].count(b"{") == body[starts[at] : stops[at]].count(b"}"):
                break  # balanced, so the cuts are right and the damage lies inside
        piece = body[starts[at] : stops[at]]
        for repaired, reasons in repairs(piece, _FORM):
            if (node := _one(repaired)) is not None:
                self.repairs.update(reasons)
                return 1, node
        return 1, None

    def _tail(self, rest: bytes, separator: re.Pattern[bytes]) -> list[Node]:
        """Return the last nodes and read the text after the array."""
        max_bytes = self.source.limits.metadata_bytes + self.source.limits.event_bytes
        if len(rest) > max_bytes:
            raise too_large("metadata_bytes", max_bytes, len(rest), "bytes in and after the last node")
        end = _array_end(rest)
        if end is None:
            complete = not rest.strip()
            self.losses["truncated file"] += complete
            return [] if complete else self._decode(rest, separator, last=True)
        header = _header(b'{"":0' + rest[end + 1 :])
        if header is None:
            self.losses["damaged end of the file"] += 1
        self.header.update(header or {})
        body = rest[:end].rstrip().removesuffix(b",")
        return self._decode(body, separator) if body.strip() else []


def _one(piece: bytes) -> Node | None:
    try:
        return _DECODE_ONE.decode(piece)
    except _UNDECODABLE:
        return None


def _whole_before_cut(piece: bytes) -> list[Node]:
    """Return the first of the two nodes in a piece that was not cut because the first key of the second node is
    damaged.
    """
    try:
        end = json.JSONDecoder(strict=False).raw_decode(piece.decode("latin-1"))[1]
    except (ValueError, RecursionError):
        return []
    node = _one(piece[:end])
    return [] if node is None else [node]


def _header(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object and remove its key ""; return None if the text is anything else."""
    try:
        value = msgspec.json.decode(text)
    except _UNDECODABLE:
        return None
    if not isinstance(value, dict):
        return None
    header = cast("dict[str, Any]", value)
    header.pop("", None)
    return header


def _array_end(rest: bytes) -> int | None:
    """Return the position of the "]" that closes the array of nodes; None if the array is cut off.

    `rest` begins inside the array.
    """
    text = "[" + rest.decode("latin-1")  # one character a byte, so that positions stay
    first: int | None = None
    with suppress(ValueError, RecursionError):
        first = json.JSONDecoder(strict=False).raw_decode(text)[1] - 2
    if first is not None and _header(b'{"":0' + rest[first + 1 :]) is not None:
        return first
    for match in reversed(list(_ARRAY_END.finditer(rest))[-_MOST_JOINED:]):
        if _header(b'{"":0' + rest[match.end() :]) is not None:
            return match.end() - 1
    return first  # a bracket may also lie in a name


def _separator(text: bytes) -> re.Pattern[bytes] | None:
    """Return the pattern of the text between two nodes; None until the text contains the beginning of the first node.

    The pattern is "}", then "{" with the first key of a node, followed by the second key if that is needed.
    """
    first = _FIRST_KEY.match(text)
    if first is None:
        return None
    second = _SECOND_KEY.match(text, first.end())
    return _separator_for(first[1], second[1] if second else None)


def _separator_for(first: bytes, second: bytes | None = None) -> re.Pattern[bytes]:
    """Return the separator pattern for these keys; the comma is optional because some torch versions omit it."""
    then = b'"' + first + b'"\\s*:'
    if second is not None:
        then += rb'\s*(?:"(?:[^"\\]|\\.){0,4096}"|[^",{}\[\]]{1,40})\s*,\s*"' + second + rb'"\s*:'
    return re.compile(rb"\}\s*(,?)\s*(?=\{\s*" + then + rb")")
