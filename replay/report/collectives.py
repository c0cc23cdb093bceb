# pyright: strict
"""What every report says of collectives: the rates that users of nccl-tests know, recorded, measured, simulated."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.collectives.mapping import size_text
from opreplay.replay.collectives.model import Bandwidth, CollectiveFacts
from opreplay.replay.ir.describe import SHORT_DTYPES
from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.text import DASH, digits, plural, time_text
from opreplay.replay.results.records import OpResult

MAX_ROWS = 40
WIDE = 124
"""Characters that the whole table needs without simulated devices; each of those needs `WIDE_SOC` more."""
WIDE_SOC = 20
NARROW = ("collective", "size", "ranks", "time", "busbw", "wait", "check")
"""What is shown where there is less room; the first of two of a name."""
HEADERS = ("collective", "size", "ranks", "time", "algbw", "busbw", "wait", "recorded", "busbw", "check")
"""Of a table, before one column a simulated device; bandwidths in GB/s."""


def of_collectives(results: Sequence[OpResult]) -> list[tuple[OpResult, CollectiveFacts]]:
    """The results that are of collectives."""
    return [(result, result.collective) for result in results if result.collective is not None]


def headers(socs: Sequence[str]) -> list[str]:
    """The head of the table, in the order of `cells`."""
    return [*HEADERS, *(part for soc in socs for part in (soc, "busbw"))]


def cells(facts: CollectiveFacts, socs: Sequence[str]) -> list[str]:
    """One row; times a call, bandwidths in GB/s."""
    one, ran = facts.collective, facts.replayed
    recorded = "?" if one.group_size is None else str(one.group_size)
    ranks = recorded if ran is None or ran.ranks == one.group_size else f"{recorded} → {ran.ranks}"
    made = [
        f"{one.kind} {SHORT_DTYPES.get(one.dtype, one.dtype)}",
        size_text(facts.size_bytes),
        ranks,
        *_rates(facts.measured),
        time_text(None if ran is None else ran.wait_us),
        time_text(None if facts.recorded is None else facts.recorded.time_us),
        _rates(facts.recorded)[2],
        DASH if ran is None else ran.checked,
    ]
    for soc in socs:
        found = _rates(facts.simulated.get(soc))
        made += [found[0], found[2]]
    return made


def _rates(found: Bandwidth | None) -> tuple[str, str, str]:
    if found is None:
        return DASH, DASH, DASH
    return time_text(found.time_us), digits(found.algorithm_gb_s), digits(found.bus_gb_s)


def table(
    results: Sequence[OpResult], socs: Sequence[str], *, width: int, rows: int | None = MAX_ROWS
) -> list[RenderableType]:
    """One row a collective, at most `rows`, fitted to `width` characters; nothing where there is none."""
    found = of_collectives(results)
    if not found:
        return []
    whole = headers(socs)
    shown = range(len(whole)) if width >= WIDE + WIDE_SOC * len(socs) else [whole.index(name) for name in NARROW]
    made = plain_table()
    for place in shown:
        left = whole[place] in ("collective", "check")
        made.add_column(Text(whole[place]), justify="left" if left else "right", no_wrap=True)
    for _, facts in found[:rows]:
        style = "red" if facts.replayed is not None and facts.replayed.checked == "wrong" else ""
        row = cells(facts, socs)
        made.add_row(*(Text(row[place], style=style) for place in shown))
    rest = len(found) - len(found[:rows])
    more = [Text(f"… {plural(rest, 'more collective')}; --output FILE holds all", style="dim")] if rest > 0 else []
    if len(shown) < len(whole):
        more.append(Text(f"no room at {width} columns for algbw, recorded and simulated times of them", style="dim"))
    return [Text(), made, *more]


def notes(results: Sequence[OpResult]) -> list[str]:
    """What a reader must know of the collectives: what their times hold, and that they ran on other ranks."""
    found = of_collectives(results)
    if not found:
        return []
    notes: list[str] = []
    ran = [facts.replayed for _, facts in found if facts.replayed is not None]
    notes.append(
        "collectives: bandwidths in GB/s by the conventions of nccl-tests; a recorded time holds the wait for other "
        "ranks, wait is how long the first rank waited here for the last"
    )
    if mapped := [one for one in ran if one.ranks_recorded is not None and one.ranks_recorded > one.ranks]:
        notes.append(
            f"collectives: {len(mapped)} of {plural(len(ran), 'collective')} ran on fewer ranks than recorded: the "
            "message (of an all-to-all what leaves a rank) is as recorded; links, algorithm and number of steps are "
            "those of the ranks here, so times do not stand for the recorded group"
        )
    if unknown := sum(one.ranks_recorded is None for one in ran):
        notes.append(f"collectives: the group of {unknown} is not recorded: all ranks here took part")
    if cut := sum("for memory" in one.mapping for one in ran):
        notes.append(f"collectives: {cut} ran on a part of the message, for memory; times are scaled up to the whole")
    return notes
