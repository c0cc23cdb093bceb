# pyright: strict
"""Timelines of a step as Chrome trace events, written as a stream: recorded, simulated, or of several ranks.

The files open in ui.perfetto.dev and chrome://tracing. There is one process per rank, or one for the recording and one
per simulated device. Time zero is the same in all processes. Arrows lead from launches to the launched tasks.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import orjson

from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.ir.step import PYTHON
from opreplay.replay.report.text import safe
from opreplay.replay.timeline.graph.model import LAUNCH, NODE_KINDS, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, critical_path
from opreplay.replay.timeline.job.study import JobStudy
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.simulated import Predicted
from opreplay.replay.timeline.timeline import Study
from opreplay.traces.arrays import Floats

Event = dict[str, Any]
_NAME_LENGTH = 200


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One timeline: a graph with the start and end times of its nodes in µs. All timelines have the same time zero."""

    title: str
    graph: StepGraph
    names: Names
    start_us: Floats
    end_us: Floats
    predicted: Predicted | None = None
    """Predictions from which the times were computed."""
    critical: frozenset[int] = frozenset()
    """Nodes on the critical path; empty if it is unknown."""


def processes(study: Study) -> list[Process]:
    """Return one timeline each for the recording, the step with measured times (if any), and each simulated device."""
    graph, names = study.graph, study.names
    out = [_recorded("recorded", graph, names, 0.0, _critical(graph, study.schedule))]
    if study.measured is not None:
        times = study.measured
        out.append(Process(title="measured", graph=graph, names=names, start_us=times.start_us, end_us=times.end_us))
    for name, simulated in study.simulated.items():
        out.append(
            Process(
                title=f"simulated {name}",
                graph=simulated.graph,
                names=simulated.names,
                start_us=simulated.schedule.start_us,
                end_us=simulated.schedule.end_us,
                predicted=simulated.made,
                critical=_critical(simulated.graph, simulated.schedule),
            )
        )
    return out


def rank_processes(study: JobStudy) -> list[Process]:
    """Return the recording of each rank, on the common clock of the job."""
    return [
        _recorded(f"rank {rank.rank}", rank.graph, study_of_rank.names, rank.at_us)
        for rank, study_of_rank in zip(study.graph.ranks, study.ranks, strict=True)
    ]


def _critical(graph: StepGraph, schedule: Schedule) -> frozenset[int]:
    return frozenset(critical_path(graph, schedule)[0].tolist())


def _recorded(
    title: str, graph: StepGraph, names: Names, at_us: float, critical: frozenset[int] = frozenset()
) -> Process:
    start = graph.nodes.start_us + at_us
    end = start + graph.nodes.dur_us
    return Process(title=title, graph=graph, names=names, start_us=start, end_us=end, critical=critical)


def write_json(stream_events: Iterable[Event], stream: BinaryIO) -> int:
    """Write events in Chrome's JSON format, and return the number of events."""
    stream.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    count = 0
    for event in stream_events:
        stream.write((b",\n" if count else b"") + plain_json(orjson.dumps(event)))
        count += 1
    stream.write(b"\n]}\n")
    return count


def write(
    timelines: Iterable[Process],
    path: Path,
    *,
    force: bool = False,
    write_events: Callable[[Iterable[Event], BinaryIO], int] = write_json,
) -> int:
    """Write timelines to a file and return what `write_events` returns, the number of events or slices.

    If the file's name ends with .gz, it is compressed. Raises FileExistsError if the file exists, unless `force` is
    set.
    """
    with open(path, "wb" if force else "xb") as raw:
        if path.name.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as stream:
                return write_events(events(timelines), stream)  # type: ignore[arg-type]
        return write_events(events(timelines), raw)


def events(timelines: Iterable[Process]) -> Iterator[Event]:
    """Yield the events of all processes, one process after the other."""
    for pid, process in enumerate(timelines, start=1):
        yield from _process(process, pid)


def _process(process: Process, pid: int) -> Iterator[Event]:
    graph, names = process.graph, process.names
    yield _meta("process_name", pid, 0, {"name": safe(process.title)})
    yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
    for lane, thread in enumerate(graph.lanes):
        yield _meta("thread_name", pid, lane + 1, {"name": safe(thread.name)})
        yield _meta("thread_sort_index", pid, lane + 1, {"sort_index": lane})
    nodes = graph.nodes
    launched = set(graph.edges.target[graph.edges.kind == LAUNCH].tolist())
    for node in range(len(nodes)):
        start, end = float(process.start_us[node]), float(process.end_us[node])
        tid = int(nodes.lane[node]) + 1
        if nodes.name[node] >= 0:
            args: dict[str, Any] = {"op": _short(names.task(node)), "recorded_us": float(nodes.dur_us[node])}
            if process.predicted is not None:
                args |= _prediction(process.predicted, node)
            kind = NODE_KINDS[int(nodes.kind[node])]
            yield {**_slice(pid, tid, start, end - start, names.kernel(node), kind), "args": args}
            if node in launched:
                yield {"ph": "f", "bp": "e", **_arrow(pid, node, tid, start)}
        elif nodes.slices[node]:
            for begin, until, name in host_slices(process, node, start, end):
                if name != PYTHON:  # is left blank
                    yield _slice(pid, tid, begin, until - begin, name, "host")
    for edge in np.flatnonzero(graph.edges.kind == LAUNCH).tolist():
        source, target = int(graph.edges.source[edge]), int(graph.edges.target[edge])
        # An arrow starts inside a slice: just before the block of the launch ends.
        at = max(float(process.start_us[source]), float(process.end_us[source]) - 0.001)
        yield {"ph": "s", **_arrow(pid, target, int(nodes.lane[source]) + 1, at)}


def host_slices(process: Process, node: int, start: float, end: float) -> Iterator[tuple[float, float, str]]:
    """Yield (start, end, name) of each interval in a host node. The name is an op's, or `PYTHON` between ops."""
    graph = process.graph
    low, count = int(graph.nodes.first_slice[node]), int(graph.nodes.slices[node])
    lengths, ops = graph.slices.dur_us[low : low + count], graph.slices.op[low : low + count]
    total = float(lengths.sum())
    if total <= 0.0:
        return
    edges = start + np.concatenate([[0.0], np.cumsum(lengths)]) * ((end - start) / total)
    first = np.flatnonzero(np.append(True, ops[1:] != ops[:-1]))
    last = np.append(first[1:], count)
    for begin, until in zip(first.tolist(), last.tolist(), strict=True):
        yield float(edges[begin]), float(edges[until]), process.names.op(int(ops[begin]))


def _prediction(predicted: Predicted, node: int) -> dict[str, Any]:
    """Return the prediction of one task: time by kernel family, and the limits of its uncertainty band."""
    families = {name: float(us[node]) for name, us in predicted.families.items() if us[node] > 0.0}
    if not families:
        return {"prediction": "none: as recorded"}
    total = sum(families.values())
    less, more = (sum(float(us[node]) for us in of.values()) for of in (predicted.shorter_us, predicted.longer_us))
    return {"families": families, "low_us": total - less, "high_us": total + more}


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _slice(pid: int, tid: int, start_us: float, dur_us: float, name: str, kind: str) -> Event:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": start_us, "dur": dur_us, "name": _short(name), "cat": kind}


def _arrow(pid: int, node: int, tid: int, at_us: float) -> Event:
    """Return one end of the flow arrow to a launched task."""
    return {"id": f"{pid}.{node}", "pid": pid, "tid": tid, "ts": at_us, "name": "launch", "cat": "launch"}


def _short(name: str) -> str:
    return safe(name[:_NAME_LENGTH])
