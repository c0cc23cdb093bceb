# pyright: strict
"""Tables of the traces and jobs of a batch, shown in addition to the tables of ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.report.run.ops import recorded_title
from opreplay.replay.report.table import COUNT, SHARE, TIME, AnyTable, Column, Table, terminal
from opreplay.replay.report.text import DASH, plural, safe, share_text, time_text
from opreplay.replay.results.records import CollectivesResult, JobResult, RankSum, TraceResult
from opreplay.traces.losses import loss_text

MOST_DISAGREEMENTS = 10
MOST_DAMAGED = 10
"""Maximum number of truncated or damaged traces listed."""
MIN_COVERED_SHARE = 0.98
"""If a sum covers less than this share of the recorded time, a line says how much it covers."""
MAX_ROWS = 40
"""Maximum number of rows printed per table; files have all rows."""
_OfTrace = Column[TraceResult]
_OfJob = Column[JobResult]
_OfCollectives = Column[tuple[JobResult, CollectivesResult, RankSum]]


def sharing_line(traces: Sequence[TraceResult], unique_ops: int) -> str:
    """Return a line such as "20 traces with 2,140 ops, 107 of them unique"."""
    ops = sum(trace.ops for trace in traces)
    return f"{plural(len(traces), 'trace')} with {plural(ops, 'op')}, {unique_ops:,} of them unique"


def tables(traces: Sequence[TraceResult], jobs: Sequence[JobResult]) -> list[AnyTable]:
    """Return tables of the traces, of the jobs with several ranks, and of the collectives of these jobs."""
    jobs = with_ranks(jobs)
    return [traces_table(traces), jobs_table(jobs), collectives_table([job for job in jobs if job.collectives])]


def with_ranks(jobs: Sequence[JobResult]) -> list[JobResult]:
    """Return the jobs with several ranks."""
    return [job for job in jobs if job.ranks]


def rendered(
    traces: Sequence[TraceResult], jobs: Sequence[JobResult], *, width: int, rows: int | None = MAX_ROWS
) -> list[RenderableType]:
    """Return the tables for a terminal, with at most `rows` rows each (None for all), each followed by its notes."""
    named = [msgspec.structs.replace(trace, source=short(trace.source)) for trace in traces]
    of_ranks = [msgspec.structs.replace(job, job=short(job.job)) for job in jobs]
    of_traces, of_jobs, of_collectives = (terminal(table, width, limit=rows) for table in tables(named, of_ranks))
    jobs = with_ranks(jobs)[:rows]
    return [
        *of_traces,
        *(Text(safe(line), style="yellow") for line in loss_lines(traces)),
        *(Text(f"· {line}", style="dim") for line in part_lines(traces)),
        *of_jobs,
        *of_collectives,
        *(Text(safe(line), style="bold red") for line in disagreement_lines(jobs)),
        *(Text(safe(f"· {line}"), style="dim") for line in collective_notes(jobs)),
    ]


def short(source: str) -> str:
    """Return a file name without the suffixes .json and .gz."""
    return source.removesuffix(".gz").removesuffix(".json")


def notes(traces: Sequence[TraceResult], jobs: Sequence[JobResult]) -> list[str]:
    """Return notes on unreadable parts, incomplete sums, disagreements of ranks, and how collectives were matched."""
    return [*loss_lines(traces), *part_lines(traces), *disagreement_lines(jobs), *collective_notes(jobs)]


def traces_table(traces: Sequence[TraceResult]) -> Table[TraceResult]:
    """Return a table of each trace's total time over all calls: recorded, measured, and simulated on each SoC."""
    socs = tuple(dict.fromkeys(soc for trace in traces for soc in trace.simulated_us))
    columns = [
        _OfTrace("trace", lambda t: t.source, text=lambda t: f"! {t.source}" if t.losses else t.source, form="name"),
        _OfTrace("rank", lambda t: t.rank, text=lambda t: "" if t.rank is None else str(t.rank), right=True),
        _OfTrace("ops", lambda t: t.ops, COUNT),
        _OfTrace("replayed", lambda t: t.replayed, COUNT),
        _OfTrace("covered", lambda t: t.covered_share, SHARE, key="covered_share"),
        _recorded(traces),
        _OfTrace("measured", lambda t: t.measured_us, TIME, key="measured_us"),
        *map(_simulated, socs),
    ]
    return Table("Traces", columns, traces, noun="trace")


def times(traces: Sequence[TraceResult]) -> dict[str, dict[str, float]]:
    """Return the total time of all calls in µs by kind ("recorded", "measured" or a SoC name), then by trace."""
    of_trace = {
        trace.source: {"recorded": trace.recorded_us, "measured": trace.measured_us, **trace.simulated_us}
        for trace in traces
    }
    clocks = dict.fromkeys(clock for of_clock in of_trace.values() for clock, us in of_clock.items() if us is not None)
    return {
        clock: {source: us for source, of_clock in of_trace.items() if (us := of_clock.get(clock)) is not None}
        for clock in clocks
    }


def _simulated(soc: str) -> _OfTrace:
    return _OfTrace(soc, lambda t: t.simulated_us.get(soc), TIME, key=f"simulated_us_{soc}")


def _recorded(rows: Sequence[TraceResult] | Sequence[JobResult]) -> Column[Any]:
    """Return the column of recorded times. If rows use different clocks, each time names its clock: "3.1 ms device"."""
    clocks = {row.clock for row in rows} - {None}

    def text(row: TraceResult | JobResult) -> str:
        return time_text(row.recorded_us) + (f" {row.clock}" if len(clocks) > 1 and row.clock is not None else "")

    title = recorded_title(device=not clocks <= {"host"})
    return Column(title, lambda row: row.recorded_us, TIME, key="recorded_us", text=text)


def part_lines(traces: Sequence[TraceResult]) -> list[str]:
    """Return a line with the share of recorded time that the sums cover, if it is known and not close to 100 %."""
    timed = [trace for trace in traces if trace.recorded_us is not None and trace.total_us is not None]
    of = [
        f"{share_text(some / whole)} of {clock} time"
        for clock, some, whole in _by_clock(timed)
        if some < MIN_COVERED_SHARE * whole
    ]
    if not of:
        return []
    return [
        f"trace times are sums over the ops in this run ({' and '.join(of)}), without ops left out by --quick, --top "
        "or filters, and without work that belongs to no op"
    ]


def _by_clock(traces: Sequence[TraceResult]) -> list[tuple[str, float, float]]:
    """Return (clock, recorded time of ops, total recorded time) for each clock, summed over the traces that use it."""
    return [
        (
            clock,
            sum(trace.recorded_us or 0.0 for trace in traces if trace.clock == clock),
            sum(trace.total_us or 0.0 for trace in traces if trace.clock == clock),
        )
        for clock in dict.fromkeys(trace.clock for trace in traces)
        if clock is not None
    ]


def loss_lines(traces: Sequence[TraceResult]) -> list[str]:
    """Return lines on files that were not read in full. Only the first `MOST_DAMAGED` are listed individually."""
    damaged = [trace for trace in traces if trace.losses]
    lines = [f"! {trace.source}: {loss_text(trace.losses, 'its numbers are')}" for trace in damaged[:MOST_DAMAGED]]
    rest = len(damaged) - len(lines)
    return [*lines, f"! {plural(rest, 'more trace')} not read in full; for all, use --format json"] if rest else lines


def jobs_table(jobs: Sequence[JobResult]) -> Table[JobResult]:
    """Return a table with one row per job, with totals over its ranks and its slowest rank."""
    columns = [
        _OfJob("job", lambda job: job.job, form="name"),
        _OfJob("ranks", ranks_text, right=True),
        _OfJob("ops", lambda job: job.rank_ops, COUNT, key="rank_ops"),
        _OfJob("unique", lambda job: job.ops, COUNT, key="ops"),
        _OfJob("covered", lambda job: job.covered_share, SHARE, key="covered_share", drop=1),
        _recorded(jobs),
        _OfJob("slowest", lambda job: job.slowest_rank_us, TIME, key="slowest_rank_us"),
        _OfJob("measured", lambda job: job.measured_us, TIME, key="measured_us"),
    ]
    return Table("Jobs", columns, jobs, noun="job")


def collectives_table(jobs: Sequence[JobResult]) -> Table[Any]:
    """Return the collectives of each job, with waiting and transfer times shown separately, and the late ranks."""
    rows = [
        (job, job.collectives, max(job.collectives.ranks, key=lambda rank: rank.late_us))
        for job in jobs
        if job.collectives is not None
    ]
    columns = [
        _OfCollectives("job", lambda r: r[0].job, form="name"),
        _OfCollectives("collectives", lambda r: r[1].matched, COUNT),
        _OfCollectives("skew", lambda r: r[1].skew_us, TIME),
        _OfCollectives("waiting", lambda r: r[1].waiting_us, TIME),
        _OfCollectives("transfer", lambda r: r[1].transfer_us, TIME),
        _OfCollectives("latest", lambda r: f"rank {r[2].rank}, {r[2].late}×" if r[2].late else DASH, right=True),
        _OfCollectives("late by", lambda r: r[2].late_us if r[2].late else None, TIME),
    ]
    return Table("Collectives by job", columns, rows, noun="job")


def disagreement_lines(jobs: Sequence[JobResult]) -> list[str]:
    """Return differences between what the ranks of a job recorded for the same collective."""
    lines: list[str] = []
    for job in jobs:
        collectives = job.collectives
        for disagreement in collectives.disagreeing[:MOST_DISAGREEMENTS] if collectives is not None else ():
            values = ", ".join(f"rank {rank}: {value}" for rank, value in list(disagreement.values.items())[:6])
            lines.append(f"{job.job}: {disagreement.what} of collective {disagreement.collective} disagree: {values}")
        if collectives is not None and collectives.disagreements > MOST_DISAGREEMENTS:
            lines.append(f"{job.job}: {plural(collectives.disagreements - MOST_DISAGREEMENTS, 'more disagreement')}")
    return lines


def collective_notes(jobs: Sequence[JobResult]) -> list[str]:
    """Return notes on how collectives were matched."""
    lines: list[str] = []
    for job in jobs:
        collectives = job.collectives
        if collectives is None:
            continue
        missing = max(collectives.missing, (job.world_size or 0) - len(collectives.ranks))
        if collectives.inferred:
            lines.append(
                f"{job.job}: {collectives.inferred} of {collectives.matched} collectives have no sequence number, so "
                "they were matched by order or overlap in time (inferred)"
            )
        if collectives.unmatched:
            lines.append(
                f"{job.job}: {plural(collectives.unmatched, 'collective')} of these traces have no counterpart on "
                "another given rank and are not included"
            )
        if missing > 0:
            lines.append(
                f"{job.job}: {plural(missing, 'rank')} not given: waiting for them counts as transfer, so waiting is a "
                "lower bound and transfer an upper bound"
            )
        if moved := [clock for clock in collectives.clocks if clock.corrected]:
            furthest = max(moved, key=lambda clock: abs(clock.shift_us))
            shift = f"{furthest.rank} by {furthest.shift_us:+,.1f} µs"
            lines.append(f"{job.job}: {plural(len(moved), 'clock')} corrected; largest correction: rank {shift}")
    return lines


def ranks_text(job: JobResult) -> str:
    """Return text such as "8 of 8", or "2" if the world size is unknown."""
    return f"{len(job.ranks)}" + ("" if job.world_size is None else f" of {job.world_size}")
