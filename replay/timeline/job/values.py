# pyright: strict
"""Result of `timeline --ranks` for one step of a job; see docs/timeline.md."""

from __future__ import annotations

import msgspec

from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.timeline import EdgeCount
from opreplay.traces.joins.matched import Clock, Disagreement

SCHEMA_VERSION = 1
"""Version of the JSON format. History: 1 is the first version."""
LEAST_COMMON = 0.5
"""Minimum overlap of two ranks' steps to count as one step of the job. Given as a share of the shorter step."""


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of the step."""

    rank: int
    source: str
    """Name of the rank's trace."""
    step: str
    recorded_step_us: float
    retimed_step_us: float
    """Rescheduled step length, with waits for the other ranks."""
    structure_error: float
    begins_us: float
    """Start of the rank's step on the host, relative to the start of the first rank's step."""
    categories_us: Categories
    """Recorded times; communication includes the waits for other ranks."""
    waiting_us: float
    """Waiting time in collectives of this step, until the last known member had started."""
    transfer_us: float
    late: int
    """Number of collectives in which this rank arrived last."""
    late_us: float
    """Time that the other ranks waited for this rank alone, in the collectives that it reached last."""
    unmatched: int
    """Number of this rank's collectives in the whole trace that match no collective of the other given ranks."""
    clock: Clock


class CollectiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a collective, in µs after the start of the first rank's step."""

    rank: int
    start_us: float
    end_us: float
    waiting_us: float
    transfer_us: float


class StepCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of the step."""

    kind: str
    group: str | None
    group_size: int | None
    sequence: int | None
    elements: int | None
    dtype: str | None
    matched_by: str
    """How the members were matched. "sequence" means by recorded sequence number. "order" and "overlap" (in time) are
    inferred.
    """
    skew_us: float
    """Time from the start of the first member to the start of the last one."""
    waiting_us: float
    """Waiting time, summed over all known members."""
    transfer_us: float
    """Time from the start of the last known member to a member's end; median over the members."""
    late_rank: int
    late_us: float
    """Time in which all other members waited only for `late_rank`, the rank that arrived last."""
    missing: int
    """Number of members without a given trace. If such a member arrives last, its delay is part of `transfer_us`."""
    members: tuple[CollectiveMember, ...]


class RankPathPart(msgspec.Struct, frozen=True, kw_only=True):
    """Time that one rank adds to the step of the job, in one op or in one kind of waiting."""

    rank: int | None
    name: str
    us: float
    where: str
    """"device", "host" or "wait"."""
    times: int


class JobSoc(msgspec.Struct, frozen=True, kw_only=True):
    """The job's step on simulated devices, one per rank."""

    step_us: float
    by_rank_us: dict[str, float]
    waiting_us: float
    """Waiting time for other ranks, summed over all ranks."""
    notes: tuple[str, ...]


class JobMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """The job's step with times measured in a run on this machine."""

    step_us: float
    by_rank_us: dict[str, float]
    waiting_us: float
    """Waiting time for other ranks, summed over all ranks."""
    ops: int
    """Number of calls, over all ranks, that have a measured time."""
    collectives: int
    """Number of collectives, counted per member, with a measured transfer time."""
    collectives_recorded: int
    """Number of collectives, counted per member, that keep the recorded time because they were not measured."""
    notes: tuple[str, ...]


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change on all ranks, with the resulting step length."""

    change: str
    step_us: float
    low_us: float
    high_us: float
    """Upper end of the range of `step_us`.

    The range covers two assumptions on all ranks: no unexplained waiting, and every possible dependency.
    """
    gain_us: float
    matched: int
    assumptions: tuple[str, ...]
    socs_us: dict[str, float] = {}


class JobTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One step of all given ranks. Times in µs."""

    schema_version: int = SCHEMA_VERSION
    world_size: int | None
    """Number of ranks of the job; None if no trace records it."""
    recorded_step_us: float
    """Length of the longest step among the ranks."""
    retimed_step_us: float
    """Step length from the joined graph with recorded durations. Ranks wait for each other in collectives."""
    structure_error: float
    categories_us: Categories
    """Mean of the recorded times of all ranks."""
    without_waiting_us: float
    """Length of the step if no rank waited for another. Each collective then takes only its transfer time."""
    waiting_us: float
    """Waiting time for other ranks, summed over all ranks."""
    ranks: tuple[RankStep, ...]
    collectives: tuple[StepCollective, ...]
    """Collectives of the step in which at least two of the given ranks take part."""
    disagreements: tuple[Disagreement, ...]
    """Properties that should be equal for all members of a collective but differ, in the whole traces.

    `collective` is an index into all matched collectives, not into `collectives`.
    """
    critical_path: tuple[RankPathPart, ...]
    edges: dict[str, EdgeCount]
    least_common: float
    """Overlap of the steps of the two ranks that overlap least, as a share of the shorter step."""
    dropped_collectives: int
    """Number of collectives dropped because they contradict the order of other collectives."""
    measured: JobMeasured | None = None
    """The step with times measured on this machine; None if none were given."""
    socs: dict[str, JobSoc] = {}
    what_if: tuple[JobChange, ...] = ()
    notes: tuple[str, ...] = ()
