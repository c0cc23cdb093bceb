# pyright: strict
"""One step's timeline as text for a terminal and as JSON: the view of `timeline`; computes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opreplay.replay.ir.sizes import readable
from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.coverage import LEAST
from opreplay.replay.report.run.table import decisive, notes_lines
from opreplay.replay.report.text import DASH, middle, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.graph.model import CROSS_STREAM, EDGE_KINDS, SHARED
from opreplay.replay.timeline.job.values import JobChange
from opreplay.replay.timeline.memory import MemoryUse
from opreplay.replay.timeline.simulated import ASSUMED, SocStep
from opreplay.replay.timeline.timeline import Timeline, WhatIf

PATH_SHOWN = 12
MODULES_SHOWN = 8
SLACK_SHOWN = 6
NAME_WIDTH = 36
"""Characters of a name on a terminal of 80."""
MOST_NAME_WIDTH = 100
WHAT_IF_WIDTH = 12
"""Least characters of a change, which goes on in the next line: it is what the reader typed."""
CATEGORY_WIDTH, SHARED_WIDTH = 30, 18
"""Characters of a category, and of a time with its share."""
SOC_WIDTH = 84
"""From which on simulated steps have all their columns."""
_FOLDERS = re.compile(r"^[^(<]*/(?=[^/(]+\(\d+\): )")
"""Of a frame, "torch/utils/data/dataloader.py(701): __next__": the file and the function tell it apart."""
UNEVEN = 1.25
"""Steps of one trace that differ more than this have something to be told."""

CATEGORY_ROWS: tuple[tuple[str, str, bool], ...] = (
    ("computing", "computing", False),
    ("communication not overlapped", "communication_not_overlapped", False),
    ("communication overlapped", "communication_overlapped", True),
    ("copies", "copies", False),
    ("idle", "idle", False),
    ("before the first task", "idle_before_first", True),
    ("host-bound", "idle_host_bound", True),
    ("launch latency", "idle_launch_latency", True),
    ("waiting for another stream, gaps", "idle_dependency", True),
    ("after the last task", "idle_after_last", True),
)
"""(title, field of `Categories`, part of the row above it)."""

_OF_OTHER_STREAMS = (EDGE_KINDS[CROSS_STREAM], EDGE_KINDS[SHARED])
"""Dependencies without which no task waited for another stream."""


def name_width(width: int) -> int:
    """Characters of a name on a terminal that wide: what the columns of numbers beside it leave."""
    return min(MOST_NAME_WIDTH, max(NAME_WIDTH, width - 80 + NAME_WIDTH))


def facts(found: Timeline) -> dict[str, Any]:
    """The stable JSON form; see docs/timeline.md."""
    return msgspec.to_builtins(found)


def render(found: Timeline, width: int = 80, *, everything: bool = True) -> RenderableType:
    """Step, categories, critical path, slack, and what the changes gain; without `everything` the notes that may change
    a decision alone, and how many more there are."""
    room = name_width(width)
    parts: list[RenderableType] = [_head(found), Text(), _categories(found, width)]
    if found.socs:
        parts += [Text(), _socs(found, width)]
    parts += [Text(), _path(found, room)]
    if len(found.critical_path_modules_us) > 1:
        parts += [Text(), _modules(found, room)]
    if found.critical_path_python_us:
        parts += [Text(), _python(found, room)]
    if found.slack:
        parts += [Text(), _slack(found, room)]
    if found.what_if:
        parts += [Text(), _what_if(found, width)]
    told = note_lines(found) if everything else decisive(note_lines(found), decisive_lines(found))
    parts += notes_lines([safe(line) for line in told])
    return Group(*parts)


def head_line(found: Timeline) -> str:
    """The first line: which step, and how far its graph explains it."""
    which = found.step.name if found.step.marked else "the whole trace (it marks no steps)"
    path_us = sum(part.us for part in found.critical_path)
    host_us = sum(part.us for part in found.critical_path if part.where == "host")
    # Re-timing with recorded durations and latencies proves nothing where it copies them; median latencies may fail.
    proof = f"{100 * found.structure_error_typical:+.2f} % with median latencies"
    if path_us > 0:
        proof += f"; {host_us / path_us:.0%} of the path is host time, as recorded"
    invented = max((one.invented_share for one in found.socs.values()), default=0.0)
    told = f"; {share_text(invented)} of device time predicted on invented sizes" if invented > 0 else ""
    unknown = max((1.0 - one.predicted_share for one in found.socs.values()), default=0.0)
    told += f"; {share_text(unknown)} of device time not predicted" if unknown >= LEAST else ""
    return (
        f"{safe(middle(which, 60))}: recorded {time_text(found.recorded_step_us)}, re-timed "
        f"{time_text(found.retimed_step_us)} ({proof}){told}"
    )


def _head(found: Timeline) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    step = found.step
    if step.marked:
        which = "1" if step.asked else "the one of median length"
        chosen = f", {which} of {step.steps:,} marked" if step.steps > 1 else ""
        if step.all_host_us is not None and step.all_host_us[1] > UNEVEN * step.all_host_us[0]:
            low, high = map(time_text, step.all_host_us)
            chosen += f", which took {low} to {high} on the host: what is said is of this one (--step N for another)"
        grid.add_row("step", Text(safe(middle(step.name, NAME_WIDTH)) + chosen))
    grid.add_row("host range", Text(time_text(step.host_us)))
    if found.memory is not None:
        grid.add_row("memory", Text(memory_text(found.memory)))
    if found.measured_step_us is not None:
        ratio = ratio_text(found.measured_step_us, found.recorded_step_us)
        text = f"{time_text(found.measured_step_us)} with {plural(found.measured_ops, 'call')} as measured, {ratio}"
        grid.add_row("measured", Text(f"{text} the recording"))
    edges = found.edges.values()
    told, guessed = sum(e.recorded for e in edges), sum(e.inferred for e in edges)
    grid.add_row("dependencies", Text(f"{told:,} recorded, {guessed:,} inferred from times"))
    return grid


def memory_text(memory: MemoryUse) -> str:
    """The peak, or the range it lies in, and whether it fits each simulated device."""
    where = "device" if memory.on_device else "host"
    if memory.low_bytes is None:
        at = "" if memory.peak_at_us is None else f", {time_text(memory.peak_at_us)} into the step"
        text = f"{readable(memory.peak_bytes)} on the {where} at most{at}"
    elif not memory.high_bytes:
        text = "not known"
    else:
        text = f"{readable(memory.low_bytes)} to {readable(memory.peak_bytes)} by lifetimes"
    if memory.high_bytes:
        text += f", {readable(memory.high_bytes)} if nothing is freed (inferred)"
    return text + "".join(f"; {safe(soc)}: {verdict}" for soc, verdict in memory.verdicts.items())


def _categories(found: Timeline, width: int) -> Table:
    """Shares are left out, not cut, where the terminal has no room for them."""
    table = plain_table()
    table.add_column("time of the step", no_wrap=True)
    columns: list[tuple[str, Categories, float]] = [("recorded", found.categories_us, found.recorded_step_us)]
    columns += [(name, one.categories_us, one.step_us) for name, one in found.socs.items()]
    shares = width >= CATEGORY_WIDTH + SHARED_WIDTH * len(columns)
    for title, _, _ in columns:
        table.add_column(Text(safe(title)), justify="right", no_wrap=True)
        if shares:
            table.add_column("", justify="right", no_wrap=True)
    for told, field, part in CATEGORY_ROWS:
        alone = field == "idle_dependency" and not any(kind in found.edges for kind in _OF_OTHER_STREAMS)
        title = "gaps between tasks" if alone else told
        values = [getattr(made, field) for _, made, _ in columns]
        if part and not any(values):
            continue
        cells: list[str] = []
        for value, (_, _, total) in zip(values, columns, strict=True):
            cells += [time_text(value), *([share_text(value / total if total else None)] if shares else [])]
        table.add_row(Text(f"  {title}" if part else title, style="dim" if part else ""), *cells)
    total_cells = [
        cell for _, _, total in columns for cell in ((time_text(total), "") if shares else (time_text(total),))
    ]
    table.add_row(Text("step", style="bold"), *total_cells)
    return table


def _socs(found: Timeline, width: int) -> Table:
    titles = ("step with gaps", "80 % band", "÷ recorded", "predicted", "uncalibrated")[
        : 5 if width >= SOC_WIDTH else 3
    ]
    table = plain_table()
    table.add_column("simulated", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for name, one in found.socs.items():
        cells = (
            time_text(one.step_us),
            band_text(one),
            ratio_text(one.step_us, found.recorded_step_us),
            share_text(one.predicted_share),
            share_text(one.uncalibrated_share),
        )
        table.add_row(Text(safe(name), style="bold"), *cells[: len(titles)])
    return table


def band_text(one: SocStep) -> str:
    """The 80 % band; where little of the computing is predicted that instead."""
    if one.low_us is not None and one.high_us is not None:
        return f"{time_text(one.low_us)} to {time_text(one.high_us)}"
    if not one.computing_predicted_share:
        return "as recorded: nothing of it is predicted"
    return f"none: {share_text(one.computing_predicted_share)} of the computing is predicted"


def _path(found: Timeline, room: int) -> Table:
    table = plain_table()
    table.add_column("critical path", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("time", "share", "stretches"):
        table.add_column(title, justify="right", no_wrap=True)
    total = sum(part.us for part in found.critical_path)
    for part in found.critical_path[:PATH_SHOWN]:
        table.add_row(
            Text(safe(middle(part.name, room))),
            Text(part.where, style="dim"),
            time_text(part.us),
            share_text(part.us / total if total else None),
            f"{part.times:,}",
        )
    rest = found.critical_path[PATH_SHOWN:]
    if rest:
        spent = sum(part.us for part in rest)
        table.add_row(Text(f"{len(rest):,} others", style="dim"), "", time_text(spent), share_text(spent / total), DASH)
    return table


def _modules(found: Timeline, room: int) -> Table:
    table = plain_table()
    table.add_column("critical path by module", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for name, us in list(found.critical_path_modules_us.items())[:MODULES_SHOWN]:
        table.add_row(Text(safe(middle(name, room))), time_text(us))
    return table


def _python(found: Timeline, room: int) -> Table:
    table = plain_table()
    table.add_column("of it Python, between ops", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for name, us in list(found.critical_path_python_us.items())[:MODULES_SHOWN]:
        table.add_row(Text(safe(middle(_FOLDERS.sub("", name), room))), time_text(us))
    return table


def _slack(found: Timeline, room: int) -> Table:
    table = plain_table()
    table.add_column("off the path", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("least slack", justify="right", no_wrap=True)
    for one in found.slack[:SLACK_SHOWN]:
        table.add_row(Text(safe(middle(one.name, room))), time_text(one.us), time_text(one.slack_us))
    return table


def _what_if(found: Timeline, width: int) -> Table:
    whole = width >= WHAT_IF_WIDTH + 44 + 10 * len(found.socs)
    table = plain_table()
    table.add_column("what if", overflow="fold", min_width=WHAT_IF_WIDTH)
    for title in ("step", "gain", "", "work alone") if whole else ("step", "gain"):
        table.add_column(title, justify="right", no_wrap=True)
    for name in found.socs:
        table.add_column(Text(safe(name)), justify="right", no_wrap=True)
    rows = [*found.what_if, *([found.what_if_together] if found.what_if_together is not None else [])]
    for index, one in enumerate(rows):
        name = "all of these" if index == len(found.what_if) else one.change
        table.add_row(
            Text(safe(name)),
            *gain_cells(one, found.retimed_step_us)[: 3 if whole else 2],
            *([time_text(one.work_gain_us) if one.matched else DASH] if whole else []),
            *(time_text(one.socs_us.get(name)) for name in found.socs),
        )
    return table


def gain_cells(one: WhatIf | JobChange, step_us: float) -> tuple[str, str, str]:
    """The step, what it gains, and the share; of a change that means nothing here that it does not."""
    if not one.matched:
        return "no match", DASH, DASH
    return time_text(one.step_us), time_text(one.gain_us), share_text(one.gain_us / step_us if step_us else None)


def note_lines(found: Timeline) -> list[str]:
    """What to know before trusting the numbers, a line each."""
    lines = [*found.notes, *of_devices({name: soc.notes for name, soc in found.socs.items()})]
    lines += [f"memory: {note}" for note in (found.memory.notes if found.memory is not None else ())]
    lines += _of_changes(found)
    if found.dropped_edges:
        one = found.dropped_edges == 1
        told = "1 dependency" if one else f"{found.dropped_edges:,} dependencies"
        lines.append(f"{told} against the recorded order left out")
    return lines


def decisive_lines(found: Timeline) -> list[str]:
    """Those of them that may change a decision: not what is the same for every step, nor how memory was counted."""
    return [*found.notes, *_of_changes(found), *telling(of_devices({n: soc.notes for n, soc in found.socs.items()}))]


def _of_changes(found: Timeline) -> list[str]:
    changes: list[WhatIf] = list(found.what_if)
    return [f"{one.change}: {note}" for one in changes for note in one.assumptions]


def of_devices(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on simulated devices, each once with the devices that it holds for."""
    which: dict[str, list[str]] = {}
    for name, own in notes.items():
        for note in own:
            which.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in which.items()]


def telling(lines: Sequence[str]) -> list[str]:
    """Notes on devices without those that every step has."""
    return [line for line in lines if not line.partition(": ")[2].startswith(ASSUMED)]
