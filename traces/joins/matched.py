# pyright: strict
"""Data types for collectives that were matched between several ranks of one job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

How = Literal["sequence", "order", "overlap"]


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's clock was aligned with the job's clock."""

    rank: int
    shift_us: float
    """Time that is added to the rank's times, in addition to the trace's base time."""
    corrected: bool
    """Whether the clock was shifted; False if times are used as recorded."""
    by: int
    """Number of collectives shared with the reference rank."""
    spread_us: float
    """Median difference that remains between the ends of the shared collectives; 0 if no collectives are shared."""
    against: int | None = None
    """The reference rank. None for the first rank of each set of ranks that share collectives."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a collective; start and end are in ns on the job's clock."""

    rank: int
    call: int
    """Index into the rank's calls."""
    start_ns: int
    end_ns: int
    waiting_us: float
    """Time until the last known member began, at most the duration of the call."""
    transfer_us: float
    """Duration of the call without the waiting time."""


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """One collective and its known members by rank."""

    kind: str
    group: str | None
    group_size: int | None
    sequence: int | None
    elements: int | None
    """Input elements of the first known member."""
    dtype: str | None
    how: How
    """How the members were matched: by recorded sequence number, by "order" within the group, or by "overlap" in time.
    Matches by order and by overlap are inferred.
    """
    members: tuple[Member, ...]

    @property
    def last_start_ns(self) -> int:
        """Return the start of the last known member in ns."""
        return max(member.start_ns for member in self.members)

    @property
    def late_rank(self) -> int:
        """Return the rank that began last."""
        return max(self.members, key=lambda member: member.start_ns).rank

    @property
    def skew_us(self) -> float:
        """Return the time in µs from the first member's start to the last member's."""
        return (self.last_start_ns - min(member.start_ns for member in self.members)) / 1e3

    @property
    def late_us(self) -> float:
        """Return by how many µs the last member began after the member before it."""
        starts = sorted(member.start_ns for member in self.members)
        return (starts[-1] - starts[-2]) / 1e3 if len(starts) > 1 else 0.0

    @property
    def transfer_us(self) -> float:
        """Return the median transfer time of the members."""
        return float(np.median([member.transfer_us for member in self.members]))

    @property
    def missing(self) -> int:
        """Return how many members of the group have no trace here. One of them may be the member that started last."""
        return max(0, (self.group_size or 0) - len(self.members))


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A property that should be equal for all members of a collective and is not."""

    collective: int
    """Index into `JobCollectives.matched`."""
    what: str
    """Property that differs: "operation", "dtype", "elements in", "elements out", "group size" or "splits"."""
    values: dict[str, str]
    """Recorded value by rank."""


class JobCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one job."""

    clocks: tuple[Clock, ...]
    matched: tuple[Matched, ...]
    """Matched collectives, sorted by the start of their last member."""
    disagreements: tuple[Disagreement, ...]
    unmatched: dict[int, int]
    """Rank → number of calls without a counterpart."""


class RankSum(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over several collectives for one rank; times are in µs."""

    rank: int
    collectives: int
    waiting_us: float
    transfer_us: float
    late: int
    """Number of collectives in which this rank was the last to begin."""
    late_us: float
    """Total time from the start of the last other rank to the start of this rank, over the `late` collectives."""


def sum_of_rank(matched: Iterable[Matched], rank: int) -> RankSum:
    """Return how long one rank waits for others, and how long it makes others wait."""
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
