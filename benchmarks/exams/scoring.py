# pyright: strict
"""Figures of an exam: predicted against measured times, in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import NamedTuple

from opreplay.replay.ascend.measured.accuracy import Compared, Errors, errors_of

Figures = dict[str, float]
"""Name of a figure → its value; times and shares in percent, counts as they are."""


class Result(NamedTuple):
    """What an exam found."""

    figures: Figures
    worst: tuple[str, ...] = ()
    """One line each: the rows or violations that count most, worst first."""
    details: Mapping[str, Figures] = MappingProxyType({})
    """Figures of parts, for documents; they have no threshold."""


def score(rows: Sequence[Compared], asked: int, *, per_op: bool = False, band: bool = True) -> Result:
    """Figures of the rows that have a prediction, of `asked` rows that say what was measured.

    `median` is that of |predicted / measured - 1| over unique rows, `weighted` the error weighted by time, `sum` the
    signed error of the sum. `per_op` adds the median of the medians of each op, so that an op with many rows counts no
    more than another. `band` is False for predictions without a band. Raises ValueError for no rows.
    """
    if not rows:
        raise ValueError("no row has a prediction")
    errors = errors_of(rows)
    figures: Figures = {
        "rows": len(rows),
        "asked": asked,
        "median": 100 * errors.median_ape,
        "weighted": 100 * errors.wape,
        "within_25": 100 * errors.within_25,
        "within_2x": 100 * fmean(0.5 <= row.predicted_us / row.measured_us <= 2 for row in rows),
        "sum": 100 * errors.total_error,
    }
    if band:
        figures["in_band"] = 100 * errors.in_band
    if per_op:
        ops: dict[str, list[float]] = {}
        for row in rows:
            ops.setdefault(row.call.type, []).append(row.ape)
        figures |= {"ops": len(ops), "per_op": 100 * median(map(median, ops.values()))}
    ordered = sorted(rows, key=lambda row: -max(row.predicted_us / row.measured_us, row.measured_us / row.predicted_us))
    return Result({name: round(value, 1) for name, value in figures.items()}, tuple(map(shown, ordered)))


def figures_of(errors: Errors) -> Figures:
    """The figures that errors of the product hold, in percent."""
    return {
        "rows": errors.n,
        "median": round(100 * errors.median_ape, 1),
        "weighted": round(100 * errors.wape, 1),
        "within_25": round(100 * errors.within_25, 1),
        "in_band": round(100 * errors.in_band, 1),
        "sum": round(100 * errors.total_error, 1),
    }


def shown(row: Compared) -> str:
    """A row as one line."""
    shapes = " ".join(f"{spec.dtype}{list(spec.shape)}" for spec in row.call.inputs if spec is not None)
    return (
        f"{row.predicted_us / row.measured_us:7.2f} x: predicted {row.predicted_us:.4g} us ({row.low_us:.4g} to "
        f"{row.high_us:.4g}), measured {row.measured_us:.4g} us: {row.call.type} {shapes[:120]}"
    )
