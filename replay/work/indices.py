"""Work of indexing: distinct rows that embeddings, gathers, scatters, losses and bags touch."""

from __future__ import annotations

import math

import torch

from opreplay.initializers import indices as names
from opreplay.initializers.base import BatchLengths, InitContext, InitializerError
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.registry import counts

MARKED = 1 << 26
"""Rows up to which those touched are marked one by one; sorting the indices takes longer."""


@counts(*names.RANGES)
def count_rows(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Distinct values of an index, of those that it may have."""
    argument, bound = names.RANGES[context.op]
    index = context.tensor(argument)
    if index is None or index.dtype.is_floating_point:
        return None
    try:
        rows = bound(context)
    except InitializerError:
        return None
    return _rows(index, rows)


def _rows(index: torch.Tensor, rows: int) -> Work:
    values = index.detach().reshape(-1).to(torch.int64)
    inside = values[(values >= 0) & (values < rows)]
    wrong = len(values) - len(inside)
    return work(
        Amount(what="distinct rows", done=distinct_of(inside, rows), most=min(rows, len(values))),
        warnings=(f"{wrong:,} indices are not in [0, {rows})",) if wrong else (), same=True,
    )  # fmt: skip


def distinct_of(values: torch.Tensor, rows: int) -> int:
    """How many different numbers there are among `values`, all of them in [0, rows)."""
    if rows > MARKED:
        return int(torch.unique(values).numel())
    marks = torch.zeros(max(1, rows), dtype=torch.bool, device=values.device)
    marks[values] = True
    return int(marks.sum())


@counts(*names.IndexListInit.op_patterns)
def count_index_list(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Distinct places that a list of index tensors names together, masks included."""
    shape = context.need("self").shape
    dim, places, most = 0, None, 1
    masked: int | None = None
    for tensor in context.args.get("indices") or ():
        if tensor is None:
            dim += 1
            continue
        mask = tensor.dtype in (torch.bool, torch.uint8)
        parts = tensor.nonzero(as_tuple=True) if mask else (tensor,)
        masked = tensor.numel() if mask else masked
        for part in parts:
            if dim >= len(shape):
                return None
            size = shape[dim]
            values = part.detach().to(torch.int64) % max(1, size)
            places = values if places is None else places * size + values
            most *= size
            dim += 1
    if places is None:
        return None
    limit = min(most, masked if masked is not None else places.numel())
    return work(Amount(what="distinct places", done=distinct_of(places.reshape(-1), most), most=limit), same=True)


@counts(*names.BagInit.op_patterns)
def count_bags(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Distinct rows of the table, and bags that hold any."""
    indices, weight = context.need("indices"), context.tensor("weight")
    said = context.args.get("num_weights")
    rows = weight.shape[0] if weight is not None else said if isinstance(said, int) else 0
    found = _rows(indices, rows)
    amounts, warnings = [*found.amounts], [*found.warnings]
    offsets = context.tensor("offsets")
    if offsets is not None and offsets.numel():
        starts = offsets.detach().reshape(-1).to("cpu", torch.int64)
        last = bool(context.args.get("include_last_offset"))
        ends = starts[1:] if last else torch.cat((starts[1:], starts.new_tensor([indices.numel()])))
        sizes = ends - starts[: len(ends)]
        amounts.append(Amount(what="bags", done=int((sizes > 0).sum()), most=len(sizes)))
        if bool((sizes < 0).any()):
            warnings.append("offsets descend")
    return work(*amounts, warnings=tuple(warnings), same=True)


@counts(*names.RepeatsInit.op_patterns)
def count_repeats(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Elements that the repeats add up to."""
    repeats = context.tensor("repeats")
    if repeats is None:
        return None
    return work(Amount(what="repeated elements", done=int(repeats.sum())))


@counts(*names.PackInit.op_patterns)
def count_packed(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Elements of a padded batch that are no padding."""
    used = context.need("lengths")
    return work(Amount(what="tokens packed", done=int(used.sum()), most=math.prod(context.need("input").shape[:2])))
