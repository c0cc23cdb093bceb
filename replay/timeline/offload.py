# pyright: strict
"""Convert a step recorded on the CPU as if a device had run its ops. Each op becomes a launch and a task on one stream.

This module decides which ops a device runs and what stays on the host. `simulated` predicts the times of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from opreplay.replay.ascend.custom.estimators import has_own_cost
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ir.labels import is_collective
from opreplay.replay.ir.model import ReplayOp
from opreplay.traces import Trace, innermost_parent
from opreplay.traces.arrays import Bools, Floats, Ints
from opreplay.traces.links.optimizer_counters import optimizer_counters
from opreplay.traces.links.parents import outermost_of
from opreplay.traces.model import OpSignature

DISPATCH_US = 16.0
"""Host time in µs to dispatch an op to an NPU. It replaces the time of the op's work on the CPU.

15.7 µs is the median of 140 outermost ops of a public torch_npu profile (timeline test data of MindStudio Insight). The
quartiles are 11 and 42 µs.
"""
DISPATCH_BAND = 2.5
"""Factor of the 80 % band of `DISPATCH_US`. With it, the upper end is the third quartile of the same profile."""
HOST_RATIO = 2.1
"""Ratio of host times for ops without device work (views, empty tensors): NPU hosts to the hosts of five public H100
traces.

The ratio is the median over seven ops that occur both in these traces and in the torch_npu profile of `DISPATCH_US`.
For another torch_npu profile, it is 7.6.
"""
BLOCKING = (
    "aten::_local_scalar_dense",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_dim",
    "aten::_unique2",
)
"""Ops whose results the host needs, so the host waits for the device."""
_SYNCHRONISE = "aclrtSynchronizeStream"


def _leaves_host(signature: OpSignature, op: ReplayOp | None) -> bool:
    """Check whether an op would launch kernels on an NPU."""
    return op is not None and not is_collective(signature) and (has_own_cost(op) or bool(lower(op).kernels))


def offloaded(trace: Trace, ops: Mapping[str, ReplayOp]) -> tuple[Trace, Floats]:
    """Return (trace, host µs by op row). The trace gets a task for each outermost call of an op with NPU kernels.

    `ops` maps ids to a plan's ops. The host µs are `DISPATCH_US` for ops that got a task. They are NaN for all other
    work (views, Python), which keeps its time. A task's recorded time is the time of its op. The trace must have been
    read with its activity and have no device work.
    """
    from opreplay.replay.plan.recorded.groups import signature_id

    activity = trace.activity
    assert activity is not None
    assert not len(trace.kernels)
    planned = [ops.get(signature_id(op)) for op in trace.signatures]
    leaves = np.array(list(map(_leaves_host, trace.signatures, planned)), bool)
    known = np.array([op is not None for op in planned], bool)
    rows = _outermost(trace, known)
    counters = optimizer_counters(trace)
    rows = rows[leaves[trace.ops.signature[rows]] & ~counters[rows]] if len(rows) else rows
    table, n = trace.ops, len(rows)
    host_us = np.full(len(table), np.nan)
    host_us[rows] = DISPATCH_US
    signatures = table.signature[rows].astype(np.int64)
    used, name = np.unique(signatures, return_inverse=True)
    names = tuple(trace.signatures[int(index)].name for index in used)
    calls = activity.calls
    first = int(calls.correlation.max(initial=-1)) + 1
    ids = np.arange(first, first + n)
    blocking = np.array([s.name in BLOCKING for s in trace.signatures] or [False])[table.signature]
    waits = np.flatnonzero(blocking & ~counters)  # the value of a counter is the host's already
    zeros = np.zeros(n, np.int64)
    # A wait begins just after the launch of its own op, whose result it is for.
    lasting = np.maximum(table.dur_ns[waits].astype(np.int64) - 1, 1)
    calls_made = msgspec.structs.replace(
        calls,
        name=np.concatenate(
            [calls.name, np.full(n, len(activity.names)), np.full(len(waits), len(activity.names) + 1)]
        ).astype(np.uint32),
        kind=np.concatenate([calls.kind, np.zeros(n + len(waits), np.uint8)]).astype(np.uint8),
        start_ns=np.concatenate([calls.start_ns, table.start_ns[rows], table.start_ns[waits] + 1]),
        dur_ns=np.concatenate([calls.dur_ns.astype(np.int64), zeros, lasting]),
        track=np.concatenate([calls.track.astype(np.int64), table.track[rows], table.track[waits]]),
        correlation=np.concatenate([calls.correlation, ids, np.full(len(waits), -1)]),
    )
    kernels = msgspec.structs.replace(
        trace.kernels,
        name=(len(trace.kernel_names) + name.reshape(-1)).astype(np.uint32),
        category=zeros.astype(np.uint8),
        start_ns=table.start_ns[rows],
        dur_ns=table.dur_ns[rows],
        device=zeros.astype(np.int32),
        stream=zeros.astype(np.int32),
        owner=rows,
    )
    return (
        msgspec.structs.replace(
            trace,
            kernel_names=(*trace.kernel_names, *names),
            kernels=kernels,
            activity=msgspec.structs.replace(
                activity,
                names=(*activity.names, "(launches)", _SYNCHRONISE),
                calls=calls_made,
                correlation=ids,
                collective=np.full(n, -1, np.int64),
            ),
        ),
        host_us,
    )


def _outermost(trace: Trace, known: Bools) -> Ints:
    """Return the rows of the ops in the plan that are not inside another op in the plan."""
    table = trace.ops
    if not len(table):
        return np.empty(0, np.int64)
    planned = known[table.signature]
    parents = innermost_parent(table)
    alone = outermost_of(parents, planned) == np.arange(len(table))
    return np.flatnonzero(alone & (table.dur_ns > 0))
