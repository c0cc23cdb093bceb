"""Events of collectives as torch's profiler records them, for tests of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def collective_event(
    name: str,
    ts: float,
    *,
    collective: str,
    elements: int,
    out: int | None = None,
    dtype: str = "Float",
    group: Sequence[int] = (0, 1),
    dur: float = 10.0,
    op: dict[str, Any] | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """A c10d op and the `record_param_comms` inside it; `op` are arguments of the former, `more` of the latter."""
    told = {
        "Collective name": collective,
        "In msg nelems": elements,
        "Out msg nelems": elements if out is None else out,
        "dtype": dtype,
        "Group size": len(group),
        "Process Group Name": "0",
        "Process Group Ranks": str(list(group)),
        "In split size": "[]",
        "Out split size": "[]",
        **more,
    }
    base = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    return [
        {**base, "name": name, "ts": ts, "dur": dur, "args": op or {}},
        {**base, "name": "record_param_comms", "ts": ts + 1, "dur": dur - 2, "args": told},
    ]


EVERY = (
    ("c10d::allreduce_", {"collective": "allreduce", "elements": 1000}),
    ("c10d::allreduce_", {"collective": "allreduce", "elements": 301, "dtype": "BFloat16"}),
    ("c10d::_allgather_base_", {"collective": "_allgather_base", "elements": 100, "out": 200, "dtype": "Half"}),
    ("c10d::_reduce_scatter_base_", {"collective": "_reduce_scatter_base", "elements": 200, "out": 100}),
    ("c10d::alltoall_base_", {"collective": "all_to_all", "elements": 64, "dtype": "Long"}),
    (
        "c10d::alltoall_base_",
        {
            "collective": "all_to_allv",
            "elements": 30,
            "out": 40,
            "dtype": "Int",
            "In split size": "[2, 1]",
            "Out split size": "[2, 2]",
        },
    ),
    ("c10d::broadcast_", {"collective": "broadcast", "elements": 53, "dtype": "Long", "Rank": 1}),
    ("c10d::reduce_", {"collective": "reduce", "elements": 40, "Rank": 1}),
    ("c10d::gather_", {"collective": "gather", "elements": 40, "out": 80, "Rank": 0}),
    ("c10d::scatter_", {"collective": "scatter", "elements": 80, "out": 40, "Rank": 0}),
    ("c10d::send", {"collective": "send", "elements": 77, "Src Rank": 1, "Dst Rank": 0}),
    ("c10d::recv_", {"collective": "recv", "elements": 78, "dtype": "Float8_e4m3fn"}),
    ("c10d::barrier", {"collective": "barrier", "elements": 0}),
    ("c10d::allreduce_", {"collective": "allreduce", "elements": 24, "dtype": "Short"}),
    ("_c10d_functional::all_reduce", {"collective": "allreduce", "elements": 60, "Is asynchronized op": True}),
)
"""(name of the op, what `record_param_comms` says): one of each, with uneven splits and odd dtypes."""


def every_collective(group: Sequence[int] = (0, 1)) -> list[dict[str, Any]]:
    """Events of one call of each."""
    return [
        event
        for number, (name, told) in enumerate(EVERY)
        for event in collective_event(name, 100.0 * number, group=group, **told)
    ]
