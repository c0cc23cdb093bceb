"""Initializers for fbgemm's jagged and sparse-feature ops.

They fill permutations, buckets, and lengths and offsets that match the number of values. `embedding_tables` handles
embedding lookups; `paged_attention` handles attention over packed sequences.
"""

from __future__ import annotations

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport, extent
from opreplay.traces.names import plural

VALUES = ("values", "x_values", "a_values", "indices", "ids", "t_in", "grad_output")
"""Arguments whose rows are grouped by the lengths or offsets. The most reliable ones come first."""
LENGTHS = ("lengths", "x_lengths")
OFFSETS = ("offsets", "x_offsets", "a_offsets", "csr_seg", "input_offset", "output_offset")
MAX_TOTAL = 1 << 48
"""Exclusive upper bound of the total number of rows; no tensor has that many."""
TABLE_ROWS = 100_000
"""Number of rows assumed for a table if the op takes table sizes as an argument."""


class JaggedInit(CustomInit):
    """Fills rows of varying length that together hold exactly all values; permutations contain each row once."""

    name = "jagged"

    def initialize(self, context: InitContext) -> InitReport:
        generator = torch.Generator().manual_seed(context.seed)
        assumed = _short_sums(context) if context.role == "cumsum" else {}
        total = _row_count(context)
        for name in LENGTHS:
            if (lengths := context.tensor(name)) is not None and lengths.numel():
                drawn = _lengths(lengths.numel(), _sum_of_lengths(context, lengths.numel(), total), generator)
                fill.assign(lengths, drawn.view(lengths.shape))
                assumed[name] = f"of varying length, {int(drawn.sum())} in all"
        for name in OFFSETS:
            if context.args.get(name) is not None:
                assumed.update(_offsets(context, name, total, generator))
        assumed.update(_permutes(context, generator))
        assumed.update(_bounded(context))
        return InitReport(summary=", ".join(f"{k}: {v}" for k, v in assumed.items()) or "plain values", assumed=assumed)


def _row_count(context: InitContext) -> int:
    """Return the number of rows of the values.

    It is an integer argument, or the size of the values tensor. If the call has neither, it is half of the rows that
    fit into `dense`, or 0 if there is no `dense`.
    """
    for name in ("range_size", "output_size", "total_L"):
        if isinstance(size := context.args.get(name), int) and size > 0:
            return size
    values = context.first(VALUES, dims=1)
    if values is not None:
        return values.shape[0]
    dense = context.tensor("dense")
    return 0 if dense is None else int(torch.Size(dense.shape[:2]).numel()) // 2


def _sum_of_lengths(context: InitContext, count: int, total: int) -> int:
    """Return the sum to which the lengths of rows add up.

    It is the number of values, at most what a maximum length (truncation, padding) allows. Without values in the call,
    it is half of what the maximum length allows or, without a maximum, one row per length.
    """
    limit = next(
        (n for name in ("truncation_size", "max_length") if isinstance(n := context.args.get(name), int)), None
    )
    values = any(context.tensor(name) is not None for name in VALUES)
    if limit is None:
        return total if values else count
    return min(total, limit * count) if values else limit * count // 2


def _lengths(count: int, total: int, generator: torch.Generator) -> torch.Tensor:
    """Return int64 [count] lengths with sum `total`, each about 0.5 to 1.5 times the mean."""
    if not 0 <= total < MAX_TOTAL:
        raise InitializerError(f"{count} lengths cannot add up to {total}")
    edges = (torch.rand(count, generator=generator, dtype=torch.float64) + 0.5).cumsum(0)
    edges = (edges / edges[-1] * total).round().to(torch.int64)
    return edges.diff(prepend=edges.new_zeros(1))


def _offsets(context: InitContext, name: str, total: int, generator: torch.Generator) -> dict[str, str]:
    """Fill offsets from 0 to the number of values. If there are several levels, each divides the rows of the next."""
    argument = context.args[name]
    levels = [
        t
        for t in (argument if isinstance(argument, (list, tuple)) else [argument])
        if hasattr(t, "numel") and t.numel()
    ]
    if not levels:
        return {}
    for level, inner in zip(levels, [*levels[1:], None], strict=True):
        end = total if inner is None else inner.numel() - 1
        lengths = _lengths(max(1, level.numel() - 1), end, generator)
        edges = fill.edges_of(lengths)[: level.numel()]
        fill.assign(level, edges.view(level.shape))
    return {name: f"{plural(levels[-1].numel() - 1, 'row')} over {total} values"}


def _permutes(context: InitContext, generator: torch.Generator) -> dict[str, str]:
    """Fill random permutations, their inverses, and the offsets of the permuted blocks."""
    assumed: dict[str, str] = {}
    lengths = context.first(LENGTHS, dims=1)
    for name in ("permute", "permute_list"):
        if (order := context.tensor(name)) is None or not order.numel():
            continue
        count = order.numel() if lengths is None else lengths.shape[0]
        shuffled = torch.randperm(count, generator=generator).repeat(-(-order.numel() // max(1, count)))[
            : order.numel()
        ]
        fill.assign(order, shuffled)
        assumed[name] = f"random order of {count}"
        _blocks(context, shuffled)
    return assumed


def _blocks(context: InitContext, order: torch.Tensor) -> None:
    """Fill the column offsets of pooled embeddings, before and after the permutation, with blocks of equal width."""
    pooled, before = context.tensor("pooled_embs"), context.tensor("offset_dim_list")
    if pooled is None or before is None or before.numel() != len(order) + 1:
        return
    edges = torch.arange(before.numel()) * extent(pooled, -1) // (before.numel() - 1)
    fill.assign(before, edges)
    if (inverse := context.tensor("inv_permute_list")) is not None and inverse.numel() == len(order):
        fill.assign(inverse, order.argsort())
    if (after := context.tensor("inv_offset_dim_list")) is not None and after.numel() == before.numel():
        widths = edges.diff()[order]
        fill.assign(after, fill.edges_of(widths))


def _bounded(context: InitContext) -> dict[str, str]:
    """Fill indices, ids and keys with values below their bounds, and fill the sizes of tables, blocks and ranks."""
    assumed: dict[str, str] = {}
    bound = TABLE_ROWS
    if (tables := context.tensor("rows_per_table")) is not None:
        fill.assign(tables, torch.tensor(TABLE_ROWS, device=tables.device))
        assumed["rows_per_table"] = f"{TABLE_ROWS} each"
    if (blocks := context.tensor("block_sizes")) is not None:
        ranks = context.args.get("my_size")
        fill.assign(blocks, torch.tensor(max(1, TABLE_ROWS // (max(1, ranks) if isinstance(ranks, int) else 1))))
        assumed["block_sizes"] = f"equal parts of {TABLE_ROWS} rows"
    if context.role == "row_numbers":
        bound = context.need("lengths").numel()
    elif isinstance(size := context.args.get("size"), int):
        bound = max(1, size)
    for name in ("indices", "ids", "keys"):
        if (indices := context.tensor(name)) is not None and fill.is_integer(indices.dtype):
            fill.integers(indices, context.generator, 0, bound)
            assumed[name] = f"uniform in [0, {bound})"
    assumed |= _widths_of_ranks(context)
    if (warning := context.tensor("warning")) is not None:
        fill.assign(warning, torch.zeros_like(warning))
        assumed["warning"] = "zero"
    return assumed


def _widths_of_ranks(context: InitContext) -> dict[str, str]:
    """Divide the columns evenly over the ranks: fill the number of columns of each rank and its first column."""
    widths, starts = context.tensor("dim_sum_per_rank"), context.tensor("cumsum_dim_sum_per_rank")
    if widths is None or not widths.numel():
        return {}
    edges = torch.arange(widths.numel() + 1) * extent(context.need("grad_output"), -1) // widths.numel()
    fill.assign(widths, edges.diff())
    if starts is not None and starts.numel() == widths.numel():
        fill.assign(starts, edges[:-1])
    return {"dim_sum_per_rank": "even"}


def _short_sums(context: InitContext) -> dict[str, str]:
    """Fill an argument with lengths so small that their sum fits into the dtype of the lengths."""
    lengths = context.need("t_in")
    if not fill.is_integer(lengths.dtype) or not lengths.numel():
        return {}
    high = max(2, min(100, torch.iinfo(lengths.dtype).max // extent(lengths, -1)))
    fill.integers(lengths, context.generator, 0, high)
    return {"t_in": f"lengths in [0, {high})"}


INITIALIZERS = (JaggedInit,)
