# pyright: strict
"""The result of `timeline --ranks` for one step of a job, as values; see docs/timeline.md."""

from __future__ import annotations

import msgspec

from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.timeline import EdgeCount
from opreplay.traces.joins.matched import Clock, Disagreement

SCHEMA_VERSION = 1
"""Of the JSON form. Changes of format: 1 first version."""
LEAST_COMMON = 0.5
"""Of the shorter one of two ranks' steps, that both have in common where they are one step of the job."""


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of the step."""

    rank: int
    source: str
    """Name of its trace."""
    step: str
    recorded_step_us: float
    retimed_step_us: float
    """With the other ranks."""
    structure_error: float
    begins_us: float
    """Its step on the host, after the first rank's."""
    categories_us: Categories
    """Recorded; communication holds the waiting for other ranks."""
    waiting_us: float
    """In collectives of this step, until the last known member had begun."""
    transfer_us: float
    late: int
    """Collectives that waited for this rank."""
    late_us: float
    """How long they did after all others were there."""
    unmatched: int
    """Collectives of the whole trace without a counterpart on another rank given."""
    clock: Clock


class CollectiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of one collective, µs after the start of the first rank's step."""

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
    """"sequence" is recorded; "order" in the group and "overlap" in time are inferred."""
    skew_us: float
    """From the first member's start to the last one's."""
    waiting_us: float
    """Of all known members together."""
    transfer_us: float
    """After the last known member had begun; median of the members."""
    late_rank: int
    late_us: float
    """How long the others waited for it alone."""
    missing: int
    """Members whose traces were not given: the latest may be among them, and its time is in `transfer_us`."""
    members: tuple[CollectiveMember, ...]


class RankPathPart(msgspec.Struct, frozen=True, kw_only=True):
    """Contribution of one op, or one kind of waiting, of one rank to the step of the job."""

    rank: int | None
    name: str
    us: float
    where: str
    """"device", "host" or "wait"."""
    times: int


class JobSoc(msgspec.Struct, frozen=True, kw_only=True):
    """The step of the job on simulated devices, one per rank."""

    step_us: float
    by_rank_us: dict[str, float]
    waiting_us: float
    """For other ranks, all ranks together."""
    notes: tuple[str, ...]


class JobMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """The step of the job with times measured in a run on this machine."""

    step_us: float
    by_rank_us: dict[str, float]
    waiting_us: float
    """For other ranks, all ranks together."""
    ops: int
    """Calls of all ranks that took a measured time."""
    collectives: int
    """Members' collectives that took a measured transfer."""
    collectives_recorded: int
    """That had none, and took the recorded one."""
    notes: tuple[str, ...]


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change on all ranks, with the resulting step length."""

    change: str
    step_us: float
    low_us: float
    high_us: float
    """Of `step_us`: without waiting that nothing explains, and with every dependency that may exist, on all ranks."""
    gain_us: float
    matched: int
    assumptions: tuple[str, ...]
    socs_us: dict[str, float] = {}


class JobTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One step of all given ranks. Times in µs."""

    schema_version: int = SCHEMA_VERSION
    world_size: int | None
    """Ranks of the job; None where no trace says so."""
    recorded_step_us: float
    """The longest of the ranks."""
    retimed_step_us: float
    """The graph of all ranks with recorded durations: ranks wait for each other as collectives make them."""
    structure_error: float
    categories_us: Categories
    """Mean of the ranks, recorded."""
    without_waiting_us: float
    """The step if no rank ever waited for another: each collective its transfer alone."""
    waiting_us: float
    """For other ranks, all ranks together."""
    ranks: tuple[RankStep, ...]
    collectives: tuple[StepCollective, ...]
    """Of the step, that at least two of the ranks given take part in."""
    disagreements: tuple[Disagreement, ...]
    """`collective` is the position in all that were matched; of the whole traces."""
    critical_path: tuple[RankPathPart, ...]
    edges: dict[str, EdgeCount]
    least_common: float
    """Of the two ranks' steps that lie farthest apart: the share of the shorter one that both have in common."""
    dropped_collectives: int
    """That contradict the order of others."""
    measured: JobMeasured | None = None
    """None where no measured times were given."""
    socs: dict[str, JobSoc] = {}
    what_if: tuple[JobChange, ...] = ()
    notes: tuple[str, ...] = ()
