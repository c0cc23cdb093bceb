# pyright: strict
"""Parts that pages have in common: bars by family, points of a roofline, from simulated results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from opreplay.replay.ascend.cost.predict import BOUNDS, MOVING
from opreplay.replay.report.page.model import Bar, Bars, Point, Roofline
from opreplay.replay.report.table import Column
from opreplay.replay.results.records import OpResult, Simulated

MOST_BARS = 14
_ARITHMETIC, _MEMORY = ("cube", "vector"), ("hbm", "l2")


def bars_by_name(title: str, series: Mapping[str, Mapping[str, float]], note: str = "") -> Bars:
    """Series → name → µs, as bars beside each other; what is beyond `MOST_BARS` names is one bar of its own."""
    total: defaultdict[str, float] = defaultdict(float)
    for values in series.values():
        for name, us in values.items():
            total[name] = max(total[name], us)
    order = sorted(total, key=lambda name: (-total[name], name))
    shown, rest = order[:MOST_BARS], order[MOST_BARS:]
    bars = [Bar(name=name, values_us=tuple(times.get(name) for times in series.values())) for name in shown]
    if rest:
        sums = tuple(sum(times.get(name, 0.0) for name in rest) for times in series.values())
        bars.append(Bar(name=f"{len(rest)} others", values_us=sums))
    return Bars(title=title, series=tuple(series), bars=tuple(bars), note=note)


def point_of(name: str, detail: str, simulated: Simulated, share: float) -> Point:
    """One op of a roofline."""
    terms: defaultdict[str, float] = defaultdict(float)
    for term, us in simulated.terms_us.items():
        if term != MOVING:  # a core's time, and no arithmetic
            terms[BOUNDS.get(term, term)] += us
    return Point(
        name=name,
        detail=detail,
        bound=simulated.bound,
        time_us=simulated.time_us,
        arithmetic_us=max((terms[b] for b in _ARITHMETIC), default=0.0),
        memory_us=max((terms[b] for b in _MEMORY), default=0.0),
        share=share,
    )


def sums(results: Sequence[OpResult], column: Column[OpResult]) -> dict[str, float]:
    """Name of an op → what a column of times comes to, all calls."""
    out: defaultdict[str, float] = defaultdict(float)
    for result in results:
        us = column.value(result)
        if us is not None:
            out[result.name] += us * result.count
    return dict(out)


def roofline(soc: str, results: Sequence[OpResult]) -> Roofline:
    """All ops that are predicted on a device."""
    total = sum(r.simulated_us.get(soc, 0.0) * r.count for r in results) or 1.0
    return Roofline(
        device=soc,
        points=tuple(
            point_of(r.name, r.inputs, r.simulated[soc], r.simulated[soc].time_us * r.count / total)
            for r in results
            if soc in r.simulated
        ),
    )
