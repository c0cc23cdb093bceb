# pyright: strict
"""Align two sequences of op names, one of which partly repeats the other.

Names are given as numbers (tokens); shapes are not used. A profile often contains many iterations, but its
ExecutionTrace only one. So each part of the long sequence is looked up in the short one. The longest match wins, and if
possible it begins in the short sequence where the previous match ended. Such a match is called a run. Ambiguous matches
are marked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np

from opreplay.traces.arrays import Ints

Tokens = Ints

GRAM = 6
"""Minimum number of consecutive equal tokens needed to locate a run that does not continue a previous run."""
MOST_CANDIDATES = 64
"""Maximum number of positions that are examined for each sequence of `GRAM` tokens."""
WINDOW = 32
"""Maximum number of tokens that may be missing or added between two consecutive runs."""
_LEAST_RESUMED = 2


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`length` tokens from position `start` of the long sequence. The short sequence has equal tokens at each of
    `places`.
    """

    start: int
    length: int
    places: tuple[int, ...]
    """The position in the short sequence; several positions if they match equally well."""


class Aligner:
    """Finds runs: parts of a long sequence that also occur in one short sequence.

    If the short sequence is put together from several, tokens that occur nowhere else must separate them.
    """

    def __init__(self, short: Tokens) -> None:
        self._short = short
        self._list: list[int] = short.tolist()
        self._grams: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for at in range(len(short) - GRAM + 1):
            places = self._grams[tuple(self._list[at : at + GRAM])]
            if len(places) < MOST_CANDIDATES:
                places.append(at)

    def runs(self, long: Tokens) -> Iterator[Run]:
        """Yield the runs of `long` in order; runs do not overlap."""
        tokens: list[int] = long.tolist()
        at, expected, skipped = 0, -1, 0
        while at < len(tokens):
            run = self._run_at(long, tokens, at, expected if skipped <= WINDOW else -1)
            if run is None:
                at += 1
                skipped += 1
                continue
            yield run
            at += run.length
            expected = run.places[0] + run.length if len(run.places) == 1 else -1
            skipped = 0

    def _run_at(self, long: Tokens, tokens: list[int], at: int, expected: int) -> Run | None:
        resumed = self._resume(long, tokens, at, expected)
        lengths = {place: self._common(long, at, place) for place in self._grams.get(tuple(tokens[at : at + GRAM]), ())}
        longest = max(lengths.values(), default=0)
        if resumed is not None and 2 * resumed.length >= longest:
            return resumed
        if not lengths:
            return None
        return Run(start=at, length=longest, places=tuple(p for p, length in lengths.items() if length == longest))

    def _resume(self, long: Tokens, tokens: list[int], at: int, expected: int) -> Run | None:
        """Return the run that continues where the last one stopped, even if either sequence skips a few tokens."""
        if expected < 0:
            return None
        pair = tokens[at : at + _LEAST_RESUMED]
        for place in range(expected, min(expected + WINDOW, len(self._list))):
            if self._list[place : place + _LEAST_RESUMED] == pair:
                return Run(start=at, length=self._common(long, at, place), places=(place,))
        return None

    def _common(self, long: Tokens, at: int, place: int) -> int:
        """Return how many tokens are equal in both sequences, from position `at` and from position `place` on."""
        done, step = 0, 64
        longest = min(len(long) - at, len(self._short) - place)
        while done < longest:
            stop = min(done + step, longest)
            unequal = np.flatnonzero(long[at + done : at + stop] != self._short[place + done : place + stop])
            if len(unequal):
                return done + int(unequal[0])
            done, step = stop, 2 * step
        return longest
