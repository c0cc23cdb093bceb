# pyright: strict
"""Data types of collectives: which operation runs on how many elements in which group, and the result of its replay."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.traces.collectives.names import Kind
from opreplay.traces.dtypes import ITEMSIZE_BYTES

MAX_ELEMENTS = 1 << 48
"""Maximum elements of one message: more than any memory holds."""
MAX_PARTS = 1 << 16
"""Maximum number of tensors, splits or ranks that a collective lists."""

REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
POINT_TO_POINT = frozenset({"send", "recv"})
GATHERING = frozenset({"all_gather", "gather"})
SCATTERING = frozenset({"reduce_scatter", "scatter"})


class Collective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective as recorded by one of its ranks. Sizes are in elements of `dtype`."""

    kind: Kind
    dtype: str
    """dtype name as in torch."""
    in_elements: int
    """Number of input elements of this rank.

    For a broadcast, it is the number of elements that every rank has. For a scatter, it is that of the root's input.
    """
    out_elements: int
    """Output elements of this rank."""
    in_splits: tuple[int, ...] = ()
    """Elements sent to each rank of the group in an all-to-all. Empty if the split is even or not recorded."""
    out_splits: tuple[int, ...] = ()
    """Elements received from each rank."""
    parts: tuple[int, ...] = ()
    """Elements of each tensor if several are moved at once; their sum is `in_elements`."""
    group: str = ""
    """Name of the process group, "" if not recorded."""
    group_size: int | None = None
    """Number of participating ranks, or None if not recorded."""
    group_ranks: tuple[int, ...] = ()
    """Participating ranks, numbered as in the whole job."""
    rank: int | None = None
    """Rank, numbered as in the whole job, of the process that recorded the collective."""
    root: int | None = None
    """Root of a rooted collective, numbered as in the group."""
    source: int | None = None
    """Sender of a point-to-point operation, numbered as in the group."""
    target: int | None = None
    reduce_op: str = ""
    """Reduction, such as "sum", "avg" or "max"; "" if not recorded."""
    asynchronous: bool | None = None

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return ITEMSIZE_BYTES.get(self.dtype, 1)

    @property
    def size_bytes(self) -> int:
        """Return the message size as nccl-tests and hccl_test count it.

        For gathers, it is the data of all ranks together.
        """
        return size_elements(self) * self.itemsize


def size_elements(collective: Collective) -> int:
    """Return the number of elements of the message, by the convention of nccl-tests (its PERFORMANCE.md).

    For a gather or scatter, this is the larger of input and output. For other kinds, it is the buffer of one rank.
    """
    if collective.kind in GATHERING:
        return collective.out_elements
    return collective.in_elements


def bus_factor(kind: Kind, ranks: int) -> float:
    """Return bus bandwidth divided by algorithm bandwidth.

    This is the share of the message that must cross the slowest link. According to nccl-tests' PERFORMANCE.md, it is
    2(n-1)/n for all-reduce, and (n-1)/n for reduce-scatter, all-gather, all-to-all, gather and scatter. It is 1 for
    broadcast, reduce and send/recv. A barrier moves nothing and has 0.
    """
    if kind == "barrier":
        return 0.0
    if kind in ("broadcast", "reduce", "send", "recv"):
        return 1.0
    share = (ranks - 1) / ranks if ranks > 0 else 0.0
    return 2.0 * share if kind == "all_reduce" else share


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one collective in GB/s (10⁹ bytes), by nccl-tests' conventions."""

    time_us: float
    algorithm_gb_s: float
    """Message size divided by time."""
    bus_gb_s: float
    """Algorithm bandwidth times `bus_factor`.

    It is comparable with the bandwidth of the links for any number of ranks.
    """


def bandwidth(kind: Kind, size_bytes: int, ranks: int, time_us: float | None) -> Bandwidth | None:
    """Return the rates for a time, or None if the time is missing or not above 0."""
    if time_us is None or not time_us > 0:
        return None
    rate = size_bytes / time_us / 1e3
    return Bandwidth(time_us=time_us, algorithm_gb_s=rate, bus_gb_s=rate * bus_factor(kind, ranks))


WaitBy = Literal["one clock", "shortest rank", ""]
"""Method by which the wait for other ranks was separated from the time.

"one clock" is for ranks on one host and uses time stamps of its clock. "shortest rank" is for ranks on several hosts
and uses the rank with the shortest time, because that rank arrived last. "" means that the wait was not separated.
"""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of running a collective on real ranks; times are in microseconds per call."""

    backend: str
    ranks: int
    """Number of participating ranks."""
    ranks_recorded: int | None
    """Number of ranks of the recorded group; None if the trace does not record it."""
    elements: int
    """Number of elements of the message that was transferred, counted as by `size_elements`."""
    mapping: str = ""
    """Effect of running on other ranks or with fewer bytes than recorded, or "" if it ran as recorded."""
    transfer_us: float | None = None
    """Median time from the moment the last rank arrives until the last rank has finished."""
    wait_us: float | None = None
    """Median over the calls of the time that the first rank to arrive waited for the last one."""
    issue_us: float | None = None
    """Median time until an asynchronous call returned; None for a blocking call."""
    wait_by: WaitBy = ""
    checked: Literal["right", "wrong", "not checked"] = "not checked"
    check_detail: str = ""
    slowest_rank: int | None = None
    """Rank that most often arrived last."""


class CollectiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a collective that a result reports next to its times."""

    collective: Collective
    size_bytes: int
    """Recorded message size, by nccl-tests' convention."""
    recorded: Bandwidth | None = None
    """Rates with the recorded group; the time includes the wait for other ranks."""
    measured: Bandwidth | None = None
    simulated: dict[str, Bandwidth] = {}
    """Predicted rates by SoC."""
    replayed: Replayed | None = None
