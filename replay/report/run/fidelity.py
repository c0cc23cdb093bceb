# pyright: strict
"""How faithful the replayed calls were, in words; the verdicts themselves are `opreplay.replay.execute.fidelity`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from opreplay.replay.report.text import plural, safe
from opreplay.replay.results import stats
from opreplay.replay.results.records import Fidelity, OpResult

NAMED = 3
"""Ops that a note names."""


def fidelity_notes(results: Sequence[OpResult]) -> list[str]:
    """One line on kernels or child ops and times over all ops, and one that names ops that differ."""
    checked = [(r, r.fidelity) for r in results if r.fidelity is not None]
    if not checked:
        return []
    parts = [
        f"{what}: {text}"
        for what, verdicts in (
            ("kernels", Counter(f.kernels for _, f in checked)),
            ("child ops", Counter(f.children for _, f in checked)),
        )
        if (text := _counted(verdicts))
    ]
    ratios = sorted(f.time_ratio for _, f in checked if f.time_ratio is not None)
    if ratios:
        low, middle, high = (stats.quantile(ratios, q) for q in (0.25, 0.5, 0.75))
        parts.append(f"times {middle:.2f}× those recorded (quartiles {low:.2f}× to {high:.2f}×)")
    lines = [f"fidelity of {plural(len(checked), 'op')}: {'; '.join(parts) or 'nothing recorded to compare with'}"]
    differing = [(r, f) for r, f in checked if "differ" in (f.kernels, f.children)]
    if differing:
        lines.append(f"fidelity: differ most by time: {'; '.join(_difference(r, f) for r, f in differing[:NAMED])}")
    return lines


def fidelity_cell(result: OpResult) -> str:
    """ "kernels match", "child ops differ: -aten::t"; empty where nothing was compared."""
    fidelity = result.fidelity
    if fidelity is None:
        return ""
    said = [
        f"{what} {verdict}"
        for what, verdict in (("kernels", fidelity.kernels), ("child ops", fidelity.children))
        if verdict in ("match", "differ")
    ]
    if fidelity.time_ratio is not None:
        said.append(f"time {fidelity.time_ratio:.3g}×")
    return ", ".join([*said, *([fidelity.note] if fidelity.note else [])])


def _counted(verdicts: Counter[str]) -> str:
    """ "3 match, 1 differ"; empty where there was nothing to compare."""
    return ", ".join(f"{verdicts[v]:,} {v}" for v in ("match", "differ") if verdicts[v])


def _difference(result: OpResult, fidelity: Fidelity) -> str:
    changes = [*(f"-{name}" for name in fidelity.missing), *(f"+{name}" for name in fidelity.extra)]
    return f"{safe(result.name)} ({_short(changes) or 'other order'})"


def _short(changes: Iterable[str]) -> str:
    names = [safe(change) for change in changes]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
