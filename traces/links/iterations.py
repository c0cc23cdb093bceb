# pyright: strict
"""Find the batch that each recorded op belongs to.

It is given by the innermost iteration annotation around the op's start, on any thread. This module lists the iterations
and searches them by time; `annotations` parses their names.
"""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.traces.arrays import Array, ArrayOf, Ints, distinct
from opreplay.traces.links.annotations import AnnotationTable, BatchContext, batch_context
from opreplay.traces.model import Trace


class DominantBatch(msgspec.Struct, frozen=True):
    """The batch that takes most of the time of some calls."""

    context: BatchContext
    share: float
    """Share of the calls' time that this batch takes, 0 to 1."""
    others: int
    """Number of other batches among the calls; calls outside any iteration count as one batch."""


class Iteration(msgspec.Struct, frozen=True):
    """One iteration of an inference server over one batch."""

    context: int
    """Index into `BatchIndex.contexts`."""
    start_ns: int
    end_ns: int


class BatchIndex:
    """The batches of a trace, and the batch of each row of its op table."""

    def __init__(self, trace: Trace) -> None:
        self.contexts, self.of_row, self.iterations = _assign(trace)

    def in_phase(self, rows: Ints, phase: str) -> Ints:
        """Return the `rows` that ran in an iteration of this phase: "prefill", "decode" or "mixed"."""
        wanted = np.array([context.phase == phase for context in self.contexts] + [False], dtype=bool)
        return rows[wanted[self.of_row[rows]]]

    def dominant(self, rows: Ints, weights: Array) -> DominantBatch | None:
        """Return the batch with the largest total weight among `rows`; None if no row lies in an iteration.

        `weights` has one entry for each of `rows`, for example its device time. If all weights are zero, each call
        counts equally.
        """
        if not self.contexts or not len(rows):
            return None
        numbers = self.of_row[rows]
        if not (numbers >= 0).any():
            return None
        weights = weights if weights.sum() > 0 else np.ones(len(rows))
        totals = np.bincount(numbers + 1, weights=weights, minlength=len(self.contexts) + 1)
        # An op that mostly runs outside iterations still worked on a known batch when inside.
        best = int(totals[1:].argmax())
        if totals[best + 1] == 0:
            best = int(numbers[numbers >= 0][0])
        share = float(totals[best + 1] / totals.sum())
        return DominantBatch(self.contexts[best], share, len(distinct(numbers)) - 1)


class _Span(msgspec.Struct):
    """An annotation that marks an inference server's iteration."""

    start: int
    end: int
    process: str
    context: BatchContext
    marked_again: bool = False
    """Whether an inner annotation describes the same batch, in more or less detail."""
    repeats_outer: bool = False
    """Whether this annotation is the first inside an annotation of the same batch. The two mark one iteration."""


def _assign(trace: Trace) -> tuple[list[BatchContext], ArrayOf[np.int32], tuple[Iteration, ...]]:
    """Return all distinct batches, the batch index of each op row (or -1), and the iterations sorted by time."""
    of_row = np.full(len(trace.ops), -1, dtype=np.int32)
    spans = _spans(trace)
    if not spans:
        return [], of_row, ()
    contexts: dict[BatchContext, int] = {}
    _complete(spans)
    iterations = tuple(
        Iteration(contexts.setdefault(span.context, len(contexts)), span.start, span.end)
        for span in spans
        if not span.repeats_outer
    )
    order = np.argsort(trace.ops.start_ns, kind="stable") if len(trace.ops) else np.zeros(0, np.int64)
    starts = trace.ops.start_ns[order]
    process = _process_of(trace, order, {span.process for span in spans})
    # Longest first: what is written last is innermost.
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        number = contexts.setdefault(span.context, len(contexts))
        low, high = np.searchsorted(starts, (span.start, span.end))
        rows = order[low:high]
        of_row[rows if process is None else rows[process[low:high] == span.process]] = number
    return list(contexts), of_row, iterations


def _process_of(trace: Trace, order: Ints, marked: set[str]) -> Array | None:
    """Return the process of each op in `order`; None unless several processes mark iterations.

    The process matters because an iteration applies only to ops of the process that marked it.
    """
    if len(marked) < 2 or not len(order):
        return None
    names = np.array([pid for pid, _ in trace.tracks] or [""], dtype=object)
    return names[trace.ops.track[order]]


def _spans(trace: Trace) -> list[_Span]:
    """Return the iteration annotations sorted by start, outer annotations before inner ones."""
    notes = AnnotationTable.of(trace.annotations)
    contexts = {i: context for i, name in enumerate(notes.names) if (context := batch_context(name)) is not None}
    spans = [
        _Span(
            start := int(notes.start_ns[row]),
            start + int(notes.dur_ns[row]),
            trace.tracks[track][0] if (track := int(notes.track[row])) < len(trace.tracks) else "",
            contexts[int(notes.name[row])],
        )
        for row in np.flatnonzero(np.isin(notes.name, list(contexts))).tolist()
    ]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def _complete(spans: list[_Span]) -> None:
    """Fill in missing values of each batch from the enclosing annotation and vice versa, unless the two contradict."""
    around: list[_Span] = []
    for span in spans:
        around = [outer for outer in around if outer.end > span.start]
        enclosing = sorted((o for o in around if o.end >= span.end), key=lambda outer: outer.end - outer.start)
        for outer in enclosing:
            if outer.process == span.process and _agree(span.context, outer.context):
                span.context = _filled(span.context, outer.context)
                if not outer.marked_again:
                    outer.context = _filled(outer.context, span.context)
                    outer.marked_again = span.repeats_outer = True
                break
        around.append(span)


def _filled(context: BatchContext, other: BatchContext) -> BatchContext:
    missing = {name: getattr(other, name) for name in context.__struct_fields__ if getattr(context, name) is None}
    return msgspec.structs.replace(context, **missing)


def _agree(a: BatchContext, b: BatchContext) -> bool:
    pairs = ((getattr(a, name), getattr(b, name)) for name in BatchContext.__struct_fields__)
    return all(x == y for x, y in pairs if x is not None and y is not None)
