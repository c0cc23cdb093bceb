# pyright: strict
"""A run as rich tables for a terminal of any width; trace text is never markup, and never wider than its column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opreplay.replay.ir.notation import telling_arguments
from opreplay.replay.ir.reasons import ReasonTotal
from opreplay.replay.report import collectives, first_screen, suspects
from opreplay.replay.report.columns import LEAST_NAME, Column, OpCell, op_line, ops_table, plain_table
from opreplay.replay.report.doubts import mark
from opreplay.replay.report.run import npu
from opreplay.replay.report.run.facts import (
    Totals,
    decisive_notes,
    detail_text,
    has_device_time,
    is_untimed,
    not_replayed,
    notes,
    recorded_us,
    socs_of,
    totals,
)
from opreplay.replay.report.run.work import work_notes, work_table
from opreplay.replay.report.text import DASH, end, plural, ratio_text, safe, share_text, time_text
from opreplay.replay.results.records import Header, OpResult, Summary

MAX_ROWS = 40
"""Rows printed before the rest is summed up; files hold all of them."""
RATIOS_FROM = 110
"""Terminal width from which ratios to the recorded time are shown."""
RATIO = "÷ rec."
ID_CHARS = 6
"""Of an id, enough to tell ops of one trace apart."""
MEASURED = "measured"
KIND_CHARS = 20
"""Longer than every kind of reason; only a damaged file has longer ones."""
STYLES = {"skipped": "yellow", "failed": "red"}


def render(
    header: Header | None,
    results: Sequence[OpResult],
    summary: Summary,
    *,
    width: int,
    everything: bool = True,
    rows: int | None = MAX_ROWS,
) -> RenderableType:
    """Head, table of ops, totals and notes, fitted to `width` characters; the coverage line comes before it, unbroken.

    Without `everything` only the notes that may change a decision, and how many others there are. `rows`: of ops at
    most, None for all.
    """
    parts: list[RenderableType] = [] if results or summary.interrupted else [no_ops()]
    trace = {} if header is None else header.trace
    device = trace.get("device")
    parts += first_screen.rendered(
        first_screen.lines(first_screen.where_in(trace), str(device) if device else None, results)
    )
    parts += suspects.rendered(suspects.lines(results))
    if results:
        device = has_device_time(header, results)
        shown = results[:rows]
        columns = columns_of(shown, device=device, ratios=width >= RATIOS_FROM)
        parts += [Text(), *ops_table(columns, op_cells(shown), width=width, one_line=True)]
        parts += rest_line(results[len(shown) :])
        parts += [Text(), totals_table(header, results, device=device)]
        parts += reasons_table(results)
        parts += npu.results_table(results)
        parts += work_table(results, rows=rows)
        parts += collectives.table(results, socs_of(results), width=width, rows=rows)
    warnings = work_notes(results)
    told = [*warnings, *notes(header, results, summary)]
    chosen = [*warnings, *decisive_notes(header, results, summary)]
    parts += notes_lines(told if everything else decisive(told, chosen))
    return Group(*parts)


def decisive(told: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """The chosen ones of all notes, and how many others there are."""
    kept = [note for note in told if note in chosen]
    rest = len(told) - len(kept)
    return [*kept, f"{plural(rest, 'more note')} with --notes"] if rest else kept


def notes_lines(found: Sequence[str]) -> list[RenderableType]:
    """Notes below a table, one bullet each."""
    if not found:
        return []
    grid = Table.grid(padding=(0, 1))
    for note in found:
        grid.add_row(Text("·", style="dim"), Text(note, style="dim", overflow="fold"))
    return [Text(), grid]


def reasons_table(results: Sequence[OpResult]) -> list[RenderableType]:
    """Why ops are not replayed, one row a reason with unique ops, calls and share of the recorded time."""
    return totals_by_kind("not replayed", not_replayed(results))


def totals_by_kind(title: str, found: Sequence[ReasonTotal]) -> list[RenderableType]:
    """One row a kind under the given title, and nothing where there is none."""
    if not found:
        return []
    table = plain_table()
    table.add_column(Text(title), no_wrap=True)
    for title in ("ops", "calls", "share"):
        table.add_column(Text(title), justify="right", no_wrap=True)
    table.add_column(Text("why"), style="dim", overflow="fold")
    for total in found:
        cells = (end(safe(total.kind), KIND_CHARS), f"{total.ops:,}", f"{total.calls:,}", share_text(total.share))
        table.add_row(*map(Text, (*cells, detail_text(total))))
    return [Text(), table]


def no_ops() -> Text:
    """What to print in place of a table without rows."""
    return Text(
        "no op to replay: the trace records none, or the selection leaves none", style="yellow", overflow="fold"
    )


def rest_line(left_out: Sequence[OpResult]) -> list[RenderableType]:
    """What the rows that are not printed amount to."""
    if not left_out:
        return []
    share = sum(r.recorded_share for r in left_out)
    more = plural(len(left_out), "more op")
    return [Text(f"… {more}, {share_text(share)} of the time; --output FILE holds all", style="dim")]


def columns_of(results: Sequence[OpResult], *, device: bool, ratios: bool) -> list[Column]:
    """All narrow columns, in order of appearance; `device` says which recorded time is meant."""
    recorded = [recorded_us(r, device=device) for r in results]
    measured = [r.measured_us for r in results]
    cells = tuple(time_text(r.measured_us) + mark([r]) if r.status == "replayed" else r.status for r in results)
    styles = tuple(STYLES.get(r.status, "") for r in results)
    ratio = [_ratio_column(measured, recorded)] if ratios else []
    return [
        *recorded_columns(results, device=device),
        Column(title=MEASURED, cells=cells, styles=styles),
        *ratio,
        *simulated_columns(results, recorded if ratios else None),
    ]


def recorded_columns(results: Sequence[OpResult], *, device: bool) -> list[Column]:
    """The start of the id, which --op takes, share, count and what the trace recorded, where it recorded a time."""
    ids = Column(title="id", cells=tuple(r.id[:ID_CHARS] for r in results), style="dim", gives_way=1)
    if results and all(is_untimed(r) for r in results):
        return [ids, Column(title="count", cells=tuple(f"{r.count:,}" for r in results), style="dim", gives_way=8)]
    return [
        ids,
        Column(title="share", cells=tuple(share_text(r.recorded_share) for r in results)),
        Column(title="count", cells=tuple(f"{r.count:,}" for r in results), style="dim", gives_way=8),
        Column(
            title="recorded" if device else "host rec.",
            cells=tuple(time_text(recorded_us(r, device=device)) for r in results),
        ),
    ]


def simulated_columns(results: Sequence[OpResult], recorded: Sequence[float | None] | None) -> list[Column]:
    """One column a SoC, each followed by its ratio to `recorded` where that is given, and what bounds the first."""
    made: list[Column] = []
    socs = socs_of(results)
    for index, soc in enumerate(socs):
        values = [r.simulated_us.get(soc) for r in results]
        give = 0 if index == 0 else 2 + index / len(socs)
        made.append(Column(title=safe(soc), cells=tuple(map(time_text, values)), style="cyan", gives_way=give))
        if recorded is not None:
            made.append(_ratio_column(values, recorded))
    if socs:
        bounds = tuple(r.bound or DASH for r in results)
        made.append(Column(title="bound", cells=bounds, style="dim", left=True, gives_way=6))
    return made


def _ratio_column(values: Sequence[float | None], recorded: Sequence[float | None]) -> Column:
    """The column right of a time: how many times the recorded time it is."""
    cells = tuple(ratio_text(value, base) for value, base in zip(values, recorded, strict=True))
    return Column(title=RATIO, cells=cells, style="dim", gives_way=9, named=False)


def op_cells(results: Sequence[OpResult]) -> list[OpCell]:
    """The last cells of a table; each also knows the sizes that tell it from others of its name."""
    return with_what_tells([op_cell(r) for r in results], results)


def with_what_tells(cells: Sequence[OpCell], results: Sequence[OpResult]) -> list[OpCell]:
    """The cells with what tells them from others of their name: sizes where room is short, and beside equal tensors the
    numbers in which the calls differ."""
    sizes = told_apart(results)
    numbers = telling_arguments([(r.id, r.name, r.inputs, r.call) for r in results])
    return [
        cell if r.status != "replayed" else beside_numbers(cell, sizes[r.id], numbers[r.id])
        for cell, r in zip(cells, results, strict=True)
    ]


def beside_numbers(cell: OpCell, sizes: str, numbers: str) -> OpCell:
    """A cell with short sizes, and with the numbers that tell its call from others on equal tensors: they come first
    where room is short, as the sizes tell nothing then."""
    if not numbers:
        return msgspec.structs.replace(cell, short=sizes)
    detail = " · ".join(filter(None, (cell.detail, numbers)))
    return msgspec.structs.replace(cell, detail=detail, short=f"{numbers} {sizes}".rstrip())


def live_line(result: OpResult, width: int) -> str:
    """One op as soon as it is measured: start of the id, measured time or what became of it, recorded time, the op."""
    took = time_text(result.measured_us) + mark([result]) if result.status == "replayed" else result.status
    us = result.recorded_host_us if result.recorded_device_us is None else result.recorded_device_us
    head = f"{result.id[:ID_CHARS]}  {took:>9}  recorded {time_text(us):>8}  "
    cell = msgspec.structs.replace(op_cell(result), short=result.inputs.partition(" · ")[0])
    return head + op_line(cell, max(width - len(head), LEAST_NAME)).plain


def told_apart(results: Sequence[OpResult]) -> dict[str, str]:
    """Op id → what of its inputs tells it from others of its name; "" of one that is not replayed."""
    sizes = telling_sizes([(r.id, r.name, r.inputs) for r in results])
    return {r.id: sizes[r.id] if r.status == "replayed" else "" for r in results}


def telling_sizes(ops: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Of (id, name, inputs) by id, what of the inputs tells it from others of its name: without what all have alike,
    and without the element type where that is one; of an op alone with its name the first input."""
    by_name: dict[str, list[tuple[str, list[str]]]] = {}
    for id_, name, inputs in ops:
        by_name.setdefault(name, []).append((id_, inputs.split(" · ")))
    made: dict[str, str] = {}
    for alike in by_name.values():
        parts = [own for _, own in alike]
        if len(alike) == 1:
            made[alike[0][0]] = parts[0][0]
            continue
        same = [len(set(column)) == 1 for column in zip(*parts, strict=False)]
        one_type = len({part.partition("[")[0] for own in parts for part in own}) == 1
        for id_, own in alike:
            told = [part for i, part in enumerate(own) if i >= len(same) or not same[i]]
            made[id_] = _sizes(told or own, types=not one_type)
    return made


def _sizes(parts: Sequence[str], *, types: bool) -> str:
    """ "bf16[4,512]·[512,512]" of "bf16[4,512]", "bf16[512,512]"; without `types` the first has none either."""
    shown: list[str] = []
    before = "" if types else parts[0].partition("[")[0]
    for part in parts:
        dtype, bracket, sizes = part.partition("[")
        shown.append(f"[{sizes}" if bracket and dtype == before else part)
        before = dtype if bracket else ""
    return "·".join(shown)


def op_cell(result: OpResult) -> OpCell:
    """The op with its arguments, or with the reason where it is not replayed."""
    if result.status == "replayed":
        return OpCell(name=result.name, detail=result.inputs)
    detail = result.inputs if result.reason is None else str(result.reason).removeprefix("failed: ")
    return OpCell(name=result.name, detail=detail, style=STYLES[result.status])


def totals_table(header: Header | None, results: Sequence[OpResult], *, device: bool) -> Table:
    """All calls together, one row a clock, with ratios to the recorded time."""
    recorded = "recorded" if device else "recorded (host)"
    table = plain_table()
    table.add_column(Text("all calls"), no_wrap=True)
    sums = totals(results, device=device, header=header)
    timed = not all(is_untimed(r) for r in results)
    for total in sums:
        table.add_column(Text(total.label), justify="right", no_wrap=True)
        if timed:
            table.add_column(Text(RATIO), justify="right", no_wrap=True, style="dim")
    for title, pick in _clocks(results, recorded):
        cells: list[str] = []
        for total in sums:
            value = pick(total)
            star = mark(results) if title == MEASURED and value is not None else ""
            cells.append(time_text(value) + star)
            if timed:
                cells.append("" if title == recorded else ratio_text(value, total.recorded_us))
        table.add_row(*map(Text, (title, *cells)))
    return table


def _clocks(results: Sequence[OpResult], recorded: str) -> list[tuple[str, Callable[[Totals], float | None]]]:
    """Title of each clock and what it reads in a sum."""
    made: list[tuple[str, Callable[[Totals], float | None]]] = [(MEASURED, lambda total: total.measured_us)]
    if not all(is_untimed(r) for r in results):
        made.insert(0, (recorded, lambda total: total.recorded_us))
    return made + [(safe(soc), lambda total, soc=soc: total.simulated_us.get(soc)) for soc in socs_of(results)]
