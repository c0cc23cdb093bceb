"""Which batch each recorded op worked on: the innermost iteration annotation around its start, on whatever thread.

Owns the search by time; what an annotation's name says is in `annotations`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opreplay.traces.annotations import AnnotationTable, BatchContext, batch_context
from opreplay.traces.model import Trace


@dataclass(frozen=True, slots=True)
class DominantBatch:
    """The batch that most of some calls' time belongs to."""

    context: BatchContext
    share: float
    """Of the calls' time, 0 to 1."""
    others: int
    """Further batches, calls outside any iteration counted as one."""


class BatchIndex:
    """The batch contexts of a trace, by row of its op table."""

    def __init__(self, trace: Trace) -> None:
        self.contexts, self.of_row = _assign(trace)

    def dominant(self, rows: npt.NDArray[np.int64], weights: npt.NDArray[Any]) -> DominantBatch | None:
        """The context with most weight among `rows`; None where no row lies in an iteration.

        `weights` [len(rows)], e.g. device time; where all are zero each call counts alike.
        """
        if not self.contexts or not len(rows):
            return None
        found = self.of_row[rows]
        if not (found >= 0).any():
            return None
        weights = weights if weights.sum() > 0 else np.ones(len(rows))
        totals = np.bincount(found + 1, weights=weights, minlength=len(self.contexts) + 1)
        # An op that mostly runs outside iterations still worked on a known batch when inside.
        best = int(totals[1:].argmax())
        if totals[best + 1] == 0:
            best = int(found[found >= 0][0])
        share = float(totals[best + 1] / totals.sum())
        return DominantBatch(self.contexts[best], share, len(np.unique(found)) - 1)


def _assign(trace: Trace) -> tuple[list[BatchContext], npt.NDArray[np.int32]]:
    """All distinct contexts, and for each op row the number of its own or -1."""
    of_row = np.full(len(trace.ops), -1, dtype=np.int32)
    spans = _spans(trace)
    contexts: dict[BatchContext, int] = {}
    if not spans or not len(trace.ops):
        return [], of_row
    order = np.argsort(trace.ops.start_ns, kind="stable")
    starts = trace.ops.start_ns[order]
    for i, (begin, end, context) in enumerate(spans):
        number = contexts.setdefault(_completed(context, begin, end, spans[:i]), len(contexts))
        low, high = np.searchsorted(starts, (begin, end))
        of_row[order[low:high]] = number
    return list(contexts), of_row


def _spans(trace: Trace) -> list[tuple[int, int, BatchContext]]:
    """(start, end, context) of the iteration annotations, longest first: what is written last is innermost."""
    notes = trace.annotations
    if isinstance(notes, AnnotationTable):
        parsed = [batch_context(name) for name in notes.names]
        kept = np.flatnonzero(np.array([p is not None for p in parsed], dtype=bool)[notes.name]) if len(notes) else []
        begin_end = [(int(notes.start_ns[i]), int(notes.dur_ns[i]), parsed[notes.name[i]]) for i in kept]
    else:
        begin_end = [(note.start_ns, note.dur_ns, batch_context(note.name)) for note in notes]
    spans = [(start, start + dur, context) for start, dur, context in begin_end if context is not None]
    return sorted(spans, key=lambda span: (span[0] - span[1], span[0]))


def _completed(
    context: BatchContext, begin: int, end: int, longer: list[tuple[int, int, BatchContext]]
) -> BatchContext:
    """The context with what it does not say taken from one around it, where the two do not contradict each other."""
    for start, stop, other in reversed(longer):
        if start <= begin and end <= stop and _agree(context, other):
            missing = {f.name: getattr(other, f.name) for f in fields(context) if getattr(context, f.name) is None}
            return replace(context, **missing)
    return context


def _agree(a: BatchContext, b: BatchContext) -> bool:
    pairs = ((getattr(a, f.name), getattr(b, f.name)) for f in fields(BatchContext))
    return all(x == y for x, y in pairs if x is not None and y is not None)
