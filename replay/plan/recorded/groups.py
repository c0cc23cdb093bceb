# pyright: strict
"""Groups recorded calls into ops and collects the device work of each. Resolves nothing and does not need torch."""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec
import numpy as np

from opreplay.replay.ir.model import RecordedKernel
from opreplay.replay.plan.select import keeps_name
from opreplay.replay.plan.selection import OpFilter
from opreplay.traces.arrays import Floats, Ints, distinct
from opreplay.traces.dtypes import common_spelling
from opreplay.traces.links.parents import innermost_of, innermost_parent
from opreplay.traces.model import OpSignature, Trace

Rows = Ints
_ARITHMETIC = (
    "aten::_foreach_add",
    "aten::_foreach_sub",
    "aten::_foreach_mul",
    "aten::_foreach_div",
    "aten::_foreach_lerp",
    "aten::_fused_adam",
    "aten::_fused_sgd",
    "aten::_fused_adagrad",
    "aten::addcdiv",
    "aten::addcmul",
    "aten::lerp",
)
"""Name prefixes of optimizer ops, whose scalar arguments change in each step."""
_PLAIN = frozenset(f"aten::{name}{end}" for name in ("add", "sub", "mul", "div", "rsub") for end in ("", "_"))
"""ATen ops that multiply by a number or add one; the number does not affect their cost."""
_FLOAT = r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e))(?:e[-+]?\d+)?"
_FLOATS = re.compile(rf"\[?{_FLOAT}(?:, {_FLOAT})*\]?")
"""A floating-point number, or a list of them, as written in traces."""


def is_arithmetic(name: str) -> bool:
    """Check whether the floating-point arguments of an op are only factors or addends, which do not affect its cost."""
    return name in _PLAIN or name.startswith(_ARITHMETIC)


def signature_id(signature: OpSignature) -> str:
    """Return a stable hash of a recorded signature, as 12 hex digits.

    Floating-point numbers that are only factors or addends are left out. Adam's bias correction, for example, changes
    them in each step, but the work stays the same. If compilers spell a type differently, the hash is the same.
    """
    concrete = signature.concrete
    if concrete is not None and is_arithmetic(signature.name):
        concrete = tuple("float" if _FLOATS.fullmatch(text) else text for text in concrete)
    types = None if signature.types is None else tuple(map(common_spelling, signature.types))
    parts = [signature.name, signature.dims, types, signature.strides, concrete]
    if signature.overload is not None or signature.list_types is not None or signature.storage is not None:
        lists = signature.list_types and tuple(tuple(map(common_spelling, names)) for names in signature.list_types)
        parts += [signature.overload, lists, signature.storage]
    return blake2b(msgspec.json.encode(parts), digest_size=6).hexdigest()


def signature_of(trace: Trace, row: int) -> OpSignature:
    """Return the signature of a recorded call."""
    return trace.signatures[int(trace.ops.signature[row])]


def grouped_rows(trace: Trace, rows: Rows) -> list[Rows]:
    """Return the rows of each signature, in order of first appearance."""
    if not len(rows):
        return []
    signature = trace.ops.signature[rows].astype(np.int64)
    order = np.argsort(signature, kind="stable")
    bounds = np.flatnonzero(np.diff(signature[order])) + 1
    return sorted(np.split(rows[order], bounds), key=lambda part: part[0])


def heaviest_rows(
    trace: Trace, rows: Rows, select: str, filters: OpFilter, total_us: float, *, on_device: bool
) -> Rows:
    """Return the `rows` whose ops pass the filters by name, `top` and `min_share`. Only the total time of each op is
    used.
    """
    same = _first_of_same_op(trace, rows)
    signature = same[trace.ops.signature[rows]]
    present, first = np.unique(signature, return_index=True)
    if filters.include or filters.exclude:
        indices: list[int] = present.tolist()
        named = [keeps_name(filters, trace.signatures[i].name) for i in indices]
        present, first = present[named], first[named]
    if filters.top is not None or filters.min_share is not None:
        count = len(trace.signatures)
        if on_device:
            owner = owner_among(trace, rows, select)
            owned = owner >= 0
            of_kernel = same[trace.ops.signature[owner[owned]]]
            ns = np.bincount(of_kernel, weights=trace.kernels.dur_ns[owned], minlength=count)
        else:
            ns = np.bincount(signature, weights=trace.ops.dur_ns[rows], minlength=count)
        present = present[np.lexsort((first, -ns[present]))]
        least_ns = (filters.min_share or 0.0) * total_us * 1e3
        present = present[ns[present] >= least_ns * (1 - 1e-9)][: filters.top]
    return rows[np.isin(signature, present)]


def _first_of_same_op(trace: Trace, rows: Rows) -> Ints:
    """Map each signature of the trace to the first signature of the same op (`signature_id`)."""
    same = np.arange(len(trace.signatures), dtype=np.int64)
    first: dict[str, int] = {}
    present: list[int] = distinct(trace.ops.signature[rows]).tolist()
    for index in present:
        signature = trace.signatures[index]
        if signature.concrete is not None and is_arithmetic(signature.name):
            same[index] = first.setdefault(signature_id(signature), index)
    return same


def owner_among(trace: Trace, rows: Rows, select: str) -> Rows:
    """Return, for each kernel, the selected row to which its time is attributed; -1 if there is none.

    This row is that of the kernel's owner, i.e. the op that launched it. For "top", it is the outermost op around the
    owner.
    """
    owner = trace.kernels.owner.astype(np.int64)
    chosen = np.zeros(len(trace.ops) + 1, dtype=bool)
    chosen[rows] = True
    if select == "top":
        owned = owner >= 0
        owner[owned] = innermost_of(innermost_parent(trace.ops), chosen[:-1])[owner[owned]]
    return np.where((owner >= 0) & chosen[owner], owner, -1)


def device_ns_of(trace: Trace, rows: Rows, select: str) -> Floats:
    """Return the device time in ns attributed to each row of `trace.ops`; 0 for rows that are not selected."""
    owner = owner_among(trace, rows, select)
    owned = owner >= 0
    weights = trace.kernels.dur_ns[owned].astype(np.float64)
    return np.bincount(owner[owned], weights=weights, minlength=len(trace.ops)).astype(np.float64)


def kernels_by_signature(trace: Trace, owner: Rows) -> dict[int, tuple[RecordedKernel, ...]]:
    """Map each signature to the kernels that its calls own, those with the most time first."""
    owned = np.flatnonzero(owner >= 0)
    signature = trace.ops.signature[owner[owned]].astype(np.int64)
    kinds = _kernel_types(trace)
    key = signature * max(1, len(trace.kernel_names)) + trace.kernels.name[owned]
    unique, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    totals = np.bincount(inverse, weights=trace.kernels.dur_ns[owned], minlength=len(unique)) / 1e3
    by_signature: dict[int, list[RecordedKernel]] = {}
    names: tuple[str, ...] = trace.kernel_names
    for which, count, total in zip(unique.tolist(), counts.tolist(), totals.tolist(), strict=True):
        index, name = divmod(int(which), max(1, len(names)))
        by_signature.setdefault(index, []).append(
            RecordedKernel(name=names[name], count=count, total_us=total, type=kinds.get(name))
        )
    return {index: tuple(sorted(kernels, key=lambda k: -k.total_us)) for index, kernels in by_signature.items()}


def _kernel_types(trace: Trace) -> dict[int, str]:
    """Map the index of a kernel name to the CANN type of its kernels. The mapping is empty if no kernel table was
    joined.
    """
    if trace.details is None:
        return {}
    described = np.flatnonzero(trace.details.kind >= 0)
    names: list[int] = trace.kernels.name[described].tolist()
    kinds: list[int] = trace.details.kind[described].tolist()
    return {name: trace.details.kinds[kind].type for name, kind in zip(names, kinds, strict=True)}
