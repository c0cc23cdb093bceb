# pyright: strict
"""The traces of one job's ranks, read with their timing; owns which rank each file is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opreplay.replay.batch.ranks import rank_in_name, recognised
from opreplay.replay.batch.reading import find_files
from opreplay.traces import Trace
from opreplay.traces.errors import TraceError, UsageError

Tell = Callable[[str], None]


def open_ranks(patterns: Sequence[str], read: Callable[[str], Trace], tell: Tell) -> list[tuple[int, Trace]]:
    """(rank, trace) of each file that paths, globs and folders mean, by rank.

    A file of a folder that is no trace is passed over, and told. The rank is recorded, else in the file's name, else
    the file's place among those given, where none has one, and told. Raises UsageError for fewer than two traces, for
    traces of several jobs, and where some have a rank and others have none; what `read` raises for a named file.
    """
    found: list[tuple[str, Trace]] = []
    for file in find_files(patterns):
        if file.left_out:
            tell(f"{file.path} left out: {file.left_out}")
            continue
        try:
            found.append((file.path, read(file.path)))
        except TraceError as error:
            if file.named:
                raise
            tell(f"{file.path} left out: {error}")
    if len(found) < 2:
        raise UsageError(
            f"--ranks needs the traces of two ranks or more, found {len(found)}",
            hint="Name them one after the other, or the folder that holds them.",
        )
    ranks = [rank_in_name(path) if trace.info.rank is None else trace.info.rank for path, trace in found]
    if all(rank is None for rank in ranks):
        tell("no trace tells its rank: they are numbered in the order given")
        ranks = list(range(len(found)))
    nameless = [path for (path, _), rank in zip(found, ranks, strict=True) if rank is None]
    if nameless:
        raise UsageError(
            f"{nameless[0]} does not tell its rank, others do", hint="Put it into its name: rank3.json.gz."
        )
    _one_job([path for path, _ in found], [trace for _, trace in found], patterns)
    pairs = [(rank, trace) for rank, (_, trace) in zip(ranks, found, strict=True) if rank is not None]
    return sorted(pairs, key=lambda pair: pair[0])


def _one_job(paths: Sequence[str], traces: Sequence[Trace], patterns: Sequence[str]) -> None:
    """Raise UsageError for a folder that holds recordings of several jobs; who names files knows what they are."""
    if len(patterns) == len(paths):
        return
    members = recognised(paths, [(trace.info.rank, trace.info.world_size) for trace in traces])
    jobs = sorted({one.job for one in members if one.rank is not None})
    if len(jobs) > 1:
        raise UsageError(
            f"{len(paths)} files are of {len(jobs)} jobs: {', '.join(jobs)[:300]}",
            hint="Name the files of one of them.",
        )
