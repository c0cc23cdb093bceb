# pyright: strict
"""Initializer for fbgemm's table-batched embeddings: table offsets, widths, and indices within each table.

`indices` handles lookups in a single table.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport

WIDTH_STEP = 4
"""Row widths of fbgemm tables are multiples of this number of elements."""
MAX_COLUMNS = 1 << 40
NO_POOLING = 2
"""Value of `pooling_mode` with which the op returns a row for each index."""
WEIGHTS = ("dev_weights", "uvm_weights", "host_weights", "weights")
_STATES = ("momentum{}_dev", "momentum{}_uvm", "momentum{}_host")
"""Names of arguments with the n-th optimizer state, per kind of memory; a state has one element per row or weight."""


class TableBatchedInit(CustomInit):
    """Divides the weights into tables of nearly equal width and size. All bags have equally many indices, all valid."""

    name = "embedding_tables"

    def initialize(self, context: InitContext) -> InitReport:
        starts, indices = context.need("D_offsets"), context.need("indices")
        tables = starts.numel() - 1
        weights = _largest(context, WEIGHTS)
        if tables < 1 or weights is None:
            raise InitializerError(f"{context.op} has no tables or no weights among its arguments")
        total = _total_width(context, tables)
        if not tables <= total < MAX_COLUMNS:
            raise InitializerError(f"{context.op}: {tables} tables do not fit {total} columns in total")
        edges = _width_edges(tables, total)
        widths = edges.diff()
        share = weights.numel() // tables
        if share < int(widths.max()):
            raise InitializerError(f"{context.op}: {weights.numel()} weights are too few for {tables} tables")
        states = [largest for number in (1, 2) if (largest := _largest(context, _STATES, number)) is not None]
        limit = min((state.numel() // tables for state in states), default=share)
        rows = (share // widths).clamp(min=1, max=max(1, limit))
        first_rows = fill.edges_of(rows)
        _assign(starts, edges)
        _assign(context.tensor("weights_offsets"), torch.arange(tables) * share)
        _assign(context.tensor("weights_placements"), torch.zeros(tables, dtype=torch.int64))
        _assign(context.tensor("hash_size_cumsum"), first_rows)
        for number, state in enumerate(states, 1):
            fill.span(state).abs_()  # sums of squares
            by_element = state.numel() >= weights.numel()
            begins = torch.arange(tables) * share if by_element else first_rows[:-1]
            _assign(context.tensor(f"momentum{number}_offsets"), begins)
            _assign(context.tensor(f"momentum{number}_placements"), torch.zeros(tables, dtype=torch.int64))
        _fill_indices(context, indices, rows, tables)
        assumed = {
            "D_offsets": f"{tables} tables of {int(widths.min())} to {int(widths.max())} columns",
            "hash_size_cumsum": f"{int(rows.min())} to {int(rows.max())} rows per table",
            "indices": "uniform over the rows of their table",
            "offsets": "bags of equal size",
        }
        return InitReport(summary=f"{indices.numel()} indices into {tables} tables", assumed=assumed)


def _largest(context: InitContext, names: Sequence[str], number: int = 1) -> torch.Tensor | None:
    """Return the largest of these arguments; a lookup has one per kind of memory, and only one is not empty."""
    tensors = (context.tensor(name.format(number)) for name in names)
    return max((t for t in tensors if t is not None), key=torch.numel, default=None)


def _total_width(context: InitContext, tables: int) -> int:
    """Return the total number of columns of all tables.

    It is `total_D` or, if that is missing, the width of the gradient of pooled rows. If neither is given, every table
    gets the largest width. Raises InitializerError if no argument gives a width.
    """
    total, widest, grad = context.args.get("total_D"), context.args.get("max_D"), context.tensor("grad_output")
    if isinstance(total, int):
        return total
    if grad is not None and grad.ndim == 2 and context.args.get("pooling_mode") != NO_POOLING:
        return grad.shape[1]
    if isinstance(widest, int):
        return widest * tables
    if grad is not None and grad.ndim == 2:
        return grad.shape[1] * tables
    raise InitializerError(
        f"{context.op}: the width of the tables is unknown: total_D, max_D and grad_output are missing"
    )


def _width_edges(tables: int, total: int) -> torch.Tensor:
    """Return int64 [tables + 1] first columns of the tables; widths are multiples of four if the total allows it."""
    step = WIDTH_STEP if total % WIDTH_STEP == 0 and total >= WIDTH_STEP * tables else 1
    return torch.arange(tables + 1) * (total // step) // tables * step


def _fill_indices(context: InitContext, indices: torch.Tensor, rows: torch.Tensor, tables: int) -> None:
    """Fill indices in bags of equal size; each index is below the number of rows of its bag's table."""
    count, offsets = indices.numel(), context.tensor("offsets")
    bags = max(1, offsets.numel() - 1) if offsets is not None else tables
    edges = torch.arange(bags + 1) * count // bags
    if offsets is not None and offsets.numel() == bags + 1:
        _assign(offsets, edges)
    first = edges[:: max(1, bags // tables)][: tables + 1]
    counts = torch.cat((first, first.new_full((tables + 1 - len(first),), count))).diff()
    counts[-1] += count - int(counts.sum())
    bound = torch.repeat_interleave(rows, counts).to(indices.device)
    drawn = torch.rand(count, generator=context.generator, device=indices.device, dtype=torch.float64)
    fill.assign(indices, (drawn * bound).to(torch.int64).clamp(max=bound - 1))


def _assign(target: torch.Tensor | None, values: torch.Tensor) -> None:
    """Write the values that fit. If the target is longer, its rest repeats the last value."""
    if target is None or not target.numel():
        return
    missing = target.numel() - len(values)
    if missing > 0:
        values = torch.cat((values, values[-1:].expand(missing)))
    fill.assign(target, values[: target.numel()].reshape(target.shape))


INITIALIZERS = (TableBatchedInit,)
