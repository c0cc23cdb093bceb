"""Assign the kernels of replayed CUDA and HIP graphs to the ops that launched them during graph capture.

During capture, launches are recorded inside their ops but run nothing; during replay, kernels run outside any op. The
order of launches and kernels is the same. This module decides which capture a launch replays, and merges the tables.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from opreplay.traces.arrays import Array, Ints, distinct
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.folders import may_read
from opreplay.traces.limits import Limits
from opreplay.traces.links.annotations import BatchContext, batch_context
from opreplay.traces.links.parents import innermost_at, innermost_parent
from opreplay.traces.model import (
    KERNEL_CATEGORIES,
    CapturedGraph,
    GraphJoin,
    GraphLaunches,
    KernelTable,
    LinkStats,
    OpSignature,
    OpTable,
    RuntimeCalls,
    Trace,
)
from opreplay.traces.names import printable
from opreplay.traces.reader import read_trace

Rows = Ints
_BEGIN = re.compile(r"(cuda|hip|cu)StreamBeginCapture")
_END = re.compile(r"(cuda|hip|cu)StreamEndCapture")
_KINDS = (
    (re.compile(r"(cuda|hip|cu)\w*LaunchKernel|(cuda|hip|cu)LaunchCooperativeKernel"), "kernel"),
    (re.compile(r"(cuda|hip|cu)Memcpy"), "memcpy"),
    (re.compile(r"(cuda|hip|cu)Memset"), "memset"),
)
"""(Pattern of a runtime call, category of the device work in the graph node that it creates)."""
_SIZE = re.compile(r"capture\D{0,3}(\d{1,9})")
"""Matches the names that inference servers give captures: `capture_8192_PIECEWISE` is for batches of up to
8192 tokens.
"""
HINT = "give the profile of the graph capture with --set capture=FILE"
MAX_CANDIDATES = 64
"""Maximum number of files in the folder of a trace in which captures are searched for."""
MAX_SHOWN = 3
"""Maximum number of captures or capture files named in one line."""
MAX_ADDED_ROWS = 20_000_000
"""Maximum number of calls added for graph replays; beyond it, only ops that launch device work are added."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded capture of one graph."""

    source: Trace
    size: int | None
    """Maximum number of tokens in a batch of this graph, if an annotation gives it."""
    rows: Rows
    """Rows of the ops of `source` inside the capture, sorted by start."""
    owners: Rows
    """Position in `rows` of the op that made each launch, or -1."""
    kinds: tuple[str, ...]
    """Category of the device work of each launch."""
    names: tuple[str | None, ...]
    """Kernel name of each launch; None if the runtime call does not record it, as with CUDA."""
    grids: Rows
    """Grid of each launch; -1 if the runtime call does not record it."""

    @property
    def named(self) -> bool:
        """Whether the names of all kernels are known."""
        return all(name is not None for name, kind in zip(self.names, self.kinds, strict=True) if kind == "kernel")

    def ops(self) -> tuple[OpSignature | None, ...]:
        """Return the op of each launch. Captures for which all these ops are equal are interchangeable."""
        of = self.source.ops.signature[self.rows]
        return tuple(None if at < 0 else self.source.signatures[of[at]] for at in self.owners.tolist())


def captures_of(trace: Trace) -> list[Capture]:
    """Return the captures in a trace read with `calls=True`, in order of time.

    Raises ValueError for a trace read without runtime calls.
    """
    calls = trace.calls
    if calls is None:
        raise ValueError("the trace was read without its runtime calls")
    kinds = [_kind(name) for name in calls.names]
    tracks: list[int] = distinct(calls.track).tolist()
    captures = [timed for track in tracks for timed in _captures_on(track, trace, calls, kinds)]
    return [capture for _, capture in sorted(captures, key=lambda timed: timed[0])]


def _next_after(number: int, numbers: Sequence[int]) -> int:
    """Return the smallest of `numbers` that is larger than `number`, or the first one if there is none."""
    return next((n for n in numbers if n > number), numbers[0])


def _captures_on(track: int, trace: Trace, calls: RuntimeCalls, kinds: list[str]) -> Iterator[tuple[int, Capture]]:
    """Yield (start, capture) for each capture on one thread that contains launches."""
    here = np.flatnonzero(calls.track == track)
    here = here[np.argsort(calls.start_ns[here], kind="stable")]
    on_track = np.flatnonzero(trace.ops.track == track)
    begin: int | None = None
    launches: list[int] = []
    for row in here.tolist():
        kind = kinds[calls.name[row]]
        if kind == "begin":
            begin, launches = row, []
        elif kind == "end" and begin is not None:
            start, stop = int(calls.start_ns[begin]), int(calls.start_ns[row])
            if launches:
                yield start, _capture(trace, on_track, start, stop, launches, kinds)
            begin = None
        elif kind and begin is not None:
            launches.append(row)


def _kind(name: str) -> str:
    """Return the role of a runtime call in a capture: "begin", "end", or a category of device work; "" for none."""
    if _BEGIN.match(name):
        return "begin"
    if _END.match(name):
        return "end"
    return next((kind for pattern, kind in _KINDS if pattern.match(name)), "")


def _capture(
    trace: Trace, on_track: Rows, start: int, stop: int, launches: Sequence[int], kinds: Sequence[str]
) -> Capture:
    """Return the capture between two times: the ops that began in it, and which op made each launch.

    An op that began before the capture is not part of the graph.
    """
    calls, ops = trace.calls, trace.ops
    assert calls is not None
    begins = ops.start_ns[on_track]
    rows = on_track[(begins <= stop) & (begins + ops.dur_ns[on_track].astype(np.int64) >= start)]
    # An op that began before the capture is around it, and is no part of the graph.
    rows = rows[ops.start_ns[rows] >= start]
    rows = rows[np.lexsort((-ops.dur_ns[rows].astype(np.int64), ops.start_ns[rows]))]
    when = calls.start_ns[launches]
    owner = np.full(len(launches), -1, np.int64)
    if len(rows):
        owner = innermost_at(when, np.arange(len(rows)), ops.start_ns[rows], ops.dur_ns[rows].astype(np.int64))
    named = calls.kernel[launches].tolist()
    return Capture(
        source=trace,
        size=_size_at(trace, start),
        rows=rows,
        owners=owner,
        kinds=tuple(kinds[int(calls.name[row])] for row in launches),
        names=tuple(None if at < 0 else trace.kernel_names[at] for at in named),
        grids=calls.grid[launches],
    )


def _size_at(trace: Trace, when: int) -> int | None:
    """Return the batch size in the name of the shortest annotation around a time, or None."""
    around = [note for note in trace.annotations if note.start_ns <= when <= note.start_ns + note.dur_ns]
    for note in sorted(around, key=lambda note: note.dur_ns):
        if match := _SIZE.match(note.name[:80]):
            return int(match[1])
    return None


def join_captures(trace: Trace, captures: Sequence[Capture]) -> Trace:
    """Return the trace with the ops of each replayed graph added as calls at the time of the graph's launch.

    These calls take no host time, because one launch starts the whole graph. A launch is matched to a capture by its
    kernels. If the capture has kernel names (ROCm), they must be the names of the launch's kernels, in any order.
    Otherwise the kinds of work must agree in order, and the names of generated kernels must fit. Of several matching
    captures, the one for the smallest batch that holds the iteration's tokens is used. If several with different ops
    remain, none is used. `info.graphs` says how many launches were matched.
    """
    graphs = trace.graphs
    if graphs is None:
        return trace
    chosen, by_name, ambiguous = _choose(trace, graphs, captures)
    merged = _merge(trace, graphs, chosen)
    resolved = [i for i, capture in enumerate(chosen) if capture is not None]
    rows = [graphs.kernels[graphs.bounds[i] : graphs.bounds[i + 1]] for i in resolved]
    owned = np.concatenate(rows)[merged.kernels.owner[np.concatenate(rows)] >= 0] if rows else np.empty(0, np.int64)
    join = msgspec.structs.replace(
        trace.info.graphs or GraphJoin(),
        sources=tuple(dict.fromkeys(printable(c.source.info.path) for c in chosen if c is not None)),
        matched_launches=len(resolved),
        matched_kernels=len(owned),
        matched_us=float(trace.kernels.dur_ns[owned].astype(np.int64).sum()) / 1000,
        by_name=by_name,
        ambiguous=ambiguous,
    )
    missed = next((launch for launch, capture in enumerate(chosen) if capture is None), None)
    if missed is not None:
        kernels = int(graphs.bounds[missed + 1] - graphs.bounds[missed])
        join = msgspec.structs.replace(join, read_captures=_nearest(captures, kernels), unmatched_kernels=kernels)
    return msgspec.structs.replace(merged, info=msgspec.structs.replace(merged.info, graphs=join))


def _nearest(captures: Sequence[Capture], kernels: int) -> tuple[CapturedGraph, ...]:
    """Return a few captures: those whose number of launches is closest to `kernels`, closest first."""
    graphs = {(printable(capture.source.info.path), len(capture.kinds)) for capture in captures}
    ordered = sorted(graphs, key=lambda graph: (abs(graph[1] - kernels), graph))[:MAX_SHOWN]
    return tuple(CapturedGraph(source=source, kernels=count) for source, count in ordered)


def _choose(trace: Trace, graphs: GraphLaunches, captures: Sequence[Capture]) -> tuple[list[Capture | None], int, int]:
    """Return (capture that each launch replays, or None; number of launches matched by kernel names; number
    ambiguous).
    """
    known = _Known(captures)
    tokens = _tokens_at(trace, graphs.start_ns)
    captures_by_launch: list[Capture | None] = []
    named = ambiguous = 0
    last = -1
    for launch in range(len(graphs)):
        kinds, names = _work(trace, graphs.kernels[graphs.bounds[launch] : graphs.bounds[launch + 1]])
        fits, by_name = known.fitting(kinds, names)
        fits = _of_size(fits, captures, tokens[launch])
        chosen = known.meant_by(fits, last)
        ambiguous += bool(fits) and chosen is None
        named += by_name and chosen is not None
        last = last if chosen is None else chosen
        captures_by_launch.append(None if chosen is None else captures[chosen])
    return captures_by_launch, named, ambiguous


class _Known:
    """Finds captures by the kinds and names of their launches."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self._captures = captures
        self._by_names: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._by_kinds: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._ops: dict[int, tuple[OpSignature | None, ...]] = {}
        for number, capture in enumerate(captures):
            if capture.named:
                self._by_names[_key(capture.kinds, [name or "" for name in capture.names])].append(number)
            else:
                self._by_kinds[capture.kinds].append(number)

    def fitting(self, kinds: Sequence[str], names: Sequence[str]) -> tuple[list[int], bool]:
        """Return the captures whose launches may have produced these kernels, and whether kernel names confirm the
        match.
        """
        if named := self._by_names.get(_key(kinds, names)):
            return named, True
        return [n for n in self._by_kinds.get(tuple(kinds), ()) if _plausible(self._captures[n], names)], False

    def meant_by(self, fits: Sequence[int], last: int) -> int | None:
        """Return which of the matching captures a launch replays; None if that is ambiguous.

        Captures with equal ops are interchangeable. Otherwise all captures must be for one known batch size. The graphs
        of a model's parts run in the order of their capture. The choice is therefore the next capture after `last`, the
        previous choice.
        """
        ops = {self._ops.setdefault(number, self._captures[number].ops()) for number in fits}
        if len(ops) <= 1:
            return _next_after(last, fits) if fits else None
        sizes = {self._captures[number].size for number in fits}
        size = next(iter(sizes))
        if len(sizes) > 1 or size is None:
            return None
        group = [number for number, capture in enumerate(self._captures) if capture.size == size]
        expected = _next_after(last, group)
        return expected if expected in fits else None


def _key(kinds: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the sorted kernel names, and the kinds of other work: streams inside a graph may overtake each other."""
    return tuple(sorted(name if kind == "kernel" else kind for kind, name in zip(kinds, names, strict=True)))


def _work(trace: Trace, rows: Rows) -> tuple[list[str], list[str]]:
    """Return the category and name of each kernel."""
    kernels = trace.kernels
    kinds = [KERNEL_CATEGORIES[at] for at in kernels.category[rows].tolist()]
    return kinds, [trace.kernel_names[at] for at in kernels.name[rows].tolist()]


def _plausible(capture: Capture, names: Sequence[str]) -> bool:
    """Check whether these kernels can come from a capture that has no recorded kernel names; the order must agree.

    The evidence is generated kernels: their names contain the name of their op.
    """
    for signature, name in zip(capture.ops(), names, strict=True):
        op = "" if signature is None else signature.name
        if op.startswith("triton_") and not name.startswith(op):
            return False
        if name.startswith("triton_") and op.startswith("aten::"):
            return False
    return True


def _of_size(fits: Sequence[int], captures: Sequence[Capture], tokens: int | None) -> list[int]:
    """Return the captures for the smallest batch that holds this many tokens; all of them if no such batch is known."""
    if tokens is None:
        return [*fits]
    large = [size for n in fits if (size := captures[n].size) is not None and size >= tokens]
    return [n for n in fits if captures[n].size == min(large)] if large else [*fits]


def _tokens_at(trace: Trace, times: Rows) -> list[int | None]:
    """Return the number of new tokens of the iteration around each time; None if no annotation gives it."""
    batches = [(note, batch) for note in trace.annotations if (batch := batch_context(note.name)) is not None]
    starts = np.array([note.start_ns for note, _ in batches], np.int64)
    order = np.argsort(starts, kind="stable")
    out: list[int | None] = []
    for when in times.tolist():
        at = int(np.searchsorted(starts[order], when, side="right")) - 1
        note, batch = batches[order[at]] if at >= 0 else (None, None)
        if note is None or batch is None or note.start_ns + note.dur_ns < when:
            out.append(None)
            continue
        out.append(_new_tokens(batch))
    return out


def _new_tokens(batch: BatchContext) -> int | None:
    """Return the number of new tokens of an iteration, or None."""
    return batch.scheduled_tokens or (batch.prefill_tokens or 0) + (batch.decode_tokens or 0) or None


def _merge(trace: Trace, graphs: GraphLaunches, chosen: Sequence[Capture | None]) -> Trace:
    """Return the trace with the ops of the chosen captures appended and set as owners of the graphs' kernels."""
    rows = sum(len(capture.rows) for capture in chosen if capture is not None)
    owners_only = rows > MAX_ADDED_ROWS
    table = _Table(trace)
    owner = trace.kernels.owner.copy()
    grid = np.full(len(owner), -1, np.int64) if trace.kernels.grid is None else trace.kernels.grid.copy()
    for launch, capture in enumerate(chosen):
        if capture is None:
            continue
        kernels = graphs.kernels[graphs.bounds[launch] : graphs.bounds[launch + 1]]
        places = table.add(capture, int(graphs.start_ns[launch]), int(graphs.track[launch]), owners_only=owners_only)
        order = _order(trace, kernels, capture)
        at = capture.owners[order]
        grid[kernels] = np.where(grid[kernels] < 0, capture.grids[order], grid[kernels])
        known = at >= 0
        owner[kernels[known]] = places[at[known]]
    return msgspec.structs.replace(
        trace,
        signatures=tuple(table.signatures),
        ops=table.made(),
        kernels=msgspec.structs.replace(trace.kernels, owner=owner, grid=grid),
        info=msgspec.structs.replace(trace.info, links=_links(trace, trace.kernels, owner)),
    )


def _order(trace: Trace, kernels: Rows, capture: Capture) -> Rows:
    """Return, for each kernel, the index of its launch in the capture: by name if known, otherwise by position."""
    if not capture.named:
        return np.arange(len(kernels))
    kinds, names = _work(trace, kernels)
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    for number, (name, kind) in enumerate(zip(capture.names, capture.kinds, strict=True)):
        waiting[name if kind == "kernel" and name is not None else kind].append(number)
    taken: Counter[str] = Counter()
    out = []
    for name, kind in zip(names, kinds, strict=True):
        key = name if kind == "kernel" else kind
        out.append(waiting[key][taken[key]])
        taken[key] += 1
    return np.array(out, np.int64)


def _links(trace: Trace, kernels: KernelTable, owner: Rows) -> LinkStats:
    unowned = owner < 0
    return msgspec.structs.replace(
        trace.info.links,
        by_capture=int(np.count_nonzero((owner >= 0) & (owner != kernels.owner))),
        unowned=int(unowned.sum()),
        unowned_device_ns=int(kernels.dur_ns[unowned].astype(np.int64).sum()),
    )


class _Table:
    """A growing copy of a trace's op table."""

    def __init__(self, trace: Trace) -> None:
        self.signatures: dict[OpSignature, int] = {signature: at for at, signature in enumerate(trace.signatures)}
        self._trace = trace
        self._rows = len(trace.ops)
        self._parents = [innermost_parent(trace.ops)]
        self._parts: list[tuple[Rows, Rows, Rows]] = []
        self._of: dict[int, tuple[Rows, Rows]] = {}
        self._around: dict[int, Rows] = {}

    def add(self, capture: Capture, start_ns: int, track: int, *, owners_only: bool) -> Rows:
        """Append the ops of a capture as calls of one graph launch; return each op's new row, -1 for ops left out."""
        signature, parents = self._of.get(id(capture)) or self._of.setdefault(id(capture), self._prepared(capture))
        selected = np.ones(len(capture.rows), dtype=bool)
        if owners_only:
            selected = np.zeros(len(capture.rows), dtype=bool)
            selected[capture.owners[capture.owners >= 0]] = True
        place = np.where(selected, self._rows + np.cumsum(selected) - 1, -1)
        above = np.where(parents >= 0, place[np.maximum(parents, 0)], -1)
        outside = self._op_at(track, start_ns)
        above = np.where(above < 0, outside, above)
        count = int(selected.sum())
        # A nanosecond apart, so that their order is that of the capture.
        self._parts.append((signature[selected], start_ns + np.arange(count), np.full(count, track)))
        self._parents.append(above[selected])
        self._rows += count
        return place

    def _op_at(self, track: int, when: int) -> int:
        """Return the row of the recorded op around a launch, or -1."""
        ops = self._trace.ops
        rows = self._around.get(track)
        if rows is None:
            rows = self._around.setdefault(track, np.flatnonzero(ops.track == track))
        if not len(rows):
            return -1
        return int(innermost_at(np.array([when]), rows, ops.start_ns[rows], ops.dur_ns[rows].astype(np.int64))[0])

    def _prepared(self, capture: Capture) -> tuple[Rows, Rows]:
        """Return, for each row of a capture, the signature's index in this table and the position of the parent."""
        source = capture.source
        of = np.array(
            [self.signatures.setdefault(signature, len(self.signatures)) for signature in source.signatures], np.int64
        )
        part = OpTable(
            signature=source.ops.signature[capture.rows],
            start_ns=source.ops.start_ns[capture.rows],
            dur_ns=source.ops.dur_ns[capture.rows],
            track=np.zeros(len(capture.rows), np.int64),
        )
        return of[part.signature] if len(of) else np.empty(0, np.int64), innermost_parent(part)

    def made(self) -> OpTable:
        """Return the table with all rows. Calls inside graphs have a host time of 0."""
        ops = self._trace.ops
        added = [
            np.concatenate(column) if column else np.empty(0, np.int64) for column in zip(*self._parts, strict=True)
        ]
        if not added:
            return ops
        signature, start, track = added

        def longer(column: Array | None, value: Any) -> Array | None:
            """Return the column extended by `value` for each added call; None if there is no column."""
            return None if column is None else np.concatenate([column, np.full(len(start), value, column.dtype)])

        rows = np.concatenate([np.arange(len(ops)), np.full(len(start), -1)])
        return OpTable(
            signature=np.concatenate([ops.signature.astype(np.int64), signature]).astype(np.uint32),
            start_ns=np.concatenate([ops.start_ns, start]),
            dur_ns=np.concatenate([ops.dur_ns, np.zeros(len(start), ops.dur_ns.dtype)]),
            track=np.concatenate([ops.track, track.astype(ops.track.dtype)]),
            parent=np.concatenate(self._parents),
            record_function_id=longer(ops.record_function_id, -1),
            sequence=longer(ops.sequence, -1),
            gradients=longer(ops.gradients, False),
            gradients_assumed=longer(ops.gradients_assumed, True),
            memories=None if ops.memories is None else ops.memories.of_calls(rows),
        )


def capture_files(named: str | Path) -> list[Path]:
    """Return the files given as `--set capture`: one file, or all profiles in a folder. Raises UsageError if there are
    none.
    """
    path = Path(named)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")) and file.is_file())
        if not files:
            raise UsageError(
                f"{path} contains no .json or .json.gz file", hint="Give the profile of the graph capture."
            )
        return files[:MAX_CANDIDATES]
    if not path.is_file():
        raise UsageError(f"{path} does not exist", hint="Give the profile of the graph capture, or its folder.")
    return [path]


def capture_candidates(trace: Trace) -> list[Path]:
    """Return files next to a trace whose names suggest a capture, sorted by similarity to the name of the trace."""
    trace_file = Path(trace.info.path)
    if not trace_file.is_file():
        return []
    candidates = [file for file in captures_in_folder(trace_file.parent) if file != trace_file]

    def shared(file: Path) -> int:
        return next(
            (n for n, (a, b) in enumerate(zip(file.name, trace_file.name, strict=False)) if a != b),
            len(trace_file.name),
        )

    return sorted(candidates, key=lambda file: (-shared(file), file.name))[:MAX_CANDIDATES]


def captures_in_folder(folder: Path) -> list[Path]:
    """Return the files of a folder whose names suggest a capture, sorted by name."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.name.endswith((".json", ".json.gz")) and "capture" in file.name.lower()
        if file.is_file() and may_read(file)
    )


def with_captures(trace: Trace, files: Iterable[Path], limits: Limits) -> Trace:
    """Return the trace joined with the graph captures that these files contain.

    Raises UsageError if no captured graph ran in the trace, and TraceError for a file that cannot be read.
    """
    if trace.graphs is None:
        raise UsageError(f"no captured graph ran in {trace.info.path}", hint="Remove --set capture.")
    captures: list[Capture] = []
    for file in files:
        source = read_trace(file, limits=limits, calls=True)
        if source.info.vendor == trace.info.vendor or None in (source.info.vendor, trace.info.vendor):
            captures += captures_of(source)
    return join_captures(trace, captures)


def with_captures_in_folder(trace: Trace, limits: Limits) -> Trace:
    """Return the trace joined with the captures in files in its folder, skipping unreadable ones."""
    if trace.graphs is None:
        return trace
    captures: list[Capture] = []
    for file in capture_candidates(trace):
        with suppress(TraceError, OSError):  # nobody named it
            source = read_trace(file, limits=limits, calls=True)
            if source.info.vendor == trace.info.vendor:
                captures += captures_of(source)
    return join_captures(trace, captures)


def _missed_text(join: GraphJoin) -> str:
    """Return the reason why no graph launch was matched to ops."""
    if join.read_captures and not join.ambiguous:
        read = dict.fromkeys(_shown(Path(capture.source).name) for capture in join.read_captures)
        return f"are unknown: {', '.join(read)} {'records' if len(read) == 1 else 'record'} other graphs"
    why = f" ({join.ambiguous:,} match several captures)" if join.ambiguous else ""
    return f"this recording does not contain{why}: {HINT}"


def join_text(join: GraphJoin) -> str:
    """Return one line with the device time of graphs and how much of it is now assigned to ops."""
    launches = "1 graph launch" if join.launches == 1 else f"{join.launches:,} graph launches"
    ran = f"{launches} took {join.device_us / 1000:,.3g} ms"
    if not join.matched_launches:
        return f"{ran} in kernels whose ops {_missed_text(join)}"
    sources = ", ".join(_shown(Path(source).name) for source in join.sources[:MAX_SHOWN])
    more = f" and {len(join.sources) - MAX_SHOWN} more" if len(join.sources) > MAX_SHOWN else ""
    resolved = f"matched {join.matched_launches:,} with {sources}{more} ({join.matched_us / 1000:,.3g} ms)"
    by_order = join.matched_launches - join.by_name
    how = f", {by_order:,} only by number and order of kernels" if by_order else ""
    unmatched = join.launches - join.matched_launches
    rest = f"; {unmatched:,} match no capture" if unmatched else ""
    return f"{ran}; {resolved}{how}{rest}"


def _shown(name: str) -> str:
    """Return a file name without characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name)
