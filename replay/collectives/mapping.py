# pyright: strict
"""Mapping of a recorded collective to the ranks of this run.

It says which ranks participate and how much each moves. A smaller group keeps the recorded message size, as nccl-tests
counts it. An all-to-all instead keeps the amount that each rank sends to other ranks.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from opreplay.replay.collectives.model import (
    GATHERING,
    POINT_TO_POINT,
    SCATTERING,
    Collective,
    bus_factor,
    size_elements,
)
from opreplay.traces.collectives.names import Kind

IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})
"""Kinds whose result replaces the input."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Collective as the ranks of this run execute it. Sizes are in elements. Indexes count within `members`."""

    kind: Kind
    dtype: str
    members: tuple[int, ...]
    """Participating ranks, in the order of the group."""
    inputs: int
    """Number of input elements of a rank; for a scatter, that of the root."""
    outputs: int
    """Number of output elements of a rank; for a gather, that of the root."""
    matrix: tuple[tuple[int, ...], ...] = ()
    """Elements that each rank sends to each other rank in an all-to-all."""
    parts: tuple[int, ...] = ()
    """Sizes of the tensors that one all-reduce moves together."""
    root: int = 0
    source: int = 0
    target: int = 1
    reduce_op: str = "sum"
    asynchronous: bool = False
    elements: int
    """Elements of the message, counted as by `size_elements`."""
    bus_factor: float
    part: float = 1.0
    """Share of the recorded message that is transferred in this run."""
    note: str = ""
    """Difference from the recorded collective; "" if there is none."""


class TooFewRanks(ValueError):
    """Raised if there are not enough ranks for the operation."""


def map_collective(collective: Collective, world: int, *, max_bytes: float = math.inf) -> Share:
    """Return the collective that `world` ranks run in place of a recorded group.

    All its buffers together have at most `max_bytes`. Raises TooFewRanks for a send or receive if there is only one
    rank.
    """
    if collective.kind in POINT_TO_POINT:
        return _fitted(collective, _pair(collective, world), max_bytes)
    size = collective.group_size or world
    count = min(size, world)
    named = len(collective.group_ranks) == count == size and max(collective.group_ranks, default=0) < world
    members = collective.group_ranks if named and len(set(collective.group_ranks)) == count else tuple(range(count))
    return _fitted(collective, _map_to_members(collective, members, size), max_bytes)


def _pair(collective: Collective, world: int) -> Share:
    if world < 2:
        raise TooFewRanks("a send or receive needs two ranks")
    source, target = collective.source, collective.target
    known = source is not None and target is not None and source != target and max(source, target) < world
    members = (source, target) if known and source is not None and target is not None else (0, 1)
    return Share(
        kind=collective.kind,
        dtype=collective.dtype,
        members=members,
        inputs=collective.in_elements,
        outputs=collective.in_elements,
        asynchronous=bool(collective.asynchronous),
        elements=collective.in_elements,
        bus_factor=1.0,
    )


def _map_to_members(collective: Collective, members: tuple[int, ...], recorded: int) -> Share:
    """Map the collective of a group of `recorded` ranks to `members`."""
    n, kind = len(members), collective.kind
    notes: list[str] = []
    if n < recorded:
        what = "the data that leaves a rank" if kind == "all_to_all" else "the message"
        notes.append(
            f"a group of {recorded:,} ran on {n} ranks: {what} has its recorded size, but goes to {n - 1} peers, not "
            f"{recorded - 1:,}"
        )
    matrix, factor = (), bus_factor(kind, n)
    inputs, outputs = _sizes_on(collective, n)
    if kind == "all_to_all":
        matrix = _matrix(collective, n, recorded)
        inputs, outputs = max(sum(row) for row in matrix), max(sum(column) for column in zip(*matrix, strict=True))
        if inputs:
            factor = max(1.0 - row[i] / max(sum(row), 1) for i, row in enumerate(matrix))
        if collective.in_elements != collective.out_elements and not collective.in_splits:
            notes.append("splits not recorded: equal shares assumed for the other ranks")
    return Share(
        kind=collective.kind,
        dtype=collective.dtype,
        members=members,
        inputs=inputs,
        outputs=outputs,
        matrix=matrix,
        parts=collective.parts if collective.kind == "all_reduce" else (),
        root=collective.root if collective.root is not None and collective.root < n else 0,
        reduce_op=collective.reduce_op if collective.reduce_op in ("max", "min", "avg", "product") else "sum",
        asynchronous=bool(collective.asynchronous),
        elements=outputs if kind in GATHERING else inputs,
        bus_factor=factor,
        note="; ".join(notes),
    )


def _sizes_on(collective: Collective, n: int) -> tuple[int, int]:
    """Return the (input, output) elements of a rank for this message on n ranks.

    This is not valid for an all-to-all.
    """
    if collective.kind in GATHERING:
        inputs = max(1, collective.out_elements // n) if collective.out_elements else 0
        return inputs, inputs * n
    if collective.kind in SCATTERING:
        outputs = max(1, collective.in_elements // n) if collective.in_elements else 0
        return outputs * n, outputs
    return collective.in_elements, collective.in_elements


def _matrix(collective: Collective, n: int, recorded: int) -> tuple[tuple[int, ...], ...]:
    """Return how many elements each of n ranks sends to each other rank.

    Row and column 0 belong to the recorded rank. The recorded peers are combined into n - 1 bundles. Data that a rank
    keeps stays with it. The other ranks send and receive as much as the recorded rank.
    """
    row, column = _spread(collective, n, recorded, collective.in_splits, collective.in_elements), ()
    column = _spread(collective, n, recorded, collective.out_splits, collective.out_elements)
    retained = min(row[0], column[0])
    others_row, others_column = (collective.in_elements - retained, collective.out_elements - retained)
    row = (retained, *_scaled(row[1:], others_row))
    column = (retained, *_scaled(column[1:], others_column))
    if n == 1:
        return ((max(collective.in_elements, collective.out_elements),),)
    # Among the others: each as much as the mean of what the first one gives and takes.
    typical = (others_row + others_column) // (2 * (n - 1))
    return tuple(
        tuple(row[j] if i == 0 else column[i] if j == 0 else retained if i == j else typical for j in range(n))
        for i in range(n)
    )


def _spread(collective: Collective, n: int, recorded: int, splits: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Return (elements kept, elements sent to each of n - 1 bundles of peers).

    n ranks take the place of `recorded` ranks.
    """
    if len(splits) != recorded:
        retained = total // recorded
        return (retained, *_even(total - retained, n - 1))
    rank, ranks = collective.rank, collective.group_ranks
    at = ranks.index(rank) if rank is not None and rank in ranks else rank or 0
    at = at if at < recorded else 0
    peers = [*splits[at + 1 :], *splits[:at]]
    bounds = [len(peers) * i // max(1, n - 1) for i in range(n)]
    return (splits[at], *(sum(peers[a:b]) for a, b in pairwise(bounds)))


def _even(total: int, count: int) -> list[int]:
    return [total * (i + 1) // count - total * i // count for i in range(count)]


def _scaled(values: tuple[int, ...], total: int) -> list[int]:
    """Scale `values` in proportion so that their sum is `total`."""
    before = sum(values)
    if before == total or not values:
        return list(values)
    if not before:
        return _even(total, len(values))
    scaled = [value * total // before for value in values]
    scaled[-1] += total - sum(scaled)
    return scaled


def bytes_of(share: Share, itemsize: int) -> int:
    """Return the bytes of all buffers of all members."""
    each = share.inputs if share.kind in IN_PLACE or share.kind in POINT_TO_POINT else share.inputs + share.outputs
    return each * itemsize * len(share.members)


def _fitted(collective: Collective, share: Share, max_bytes: float) -> Share:
    """Shrink the collective to the number of elements that fits into `max_bytes` of memory."""
    needed = bytes_of(share, collective.itemsize)
    if needed <= max_bytes:
        return share
    part = max_bytes / needed
    n = len(share.members)

    def less(count: int) -> int:
        return max(1, int(count * part)) if count else 0

    if share.matrix:
        matrix = tuple(tuple(int(count * part) for count in row) for row in share.matrix)
        inputs, outputs = max(sum(row) for row in matrix), max(sum(column) for column in zip(*matrix, strict=True))
        elements = inputs
    elif share.kind in GATHERING:
        matrix, inputs = (), less(share.inputs)
        outputs = elements = inputs * n
    elif share.kind in SCATTERING:
        matrix, outputs = (), less(share.outputs)
        inputs = elements = outputs * n
    else:
        matrix = ()
        inputs = outputs = elements = less(share.inputs)
    ran = elements / share.elements if share.elements else 1.0
    whole = size_text(size_elements(collective) * collective.itemsize)
    sent = size_text(elements * collective.itemsize)
    text = f"only {ran:.3g} of the message was sent, to save memory: {sent} of {whole}"
    return msgspec.structs.replace(
        share,
        inputs=inputs,
        outputs=outputs,
        matrix=matrix,
        parts=(),
        elements=elements,
        part=ran,
        note="; ".join(filter(None, (share.note, text))),
    )


def size_text(count: float) -> str:
    """Return a number of bytes in decimal units: "512 B", "10.2 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
