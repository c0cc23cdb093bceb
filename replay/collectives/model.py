# pyright: strict
"""Data types of collectives: which operation runs on how many elements in which group, and the result of replaying
it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.traces.collectives.names import Kind
from opreplay.traces.dtypes import ITEMSIZE_BYTES

MAX_ELEMENTS = 1 << 48
"""Of one message: more than any memory holds."""
MAX_PARTS = 1 << 16
"""Tensors, splits or ranks that a collective lists at most."""

REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
POINT_TO_POINT = frozenset({"send", "recv"})
GATHERING = frozenset({"all_gather", "gather"})
SCATTERING = frozenset({"reduce_scatter", "scatter"})


class Collective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective as recorded by one of its ranks. Sizes are in elements of `dtype`."""

    kind: Kind
    dtype: str
    """torch dtype name."""
    in_elements: int
    """That this rank hands in; of a broadcast what every rank has, of a scatter what the root hands out."""
    out_elements: int
    """That this rank gets."""
    in_splits: tuple[int, ...] = ()
    """Of an all-to-all: elements for each rank of the group; empty where even, or not recorded."""
    out_splits: tuple[int, ...] = ()
    """Elements from each rank."""
    parts: tuple[int, ...] = ()
    """Elements of each tensor where several move at once; they add up to `in_elements`."""
    group: str = ""
    """Name of the process group, "" where not recorded."""
    group_size: int | None = None
    """Ranks that take part; None where not recorded."""
    group_ranks: tuple[int, ...] = ()
    """Which ranks of the job these are."""
    rank: int | None = None
    """Rank in the job of the process that recorded it."""
    root: int | None = None
    """Of a rooted collective, as rank of the group."""
    source: int | None = None
    """Of a point-to-point operation: who sends, as rank of the group."""
    target: int | None = None
    reduce_op: str = ""
    """"sum", "avg", "max", ...; "" where not recorded."""
    asynchronous: bool | None = None

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return ITEMSIZE_BYTES.get(self.dtype, 1)

    @property
    def size_bytes(self) -> int:
        """Return the message size as nccl-tests and hccl_test count it: for gathers, the data of all ranks together."""
        return size_elements(self) * self.itemsize


def size_elements(collective: Collective) -> int:
    """Return the elements of the message by the convention of nccl-tests (its PERFORMANCE.md).

    For a gather or scatter this is the larger side, otherwise the buffer of one rank.
    """
    if collective.kind in GATHERING:
        return collective.out_elements
    return collective.in_elements


def bus_factor(kind: Kind, ranks: int) -> float:
    """Return bus bandwidth divided by algorithm bandwidth: the share of the message that must cross the slowest link.

    From nccl-tests' PERFORMANCE.md: all-reduce 2(n-1)/n; reduce-scatter, all-gather, all-to-all, gather and scatter
    (n-1)/n; broadcast, reduce and send/recv 1. A barrier, which moves nothing, has 0.
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
    """Message over time."""
    bus_gb_s: float
    """The same times `bus_factor`: to be compared with what the links carry, whatever the number of ranks."""


def bandwidth(kind: Kind, size_bytes: int, ranks: int, time_us: float | None) -> Bandwidth | None:
    """Return the rates for a time; None if there is no time or no data."""
    if time_us is None or not time_us > 0:
        return None
    rate = size_bytes / time_us / 1e3
    return Bandwidth(time_us=time_us, algorithm_gb_s=rate, bus_gb_s=rate * bus_factor(kind, ranks))


WaitBy = Literal["one clock", "shortest rank", ""]
"""How waiting was told apart: by stamps of the one clock of a host; where ranks are on several hosts by the rank that
took the shortest, which arrived last; "" for not at all."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """How a collective ran on real ranks; times in microseconds per call."""

    backend: str
    ranks: int
    """That took part."""
    ranks_recorded: int | None
    """Of the recorded group; None where the trace does not say."""
    elements: int
    """Of the message that ran, as `size_elements` counts."""
    mapping: str = ""
    """What running on other ranks than recorded, or on fewer bytes, means; "" where it ran as recorded."""
    transfer_us: float | None = None
    """Median from the moment the last rank arrived to the moment the last rank was done."""
    wait_us: float | None = None
    """Median over the calls of how long the first rank to arrive waited for the last."""
    issue_us: float | None = None
    """Median time until an asynchronous call returned; None for one that blocks."""
    wait_by: WaitBy = ""
    checked: Literal["right", "wrong", "not checked"] = "not checked"
    check_detail: str = ""
    slowest_rank: int | None = None
    """Rank that most often arrived last."""


class CollectiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a collective that a result reports next to its times."""

    collective: Collective
    size_bytes: int
    """As recorded, by nccl-tests' convention."""
    recorded: Bandwidth | None = None
    """With the recorded group; the time holds the wait for other ranks."""
    measured: Bandwidth | None = None
    simulated: dict[str, Bandwidth] = {}
    """By SoC."""
    replayed: Replayed | None = None
