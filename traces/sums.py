# pyright: strict
"""Sums of amounts by what they belong to, and its shares of the whole."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def summed(amounts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """The sum of each key's amounts, in the order of first keys."""
    sums: dict[Key, float] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0.0) + amount
    return sums


def shares(sums: Mapping[Key, float]) -> dict[Key, float]:
    """What each key has of the whole, largest first; none of nothing."""
    whole = sum(sums.values())
    return {key: amount / whole for key, amount in sorted(sums.items(), key=lambda item: -item[1])} if whole else {}
