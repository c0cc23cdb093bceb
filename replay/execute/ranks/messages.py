# pyright: strict
"""What goes between a rank's process and who feeds it, as values."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.replay.collectives.mapping import Share
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.reasons import Reason

Backend = Literal["gloo", "nccl", "hccl"]


def backend_of(device: str) -> Backend:
    """The back-end that a device has of its own."""
    kind = device.partition(":")[0]
    return "nccl" if kind == "cuda" else "hccl" if kind == "npu" else "gloo"


class RankConfig(msgspec.Struct, frozen=True, kw_only=True, tag="rank config"):
    """All that the process of a rank needs to know before its first collective."""

    rank: int
    world: int
    backend: Backend
    device: str
    """"cpu", or "cuda:1", ..."""
    store: str
    """Where the ranks find each other: path of a file that they share, or host:port of a TCP store."""
    prefix: str = ""
    """Of the keys in a TCP store."""
    threads: int = 1
    memory_bytes: int
    """For the buffers of this rank."""
    measure: MeasureOptions
    check: bool = True


class RankTask(msgspec.Struct, frozen=True, kw_only=True, tag="rank task"):
    """One collective to run, the same for all ranks."""

    number: int
    share: Share


class RankReply(msgspec.Struct, frozen=True, kw_only=True, tag="rank reply"):
    """What one rank says of one collective; times in microseconds a call."""

    number: int
    rank: int
    took_part: bool = True
    reason: Reason | None = None
    """Why it could not."""
    samples_us: tuple[float, ...] = ()
    """Of each sample the time of one call, in order."""
    calls: int = 1
    """In a sample."""
    first_us: float | None = None
    issue_us: tuple[float, ...] = ()
    arrived_ns: tuple[int, ...] = ()
    """On this host's monotonic clock, of each stamped call: when it began."""
    done_ns: tuple[int, ...] = ()
    host: str = ""
    """Which clock these are of."""
    wrong: str | None = None
    """What a check found, "" for nothing; None where nothing was checked."""
    assumed: str = ""
    """What differs in the call, such as another dtype."""
