# pyright: strict
"""Write timelines of a step in Perfetto's native format, packet by packet.

The packets are messages of the extra `perfetto`, which is required (perfetto.dev/docs/reference/trace-packet-proto).
There is one track per thread or stream, under the track of its process. Slices are pairs of begin and end events. Flow
arrows lead from a launch to the launched task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from opreplay.replay.report.step import tracks
from opreplay.replay.report.step.tracks import Event, Process
from opreplay.traces.errors import EnvironmentRefused

SUFFIXES = (".pftrace", ".pftrace.gz")
_SEQUENCE = 1
_MOST_DEPTH = 64
"""Maximum number of tracks per stream. Overlapping tasks need separate tracks, because slices must not overlap."""


def check_installed() -> None:
    """Raise EnvironmentRefused if the Perfetto package is not installed."""
    try:
        import perfetto.trace_builder.proto_builder  # noqa: F401  # pyright: ignore
    except ImportError:
        raise EnvironmentRefused(
            "a .pftrace needs the package perfetto, which is not installed",
            hint="pip install 'opreplay[perfetto]', or name the file .json.gz.",
        ) from None


def write(timelines: Iterable[Process], path: Path, *, force: bool = False) -> int:
    """Write timelines to a file and return the number of slices.

    Raises EnvironmentRefused if Perfetto is not installed. Raises FileExistsError if the file exists, unless `force` is
    set.
    """
    check_installed()
    return tracks.write(timelines, path, force=force, write_events=_write)


def _write(stream_events: Iterable[Event], stream: BinaryIO) -> int:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # pyright: ignore
        TrackDescriptor,
        TrackEvent,
    )
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder  # pyright: ignore

    builder: Any = StreamingTraceProtoBuilder(stream)
    kinds: Any = TrackEvent
    explicit: Any = TrackDescriptor.EXPLICIT
    names: dict[tuple[int, int], str] = {}
    until: dict[tuple[int, int], list[float]] = {}
    slices = 0

    def packet(ts: float | None = None) -> Any:
        message = builder.create_packet()
        message.trusted_packet_sequence_id = _SEQUENCE
        if ts is not None:
            message.timestamp = max(0, round(ts * 1e3))
        return message

    def track_of(pid: int, tid: int, depth: int) -> int:
        return (pid << 40) | (tid << 8) | depth

    def describe(pid: int, tid: int, depth: int) -> None:
        message = packet()
        message.track_descriptor.uuid = track_of(pid, tid, depth)
        message.track_descriptor.name = names.get((pid, tid), "") + (f" ({depth + 1})" if depth else "")
        if tid:
            message.track_descriptor.parent_uuid = track_of(pid, 0, 0)
            message.track_descriptor.sibling_order_rank = tid * _MOST_DEPTH + depth
        else:
            message.track_descriptor.child_ordering = explicit
            message.track_descriptor.sibling_order_rank = pid
        builder.write_packet(message)

    def depth_of(pid: int, tid: int, start: float, end: float) -> int:
        ends = until.setdefault((pid, tid), [])
        for depth, last in enumerate(ends):
            if start >= last - 1e-6 or depth == _MOST_DEPTH - 1:
                ends[depth] = max(end, last)
                return depth
        ends.append(end)
        describe(pid, tid, len(ends) - 1)
        return len(ends) - 1

    for event in _with_flows(stream_events):
        pid, tid = int(event["pid"]), int(event["tid"])
        if event["ph"] == "M":
            if event["name"] in ("process_name", "thread_name"):
                names[pid, tid] = str(event["args"]["name"])
                if event["name"] == "process_name":
                    describe(pid, 0, 0)
            continue
        start = float(event["ts"])
        if event["ph"] == "s":
            message = packet(start)
            message.track_event.type = kinds.TYPE_INSTANT
            message.track_event.name = "launch"
            message.track_event.track_uuid = track_of(pid, tid, 0)
            message.track_event.flow_ids.append(_flow(str(event["id"])))
            builder.write_packet(message)
            continue
        end = start + float(event["dur"])
        track = track_of(pid, tid, depth_of(pid, tid, start, end))
        message = packet(start)
        slice_event = message.track_event
        slice_event.type, slice_event.name, slice_event.track_uuid = kinds.TYPE_SLICE_BEGIN, event["name"], track
        slice_event.categories.append(event["cat"])
        _annotate(slice_event, event.get("args", {}))
        if "flow" in event:
            slice_event.terminating_flow_ids.append(_flow(event["flow"]))
        builder.write_packet(message)
        message = packet(end)
        message.track_event.type, message.track_event.track_uuid = kinds.TYPE_SLICE_END, track
        builder.write_packet(message)
        slices += 1
    return slices


def _with_flows(stream_events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, with each flow arrow merged into the slice at which it ends."""
    pending: Event | None = None
    for event in stream_events:
        if event["ph"] == "f":
            if pending is not None:
                pending["flow"] = str(event["id"])
            continue
        if pending is not None:
            yield pending
            pending = None
        if event["ph"] == "X":
            pending = event
        else:
            yield event
    if pending is not None:
        yield pending


def _flow(text: str) -> int:
    """Return the numeric id of a flow arrow named "process.node"."""
    process, _, node = text.partition(".")
    return (int(process) << 40) | int(node)


def _annotate(slice_event: Any, args: Event, prefix: str = "") -> None:
    for name, value in args.items():
        if isinstance(value, dict):
            _annotate(slice_event, value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
            continue
        note = slice_event.debug_annotations.add()
        note.name = f"{prefix}{name}"
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, (int, float)):
            note.double_value = float(value)
        else:
            note.string_value = str(value)
