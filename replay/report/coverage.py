# pyright: strict
"""What predictions stand for, in words and as facts: shares of the recorded time by what made them."""

from __future__ import annotations

from opreplay.replay.ascend.simulate.coverage import Coverage
from opreplay.replay.report.text import share_text

LEAST = 0.0005
"""Shares below this print as 0.0 %."""


def coverage_text(coverage: Coverage, clock: str) -> str:
    """ "41.0 % of device time by rules, 52.0 % by bytes only, 7.0 % not predicted"; what is nothing is left out."""
    parts = [
        (coverage.users, "by code of yours"),
        (coverage.rules, "by rules"),
        (coverage.invented, "on invented sizes"),
        (coverage.bytes, "by bytes only"),
    ]
    shown = [(share, how) for share, how in parts if share > 0] or [(0.0, "by rules")]
    if coverage.nothing >= LEAST:
        shown.append((coverage.nothing, "not predicted"))
    (first, how), *others = shown
    text = f"{share_text(first)} of {clock} {how}"
    return ", ".join([text, *(f"{share_text(share)} {how}" for share, how in others)])


def coverage_facts(coverage: Coverage) -> dict[str, float]:
    """Shares from 0 to 1 by what made the prediction."""
    return {
        "users": coverage.users,
        "rules": coverage.rules,
        "invented": coverage.invented,
        "bytes": coverage.bytes,
        "nothing": coverage.nothing,
    }
