# pyright: strict
"""Collectives of a job's ranks → what a batch says of them: skew, waiting and transfer, who is late, what disagrees."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from opreplay.replay.results.records import CollectivesResult
from opreplay.traces.joins.ranks import RankCalls, match, sum_of_rank

MOST_DISAGREEMENTS = 100


def collectives_of_job(ranks: Sequence[RankCalls]) -> CollectivesResult | None:
    """The collectives of several ranks matched; None where no two of them share one."""
    if len({one.rank for one in ranks}) < 2:
        return None
    base = ranks[0].origin_ns
    found = match([msgspec.structs.replace(one, origin_ns=one.origin_ns - base) for one in ranks])
    if not found.matched:
        return None
    sums = [sum_of_rank(found.matched, one.rank) for one in sorted(ranks, key=lambda one: one.rank)]
    return CollectivesResult(
        matched=len(found.matched),
        inferred=sum(one.how != "sequence" for one in found.matched),
        skew_us=median(one.skew_us for one in found.matched),
        waiting_us=sum(one.waiting_us for one in sums),
        transfer_us=sum(one.transfer_us for one in sums),
        ranks=tuple(sums),
        clocks=found.clocks,
        disagreements=len(found.disagreements),
        disagreeing=found.disagreements[:MOST_DISAGREEMENTS],
        missing=max(one.missing for one in found.matched),
        unmatched=sum(found.unmatched.values()),
    )
