# pyright: strict
"""Sums by key, and their shares of the total."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def summed(amounts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Sum the amounts of each key; keys are in order of first occurrence."""
    sums: dict[Key, float] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0.0) + amount
    return sums


def shares(sums: Mapping[Key, float]) -> dict[Key, float]:
    """Return each key's share of the total, largest first; empty if the total is 0."""
    whole = sum(sums.values())
    return {key: amount / whole for key, amount in sorted(sums.items(), key=lambda item: -item[1])} if whole else {}
