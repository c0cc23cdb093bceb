"""`slower>5%`, `total>3%`, `lost>0`: conditions on a comparison that a build can fail on; own no comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.results.compare.judge import Comparison
from opreplay.traces.errors import UsageError

_CONDITION = re.compile(r"\s*(slower|total|lost)\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What must not be."""

    what: Literal["slower", "total", "lost"]
    """An op that became slower, the sum over all ops, the number of ops that are no longer replayed."""
    limit: float
    """A share, or a number of ops for "lost"."""

    def __str__(self) -> str:
        return f"{self.what}>{self.limit:g}" if self.what == "lost" else f"{self.what}>{100 * self.limit:g}%"

    def violations(self, found: Comparison) -> list[str]:
        """One line for each thing that breaks it; none where it holds."""
        if self.what == "lost":
            lost = found.of("lost")
            return [f"{self}: {len(lost)} ops are no longer replayed"] if len(lost) > self.limit else []
        if self.what == "total":
            ratio = found.total_growth
            return [f"{self}: {ratio:.3f}×"] if ratio is not None and ratio > 1.0 + self.limit else []
        slow = [op for op in found.of("slower") if (op.growth or 1.0) > 1.0 + self.limit]
        return [f"{self}: {op.name} {op.growth or 0.0:.3f}×" for op in slow]


def violations(conditions: Sequence[Condition], found: Comparison) -> list[str]:
    """What breaks the conditions, one line each. Runs without an op in common hold none: nothing was looked at."""
    if conditions and not any(op.ratio is not None for op in found.ops):
        return ["no op was measured in both runs"]
    return [line for condition in conditions for line in condition.violations(found)]


def parse_condition(text: str) -> Condition:
    """ "slower>5%" → Condition. Raises UsageError for anything else."""
    match = _CONDITION.fullmatch(text)
    if match is None or (match[1] == "lost") == bool(match[3]):
        raise UsageError(f"{text!r} is no condition", hint="Write it like 'slower>5%', 'total>3%' or 'lost>0'.")
    what: Literal["slower", "total", "lost"] = match[1]  # type: ignore[assignment]
    return Condition(what=what, limit=float(match[2]) * (0.01 if match[3] else 1.0))
