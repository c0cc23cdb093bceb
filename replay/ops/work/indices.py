"""Work of indexing: distinct rows that embeddings, gathers, scatters, losses and bags access."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from opreplay.initializers import fill
from opreplay.initializers.amounts import Amount, Work, work
from opreplay.initializers.base import BatchLengths, InitContext, extent
from opreplay.initializers.rules import indices as names
from opreplay.initializers.rules.jagged import LENGTHS, OFFSETS
from opreplay.initializers.rules.masks import MASKS
from opreplay.initializers.rules.positions import POSITIONS, table_rows

MARKED = 1 << 26
"""Maximum number of rows for which accessed rows are marked in a mask. This is faster than sorting the indices."""


def count_rows(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the distinct values of an index tensor, and the number of possible values."""
    argument, bound = names.index_of(context)
    index = context.tensor(argument)
    if index is None or not (fill.is_integer(index.dtype) or index.dtype is torch.bool):
        return None
    return _rows(index, bound(context))


def _rows(index: torch.Tensor, rows: int) -> Work:
    values = index.detach().reshape(-1).to(torch.int64)
    inside = values[(values >= 0) & (values < rows)]
    wrong = len(values) - len(inside)
    return work(
        Amount(what="distinct rows", done=distinct_of(inside, rows), most=min(rows, len(values))),
        warnings=(f"{wrong:,} indices are not in [0, {rows})",) if wrong else (),
        same=True,
    )


def distinct_of(values: torch.Tensor, rows: int) -> int:
    """Return the number of distinct values in `values`, all of which are in [0, rows)."""
    if rows > MARKED:
        return int(torch.unique(values).numel())
    marks = torch.zeros(max(1, rows), dtype=torch.bool, device=values.device)
    marks[values] = True
    return int(marks.sum())


def count_index_list(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the distinct positions that a list of index tensors and masks selects."""
    shape = context.need("self").shape
    dim, places, space = 0, None, 1
    masked: int | None = None
    for tensor in names.index_list(context):
        if tensor is None:
            dim += 1
            continue
        mask = tensor.dtype in (torch.bool, torch.uint8)
        parts = tensor.nonzero(as_tuple=True) if mask else (tensor,)
        masked = tensor.numel() if mask else masked
        for part in parts:
            if dim >= len(shape):
                return None
            size = max(1, shape[dim])
            values = part.detach().to(torch.int64) % size
            if places is not None and not fill.broadcastable(places.shape, values.shape):
                return None
            places = values if places is None else places * size + values
            space *= size
            dim += 1
    if places is None:
        return None
    limit = min(space, masked if masked is not None else places.numel())
    return work(Amount(what="distinct places", done=distinct_of(places.reshape(-1), space), most=limit), same=True)


def count_bags(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the distinct table rows and the nonempty bags."""
    indices, weight = context.need("indices"), context.tensor("weight")
    said = context.args.get("num_weights")
    rows = extent(weight) if weight is not None else said if isinstance(said, int) else 0
    row_work = _rows(indices, rows)
    amounts, warnings = [*row_work.amounts], [*row_work.warnings]
    offsets = context.tensor("offsets")
    if offsets is not None and offsets.numel():
        starts = fill.integer_values(offsets)
        last = context.flag("include_last_offset")
        ends = starts[1:] if last else torch.cat((starts[1:], starts.new_tensor([indices.numel()])))
        sizes = ends - starts[: len(ends)]
        amounts.append(Amount(what="bags", done=int((sizes > 0).sum()), most=len(sizes)))
        warnings += _descending("offsets", sizes)
    return work(*amounts, warnings=tuple(warnings), same=True)


def count_repeats(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the elements after repetition, i.e. the sum of `repeats`."""
    repeats = context.tensor("repeats")
    if repeats is None:
        return None
    return work(Amount(what="repeated elements", done=int(fill.integer_values(repeats).clamp(min=0).sum())))


def count_packed(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the elements of a padded batch that are not padding."""
    tokens = int(fill.integer_values(context.need("lengths")).clamp(min=0).sum())
    return work(Amount(what="tokens packed", done=tokens, most=math.prod(context.need("input").shape[:2])))


SUMMED = (*LENGTHS, "t_in", "dim_sum_per_rank")
PERMUTES = ("permute", "permute_list")


def count_values(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the values in rows that lengths or offsets describe, and the distinct entries of a permute."""
    counted = [*_summed(context), *_between(context), *_permuted(context)]
    if not counted:
        return None
    amounts, warnings = zip(*counted, strict=True)
    return work(*amounts, warnings=tuple(filter(None, warnings)), same=amounts[0].most is not None)


Counted = Iterator[tuple[Amount, str]]
"""Amounts, each with a warning about its values ("" if there is none)."""


def _summed(context: InitContext) -> Counted:
    for name in SUMMED:
        lengths = context.tensor(name)
        if lengths is not None and lengths.numel() and not lengths.dtype.is_floating_point:
            values = fill.integer_values(lengths)
            wrong = f"{name} has negative entries" if bool((values < 0).any()) else ""
            yield Amount(what=f"values in {name}", done=int(values.clamp(min=0).sum())), wrong


def _between(context: InitContext) -> Counted:
    """Yield the number of values between offsets. With several levels of offsets, only the innermost level counts."""
    for name in OFFSETS:
        value = context.args.get(name)
        levels = [t for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, torch.Tensor)]
        for level in levels[-1:]:
            sizes = fill.integer_values(level).diff()
            amount = Amount(what=f"values between {name}", done=int(sizes.clamp(min=0).sum()))
            yield amount, "".join(_descending(name, sizes))


def _permuted(context: InitContext) -> Counted:
    for name in PERMUTES:
        if (order := context.tensor(name)) is not None and order.numel():
            distinct = int(torch.unique(fill.integer_values(order)).numel())
            yield Amount(what="distinct rows permuted", done=distinct, most=order.numel()), ""


SAME_WORK = frozenset({"aten::where", "aten::masked_fill", "aten::masked_fill_", "aten::count_nonzero"})
"""Ops that process all elements, regardless of what the mask selects."""
MASKED_SCORE = -1e4
"""Mask value at or below which a score is hidden in every floating-point dtype."""


def count_selected(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the elements that the mask selects."""
    searches = "nonzero" in context.op or "argwhere" in context.op
    wanted = ("mask", "condition", *(("self",) if searches else ()))
    mask = context.first(wanted)
    if mask is None:
        return None
    selected = Amount(what="elements selected", done=int((mask != 0).sum()), most=mask.numel())
    return Work(amounts=(selected,)) if context.op in SAME_WORK else work(selected)


def count_visible(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the scores that the mask leaves visible; return None for a call without a mask."""
    mask = context.first(MASKS, elements=True)
    if mask is None:
        return None
    if context.op == "aten::_masked_softmax":
        visible = mask == 0
    else:
        visible = mask if mask.dtype is torch.bool else mask.float() > MASKED_SCORE
    return work(Amount(what="scores visible", done=int(visible.sum()), most=mask.numel()))


def count_positions(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the distinct rows of the sine and cosine table that are read."""
    positions = context.first(POSITIONS)
    if positions is None:
        return None
    rows = table_rows(context)
    values = torch.unique(fill.integer_values(positions))
    wrong = int(((values < 0) | (values >= rows)).sum())
    return work(
        Amount(what="distinct positions", done=len(values), most=min(rows, positions.numel())),
        warnings=(f"{wrong:,} positions are not in [0, {rows})",) if wrong else (),
        same=True,
    )


def _descending(name: str, sizes: torch.Tensor) -> list[str]:
    return [f"{name} descend"] if bool((sizes < 0).any()) else []


def count_new_tokens(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the new tokens of all sequences."""
    return work(
        Amount(what="new tokens", done=int(fill.integer_values(context.need("extend_seq_lens")).clamp(min=0).sum()))
    )


def count_lookups(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the distinct rows read from each table; the bags of one table are consecutive."""
    indices, offsets = context.tensor("indices"), context.tensor("offsets")
    starts, widths = context.tensor("hash_size_cumsum"), context.tensor("D_offsets")
    if indices is None or offsets is None or widths is None:
        return None
    tables = max(1, widths.numel() - 1)
    values, sizes = fill.integer_values(indices), fill.integer_values(offsets).diff()
    bags = len(sizes) // tables
    per_table = sizes[: bags * tables].clamp(min=0).reshape(tables, bags).sum(1) if bags else sizes.new_zeros(tables)
    used = min(int(per_table.sum()), len(values))
    table = torch.repeat_interleave(torch.arange(tables), per_table)[:used]
    warnings = _descending("offsets", sizes)
    reachable = used
    if starts is not None and starts.numel() > tables:
        rows = fill.integer_values(starts)[: tables + 1].diff()
        reachable = int(torch.minimum(per_table, rows.clamp(min=0)).sum())
        if wrong := int(((values[:used] < 0) | (values[:used] >= rows[table])).sum()):
            warnings.append(f"{wrong:,} indices are not in their table")
    row_ids = values[:used].clamp(min=0)
    width = int(row_ids.max()) + 1 if used else 1
    distinct = distinct_of(table * width + row_ids, tables * width)
    return work(
        Amount(what="distinct rows", done=distinct, most=max(reachable, distinct) or len(values)),
        Amount(what="bags", done=int((sizes > 0).sum()), most=len(sizes)),
        warnings=tuple(warnings),
        same=True,
    )
