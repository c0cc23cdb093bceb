# pyright: strict
"""The files of a batch on their way to one merged plan: found, paired, read or taken from before, and told of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opreplay.replay.batch.merge import Batch, TracePlan
    from opreplay.replay.batch.plan_store import PlanStore
    from opreplay.replay.batch.reading import Found, HowToRead, Unreadable
    from opreplay.replay.plan.selection import Selection
    from opreplay.traces import Limits


Tell = Callable[[str], None]
"""Takes a line that a person should see."""
NAMED = 3
"""Files that one line names."""


def find_and_pair(
    patterns: Sequence[str],
    donors: Sequence[str],
    selection: Selection,
    *,
    device: str,
    limits: Limits,
    plugins: Sequence[str],
    children: bool,
    tell: Tell,
) -> tuple[list[Found], HowToRead]:
    """The files to read and how; ExecutionTraces that are paired with a trace are no traces of their own.

    Raises UsageError where no trace has one, or as `find_files` and `pair` do.
    """
    from opreplay.replay.batch.pairing import pair
    from opreplay.replay.batch.ranks import rank_at_start
    from opreplay.replay.batch.reading import HowToRead, find_files
    from opreplay.traces.errors import UsageError

    files, pairs = find_files(patterns), {}
    given = {os.path.realpath(found.path): found.path for found in (find_files(donors) if donors else ())}
    files = [file for file in files if os.path.realpath(file.path) not in given]
    read = [file.path for file in files if not file.left_out]
    if donors:
        pairs = pair(read, list(given.values()), rank_at_start)
        if not pairs:
            raise UsageError(
                "no trace has an ExecutionTrace among those of --execution-trace",
                hint="They are paired by name or by rank: name them like their traces, e.g. et_rank3.json.",
            )
        if without := [path for path in read if path not in pairs]:
            tell(f"{len(without)} of {len(read)} traces have no ExecutionTrace: {some(without)}")
        if unused := [path for path in given.values() if path not in pairs.values()]:
            tell(f"{len(unused)} of {len(given)} ExecutionTraces have no trace: {some(unused)}")
    return files, HowToRead(
        selection=selection,
        device=device,
        limits=limits,
        plugins=tuple(plugins),
        execution_traces=pairs,
        children=children,
        timed=len(list(islice((file for file in read if rank_at_start(file) is not None), 2))) == 2,
    )


def read_batch(
    files: Sequence[Found],
    how: HowToRead,
    store: PlanStore | None,
    *,
    lanes: int | None,
    engine: str,
    address: str | None,
    tell: Tell,
    progress: Callable[[int, int], None],
) -> tuple[Batch, list[Unreadable]]:
    """All files that can be read, merged, and those that were refused: named by the user, or damaged in a folder.

    Files whose plan is in the store and that are as they were are not read again; others are put there. Files of a
    folder that are sound JSON but no traces are told of and left out, as are copies. Raises the error of the first file
    when none can be read.
    """
    from opreplay.replay.batch.merge import Batch
    from opreplay.replay.batch.reading import Unreadable
    from opreplay.traces.errors import TraceError, UsageError

    batch, first = Batch(), None
    refused: list[Unreadable] = []
    for file in files:
        if file.left_out:
            tell(f"left out: {file.path}: {file.left_out}")
            batch.leave_out(file.path, file.left_out, refused=False)
    special, files = [file.path for file in files if file.left_out], [file for file in files if not file.left_out]
    if not files:
        raise UsageError(f"there is no regular file among {some(special)}", hint="Name a pipe itself to have it read.")
    plans = _plans([file.path for file in files], how, store, lanes=lanes, engine=engine, address=address, tell=tell)
    for index, (file, one) in enumerate(zip(files, plans, strict=True), start=1):
        progress(index, len(files))
        if not isinstance(one, Unreadable):
            batch.add(one)
            for note in one.notes:
                tell(f"{one.path}: {note.removeprefix('opreplay: ')}")
            continue
        first = first or one
        counts = file.named or not one.no_trace
        tell(f"{'refused' if counts else 'left out'}: {one.path}: {one.message}")
        batch.leave_out(one.path, one.message, refused=counts)
        if counts:
            refused.append(one)
    if store is not None and store.problem is not None:
        tell(f"opreplay: plans are not kept in {store.path}: {store.problem}; --resume reads traces again")
    if not len(batch) and first is not None:
        error = TraceError("none of the files could be read", hint=first.hint)
        error.exit_code = first.exit_code
        raise error
    return batch, refused


def _plans(
    paths: Sequence[str],
    how: HowToRead,
    store: PlanStore | None,
    *,
    lanes: int | None,
    engine: str,
    address: str | None,
    tell: Tell,
) -> Iterator[TracePlan | Unreadable]:
    """The plan of each file, in order: from the store, or read here, by processes or on a cluster."""
    from opreplay.replay.batch.merge import TracePlan
    from opreplay.replay.batch.reading import decoded, read_plans

    tables: dict[str, str | None] = {}
    kept: set[str] = set() if store is None else {path for path in paths if store.holds(path, how.files(path, tables))}
    to_read = [path for path in paths if path not in kept]
    if kept and store is not None:
        tell(f"plans of {len(kept)} of {len(paths)} traces are those in {store.path}")
    if not to_read:
        made: Iterator[TracePlan | Unreadable] = iter(())
    elif engine == "ray":
        from opreplay.replay.execute.processes.ray import map_files

        made = (decoded(data) for data in map_files(to_read, how.reader(), address=address))
    else:
        made = read_plans(to_read, how, processes=lanes or os.cpu_count() or 1)
    for path in paths:
        if store is not None and path in kept:
            yield store.load(path)
            continue
        one = next(made)
        if store is not None and isinstance(one, TracePlan):
            store.add(one)
        yield one


def some(paths: Sequence[str]) -> str:
    """The first of them, as a line names them."""
    return ", ".join(paths[:NAMED]) + (" ..." if len(paths) > NAMED else "")
