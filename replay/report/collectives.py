# pyright: strict
"""Collectives in every report: recorded, measured and simulated times, and bandwidths as nccl-tests defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opreplay.replay.collectives.mapping import size_text
from opreplay.replay.collectives.model import Bandwidth, CollectiveFacts
from opreplay.replay.ir.describe import SHORT_DTYPES
from opreplay.replay.report.table import TIME, Column, Table, Unit
from opreplay.replay.report.text import DASH, digits, plural
from opreplay.replay.results.records import OpResult

MAX_ROWS = 40
NARROW_DROP = 2
"""Drop priority of the columns that narrow terminals omit first: algorithm bandwidth, recorded and simulated times."""
_Call = tuple[OpResult, CollectiveFacts]
_Column = Column[_Call]
_SIZE = Unit(size_text, "int")
_RATE = Unit(lambda value: DASH if value is None else digits(value))
"""Unit of bandwidths: GB/s, as defined by nccl-tests."""


def of_collectives(results: Sequence[OpResult]) -> list[_Call]:
    """Return (result, facts of the collective) for each result of a collective."""
    return [(result, result.collective) for result in results if result.collective is not None]


def table(results: Sequence[OpResult], socs: Sequence[str]) -> Table[_Call]:
    """Return one row per collective, with times per call and bandwidths in GB/s."""
    columns = [
        _Column("collective", lambda row: f"{row[1].collective.kind} {_dtype(row[1])}", style=_style),
        _Column("size", lambda row: row[1].size_bytes, _SIZE, style=_style),
        _Column("ranks", _ranks, right=True, style=_style),
        *_rates("time", "measured", lambda facts: facts.measured, algorithm=True),
        _Column("wait", lambda row: row[1].replayed and row[1].replayed.wait_us, TIME, style=_style),
        *_rates("recorded", "recorded", lambda facts: facts.recorded, drop=NARROW_DROP),
        _Column("check", lambda row: row[1].replayed.checked if row[1].replayed else DASH, style=_style),
    ]
    for soc in socs:
        columns += _rates(soc, soc, lambda facts, soc=soc: facts.simulated.get(soc), drop=NARROW_DROP)
    return Table("Collectives", columns, of_collectives(results), noun="collective")


def _rates(
    title: str, name: str, of: Callable[[CollectiveFacts], Bandwidth | None], drop: float = 0, algorithm: bool = False
) -> list[_Column]:
    """Return columns for the time and the bandwidths that `of` returns. `algorithm` adds the algorithm bandwidth."""

    def rate(title: str, key: str, field: str, drop: float) -> _Column:
        unit = TIME if field == "time_us" else _RATE
        return _Column(title, lambda row: getattr(of(row[1]), field, None), unit, key=key, style=_style, drop=drop)

    columns = [rate(title, f"{name}_us", "time_us", drop)]
    columns += [rate("algbw", f"{name}_algbw", "algorithm_gb_s", NARROW_DROP + 1)] if algorithm else []
    return [*columns, rate("busbw", f"{name}_busbw", "bus_gb_s", drop)]


def _dtype(facts: CollectiveFacts) -> str:
    return SHORT_DTYPES.get(facts.collective.dtype, facts.collective.dtype)


def _ranks(row: _Call) -> str:
    size, ran = row[1].collective.group_size, row[1].replayed
    recorded = "?" if size is None else str(size)
    return recorded if ran is None or ran.ranks == size else f"{recorded} → {ran.ranks}"


def _style(row: _Call) -> str:
    return "red" if row[1].replayed is not None and row[1].replayed.checked == "wrong" else ""


def notes(results: Sequence[OpResult]) -> list[str]:
    """Return notes on what collectives' times include, and on collectives not run exactly as recorded."""
    calls = of_collectives(results)
    if not calls:
        return []
    notes: list[str] = []
    ran = [facts.replayed for _, facts in calls if facts.replayed is not None]
    notes.append(
        "collectives: bandwidths in GB/s as in nccl-tests; recorded times include the wait for other ranks; wait: how "
        "long the first rank to arrive waited for the last in this run"
    )
    if mapped := [
        replayed for replayed in ran if replayed.ranks_recorded is not None and replayed.ranks_recorded > replayed.ranks
    ]:
        notes.append(
            f"collectives: {len(mapped)} of {plural(len(ran), 'collective')} ran on fewer ranks than recorded: message "
            "sizes are as recorded (all-to-all: bytes sent per rank), but links, algorithm and number of steps are "
            "those of the ranks here, so times do not represent the recorded group"
        )
    if unknown := sum(replayed.ranks_recorded is None for replayed in ran):
        notes.append(f"collectives: the group of {unknown} is not recorded, so all ranks took part")
    if cut := sum("for memory" in replayed.mapping for replayed in ran):
        notes.append(
            f"collectives: {cut} ran on a part of the message to save memory; times are scaled up to the whole message"
        )
    return notes
