# pyright: strict
"""Find calls that replaced others: the calls of two steps are aligned in order, by op name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import msgspec

ALIKE = 0.5
"""Minimum similarity of two steps (share of calls in a common order). Below it, they count as different programs."""
ALIGNED = 2000
"""Maximum number of calls aligned, from the start of a step. Layers repeat, and alignment takes quadratic time."""
LEAST_SHARE = 0.005
"""Minimum time of a replacement on either side, as a share of the time of the longer step."""
LONGEST = 12
"""Maximum number of calls in a replacement. Longer differences count as a different program."""


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a step."""

    id: str
    name: str
    us: float


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of the first step that the second step replaces by other calls. Times are sums over all such places."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    places: int
    before_us: float
    after_us: float

    @property
    def change_us(self) -> float:
        """Return the change of the step's time."""
        return self.after_us - self.before_us


def _names(calls: Sequence[StepCall]) -> list[str]:
    return [call.name for call in calls]


def _us(calls: Sequence[StepCall]) -> float:
    return sum(call.us for call in calls)


def replacements(before: Sequence[StepCall], after: Sequence[StepCall]) -> tuple[Replaced, ...]:
    """Return sequences of calls that differ between two steps, most time first. The calls around them are equal.

    A sequence is considered only if it contains an op that its step calls more often than the other step does.
    """
    first, second = before[:ALIGNED], after[:ALIGNED]
    names = _names(first), _names(second)
    aligned = SequenceMatcher(None, *names, autojunk=False)
    if aligned.ratio() < ALIKE:
        return ()
    calls = Counter(_names(before)), Counter(_names(after))
    fewer, more = calls[0] - calls[1], calls[1] - calls[0]
    by_names: dict[tuple[tuple[str, ...], tuple[str, ...]], Replaced] = {}
    for what, i, j, k, m in aligned.get_opcodes():
        if what != "replace" or max(j - i, m - k) > LONGEST:
            continue
        key = tuple(names[0][i:j]), tuple(names[1][k:m])
        if not fewer.keys() & key[0] or not more.keys() & key[1]:
            continue
        known = by_names.get(key, Replaced(before=key[0], after=key[1], places=0, before_us=0.0, after_us=0.0))
        by_names[key] = msgspec.structs.replace(
            known,
            places=known.places + 1,
            before_us=known.before_us + _us(first[i:j]),
            after_us=known.after_us + _us(second[k:m]),
        )
    least_us = LEAST_SHARE * max(_us(before), _us(after))
    worth = [run for run in by_names.values() if max(run.before_us, run.after_us) >= least_us]
    return tuple(sorted(worth, key=lambda run: -max(run.before_us, run.after_us)))
