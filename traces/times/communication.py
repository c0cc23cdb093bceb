# pyright: strict
"""Decide which device work is communication, based on its name, its arguments, its op, and other work on its stream."""

from __future__ import annotations

import re

import numpy as np

from opreplay.traces.activity import Activity
from opreplay.traces.arrays import Bools, Ints, distinct
from opreplay.traces.collectives.communication import is_communication, is_communication_op
from opreplay.traces.links.annotations import AnnotationTable
from opreplay.traces.model import KERNEL_CATEGORIES, Trace
from opreplay.traces.times.kernel_classes import class_of, class_of_work, is_uninformative

_MARKED = re.compile(
    r"(?:(?:moe|ep|deepep|buffer)[_.:]*)?(?:dispatch|combine)(?:[_ ]?\d*|\(\w*\))$|.*(?:all_?to_?all|a2a)",
    re.IGNORECASE,
)
"""Names of annotations with which users mark communication: "dispatch(F)", "combine", "moe_all_to_all"."""


def communication_rows(trace: Trace) -> Bools:
    """Return a mask of the kernels that communicate with other devices.

    The kernel's name decides if it can. If not, one of these facts is enough. The kernel has a collective's arguments.
    A communication op launched it. It was launched inside a communication annotation ("dispatch(F)") but in no op. All
    kernels with known names on its stream communicate.
    """
    kernels, activity = trace.kernels, trace.activity
    if not len(kernels):
        return np.zeros(0, bool)
    name = kernels.name.astype(np.int64)
    on_kernels = _no_copies(trace)
    by_name = np.array([is_communication(text) for text in trace.kernel_names] or [False], bool)[name]
    out = by_name & on_kernels
    out |= _of_ops(trace, name) & on_kernels
    silent = np.array([is_uninformative(text) for text in trace.kernel_names] or [False], bool)[name] & on_kernels
    if activity is not None:
        out |= activity.collective >= 0
        out |= silent & _in_marked_ranges(trace, activity)
    unnamed = np.array([class_of(text) == "other" for text in trace.kernel_names] or [False], bool)[name]
    return out | _on_streams_of_communication(trace, out, unnamed & silent)


def _no_copies(trace: Trace) -> Bools:
    """Return a mask of rows that are not memory copies or fills. It includes all tasks of an NPU: they have one
    category.
    """
    return np.isin(
        trace.kernels.category,
        (KERNEL_CATEGORIES.index("memcpy"), KERNEL_CATEGORIES.index("memset")),
        invert=True,
    )


def _of_ops(trace: Trace, name: Ints) -> Bools:
    """Return a mask of rows that count as communication because of the op that owns them."""
    owner = trace.kernels.owner.astype(np.int64)
    is_op = np.array([is_communication_op(entry.name) for entry in trace.signatures] or [False], bool)
    out = np.zeros(len(owner), bool)
    rows = np.flatnonzero(owner >= 0)
    signature = trace.ops.signature[owner[rows]].astype(np.int64)
    rows, signature = rows[is_op[signature]], signature[is_op[signature]]
    count = len(trace.signatures)
    pairs, which = np.unique(name[rows] * count + signature, return_inverse=True)
    numbers: list[int] = pairs.tolist()
    named = [(trace.signatures[pair % count].name, trace.kernel_names[pair // count]) for pair in numbers]
    talks = np.array([class_of_work(op, kernel) == "communication" for op, kernel in named] or [False], bool)
    out[rows] = talks[which.reshape(-1)] if len(rows) else False
    return out


def _in_marked_ranges(trace: Trace, activity: Activity) -> Bools:
    """Return a mask of rows without an op that were launched inside an annotation that marks communication."""
    kernels, calls, notes = trace.kernels, activity.calls, AnnotationTable.of(trace.annotations)
    out = np.zeros(len(kernels), bool)
    if not len(notes) or not len(calls):
        return out
    marked = np.array([bool(_MARKED.match(text)) or is_communication_op(text) for text in notes.names], bool)
    asked = np.flatnonzero(marked[notes.name])
    inside = np.zeros(len(calls), bool)
    for track in distinct(notes.track[asked]).tolist():
        rows, ranges = np.flatnonzero(calls.track == track), asked[notes.track[asked] == track]
        rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
        begins = notes.start_ns[ranges].astype(np.int64)
        depth = np.zeros(len(rows) + 1, np.int64)
        np.add.at(depth, np.searchsorted(calls.start_ns[rows], begins), 1)
        np.add.at(depth, np.searchsorted(calls.start_ns[rows], begins + notes.dur_ns[ranges].astype(np.int64)), -1)
        inside[rows] = np.cumsum(depth[:-1]) > 0
    launched = calls.correlation[inside]
    return (kernels.owner < 0) & np.isin(activity.correlation, launched[launched >= 0])


def _on_streams_of_communication(trace: Trace, known: Bools, unnamed: Bools) -> Bools:
    """Return a mask of the kernels with uninformative names whose stream otherwise runs only communication.

    The mask is empty unless other streams compute.
    """
    kernels = trace.kernels
    out = np.zeros(len(kernels), bool)
    if not unnamed.any() or not known.any():
        return out
    works = _no_copies(trace) & ~known & ~unnamed
    devices, streams = kernels.device.astype(np.int64), kernels.stream.astype(np.int64)
    least = int(streams.min())
    keys = devices * (int(streams.max()) - least + 1) + streams - least
    _, stream = np.unique(keys, return_inverse=True)
    count = int(stream.max()) + 1
    n_known, n_unnamed, n_works = (np.bincount(stream[rows], minlength=count) for rows in (known, unnamed, works))
    only = (n_known > 0) & (n_works == 0) & (n_known >= n_unnamed) & bool(n_works.any())
    return unnamed & only[stream]
