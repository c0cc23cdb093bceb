# pyright: strict
"""Which ExecutionTrace belongs to which trace of a batch: told by names, folders and ranks, never by guessing.

Owns the choice between files; reading and joining them is `opreplay.traces.joins.execution_trace`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import PurePath

from opreplay.replay.batch.ranks import rank_in_name
from opreplay.traces.errors import UsageError

_WORDS = re.compile(r"[A-Za-z]+|\d+")
KINDS = frozenset(
    (
        "et",
        "execution",
        "trace",
        "traces",
        "chakra",
        "kineto",
        "pytorch",
        "torch",
        "pt",
        "profile",
        "profiler",
        "host",
        "device",
        "json",
        "gz",
    )
)
"""Words of file names that say what kind of file it is, not of what run or rank."""


def pair(
    traces: Sequence[str], donors: Sequence[str], rank_of: Callable[[str], int | None] = lambda path: None
) -> dict[str, str]:
    """Trace → its ExecutionTrace, for those that have one.

    Of the donors with the trace's name, apart from words such as "kineto" and "et", or else with its rank, the one that
    lies nearest. The rank is in the path, or `rank_of` tells it. A single donor belongs to a single trace anyhow.
    Raises UsageError where two donors fit a trace equally well, or one is the only choice of two traces.
    """
    if len(traces) == len(donors) == 1:
        return {traces[0]: donors[0]}
    ranks = {path: _rank(path, rank_of) for path in (*traces, *donors)}
    pairs: dict[str, str] = {}
    for trace in traces:
        fitting = [d for d in donors if _bare(d) == _bare(trace) and _may_be(ranks[d], ranks[trace])]
        if not fitting and ranks[trace] is not None:
            fitting = [d for d in donors if ranks[d] == ranks[trace]]
        if fitting:
            pairs[trace] = _nearest(trace, fitting)
    taken: dict[str, str] = {}
    for trace, donor in pairs.items():
        if donor in taken:
            raise UsageError(
                f"{donor} fits both {taken[donor]} and {trace}", hint="Give the traces of one run at a time."
            )
        taken[donor] = trace
    return pairs


def _rank(path: str, rank_of: Callable[[str], int | None]) -> int | None:
    named = rank_in_name(path)
    return rank_of(path) if named is None else named


def _may_be(rank: int | None, other_rank: int | None) -> bool:
    return rank is None or other_rank is None or rank == other_rank


def _bare(path: str) -> tuple[str, ...]:
    """Words and numbers of a file's name, without those that tell its kind."""
    return tuple(word for word in _WORDS.findall(PurePath(path).name.lower()) if word not in KINDS)


def _nearest(trace: str, donors: Sequence[str]) -> str:
    """The donor whose folder has most in common with the trace's. Raises UsageError for two of them."""
    common = {donor: _in_common(PurePath(trace).parent.parts, PurePath(donor).parent.parts) for donor in donors}
    best = max(common.values())
    nearest = [donor for donor in donors if common[donor] == best]
    if len(nearest) > 1:
        raise UsageError(
            f"{nearest[0]} and {nearest[1]} both fit {trace}",
            hint="Name the ExecutionTraces of one run, with the rank in their names.",
        )
    return nearest[0]


def _in_common(folders: tuple[str, ...], other_folders: tuple[str, ...]) -> tuple[int, int]:
    """Folders that two paths share from the top, then from the bottom: `et/run1` is nearest to `kineto/run1`."""
    top = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(folders, other_folders, strict=False)))
    below = zip(reversed(folders[top:]), reversed(other_folders[top:]), strict=False)
    return top, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], below))
