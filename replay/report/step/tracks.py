# pyright: strict
"""A step's recorded and simulated timelines side by side as Chrome trace events, written as a stream.

Opens in ui.perfetto.dev and chrome://tracing. One process for the recording and one for each simulated device, all from
the same zero; arrows lead from launches to what they launch.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from opreplay.replay.report.text import safe
from opreplay.replay.timeline.graph.model import LAUNCH, NODE_KINDS
from opreplay.replay.timeline.graph.schedule import Schedule
from opreplay.replay.timeline.names import PYTHON
from opreplay.replay.timeline.timeline import OnDevice, Study, recorded_schedule

Event = dict[str, Any]
_NAME_LENGTH = 200


def write(study: Study, path: Path, *, force: bool = False) -> int:
    """Write the timelines to a file, compressed where its name ends with .gz; the number of events.

    Raises FileExistsError for a file that is there, without `force`.
    """
    with open(path, "wb" if force else "xb") as raw:
        if path.name.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as stream:
                return _write(events(study), stream)  # type: ignore[arg-type]
        return _write(events(study), raw)


def _write(made: Iterable[Event], stream: BinaryIO) -> int:
    stream.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    count = 0
    for event in made:
        stream.write((b",\n" if count else b"") + orjson.dumps(event))
        count += 1
    stream.write(b"\n]}\n")
    return count


def events(study: Study) -> Iterator[Event]:
    """All events: the recording, then each simulated device."""
    yield from _process(study, 1, "recorded", recorded_schedule(study.graph), None)
    for number, (name, one) in enumerate(study.simulated.items(), start=2):
        yield from _process(study, number, f"simulated {name}", one.schedule, one)


def _process(study: Study, pid: int, title: str, schedule: Schedule, on: OnDevice | None) -> Iterator[Event]:
    graph, names = study.graph, study.names
    yield _meta("process_name", pid, 0, {"name": safe(title)})
    yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
    for lane, told in enumerate(graph.lanes):
        yield _meta("thread_name", pid, lane + 1, {"name": safe(told.name)})
        yield _meta("thread_sort_index", pid, lane + 1, {"sort_index": lane})
    nodes = graph.nodes
    launched = set(graph.edges.target[graph.edges.kind == LAUNCH].tolist())
    for node in range(len(nodes)):
        start, end = float(schedule.start_us[node]), float(schedule.end_us[node])
        tid = int(nodes.lane[node]) + 1
        if nodes.name[node] >= 0:
            args: dict[str, Any] = {"op": _short(names.task(node)), "recorded_us": float(nodes.dur_us[node])}
            if on is not None:
                args |= _prediction(on, node)
            yield {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": start,
                "dur": end - start,
                "name": _short(names.kernel(node)),
                "cat": NODE_KINDS[nodes.kind[node]],
                "args": args,
            }
            if node in launched:
                yield {
                    "ph": "f",
                    "bp": "e",
                    "id": f"{pid}.{node}",
                    "pid": pid,
                    "tid": tid,
                    "ts": start,
                    "name": "launch",
                    "cat": "launch",
                }
        elif nodes.slices[node]:
            yield from _host(study, pid, tid, node, start, end)
    for edge in np.flatnonzero(graph.edges.kind == LAUNCH).tolist():
        source, target = int(graph.edges.source[edge]), int(graph.edges.target[edge])
        # An arrow starts inside a slice: just before the block of the launch ends.
        at = max(float(schedule.start_us[source]), float(schedule.end_us[source]) - 0.001)
        yield {
            "ph": "s",
            "id": f"{pid}.{target}",
            "pid": pid,
            "tid": int(nodes.lane[source]) + 1,
            "ts": at,
            "name": "launch",
            "cat": "launch",
        }


def _host(study: Study, pid: int, tid: int, node: int, start: float, end: float) -> Iterator[Event]:
    """Stretches of one op each; Python between ops is left blank."""
    graph = study.graph
    low, count = int(graph.nodes.first_slice[node]), int(graph.nodes.slices[node])
    lengths, ops = graph.slices.dur_us[low : low + count], graph.slices.op[low : low + count]
    total = float(lengths.sum())
    if total <= 0.0:
        return
    edges = start + np.concatenate([[0.0], np.cumsum(lengths)]) * ((end - start) / total)
    first = np.flatnonzero(np.append(True, ops[1:] != ops[:-1]))
    last = np.append(first[1:], count)
    for begin, until in zip(first.tolist(), last.tolist(), strict=True):
        name = study.names.op(int(ops[begin]))
        if name != PYTHON:
            yield {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": float(edges[begin]),
                "dur": float(edges[until] - edges[begin]),
                "name": _short(name),
                "cat": "host",
            }


def _prediction(on: OnDevice, node: int) -> dict[str, Any]:
    """What is said of one task's prediction."""
    families = {name: float(us[node]) for name, us in on.made.families.items() if us[node] > 0.0}
    if not families:
        return {"prediction": "none: as recorded"}
    total = sum(families.values())
    band = sum(on.made.bands[name] * us for name, us in families.items()) / total
    return {"families": families, "low_us": total / band, "high_us": total * band}


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _short(name: str) -> str:
    return safe(name[:_NAME_LENGTH])
