# pyright: strict
"""The collectives that a trace records, one value a call, whatever names them: ops, `record_param_comms`, annotations.

Owns which records belong to one call and which of them says what; the values are `opreplay.replay.collectives`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

import msgspec
import numpy as np

from opreplay.replay.collectives.model import MAX_ELEMENTS, POINT_TO_POINT, REDUCING, ROOTED, Collective, Kind
from opreplay.replay.collectives.names import EXPERTS, kind_of
from opreplay.replay.ir.labels import is_collective
from opreplay.replay.ir.model import MAX_RANKS
from opreplay.replay.plan.collectives.back_ends import Notes, Unannotated, annotated_elsewhere
from opreplay.replay.plan.collectives.ranks import ranks_of
from opreplay.traces.activity import Collective as Record
from opreplay.traces.activity.model import CollectiveNote
from opreplay.traces.dialects.param_comms import CommsTrace
from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.links.parents import parents_of
from opreplay.traces.literals import parse_literal
from opreplay.traces.model import NamedCollective, OpSignature, Trace

PARAMETERS = "record_param_comms"
_DTYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bfp16": "bfloat16",
    "bf16": "bfloat16", "double": "float64", "fp64": "float64", "byte": "uint8", "char": "int8", "short": "int16",
    "int": "int32", "long": "int64", "complexhalf": "complex32", "complexfloat": "complex64",
    "complexdouble": "complex128", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
}  # fmt: skip
"""Names of dtypes as `record_param_comms` and HCCL write them, in lower case → torch's."""
_WITH_PRODUCT = re.compile(r"(^|_)(mm|matmul)(_|$)")
"""Names of ops that multiply matrices as well ("npu_mm_all_reduce_base", "fused_all_gather_matmul")."""
_OUT_FIRST = ("alltoall_base_", "_allgather_base_", "_reduce_scatter_base_", "_out", "reg_all_gather_into_tensor")
"""Ends of names of ops whose first tensor is the result and whose second goes in."""
_LISTS_OUT_FIRST = (
    "c10d::alltoall_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::reduce_scatter_tensor_coalesced_",
)
"""Ops that take a list of results, then a list of what goes in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded collective."""

    name: str
    """Of the outermost op that is part of it, of its annotation where there is no op."""
    names: tuple[str, ...]
    """Of all that is part of it."""
    rows: tuple[int, ...]
    """Of `Trace.ops`, outermost first; () for one that is no op."""
    collective: Collective | None
    lacks: str = ""
    """What the trace does not say of it, where `collective` is None."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted."""
    host_us: float = 0.0
    device_us: float = 0.0
    kernels: tuple[tuple[str, float], ...] = ()
    """Name and microseconds of the device work that it owns."""


@dataclass(slots=True, kw_only=True)
class _Told:
    """What the records of one call say, best source first."""

    names: list[str] = field(default_factory=list[str])
    """That may tell the operation."""
    record: Record | None = None
    signatures: list[OpSignature] = field(default_factory=list[OpSignature])
    """Of ops, those that say most first."""
    notes: list[CollectiveNote] = field(default_factory=list[CollectiveNote])
    kernels: list[str] = field(default_factory=list[str])


def collective_calls(trace: Trace) -> list[Call]:
    """Every collective of a trace that was read with its activity, in file order; waits and set-up are left out.

    An op, the `record_param_comms` in it and the back-end's annotation of it, on whichever thread, are one call.
    """
    rows, inside = _rows(trace)
    notes, used = Notes(trace), set[int]()
    drafts = _drafts(trace, rows, inside, notes, used)
    calls = _annotated(drafts, notes, used, trace.info.world_size)
    calls += [(note.start_ns, _of_note(note, trace)) for index, note in enumerate(notes.all) if index not in used]
    calls.sort(key=lambda pair: pair[0])
    return _with_spans(trace, _with_named(trace, [call for _, call in calls]))


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A call before it is known what it is."""

    rows: list[int]
    begin_ns: int
    dur_ns: int
    told: _Told
    owned: tuple[tuple[str, float], ...]


def _drafts(trace: Trace, rows: list[int], inside: dict[int, int], notes: Notes, used: set[int]) -> list[_Draft]:
    """All calls with what their records and the annotations on their threads say; the latter are added to `used`."""
    kernels = _kernels_of(trace, set(rows))
    made: list[_Draft] = []
    for group in _grouped(trace, rows, inside):
        told = _Told()
        begin, dur = int(trace.ops.start_ns[group[0]]), int(trace.ops.dur_ns[group[0]])
        for row in group:
            signature = trace.signatures[int(trace.ops.signature[row])]
            record = _record_of(trace, row, signature)
            if record is not None and told.record is None:
                told.record = record
            told.signatures.append(signature)
            told.names.append(signature.name)
        if dur > 0:
            for index in notes.within(int(trace.ops.track[group[0]]), begin, begin + dur):
                used.add(index)
                told.notes.append(notes.all[index])
        owned = tuple(work for row in group for work in kernels.get(row, ()))
        told.kernels = [name for name, _ in owned]
        made.append(_Draft(rows=group, begin_ns=begin, dur_ns=dur, told=told, owned=owned))
    return made


def _annotated(drafts: list[_Draft], notes: Notes, used: set[int], world_size: int | None) -> list[tuple[int, Call]]:
    """Begin and call of each draft that is one, with what other threads annotated, which is added to `used`."""
    alone = [draft for draft in drafts if not draft.told.notes and _kind(draft.told) is not None]
    left = [index for index in range(len(notes.all)) if index not in used]
    waiting = [
        Unannotated(begin_ns=draft.begin_ns, kind=kind, elements=_elements_of(draft.told))
        for draft in alone
        if (kind := _kind(draft.told)) is not None
    ]
    host_ns: dict[int, int] = {}
    for call, place in annotated_elsewhere(waiting, [notes.all[index] for index in left]).items():
        draft, note = alone[call], notes.all[left[place]]
        used.add(left[place])
        draft.told.notes.append(note)
        host_ns[draft.rows[0]] = note.dur_ns  # the op only hands it over
    calls: list[tuple[int, Call]] = []
    for draft in drafts:
        group, told = draft.rows, draft.told
        made, lacks, assumed = _made(told, world_size)
        if made is None and (not lacks or (len(group) == 1 and not draft.owned and not _tensors(told.signatures[0]))):
            continue  # a wait, or the set-up of a communicator
        call = Call(
            name=told.names[0],
            names=tuple(dict.fromkeys([*told.names, *(note.name for note in told.notes)])),
            rows=tuple(group),
            collective=made,
            lacks=lacks,
            assumed=assumed,
            host_us=host_ns.get(group[0], max([draft.dur_ns, *(note.dur_ns for note in told.notes)])) / 1e3,
            device_us=sum(us for _, us in draft.owned),
            kernels=draft.owned,
        )
        calls.append((draft.begin_ns, call))
    return calls


def _elements_of(told: _Told) -> frozenset[int]:
    """Sizes that an annotation of the call may tell."""
    record = told.record
    sizes = {sum(n for n, _ in entry) for signature in told.signatures for entry in _tensors(signature)}
    if record is not None:
        sizes |= {n for n in (record.elements, record.out_elements) if n}
    return frozenset(sizes)


def _rows(trace: Trace) -> tuple[list[int], dict[int, int]]:
    """Rows of ops that are collectives, in file order; and of each the nearest one around it, -1 for none."""
    marked = np.array([is_collective(one) or one.name == PARAMETERS for one in trace.signatures], dtype=bool)
    if not len(trace.ops) or not marked.any():
        return [], {}
    of_row = marked[trace.ops.signature]
    parents = parents_of(trace)
    rows = np.flatnonzero(of_row).tolist()
    inside: dict[int, int] = {}
    for row in rows:
        above = int(parents[row])
        while above >= 0 and not of_row[above]:
            above = int(parents[above])
        inside[row] = above
    return rows, inside


def _grouped(trace: Trace, rows: list[int], inside: dict[int, int]) -> list[list[int]]:
    """Rows of each call, outermost first. A call that holds several with parameters of their own is several."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        root = row
        while inside[root] >= 0:
            root = inside[root]
        below[root].append(row)
    groups: list[list[int]] = []
    for root, members in below.items():
        deep = sorted(members, key=lambda row: (_depth(row, inside), row))
        told = [row for row in deep if _is_parameters(trace, row)]
        several = [row for row in told if (found := _record_of_row(trace, row)) and kind_of(found.name) is not None]
        if len(several) < 2:
            waits = set(told) - set(several) if several else set[int]()
            groups.append([row for row in deep if row not in waits or row == root])
            continue
        for row in several:
            around = inside[row]
            chain = [row] if around < 0 or (around == root and len(several) > 1 and root in told) else [around, row]
            groups.append(chain)
    return groups


def _depth(row: int, inside: dict[int, int]) -> int:
    depth = 0
    while inside[row] >= 0:
        row, depth = inside[row], depth + 1
    return depth


def _is_parameters(trace: Trace, row: int) -> bool:
    return trace.signatures[int(trace.ops.signature[row])].name == PARAMETERS


def _record_of_row(trace: Trace, row: int) -> Record | None:
    return _record_of(trace, row, trace.signatures[int(trace.ops.signature[row])])


def _record_of(trace: Trace, row: int, signature: OpSignature) -> Record | None:
    """What a row says of a collective: its own metadata, or of an ExecutionTrace the arguments that spell it."""
    found = trace.activity
    if found is not None and found.op_collective[row] >= 0:
        return found.collectives[int(found.op_collective[row])]
    if signature.name != PARAMETERS or not signature.concrete:
        return None
    # (tensors, sequence number, group, rank, name, in splits, out splits[, first rank, stride, ranks])
    texts = [i for i, text in enumerate(signature.concrete) if text and text.replace("_", "").isalpha()]
    at = next((i for i in texts if signature.types and not signature.types[i]), None)
    if at is None:
        return None
    numbers = _integers(signature, at)
    lists = [_list_of(text) for text in signature.concrete[at + 1 : at + 3]]
    return Record(
        name=signature.concrete[at],
        in_split=lists[0] if lists else None,
        out_split=lists[1] if len(lists) > 1 else None,
        group_size=ranks_of(signature, None),
        rank=numbers[-1] if numbers and numbers[-1] >= 0 else None,
    )


def _integers(signature: OpSignature, before: int) -> list[int]:
    values = [parse_literal(text) for text in (signature.concrete or ())[:before] if text]
    return [value for value in values if type(value) is int]


def _list_of(text: str) -> tuple[int, ...]:
    value = parse_literal(text) if text.startswith("[") else None
    if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
        return ()
    return tuple(item for item in value if isinstance(item, int))


def _kernels_of(trace: Trace, rows: set[int]) -> dict[int, list[tuple[str, float]]]:
    found: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    owned = np.flatnonzero(np.isin(trace.kernels.owner, list(rows))) if rows else np.zeros(0, np.int64)
    for kernel in owned.tolist():
        name = trace.kernel_names[int(trace.kernels.name[kernel])]
        found[int(trace.kernels.owner[kernel])].append((name, float(trace.kernels.dur_ns[kernel]) / 1e3))
    return found


def _of_note(note: CollectiveNote, trace: Trace) -> Call:
    told = _Told(names=[note.name], notes=[note])
    made, lacks, assumed = _made(told, trace.info.world_size)
    return Call(
        name=note.name,
        names=(note.name,),
        rows=(),
        collective=made,
        lacks=lacks,
        assumed=assumed,
        host_us=note.dur_ns / 1e3,
    )


def of_record(record: Record, world_size: int | None) -> Collective | None:
    """The collective that one record tells by itself; None where it lacks operation, size or dtype."""
    return _made(_Told(names=[record.name], record=record), world_size)[0]


def _made(told: _Told, world_size: int | None) -> tuple[Collective | None, str, tuple[str, ...]]:
    """(the collective, what is lacking, what was assumed); None and "" for what is no collective."""
    record, kind = told.record or Record(name=""), _kind(told)
    if kind is None:
        says = record.name or any(name != PARAMETERS for name in told.names)  # something else then, such as a wait
        return None, "" if says else "which operation it is", ()
    assumed: list[str] = []
    sizes = _sizes(kind, told, record)
    group_size = _group_size(kind, told, record, sizes)
    if group_size is None and world_size is not None and 0 < world_size <= MAX_RANKS:
        group_size = world_size
        if kind not in POINT_TO_POINT:
            assumed.append("group: all ranks of the job (the group is not recorded)")
    if kind == "barrier":
        sizes = (0, 0, "uint8", ())
    if sizes is None:
        return None, "how many elements of which dtype it moves", ()
    recorded_splits = _recorded_splits(told, record)
    if kind == "all_to_all":
        sizes = _by_splits(sizes, *recorded_splits)
    in_elements, out_elements, dtype, parts = _completed(kind, sizes, group_size)
    if ITEMSIZE_BYTES.get(dtype) == 16:  # back-ends know nothing as wide
        in_elements, out_elements, parts = 2 * in_elements, 2 * out_elements, tuple(2 * n for n in parts)
        assumed.append(f"dtype: complex64, twice as many as recorded of {dtype}")
        dtype = "complex64"
    if max(in_elements, out_elements) > MAX_ELEMENTS:
        return None, f"a believable size: {max(in_elements, out_elements)} elements", ()
    splits = [
        _splits(recorded, total) for recorded, total in zip(recorded_splits, (in_elements, out_elements), strict=True)
    ]
    operation = _reduce_op(told)
    if kind in ("all_reduce", "reduce_scatter", "reduce") and not operation:
        assumed.append("reduce_op: sum (not recorded)")
    if _with_product(told.names[0]):
        assumed.append("product: left out, the collective alone runs")
    if any(EXPERTS in name for name in told.names):
        assumed.append("all-to-all: tokens spread evenly over the ranks (routes are contents), in their recorded dtype")
    members = _list_of(record.ranks or "")
    peer = record.rank if kind in POINT_TO_POINT else None
    return (
        Collective(
            kind=kind,
            dtype=dtype,
            in_elements=in_elements,
            out_elements=out_elements,
            in_splits=splits[0] if kind == "all_to_all" else (),
            out_splits=splits[1] if kind == "all_to_all" else (),
            parts=parts if len(parts) > 1 else (),
            group=record.group or "",
            group_size=group_size,
            group_ranks=members if len(members) == group_size else (),
            rank=None if kind in ROOTED or kind in POINT_TO_POINT else record.rank,
            root=_root(told, record) if kind in ROOTED else None,
            source=(record.source if record.source is not None else peer if kind == "recv" else None)
            if kind in POINT_TO_POINT
            else None,
            target=(record.target if record.target is not None else peer if kind == "send" else None)
            if kind in POINT_TO_POINT
            else None,
            reduce_op=operation,
            asynchronous=_asynchronous(told, record),
        ),
        "",
        tuple(assumed),
    )


def _kind(told: _Told) -> Kind | None:
    """The operation, by the first of the names that tells one."""
    record = told.record
    kind = kind_of(record.name) if record is not None and record.name else None
    for name in (*told.names, *(note.name for note in told.notes), *told.kernels):
        kind = kind or (None if name == PARAMETERS else kind_of(name))
    return kind


Sizes = tuple[int | None, int | None, str, tuple[int, ...]]


def _sizes(kind: Kind, told: _Told, record: Record) -> Sizes | None:
    """(elements in, elements out, dtype, elements of each tensor) as far as recorded; None where nothing says."""
    for signature in told.signatures:
        if signature.name != PARAMETERS and (found := _of_tensors(kind, signature)) is not None:
            own = _dtype(record.dtype or "") or found[2]
            if record.elements:
                return record.elements, record.out_elements, own, found[3]
            return found[0], found[1], own, found[3]
    for signature in told.signatures:
        if signature.name == PARAMETERS and (parts := _tensors(signature)):
            elements, dtype = sum(n for n, _ in parts[0]), parts[0][0][1]
            if record.elements:
                return (
                    record.elements,
                    record.out_elements,
                    _dtype(record.dtype or "") or dtype,
                    tuple(n for n, _ in parts[0]),
                )
            return elements, None, dtype, tuple(n for n, _ in parts[0])
    dtype = _dtype(record.dtype or "")
    if record.elements and dtype:
        return record.elements, record.out_elements, dtype, ()
    if record.out_elements and dtype:
        return None, record.out_elements, dtype, ()
    for note in told.notes:
        sized = [(prod(dims), torch_dtype_name(text)) for dims, text in zip(note.dims, note.types, strict=False)]
        parts_of_note = [(n, name) for n, name in sized if name is not None]
        if parts_of_note:
            return sum(n for n, _ in parts_of_note), None, parts_of_note[0][1], tuple(n for n, _ in parts_of_note)
    return None


def _dtype(recorded: str) -> str | None:
    name = _DTYPES.get(recorded.lower(), recorded.lower())
    return name if name in ITEMSIZE_BYTES else torch_dtype_name(recorded)


def _tensors(signature: OpSignature) -> list[list[tuple[int, str]]]:
    """Of each argument that is a tensor or a list of such: (elements, dtype) of each; "" for a dtype not recorded."""
    found: list[list[tuple[int, str]]] = []
    for index, (kind, dims) in enumerate(zip(signature.types or (), signature.dims or (), strict=False)):
        if kind == "TensorList":
            shapes = [d for d in dims if isinstance(d, tuple)]
            types = (signature.list_types or ())[index : index + 1]
            names = [torch_dtype_name(t) or "" for t in types[0]] if types else [""] * len(shapes)
            entry = [(_elements(shape), name) for shape, name in zip(shapes, names, strict=False)]
        elif (name := torch_dtype_name(kind)) is not None and (dims or not (signature.concrete or ("",) * 99)[index]):
            entry = [(_elements(dims), name)]
        else:
            continue
        if entry:
            found.append(entry)
    return found


def _elements(dims: object) -> int:
    given = cast("tuple[object, ...]", dims) if isinstance(dims, tuple) else ()
    sizes = [size for size in given if isinstance(size, int)]
    return prod(sizes)


def _of_tensors(kind: Kind, signature: OpSignature) -> Sizes | None:
    """Sizes by the tensors of an op whose form is known."""
    if EXPERTS in signature.name:
        return _of_experts(signature)
    if _with_product(signature.name):
        return _of_product(kind, signature)
    found = _tensors(signature)
    if not found or not any(name for entry in found for _, name in entry):
        return None
    dtype = next(name for entry in found for _, name in entry if name)
    totals = [sum(n for n, _ in entry) for entry in found]
    parts = tuple(n for n, _ in found[0])
    if signature.name.endswith(_OUT_FIRST) or signature.name.startswith(_LISTS_OUT_FIRST):
        return (totals[1], totals[0], dtype, tuple(n for n, _ in found[1])) if len(totals) > 1 else None
    if signature.name in ("c10d::allgather_", "c10d::gather_", "c10d::allgather_coalesced_"):
        return totals[-1], None, dtype, tuple(n for n, _ in found[-1])  # lists of lists are not recorded
    if signature.name in ("c10d::reduce_scatter_", "c10d::scatter_"):
        return None, totals[0], dtype, ()
    if kind in ("all_gather", "reduce_scatter") and len(totals) > 1 and max(totals) > min(totals):
        small, large = min(totals), max(totals)
        return (small, large, dtype, ()) if kind == "all_gather" else (large, small, dtype, ())
    return totals[0], None, dtype, parts


def _with_product(name: str) -> bool:
    return _WITH_PRODUCT.search(name.rpartition("::")[2]) is not None


def _of_product(kind: Kind, signature: OpSignature) -> Sizes | None:
    """Of the product of (..., K) with (K, N): what is gathered goes in, what is reduced comes out."""
    shapes: list[tuple[tuple[int, ...], str]] = []
    for index, (type_, dims) in enumerate(zip(signature.types or (), signature.dims or (), strict=False)):
        listed = type_ == "TensorList" and bool(dims) and isinstance(dims[0], tuple)
        sizes = dims[0] if listed else dims
        types = (signature.list_types or ())[index : index + 1]
        name = torch_dtype_name(types[0][0] if listed and types and types[0] else type_) or ""
        if isinstance(sizes, tuple) and len(sizes) > 1 and (name or listed):
            shapes.append((tuple(size for size in sizes if isinstance(size, int)), name))
    if len(shapes) < 2 or not shapes[0][1]:
        return None
    (left, dtype), (right, _) = shapes[:2]
    if kind == "all_gather":
        return prod(left), None, dtype, ()
    return prod(left[:-1]) * right[-1], None, dtype, ()


def _of_experts(signature: OpSignature) -> Sizes | None:
    """Of tokens (T, H), each sent to, or back from, as many experts as its row of ids (T, k) names."""
    shapes = [
        (tuple(size for size in dims if isinstance(size, int)), name)
        for kind, dims in zip(signature.types or (), signature.dims or (), strict=False)
        if (name := torch_dtype_name(kind)) is not None and len(dims) == 2
    ]
    hidden = next(((shape, name) for shape, name in shapes if "float" in name or name == "int8"), None)
    ids = next((shape for shape, name in shapes if name in ("int32", "int64")), None)
    if hidden is None or ids is None or len(hidden[0]) != 2 or len(ids) != 2:
        return None
    elements = prod(ids) * hidden[0][1]
    return elements, elements, hidden[1], ()


def _completed(kind: Kind, sizes: Sizes, ranks: int | None) -> tuple[int, int, str, tuple[int, ...]]:
    """Both sizes, the missing one by what the operation does."""
    inside, outside, dtype, parts = sizes
    n = ranks or 1
    if kind in ("all_gather", "gather"):
        inside = (outside or 0) // n if inside is None else inside
        # What gather hands out is recorded at the root alone.
        outside = inside * n if not outside or (outside == inside and n > 1) else outside
    elif kind in ("reduce_scatter", "scatter"):
        if inside is None or (outside == inside and n > 1 and kind == "scatter"):
            inside = (outside or 0) * n
        outside = inside // n if outside is None else outside
    else:
        inside = (outside or 0) if inside is None else inside
        outside = inside if outside is None else outside
    return inside, outside, dtype, parts if sum(parts) == inside else ()


def _group_size(kind: Kind, told: _Told, record: Record, sizes: Sizes | None) -> int | None:
    if record.group_size is not None and 0 < record.group_size <= MAX_RANKS:
        return record.group_size
    for signature in told.signatures:
        if (found := ranks_of(signature, None)) is not None:
            return found
    if sizes is not None and kind in ("all_gather", "reduce_scatter") and sizes[0] and sizes[1]:
        small, large = sorted((sizes[0], sizes[1]))
        if large % small == 0 and 1 < large // small <= MAX_RANKS:
            return large // small
    return None


def _recorded_splits(told: _Told, record: Record) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(of what goes in, of what comes out), in rows or elements."""
    if record.in_split or record.out_split:
        return record.in_split or (), record.out_split or ()
    for signature in told.signatures:
        if signature.name == PARAMETERS:
            continue
        lists = [
            _list_of(text)
            for text, kind in zip(signature.concrete or (), signature.types or (), strict=False)
            if kind == "ScalarList"
        ]
        if len(lists) >= 2:  # both c10d::alltoall_base_ and the functional one name what comes out first
            return lists[1], lists[0]
    return (), ()


def _by_splits(sizes: Sizes, given: tuple[int, ...], got: tuple[int, ...]) -> Sizes:
    """The side of an all-to-all that is not recorded, where both splits are: rows are as long on both sides."""
    inside, outside, dtype, parts = sizes
    rows = sum(given), sum(got)
    if inside is not None and outside is None and rows[0] and inside % rows[0] == 0:
        return inside, inside // rows[0] * rows[1], dtype, parts
    if outside is not None and inside is None and rows[1] and outside % rows[1] == 0:
        return outside // rows[1] * rows[0], outside, dtype, parts
    return sizes


def _splits(recorded: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Recorded splits in elements; () where they do not fit the size."""
    rows = sum(recorded)
    if not rows or total % rows:
        return ()
    return tuple(n * (total // rows) for n in recorded)


def _root(told: _Told, record: Record) -> int | None:
    if record.rank is not None:
        return record.rank
    for signature in told.signatures:
        if signature.name.startswith("c10d::") and (numbers := _integers(signature, 1 << 20)):
            return numbers[0] if 0 <= numbers[0] <= MAX_RANKS else None
    return None


def _reduce_op(told: _Told) -> str:
    for signature in told.signatures:
        for text in signature.concrete or ():
            if text.lower() in ("sum", "avg", "max", "min", "product"):
                return text.lower()
    return ""


def _asynchronous(told: _Told, record: Record) -> bool | None:
    if record.asynchronous is not None:
        return record.asynchronous
    for signature in told.signatures:
        if signature.name.startswith("c10d::"):
            flags = [text for text in signature.concrete or () if text in ("True", "False")]
            if flags:
                return flags[-1] == "True"
    return None


def _with_named(trace: Trace, calls: list[Call]) -> list[Call]:
    """With the collectives that a Chakra file tells by type and size, where its tensors do not tell them."""
    if not trace.collectives:
        return calls
    known = {row for call in calls if call.collective is not None for row in call.rows}
    named = [one for one in trace.collectives if one.row not in known]
    replaced = {one.row for one in named if one.row >= 0}
    by_row = {one.row: one for one in trace.collectives if one.row >= 0}
    kept = [_completed_by(call, by_row) for call in calls if not replaced.intersection(call.rows)]
    return [*kept, *(_of_named(one, trace.info.world_size) for one in named)]


def _completed_by(call: Call, named: Mapping[int, NamedCollective]) -> Call:
    """With the group and both ends, which tensors do not tell."""
    told, one = next((named[row] for row in call.rows if row in named), None), call.collective
    if told is None or one is None or (told.kind != one.kind):
        return call
    made = msgspec.structs.replace(
        one,
        group=one.group or told.group,
        group_size=told.group_size or one.group_size,
        source=told.source if one.source is None else one.source,
        target=told.target if one.target is None else one.target,
    )
    assumed = tuple(text for text in call.assumed if told.group_size is None or not text.startswith("group:"))
    return replace(call, collective=made, assumed=assumed)


def _of_named(one: NamedCollective, world_size: int | None) -> Call:
    """A message of bytes as float32, where it is reduced and divides, else as bytes."""
    kind = kind_of(one.kind)
    as_floats = kind in REDUCING and one.size_bytes % 4 == 0
    record = Record(
        name=one.kind,
        dtype="float32" if as_floats else "uint8",
        elements=one.size_bytes // 4 if as_floats else one.size_bytes,
        group=one.group or None,
        group_size=one.group_size,
        source=one.source,
        target=one.target,
    )
    made, lacks, assumed = _made(_Told(names=[one.kind], record=record), world_size)
    return Call(
        name=one.name or one.kind,
        names=tuple(dict.fromkeys((one.name or one.kind, one.kind))),
        rows=(one.row,) if one.row >= 0 else (),
        collective=made,
        lacks=lacks,
        assumed=(*assumed, f"dtype: {record.dtype} (the file tells bytes)"),
        host_us=one.dur_ns / 1e3 if one.row >= 0 else 0.0,
        device_us=one.dur_ns / 1e3 if one.row < 0 else 0.0,
        kernels=((one.name, one.dur_ns / 1e3),) if one.row < 0 else (),
    )


def calls_of_comms(found: CommsTrace) -> list[Call]:
    """The collectives of PARAM's list, in its order."""
    calls: list[Call] = []
    for entry in found.entries:
        told = entry.told
        made, lacks, assumed = _made(_Told(names=[told.name], record=told), found.world_size)
        if made is None and not lacks:
            continue
        calls.append(
            Call(
                name=f"comms:{told.name}",
                names=(f"comms:{told.name}", told.name),
                rows=(),
                collective=made,
                lacks=lacks,
                assumed=assumed,
                host_us=entry.dur_us,
            )
        )
    return calls


def _with_spans(trace: Trace, calls: list[Call]) -> list[Call]:
    """Calls of an NPU's trace with the sizes that its device tasks tell, in order, where both are of one number."""
    activity = trace.activity
    if activity is None or not len(activity.spans):
        return calls
    by_kind: defaultdict[Kind, list[tuple[int, int]]] = defaultdict(list)
    for row in np.argsort(activity.spans.start_ns, kind="stable").tolist():
        told = activity.collectives[int(activity.spans.collective[row])]
        if (kind := kind_of(told.name)) is not None:
            by_kind[kind].append((int(activity.spans.collective[row]), int(activity.spans.dur_ns[row])))
    for kind, spans in by_kind.items():
        alike = [i for i, call in enumerate(calls) if any(kind_of(name) == kind for name in call.names)]
        if alike and len(alike) != len(spans):
            continue  # which is which is not known
        for index, (which, dur_ns) in enumerate(spans):
            told = activity.collectives[which]
            record = Record(name=told.name, dtype=told.dtype, elements=told.elements)
            made, lacks, assumed = _made(_Told(names=[told.name], record=record), trace.info.world_size)
            if not alike:
                calls.append(Call(name=told.name, names=(told.name,), rows=(), collective=made, lacks=lacks))
            at = alike[index] if alike else len(calls) - 1
            known = calls[at].collective is not None
            calls[at] = replace(
                calls[at],
                names=tuple(dict.fromkeys((*calls[at].names, told.name))),
                collective=calls[at].collective if known else made,
                lacks=calls[at].lacks if known else lacks,
                assumed=calls[at].assumed if known else assumed,
                device_us=dur_ns / 1e3,
                kernels=((told.name, dur_ns / 1e3),),
            )
    return calls


def same_work(one: Collective) -> Collective:
    """The collective without what does not change its work: which group of this size, and who recorded it."""
    return msgspec.structs.replace(one, group="", rank=None)
