# pyright: strict
"""Find the torch.nn module in which each op ran, from the Python stack that `with_stack=True` records.

This is a separate pass, because the reader skips Python functions, which are most of the events of such a file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from opreplay.traces.limits import Limits
from opreplay.traces.links.parents import innermost_at, nest
from opreplay.traces.model import Trace
from opreplay.traces.reading.source import Source

CHUNK = 4 << 20
SPAN = 600
"""The rest of a module call's event is searched within this many bytes before and after its name."""
MAX_MODULES = 5_000_000
"""Maximum number of module calls read; further calls are ignored."""
_MARK = b"nn.Module: "
_NAME = re.compile(rb'"name"\s*:\s*"nn\.Module: ([^"\\]{1,200})"')
_NUMBER = {key: re.compile(rb'"%s"\s*:\s*"?(-?[0-9.eE+]+)"?' % key) for key in (b"ts", b"dur")}
_PLACE = {key: re.compile(rb'"%s"\s*:\s*"?([^",}\s]{1,64})"?' % key) for key in (b"pid", b"tid")}
_INSTANCE = re.compile(r"_\d+$")

Call = tuple[str, tuple[str, str], float, float]
"""(module, (pid, tid), start in microseconds, duration in microseconds)."""


def modules_of_ops(trace: Trace, path: str, *, limits: Limits) -> Sequence[str]:
    """Return the classes of the modules around each op as a path ("Bert/BertLayer/Linear"); "" for none.

    All instances of a class count as one module. Return () if no module is recorded. Raises TraceError if the file is
    no longer readable.
    """
    by_track: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in islice(_calls(path, limits), MAX_MODULES):
        by_track[call[1]].append(call)
    if not by_track:
        return ()
    out = [""] * len(trace.ops)
    for index, track in enumerate(trace.tracks):
        calls = by_track.get(track)
        ops = np.flatnonzero(trace.ops.track == index)
        if not calls or not len(ops):
            continue
        start, dur = np.rint(np.array([call[2:4] for call in calls]).T * 1e3).astype(np.int64)
        paths = _paths([_INSTANCE.sub("", call[0]) for call in calls], start, dur)
        inside = innermost_at(trace.ops.start_ns[ops], np.arange(len(calls)), start, dur)
        for op, at in zip(ops.tolist(), inside.tolist(), strict=True):
            out[op] = paths[at] if at >= 0 else ""
    return out


def _paths(names: list[str], start: np.ndarray, dur: np.ndarray) -> list[str]:
    """Return the path of each call: the names of its enclosing calls, outermost first, then its own name."""
    rows, parents = nest(np.arange(len(names)), start, dur)
    paths: list[str] = [""] * len(names)
    pairs: Iterable[tuple[int, int]] = zip(rows.tolist(), parents.tolist(), strict=True)
    for row, parent in pairs:  # outer calls come before inner ones
        above = paths[int(rows[parent])] + "/" if parent >= 0 else ""
        whole = above + names[row]
        paths[row] = whole[-400:]
    return paths


def _calls(path: str, limits: Limits) -> Iterator[Call]:
    """Yield module calls in file order; events without a time or a thread are skipped."""
    with Source(path, limits) as source:
        buffer, tail, begin = memoryview(bytearray(CHUNK)), b"", 0
        while n := source.readinto(buffer):
            text = tail + bytes(buffer[:n])
            edge = max(len(text) - SPAN, begin)
            yield from _parsed_calls(text, begin, edge)
            first = max(0, edge - SPAN)
            tail, begin = text[first:], edge - first
        yield from _parsed_calls(tail, begin, len(tail))


def _event_around(text: bytes, match: re.Match[bytes]) -> bytes:
    """Return the text of the event whose name is `match`, as far as the text was read."""
    opened = max(0, text.rfind(b"{", max(0, match.start() - SPAN), match.start()))
    around = text[opened : match.end() + SPAN]
    closed = around.find(b"}", match.end() - opened)
    return around if closed < 0 else around[:closed]


def _parsed_calls(text: bytes, begin: int, edge: int) -> Iterator[Call]:
    """Yield those module calls for which the name begins at or after `begin` and before `edge`."""
    if text.find(_MARK) < 0:
        return
    for match in _NAME.finditer(text):
        if not begin <= match.start() < edge:
            continue
        around = _event_around(text, match)
        times = [pattern.search(around) for pattern in _NUMBER.values()]
        places = [pattern.search(around) for pattern in _PLACE.values()]
        if None in times or None in places:
            continue
        try:
            ts, dur = (float(number[1]) for number in times if number is not None)
        except ValueError:
            continue
        pid, tid = (number[1].decode("utf-8", "replace") for number in places if number is not None)
        if 0 <= dur < 1e15 and abs(ts) < 1e18:
            yield match[1].decode("utf-8", "replace"), (pid, tid), ts, dur
