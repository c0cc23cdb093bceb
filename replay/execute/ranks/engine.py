# pyright: strict
"""Run the collectives of a plan on ranks, and all other ops on another engine.

Compute the figures of the collectives.

This module combines the times of the ranks. `timing` measures them, and `crew` starts the ranks.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from opreplay.replay.collectives.mapping import Share, TooFewRanks, map_collective
from opreplay.replay.collectives.model import Collective, Replayed, WaitBy
from opreplay.replay.execute.measure import scale_to_whole_op, summarize
from opreplay.replay.execute.messages import RankConfig, RankReply, RankTask
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.processes.lanes import Decide, Engine, Step
from opreplay.replay.execute.processes.workers import Death, Workers
from opreplay.replay.execute.ranks.crew import reason_of
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp
from opreplay.replay.results.outcome import Outcome, unable

RESOLUTION_US = 0.1
"""Resolution of the monotonic clock, including a Python call."""


class WithRanks:
    """An `Engine` that runs collectives first and then all other ops. Nothing else runs at the same time as a
    collective.
    """

    def __init__(self, others: Engine, ranks: Workers, config: RankConfig) -> None:
        """`config` is the configuration of the `ranks`; `others` runs all other ops."""
        self._others, self._ranks, self._rank_config = others, ranks, config

    def start(self) -> dict[str, object]:
        facts = self._ranks.start()
        try:
            return {**self._others.start(), "ranks": self._rank_config.world, "rank_facts": facts}
        except BaseException:
            self._ranks.close()
            raise

    def outcomes(self, ops: Iterable[ReplayOp], decide: Decide) -> Iterator[Step]:
        every = list(ops)
        for op in every:
            if op.collective is not None:
                yield op
                yield op, decide(op) or self._outcome(op.collective)
        self._ranks.close()
        yield from self._others.outcomes((op for op in every if op.collective is None), decide)

    def close(self) -> None:
        try:
            self._ranks.close()
        finally:
            self._others.close()

    def share_of(self, collective: Collective) -> Share | Outcome:
        """Return the collective in the form that the ranks run, or an outcome that says why they cannot run it."""
        world = self._rank_config.world
        try:
            return map_collective(collective, world, max_bytes=self._rank_config.memory_bytes * world)
        except TooFewRanks as error:
            return unable(Reason("collective", f"{error}: --ranks 2"))

    def _outcome(self, collective: Collective) -> Outcome:
        config = self._rank_config
        share = self.share_of(collective)
        if isinstance(share, Outcome):
            return share
        answer = self._ranks.run([RankTask(share=share)] * config.world)
        if isinstance(answer, Death):
            return unable(reason_of(answer, config.world, config.measure.hard_limit_s()))
        return outcome_of(collective, share, answer, backend=config.backend, options=config.measure)


def outcome_of(
    collective: Collective, share: Share, replies: Sequence[RankReply], *, backend: str, options: MeasureOptions
) -> Outcome:
    """Combine the replies of all ranks to one outcome. The time of a sample is the time of its slowest rank."""
    members = [reply for reply in replies if reply.took_part]
    samples = [max(times_us) for times_us in zip(*(reply.samples_us for reply in members), strict=True)]
    if not samples:
        return unable(Reason("failed", "no rank could take a sample"))
    measurement = summarize(sorted(samples), calls=members[0].calls, resolution_us=RESOLUTION_US, options=options)
    first = max((reply.first_us or 0.0 for reply in members), default=0.0)
    measurement = msgspec.structs.replace(measurement, first_call_us=first, cache="warm")
    wrong = next((reply.wrong for reply in members if reply.wrong), "")
    unchecked = any(reply.wrong is None for reply in members)
    issue = [us for reply in members for us in reply.issue_us]
    notes = [share.note, *dict.fromkeys(reply.assumed for reply in members)]
    transfer, waited, by, slowest = waiting(share, members)
    replayed = Replayed(
        backend=backend,
        ranks=len(members),
        ranks_recorded=collective.group_size,
        elements=share.elements,
        mapping="; ".join(filter(None, notes)),
        transfer_us=transfer,
        wait_us=waited,
        wait_by=by,
        issue_us=statistics.median(issue) if issue else None,
        checked="not checked" if unchecked else "wrong" if wrong else "right",
        check_detail=wrong,
        slowest_rank=slowest,
    )
    assumed = (Assumption(argument="group", what=replayed.mapping),) if replayed.mapping else ()
    if wrong:
        reason = Reason("failed", f"wrong result: {wrong}")
        return Outcome(status="failed", reason=reason, collective=replayed, assumptions=assumed)
    return Outcome(
        status="replayed",
        measurement=scale_to_whole_op(measurement, share.part),
        collective=replayed,
        bus_factor=share.bus_factor,
        assumptions=assumed,
        measure_s=sum(samples) * members[0].calls * 1e-6,
    )


def waiting(share: Share, replies: Sequence[RankReply]) -> tuple[float | None, float | None, WaitBy, int | None]:
    """Return (transfer, wait, method, rank that usually arrived last). Times are medians in microseconds.

    With a common clock, a transfer lasts from the arrival of the last rank until the last rank is done. The wait is the
    time from the first to the last arrival.

    With separate clocks, the rank with the shortest time is assumed to have arrived last. Its time is the transfer.
    This holds only if no rank can finish before all ranks have arrived, so it is not used for collectives with a root.
    """
    calls = list(zip(*(zip(reply.arrived_ns, reply.done_ns, strict=True) for reply in replies), strict=False))
    if not calls:
        return None, None, "", None
    if len({reply.host for reply in replies}) == 1:
        waits, by = list(map(_on_one_clock, calls)), "one clock"
    elif share.kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"):
        waits, by = list(map(_by_shortest, calls)), "shortest rank"
    else:
        return None, None, "", None
    transfer_us = statistics.median(transfer for transfer, _, _ in waits) / 1e3
    wait_us = statistics.median(wait for _, wait, _ in waits) / 1e3
    late = Counter(last for _, _, last in waits).most_common(1)[0][0]
    return transfer_us, wait_us, by, replies[late].rank


Stamps = Sequence[tuple[int, int]]
"""(start, end) of a call on each rank, in ns."""


def _on_one_clock(call: Stamps) -> tuple[int, int, int]:
    """Return (transfer, wait, last rank to arrive) of one call, in ns. All ranks share one clock."""
    last = max(range(len(call)), key=lambda rank: call[rank][0])
    came = call[last][0]
    return max(done for _, done in call) - came, came - min(arrived for arrived, _ in call), last


def _by_shortest(call: Stamps) -> tuple[int, int, int]:
    """Return (transfer, wait, last rank to arrive) of one call, in ns. Each rank has its own clock."""
    lasted = [done - arrived for arrived, done in call]
    return min(lasted), max(lasted) - min(lasted), lasted.index(min(lasted))
