# pyright: strict
"""What predictions stand for, in words and as facts: shares of the recorded time by what made them."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.ascend.simulate.coverage import Coverage, coverage
from opreplay.replay.ir.kernel import Confidence
from opreplay.replay.report.text import share_text
from opreplay.replay.results.records import OpResult

CONFIDENCE: dict[Confidence, str] = {"uncalibrated": "uncalibrated", "other SoC": "calibrated on another SoC only"}
"""What is said of predictions that rest on no measurement of their device."""
LEAST = 0.0005
"""Shares below this print as 0.0 %."""


def coverage_text(covered: Coverage, clock: str) -> str:
    """ "41.0 % of device time by rules, 52.0 % by bytes only, 7.0 % not predicted"; what is nothing is left out."""
    parts = [
        (covered.users, "by code of yours"),
        (covered.rules, "by rules"),
        (covered.invented, "on invented sizes"),
        (covered.bytes, "by bytes only"),
    ]
    shown = [(share, how) for share, how in parts if share > 0] or [(0.0, "by rules")]
    if covered.nothing >= LEAST:
        shown.append((covered.nothing, "not predicted"))
    (first, how), *others = shown
    return ", ".join(
        [f"{share_text(first)} of {clock} {how}", *(f"{share_text(share)} {how}" for share, how in others)]
    )


def coverage_by_share(soc: str, results: Sequence[OpResult]) -> tuple[dict[str, float], Coverage, str]:
    """Op id → share of the recorded time, of the ops where none was recorded; what predictions of a device cover; and
    what these shares are of."""
    timed = any(r.recorded_share > 0 for r in results)
    shares = {r.id: r.recorded_share if timed else 1 / len(results) for r in results}
    covered = coverage((shares[r.id], r.simulated.get(soc)) for r in results)
    return shares, covered, "recorded time" if timed else "ops"


def coverage_facts(covered: Coverage) -> dict[str, float]:
    """Shares from 0 to 1 by what made the prediction."""
    return {name: getattr(covered, name) for name in ("users", "rules", "invented", "bytes", "nothing")}
