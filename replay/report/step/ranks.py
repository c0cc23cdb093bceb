# pyright: strict
"""One step of several ranks as text for a terminal and as JSON: the view of `job_timeline`; computes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.run.table import decisive, notes_lines
from opreplay.replay.report.step.text import PATH_SHOWN, WHAT_IF_WIDTH, gain_cells, name_width, of_devices, telling
from opreplay.replay.report.text import DASH, middle, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.timeline.job.values import LEAST_COMMON, JobTimeline, StepCollective

RANKS_SHOWN = 32
COLLECTIVES_SHOWN = 12
DISAGREEMENTS_SHOWN = 10
NOTHING_MET = "nothing can be said of it: no collective of this step was found on two of these ranks"


def facts(found: JobTimeline) -> dict[str, Any]:
    """The stable JSON form; see docs/timeline.md."""
    return msgspec.to_builtins(found)


def head_line(found: JobTimeline) -> str:
    """The first line: which step of how many ranks, and how far the graph explains it."""
    of = f" of {found.world_size}" if found.world_size is not None and found.world_size > len(found.ranks) else ""
    steps = list(dict.fromkeys(one.step for one in found.ranks))
    which = steps[0] if len(steps) == 1 else "a step"
    return (
        f"{safe(middle(which, 60))} on {len(found.ranks)}{of} ranks: recorded {time_text(found.recorded_step_us)}, "
        f"re-timed together {time_text(found.retimed_step_us)}"
    )


def render(found: JobTimeline, width: int = 80, *, everything: bool = True) -> RenderableType:
    """Ranks, collectives, disagreements, the path across ranks, and what changes gain; without `everything` the notes
    that may change a decision alone, and how many more there are."""
    room = name_width(width)
    parts: list[RenderableType] = [_sums(found), Text(), _ranks(found, width)]
    if found.collectives:
        parts += [Text(), _collectives(found, room, width)]
    if found.disagreements:
        parts += [Text(), *_disagreements(found)]
    if found.socs:
        parts += [Text(), _socs(found)]
    parts += [Text(), _path(found, room)]
    if found.what_if:
        parts += [Text(), _what_if(found)]
    told = note_lines(found) if everything else decisive(note_lines(found), _decisive_lines(found))
    parts += notes_lines([safe(line) for line in told])
    return Group(*parts)


def _sums(found: JobTimeline) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    if found.least_common < LEAST_COMMON:
        common = f"{share_text(found.least_common)} of the shorter one, of the two ranks farthest apart"
        grid.add_row("in common", Text(f"{common}: hardly one step; see the first note", style="bold red"))
    if found.collectives:
        gain = found.retimed_step_us - found.without_waiting_us
        share = share_text(gain / found.retimed_step_us if found.retimed_step_us else None)
        waiting = f"{time_text(found.waiting_us)}, collectives and ranks added up, also where they wait side by side"
        grid.add_row("waiting for ranks", Text(f"{waiting}; {_late(found)}"))
        grid.add_row("without waiting", Text(f"{time_text(found.without_waiting_us)} a step: {share} less"))
    else:
        grid.add_row("waiting for ranks", Text(NOTHING_MET))
    if (one := found.measured) is not None:
        ratio = ratio_text(one.step_us, found.recorded_step_us)
        what = f"{plural(one.ops, 'call')} and {plural(one.collectives, 'collective')} as measured"
        text = f"{time_text(one.step_us)} with {what}, {ratio} the recording"
        text += f"; {time_text(one.waiting_us)} of waiting" if found.collectives else ""
        grid.add_row("measured", Text(text))
    told, guessed = sum(e.recorded for e in found.edges.values()), sum(e.inferred for e in found.edges.values())
    grid.add_row("dependencies", Text(f"{told:,} recorded, {guessed:,} inferred from times"))
    return grid


def _late(found: JobTimeline) -> str:
    worst = max(found.ranks, key=lambda one: one.late_us)
    if not worst.late:
        return "no rank is late"
    times = plural(worst.late, "collective")
    return f"most for rank {worst.rank}: last in {times}, {time_text(worst.late_us)} after all others"


def _ranks(found: JobTimeline, width: int) -> Table:
    """Columns that a narrow terminal has no room for are left out, not cut: JSON and the page have them all."""
    least = {"rank": 0, "step": 0, "begins": 70, "waits": 0, "transfers": 60, "late": 0, "late by": 0}
    least["clock"] = 80
    table = plain_table()
    for title, room in least.items():
        if width >= room:
            table.add_column(title, justify="right", no_wrap=True)
    for one in found.ranks[:RANKS_SHOWN]:
        cells = {
            "rank": str(one.rank),
            "step": time_text(one.recorded_step_us),
            "begins": f"+{time_text(one.begins_us)}",
            "waits": time_text(one.waiting_us) if found.collectives else DASH,
            "transfers": time_text(one.transfer_us) if found.collectives else DASH,
            "late": f"{one.late}×" if one.late else DASH,
            "late by": time_text(one.late_us) if one.late else DASH,
            "clock": f"{one.clock.shift_us:+,.1f} µs" if one.clock.corrected else "recorded",
        }
        table.add_row(*(cell for title, cell in cells.items() if width >= least[title]))
    if len(found.ranks) > RANKS_SHOWN:
        table.add_row(f"+{len(found.ranks) - RANKS_SHOWN}", *[DASH] * (len(table.columns) - 1))
    return table


def _collectives(found: JobTimeline, room: int, width: int) -> Table:
    least = {"elements": 80, "ranks": 60, "skew": 80, "waiting": 0, "transfer": 0, "last": 0}
    table = plain_table()
    table.add_column("collective", no_wrap=True)
    for title, needs in least.items():
        if width >= needs:
            table.add_column(title, justify="right", no_wrap=True)
    order = sorted(found.collectives, key=lambda one: -one.waiting_us)
    for one in order[:COLLECTIVES_SHOWN]:
        given, size = len(one.members), one.group_size
        cells = {
            "elements": DASH if one.elements is None else f"{one.elements:,}",
            "ranks": f"{given}" if size in (None, given) else f"{given} of {size}",
            "skew": time_text(one.skew_us),
            "waiting": time_text(one.waiting_us),
            "transfer": time_text(one.transfer_us),
            "last": f"rank {one.late_rank}" if one.late_us > 0.0 else DASH,
        }
        table.add_row(
            Text(safe(middle(collective_name(one), min(room, max(12, width - 44))))),
            *(cell for title, cell in cells.items() if width >= least[title]),
        )
    rest = order[COLLECTIVES_SHOWN:]
    if rest:
        waited = time_text(sum(one.waiting_us for one in rest))
        titles = [title for title in least if width >= least[title]]
        table.add_row(
            Text(f"{len(rest):,} others", style="dim"), *(waited if title == "waiting" else "" for title in titles)
        )
    return table


def collective_name(one: StepCollective) -> str:
    number = f" #{one.sequence}" if one.sequence is not None else ""
    return f"{one.kind}{number}" + (f" in group {one.group}" if one.group is not None else "")


def _disagreements(found: JobTimeline) -> list[RenderableType]:
    lines = [
        f"{one.what} of collective {one.collective} disagree: "
        + ", ".join(f"rank {rank}: {value}" for rank, value in list(one.values.items())[:6])
        for one in found.disagreements[:DISAGREEMENTS_SHOWN]
    ]
    if len(found.disagreements) > DISAGREEMENTS_SHOWN:
        lines.append(f"{len(found.disagreements) - DISAGREEMENTS_SHOWN} more disagreements: --format json has them")
    return [Text(safe(line), style="bold red") for line in lines]


def _socs(found: JobTimeline) -> Table:
    table = plain_table()
    table.add_column("simulated", no_wrap=True)
    for title in ("step", "÷ recorded", "waiting for ranks"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, one in found.socs.items():
        ratio = f"{one.step_us / found.recorded_step_us:.2f}×" if found.recorded_step_us else DASH
        waiting = time_text(one.waiting_us) if found.collectives else DASH
        table.add_row(Text(safe(name), style="bold"), time_text(one.step_us), ratio, waiting)
    return table


def _path(found: JobTimeline, room: int) -> Table:
    table = plain_table()
    table.add_column("critical path across ranks", no_wrap=True)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("time", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    total = sum(part.us for part in found.critical_path)
    for part in found.critical_path[:PATH_SHOWN]:
        table.add_row(
            Text(safe(middle(part.name, room))),
            DASH if part.rank is None else str(part.rank),
            Text(part.where, style="dim"),
            time_text(part.us),
            share_text(part.us / total if total else None),
        )
    rest = found.critical_path[PATH_SHOWN:]
    if rest:
        spent = sum(part.us for part in rest)
        share = share_text(spent / total if total else None)
        table.add_row(Text(f"{len(rest):,} others", style="dim"), "", "", time_text(spent), share)
    return table


def _what_if(found: JobTimeline) -> Table:
    table = plain_table()
    table.add_column("what if, on every rank", overflow="fold", min_width=WHAT_IF_WIDTH)
    for title in ("step", "gain", ""):
        table.add_column(title, justify="right", no_wrap=True)
    for name in found.socs:
        table.add_column(Text(safe(name)), justify="right", no_wrap=True)
    for one in found.what_if:
        table.add_row(
            Text(safe(one.change)),
            *gain_cells(one, found.retimed_step_us),
            *(time_text(one.socs_us.get(name)) for name in found.socs),
        )
    return table


def note_lines(found: JobTimeline) -> list[str]:
    """What to know before trusting the numbers, a line each."""
    lines = list(found.notes)
    lines += found.measured.notes if found.measured is not None else ()
    return [*lines, *_of_devices(found), *_of_changes(found)]


def _decisive_lines(found: JobTimeline) -> list[str]:
    """Those of them that may change a decision: not clocks as they were recorded, nor what every step has."""
    told = [line for line in found.notes if not (line.startswith("the clock of rank") and " is as recorded" in line)]
    return [*told, *telling(_of_devices(found)), *_of_changes(found)]


def _of_devices(found: JobTimeline) -> list[str]:
    return of_devices({name: soc.notes for name, soc in found.socs.items()})


def _of_changes(found: JobTimeline) -> list[str]:
    return [f"{one.change}: {note}" for one in found.what_if for note in one.assumptions]
