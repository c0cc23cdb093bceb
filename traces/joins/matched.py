# pyright: strict
"""Collectives of several ranks of one job that were matched with each other, as values."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Literal

import msgspec

How = Literal["sequence", "order", "overlap"]


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's clock was aligned with the job's."""

    rank: int
    shift_us: float
    """Added to the rank's times, beyond what its base time says."""
    corrected: bool
    """False: as recorded."""
    by: int
    """Collectives that ended on this rank and on the one it was compared with."""
    spread_us: float
    """By how much their ends still differ, median; 0 without any."""
    against: int | None = None
    """The rank it was compared with; None for the first of those that share collectives."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a collective, ns on the job's clock."""

    rank: int
    call: int
    """Position in the rank's calls."""
    start_ns: int
    end_ns: int
    waiting_us: float
    """Until the last of the known members had begun."""
    transfer_us: float
    """The rest."""


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """One collective and its known members by rank."""

    kind: str
    group: str | None
    group_size: int | None
    sequence: int | None
    elements: int | None
    """That the first known member hands in."""
    dtype: str | None
    how: How
    """"sequence" is recorded; "order" within the group and "overlap" in time are inferred."""
    members: tuple[Member, ...]

    @property
    def last_start_ns(self) -> int:
        """Return when the last known member began."""
        return max(member.start_ns for member in self.members)

    @property
    def late_rank(self) -> int:
        """Return the rank that began last."""
        return max(self.members, key=lambda member: member.start_ns).rank

    @property
    def skew_us(self) -> float:
        """Return the time from the first start to the last."""
        return (self.last_start_ns - min(member.start_ns for member in self.members)) / 1e3

    @property
    def late_us(self) -> float:
        """Return how much later the last member began than the one before it."""
        starts = sorted(member.start_ns for member in self.members)
        return (starts[-1] - starts[-2]) / 1e3 if len(starts) > 1 else 0.0

    @property
    def transfer_us(self) -> float:
        """Return the median transfer time of the members."""
        return median(member.transfer_us for member in self.members)

    @property
    def missing(self) -> int:
        """Return how many members of the group have no trace here; the last one to start may be among them."""
        return max(0, (self.group_size or 0) - len(self.members))


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A property that the members of one collective should share and do not."""

    collective: int
    """Position in `JobCollectives.matched`."""
    what: str
    """"operation", "dtype", "elements in", "elements out", "group size", "splits"."""
    values: dict[str, str]
    """By rank."""


class JobCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one job."""

    clocks: tuple[Clock, ...]
    matched: tuple[Matched, ...]
    """By the start of the last member."""
    disagreements: tuple[Disagreement, ...]
    unmatched: dict[int, int]
    """Rank → calls without a counterpart."""


class RankSum(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of several collectives, µs."""

    rank: int
    collectives: int
    waiting_us: float
    transfer_us: float
    late: int
    """Collectives that it began last."""
    late_us: float
    """How much later than all others it began those."""


def sum_of_rank(matched: Iterable[Matched], rank: int) -> RankSum:
    """Return how long one rank waits, and how long it makes others wait."""
    mine = [(collective, member) for collective in matched for member in collective.members if member.rank == rank]
    late = [collective for collective, _ in mine if collective.late_rank == rank and collective.late_us > 0.0]
    return RankSum(
        rank=rank,
        collectives=len(mine),
        waiting_us=sum(member.waiting_us for _, member in mine),
        transfer_us=sum(member.transfer_us for _, member in mine),
        late=len(late),
        late_us=sum(collective.late_us for collective in late),
    )
