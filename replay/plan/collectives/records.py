# pyright: strict
"""Combines the records of one call into a collective: its operation, sizes and group.

If records differ in a fact, this module determines which one has priority. `recorded` determines which records belong
to one call.
"""

from __future__ import annotations

from math import prod

import msgspec

from opreplay.replay.collectives.model import (
    GATHERING,
    MAX_ELEMENTS,
    POINT_TO_POINT,
    REDUCING,
    ROOTED,
    SCATTERING,
    Collective,
)
from opreplay.replay.ir.model import MAX_RANKS
from opreplay.replay.plan.collectives.arguments import PARAMETERS, integers_before, list_of, ranks_of
from opreplay.traces.activity import Collective as Record
from opreplay.traces.activity.model import CollectiveNote
from opreplay.traces.collectives.names import EXPERTS, Kind, kind_of
from opreplay.traces.collectives.tensors import Sizes, dtype_named, of_tensors, tensors_of, with_product
from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.model import OpSignature

Moved = tuple[int, int, str, tuple[int, ...]]
"""(input elements, output elements, dtype, elements of each tensor) of a collective, if all are known."""


class Records(msgspec.Struct, kw_only=True):
    """All records of one call in a trace, in order of reliability."""

    names: list[str] = msgspec.field(default_factory=list[str])
    """Names from which the operation may be recognized."""
    record: Record | None = None
    signatures: list[OpSignature] = msgspec.field(default_factory=list[OpSignature])
    """Signatures of ops, the most informative first."""
    notes: list[CollectiveNote] = msgspec.field(default_factory=list[CollectiveNote])
    kernels: list[str] = msgspec.field(default_factory=list[str])


def annotated_sizes(records: Records) -> frozenset[int]:
    """Return the numbers of elements that the annotation of this call may state; empty if none is recorded."""
    record = records.record
    sizes = {sum(n for n, _ in entry) for signature in records.signatures for entry in tensors_of(signature)}
    if record is not None:
        sizes |= {n for n in (record.elements, record.out_elements) if n}
    return frozenset(sizes)


def of_record(record: Record, world_size: int | None) -> Collective | None:
    """Return the collective that one record describes; None if operation, size or dtype is missing."""
    return collective_of(Records(names=[record.name], record=record), world_size)[0]


def collective_of(records: Records, world_size: int | None) -> tuple[Collective | None, str, tuple[str, ...]]:
    """Return (collective, missing facts, assumptions).

    The collective is None in two cases: a fact is missing, or the records are not of a collective. In the second case,
    the missing facts are "".
    """
    record, kind = records.record or Record(name=""), kind_of_records(records)
    if kind is None:
        return None, _lacking_operation(records), ()
    sizes = _sizes(kind, records, record)
    if sizes is None:
        return None, "its number of elements and dtype", ()
    recorded_size = _group_size(kind, records, record, sizes)
    group_size = recorded_size or _ranks_of_job(world_size)
    splits = _recorded_splits(kind, records, record)
    recorded = _completed(kind, _by_splits(sizes, *splits), group_size or 1)
    in_elements, out_elements, dtype, parts = _known_to_back_ends(recorded)
    if max(in_elements, out_elements) > MAX_ELEMENTS:
        return None, f"a plausible size ({max(in_elements, out_elements)} elements)", ()
    members = list_of(record.ranks or "")
    collective = Collective(
        kind=kind,
        dtype=dtype,
        in_elements=in_elements,
        out_elements=out_elements,
        in_splits=_splits(splits[0], in_elements),
        out_splits=_splits(splits[1], out_elements),
        parts=_parts(parts, in_elements),
        group=record.group or "",
        group_size=group_size,
        group_ranks=members if len(members) == group_size else (),
        reduce_op=_reduce_op(records),
        asynchronous=_asynchronous(records, record),
        **_ends(kind, records, record),
    )
    assumed = _assumed(collective, records, recorded[2], group_is_recorded=group_size == recorded_size)
    return collective, "", assumed


def _ranks_of_job(world_size: int | None) -> int | None:
    return world_size if 0 < (world_size or 0) <= MAX_RANKS else None


def _lacking_operation(records: Records) -> str:
    named = records.record is not None and records.record.name
    says = named or any(name != PARAMETERS for name in records.names)  # something else then, such as a wait
    return "" if says else "its operation"


def _known_to_back_ends(sizes: Moved) -> Moved:
    """Return sizes with the same number of bytes in a dtype that back-ends support. No back-end supports 16-byte
    elements.
    """
    in_elements, out_elements, dtype, parts = sizes
    if ITEMSIZE_BYTES.get(dtype) != 16:
        return sizes
    return 2 * in_elements, 2 * out_elements, "complex64", tuple(2 * n for n in parts)


def _parts(parts: tuple[int, ...], total: int) -> tuple[int, ...]:
    return parts if len(parts) > 1 and sum(parts) == total else ()


def _assumed(collective: Collective, records: Records, dtype: str, *, group_is_recorded: bool) -> tuple[str, ...]:
    """Return the assumptions about a collective for which the records name the dtype `dtype`."""
    kind = collective.kind
    assumptions = (
        (
            not group_is_recorded and kind not in POINT_TO_POINT,
            "group: all ranks of the job (the group is not recorded)",
        ),
        (dtype != collective.dtype, f"dtype: {collective.dtype}, with twice as many elements as recorded for {dtype}"),
        (kind in REDUCING and not collective.reduce_op, "reduce_op: sum (not recorded)"),
        (with_product(records.names[0]), "product: left out, only the collective runs"),
        (
            any(EXPERTS in name for name in records.names),
            "all-to-all: tokens spread evenly over the ranks (routing is not recorded), in their recorded dtype",
        ),
    )
    return tuple(text for applies, text in assumptions if applies)


def _ends(kind: Kind, records: Records, record: Record) -> dict[str, int | None]:
    """Return the fields for the ranks in a collective: sender and receiver, or the root. For other operations, return
    the recording rank.
    """
    if kind in ROOTED:
        return {"root": _root(records, record)}
    if kind not in POINT_TO_POINT:
        return {"rank": record.rank}
    ends, other = {"source": record.source, "target": record.target}, "target" if kind == "send" else "source"
    return ends if ends[other] is not None else ends | {other: record.rank}


def kind_of_records(records: Records) -> Kind | None:
    """Return the operation that is known from the first informative name in the records; None without one."""
    record = records.record
    kind = kind_of(record.name) if record is not None and record.name else None
    for name in (*records.names, *(note.name for note in records.notes), *records.kernels):
        kind = kind or (None if name == PARAMETERS else kind_of(name))
    return kind


def _sizes(kind: Kind, records: Records, record: Record) -> Sizes | None:
    """Return the recorded (input elements, output elements, dtype, elements of each tensor); None if not recorded."""
    if kind == "barrier":
        return 0, 0, "uint8", ()
    dtype = dtype_named(record.dtype or "")
    for sizes_of in (_sizes_of_ops, _sizes_of_parameters, _sizes_of_record, _sizes_of_notes):
        if (sizes := sizes_of(kind, records, record, dtype)) is not None:
            return sizes
    return None


def _sizes_of_ops(kind: Kind, records: Records, record: Record, dtype: str | None) -> Sizes | None:
    for signature in records.signatures:
        if signature.name != PARAMETERS and (sizes := of_tensors(kind, signature)) is not None:
            inside, outside = (record.elements, record.out_elements) if record.elements else sizes[:2]
            return inside, outside, dtype or sizes[2], sizes[3]
    return None


def _sizes_of_parameters(kind: Kind, records: Records, record: Record, dtype: str | None) -> Sizes | None:
    for signature in records.signatures:
        if signature.name == PARAMETERS and (tensors := tensors_of(signature)):
            parts, recorded = tuple(n for n, _ in tensors[0]), tensors[0][0][1]
            if record.elements:
                return record.elements, record.out_elements, dtype or recorded, parts
            return sum(parts), None, recorded, parts
    return None


def _sizes_of_record(kind: Kind, records: Records, record: Record, dtype: str | None) -> Sizes | None:
    known = dtype is not None and (record.elements or record.out_elements)
    return (record.elements or None, record.out_elements, dtype or "", ()) if known else None


def _sizes_of_notes(kind: Kind, records: Records, record: Record, dtype: str | None) -> Sizes | None:
    for note in records.notes:
        sized = [(prod(dims), torch_dtype_name(text)) for dims, text in zip(note.dims, note.types, strict=False)]
        if typed := [(n, name) for n, name in sized if name is not None]:
            parts = tuple(n for n, _ in typed)
            return sum(parts), None, typed[0][1], parts
    return None


def _completed(kind: Kind, sizes: Sizes, n: int) -> Moved:
    """Return the sizes with both numbers of elements, of input and output.

    If a number is missing, it is derived from the other number, the operation, and the number of ranks `n`.
    """
    inside, outside, dtype, parts = sizes
    gathers, scatters = kind in GATHERING, kind in SCATTERING
    alike = inside == outside and n > 1
    # What gather hands out is recorded at the root alone, and so is what scatter takes.
    if gathers and (not outside or alike):
        outside = None
    if inside is None or (alike and kind == "scatter"):
        inside = (outside or 0) * n**scatters // n**gathers
    if outside is None:
        outside = inside * n**gathers // n**scatters
    return inside, outside, dtype, parts


def _group_size(kind: Kind, records: Records, record: Record, sizes: Sizes | None) -> int | None:
    if record.group_size is not None and 0 < record.group_size <= MAX_RANKS:
        return record.group_size
    for signature in records.signatures:
        if (ranks := ranks_of(signature, None)) is not None:
            return ranks
    return _ranks_by_sizes(sizes) if sizes is not None and kind in ("all_gather", "reduce_scatter") else None


def _ranks_by_sizes(sizes: Sizes) -> int | None:
    """Return the ratio of the larger to the smaller size if it is a possible number of ranks; otherwise None."""
    if not sizes[0] or not sizes[1]:
        return None
    small, large = sorted((sizes[0], sizes[1]))
    return large // small if large % small == 0 and 1 < large // small <= MAX_RANKS else None


def _recorded_splits(kind: Kind, records: Records, record: Record) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the recorded (input splits, output splits) of an all-to-all, in rows or elements. Both are () if not
    recorded, and for other operations.
    """
    if kind != "all_to_all":
        return (), ()
    if any(recorded := (record.in_split or (), record.out_split or ())):
        return recorded
    for signature in records.signatures:
        lists = _lists_of(signature)
        # Both c10d::alltoall_base_ and the functional one name what comes out first.
        if len(lists) >= 2 and signature.name != PARAMETERS:
            return lists[1], lists[0]
    return (), ()


def _lists_of(signature: OpSignature) -> list[tuple[int, ...]]:
    arguments = zip(signature.concrete or (), signature.types or (), strict=False)
    return [list_of(text) for text, kind in arguments if kind == "ScalarList"]


def _by_splits(sizes: Sizes, in_splits: tuple[int, ...], out_splits: tuple[int, ...]) -> Sizes:
    """Derive a missing size of an all-to-all from both splits. Rows have the same length in inputs and outputs."""
    inside, outside, dtype, parts = sizes
    rows = sum(in_splits), sum(out_splits)
    if inside is not None and outside is None and rows[0] and inside % rows[0] == 0:
        return inside, inside // rows[0] * rows[1], dtype, parts
    if outside is not None and inside is None and rows[1] and outside % rows[1] == 0:
        return outside // rows[1] * rows[0], outside, dtype, parts
    return sizes


def _splits(recorded: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Return recorded splits in elements; () if they do not match the size."""
    rows = sum(recorded)
    if not rows or total % rows:
        return ()
    return tuple(n * (total // rows) for n in recorded)


def _root(records: Records, record: Record) -> int | None:
    if record.rank is not None:
        return record.rank
    for signature in records.signatures:
        if signature.name.startswith("c10d::") and (numbers := integers_before(signature, 1 << 20)):
            return numbers[0] if 0 <= numbers[0] <= MAX_RANKS else None
    return None


def _reduce_op(records: Records) -> str:
    for signature in records.signatures:
        for text in signature.concrete or ():
            if text.lower() in ("sum", "avg", "max", "min", "product"):
                return text.lower()
    return ""


def _asynchronous(records: Records, record: Record) -> bool | None:
    if record.asynchronous is not None:
        return record.asynchronous
    for signature in records.signatures:
        if signature.name.startswith("c10d::"):
            flags = [text for text in signature.concrete or () if text in ("True", "False")]
            if flags:
                return flags[-1] == "True"
    return None
