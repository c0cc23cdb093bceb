# pyright: strict
"""Initializers for rows that belong to sequences or segments of different lengths, packed one after another.

Examples are packed sequences of recurrent networks, segment reductions, and row pointers of compressed matrices.
`jagged` handles jagged tensors of recommendation models, `sequences` handles batches of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, extent
from opreplay.traces.names import plural


class BatchSizesInit(CustomInit):
    """Fills the batch size of each step of a packed sequence, i.e. the number of sequences that reach this step.

    The sizes descend, and add up to the number of rows of the data.
    """

    name = "batch_sizes"

    def applies_to(self, context: InitContext) -> bool:
        return context.tensor("batch_sizes") is not None

    def initialize(self, context: InitContext) -> InitReport:
        sizes = context.need("batch_sizes")
        rows = context.first(("data", "input", "grad"))
        if rows is None or not rows.dim() or not sizes.numel():
            raise InitializerError(f"{context.op} has no data to pack by time step")
        fill.assign(sizes, packed_sizes(sizes.numel(), rows.shape[0], _sequences(context)))
        return InitReport(
            summary=f"{plural(int(sizes.flatten()[0]), 'sequence')} of up to {plural(sizes.numel(), 'step')}",
            assumed={"batch_sizes": "one sequence of full length, the others of equal length"},
        )


def packed_sizes(steps: int, rows: int, sequences: int | None) -> torch.Tensor:
    """Return int64 [steps] batch sizes in descending order, which add up to `rows`.

    The first size is `sequences`, or as small as possible if `sequences` is None. Raises InitializerError if no sizes
    fit.
    """
    count = -(-rows // steps) if sequences is None else sequences
    others = rows - steps
    if others < count - 1 or others > (count - 1) * steps:
        raise InitializerError(
            f"cannot divide {rows} rows into {count} sequences, of which the longest has {steps} steps"
        )
    lengths = torch.full((count,), steps, dtype=torch.int64)
    if count > 1:
        size, rest = divmod(others, count - 1)
        lengths[1:] = size
        lengths[1 : 1 + rest] += 1
    return (lengths[None, :] > torch.arange(steps)[:, None]).sum(1)


def _sequences(context: InitContext) -> int | None:
    """Return the number of sequences in the batch, from the shape of the states or the recorded input size."""
    states = context.args.get("hx")
    if isinstance(states, (list, tuple)):
        several = cast("Sequence[Any]", states)
        states = several[0] if several else None
    if isinstance(states, torch.Tensor) and states.dim() >= 2:
        return states.shape[-2]
    sizes: Any = context.args.get("input_size")
    extents = cast("Sequence[Any]", sizes) if isinstance(sizes, (list, tuple)) else ()
    if len(extents) > 1:
        size = extents[0 if context.flag("batch_first") else 1]
        return size if isinstance(size, int) else None
    return None


class SegmentsInit(CustomInit):
    """Fills segments of equal size that cover the reduced dimension."""

    name = "segments"

    def initialize(self, context: InitContext) -> InitReport:
        data, axis = context.need("data"), context.args.get("axis")
        axis = axis if isinstance(axis, int) else 0
        lengths, offsets = context.tensor("lengths"), context.tensor("offsets")
        total = extent(data, axis)
        if lengths is not None and lengths.numel():
            fill.assign(lengths, fill.even_cuts(extent(lengths, -1), total).diff())
        if offsets is not None and offsets.numel():
            cuts = fill.even_cuts(max(1, extent(offsets, -1) - 1), total)[: offsets.shape[-1]]
            fill.assign(offsets, cuts)
        return InitReport(summary="segments of equal size", assumed={"lengths": "equal"})


class CompressedInit(CustomInit):
    """Fills pointers of compressed sparse matrices from 0 to the number of elements, and ascending row indices."""

    name = "compressed"

    def initialize(self, context: InitContext) -> InitReport:
        if context.op == "aten::_convert_indices_from_coo_to_csr":
            rows, size = context.need("self"), context.args.get("size")
            if not isinstance(size, int) or (size < 1 and rows.numel()):
                raise InitializerError(f"{context.op}: {rows.numel()} elements in {size} rows")
            if rows.numel():
                fill.assign(rows, (torch.arange(rows.numel()) * size // rows.numel()))
            return InitReport(summary="rows of equal size", assumed={"self": "rows of equal size"})
        pointers = self._first(context, "crow_indices", "compressed_indices", "ccol_indices")
        plain = self._first(context, "col_indices", "plain_indices", "row_indices")
        if extent(pointers, -1) < 2 or not extent(plain, -1) or not plain.numel():
            pointers.zero_()
            return InitReport(summary="no elements")
        rows, count = pointers.shape[-1] - 1, plain.shape[-1]
        cuts = fill.even_cuts(rows, count)
        fill.assign(pointers, cuts)
        places = torch.arange(count)
        starts = cuts[:-1].repeat_interleave(cuts.diff())
        fill.assign(plain, (places - starts))  # ascending and distinct within each row
        return InitReport(summary="rows of equal size", assumed={"col_indices": "the first columns of each row"})

    @staticmethod
    def _first(context: InitContext, *names: str) -> torch.Tensor:
        tensor = context.first(names)
        if tensor is None:
            raise InitializerError(f"{context.op} has no {names[0]}")
        return tensor


INITIALIZERS = (BatchSizesInit, SegmentsInit, CompressedInit)
