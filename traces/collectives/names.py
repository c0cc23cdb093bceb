# pyright: strict
"""Map the recorded names of collectives to operations. Names such as "wait" and "init" map to none."""

from __future__ import annotations

import re
from typing import Literal, get_args

Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

EXPERTS = "moe_distribute_"
"""Prefix in names of ops that send tokens to the ranks of their experts ("npu_moe_distribute_dispatch") or back
("combine").
"""

WORDS: tuple[tuple[str, Kind | Literal["send_recv"]], ...] = (
    ("moedistributedispatch", "all_to_all"),
    ("moedistributecombine", "all_to_all"),
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("pointtopoint", "send_recv"),
    ("sendrecv", "send_recv"),
    ("oneshotall", "all_reduce"),
    ("twoshotall", "all_reduce"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("irecv", "recv"),
    ("isend", "send"),
    ("recv", "recv"),
    ("receive", "recv"),
    ("send", "send"),
)
"""(Word contained in a name, operation); the first match counts. Names are reduced to lower-case letters."""

_NOT_ONE = re.compile(
    r"wait|^init|work|coalescingmanager|startcoalescing|endcoalescing|^coalesced$|rank|pg|processgroup|destroy"
    r"|isstrided|supports|registermem|shutdown|abort"
)


def operation_of(name: str) -> Kind | Literal["send_recv"] | None:
    """Return the operation that a recorded name stands for; None if it moves no data.

    "send_recv" stands for one kernel that all sending operations share. Recognised names are, for example,
    "c10d::allreduce_", "nccl:all_reduce", "_allgather_base", "HcclAllreduce", "hcom_allReduce__868_0_1" and
    "all_to_allv".
    """
    plain = re.sub(r"[^a-z]", "", name.split("(")[0].rpartition("::")[2].rpartition(":")[2].lower())
    if not plain or _NOT_ONE.search(plain.removeprefix("hcom").removeprefix("hccl")):
        return None
    return next((kind for word, kind in WORDS if word in plain), None)


def is_wait(name: str) -> bool:
    """Check whether an op only waits for a collective ("_c10d_functional::wait_tensor")."""
    return name.endswith("::wait_tensor")


def kind_of(name: str) -> Kind | None:
    """Return the operation that a recorded name stands for, like `operation_of`, but "send" instead of "send_recv"."""
    operation = operation_of(name)
    return "send" if operation == "send_recv" else operation
