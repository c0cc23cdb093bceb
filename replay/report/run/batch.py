# pyright: strict
"""What a batch says of its traces and jobs, as tables beside those of the ops."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.text import DASH, middle, plural, safe, share_text, time_text
from opreplay.replay.results.records import JobResult, TraceResult

MOST_DISAGREEMENTS = 10
MOST_DAMAGED = 10
"""Traces not read in full that are told one by one."""
MOST = 0.98
"""Of the recorded time: sums of less are said to be of a part."""
MAX_ROWS = 40
"""Rows printed of each table; the files hold all."""
LEAST_NAME, OTHER_COLUMNS = 16, 52
"""Characters of a name at least, and those that the numbers beside it take about."""


def sharing_line(traces: Sequence[TraceResult], unique_ops: int) -> str:
    """ "20 traces with 2,140 ops are 107 unique ops"."""
    ops = sum(trace.ops for trace in traces)
    return f"{plural(len(traces), 'trace')} with {plural(ops, 'op')} are {plural(unique_ops, 'unique op')}"


def render(
    traces: Sequence[TraceResult], jobs: Sequence[JobResult], *, width: int, rows: int | None = MAX_ROWS
) -> RenderableType:
    """One row a trace, and one a job where jobs have several ranks; at most `rows` of each, None for all."""
    parts: list[RenderableType] = [Text(), traces_table(traces[:rows], width=width)]
    if rest := len(traces) - len(traces[:rows]):
        parts.append(Text(f"and {plural(rest, 'more trace')}", style="dim"))
    parts += [Text(safe(line), style="yellow") for line in loss_lines(traces)]
    parts += [Text(line, style="dim") for line in part_lines(traces)]
    merged = [job for job in jobs if job.ranks]
    if merged:
        parts += [Text(), jobs_table(merged[:rows], width=width)]
    talking = [job for job in merged if job.collectives is not None]
    if talking:
        parts += [Text(), collectives_table(talking[:rows], width=width)]
        parts += [Text(safe(line), style="bold red") for line in disagreement_lines(talking)]
        parts += [Text(safe(line), style="dim") for line in collective_notes(talking)]
    if rest := len(merged) - len(merged[:rows]):
        parts.append(Text(f"and {plural(rest, 'more job')}", style="dim"))
    return Group(*parts)


def traces_table(traces: Sequence[TraceResult], *, width: int) -> RenderableType:
    """Times of all calls of a trace together; simulated ones on each SoC."""
    socs = tuple(dict.fromkeys(soc for trace in traces for soc in trace.simulated_us))
    table = plain_table()
    table.add_column("trace", no_wrap=True)
    for title in ("rank", "ops", "replayed", "covered", recorded_title(traces), "measured", *socs):
        table.add_column(Text(safe(title)), justify="right", no_wrap=True)
    room = _room(width, len(socs))
    for trace in traces:
        table.add_row(
            Text(marked(short(trace.source, room - 2), trace)),
            "" if trace.rank is None else str(trace.rank),
            f"{trace.ops:,}",
            f"{trace.replayed:,}",
            share_text(trace.covered_share),
            recorded_text(trace, traces),
            time_text(trace.measured_us),
            *(time_text(trace.simulated_us.get(soc)) for soc in socs),
        )
    return table


def recorded_title(rows: Sequence[TraceResult] | Sequence[JobResult]) -> str:
    """What the recorded times of all rows are: the host's say so."""
    return "host rec." if {row.clock for row in rows} <= {"host", None} else "recorded"


def recorded_text(row: TraceResult | JobResult, rows: Sequence[TraceResult] | Sequence[JobResult]) -> str:
    """A recorded time, with its clock where rows have several: "3.1 ms device", "12 ms host"."""
    several = len({one.clock for one in rows if one.clock is not None}) > 1
    return time_text(row.recorded_us) + (f" {row.clock}" if several and row.clock is not None else "")


def marked(name: str, trace: TraceResult) -> str:
    """The name with a `!` where not all of the file could be read."""
    return f"! {name}" if trace.losses else name


def part_lines(traces: Sequence[TraceResult]) -> list[str]:
    """Of what part of the recorded time the sums are, where that is not all and something tells."""
    timed = [one for one in traces if one.recorded_us is not None and one.total_us is not None]
    of = [
        f"{share_text(some / whole)} of {clock} time" for clock, some, whole in _by_clock(timed) if some < MOST * whole
    ]
    if not of:
        return []
    return [
        f"· times of a trace are those of its ops in this run, {' and '.join(of)}: not what --quick, --top or filters "
        "left out, and what no op owns"
    ]


def _by_clock(traces: Sequence[TraceResult]) -> list[tuple[str, float, float]]:
    """(clock, recorded in the ops, recorded at all) of all traces with it."""
    return [
        (
            clock,
            sum(one.recorded_us or 0.0 for one in traces if one.clock == clock),
            sum(one.total_us or 0.0 for one in traces if one.clock == clock),
        )
        for clock in dict.fromkeys(one.clock for one in traces)
        if clock is not None
    ]


def loss_lines(traces: Sequence[TraceResult]) -> list[str]:
    """Which files could not be read in full, the first of them one by one."""
    damaged = [trace for trace in traces if trace.losses]
    told = [
        f"! {trace.source}: reading lost {', '.join(f'{why} ({n:,})' for why, n in trace.losses.items())}: "
        "its numbers are of the rest"
        for trace in damaged[:MOST_DAMAGED]
    ]
    rest = len(damaged) - len(told)
    return [*told, f"! {plural(rest, 'more trace')} not read in full; --format json holds all"] if rest else told


def jobs_table(jobs: Sequence[JobResult], *, width: int) -> RenderableType:
    """Ranks of a job together: what it has in common, and its slowest rank."""
    table = plain_table()
    table.add_column("job", no_wrap=True)
    for title in ("ranks", "ops", "unique", recorded_title(jobs), "slowest", "measured"):
        table.add_column(title, justify="right", no_wrap=True)
    room = _room(width, 1)
    for job in jobs:
        table.add_row(
            Text(short(job.job, room)),
            ranks_text(job),
            f"{job.rank_ops:,}",
            f"{job.ops:,}",
            recorded_text(job, jobs),
            time_text(job.slowest_rank_us),
            time_text(job.measured_us),
        )
    return table


COLLECTIVE_TITLES = ("collectives", "skew", "waiting", "transfer", "latest", "late by")


def collectives_table(jobs: Sequence[JobResult], *, width: int) -> RenderableType:
    """Collectives of each job's ranks: waiting apart from transfer, and who is late."""
    table = plain_table()
    table.add_column("job", no_wrap=True)
    for title in COLLECTIVE_TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    for job in jobs:
        table.add_row(Text(short(job.job, _room(width, 1))), *collective_cells(job))
    return table


def collective_cells(job: JobResult) -> list[str]:
    """One cell for each of `COLLECTIVE_TITLES`."""
    found = job.collectives
    if found is None:
        return [DASH] * len(COLLECTIVE_TITLES)
    worst = max(found.ranks, key=lambda one: one.late_us)
    return [
        f"{found.matched:,}",
        time_text(found.skew_us),
        time_text(found.waiting_us),
        time_text(found.transfer_us),
        f"rank {worst.rank}, {worst.late}×" if worst.late else DASH,
        time_text(worst.late_us) if worst.late else DASH,
    ]


def disagreement_lines(jobs: Sequence[JobResult]) -> list[str]:
    """What ranks of a job record differently of one collective."""
    lines: list[str] = []
    for job in jobs:
        found = job.collectives
        for one in found.disagreeing[:MOST_DISAGREEMENTS] if found is not None else ():
            told = ", ".join(f"rank {rank}: {value}" for rank, value in list(one.values.items())[:6])
            lines.append(f"{job.job}: {one.what} of collective {one.collective} disagree: {told}")
        if found is not None and found.disagreements > MOST_DISAGREEMENTS:
            lines.append(f"{job.job}: {found.disagreements - MOST_DISAGREEMENTS} more disagreements")
    return lines


def collective_notes(jobs: Sequence[JobResult]) -> list[str]:
    """What to know of how collectives were matched."""
    lines: list[str] = []
    for job in jobs:
        found = job.collectives
        if found is None:
            continue
        missing = max(found.missing, (job.world_size or 0) - len(found.ranks))
        if found.inferred:
            lines.append(
                f"· {job.job}: {found.inferred} of {found.matched} collectives carry no sequence number: matched by "
                "order or overlap in time (inferred)"
            )
        if found.unmatched:
            lines.append(
                f"· {job.job}: {plural(found.unmatched, 'collective')} of these traces without a counterpart on "
                "another rank given: in no number here"
            )
        if missing > 0:
            lines.append(
                f"· {job.job}: {plural(missing, 'rank')} not given: waiting for them is in the transfer, so waiting is "
                "at least, and transfer at most, what is shown"
            )
        if moved := [clock for clock in found.clocks if clock.corrected]:
            most = max(moved, key=lambda clock: abs(clock.shift_us))
            told = f"that of rank {most.rank} by {most.shift_us:+,.1f} µs"
            lines.append(f"· {job.job}: {plural(len(moved), 'clock')} moved, {told}")
    return lines


def ranks_text(job: JobResult) -> str:
    """ "8 of 8"; "2" where the world size is not known."""
    return f"{len(job.ranks)}" + ("" if job.world_size is None else f" of {job.world_size}")


def short(source: str, width: int) -> str:
    """The name of a file without the suffix that all have."""
    return middle(safe(source.removesuffix(".gz").removesuffix(".json")), width)


def _room(width: int, more_columns: int) -> int:
    """Characters for names."""
    return max(LEAST_NAME, width - OTHER_COLUMNS - 11 * more_columns)
